//! Copies of a transaction's blocks and their checksums, by several threads when there are many.

use std::sync::atomic::Ordering;

use polylane_base::sync::{Arc, Mutex, thread};
use polylane_sys::buffer::Buffer;

use crate::cache::MetaBlock;
use crate::format::journal::Tag;

/// Blocks that make another thread worth its start: it copies them in three times as long.
const BLOCKS_PER_THREAD: usize = 256;

/// The blocks' content as it goes to the log, sealed. Called while no handle exists. `spare`:
/// buffers to copy into, as long as there are any.
pub(super) fn out(
    blocks: &[Arc<MetaBlock>],
    spare: &mut Vec<Buffer>,
    threads_max: usize,
) -> Vec<Buffer> {
    let spare = Mutex::new(spare);
    let copy = |block: &Arc<MetaBlock>, (): &mut ()| {
        let spare = spare.lock().pop();
        copy_out(block, spare)
    };
    let mut nothing = vec![(); blocks.len()];
    each(blocks, &mut nothing, threads_max, &copy)
}

/// The tags of blocks and copies that go to the log.
pub(super) fn tags(
    blocks: &[Arc<MetaBlock>],
    copies: &mut [Buffer],
    threads_max: usize,
    tag: &(impl Fn(&Arc<MetaBlock>, &mut Buffer) -> Tag + Sync),
) -> Vec<Tag> {
    each(blocks, copies, threads_max, tag)
}

/// What `work` makes of each pair, in order.
fn each<T: Send, R: Send>(
    blocks: &[Arc<MetaBlock>],
    others: &mut [T],
    threads_max: usize,
    work: &(impl Fn(&Arc<MetaBlock>, &mut T) -> R + Sync),
) -> Vec<R> {
    let all = |blocks: &[Arc<MetaBlock>], others: &mut [T]| -> Vec<R> {
        blocks.iter().zip(others).map(|(block, other)| work(block, other)).collect()
    };
    let threads = (blocks.len() / BLOCKS_PER_THREAD).clamp(1, threads_max.max(1));
    let part = blocks.len().div_ceil(threads).max(1);
    let mut parts: Vec<_> = blocks.chunks(part).zip(others.chunks_mut(part)).collect();
    // The last part is this thread's own.
    let Some(own) = parts.pop() else { return Vec::new() };
    thread::scope(|scope| {
        let start = |(blocks, others)| scope.spawn(move || all(blocks, others));
        let threads: Vec<_> = parts.into_iter().map(start).collect();
        let own = all(own.0, own.1);
        let join = |thread: thread::ScopedJoinHandle<'_, Vec<R>>| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let mut done: Vec<R> = threads.into_iter().flat_map(join).collect();
        done.extend(own);
        done
    })
}

fn copy_out(block: &MetaBlock, spare: Option<Buffer>) -> Buffer {
    let mut data = block.data.write();
    block.seal(&mut data);
    block.home_is_old.store(true, Ordering::Release);
    block.closed_in.fetch_add(1, Ordering::AcqRel);
    let Some(mut copy) = spare else { return Buffer::copy_of(&data) };
    copy.copy_from_slice(&data);
    copy
}

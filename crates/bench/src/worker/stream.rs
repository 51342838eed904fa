//! One large file written 4 KiB at a time, as IOzone does (MultiLanes, FAST '14 §5.2.1), or 1 MiB
//! at a time, as Filebench's single-stream write.
//!
//! With a length in operations the file grows from nothing; with one in seconds the writer goes
//! around in [`FILE_BYTES`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use super::{BLOCK, DATA, LARGE, Step};

/// Size that the file ends up with.
const FILE_BYTES: u64 = 256 << 20;

/// Size that the stream of 1 MiB writes ends up with.
const STREAM_BYTES: u64 = 1 << 30;

/// 4 KiB at the end of the file, through the page cache.
pub(super) fn buffered(dir: &Path, _: u64) -> io::Result<Step> {
    let file = create(dir, 0)?;
    let block = [0x5a; BLOCK];
    Ok(Box::new(move |index| file.write_all_at(&block, index * BLOCK as u64 % FILE_BYTES)))
}

/// 4 KiB at the end of the file, past the page cache.
pub(super) fn direct(dir: &Path, _: u64) -> io::Result<Step> {
    let file = create(dir, libc::O_DIRECT)?;
    let mut memory = Box::new([0x5a; 2 * BLOCK]);
    let misfit = memory.as_ptr().addr() % BLOCK;
    let begin = (BLOCK - misfit) % BLOCK;
    Ok(Box::new(move |index| {
        let block = &mut memory[begin..begin + BLOCK];
        file.write_all_at(block, index * BLOCK as u64 % FILE_BYTES)
    }))
}

/// 1 MiB at the end of the file, through the page cache.
pub(super) fn large(dir: &Path, _: u64) -> io::Result<Step> {
    let file = create(dir, 0)?;
    let block = vec![0x5a; LARGE];
    Ok(Box::new(move |index| file.write_all_at(&block, index * LARGE as u64 % STREAM_BYTES)))
}

/// 4 KiB at every place of a file that is there and durable, in an order without pattern.
pub(super) fn random(dir: &Path, _: u64) -> io::Result<Step> {
    const BLOCKS: u64 = FILE_BYTES / BLOCK as u64;
    let (_, file) = super::filled(dir, FILE_BYTES)?;
    file.sync_all()?;
    let block = [0xa5; BLOCK];
    Ok(Box::new(move |index| {
        let place = permuted(index % BLOCKS, BLOCKS);
        file.write_all_at(&block, place * BLOCK as u64)
    }))
}

fn create(dir: &Path, flags: i32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(flags).open(dir.join(DATA))
}

/// A permutation of `0..count`, a power of two: multiplication by an odd number, and a shift of
/// high bits into low ones, are both undone by an inverse.
fn permuted(index: u64, count: u64) -> u64 {
    let mask = count - 1;
    let half = count.ilog2() / 2;
    let mixed = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
    (mixed ^ (mixed >> half)).wrapping_mul(0x2545_f491_4f6c_dd1d) & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_written_once() {
        let mut seen = vec![false; 65536];
        (0..65536).for_each(|index| seen[permuted(index, 65536) as usize] = true);
        assert!(seen.into_iter().all(|seen| seen));
    }
}

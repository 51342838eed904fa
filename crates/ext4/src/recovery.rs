//! Journal recovery: bring an image to the state of its last committed transaction.
//!
//! Three passes, as in Documentation/filesystems/ext4/journal.rst. *Scan* walks the log from its
//! tail and finds the last whole transaction. *Revoke* collects the blocks that older transactions
//! must not be replayed to. *Replay* writes the logged blocks home in order. Replaying twice gives
//! the same result, so a power cut here is harmless.
//!
//! A journal with checksum v1 has one sum for each transaction, which the scan compares. Where
//! commits were asynchronous, the commit block may be there and what is before it not: a wrong sum
//! then ends the log, like a missing commit block. But if the log goes on behind it, or commits
//! were not asynchronous, what was durable is damaged, and that is an error, as it is for Linux.

use polylane_sys::buffer::Buffer;
use rustc_hash::FxHashMap;

use crate::error::{Corrupt, Error, Result, Structure};
use crate::format::DeviceBlock;
use crate::format::journal::{BlockType, Codec, JournalSuperblock, Tag, TransactionSum};
use crate::io::BlockIo;

/// The journal's blocks on the device, in order.
#[derive(Default)]
pub struct JournalMap {
    /// Those that lie side by side are one.
    runs: Vec<Run>,
}

struct Run {
    /// Its first block's number in the journal.
    index: u32,
    start: DeviceBlock,
    count: u32,
}

impl JournalMap {
    /// Adds `count` blocks that lie side by side, the next ones of the journal.
    pub fn push(&mut self, start: DeviceBlock, count: u32) {
        let index = self.len();
        match self.runs.last_mut() {
            Some(last) if last.start.0 + u64::from(last.count) == start.0 => last.count += count,
            _ => self.runs.push(Run { index, start, count }),
        }
    }

    /// Blocks in the journal.
    pub fn len(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.index + run.count)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// The run that block `index` of the journal is in, and how far.
    fn find(&self, index: u32) -> (&Run, u32) {
        let behind = self.runs.partition_point(|run| run.index <= index);
        let run = &self.runs[behind - 1];
        (run, index - run.index)
    }

    /// Where block `index` of the journal is.
    pub fn device_block(&self, index: u32) -> DeviceBlock {
        let (run, within) = self.find(index);
        DeviceBlock(run.start.0 + u64::from(within))
    }

    /// How many blocks from `index` on, at most `count`, lie side by side on the device.
    pub fn run(&self, index: u32, count: u32) -> u32 {
        let (run, within) = self.find(index);
        (run.count - within).min(count)
    }
}

/// What recovery did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Recovered {
    /// Transactions found whole.
    pub transactions: u32,
    /// Blocks written home.
    pub blocks: u64,
    /// Sequence for the next transaction.
    pub next_sequence: u32,
}

struct Reader<'a> {
    io: &'a BlockIo,
    map: &'a JournalMap,
    codec: Codec,
    first: u32,
    end: u32,
    /// Transactions have one checksum each (v1).
    transaction_sums: bool,
    /// Commit blocks did not wait for the transactions that they end.
    async_commits: bool,
}

/// One transaction's part of the log.
struct Span {
    sequence: u32,
    /// Descriptors and revokes with their position.
    blocks: Vec<(u32, Buffer)>,
}

/// Replays what the journal holds. The caller resets the journal's tail afterwards.
///
/// # Errors
/// The device failed, or the log of a committed transaction is damaged: the image needs e2fsck.
pub fn recover(
    io: &BlockIo,
    map: &JournalMap,
    superblock: &JournalSuperblock,
) -> Result<Recovered> {
    let (first, end) = (superblock.first(), superblock.end());
    let reader = Reader {
        io,
        map,
        codec: superblock.codec(),
        first,
        end,
        transaction_sums: superblock.has_transaction_checksums(),
        async_commits: superblock.has_async_commits(),
    };
    if superblock.start() == 0 {
        let next_sequence = superblock.sequence();
        return Ok(Recovered { next_sequence, ..Recovered::default() });
    }
    let spans = reader.scan(superblock.start(), superblock.sequence())?;
    let revoked = reader.revoked(&spans)?;
    let mut done = Recovered { transactions: spans.len() as u32, ..Recovered::default() };
    for span in &spans {
        done.blocks += reader.replay(span, &revoked)?;
    }
    io.flush()?;
    // One number is left out: the torn transaction behind the last one had it.
    done.next_sequence = superblock.sequence().wrapping_add(done.transactions).wrapping_add(1);
    Ok(done)
}

/// Empties a log that is not wanted: the file system was closed after it. Returns the number for
/// the next transaction. It is behind all that the log may hold, each of which takes a block at
/// least: so nothing of it can ever follow a transaction of ours.
///
/// # Errors
/// The device failed.
pub fn forget(io: &BlockIo, map: &JournalMap, superblock: &mut JournalSuperblock) -> Result<u32> {
    let blocks = superblock.end() - superblock.first();
    let next = superblock.sequence().wrapping_add(blocks);
    superblock.set_tail(next, 0);
    let home = map.device_block(0);
    let mut block = io.read(home)?;
    let bytes = superblock.encode();
    block[..bytes.len()].copy_from_slice(&bytes);
    io.write_durable(home, block)?;
    Ok(next)
}

impl Reader<'_> {
    fn read(&self, index: u32) -> Result<Buffer> {
        Ok(self.io.read(self.map.device_block(index))?)
    }

    fn advance(&self, index: u32, count: u32) -> u32 {
        let size = self.end - self.first;
        self.first + (index - self.first + count % size) % size
    }

    fn damaged(index: u32, field: &'static str) -> Error {
        Corrupt::new(Structure::Journal, index.into(), field).into()
    }

    /// The transactions that committed, oldest first. What follows the last commit is not an error:
    /// a power cut leaves such tails.
    fn scan(&self, start: u32, sequence: u32) -> Result<Vec<Span>> {
        let (mut spans, mut at, mut walked) = (Vec::new(), start, 0);
        let mut span = Span { sequence, blocks: Vec::new() };
        let mut sum = TransactionSum::default();
        // Where the first transaction ends whose checksum is wrong.
        let mut torn = None;
        while walked < self.end - self.first {
            let block = self.read(at)?;
            let step = match Codec::header(&block) {
                Some((kind, found)) if found == span.sequence => match self.step(kind, &block) {
                    Step::Stop => break,
                    Step::Committed => {
                        let sum = std::mem::take(&mut sum);
                        torn = self.check_transaction(at, &block, sum, torn)?;
                        let next = span.sequence.wrapping_add(1);
                        let empty = Span { sequence: next, blocks: Vec::new() };
                        let whole = std::mem::replace(&mut span, empty);
                        spans.extend(torn.is_none().then_some(whole));
                        1
                    }
                    Step::Part(blocks) => {
                        self.add_to(&mut sum, at, (&block, blocks))?;
                        span.blocks.push((at, block));
                        blocks
                    }
                },
                _ => break,
            };
            at = self.advance(at, step);
            walked += step;
        }
        Ok(spans)
    }

    /// Takes a descriptor and what it describes, `blocks` in all, into the transaction's checksum,
    /// if it has one. Revokes are not in it.
    fn add_to(
        &self,
        sum: &mut TransactionSum,
        at: u32,
        (block, blocks): (&[u8], u32),
    ) -> Result<()> {
        if !self.transaction_sums || !is(block, BlockType::Descriptor) {
            return Ok(());
        }
        sum.add(block);
        for index in 1..blocks {
            sum.add(&self.read(self.advance(at, index))?);
        }
        Ok(())
    }

    /// Compares a transaction's checksum with its commit block, which is at `at`. Returns where the
    /// first one ends whose checksum is wrong: `torn`, or this one.
    fn check_transaction(
        &self,
        at: u32,
        commit: &[u8],
        sum: TransactionSum,
        torn: Option<u32>,
    ) -> Result<Option<u32>> {
        const FIELD: &str = "checksum of a transaction";
        if !self.transaction_sums {
            return Ok(None);
        }
        match (torn, Codec::transaction_ok(commit, sum)) {
            (None, true) => Ok(None),
            (None, false) if self.async_commits => Ok(Some(at)),
            (None, false) => Err(Self::damaged(at, FIELD)),
            (Some(torn), _) => Err(Self::damaged(torn, FIELD)),
        }
    }

    fn step(&self, kind: u32, block: &[u8]) -> Step {
        const DESCRIPTOR: u32 = BlockType::Descriptor as u32;
        const COMMIT: u32 = BlockType::Commit as u32;
        const REVOKE: u32 = BlockType::Revoke as u32;
        match kind {
            // A damaged block here belongs to the transaction that was being written: a torn tail.
            DESCRIPTOR | REVOKE if !self.codec.tail_ok(block) => Step::Stop,
            DESCRIPTOR => Step::Part(1 + self.codec.tags(block).len() as u32),
            REVOKE => Step::Part(1),
            COMMIT if !self.codec.commit_ok(block) => Step::Stop,
            // Its time says nothing: clocks are set back, and what was promised was promised.
            COMMIT => Step::Committed,
            _ => Step::Stop,
        }
    }

    /// For every revoked block the last transaction that revoked it.
    fn revoked(&self, spans: &[Span]) -> Result<FxHashMap<DeviceBlock, u32>> {
        let mut revoked = FxHashMap::default();
        for span in spans {
            let revokes = span.blocks.iter().filter(|(_, block)| is(block, BlockType::Revoke));
            for (at, block) in revokes {
                let homes = self.codec.revoked(block).map_err(|f| Self::damaged(*at, f))?;
                revoked.extend(homes.into_iter().map(|home| (home, span.sequence)));
            }
        }
        Ok(revoked)
    }

    fn replay(&self, span: &Span, revoked: &FxHashMap<DeviceBlock, u32>) -> Result<u64> {
        let mut written = 0;
        for (at, block) in span.blocks.iter().filter(|(_, b)| is(b, BlockType::Descriptor)) {
            let tags = self.codec.tags(block);
            for (index, tag) in tags.iter().enumerate() {
                let newer = |by: &u32| by.wrapping_sub(span.sequence) as i32 >= 0;
                if revoked.get(&tag.home).is_none_or(|by| !newer(by)) {
                    self.restore(self.advance(*at, 1 + index as u32), span.sequence, tag)?;
                    written += 1;
                }
            }
        }
        Ok(written)
    }

    fn restore(&self, at: u32, sequence: u32, tag: &Tag) -> Result<()> {
        if tag.home.0 >= self.io.block_count() {
            return Err(Self::damaged(at, "tag outside the device"));
        }
        let mut logged = self.read(at)?;
        if !self.codec.logged_ok(tag, sequence, &logged) {
            return Err(Self::damaged(at, "checksum of a logged block"));
        }
        self.codec.restore(tag, &mut logged);
        self.io.write(tag.home, logged)?;
        Ok(())
    }
}

enum Step {
    Stop,
    Committed,
    /// A descriptor or revoke that takes this many blocks with what it describes.
    Part(u32),
}

fn is(block: &[u8], kind: BlockType) -> bool {
    Codec::header(block).is_some_and(|(found, _)| found == kind as u32)
}

//! Journal recovery: bring an image to the state of its last committed transaction.
//!
//! Three passes, as in Documentation/filesystems/ext4/journal.rst. *Scan* walks the log from its
//! tail and finds the last whole transaction. *Revoke* collects the blocks that older transactions
//! must not be replayed to. *Replay* writes the logged blocks home in order. Replaying twice gives
//! the same result, so a power cut here is harmless.
//!
//! What a power cut leaves of a transaction has no commit block: that is written when the rest is
//! durable. So a wrong checksum in a transaction that has one is damage of what was durable, and an
//! error, as it is for Linux: a log is never cut short silently. With checksums v2 and v3 each
//! block has its own; v1 is one sum for each transaction. Where commits were asynchronous, the
//! commit block may be there and what is before it not: a wrong sum of a transaction (v1) or commit
//! block then ends the log, unless the log goes on behind it.

use polylane_sys::buffer::Buffer;
use rustc_hash::FxHashMap;

use crate::error::{Corrupt, Error, Result, Structure};
use crate::format::DeviceBlock;
use crate::format::fast::{self, Change};
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
    /// Changes of fast commits.
    pub fast_changes: u32,
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

/// Replays what the journal holds, but for fast commits: what they change is returned. The caller
/// resets the journal's tail afterwards.
///
/// With fast commits the log begins behind what was replayed on return, and the number of the next
/// transaction is the one that they are for: they count until that one commits, with their changes
/// in it.
///
/// # Errors
/// The device failed, or the log of a committed transaction is damaged: the image needs e2fsck.
pub fn recover(
    io: &BlockIo,
    map: &JournalMap,
    superblock: &mut JournalSuperblock,
) -> Result<(Recovered, Vec<Change>)> {
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
        return Ok((Recovered { next_sequence, ..Recovered::default() }, Vec::new()));
    }
    let (spans, behind) = reader.scan(superblock.start(), superblock.sequence())?;
    let next = superblock.sequence().wrapping_add(spans.len() as u32);
    let changes = reader.fast_commits(superblock, next)?;
    let revoked = reader.revoked(&spans)?;
    let mut done = Recovered { transactions: spans.len() as u32, ..Recovered::default() };
    for span in &spans {
        done.blocks += reader.replay(span, &revoked)?;
    }
    io.flush()?;
    done.fast_changes = changes.len() as u32;
    // One number is left out: the torn transaction behind the last one had it.
    done.next_sequence = next.wrapping_add(1);
    if !changes.is_empty() {
        done.next_sequence = next;
        superblock.set_tail(next, behind);
        write_superblock(io, map, superblock)?;
        drop_relic(io, map, superblock, next)?;
    }
    Ok((done, changes))
}

/// Clears the log's first block, where the next transaction will begin, if it bears that one's
/// number or a later one and is not where the log begins now: left by a former journal, it would
/// count as soon as the log begins there.
fn drop_relic(
    io: &BlockIo,
    map: &JournalMap,
    superblock: &JournalSuperblock,
    next: u32,
) -> Result<()> {
    let is_kept = superblock.start() == superblock.first();
    if !is_kept && fresh_sequence(io, map, superblock, next)? != next {
        let zeros = Buffer::zeroed(io.block_bytes());
        io.write_durable(map.device_block(superblock.first()), zeros)?;
    }
    Ok(())
}

fn write_superblock(io: &BlockIo, map: &JournalMap, superblock: &JournalSuperblock) -> Result<()> {
    let home = map.device_block(0);
    let mut block = io.read(home)?;
    let bytes = superblock.encode();
    block[..bytes.len()].copy_from_slice(&bytes);
    io.write_durable(home, block)?;
    Ok(())
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
    write_superblock(io, map, superblock)?;
    Ok(next)
}

/// The number for the next transaction, which begins the log: `next`, or a later one where the
/// block that it begins in bears that number already, left by a former journal. If the power goes
/// before that block is written, what is there must not be taken for a damaged part of ours.
///
/// # Errors
/// The device failed.
pub fn fresh_sequence(
    io: &BlockIo,
    map: &JournalMap,
    superblock: &JournalSuperblock,
    next: u32,
) -> Result<u32> {
    let blocks = superblock.end() - superblock.first();
    let block = io.read(map.device_block(superblock.first()))?;
    let is_relic = |found: u32| found.wrapping_sub(next) < blocks;
    match Codec::header(&block) {
        Some((_, found)) if is_relic(found) => Ok(next.wrapping_add(blocks)),
        _ => Ok(next),
    }
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
    /// a power cut leaves such tails. And where the log goes on behind it.
    fn scan(&self, start: u32, sequence: u32) -> Result<(Vec<Span>, u32)> {
        let mut scan = Scan::new(start, sequence);
        while scan.walked < self.end - self.first {
            let block = self.read(scan.at)?;
            let step = match Codec::header(&block) {
                Some((kind, found)) if found == scan.span.sequence => {
                    match self.step(kind, block, &mut scan)? {
                        Some(step) => step,
                        None => break,
                    }
                }
                _ => break,
            };
            scan.at = self.advance(scan.at, step);
            scan.walked += step;
        }
        if let Some(at) = scan.doubtful {
            self.look_behind(at, &scan)?;
        }
        Ok((scan.spans, scan.behind))
    }

    /// Takes one block of the transaction that the scan is at in. Returns how many blocks it stands
    /// for with what it describes; `None`: the log ends before this transaction.
    fn step(&self, kind: u32, block: Buffer, scan: &mut Scan) -> Result<Option<u32>> {
        const DESCRIPTOR: u32 = BlockType::Descriptor as u32;
        const COMMIT: u32 = BlockType::Commit as u32;
        const REVOKE: u32 = BlockType::Revoke as u32;
        match kind {
            DESCRIPTOR | REVOKE => {
                if !self.codec.tail_ok(&block) {
                    scan.doubtful = scan.doubtful.or(Some(scan.at));
                }
                let tags = if kind == DESCRIPTOR { self.codec.tags(&block).len() } else { 0 };
                let blocks = 1 + tags as u32;
                self.add_to(&mut scan.sum, scan.at, (&block, blocks))?;
                scan.span.blocks.push((scan.at, block));
                Ok(Some(blocks))
            }
            COMMIT => self.end_transaction(&block, scan),
            _ => Ok(None),
        }
    }

    /// Judges the transaction that the commit block at the scan's place ends. What was written
    /// before the medium was flushed is whole once there is a commit block: a wrong checksum is
    /// damage. But a commit block from before the last one is a relic of a former journal at this
    /// place, and what it ends was never committed in this one; so Linux has it.
    fn end_transaction(&self, commit: &[u8], scan: &mut Scan) -> Result<Option<u32>> {
        let sum = std::mem::take(&mut scan.sum);
        let seconds = Codec::commit_seconds(commit);
        let is_whole = match self.transaction_sums {
            true => Codec::transaction_ok(commit, sum),
            false => self.codec.commit_ok(commit),
        };
        let wrong = scan.doubtful.or((!is_whole).then_some(scan.at));
        if let Some(wrong) = wrong {
            if seconds < scan.last_seconds {
                scan.doubtful = Some(wrong);
                return Ok(None);
            }
            if scan.torn.is_none() && scan.doubtful.is_none() && self.async_commits {
                // It did not wait for what is before it: a power cut may have left that.
                scan.torn = Some(wrong);
            } else {
                return Err(Self::damaged(scan.torn.unwrap_or(wrong), self.sum_name(scan)));
            }
        } else if let Some(torn) = scan.torn {
            return Err(Self::damaged(torn, self.sum_name(scan)));
        }
        scan.last_seconds = seconds;
        let next = scan.span.sequence.wrapping_add(1);
        let empty = Span { sequence: next, blocks: Vec::new() };
        let whole = std::mem::replace(&mut scan.span, empty);
        if scan.torn.is_none() {
            scan.spans.push(whole);
            scan.behind = self.advance(scan.at, 1);
        }
        Ok(Some(1))
    }

    fn sum_name(&self, scan: &Scan) -> &'static str {
        match (self.transaction_sums, scan.doubtful) {
            (true, _) => "checksum of a transaction",
            (false, Some(_)) => "checksum of a descriptor or revoke block",
            (false, None) => "checksum of a commit block",
        }
    }

    /// The log ends in a transaction of which the block at `at` has a wrong checksum. A power cut
    /// leaves that, but no commit block behind it, and a former journal none that is not older than
    /// the last one: if there is one, what was durable is damaged, even where the damage hides how
    /// to get there.
    fn look_behind(&self, at: u32, scan: &Scan) -> Result<()> {
        let size = self.end - self.first;
        for step in 0..size {
            let block = self.read(self.advance(at, step))?;
            let is_later = match Codec::header(&block) {
                Some((kind, sequence)) if kind == BlockType::Commit as u32 => {
                    sequence.wrapping_sub(scan.span.sequence) < size
                }
                _ => false,
            };
            if is_later
                && self.codec.commit_ok(&block)
                && Codec::commit_seconds(&block) >= scan.last_seconds
            {
                return Err(Self::damaged(at, "checksum of a descriptor or revoke block"));
            }
        }
        Ok(())
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

    /// What fast commits change that follow the last transaction; `next` is the number behind it.
    /// The first block behind the log is not used.
    fn fast_commits(&self, superblock: &JournalSuperblock, next: u32) -> Result<Vec<Change>> {
        let area = superblock.end() + 1..superblock.total();
        let blocks: Vec<Buffer> = area.map(|index| self.read(index)).collect::<Result<_>>()?;
        let changes = fast::changes(&blocks, next);
        changes.map_err(|field| Self::damaged(superblock.end() + 1, field))
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

/// How far a scan of the log is.
struct Scan {
    at: u32,
    /// Blocks passed.
    walked: u32,
    /// Transactions found whole.
    spans: Vec<Span>,
    /// The block behind the last of them.
    behind: u32,
    /// The one it is in.
    span: Span,
    /// That one's checksum (v1).
    sum: TransactionSum,
    /// Its first descriptor or revoke block whose checksum is wrong.
    doubtful: Option<u32>,
    /// Where the first transaction ends that an asynchronous commit did not wait for.
    torn: Option<u32>,
    /// When the last transaction committed.
    last_seconds: u64,
}

impl Scan {
    fn new(at: u32, sequence: u32) -> Scan {
        Scan {
            at,
            walked: 0,
            spans: Vec::new(),
            behind: at,
            span: Span { sequence, blocks: Vec::new() },
            sum: TransactionSum::default(),
            doubtful: None,
            torn: None,
            last_seconds: 0,
        }
    }
}

fn is(block: &[u8], kind: BlockType) -> bool {
    Codec::header(block).is_some_and(|(found, _)| found == kind as u32)
}

//! What is known of one sequential write flow, and the signatures of logs in it.
//!
//! A program's log (a database's redo log, a mail spool) is appended and flushed like a file
//! system's journal, so solo epochs alone do not tell them apart. What does:
//!
//! | signature | whose | what programs do instead |
//! |---|---|---|
//! | *commit pairs*: blocks, flush, one block alone, flush, in turn | jbd2 | pieces of any size |
//! | *odd sectors*: pieces begin and end at any sector | XFS | page-cache writes are whole blocks |
//! | *record headers*: writes open with one | XFS, on any sectors | other first bytes |
//! | *headers*: a transaction's behind the superblock, or before a commit's | jbd2 | other bytes |
//! | *small circle*: block by block, over again after commits | fast commits | at any time |
//!
//! Whoever rewrites the block it wrote last (`Stream::rewind`) has no journal: a journal's record
//! is never touched again before the next lap.

use super::super::Region;
use super::super::flows::Flow;
use super::marks::LAP_SLACK_BYTES;

/// Epochs, and solo epochs, before a flow says anything.
pub const EPOCH_COUNT_MIN: u32 = 8;

/// A flow that writes more than this per epoch is not the append of a log.
pub const EPOCH_BYTES_MEAN_MAX: u64 = 256 << 10;

/// Commit pairs before a flow is a journal whose epochs are little else. Pieces of random size make
/// 6, three for every two that break the turn, about once in a hundred.
pub const PAIR_COUNT_MIN: u32 = 8;

/// Commit pairs behind a superblock before the two are a journal.
pub const SUPERBLOCK_PAIR_COUNT_MIN: u32 = 3;

/// A log's superblock that is written so many epochs after what lies right before it is no part of
/// a copy: those go on in the same epoch, or in the next.
const SUPERBLOCK_REST_EPOCHS: u64 = 3;

/// Epochs that a superblock must have had to itself.
const SUPERBLOCK_SOLO_COUNT: u32 = 2;

/// Commit pairs that need no solo epochs, four for every one that breaks the turn.
const STRICT_PAIR_COUNT_MIN: u32 = 10;

/// Times that fast commits must have started over behind a log's commits to say as much as its
/// superblock does. Once may be chance.
const CIRCLE_COUNT_MIN: u32 = 2;

/// Solo epochs from which on a flow is watched for its next lap.
const CANDIDATE_SOLO_COUNT: u32 = 4;

/// A flow of odd sectors is a journal with this part of its epochs solo.
pub const SOLO_PERCENT_MIN: u64 = 10;

/// The part of a log's writes that begin or end at an odd sector: a half, if lengths are random.
const ODD_PERCENT_MIN: u64 = 25;

/// A circle is small up to here: ext4 gives fast commits 256 blocks unless told otherwise.
pub const CIRCLE_BYTES_MAX: u64 = 4 << 20;

/// A small circle comes round at most so many epochs after a commit.
const COMMIT_EPOCH_COUNT: u64 = 4;

/// Times a small circle must have come round after a commit.
const CIRCLE_LAP_COUNT_MIN: u32 = 1;

/// No file system's block, and so no commit record, is larger.
const COMMIT_BYTES_MAX: u64 = 64 << 10;

/// ext4's blocks on most machines: a fast commit ends with one.
const BLOCK_BYTES_MAX: u64 = 4096;

/// A sequential write flow.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Stream {
    pub(super) first: u64,
    pub(super) next: u64,
    /// Its writes bypass the cache.
    pub(super) hot: bool,
    /// It was read since it became a candidate.
    pub(super) read: bool,
    /// Epochs that it wrote in, those that it had to itself, and of these those of one block.
    epochs: u32,
    pub(super) solo: u32,
    single: u32,
    /// Writes, and those at odd sectors.
    writes: u32,
    odd: u32,
    /// Writes that open with the header of a log record.
    records: u32,
    /// The transaction whose first block was written and whose commit record was not.
    transaction: Option<Transaction>,
    /// Commit records with their headers, and where the transaction of the first begins.
    commits: u32,
    log_from: u64,
    /// It begins with the superblock of a log, which ends here; 0: it does not.
    superblock_end: u64,
    /// It begins with the header of fast commits.
    fast: bool,
    /// Times the last block was written again.
    rewinds: u32,
    /// Commit pairs with a record of `commit_bytes`, and pieces out of turn.
    pairs: u32,
    out_of_turn: u32,
    commit_bytes: u64,
    /// Where the record of the first commit pair lies.
    proven_from: u64,
    /// Times it started over at `first` when another flow had just written a commit.
    laps: u32,
    /// Times that fast commits started over when it had just written a commit.
    circles: u32,
    /// Bytes that it wrote, in all laps.
    bytes: u64,
    /// Where its last solo epoch or commit pair ended: what lies before is its own.
    pub(super) proven: u64,
    /// As far as the lap before was proven.
    lap_end: u64,
    now: Piece,
    last: Piece,
}

/// A transaction in a flow, known by its header.
#[derive(Clone, Copy)]
struct Transaction {
    first: u64,
    /// The epoch that it began in, and how many the flow had before that.
    epoch: u64,
    epochs: u32,
}

/// What a flow wrote in one epoch.
#[derive(Clone, Copy, Default)]
struct Piece {
    epoch: u64,
    bytes: u64,
    writes: u32,
}

impl Flow for Stream {
    fn next(&self) -> u64 {
        self.next
    }
}

impl Stream {
    /// A flow that begins with `range`.
    pub(super) fn begin(range: Region, epoch: u64) -> Self {
        let mut stream = Stream { first: range.first, next: range.first, ..Stream::default() };
        stream.append(range, epoch);
        stream
    }

    /// A flow that starts over where `self` began, or nearly there: the same log's next lap.
    /// `committed`: another flow has just written a commit.
    pub(super) fn again(&self, range: Region, epoch: u64, committed: bool) -> Self {
        let lap = Stream {
            first: range.first,
            next: range.first,
            proven: range.first,
            proven_from: range.first,
            lap_end: self.lap_end.max(self.proven),
            laps: self.laps.saturating_add(committed.into()),
            read: false,
            transaction: None,
            commits: 0,
            superblock_end: 0,
            fast: false,
            ..*self
        };
        let mut lap = Stream { hot: false, ..lap };
        lap.append(range, epoch);
        lap
    }

    /// The flow goes on with `range`; whether the piece before was a commit record in turn.
    pub(super) fn append(&mut self, range: Region, epoch: u64) -> bool {
        let paired = self.enter(epoch);
        let odd = |address: u64| !address.is_multiple_of(1024);
        self.writes = self.writes.saturating_add(1);
        self.odd += u32::from(odd(range.first) || odd(range.end));
        self.now.bytes += range.bytes();
        self.now.writes += 1;
        self.bytes += range.bytes();
        self.next = range.end;
        paired
    }

    /// What was appended last opens with the header of a log record.
    pub(super) fn open_record(&mut self) {
        self.records = self.records.saturating_add(1);
    }

    /// What was appended last opens with a transaction's header.
    pub(super) fn open_transaction(&mut self, range: Region) {
        let begun =
            Transaction { first: range.first, epoch: self.now.epoch, epochs: self.epochs - 1 };
        self.transaction.get_or_insert(begun);
    }

    /// What was appended last opens with a log's superblock. Only one that was written alone
    /// counts: its flow begins with it, or what lies before was written some epochs ago.
    pub(super) fn open_superblock(&mut self, range: Region) {
        let rested = self.last.epoch + SUPERBLOCK_REST_EPOCHS <= self.now.epoch;
        let alone = range.first == self.first || (self.now.writes == 1 && rested);
        if alone && range.bytes() <= COMMIT_BYTES_MAX {
            self.superblock_end = range.end;
        }
    }

    /// Whether it is nothing but a log's superblock, perhaps written again.
    pub(super) fn is_log_superblock(&self) -> bool {
        self.superblock_end > 0 && self.superblock_end == self.next
    }

    /// Whether `range`, which was appended last, is the first behind its superblock.
    pub(super) fn continues_superblock(&self, range: Region) -> bool {
        self.superblock_end > 0 && self.superblock_end == range.first
    }

    /// `range`, which was appended last, opens with a commit record's header; whether it ends a
    /// transaction as jbd2 does. A copy of a log, made durable block by block, does not: its epochs
    /// are all of one size.
    pub(super) fn commit(&mut self, range: Region) -> bool {
        let Some(begun) = self.transaction.take() else { return false };
        if begun.epoch == self.now.epoch || range.bytes() > COMMIT_BYTES_MAX {
            return false;
        }
        let epochs = u64::from((self.epochs - 1).saturating_sub(begun.epochs));
        if range.first.saturating_sub(begun.first) < 2 * epochs * range.bytes() {
            return false;
        }
        if self.commits == 0 {
            self.log_from = begun.first;
        }
        self.commits = self.commits.saturating_add(1);
        self.proven = self.next;
        true
    }

    /// What was appended last opens with the header of fast commits: they begin there.
    pub(super) fn open_fast_commits(&mut self) {
        self.fast = self.now.writes == 1 && self.next - self.first == self.now.bytes;
    }

    /// Whether it is ext4's fast commits, which begin again and again and reach as far as they do.
    pub(super) fn is_fast_commits(&self) -> bool {
        self.fast
    }

    /// The flow goes on with `range`, which writes its last block again.
    pub(super) fn rewind(&mut self, range: Region, epoch: u64) {
        self.rewinds += 1;
        self.append(range, epoch);
    }

    /// `later` continues where this flow has now arrived: requests came out of order.
    pub(super) fn join(&mut self, later: &Stream) {
        self.next = later.next;
        self.bytes += later.bytes;
        self.epochs += later.epochs;
        self.solo += later.solo;
        self.single += later.single;
        self.writes += later.writes;
        self.odd += later.odd;
        self.records += later.records;
        self.rewinds += later.rewinds;
        let epochs = self.epochs.saturating_sub(1);
        let begun = later.transaction.map(|begun| Transaction { epochs, ..begun });
        self.transaction = self.transaction.or(begun);
        if self.now.epoch == later.now.epoch {
            self.now.bytes += later.now.bytes;
            self.now.writes += later.now.writes;
        }
    }

    fn enter(&mut self, epoch: u64) -> bool {
        if self.now.epoch == epoch {
            return false;
        }
        let paired = self.end_piece();
        self.last = self.now;
        self.now = Piece { epoch, bytes: 0, writes: 0 };
        self.epochs = self.epochs.saturating_add(1);
        paired
    }

    /// The epoch is over and nobody else wrote in it.
    pub(super) fn end_solo(&mut self) {
        self.solo = self.solo.saturating_add(1);
        self.single += u32::from(self.now.writes == 1 && self.now.bytes <= BLOCK_BYTES_MAX);
        self.proven = self.next;
    }

    /// Judges the piece of the epoch that the flow leaves: a record alone, after more than that in
    /// the epoch before, is a commit; two records or two transactions in a row are out of turn.
    /// Other flows may have written in those epochs too. Whether it is a commit.
    fn end_piece(&mut self) -> bool {
        let (now, last) = (self.now, self.last);
        let record =
            now.writes == 1 && now.bytes.is_power_of_two() && now.bytes <= COMMIT_BYTES_MAX;
        if record && last.bytes >= 2 * now.bytes && last.epoch + 1 == now.epoch {
            self.count_pair(now.bytes);
            return now.bytes == self.commit_bytes;
        }
        if last.bytes > 0 {
            let same = (last.bytes > self.commit_bytes) == (now.bytes > self.commit_bytes);
            self.out_of_turn += u32::from(same);
        }
        false
    }

    fn count_pair(&mut self, record_bytes: u64) {
        if self.pairs == 0 {
            (self.commit_bytes, self.out_of_turn) = (record_bytes, 0);
            self.proven_from = self.next - self.now.bytes;
        }
        if record_bytes == self.commit_bytes {
            self.pairs += 1;
            self.proven = self.next;
        } else {
            self.pairs -= 1;
        }
    }

    pub(super) fn range(&self) -> Region {
        Region { first: self.first, end: self.next }
    }

    /// The part of it that is a journal's, if it is one: data may have run into the start of a log.
    pub(super) fn journal_range(&self) -> Region {
        let all = self.pairs == 0 || self.bytes_per_epoch() <= EPOCH_BYTES_MEAN_MAX;
        let first = match (self.commits, all) {
            (1.., _) => self.log_from,
            (0, true) => self.first,
            (0, false) => self.proven_from,
        };
        Region { first, end: self.next }
    }

    /// The end of what is its own: of this lap, or of the one before.
    pub(super) fn journal_end(&self) -> u64 {
        self.next.max(self.lap_end)
    }

    fn bytes_per_epoch(&self) -> u64 {
        self.bytes / u64::from(self.epochs.max(1))
    }

    /// Whether it is worth watching for the next lap.
    pub(super) fn is_candidate(&self) -> bool {
        let begun = self.pairs == 1 || self.commits == 1;
        self.solo == CANDIDATE_SOLO_COUNT || (begun && self.solo < CANDIDATE_SOLO_COUNT)
    }

    /// Whether `range` may be the beginning of its next lap. A superblock before the log, rewritten
    /// where a long lap began, is not.
    pub(super) fn comes_round(&self, range: Region) -> bool {
        let short = self.next - self.first <= CIRCLE_BYTES_MAX;
        let near = range.first.abs_diff(self.first) <= LAP_SLACK_BYTES;
        match self.first == range.first && short {
            true => true,
            false => self.pairs > 0 && near && range.bytes() > BLOCK_BYTES_MAX,
        }
    }

    /// Whether it began in this epoch: requests that overtook another one.
    pub(super) fn is_new(&self, epoch: u64) -> bool {
        self.epochs == 1 && self.now.epoch == epoch
    }

    /// Whether it has at least two epochs: more than one burst.
    pub(super) fn is_grown(&self) -> bool {
        self.epochs >= 2
    }

    /// Whether it is a block that is rewritten in place, such as a superblock.
    pub(super) fn is_in_place(&self) -> bool {
        self.rewinds > 0 && self.next - self.first <= COMMIT_BYTES_MAX
    }

    /// Appended piece by piece with flushes between: a log of some kind.
    pub(super) fn is_append_like(&self) -> bool {
        let small = self.bytes_per_epoch() <= EPOCH_BYTES_MEAN_MAX;
        self.epochs >= EPOCH_COUNT_MIN && small && !self.read
    }

    /// A file system's journal. `superblock`: a block right before it is rewritten in epochs of its
    /// own; `committed`: there is a log of jbd2's on the volume, known by its headers.
    pub(super) fn is_journal(&self, superblock: bool, committed: bool) -> bool {
        let rewinds = u64::from(self.rewinds) * 8 > u64::from(self.epochs);
        !rewinds
            && !self.read
            && (self.has_commit_pairs(superblock)
                || self.has_odd_sectors()
                || self.has_records()
                || self.commits > 0
                || (committed && self.fast && self.single > 0)
                || self.is_small_circle())
    }

    /// Whether it is one block that had epochs to itself again and again.
    pub(super) fn is_superblock(&self) -> bool {
        self.is_in_place() && self.single >= SUPERBLOCK_SOLO_COUNT
    }

    /// What made it a journal does not hold any more.
    pub(super) fn is_refuted(&self) -> bool {
        let large = self.next - self.first > CIRCLE_BYTES_MAX;
        (self.fast && large) || u64::from(self.rewinds) * 8 > u64::from(self.epochs).max(16)
    }

    /// The more beside them speaks for a journal, the fewer pairs it takes: a superblock, or fast
    /// commits.
    fn has_commit_pairs(&self, superblock: bool) -> bool {
        let superblock = superblock || self.circles >= CIRCLE_COUNT_MIN;
        let in_turn = self.pairs * 2 >= self.out_of_turn * 3;
        // Files that are fsynced one behind the other pair at times, and break the turn as often.
        let alone = self.solo >= PAIR_COUNT_MIN && self.epochs * 2 <= self.pairs * 5 + 8;
        match self.pairs {
            pairs if pairs < SUPERBLOCK_PAIR_COUNT_MIN => false,
            pairs if pairs < PAIR_COUNT_MIN => superblock && in_turn,
            pairs if pairs < STRICT_PAIR_COUNT_MIN => (superblock || alone) && in_turn,
            pairs => ((superblock || alone) && in_turn) || pairs >= self.out_of_turn * 4,
        }
    }

    fn has_odd_sectors(&self) -> bool {
        let odd = u64::from(self.odd) * 100 >= u64::from(self.writes) * ODD_PERCENT_MIN;
        let solo = u64::from(self.solo) * 100 >= u64::from(self.epochs) * SOLO_PERCENT_MIN;
        self.is_append_like() && self.solo >= EPOCH_COUNT_MIN && odd && solo
    }

    /// A record may come in two writes where the log's end lies inside it, or in as many as the
    /// block layer cuts it into; half of them is enough.
    fn has_records(&self) -> bool {
        self.is_append_like() && self.records >= EPOCH_COUNT_MIN && self.records * 2 >= self.writes
    }

    /// Whether it wrote a commit record in turn, a few epochs ago at most.
    pub(super) fn has_committed(&self, epoch: u64) -> bool {
        let record = self.now.writes == 1 && self.now.bytes == self.commit_bytes;
        self.pairs > 0 && record && epoch - self.now.epoch <= COMMIT_EPOCH_COUNT
    }

    /// Whether most of its own epochs are one block, as fast commits are.
    pub(super) fn is_block_by_block(&self) -> bool {
        self.solo >= CANDIDATE_SOLO_COUNT && self.single * 10 >= self.solo * 8
    }

    /// Fast commits started over when this flow had just written a commit.
    pub(super) fn end_circle(&mut self) {
        self.circles = self.circles.saturating_add(1);
    }

    /// ext4's fast commits start over when the log beside them has taken a whole commit. Blocks of
    /// a file that are written again one by one start over at any time.
    fn is_small_circle(&self) -> bool {
        let small = self.journal_end() - self.first <= CIRCLE_BYTES_MAX;
        let round = self.laps >= CIRCLE_LAP_COUNT_MIN && self.solo >= EPOCH_COUNT_MIN;
        let mostly_solo = self.solo * 10 >= self.epochs * 3;
        small && round && mostly_solo && self.is_block_by_block()
    }
}

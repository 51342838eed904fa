//! Requests as file systems and programs make them, written from what their sources do.
//!
//! Every guest writes to a [`Volume`], which shows each request to a detector and keeps score.
//! Times are made up: one microsecond a request, since no rule that is tested here depends on them.

use polylane_base::rng::Rng;
use polylane_block::cache::pdc::score::{Judge, Score};
use polylane_block::cache::pdc::{Access, Admission, Opening, Region, Rule};

pub const BLOCK: u64 = 4096;
pub const MIB: u64 = 1 << 20;

/// The device below a guest.
pub struct Volume<R> {
    judge: Judge<R>,
    now_us: u64,
    pub rng: Rng,
}

impl<R: Rule> Volume<R> {
    pub fn new(rule: R, journal: Option<Region>) -> Self {
        Volume { judge: Judge::new(rule, journal), now_us: 0, rng: Rng::new(42) }
    }

    fn request(&mut self, access: Access, range: Region) -> Admission {
        self.now_us += 1;
        self.judge.observe(self.now_us, access, range)
    }

    pub fn write(&mut self, offset: u64, length: u64) -> Admission {
        self.write_opening(offset, length, Opening::Unknown)
    }

    pub fn write_opening(&mut self, offset: u64, length: u64, opening: Opening) -> Admission {
        self.request(Access::Write { fua: false, opening }, Region::at(offset, length))
    }

    pub fn write_fua(&mut self, offset: u64, length: u64, opening: Opening) -> Admission {
        self.request(Access::Write { fua: true, opening }, Region::at(offset, length))
    }

    pub fn read(&mut self, offset: u64, length: u64) {
        self.request(Access::Read, Region::at(offset, length));
    }

    pub fn discard(&mut self, offset: u64, length: u64) {
        self.request(Access::Discard, Region::at(offset, length));
    }

    pub fn flush(&mut self) {
        self.request(Access::Flush, Region::at(0, 0));
    }

    pub fn sleep_us(&mut self, us: u64) {
        self.now_us += us;
    }

    pub fn score(&self) -> Score {
        self.judge.score()
    }

    pub fn regions(&self) -> Vec<Region> {
        self.judge.rule().regions()
    }

    fn pieces(&mut self, least: u64, most: u64) -> u64 {
        least + self.rng.below(most - least + 1)
    }
}

/// jbd2: a superblock, then transactions round and round: descriptor and blocks, flush, commit
/// record, flush. The flush before the record is what makes the data durable too.
pub struct Jbd2 {
    pub area: Region,
    head: u64,
    /// The device has FUA: the record carries it and no flush follows.
    pub fua: bool,
    /// The data of its writes is looked at.
    pub headers: bool,
}

impl Jbd2 {
    pub fn new(area: Region) -> Self {
        Jbd2 { area, head: area.first + BLOCK, fua: false, headers: false }
    }

    fn put<R: Rule>(
        &mut self,
        volume: &mut Volume<R>,
        mut blocks: u64,
        fua: bool,
        opening: Opening,
    ) {
        let mut opening = if self.headers { opening } else { Opening::Unknown };
        while blocks > 0 {
            if self.head == self.area.end {
                self.head = self.area.first + BLOCK;
            }
            let length = (blocks * BLOCK).min(self.area.end - self.head).min(512 << 10);
            match fua {
                true => volume.write_fua(self.head, length, opening),
                false => volume.write_opening(self.head, length, opening),
            };
            opening = Opening::Unknown;
            self.head += length;
            blocks -= length / BLOCK;
        }
    }

    /// Commits a transaction of so many blocks, `data` being written at the same time.
    pub fn commit<R: Rule>(&mut self, volume: &mut Volume<R>, blocks: u64, data: &[(u64, u64)]) {
        let at = volume.rng.below(data.len() as u64 + 1) as usize;
        data[..at].iter().for_each(|(offset, length)| {
            volume.write(*offset, *length);
        });
        self.put(volume, 1 + blocks, false, Opening::JournalBlocks);
        data[at..].iter().for_each(|(offset, length)| {
            volume.write(*offset, *length);
        });
        volume.flush();
        self.put(volume, 1, self.fua, Opening::JournalCommit);
        if !self.fua {
            volume.flush();
        }
    }

    /// The superblock, when the tail moves.
    pub fn update_superblock<R: Rule>(&mut self, volume: &mut Volume<R>) {
        let opening = if self.headers { Opening::JournalSuperblock } else { Opening::Unknown };
        volume.write_opening(self.area.first, BLOCK, opening);
        volume.flush();
    }
}

/// Small files made, appended to and fsynced on ext4; each write of data is followed by a commit.
pub fn mail<R: Rule>(volume: &mut Volume<R>, journal: &mut Jbd2, commits: u64) {
    let (mut fresh, base) = (journal.area.end + 64 * MIB, journal.area.end);
    for count in 0..commits {
        let mut data = Vec::new();
        for _ in 0..volume.pieces(1, 3) {
            let length = BLOCK * volume.pieces(1, 4);
            match volume.rng.percent(70) {
                true => data.push((fresh, length)),
                false => data.push((base + volume.rng.below(16384) * BLOCK, length)),
            }
            fresh += length;
        }
        let blocks = volume.pieces(3, 12);
        journal.commit(volume, blocks, &data);
        if count % 50 == 49 {
            journal.update_superblock(volume);
        }
    }
}

/// XFS: log records of whole sectors, flush before and after; data flushed with the one before.
pub struct XfsLog {
    pub area: Region,
    head: u64,
    /// Records are whole pieces of so many sectors: 8 on a device with sectors of 4 KiB.
    pub piece_sectors: u64,
    /// What the records begin with.
    pub opening: Opening,
}

impl XfsLog {
    pub fn new(area: Region) -> Self {
        XfsLog { area, head: area.first, piece_sectors: 1, opening: Opening::Unknown }
    }

    pub fn force<R: Rule>(&mut self, volume: &mut Volume<R>, sectors: u64) {
        volume.flush();
        let sizes: Vec<u64> = match sectors > 64 {
            true => vec![64, sectors - 64],
            false => vec![sectors],
        };
        let mut writes: Vec<(u64, u64)> = Vec::new();
        for size in sizes {
            let size = size.next_multiple_of(self.piece_sectors);
            if self.head + size * 512 > self.area.end {
                self.head = self.area.first;
            }
            writes.push((self.head, size * 512));
            self.head += size * 512;
        }
        if volume.rng.percent(20) {
            writes.reverse();
        }
        writes.into_iter().for_each(|(offset, length)| {
            volume.write_opening(offset, length, self.opening);
        });
        volume.flush();
    }
}

/// Small files made and fsynced on XFS by several threads, each in its own allocation group.
pub fn xfs_mail<R: Rule>(volume: &mut Volume<R>, log: &mut XfsLog, forces: u64) {
    let mut fresh = [0, 1, 2, 3].map(|group| log.area.end + (group + 1) * 512 * MIB);
    for _ in 0..forces {
        for _ in 0..volume.pieces(0, 2) {
            let thread = volume.rng.below(4) as usize;
            let length = BLOCK * volume.pieces(1, 4);
            volume.write(fresh[thread], length);
            fresh[thread] += length;
        }
        let sectors = volume.pieces(2, 90);
        log.force(volume, sectors);
    }
}

/// ext4 with fast commits: one block per fsync into an area of 256 blocks behind the journal, which
/// starts over at every full commit.
pub fn fast_commits<R: Rule>(volume: &mut Volume<R>, journal: &mut Jbd2, fsyncs: u64) {
    let (start, mut used) = (journal.area.end, 0);
    let mut fresh = journal.area.end + 256 * MIB;
    for _ in 0..fsyncs {
        let length = BLOCK * volume.pieces(1, 4);
        volume.write(fresh, length);
        fresh += length;
        volume.flush();
        let opening = match journal.headers && used == 0 {
            true => Opening::FastCommit,
            false => Opening::Unknown,
        };
        volume.write_opening(start + used * BLOCK, BLOCK, opening);
        volume.flush();
        used += 1;
        if used == 256 || volume.rng.percent(1) {
            let blocks = volume.pieces(20, 120);
            journal.commit(volume, blocks, &[]);
            used = 0;
        }
    }
}

/// A log of a program in a file that was allocated before, overwritten in place round and round and
/// flushed: no journal. `tail`: a record ends inside a block, which is written again.
pub fn redo_log<R: Rule>(volume: &mut Volume<R>, file: Region, records: u64, tail: bool) {
    let mut at = file.first;
    for _ in 0..records {
        let length = BLOCK * volume.pieces(1, 5);
        if at + length > file.end {
            at = file.first;
        }
        volume.write(at, length);
        volume.flush();
        at += if tail { length - BLOCK } else { length };
        if volume.rng.percent(3) {
            for _ in 0..8 {
                let page = volume.rng.below(8192);
                volume.write(file.end + page * 4 * BLOCK, 4 * BLOCK);
            }
            volume.flush();
        }
    }
}

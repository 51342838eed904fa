//! `pdc-fig8`: reads found in a host cache that is smaller than what a guest works with, by what
//! goes past it. Recorded traces are replayed: through an LRU by simulation, and through the own
//! store itself, on a medium that answers at once.
//!
//! Without `--trace` the load is recorded first: mail on ext4 on an attached volume.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use polylane_block::Sector;
use polylane_block::cache::own::{BYTES_MIN, OwnStore};
use polylane_block::cache::pdc::{Access, Admission, FlushSolo, Opening, Paper, Region, Rule};
use polylane_block::cache::{Cached, Mode};
use polylane_block::wait::Waiter;
use polylane_sys::buffer::Buffer;

use super::engine::Null;
use super::guest::Guest;
use super::pdc_csv::{self, Trace};
use super::pdc_loads::{MAILS, mailboxes};
use super::pdc_precision::of_ext;
use super::pdc_shares::{BLOCK_BYTES, Named, blocks, load};
use crate::report::{Better, Report};
use crate::{Options, progress};

const SECTOR_BYTES: u64 = 512;

/// The cache is this part of the data blocks that the trace touches.
const PARTS: [u64; 4] = [16, 8, 4, 2];

/// Hit ratios.
///
/// # Errors
/// A trace cannot be read; without one: loop devices cannot be had here, a tool is missing.
pub fn run(options: &Options) -> Result<Report> {
    let title = "reads found in a host cache smaller than the working set, by what goes past it";
    let mut report = Report::new("pdc-fig8", title, "trace, cache", "hit ratio", Better::Higher);
    report.baseline = "WB".into();
    let named = match options.traces.is_empty() {
        true => vec![record(options)?],
        false => load(options)?,
    };
    for one in &named {
        describe(&mut report, one);
        for part in PARTS {
            judge(&mut report, one, part)?;
        }
    }
    report.notes.push(
        "WB and PDC: an LRU, simulated; own store: the trace through it (S3-FIFO), on a medium \
         that answers at once; the cache is a part of the blocks touched outside the journal"
            .into(),
    );
    Ok(report)
}

/// A mail server on a volume, its requests written down.
fn record(options: &Options) -> Result<Named> {
    fs::create_dir_all(&options.out)?;
    let dir = tempfile::tempdir_in(&options.out)?;
    let csv = dir.path().join("mail.csv");
    let to = csv.to_str().context("a name")?;
    let mut guest =
        Guest::new(dir.path(), "mail", "512M", &["--cache", "none"], &["--record", to])?;
    let layout = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
    guest.format("mkfs.ext4", &["-F", "-q", "-J", "size=32", "-E", layout], &[])?;
    progress("pdc-fig8: recording mail");
    let time = Duration::from_secs(if options.quick { 4 } else { 30 });
    mailboxes(&guest.mount, 4, time)?;
    let volume = guest.volume.clone();
    guest.end()?;
    let pieces = of_ext(&volume)?;
    let first = pieces.iter().map(|piece| piece.first).min();
    let end = pieces.iter().map(|piece| piece.end).max();
    let whole = first.zip(end).map(|(first, end)| Region { first, end });
    let bytes: u64 = pieces.iter().map(Region::bytes).sum();
    let journal = whole.filter(|whole| whole.bytes() == bytes);
    Ok(Named { name: "mail".into(), trace: pdc_csv::load(&csv)?, journal })
}

fn is_journal(journal: Option<Region>, range: &Region) -> bool {
    journal.is_some_and(|journal| journal.overlaps(range))
}

/// Blocks outside the journal that are read or written.
fn working_set(one: &Named) -> u64 {
    let mut touched = HashSet::new();
    for record in &one.trace.records {
        let moves = matches!(record.access, Access::Read | Access::Write { .. });
        if moves && !is_journal(one.journal, &record.range) {
            touched.extend(blocks(&record.range));
        }
    }
    touched.len() as u64
}

fn describe(report: &mut Report, one: &Named) {
    let sum = |wanted: &dyn Fn(&Access, &Region) -> bool| {
        let records = one.trace.records.iter();
        let wanted = records.filter(|record| wanted(&record.access, &record.range));
        wanted.map(|record| record.range.bytes()).sum::<u64>() >> 20
    };
    let read = sum(&|access, _| *access == Access::Read);
    let written = sum(&|access, _| matches!(access, Access::Write { .. }));
    let own = sum(&|access, range| {
        matches!(access, Access::Write { .. }) && is_journal(one.journal, range)
    });
    let set = (working_set(one) * BLOCK_BYTES) >> 20;
    let name = &one.name;
    report.notes.push(format!(
        "{name}: {read} MiB read, {written} MiB written, {own} MiB of them the journal's; {set} \
         MiB of data blocks touched"
    ));
    if one.name == "mail" {
        report.notes.push(format!(
            "{name}: {MAILS} mails of 4 to 16 KiB, 4 threads; each delivers one, appends to one, \
             both made durable, and reads two, some far more often than others; its guest keeps \
             no mail in its own memory"
        ));
    }
}

/// One trace with a cache of one size.
fn judge(report: &mut Report, one: &Named, part: u64) -> Result<()> {
    let bytes = (working_set(one) / part * BLOCK_BYTES).max(BYTES_MIN);
    let Named { name, trace, journal } = one;
    progress(&format!("pdc-fig8 {name} 1/{part}"));
    let point = format!("{name} 1/{part} ({:.1}M)", bytes as f64 / f64::from(1 << 20));
    report.add("WB", &point, lru_ratio(trace, bytes, |_, _, _| false), &[]);
    let mut paper = Paper::default();
    let by_paper = |now, access, range| paper.observe(now, access, range) == Admission::Bypass;
    report.add("PDC, paper's rule", &point, lru_ratio(trace, bytes, by_paper), &[]);
    let mut solo = FlushSolo::default();
    let by_solo = |now, access, range| solo.observe(now, access, range) == Admission::Bypass;
    report.add("PDC, flush-solo", &point, lru_ratio(trace, bytes, by_solo), &[]);
    if let Some(journal) = journal {
        let known = |_, _, range: Region| journal.overlaps(&range);
        report.add("journal known", &point, lru_ratio(trace, bytes, known), &[]);
    }
    for (system, mode) in [("WB, own store", Mode::Writeback), ("PDC, own store", Mode::Pdc)] {
        report.add(system, &point, own_ratio(trace, bytes, mode)?, &[]);
    }
    Ok(())
}

/// Share of read blocks found in an LRU of `bytes`, when writes that `bypasses` says go past it.
fn lru_ratio(
    trace: &Trace,
    bytes: u64,
    mut bypasses: impl FnMut(u64, Access, Region) -> bool,
) -> f64 {
    let mut lru = Lru::new(bytes);
    let (mut hits, mut reads) = (0u64, 0u64);
    for record in &trace.records {
        let past = bypasses(record.time_us, record.access, record.range);
        match record.access {
            Access::Flush => {}
            Access::Read => {
                for block in blocks(&record.range) {
                    reads += 1;
                    hits += u64::from(lru.touch(block));
                }
            }
            Access::Write { .. } if !past => blocks(&record.range).for_each(|block| {
                lru.touch(block);
            }),
            Access::Write { .. } | Access::Discard => {
                blocks(&record.range).for_each(|block| lru.drop_block(block));
            }
        }
    }
    hits as f64 / reads.max(1) as f64
}

/// An LRU of block numbers.
struct Lru {
    stamps: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
    capacity: usize,
}

impl Lru {
    fn new(bytes: u64) -> Lru {
        let capacity = (bytes / BLOCK_BYTES) as usize;
        Lru { stamps: HashMap::new(), order: BTreeMap::new(), clock: 0, capacity }
    }

    /// Uses a block; whether it was there.
    fn touch(&mut self, block: u64) -> bool {
        self.clock += 1;
        let old = self.stamps.insert(block, self.clock);
        if let Some(old) = old {
            self.order.remove(&old);
        }
        self.order.insert(self.clock, block);
        if self.stamps.len() > self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.stamps.remove(&oldest);
        }
        old.is_some()
    }

    fn drop_block(&mut self, block: u64) {
        if let Some(stamp) = self.stamps.remove(&block) {
            self.order.remove(&stamp);
        }
    }
}

/// Share of read sectors found in the own store of `bytes`.
///
/// # Errors
/// The store's, which a medium like this never gives it a reason for.
fn own_ratio(trace: &Trace, bytes: u64, mode: Mode) -> Result<f64> {
    let end = trace.records.iter().map(|record| record.range.end).max().unwrap_or(0);
    let medium = Arc::new(Null { sectors: end.div_ceil(SECTOR_BYTES).max(1) });
    let cached = Cached::new(OwnStore::new(medium, bytes), mode);
    let waiter = Waiter::new(cached.clone());
    for record in &trace.records {
        let sectors = sectors(&record.range);
        let (sector, count) = (Sector(sectors.start), sectors.end - sectors.start);
        let bytes = (count * SECTOR_BYTES) as usize;
        let done = match record.access {
            Access::Flush => waiter.flush(),
            _ if count == 0 => Ok(()),
            Access::Read => waiter.read(sector, bytes).map(drop),
            Access::Write { fua, opening } => {
                waiter.write(sector, data(opening, bytes), fua).map(drop)
            }
            Access::Discard => waiter.discard(sector, count),
        };
        done.context("replay a request")?;
    }
    let (hits, misses) = cached.totals().hits_and_misses.context("the own store counts")?;
    Ok(hits as f64 / (hits + misses).max(1) as f64)
}

fn sectors(range: &Region) -> Range<u64> {
    range.first / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES)
}

/// Data that begins as it did.
fn data(opening: Opening, bytes: usize) -> Buffer {
    let mut data = Buffer::zeroed(bytes);
    let head = opening.example();
    data[..head.len()].copy_from_slice(&head);
    data
}

#[cfg(test)]
mod tests {
    use super::pdc_csv::Record;
    use super::*;

    #[test]
    fn an_lru_keeps_what_was_used_last() {
        let mut lru = Lru::new(2 * BLOCK_BYTES);
        assert!(!lru.touch(1) && !lru.touch(2) && lru.touch(1) && !lru.touch(3));
        assert!(lru.touch(1) && !lru.touch(2));
        lru.drop_block(1);
        assert!(!lru.touch(1));
    }

    #[test]
    fn a_replay_finds_what_was_written_and_fits() {
        let at = |block: u64| Region::at(block * BLOCK_BYTES, BLOCK_BYTES);
        let record = |access, range| Record { time_us: 0, access, range };
        let write = Access::Write { fua: false, opening: Opening::JournalBlocks };
        let records = vec![
            record(write, at(3)),
            record(Access::Flush, Region::at(0, 0)),
            record(Access::Read, at(3)),
            record(Access::Read, at(700)),
        ];
        let trace = Trace { records, ..Trace::default() };
        let found = own_ratio(&trace, 1 << 20, Mode::Writeback).expect("a replay");
        assert!((found - 0.5).abs() < 1e-9, "{found}");
        assert!((lru_ratio(&trace, 1 << 20, |_, _, _| false) - 0.5).abs() < 1e-9);
        assert!(lru_ratio(&trace, 1 << 20, |_, _, _| true).abs() < 1e-9);
    }
}

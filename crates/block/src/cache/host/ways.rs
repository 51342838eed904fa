//! Which way each change goes, and what of a journal has to leave the page cache again.
//!
//! A journal's write goes past the cache when no other change of the volume waits for a flush: then
//! it spares a copy. Beside dirty data that would be one more way to the medium, and it would be
//! waited for before the flush, which brings the data there; in the cache it goes with the data,
//! and leaves the cache after that.
//!
//! Pure state: no I/O, and its owner's lock. Bounded: [`RANGES_MAX`] ranges in each list, and as
//! many claims as requests are under way.

use crate::cache::pdc::Region;

/// Bytes in the largest folio of the page cache: the kernel drops whole folios, and none that
/// somebody makes dirty at the same time.
const FOLIO_BYTES: u64 = 2 << 20;

/// Ranges that wait for a flush, and as many that wait to be forgotten. A volume has one journal.
const RANGES_MAX: usize = 16;

/// Bytes that are forgotten together: a call costs some microseconds, and more where the kernel has
/// pages on lists of its CPUs.
const FORGOTTEN_TOGETHER: u64 = 256 << 10;

/// The two ways to the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Cached,
    Direct,
}

impl Way {
    fn other(self) -> Way {
        match self {
            Way::Cached => Way::Direct,
            Way::Direct => Way::Cached,
        }
    }
}

/// A change, as far as its way depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Change {
    /// In bytes.
    pub(super) range: Region,
    pub(super) journal: bool,
    /// Durable when it is done, without a flush.
    pub(super) durable: bool,
}

/// Folios that a change in flight has for its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Claim {
    pub(super) way: Way,
    change: Change,
}

impl Claim {
    fn meets(&self, range: &Region) -> bool {
        let folios = |range: &Region| {
            let end = range.end.div_ceil(FOLIO_BYTES).saturating_mul(FOLIO_BYTES);
            Region { first: range.first / FOLIO_BYTES * FOLIO_BYTES, end }
        };
        folios(&self.change.range).overlaps(&folios(range))
    }
}

/// What a flush under way will have made durable.
#[derive(Debug, Default)]
pub(super) struct Flush {
    changes: u64,
    journal: Ranges,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Ways {
    taken: Vec<Claim>,
    /// Changes that are done and waited, or wait, for a flush.
    changes: u64,
    /// How many of them a flush has covered.
    flushed: u64,
    /// What of a journal lies in the cache: before the flush, and behind it.
    fresh: Ranges,
    clean: Ranges,
}

impl Default for Ways {
    /// What was dirty before is unknown, and so something was.
    fn default() -> Ways {
        let (fresh, clean) = (Ranges::default(), Ranges::default());
        Ways { taken: Vec::new(), changes: 1, flushed: 0, fresh, clean }
    }
}

impl Ways {
    /// Begins a change on the best way for it. `None`: somebody has one of its folios for the other
    /// way.
    pub(super) fn take(&mut self, change: Change) -> Option<Claim> {
        let near = |way| self.taken.iter().any(|one| one.way == way && one.meets(&change.range));
        let best = match (change.journal, self.prefers_direct(&change)) {
            (true, true) => Way::Direct,
            _ => Way::Cached,
        };
        // A journal's write need not wait for its like on the other way.
        let way = match change.journal && near(best.other()) {
            true => best.other(),
            false => best,
        };
        let claim = Claim { way, change };
        (!near(way.other())).then(|| {
            self.taken.push(claim);
            claim
        })
    }

    fn prefers_direct(&self, change: &Change) -> bool {
        // What is durable by itself brings no other data with it, whichever way.
        change.durable || self.is_clean() || !self.fresh.has_room_for(&change.range)
    }

    /// Whether no change in the cache waits for a flush.
    fn is_clean(&self) -> bool {
        self.changes == self.flushed && self.taken.iter().all(|claim| claim.way == Way::Direct)
    }

    /// Ends a change.
    pub(super) fn release(&mut self, claim: Claim) {
        if let Some(at) = self.taken.iter().position(|taken| *taken == claim) {
            self.taken.swap_remove(at);
        }
        if claim.way == Way::Direct {
            return;
        }
        self.changes += u64::from(!claim.change.durable);
        if claim.change.journal {
            // What is dirty again can not be forgotten before the next flush.
            let again = self.clean.take_what_meets(&claim.change.range);
            again.0.iter().chain([&claim.change.range]).for_each(|range| self.fresh.add(*range));
        }
    }

    /// Begins a flush.
    pub(super) fn begin_flush(&mut self) -> Flush {
        Flush { changes: self.changes, journal: std::mem::take(&mut self.fresh) }
    }

    /// Ends one; what shall be forgotten now. A failed one covers nothing: the device has stopped.
    pub(super) fn end_flush(&mut self, flush: Flush, done: bool) -> Vec<Region> {
        if !done {
            return Vec::new();
        }
        self.flushed = self.flushed.max(flush.changes);
        let mut forgotten = Vec::new();
        for range in flush.journal.0 {
            if self.fresh.0.iter().any(|fresh| fresh.overlaps(&range)) {
                self.fresh.add(range);
                continue;
            }
            if !self.clean.has_room_for(&range) {
                forgotten.append(&mut self.clean.0);
            }
            self.clean.add(range);
        }
        if self.clean.bytes() >= FORGOTTEN_TOGETHER {
            forgotten.append(&mut self.clean.0);
        }
        forgotten
    }

    /// What is left to be forgotten when the store goes.
    pub(super) fn rest(&mut self) -> Vec<Region> {
        std::mem::take(&mut self.clean.0)
    }
}

/// Ranges that neither overlap nor touch, [`RANGES_MAX`] at most.
#[derive(Debug, Default)]
struct Ranges(Vec<Region>);

impl Ranges {
    fn touches(one: &Region, other: &Region) -> bool {
        one.first <= other.end && other.first <= one.end
    }

    fn has_room_for(&self, range: &Region) -> bool {
        self.0.len() < RANGES_MAX || self.0.iter().any(|held| Ranges::touches(held, range))
    }

    /// Takes one more in. One that there is no room for is left to the kernel.
    fn add(&mut self, mut range: Region) {
        if !self.has_room_for(&range) {
            return;
        }
        while let Some(at) = self.0.iter().position(|held| Ranges::touches(held, &range)) {
            let held = self.0.swap_remove(at);
            range = Region { first: held.first.min(range.first), end: held.end.max(range.end) };
        }
        self.0.push(range);
    }

    fn take_what_meets(&mut self, range: &Region) -> Ranges {
        let (meets, others) = self.0.drain(..).partition(|held| held.overlaps(range));
        self.0 = others;
        Ranges(meets)
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(Region::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn change(first: u64, bytes: u64, journal: bool) -> Change {
        Change { range: Region::at(first, bytes), journal, durable: false }
    }

    fn data(first: u64) -> Change {
        change(first, 4 * KIB, false)
    }

    /// Far from all data.
    fn journal(first: u64) -> Change {
        change((1 << 30) + first, 4 * KIB, true)
    }

    fn durable(change: Change) -> Change {
        Change { durable: true, ..change }
    }

    fn flush(ways: &mut Ways) -> Vec<Region> {
        let flush = ways.begin_flush();
        ways.end_flush(flush, true)
    }

    fn clean() -> Ways {
        let mut ways = Ways::default();
        flush(&mut ways);
        ways
    }

    /// Begins and ends a change.
    fn passes(ways: &mut Ways, change: Change) -> Way {
        let claim = ways.take(change).expect("nobody is in the way");
        ways.release(claim);
        claim.way
    }

    #[test]
    fn a_journal_goes_past_the_cache_when_nothing_else_waits_for_a_flush() {
        let mut ways = Ways::default();
        assert_eq!(passes(&mut ways, journal(0)), Way::Cached, "who knows what is dirty");
        flush(&mut ways);
        assert_eq!(passes(&mut ways, journal(0)), Way::Direct);
        assert_eq!(passes(&mut ways, journal(8 * KIB)), Way::Direct, "nothing in the cache");
        assert_eq!(passes(&mut ways, data(0)), Way::Cached);
        assert_eq!(passes(&mut ways, journal(0)), Way::Cached, "with the data");
        assert_eq!(passes(&mut ways, durable(journal(0))), Way::Direct, "waits for no flush");
        assert_eq!(passes(&mut ways, durable(data(0))), Way::Cached);
        flush(&mut ways);
        assert_eq!(passes(&mut ways, durable(data(0))), Way::Cached);
        assert_eq!(passes(&mut ways, journal(0)), Way::Direct, "that was durable");
    }

    #[test]
    fn what_is_under_way_with_a_flush_or_beside_a_journal_counts_as_dirty() {
        let mut ways = clean();
        let under_way = ways.take(data(0)).expect("free");
        assert_eq!(passes(&mut ways, journal(0)), Way::Cached);
        let flush = ways.begin_flush();
        ways.release(under_way);
        ways.end_flush(flush, true);
        assert_eq!(passes(&mut ways, journal(0)), Way::Cached, "the flush may have missed it");
        let failed = ways.begin_flush();
        ways.end_flush(failed, false);
        assert_eq!(passes(&mut ways, journal(0)), Way::Cached);
    }

    #[test]
    fn changes_of_common_folios_wait_for_each_other_but_a_journal_for_its_like() {
        let mut ways = clean();
        let first = ways.take(journal(0)).expect("free");
        assert_eq!(first.way, Way::Direct);
        assert_eq!(ways.take(data((1 << 30) + 64 * KIB)), None);
        let elsewhere = ways.take(data(0)).expect("free");
        let second = ways.take(journal(8 * KIB)).expect("goes with the first");
        assert_eq!(second.way, Way::Direct, "although data is dirty");
        ways.release(first);
        assert_eq!(ways.take(data((1 << 30) + 64 * KIB)), None);
        ways.release(second);
        let beside = ways.take(data((1 << 30) + 64 * KIB)).expect("free");
        assert_eq!(ways.take(durable(journal(0))).map(|claim| claim.way), Some(Way::Cached));
        ways.release(beside);
        ways.release(elsewhere);
    }

    #[test]
    fn what_went_with_the_data_is_forgotten_behind_its_flush() {
        let mut ways = clean();
        for piece in 0..64 {
            passes(&mut ways, data(0));
            assert_eq!(passes(&mut ways, journal(piece * 4 * KIB)), Way::Cached);
            let expected = match piece {
                63 => vec![Region::at(1 << 30, 256 * KIB)],
                _ => vec![],
            };
            assert_eq!(flush(&mut ways), expected, "piece {piece}");
        }
        passes(&mut ways, data(0));
        passes(&mut ways, journal(0));
        assert_eq!(ways.rest(), [], "not flushed");
        flush(&mut ways);
        assert_eq!(ways.rest(), [Region::at(1 << 30, 4 * KIB)]);
    }

    #[test]
    fn what_is_written_again_waits_for_the_next_flush() {
        let mut ways = clean();
        passes(&mut ways, data(0));
        passes(&mut ways, journal(0));
        let first = ways.begin_flush();
        passes(&mut ways, journal(0));
        assert_eq!(ways.end_flush(first, true), []);
        assert_eq!(ways.rest(), [], "it is dirty");
        flush(&mut ways);
        passes(&mut ways, data(0));
        passes(&mut ways, journal(0));
        assert_eq!(ways.rest(), [], "again");
        flush(&mut ways);
        assert_eq!(ways.rest(), [Region::at(1 << 30, 4 * KIB)]);
    }

    #[test]
    fn the_ranges_are_bounded_and_what_has_no_room_goes_past_the_cache() {
        let mut ways = clean();
        passes(&mut ways, data(0));
        for piece in 0..RANGES_MAX as u64 {
            assert_eq!(passes(&mut ways, journal(piece * 64 * KIB)), Way::Cached);
        }
        assert_eq!(passes(&mut ways, journal(1 << 30)), Way::Direct);
        assert_eq!(passes(&mut ways, journal(4 * KIB)), Way::Cached, "goes on with one");
        assert_eq!(flush(&mut ways), []);
        passes(&mut ways, data(0));
        passes(&mut ways, journal(1 << 30));
        let forgotten = flush(&mut ways);
        assert_eq!(forgotten.len(), RANGES_MAX, "they make room");
        assert_eq!(ways.rest(), [Region::at(2 << 30, 4 * KIB)]);
    }
}

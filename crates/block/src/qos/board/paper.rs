//! The windows of the WDT paper's two policies: WDT itself, and ST's limits of bandwidth.

use super::super::Nanos;
use super::super::page::{Terms, Words, flag};
use super::super::wdt;
use super::{Board, Rule, SECOND, STALE_TICKS};

impl<W: Words> Board<W> {
    pub(super) fn tick_wdt(&mut self, now: Nanos) {
        let from = self.last_tick;
        let uses = self.seats.iter_mut().map(|seat| seat.wdt_use(from, now)).collect::<Vec<_>>();
        self.wdt.close_window(&uses);
        (0..self.seats.len()).for_each(|index| self.publish_wdt(index, now));
    }

    pub(super) fn publish_wdt(&mut self, index: usize, now: Nanos) {
        // Rounded up: less than a credit a window would else be none for ever.
        let grant = self.wdt.budget(index).clamp(0.0, 1e15).ceil() as u64;
        let flags = match self.rule {
            Rule::WdtSharedLock => flag::SECTORS | flag::SHARED_LOCK,
            _ => flag::SECTORS,
        };
        let seat = &mut self.seats[index];
        let base = match seat.terms.window {
            0 => seat.terms.base,
            // No lane owes for a time in which nothing was limited.
            _ if seat.terms.flags & flag::FREE != 0 => seat.seen.spent,
            _ => seat.terms.base.wrapping_add(seat.terms.grant),
        };
        seat.limit(now, wdt::WINDOW_NS);
        seat.terms = Terms {
            flags,
            // All of it at once.
            start: now.saturating_sub(wdt::WINDOW_NS),
            tick: wdt::WINDOW_NS,
            slices: 1,
            base,
            grant,
            overdraft: base,
            inflight_max: u64::MAX,
            stale_at: now + STALE_TICKS * wdt::WINDOW_NS,
            fallback: grant.saturating_mul(SECOND / wdt::WINDOW_NS),
            achieved: seat.achieved,
            ..seat.terms
        };
        seat.publish(now);
    }

    pub(super) fn tick_static(&mut self, now: Nanos) {
        for index in 0..self.seats.len() {
            self.seats[index].look(now, u64::MAX >> 2, wdt::WINDOW_NS);
            self.publish_static(index, now);
        }
    }

    pub(super) fn publish_static(&mut self, index: usize, now: Nanos) {
        let weights: u64 = self.seats.iter().map(|seat| u64::from(seat.limits.weight)).sum();
        let cost = self.device.cost;
        let seat = &mut self.seats[index];
        seat.limit(now, wdt::WINDOW_NS);
        let part = |per_s| seat.limits.part_of_window(per_s, weights);
        seat.terms = Terms {
            flags: flag::FREE,
            start: now,
            tick: wdt::WINDOW_NS,
            slices: 1,
            inflight_max: u64::MAX,
            stale_at: now + STALE_TICKS * wdt::WINDOW_NS,
            fallback: u64::MAX >> 16,
            read_bytes_max: Some(seat.seen.read_bytes.wrapping_add(part(cost.read_bandwidth()))),
            written_bytes_max: Some(
                seat.seen.written_bytes.wrapping_add(part(cost.write_bandwidth())),
            ),
            achieved: seat.achieved,
            ..seat.terms
        };
        seat.publish(now);
    }
}

//! A bounded table of sequential write flows, found by the address at which each would continue.
//!
//! # Invariants
//!
//! - A slot is on exactly one list: free, young, or grown; `by_next` has one entry for each slot
//!   that is not free.
//! - Two flows never continue at the same address: the newer replaces the older.
//! - When full, the young flow longest untouched goes first: a burst of random writes, each a flow
//!   of its own, cannot push out what has proved to be a stream.

use rustc_hash::FxHashMap;

/// No slot.
const NIL: u16 = u16::MAX;

/// Index of a flow in its table; valid until the flow is removed or evicted.
pub(super) type Slot = u16;

const FREE: u8 = 0;
const YOUNG: u8 = 1;
const GROWN: u8 = 2;

#[derive(Clone, Copy)]
struct Link {
    newer: u16,
    older: u16,
    list: u8,
}

#[derive(Clone, Copy)]
struct List {
    newest: u16,
    oldest: u16,
    count: u16,
}

const EMPTY: List = List { newest: NIL, oldest: NIL, count: 0 };

/// What the table must know of a flow.
pub(super) trait Flow {
    /// The address at which it would continue.
    fn next(&self) -> u64;
}

/// The flows of one volume.
pub(super) struct Flows<F> {
    flows: Vec<F>,
    links: Vec<Link>,
    lists: [List; 3],
    by_next: FxHashMap<u64, Slot>,
    capacity: u16,
}

impl<F: Flow> Flows<F> {
    pub(super) fn new(capacity: u16) -> Self {
        Flows {
            flows: Vec::with_capacity(capacity.into()),
            links: Vec::with_capacity(capacity.into()),
            lists: [EMPTY; 3],
            by_next: FxHashMap::with_capacity_and_hasher(2 * usize::from(capacity), <_>::default()),
            capacity,
        }
    }

    /// The flow that continues at `next`.
    pub(super) fn find(&self, next: u64) -> Option<Slot> {
        self.by_next.get(&next).copied()
    }

    pub(super) fn get(&self, slot: Slot) -> &F {
        &self.flows[usize::from(slot)]
    }

    /// Changes a flow, whose `next` must stay.
    pub(super) fn get_mut(&mut self, slot: Slot) -> &mut F {
        &mut self.flows[usize::from(slot)]
    }

    /// Changes a flow and where it continues; it is then the one touched last. A flow that
    /// continued at the same address goes. `grown` flows outlive young ones.
    pub(super) fn touch(&mut self, slot: Slot, grown: bool, change: impl FnOnce(&mut F)) {
        self.by_next.remove(&self.flows[usize::from(slot)].next());
        change(&mut self.flows[usize::from(slot)]);
        self.claim_next(slot);
        self.unlink(slot);
        self.link(slot, if grown { GROWN } else { YOUNG });
    }

    /// A new, young flow; when the table is full another one goes.
    pub(super) fn insert(&mut self, flow: F) -> Slot {
        let slot = if self.lists[usize::from(FREE)].count > 0 {
            self.reuse(self.lists[usize::from(FREE)].oldest, flow)
        } else if self.flows.len() < usize::from(self.capacity) {
            self.flows.push(flow);
            self.links.push(Link { newer: NIL, older: NIL, list: FREE });
            (self.flows.len() - 1) as Slot
        } else {
            let victim = self.victim();
            self.by_next.remove(&self.flows[usize::from(victim)].next());
            self.reuse(victim, flow)
        };
        self.claim_next(slot);
        self.link(slot, YOUNG);
        slot
    }

    pub(super) fn remove(&mut self, slot: Slot) {
        self.by_next.remove(&self.flows[usize::from(slot)].next());
        self.unlink(slot);
        self.link(slot, FREE);
    }

    /// Whether the slot holds a flow.
    pub(super) fn is_live(&self, slot: Slot) -> bool {
        self.links.get(usize::from(slot)).is_some_and(|link| link.list != FREE)
    }

    /// All flows, with their slots.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &F)> {
        let live = |(slot, flow): (usize, _)| {
            (self.links[slot].list != FREE).then_some((slot as Slot, flow))
        };
        self.flows.iter().enumerate().filter_map(live)
    }

    /// Young flows keep a quarter of the table, or new streams could never grow.
    fn victim(&self) -> Slot {
        let young = self.lists[usize::from(YOUNG)];
        if young.count > self.capacity / 4 || self.lists[usize::from(GROWN)].count == 0 {
            return young.oldest;
        }
        self.lists[usize::from(GROWN)].oldest
    }

    fn reuse(&mut self, slot: Slot, flow: F) -> Slot {
        self.unlink(slot);
        self.flows[usize::from(slot)] = flow;
        slot
    }

    fn claim_next(&mut self, slot: Slot) {
        let next = self.flows[usize::from(slot)].next();
        if let Some(old) = self.by_next.insert(next, slot) {
            self.unlink(old);
            self.link(old, FREE);
        }
    }

    fn link(&mut self, slot: Slot, list: u8) {
        let ends = &mut self.lists[usize::from(list)];
        self.links[usize::from(slot)] = Link { newer: NIL, older: ends.newest, list };
        match ends.newest {
            NIL => ends.oldest = slot,
            newest => self.links[usize::from(newest)].newer = slot,
        }
        ends.newest = slot;
        ends.count += 1;
    }

    fn unlink(&mut self, slot: Slot) {
        let Link { newer, older, list } = self.links[usize::from(slot)];
        let ends = &mut self.lists[usize::from(list)];
        ends.count -= 1;
        match newer {
            NIL => ends.newest = older,
            _ => self.links[usize::from(newer)].older = older,
        }
        match older {
            NIL => ends.oldest = newer,
            _ => self.links[usize::from(older)].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use polylane_base::rng::Rng;

    use super::*;

    struct Run(u64);

    impl Flow for Run {
        fn next(&self) -> u64 {
            self.0
        }
    }

    /// Counts the links of each list both ways and compares them with what the table says.
    fn check(flows: &Flows<Run>) {
        let mut seen = 0;
        for (list, ends) in flows.lists.iter().enumerate() {
            let (mut slot, mut newer, mut count) = (ends.newest, NIL, 0);
            while slot != NIL {
                let link = flows.links[usize::from(slot)];
                assert_eq!((usize::from(link.list), link.newer), (list, newer));
                (newer, slot, count) = (slot, link.older, count + 1);
            }
            assert_eq!((ends.oldest, ends.count), (newer, count));
            seen += usize::from(count);
        }
        assert_eq!(seen, flows.flows.len());
        assert_eq!(flows.by_next.len(), flows.iter().count());
        assert!(flows.iter().all(|(slot, flow)| flows.find(flow.0) == Some(slot)));
    }

    #[test]
    fn the_table_stays_whole_and_bounded() {
        let (mut flows, mut rng) = (Flows::new(16), Rng::new(7));
        for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
            let next = rng.below(64);
            match (flows.find(rng.below(64)), rng.below(8)) {
                (Some(slot), 0) => flows.remove(slot),
                (Some(slot), _) => {
                    flows.touch(slot, rng.percent(50), |flow: &mut Run| flow.0 = next)
                }
                (None, _) => {
                    let slot = flows.insert(Run(next));
                    assert_eq!(flows.find(next), Some(slot));
                }
            }
            assert!(flows.iter().count() <= 16);
            check(&flows);
        }
    }

    #[test]
    fn a_grown_flow_outlives_a_burst_of_young_ones() {
        let mut flows = Flows::new(16);
        let slot = flows.insert(Run(0));
        flows.touch(slot, true, |flow: &mut Run| flow.0 = 1);
        (2..2000).for_each(|next| {
            flows.insert(Run(next));
        });
        assert_eq!(flows.find(1), Some(slot));
    }
}

//! Places for what callers may have at a time: connections, changes.
//!
//! The daemon's user, members of the group and strangers each have places of their own, and one
//! member cannot have all of the members': nobody keeps another out.

use std::collections::BTreeMap;

use polylane_base::sync::{Arc, Mutex};

use crate::caller::Caller;

/// How many there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// For all callers of one kind together.
    pub(crate) of_a_kind: usize,
    /// For one caller that is not the daemon's user.
    pub(crate) each: usize,
}

/// Places of one sort. Thread-safe.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    limits: Limits,
    /// How many each caller has; one that has none is not in it.
    taken: Arc<Mutex<BTreeMap<Caller, usize>>>,
}

/// One place; dropped, it is free.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    caller: Caller,
}

impl Places {
    pub(crate) fn new(limits: Limits) -> Places {
        Places { limits, taken: Arc::default() }
    }

    /// Takes one; `None`: the caller, or all of its kind together, have as many as they may.
    pub(crate) fn take(&self, caller: Caller) -> Option<Place> {
        let mut taken = self.taken.lock();
        let own = taken.get(&caller).copied().unwrap_or(0);
        let of_kind = taken.iter().filter(|(other, _)| other.is_of_kind(caller));
        let of_kind: usize = of_kind.map(|(_, count)| count).sum();
        if of_kind >= self.limits.of_a_kind || caller != Caller::Owner && own >= self.limits.each {
            return None;
        }
        taken.insert(caller, own + 1);
        Some(Place { places: self.clone(), caller })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        let left = taken.get(&self.caller).map_or(0, |count| count - 1);
        match left {
            0 => taken.remove(&self.caller),
            left => taken.insert(self.caller, left),
        };
    }
}

#[cfg(test)]
mod tests {
    use polylane_base::rng::Rng;

    use super::*;

    const LIMITS: Limits = Limits { of_a_kind: 8, each: 3 };

    #[test]
    fn nobody_keeps_another_kind_out_nor_all_of_the_own() {
        let places = Places::new(LIMITS);
        let greedy = |caller| std::iter::from_fn(|| places.take(caller)).collect::<Vec<_>>();
        let one = greedy(Caller::Member(1));
        assert_eq!(one.len(), LIMITS.each);
        let others: Vec<_> = (2..10).flat_map(|user| greedy(Caller::Member(user))).collect();
        assert_eq!(one.len() + others.len(), LIMITS.of_a_kind);
        assert_eq!(greedy(Caller::Stranger(1)).len(), LIMITS.each);
        assert_eq!(greedy(Caller::Owner).len(), LIMITS.of_a_kind, "the daemon's user has all");
        drop(one);
        assert_eq!(greedy(Caller::Member(9)).len(), LIMITS.each, "what was given back");
    }

    /// Whoever takes and leaves in whichever order: limits hold, and what is left is nothing.
    #[test]
    fn places_in_random_order() {
        let mut random = Rng::new(7);
        let places = Places::new(LIMITS);
        let mut held: Vec<Place> = Vec::new();
        for _ in 0..5000 {
            let user = random.below(4) as u32;
            let caller = [Caller::Owner, Caller::Member(user), Caller::Stranger(user)]
                [random.below(3) as usize];
            if random.below(2) == 0 && !held.is_empty() {
                held.swap_remove(random.below(held.len() as u64) as usize);
                continue;
            }
            let count =
                |is: &dyn Fn(Caller) -> bool| held.iter().filter(|place| is(place.caller)).count();
            let of_kind = count(&|other| other.is_of_kind(caller));
            let own = count(&|other| other == caller);
            let expected =
                of_kind < LIMITS.of_a_kind && (caller == Caller::Owner || own < LIMITS.each);
            let place = places.take(caller);
            assert_eq!(place.is_some(), expected, "{caller:?}: {own} of {of_kind}");
            held.extend(place);
        }
        drop(held);
        assert!(places.taken.lock().is_empty());
    }
}

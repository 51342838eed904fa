//! The names of leased directories.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use polylane_ipc::stream::{NAME_BYTES_MAX, ShortName};
use zerocopy::FromZeros;

/// What is known of an existing name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Known {
    /// A file that this process made under the lease.
    Own = 1,
    /// Anything else.
    Other = 2,
    /// A file that can be reached by this name alone, as long as this process opens nothing.
    Sole = 3,
}

/// Names of leased directories: a hash table with linear probing, without tombstones.
#[derive(FromZeros)]
pub(super) struct Names {
    places: [Place; PLACES],
    count: AtomicU32,
}

/// Places of the table: a power of two.
const PLACES: usize = 2048;
/// Names in it at most.
const NAMES_MAX: u32 = 1536;

/// One name; `what` 0: free.
#[derive(FromZeros)]
struct Place {
    /// `Known`, lease, length: a byte each.
    what: AtomicU64,
    name: [AtomicU64; NAME_BYTES_MAX / 8],
}

impl Names {
    pub(super) const fn new() -> Self {
        Names { places: [const { Place::new() }; PLACES], count: AtomicU32::new(0) }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count.load(Relaxed) >= NAMES_MAX
    }

    pub(super) fn clear(&self) {
        if self.count.swap(0, Relaxed) > 0 {
            self.places.iter().for_each(|place| place.what.store(0, Relaxed));
        }
    }

    pub(super) fn home(lease: u8, name: &ShortName) -> usize {
        (name.hash() as usize ^ usize::from(lease)) % PLACES
    }

    /// Where the name is, or where it would be put.
    #[inline]
    fn place(&self, lease: u8, name: &ShortName) -> usize {
        let mut at = Self::home(lease, name);
        while let Some((_, other, known)) = self.places[at].get() {
            if other == lease && known == *name {
                break;
            }
            at = (at + 1) % PLACES;
        }
        at
    }

    pub(super) fn get(&self, lease: u8, name: &ShortName) -> Option<Known> {
        self.places[self.place(lease, name)].get().map(|(known, ..)| known)
    }

    /// False when the table is full.
    pub(super) fn insert(&self, lease: u8, name: &ShortName, known: Known) -> bool {
        let place = &self.places[self.place(lease, name)];
        if place.what.load(Relaxed) == 0 {
            if self.is_full() {
                return false;
            }
            self.count.store(self.count.load(Relaxed) + 1, Relaxed);
        }
        place.set(known, lease, name);
        true
    }

    /// What is known of a name is known of another one instead.
    pub(super) fn rename(&self, lease: u8, from: &ShortName, to: &ShortName) {
        if let Some(known) = self.get(lease, from) {
            self.remove(lease, from);
            // There is room: one name less was there a moment ago.
            self.insert(lease, to, known);
        }
    }

    pub(super) fn remove(&self, lease: u8, name: &ShortName) {
        let mut hole = self.place(lease, name);
        if self.places[hole].what.load(Relaxed) == 0 {
            return;
        }
        self.count.store(self.count.load(Relaxed) - 1, Relaxed);
        // Those after the hole that could not be put before it move into it.
        let mut at = hole;
        loop {
            at = (at + 1) % PLACES;
            let Some((known, lease, name)) = self.places[at].get() else { break };
            let home = Self::home(lease, &name);
            if (at + PLACES - home) % PLACES >= (at + PLACES - hole) % PLACES {
                self.places[hole].set(known, lease, &name);
                hole = at;
            }
        }
        self.places[hole].what.store(0, Relaxed);
    }
}

impl Place {
    const fn new() -> Self {
        let name = [const { AtomicU64::new(0) }; NAME_BYTES_MAX / 8];
        Place { what: AtomicU64::new(0), name }
    }

    #[inline]
    pub(super) fn get(&self) -> Option<(Known, u8, ShortName)> {
        let what = self.what.load(Relaxed);
        let known = match what as u8 {
            0 => return None,
            1 => Known::Own,
            3 => Known::Sole,
            _ => Known::Other,
        };
        let words = std::array::from_fn(|n| self.name[n].load(Relaxed));
        Some((known, (what >> 8) as u8, ShortName::from_words((what >> 16) as u8, words)))
    }

    pub(super) fn set(&self, known: Known, lease: u8, name: &ShortName) {
        let (len, words) = name.to_words();
        for (place, word) in self.name.iter().zip(words) {
            place.store(word, Relaxed);
        }
        self.what.store(known as u64 | u64::from(lease) << 8 | u64::from(len) << 16, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn names_are_found_as_in_a_map() {
        let table: Box<Names> = Box::new(Names::new());
        let mut map = HashMap::new();
        let mut state = 1_u64;
        for _ in 0..if cfg!(miri) { 400 } else { 200_000 } {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            let number = state >> 33;
            let (lease, text) = ((number % 3) as u8, format!("name-{}", number / 3 % 1500));
            let name = ShortName::new(text.as_bytes()).unwrap();
            match number % 7 {
                0..=2 => {
                    let known = if number.is_multiple_of(2) { Known::Own } else { Known::Other };
                    if table.insert(lease, &name, known) {
                        map.insert((lease, text), known);
                    } else {
                        assert_eq!(map.len() as u32, NAMES_MAX);
                    }
                }
                3..=5 => {
                    table.remove(lease, &name);
                    map.remove(&(lease, text));
                }
                _ => assert_eq!(table.get(lease, &name), map.get(&(lease, text)).copied()),
            }
            assert_eq!(table.count.load(Relaxed) as usize, map.len());
        }
        table.clear();
        assert_eq!(table.get(0, &ShortName::new(b"name-1").unwrap()), None);
    }
}

//! What streams of one directory with lowers have in common: the names of the lowers, and numbers
//! for positions in the upper.

use polylane_base::Ino;
use polylane_base::sync::Mutex;
use polylane_vfs::fs::Kind;
use rustc_hash::{FxHashMap, FxHashSet};

/// A name in the lowers of a directory.
pub(crate) struct Name {
    pub(crate) name: Box<[u8]>,
    pub(crate) kind: Kind,
    pub(crate) ino: Ino,
}

/// What streams of one directory with lowers have in common. Thread-safe.
pub(crate) struct Stream {
    names: Vec<Name>,
    known: FxHashSet<Box<[u8]>>,
    positions: Mutex<Positions>,
}

impl Stream {
    /// Of the names that the lowers have.
    pub(crate) fn new(names: Vec<Name>) -> Stream {
        let known = names.iter().map(|entry| entry.name.clone()).collect();
        let mut positions = Positions::default();
        positions.number(0);
        Stream { names, known, positions: Mutex::new(positions) }
    }

    /// The names that the lowers have, in an order that stays.
    pub(crate) fn names(&self) -> &[Name] {
        &self.names
    }

    /// Whether the lowers have a name.
    pub(crate) fn has(&self, name: &[u8]) -> bool {
        self.known.contains(name)
    }

    /// The position in the upper of that number.
    pub(crate) fn position(&self, number: u64) -> Option<u64> {
        let number = usize::try_from(number).ok()?;
        self.positions.lock().by_number.get(number).copied()
    }

    /// The number of a position in the upper.
    pub(crate) fn number(&self, position: u64) -> u64 {
        self.positions.lock().number(position)
    }
}

#[derive(Default)]
struct Positions {
    by_number: Vec<u64>,
    numbers: FxHashMap<u64, u64>,
}

impl Positions {
    /// The number of a position of the upper.
    fn number(&mut self, position: u64) -> u64 {
        let next = self.by_number.len() as u64;
        *self.numbers.entry(position).or_insert_with(|| {
            self.by_number.push(position);
            next
        })
    }
}

//! Names that layers do not have, of layers that never change: none of them is asked twice.
//!
//! All layers of a union share one memory of them. It has two halves: the younger one takes what is
//! new and what was asked for again; when it is full, the older one is dropped and it takes its
//! place. So names that are asked for stay, and no list has to be kept in order.

use std::collections::HashSet;

use polylane_base::Ino;
use polylane_base::sync::{Arc, Mutex};

/// Bytes of a name beside its own: the key's numbers, its place in the table, the allocator's.
const ENTRY_BYTES: usize = 64;

/// Longest name that a layer is asked for.
const NAME_BYTES_MAX: usize = 255;

/// Layer and directory before a name.
const PREFIX_BYTES: usize = 12;

/// What layers that never change do not have. Thread-safe.
pub struct Absent {
    bytes_limit: usize,
    known: Mutex<Known>,
}

/// What [`Absent`] has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AbsentStats {
    /// Names that are remembered.
    pub names: usize,
    /// Bytes of memory that they take.
    pub bytes: usize,
    /// How often a layer was not asked.
    pub hits: u64,
}

#[derive(Default)]
struct Half {
    names: HashSet<Box<[u8]>>,
    bytes: usize,
}

#[derive(Default)]
struct Known {
    young: Half,
    old: Half,
    hits: u64,
    layers: u32,
}

/// The part of one layer.
pub(crate) struct OfLayer {
    all: Arc<Absent>,
    layer: u32,
}

impl Half {
    fn put(&mut self, key: &[u8]) {
        if self.names.insert(key.into()) {
            self.bytes += key.len() + ENTRY_BYTES;
        }
    }

    /// Takes a name out; whether it was there.
    fn take(&mut self, key: &[u8]) -> bool {
        let was_there = self.names.remove(key);
        self.bytes -= if was_there { key.len() + ENTRY_BYTES } else { 0 };
        was_there
    }
}

impl Known {
    /// Remembers a name. No half is above its limit.
    fn put(&mut self, key: &[u8], half_limit: usize) {
        let bytes = key.len() + ENTRY_BYTES;
        if bytes > half_limit {
            return;
        }
        if self.young.bytes + bytes > half_limit {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.put(key);
    }
}

impl Absent {
    /// A memory of at most so many bytes.
    pub fn new(bytes_limit: usize) -> Arc<Absent> {
        Arc::new(Absent { bytes_limit, known: Mutex::default() })
    }

    /// What it has come to.
    pub fn stats(&self) -> AbsentStats {
        let known = self.known.lock();
        AbsentStats {
            names: known.young.names.len() + known.old.names.len(),
            bytes: known.young.bytes + known.old.bytes,
            hits: known.hits,
        }
    }

    /// The part of a further layer.
    pub(crate) fn of_layer(self: &Arc<Self>) -> OfLayer {
        let mut known = self.known.lock();
        known.layers += 1;
        OfLayer { all: self.clone(), layer: known.layers }
    }
}

impl OfLayer {
    /// Whether a name is known not to be in a directory.
    pub(crate) fn has(&self, dir: Ino, name: &[u8]) -> bool {
        let Some((key, len)) = self.key(dir, name) else { return false };
        let key = &key[..len];
        let mut known = self.all.known.lock();
        let was_old = known.old.take(key);
        if was_old {
            known.put(key, self.all.bytes_limit / 2);
        }
        let is_known = was_old || known.young.names.contains(key);
        known.hits += u64::from(is_known);
        is_known
    }

    /// A name is not in a directory.
    pub(crate) fn put(&self, dir: Ino, name: &[u8]) {
        if let Some((key, len)) = self.key(dir, name) {
            self.all.known.lock().put(&key[..len], self.all.bytes_limit / 2);
        }
    }

    /// A name as it is remembered; `None` for one that is longer than any.
    fn key(&self, dir: Ino, name: &[u8]) -> Option<([u8; PREFIX_BYTES + NAME_BYTES_MAX], usize)> {
        let mut key = [0; PREFIX_BYTES + NAME_BYTES_MAX];
        let (layer, rest) = key.split_at_mut(4);
        let (number, rest) = rest.split_at_mut(8);
        layer.copy_from_slice(&self.layer.to_ne_bytes());
        number.copy_from_slice(&dir.0.to_ne_bytes());
        rest.get_mut(..name.len())?.copy_from_slice(name);
        Some((key, PREFIX_BYTES + name.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_their_layer_and_directory() {
        let all = Absent::new(1 << 20);
        let (one, other) = (all.of_layer(), all.of_layer());
        one.put(Ino(2), b"a");
        assert!(one.has(Ino(2), b"a"));
        assert!(!one.has(Ino(3), b"a") && !one.has(Ino(2), b"") && !other.has(Ino(2), b"a"));
        one.put(Ino(2), &[b'x'; 256]);
        assert!(!one.has(Ino(2), &[b'x'; 256]), "longer than any name");
        assert_eq!(all.stats(), AbsentStats { names: 1, bytes: 1 + 12 + ENTRY_BYTES, hits: 1 });
    }

    #[test]
    fn names_that_are_asked_for_stay_and_others_make_room() {
        let all = Absent::new(64 << 10);
        let layer = all.of_layer();
        layer.put(Ino(2), b"asked for");
        for number in 0..10_000u32 {
            layer.put(Ino(2), format!("name {number}").as_bytes());
            assert!(all.stats().bytes <= 64 << 10, "{number}");
            assert!(number % 100 != 0 || layer.has(Ino(2), b"asked for"), "{number}");
        }
        assert!(layer.has(Ino(2), b"name 9999") && !layer.has(Ino(2), b"name 0"));
        let none = Absent::new(0).of_layer();
        none.put(Ino(2), b"a");
        assert!(!none.has(Ino(2), b"a"));
    }
}

//! One directory: an index by name and an order for streams.
//!
//! Every new name gets the next cookie of its directory, so the order by cookie is the order of
//! arrival and never changes. `order` is sorted by cookie; a removed name leaves a gap there, and
//! gaps are swept out when they outnumber the names. A stream is a cookie, so it survives both.

use polylane_base::{Errno, Ino, Result};
use rustc_hash::FxHashMap;
use std::sync::Arc;

use crate::fs::Kind;

/// Gaps that are not worth sweeping.
const GAPS_MIN: usize = 32;

/// What a name stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    /// The inode.
    pub(super) ino: Ino,
    /// Its kind.
    pub(super) kind: Kind,
}

struct Entry {
    cookie: u64,
    target: Target,
}

/// One entry of a stream.
pub(super) struct Listed {
    /// Position of this entry.
    pub(super) cookie: u64,
    /// Its name.
    pub(super) name: Arc<[u8]>,
    /// What it stands for.
    pub(super) target: Target,
}

/// The names of one directory.
#[derive(Default)]
pub(super) struct Directory {
    names: FxHashMap<Arc<[u8]>, Entry>,
    order: Vec<(u64, Option<Arc<[u8]>>)>,
    last_cookie: u64,
}

impl Directory {
    /// Number of names.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// What `name` stands for.
    pub(super) fn get(&self, name: &[u8]) -> Option<Target> {
        self.names.get(name).map(|entry| entry.target)
    }

    /// Adds a name. `EEXIST` when it is there.
    pub(super) fn insert(&mut self, name: &[u8], target: Target) -> Result<()> {
        if self.names.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.last_cookie += 1;
        let name: Arc<[u8]> = name.into();
        self.order.push((self.last_cookie, Some(name.clone())));
        self.names.insert(name, Entry { cookie: self.last_cookie, target });
        Ok(())
    }

    /// Makes an existing name stand for something else; it keeps its place in the streams.
    pub(super) fn replace(&mut self, name: &[u8], target: Target) -> Result<()> {
        self.names.get_mut(name).ok_or(Errno::ENOENT)?.target = target;
        Ok(())
    }

    /// Removes a name.
    pub(super) fn remove(&mut self, name: &[u8]) -> Result<Target> {
        let entry = self.names.remove(name).ok_or(Errno::ENOENT)?;
        if self.order.last().is_some_and(|last| last.0 == entry.cookie) {
            self.order.pop();
        } else if let Ok(at) = self.order.binary_search_by_key(&entry.cookie, |slot| slot.0) {
            self.order[at].1 = None;
        }
        if self.order.len() > 2 * self.names.len() + GAPS_MIN {
            self.order.retain(|slot| slot.1.is_some());
        }
        Ok(entry.target)
    }

    /// Up to `count` entries after cookie `from`, in order.
    pub(super) fn list(&self, from: u64, count: usize) -> Vec<Listed> {
        let start = self.order.partition_point(|slot| slot.0 <= from);
        let named = self.order[start..].iter().filter_map(|slot| slot.1.as_ref());
        let listed = |name: &Arc<[u8]>| {
            let entry = self.names.get(name)?;
            Some(Listed { cookie: entry.cookie, name: name.clone(), target: entry.target })
        };
        named.filter_map(listed).take(count).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(ino: u64) -> Target {
        Target { ino: Ino(ino), kind: Kind::File }
    }

    #[test]
    fn a_stream_sees_every_untouched_name_once_while_others_come_and_go() {
        let names = if cfg!(miri) { 50 } else { 1000 };
        let mut dir = Directory::default();
        for i in 0..names {
            dir.insert(format!("n{i}").as_bytes(), file(i)).unwrap();
        }
        let mut seen = Vec::new();
        let mut from = 0;
        loop {
            let batch = dir.list(from, 7);
            let Some(last) = batch.last() else { break };
            from = last.cookie;
            seen.extend(batch.iter().map(|entry| entry.target.ino.0));
            for step in 0..20 {
                let churn = format!("churn{step}");
                dir.insert(churn.as_bytes(), file(5000)).unwrap();
                dir.remove(churn.as_bytes()).unwrap();
            }
            if let Some(gone) = seen.iter().copied().rfind(|i| i % 2 == 1) {
                let _ = dir.remove(format!("n{gone}").as_bytes());
            }
        }
        assert_eq!(seen, (0..names).collect::<Vec<_>>());
    }

    #[test]
    fn gaps_do_not_pile_up() {
        let mut dir = Directory::default();
        dir.insert(b"first", file(1)).unwrap();
        for i in 0..if cfg!(miri) { 100 } else { 10_000 } {
            dir.insert(b"a", file(i)).unwrap();
            dir.insert(b"b", file(i)).unwrap();
            dir.remove(b"a").unwrap();
            dir.remove(b"b").unwrap();
        }
        assert!(dir.order.len() <= GAPS_MIN + 4, "{}", dir.order.len());
    }

    #[test]
    fn a_replaced_name_keeps_its_place() {
        let mut dir = Directory::default();
        dir.insert(b"a", file(1)).unwrap();
        dir.insert(b"b", file(2)).unwrap();
        dir.replace(b"a", file(3)).unwrap();
        assert_eq!(dir.list(0, 1)[0].target.ino, Ino(3));
        assert_eq!(dir.insert(b"a", file(4)), Err(Errno::EEXIST));
        assert_eq!(dir.remove(b"c"), Err(Errno::ENOENT));
    }
}

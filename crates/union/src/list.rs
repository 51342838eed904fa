//! Streams of directories.
//!
//! A directory without lowers is listed as its layer lists it. One that has lowers is listed in two
//! parts: first the names that the lowers have, in an order that never changes, then the names that
//! the upper alone has. A name that is copied up while a stream goes on keeps its place, so that it
//! is seen exactly once.
//!
//! # Positions
//!
//! | position | goes on |
//! |---|---|
//! | 0 ..= number of names in the lowers | with that name of the lowers |
//! | 2⁴⁰ (1 + o) + n | in the upper, at its n-th position that a stream of this node has met |
//!
//! The union was opened o times before. A stream that goes on among the names of the upper after a
//! service was replaced begins with these anew: what it has shown may come again, nothing is left
//! out.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{DirEntry, Kind};
use rustc_hash::FxHashSet;

use crate::Act;
use crate::find::{self, Entry};
use crate::layer::Held;
use crate::node::Node;
use crate::stream::{Name, Stream};
use crate::upper::CANARY;

/// Entries that are looked at together.
const BATCH: usize = 64;

/// Positions from here on are in the upper.
const IN_UPPER: u64 = 1 << 40;
/// Openings that positions tell from each other.
const OPENINGS: u64 = 1_000_000;

/// An entry as the union shows it.
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) ino: Ino,
    pub(crate) next: u64,
}

/// An entry of a layer.
struct Raw {
    name: Vec<u8>,
    kind: Kind,
    ino: Ino,
    next: u64,
}

/// Entries of one layer from `from` on, at most `count`.
fn batch(ctx: &OpCtx<'_>, dir: &Held, from: u64, count: usize) -> Result<Vec<Raw>> {
    let mut all = Vec::new();
    dir.fs().readdir(ctx, dir.ino(), from, &mut |entry: DirEntry<'_>| {
        let DirEntry { ino, next, kind, name } = entry;
        all.push(Raw { name: name.to_vec(), kind, ino, next });
        all.len() < count
    })?;
    Ok(all)
}

impl Act<'_> {
    /// The entries that follow position `from`: none at the end only.
    pub(crate) fn list(&self, dir: &Arc<Node>, from: u64) -> Result<Vec<Listed>> {
        dir.dir()?;
        if dir.state().is_removed {
            return Ok(Vec::new());
        }
        let upper = dir.upper();
        if dir.lowers.is_empty() {
            let Some(upper) = upper else { return Ok(Vec::new()) };
            return self.list_upper(dir, &upper, from, None);
        }
        let stream = self.stream(dir)?;
        let mut from = from;
        if from < IN_UPPER {
            let start = usize::try_from(from).unwrap_or(usize::MAX).min(stream.names().len());
            let all = self.list_lowers(dir, upper.as_ref(), &stream, start)?;
            if !all.is_empty() {
                return Ok(all);
            }
            from = 0;
        } else {
            from = from.checked_sub(self.first_in_upper()).filter(|&n| n < IN_UPPER).unwrap_or(0);
        }
        match upper {
            Some(upper) => self.list_upper(dir, &upper, from, Some(&stream)),
            None => Ok(Vec::new()),
        }
    }

    /// The position of the beginning of the upper, another one each time the union is opened.
    fn first_in_upper(&self) -> u64 {
        IN_UPPER * (1 + self.openings % OPENINGS)
    }

    /// Whether a directory has no entries.
    pub(crate) fn is_empty(&self, dir: &Arc<Node>) -> Result<bool> {
        Ok(self.list(dir, 0)?.is_empty())
    }

    /// The names of the lowers, and positions in the upper.
    fn stream(&self, dir: &Node) -> Result<Arc<Stream>> {
        if let Some(stream) = dir.state().stream.clone() {
            return Ok(stream);
        }
        let stream = Arc::new(Stream::new(self.names_in_lowers(dir)?));
        // Whichever was first stays: positions are numbered in one place.
        Ok(dir.state().stream.get_or_insert(stream).clone())
    }

    /// The names that the lowers of a directory have, each once.
    pub(crate) fn names_in_lowers(&self, dir: &Node) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        let mut seen: FxHashSet<Vec<u8>> = FxHashSet::default();
        for lower in &dir.lowers {
            let files = find::has_files_as_whiteouts(self.ctx, &lower.held)?;
            for raw in batch(self.ctx, &lower.held, 0, usize::MAX)? {
                if seen.contains(&raw.name) || self.is_canary(dir, &raw.name) {
                    continue;
                }
                let suspect = raw.kind == Kind::Char || files && raw.kind == Kind::File;
                if !suspect
                    || matches!(find::entry(self.ctx, &lower.held, &raw.name)?, Entry::Node(..))
                {
                    let ino = self.table.number(self.rank(lower.index), raw.ino);
                    names.push(Name { name: raw.name.as_slice().into(), kind: raw.kind, ino });
                }
                seen.insert(raw.name);
            }
        }
        Ok(names)
    }

    fn list_lowers(
        &self,
        dir: &Node,
        upper: Option<&Held>,
        stream: &Stream,
        start: usize,
    ) -> Result<Vec<Listed>> {
        let mut all = Vec::new();
        for (at, entry) in stream.names().iter().enumerate().skip(start) {
            let above = match upper {
                Some(upper) => upper.lookup(self.ctx, &entry.name)?.is_some(),
                None => false,
            };
            let (mut kind, mut ino) = (entry.kind, entry.ino);
            if above {
                match self.listed(dir, &entry.name, (kind, ino))? {
                    Some(shown) => (kind, ino) = shown,
                    None => continue,
                }
            }
            all.push(Listed { name: entry.name.to_vec(), kind, ino, next: at as u64 + 1 });
            if all.len() == BATCH {
                break;
            }
        }
        Ok(all)
    }

    /// What an entry is listed as, `None` where it is hidden. One that cannot be read, as when the
    /// lower changed under it, is listed as its layer has it: the error is the file's, and the
    /// directory's other names are not to be lost with it.
    fn listed(&self, dir: &Node, name: &[u8], raw: (Kind, Ino)) -> Result<Option<(Kind, Ino)>> {
        match self.find(dir, name) {
            Ok(found) => Ok(found.map(|found| (found.kind(), self.identity(&found).0))),
            Err(Errno::EIO) => Ok(Some(raw)),
            Err(errno) => Err(errno),
        }
    }

    /// Lists the upper, without the names of the lowers, which were listed before.
    fn list_upper(
        &self,
        dir: &Node,
        upper: &Held,
        from: u64,
        stream: Option<&Stream>,
    ) -> Result<Vec<Listed>> {
        let mut from = match stream {
            None => from,
            Some(stream) => match stream.position(from) {
                Some(position) => position,
                None => return Ok(Vec::new()),
            },
        };
        let is_root = dir.ino == self.root.ino;
        let is_pure = dir.lowers.is_empty() && !dir.state().is_impure;
        let files = find::has_files_as_whiteouts(self.ctx, upper)?;
        loop {
            let raw = batch(self.ctx, upper, from, BATCH)?;
            let Some(last) = raw.last() else { return Ok(Vec::new()) };
            from = last.next;
            let mut all = Vec::new();
            for Raw { name, kind, ino, next } in raw {
                let is_hidden =
                    is_root && name == CANARY || stream.is_some_and(|stream| stream.has(&name));
                if is_hidden {
                    continue;
                }
                let suspect = kind == Kind::Char || files && kind == Kind::File;
                let mut shown = (kind, ino);
                if suspect || !is_pure {
                    match self.listed(dir, &name, shown)? {
                        Some(found) => shown = found,
                        None => continue,
                    }
                }
                let next = match stream {
                    None => next,
                    Some(stream) => self.first_in_upper() + stream.number(next),
                };
                all.push(Listed { name, kind: shown.0, ino: shown.1, next });
            }
            if !all.is_empty() {
                return Ok(all);
            }
        }
    }
}

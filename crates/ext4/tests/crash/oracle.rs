//! What a power cut may leave, from the states that a workload went through.
//!
//! With `S0 … Sn` the trees before, between and after the operations: after a cut the tree is some
//! `Sj` in every name and attribute (one log, one order), with
//!
//! - `j` not above the operation that was running;
//! - `j` not below what was promised: a completed sync promises all before it, a completed fsync
//!   the last change of that inode;
//! - each byte of a file as in `Sj` or as a later write that had begun left it. Bytes beyond the
//!   end of a file count as zeros, so a truncation that was not committed may have cleared some.

use std::collections::BTreeMap;

use polylane_base::Ino;
use polylane_vfs::fs::{Attr, Fallocate, Kind};

use super::script::{Op, POISON};
use super::tree::{Node, Tree};

/// An operation's place in the record of the disk.
#[derive(Clone, Debug)]
pub struct Span {
    pub op: Op,
    pub start: usize,
    pub end: usize,
    pub ok: bool,
    /// The state that it promises, once it is done.
    pub promises: usize,
    /// The inode whose bytes it promises as they were then, whatever of the rest is there.
    pub bytes_of: Option<Ino>,
}

/// What is promised and what may have happened at a cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// The least state.
    pub least: usize,
    /// The greatest state.
    pub most: usize,
    /// Inodes whose bytes are at least as new as in some state.
    bytes: BTreeMap<u64, usize>,
}

/// The history of a run; `states[i]` is the tree before `spans[i]`.
#[derive(Default)]
pub struct History {
    pub states: Vec<Tree>,
    pub spans: Vec<Span>,
    /// Commits came at any moment: an operation that takes several handles may be half done.
    pub splits: bool,
}

impl History {
    /// The last state before now that differs from the one before it in what a sync of `ino` saves
    /// of the metadata. `data_only`: size and blocks.
    pub fn last_change(&self, ino: Ino, data_only: bool) -> usize {
        let part = |node: &Node| {
            let attr = node.meta.attr;
            (attr.size, attr.blocks, (!data_only).then(|| node.meta.clone()))
        };
        let view = |tree: &Tree| {
            let of = tree.of(ino);
            // A name is a directory and a component: what happens further up is not its affair.
            let names = of.iter().map(|(path, _)| *path).filter(|path| *path != "*");
            let name = |path: &str| {
                let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
                (tree.nodes.get(dir).map(|node| node.meta.attr.ino.0), last.to_string())
            };
            let mut paths: Vec<(Option<u64>, String)> = names.map(name).collect();
            paths.sort();
            let paths = if data_only { Vec::new() } else { paths };
            (paths, of.first().map(|(_, node)| part(node)))
        };
        let last = self.states.len() - 1;
        (1..=last).rev().find(|i| view(&self.states[*i]) != view(&self.states[i - 1])).unwrap_or(0)
    }

    /// What a cut after `position` events may leave.
    pub fn window(&self, position: usize) -> Window {
        let last = self.states.len() - 1;
        let (mut least, mut bytes) = (0, BTreeMap::new());
        for (at, span) in self.spans.iter().enumerate() {
            if span.ok && span.end <= position {
                least = least.max(span.promises);
                bytes.extend(span.bytes_of.map(|ino| (ino.0, at)));
            }
        }
        let begun = self.spans.iter().filter(|span| span.start < position).count();
        Window { least, most: begun.max(least).min(last), bytes }
    }

    /// The same for a run that answered as this one did up to span `same`, and then failed.
    pub fn window_after(&self, same: usize) -> Window {
        let position = same.checked_sub(1).map_or(0, |last| self.spans[last].end);
        Window { most: (same + 1).min(self.spans.len()), ..self.window(position) }
    }

    /// Checks a tree that was found after a cut. Says which state it is.
    pub fn judge(&self, found: &Tree, window: &Window) -> Result<usize, String> {
        let (least, most) = (window.least, window.most);
        let poisoned = |node: &&Node| node.data.contains(&POISON);
        if let Some(node) = found.nodes.values().find(poisoned) {
            return Err(format!("old content of the disk shows in inode {}", node.meta.attr.ino.0));
        }
        let mut complaints = Vec::new();
        for state in (least..=most).rev() {
            let tree = &self.states[state];
            let difference = found.difference(tree).filter(|_| !self.is_between(found, state));
            match difference {
                None => match self.bytes(found, state, window) {
                    Ok(()) => return Ok(state),
                    Err(why) => complaints.push(format!("  not S{state}: {why}")),
                },
                Some(why) => complaints.push(format!("  not S{state}: {why}")),
            }
        }
        let ops: Vec<String> = (least..most).map(|at| self.describe(at)).collect();
        let (ops, complaints) = (ops.join("\n"), complaints.join("\n"));
        Err(format!("no legal state of S{least}..=S{most}\n{ops}\n{complaints}"))
    }

    /// Whether blocks of the inode may have moved within it in a change that was not committed: a
    /// later write to one of them then shows where the block was before, as in the kernel.
    fn moved(&self, ino: Ino, from: usize, to: usize) -> bool {
        let shifts = |span: &Span| {
            matches!(
                span.op,
                Op::Fallocate(_, Fallocate::CollapseRange | Fallocate::InsertRange, ..)
            )
        };
        (from..to).any(|at| {
            let is_its = |(path, _): (&str, &Node)| match &self.spans[at].op {
                Op::Fallocate(of, ..) => of == path,
                _ => false,
            };
            shifts(&self.spans[at]) && self.states[at].of(ino).into_iter().any(is_its)
        })
    }

    fn describe(&self, at: usize) -> String {
        let Span { op, start, end, ok, promises, .. } = &self.spans[at];
        let outcome = if *ok { "done" } else { "refused" };
        format!("  S{at}: {op:?} in events {start}..{end}, {outcome}, promises S{promises}")
    }

    /// Whether the tree is a state on its way to the next: sizes and blocks of what that changes
    /// lie between, names and all else are as they were.
    fn is_between(&self, found: &Tree, state: usize) -> bool {
        let (now, next) = (&self.states[state], self.states.get(state + 1));
        let Some(next) = next.filter(|_| self.splits) else { return false };
        found.nodes.keys().eq(now.nodes.keys())
            && found.nodes.iter().all(|(path, node)| {
                let (mut meta, old) = (node.meta.clone(), &now.nodes[path].meta);
                let new = next.of(old.attr.ino).first().map_or(old, |(_, node)| &node.meta);
                let (least, most) =
                    (old.attr.size.min(new.attr.size), old.attr.size.max(new.attr.size));
                let sized = (least..=most).contains(&meta.attr.size);
                if sized && new != old {
                    let Attr { size, blocks, mtime, ctime, .. } = old.attr;
                    meta.attr = Attr { size, blocks, mtime, ctime, ..meta.attr };
                }
                meta == *old
            })
    }

    fn bytes(&self, found: &Tree, state: usize, window: &Window) -> Result<(), String> {
        for (path, node) in &found.nodes {
            let now = &self.states[state].nodes[path];
            let ino = node.meta.attr.ino;
            let oldest = window.bytes.get(&ino.0).copied().unwrap_or(0).max(state);
            if oldest == state && node.data == now.data {
                continue;
            }
            let later = self.states[oldest..=window.most.max(oldest)].iter();
            let versions: Vec<&Node> =
                later.filter_map(|tree| tree.of(ino).first().map(|(_, node)| *node)).collect();
            let moved = self.moved(ino, state, window.most);
            let legal = |(at, byte): (usize, &u8)| {
                versions.iter().any(|v| *byte == v.data.get(at).copied().unwrap_or(0))
                    || (moved && versions.iter().any(|v| v.data.contains(byte)))
            };
            let is_file = node.meta.attr.kind == Kind::File;
            if is_file && node.data.len() as u64 != node.meta.attr.size {
                return Err(format!("'{path}': short read"));
            }
            if let Some(at) = node.data.iter().enumerate().position(|item| !legal(item)) {
                let (is, was) = (node.data[at], now.data[at]);
                return Err(format!("'{path}': byte {at} is {is:#x}, was {was:#x}"));
            }
        }
        Ok(())
    }
}

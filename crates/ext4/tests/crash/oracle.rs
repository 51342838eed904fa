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

use polylane_base::Ino;

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
}

/// The history of a run; `states[i]` is the tree before `spans[i]`.
#[derive(Default)]
pub struct History {
    pub states: Vec<Tree>,
    pub spans: Vec<Span>,
}

impl History {
    /// What a completed sync of `ino` after the last state promises. `data_only`: size, blocks and
    /// bytes.
    pub fn last_change(&self, ino: Ino, data_only: bool) -> usize {
        let part = |node: &Node| {
            let attr = node.meta.attr;
            let whole = (!data_only).then(|| node.meta.clone());
            (attr.size, attr.blocks, node.data.clone(), whole)
        };
        let view = |tree: &Tree| {
            let of = tree.of(ino);
            let paths: Vec<String> = of.iter().map(|(path, _)| (*path).to_string()).collect();
            let paths = if data_only { Vec::new() } else { paths };
            (paths, of.first().map(|(_, node)| part(node)))
        };
        let last = self.states.len() - 1;
        (1..=last).rev().find(|i| view(&self.states[*i]) != view(&self.states[i - 1])).unwrap_or(0)
    }

    /// The least and the greatest state that a cut after `position` events may leave.
    pub fn window(&self, position: usize) -> (usize, usize) {
        let done = self.spans.iter().filter(|span| span.end <= position && span.ok);
        let least = done.map(|span| span.promises).max().unwrap_or(0);
        let begun = self.spans.iter().filter(|span| span.start < position).count();
        (least, begun.max(least).min(self.states.len() - 1))
    }

    /// Checks a tree that was found after a cut. Says which state it is.
    pub fn judge(&self, found: &Tree, (least, most): (usize, usize)) -> Result<usize, String> {
        let poisoned = |node: &&Node| node.data.contains(&POISON);
        if let Some(node) = found.nodes.values().find(poisoned) {
            return Err(format!("old content of the disk shows in inode {}", node.meta.attr.ino.0));
        }
        let mut complaints = Vec::new();
        for state in (least..=most).rev() {
            let tree = &self.states[state];
            match found.difference(tree) {
                None => match self.bytes(found, state, most) {
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

    fn describe(&self, at: usize) -> String {
        let Span { op, start, end, ok, promises } = &self.spans[at];
        let outcome = if *ok { "done" } else { "refused" };
        format!("  S{at}: {op:?} in events {start}..{end}, {outcome}, promises S{promises}")
    }

    fn bytes(&self, found: &Tree, state: usize, most: usize) -> Result<(), String> {
        for (path, node) in &found.nodes {
            let now = &self.states[state].nodes[path];
            if node.data == now.data {
                continue;
            }
            let ino = node.meta.attr.ino;
            let later = self.states[state + 1..=most].iter();
            let versions: Vec<&Node> =
                later.filter_map(|tree| tree.of(ino).first().map(|(_, node)| *node)).collect();
            let legal = |(at, byte): (usize, &u8)| {
                *byte == now.data[at]
                    || versions.iter().any(|v| *byte == v.data.get(at).copied().unwrap_or(0))
            };
            if node.data.len() != now.data.len() {
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

//! Which files have something on loan ([`crate::view`]).
//!
//! # Invariants
//!
//! - [`LENT`] is up while the table has a loan of the file, and at no other time: both change under
//!   the table's lock.
//! - Each loan has a number of its own. Ending a loan that is over by then ends no later one.
//!
//! # Locking
//!
//! `table` is a leaf.

use rustc_hash::FxHashMap;

use polylane_base::sync::{Arc, Mutex, Weak};

use crate::inode::{Inode, LENT, Node};

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Loans {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    begun: u64,
    /// By the inode's id.
    lent: FxHashMap<u64, Loan>,
}

struct Loan {
    number: u64,
    node: Weak<Inode>,
}

impl Loans {
    /// A loan of a file begins. Call with its data locked for change, and nothing of it on loan.
    pub(crate) fn begin(&self, node: &Node) {
        let mut table = self.table.lock();
        table.begun += 1;
        let loan = Loan { number: table.begun, node: Arc::downgrade(node) };
        table.lent.insert(node.id, loan);
        node.raise(LENT);
    }

    /// The number of the loan of a file. With its data locked none is just beginning.
    pub(crate) fn of(&self, node: &Node) -> Option<u64> {
        self.table.lock().lent.get(&node.id).map(|loan| loan.number)
    }

    /// The loan of a file is over.
    pub(crate) fn end(&self, node: &Node) {
        self.end_where(node, |_| true);
    }

    /// The loan of that number is over, if it was not before.
    pub(crate) fn end_if(&self, node: &Node, number: u64) {
        self.end_where(node, |loan| loan == number);
    }

    fn end_where(&self, node: &Node, is_over: impl Fn(u64) -> bool) {
        let mut table = self.table.lock();
        if table.lent.get(&node.id).is_some_and(|loan| is_over(loan.number)) {
            node.lower(LENT);
            let former = table.lent.remove(&node.id);
            drop(table);
            drop(former);
        }
    }

    /// All files with something on loan.
    pub(crate) fn files(&self) -> Vec<Node> {
        self.table.lock().lent.values().filter_map(|loan| loan.node.upgrade()).collect()
    }
}

//! Which form a commit takes.
//!
//! | form | requests, each awaited |
//! |---|---|
//! | one write | descriptor, blocks and commit block together, durable |
//! | two writes | body, with data that goes to its blocks; flush; commit block, durable |
//!
//! Small transactions take one write if all that they show is in them, or durable.
//!
//! In one write nothing says which of its sectors get there first: the commit block may be there
//! and what is before it not. The transaction's checksum tells, and recovery then ends before it
//! (`JBD2_FEATURE_INCOMPAT_ASYNC_COMMIT`). Three things follow.
//!
//! - The sum is of descriptors and logged blocks, not of revoke blocks. A transaction that revokes
//!   takes two writes, unless all its records fit the first sector of one block: that is the first
//!   block of the transaction, and where it is missing recovery ends there.
//! - Data that was written in place, for a file that the transaction shows it in, must be durable
//!   before the commit block may be: so must what was written to the device and not flushed.
//! - A torn transaction with another behind it is damage, for every reader. The next transaction's
//!   first block is written after this one is durable.

use polylane_block::device::SECTOR_BYTES;

use super::Journal;
use super::log::{Closed, Log};
use crate::counts::{Counted, Counts};

/// Records of 8 bytes behind the header of a revoke block, in its first sector.
const SECTOR_REVOKES: usize = (SECTOR_BYTES - 16) / 8;

/// How a transaction gets into the log, and for two writes why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// In one write.
    OneWrite,
    /// Another transaction is on its way.
    Behind,
    /// It revokes more blocks than a sector holds.
    Revokes,
    /// It is large.
    Large,
    /// Data of files goes to its blocks with the body.
    WithData,
    /// What was written to the device in place is not durable.
    Unflushed,
}

impl Form {
    /// All of them.
    pub const ALL: [Form; 6] =
        [Form::OneWrite, Form::Behind, Form::Revokes, Form::Large, Form::WithData, Form::Unflushed];

    /// What statistics call it.
    pub fn name(self) -> &'static str {
        match self {
            Form::OneWrite => "one_write",
            Form::Behind => "behind",
            Form::Revokes => "revokes",
            Form::Large => "large",
            Form::WithData => "with_data",
            Form::Unflushed => "unflushed",
        }
    }
}

impl Counted for Form {
    fn number(self) -> usize {
        self as usize
    }
}

/// How many commits took each form.
pub(super) type Forms = Counts<Form, { Form::ALL.len() }>;

impl Journal {
    /// The form that the commit of a closed transaction takes. The caller holds the log.
    pub(super) fn form(&self, log: &Log, closed: &Closed) -> Form {
        let bytes = closed.blocks.len() * self.io.block_bytes();
        match () {
            () if !log.flying.is_empty() => Form::Behind,
            () if closed.revoked.len() > SECTOR_REVOKES => Form::Revokes,
            () if bytes > self.tuning.one_write_bytes => Form::Large,
            () if self.io.is_deferring() => Form::WithData,
            () if !self.io.is_flushed() => Form::Unflushed,
            () => Form::OneWrite,
        }
    }

    /// How many commits took `form` so far.
    pub fn commits(&self, form: Form) -> u64 {
        self.forms.get(form)
    }
}

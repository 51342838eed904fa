//! How much an import may make of its source.
//!
//! A packed source of a few bytes unpacks to any number of them, and a member of a few hundred
//! bytes names directories by the thousand.

use std::cell::Cell;
use std::io::{self, Read, Write};

use polylane_base::size::ByteSize;

use crate::error::{Error, Result};

/// Most that an import makes of its source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of all its layers' tar files; an archive, unpacked, may have as many.
    pub bytes: u64,
    /// Files and directories in all its layers.
    pub members: u64,
}

impl Default for Limits {
    /// 64 GiB, and four million members.
    fn default() -> Self {
        Limits { bytes: 64 << 30, members: 4_000_000 }
    }
}

/// What is left of an import's limits.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    bytes_left: Cell<u64>,
    members_left: Cell<u64>,
    exceeded: Cell<Option<Exceeded>>,
}

/// A limit was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exceeded {
    Bytes,
    Members,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Self {
        Budget {
            limits,
            bytes_left: Cell::new(limits.bytes),
            members_left: Cell::new(limits.members),
            exceeded: Cell::new(None),
        }
    }

    /// Takes `count` more files or directories.
    pub(crate) fn members(&self, count: u64) -> Result<(), Exceeded> {
        self.take(&self.members_left, count, Exceeded::Members)
    }

    fn take(&self, left: &Cell<u64>, count: u64, exceeded: Exceeded) -> Result<(), Exceeded> {
        match left.get().checked_sub(count) {
            Some(rest) => {
                left.set(rest);
                Ok(())
            }
            None => {
                self.exceeded.set(Some(exceeded));
                Err(exceeded)
            }
        }
    }

    /// The refusal of `object`, with the option that lets it in; `None`: no limit was reached.
    pub(crate) fn refusal(&self, object: &str) -> Option<Error> {
        let Limits { bytes, members } = self.limits;
        let why = match self.exceeded.get()? {
            Exceeded::Bytes => {
                let bytes = ByteSize(bytes);
                format!("unpacks to more than {bytes}: --max-size SIZE lets larger ones in")
            }
            Exceeded::Members => {
                format!("has more than {members} members: --max-members N lets larger ones in")
            }
        };
        Some(Error::bad(object, why))
    }

    /// `stream`, whose bytes count; where there are too many, it cannot be read on.
    pub(crate) fn counting<S>(&self, stream: S) -> Counting<'_, S> {
        Counting { stream, budget: self }
    }
}

/// A stream whose bytes are taken from a budget.
pub(crate) struct Counting<'a, S> {
    stream: S,
    budget: &'a Budget,
}

impl<S> Counting<'_, S> {
    pub(crate) fn into_inner(self) -> S {
        self.stream
    }

    fn count(&self, count: usize) -> io::Result<()> {
        let taken = self.budget.take(&self.budget.bytes_left, count as u64, Exceeded::Bytes);
        taken.map_err(|_| io::ErrorKind::FileTooLarge.into())
    }
}

impl<S: Read> Read for Counting<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.count(count)?;
        Ok(count)
    }
}

impl<S: Write> Write for Counting<'_, S> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.stream.write(buffer)?;
        self.count(count)?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

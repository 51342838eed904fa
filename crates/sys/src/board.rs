//! Counts that one process raises and others look at, without a system call.
//!
//! They lie in memory that is sealed after its owner mapped it: others can only load from it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use polylane_base::Result;

use crate::Region;

/// Bytes of a count.
const BYTES: usize = 8;

/// The owner's counts; all 0 at first. Thread-safe.
#[derive(Debug)]
pub struct Board {
    region: Region,
    fd: OwnedFd,
}

impl Board {
    /// So many counts. Fails with what memfd_create(2), mmap(2) or fcntl(2) say.
    pub fn new(counts: usize) -> Result<Board> {
        let (region, fd) = Region::create_to_show("polylane-board", counts * BYTES)?;
        Ok(Board { region, fd })
    }

    /// Raises a count by one, sequentially consistent. Panics past the last one.
    #[inline]
    pub fn raise(&self, at: usize) {
        self.region.word64(at * BYTES).fetch_add(1, Ordering::SeqCst);
    }

    /// A count. Panics past the last one.
    #[inline]
    pub fn count(&self, at: usize) -> u64 {
        self.region.word64(at * BYTES).load(Ordering::SeqCst)
    }

    /// The memory, for those who want to look.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Another process's counts. Thread-safe.
#[derive(Debug)]
pub struct Seen {
    region: Region,
    counts: usize,
}

impl Seen {
    /// Maps what a peer sent, for this process and not its children. `EPROTO` when it could still
    /// shrink or has fewer counts.
    pub fn attach(fd: impl AsFd, counts: usize) -> Result<Seen> {
        let region = Region::attach_to_see(fd, counts * BYTES)?.keep_from_children()?;
        Ok(Seen { region, counts })
    }

    /// A count, as it is at some moment of the call; of number `at` modulo how many there are.
    #[inline]
    pub fn count(&self, at: usize) -> u64 {
        self.region.word64(at % self.counts * BYTES).load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::Errno;

    #[test]
    fn others_see_what_is_raised_and_cannot_raise() {
        let board = Board::new(512).unwrap();
        let seen = Seen::attach(board.fd(), 512).unwrap();
        board.raise(511);
        assert_eq!((seen.count(511), seen.count(1023), seen.count(0)), (1, 1, 0));
        assert_eq!(Region::attach(board.fd(), 4096).unwrap_err(), Errno::EPERM);
        assert_eq!(Seen::attach(board.fd(), 513).unwrap_err(), Errno::EPROTO);
    }
}

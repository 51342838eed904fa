//! A stream of a directory that the next call goes on with.
//!
//! A listing comes in pieces, and each would have to ask for the directory again. The entry at
//! which a piece stopped was taken or not: the next call's position says which.

use polylane_base::Result;

use crate::ffi::{Caller, DirStream, Inode, Listed};

/// See the module header.
pub(crate) struct Listing {
    stream: DirStream,
    /// Positions before and behind the entry that was read last.
    at: u64,
    behind: u64,
    /// That entry, if the call stopped at it.
    ahead: Option<Listed>,
}

impl Listing {
    /// A listing from a position on; 0 is the start.
    pub(crate) fn at(who: &Caller, dir: &Inode, position: u64) -> Result<Listing> {
        let mut stream = dir.entries(who)?;
        if position != 0 {
            stream.seek(position)?;
        }
        Ok(Listing { stream, at: position, behind: position, ahead: None })
    }

    /// Whether it goes on at a position. A listing that starts is a new one.
    pub(crate) fn goes_on_at(&self, position: u64) -> bool {
        position != 0 && (position == self.at || position == self.behind)
    }

    /// The next entry, but `.` and `..`; `from` is the position of the call.
    pub(crate) fn next(&mut self, from: u64) -> Result<Option<Listed>> {
        if let Some(ahead) = self.ahead.take()
            && ahead.next() != from
        {
            return Ok(Some(ahead));
        }
        self.at = self.behind;
        while let Some(listed) = self.stream.read()? {
            self.behind = listed.next();
            if !matches!(listed.name(), b"." | b"..") {
                return Ok(Some(listed));
            }
            self.at = self.behind;
        }
        Ok(None)
    }

    /// The call stopped at an entry.
    pub(crate) fn stop_at(&mut self, listed: Listed) {
        self.ahead = Some(listed);
    }
}

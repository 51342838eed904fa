//! Marks in a layer: overlayfs' extended attributes and whiteouts, and one record of our own.
//!
//! # On disk
//!
//! Names begin with `trusted.overlay.`, or with `user.overlay.` where the layer keeps no attributes
//! of the trusted name space.
//!
//! | name | on | value |
//! |---|---|---|
//! | `opaque` | directory | `y`: hides the lowers; `x`: files with `whiteout` in it are whiteouts |
//! | `whiteout` | empty file | anything: there is no such name |
//! | `redirect` | directory, file | its name, or its path from the root, in the lowers |
//! | `metacopy` | file | its data is the lower's: empty; a part is its own: [`BLOCKS`] |
//! | `origin` | anything | empty: it was copied up |
//! | `impure` | directory | `y`: entries may have been copied up |
//! | `polylane` | anything copied up | [`Record`] |
//!
//! A name that a user gives and that begins like a mark is kept with `overlay.` inserted, so that
//! a union in a union works, as overlayfs does it.

use polylane_base::{Errno, Ino, Result, Time};

/// The name space of a layer's marks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// `trusted.overlay.`
    Trusted,
    /// `user.overlay.`
    User,
}

/// What a mark says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    Opaque,
    Whiteout,
    Redirect,
    Metacopy,
    Origin,
    Impure,
    Nlink,
    Polylane,
}

/// Value of `metacopy` of a file that has blocks of its own. overlayfs knows no value shorter than
/// four bytes but the empty one, and answers EIO.
pub(crate) const BLOCKS: &[u8] = b"b";

/// Bytes of a [`Record`].
const RECORD_BYTES: usize = 48;
const RECORD_VERSION: u8 = 1;

/// What is recorded at copy-up.
///
/// | bytes | field |
/// |---|---|
/// | 0 | version, 1 |
/// | 1 | 1: `bound` counts |
/// | 2..4 | layer, counted from the lowest, which is 0 |
/// | 4..8 | nanoseconds of the lower's modification time |
/// | 8..16 | inode of the lower |
/// | 16..24 | its generation |
/// | 24..32 | bound: bytes from here on are not the lower's |
/// | 32..40 | size of the lower |
/// | 40..48 | seconds of its modification time |
///
/// Little-endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    /// The layer, counted from the lowest.
    pub(crate) layer: u16,
    /// The lower's number in it.
    pub(crate) ino: Ino,
    /// Its generation.
    pub(crate) generation: u64,
    /// Bytes from here on are not the lower's; `None`: nothing is.
    pub(crate) bound: Option<u64>,
    /// The lower's size when it was copied up.
    pub(crate) size: u64,
    /// Its modification time then.
    pub(crate) mtime: Time,
}

impl Space {
    fn prefix(self) -> &'static [u8] {
        match self {
            Space::Trusted => b"trusted.overlay.",
            Space::User => b"user.overlay.",
        }
    }

    /// The name under which a layer keeps an attribute that a user calls `name`.
    pub(crate) fn kept(self, name: &[u8]) -> Vec<u8> {
        match name.strip_prefix(self.prefix()) {
            Some(rest) => [self.prefix(), b"overlay.", rest].concat(),
            None => name.to_vec(),
        }
    }

    /// What a user calls an attribute that a layer keeps as `name`; `None` for a mark.
    pub(crate) fn shown(self, name: &[u8]) -> Option<Vec<u8>> {
        match name.strip_prefix(self.prefix()) {
            Some(rest) => rest.strip_prefix(b"overlay.").map(|rest| [self.prefix(), rest].concat()),
            None => Some(name.to_vec()),
        }
    }
}

impl Mark {
    /// Its attribute's name.
    pub(crate) fn name(self, space: Space) -> Vec<u8> {
        let word: &[u8] = match self {
            Mark::Opaque => b"opaque",
            Mark::Whiteout => b"whiteout",
            Mark::Redirect => b"redirect",
            Mark::Metacopy => b"metacopy",
            Mark::Origin => b"origin",
            Mark::Impure => b"impure",
            Mark::Nlink => b"nlink",
            Mark::Polylane => b"polylane",
        };
        [space.prefix(), word].concat()
    }
}

impl Record {
    /// The attribute's value.
    pub(crate) fn to_value(self) -> Vec<u8> {
        let mut value = vec![0; RECORD_BYTES];
        value[0] = RECORD_VERSION;
        value[1] = self.bound.is_some().into();
        value[2..4].copy_from_slice(&self.layer.to_le_bytes());
        value[4..8].copy_from_slice(&self.mtime.nsec.to_le_bytes());
        value[8..16].copy_from_slice(&self.ino.0.to_le_bytes());
        value[16..24].copy_from_slice(&self.generation.to_le_bytes());
        value[24..32].copy_from_slice(&self.bound.unwrap_or(0).to_le_bytes());
        value[32..40].copy_from_slice(&self.size.to_le_bytes());
        value[40..48].copy_from_slice(&self.mtime.sec.to_le_bytes());
        value
    }

    /// The record in an attribute's value; `EIO` when it is none that we know.
    pub(crate) fn parse(value: &[u8]) -> Result<Record> {
        let value: &[u8; RECORD_BYTES] = value.try_into().map_err(|_| Errno::EIO)?;
        let known = value[0] == RECORD_VERSION && value[1] <= 1;
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&value[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let nsec = (word(0) >> 32) as u32;
        if !known || nsec >= 1_000_000_000 {
            return Err(Errno::EIO);
        }
        Ok(Record {
            layer: u16::from_le_bytes([value[2], value[3]]),
            ino: Ino(word(8)),
            generation: word(16),
            bound: (value[1] == 1).then(|| word(24)),
            size: word(32),
            mtime: Time { sec: word(40) as i64, nsec },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for bound in [None, Some(0), Some(1 << 40)] {
            let record = Record {
                layer: 3,
                ino: Ino(1 << 63 | 5),
                generation: u64::MAX,
                bound,
                size: 1 << 41,
                mtime: Time { sec: -5, nsec: 999_999_999 },
            };
            assert_eq!(Record::parse(&record.to_value()), Ok(record));
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        let record = Record {
            layer: 0,
            ino: Ino(1),
            generation: 0,
            bound: None,
            size: 0,
            mtime: Time::default(),
        };
        let good = record.to_value();
        assert_eq!(Record::parse(&good[1..]), Err(Errno::EIO));
        for (at, byte) in [(0, 2), (1, 2), (7, 0xff)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(Record::parse(&bad), Err(Errno::EIO), "byte {at}");
        }
    }

    #[test]
    fn names_like_marks_are_a_users_own() {
        for space in [Space::Trusted, Space::User] {
            let mark = Mark::Opaque.name(space);
            assert_eq!(space.shown(&mark), None);
            let kept = space.kept(&mark);
            assert_ne!(kept, mark);
            assert_eq!(space.shown(&kept), Some(mark));
            assert_eq!(space.kept(b"user.x"), b"user.x");
        }
    }
}

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
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

polylane_base::record! {
    /// A [`Record`] on disk.
    struct DiskRecord: 48 {
        /// [`RECORD_VERSION`].
        0x00 version: u8,
        /// 1: `bound` counts.
        0x01 is_bounded: u8,
        /// Counted from the lowest, which is 0.
        0x02 layer: U16,
        /// Nanoseconds of the lower's modification time.
        0x04 mtime_nsec: U32,
        /// Inode of the lower.
        0x08 ino: U64,
        /// Its generation.
        0x10 generation: U64,
        /// Bytes from here on are not the lower's.
        0x18 bound: U64,
        /// Size of the lower.
        0x20 size: U64,
        /// Seconds of its modification time.
        0x28 mtime_sec: I64,
    }
}

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
    Place,
}

/// Value of `metacopy` of a file that has blocks of its own. overlayfs knows no value shorter than
/// four bytes but the empty one, and answers EIO.
pub(crate) const BLOCKS: &[u8] = b"b";

/// The version of records on disk.
const RECORD_VERSION: u8 = 1;

/// What is recorded at copy-up: a [`DiskRecord`], decoded.
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
            Mark::Place => b"place",
        };
        [space.prefix(), word].concat()
    }
}

impl Record {
    /// The attribute's value.
    pub(crate) fn to_value(self) -> Vec<u8> {
        let record = DiskRecord {
            version: RECORD_VERSION,
            is_bounded: self.bound.is_some().into(),
            layer: self.layer.into(),
            mtime_nsec: self.mtime.nsec.into(),
            ino: self.ino.0.into(),
            generation: self.generation.into(),
            bound: self.bound.unwrap_or(0).into(),
            size: self.size.into(),
            mtime_sec: self.mtime.sec.into(),
        };
        record.as_bytes().to_vec()
    }

    /// The record in an attribute's value; `EIO` when it is none that we know.
    pub(crate) fn parse(value: &[u8]) -> Result<Record> {
        let record = DiskRecord::ref_from_bytes(value).map_err(|_| Errno::EIO)?;
        let nsec = record.mtime_nsec.get();
        let is_known = record.version == RECORD_VERSION && record.is_bounded <= 1;
        if !is_known || nsec >= 1_000_000_000 {
            return Err(Errno::EIO);
        }
        Ok(Record {
            layer: record.layer.get(),
            ino: Ino(record.ino.get()),
            generation: record.generation.get(),
            bound: (record.is_bounded == 1).then(|| record.bound.get()),
            size: record.size.get(),
            mtime: Time { sec: record.mtime_sec.get(), nsec },
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

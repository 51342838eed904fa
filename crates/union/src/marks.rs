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
use polylane_vfs::fs::Attr;
use polylane_vfs::hostdir::is_own_number;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

polylane_base::record! {
    /// A [`Record`] on disk.
    struct DiskRecord: 64 {
        /// [`RECORD_VERSION`].
        0x00 version: u8,
        /// [`BOUNDED`], [`IN_PARTS`].
        0x01 flags: u8,
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
        /// With [`IN_PARTS`]: the file's own inode.
        0x30 own_ino: U64,
        /// Its generation.
        0x38 own_generation: U64,
    }
}

polylane_base::record! {
    /// An [`Identity`] on disk: the value of `polylane` on the canary.
    struct DiskIdentity: 16 {
        0x00 ino: U64,
        0x08 generation: U64,
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

/// Flag of a record: `bound` counts.
const BOUNDED: u8 = 1;

/// Flag of a record: as `metacopy` says with [`BLOCKS`], and of which inode that is said.
const IN_PARTS: u8 = 2;

/// The version of records on disk.
const RECORD_VERSION: u8 = 2;

/// The first version, which ends before the file's own inode.
const RECORD_VERSION_SHORT: u8 = 1;

/// Bytes of a record of the first version.
const SHORT: usize = 48;

/// An inode of the upper: its number and generation.
pub(crate) type Identity = (Ino, u64);

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
    /// A part of the file is its own: of this inode. Another one is a copy, whose holes may be
    /// others; without `metacopy`, that was lost.
    pub(crate) in_parts: Option<Identity>,
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

/// The inode that attributes are of. `None`: the one below counts such numbers by itself, anew each
/// time it is opened, as a host directory does where the host's numbers do not tell inodes apart.
pub(crate) fn identity(attr: &Attr) -> Option<Identity> {
    (!is_own_number(attr.ino)).then_some((attr.ino, attr.generation))
}

/// The value of `polylane` on the canary.
pub(crate) fn identity_value((ino, generation): Identity) -> Vec<u8> {
    let identity = DiskIdentity { ino: ino.0.into(), generation: generation.into() };
    identity.as_bytes().to_vec()
}

impl Record {
    /// The attribute's value.
    pub(crate) fn to_value(self) -> Vec<u8> {
        let (own_ino, own_generation) = self.in_parts.unwrap_or((Ino(0), 0));
        let record = DiskRecord {
            version: RECORD_VERSION,
            flags: if self.bound.is_some() { BOUNDED } else { 0 }
                | if self.in_parts.is_some() { IN_PARTS } else { 0 },
            layer: self.layer.into(),
            mtime_nsec: self.mtime.nsec.into(),
            ino: self.ino.0.into(),
            generation: self.generation.into(),
            bound: self.bound.unwrap_or(0).into(),
            size: self.size.into(),
            mtime_sec: self.mtime.sec.into(),
            own_ino: own_ino.0.into(),
            own_generation: own_generation.into(),
        };
        record.as_bytes().to_vec()
    }

    /// The record in an attribute's value; `EIO` when it is none that we know.
    pub(crate) fn parse(value: &[u8]) -> Result<Record> {
        let mut bytes = [0; size_of::<DiskRecord>()];
        let version = if value.len() == SHORT { RECORD_VERSION_SHORT } else { RECORD_VERSION };
        if value.len() != SHORT && value.len() != bytes.len() {
            return Err(Errno::EIO);
        }
        bytes[..value.len()].copy_from_slice(value);
        let record = DiskRecord::ref_from_bytes(&bytes).map_err(|_| Errno::EIO)?;
        let nsec = record.mtime_nsec.get();
        let is_known = record.version == version && record.flags & !(BOUNDED | IN_PARTS) == 0;
        if !is_known || nsec >= 1_000_000_000 {
            return Err(Errno::EIO);
        }
        Ok(Record {
            layer: record.layer.get(),
            ino: Ino(record.ino.get()),
            generation: record.generation.get(),
            bound: (record.flags & BOUNDED != 0).then(|| record.bound.get()),
            in_parts: (record.flags & IN_PARTS != 0)
                .then(|| (Ino(record.own_ino.get()), record.own_generation.get())),
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
        for (bound, in_parts) in
            [(None, None), (Some(0), Some((Ino(7), 1 << 60))), (Some(1 << 40), None)]
        {
            let record = Record {
                layer: 3,
                ino: Ino(1 << 63 | 5),
                generation: u64::MAX,
                bound,
                in_parts,
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
            in_parts: None,
            size: 0,
            mtime: Time::default(),
        };
        let good = record.to_value();
        assert_eq!(Record::parse(&good[1..]), Err(Errno::EIO));
        for (at, byte) in [(0, 1), (0, 3), (1, 4), (7, 0xff)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(Record::parse(&bad), Err(Errno::EIO), "byte {at}");
        }
    }

    /// As versions before the second wrote it.
    #[test]
    fn a_short_record_is_read() {
        let record = Record {
            layer: 2,
            ino: Ino(5),
            generation: 6,
            bound: Some(7),
            in_parts: None,
            size: 8,
            mtime: Time { sec: 9, nsec: 10 },
        };
        let mut value = record.to_value();
        value.truncate(SHORT);
        assert_eq!(Record::parse(&value), Err(Errno::EIO));
        value[0] = RECORD_VERSION_SHORT;
        assert_eq!(Record::parse(&value), Ok(record));
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

//! Identities: numbers that must not be mixed up get a type each.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $name(pub $int);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// Most ranges of a map of users or groups: the kernel's limit.
pub const ID_RANGES_MAX: usize = 340;

/// Users or groups that have other numbers elsewhere, as a line of `/proc/PID/uid_map` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdRange {
    /// The first number as it is shown.
    pub shown: u32,
    /// The first number as it is kept.
    pub kept: u32,
    /// How many.
    pub count: u32,
}

impl IdRange {
    /// The number that is shown of one that is kept; `None`: it is not of this range.
    pub fn shown_of(&self, kept: u32) -> Option<u32> {
        self.shown.checked_add(self.place(self.kept, kept)?)
    }

    /// The number that is kept of one that is shown; `None`: it is not of this range.
    pub fn kept_of(&self, shown: u32) -> Option<u32> {
        self.kept.checked_add(self.place(self.shown, shown)?)
    }

    fn place(&self, first: u32, id: u32) -> Option<u32> {
        id.checked_sub(first).filter(|place| *place < self.count)
    }
}

id! {
    /// An inode number, unique within one file-system instance while the inode lives.
    Ino(u64)
}
id! {
    /// A user id as the service's user namespace sees it.
    Uid(u32)
}
id! {
    /// A group id as the service's user namespace sees it.
    Gid(u32)
}

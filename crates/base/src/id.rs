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

//! Features: the bits of three words of the superblock, with their names.

use bitflags::Flags;

macro_rules! features {
    ($(#[$doc:meta])* $set:ident, $word:literal { $($name:ident = $bit:literal),* $(,)? }) => {
        bitflags::bitflags! {
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, Debug)]
            pub struct $set: u32 {
                $(
                    #[doc = concat!("Feature `", stringify!($name), "`.")]
                    const $name = $bit;
                )*
                // Images may have others.
                const _ = !0;
            }
        }

        impl $set {
            /// The names of the bits in the set, unknown ones by number.
            pub fn names(self) -> Vec<String> {
                let name = |bit: u32| {
                    let mut known = $set::FLAGS.iter();
                    let found = known.find(|flag| flag.value().bits() == bit);
                    let unknown = || format!("{} bit {bit:#x}", $word);
                    found.map_or_else(unknown, |flag| flag.name().to_ascii_lowercase())
                };
                let bits = (0..32).map(|n| 1 << n).filter(|bit| self.bits() & bit != 0);
                bits.map(name).collect()
            }
        }
    };
}

features! {
    /// Features that a writer may ignore: `s_feature_compat`.
    Compat, "compat" {
        HAS_JOURNAL = 0x4, EXT_ATTR = 0x8, RESIZE_INODE = 0x10, DIR_INDEX = 0x20,
        SPARSE_SUPER2 = 0x200, FAST_COMMIT = 0x400, ORPHAN_FILE = 0x1000,
    }
}
features! {
    /// Features without which an image must not be read: `s_feature_incompat`.
    Incompat, "incompat" {
        COMPRESSION = 0x1, FILETYPE = 0x2, RECOVER = 0x4, JOURNAL_DEV = 0x8, META_BG = 0x10,
        EXTENTS = 0x40, SIXTY_FOUR_BIT = 0x80, MMP = 0x100, FLEX_BG = 0x200, EA_INODE = 0x400,
        DIRDATA = 0x1000, CSUM_SEED = 0x2000, LARGE_DIR = 0x4000, INLINE_DATA = 0x8000,
        ENCRYPT = 0x10000, CASEFOLD = 0x20000,
    }
}
features! {
    /// Features without which an image must not be written: `s_feature_ro_compat`.
    RoCompat, "ro_compat" {
        SPARSE_SUPER = 0x1, LARGE_FILE = 0x2, BTREE_DIR = 0x4, HUGE_FILE = 0x8, GDT_CSUM = 0x10,
        DIR_NLINK = 0x20, EXTRA_ISIZE = 0x40, QUOTA = 0x100, BIGALLOC = 0x200,
        METADATA_CSUM = 0x400, READONLY = 0x1000, PROJECT = 0x2000, VERITY = 0x8000,
        ORPHAN_PRESENT = 0x10000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_told_by_name_or_number_and_keep_what_is_unknown() {
        let set = Incompat::from_bits_retain(0x8000_0042);
        assert_eq!(set.names(), ["filetype", "extents", "incompat bit 0x80000000"]);
        assert_eq!((set & !Incompat::EXTENTS).bits(), 0x8000_0002);
    }
}

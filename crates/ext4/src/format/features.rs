//! Features: the bits of three words of the superblock, with their names.

macro_rules! features {
    ($(#[$doc:meta])* $set:ident { $($name:ident = $bit:literal),* $(,)? }) => {
        $(#[$doc])*
        pub mod $set {
            $(#[doc = concat!("Feature `", stringify!($name), "`.")] pub const $name: u32 = $bit;)*

            /// The names of the bits in `set`, unknown ones by number.
            pub fn names(set: u32) -> Vec<String> {
                let known = [$((stringify!($name), $bit)),*];
                let name = |bit: u32| {
                    let found = known.iter().find(|(_, value)| *value == bit);
                    let unknown = || format!("{} bit {:#x}", stringify!($set), bit);
                    found.map_or_else(unknown, |(name, _)| name.to_ascii_lowercase())
                };
                (0..32).map(|n| 1 << n).filter(|bit| set & bit != 0).map(name).collect()
            }
        }
    };
}

features! {
    /// Features that a writer may ignore.
    compat {
        HAS_JOURNAL = 0x4, EXT_ATTR = 0x8, RESIZE_INODE = 0x10, DIR_INDEX = 0x20,
        SPARSE_SUPER2 = 0x200, FAST_COMMIT = 0x400, ORPHAN_FILE = 0x1000,
    }
}
features! {
    /// Features without which an image must not be read.
    incompat {
        COMPRESSION = 0x1, FILETYPE = 0x2, RECOVER = 0x4, JOURNAL_DEV = 0x8, META_BG = 0x10,
        EXTENTS = 0x40, SIXTY_FOUR_BIT = 0x80, MMP = 0x100, FLEX_BG = 0x200, EA_INODE = 0x400,
        DIRDATA = 0x1000, CSUM_SEED = 0x2000, LARGE_DIR = 0x4000, INLINE_DATA = 0x8000,
        ENCRYPT = 0x10000, CASEFOLD = 0x20000,
    }
}
features! {
    /// Features without which an image must not be written.
    ro_compat {
        SPARSE_SUPER = 0x1, LARGE_FILE = 0x2, BTREE_DIR = 0x4, HUGE_FILE = 0x8, GDT_CSUM = 0x10,
        DIR_NLINK = 0x20, EXTRA_ISIZE = 0x40, QUOTA = 0x100, BIGALLOC = 0x200,
        METADATA_CSUM = 0x400, READONLY = 0x1000, PROJECT = 0x2000, VERITY = 0x8000,
        ORPHAN_PRESENT = 0x10000,
    }
}

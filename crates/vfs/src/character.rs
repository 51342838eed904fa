//! What a libservice says about itself.

use crate::attr::Kind;

/// Which reads move access times, the most of them first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum AccessTimes {
    /// As `relatime` of mount(8) says.
    #[default]
    Relatime,
    /// The same, and reads of directories move none (`nodiratime`).
    NotOfDirs,
    /// None (`noatime`). Or what lies below moves them itself, as it is read: to set one would move
    /// the change time there.
    Never,
}

impl AccessTimes {
    pub(crate) fn has(self, kind: Kind) -> bool {
        match self {
            AccessTimes::Relatime => true,
            AccessTimes::NotOfDirs => kind != Kind::Dir,
            AccessTimes::Never => false,
        }
    }
}

/// How the VFS is to treat a libservice's data and names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Character {
    /// File data passes through the VFS page cache. False for file systems that hold their data in
    /// memory anyway (memfs): their `read` and `write` are called straight away.
    pub cache_data: bool,
    /// Names and attributes can change behind our back (hostdir): cached ones are checked against
    /// `lookup` and `getattr` before they are used.
    pub volatile: bool,
    /// Which reads the VFS is to move access times by.
    pub access_times: AccessTimes,
    /// Changes are refused with `EROFS` before they reach the libservice.
    pub read_only: bool,
    /// Largest file in bytes; writes past it fail with `EFBIG`.
    pub max_file_size: u64,
    /// Largest link count; one more fails with `EMLINK`.
    pub max_links: u32,
    /// The same of a directory; more where the file system itself says when one is full, since its
    /// link count does not tell of all its subdirectories.
    pub max_dir_links: u32,
    /// Times have no fraction of a second.
    pub whole_seconds: bool,
    /// It keeps access control lists, as the extended attributes that
    /// [`AclKind::name`](crate::acl::AclKind::name) names. They count where rights are decided.
    pub acls: bool,
    /// The inode flags that can be set, bits of [`flags`](crate::flags); 0: none are kept.
    pub flags: u32,
    /// Names and states change by what the VFS is asked to do, and by nothing else: no client ever
    /// has a lease of a directory. Then the kernel may remember what it was told, until it is told
    /// of a change; see [`Teller`](crate::Teller).
    pub remembered: bool,
    /// Those that statx(2) tells of as attributes, which it is known of each file whether it has;
    /// bits of [`flags`](crate::flags).
    pub attributes: u32,
}

impl Character {
    /// Of a file system whose files others change beside it, and which are cached below it already:
    /// it decides itself about links, times and access lists.
    pub const VOLATILE: Character = Character {
        cache_data: false,
        volatile: true,
        access_times: AccessTimes::Relatime,
        read_only: false,
        max_file_size: i64::MAX as u64,
        max_links: u32::MAX,
        max_dir_links: u32::MAX,
        whole_seconds: false,
        acls: false,
        flags: 0,
        remembered: false,
        attributes: 0,
    };
}

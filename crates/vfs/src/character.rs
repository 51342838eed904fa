//! What a libservice says about itself.

/// How the VFS is to treat a libservice's data and names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Character {
    /// File data passes through the VFS page cache. False for file systems that hold their data in
    /// memory anyway (memfs): their `read` and `write` are called straight away.
    pub cache_data: bool,
    /// Names and attributes can change behind our back (hostdir): cached ones are checked against
    /// `lookup` and `getattr` before they are used.
    pub volatile: bool,
    /// What lies below moves access times itself, as it is read: the VFS moves none. To set one
    /// would move the change time there.
    pub host_atimes: bool,
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
        host_atimes: false,
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

//! The kernel's file systems that a lane may be: their names, magic numbers and programs.

use std::fmt;
use std::path::PathBuf;

/// Which of the kernel's file systems.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelFs {
    /// ext3, which the kernel's ext4 serves.
    Ext3,
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
}

impl KernelFs {
    /// All of them.
    pub const ALL: [KernelFs; 4] = [KernelFs::Ext3, KernelFs::Ext4, KernelFs::Xfs, KernelFs::Btrfs];

    /// What the kernel calls it.
    pub fn name(self) -> &'static str {
        match self {
            KernelFs::Ext3 => "ext3",
            KernelFs::Ext4 => "ext4",
            KernelFs::Xfs => "xfs",
            KernelFs::Btrfs => "btrfs",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<KernelFs> {
        KernelFs::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Where its magic number is, and what it is.
    pub(crate) fn magic(self) -> (u64, &'static [u8]) {
        match self {
            KernelFs::Ext3 | KernelFs::Ext4 => (1024 + 0x38, &[0x53, 0xef]),
            KernelFs::Xfs => (0, b"XFSB"),
            KernelFs::Btrfs => (0x1_0040, b"_BHRfS_M"),
        }
    }

    /// The program that makes it, its options, and the package that has it.
    pub(crate) fn maker(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            KernelFs::Ext3 => ("mke2fs", &["-q", "-F", "-t", "ext3", "-m", "0"], "e2fsprogs"),
            KernelFs::Ext4 => ("mke2fs", &["-q", "-F", "-t", "ext4", "-m", "0"], "e2fsprogs"),
            KernelFs::Xfs => ("mkfs.xfs", &["-q", "-f"], "xfsprogs"),
            KernelFs::Btrfs => ("mkfs.btrfs", &["-q", "-f"], "btrfs-progs"),
        }
    }

    /// The program that checks it, its options, and the package that has it.
    pub(crate) fn checker(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            KernelFs::Ext3 | KernelFs::Ext4 => ("e2fsck", &["-fp"], "e2fsprogs"),
            KernelFs::Xfs => ("xfs_repair", &["-n"], "xfsprogs"),
            KernelFs::Btrfs => ("btrfs", &["check", "--readonly"], "btrfs-progs"),
        }
    }
}

impl fmt::Display for KernelFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the init mounts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KernelFsMount {
    /// The block device.
    pub(crate) device: PathBuf,
    /// What is on it.
    pub(crate) kind: KernelFs,
}

//! Volumes as the command line knows them: files that hold one file system each.
//!
//! | module | what it does |
//! |---|---|
//! | `open` | opens a volume's file alone, or makes it first |
//! | `tools` | the programs of e2fsprogs: mke2fs, e2fsck, resize2fs |
//! | `disk` | in the service: the file as a block device with ext4 on it |

pub(crate) mod disk;
mod open;
mod tools;

pub(crate) use open::{default_path, open_or_create};

//! Volumes as the command line knows them: files that hold one file system each.
//!
//! | module | what it does |
//! |---|---|
//! | `open` | opens a volume's file alone, or makes it first |
//! | `bypass` | volumes in a pool file, reached past the host's file system |
//! | [`cache`] | how a volume is cached |
//! | `change` | makes, grows and changes volumes |
//! | `check` | checks the file system on a volume |
//! | `copy` | snapshots and clones |
//! | `cow` | copy-on-write where the host's file system has none |
//! | `fold` | copies the blocks of one snapshot to its neighbour |
//! | `foreign` | images of other programs |
//! | `held` | in the process that serves a volume: a device that stands still for a copy |
//! | `info` | looks at volumes |
//! | `known` | what this user's state directory knows of volumes |
//! | `layers` | says where a volume lies, file by file |
//! | `live` | copies volumes that are in use |
//! | `merge` | removes a snapshot that another one is on |
//! | `progress` | says on a terminal how far long work is |
//! | `remove` | removes volumes |
//! | `sandbox` | programs that parse what others wrote |
//! | `sidecar` | what a raw file cannot say |
//! | `space` | adds up what of a volume holds data, and whose it is |
//! | `stack` | a volume's file with the bases under it |
//! | `trailer` | what marks the file of a copy-on-write volume |
//! | `transfer` | import and export |
//! | [`translation`] | where a volume's translation works |
//! | `trust` | who may have put there what lies beside a volume |
//! | `tools` | the programs of e2fsprogs: mke2fs, e2fsck, resize2fs |
//! | `disk` | in the service: the file as a block device with ext4 on it |

pub(crate) mod bypass;
pub mod cache;
mod change;
mod check;
mod copy;
mod cow;
pub(crate) mod disk;
mod fold;
mod foreign;
pub(crate) mod held;
mod info;
mod known;
mod layers;
mod live;
mod merge;
mod open;
mod progress;
mod remove;
mod sandbox;
pub(crate) mod sidecar;
mod space;
pub(crate) mod stack;
pub(crate) mod tools;
mod trailer;
mod transfer;
pub mod translation;
mod trust;

pub use change::{CreateOptions, MediumKind, SetOptions, make, resize, set};
pub(crate) use change::{distrust, refuse_snapshot};
pub use check::{Check, check};
pub use copy::{Copy, duplicate};
pub(crate) use cow::sync_both;
pub use info::{Content, Info, info, list};
pub use layers::{Fragmentation, Layer, map};
pub(crate) use open::{
    Asked, Kept, default_path, failure, make_blank, open_or_create, resolve, state_dir,
};
pub use remove::remove;
pub(crate) use sidecar::Sidecar;
pub(crate) use space::is_blank;
pub use transfer::{Form, export, import};

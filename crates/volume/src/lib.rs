//! What a volume is: files that hold one file system each, their copies, what is known of them, and
//! how they become devices.
//!
//! Which processes serve volumes, and how those are reached, is not known here: a command that
//! needs them is handed [`Holders`].
//!
//! | module | what it does |
//! |---|---|
//! | `open` | opens a volume's file alone, or makes it first |
//! | `options` | what commands ask of a volume |
//! | `places` | where volumes are |
//! | [`pool_file`] | the pool file of a bypass volume, in use |
//! | `program` | programs of the host |
//! | `bypass` | volumes in a pool file, reached past the host's file system |
//! | [`cache`] | how a volume is cached |
//! | `chain` | which volumes are on which |
//! | `change` | grows and changes volumes |
//! | `check` | checks the file system on a volume |
//! | `copy` | copies what a volume holds to a file |
//! | `confine` | the system calls and capabilities of programs that parse what others wrote |
//! | [`cow`] | copy-on-write where the host's file system has none |
//! | [`cpus`] | lists of CPUs |
//! | [`mod@failure`] | how an action fails: a line and an exit status |
//! | `duplicate` | snapshots and clones |
//! | `fold` | copies the blocks of one snapshot to its neighbour |
//! | `foreign` | images of other programs |
//! | `format` | puts a new ext4 on files and devices |
//! | [`held`] | in the process that serves a volume: a device that stands still for a copy |
//! | `host` | what the host says of a volume's file |
//! | `info` | looks at volumes |
//! | `layers` | says where a volume lies, file by file |
//! | [`log`] | lines of supervisors, services and engines |
//! | `make` | makes volumes |
//! | `merge` | removes a snapshot that another one is on |
//! | [`path_text`] | paths in JSON |
//! | `progress` | says on a terminal how far long work is |
//! | `remove` | removes volumes |
//! | `sandbox` | programs that parse what others wrote |
//! | [`sidecar`] | what a raw file cannot say; this user's records; what marks a copy's file |
//! | `space` | adds up what of a volume holds data, and whose it is |
//! | [`stack`] | a volume's file with the bases under it |
//! | `transfer` | import and export |
//! | [`translation`] | where a volume's translation works |
//! | `trust` | who may have put there what lies beside a volume |
//! | [`tools`] | the programs of e2fsprogs: e2fsck, resize2fs |
//! | `holders` | what commands ask of the processes that serve volumes |
//! | [`disk`] | in the service: the file as a block device with ext4 on it |

#![forbid(unsafe_code)]

mod bypass;
pub mod cache;
mod chain;
mod change;
mod check;
mod confine;
mod copy;
pub mod cow;
pub mod cpus;
pub mod disk;
mod duplicate;
pub mod failure;
mod fold;
mod foreign;
mod format;
pub mod held;
mod holders;
mod host;
mod info;
mod layers;
pub mod log;
mod make;
mod merge;
mod naming;
mod open;
mod options;
pub mod path_text;
mod places;
pub mod pool_file;
mod program;
mod progress;
mod remove;
mod sandbox;
pub mod sidecar;
mod space;
pub mod stack;
mod superblock;
pub mod tools;
mod transfer;
pub mod translation;
mod trust;

pub use change::{grow_ext4, resize, set};
pub use check::{Check, check};
pub use confine::has_landlock;
pub use cow::sync_both;
pub use duplicate::{Copy, duplicate};
pub use failure::{Failure, Result};
pub use format::format_device;
pub use holders::{Freeze, Holders, Still};
pub use host::{absolute, end_lanes_by, failure, name_holders_by};
pub use info::{Content, Info, content_of, info, list, open_to_look};
pub use layers::{Fragmentation, Layer, map};
pub use make::{make, size_of_new};
pub use open::{make_blank, open_lower, open_or_create};
pub use options::{Asked, CreateOptions, Kept, MediumKind, SetOptions};
pub use places::{containers_dir, default_path, resolve, state_dir};
pub use remove::{remove, remove_unused};
pub use sidecar::{Sidecar, distrust, refuse_snapshot};
pub use space::is_blank;
pub use superblock::{START_BYTES, ext4_bytes};
pub use transfer::{Form, export, import};
pub use trust::{Found, Links, expect, find, make_dir, maps_all_users};

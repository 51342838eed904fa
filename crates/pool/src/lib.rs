//! A tenant's pool: from what was asked for to running processes, and back to nothing.
//!
//! `run` is the supervisor's beginning, `supervise` its loop, `init` the tenant's pid 1, `service`
//! the process that holds the lane, `keeper` the one that clears up after a supervisor that was
//! killed; `kernel_fs` is a run without a service. `docs/design/first-light.md` has the drawing.
#![forbid(unsafe_code)]

pub mod attach;
mod awake;
mod bound;
mod build;
pub mod ceph;
mod cgroup;
mod cluster;
mod confine;
mod copying;
pub mod doctor;
mod excuse;
mod file_cache;
mod fuse_device;
mod init;
mod instance;
mod keeper;
pub mod kernel_fs;
mod kernel_fs_kind;
pub mod lasting;
pub mod limits;
mod link;
pub mod live;
pub mod lower;
mod mount_table;
mod mountinfo;
mod mounts;
pub mod names;
mod orphans;
mod own_ids;
mod own_log;
mod pool_namespaces;
mod pool_record;
mod preload;
mod probe;
mod process;
pub mod rbd;
mod relay;
mod root;
pub mod run;
mod runtime_groups;
pub mod service;
mod service_line;
pub mod set;
pub mod share;
mod signals;
mod skeleton;
pub mod solidify;
pub mod spec;
pub mod stats;
pub mod stays;
mod subordinate;
mod supervise;
mod timely;
pub mod upgrade;
mod user_namespace;
mod wait;
mod watchdog;
mod whole;
mod witness;

pub use mountinfo::{MountedAt, mounted_at};
pub use polylane_volume::failure;
pub use polylane_volume::failure::{Failure, Result};
pub use timely::within;

//! Lanes that outlive the command that made them: `polylane mount`, `umount`, pools that last.
//!
//! No daemon: each lane has a supervisor of its own, as a run has, in a session of its own. What
//! commands know of lanes is in the mount tables of the run-time directory; a record whose
//! supervisor is dead is cleared by the next command (`docs/design/lasting.md`).
//!
//! | file | what |
//! |---|---|
//! | `source` | SOURCE as text |
//! | `users` | owners of files by other numbers |
//! | `table` | the mount table of a pool |
//! | `lock` | locks of commands among each other |
//! | `tables` | all tables, under one lock |
//! | `places` | what is mounted where, in this mount namespace |
//! | `elsewhere` | mounts of lanes in other mount namespaces |
//! | `point` | a mount point, looked up once |
//! | `holder` | the first process of a lane, which holds its mount |
//! | `options` | what a mount is asked for |
//! | `mount` | from a SOURCE and a PATH to a lane that serves |
//! | `share` | one more path for a service |
//! | `join` | one more lane in a service that is over the same layers |
//! | `umount` | and back to nothing |
//! | `unserved` | connections to the kernel that no service answers any more |
//! | `list` | what is mounted |
//! | `pools` | pools that were made to last |
//! | `files` | which processes have files open through which mount |
//! | `info` | a pool with its services and their file-system tables |
//! | `exec` | a command in a pool |
//! | `env` | what gives a process or a container the fast way |

mod elsewhere;
mod env;
mod exec;
mod files;
mod holder;
mod info;
mod join;
mod list;
mod lock;
mod mount;
mod options;
pub(crate) mod places;
mod point;
mod pools;
mod share;
mod source;
mod table;
mod tables;
mod umount;
mod unserved;
mod users;
pub mod utab;

pub use env::{LaneEnv, env};
pub use exec::{Membership, end_groups, exec, membership, run, runtime_groups};
pub use info::{idle_pools, info};
pub use list::{end_of, list};
pub use mount::{POOL_DEFAULT, mount};
pub use options::{MountOptions, Mounted};
pub use pools::{
    Making, PoolChange, PoolCpus, change, create, exists, namespaces, remove, upgrade_all,
};
pub use source::LaneSource;

pub use crate::pool_namespaces::NsKind;
pub use umount::{umount, umount_all, umount_all_losslessly};
pub use users::parse as parse_users;

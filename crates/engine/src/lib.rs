//! Containers: an image's layers under a volume of the container's own, as one lane, which an OCI
//! runtime makes the root of processes.
//!
//! | file | what |
//! |---|---|
//! | `record.rs` | what a container is, as its directory has it |
//! | `place.rs` | where containers are kept, and who may change one |
//! | `users.rs` | users and groups of an image |
//! | `program.rs` | the program of an image |
//! | `seccomp.rs` | system calls that a container may make |
//! | `bundle.rs` | the configuration that the runtime gets |
//! | `runtime.rs` | the runtime's command line |
//! | `lane.rs` | the lanes of a container |
//! | `store.rs` | containers whose files are on a Ceph file system |
//! | `container.rs` | what one is to be, its state, its removal |
//! | `listed.rs` | which there are, and one by its name |
//! | `create.rs` | from what one is to be to one that can be started |
//! | `start.rs` | from its start to its end; further processes |
//! | `relay.rs` | what its processes write |
//! | `end.rs` | signals and stops |
//! | `quiesce.rs` | a container whose files are read |
//! | `oci.rs` | the runtime of other engines |
//! | `holder.rs` | whether another engine still has a container |
//! | `kept.rs` | volumes of another engine's containers |
//! | `reach.rs` | how a container's root of its own comes to its lanes |
//! | `permitted.rs` | what annotations of their containers may name |
//! | `show.rs` | what is shown of containers |
//!
//! Files, states and what a kill leaves: docs/design/containers.md.
//!
//! # Trust
//!
//! An image is hostile: its files are read below its root alone (`openat2` with `RESOLVE_IN_ROOT`),
//! its configuration is text for the runtime. The sandbox is the runtime's.
#![forbid(unsafe_code)]

mod bundle;
mod container;
mod create;
mod end;
mod holder;
mod kept;
mod lane;
mod listed;
mod made;
mod oci;
mod permitted;
mod place;
mod program;
mod quiesce;
mod reach;
mod record;
mod relay;
mod runtime;
mod seccomp;
mod show;
mod start;
mod store;
mod users;

pub use container::{Container, State, Wanted};
pub use kept::sweep;
pub use listed::all;
pub use oci::oci;
pub use quiesce::{Files, Quiesced};
pub use record::{Cluster, FileCache, Mount, NamespacesOf, Network, Record};
pub use start::{Attached, Further, exec, start};

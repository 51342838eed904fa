//! FUSE: the lane for every program, over a transport of our own.
//!
//! Protocol 7.36 to 7.45 of `include/uapi/linux/fuse.h`, spoken over a /dev/fuse descriptor that
//! somebody else (the supervisor) opened, mounted and negotiated. So a session can begin in the
//! middle of a mount's life: a replaced service goes on serving the same mount.
//!
//! | file          | what                                                             |
//! |---------------|------------------------------------------------------------------|
//! | `protocol.rs` | numbers of the kernel interface                                  |
//! | `init.rs`     | FUSE_INIT, mount options                                         |
//! | `request.rs`  | bytes to values, checked once                                    |
//! | `reply.rs`    | values to bytes, the way to the kernel                           |
//! | `session.rs`  | threads: read, serve, defer, notify                              |
//! | `deferred.rs` | what must wait for the kernel                                    |
//! | `progress.rs` | what the kernel sent before is done first                        |
//! | `unanswered.rs` | what a former service left in the hands of older kernels       |
//! | `nodes.rs`    | node ids and lookup counts                                       |
//! | `handles.rs`  | open files                                                       |
//! | `ops.rs`      | the table of operations; the rest by subject: `names`, `attrs`,  |
//! |               | `files`, `dirs`, `locks`                                         |

mod attrs;
mod deferred;
mod dirs;
mod files;
mod handles;
pub(crate) mod init;
mod ioctl;
pub(crate) mod locks;
mod names;
pub mod nodes;
mod ops;
mod progress;
pub(crate) mod protocol;
pub(crate) mod reply;
pub(crate) mod request;
mod session;
mod stats;
pub(crate) mod unanswered;

pub use init::{Params, mount_options, negotiate, negotiate_without};
pub use progress::Progress;
pub use session::{Door, Ended, NOTIFIER_NAME, ServeOptions, Stop, serve};
pub use stats::{Stats, Totals};

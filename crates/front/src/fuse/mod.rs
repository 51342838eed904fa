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
//! | `door.rs`     | threads: read, serve, defer, notify                              |
//! | `first.rs`, `bell.rs` | which of them are started when, and again                |
//! | `session.rs`  | what they know                                                   |
//! | `deferred.rs` | what must wait for the kernel                                    |
//! | `restore.rs`  | what a former service had open and locked                        |
//! | `unanswered.rs` | what it left in the hands of older kernels                     |
//! | `handles.rs`  | open files                                                       |
//! | `waits.rs`    | lock requests that wait                                          |
//! | `call.rs`     | one request on its way through an operation                      |
//! | `ops.rs`      | the table of operations, by subject: `names`, `attrs`, `files`,  |
//! |               | `dirs`, `locks`, `ioctl`                                         |

mod attrs;
mod bell;
mod call;
mod deferred;
mod dirs;
mod door;
mod files;
mod first;
pub(crate) mod flags;
mod handles;
pub(crate) mod init;
mod ioctl;
mod locks;
mod names;
mod ops;
pub(crate) mod protocol;
pub(crate) mod records;
pub(crate) mod reply;
pub(crate) mod request;
mod restore;
mod session;
mod stats;
pub(crate) mod unanswered;
mod waits;

pub use door::{Door, Ended, NOTIFIER_NAME, ServeOptions, Stop, serve};
pub use flags::InitFlags;
pub use init::{Params, Wants, mount_options, negotiate, negotiate_without};
pub use stats::{Stats, Totals};

//! The lowest floor: what every other one stands on, and nothing of the lane.
//!
//! | module | what it knows |
//! |---|---|
//! | `config` | the environment: where the lane is mounted, what is switched on |
//! | `lock` | locks that a signal handler may meet |
//! | `outcome` | how a hooked call ends |
//! | `real` | libc's own functions, and system calls past our hooks |
//! | `reserved` | descriptor numbers of the library's own |
//! | `thread` | what each thread keeps |

pub(crate) mod config;
pub(crate) mod lock;
pub(crate) mod outcome;
pub(crate) mod real;
pub(crate) mod reserved;
pub(crate) mod thread;

/// Numbers of descriptors that the library keeps account of; higher ones are the kernel's.
pub(crate) const FDS_MAX: usize = 65536;

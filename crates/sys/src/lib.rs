//! The basement: shared memory, futexes, descriptor passing, fast copies and raw system calls.
//!
//! All unsafe code of the service lives here, each module saying what for and what it promises
//! above. Functions on the client's hot path ([`region`], [`futex`], [`copy`], [`cpu`]) do not
//! allocate, take no lock and do not touch `errno`'s meaning for the caller: they may run in a
//! signal handler.

pub mod backing;
pub mod balloon;
pub mod board;
pub mod buffer;
pub mod copy;
pub mod cpu;
pub mod crc;
pub mod event;
pub mod extents;
pub mod fault;
pub mod footprint;
pub mod frames;
pub mod futex;
pub mod handle;
#[cfg(target_env = "gnu")]
pub mod heap;
pub mod lock;
pub mod loopdev;
pub mod mappings;
pub mod mount;
pub mod nbd;
pub mod notice;
pub mod ns;
pub mod privileges;
pub mod procstat;
pub mod pulse;
pub mod region;
pub mod removal;
pub mod room;
pub mod sched;
pub mod scm;
pub mod seccomp;
#[cfg(feature = "subverted")]
pub mod subverted;
pub mod swap;
pub mod ublk;
pub mod uring;

pub use region::Region;

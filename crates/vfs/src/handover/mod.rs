//! What outlives a service: a memfd that its supervisor keeps and gives to each new service.
//!
//! | file | what |
//! |---|---|
//! | `store.rs` | records in the memfd: put, changed a word at a time, freed |
//! | `turn.rs` | operations in flight: what was begun, what was answered |
//!
//! The tables that a service needs to go on for another write their entries here as they change:
//! `hostdir` its inodes, the front ends their node ids, open files, slots and locks. A service that
//! is killed at any instruction leaves whole records: the word that makes a record count is stored
//! last. `docs/design/handover.md` has the bytes.
//!
//! # Trust
//!
//! The memfd passes between services of one pool and their supervisor, nobody else. A record that
//! makes no sense is skipped all the same.

mod store;
mod turn;

pub use store::{Heart, InFlight, Kind, Record, Slot, Store};
pub use turn::{Answered, RequestId, Turn, Turns};
pub(crate) use turn::{Facts, Op};

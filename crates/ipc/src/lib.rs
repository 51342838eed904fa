//! How a client and a service talk: request queues, mailboxes, copies, and the words of the wire.
//!
//! ```text
//!  client process                  shared memory (a sealed memfd)          service's worker
//!  ClientChannel::call ─ words, payload ─► mailbox i
//!                      ─ push i ─────────► request queue of a core group ─► ServiceChannel::take
//!                      ◄────────────────── mailbox i ◄──────────────────── ServiceChannel::reply
//! ```
//!
//! # Trust
//!
//! A client may write anything anywhere in its channel at any time. The service copies each message
//! out once and looks at the copy only; keeps its own record of which mailboxes it is serving;
//! never waits, and never loops more than a bounded number of turns, on what a client has to do.
//! Clients share no channel, so what one writes reaches no other. The client trusts the service
//! with its data, but finds out when it is gone.
//!
//! The bytes are in `docs/design/wire.md`.
#![forbid(unsafe_code)]

pub mod budget;
pub mod calibrate;
pub mod channel;
pub mod handshake;
pub mod ioctl;
pub mod layout;
pub mod lent;
pub mod memory;
pub mod message;
pub mod owners;
pub mod queue;
pub mod stream;
pub mod view;

pub use channel::client::{CallError, ClientChannel, Watch};
pub use channel::service::{ReadPipe, ServiceChannel, WritePipe};
pub use channel::{CopyPlan, MailboxIndex};
pub use layout::{Geometry, QueueKind};

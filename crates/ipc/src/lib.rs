//! How a client and a service talk: request queues, mailboxes, copies, and the words of the wire.
#![forbid(unsafe_code)]

pub mod message;

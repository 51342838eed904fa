//! Numbers of the NBD protocol, under its names without their `NBD_` prefix. All integers on the
//! wire are big-endian. Nothing in this file decides anything.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Declares what is sent as it stands, and how many bytes that is.
macro_rules! on_the_wire {
    ($($(#[$doc:meta])* $name:ident, $bytes:literal { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub(super) struct $name {
            $(pub(super) $field: $kind,)*
        }

        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}

on_the_wire! {
    /// The server's first words.
    Greeting, 18 { magic: U64, option_magic: U64, flags: U16 }
    /// What an option begins with; `length` bytes follow.
    OptionHeader, 16 { magic: U64, option: U32, length: U32 }
    /// What the answer to an option begins with; `length` bytes follow.
    OptionReply, 20 { magic: U64, option: U32, kind: U32, length: U32 }
    /// Size and transmission flags of an export.
    Exported, 10 { size: U64, flags: U16 }
    /// `NBD_INFO_EXPORT`.
    InfoExport, 12 { kind: U16, exported: Exported }
    /// `NBD_INFO_BLOCK_SIZE`.
    InfoBlockSize, 14 { kind: U16, least: U32, preferred: U32, most: U32 }
    /// `struct nbd_request`.
    Request, 28 { magic: U32, flags: U16, kind: U16, cookie: U64, offset: U64, length: U32 }
    /// A simple reply; data follow.
    SimpleReply, 16 { magic: U32, error: U32, cookie: U64 }
    /// A chunk of a structured reply; `length` bytes follow.
    Chunk, 20 { magic: U32, flags: U16, kind: U16, cookie: U64, length: U32 }
    /// The payload of an error chunk without a message.
    ChunkError, 6 { error: U32, message_length: U16 }
    /// A range in the payload of a status chunk.
    Extent, 8 { length: U32, state: U32 }
}

/// The greeting's first word, `NBDMAGIC`.
pub(super) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// The greeting's second word, and each option's first, `IHAVEOPT`.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// An option reply's first word.
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// A request's first word.
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// A simple reply's first word.
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// A structured reply chunk's first word.
pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags of both sides: options are answered.
pub(super) const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flags of both sides: no 124 zeros after `OPT_EXPORT_NAME`.
pub(super) const FLAG_NO_ZEROES: u16 = 1 << 1;

/// `NBD_OPT_*`
pub(super) mod opt {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// `NBD_REP_*`
pub(super) mod rep {
    const ERROR: u32 = 1 << 31;
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUP: u32 = ERROR | 1;
    pub(crate) const ERR_INVALID: u32 = ERROR | 3;
    pub(crate) const ERR_UNKNOWN: u32 = ERROR | 6;
    pub(crate) const ERR_TOO_BIG: u32 = ERROR | 9;
}

/// `NBD_INFO_*`
pub(super) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags, `NBD_FLAG_*`.
pub(super) mod flag {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
}

/// `NBD_CMD_*`
pub(super) mod cmd {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Command flags, `NBD_CMD_FLAG_*`.
pub(super) mod cmd_flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
}

/// Structured replies: the last chunk of one.
pub(super) const REPLY_FLAG_DONE: u16 = 1 << 0;

/// `NBD_REPLY_TYPE_*`
pub(super) mod reply_type {
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = 1 << 15 | 1;
}

/// The one metadata context, and its number on this server.
pub(super) const BASE_ALLOCATION: &str = "base:allocation";
pub(super) const BASE_ALLOCATION_ID: u32 = 1;
/// `base:allocation`: takes no space, and reads as zeros.
pub(super) const STATE_HOLE_ZERO: u32 = 0b11;

/// Errors on the wire: Linux's numbers, a few of them.
pub(super) mod error {
    pub(crate) const PERM: u32 = 1;
    pub(crate) const IO: u32 = 5;
    pub(crate) const INVAL: u32 = 22;
    pub(crate) const NOSPC: u32 = 28;
    pub(crate) const NOTSUP: u32 = 95;
}

/// Largest read or write that is served, the protocol's own default.
pub(super) const TRANSFER_BYTES_MAX: u32 = 32 << 20;
/// What clients had best send.
pub(super) const BLOCK_BYTES_PREFERRED: u32 = 4096;

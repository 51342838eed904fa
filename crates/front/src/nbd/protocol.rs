//! Numbers of the NBD protocol, under its names without their `NBD_` prefix. All integers on the
//! wire are big-endian. Nothing in this file decides anything.

use zerocopy::network_endian::{U16, U32, U64};

polylane_base::record! {
    /// The server's first words.
    pub(super) struct Greeting: 18 {
        0x00 magic: U64,
        0x08 option_magic: U64,
        0x10 flags: U16,
    }

    /// What an option begins with; `length` bytes follow.
    pub(super) struct OptionHeader: 16 {
        0x00 magic: U64,
        0x08 option: U32,
        0x0c length: U32,
    }

    /// What the answer to an option begins with; `length` bytes follow.
    pub(super) struct OptionReply: 20 {
        0x00 magic: U64,
        0x08 option: U32,
        0x0c kind: U32,
        0x10 length: U32,
    }

    /// Size and transmission flags of an export.
    pub(super) struct Exported: 10 {
        0x00 size: U64,
        0x08 flags: U16,
    }

    /// `NBD_INFO_EXPORT`.
    pub(super) struct InfoExport: 12 {
        0x00 kind: U16,
        0x02 exported: Exported,
    }

    /// `NBD_INFO_BLOCK_SIZE`.
    pub(super) struct InfoBlockSize: 14 {
        0x00 kind: U16,
        0x02 least: U32,
        0x06 preferred: U32,
        0x0a most: U32,
    }

    /// `struct nbd_request`.
    pub(super) struct Request: 28 {
        0x00 magic: U32,
        0x04 flags: U16,
        0x06 kind: U16,
        0x08 cookie: U64,
        0x10 offset: U64,
        0x18 length: U32,
    }

    /// A simple reply; data follow.
    pub(super) struct SimpleReply: 16 {
        0x00 magic: U32,
        0x04 error: U32,
        0x08 cookie: U64,
    }

    /// A chunk of a structured reply; `length` bytes follow.
    pub(super) struct Chunk: 20 {
        0x00 magic: U32,
        0x04 flags: U16,
        0x06 kind: U16,
        0x08 cookie: U64,
        0x10 length: U32,
    }

    /// The payload of an error chunk without a message.
    pub(super) struct ChunkError: 6 {
        0x00 error: U32,
        0x04 message_length: U16,
    }

    /// A range in the payload of a status chunk.
    pub(super) struct Extent: 8 {
        0x00 length: U32,
        0x04 state: U32,
    }
}

bitflags::bitflags! {
    /// Handshake flags of both sides, `NBD_FLAG_*`. The client's are 32 bits, of which these are
    /// the lower half.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct Handshake: u16 {
        /// Options are answered.
        const FIXED_NEWSTYLE = 1 << 0;
        /// No 124 zeros after `OPT_EXPORT_NAME`.
        const NO_ZEROES = 1 << 1;
    }

    /// Transmission flags, `NBD_FLAG_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct Transmission: u16 {
        /// These are flags.
        const HAS_FLAGS = 1 << 0;
        /// Writes are refused.
        const READ_ONLY = 1 << 1;
        /// `CMD_FLUSH` is served.
        const SEND_FLUSH = 1 << 2;
        /// [`CommandFlags::FUA`] is.
        const SEND_FUA = 1 << 3;
        /// `CMD_TRIM` is.
        const SEND_TRIM = 1 << 5;
        /// `CMD_WRITE_ZEROES` is.
        const SEND_WRITE_ZEROES = 1 << 6;
        /// [`CommandFlags::DF`] is.
        const SEND_DF = 1 << 7;
        /// What one connection has flushed holds for all.
        const CAN_MULTI_CONN = 1 << 8;
        // Servers may have others.
        const _ = !0;
    }

    /// Command flags, `NBD_CMD_FLAG_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct CommandFlags: u16 {
        /// Answered once it is durable.
        const FUA = 1 << 0;
        /// The range keeps its space.
        const NO_HOLE = 1 << 1;
        /// Answered by one chunk.
        const DF = 1 << 2;
        /// The first extent is enough.
        const REQ_ONE = 1 << 3;
        // What clients may send; it is refused.
        const _ = !0;
    }

    /// Flags of a structured reply's chunk, `NBD_REPLY_FLAG_*`.
    pub(super) struct ChunkFlags: u16 {
        /// The last one.
        const DONE = 1 << 0;
    }

    /// States of `base:allocation`, `NBD_STATE_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct ExtentState: u32 {
        /// It takes no space.
        const HOLE = 1 << 0;
        /// It reads as zeros.
        const ZERO = 1 << 1;
    }
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

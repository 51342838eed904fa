//! The journal's bytes. Fields have the names of Linux' `struct journal_superblock_s` and others of
//! `jbd2.h`.

use zerocopy::big_endian::{U16, U32, U64};

polylane_base::record! {
    /// `struct journal_header_s`: begins each block that is not a logged one.
    pub(super) struct HeaderRecord: 12 {
        0x00 magic: U32,
        0x04 blocktype: U32,
        0x08 sequence: U32,
    }

    /// `struct journal_superblock_s`.
    pub(super) struct SuperblockRecord: 1024 {
        0x000 header: HeaderRecord,
        0x00c blocksize: U32,
        0x010 maxlen: U32,
        0x014 first: U32,
        0x018 sequence: U32,
        0x01c start: U32,
        0x020 errno: U32,
        0x024 feature_compat: U32,
        0x028 feature_incompat: U32,
        0x02c feature_ro_compat: U32,
        0x030 uuid: [u8; 16],
        0x040 nr_users: U32,
        0x044 dynsuper: U32,
        0x048 max_transaction: U32,
        0x04c max_trans_data: U32,
        0x050 checksum_type: u8,
        0x051 padding2: [u8; 3],
        0x054 num_fc_blks: U32,
        0x058 head: U32,
        0x05c padding: [U32; 40],
        0x0fc checksum: U32,
        0x100 users: [u8; 768],
    }

    /// `struct journal_block_tag3_s`: a tag with checksum v3.
    pub(super) struct TagV3Record: 16 {
        0x00 blocknr: U32,
        0x04 flags: U32,
        0x08 blocknr_high: U32,
        0x0c checksum: U32,
    }

    /// `struct journal_block_tag_s`: any other tag, up to the upper half of the number, which is
    /// there with 64-bit numbers alone.
    pub(super) struct TagRecord: 8 {
        0x00 blocknr: U32,
        0x04 checksum: U16,
        0x06 flags: U16,
    }

    /// `struct jbd2_journal_revoke_header_s`: begins a revoke block.
    pub(super) struct RevokeRecord: 16 {
        0x00 header: HeaderRecord,
        0x0c count: U32,
    }

    /// `struct commit_header`.
    pub(super) struct CommitRecord: 60 {
        0x00 header: HeaderRecord,
        0x0c chksum_type: u8,
        0x0d chksum_size: u8,
        0x0e padding: [u8; 2],
        0x10 chksum: [U32; 8],
        0x30 commit_sec: U64,
        0x38 commit_nsec: U32,
    }
}

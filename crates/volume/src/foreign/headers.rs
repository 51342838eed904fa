//! What images of other programs begin or end with, as far as it is looked at. Fields have the
//! names of the formats' own documents.

use zerocopy::{big_endian, little_endian};

polylane_base::record! {
    /// What the headers of all versions of qcow begin with.
    pub(super) struct QcowStart: 16 {
        0x00 magic: [u8; 4],
        0x04 version: big_endian::U32,
        0x08 backing_file_offset: big_endian::U64,
    }

    /// The header of qcow from version 3 on, as far as its features.
    pub(super) struct Qcow3Start: 80 {
        0x00 start: QcowStart,
        0x10 backing_file_size: big_endian::U32,
        0x14 cluster_bits: big_endian::U32,
        0x18 size: big_endian::U64,
        0x20 crypt_method: big_endian::U32,
        0x24 l1_size: big_endian::U32,
        0x28 l1_table_offset: big_endian::U64,
        0x30 refcount_table_offset: big_endian::U64,
        0x38 refcount_table_clusters: big_endian::U32,
        0x3c nb_snapshots: big_endian::U32,
        0x40 snapshots_offset: big_endian::U64,
        0x48 incompatible_features: big_endian::U64,
    }

    /// The header of QED, as far as its features.
    pub(super) struct QedStart: 24 {
        0x00 magic: [u8; 4],
        0x04 cluster_size: little_endian::U32,
        0x08 table_size: little_endian::U32,
        0x0c header_size: little_endian::U32,
        0x10 features: little_endian::U64,
    }

    /// `SparseExtentHeader` of VMDK, as far as where its descriptor is.
    pub(super) struct VmdkStart: 44 {
        0x00 magic_number: [u8; 4],
        0x04 version: little_endian::U32,
        0x08 flags: little_endian::U32,
        0x0c capacity: little_endian::U64,
        0x14 grain_size: little_endian::U64,
        /// In sectors.
        0x1c descriptor_offset: little_endian::U64,
        0x24 descriptor_size: little_endian::U64,
    }

    /// The header of VDI, as far as its magic number.
    pub(super) struct VdiStart: 68 {
        0x00 text: [u8; 64],
        0x40 signature: little_endian::U32,
    }

    /// The hard disk footer of VHD; images that are no plain disk begin with a copy of it.
    pub(super) struct VhdFooter: 512 {
        0x00 cookie: [u8; 8],
        0x08 features: big_endian::U32,
        0x0c file_format_version: big_endian::U32,
        0x10 data_offset: big_endian::U64,
        0x18 time_stamp: big_endian::U32,
        0x1c creator_application: [u8; 4],
        0x20 creator_version: big_endian::U32,
        0x24 creator_host_os: [u8; 4],
        0x28 original_size: big_endian::U64,
        0x30 current_size: big_endian::U64,
        0x38 disk_geometry: big_endian::U32,
        0x3c disk_type: big_endian::U32,
        0x40 checksum: big_endian::U32,
        0x44 unique_id: [u8; 16],
        0x54 saved_state: u8,
        0x55 reserved: [u8; 427],
    }

    /// The superblock of XFS, as far as its size.
    pub(super) struct XfsStart: 16 {
        0x00 magicnum: [u8; 4],
        0x04 blocksize: big_endian::U32,
        0x08 dblocks: big_endian::U64,
    }

    /// The header of a GUID partition table, as far as where its copy is.
    pub(super) struct GptStart: 40 {
        0x00 signature: [u8; 8],
        0x08 revision: little_endian::U32,
        0x0c header_size: little_endian::U32,
        0x10 header_crc32: little_endian::U32,
        0x14 reserved: little_endian::U32,
        0x18 my_lba: little_endian::U64,
        0x20 alternate_lba: little_endian::U64,
    }
}

bitflags::bitflags! {
    /// `incompatible_features` of qcow.
    pub(super) struct QcowIncompatible: u64 {
        /// Its data are in a file of their own.
        const EXTERNAL_DATA = 1 << 2;
        const _ = !0;
    }

    /// `features` of QED.
    pub(super) struct QedFeatures: u64 {
        /// It is based on another file.
        const BACKING_FILE = 1 << 0;
        const _ = !0;
    }
}

/// `version` of qcow whose header ends before its features.
pub(super) const QCOW_VERSION_2: u32 = 2;

/// `signature` of VDI.
pub(super) const VDI_SIGNATURE: u32 = 0xbeda_107f;

/// `cookie` of VHD.
pub(super) const VHD_COOKIE: [u8; 8] = *b"conectix";
/// `disk_type` of VHD: a plain disk before the footer.
pub(super) const VHD_FIXED: u32 = 2;
/// `disk_type` of VHD: it goes on in a parent.
pub(super) const VHD_DIFFERENCING: u32 = 4;

/// `magicnum` of XFS.
pub(super) const XFS_MAGIC: [u8; 4] = *b"XFSB";

/// Where a GUID partition table begins on a disk with sectors of 512 bytes.
pub(super) const GPT_OFFSET: usize = 512;
/// `signature` of a GUID partition table.
pub(super) const GPT_SIGNATURE: [u8; 8] = *b"EFI PART";

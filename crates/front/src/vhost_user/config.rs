//! Features and the configuration space of a virtio block device (VIRTIO 1.2, 5.2).

use std::mem::offset_of;

use polylane_block::BlockDevice;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

bitflags::bitflags! {
    /// Features of a device and of the protocol, `VIRTIO_BLK_F_*` where nothing else is said.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct Features: u64 {
        /// Data segments have a largest size.
        const SIZE_MAX = 1 << 1;
        /// A request has a largest number of them.
        const SEG_MAX = 1 << 2;
        /// Writes are refused.
        const READ_ONLY = 1 << 5;
        /// The size of a block is told.
        const BLK_SIZE = 1 << 6;
        /// Flushes are served.
        const FLUSH = 1 << 9;
        /// Good sizes of requests are told.
        const TOPOLOGY = 1 << 10;
        /// The write cache can be switched off.
        const CONFIG_WCE = 1 << 11;
        /// There are several queues.
        const MULTI_QUEUE = 1 << 12;
        /// Discards are served.
        const DISCARD = 1 << 13;
        /// Writes of zeros are.
        const WRITE_ZEROES = 1 << 14;
        /// `VIRTIO_F_INDIRECT_DESC`.
        const INDIRECT_DESC = 1 << 28;
        /// `VIRTIO_F_EVENT_IDX`.
        const EVENT_IDX = 1 << 29;
        /// `VHOST_USER_F_PROTOCOL_FEATURES`.
        const PROTOCOL_FEATURES = 1 << 30;
        /// `VIRTIO_F_VERSION_1`.
        const VERSION_1 = 1 << 32;
    }
}

/// Bytes of data in one request, at most.
pub(super) const REQUEST_BYTES_MAX: u32 = 4 << 20;
/// Data segments in one request: two descriptors of an ordinary ring are header and status.
const SEGMENTS_MAX: u32 = 126;
/// Bytes in a segment: no request that keeps to both is too large, whatever a guest's administrator
/// allows.
const SEGMENT_BYTES_MAX: u32 = 32 << 10;
const _: () = assert!(SEGMENTS_MAX * SEGMENT_BYTES_MAX <= REQUEST_BYTES_MAX);
/// Sectors in one discard or write of zeros.
pub(super) const RANGE_SECTORS_MAX: u32 = 1 << 22;
/// The physical block is 2^3 logical ones.
const PHYSICAL_BLOCK_EXPONENT: u8 = 3;

polylane_base::record! {
    /// `struct virtio_blk_config`, as far as it has a meaning here.
    struct Space: 60 {
        /// Sectors.
        0x00 capacity: U64,
        0x08 size_max: U32,
        0x0c seg_max: U32,
        /// Cylinders, heads and sectors: none.
        0x10 geometry: [u8; 4],
        0x14 blk_size: U32,
        0x18 physical_block_exp: u8,
        0x19 alignment_offset: u8,
        /// The smallest good and the best size of a request, in logical blocks.
        0x1a min_io_size: U16,
        0x1c opt_io_size: U32,
        0x20 writeback: u8,
        0x21 unused: u8,
        0x22 num_queues: U16,
        0x24 max_discard_sectors: U32,
        0x28 max_discard_seg: U32,
        0x2c discard_sector_alignment: U32,
        0x30 max_write_zeroes_sectors: U32,
        0x34 max_write_zeroes_seg: U32,
        0x38 write_zeroes_may_unmap: u8,
        0x39 padding: [u8; 3],
    }
}

/// Where the write cache's switch is in the configuration space.
pub(super) const WRITEBACK_OFFSET: u32 = offset_of!(Space, writeback) as u32;
/// Bytes that may be read: the rest is zero, whatever later versions put there.
const SPACE_BYTES_MAX: usize = 256;

/// What the device offers.
pub(super) fn features(device: &dyn BlockDevice) -> Features {
    let change = Features::DISCARD | Features::WRITE_ZEROES;
    match device.read_only() {
        true => Features::all() - change,
        false => Features::all() - Features::READ_ONLY,
    }
}

/// What the server offers beside.
pub(super) fn protocol_features() -> Protocol {
    Protocol::MQ
        | Protocol::CONFIG
        | Protocol::REPLY_ACK
        | Protocol::INFLIGHT_SHMFD
        | Protocol::RESET_DEVICE
        | Protocol::CONFIGURE_MEM_SLOTS
        | Protocol::BACKEND_REQ
}

/// `size` bytes of the configuration space from `offset` on; `None` past its end.
pub(super) fn read(
    device: &dyn BlockDevice,
    queues: u16,
    writeback: bool,
    offset: u32,
    size: u32,
) -> Option<Vec<u8>> {
    let space = Space {
        capacity: device.sector_count().into(),
        size_max: SEGMENT_BYTES_MAX.into(),
        seg_max: SEGMENTS_MAX.into(),
        geometry: [0; 4],
        blk_size: 512.into(),
        physical_block_exp: PHYSICAL_BLOCK_EXPONENT,
        alignment_offset: 0,
        min_io_size: 8.into(),
        opt_io_size: 0.into(),
        writeback: writeback.into(),
        unused: 0,
        num_queues: queues.into(),
        max_discard_sectors: RANGE_SECTORS_MAX.into(),
        max_discard_seg: 1.into(),
        discard_sector_alignment: 8.into(),
        max_write_zeroes_sectors: RANGE_SECTORS_MAX.into(),
        max_write_zeroes_seg: 1.into(),
        write_zeroes_may_unmap: 1,
        padding: [0; 3],
    };
    let mut space = space.as_bytes().to_vec();
    space.resize(SPACE_BYTES_MAX, 0);
    let end = (offset as usize).checked_add(size as usize)?;
    space.get(offset as usize..end).map(<[u8]>::to_vec)
}

/// The serial number's 20 bytes.
pub(super) fn serial(name: &str) -> [u8; 20] {
    let mut serial = [0; 20];
    let count = name.len().min(serial.len());
    serial[..count].copy_from_slice(&name.as_bytes()[..count]);
    serial
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_block::ram::RamDevice;

    #[test]
    fn the_space_is_where_the_specification_has_it() {
        let device = RamDevice::new(0x1234);
        let space = |offset, size| read(&device, 4, true, offset, size).expect("inside");
        assert_eq!(space(0, 8), 0x1234u64.to_le_bytes());
        assert_eq!(space(20, 4), 512u32.to_le_bytes());
        assert_eq!(space(WRITEBACK_OFFSET, 1), [1]);
        assert_eq!(space(34, 2), 4u16.to_le_bytes());
        assert_eq!(space(56, 1), [1]);
        assert_eq!(space(60, 196), vec![0; 196]);
        assert_eq!(read(&device, 4, true, 250, 7), None);
        assert_eq!(read(&device, 4, true, u32::MAX, u32::MAX), None);
    }
}

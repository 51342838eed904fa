//! Features and the configuration space of a virtio block device (VIRTIO 1.2, 5.2).

use std::mem::offset_of;

use polylane_block::BlockDevice;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{Immutable, IntoBytes};

/// `VIRTIO_F_VERSION_1`.
pub(super) const VERSION_1: u64 = 1 << 32;
/// `VIRTIO_F_INDIRECT_DESC`.
const INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX`.
pub(super) const EVENT_IDX: u64 = 1 << 29;
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
const SIZE_MAX: u64 = 1 << 1;
const SEG_MAX: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 5;
const BLK_SIZE: u64 = 1 << 6;
/// `VIRTIO_BLK_F_FLUSH`.
pub(super) const FLUSH: u64 = 1 << 9;
const TOPOLOGY: u64 = 1 << 10;
/// `VIRTIO_BLK_F_CONFIG_WCE`.
pub(super) const CONFIG_WCE: u64 = 1 << 11;
const MULTI_QUEUE: u64 = 1 << 12;
const DISCARD: u64 = 1 << 13;
const WRITE_ZEROES: u64 = 1 << 14;

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

/// `struct virtio_blk_config`, as far as it has a meaning here.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Space {
    /// Sectors.
    capacity: U64,
    size_max: U32,
    seg_max: U32,
    /// Cylinders, heads and sectors: none.
    geometry: [u8; 4],
    blk_size: U32,
    physical_block_exp: u8,
    alignment_offset: u8,
    /// The smallest good and the best size of a request, in logical blocks.
    min_io_size: U16,
    opt_io_size: U32,
    writeback: u8,
    unused: u8,
    num_queues: U16,
    max_discard_sectors: U32,
    max_discard_seg: U32,
    discard_sector_alignment: U32,
    max_write_zeroes_sectors: U32,
    max_write_zeroes_seg: U32,
    write_zeroes_may_unmap: u8,
    padding: [u8; 3],
}

const _: () = assert!(size_of::<Space>() == 60 && offset_of!(Space, num_queues) == 34);

/// Where the write cache's switch is in the configuration space.
pub(super) const WRITEBACK_OFFSET: u32 = offset_of!(Space, writeback) as u32;
const _: () = assert!(WRITEBACK_OFFSET == 32);
/// Bytes that may be read: the rest is zero, whatever later versions put there.
const SPACE_BYTES_MAX: usize = 256;

/// What the device offers.
pub(super) fn features(device: &dyn BlockDevice) -> u64 {
    let common = VERSION_1 | INDIRECT_DESC | EVENT_IDX | PROTOCOL_FEATURES;
    let block = SIZE_MAX | SEG_MAX | BLK_SIZE | TOPOLOGY | FLUSH | CONFIG_WCE | MULTI_QUEUE;
    let change = if device.read_only() { READ_ONLY } else { DISCARD | WRITE_ZEROES };
    common | block | change
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

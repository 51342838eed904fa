//! From a chain to a job of the device, and from its completion to a status.
//!
//! | bytes | field |          (VIRTIO 1.2, 5.2.6)
//! |---|---|
//! | readable 0..4 | type |
//! | readable 8..16 | sector |
//! | readable 16.. | data of a write; or sector (8), count (4), flags (4) of a range |
//! | writable ..end-1 | data of a read, or the serial number |
//! | writable, the last | status |

use polylane_block::{Error, Op, Sector};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::chain::{Chain, Malformed, Segment, bytes, copy_out, cut_first, cut_last};
use super::config::{RANGE_SECTORS_MAX, REQUEST_BYTES_MAX};
use super::memory::Mapped;

/// `VIRTIO_BLK_S_OK`.
pub(super) const OK: u8 = 0;
/// `VIRTIO_BLK_S_IOERR`.
pub(super) const IO_ERROR: u8 = 1;
/// `VIRTIO_BLK_S_UNSUPP`.
pub(super) const UNSUPPORTED: u8 = 2;

/// What a request begins with, `struct virtio_blk_req`.
#[derive(Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Header {
    pub(super) kind: U32,
    pub(super) reserved: U32,
    pub(super) sector: U64,
}

/// The range of a discard or a write of zeros, `struct virtio_blk_discard_write_zeroes`.
#[derive(Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Range {
    pub(super) sector: U64,
    pub(super) count: U32,
    pub(super) flags: U32,
}

const HEADER_BYTES: u64 = size_of::<Header>() as u64;
const RANGE_BYTES: u64 = size_of::<Range>() as u64;
const _: () = assert!(HEADER_BYTES == 16 && RANGE_BYTES == 16);

/// Flag of a write of zeros: the space may be given back.
const UNMAP: u32 = 1;

/// What a request wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Want {
    /// Fill these segments.
    Read { sector: Sector, into: Vec<Segment>, bytes: u32 },
    /// Store these.
    Write { sector: Sector, from: Vec<Segment>, bytes: u32 },
    /// Something about a range.
    Range { op: Op, sector: Sector, count: u64 },
    /// Make completed writes durable.
    Flush,
    /// The serial number, into these segments.
    Serial(Vec<Segment>),
    /// Nothing: the answer is known.
    Answer(u8),
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Parsed {
    pub(super) want: Want,
    /// Where the status goes.
    pub(super) status: Segment,
}

impl Parsed {
    /// Reads a chain. `durable`: the guest's write cache is off.
    ///
    /// # Errors
    /// It has no header, or no place for a status.
    pub(super) fn read(memory: &Mapped, chain: Chain, durable: bool) -> Result<Parsed, Malformed> {
        let Chain { readable: mut payload, writable: mut into } = chain;
        let mut header = Header::default();
        if !copy_out(memory, &payload, header.as_mut_bytes()) {
            return Err(Malformed);
        }
        cut_first(&mut payload, HEADER_BYTES);
        let status = cut_last(&mut into).ok_or(Malformed)?;
        let room = bytes(&into);
        let sector = Sector(header.sector.get());
        let want = match header.kind.get() {
            0 => moved(room, |bytes| Want::Read { sector, into, bytes }),
            1 => moved(bytes(&payload), |bytes| Want::Write { sector, from: payload, bytes }),
            4 => Want::Flush,
            8 => Want::Serial(into),
            kind @ (11 | 13) => range(memory, &payload, kind == 13, durable),
            _ => Want::Answer(UNSUPPORTED),
        };
        Ok(Parsed { want, status })
    }
}

/// A transfer of whole sectors, not too many.
fn moved(bytes: u64, want: impl FnOnce(u32) -> Want) -> Want {
    match u32::try_from(bytes) {
        Ok(bytes) if bytes > 0 && bytes.is_multiple_of(512) && bytes <= REQUEST_BYTES_MAX => {
            want(bytes)
        }
        _ => Want::Answer(IO_ERROR),
    }
}

/// A discard, or a write of zeros.
fn range(memory: &Mapped, payload: &[Segment], zero: bool, fua: bool) -> Want {
    let mut range = Range::default();
    if bytes(payload) != RANGE_BYTES || !copy_out(memory, payload, range.as_mut_bytes()) {
        return Want::Answer(IO_ERROR);
    }
    let sector = Sector(range.sector.get());
    let (count, flags) = (range.count.get(), range.flags.get());
    let known = if zero { UNMAP } else { 0 };
    match (flags & !known, count) {
        (0, 0) => Want::Answer(OK),
        (0, 1..=RANGE_SECTORS_MAX) => {
            let unmap = flags & UNMAP != 0;
            let op = if zero { Op::WriteZeroes { unmap, fua } } else { Op::Discard };
            Want::Range { op, sector, count: u64::from(count) }
        }
        (0, _) => Want::Answer(IO_ERROR),
        _ => Want::Answer(UNSUPPORTED),
    }
}

/// The status for a result of the device.
pub(super) fn status(result: Result<(), Error>) -> u8 {
    match result {
        Ok(()) => OK,
        Err(Error::Unsupported) => UNSUPPORTED,
        Err(_) => IO_ERROR,
    }
}

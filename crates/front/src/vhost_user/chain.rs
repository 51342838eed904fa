//! A descriptor chain: walked once, checked, and turned into ranges of guest memory.
//!
//! `virtio-queue` has a walker too, but it cannot say whether a chain ended or was cut off by
//! nonsense, and cannot start at a head that was taken before a restart.

use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryBackend};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::memory::Mapped;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const DESCRIPTOR_BYTES: u64 = 16;

/// A range of guest memory, inside it when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) address: GuestAddress,
    pub(super) len: u32,
}

/// What a chain is made of: first what the device reads, then what it writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Chain {
    pub(super) readable: Vec<Segment>,
    pub(super) writable: Vec<Segment>,
}

/// The chain breaks the specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Malformed;

/// `struct virtq_desc`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Descriptor {
    pub(super) address: U64,
    pub(super) len: U32,
    pub(super) flags: U16,
    pub(super) next: U16,
}

const _: () = assert!(size_of::<Descriptor>() as u64 == DESCRIPTOR_BYTES);

/// A table of descriptors: the ring's own, or an indirect one.
#[derive(Clone, Copy)]
struct Table {
    address: GuestAddress,
    count: u16,
}

impl Table {
    /// Copies a descriptor out of shared memory, once.
    fn read(self, memory: &Mapped, index: u16) -> Result<Descriptor, Malformed> {
        if index >= self.count {
            return Err(Malformed);
        }
        let at = self.address.checked_add(u64::from(index) * DESCRIPTOR_BYTES).ok_or(Malformed)?;
        let mut found = Descriptor::default();
        memory.read_slice(found.as_mut_bytes(), at).map_err(|_| Malformed)?;
        Ok(found)
    }
}

impl Chain {
    /// Walks the chain that begins at descriptor `head` of a ring's table of `count` descriptors.
    ///
    /// # Errors
    /// It leaves its table, has a loop, an indirect table in an indirect table or beside other
    /// descriptors after it, memory outside of the guest's, or something to read after something
    /// to write.
    pub(super) fn walk(
        memory: &Mapped,
        table: GuestAddress,
        count: u16,
        head: u16,
    ) -> Result<Chain, Malformed> {
        let mut table = Table { address: table, count };
        let (mut index, mut left, mut indirect) = (head, count, false);
        let mut chain = Chain::default();
        loop {
            // More descriptors than the table has: a loop.
            left = left.checked_sub(1).ok_or(Malformed)?;
            let descriptor = table.read(memory, index)?;
            if descriptor.flags.get() & INDIRECT != 0 {
                if indirect || descriptor.flags.get() & NEXT != 0 {
                    return Err(Malformed);
                }
                table = indirect_table(descriptor)?;
                (index, left, indirect) = (0, table.count, true);
                continue;
            }
            chain.push(memory, descriptor)?;
            if descriptor.flags.get() & NEXT == 0 {
                return Ok(chain);
            }
            index = descriptor.next.get();
        }
    }

    fn push(&mut self, memory: &Mapped, descriptor: Descriptor) -> Result<(), Malformed> {
        let address = GuestAddress(descriptor.address.get());
        let len = descriptor.len.get();
        if len > 0 && !GuestMemoryBackend::check_range(memory, address, len as usize) {
            return Err(Malformed);
        }
        let writable = descriptor.flags.get() & WRITE != 0;
        if !writable && !self.writable.is_empty() {
            return Err(Malformed);
        }
        let list = if writable { &mut self.writable } else { &mut self.readable };
        if len > 0 {
            list.push(Segment { address, len });
        }
        Ok(())
    }
}

fn indirect_table(descriptor: Descriptor) -> Result<Table, Malformed> {
    let len = u64::from(descriptor.len.get());
    let count = len / DESCRIPTOR_BYTES;
    match u16::try_from(count) {
        Ok(count) if count > 0 && len.is_multiple_of(DESCRIPTOR_BYTES) => {
            Ok(Table { address: GuestAddress(descriptor.address.get()), count })
        }
        _ => Err(Malformed),
    }
}

/// Bytes in segments, all together.
pub(super) fn bytes(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// Takes the first `count` bytes off.
pub(super) fn cut_first(segments: &mut Vec<Segment>, count: u64) {
    let mut left = count;
    for segment in segments.iter_mut() {
        let here = left.min(u64::from(segment.len)) as u32;
        left -= u64::from(here);
        segment.address = segment.address.unchecked_add(u64::from(here));
        segment.len -= here;
    }
    segments.retain(|segment| segment.len > 0);
}

/// Takes the last byte off. `None`: there is none.
pub(super) fn cut_last(segments: &mut Vec<Segment>) -> Option<Segment> {
    let last = segments.last_mut()?;
    // None is empty: see `Chain::push`.
    let len = last.len.checked_sub(1)?;
    let byte = Segment { address: last.address.unchecked_add(u64::from(len)), len: 1 };
    last.len = len;
    if len == 0 {
        segments.pop();
    }
    Some(byte)
}

/// Copies guest memory out, as much as there is room for. False: it is gone, or too little.
pub(super) fn copy_out(memory: &Mapped, segments: &[Segment], mut into: &mut [u8]) -> bool {
    for segment in segments {
        if into.is_empty() {
            return true;
        }
        let count = into.len().min(segment.len as usize);
        let (head, rest) = into.split_at_mut(count);
        if memory.read_slice(head, segment.address).is_err() {
            return false;
        }
        into = rest;
    }
    into.is_empty()
}

/// Copies into guest memory. False: it is gone.
pub(super) fn copy_in(memory: &Mapped, segments: &[Segment], mut from: &[u8]) -> bool {
    for segment in segments {
        let (head, rest) = from.split_at(from.len().min(segment.len as usize));
        if memory.write_slice(head, segment.address).is_err() {
            return false;
        }
        from = rest;
    }
    from.is_empty()
}

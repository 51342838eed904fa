//! One queue of a device: requests out of the kernel, answers in.
//!
//! # Invariants
//!
//! - Of each tag there is one command in the kernel, or one request out of [`Queue::take`].
//! - A queue's ring reaches its device and nothing else, with this one operation: restrictions are
//!   in force before the first command.
#![expect(unsafe_code, reason = "UNSAFETY: hands addresses to the kernel, and maps its memory")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::squeue::Flags;
use io_uring::types::Fixed;
use io_uring::{IoUring, opcode};
use polylane_base::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags};
use zerocopy::native_endian::{I32, U16, U64};

use super::{Geometry, SECTOR_BYTES};
use crate::buffer::Buffer;

polylane_base::record! {
    /// `struct ublksrv_io_cmd`
    struct Command: 16 {
        0x00 queue: U16,
        0x02 tag: U16,
        0x04 result: I32,
        0x08 address: U64,
    }
}

/// `UBLK_U_IO_FETCH_REQ`: `_IOWR('u', 0x20, struct ublksrv_io_cmd)`.
const FETCH: u32 = 0xc010_7520;
/// `UBLK_U_IO_COMMIT_AND_FETCH_REQ`.
const COMMIT_AND_FETCH: u32 = 0xc010_7521;

/// `struct ublksrv_io_desc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Descriptor {
    op_flags: u32,
    sectors: u32,
    first: u64,
    addr: u64,
}

const _: () = assert!(size_of::<Descriptor>() == 24);

/// `UBLK_MAX_QUEUE_DEPTH`: each queue's descriptors are as far apart as if it had so many.
const DEPTH_MAX: usize = 4096;
const PAGE_BYTES: usize = 4096;

/// What a device is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Fill the buffer.
    Read,
    /// Store the buffer.
    Write {
        /// On stable storage when it ends.
        fua: bool,
    },
    /// Make all completed writes durable.
    Flush,
    /// Give space back.
    Discard,
    /// Fill with zeros.
    WriteZeroes {
        /// Space may be given back.
        unmap: bool,
        /// On stable storage when it ends.
        fua: bool,
    },
    /// What is not asked of such devices.
    Unknown,
}

/// A request of the kernel's.
#[derive(Debug)]
pub struct Wanted {
    /// Its number, for [`Queue::finish`].
    pub tag: u16,
    /// What to do.
    pub op: Op,
    /// The first sector of 512 bytes.
    pub sector: u64,
    /// How many.
    pub sectors: u32,
    /// As long as the transfer; the data of a write. Of other requests, of any length.
    pub buffer: Buffer,
}

/// One queue of a device, of the thread that [begins](Queue::begin) it.
pub struct Queue {
    uring: IoUring,
    number: u16,
    geometry: Geometry,
    device: OwnedFd,
    /// None before it has begun.
    descriptors: Option<*const Descriptor>,
    /// By tag; none for a request that is out.
    buffers: ManuallyDrop<Vec<Option<Buffer>>>,
    /// Commands in the kernel.
    pending: usize,
    unsubmitted: usize,
}

// SAFETY: the mapping is the queue's own, and read only.
unsafe impl Send for Queue {}

impl Queue {
    /// Queue `number` of the device behind `device`, `/dev/ublkcN`, with all of its memory: what
    /// takes time is over before the driver is told.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(device: impl AsFd, number: u16, geometry: Geometry) -> Result<Queue> {
        let mut builder = IoUring::builder();
        builder.setup_r_disabled().setup_coop_taskrun().setup_taskrun_flag();
        let uring: IoUring = builder.build(geometry.depth.into())?;
        let submitter = uring.submitter();
        submitter.register_files(&[device.as_fd().as_raw_fd()])?;
        let fixed = Flags::FIXED_FILE.bits();
        let mut rules = [
            Restriction::sqe_op(opcode::UringCmd16::CODE),
            Restriction::sqe_flags_allowed(fixed),
            Restriction::sqe_flags_required(fixed),
        ];
        submitter.register_restrictions(&mut rules)?;
        submitter.register_enable_rings()?;
        let device = device.as_fd().try_clone_to_owned();
        let device = device.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
        let buffer = |_| Some(Buffer::zeroed(geometry.transfer_bytes as usize));
        Ok(Queue {
            uring,
            number,
            geometry,
            device,
            descriptors: None,
            buffers: ManuallyDrop::new((0..geometry.depth).map(buffer).collect()),
            pending: 0,
            unsubmitted: 0,
        })
    }

    /// Asks for requests, before the device is started. All later calls come from the same thread,
    /// or the kernel refuses them.
    ///
    /// Commands come first, all in one system call, and the mapping after that: the driver
    /// remembers whose memory it was mapped into, and forgets that in a recovery only if it had a
    /// queue with all of its commands.
    ///
    /// # Errors
    /// The kernel's.
    pub fn begin(&mut self) -> Result<()> {
        for tag in 0..self.geometry.depth {
            if let Some(buffer) = self.buffers[usize::from(tag)].take() {
                self.push(FETCH, tag, 0, buffer);
            }
        }
        self.submit();
        // There are no requests before the start: what is over was refused.
        if let Some(refused) = self.uring.completion().next() {
            return Err(Errno(-refused.result()));
        }
        self.descriptors = Some(map(self.device.as_fd(), self.number, self.geometry)?);
        Ok(())
    }

    /// The next request.
    pub fn take(&mut self) -> Option<Wanted> {
        loop {
            let mut completion = self.uring.completion().next();
            if completion.is_none() && self.uring.submission().taskrun() {
                self.enter();
                completion = self.uring.completion().next();
            }
            let completion = completion?;
            let tag = u16::try_from(completion.user_data()).ok()?;
            let buffer = self.buffers.get_mut(usize::from(tag))?.take()?;
            self.pending -= 1;
            // Anything but 0 is the end: the device is stopped, or the command was refused.
            if let (0, Some(descriptors)) = (completion.result(), self.descriptors) {
                return Some(self.wanted(descriptors, tag, buffer));
            }
        }
    }

    fn wanted(&self, descriptors: *const Descriptor, tag: u16, mut buffer: Buffer) -> Wanted {
        // SAFETY: the mapping has a descriptor for each tag below the depth, which `buffers` has as
        // its length; the kernel wrote this one before it completed the command.
        let told = unsafe { descriptors.add(usize::from(tag)).read_volatile() };
        let (fua, unmap) = (told.op_flags & 1 << 13 != 0, told.op_flags & 1 << 15 == 0);
        let op = match told.op_flags & 0xff {
            0 => Op::Read,
            1 => Op::Write { fua },
            2 => Op::Flush,
            3 => Op::Discard,
            5 => Op::WriteZeroes { unmap, fua },
            _ => Op::Unknown,
        };
        let bytes = u64::from(told.sectors) * u64::from(SECTOR_BYTES);
        let transfers = matches!(op, Op::Read | Op::Write { .. });
        let fits = (1..=u64::from(self.geometry.transfer_bytes)).contains(&bytes);
        if transfers && fits {
            buffer.set_len(bytes as usize);
        }
        let op = if transfers && !fits { Op::Unknown } else { op };
        Wanted { tag, op, sector: told.first, sectors: told.sectors, buffer }
    }

    /// Answers a request, at the next [`submit`](Queue::submit), and asks for another: bytes moved,
    /// or the error.
    ///
    /// # Panics
    /// The buffer is not the one that came with it, or it was answered before.
    pub fn finish(&mut self, tag: u16, result: Result<u32>, mut buffer: Buffer) {
        assert_eq!(buffer.capacity(), self.geometry.transfer_bytes as usize, "the request's");
        buffer.set_len(buffer.capacity());
        let result = match result {
            Ok(bytes) => bytes.cast_signed(),
            Err(errno) => -errno.0,
        };
        self.push(COMMIT_AND_FETCH, tag, result, buffer);
    }

    fn push(&mut self, op: u32, tag: u16, result: i32, mut buffer: Buffer) {
        let slot = &mut self.buffers[usize::from(tag)];
        assert!(slot.is_none(), "one command of each tag");
        let command: [u8; 16] = zerocopy::transmute!(Command {
            queue: self.number.into(),
            tag: tag.into(),
            result: result.into(),
            address: (buffer.as_mut_ptr() as u64).into(),
        });
        *slot = Some(buffer);
        let entry = opcode::UringCmd16::new(Fixed(0), op).cmd(command).build();
        let entry = entry.user_data(tag.into());
        // SAFETY: the buffer lies in its slot until the command is over, and is not freed before:
        // see `drop`. It is as long as the largest transfer.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "as many entries as tags");
        self.pending += 1;
        self.unsubmitted += 1;
    }

    /// Hands what was pushed to the kernel. Does not wait.
    pub fn submit(&mut self) {
        if self.unsubmitted > 0 {
            self.enter();
        }
    }

    fn enter(&mut self) {
        loop {
            match self.uring.submit() {
                Ok(count) => self.unsubmitted = self.unsubmitted.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            if self.unsubmitted == 0 {
                return;
            }
        }
    }

    /// Whether no request will come any more.
    pub fn is_over(&self) -> bool {
        self.pending == 0
    }
}

/// poll(2) finds it readable while there is a request, or the end.
impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's descriptor is open as long as the ring, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Some(descriptors) = self.descriptors {
            let len = map_bytes(self.geometry);
            // SAFETY: mapped in `begin` with this length; not used again.
            let _ = unsafe { rustix::mm::munmap(descriptors.cast_mut().cast(), len) };
        }
        if self.pending == 0 {
            // SAFETY: nothing is in the kernel, so it holds no address any more; not used again.
            unsafe { ManuallyDrop::drop(&mut self.buffers) }
        }
        // What is in the kernel is over some time after the ring is closed: that memory stays until
        // the process ends, which is when a device is left that still wants to be served.
    }
}

fn map_bytes(geometry: Geometry) -> usize {
    (usize::from(geometry.depth) * size_of::<Descriptor>()).next_multiple_of(PAGE_BYTES)
}

/// Maps the descriptors of a queue.
fn map(device: BorrowedFd<'_>, number: u16, geometry: Geometry) -> Result<*const Descriptor> {
    let apart = (DEPTH_MAX * size_of::<Descriptor>()).next_multiple_of(PAGE_BYTES);
    let (len, offset) = (map_bytes(geometry), apart as u64 * u64::from(number));
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a new mapping, at a place of the kernel's choice.
    let base = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, device, offset)
    };
    let base = base.map_err(|error| Errno(error.raw_os_error()))?;
    Ok(base.cast_const().cast())
}

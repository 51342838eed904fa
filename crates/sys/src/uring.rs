//! An io_uring on a few files, safe to use: a ring owns the buffers of every operation until it is
//! over.
//!
//! # Invariants
//!
//! - The ring reaches its registered files and nothing else, with the operations named in
//!   `OPERATIONS` and no others: restrictions are in force before the first operation. A seccomp
//!   filter does not see what a ring does, so this is the filter.
//! - An operation lives in a slot from [`Ring::push`] to [`Ring::reap`]; no more are in flight than
//!   the submission queue holds, so the completion queue, twice as large, cannot overflow.
//! - Dropping the ring waits for what is in flight and lets go of the files at once: the kernel
//!   takes a closed ring apart later, and would keep their file system busy until then.
#![expect(unsafe_code, reason = "UNSAFETY: hands addresses of owned buffers to the kernel")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fixed, FsyncFlags};
use io_uring::{IoUring, opcode};
use polylane_base::{Errno, Result};

use crate::buffer::Buffer;

/// Most pieces of memory in one operation (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Most bytes in one single-buffer operation; the rest is a short transfer.
const BYTES_MAX: usize = 1 << 30;

/// `IORING_UNREGISTER_FILES`.
const UNREGISTER_FILES: u8 = 3;

/// Everything a ring may do.
const OPERATIONS: [u8; 6] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
];

/// What to do with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Fill the buffers, as preadv2(2).
    Read,
    /// Store the buffers, as pwritev2(2); with `durable`, as with `RWF_DSYNC`.
    Write {
        /// On stable storage when it ends.
        durable: bool,
    },
    /// fdatasync(2).
    Sync,
    /// fallocate(2) of `length` bytes.
    Fallocate {
        /// `FALLOC_FL_*`.
        mode: i32,
        /// Length of the range in bytes.
        length: u64,
    },
}

/// One operation, with the buffers that it works on.
#[derive(Debug)]
pub struct Operation {
    /// Which of the ring's files.
    pub file: usize,
    /// What to do.
    pub action: Action,
    /// First byte in the file.
    pub offset: u64,
    /// Memory, in order; `skip` bytes of it are left out at the start.
    pub buffers: Vec<Buffer>,
    /// Bytes at the start of `buffers` that an earlier operation took care of.
    pub skip: usize,
    /// The maker's own number.
    pub token: u64,
}

/// An operation that is over.
#[derive(Debug)]
pub struct Finished {
    /// It, with its buffers.
    pub operation: Operation,
    /// Bytes moved, 0 for other actions; or the error.
    pub result: Result<usize>,
}

#[derive(Default)]
struct Slot {
    operation: Option<Operation>,
    /// Kept from operation to operation, so that the hot path does not allocate.
    pieces: Vec<libc::iovec>,
}

/// Threads of this process that wait for a ring.
static WAITERS: AtomicUsize = AtomicUsize::new(0);

/// How many threads of this process wait for a device just now, as far as rings go.
pub fn waiters() -> usize {
    WAITERS.load(Ordering::Relaxed)
}

/// A ring. Belongs to one thread at a time.
pub struct Ring {
    uring: IoUring,
    /// Never grows: the kernel holds addresses of `pieces`' memory.
    slots: ManuallyDrop<Vec<Slot>>,
    free: Vec<usize>,
    unsubmitted: usize,
}

// SAFETY: the raw pointers in `slots` lead to memory that the slots themselves own.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring for at most `depth` operations at a time on `files`.
    ///
    /// # Errors
    /// `EPERM` or `ENOSYS` where io_uring is switched off or absent; the kernel's others.
    pub fn new(depth: u32, files: &[BorrowedFd<'_>]) -> Result<Ring> {
        // Completions are posted when this thread enters the kernel anyway, or sees that some wait:
        // it is not interrupted for them. Not before Linux 5.19.
        let mut builder = IoUring::builder();
        builder.setup_r_disabled().setup_coop_taskrun().setup_taskrun_flag();
        let uring = match builder.build(depth) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                IoUring::builder().setup_r_disabled().build(depth)?
            }
            built => built?,
        };
        let raw: Vec<RawFd> = files.iter().map(|file| file.as_raw_fd()).collect();
        let submitter = uring.submitter();
        submitter.register_files(&raw)?;
        let fixed = Flags::FIXED_FILE.bits();
        let mut rules: Vec<_> = OPERATIONS.into_iter().map(Restriction::sqe_op).collect();
        rules.push(Restriction::register_op(UNREGISTER_FILES));
        rules.push(Restriction::sqe_flags_allowed(fixed));
        rules.push(Restriction::sqe_flags_required(fixed));
        submitter.register_restrictions(&mut rules)?;
        submitter.register_enable_rings()?;
        let count = uring.params().sq_entries() as usize;
        let slots = (0..count).map(|_| Slot::default()).collect();
        let free = (0..count).rev().collect();
        Ok(Ring { uring, slots: ManuallyDrop::new(slots), free, unsubmitted: 0 })
    }

    /// Operations in flight, submitted or not.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes an operation in; it starts at the next [`submit`](Ring::submit) or
    /// [`wait`](Ring::wait). A full ring gives it back.
    pub fn push(&mut self, operation: Operation) -> Result<(), Operation> {
        let Some(index) = self.free.pop() else { return Err(operation) };
        let slot = &mut self.slots[index];
        let operation = slot.operation.insert(operation);
        let entry = entry(operation, &mut slot.pieces).user_data(index as u64);
        // SAFETY: what the entry points to lies in `slot` or is owned by it, stays where it is
        // until the completion is reaped, and outlives the ring's last operation: see `drop`.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "as many slots as entries");
        self.unsubmitted += 1;
        Ok(())
    }

    /// Starts what was pushed. Does not wait.
    pub fn submit(&mut self) {
        if self.unsubmitted > 0 {
            self.enter(0);
        }
    }

    /// Starts what was pushed and waits until something is over, or nothing is in flight.
    pub fn wait(&mut self) {
        let reapable = !self.uring.completion().is_empty();
        match self.in_flight() > 0 && !reapable {
            true => {
                WAITERS.fetch_add(1, Ordering::Relaxed);
                self.enter(1);
                WAITERS.fetch_sub(1, Ordering::Relaxed);
            }
            false => self.submit(),
        }
    }

    /// The next operation that is over.
    pub fn reap(&mut self) -> Option<Finished> {
        let mut completion = self.uring.completion().next();
        if completion.is_none() && self.uring.submission().taskrun() {
            self.enter(0);
            completion = self.uring.completion().next();
        }
        let completion = completion?;
        let index = usize::try_from(completion.user_data()).ok()?;
        let operation = self.slots.get_mut(index)?.operation.take()?;
        self.free.push(index);
        let result = match completion.result() {
            moved @ 0.. => Ok(moved as usize),
            error => Err(Errno(-error)),
        };
        Some(Finished { operation, result })
    }

    /// Goes to the kernel until everything pushed is submitted. Refusals are passing conditions
    /// (out of memory, a signal): trying again is all that can be done, since the kernel may hold
    /// our buffers.
    fn enter(&mut self, want: usize) {
        loop {
            match self.uring.submit_and_wait(want) {
                Ok(count) => self.unsubmitted = self.unsubmitted.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            let done = want == 0 || !self.uring.completion().is_empty();
            if self.unsubmitted == 0 && done {
                return;
            }
        }
    }
}

/// poll(2) finds it readable while something can be reaped.
impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's descriptor is open as long as the ring, which the result borrows.
        unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            self.wait();
            while self.reap().is_some() {}
        }
        let _ = self.uring.submitter().unregister_files();
        // SAFETY: nothing is in flight, so the kernel holds no address any more; not used again.
        unsafe { ManuallyDrop::drop(&mut self.slots) }
    }
}

/// The kernel's form of an operation; `pieces` is filled when it needs more than one buffer.
fn entry(operation: &mut Operation, pieces: &mut Vec<libc::iovec>) -> Entry {
    let file = Fixed(operation.file as u32);
    let offset = operation.offset;
    let entry = match operation.action {
        Action::Sync => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        Action::Fallocate { mode, length } => {
            opcode::Fallocate::new(file, length).offset(offset).mode(mode).build()
        }
        Action::Read => {
            gather(operation, pieces);
            match pieces[..] {
                [piece] => opcode::Read::new(file, piece.iov_base.cast(), piece.iov_len as u32)
                    .offset(offset)
                    .build(),
                _ => opcode::Readv::new(file, pieces.as_ptr(), pieces.len() as u32)
                    .offset(offset)
                    .build(),
            }
        }
        Action::Write { durable } => {
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            gather(operation, pieces);
            match pieces[..] {
                [piece] => opcode::Write::new(file, piece.iov_base.cast(), piece.iov_len as u32)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
                _ => opcode::Writev::new(file, pieces.as_ptr(), pieces.len() as u32)
                    .offset(offset)
                    .rw_flags(flags)
                    .build(),
            }
        }
    };
    entry.flags(Flags::FIXED_FILE)
}

/// The addresses of the operation's memory past `skip`.
fn gather(operation: &mut Operation, pieces: &mut Vec<libc::iovec>) {
    pieces.clear();
    let mut skip = operation.skip;
    for buffer in &mut operation.buffers {
        let here = skip.min(buffer.len());
        skip -= here;
        let memory = &mut buffer[here..];
        if memory.is_empty() || pieces.len() == PIECES_MAX {
            continue;
        }
        let iov_len = memory.len().min(BYTES_MAX);
        pieces.push(libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len });
        if iov_len < memory.len() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(action: Action, offset: u64, buffers: Vec<Buffer>) -> Operation {
        Operation { file: 0, action, offset, buffers, skip: 0, token: offset }
    }

    fn ring(file: &std::fs::File, depth: u32) -> Option<Ring> {
        match Ring::new(depth, &[file.as_fd()]) {
            Err(Errno::EPERM | Errno::ENOSYS) => None,
            ring => Some(ring.expect("a ring")),
        }
    }

    fn all(ring: &mut Ring) -> Vec<Finished> {
        let mut finished = Vec::new();
        while ring.in_flight() > 0 {
            ring.wait();
            finished.extend(std::iter::from_fn(|| ring.reap()));
        }
        finished
    }

    #[test]
    fn bytes_go_out_and_come_back() {
        let file = tempfile::tempfile().expect("file");
        let Some(mut ring) = ring(&file, 4) else { return };
        let parts = vec![Buffer::copy_of(&[1; 512]), Buffer::copy_of(&[2; 1024])];
        let write = Action::Write { durable: true };
        ring.push(operation(write, 0, parts)).expect("room");
        ring.push(operation(write, 4096, vec![Buffer::copy_of(&[3; 512])])).expect("room");
        for finished in all(&mut ring) {
            let expected = if finished.operation.token == 0 { 1536 } else { 512 };
            assert_eq!(finished.result, Ok(expected));
        }
        let mut read = operation(Action::Read, 256, vec![Buffer::zeroed(512)]);
        read.skip = 256;
        ring.push(read).expect("room");
        ring.push(operation(Action::Sync, 0, Vec::new())).expect("room");
        for finished in all(&mut ring) {
            if let Some(buffer) = finished.operation.buffers.first() {
                assert_eq!(finished.result, Ok(256));
                assert!(buffer[..256].iter().all(|b| *b == 0));
                assert!(buffer[256..].iter().all(|b| *b == 1));
            }
        }
    }

    #[test]
    fn a_dropped_ring_lets_go_of_its_files_at_once() {
        let file = tempfile::tempfile().expect("file");
        let other = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .expect("open");
        for _ in 0..20 {
            let Some(ring) = ring(&file, 4) else { return };
            drop(ring);
        }
        let Some(locked) = ring(&other, 4) else { return };
        crate::lock::lock_range(&other, 0, 1).expect("free");
        drop(other);
        assert_eq!(crate::lock::is_locked(&file, 0, 1), Ok(true), "the ring has it");
        drop(locked);
        assert_eq!(crate::lock::is_locked(&file, 0, 1), Ok(false));
    }

    #[test]
    fn a_full_ring_gives_operations_back_and_a_dropped_one_waits() {
        let file = tempfile::tempfile().expect("file");
        let Some(mut ring) = ring(&file, 2) else { return };
        let write = || {
            let action = Action::Write { durable: false };
            operation(action, 0, vec![Buffer::copy_of(&[9; 512])])
        };
        ring.push(write()).expect("room");
        ring.push(write()).expect("room");
        let back = ring.push(write()).expect_err("full");
        assert_eq!(back.buffers[0][0], 9);
        drop(ring);
        assert_eq!(file.metadata().expect("stat").len(), 512);
    }

    #[test]
    fn a_ring_does_its_operations_on_its_files_only() {
        let file = tempfile::tempfile().expect("file");
        let Some(mut ring) = ring(&file, 4) else { return };
        let mut other = operation(Action::Sync, 0, Vec::new());
        other.file = 1;
        ring.push(other).expect("room");
        assert_eq!(all(&mut ring)[0].result, Err(Errno::EBADF));
        let nop = opcode::Nop::new().build().user_data(0);
        ring.slots[0].operation = Some(operation(Action::Sync, 0, Vec::new()));
        ring.free.retain(|index| *index != 0);
        // SAFETY: a no-op has no memory.
        unsafe { ring.uring.submission().push(&nop).expect("room") };
        ring.unsubmitted += 1;
        assert_eq!(all(&mut ring)[0].result, Err(Errno::EACCES));
        let opened = file.as_fd().as_raw_fd();
        let sync = opcode::Fsync::new(io_uring::types::Fd(opened)).build().user_data(0);
        ring.slots[0].operation = Some(operation(Action::Sync, 0, Vec::new()));
        ring.free.retain(|index| *index != 0);
        // SAFETY: a sync has no memory.
        unsafe { ring.uring.submission().push(&sync).expect("room") };
        ring.unsubmitted += 1;
        assert_eq!(all(&mut ring)[0].result, Err(Errno::EACCES));
    }
}

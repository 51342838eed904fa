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
//! - A process that is going to lose the right to make rings [reserves](reserve) them before: they
//!   have their restrictions, and no files until they are used.
//! - A watched descriptor is polled and never read. The kernel tells of every change of it while a
//!   poll is armed; what [`Ring::reap`] took in of that is not slept over.
#![expect(unsafe_code, reason = "UNSAFETY: hands addresses of owned buffers to the kernel")]

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use io_uring::register::Restriction;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fixed, FsyncFlags};
use io_uring::{IoUring, cqueue, opcode};
use polylane_base::sync::Mutex;
use polylane_base::{Errno, Result};

use crate::buffer::Buffer;

/// Most pieces of memory in one operation (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// Most bytes in one single-buffer operation; the rest is a short transfer.
const BYTES_MAX: usize = 1 << 30;

/// This many operations at least are started together, unless somebody asks for it before.
const BATCH_MIN: usize = 4;

/// `IORING_REGISTER_FILES`.
const REGISTER_FILES: u8 = 2;
/// `IORING_UNREGISTER_FILES`.
const UNREGISTER_FILES: u8 = 3;
/// `IORING_REGISTER_FILES_UPDATE`.
const UPDATE_FILES: u8 = 6;

/// Descriptors that a ring can watch.
pub const WATCHED_MAX: usize = 2;

/// The kernel's number for the poll of the first watched descriptor; operations have small ones.
const WATCH: u64 = u64::MAX - WATCHED_MAX as u64;
/// Its number for the end of such a poll.
const UNWATCH: u64 = u64::MAX;

/// Everything a ring may do.
const OPERATIONS: [u8; 8] = [
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::PollAdd::CODE,
    opcode::PollRemove::CODE,
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

/// Descriptors that end a sleep beside the ring's own operations.
#[derive(Default)]
struct Watches {
    /// How many there are, at most [`WATCHED_MAX`].
    count: usize,
    /// Which have a poll in the kernel.
    armed: [bool; WATCHED_MAX],
    /// Something was heard of one, and nobody slept since.
    rang: bool,
    /// Completions that were there when the last rest ended: whoever rested looks at everything
    /// after that, so that these need not end another rest.
    known: usize,
    /// The kernel cannot poll one of them, or not more than once.
    refused: bool,
}

impl Watches {
    /// Takes in what the kernel says of a poll. `known`: it was there when the last rest ended.
    fn heard(&mut self, number: u64, completion: &cqueue::Entry, known: bool) {
        if number == UNWATCH {
            return;
        }
        self.rang |= !known;
        if !cqueue::more(completion.flags()) {
            self.armed[(number - WATCH) as usize] = false;
        }
        self.refused |= completion.result() < 0;
    }
}

/// Rings without files, of a process that makes no more; `None` before [`reserve`].
static RESERVE: Mutex<Option<Vec<IoUring>>> = Mutex::new(None);

/// Makes `count` rings for `depth` operations each. From now on this process makes no other:
/// [`Ring::new`] takes one of these, and a ring that is dropped goes back. Where rings are not
/// allowed there are none. For a process that is about to confine itself.
pub fn reserve(count: usize, depth: u32) {
    let rings = (0..count).map_while(|_| blank(depth).ok()).collect();
    *RESERVE.lock() = Some(rings);
}

/// A ring that can be given files, and do with them what `OPERATIONS` says.
fn blank(depth: u32) -> Result<IoUring> {
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
    let fixed = Flags::FIXED_FILE.bits();
    let mut rules: Vec<_> = OPERATIONS.into_iter().map(Restriction::sqe_op).collect();
    rules.extend([REGISTER_FILES, UNREGISTER_FILES, UPDATE_FILES].map(Restriction::register_op));
    rules.push(Restriction::sqe_flags_allowed(fixed));
    rules.push(Restriction::sqe_flags_required(fixed));
    uring.submitter().register_restrictions(&mut rules)?;
    uring.submitter().register_enable_rings()?;
    Ok(uring)
}

/// A ring. Belongs to one thread at a time.
pub struct Ring {
    uring: ManuallyDrop<IoUring>,
    /// Never grows: the kernel holds addresses of `pieces`' memory.
    slots: ManuallyDrop<Vec<Slot>>,
    free: Vec<usize>,
    unsubmitted: usize,
    /// Its files; those that are watched come behind them.
    files: usize,
    watches: Watches,
}

// SAFETY: the raw pointers in `slots` lead to memory that the slots themselves own.
unsafe impl Send for Ring {}

impl Ring {
    /// A ring for at most `depth` operations at a time on `files`.
    ///
    /// # Errors
    /// `EPERM` or `ENOSYS` where io_uring is switched off or absent, `EPERM` when all that this
    /// process has [reserved](reserve) are in use; the kernel's others.
    pub fn new(depth: u32, files: &[BorrowedFd<'_>]) -> Result<Ring> {
        let uring = match &mut *RESERVE.lock() {
            Some(rings) => rings.pop().ok_or(Errno::EPERM)?,
            None => blank(depth)?,
        };
        // Behind the files, room for what is watched: -1 is nothing.
        let raw = files.iter().map(|file| file.as_raw_fd());
        let raw: Vec<RawFd> = raw.chain([-1; WATCHED_MAX]).collect();
        uring.submitter().register_files(&raw)?;
        let count = uring.params().sq_entries() as usize;
        let slots = (0..count).map(|_| Slot::default()).collect();
        let free = (0..count).rev().collect();
        let (slots, watches) = (ManuallyDrop::new(slots), Watches::default());
        let uring = ManuallyDrop::new(uring);
        Ok(Ring { uring, slots, free, unsubmitted: 0, files: files.len(), watches })
    }

    /// From now on [`rest`](Ring::rest) also ends when one of these, [`WATCHED_MAX`] at most,
    /// becomes readable. They are polled, never read: whoever writes to one again wakes again. To
    /// be called once.
    ///
    /// # Errors
    /// `EINVAL` for too many, or a second call; the kernel's.
    pub fn watch(&mut self, inputs: &[BorrowedFd<'_>]) -> Result<()> {
        if self.watches.count > 0 || inputs.len() > WATCHED_MAX {
            return Err(Errno::EINVAL);
        }
        let raw: Vec<RawFd> = inputs.iter().map(|input| input.as_raw_fd()).collect();
        self.uring.submitter().register_files_update(self.files as u32, &raw)?;
        self.watches.count = inputs.len();
        Ok(())
    }

    /// Operations in flight, submitted or not.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes an operation in; it starts at the next [`submit`](Ring::submit) or
    /// [`wait`](Ring::wait), or when enough others are pushed to make a batch. A full ring gives it
    /// back.
    pub fn push(&mut self, operation: Operation) -> Result<(), Operation> {
        if self.should_start() {
            self.enter(0);
        }
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

    /// Whether what was pushed is started before more is: the kernel hands a batch to the disk when
    /// it has prepared all of it, so a disk that has nothing to do would wait for the last one.
    /// Each batch is as large as all that is with the disk: it is busy with those while the next
    /// is prepared, and neighbours in a batch are still merged.
    fn should_start(&self) -> bool {
        let started = self.in_flight() - self.unsubmitted;
        self.unsubmitted >= started.max(BATCH_MIN)
    }

    /// Starts what was pushed. Does not wait.
    pub fn submit(&mut self) {
        if self.unsubmitted > 0 {
            self.enter(0);
        }
    }

    /// Starts what was pushed and waits until something is over, or nothing is in flight.
    pub fn wait(&mut self) {
        match self.in_flight() > 0 && self.uring.completion().is_empty() {
            true => self.sleep(1),
            false => self.submit(),
        }
    }

    /// Starts what was pushed and sleeps until something is over, or a watched descriptor has
    /// become readable since it slept last. May return early. False, at once and with nothing
    /// started: nothing is watched, or the kernel cannot.
    pub fn rest(&mut self) -> bool {
        if self.watches.count == 0 || self.watches.refused {
            return false;
        }
        self.arm();
        if std::mem::take(&mut self.watches.rang) || !self.uring.completion().is_empty() {
            self.submit();
        } else {
            self.sleep(usize::from(self.in_flight() > 0));
        }
        self.watches.known = self.uring.completion().len();
        true
    }

    /// Starts what was pushed and sleeps until the completion queue holds something, as `waiting`
    /// more of [`waiters`]. It is started by a call of its own: a medium whose thread shares this
    /// CPU (a loop device's, a FUSE daemon) gets it on the way out of that call and is often done
    /// when it comes back, so that nobody sleeps or is woken. A disk is at work meanwhile.
    fn sleep(&mut self, waiting: usize) {
        WAITERS.fetch_add(waiting, Ordering::Relaxed);
        self.submit();
        if self.uring.completion().is_empty() {
            self.enter(1);
        }
        WAITERS.fetch_sub(waiting, Ordering::Relaxed);
    }

    /// Has the kernel poll what is watched.
    fn arm(&mut self) {
        for index in 0..self.watches.count {
            if !self.watches.armed[index] {
                let file = Fixed((self.files + index) as u32);
                let poll = opcode::PollAdd::new(file, libc::POLLIN as u32).multi(true);
                self.watches.armed[index] = true;
                self.push_poll(poll.build().user_data(WATCH + index as u64));
            }
        }
    }

    /// Takes in an entry about a poll, which has no memory.
    fn push_poll(&mut self, entry: Entry) {
        if self.uring.submission().is_full() {
            self.enter(0);
        }
        let entry = entry.flags(Flags::FIXED_FILE);
        // SAFETY: the entry names no memory.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        assert!(pushed.is_ok(), "there is room in an empty queue");
        self.unsubmitted += 1;
    }

    /// Ends all polls: files are not let go of as long as there are any.
    fn disarm(&mut self) {
        for index in 0..self.watches.count {
            if self.watches.armed[index] {
                let end = opcode::PollRemove::new(WATCH + index as u64);
                self.push_poll(end.build().user_data(UNWATCH));
            }
        }
        while self.watches.armed.contains(&true) {
            self.enter(1);
            while self.reap().is_some() {}
        }
    }

    /// The next operation that is over.
    pub fn reap(&mut self) -> Option<Finished> {
        let completion = loop {
            let mut completion = self.uring.completion().next();
            if completion.is_none() && self.uring.submission().taskrun() {
                self.enter(0);
                completion = self.uring.completion().next();
            }
            let completion = completion?;
            let known = self.watches.known > 0;
            self.watches.known -= usize::from(known);
            match completion.user_data() {
                number @ WATCH.. => self.watches.heard(number, &completion, known),
                _ => break completion,
            }
        };
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
        self.disarm();
        let released = self.uring.submitter().unregister_files();
        // The answer to the end of a poll may lie there.
        while self.uring.completion().next().is_some() {}
        // SAFETY: nothing is in flight, so the kernel holds no address any more; not used again.
        unsafe { ManuallyDrop::drop(&mut self.slots) }
        // SAFETY: not used again.
        let uring = unsafe { ManuallyDrop::take(&mut self.uring) };
        if let (Some(rings), Ok(())) = (&mut *RESERVE.lock(), released) {
            rings.push(uring);
        }
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
    fn a_disk_with_nothing_to_do_does_not_wait_for_the_last_of_many() {
        let file = tempfile::tempfile().expect("file");
        let Some(mut ring) = ring(&file, 32) else { return };
        // How many are not started after so many pushes.
        for (pushed, waiting) in [(4, 4), (5, 1), (8, 4), (9, 1), (16, 8), (17, 1), (32, 16)] {
            while ring.in_flight() < pushed {
                let action = Action::Write { durable: false };
                ring.push(operation(action, 0, vec![Buffer::zeroed(512)])).expect("room");
            }
            assert_eq!(ring.unsubmitted, waiting, "{pushed}");
        }
        let done = all(&mut ring);
        assert!(done.len() == 32 && done.iter().all(|one| one.result == Ok(512)));
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
    fn a_rest_ends_with_what_is_watched_each_time_and_nothing_is_slept_over() {
        use std::sync::atomic::AtomicU64;
        let file = tempfile::tempfile().expect("file");
        let Some(mut ring) = ring(&file, 4) else { return println!("SKIP: no io_uring here") };
        let events = [(); 2].map(|()| crate::event::eventfd().expect("event"));
        assert!(!ring.rest(), "nothing to wait for");
        ring.watch(&[events[0].as_fd(), events[1].as_fd()]).expect("watched");
        assert_eq!(ring.watch(&[]), Err(Errno::EINVAL), "once");
        let mut rest = |seen: &dyn Fn() -> bool| {
            while !seen() {
                if !ring.rest() {
                    return false;
                }
                while ring.reap().is_some() {}
            }
            true
        };
        // Nobody reads the events: each write of them wakes all the same.
        let rung = AtomicU64::new(0);
        for round in 1..=6 {
            let rested = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    rung.store(round, Ordering::SeqCst);
                    crate::event::notify(&events[round as usize % 2]);
                });
                rest(&|| rung.load(Ordering::SeqCst) == round)
            });
            if !rested {
                return println!("SKIP: the kernel cannot poll more than once");
            }
        }
        // What was taken in on the way to something else still ends the next rest.
        crate::event::notify(&events[0]);
        assert!(ring.reap().is_none());
        assert!(ring.rest());
        // Operations go on beside it, and dropping it waits for nothing.
        let write = Action::Write { durable: false };
        ring.push(operation(write, 0, vec![Buffer::zeroed(512)])).expect("room");
        while ring.in_flight() > 0 {
            assert!(ring.rest());
            while ring.reap().is_some() {}
        }
        drop(ring);
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

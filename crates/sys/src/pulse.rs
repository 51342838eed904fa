//! A word in memory by which other processes see, without a system call, that a thread lives.
//!
//! The word is a robust futex that the thread owns: when the thread ends, however it does, the
//! kernel says so in the word before anybody can learn of the end in another way. Others map it to
//! read: it is sealed after its owner mapped it, because a descriptor opened to read could be
//! opened again to write.
//!
//! # Invariants
//!
//! - A thread has one list of robust futexes. The one that beats a pulse has this one alone: it
//!   must not use robust mutexes of libc.
#![expect(unsafe_code, reason = "UNSAFETY: hands the kernel a list of robust futexes")]

use std::ffi::c_long;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use polylane_base::{Errno, Result};

use crate::Region;

/// Bytes of the memory that holds the word.
const BYTES: usize = 4096;
/// `FUTEX_OWNER_DIED`
const DIED: u32 = 1 << 30;

/// `struct robust_list_head`: a ring of entries, here of one.
#[repr(C)]
struct Head {
    list: *const Entry,
    futex_offset: c_long,
    pending: *const Entry,
    entry: Entry,
}

/// `struct robust_list`
#[repr(C)]
struct Entry {
    next: *const Entry,
}

/// The pulse of a thread of this process.
#[derive(Debug)]
pub struct Pulse {
    region: Region,
    fd: OwnedFd,
}

impl Pulse {
    /// A pulse of nobody yet: for others it is that of a dead thread. Fails with what
    /// memfd_create(2), mmap(2) or fcntl(2) say.
    pub fn new() -> Result<Pulse> {
        let (region, fd) = Region::create_to_show("polylane-pulse", BYTES)?;
        region.word32(0).store(DIED, Ordering::Release);
        Ok(Pulse { region, fd })
    }

    /// From now on it is the calling thread's, until that ends. The memory that the kernel looks at
    /// then is never given back.
    pub fn beat(self: &Arc<Self>) -> Result<()> {
        let _kept = ManuallyDrop::new(Arc::clone(self));
        let word = self.region.word32(0);
        let head = Box::leak(Box::new(Head {
            list: std::ptr::null(),
            futex_offset: 0,
            pending: std::ptr::null(),
            entry: Entry { next: std::ptr::null() },
        }));
        head.futex_offset =
            (self.region.address(0) as c_long).wrapping_sub(&raw const head.entry as c_long);
        head.list = &raw const head.entry;
        // The ring ends at the head, whose first field is one.
        head.entry.next = (&raw const *head).cast();
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        word.store(thread.cast_unsigned(), Ordering::Release);
        let size = std::mem::offset_of!(Head, entry);
        // SAFETY: the list is well-formed, and neither it nor the word is ever freed.
        match unsafe { libc::syscall(libc::SYS_set_robust_list, &raw const *head, size) } {
            0 => Ok(()),
            _ => Err(Errno::from(std::io::Error::last_os_error())),
        }
    }

    /// The memory, for those who want to know.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Another process's pulse.
#[derive(Debug)]
pub struct Felt(Region);

impl Felt {
    /// Maps what a peer sent, for this process and not its children. `EPROTO` when it could still
    /// shrink or is too small.
    pub fn attach(fd: impl AsFd) -> Result<Felt> {
        Region::attach_to_see(fd, BYTES)?.keep_from_children().map(Felt)
    }

    /// Whether the thread lives. One load.
    #[inline]
    pub fn beats(&self) -> bool {
        self.0.word32(0).load(Ordering::Acquire) & DIED == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_beats_as_long_as_its_thread_lives() {
        let pulse = Arc::new(Pulse::new().unwrap());
        let felt = Felt::attach(pulse.fd()).unwrap();
        assert!(!felt.beats());
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let (begun, started) = std::sync::mpsc::channel();
        let own = pulse.clone();
        let thread = std::thread::spawn(move || {
            own.beat().unwrap();
            begun.send(()).unwrap();
            let _ = wait.recv();
        });
        started.recv().unwrap();
        assert!(felt.beats());
        drop(end);
        thread.join().unwrap();
        assert!(!felt.beats());
    }

    #[test]
    fn others_cannot_write_to_it() {
        let pulse = Pulse::new().unwrap();
        assert_eq!(Region::attach(pulse.fd(), BYTES).unwrap_err(), Errno::EPERM);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pulse.fd()));
        let again = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        assert_eq!(Region::attach(&again, BYTES).unwrap_err(), Errno::EPERM);
        assert!(std::os::unix::fs::FileExt::write_at(&again, &[0; 4], 0).is_err());
    }
}

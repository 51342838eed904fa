//! A device as one file: a FUSE mount with nothing but it, for a loop device to lie on.
//!
//! The mount needs no place in any tree: whoever mounts it opens the file through the descriptor of
//! the detached mount. The file has a name of its own, since programs tell loop devices apart by
//! the paths of their files (mkfs.btrfs does). File data goes past the page cache, writes run
//! together, and the loop device's direct I/O is asynchronous. The session can begin in the middle
//! of a mount's life, as [`fuse`](crate::fuse)'s: requests that a killed predecessor had read come
//! again, or fail before Linux 6.9.
//!
//! | request | on the device |
//! |---|---|
//! | READ, WRITE | the same; the kernel asks for durability by FSYNC only |
//! | FSYNC | flush |
//! | FALLOCATE, punch hole | discard |
//! | FALLOCATE, zero range | write-zeroes, space kept |
//!
//! With a *backing* file the kernel reads and writes that one itself, and no READ or WRITE comes.
//! Then the device must know nothing of the file's content, since it does not see it change.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | threads |
//! | `init.rs` | FUSE_INIT |
//! | `session.rs` | one thread: read, start, answer |
//! | `reply.rs` | values to bytes |

mod init;
mod reply;
mod session;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use polylane_base::sync::{Arc, thread};
use polylane_block::BlockDevice;
use polylane_vfs::handover::InFlight;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::{Bell, RingAtEnd, Serving};
use crate::fuse::Params;
use crate::fuse::reply::Device;
use crate::fuse::unanswered;
pub use init::negotiate;

/// The node of the root directory.
const ROOT: u64 = 1;

/// The node of the file.
const FILE: u64 = 2;

/// How to serve a mount.
#[derive(Clone, Debug)]
pub struct FileOptions {
    /// The file's name.
    pub name: String,
    /// The file that the kernel is to read and write in its place, as registered at the mount.
    pub backing: Option<u32>,
    /// What was negotiated.
    pub params: Params,
    /// This is not the mount's first session: what its predecessor left unanswered comes again, or
    /// is ended.
    pub again: bool,
    /// Where the next session finds what this one left unanswered, on kernels that do not send it
    /// again.
    pub in_flight: Option<Arc<InFlight>>,
    /// Threads, each with a channel to the device; at least 1.
    pub threads: usize,
}

/// A session at work.
pub struct FileServer {
    device: Arc<dyn BlockDevice>,
    kernel: Device,
    stop: Bell,
    ended: Bell,
    threads: Vec<thread::JoinHandle<()>>,
}

/// Serves the mount behind `fd`, whose root is `device`.
///
/// # Errors
/// The host's: no more threads or descriptors.
pub fn serve(
    fd: OwnedFd,
    device: Arc<dyn BlockDevice>,
    options: FileOptions,
) -> io::Result<FileServer> {
    let flags = fcntl_getfl(&fd)?;
    fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
    let kernel = Device::new(fd);
    let (stop, ended) = (Bell::new()?, Bell::new()?);
    if options.again && options.params.resend() {
        kernel.resend();
    }
    let left = options.in_flight.as_ref().filter(|_| options.again);
    let old = left.and_then(|left| unanswered::end_recent(&kernel, left));
    let mut server = FileServer { device, kernel, stop, ended, threads: Vec::new() };
    let threads = options.threads.max(1);
    let options = Arc::new(options);
    for number in 0..threads {
        let stop = &server.stop;
        let session = session::Session::new(&server.kernel, &server.device, &options, stop)?;
        let (stop, ended) = (server.stop.clone(), server.ended.clone());
        let thread = thread::Builder::new().name(format!("file-{number}")).spawn(move || {
            // However it ends: one thread that is gone would leave requests to nobody.
            let _end = RingAtEnd(ended);
            session.run(&stop)
        })?;
        server.threads.push(thread);
    }
    if let Some(old) = old {
        let (kernel, stop) = (server.kernel.clone(), server.stop.clone());
        let end = move || unanswered::end_old(&kernel, &old, || stop.is_rung());
        server.threads.push(thread::Builder::new().name("file-old".into()).spawn(end)?);
    }
    Ok(server)
}

impl Serving for FileServer {
    fn grown(&self) {
        self.kernel.grow(FILE, self.device.sector_count().saturating_mul(512));
    }

    fn ended(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ended.as_fd())
    }

    fn end(self: Box<Self>) {
        self.stop.ring();
        for thread in self.threads {
            let _panicked = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use polylane_block::ram::RamDevice;
    use polylane_vfs::handover::Store;
    use rustix::io::{Errno, read, write};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::fuse::InitFlags;
    use crate::fuse::protocol::{IN_HEADER_BYTES, opcode};

    /// The number and the error of the next answer.
    fn answer(kernel: &OwnedFd) -> Result<(u64, i32), Errno> {
        let mut bytes = [0; 64];
        assert_eq!(read(kernel, &mut bytes)?, 16);
        let error = i32::from_ne_bytes(bytes[4..8].try_into().unwrap());
        Ok((u64::from_ne_bytes(bytes[8..16].try_into().unwrap()), error))
    }

    #[test]
    fn what_a_killed_predecessor_had_read_fails_where_it_does_not_come_again() {
        let memfd = Store::create().unwrap();
        let left = || Arc::new(InFlight::attach(&memfd).unwrap());
        left().read(4);
        let (kernel, fd) = {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
        };
        let options = FileOptions {
            name: "volume".into(),
            backing: None,
            params: Params { minor: 45, flags: InitFlags::empty() },
            again: true,
            in_flight: Some(left()),
            threads: 1,
        };
        let server = serve(fd, Arc::new(RamDevice::new(8)), options).unwrap();
        for number in [2, 4, 6] {
            assert_eq!(answer(&kernel), Ok((number, -libc::EIO)));
        }
        while answer(&kernel).is_ok() {}
        // What it reads itself its own successor hears of.
        let mut flush = [0; IN_HEADER_BYTES];
        flush[..4].copy_from_slice(&(IN_HEADER_BYTES as u32).to_ne_bytes());
        flush[4..8].copy_from_slice(&opcode::FLUSH.to_ne_bytes());
        flush[8..16].copy_from_slice(&20_000u64.to_ne_bytes());
        write(&kernel, &flush).unwrap();
        let answered = std::iter::repeat_with(|| answer(&kernel)).find(Result::is_ok);
        assert_eq!(answered, Some(Ok((20_000, 0))));
        assert_eq!(left().left(), Some((20_000, None)));
        Box::new(server).end();
    }
}

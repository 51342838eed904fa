//! FUSE_INIT of a mount that is one file.

use std::io;
use std::os::fd::AsFd;

use polylane_base::{Errno, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::session::TRANSFER_BYTES_MAX;
use crate::fuse::Params;
use crate::fuse::protocol::{MAJOR, MINOR, MINOR_MIN, init, opcode};
use crate::fuse::reply::Body;
use crate::fuse::request::{Reader, Request};

const PAGE_BYTES: u32 = 4096;

/// Requests without a waiting caller that the kernel may have outstanding: all of a loop device's,
/// which are 128.
const BACKGROUND_MAX: u16 = 256;
/// Above this many the kernel tells writers to slow down, which a device never should.
const CONGESTION: u16 = BACKGROUND_MAX;

/// Everything wanted where the kernel offers it: asynchronous direct I/O before all.
const WANTED: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::ASYNC_DIO
    | init::MAX_PAGES
    | init::HANDLE_KILLPRIV_V2
    | init::INIT_EXT
    | init::HAS_RESEND;

/// Answers FUSE_INIT on a freshly mounted /dev/fuse descriptor. Waits at most `timeout_s` for it.
///
/// # Errors
/// `TimedOut` when none comes, `EPROTO` when the kernel is too old.
pub fn negotiate(fd: impl AsFd, timeout_s: u32) -> io::Result<Params> {
    let mut message = vec![0; TRANSFER_BYTES_MAX as usize + 8192];
    loop {
        let mut ready = [PollFd::new(&fd, PollFlags::IN)];
        let timeout = Timespec { tv_sec: timeout_s.into(), tv_nsec: 0 };
        match poll(&mut ready, Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let count = match rustix::io::read(&fd, &mut message) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
            Err(error) => return Err(error.into()),
        };
        let request = Request::parse(&message[..count]).ok_or(io::ErrorKind::InvalidData)?;
        if request.header.opcode != opcode::INIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = Body::default();
        let params = answer(request.args, &mut body);
        let error = if params.is_err() { -Errno::EPROTO.0 } else { 0 };
        let mut reply = Body::default();
        reply.u32(16 + body.0.len() as u32).u32(error as u32).u64(request.header.unique);
        reply.0.extend_from_slice(&body.0);
        rustix::io::write(&fd, &reply.0)?;
        if let Some(params) = params.map_err(io::Error::from)? {
            return Ok(params);
        }
    }
}

/// Writes the answer to an INIT. `None` when the kernel has a newer major version: it will send
/// another INIT for ours.
fn answer(mut args: Reader<'_>, out: &mut Body) -> Result<Option<Params>> {
    let (major, minor) = (args.u32()?, args.u32()?);
    if major > MAJOR {
        out.u32(MAJOR).u32(MINOR).zeros(56);
        return Ok(None);
    }
    if major < MAJOR || minor < MINOR_MIN {
        return Err(Errno::EPROTO);
    }
    let (readahead, low) = (args.u32()?, args.u32()?);
    let high = if u64::from(low) & init::INIT_EXT != 0 { args.u32()? } else { 0 };
    let flags = (u64::from(low) | u64::from(high) << 32) & WANTED;
    out.u32(MAJOR).u32(MINOR).u32(readahead).u32(flags as u32);
    out.u32(u32::from(BACKGROUND_MAX) | u32::from(CONGESTION) << 16);
    out.u32(TRANSFER_BYTES_MAX).u32(1).u32(TRANSFER_BYTES_MAX / PAGE_BYTES);
    out.u32((flags >> 32) as u32).zeros(28);
    Ok(Some(Params { minor: minor.min(MINOR), flags }))
}

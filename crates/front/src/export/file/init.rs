//! FUSE_INIT of a mount that is one file.

use std::io;
use std::os::fd::AsFd;

use super::session::TRANSFER_BYTES_MAX;
use crate::fuse::Params;
use crate::fuse::flags::InitFlags;
use crate::fuse::init::{Wish, negotiate_as};

/// Requests without a waiting caller that the kernel may have outstanding: all of a loop device's,
/// which are 128.
const BACKGROUND_MAX: u16 = 256;
/// Above this many the kernel tells writers to slow down, which a device never should.
const CONGESTION: u16 = BACKGROUND_MAX;

/// Everything wanted where the kernel offers it: asynchronous direct I/O before all.
const WANTED: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::INIT_EXT)
    .union(InitFlags::PASSTHROUGH)
    .union(InitFlags::HAS_RESEND);

/// The volume's file lies on an ordinary file system.
const STACK_DEPTH: u32 = 1;

/// Answers FUSE_INIT on a freshly mounted /dev/fuse descriptor. Waits at most `timeout_s` for it.
///
/// # Errors
/// `TimedOut` when none comes, `EPROTO` when the kernel is too old.
pub fn negotiate(fd: impl AsFd, timeout_s: u32) -> io::Result<Params> {
    let wish = Wish {
        flags: WANTED,
        transfer_bytes: TRANSFER_BYTES_MAX,
        background: BACKGROUND_MAX,
        congestion: CONGESTION,
        stack_depth: STACK_DEPTH,
    };
    negotiate_as(fd, timeout_s.saturating_mul(1000), &wish)
}

//! io_uring and Linux AIO by their libraries; `raw` has the system calls.

use std::ffi::c_void;

use libc::{c_int, c_long};

use super::{arg, hooks};
use crate::kernel::real;
use crate::ops::ring;
use crate::ops::state::STATE;

/// A `struct iocb`, as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    data: u64,
    key: [u32; 2],
    kind: u16,
    priority: i16,
    fd: i32,
    bytes: u64,
    len: u64,
    offset: i64,
    rest: [u64; 2],
}

/// `IOCB_CMD_PREAD`, `IOCB_CMD_PREADV`
const READS: [u16; 2] = [0, 7];

/// Before requests are submitted.
///
/// # Safety
///
/// `count` pointers to `struct iocb`.
pub(super) unsafe fn before_submit(count: c_long, requests: *const *const c_void) {
    for n in 0..if arg::is_nowhere(requests) { 0 } else { usize::try_from(count).unwrap_or(0) } {
        // SAFETY: `count` valid pointers, by contract.
        let request = unsafe { arg::value(requests.add(n).read_unaligned().cast::<Request>()) };
        let Ok(Some(request)) = request else { return };
        if READS.contains(&request.kind) {
            // Of a vector the length is the number of its parts, and it may end anywhere.
            let len = if request.kind == READS[0] { request.len } else { u64::MAX };
            let end = request.offset.max(0).cast_unsigned().saturating_add(len);
            ring::before_read(&STATE, request.fd, end);
        }
    }
}

hooks! {
    /// `io_submit` of libaio
    ["io_submit"]
    fn io_submit(context: c_long, count: c_long, requests: *mut *mut c_void) -> c_int {
        // SAFETY: the caller's own arguments.
        unsafe {
            before_submit(count, requests.cast_const().cast());
            real::io_submit(context, count, requests)
        }
    }
}

//! Ways to move bytes between private and shared memory.
//!
//! | method | what | good for |
//! |---|---|---|
//! | SMC | libc's memcpy | almost everything on today's CPUs |
//! | SMO | prefetchnta and non-temporal stores in a pipeline (Polytropon) | small shared caches |
//! | `rep movsb` | the CPU's microcoded copy (ERMS, FSRM) | 16 KiB and more |
//! | CMA | `process_vm_readv`: the kernel copies from the peer's memory, once | large, cold data |
//!
//! One side of every copy may be written by a peer at the same time. The functions here are not
//! inlined into callers and read each source byte once; what a race yields is some mix of old and
//! new bytes, which callers treat as data only.
#![expect(unsafe_code, reason = "UNSAFETY: raw copies, vector stores, process_vm_readv")]

use polylane_base::{Errno, Result};

/// How to copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
#[repr(u32)]
pub enum Method {
    /// Shared-memory copy: plain memcpy.
    #[default]
    Smc = 0,
    /// Shared-memory optimised: prefetchnta and non-temporal stores. Plain copy where the CPU has
    /// none.
    Smo = 1,
    /// `rep movsb`. Plain copy on other CPUs.
    RepMovsb = 2,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 3] = [Method::Smc, Method::Smo, Method::RepMovsb];

    /// The method of that number, if there is one.
    pub fn from_number(number: u32) -> Option<Method> {
        Self::ALL.into_iter().find(|&method| method as u32 == number)
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Method::Smc => "SMC",
            Method::Smo => "SMO",
            Method::RepMovsb => "rep movsb",
        }
    }
}

/// Copies between plain slices of equal length, for measurements and tests.
pub fn slices(method: Method, into: &mut [u8], from: &[u8]) {
    assert_eq!(into.len(), from.len());
    // SAFETY: two live slices of that length, one of them exclusive.
    unsafe { raw(method, into.as_mut_ptr(), from.as_ptr(), from.len()) }
}

/// Copies `len` bytes.
///
/// # Safety
///
/// Both ranges are mapped for `len` bytes, `to` writable, and they do not overlap. Either may be
/// changed by another process meanwhile.
#[inline]
pub(crate) unsafe fn raw(method: Method, to: *mut u8, from: *const u8, len: usize) {
    match method {
        // SAFETY: the caller's contract, passed on.
        Method::Smc => unsafe { plain(to, from, len) },
        // SAFETY: likewise.
        Method::Smo => unsafe { streaming(to, from, len) },
        // SAFETY: likewise.
        Method::RepMovsb => unsafe { rep_movsb(to, from, len) },
    }
}

/// Copies `len` bytes that may overlap.
///
/// # Safety
///
/// Both ranges are mapped for `len` bytes, `to` writable. Either may be changed by another process
/// meanwhile.
#[inline(never)]
pub(crate) unsafe fn raw_within(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe { to.copy_from(from, len) }
}

/// Stores `len` zeros.
///
/// # Safety
///
/// `to` is mapped and writable for `len` bytes.
#[inline(never)]
pub(crate) unsafe fn raw_zero(to: *mut u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe { to.write_bytes(0, len) }
}

/// What any memcpy copies by vector instructions. From 2112 bytes on glibc's uses `rep movsb` on
/// CPUs that are said to be fast at it; where the target does not begin a cache line, whatever
/// comes after such a copy waits for it: a read of 4 KiB takes 147 ns, not 70 (Xeon, AVX-512).
const PIECE: usize = 2048;

/// Longer copies are worth that wait.
const PIECED_MAX: usize = 4 * PIECE;

#[inline(never)]
unsafe fn plain(to: *mut u8, from: *const u8, len: usize) {
    let pieced = len > PIECE && len <= PIECED_MAX && !(to as usize).is_multiple_of(LINE);
    let mut done = 0;
    while pieced && len - done > PIECE {
        // SAFETY: the caller's contract; the piece ends before `len`.
        unsafe { to.add(done).copy_from_nonoverlapping(from.add(done), PIECE) };
        done += PIECE;
    }
    // SAFETY: the caller's contract; what is left.
    unsafe { to.add(done).copy_from_nonoverlapping(from.add(done), len - done) }
}

#[cfg(target_arch = "x86_64")]
unsafe fn rep_movsb(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's contract; the direction flag is clear by the ABI.
    unsafe {
        std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _,
            inout("rsi") from => _, options(nostack, preserves_flags));
    }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn rep_movsb(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe { plain(to, from, len) }
}

#[cfg(not(target_arch = "x86_64"))]
unsafe fn streaming(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's contract.
    unsafe { plain(to, from, len) }
}

/// Bytes of a cache line.
const LINE: usize = 64;
/// Lines prefetched before the first store.
#[cfg(target_arch = "x86_64")]
const LEAD: usize = 10;
/// Lines per step of the pipeline.
#[cfg(target_arch = "x86_64")]
const STEP: usize = 2;

/// Two stages: ten lines are prefetched past the caches ahead of time; then, in steps of two lines,
/// the next two are prefetched while two are loaded and stored past the caches.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn streaming(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_NTA, _mm_loadu_si128, _mm_prefetch, _mm_sfence, _mm_stream_si128,
    };
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / (LINE * STEP) * STEP;
    let bulk = lines * LINE;
    // SAFETY: head + bulk + tail = len, all within the caller's ranges. Non-temporal stores go to
    // line-aligned addresses. Prefetches stay inside the source range. The fence orders the
    // non-temporal stores before whatever store publishes them.
    unsafe {
        plain(to, from, head);
        let (to, from) = (to.add(head), from.add(head));
        for line in 0..LEAD.min(lines) {
            _mm_prefetch::<_MM_HINT_NTA>(from.add(line * LINE).cast());
        }
        for line in (0..lines).step_by(STEP) {
            for ahead in 0..STEP {
                let next = (line + LEAD + ahead).min(lines - 1);
                _mm_prefetch::<_MM_HINT_NTA>(from.add(next * LINE).cast());
            }
            let (to, from) = (to.add(line * LINE), from.add(line * LINE));
            for piece in 0..STEP * LINE / 16 {
                let value = _mm_loadu_si128(from.cast::<__m128i>().add(piece));
                _mm_stream_si128(to.cast::<__m128i>().add(piece), value);
            }
        }
        _mm_sfence();
        plain(to.add(bulk), from.add(bulk), len - head - bulk);
    }
}

/// Copies `into.len()` bytes at `address` of process `pid` here (cross-memory attach). Returns how
/// many came; fewer when the range ends in unmapped memory. Needs ptrace rights over the peer.
pub fn cma_read(pid: u32, address: u64, into: &mut [u8]) -> Result<usize> {
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: the kernel writes at most `into.len()` bytes to `into` and checks the remote range.
    let count = unsafe { libc::process_vm_readv(pid as libc::pid_t, &local, 1, &remote, 1, 0) };
    usize::try_from(count).map_err(|_| Errno::from(std::io::Error::last_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    /// Every method moves the same bytes as the plain loop and none beside them.
    #[test]
    fn methods_agree_with_the_plain_loop() {
        let mut rng = Rng::new(1);
        for round in 0..3000 {
            let most = [70_000, 9000, 700, 700, 700][round % 5];
            let len = rng.below(most) as usize;
            let (skip_from, skip_to) = (rng.below(70) as usize, rng.below(70) as usize);
            let from: Vec<u8> = (0..len + 70).map(|_| rng.next_u64() as u8).collect();
            for method in Method::ALL {
                let mut expected = vec![0xEE; len + 140];
                let source = from[skip_from..].iter().take(len);
                for (to, byte) in expected[skip_to..].iter_mut().zip(source) {
                    *to = *byte;
                }
                let mut got = vec![0xEE; len + 140];
                slices(method, &mut got[skip_to..][..len], &from[skip_from..][..len]);
                assert!(got == expected, "{method:?} len {len} from +{skip_from} to +{skip_to}");
            }
        }
    }

    #[test]
    fn cma_reads_our_own_memory() {
        let from: Vec<u8> = (0..100_000).map(|i| i as u8).collect();
        let mut into = vec![0; from.len()];
        match cma_read(std::process::id(), from.as_ptr() as u64, &mut into) {
            Ok(count) => assert_eq!((count, &into), (from.len(), &from)),
            // Containers may forbid it; then it must say so.
            Err(error) => assert!(matches!(error, Errno::EPERM | Errno::ENOSYS), "{error}"),
        }
        assert!(cma_read(std::process::id(), 8, &mut into).is_err());
    }

    #[test]
    fn numbers_name_methods() {
        for method in Method::ALL {
            assert_eq!(Method::from_number(method as u32), Some(method));
        }
        assert_eq!(Method::from_number(3), None);
    }
}

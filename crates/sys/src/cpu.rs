//! Which CPU a thread runs on, and which it may run on.
#![expect(unsafe_code, reason = "UNSAFETY: reads the thread's rseq area behind the thread pointer")]

use std::sync::atomic::{AtomicIsize, Ordering};

use polylane_base::Result;
use rustix::thread::CpuSet;

use crate::region::errno;

/// Not looked up yet.
const UNKNOWN: isize = isize::MIN;
/// No rseq area: ask the kernel's vDSO each time.
const ABSENT: isize = isize::MIN + 1;

static RSEQ_OFFSET: AtomicIsize = AtomicIsize::new(UNKNOWN);

/// The CPU this thread runs on just now; stale as soon as it returns, hence a hint. About a
/// nanosecond where glibc registered rseq (2.35 and later) and [`prepare`] ran. Async-signal-safe.
#[inline]
pub fn current() -> u32 {
    let offset = RSEQ_OFFSET.load(Ordering::Relaxed);
    if offset > ABSENT {
        // SAFETY: `prepare` found glibc's rseq area at this offset from every thread's pointer; the
        // kernel updates `cpu_id` (offset 4) in place, so it is read as a volatile.
        let cpu = unsafe { thread_pointer().offset(offset).add(4).cast::<i32>().read_volatile() };
        if cpu >= 0 {
            return cpu as u32;
        }
    }
    rustix::thread::sched_getcpu() as u32
}

/// Finds the rseq area, so that [`current`] is cheap from then on. Not async-signal-safe (dlsym).
pub fn prepare() {
    if RSEQ_OFFSET.load(Ordering::Relaxed) == UNKNOWN {
        RSEQ_OFFSET.store(find_rseq().unwrap_or(ABSENT), Ordering::Relaxed);
    }
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn find_rseq() -> Option<isize> {
    // SAFETY: dlsym with constant names; the symbols are `const unsigned int __rseq_size` and
    // `const ptrdiff_t __rseq_offset`, both from one glibc.
    let (size, offset) = unsafe {
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
        if size.is_null() || offset.is_null() {
            return None;
        }
        (size.cast::<u32>().read(), offset.cast::<isize>().read())
    };
    // Size 0: glibc did not register (GLIBC_TUNABLES, old kernel).
    (size > 0).then_some(offset)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn find_rseq() -> Option<isize> {
    None
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn thread_pointer() -> *const u8 {
    let pointer: *const u8;
    // SAFETY: the x86-64 TLS ABI keeps the thread pointer at %fs:0.
    unsafe {
        std::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer,
            options(nostack, preserves_flags, readonly));
    }
    pointer
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn thread_pointer() -> *const u8 {
    let pointer: *const u8;
    // SAFETY: reads the thread pointer register.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer,
            options(nomem, nostack, preserves_flags));
    }
    pointer
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn thread_pointer() -> *const u8 {
    std::ptr::null()
}

/// The CPUs that this thread may run on, ascending.
pub fn allowed() -> Result<Vec<u32>> {
    let set = rustix::thread::sched_getaffinity(None).map_err(errno)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu as u32).collect())
}

/// Restricts this thread to `cpus`. `EINVAL` when none of them may be used.
pub fn pin(cpus: &[u32]) -> Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| (cpu as usize) < CpuSet::MAX_CPU) {
        set.set(cpu as usize);
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_knows_where_it_is() {
        std::thread::spawn(|| {
            let all = allowed().unwrap();
            for cpu in all {
                pin(&[cpu]).unwrap();
                assert_eq!(current(), cpu);
                prepare();
                assert_eq!(current(), cpu);
                assert_eq!(allowed().unwrap(), [cpu]);
            }
            assert!(pin(&[]).is_err());
        })
        .join()
        .unwrap();
    }
}

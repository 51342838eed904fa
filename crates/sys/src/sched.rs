//! How long a thread may run before others that wait get the CPU, and how long it has.
#![expect(
    unsafe_code,
    reason = "UNSAFETY: sched_setattr(2), getrusage(2) of a thread: rustix lacks them"
)]

use std::mem::MaybeUninit;
use std::time::Duration;

use polylane_base::{Errno, Result};

/// The first version of `struct sched_attr`, which every kernel knows.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Sleeps that long, or until a handler of a signal has run, past libc, whose sleeps are
/// cancellation points: in a program that preloads this code a thread would be unwound from one.
pub fn pause(time: Duration) {
    let tv_sec = time.as_secs().cast_signed();
    let time = rustix::thread::Timespec { tv_sec, tv_nsec: time.subsec_nanos().into() };
    let _ = rustix::thread::nanosleep(&time);
}

/// Asks for time slices of this length for this thread and those that it will make: when it wakes
/// it preempts those with longer ones, and it is preempted sooner by others. Its share of the CPU
/// stays what it was. Threads of real-time policies are left alone. Linux before 6.12 takes no
/// notice.
pub fn set_slice(slice: Duration) -> Result<()> {
    const SIZE: usize = size_of::<Attributes>();
    let mut now = Attributes::default();
    // SAFETY: the kernel writes at most `SIZE` bytes, which `now` has.
    let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, SIZE, 0) };
    check(rc)?;
    if !matches!(now.policy as i32, libc::SCHED_OTHER | libc::SCHED_BATCH) {
        return Ok(());
    }
    now.size = SIZE as u32;
    now.runtime_ns = slice.as_nanos() as u64;
    // SAFETY: the kernel reads `size` bytes of `now`.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const now, 0) })
}

/// CPU time of the calling thread so far.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What a thread did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// CPU time, in microseconds.
    pub cpu: Duration,
    /// Times it gave the CPU up to wait for something; being preempted is not one.
    pub waits: u64,
    /// Times it was preempted: another thread got the CPU though this one had more to do.
    pub preemptions: u64,
}

/// What the calling thread did so far: getrusage(2) of `RUSAGE_THREAD`.
pub fn usage() -> Usage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage`, of which all zeros is one too; it only fails for
    // what is not `RUSAGE_THREAD`.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    Usage {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        waits: usage.ru_nvcsw as u64,
        preemptions: usage.ru_nivcsw as u64,
    }
}

/// Lets others that wait for this CPU have it; whether there were any. Half a microsecond where
/// there are none, two switches of the CPU and the others' turns where there are.
/// Async-signal-safe.
pub fn give_way() -> bool {
    let before = usage().preemptions;
    rustix::thread::sched_yield();
    usage().preemptions != before
}

fn check(rc: libc::c_long) -> Result<()> {
    match rc {
        0 => Ok(()),
        _ => Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_told_from_work() {
        let before = usage();
        std::thread::sleep(Duration::from_millis(2));
        let slept = usage();
        assert!(slept.waits > before.waits && slept.cpu - before.cpu < Duration::from_millis(2));
        let busy = Duration::from_millis(20);
        while usage().cpu - slept.cpu < busy {}
        assert!(cpu_time() >= busy);
    }

    #[test]
    fn who_gives_way_knows_whether_anybody_took_it() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let stop = AtomicBool::new(false);
        let all = crate::cpu::allowed().unwrap();
        crate::cpu::pin(&all[..1]).unwrap();
        std::thread::scope(|scope| {
            // Inherits the one CPU.
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let taken = (0..1000).any(|_| give_way());
            stop.store(true, Ordering::Relaxed);
            assert!(taken, "another thread had nothing but this CPU");
        });
        // Others of this machine may be in the way now and then, not always.
        assert!((0..10_000).any(|_| !give_way()));
        crate::cpu::pin(&all).unwrap();
    }

    #[test]
    fn a_slice_can_be_asked_for_and_is_inherited() {
        let slice = || {
            let mut now = Attributes::default();
            let size = size_of::<Attributes>();
            // SAFETY: as above.
            let rc = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut now, size, 0) };
            (rc, now.nice, now.runtime_ns)
        };
        let thread = std::thread::spawn(move || {
            let (_, nice, before) = slice();
            set_slice(Duration::from_micros(700)).unwrap();
            let own = slice();
            let child = std::thread::spawn(slice).join().unwrap();
            assert_eq!((own, own.1), (child, nice));
            // Older kernels keep their own.
            assert!(own.2 == 700_000 || own.2 == before, "{own:?}");
        });
        thread.join().unwrap();
    }
}

//! What of a process' memory is of use only while it starts, and goes when it has started.
//!
//! - Pages of the program's file: the kernel maps 64 KiB around each that is touched, so a start
//!   that runs once through much code has most of the program mapped.
//! - Free memory of the heap: an allocator keeps what was freed.
//!
//! Neither is lost: a page of the file that is needed again is mapped again, from the page cache as
//! a rule.
#![expect(unsafe_code, reason = "UNSAFETY: dl_iterate_phdr(3), malloc_trim(3), madvise(2)")]

use std::ffi::{c_int, c_void};
use std::slice;

use rustix::event::{PollFd, Timespec, poll};

/// Gives memory of the heap back that was freed. All of it is the kernel's at once where a process
/// that is about to fork has one thread: its children share what is left.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number; it locks the heaps.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Unmaps the pages of this program's file that are mapped to be read and executed. Each that is
/// used again is mapped again.
pub fn unmap_program() {
    // SAFETY: the callback has the type that is asked for, and looks at no data.
    unsafe {
        libc::dl_iterate_phdr(Some(unmap_first), std::ptr::null_mut());
    }
}

/// After so long without anything to do a process rests.
const RESTS_AFTER: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Waits until one of these is ready, for as long as it takes; a process that waits for long gives
/// up what it has used of its program.
///
/// # Errors
/// What poll(2) says; `EINTR`: a signal came.
pub fn wait(fds: &mut [PollFd<'_>]) -> rustix::io::Result<()> {
    if poll(fds, Some(&RESTS_AFTER))? == 0 {
        unmap_program();
        poll(fds, None)?;
    }
    Ok(())
}

/// Unmaps the first object's pages, which is the program; no other is looked at.
unsafe extern "C" fn unmap_first(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: the dynamic linker hands out a valid object.
    let object = unsafe { &*object };
    if object.dlpi_phdr.is_null() {
        return 1;
    }
    // SAFETY: so many headers are there, for as long as the object is loaded.
    let headers =
        unsafe { slice::from_raw_parts(object.dlpi_phdr, usize::from(object.dlpi_phnum)) };
    let page = rustix::param::page_size() as u64;
    for header in headers {
        // What the linker or the program writes is in the segments that can be written to, and
        // those that are made read-only later are parts of these.
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        // The pages that it has to itself: those at its ends may be another segment's too.
        let start = (object.dlpi_addr + header.p_vaddr).next_multiple_of(page);
        let end = (object.dlpi_addr + header.p_vaddr + header.p_memsz) / page * page;
        let Some(len) = end.checked_sub(start).filter(|len| *len > 0) else { continue };
        // SAFETY: the pages are a private mapping of the program's file that nothing was written
        // to, so a thread that reads or executes one next, this very one too, finds the file's
        // bytes there as before. Where it fails they stay mapped.
        let _ = unsafe { libc::madvise(start as *mut c_void, len as usize, libc::MADV_DONTNEED) };
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KiB of this program's file that are mapped and can be executed.
    fn mapped() -> u64 {
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let program = program.to_str().unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut counts = false;
        let mut sum = 0;
        for line in maps.lines() {
            if line.contains('-') && line.contains(" 0") && !line.contains(" kB") {
                counts = line.contains("r-xp") && line.ends_with(program);
            } else if let Some(rest) = line.strip_prefix("Rss:").filter(|_| counts) {
                sum += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            }
        }
        sum
    }

    /// Names the process that is the test proper: one in which no other test runs.
    const ALONE: &str = "POLYLANE_FOOTPRINT_TEST";

    #[test]
    fn pages_of_the_program_go_and_come_back() {
        static TABLE: [u32; 4096] = [7; 4096];
        if std::env::var_os(ALONE).is_none() {
            let name = "footprint::tests::pages_of_the_program_go_and_come_back";
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let done = again.args(["--exact", name, "--test-threads=1"]).env(ALONE, "1").output();
            return assert!(done.is_ok_and(|done| done.status.success()));
        }
        let before = mapped();
        unmap_program();
        let after = mapped();
        // To look takes some pages as well.
        assert!(after > 0 && after < before, "{before} {after}");
        assert_eq!(TABLE.iter().sum::<u32>(), 7 * 4096);
        trim_heap();
    }

    #[test]
    fn code_that_runs_meanwhile_runs_on() {
        let work = || (0..200_000_u64).fold(1, |sum: u64, n| sum.rotate_left(5) ^ n);
        let expected = work();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(work)).collect();
        (0..100).for_each(|_| unmap_program());
        for thread in threads {
            assert_eq!(thread.join().unwrap(), expected);
        }
    }
}

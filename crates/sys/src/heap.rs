//! How glibc's allocator takes memory from the kernel.
#![expect(unsafe_code, reason = "UNSAFETY: mallopt(3), which changes a setting of the allocator")]

/// Bytes that the heap grows by beyond what is asked for.
const TOP_PAD: i32 = 1 << 20;
/// Free bytes at the heap's end above which it shrinks.
const TRIM_THRESHOLD: i32 = 4 << 20;
/// Allocations of so many bytes are mappings of their own.
const MMAP_THRESHOLD: i32 = 1 << 20;

/// Has all threads of this process share one heap that grows in large steps. By itself glibc gives
/// each thread a heap of its own, and has that grow page by page, a call of the kernel's for each:
/// a tenth of the CPU time of a thread that makes many inodes. Call before other threads are made:
/// those that have a heap keep it. False: it refused; allocation works as before.
pub fn share_one() -> bool {
    let settings = [
        (libc::M_ARENA_MAX, 1),
        (libc::M_TOP_PAD, TOP_PAD),
        (libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD),
        (libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD),
    ];
    // SAFETY: plain numbers; mallopt locks what it changes.
    settings.into_iter().all(|(which, value)| unsafe { libc::mallopt(which, value) } == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names the process that is the test proper: one in which no other test has a thread.
    const ALONE: &str = "POLYLANE_HEAP_TEST";

    #[test]
    fn a_new_thread_takes_its_memory_from_the_one_heap() {
        if std::env::var_os(ALONE).is_none() {
            let name = "heap::tests::a_new_thread_takes_its_memory_from_the_one_heap";
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let done = again.args(["--exact", name, "--test-threads=1"]).env(ALONE, "1").output();
            return assert!(done.is_ok_and(|done| done.status.success()));
        }
        assert!(share_one());
        let pieces = || (0..10_000).map(|_| Box::new([1_u8; 2000])).collect::<Vec<_>>();
        let pieces = std::thread::spawn(pieces).join().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let heap = maps.lines().find(|line| line.ends_with("[heap]")).unwrap();
        let (start, end) = heap.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).unwrap());
        for piece in &pieces {
            assert!((start..end).contains(&piece.as_ptr().addr()));
        }
    }
}

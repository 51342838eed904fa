//! How commits work together: what measurements have set.

/// How commits work together.
#[derive(Clone, Copy, Debug)]
pub struct Tuning {
    /// A running transaction that comes to so many blocks is closed, and its body written, while
    /// the one before is being flushed. A smaller one waits, so that more who want to sync join it.
    pub overlap_blocks: usize,
    /// Largest body that goes to the log in one write with its commit block.
    pub one_write_bytes: usize,
    /// Most threads that copy a transaction's blocks and make their checksums.
    pub copiers: usize,
    /// Slots by which handles join a transaction: cores that do so at a time without meeting.
    pub slots: usize,
}

/// 256 KiB: from here on writing the body takes longer than a wake-up.
const OVERLAP_BLOCKS: usize = 64;

/// 128 small syncs, each of a block of data and one of inodes. From there on the time of the
/// transfer counts, and the next commit had better overlap it.
const ONE_WRITE_BYTES: usize = 1 << 20;

/// More threads than that wait for memory, not for a CPU.
const COPIERS_MAX: usize = 4;

impl Default for Tuning {
    fn default() -> Self {
        let cpus = polylane_sys::cpu::allowed().map_or(1, |cpus| cpus.len());
        let copiers = cpus.clamp(1, COPIERS_MAX);
        Tuning {
            overlap_blocks: OVERLAP_BLOCKS,
            one_write_bytes: ONE_WRITE_BYTES,
            copiers,
            slots: cpus,
        }
    }
}

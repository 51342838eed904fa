//! How many requests a device has at this moment, whoever sent them.
//!
//! The kernel counts that for every disk (`inflight`, `Documentation/block/stat.rst`), and no lane
//! can lie about it. Requests that are answered are not among them, also while the thread that
//! waits for them has no CPU: a disk that has none is idle, whatever lanes' own counts say.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Somebody who knows how many requests a device has.
pub trait Depth: Send + Sync + std::fmt::Debug {
    /// Requests at the device; `None` when it cannot be told. May take a system call, no more.
    fn requests(&self) -> Option<u64>;
}

/// What the kernel counts, by an open `/sys/dev/block/MAJOR:MINOR/inflight`: the descriptor may be
/// handed to a process that cannot open anything.
#[derive(Debug)]
pub struct Counted(File);

impl Counted {
    /// The count of this disk; `None` where the kernel keeps none, as for a file system without a
    /// disk, or with `queue/iostats` off.
    pub fn of(major: u32, minor: u32) -> Option<Counted> {
        let dir = format!("/sys/dev/block/{major}:{minor}");
        let counts = fs::read_to_string(format!("{dir}/queue/iostats")).ok()?;
        (counts.trim() != "0").then_some(())?;
        let counted = Counted(File::open(format!("{dir}/inflight")).ok()?);
        counted.requests().map(|_| counted)
    }

    /// The file itself, to be handed on.
    pub fn file(&self) -> &File {
        &self.0
    }
}

impl From<File> for Counted {
    fn from(file: File) -> Self {
        Counted(file)
    }
}

impl Depth for Counted {
    fn requests(&self) -> Option<u64> {
        let mut bytes = [0; 64];
        let count = self.0.read_at(&mut bytes, 0).ok()?;
        sum(bytes.get(..count)?)
    }
}

/// Reads and writes, as the kernel prints them: two numbers.
fn sum(text: &[u8]) -> Option<u64> {
    let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut next = || std::str::from_utf8(words.next()?).ok()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_two_numbers_are_summed() {
        assert_eq!(sum(b"       3       14\n"), Some(17));
        assert_eq!((sum(b""), sum(b"3"), sum(b"3 x\n"), sum(b"\xff 1")), (None, None, None, None));
        assert_eq!(sum(format!("{} 1", u64::MAX).as_bytes()), None);
        assert!(Counted::of(0, 0).is_none(), "no such disk");
    }
}

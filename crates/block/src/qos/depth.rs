//! How many requests a device has at this moment, whoever sent them.
//!
//! The kernel counts that for every disk (`stat`, `Documentation/block/stat.rst`), and no lane
//! can lie about it. Requests that are answered are not among them, also while the thread that
//! waits for them has no CPU: a disk that has none is idle, whatever lanes' own counts say.
//!
//! Its file `inflight` has only those that the driver has taken, which may be few while others wait
//! in the kernel: seven of 128 KiB fill the 256 descriptors of a virtual disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// What a device has at a moment, and what it has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtDevice {
    /// Requests that are not answered.
    pub requests: u64,
    /// Requests that were answered, ever: with none there at two looks, and as many of these, the
    /// device did nothing between them.
    pub done: u64,
}

/// Knows what a device has.
pub trait Depth: Send + Sync + std::fmt::Debug {
    /// What the device has; `None` when it cannot be told. May take a system call, no more.
    fn look(&self) -> Option<AtDevice>;

    /// Requests at the device, as [`look`](Depth::look) finds them.
    fn requests(&self) -> Option<u64> {
        self.look().map(|found| found.requests)
    }
}

/// What the kernel counts, by an open `/sys/dev/block/MAJOR:MINOR/stat`: the descriptor may be
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
        let counted = Counted(File::open(format!("{dir}/stat")).ok()?);
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
    fn look(&self) -> Option<AtDevice> {
        let mut bytes = [0; 256];
        let count = self.0.read_at(&mut bytes, 0).ok()?;
        at_disk(bytes.get(..count)?)
    }
}

/// Where the statistics of a disk have the requests that it has ...
const REQUESTS: usize = 8;

/// ... and those that it has answered: reads, writes, discards (since Linux 4.18), flushes (5.5).
const DONE: [usize; 4] = [0, 4, 11, 15];

/// What the statistics of a disk say.
fn at_disk(text: &[u8]) -> Option<AtDevice> {
    let mut found = AtDevice::default();
    let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut count = 0;
    for (index, word) in words.enumerate() {
        let value: u64 = std::str::from_utf8(word).ok()?.parse().ok()?;
        if index == REQUESTS {
            found.requests = value;
        }
        if DONE.contains(&index) {
            found.done = found.done.wrapping_add(value);
        }
        count = index + 1;
    }
    (count > REQUESTS).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_s_count_of_requests_is_found() {
        let now = b" 10453247   185431 94053836  5813686   680720   244654 192338032  3343042  65 \
                     181508  9172166    33245       88 64833960    12258    40510     3178\n";
        let done = 10_453_247 + 680_720 + 33_245 + 40_510;
        assert_eq!(at_disk(now), Some(AtDevice { requests: 65, done }));
        let older = Some(AtDevice { requests: 17, done: 6 });
        assert_eq!(at_disk(b"1 2 3 4 5 6 7 8 17 10 11"), older, "of an older kernel");
        assert_eq!((at_disk(b""), at_disk(b"3 14\n"), at_disk(b"\xff 1")), (None, None, None));
        assert_eq!(at_disk(b"1 2 3 4 5 6 7 8 x"), None);
        assert!(Counted::of(0, 0).is_none(), "no such disk");
    }
}

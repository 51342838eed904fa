//! The control group that a lane's process is in: what the kernel counted for it on a device, and
//! what it holds it to there.
//!
//! | | version 1 | version 2 |
//! |---|---|---|
//! | counts | `blkio.throttle.io_serviced`, `….io_service_bytes` | `io.stat` |
//! | limits | `blkio.throttle.{read,write}_{bps,iops}_device` | `io.max` |
//!
//! Version 1 counts a device's requests from the first limit on that anybody sets there (Linux 6.10
//! and later), so a limit that limits nothing is set first. It does not know who wrote what comes
//! from the host's page cache; lanes write past that.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use polylane_block::qos::audit::{Flow, Flows};
use rustix::fs::{Mode, OFlags, openat};
use serde::{Deserialize, Serialize};

/// A device's number: major, minor.
pub(crate) type Number = (u32, u32);

/// What a lane is held to, per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Bound {
    /// Requests that read.
    pub(crate) read_requests: u64,
    /// Bytes that are read.
    pub(crate) read_bytes: u64,
    /// Requests that write.
    pub(crate) write_requests: u64,
    /// Bytes that are written.
    pub(crate) written_bytes: u64,
}

impl From<Flows> for Bound {
    fn from(flows: Flows) -> Bound {
        Bound {
            read_requests: flows.read.requests,
            read_bytes: flows.read.bytes,
            write_requests: flows.write.requests,
            written_bytes: flows.write.bytes,
        }
    }
}

/// An open group.
#[derive(Debug)]
pub(crate) struct Group {
    dir: OwnedFd,
    version: Version,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Version {
    One,
    Two,
}

/// The files of version 1, in the order of [`Bound`]'s fields.
const LIMITS: [&str; 4] = [
    "blkio.throttle.read_iops_device",
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_iops_device",
    "blkio.throttle.write_bps_device",
];

/// What tells version 2 of the controller.
const V2_LIMITS: &str = "io.max";

/// Longest text of a group that is read: one line for each device of the host.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Whether processes in groups below this directory can be counted and limited.
pub(crate) fn usable(dir: &Path) -> bool {
    // The root of version 2 has no limits itself.
    let counts = dir.join(LIMITS[0]).exists() || dir.join("cgroup.subtree_control").exists();
    counts && rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok()
}

impl Group {
    /// The group of this directory; `None` when it counts and limits nothing.
    pub(crate) fn open(dir: &Path) -> Option<Group> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Group::from_dir(rustix::fs::open(dir, flags, Mode::empty()).ok()?)
    }

    /// The same from an open directory.
    pub(crate) fn from_dir(dir: OwnedFd) -> Option<Group> {
        let has = |name: &str| rustix::fs::statat(&dir, name, rustix::fs::AtFlags::empty()).is_ok();
        let version = match (has(LIMITS[0]), has(V2_LIMITS)) {
            (true, _) => Version::One,
            (false, true) => Version::Two,
            (false, false) => return None,
        };
        Some(Group { dir, version })
    }

    /// Has the kernel count what the group does on a device from now on.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn count(&self, device: Number) -> io::Result<()> {
        match self.version {
            Version::One => self.write(LIMITS[1], &limit(device, None)),
            Version::Two => Ok(()),
        }
    }

    /// What it did there so far; `None` where that cannot be told.
    pub(crate) fn counts(&self, device: Number) -> Option<Flows> {
        match self.version {
            Version::One => {
                let number = |file: &str| Some(by_kind(&self.read(file)?, device));
                let requests = number("blkio.throttle.io_serviced")?;
                let bytes = number("blkio.throttle.io_service_bytes")?;
                let flow = |kind: usize| Flow { requests: requests[kind], bytes: bytes[kind] };
                Some(Flows { read: flow(0), write: flow(1) })
            }
            Version::Two => Some(by_name(&self.read("io.stat")?, device)),
        }
    }

    /// Holds it to this on a device, or to nothing.
    ///
    /// # Errors
    /// The kernel's; some of the limits may be in force then.
    pub(crate) fn bind(&self, device: Number, bound: Option<Bound>) -> io::Result<()> {
        let rates = bound.map(|bound| {
            [bound.read_requests, bound.read_bytes, bound.write_requests, bound.written_bytes]
        });
        match self.version {
            Version::One => LIMITS.iter().enumerate().try_for_each(|(index, file)| {
                self.write(file, &limit(device, rates.map(|rates| rates[index])))
            }),
            Version::Two => {
                let word = |index: usize| {
                    rates.map_or("max".to_string(), |rates| rates[index].max(1).to_string())
                };
                let [riops, rbps, wiops, wbps] = [0, 1, 2, 3].map(word);
                let (major, minor) = device;
                let text =
                    format!("{major}:{minor} rbps={rbps} wbps={wbps} riops={riops} wiops={wiops}");
                self.write(V2_LIMITS, &text)
            }
        }
    }

    /// What it is held to there: what is in force, whoever set it.
    pub(crate) fn bound(&self, device: Number) -> Option<Bound> {
        let rates = match self.version {
            Version::One => LIMITS.map(|file| {
                let text = self.read(file)?;
                let rate = rows(&text, device).next()?.first()?.parse::<u64>().ok();
                rate.filter(|rate| *rate > 0)
            }),
            Version::Two => {
                let text = self.read(V2_LIMITS)?;
                ["riops", "rbps", "wiops", "wbps"].map(|name| named(&text, device, name))
            }
        };
        let [read_requests, read_bytes, write_requests, written_bytes] = rates;
        Some(Bound {
            read_requests: read_requests?,
            read_bytes: read_bytes?,
            write_requests: write_requests?,
            written_bytes: written_bytes?,
        })
    }

    fn read(&self, name: &str) -> Option<String> {
        let file = openat(&self.dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = String::new();
        File::from(file).take(TEXT_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = openat(&self.dir, name, flags, Mode::empty())?;
        File::from(file).write_all(text.as_bytes())
    }
}

impl AsFd for Group {
    /// Its directory.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// A line of version 1; 0 lifts a limit.
fn limit((major, minor): Number, rate: Option<u64>) -> String {
    format!("{major}:{minor} {}", rate.map_or(0, |rate| rate.max(1)))
}

/// The words after a device's number, of each of its lines.
fn rows(text: &str, (major, minor): Number) -> impl Iterator<Item = Vec<&str>> {
    let number = format!("{major}:{minor}");
    text.lines().filter_map(move |line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(number.as_str())).then(|| words.collect())
    })
}

/// Version 1: `254:0 Read 17`, for reads and for writes.
fn by_kind(text: &str, device: Number) -> [u64; 2] {
    ["Read", "Write"].map(|kind| {
        let found = rows(text, device).find(|words| words.first() == Some(&kind));
        found.and_then(|words| words.get(1)?.parse().ok()).unwrap_or(0)
    })
}

/// Version 2: `254:0 rbytes=1 wbytes=2 rios=3 wios=4 …`.
fn by_name(text: &str, device: Number) -> Flows {
    let get = |name| named(text, device, name).unwrap_or(0);
    Flows {
        read: Flow { requests: get("rios"), bytes: get("rbytes") },
        write: Flow { requests: get("wios"), bytes: get("wbytes") },
    }
}

fn named(text: &str, device: Number, name: &str) -> Option<u64> {
    let pairs = rows(text, device).next()?;
    let found = pairs.into_iter().filter_map(|pair| pair.split_once('='));
    found.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const BOUND: Bound =
        Bound { read_requests: 100, read_bytes: 200, write_requests: 300, written_bytes: 400 };

    #[test]
    fn counts_of_version_1_are_read_and_limits_written() {
        let dir = tempfile::tempdir().expect("tempdir");
        assert!(Group::open(dir.path()).is_none(), "it has no files");
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect("write");
        let get = |name: &str| fs::read_to_string(dir.path().join(name)).expect("read");
        LIMITS.iter().for_each(|file| put(file, ""));
        assert!(usable(dir.path()));
        let group = Group::open(dir.path()).expect("a group");
        assert_eq!(group.counts((254, 0)), None, "no files of counts");
        let rows = "7:1 Read 9\n7:1 Write 9\n254:0 Read 5\n254:0 Write 6\n254:0 Sync 1\n\
            254:0 Discard 3\n254:0 Total 14\nTotal 41\n";
        put("blkio.throttle.io_serviced", rows);
        put("blkio.throttle.io_service_bytes", "254:0 Read 4096\n254:0 Write x\nTotal 1\n");
        let read = Flow { requests: 5, bytes: 4096 };
        let write = Flow { requests: 6, bytes: 0 };
        assert_eq!(group.counts((254, 0)), Some(Flows { read, write }));
        assert_eq!(group.counts((254, 1)), Some(Flows::default()), "it did nothing there");
        group.count((254, 0)).expect("counts");
        assert_eq!(get(LIMITS[1]), "254:0 0");
        assert_eq!(group.bound((254, 0)), None);
        group.bind((254, 0), Some(BOUND)).expect("binds");
        assert_eq!(LIMITS.map(get), ["254:0 100", "254:0 200", "254:0 300", "254:0 400"]);
        assert_eq!(group.bound((254, 0)), Some(BOUND));
        assert_eq!(group.bound((8, 0)), None);
    }

    #[test]
    fn counts_of_version_2_are_read_and_limits_written() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = |name: &str| dir.path().join(name);
        fs::write(file("io.max"), "").expect("write");
        let group = Group::open(dir.path()).expect("a group");
        let text = "8:0 rbytes=1 wbytes=1 rios=1 wios=1\n\
            254:0 rbytes=10 wbytes=20 rios=3 wios=4 dbytes=5 dios=6\n";
        fs::write(file("io.stat"), text).expect("write");
        let read = Flow { requests: 3, bytes: 10 };
        let write = Flow { requests: 4, bytes: 20 };
        assert_eq!(group.counts((254, 0)), Some(Flows { read, write }));
        group.count((254, 0)).expect("it counts by itself");
        group.bind((254, 0), Some(BOUND)).expect("binds");
        let said = fs::read_to_string(file("io.max")).expect("read");
        assert_eq!(said, "254:0 rbps=200 wbps=400 riops=100 wiops=300");
        assert_eq!(group.bound((254, 0)), Some(BOUND));
        fs::write(file("io.max"), "").expect("write");
        group.bind((254, 0), None).expect("frees");
        let said = fs::read_to_string(file("io.max")).expect("read");
        assert_eq!(said, "254:0 rbps=max wbps=max riops=max wiops=max");
        assert_eq!(group.bound((254, 0)), None);
    }

    #[test]
    fn nonsense_counts_for_nothing() {
        for text in ["", "\n\n", "254:0", "254:0 Read", "254:0 Read -1", "254:0 rios= rios=x"] {
            assert_eq!(by_kind(text, (254, 0)), [0, 0], "{text}");
            assert_eq!(by_name(text, (254, 0)), Flows::default(), "{text}");
        }
    }
}

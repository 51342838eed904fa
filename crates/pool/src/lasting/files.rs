//! Which processes have files open through which mount: by the descriptors that /proc shows, each
//! with the number of the mount that it was opened through. No service is asked, so one that hangs
//! is no hindrance. Users decide how much they have open and how long the kernel's words on it are:
//! of each descriptor the beginning is read, and of all as many as a limited time allows.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_sys::procstat;
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

use super::places;
use crate::mountinfo::{self, Seen};
use crate::process;

/// Descriptors of one process on one file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OpenFiles {
    /// The process.
    pub(crate) pid: u32,
    /// Its name.
    pub(crate) command: String,
    /// Device number of the file system.
    pub(crate) device: u64,
    /// The mount that they were opened through.
    pub(crate) mount: u64,
    /// How many.
    pub(crate) count: u64,
}

/// How long descriptors are looked through.
const LOOK_TIME_MAX: Duration = Duration::from_secs(3);

/// Most that is read of a descriptor's `fdinfo`: its mount is in the third line.
const FDINFO_BYTES_MAX: u64 = 128;

/// The open files of all processes that may be looked at, on file systems with these device
/// numbers; whether those are all.
pub(crate) fn open_files(devices: &[u64]) -> (Vec<OpenFiles>, bool) {
    open_files_within(devices, LOOK_TIME_MAX)
}

fn open_files_within(devices: &[u64], limit: Duration) -> (Vec<OpenFiles>, bool) {
    let begin = Instant::now();
    let in_time = || begin.elapsed() < limit;
    let mut found = Vec::new();
    if devices.is_empty() {
        return (found, true);
    }
    // Processes of one mount namespace see the same mounts.
    let mut seen: HashMap<std::path::PathBuf, Vec<Seen>> = HashMap::new();
    for pid in process::pids().take_while(|_| in_time()) {
        let dir = Path::new("/proc").join(pid.to_string());
        let Ok(namespace) = fs::read_link(dir.join("ns/mnt")) else { continue };
        let mounts = seen.entry(namespace).or_insert_with(|| {
            let mut mounts = mountinfo::seen_by(&pid.to_string());
            mounts.retain(|mount| devices.contains(&mount.device));
            mounts
        });
        if mounts.is_empty() {
            continue;
        }
        let mut counts: HashMap<u64, u64> = HashMap::new();
        let entries = fs::read_dir(dir.join("fd")).into_iter().flatten().flatten();
        for entry in entries.take_while(|_| in_time()) {
            // The kernel makes the text of an inotify descriptor anew each time, and whole.
            if !device_of(&entry.path()).is_some_and(|device| devices.contains(&device)) {
                continue;
            }
            let info = dir.join("fdinfo").join(entry.file_name());
            let text = procstat::head(info, FDINFO_BYTES_MAX).unwrap_or_default();
            if let Some(mount) = places::mount_in(&String::from_utf8_lossy(&text)) {
                *counts.entry(mount).or_default() += 1;
            }
        }
        let command = fs::read_to_string(dir.join("comm")).unwrap_or_default();
        let own = mounts.iter().filter_map(|mount| {
            let count = *counts.get(&mount.id)?;
            let command = command.trim_end().to_string();
            Some(OpenFiles { pid, command, device: mount.device, mount: mount.id, count })
        });
        found.extend(own);
    }
    found.sort_by_key(|files| (files.pid, files.mount));
    (found, in_time())
}

/// The device of what a descriptor is of, without asking its file system.
fn device_of(descriptor: &Path) -> Option<u64> {
    let stat = statx(CWD, descriptor, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some(makedev(stat.stx_dev_major, stat.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_files_are_found_by_their_mount() {
        assert_eq!(places::mount_in("pos:\t0\nflags:\t0100000\nmnt_id:\t27\nino:\t5\n"), Some(27));
        assert_eq!(places::mount_in("pos:\t0\nmnt_id:\tx\n"), None);
        let dir = tempfile::tempdir().expect("tempdir");
        let files: Vec<_> = (0..3)
            .map(|n| fs::File::create(dir.path().join(n.to_string())).expect("file"))
            .collect();
        let device = rustix::fs::fstat(&files[0]).expect("stat").st_dev;
        let own = || {
            let (found, _) = open_files_within(&[device], Duration::from_secs(60));
            let own = found.iter().filter(|one| one.pid == std::process::id());
            own.map(|one| one.count).sum::<u64>()
        };
        let before = own();
        // On some file systems (btrfs) stat tells another number than mountinfo.
        if mountinfo::seen().iter().any(|mount| mount.device == device) {
            assert!(before >= 3);
            drop(files);
            assert!(own() <= before - 3 + 2, "others of this test's program may open some");
        }
    }
}

//! Which processes have files open through which mount: by the descriptors that /proc shows, each
//! with the number of the mount that it was opened through. No service is asked, so one that hangs
//! is no hindrance.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

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

/// The open files of all processes that may be looked at, on file systems with these device
/// numbers.
pub(crate) fn open_files(devices: &[u64]) -> Vec<OpenFiles> {
    let mut found = Vec::new();
    // Processes of one mount namespace see the same mounts.
    let mut seen: HashMap<std::path::PathBuf, Vec<Seen>> = HashMap::new();
    for pid in process::pids() {
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
        for entry in fs::read_dir(dir.join("fdinfo")).into_iter().flatten().flatten() {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            if let Some(mount) = places::mount_in(&text) {
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
    found
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
            let found = open_files(&[device]);
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

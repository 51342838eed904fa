//! What a volume holds after a run, where e2fsck is the judge; and file systems for volumes to lie
//! on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Insists that e2fsck finds nothing to mend on a volume.
///
/// # Panics
/// It does, or it is not installed.
pub fn assert_clean(volume: &Path) {
    let program = crate::tool("e2fsck").expect("e2fsck (e2fsprogs) is installed");
    let output = Command::new(program).arg("-fn").arg(volume).output().expect("run e2fsck");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "e2fsck {}: {:?}\n{said}", volume.display(), output.status);
}

/// A file system of `kind` in a file, mounted; unmounted when dropped.
pub struct HostFs {
    dir: tempfile::TempDir,
}

impl HostFs {
    /// Makes one of `size` bytes; `None` where that cannot be done, with a note for `test`.
    ///
    /// # Panics
    /// mkfs fails.
    pub fn new(test: &str, kind: &str, size: u64) -> Option<HostFs> {
        HostFs::within(test, kind, size, tempfile::tempdir().expect("tempdir"))
    }

    /// The same, in memory.
    ///
    /// # Panics
    /// mkfs fails.
    pub fn in_memory(test: &str, kind: &str, size: u64) -> Option<HostFs> {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        HostFs::within(test, kind, size, dir.expect("tempdir"))
    }

    fn within(test: &str, kind: &str, size: u64, dir: tempfile::TempDir) -> Option<HostFs> {
        let make = format!("mkfs.{kind}");
        if crate::unavailable(test) || crate::lacks(test, &[&make, "mount"]) {
            return None;
        }
        let image = dir.path().join("host.img");
        fs::File::create(&image).expect("create").set_len(size).expect("size");
        let formatted =
            Command::new(crate::tool(&make).expect("mkfs")).arg(&image).output().expect("mkfs");
        assert!(formatted.status.success(), "{make}: {formatted:?}");
        let point = dir.path().join("host");
        fs::create_dir(&point).expect("mkdir");
        let mounted = Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&point).output();
        match mounted {
            Ok(output) if output.status.success() => Some(HostFs { dir }),
            other => {
                crate::skip(test, &format!("cannot mount {kind} from a loop device: {other:?}"));
                None
            }
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("host")
    }
}

impl Drop for HostFs {
    fn drop(&mut self) {
        // A child that another test is about to execute has its descriptors for a moment.
        const TRIES: u32 = 200;
        let unmounted = |lazily: bool| {
            let mut umount = Command::new("umount");
            umount.args(lazily.then_some("-l")).arg(self.path()).stderr(Stdio::null());
            umount.status().is_ok_and(|status| status.success())
        };
        for _ in 0..TRIES {
            if unmounted(false) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        unmounted(true);
    }
}

/// The process that serves an attached volume, if there is one at this moment.
pub fn engine_of(volume: &Path) -> Option<u32> {
    let file = volume.canonicalize().ok()?;
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let fds = fs::read_dir(entry.path().join("fd")).ok()?.flatten();
        let mut files = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        (line.starts_with(b"polylane-engine[") && files.any(|open| open == file)).then_some(pid)
    })
}

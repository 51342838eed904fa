//! What the kernel uses is no volume meanwhile: a loop device, and the file under it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use polylane_base::Errno;
use polylane_block::claimed::Claimed;
use polylane_block::image::{self, ImageError};
use rustix::fs::{Mode, OFlags};

/// A loop device over a file; taken away at the end.
struct Loop(PathBuf);

impl Loop {
    /// `None`, and said so, where there is none to be had.
    fn over(file: &Path, options: &[&str]) -> Option<Loop> {
        let made = Command::new("losetup").args(["-f", "--show"]).args(options).arg(file).output();
        let made = made.ok().filter(|made| made.status.success());
        if made.is_none() {
            eprintln!("skipped: needs root and loop devices");
        }
        made.map(|made| Loop(String::from_utf8_lossy(&made.stdout).trim().into()))
    }

    /// Claims it, as a mount would.
    fn claim(&self) -> rustix::io::Result<OwnedFd> {
        rustix::fs::open(&self.0, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn what_the_kernel_uses_is_refused() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("volume");
    std::fs::write(&file, vec![0; 1 << 20]).expect("written");
    let Some(device) = Loop::over(&file, &[]) else { return };
    drop(image::open(&file).expect("a loop device alone uses nothing"));
    let mounted = device.claim().expect("free");
    let by = |by: Option<&PathBuf>| Claimed { by: by.cloned(), at: None };
    assert_eq!(image::open(&file).err(), Some(ImageError::Claimed(by(Some(&device.0)))));
    assert_eq!(image::open_shared(&file).err(), Some(ImageError::Claimed(by(Some(&device.0)))));
    assert_eq!(image::open(&device.0).err(), Some(ImageError::Claimed(by(None))));
    drop(mounted);
    drop(image::open(&file).expect("free again"));
    let volume = image::open(&device.0).expect("free again");
    assert_eq!(device.claim().err(), Some(rustix::io::Errno::BUSY), "as long as it is open");
    let second = image::open(&device.0).err();
    assert!(matches!(second, Some(ImageError::InUse(_))), "{second:?}");
    let volume = image::unclaim(volume).expect("still there");
    drop(device.claim().expect("given up"));
    let second = image::open(&device.0).err();
    assert!(matches!(second, Some(ImageError::InUse(_))), "{second:?}");
    drop(volume);
}

#[test]
fn a_base_may_be_looked_at_by_the_kernel() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("volume");
    std::fs::write(&file, vec![0; 1 << 20]).expect("written");
    let Some(device) = Loop::over(&file, &["-r"]) else { return };
    let _mounted = device.claim().expect("free");
    drop(image::open_shared(&file).expect("nobody writes"));
    assert!(matches!(image::open(&file), Err(ImageError::Claimed(_))));
}

#[test]
fn a_device_that_takes_no_writes_is_opened_to_read_alone() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("volume");
    std::fs::write(&file, vec![7; 1 << 20]).expect("written");
    let Some(device) = Loop::over(&file, &["-r"]) else { return };
    let refused = image::open(&device.0).err();
    assert!(matches!(refused, Some(ImageError::Host(_, Errno::EROFS))), "{refused:?}");
    let volume = image::open_shared(&device.0).expect("to read");
    let mut bytes = [0; 16];
    rustix::io::pread(&volume.plain, &mut bytes, 1 << 19).expect("read");
    assert_eq!(bytes, [7; 16]);
    assert_eq!(device.claim().err(), Some(rustix::io::Errno::BUSY), "as long as it is open");
    drop(volume);
    let mounted = device.claim().expect("free again");
    assert!(matches!(image::open_shared(&device.0), Err(ImageError::Claimed(_))));
    drop(mounted);
    let Some(writable) = Loop::over(&file, &[]) else { return };
    assert_eq!(image::open_shared(&writable.0).err(), Some(ImageError::NotAFile), "it may change");
}

//! A file system of the host's that has a journal, as hosts of users do: the directory's own, or
//! one on a loop device in a file there.
//!
//! A host's ext4 without a journal commits nothing: its syncs promise less than a volume's.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::place::{format, on_loop};
use crate::tools::{command, fill, path};

/// Size of the file under the loop device. All of it is written before, so that no write to the
/// device changes that file's map.
const IMAGE_BYTES: u64 = 1 << 30;

/// A directory on an ext4 with a journal.
pub struct Journaled {
    /// The directory of the image and of the mount, where there is one.
    made: Option<tempfile::TempDir>,
    dir: PathBuf,
}

impl Journaled {
    /// `dir` itself where its file system is an ext4 with a journal; otherwise one that is made in
    /// a file there.
    ///
    /// # Errors
    /// Not root, mke2fs is missing, or the host's.
    pub fn at(dir: &Path) -> Result<Journaled> {
        let device = fs::metadata(dir).with_context(|| format!("look at {}", dir.display()))?.dev();
        let numbers = (rustix::fs::major(device), rustix::fs::minor(device));
        if has_journal(Path::new("/"), numbers) {
            return Ok(Journaled { made: None, dir: dir.to_path_buf() });
        }
        let root = rustix::process::geteuid().is_root();
        ensure!(root, "the host's file system there has no ext4 journal; making one needs root");
        let made = tempfile::tempdir_in(dir).context("directory of the host's ext4")?;
        let (image, mount) = (made.path().join("image"), made.path().join("mount"));
        fill(&image, IMAGE_BYTES)?;
        format("ext4", path(&image)?)?;
        fs::create_dir(&mount).context("directory to mount the host's ext4 at")?;
        let at = path(&mount)?;
        on_loop(&image, true, |device| command("mount", &["-t", "ext4", device, at]).map(drop))?;
        Ok(Journaled { made: Some(made), dir: mount })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What a reader of results must know.
    pub fn note(&self) -> String {
        match self.made {
            None => "the host's ext4 has a journal; volumes and the host's files lie on it".into(),
            Some(_) => format!(
                "the host's file system is no ext4 with a journal: volumes and the host's files \
                 lie on an ext4 with one, on a loop device with direct I/O on a file of {} MiB, \
                 all of it written before",
                IMAGE_BYTES >> 20
            ),
        }
    }
}

impl Drop for Journaled {
    fn drop(&mut self) {
        if self.made.is_some()
            && let Ok(mount) = path(&self.dir)
            && let Err(error) = command("umount", &[mount])
        {
            eprintln!("polylane bench: {error:#}; the mount ends with this process");
        }
    }
}

/// Whether the file system on the block device of these numbers is an ext4 with a journal of its
/// own, by what the kernel of the host whose root is `root` shows: `fs/jbd2/DEVICE-INODE` in /proc.
fn has_journal(root: &Path, (major, minor): (u32, u32)) -> bool {
    let about = root.join(format!("sys/dev/block/{major}:{minor}/uevent"));
    let about = fs::read_to_string(about).unwrap_or_default();
    let Some(name) = about.lines().find_map(|line| line.strip_prefix("DEVNAME=")) else {
        return false;
    };
    let name = name.replace('/', "!");
    let ext4 = root.join("proc/fs/ext4").join(&name).exists();
    // The inode of every journal that mke2fs makes is number 8.
    ext4 && root.join(format!("proc/fs/jbd2/{name}-8")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_known_by_its_device() {
        let root = tempfile::tempdir().unwrap();
        let make = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        make("sys/dev/block/253:0/uevent", "MAJOR=253\nMINOR=0\nDEVNAME=vda\nDEVTYPE=disk\n");
        make("sys/dev/block/259:3/uevent", "MAJOR=259\nMINOR=3\nDEVNAME=cciss/c0d0p1\n");
        make("sys/dev/block/8:1/uevent", "MAJOR=8\nMINOR=1\nDEVNAME=sda1\n");
        make("proc/fs/ext4/vda/options", "");
        make("proc/fs/ext4/cciss!c0d0p1/options", "");
        make("proc/fs/jbd2/cciss!c0d0p1-8/info", "");
        // Another file system than ext4 that uses jbd2.
        make("proc/fs/jbd2/sda1-8/info", "");
        assert!(has_journal(root.path(), (259, 3)));
        assert!(!has_journal(root.path(), (253, 0)), "an ext4 without a journal");
        assert!(!has_journal(root.path(), (8, 1)), "no ext4");
        assert!(!has_journal(root.path(), (0, 27)), "no block device");
    }
}

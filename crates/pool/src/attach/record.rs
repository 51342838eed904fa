//! What is known of attachments: a directory of records in the state directory.
//!
//! | file | what |
//! |---|---|
//! | `ID.json` | the [`Record`], replaced as a whole |
//! | `ID.lock` | held by the attachment's keeper, so that a record whose keeper is dead is known |
//! | `ID.sock` | where the keeper listens |
//! | `ID.nbd` | where the engine listens for the kernel's NBD client |
//! | `ID.log` | what keeper and engines had to say |
//!
//! ID is 16 hexadecimal digits that are never given twice. Every user has a directory of their own.

use std::fs;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use polylane_block::image;
use polylane_volume as volume;
use polylane_volume::path_text;
use polylane_volume::sidecar::Sidecar;
use serde::{Deserialize, Serialize};

use super::Via;
use crate::failure::{Failure, Result};
use crate::names::PoolName;

/// Largest record in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// One attachment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Its name, and the tag of whatever it made in the kernel.
    pub id: String,
    /// The volume's file, absolute and without symbolic links.
    #[serde(with = "path_text::one")]
    pub volume: PathBuf,
    /// The front end.
    pub via: Via,
    /// The block device, or the socket. `None` while it is being made.
    #[serde(with = "path_text::maybe")]
    pub device: Option<PathBuf>,
    /// The keeper's process.
    pub pid: u32,
}

/// Where records are, if there ever were any.
pub(super) fn dir() -> Result<PathBuf> {
    Ok(volume::state_dir()?.join("attachments"))
}

/// Where records are; the directory is made.
pub(super) fn made_dir() -> Result<PathBuf> {
    let dir = dir()?;
    let mut builder = fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|error| Failure::path(&dir, "make the directory of attachments", error))?;
    Ok(dir)
}

/// Keeps for the next attachment of a volume where the guest's journals lie: first byte and end.
/// `own`: the file that was attached. It is a help, not a need: what cannot be stored is found
/// again.
pub(super) fn remember_journals(volume: &Path, own: &OwnedFd, journals: &[(u64, u64)]) {
    let known = Sidecar::load(volume).ok().filter(|known| known.journals != journals);
    let Some(sidecar) = known else { return };
    // It may have been renamed, and another be in its place.
    let same = rustix::fs::fstat(own).is_ok_and(|own| {
        let named = rustix::fs::stat(volume);
        named.is_ok_and(|named| (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino))
    });
    let id = match sidecar.id.is_empty() {
        true => Sidecar::fresh_id().unwrap_or_default(),
        false => sidecar.id.clone(),
    };
    if same {
        let _ = Sidecar { id, journals: journals.to_vec(), ..sidecar }.store(volume);
    }
}

fn path_of(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.json"))
}

/// Where the keeper of an attachment listens.
pub(super) fn socket_of(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.sock"))
}

/// Where the engine of an attachment listens for the kernel's NBD client.
pub(super) fn nbd_of(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.nbd"))
}

/// What keeper and engines say, as long as the attachment lives.
pub(super) fn log_of(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}.log"))
}

impl Record {
    /// Writes it, or its new state. Whoever does that holds its lock.
    pub(super) fn store(&self, dir: &Path) -> Result<()> {
        let path = path_of(dir, &self.id);
        let failed = |error: std::io::Error| Failure::path(&path, "write it", error);
        let temporary = path.with_extension("new");
        let bytes = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        let mut file = fs::File::create(&temporary).map_err(failed)?;
        file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(failed)?;
        fs::rename(&temporary, &path).map_err(failed)
    }

    /// Removes all files of the attachment. Whoever does that holds its lock.
    pub(super) fn remove(&self, dir: &Path, lock: &PoolName) {
        let _ = fs::remove_file(path_of(dir, &self.id));
        let _ = fs::remove_file(log_of(dir, &self.id));
        let _ = fs::remove_file(nbd_of(dir, &self.id));
        lock.remove_files();
    }

    /// Whether a path means this attachment: its device, or its volume.
    pub(super) fn is(&self, path: &Path) -> bool {
        let real = fs::canonicalize(path).or_else(|_| place_of(path));
        let real = real.as_deref().unwrap_or(path);
        self.device.as_deref() == Some(path)
            || self.device.as_deref() == Some(real)
            || self.volume == real
    }
}

/// Where a file was that is gone: it may have been removed while it was attached.
fn place_of(path: &Path) -> std::io::Result<PathBuf> {
    let dir = image::directory_of(path).canonicalize()?;
    Ok(dir.join(path.file_name().unwrap_or_default()))
}

/// All records, in no particular order. What cannot be read is none.
pub(super) fn all(dir: &Path) -> Vec<Record> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .filter_map(|path| {
            let length = fs::metadata(&path).ok()?.len();
            let bytes = (length <= BYTES_MAX).then(|| fs::read(&path).ok())??;
            let record: Record = serde_json::from_slice(&bytes).ok()?;
            // Its name is used in paths.
            path.file_stem().is_some_and(|stem| stem == record.id.as_str()).then_some(record)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_and_strangers_are_not() {
        let dir = tempfile::tempdir().expect("dir");
        let mut record = Record {
            id: "0123456789abcdef".to_string(),
            volume: PathBuf::from("/nowhere/v.img"),
            via: Via::Nbd,
            device: None,
            pid: 1,
        };
        record.store(dir.path()).expect("store");
        record.device = Some(PathBuf::from("/dev/loop99"));
        record.store(dir.path()).expect("store again");
        fs::write(dir.path().join("x.json"), b"{}").expect("write");
        fs::copy(path_of(dir.path(), &record.id), dir.path().join("other.json")).expect("copy");
        assert_eq!(all(dir.path()), [record.clone()]);
        assert!(record.is(Path::new("/dev/loop99")) && record.is(Path::new("/nowhere/v.img")));
        assert!(!record.is(Path::new("/dev/loop9")));
        // Also when its file is gone, however it is named.
        let dir_of = dir.path().canonicalize().expect("a directory");
        let gone = Record { volume: dir_of.join("v.img"), ..record.clone() };
        assert!(
            gone.is(&dir.path().join(".").join("v.img")) && !gone.is(&dir.path().join("w.img"))
        );
        let lock = PoolName::take(dir.path(), &record.id).expect("free");
        record.remove(dir.path(), &lock);
        assert_eq!(all(dir.path()), []);
    }
}

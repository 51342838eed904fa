//! Copies of volumes: snapshots and clones that share blocks where the host can, import and export.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use polylane_base::size::ByteSize;
use polylane_block::image::{self, Draft};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::open::failure;
use super::sidecar::Sidecar;
use super::{info, tools};
use crate::failure::{Failure, Result, say};

/// Bytes per copy_file_range(2), so that a signal gets through and progress shows.
const PIECE_BYTES: u64 = 64 << 20;

/// What qcow2 files begin with.
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// What a copy is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copy {
    /// A state to keep: never opened for writing.
    Snapshot,
    /// A volume of its own.
    Clone,
}

/// Copies a volume that nobody has open. Blocks are shared where the host's file system can
/// (FICLONE); else the data is copied, and the line that says so is the only difference.
///
/// # Errors
/// The volume is in use, the copy exists, the host is full.
pub fn duplicate(from: &Path, to: &Path, kind: Copy) -> Result<()> {
    let files = image::open(from).map_err(|error| failure(from, error))?;
    rustix::fs::fsync(&files.plain).map_err(|error| Failure::path(from, "sync it", error))?;
    let source = File::from(files.plain);
    let size = source.metadata().map_err(|error| Failure::path(from, "look at it", error))?.len();
    let mut parent = Sidecar::load(from)?;
    if parent.id.is_empty() {
        parent.id = Sidecar::new()?.id;
        parent.store(from)?;
    }
    let draft = Draft::new(to, size).map_err(|error| failure(to, error))?;
    match rustix::fs::ioctl_ficlone(draft.file(), &source) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY) => {
            let copied = copy_data(&source, draft.file(), size)
                .map_err(|error| Failure::path(to, "copy the data", error))?;
            say(format_args!(
                "{}: the host's file system cannot share blocks: {} were copied",
                to.display(),
                ByteSize(copied)
            ));
        }
        Err(error) => return Err(Failure::path(to, "share the blocks", error)),
    }
    let snapshot = kind == Copy::Snapshot;
    let sidecar =
        Sidecar { parent: Some(parent.id), snapshot, weight: parent.weight, ..Sidecar::new()? };
    finish(draft, to, &sidecar)
}

/// Makes a volume of a raw or qcow2 file.
///
/// # Errors
/// The file cannot be read, the volume exists, qemu-img is not installed.
pub fn import(from: &Path, to: &Path) -> Result<()> {
    let source = info::open(from)?;
    let mut magic = [0; 4];
    let is_qcow2 = source.read_exact_at(&mut magic, 0).is_ok() && magic == QCOW2_MAGIC;
    let draft = if is_qcow2 {
        let draft = Draft::new(to, 0).map_err(|error| failure(to, error))?;
        convert(from, "qcow2", &image::proc_path(draft.file()), "raw", to)?;
        draft
    } else {
        let stat = source.metadata();
        let size = stat.map_err(|error| Failure::path(from, "look at it", error))?.len();
        let draft = Draft::new(to, size).map_err(|error| failure(to, error))?;
        copy_data(&source, draft.file(), size)
            .map_err(|error| Failure::path(to, "copy the data", error))?;
        draft
    };
    finish(draft, to, &Sidecar::new()?)
}

/// Writes a volume that nobody has open to a new file.
///
/// # Errors
/// The volume is in use, the file exists, qemu-img is not installed.
pub fn export(from: &Path, to: &Path, qcow2: bool) -> Result<()> {
    let files = image::open(from).map_err(|error| failure(from, error))?;
    let source = File::from(files.plain);
    let size = source.metadata().map_err(|error| Failure::path(from, "look at it", error))?.len();
    let draft = Draft::new(to, 0).map_err(|error| failure(to, error))?;
    if qcow2 {
        let source = image::proc_path(&source.into());
        convert(&source, "raw", &image::proc_path(draft.file()), "qcow2", to)?;
    } else {
        rustix::fs::ftruncate(draft.file(), size)
            .map_err(|error| Failure::path(to, "give it its size", error))?;
        copy_data(&source, draft.file(), size)
            .map_err(|error| Failure::path(to, "copy the data", error))?;
    }
    draft.publish().map(drop).map_err(|error| failure(to, error))
}

fn finish(draft: Draft, to: &Path, sidecar: &Sidecar) -> Result<()> {
    let _files = draft.publish().map_err(|error| failure(to, error))?;
    sidecar.store(to)
}

/// qemu-img, told not to look for locks: ours is on the source.
fn convert(from: &Path, from_format: &str, to: &Path, to_format: &str, name: &Path) -> Result<()> {
    let mut command = tools::command("qemu-img", "qemu-utils")?;
    command.args(["convert", "-U", "-f", from_format, "-O", to_format]).arg(from).arg(to);
    let output = tools::run(command)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: cannot convert it: {}",
            name.display(),
            tools::last_words(&output)
        ))),
    }
}

/// Copies what is not a hole; the bytes copied.
fn copy_data(from: &File, to: impl AsFd, size: u64) -> std::io::Result<u64> {
    let (mut at, mut copied) = (0, 0);
    // Space that was only reserved counts as data where zeros of it are in the page cache.
    let _ = rustix::fs::fadvise(from, 0, None, rustix::fs::Advice::DontNeed);
    while at < size {
        let start = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(from, SeekFrom::Hole(start))?.min(size);
        at = start;
        while at < end {
            let (mut source, mut target) = (at, at);
            let length = (end - at).min(PIECE_BYTES) as usize;
            let to = to.as_fd();
            let moved =
                rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), length);
            match moved? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => (at, copied) = (at + count as u64, copied + count as u64),
            }
        }
    }
    Ok(copied)
}

//! Copies of volumes: snapshots and clones that share blocks where the host can.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use polylane_block::Sector;
use polylane_block::file::Way;
use polylane_block::image::{self, Draft, ImageError};
use polylane_block::wait::Waiter;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::cache::CacheSpec;
use super::cow;
use super::info;
use super::open::{failure, introduce, resolve};
use super::progress::Progress;
use super::sidecar::Sidecar;
use super::stack::{Shape, Stack};
use crate::failure::{Failure, Result};
use crate::holders::{Holders, Still};

/// Bytes per copy_file_range(2), so that a signal gets through and progress shows.
const PIECE_BYTES: u64 = 64 << 20;

/// Bytes read at once through a device ...
const CHUNK_BYTES: u64 = 1 << 20;
/// ... of which pieces of this many zeros are left out.
const HOLE_BYTES: usize = 4096;

/// What a copy is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copy {
    /// A state to keep: never opened for writing.
    Snapshot,
    /// A volume of its own.
    Clone,
}

/// Copies a volume, in a moment whatever its size: blocks are shared by the host's file system
/// (FICLONE) where it can, else by copy-on-write of our own. To another file system the data is
/// copied. A volume that a pool or an attachment of this user has open stands still meanwhile.
///
/// # Errors
/// The volume is in use by somebody else, the copy exists, the host is full.
pub fn duplicate(from: &Path, to: &Path, kind: Copy, holders: &dyn Holders) -> Result<()> {
    let from = &resolve(from)?;
    let sidecar = Sidecar::load(from)?;
    let own = match sidecar.snapshot {
        // It does not change, and other volumes may be on it.
        true => image::open_snapshot(from),
        false => image::open(from),
    };
    let own = match own {
        Err(ImageError::InUse(_)) if sidecar.bypass.is_some() => {
            return Err(Failure::failed(format!(
                "{}: is a bypass volume, which is copied when nobody uses it: end its lane or \
                 detach it first",
                from.display()
            )));
        }
        Err(error @ ImageError::InUse(_)) => {
            let still = holders.freeze(from)?.ok_or_else(|| failure(from, error))?;
            return duplicate_still(still, from, to, kind);
        }
        own => own.map_err(|error| failure(from, error))?,
    };
    let mut stack = Stack::from_own(from, own)?;
    identify(from, &mut stack.sidecar)?;
    cow::tidy(from, &stack.files[0].plain, &mut stack.sidecar)?;
    let sidecar = stack.sidecar.clone();
    rustix::fs::fsync(&stack.files[0].plain)
        .map_err(|error| Failure::path(from, "sync it", error))?;
    if stack.pinned.is_some() {
        // Its blocks are nobody's to share: the copy is a file, and holds all of it.
        let draft = Draft::new(to, stack.size).map_err(|error| failure(to, error))?;
        materialize(from, stack, draft.file(), to)?;
        return finish_copy(draft, to, &sidecar, kind);
    }
    if stack.is_raw() {
        let draft = Draft::new(to, stack.size).map_err(|error| failure(to, error))?;
        if share_blocks(&stack.files[0].plain, &draft, to)? {
            return finish_copy(draft, to, &sidecar, kind);
        }
    }
    let shape = stack.shape();
    match (kind, sidecar.snapshot) {
        (Copy::Snapshot, false) => cow::snapshot(from, &shape, to, &cow::Closed),
        (Copy::Clone, _) => cow::clone(from, shape, to, &cow::Closed),
        (Copy::Snapshot, true) => {
            Err(Failure::failed(format!("{}: is a snapshot already", from.display())))
        }
    }
}

/// Copies a volume that stands still: by sharing the blocks where the host's file system can; else
/// by an overlay, over which its user goes on while its former file stays as it is.
///
/// # Errors
/// The copy exists, the host is full, it took too long.
fn duplicate_still(still: Box<dyn Still>, from: &Path, to: &Path, kind: Copy) -> Result<()> {
    let file = info::open_to_look(from)?;
    let mut shape = Shape::of(from, &file)?;
    identify(from, &mut shape.sidecar)?;
    cow::tidy(from, &file, &mut shape.sidecar)?;
    if shape.depth == 0 {
        let draft = Draft::new(to, shape.size).map_err(|error| failure(to, error))?;
        if share_blocks(&file, &draft, to)? {
            // Not before it is certain that nothing was written meanwhile.
            still.thaw(from)?;
            return finish_copy(draft, to, &shape.sidecar, kind);
        }
    }
    match kind {
        Copy::Snapshot => cow::snapshot(from, &shape, to, &*still),
        Copy::Clone => cow::clone(from, shape, to, &*still),
    }
}

/// Gives a volume an id that polylane did not make: a copy names what it is of.
fn identify(path: &Path, sidecar: &mut Sidecar) -> Result<()> {
    if sidecar.id.is_empty() {
        sidecar.id = Sidecar::fresh_id()?;
        sidecar.store(path)?;
    }
    Ok(())
}

/// Fills a draft with the blocks of a file, without copying them; whether the host can.
fn share_blocks(from: impl AsFd, draft: &Draft, to: &Path) -> Result<bool> {
    match rustix::fs::ioctl_ficlone(draft.file(), from) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY) => Ok(false),
        Err(error) => Err(Failure::path(to, "share the blocks", error)),
    }
}

/// Publishes a copy that has all its blocks.
fn finish_copy(draft: Draft, to: &Path, of: &Sidecar, kind: Copy) -> Result<()> {
    let copy = Sidecar {
        parent: Some(of.id.clone()),
        formatted: of.formatted.clone(),
        snapshot: kind == Copy::Snapshot,
        weight: of.weight,
        ..Sidecar::new()?
    };
    introduce(draft, to, &copy).map(drop)
}

/// A name beside `path` for a file that never gets it.
pub(super) fn beside_temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".raw-{}", std::process::id()));
    path.with_file_name(name)
}

/// Fills an empty file with all that a volume holds; holes and zeros stay holes.
pub(super) fn materialize(from: &Path, stack: Stack, to: &OwnedFd, name: &Path) -> Result<()> {
    rustix::fs::ftruncate(to, stack.size)
        .map_err(|error| Failure::path(name, "give it its size", error))?;
    let progress = Progress::new("copying", name, stack.size);
    let copied = if stack.is_raw() {
        copy_data(&stack.files[0].plain, to, stack.size, &progress)
    } else {
        let (size, mut ranges) = (stack.size, Vec::new());
        match &stack.pinned {
            Some(_) => ranges.push(0..size),
            None => {
                for files in &stack.files {
                    data_ranges(&files.plain, size, &mut ranges)
                        .map_err(|error| Failure::path(from, "find its data", error))?;
                }
            }
        }
        let (parts, _pinned) = stack.parts()?;
        let whole = Stack::assemble(parts, Way::Calls, None, CacheSpec::default(), None)?;
        let waiter = Waiter::new(whole.device);
        let mut told = 0;
        for at in chunks(ranges) {
            let bytes = (size - at).min(CHUNK_BYTES);
            progress.add(at + bytes - told);
            told = at + bytes;
            let read = waiter.read(Sector(at / 512), bytes as usize);
            let data = read.map_err(|error| {
                Failure::path(from, "read it", polylane_base::Errno::from(error))
            })?;
            for (piece, start) in data.chunks(HOLE_BYTES).zip((at..).step_by(HOLE_BYTES)) {
                if piece.iter().any(|byte| *byte != 0) {
                    write_all(to, piece, start)
                        .map_err(|error| Failure::path(name, "write it", error))?;
                }
            }
        }
        Ok(0)
    };
    copied.map(drop).map_err(|error| Failure::path(name, "copy the data", error))
}

/// Where a file has data, below `size`.
fn data_ranges(file: &OwnedFd, size: u64, found: &mut Vec<Range<u64>>) -> std::io::Result<()> {
    let mut at = 0;
    while at < size {
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(at))?.min(size);
        found.push(at..end);
        at = end;
    }
    Ok(())
}

/// The starts of the chunks that these ranges touch, each once and in order.
fn chunks(ranges: Vec<Range<u64>>) -> BTreeSet<u64> {
    let starts = |range: Range<u64>| {
        let first = range.start - range.start % CHUNK_BYTES;
        (first..range.end).step_by(CHUNK_BYTES as usize)
    };
    ranges.into_iter().flat_map(starts).collect()
}

pub(super) fn write_all(to: &OwnedFd, mut bytes: &[u8], mut at: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let count = rustix::io::pwrite(to, bytes, at)?;
        (bytes, at) = (&bytes[count..], at + count as u64);
    }
    Ok(())
}

/// Copies what is not a hole; the bytes copied.
pub(super) fn copy_data(
    from: impl AsFd,
    to: impl AsFd,
    size: u64,
    progress: &Progress,
) -> std::io::Result<u64> {
    let (from, to) = (from.as_fd(), to.as_fd());
    let (mut at, mut copied) = (0, 0);
    // Space that was only reserved counts as data where zeros of it are in the page cache.
    let _ = rustix::fs::fadvise(from, 0, None, rustix::fs::Advice::DontNeed);
    while at < size {
        let (start, end) = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Ok(start) => (start, rustix::fs::seek(from, SeekFrom::Hole(start))?.min(size)),
            Err(Errno::NXIO) => break,
            // A device, all of which is data.
            Err(Errno::INVAL) => (at, size),
            Err(error) => return Err(error.into()),
        };
        progress.add(start.saturating_sub(at));
        at = start;
        while at < end {
            let (mut source, mut target) = (at, at);
            let length = (end - at).min(PIECE_BYTES) as usize;
            let moved =
                rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), length);
            // Not between two file systems, nor on all; then through our memory.
            let moved = match moved {
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    copy_piece(from, to, at, length.min(CHUNK_BYTES as usize))
                }
                moved => moved,
            };
            match moved? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                count => {
                    (at, copied) = (at + count as u64, copied + count as u64);
                    progress.add(count as u64);
                }
            }
        }
    }
    Ok(copied)
}

/// Copies up to `length` bytes at `at` through our memory; how many.
fn copy_piece(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    at: u64,
    length: usize,
) -> rustix::io::Result<usize> {
    let mut bytes = vec![0; length];
    let count = rustix::io::pread(from, &mut bytes, at)?;
    let mut done = 0;
    while done < count {
        done += rustix::io::pwrite(to, &bytes[done..count], at + done as u64)?;
    }
    Ok(count)
}

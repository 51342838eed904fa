//! Copying what a volume holds to a file, and a file to a device.

use std::collections::BTreeSet;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use polylane_base::sync::Arc;
use polylane_block::file::Way;
use polylane_block::wait::Waiter;
use polylane_block::{BlockDevice, Sector};
use polylane_sys::buffer::Buffer;
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::cache::CacheSpec;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use crate::stack::Stack;

/// Bytes per copy_file_range(2), so that a signal gets through and progress shows.
const PIECE_BYTES: u64 = 64 << 20;

/// Bytes read at once through a device ...
const CHUNK_BYTES: u64 = 1 << 20;
/// ... of which pieces of this many zeros are left out.
const HOLE_BYTES: usize = 4096;

/// A name beside `path` for a file that never gets it.
pub(crate) fn beside_temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".raw-{}", std::process::id()));
    path.with_file_name(name)
}

/// Fills an empty file with all that a volume holds; holes and zeros stay holes.
pub(crate) fn materialize(from: &Path, stack: Stack, to: &OwnedFd, name: &Path) -> Result<()> {
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

/// Writes a file's data to a device of so many bytes that holds zeros, durably.
pub(crate) fn pour(path: &Path, from: &OwnedFd, to: Arc<dyn BlockDevice>, size: u64) -> Result<()> {
    let failed = |error: std::io::Error| Failure::path(path, "copy its data", error);
    let wrote = |error| Failure::path(path, "write it", polylane_base::Errno::from(error));
    let waiter = Waiter::new(to);
    let progress = Progress::new("writing", path, size);
    let mut ranges = Vec::new();
    data_ranges(from, size, &mut ranges).map_err(failed)?;
    let mut told = 0;
    for Range { start, end } in ranges {
        let (mut at, end) = (start / 512 * 512, end.next_multiple_of(512).min(size));
        while at < end {
            let mut data = Buffer::zeroed((end - at).min(CHUNK_BYTES) as usize);
            let read = rustix::io::pread(from, &mut data[..], at);
            if read.map_err(|errno| failed(errno.into()))? == 0 {
                return Err(failed(std::io::ErrorKind::UnexpectedEof.into()));
            }
            let length = data.len() as u64;
            waiter.write(Sector(at / 512), data, false).map_err(wrote)?;
            at += length;
            progress.add(at - told);
            told = at;
        }
    }
    waiter.flush().map_err(wrote)
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

pub(crate) fn write_all(to: &OwnedFd, mut bytes: &[u8], mut at: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let count = rustix::io::pwrite(to, bytes, at)?;
        (bytes, at) = (&bytes[count..], at + count as u64);
    }
    Ok(())
}

/// Copies what is not a hole; the bytes copied.
pub(crate) fn copy_data(
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

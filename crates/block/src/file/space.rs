//! The space that a file takes on its host.

use std::ops::Range;
use std::os::fd::OwnedFd;

use polylane_base::Errno;
use polylane_sys::buffer::Buffer;
use polylane_sys::extents::{self, HostExtent};
use rustix::fs::FallocateFlags;

use super::{FileDevice, errno};
use crate::device::{Error, SECTOR_BYTES, Sector};
use crate::medium::{Medium, Run, Space};

/// Zeros per write: large enough that the host's cost per request does not count.
const ZEROS_BYTES: u64 = 1 << 20;

impl Medium for FileDevice {
    fn runs(&self, range: Range<u64>) -> Result<Vec<Run>, Error> {
        let bytes = bytes_of(&range)?;
        let extents = extents::within(&self.files.plain, bytes).map_err(medium_error)?;
        Ok(cover(&extents, range))
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), Error> {
        let bytes = bytes_of(&range)?;
        self.reserve_space(range)?;
        let length = bytes.end - bytes.start;
        // Reserved space is written through the file system, so that the blocks are the file's and
        // hold zeros: no old content of the disk ever shows.
        let zeros = Buffer::zeroed(ZEROS_BYTES.min(length) as usize);
        let mut at = bytes.start;
        while at < bytes.end {
            let piece = &zeros[..(bytes.end - at).min(ZEROS_BYTES) as usize];
            let file = self.file(self.file_for(at, piece.len() as u64));
            match rustix::io::pwrite(file, piece, at) {
                Ok(0) => return Err(Error::Medium(Errno::EIO)),
                Ok(moved) => at += moved as u64,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(medium_error(errno(error))),
            }
        }
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(&self.files.plain).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    }
}

impl FileDevice {
    /// Has the host set space aside for holes; they stay unwritten.
    pub(super) fn reserve_space(&self, range: Range<u64>) -> Result<(), Error> {
        let bytes = bytes_of(&range)?;
        if moves_on_write(&self.files.plain) {
            return Err(Error::Unsupported);
        }
        let (mode, length) = (FallocateFlags::KEEP_SIZE, bytes.end - bytes.start);
        rustix::fs::fallocate(&self.files.plain, mode, bytes.start, length)
            .map_err(|error| medium_error(errno(error)))
    }
}

/// Whether the host's file system puts every write in a new place, so that space made before it is
/// of no use: btrfs, bcachefs, ZFS.
fn moves_on_write(file: &OwnedFd) -> bool {
    const MAGICS: [u64; 3] = [0x9123_683e, 0xca45_1a4e, 0x2fc1_2fc1];
    rustix::fs::fstatfs(file).is_ok_and(|stat| MAGICS.contains(&(stat.f_type as u64)))
}

fn bytes_of(range: &Range<u64>) -> Result<Range<u64>, Error> {
    let byte = |sector| Sector(sector).byte().ok_or(Error::OutOfRange);
    match range.start < range.end {
        true => Ok(byte(range.start)?..byte(range.end)?),
        false => Err(Error::OutOfRange),
    }
}

fn medium_error(errno: Errno) -> Error {
    match errno {
        Errno::ENOSPC | Errno::EDQUOT => Error::NoSpace,
        Errno::EOPNOTSUPP | Errno::ENODEV | Errno::ENOSYS => Error::Unsupported,
        other => Error::Medium(other),
    }
}

/// The host's extents as runs over all of `range`: what lies between them is holes. Extents are cut
/// to whole sectors; part of a sector is the data's.
fn cover(extents: &[HostExtent], range: Range<u64>) -> Vec<Run> {
    let unit = SECTOR_BYTES as u64;
    let (mut runs, mut at) = (Vec::with_capacity(extents.len() * 2 + 1), range.start);
    let hole = |sectors| Run { sectors, space: Space::Hole, place: None };
    for extent in extents {
        let first = extent.offset / unit;
        let end = extent.offset.saturating_add(extent.length).div_ceil(unit).min(range.end);
        let start = first.max(at);
        if start >= end {
            continue;
        }
        if at < start {
            runs.push(hole(at..start));
        }
        let space = if extent.unwritten { Space::Reserved } else { Space::Written };
        let aligned = (extent.physical | extent.offset).is_multiple_of(unit);
        let place = extent.physical / unit + (start - first);
        runs.push(Run { sectors: start..end, space, place: aligned.then_some(Sector(place)) });
        at = end;
    }
    if at < range.end {
        runs.push(hole(at..range.end));
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(offset: u64, length: u64, unwritten: bool) -> HostExtent {
        let physical = offset.saturating_add(1 << 20);
        HostExtent { offset, physical, length, unwritten, shared: false, flags: 0 }
    }

    #[test]
    fn runs_cover_the_range_and_nothing_else() {
        let extents =
            [extent(0, 8192, false), extent(16384, 4096, true), extent(20480, 512, false)];
        let found: Vec<_> = cover(&extents, 8..48)
            .into_iter()
            .map(|run| (run.sectors, run.space, run.place.map_or(0, |place| place.0)))
            .collect();
        let expected = [
            (8..16, Space::Written, 2056),
            (16..32, Space::Hole, 0),
            (32..40, Space::Reserved, 2080),
            (40..41, Space::Written, 2088),
            (41..48, Space::Hole, 0),
        ];
        assert_eq!(found, expected);
        assert_eq!(cover(&[], 3..9).len(), 1);
        assert_eq!(cover(&[extent(0, u64::MAX, false)], 3..9)[0].sectors, 3..9);
    }

    #[test]
    fn extents_that_make_no_sense_are_no_danger() {
        // Backwards, over each other, half sectors, past the end of numbers.
        let odd =
            [extent(9000, 100, false), extent(4096, 8192, true), extent(u64::MAX - 9, 5, false)];
        let runs = cover(&odd, 0..64);
        let mut at = 0;
        for run in &runs {
            assert!(run.sectors.start == at && run.sectors.end > at, "{runs:?}");
            at = run.sectors.end;
        }
        assert_eq!(at, 64);
    }
}

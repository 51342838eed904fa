//! Where the bytes of a pool file lie on the disk under its file system.

use std::fmt;
use std::ops::Range;

use polylane_sys::extents::HostExtent;

use crate::device::SECTOR_BYTES;

const UNIT: u64 = SECTOR_BYTES as u64;

/// `FIEMAP_EXTENT_MERGED`: the file system has put neighbours together; the one flag that changes
/// nothing.
const MERGED: u32 = 0x1000;

/// Why the host's map of a pool file is not used. Bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// The file has no blocks there, or the map tells of them in a wrong order.
    Gap(u64),
    /// An extent has flags that say: not written, shared, inline, encrypted, place unknown ….
    Flags(u64, u32),
    /// An extent is not made of whole sectors.
    Unaligned(u64),
    /// An extent lies outside the disk.
    Outside(u64),
    /// Two extents lie over each other on the disk.
    Overlap(u64),
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::Gap(at) => write!(f, "no blocks at byte {at}"),
            Doubt::Flags(at, flags) => write!(f, "blocks at byte {at} have flags {flags:#x}"),
            Doubt::Unaligned(at) => write!(f, "blocks at byte {at} are no whole sectors"),
            Doubt::Outside(at) => write!(f, "blocks at byte {at} are outside the disk"),
            Doubt::Overlap(at) => write!(f, "blocks at byte {at} are those of another place too"),
        }
    }
}

/// A run of sectors that is in one piece in both places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    /// First sector in the file.
    from: u64,
    /// Its place on the disk.
    to: u64,
    /// Sectors.
    count: u64,
}

/// A checked map from a file's sectors to a disk's. Never changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Extents {
    /// In order, without gaps from sector 0 on; neighbours on the disk are one run.
    runs: Vec<Run>,
}

impl Extents {
    /// The map of what is addressed as itself.
    pub fn identity(sectors: u64) -> Extents {
        Extents { runs: vec![Run { from: 0, to: 0, count: sectors }] }
    }

    /// Takes the host's word for the first `bytes` bytes of a file, if it makes sense: all of them
    /// written, the file's alone, within a disk of `disk_sectors`, nothing twice.
    ///
    /// # Errors
    /// The first [`Doubt`].
    pub fn new(found: &[HostExtent], bytes: u64, disk_sectors: u64) -> Result<Extents, Doubt> {
        let mut runs: Vec<Run> = Vec::with_capacity(found.len());
        let end = bytes / UNIT;
        let mut at = 0;
        for extent in found.iter().take_while(|extent| extent.offset < bytes) {
            let run = checked(extent, at, disk_sectors)?;
            at += run.count;
            match runs.last_mut() {
                Some(last) if last.to + last.count == run.to => last.count += run.count,
                _ => runs.push(run),
            }
        }
        if at < end {
            return Err(Doubt::Gap(at * UNIT));
        }
        refuse_overlaps(&runs)?;
        Ok(Extents { runs })
    }

    /// The pieces on the disk of a range of sectors that the map covers, each as long as it can be.
    pub fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.runs.partition_point(|run| run.from + run.count <= range.start);
        let here = self.runs[first..].iter().take_while(move |run| run.from < range.end);
        here.map(move |run| {
            let start = range.start.max(run.from);
            let end = range.end.min(run.from + run.count);
            run.to + (start - run.from)..run.to + (end - run.from)
        })
    }

    /// Pieces in all.
    pub fn count(&self) -> usize {
        self.runs.len()
    }
}

/// An extent that begins at sector `at` of the file, if it is as it must be.
fn checked(extent: &HostExtent, at: u64, disk_sectors: u64) -> Result<Run, Doubt> {
    let HostExtent { offset, physical, length, flags, .. } = *extent;
    if flags & !MERGED != 0 || extent.unwritten || extent.shared {
        return Err(Doubt::Flags(offset, flags));
    }
    if !(offset | physical | length).is_multiple_of(UNIT) || length == 0 {
        return Err(Doubt::Unaligned(offset));
    }
    if offset != at * UNIT {
        return Err(Doubt::Gap(at * UNIT));
    }
    let run = Run { from: at, to: physical / UNIT, count: length / UNIT };
    // Block 0 holds a boot sector or a superblock, never a file: it is what "unknown" looks like.
    match run.to > 0 && run.to.checked_add(run.count).is_some_and(|end| end <= disk_sectors) {
        true => Ok(run),
        false => Err(Doubt::Outside(offset)),
    }
}

fn refuse_overlaps(runs: &[Run]) -> Result<(), Doubt> {
    let mut sorted: Vec<Run> = runs.to_vec();
    sorted.sort_by_key(|run| run.to);
    let over = sorted.windows(2).find(|pair| pair[0].to + pair[0].count > pair[1].to);
    match over {
        Some(pair) => Err(Doubt::Overlap(pair[1].from * UNIT)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: u64 = 1 << 20;

    fn extent(offset: u64, physical: u64, length: u64) -> HostExtent {
        HostExtent { offset, physical, length, unwritten: false, shared: false, flags: 0 }
    }

    #[test]
    fn neighbours_are_one_piece_and_others_are_split() {
        let found = [extent(0, 8192, 4096), extent(4096, 12288, 4096), extent(8192, 4096, 4096)];
        let map = Extents::new(&found, 12288, DISK).expect("good");
        assert_eq!(map.count(), 2);
        let ends = |piece: Range<u64>| (piece.start, piece.end);
        let pieces = |range| map.pieces(range).map(ends).collect::<Vec<_>>();
        assert_eq!(pieces(0..16), [(16, 32)]);
        assert_eq!(pieces(7..9), [(23, 25)]);
        assert_eq!(pieces(15..18), [(31, 32), (8, 10)]);
        assert_eq!(pieces(16..24), [(8, 16)]);
        assert!(Extents::identity(9).pieces(3..5).map(ends).eq([(3, 5)]));
    }

    #[test]
    fn a_map_that_is_not_sure_is_refused() {
        let good = extent(0, 8192, 4096);
        let refused = |found: &[HostExtent]| Extents::new(found, 8192, DISK).expect_err("doubt");
        assert_eq!(refused(&[good]), Doubt::Gap(4096));
        assert_eq!(refused(&[good, extent(8192, 65536, 4096)]), Doubt::Gap(4096));
        assert_eq!(refused(&[good, good]), Doubt::Gap(4096));
        assert_eq!(refused(&[good, extent(4096, 8192, 4096)]), Doubt::Overlap(4096));
        assert_eq!(refused(&[good, extent(4096, 4096, 8192)]), Doubt::Overlap(0));
        assert_eq!(refused(&[good, extent(4096, 0, 4096)]), Doubt::Outside(4096));
        assert_eq!(refused(&[good, extent(4096, DISK * 512, 4096)]), Doubt::Outside(4096));
        assert_eq!(refused(&[good, extent(4096, u64::MAX - 511, 4096)]), Doubt::Outside(4096));
        assert_eq!(refused(&[good, extent(4096, 12289, 4096)]), Doubt::Unaligned(4096));
        assert_eq!(refused(&[good, extent(4096, 12288, 0)]), Doubt::Unaligned(4096));
        let unwritten = HostExtent { unwritten: true, flags: 0x800, ..good };
        assert_eq!(refused(&[unwritten]), Doubt::Flags(0, 0x800));
        for flags in [2, 4, 8, 0x80, 0x100, 0x200, 0x400, 0x2000] {
            assert_eq!(refused(&[HostExtent { flags, ..good }]), Doubt::Flags(0, flags));
        }
        let merged = HostExtent { flags: MERGED, length: 8192, ..good };
        assert!(Extents::new(&[merged], 8192, DISK).is_ok());
    }
}

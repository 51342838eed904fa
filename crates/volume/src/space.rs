//! What of a volume holds data, and whose it is.
//!
//! A raw volume's data is what its host says is data. A copy-on-write volume's is, block by block,
//! its own file's where its map has the block, else its base's; so down to a raw base.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use polylane_block::overlay::{BLOCK_BYTES, Layout};
use polylane_sys::extents;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::host::SECTOR_BYTES;
use super::sidecar::{Sidecar, trailer};
use super::stack::{self, DEPTH_MAX};
use super::trust;
use crate::failure::{Failure, Result};

/// Bytes of a map that are read at once.
const MAP_PIECE_BYTES: u64 = 1 << 20;

/// Bytes of the tenant's, sorted, neither touching nor overlapping.
type Ranges = Vec<Range<u64>>;

/// How much of a volume holds data, in bytes as the tenant sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Space {
    /// All of it.
    pub(crate) mapped: u64,
    /// What of that lies in bases.
    pub(crate) in_bases: u64,
    /// What of that other files have too: bases, or blocks that the host's file system shares.
    /// `None` where the host cannot tell.
    pub(crate) shared: Option<u64>,
}

/// Adds a volume up. Of one in use, what was flushed last decides what is its own.
///
/// # Errors
/// A file of it cannot be read, or has more bases than there may be.
pub(crate) fn measure(path: &Path, file: &File, sidecar: &Sidecar) -> Result<Space> {
    let top = trailer::reference(file, sidecar);
    let size = top.as_ref().map_or_else(|| length(path, file), |(_, size)| Ok(*size))?;
    let (mut path, mut sidecar) = (path.to_path_buf(), sidecar.clone());
    let mut file = file.try_clone().map_err(|error| Failure::path(&path, "look at it", error))?;
    // What is still to be looked up below; at first all of it.
    let mut absent: Ranges = vec![Range { start: 0, end: size }];
    let mut space = Space { mapped: 0, in_bases: 0, shared: Some(0) };
    for depth in 0..=DEPTH_MAX {
        let below = trailer::reference(&file, &sidecar);
        let own = match &below {
            Some(_) => meet(&absent, &present(&path, &file)?),
            None => absent.clone(),
        };
        let layout = below.as_ref().and_then(|_| trailer::layout_of(&file));
        let length = layout.map_or(size, |layout| layout.total() * SECTOR_BYTES);
        let data = of_device(&data_of(&path, &file, length)?, layout);
        let data = meet(&own, &data);
        space.mapped += total(&data);
        if depth == 0 {
            let shared = shared_of(&file).map(|shared| of_device(&shared, layout));
            space.shared = shared.map(|shared| total(&meet(&data, &shared)));
        } else {
            space.in_bases += total(&data);
        }
        let Some((overlay, _)) = below else {
            space.shared = space.shared.map(|own| own + space.in_bases);
            return Ok(space);
        };
        absent = without(&absent, &own);
        let owner = trust::owner_of(&file);
        (path, file) = stack::open_base((&path, &sidecar, owner), &overlay)?;
        sidecar = Sidecar::load(&path)?;
    }
    Err(Failure::failed(format!("{}: too many bases", path.display())))
}

fn length(path: &Path, file: &File) -> Result<u64> {
    let stat = file.metadata().map_err(|error| Failure::path(path, "look at it", error))?;
    Ok(stat.len())
}

/// Whether a volume's file holds nothing but zeros. One with bases never does, nor does one that is
/// no regular file.
///
/// # Errors
/// It cannot be read.
pub fn is_blank(path: &Path) -> Result<bool> {
    let failed = |error| Failure::path(path, "look at it", error);
    let file = File::open(path).map_err(failed)?;
    let stat = file.metadata().map_err(failed)?;
    if !stat.is_file() {
        return Ok(false);
    }
    let mut bytes = vec![0; MAP_PIECE_BYTES as usize];
    for range in data_of(path, &file, stat.len())? {
        for at in range.clone().step_by(MAP_PIECE_BYTES as usize) {
            let bytes = &mut bytes[..(range.end - at).min(MAP_PIECE_BYTES) as usize];
            file.read_exact_at(bytes, at).map_err(failed)?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Where a file holds data, of its first `size` bytes. Space that is only reserved is none; a host
/// that cannot tell counts what of that is in its page cache.
fn data_of(path: &Path, file: &File, size: u64) -> Result<Ranges> {
    match extents::within(file, 0..size) {
        Ok(extents) => {
            let mut found = Vec::new();
            for extent in extents.iter().filter(|extent| !extent.unwritten) {
                let end = extent.offset.saturating_add(extent.length).min(size);
                push(&mut found, extent.offset.min(end)..end);
            }
            Ok(found)
        }
        Err(_) => sought(path, file, size),
    }
}

/// [`data_of`], by looking for holes.
fn sought(path: &Path, file: &File, size: u64) -> Result<Ranges> {
    let failed = |error: Errno| Failure::path(path, "look for its data", error);
    let (mut found, mut at) = (Vec::new(), 0);
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < size => start,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(error) => return Err(failed(error)),
        };
        at = seek(file, SeekFrom::Hole(start)).map_err(failed)?.min(size);
        push(&mut found, start..at);
    }
    Ok(found)
}

/// What of a file other files have too; `None` where the host cannot tell.
fn shared_of(file: &File) -> Option<Ranges> {
    let mut found = Vec::new();
    for extent in extents::of(file).ok()?.iter().filter(|extent| extent.shared) {
        push(&mut found, extent.offset..extent.offset.saturating_add(extent.length));
    }
    Some(found)
}

/// Ranges of a file as ranges of the device in it.
fn of_device(file: &[Range<u64>], layout: Option<Layout>) -> Ranges {
    let Some(layout) = layout else { return file.to_vec() };
    let [head, size, at] = [layout.head, layout.map_start, layout.head_start()];
    let [head, size, at] = [head, size, at].map(|sectors| sectors * SECTOR_BYTES);
    let mut found = Vec::new();
    for moved in meet(file, &[Range { start: at, end: at + head }]) {
        push(&mut found, moved.start - at..moved.end - at);
    }
    for range in meet(file, &[Range { start: head, end: size }]) {
        push(&mut found, range);
    }
    found
}

/// The blocks that a copy-on-write volume has itself. Holes of its map are absent blocks, and not
/// read.
fn present(path: &Path, file: &File) -> Result<Ranges> {
    let failed = |error| Failure::path(path, "read its map", error);
    let layout = trailer::layout_of(file).ok_or_else(|| failed(Errno::INVAL.into()))?;
    let start = layout.map_start * SECTOR_BYTES;
    let end = start + layout.map_count * SECTOR_BYTES;
    let mut found = Vec::new();
    let mut bytes = vec![0; MAP_PIECE_BYTES as usize];
    let map = start..end;
    for written in meet(&data_of(path, file, end)?, std::slice::from_ref(&map)) {
        for at in written.clone().step_by(MAP_PIECE_BYTES as usize) {
            let bytes = &mut bytes[..(written.end - at).min(MAP_PIECE_BYTES) as usize];
            file.read_exact_at(bytes, at).map_err(failed)?;
            blocks_of(bytes, (at - start) * 8, &mut found);
        }
    }
    Ok(found)
}

/// The blocks whose bits are set, `first` being that of the first bit.
fn blocks_of(bytes: &[u8], first: u64, found: &mut Ranges) {
    for (at, byte) in (first..).step_by(8).zip(bytes).filter(|(_, byte)| **byte != 0) {
        for block in (at..at + 8).filter(|block| byte >> (block % 8) & 1 == 1) {
            push(found, block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES);
        }
    }
}

/// Adds what is after all that is there.
fn push(found: &mut Ranges, next: Range<u64>) {
    match found.last_mut() {
        Some(last) if last.end >= next.start => last.end = last.end.max(next.end),
        _ => found.push(next),
    }
}

fn total(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

/// What is in both.
fn meet(one: &[Range<u64>], other: &[Range<u64>]) -> Ranges {
    let (mut found, mut rest) = (Vec::new(), other);
    for range in one {
        while let Some((next, after)) = rest.split_first() {
            let both = range.start.max(next.start)..range.end.min(next.end);
            if !both.is_empty() {
                push(&mut found, both);
            }
            if next.end > range.end {
                break;
            }
            rest = after;
        }
    }
    found
}

/// What is in `one` and not in `other`.
fn without(one: &[Range<u64>], other: &[Range<u64>]) -> Ranges {
    let mut gaps = Vec::with_capacity(other.len() + 1);
    let mut start = 0;
    for range in other {
        gaps.push(start..range.start);
        start = range.end;
    }
    gaps.push(start..u64::MAX);
    meet(one, &gaps)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;
    use std::path::PathBuf;

    fn ranges_of(bits: &[bool]) -> Ranges {
        let mut found = Vec::new();
        for at in (0..bits.len()).filter(|at| bits[*at]) {
            push(&mut found, at as u64..at as u64 + 1);
        }
        found
    }

    #[test]
    fn ranges_meet_and_part_as_sets_do() {
        let mut rng = Rng::new(11);
        for _ in 0..2000 {
            let mut set = || (0..24).map(|_| rng.below(3) > 0).collect::<Vec<bool>>();
            let (one, other) = (set(), set());
            let both: Vec<_> = one.iter().zip(&other).map(|(a, b)| *a && *b).collect();
            let rest: Vec<_> = one.iter().zip(&other).map(|(a, b)| *a && !*b).collect();
            let (one, other) = (ranges_of(&one), ranges_of(&other));
            assert_eq!(meet(&one, &other), ranges_of(&both));
            assert_eq!(without(&one, &other), ranges_of(&rest), "{one:?} {other:?}");
        }
    }

    const BLOCKS: u64 = 512;
    const SIZE: u64 = BLOCKS * BLOCK_BYTES;

    /// What a level has of a block.
    #[derive(Clone, Copy, PartialEq)]
    enum Own {
        Nothing,
        Data,
        Hole,
    }

    /// Puts a copy-on-write volume on `base`, as `clone` makes it.
    fn put_on(base: &Path, volume: &Path) {
        let below = Sidecar { snapshot: true, ..Sidecar::load(base).expect("sidecar") };
        below.store(base).expect("store");
        let nonce = Sidecar::fresh_id().expect("nonce");
        let file = std::os::fd::OwnedFd::from(File::create_new(volume).expect("create"));
        trailer::make_top(&file, SIZE, &nonce).expect("top");
        let base = base.file_name().expect("a name").into();
        let (base_id, was_at) = (below.id, None);
        let overlay = crate::sidecar::OverlayRef { nonce, base, base_id, was_at };
        let own = Sidecar { overlays: vec![overlay], ..Sidecar::new().expect("id") };
        own.store(volume).expect("store");
    }

    /// Writes and discards at random, through the device that the volume is; what it has then.
    fn change(volume: &Path, rng: &mut Rng) -> Vec<Own> {
        use polylane_block::{Sector, file::Way, wait::Waiter};
        let (parts, _) = stack::Stack::open(volume).and_then(stack::Stack::parts).expect("opens");
        let cache = crate::cache::CacheSpec::default();
        let device =
            stack::Stack::assemble(parts, Way::Calls, None, cache, None).expect("fits").device;
        let waiter = Waiter::new(device);
        let mut own = vec![Own::Nothing; BLOCKS as usize];
        for _ in 0..60 {
            let first = rng.below(BLOCKS);
            let count = 1 + rng.below((BLOCKS - first).min(24));
            let discard = rng.below(3) == 0;
            let (sector, bytes) = (Sector(first * 8), (count * BLOCK_BYTES) as usize);
            match discard {
                true => waiter.discard(sector, count * 8).expect("discard"),
                false => {
                    let data = polylane_sys::buffer::Buffer::copy_of(&vec![7; bytes]);
                    waiter.write(sector, data, false).expect("write");
                }
            }
            let state = if discard { Own::Hole } else { Own::Data };
            own[first as usize..][..count as usize].fill(state);
        }
        waiter.flush().expect("flush");
        own
    }

    #[test]
    fn every_byte_is_counted_where_it_lies() {
        for seed in 0..8 {
            let mut rng = Rng::new(seed);
            let dir = tempfile::tempdir().expect("dir");
            let at = |name: &str| dir.path().join(name);
            File::create(at("0")).and_then(|file| file.set_len(SIZE)).expect("base");
            Sidecar::new().and_then(|sidecar| sidecar.store(&at("0"))).expect("sidecar");
            put_levels(&at, &mut rng);
        }
    }

    /// Three levels, each on the one before, added up against a model.
    fn put_levels(at: &dyn Fn(&str) -> PathBuf, rng: &mut Rng) {
        // Whether the block holds data, and whether the topmost level's.
        let mut model = vec![(false, false); BLOCKS as usize];
        for level in 0..3 {
            let volume = at(&level.to_string());
            if level > 0 {
                put_on(&at(&(level - 1).to_string()), &volume);
            }
            model.iter_mut().for_each(|block| block.1 = false);
            for (block, own) in model.iter_mut().zip(change(&volume, rng)) {
                match own {
                    Own::Nothing => {}
                    own => *block = (own == Own::Data, true),
                }
            }
            let file = File::open(&volume).expect("open");
            let sidecar = Sidecar::load(&volume).expect("sidecar");
            let found = measure(&volume, &file, &sidecar).expect("measured");
            let bytes = |wanted: &dyn Fn(&(bool, bool)) -> bool| {
                model.iter().filter(|block| wanted(block)).count() as u64 * BLOCK_BYTES
            };
            assert_eq!(found.mapped, bytes(&|block| block.0), "level {level}");
            assert_eq!(found.in_bases, bytes(&|block| block.0 && !block.1), "level {level}");
            assert!(found.shared.is_none_or(|shared| shared == found.in_bases));
        }
    }

    #[test]
    fn zeros_and_reserved_space_are_blank_and_no_data_also_when_they_were_read() {
        use rustix::fs::{FallocateFlags, fallocate};
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("v");
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.expect("create");
        file.set_len(SIZE).expect("size");
        let mapped = || measure(&path, &file, &Sidecar::default()).expect("measured").mapped;
        let read = || drop(std::fs::read(&path).expect("read"));
        read();
        assert_eq!((mapped(), is_blank(&path).expect("look")), (0, true), "a hole");
        if fallocate(&file, FallocateFlags::empty(), 0, SIZE / 2).is_ok()
            && extents::of(&file).is_ok()
        {
            read();
            assert_eq!(mapped(), 0, "reserved");
        }
        assert!(is_blank(&path).expect("look"), "reserved");
        file.write_all_at(&[0; 3 * BLOCK_BYTES as usize], 5 * BLOCK_BYTES).expect("write");
        assert!(is_blank(&path).expect("look"), "zeros");
        for at in [0, SIZE / 2 + 7, SIZE - 1] {
            file.write_all_at(&[1], at).expect("write");
            assert!(!is_blank(&path).expect("look"), "a byte at {at}");
            file.write_all_at(&[0], at).expect("write");
        }
        let base = dir.path().join("b");
        File::create(&base).and_then(|file| file.set_len(SIZE)).expect("base");
        Sidecar::new().and_then(|sidecar| sidecar.store(&base)).expect("sidecar");
        put_on(&base, &dir.path().join("c"));
        assert!(!is_blank(&dir.path().join("c")).expect("look"), "its base's blocks");
    }

    #[test]
    fn bits_are_blocks() {
        let mut found = Vec::new();
        blocks_of(&[0b1000_0001, 0b11, 0], 80, &mut found);
        let block = |first: u64, end: u64| first * BLOCK_BYTES..end * BLOCK_BYTES;
        assert_eq!(found, [block(80, 81), block(87, 90)]);
    }
}

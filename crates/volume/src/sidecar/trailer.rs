//! The file of a copy-on-write volume: what marks it.
//!
//! | bytes | what |
//! |---|---|
//! | 0 .. | [`polylane_block::overlay`]: label, data, map, head |
//! | the last 4096 | trailer |
//!
//! The label, at the start of the file, is text for people and the superblock of an ext4 with a
//! feature that does not exist. So e2fsck, mount and their like, which would go to work on blocks
//! of the middle of a disk, refuse the file; without a superblock e2fsck looks for a copy of one,
//! and finds it in what a guest wrote.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use polylane_base::record;
use polylane_block::device::Sector;
use polylane_block::overlay::{Format, Layout};
use polylane_ext4::format::superblock::{MAGIC as MAGIC_EXT4, State, SuperblockRecord};
use rustix::fs::{SeekFrom, seek};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::{OverlayRef, Sidecar};
use crate::host::SECTOR_BYTES;

const MAGIC: [u8; 16] = *b"polylane-overlay";
const NONCE_BYTES: usize = 32;

record! {
    /// The last bytes of the file.
    struct TrailerRecord: 4096 {
        0x00 magic: [u8; 16],
        /// 32 hexadecimal digits.
        0x10 nonce: [u8; 32],
        /// Of the device.
        0x30 sectors: U64,
        /// 0 for the first, whose head is empty and which has no label; 2.
        0x38 format: U32,
        0x3c unused: [u8; 4036],
    }

    /// The first bytes of the file.
    struct Label: 4096 {
        0x000 text: [u8; 1024],
        0x400 superblock: SuperblockRecord,
        0x800 unused: [u8; 2048],
    }
}

/// Bytes of the trailer.
pub(crate) const TRAILER_BYTES: usize = size_of::<TrailerRecord>();

/// What it begins with.
const LABEL_TEXT: &str = "A polylane copy-on-write volume: this file holds what was written since \
                          a copy, and is no disk by itself.\n'polylane volume resize VOLUME SIZE' \
                          makes it one, 'polylane volume export' a file that is one.\n";

/// As much of it as is the same for ever.
const LABEL_START: &str = "A polylane copy-on-write volume:";

/// The name of its superblock's file system.
const LABEL_NAME: &[u8] = b"polylane-copy";

/// Which base the file is on, and the size of the device; `None` for a raw file.
pub(crate) fn reference(file: impl AsFd, sidecar: &Sidecar) -> Option<(OverlayRef, u64)> {
    if sidecar.overlays.is_empty() {
        return None;
    }
    let (nonce, sectors) = read_trailer(file)?;
    let found = sidecar.overlays.iter().find(|overlay| overlay.nonce.as_bytes() == nonce)?;
    Some((found.clone(), sectors.checked_mul(SECTOR_BYTES)?))
}

/// Where things are in the file of a copy-on-write volume; `None`: it is none. Of a file of which
/// its sidecar tells nothing a guest may have written the end.
pub(crate) fn layout_of(file: impl AsFd) -> Option<Layout> {
    Trailer::read(file).filter(Trailer::is_right)?.layout()
}

/// How its data lies.
pub(crate) fn format_of(file: impl AsFd) -> Format {
    match layout_of(file) {
        Some(layout) if layout.head > 0 => Format::V2,
        _ => Format::V1,
    }
}

fn read_trailer(file: impl AsFd) -> Option<([u8; NONCE_BYTES], u64)> {
    let trailer = Trailer::read(file)?;
    trailer.is_right().then_some((trailer.record.nonce, trailer.record.sectors.get()))
}

/// The nonce of a copy-on-write volume's file, which no two have but copies of each other.
pub(super) fn nonce_of(file: impl AsFd) -> Option<String> {
    let (nonce, _) = read_trailer(file)?;
    String::from_utf8(nonce.to_vec()).ok()
}

/// What stands where a copy-on-write volume has its trailer.
pub(super) struct Trailer {
    record: TrailerRecord,
    /// Where the file ends.
    end: u64,
}

impl Trailer {
    pub(super) fn read(file: impl AsFd) -> Option<Trailer> {
        let file = File::from(file.as_fd().try_clone_to_owned().ok()?);
        let end = file.metadata().ok()?.len();
        let mut record = TrailerRecord::new_zeroed();
        let at = end.checked_sub(TRAILER_BYTES as u64)?;
        file.read_exact_at(record.as_mut_bytes(), at).ok()?;
        Some(Trailer { record, end })
    }

    /// Where things are in the file.
    fn layout(&self) -> Option<Layout> {
        let format = match self.record.format.get() {
            0 => Format::V1,
            2 => Format::V2,
            _ => return None,
        };
        Layout::new(format, self.record.sectors.get())
    }

    fn fits(&self) -> bool {
        let total = self.layout().map(|layout| layout.total());
        let bytes = total.and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
        bytes.and_then(|bytes| bytes.checked_add(TRAILER_BYTES as u64)) == Some(self.end)
    }

    pub(super) fn is_right(&self) -> bool {
        self.record.magic == MAGIC && self.fits()
    }

    /// Whether two of its three parts are right: then it was one, and the file is no raw volume.
    pub(super) fn was_one(&self, sidecar: &Sidecar) -> bool {
        let known = |overlay: &OverlayRef| overlay.nonce.as_bytes() == self.record.nonce;
        let parts = [self.record.magic == MAGIC, self.fits(), sidecar.overlays.iter().any(known)];
        parts.into_iter().filter(|right| *right).count() >= 2
    }
}

/// Whether a file is the overlay that had the name of a copy before the copy had its content.
pub(crate) fn is_cut_short(file: impl AsFd, sidecar: &Sidecar) -> bool {
    let Some(awaited) = &sidecar.awaits else { return false };
    read_trailer(file).is_some_and(|(nonce, _)| awaited.as_bytes() == nonce)
}

/// Whether a file begins as that of a copy-on-write volume does, whatever has become of its end.
pub(super) fn has_label(file: impl AsFd) -> bool {
    let mut start = Label::new_zeroed();
    let read = rustix::io::pread(&file, start.as_mut_bytes(), 0);
    let (text, own) = (&start.text, label());
    let says_so = text.starts_with(LABEL_START.as_bytes());
    let same = start.superblock.feature_incompat == own.superblock.feature_incompat
        && start.superblock.volume_name == own.superblock.volume_name;
    read == Ok(size_of::<Label>()) && says_so && same
}

/// Whether a copy-on-write volume has its first block itself: the first byte of that in the file.
pub(crate) fn first_block(file: &File) -> Option<u64> {
    let layout = layout_of(file)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, layout.map_start * SECTOR_BYTES).ok()?;
    (byte[0] & 1 == 1).then(|| layout.place(Sector(0)).0 * SECTOR_BYTES)
}

/// Makes an empty file the top of a device of `size` bytes.
pub(crate) fn make_top(file: &OwnedFd, size: u64, nonce: &str) -> std::io::Result<()> {
    let bad = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    let sectors = size / SECTOR_BYTES;
    let layout = Layout::new(Format::V2, sectors).ok_or_else(bad)?;
    let end = layout.total() * SECTOR_BYTES;
    let trailer = TrailerRecord {
        magic: MAGIC,
        nonce: *nonce.as_bytes().first_chunk().ok_or_else(bad)?,
        sectors: sectors.into(),
        format: 2.into(),
        ..TrailerRecord::new_zeroed()
    };
    let file = File::from(file.try_clone()?);
    file.set_len(end + TRAILER_BYTES as u64)?;
    let label = label();
    let room = (layout.head * SECTOR_BYTES).min(size_of::<Label>() as u64) as usize;
    file.write_all_at(&label.as_bytes()[..room], 0)?;
    file.write_all_at(trailer.as_bytes(), end)
}

/// Text, and a superblock that nothing supports.
fn label() -> Label {
    /// A feature that no ext4 has, and without which one must not be touched.
    const FEATURE_UNKNOWN: u32 = 1 << 31;
    let mut label = Label::new_zeroed();
    label.text[..LABEL_TEXT.len()].copy_from_slice(LABEL_TEXT.as_bytes());
    let its = &mut label.superblock;
    // Inodes, blocks, and both in a group: enough for tools that look at these before features.
    let count = U32::new(8192);
    (its.inodes_count, its.blocks_count_lo) = (count, count);
    (its.blocks_per_group, its.clusters_per_group, its.inodes_per_group) = (count, count, count);
    // The size of a block: 4096.
    (its.log_block_size, its.log_cluster_size) = (2.into(), 2.into());
    (its.magic, its.state) = (MAGIC_EXT4.into(), State::VALID.bits().into());
    (its.rev_level, its.first_ino, its.inode_size) = (1.into(), 11.into(), 256.into());
    its.feature_incompat = FEATURE_UNKNOWN.into();
    its.volume_name[..LABEL_NAME.len()].copy_from_slice(LABEL_NAME);
    label
}

/// Bytes of a volume's own file: text for whoever looks into it.
pub(crate) const STUB_BYTES: u64 = 4096;

/// What it begins with.
pub(crate) const STUB_TEXT: [u8; 90] =
    *b"A polylane bypass volume: its blocks are in the pool file beside it, \
    as its sidecar says.\n";

/// Whether a file is the one that stands for a bypass volume.
pub(crate) fn is_stub(file: impl AsFd) -> bool {
    let mut start = [0; STUB_TEXT.len()];
    let size = seek(&file, SeekFrom::End(0));
    size == Ok(STUB_BYTES)
        && rustix::io::pread(&file, &mut start, 0) == Ok(start.len())
        && start == STUB_TEXT
}

//! Putting a new ext4 on what reads as zeros.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use polylane_base::sync::Arc;
use polylane_base::{Clock, SystemClock};
use polylane_block::BlockDevice;
use polylane_block::device::{SECTOR_BYTES, Sector};
use polylane_block::wait::Waiter;
use polylane_ext4::format::superblock::fresh::{BLOCK_BYTES, Identity};
use polylane_ext4::make::{self, NewFs};
use polylane_sys::buffer::Buffer;

use crate::failure::{Failure, Result};
use crate::sidecar::Sidecar;

/// Bytes that are written to a device at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Puts an ext4 on `size` bytes of `file`, which is going to be `name`; its root directory belongs
/// to `owner`.
pub(crate) fn format_file(name: &Path, file: &OwnedFd, size: u64, owner: (u32, u32)) -> Result<()> {
    let failed = |error| Failure::path(name, "format it", error);
    let file = File::from(file.try_clone().map_err(failed)?);
    for (offset, data) in pieces(name, size, owner)? {
        file.write_all_at(&data, offset).map_err(failed)?;
    }
    Ok(())
}

/// Puts an ext4, whose root belongs to the caller, on a device of so many bytes that holds zeros.
/// `name`: what messages call it.
///
/// # Errors
/// The size has no ext4; the device's.
pub fn format_device(name: &Path, device: Arc<dyn BlockDevice>, size: u64) -> Result<()> {
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let waiter = Waiter::new(device);
    let failed = |why| Failure::failed(format!("{}: cannot format it: {why}", name.display()));
    for (offset, data) in pieces(name, size, owner)? {
        for (part, at) in data.chunks(PIECE_BYTES).zip((offset..).step_by(PIECE_BYTES)) {
            let sector = Sector(at / SECTOR_BYTES as u64);
            waiter.write(sector, Buffer::copy_of(part), false).map_err(failed)?;
        }
    }
    waiter.flush().map_err(failed)
}

/// What a new ext4 of `size` bytes has that is not zeros, by its offset.
fn pieces(name: &Path, size: u64, owner: (u32, u32)) -> Result<Vec<(u64, Buffer)>> {
    let mut uuid = Sidecar::random()?;
    // RFC 9562: version 4, its variant.
    uuid[6] = (uuid[6] & 0x0f) | 0x40;
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
    let seed = u128::from_ne_bytes(Sidecar::random()?);
    let hash_seed = [0, 32, 64, 96].map(|shift| (seed >> shift) as u32);
    let identity = Identity { uuid, hash_seed, now: SystemClock.now().sec as u32 };
    let made = make::make(&NewFs { bytes: size, identity, owner })
        .map_err(|why| Failure::failed(format!("{}: cannot format it: {why}", name.display())))?;
    Ok(made.into_iter().map(|(block, data)| (block.0 * u64::from(BLOCK_BYTES), data)).collect())
}

#[cfg(test)]
mod tests {
    use polylane_ext4::format::superblock::{BYTES, OFFSET, Superblock};

    use super::*;

    /// Volumes have nothing of their own in common, and their UUIDs are random ones.
    #[test]
    fn each_volume_has_an_identity_of_its_own() {
        let superblock = |_| {
            let made = pieces(Path::new("it"), 64 << 20, (0, 0)).expect("made");
            let (_, data) = made.into_iter().find(|(offset, _)| *offset == 0).expect("a start");
            let bytes: &[u8; BYTES] = data[OFFSET as usize..].first_chunk().expect("whole");
            Superblock::decode(bytes).expect("right")
        };
        let [one, other] = [0, 1].map(superblock);
        assert_ne!(one.uuid(), other.uuid());
        assert_ne!(one.hash_seed(), other.hash_seed());
        assert_ne!(one.checksum_seed(), other.checksum_seed());
        assert_eq!((one.uuid()[6] >> 4, one.uuid()[8] >> 6), (4, 2));
    }
}

//! What is written after damage stopped the file system: nothing but that e2fsck is wanted.
//!
//! The superblock's home gets the error flag and what was found. It is read, changed and written
//! back: what the superblock in memory says beyond that may belong to a transaction that has not
//! committed. A replay of the journal may bring an older superblock back, so the journal's own
//! superblock says it as well (`s_errno`), as Linux does; whoever replays carries it over.
//!
//! A medium that failed leaves what a power cut leaves, and needs no more than a replay: nothing is
//! written then.

use std::sync::atomic::Ordering;

use crate::error::{Corrupt, Result, Structure};
use crate::format::superblock::{BYTES, ErrorNote, State, Superblock};
use crate::orphan::superblock_home;
use crate::volume::Volume;

/// `EFSCORRUPTED`, as Linux numbers it in superblocks.
const CORRUPTED: u8 = 5;

/// Writes the damage down, once. The journal is stopped. Call without locks.
pub(crate) fn record(volume: &Volume, corrupt: &Corrupt) {
    let Some(journal) = &volume.journal else { return };
    if volume.damage_recorded.swap(true, Ordering::AcqRel) {
        return;
    }
    // Best effort: the journal still holds whatever committed, and the damage will be found again.
    let _ = journal.record_damage(|| note(volume, corrupt));
}

fn note(volume: &Volume, corrupt: &Corrupt) -> Result<()> {
    let (home, at) = superblock_home(volume);
    let mut block = volume.io.read(home)?;
    let bytes: &[u8; BYTES] =
        block[at..at + BYTES].try_into().map_err(|_| crate::Error::Stopped)?;
    let mut superblock = Superblock::decode(bytes)?;
    let is_inode = matches!(
        corrupt.structure,
        Structure::Inode
            | Structure::ExtentTree
            | Structure::Directory
            | Structure::HashTree
            | Structure::Xattr
            | Structure::Orphan
    );
    superblock.set_state(superblock.state() | State::ERROR);
    superblock.note_error(&ErrorNote {
        now: volume.clock.now().sec as u64,
        ino: if is_inode { corrupt.object as u32 } else { 0 },
        what: corrupt.field,
        code: CORRUPTED,
    });
    block[at..at + BYTES].copy_from_slice(&superblock.encode());
    volume.io.write_durable(home, block)?;
    Ok(())
}

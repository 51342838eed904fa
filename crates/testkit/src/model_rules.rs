//! Rules of the model file system that need none of its state.

use polylane_base::{Errno, Result, Time};
use polylane_vfs::fs::SetTime;

/// Bytes of a page: the unit of holes.
pub(crate) const PAGE: u64 = 4096;

pub(crate) fn check_xattr(name: &[u8]) -> Result<()> {
    let known: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    match known.iter().any(|space| name.starts_with(space)) {
        true if name.len() > 255 => Err(Errno::ERANGE),
        true => Ok(()),
        false => Err(Errno::EOPNOTSUPP),
    }
}

pub(crate) fn time(set: Option<SetTime>, old: Time, now: Time) -> Time {
    match set {
        None => old,
        Some(SetTime::Now) => now,
        Some(SetTime::At(time)) => time,
    }
}

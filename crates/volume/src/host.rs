//! What the host says of a volume's file: why it cannot be used, who has it open, whether there is
//! room beside it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use polylane_base::size::ByteSize;
use polylane_block::claimed::Claimed;
use polylane_block::image::{self, Holder, ImageError};

use crate::failure::{Failure, Result, plain};

/// Bytes of a sector of a block device.
pub(crate) const SECTOR_BYTES: u64 = polylane_block::device::SECTOR_BYTES as u64;

/// Sizes are whole blocks of the file system.
pub(crate) const BLOCK_BYTES: u64 = 4096;

/// What is left free on a host when space is reserved on it; of a small host a sixteenth.
const RESERVE_BYTES: u64 = 256 << 20;

/// Refuses a file that has other names: they would go on to mean what the volume was.
pub(crate) fn refuse_links(path: &Path) -> Result<()> {
    let stat = rustix::fs::stat(path).map_err(|error| Failure::path(path, "look at it", error))?;
    match stat.st_nlink {
        0 | 1 => Ok(()),
        count => Err(Failure::failed(format!(
            "{}: its file has {count} names (hard links), which would mean different volumes \
             after this: remove the others first",
            path.display()
        ))),
    }
}

/// Refuses to reserve `bytes` beside `path` where its host has no room for them. Trying would fill
/// the host first, for everybody on it.
pub(crate) fn refuse_full(path: &Path, bytes: u64) -> Result<()> {
    let Ok(host) = rustix::fs::statvfs(image::directory_of(path)) else { return Ok(()) };
    let free = host.f_bavail.saturating_mul(host.f_frsize);
    let kept = RESERVE_BYTES.min(host.f_blocks.saturating_mul(host.f_frsize) / 16);
    match bytes.saturating_add(kept) <= free {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: its host has {} left, of which {} are kept free: no room for {}",
            path.display(),
            ByteSize(free),
            ByteSize(kept),
            ByteSize(bytes)
        ))),
    }
}

/// The one line for what went wrong with a volume's file.
pub fn failure(path: &Path, error: ImageError) -> Failure {
    let why = match error {
        ImageError::NotAFile => "not a regular file or block device".to_string(),
        ImageError::Host(what, errno) => format!("cannot {what}: {}", plain(&errno.into())),
        ImageError::InUse(holder) => in_use_text(path, holder.as_ref()),
        ImageError::Claimed(claimed) => claimed_text(&claimed),
    };
    Failure::failed(format!("{}: {why}", path.display()))
}

/// How the kernel uses a volume, for a person.
fn claimed_text(Claimed { by, at }: &Claimed) -> String {
    let by = by.as_ref().map_or(String::new(), |by| format!(" (by {})", by.display()));
    match at {
        Some(at) => format!("the kernel has it mounted at {}{by}: unmount it first", at.display()),
        None => format!(
            "the kernel uses it{by}: it is mounted out of sight, swap, or a part of another \
             device: end that first"
        ),
    }
}

/// What a person calls the holder of a volume, where that is more than a process. Set once.
///
/// A refusal is one line, made by whichever function meets the lock: handed down, this would pass
/// through every one of them for the sake of that line.
static HOLDER_NAME: OnceLock<fn(&Path) -> Option<String>> = OnceLock::new();

/// Has refusals name the holder of a volume as this function does, where it knows one. The first
/// call counts.
pub fn name_holders_by(name: fn(&Path) -> Option<String>) {
    let _ = HOLDER_NAME.set(name);
}

/// What ends the lane of that name, as a person does it. Set once, as [`HOLDER_NAME`] is.
static LANE_END: OnceLock<fn(&str) -> Option<String>> = OnceLock::new();

/// Has refusals tell what ends the lane that holds a volume, by the lane's name. The first call
/// counts.
pub fn end_lanes_by(end: fn(&str) -> Option<String>) {
    let _ = LANE_END.set(end);
}

/// Who has a volume open, and what to do about it.
fn in_use_text(path: &Path, holder: Option<&Holder>) -> String {
    let who = holder_text(path, holder);
    if HOLDER_NAME.get().and_then(|name| name(path)).is_some() {
        // The name says what ends it.
        return format!("in use by {who}");
    }
    let lane = holder.and_then(|holder| lane_of(&holder.name));
    let end = lane.and_then(|lane| LANE_END.get()?(lane));
    format!("in use by {who}: {}", end.as_deref().unwrap_or("end that first"))
}

/// The lane whose service has this name.
fn lane_of(service: &str) -> Option<&str> {
    service.strip_prefix("polylane-service[")?.strip_suffix(']')
}

/// Who has a volume open, for a person.
pub(crate) fn holder_text(path: &Path, holder: Option<&Holder>) -> String {
    if let Some(name) = HOLDER_NAME.get().and_then(|name| name(path)) {
        return name;
    }
    let Some(Holder { pid, name }) = holder else {
        return "a process that cannot be seen from here".to_string();
    };
    match lane_of(name) {
        Some(pool) => format!("pool '{pool}' (process {pid})"),
        None => format!("process {pid} ({name})"),
    }
}

/// The path without symbolic links in its directory.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let dir = dir.canonicalize().map_err(|error| Failure::path(dir, "find it", error))?;
    Ok(dir.join(path.file_name().unwrap_or_default()))
}

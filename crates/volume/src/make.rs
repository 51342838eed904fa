//! Making volumes.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use polylane_base::size::ByteSize;
use polylane_base::sync::Arc;
use polylane_base::{Errno, SystemClock};
use polylane_block::file::{FileDevice, Files, Way};
use polylane_block::image::{self, Draft, ImageError};
use polylane_ext4::{Ext4, Options};
use rustix::fs::FallocateFlags;

use crate::bypass;
use crate::cache::CacheSpec;
use crate::chain;
use crate::failure::{Failure, Result, say};
use crate::format;
use crate::host::{BLOCK_BYTES, failure, refuse_full};
use crate::naming;
use crate::options::{CreateOptions, MediumKind};
use crate::sidecar::{self, Sidecar, known};
use crate::trust;

/// Size of a volume that was given none.
pub const SIZE_DEFAULT: u64 = 10 << 30;

/// Smallest volume in bytes: as mke2fs, we make no journal for a smaller one.
pub const SIZE_MIN: u64 = 16 << 20;

/// Makes a volume.
///
/// # Errors
/// It exists, the host is full.
pub fn make(options: &CreateOptions) -> Result<()> {
    let path = &options.path;
    let size = size_of_new(options.size)?;
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let formatted = options.ext4.then(|| "ext4".to_string());
    let mut sidecar = Sidecar { weight: options.weight, formatted, ..Sidecar::new()? };
    options.cache.apply(&mut sidecar);
    let owner = options.ext4.then_some(owner);
    if options.medium == MediumKind::Bypass {
        return make_bypass(path, size, owner, sidecar).map(drop);
    }
    if options.thick {
        refuse_full(path, size)?;
    }
    let draft = draft(path, size, owner)?;
    if options.thick {
        reserve(path, &draft, size)?;
        if options.ext4 {
            write_journal(path, &draft)?;
        }
    }
    let files = introduce(draft, path, &sidecar)?;
    if !options.thick {
        warn_of_promises(path, size, &files.plain);
    }
    Ok(())
}

/// Makes a bypass volume of `size` bytes: of zeros, or with an ext4 whose root belongs to `owner`.
pub(crate) fn make_bypass(
    path: &Path,
    size: u64,
    owner: Option<(u32, u32)>,
    sidecar: Sidecar,
) -> Result<Files> {
    refuse_host_cache(path, sidecar.cache.unwrap_or_default())?;
    let size = size.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(size);
    let Some(owner) = owner else { return bypass::create(path, size, sidecar, None) };
    let content = bypass::temporary(path, size)?;
    format::format_file(path, content.file(), size, owner)?;
    bypass::create(path, size, sidecar, Some(&content))
}

/// What goes past the host's file system is not in its page cache.
pub(crate) fn refuse_host_cache(path: &Path, cache: CacheSpec) -> Result<()> {
    match cache.in_host() {
        true => Err(Failure::usage(format!(
            "--cache: {} bypasses the host's page cache: use --cache-store own",
            path.display()
        ))),
        false => Ok(()),
    }
}

/// Has the host set aside all of the space of a new volume.
pub(crate) fn reserve(path: &Path, draft: &Draft, size: u64) -> Result<()> {
    rustix::fs::fallocate(draft.file(), FallocateFlags::KEEP_SIZE, 0, size)
        .map_err(|error| Failure::path(path, "reserve its space", error))
}

/// Writes the journal's blocks, which are reserved: a commit to one that was never written has the
/// host change its own metadata, too.
fn write_journal(path: &Path, draft: &Draft) -> Result<()> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::failed(format!("{}: cannot write its journal ahead: {error}", path.display()))
    };
    let again = || draft.file().try_clone().map_err(|error| failed(&error));
    let files = Files { io: again()?, plain: again()?, lock: again()? };
    let device = FileDevice::open(files, Way::Calls).map_err(|error| failed(&error))?;
    let fs = Ext4::open(device, Arc::new(SystemClock), &Options::default());
    let fs = fs.map_err(|error| failed(&error))?;
    fs.write_journal_ahead().and_then(|()| fs.close()).map_err(|error| failed(&error))
}

/// Says when the host could not keep what this volume and those beside it promise.
fn warn_of_promises(path: &Path, size: u64, file: &OwnedFd) {
    let Ok(host) = rustix::fs::fstatvfs(file) else { return };
    let free = host.f_bavail.saturating_mul(host.f_frsize);
    let beside = promised_beside(path);
    if free < size.saturating_add(beside) {
        let others = match beside {
            0 => String::new(),
            bytes => format!(", the volumes beside it {} more", ByteSize(bytes)),
        };
        say(format_args!(
            "{}: promises {}{others}, and its host has {} left",
            path.display(),
            ByteSize(size),
            ByteSize(free)
        ));
    }
}

/// What the other volumes in the same directory may still take: their holes.
fn promised_beside(path: &Path) -> u64 {
    let entries = std::fs::read_dir(image::directory_of(path)).into_iter().flatten().flatten();
    let others =
        entries.map(|entry| entry.path()).filter(|other| other.file_name() != path.file_name());
    let volumes = others.filter(|other| sidecar::path_of(other).exists());
    let holes = volumes.filter_map(|volume| {
        let stat = std::fs::metadata(volume).ok().filter(std::fs::Metadata::is_file)?;
        Some(stat.len().saturating_sub(stat.blocks() * 512))
    });
    holes.fold(0, u64::saturating_add)
}

/// Bytes of a new volume for which so many were asked.
///
/// # Errors
/// Too few.
pub fn size_of_new(asked: Option<u64>) -> Result<u64> {
    let size = asked.unwrap_or(SIZE_DEFAULT);
    match size < SIZE_MIN {
        true => Err(Failure::usage("--size: too small: at least 16M are needed")),
        false => Ok(size.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(size)),
    }
}

/// Makes what is going to be a volume: with an ext4 whose root belongs to `owner`, or empty.
pub(crate) fn draft(path: &Path, size: u64, owner: Option<(u32, u32)>) -> Result<Draft> {
    let size = size.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(size);
    let draft = Draft::new(path, size).map_err(|error| failure(path, error))?;
    if let Some(owner) = owner {
        format::format_file(path, draft.file(), size, owner)?;
    }
    Ok(draft)
}

/// Gives a new volume its name, and opens it. Its sidecar comes first: what has a name is whole,
/// and a sidecar that a former volume of that name left says nothing of this one.
///
/// # Errors
/// The name is taken, and its sidecar stays as it was; the host's.
pub(crate) fn introduce(draft: Draft, path: &Path, sidecar: &Sidecar) -> Result<Files> {
    trust::refuse_astray(path)?;
    // Before others have to wait.
    let draft = draft.durable().map_err(|error| failure(path, error))?;
    let _names = naming::hold(path)?;
    if std::fs::symlink_metadata(path).is_ok() {
        return Err(failure(path, ImageError::Host("create it", Errno::EEXIST)));
    }
    chain::refuse_half_gone(path)?;
    sidecar.store_as(path, rustix::fs::fstat(draft.file()).ok())?;
    let published = draft.publish().map_err(|error| {
        let _ = Sidecar::remove(path);
        failure(path, error)
    });
    if published.is_ok() {
        known::note(path, sidecar);
    }
    published
}

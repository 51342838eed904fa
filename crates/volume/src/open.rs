//! Opening a volume's file, or making it first.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::Path;

use polylane_base::Errno;
use polylane_base::size::ByteSize;
use polylane_block::file::Files;
use polylane_block::image::{self, ImageError};

use crate::cache::CacheSpec;
use crate::failure::{Failure, Result};
use crate::host::{BLOCK_BYTES, failure};
use crate::make::{SIZE_DEFAULT, draft, introduce, make_bypass, refuse_host_cache};
use crate::options::{Asked, Kept, MediumKind, SetOptions};
use crate::sidecar::{Sidecar, refuse_snapshot};
use crate::stack::Stack;
use crate::superblock::Superblock;

/// Opens a volume that is only going to be read, so that nobody changes it meanwhile: alone; what
/// never changes, or may not be written by this user or on this host, together with others who
/// read.
pub(crate) fn open_to_read(path: &Path, sidecar: &Sidecar) -> Result<Files> {
    if sidecar.snapshot {
        return image::open_snapshot(path).map_err(|error| failure(path, error));
    }
    match image::open(path) {
        Err(ImageError::Host(_, Errno::EROFS | Errno::EACCES | Errno::EPERM)) => {
            image::open_shared(path)
        }
        opened => opened,
    }
    .map_err(|error| failure(path, error))
}

/// Opens a volume that is a layer under others, and the bases that it is on, its own file first:
/// for reading, together with others who do. None may write it as long as they are open.
///
/// # Errors
/// It is in use; it is a device, or one in a pool file; its removal was cut short; the host's.
pub fn open_lower(path: &Path) -> Result<Vec<Files>> {
    let sidecar = Sidecar::load(path)?;
    if sidecar.bypass.is_some() {
        return Err(Failure::failed(format!(
            "{0}: lies in a pool file and cannot be a lower: make one that can with 'polylane \
             volume import {0} NEW --medium file'",
            path.display()
        )));
    }
    let opened = match sidecar.snapshot {
        true => image::open_snapshot(path),
        false => image::open_shared(path),
    };
    let own = opened.map_err(|error| failure(path, error))?;
    let stack = Stack::from_own(path, own)?;
    if stack.is_raw() {
        check_magic(path, &stack.files[0].plain, "name another")?;
    }
    Ok(stack.files)
}

/// Opens a volume alone, to be cached as `cache` says; makes it, formatted, when there is none.
/// What its sidecar says of its use comes with it.
pub fn open_or_create(
    path: &Path,
    asked: Asked,
    cache: &SetOptions,
    owner: (u32, u32),
) -> Result<(Stack, Kept)> {
    match image::open(path) {
        Err(ImageError::Host(_, Errno::ENOENT)) => {
            let files = create(path, asked, cache, owner)?;
            let stack = Stack::from_own(path, files)?;
            let bypass = stack.sidecar.bypass.as_ref().map(|bypass| bypass.id.clone());
            Ok((stack, Kept { bypass, is_new: true, ..Kept::default() }))
        }
        opened => {
            let files = opened.map_err(|error| failure(path, error))?;
            check_medium(path, asked.medium)?;
            let stack = Stack::from_own(path, files)?;
            check_size(path, stack.size, asked.size)?;
            if stack.is_raw() {
                check_magic(path, &stack.files[0].plain, "remove it to have it made")?;
            }
            let Sidecar { weight, cache: kept, translation, bypass, .. } = refuse_snapshot(path)?;
            let (kept, bypass) = (kept.unwrap_or_default(), bypass.map(|bypass| bypass.id));
            if bypass.is_some() {
                refuse_host_cache(path, cache.change(kept))?;
            }
            Ok((stack, Kept { weight, cache: kept, translation, bypass, is_new: false }))
        }
    }
}

fn create(path: &Path, asked: Asked, cache: &SetOptions, owner: (u32, u32)) -> Result<Files> {
    let sidecar = Sidecar { formatted: Some("ext4".to_string()), ..Sidecar::new()? };
    let size = asked.size.unwrap_or(SIZE_DEFAULT);
    match asked.medium.unwrap_or_default() {
        MediumKind::File => introduce(draft(path, size, Some(owner))?, path, &sidecar),
        MediumKind::Bypass => {
            refuse_host_cache(path, cache.change(CacheSpec::default()))?;
            make_bypass(path, size, Some(owner), sidecar)
        }
    }
}

/// Makes an empty volume when there is none; whether it did.
pub fn make_blank(path: &Path, asked: Asked) -> Result<bool> {
    let size = asked.size.unwrap_or(SIZE_DEFAULT);
    match std::fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            match asked.medium.unwrap_or_default() {
                MediumKind::File => introduce(draft(path, size, None)?, path, &Sidecar::new()?)?,
                MediumKind::Bypass => make_bypass(path, size, None, Sidecar::new()?)?,
            };
            Ok(true)
        }
        _ => {
            check_medium(path, asked.medium)?;
            if asked.size.is_some() {
                let stack = Stack::open(path)?;
                check_size(path, stack.size, asked.size)?;
            }
            Ok(false)
        }
    }
}

/// Refuses a volume that is reached in another way than asked.
fn check_medium(path: &Path, asked: Option<MediumKind>) -> Result<()> {
    let Some(asked) = asked else { return Ok(()) };
    let has = match Sidecar::load(path)?.bypass {
        Some(_) => MediumKind::Bypass,
        None => MediumKind::File,
    };
    match asked == has {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{0}: exists on the medium {has}: leave --medium out, or make another volume of it \
             with 'polylane volume import {0} NEW --medium {asked}'",
            path.display()
        ))),
    }
}

fn check_size(path: &Path, size: u64, asked: Option<u64>) -> Result<()> {
    let Some(asked) = asked else { return Ok(()) };
    match asked.checked_next_multiple_of(BLOCK_BYTES) == Some(size) {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: exists with {}: leave --size out, or use 'polylane volume resize' first",
            path.display(),
            ByteSize(size)
        ))),
    }
}

fn check_magic(path: &Path, file: &OwnedFd, or: &str) -> Result<()> {
    let failed = |error| Failure::path(path, "read it", error);
    let file = File::from(file.try_clone().map_err(failed)?);
    match Superblock::read(&file, 0) {
        Ok(Some(_)) => Ok(()),
        Err(error) if error.kind() != ErrorKind::UnexpectedEof => Err(failed(error)),
        _ => Err(Failure::failed(format!(
            "{}: holds no ext4 file system: format it with mke2fs, or {or}",
            path.display()
        ))),
    }
}

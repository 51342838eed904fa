//! Growing and changing volumes.

use std::cmp::Ordering;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use polylane_base::size::ByteSize;
use polylane_block::file::Files;
use polylane_block::image::{self, Draft, DurableDraft, ImageError};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, renameat_with};

use crate::bypass;
use crate::chain;
use crate::copy::{copy_data, materialize};
use crate::failure::{Failure, Result};
use crate::holders::Holders;
use crate::host::{BLOCK_BYTES, failure, refuse_links};
use crate::info::{self, Content, content};
use crate::make::{SIZE_MIN, refuse_host_cache};
use crate::options::SetOptions;
use crate::places::resolve;
use crate::progress::Progress;
use crate::sidecar::damage::refuse_damage;
use crate::sidecar::{Sidecar, known, refuse_snapshot};
use crate::stack::Stack;
use crate::tools;

/// Changes what a volume's sidecar says. A process that has the volume open goes on as before.
///
/// # Errors
/// It does not exist, or its sidecar cannot be written.
pub fn set(path: &Path, options: &SetOptions) -> Result<()> {
    let path = &resolve(path)?;
    std::fs::metadata(path).map_err(|error| Failure::path(path, "look at it", error))?;
    let mut sidecar = Sidecar::load(path)?;
    if sidecar.id.is_empty() {
        // With a sidecar it is known to be a raw volume.
        refuse_damage(path, info::open_to_look(path)?, &sidecar)?;
        sidecar.id = Sidecar::fresh_id()?;
    }
    options.apply(&mut sidecar);
    if sidecar.bypass.is_some() {
        refuse_host_cache(path, sidecar.cache.unwrap_or_default())?;
    }
    sidecar.store(path)
}

/// Grows a volume that nobody has open, and the ext4 on it; or an attached one, whose file system
/// its user grows. A copy-on-write volume that nobody has open becomes one file of its own, also
/// when it has that size already. One that holds an ext4 and that nobody has open is made smaller
/// where its files fit.
///
/// # Errors
/// It would shrink and cannot, is in use, or its file system has errors.
pub fn resize(path: &Path, size: u64, holders: &dyn Holders) -> Result<()> {
    let path = &resolve(path)?;
    refuse_snapshot(path)?;
    let size = size.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(size);
    if holders.resize(path, size)?.is_some() {
        return Ok(());
    }
    if let Some(its) = Sidecar::load(path)?.bypass {
        return resize_bypass(path, size, its.size);
    }
    let files = open_raw(path).map_err(|failure| match image::open(path) {
        Err(ImageError::InUse(_)) => Failure::failed(format!(
            "{failure}: it grows when that has ended, or while it is attached"
        )),
        _ => failure,
    })?;
    let file = File::from(files.plain);
    let stat = file.metadata().map_err(|error| Failure::path(path, "look at it", error))?;
    let size = size.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(size);
    if !stat.is_file() {
        return Err(Failure::failed(format!("{}: not a regular file", path.display())));
    }
    match size.cmp(&stat.len()) {
        Ordering::Less => shrink(path, &file, &stat, size),
        // It is one file now: all that there was to do.
        Ordering::Equal => Ok(()),
        Ordering::Greater => grow_file(path, &file, size),
    }
}

/// A bypass volume becomes another one of that size.
fn resize_bypass(path: &Path, size: u64, now: u64) -> Result<()> {
    bypass::rewrite(path, |copy| {
        let file = File::options().read(true).write(true).open(copy);
        let file = file.map_err(|error| Failure::path(path, "open its copy", error))?;
        match size < now {
            true => shrink_file(path, &file, size),
            false => grow_file(path, &file, size),
        }
    })
}

/// Makes a raw volume smaller. resize2fs moves blocks about, and a power cut would leave some
/// neither here nor there: so it does that to a copy, which takes the volume's place when it is
/// whole.
fn shrink(path: &Path, file: &File, stat: &std::fs::Metadata, size: u64) -> Result<()> {
    refuse_small(path, file, size)?;
    refuse_links(path)?;
    let temporary = raw_name(path);
    let draft = Draft::new(&temporary, stat.len()).map_err(|error| failure(path, error))?;
    let progress = Progress::new("copying", path, stat.len());
    copy_data(file, draft.file(), stat.len(), &progress)
        .map_err(|error| Failure::path(path, "copy its data", error))?;
    let copy = draft.file().try_clone().map_err(|e| Failure::path(path, "open its copy", e))?;
    let copy = File::from(copy);
    shrink_file(path, &copy, size)?;
    let kept = copy.set_permissions(stat.permissions());
    kept.and_then(|()| std::os::unix::fs::fchown(&copy, Some(stat.uid()), Some(stat.gid())))
        .map_err(|error| Failure::path(path, "give its copy the same owner", error))?;
    if stat.blocks() * 512 >= stat.len() {
        // It had all of its space, and keeps what it needs of that.
        rustix::fs::fallocate(&copy, FallocateFlags::empty(), 0, size)
            .map_err(|error| Failure::path(path, "reserve its space", error))?;
    }
    put_in_place(path, draft)?;
    // Its journal may be somewhere else now.
    let sidecar = Sidecar::load(path)?;
    match sidecar.journals.is_empty() {
        true => Ok(()),
        false => Sidecar { journals: Vec::new(), ..sidecar }.store(path),
    }
}

/// Only ext4 is made smaller, and not below what a volume has at least.
fn refuse_small(path: &Path, file: &File, size: u64) -> Result<()> {
    let path = path.display();
    if size < SIZE_MIN {
        return Err(Failure::usage(format!("{path}: not below {}", ByteSize(SIZE_MIN))));
    }
    match content(file) {
        Content::None => Err(Failure::failed(format!(
            "{path}: holds no ext4 file system, and only those are made smaller"
        ))),
        _ => Ok(()),
    }
}

/// Makes the ext4 in a raw file smaller, then the file.
fn shrink_file(path: &Path, file: &File, size: u64) -> Result<()> {
    refuse_small(path, file, size)?;
    mend(path, file)?;
    let output = tools::resize2fs(file, Some(size))?;
    if !output.status.success() {
        return Err(Failure::failed(match tools::minimum_bytes(&output, file) {
            Some(least) => format!(
                "{}: its files need {}: remove some, or take a larger size",
                path.display(),
                ByteSize(least)
            ),
            None => format!(
                "{}: cannot make its file system smaller: {}",
                path.display(),
                tools::last_words(&output)
            ),
        }));
    }
    // The end of the file is nobody's any more once that is durable.
    file.sync_all()
        .and_then(|()| file.set_len(size))
        .and_then(|()| file.sync_all())
        .map_err(|error| Failure::path(path, "cut it", error))
}

/// Makes a raw file longer, and the ext4 on it.
fn grow_file(path: &Path, file: &File, size: u64) -> Result<()> {
    // Durable at once: a file system is not to be larger than its disk after a power cut.
    let set = || file.set_len(size).and_then(|()| file.sync_all());
    let set = || set().map_err(|error| Failure::path(path, "resize it", error));
    if content(file) == Content::None {
        return set();
    }
    mend(path, file)?;
    set()?;
    fill_up(path, file)
}

/// Grows the ext4 on a device that nobody uses to the device's size. `path`: what messages call it.
///
/// # Errors
/// It has errors, the programs of e2fsprogs are not installed; the device's.
pub fn grow_ext4(path: &Path, device: &File) -> Result<()> {
    mend(path, device)?;
    fill_up(path, device)
}

/// Grows the ext4 in a file that was mended to the file's size.
fn fill_up(path: &Path, file: &File) -> Result<()> {
    let output = tools::resize2fs(file, None)?;
    if output.status.success() {
        return file.sync_all().map_err(|error| Failure::path(path, "sync it", error));
    }
    let why = tools::last_words(&output);
    Err(Failure::failed(format!("{}: cannot grow its file system: {why}", path.display())))
}

pub(crate) fn no_ext4(path: &Path) -> Failure {
    Failure::failed(format!("{}: holds no ext4 file system", path.display()))
}

/// Opens a volume as the one file that it is. A copy-on-write volume becomes one first.
pub(crate) fn open_raw(path: &Path) -> Result<Files> {
    let mut stack = Stack::open(path)?;
    let temporary = raw_name(path);
    // One that was cut short left it.
    let _ = std::fs::remove_file(&temporary);
    if stack.pinned.is_none() {
        chain::tidy(path, &stack.files[0].plain, &mut stack.sidecar)?;
    }
    let mut sidecar = stack.sidecar.clone();
    if stack.is_raw() {
        let files = stack.files.into_iter().next();
        return files.ok_or_else(|| no_ext4(path));
    }
    refuse_links(path)?;
    // Nobody else is to open it before it has its new form.
    let _held = stack.files[0].lock.try_clone();
    let draft = Draft::new(&temporary, 0).map_err(|error| failure(path, error))?;
    materialize(path, stack, draft.file(), path)?;
    sidecar.raw = true;
    sidecar.store(path)?;
    let files = put_in_place(path, draft)?;
    // It is on nothing now: lets go of its bases.
    chain::tidy(path, &files.plain, &mut sidecar)?;
    Ok(files)
}

/// Exchanges a volume for a new form of it, which was made under its [`raw_name`].
fn put_in_place(path: &Path, draft: Draft) -> Result<Files> {
    let temporary = raw_name(path);
    let files =
        draft.durable().and_then(DurableDraft::publish).map_err(|error| failure(path, error))?;
    known::forget_at(path);
    renameat_with(CWD, &temporary, CWD, path, RenameFlags::EXCHANGE)
        .map_err(|error| Failure::path(path, "exchange it for its raw form", error))?;
    image::sync_names(path).map_err(|error| failure(path, error))?;
    std::fs::remove_file(&temporary)
        .map_err(|error| Failure::path(&temporary, "remove it", error))?;
    Ok(files)
}

/// What a volume's new form is called until it takes the volume's place: the raw form of a
/// copy-on-write volume, a smaller one. The command that has the volume alone has this name too.
pub(crate) fn raw_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".polylane-raw");
    PathBuf::from(name)
}

/// Brings an ext4 into the state that resize2fs insists on.
fn mend(path: &Path, file: &File) -> Result<()> {
    let output = tools::fsck(path, "-fp", file)?;
    if let Some(why) = tools::fsck_failure(&output) {
        return Err(Failure::failed(format!("{}: e2fsck cannot check it: {why}", path.display())));
    }
    match output.status.code() {
        Some(tools::FSCK_CLEAN | tools::FSCK_MENDED) => Ok(()),
        _ => Err(Failure::failed(format!(
            "{}: the file system has errors: use 'polylane volume check --repair' first",
            path.display()
        ))),
    }
}

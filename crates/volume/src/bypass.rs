//! Bypass volumes: a small file that stands for the volume, and chunks in the pool file beside it.
//!
//! The volume's own file carries its name, its lock and its sidecar; its bytes are in the pool
//! file, which `polylane_block::bypass` knows about. The sidecar names both.

use std::path::Path;

use polylane_base::Errno;
use polylane_block::bypass::{DirectoryError, Id, Layout, PoolError, PoolFile, Use};
use polylane_block::file::{Files, Way};
use polylane_block::image::{self, Draft, ImageError};
use polylane_sys::extents::HostExtent;
use rustix::fs::{SeekFrom, seek};

use crate::cache::CacheSpec;
use crate::chain;
use crate::copy::{beside_temporary, materialize, pour};
use crate::failure::{Failure, Result};
use crate::host::{failure, refuse_full};
use crate::naming;
use crate::pool_file::{self, pool_failure, refuse_others};
use crate::progress::Progress;
use crate::sidecar::trailer::{STUB_BYTES, STUB_TEXT};
use crate::sidecar::{BypassRef, Making, Sidecar, beside, parse_id};
use crate::stack::Stack;
use crate::trust;

/// Pool files in a directory, at most.
const POOLS_MAX: u32 = 24;

/// The pool file that has room for a volume beside `volume`, with that room made; nobody else makes
/// volumes in it as long as it is open. Before anything is made, `announce` writes down where, so
/// that nothing of it is lost when the power is cut.
fn room_for(
    volume: &Path,
    size: u64,
    announce: &mut dyn FnMut(&Path) -> Result<()>,
) -> Result<PoolFile> {
    refuse_others(volume)?;
    let needed = size.div_ceil(Layout::POOL.chunk_bytes);
    let needed = u32::try_from(needed).ok().filter(|n| *n <= Layout::POOL.chunks_max());
    let needed = needed.ok_or_else(|| {
        Failure::failed(format!("{}: too large for a bypass volume", volume.display()))
    })?;
    for number in 1..=POOLS_MAX {
        let name = match number {
            1 => "polylane.pool".to_string(),
            more => format!("polylane-{more}.pool"),
        };
        let path = image::directory_of(volume).join(name);
        if let Some(file) = try_room(&path, volume, needed, announce)? {
            return Ok(file);
        }
    }
    Err(Failure::failed(format!("{}: too many pool files beside it", volume.display())))
}

/// `None`: it has no room and cannot be given any now.
fn try_room(
    path: &Path,
    volume: &Path,
    needed: u32,
    announce: &mut dyn FnMut(&Path) -> Result<()>,
) -> Result<Option<PoolFile>> {
    let failed = |error: PoolError| pool_failure(path, &error);
    let bytes = |chunks: u32| u64::from(chunks) * Layout::POOL.chunk_bytes;
    let file = loop {
        let file = match PoolFile::open(path) {
            Err(PoolError::Host(_, Errno::ENOENT)) => {
                refuse_full(path, bytes(needed))?;
                announce(path)?;
                let progress = Progress::new("making room", volume, bytes(needed));
                make_pool(path, needed, &|bytes| progress.add(bytes)).map_err(failed)?
            }
            opened => opened.map_err(failed)?,
        };
        match file.lock_for_making() {
            // The last volume in it was removed just now, and the file with it.
            Err(PoolError::Host(_, Errno::ENOENT)) => {}
            locked => break locked.map(|()| file).map_err(failed)?,
        }
    };
    let directory = file.directory().map_err(failed)?;
    let free = directory.free_chunks_reclaimed();
    if free < needed {
        refuse_full(path, bytes(needed - free))?;
        let progress = Progress::new("making room", volume, bytes(needed - free));
        let chunks = directory.chunk_count().saturating_add(needed - free);
        match file.grow(chunks, &|bytes| progress.add(bytes)) {
            Ok(()) => {}
            Err(PoolError::InUse | PoolError::Directory(DirectoryError::Geometry(..))) => {
                return Ok(None);
            }
            Err(error) => return Err(failed(error)),
        }
    }
    announce(path)?;
    Ok(Some(file))
}

/// Makes a pool file, unless somebody is faster.
fn make_pool(path: &Path, chunks: u32, wrote: &dyn Fn(u64)) -> Result<PoolFile, PoolError> {
    let id = Sidecar::fresh_id().ok().and_then(|id| parse_id(&id));
    let id = id.ok_or(PoolError::Host("make an id for it", Errno::EIO))?;
    match PoolFile::make(path, id, chunks, wrote) {
        Ok(()) | Err(PoolError::Host(_, Errno::EEXIST)) => PoolFile::open(path),
        Err(error) => Err(error),
    }
}

/// Makes a bypass volume, and its sidecar: of zeros, or of what `content` holds. It has its name
/// when all of it is there; until then its sidecar is alone, and tells where a part of it may be.
pub(crate) fn create(
    path: &Path,
    size: u64,
    mut sidecar: Sidecar,
    content: Option<&Draft>,
) -> Result<Files> {
    let draft = stub(path)?;
    let mut its = BypassRef::new(size)?;
    let mut making = None;
    let made = room_for(path, size, &mut |pool| {
        its.lie_in(pool);
        sidecar.bypass = Some(its.clone());
        making = Some(announce(path, &sidecar, making.take())?);
        Ok(())
    })
    .and_then(|file| {
        make(file, path, its.id(path)?, size)?;
        let Some(content) = content else { return Ok(()) };
        let own = files_of(&draft, path)?;
        fill(path, Stack::bypass(path, own, sidecar.clone(), &its)?, content)
    })
    .and_then(|()| {
        let draft = draft.durable().map_err(|error| failure(path, error))?;
        let _names = naming::hold(path)?;
        draft.publish().map_err(|error| failure(path, error))
    });
    if made.is_err() && making.is_some() {
        // What went wrong is said; that nothing stays behind is tried.
        let gone = remove(path, &its).and_then(|()| Sidecar::remove(path));
        let _ = gone.map(|()| image::sync_names(path));
    }
    made
}

/// Writes down where a volume is going to be, and keeps others from clearing that up.
fn announce(path: &Path, sidecar: &Sidecar, before: Option<Making>) -> Result<Making> {
    trust::refuse_astray(path)?;
    let _names = naming::hold(path)?;
    if std::fs::symlink_metadata(path).is_ok() {
        return Err(failure(path, ImageError::Host("create it", Errno::EEXIST)));
    }
    if before.is_none() {
        chain::refuse_half_gone(path)?;
    }
    sidecar.store(path)?;
    Making::hold(path)
}

fn files_of(draft: &Draft, path: &Path) -> Result<Files> {
    let copy = || draft.file().try_clone().map_err(|e| Failure::path(path, "open it again", e));
    Ok(Files { io: copy()?, plain: copy()?, lock: copy()? })
}

fn make(file: PoolFile, path: &Path, id: Id, size: u64) -> Result<()> {
    let pool = file.path().to_path_buf();
    let used = file.use_it().map_err(|error| pool_failure(&pool, &error))?;
    let progress = Progress::new("clearing", path, size);
    let made = used.make_volume(id, size, &|bytes| progress.add(bytes));
    used.end();
    made.map_err(|error| pool_failure(&pool, &error))
}

fn stub(path: &Path) -> Result<Draft> {
    let draft = Draft::new(path, STUB_BYTES).map_err(|error| failure(path, error))?;
    rustix::io::pwrite(draft.file(), &STUB_TEXT, 0)
        .map_err(|error| Failure::path(path, "write it", error))?;
    Ok(draft)
}

/// A file that never gets a name, for what a volume beside it is going to hold.
pub(crate) fn temporary(path: &Path, size: u64) -> Result<Draft> {
    let draft = Draft::new(&beside_temporary(path), size);
    draft.map_err(|error| failure(path, error))
}

/// Writes a file's data to a volume that holds zeros.
fn fill(path: &Path, stack: Stack, from: &Draft) -> Result<()> {
    let size = stack.size;
    let (parts, _pinned) = stack.parts()?;
    let assembled = Stack::assemble(parts, Way::Calls, None, CacheSpec::default(), None)?;
    pour(path, from.file(), assembled.device, size)
}

/// Makes a volume anew from what `edit` does to a copy of it: a power cut leaves the old one or the
/// new one. The copy may become longer.
pub(crate) fn rewrite(path: &Path, edit: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let stack = Stack::open(path)?;
    let mut sidecar = stack.sidecar.clone();
    // Nobody else is to open it before it is another one.
    let again = || again(&stack.files[0]).map_err(|e| Failure::path(path, "open it again", e));
    let (own, _lock) = (again()?, again()?);
    remove_next(path, &mut sidecar)?;
    let old = sidecar.bypass.clone().ok_or_else(|| Failure::failed("volume: is no bypass"))?;
    let draft = temporary(path, stack.size)?;
    materialize(path, stack, draft.file(), path)?;
    edit(&image::proc_path(draft.file()))?;
    let size = seek(draft.file(), SeekFrom::End(0))
        .map_err(|error| Failure::path(path, "find its size", error))?;
    let mut new = BypassRef::new(size)?;
    let file = room_for(path, size, &mut |pool| {
        new.lie_in(pool);
        sidecar.bypass = Some(BypassRef { next: Some(Box::new(new.clone())), ..old.clone() });
        sidecar.store(path)
    })?;
    make(file, path, new.id(path)?, size)?;
    sidecar.bypass = Some(new.clone());
    fill(path, Stack::bypass(path, own, sidecar.clone(), &new)?, &draft)?;
    // Whatever is cut: the one that the volume is not is the one that is to be removed.
    sidecar.bypass = Some(BypassRef { next: Some(Box::new(old)), ..new });
    sidecar.store(path)?;
    remove_next(path, &mut sidecar)
}

fn again(files: &Files) -> std::io::Result<Files> {
    let Files { io, plain, lock } = files;
    Ok(Files { io: io.try_clone()?, plain: plain.try_clone()?, lock: lock.try_clone()? })
}

/// Removes what was to take a volume's place, and did not, or had it before.
fn remove_next(path: &Path, sidecar: &mut Sidecar) -> Result<()> {
    let Some(next) = sidecar.bypass.as_mut().and_then(|bypass| bypass.next.take()) else {
        return Ok(());
    };
    remove(path, &next)?;
    sidecar.store(path)
}

/// Removes all of a volume's chunks.
pub(crate) fn remove(path: &Path, bypass: &BypassRef) -> Result<()> {
    Removal::begin(path, bypass)?.end()
}

/// The pool files that a volume's chunks are in, in use and so fit to have them removed.
pub(crate) struct Removal(Vec<(Use, Vec<Id>)>);

impl Removal {
    /// Opens what is there.
    pub(crate) fn begin(path: &Path, bypass: &BypassRef) -> Result<Removal> {
        let (mut found, mut next) = (Removal(Vec::new()), Some(bypass));
        refuse_others(path)?;
        while let Some(its) = next {
            let pool = beside(path, &its.pool);
            let id = its.id(path)?;
            next = its.next.as_deref();
            // A command that makes or removes volumes in a file is alone in it: one lock for both.
            let same = found.0.iter_mut().find(|(used, _)| used.file().path() == pool);
            if let Some((_, ids)) = same {
                ids.push(id);
                continue;
            }
            match PoolFile::open(&pool).and_then(PoolFile::use_it) {
                // The command that removed it removed the volume.
                Err(PoolError::Host(_, Errno::ENOENT)) => {}
                used => found.0.push((used.map_err(|e| pool_failure(&pool, &e))?, vec![id])),
            }
        }
        Ok(found)
    }

    /// Frees the chunks; a pool file without volumes goes.
    pub(crate) fn end(self) -> Result<()> {
        for (used, ids) in &self.0 {
            let failed = |error| pool_failure(used.file().path(), &error);
            ids.iter().try_for_each(|id| used.remove_volume(id)).map_err(failed)?;
            used.end();
            used.file().remove_if_empty().map_err(failed)?;
        }
        Ok(())
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        // Nothing to end where it has been.
        self.0.iter().for_each(|(used, _)| used.end());
    }
}

/// What can be told of a volume without using it.
pub(crate) struct Glance {
    /// Bytes of the pool file that are its own.
    pub(crate) allocated: u64,
    /// Where it lies on the disk.
    pub(crate) extents: Vec<HostExtent>,
    /// Its first bytes.
    pub(crate) start: Vec<u8>,
}

/// Looks at a volume.
pub(crate) fn glance(path: &Path, bypass: &BypassRef, start_bytes: usize) -> Result<Glance> {
    let (pool, file) = pool_file::open(path, bypass)?;
    let failed = |error| pool_failure(&pool, &error);
    let id = bypass.id(path)?;
    let extents = file.extents_of(&id).map_err(failed)?;
    let allocated = extents.iter().map(|extent| extent.length).sum();
    let start = file.peek(&id, start_bytes).map_err(failed)?;
    Ok(Glance { allocated, extents, start })
}

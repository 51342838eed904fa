//! Bypass volumes: a small file that stands for the volume, and chunks in the pool file beside it.
//!
//! The volume's own file carries its name, its lock and its sidecar; its bytes are in the pool
//! file, which `polylane_block::bypass` knows about. The sidecar names both.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_block::Sector;
use polylane_block::bypass::{
    Claim, DirectoryError, Id, Layout, PoolError, PoolFile, PoolFiles, Use,
};
use polylane_block::file::{Files, Way};
use polylane_block::image::{self, Draft};
use polylane_block::wait::Waiter;
use polylane_sys::buffer::Buffer;
use polylane_sys::extents::HostExtent;
use rustix::fs::{SeekFrom, seek};
use serde::{Deserialize, Serialize};

use super::cache::CacheSpec;
use super::copy::materialize;
use super::open::{failure, introduce, refuse_full};
use super::sidecar::{self, Sidecar};
use super::stack::{Parts, Stack, beside};
use super::tools;
use crate::failure::{Failure, Result, plain};

/// Bytes of a volume's own file: text for whoever looks into it.
const STUB_BYTES: u64 = 4096;

/// What it begins with.
const STUB_TEXT: [u8; 90] =
    *b"A polylane bypass volume: its blocks are in the pool file beside it, \
    as its sidecar says.\n";

/// Pool files in a directory, at most.
const POOLS_MAX: u32 = 24;

/// Bytes copied at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Where a bypass volume's bytes are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BypassRef {
    /// The pool file, seen from the volume's directory.
    pub(crate) pool: PathBuf,
    /// The volume's number in there: 32 hexadecimal digits.
    pub(crate) id: String,
    /// Bytes.
    pub(crate) size: u64,
    /// What is going to take its place, or failed to.
    #[serde(default)]
    pub(crate) next: Option<Box<BypassRef>>,
}

impl BypassRef {
    fn new(pool: &Path, size: u64) -> Result<BypassRef> {
        let pool = PathBuf::from(pool.file_name().unwrap_or_default());
        Ok(BypassRef { pool, id: Sidecar::fresh_id()?, size, next: None })
    }

    /// The id as bytes.
    ///
    /// # Errors
    /// The sidecar of `volume` has something else there.
    pub(crate) fn id(&self, volume: &Path) -> Result<Id> {
        parse_id(&self.id).ok_or_else(|| {
            let sidecar = sidecar::path_of(volume);
            Failure::failed(format!("{}: 'bypass' has no right id", sidecar.display()))
        })
    }

    fn pool(&self, volume: &Path) -> Result<(PathBuf, PoolFile)> {
        let path = beside(volume, &self.pool);
        let file = PoolFile::open(&path).map_err(|error| pool_failure(&path, &error))?;
        Ok((path, file))
    }
}

/// 32 hexadecimal digits as bytes.
pub(crate) fn parse_id(text: &str) -> Option<Id> {
    let mut id = Id::default();
    if text.len() != 2 * id.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in id.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(id)
}

/// A pool file in use, and pinned as long as anybody uses it.
#[derive(Debug)]
pub(crate) struct Pinned(Option<Arc<Use>>);

impl Pinned {
    /// Begins to use the pool file of a volume.
    pub(crate) fn open(volume: &Path, wanted: &BypassRef) -> Result<Pinned> {
        let (path, file) = wanted.pool(volume)?;
        let used = file.use_it().map_err(|error| pool_failure(&path, &error))?;
        Ok(Pinned(Some(Arc::new(used))))
    }

    /// Descriptors for the process that opens the volume.
    pub(crate) fn files(&self) -> Result<PoolFiles> {
        let used = self.0.as_ref().ok_or_else(|| Failure::failed("volume: let go of"))?;
        used.files().map_err(|error| pool_failure(used.file().path(), &error))
    }

    /// Leaves the end of the use to a process that was forked since.
    pub(crate) fn leave_to_child(&mut self) {
        self.0 = None;
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(used) = self.0.take() {
            used.end();
        }
    }
}

/// The one line for what went wrong with a pool file.
pub(crate) fn pool_failure(path: &Path, error: &PoolError) -> Failure {
    let path = path.display();
    match error {
        PoolError::Host(what, errno) => {
            Failure::failed(format!("{path}: cannot {what}: {}", plain(&(*errno).into())))
        }
        PoolError::Refused(_) => {
            Failure::failed(format!("{path}: {error}: '--medium file' needs none of this"))
        }
        other => Failure::failed(format!("{path}: {other}")),
    }
}

/// The pool file that has room for a volume beside `volume`, with that room made; nobody else makes
/// volumes in it as long as it is open.
fn room_for(volume: &Path, size: u64) -> Result<PoolFile> {
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
        if let Some(file) = try_room(&path, needed)? {
            return Ok(file);
        }
    }
    Err(Failure::failed(format!("{}: too many pool files beside it", volume.display())))
}

/// `None`: it has no room and cannot be given any now.
fn try_room(path: &Path, needed: u32) -> Result<Option<PoolFile>> {
    let failed = |error: PoolError| pool_failure(path, &error);
    let bytes = |chunks: u32| u64::from(chunks) * Layout::POOL.chunk_bytes;
    let file = match PoolFile::open(path) {
        Err(PoolError::Host(_, Errno::ENOENT)) => {
            refuse_full(path, bytes(needed))?;
            make_pool(path, needed).map_err(failed)?
        }
        opened => opened.map_err(failed)?,
    };
    file.lock_for_making().map_err(failed)?;
    let directory = file.directory().map_err(failed)?;
    let free = directory.free_chunks();
    if free >= needed {
        return Ok(Some(file));
    }
    refuse_full(path, bytes(needed - free))?;
    match file.grow(directory.chunk_count().saturating_add(needed - free)) {
        Ok(()) => Ok(Some(file)),
        Err(PoolError::InUse | PoolError::Directory(DirectoryError::Geometry(..))) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Makes a pool file, unless somebody is faster.
fn make_pool(path: &Path, chunks: u32) -> Result<PoolFile, PoolError> {
    let id = Sidecar::fresh_id().ok().and_then(|id| parse_id(&id));
    let id = id.ok_or(PoolError::Host("make an id for it", Errno::EIO))?;
    match PoolFile::make(path, id, chunks) {
        Ok(()) | Err(PoolError::Host(_, Errno::EEXIST)) => PoolFile::open(path),
        Err(error) => Err(error),
    }
}

/// Makes a new bypass volume of zeros, and its sidecar.
pub(super) fn create(path: &Path, size: u64, sidecar: &mut Sidecar) -> Result<Files> {
    let draft = stub(path)?;
    let file = room_for(path, size)?;
    let wanted = BypassRef::new(file.path(), size)?;
    let id = wanted.id(path)?;
    let pool = file.path().to_path_buf();
    sidecar.bypass = Some(wanted);
    // The name first: chunks always belong to something that can be removed.
    let files = introduce(draft, path, sidecar)?;
    if let Err(error) = make(file, &pool, id, size) {
        let _ = std::fs::remove_file(path);
        let _ = Sidecar::remove(path);
        return Err(error);
    }
    Ok(files)
}

fn make(file: PoolFile, pool: &Path, id: Id, size: u64) -> Result<()> {
    let used = file.use_it().map_err(|error| pool_failure(pool, &error))?;
    let made = used.make_volume(id, size).map_err(|error| pool_failure(pool, &error));
    used.end();
    made
}

fn stub(path: &Path) -> Result<Draft> {
    let draft = Draft::new(path, STUB_BYTES).map_err(|error| failure(path, error))?;
    rustix::io::pwrite(draft.file(), &STUB_TEXT, 0)
        .map_err(|error| Failure::path(path, "write it", error))?;
    Ok(draft)
}

/// Whether a file is the one that stands for a bypass volume.
pub(super) fn is_stub(file: impl AsFd) -> bool {
    let mut start = [0; STUB_TEXT.len()];
    let size = seek(&file, SeekFrom::End(0));
    size == Ok(STUB_BYTES)
        && rustix::io::pread(&file, &mut start, 0) == Ok(start.len())
        && start == STUB_TEXT
}

/// Puts an ext4 on a new volume, whose root belongs to `owner`.
pub(super) fn format(path: &Path, files: Files, owner: (u32, u32)) -> Result<()> {
    let stack = Stack::from_own(path, files)?;
    let draft = temporary(path, stack.size)?;
    tools::make_ext4(path, &image::proc_path(draft.file()), owner)?;
    fill(path, stack, &draft)
}

fn temporary(path: &Path, size: u64) -> Result<Draft> {
    let draft = Draft::new(&super::copy::beside_temporary(path), size);
    draft.map_err(|error| failure(path, error))
}

/// Writes a file's data to a volume that holds zeros.
fn fill(path: &Path, stack: Stack, from: &Draft) -> Result<()> {
    let failed = |error: rustix::io::Errno| Failure::path(path, "copy its data", error);
    let size = stack.size;
    let (parts, _pinned) = stack.parts()?;
    let assembled = Stack::assemble(parts, Way::Calls, None, CacheSpec::default(), None)?;
    let waiter = Waiter::new(assembled.device);
    let wrote = |error| Failure::path(path, "write it", Errno::from(error));
    let mut at = 0;
    while at < size {
        at = match seek(from.file(), SeekFrom::Data(at)) {
            Ok(start) if start < size => start / 512 * 512,
            Ok(_) | Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(failed(error)),
        };
        let end = seek(from.file(), SeekFrom::Hole(at)).map_err(failed)?.min(size);
        let end = end.next_multiple_of(512).min(size);
        while at < end {
            let mut data = Buffer::zeroed((end - at).min(PIECE_BYTES) as usize);
            let read = rustix::io::pread(from.file(), &mut data[..], at).map_err(failed)?;
            if read == 0 {
                return Err(failed(rustix::io::Errno::IO));
            }
            let length = data.len() as u64;
            waiter.write(Sector(at / 512), data, false).map_err(wrote)?;
            at += length;
        }
    }
    waiter.flush().map_err(wrote)
}

/// Makes a volume anew from what `edit` does to a copy of it: a power cut leaves the old one or the
/// new one. The copy may become longer.
pub(super) fn rewrite(path: &Path, edit: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
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
    let file = room_for(path, size)?;
    let pool = file.path().to_path_buf();
    let new = BypassRef::new(&pool, size)?;
    sidecar.bypass = Some(BypassRef { next: Some(Box::new(new.clone())), ..old.clone() });
    sidecar.store(path)?;
    let id = new.id(path)?;
    make(file, &pool, id, size)?;
    sidecar.bypass = Some(new.clone());
    fill(path, Stack::bypass(path, own, sidecar.clone(), &new)?, &draft)?;
    sidecar.store(path)?;
    remove_from_pool(path, &old)
}

fn again(files: &Files) -> std::io::Result<Files> {
    let Files { io, plain, lock } = files;
    Ok(Files { io: io.try_clone()?, plain: plain.try_clone()?, lock: lock.try_clone()? })
}

/// Removes what was to take a volume's place, and did not.
fn remove_next(path: &Path, sidecar: &mut Sidecar) -> Result<()> {
    let Some(next) = sidecar.bypass.as_mut().and_then(|bypass| bypass.next.take()) else {
        return Ok(());
    };
    remove_from_pool(path, &next)?;
    sidecar.store(path)
}

/// Removes all of a volume's chunks.
pub(super) fn remove(path: &Path, bypass: &BypassRef) -> Result<()> {
    if let Some(next) = &bypass.next {
        remove_from_pool(path, next)?;
    }
    remove_from_pool(path, bypass)
}

/// Frees a volume's chunks; a pool file without volumes goes.
fn remove_from_pool(path: &Path, bypass: &BypassRef) -> Result<()> {
    let pool = beside(path, &bypass.pool);
    let file = match PoolFile::open(&pool) {
        // Whoever removed it removed the volume.
        Err(PoolError::Host(_, Errno::ENOENT)) => return Ok(()),
        opened => opened.map_err(|error| pool_failure(&pool, &error))?,
    };
    let used = file.use_it().map_err(|error| pool_failure(&pool, &error))?;
    let removed = used.remove_volume(&bypass.id(path)?);
    used.end();
    removed.and_then(|()| used.file().remove_if_empty()).map_err(|e| pool_failure(&pool, &e))
}

/// What can be told of a volume without using it.
pub(super) struct Glance {
    /// Bytes of the pool file that are its own.
    pub(super) allocated: u64,
    /// Where it lies on the disk.
    pub(super) extents: Vec<HostExtent>,
    /// Its first bytes.
    pub(super) start: Vec<u8>,
}

/// Looks at a volume.
pub(super) fn glance(path: &Path, bypass: &BypassRef, start_bytes: usize) -> Result<Glance> {
    let (pool, file) = bypass.pool(path)?;
    let failed = |error| pool_failure(&pool, &error);
    let id = bypass.id(path)?;
    let extents = file.extents_of(&id).map_err(failed)?;
    let allocated = extents.iter().map(|extent| extent.length).sum();
    let start = file.peek(&id, start_bytes).map_err(failed)?;
    Ok(Glance { allocated, extents, start })
}

/// Takes a volume over in the process that serves it, while it may still open files.
pub(crate) fn claim(own: &Files, files: PoolFiles) -> Result<Claim> {
    let failed = |error: PoolError| Failure::failed(format!("volume: {error}"));
    Claim::new(&own.plain, files).map_err(failed)
}

/// A claim and what it is on, to be assembled.
pub(crate) fn parts(files: Vec<Files>, claim: Option<Claim>, id: Option<&str>) -> Result<Parts> {
    let bypass = match (claim, id.and_then(parse_id)) {
        (None, None) => None,
        (Some(claim), Some(id)) => Some((claim, id)),
        _ => return Err(Failure::failed("volume: what was handed down is not what it is on")),
    };
    Ok(Parts { files, bypass })
}

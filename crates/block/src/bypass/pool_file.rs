//! Pool files: made, grown, pinned, and opened for use.

use std::fs;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polylane_base::sync::Arc;
use polylane_base::{Errno, record};
use polylane_sys::buffer::Buffer;
use polylane_sys::extents::{self as host, HostExtent};
use polylane_sys::lock::{lock_range, share_range, unlock_range};
use polylane_sys::swap;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::directory::{Directory, DirectoryError, PoolBytes};
use super::error::{PoolError, Refused, Result, failed};
use super::extents::Extents;
use super::format::{Id, Layout};
use super::hold::{self, DIRECTORY_BYTE, FILE_BYTE, MAKER_BYTE, MapError, USE_BYTE, wait_for_lock};
use super::host::Disk;
use super::volume::Road;
use crate::device::BlockDevice;
use crate::file::{FileDevice, Files, Way};
use crate::image::{self, Draft, DurableDraft, ImageError, proc_path};

const LAYOUT: Layout = Layout::POOL;

/// Where the file's id is: in its head, behind the swap area.
const ID_AT: u64 = LAYOUT.head_bytes - 8192;
const ID_BYTES: usize = 4096;
const ID_MAGIC: [u8; 16] = *b"polylane-pool-01";

/// Zeros per write.
const ZEROS_BYTES: usize = 4 << 20;

/// How long the last use waits for others to show that it is not the last.
const END_TIME_MAX: Duration = Duration::from_millis(50);

/// How long somebody else may pin, grow or change a file.
pub(super) const OTHERS_TIME_MAX: Duration = Duration::from_secs(60);

fn image_error(error: ImageError) -> PoolError {
    match error {
        ImageError::Host(what, errno) => PoolError::Host(what, errno),
        ImageError::InUse(_) | ImageError::Claimed(_) => PoolError::InUse,
        ImageError::NotAFile => PoolError::Head,
    }
}

/// An open pool file.
#[derive(Debug)]
pub struct PoolFile {
    path: PathBuf,
    id: Id,
    /// For locks and bytes past the page cache.
    direct: OwnedFd,
    plain: OwnedFd,
}

impl PoolFile {
    /// Opens a pool file for reading and changing, and changes nothing.
    ///
    /// # Errors
    /// It is none; the host's.
    pub fn open(path: &Path) -> Result<PoolFile> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let open = |more| rustix::fs::open(path, flags | more, Mode::empty());
        let plain = open(OFlags::empty()).map_err(failed("open it"))?;
        let direct = open(OFlags::DIRECT).map_err(failed("open it with O_DIRECT"))?;
        let id = id_of(&direct)?;
        Ok(PoolFile { path: path.to_path_buf(), id, direct, plain })
    }

    /// Makes a pool file with room for `chunks` chunks, all of them zeros on the disk; it has its
    /// name, durably, when it is complete, and none before: nothing is left of one that is cut
    /// short. `wrote` is told how many bytes were written, piece by piece.
    ///
    /// # Errors
    /// The host is not fit, or full; `EEXIST` when somebody was faster.
    pub fn make(path: &Path, id: Id, chunks: u32, wrote: &dyn Fn(u64)) -> Result<()> {
        let draft = Draft::new(path, 0).map_err(image_error)?;
        let plain = copy(draft.file())?;
        Disk::under(&plain)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
        let direct = rustix::fs::open(proc_path(&plain), flags, Mode::empty());
        let direct = direct.map_err(failed("open it with O_DIRECT"))?;
        let file = PoolFile { path: path.to_path_buf(), id, direct, plain };
        file.fill(chunks, wrote)?;
        draft.durable().and_then(DurableDraft::publish).map(drop).map_err(image_error)
    }

    fn fill(self, chunks: u32, wrote: &dyn Fn(u64)) -> Result<()> {
        let (id, file) = (self.id, self);
        file.write_zeros(0..LAYOUT.chunk_at(chunks), wrote)?;
        let mut head = Buffer::zeroed(ID_BYTES);
        *record::at_mut(&mut head, 0) = Head::of(id);
        let road = file.file_road()?;
        let written = road.write(0, Buffer::copy_of(&swap::header()));
        written.and_then(|()| road.write(ID_AT, head)).map_err(DirectoryError::Medium)?;
        Directory::format(&road, LAYOUT, id, chunks)?;
        file.sync()
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.plain).map_err(failed("make it durable"))
    }

    /// Gives a range at the end its blocks, with zeros in them.
    fn write_zeros(&self, range: std::ops::Range<u64>, wrote: &dyn Fn(u64)) -> Result<()> {
        let length = range.end - range.start;
        rustix::fs::fallocate(&self.plain, FallocateFlags::empty(), range.start, length)
            .map_err(failed("make room for it"))?;
        let zeros = Buffer::zeroed(ZEROS_BYTES);
        let mut at = range.start;
        while at < range.end {
            let piece = &zeros[..(range.end - at).min(ZEROS_BYTES as u64) as usize];
            match rustix::io::pwrite(&self.direct, piece, at) {
                Ok(0) => return Err(PoolError::Host("write zeros to it", Errno::EIO)),
                Ok(moved) => {
                    at += moved as u64;
                    wrote(moved as u64);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed("write zeros to it")(error)),
            }
        }
        self.sync()
    }

    /// Keeps others from making and removing volumes in it, as long as this is open.
    ///
    /// # Errors
    /// [`PoolError::InUse`] when somebody does so for longer than a minute; `ENOENT` when it was
    /// removed meanwhile.
    pub fn lock_for_making(&self) -> Result<()> {
        match wait_for_lock(&self.direct, MAKER_BYTE, OTHERS_TIME_MAX) {
            Err(Errno::EAGAIN) => return Err(PoolError::InUse),
            other => other.map_err(|errno| PoolError::Host("lock it", errno))?,
        }
        let stat = rustix::fs::fstat(&self.plain).map_err(failed("look at it"))?;
        match stat.st_nlink {
            0 => Err(PoolError::Host("use it", Errno::ENOENT)),
            _ => Ok(()),
        }
    }

    /// Removes a file in which no volume is, unless somebody uses it, or makes one.
    ///
    /// # Errors
    /// The host's.
    pub fn remove_if_empty(&self) -> Result<()> {
        self.lock_for_making()?;
        if lock_range(&self.direct, USE_BYTE, 1).is_err() {
            return Ok(());
        }
        let removed = match self.directory()?.volumes().is_empty() {
            // Durably: once it is told, nothing else may tell of the file.
            true => self.unpin().and_then(|()| {
                fs::remove_file(&self.path).map_err(|e| PoolError::Host("remove it", e.into()))?;
                image::sync_names(&self.path).map_err(image_error)
            }),
            false => Ok(()),
        };
        let _ = unlock_range(&self.direct, USE_BYTE, 1);
        removed
    }

    /// Where a volume lies on the disk, as its file system tells; offsets are the volume's.
    ///
    /// # Errors
    /// It is not there; the host's.
    pub fn extents_of(&self, id: &Id) -> Result<Vec<HostExtent>> {
        let directory = self.directory()?;
        let chunks = directory.chunks_of(&directory.find(id)?)?;
        let mut found: Vec<HostExtent> = Vec::new();
        for (index, chunk) in (0u64..).zip(chunks) {
            let Some(chunk) = chunk else { continue };
            let start = LAYOUT.chunk_at(chunk);
            let within = host::within(&self.plain, start..start + LAYOUT.chunk_bytes);
            let within =
                within.map_err(|errno| PoolError::Host("find out where it lies", errno))?;
            for extent in within {
                let (from, end) = (extent.offset.max(start), extent.offset + extent.length);
                let length = end.min(start + LAYOUT.chunk_bytes) - from;
                let physical = extent.physical + (from - extent.offset);
                let offset = index * LAYOUT.chunk_bytes + (from - start);
                let follows = |last: &&mut HostExtent| {
                    (last.offset + last.length, last.physical + last.length) == (offset, physical)
                };
                match found.last_mut().filter(follows) {
                    Some(last) => last.length += length,
                    None => found.push(HostExtent { offset, physical, length, ..extent }),
                }
            }
        }
        Ok(found)
    }

    /// The first `bytes` bytes of a volume, at most a chunk, as they are on the disk.
    ///
    /// # Errors
    /// It is not there; the medium's.
    pub fn peek(&self, id: &Id, bytes: usize) -> Result<Vec<u8>> {
        let directory = self.directory()?;
        let first = directory.chunks_of(&directory.find(id)?)?.first().copied().flatten();
        let Some(chunk) = first else { return Ok(vec![0; bytes]) };
        let whole = bytes.next_multiple_of(4096);
        let read = self.file_road()?.read(LAYOUT.chunk_at(chunk), whole);
        Ok(read.map_err(DirectoryError::Medium)?[..bytes].to_vec())
    }

    /// Makes room for `chunks` chunks in all. Nobody uses a volume in it, and nobody begins to
    /// meanwhile. `wrote` is told how many bytes were written, piece by piece.
    ///
    /// # Errors
    /// [`PoolError::InUse`]; the host is full.
    pub fn grow(&self, chunks: u32, wrote: &dyn Fn(u64)) -> Result<()> {
        match lock_range(&self.direct, USE_BYTE, 1) {
            Err(Errno::EAGAIN) => return Err(PoolError::InUse),
            other => other.map_err(|errno| PoolError::Host("lock it", errno))?,
        }
        let grown = self.grow_alone(chunks, wrote);
        let _ = unlock_range(&self.direct, USE_BYTE, 1);
        grown
    }

    fn grow_alone(&self, chunks: u32, wrote: &dyn Fn(u64)) -> Result<()> {
        self.unpin()?;
        let road = self.file_road()?;
        let mut directory = Directory::load_to_change(&road, LAYOUT, self.id)?;
        let start = LAYOUT.chunk_at(directory.chunk_count());
        if let Err(error) = self.write_zeros(start..LAYOUT.chunk_at(chunks), wrote) {
            let _ = rustix::fs::ftruncate(&self.plain, start);
            return Err(error);
        }
        directory.extend(&road, chunks)?;
        self.sync()
    }

    /// The file as a file.
    fn file_road(&self) -> Result<Road> {
        let device = file_device(&self.direct, &self.plain, &self.direct)?;
        let sectors = device.sector_count();
        Ok(Road::new(device, Extents::identity(sectors)))
    }

    /// Its directory as it is now.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn directory(&self) -> Result<Directory> {
        let road = self.file_road()?;
        Ok(Directory::load(&road, LAYOUT, self.id)?)
    }

    fn unpin(&self) -> Result<()> {
        match swap::off(&proc_path(&self.direct)) {
            // It was not pinned.
            Ok(()) | Err(Errno::EINVAL) => Ok(()),
            Err(errno) => Err(PoolError::Host("unpin it (swapoff)", errno)),
        }
    }

    /// Drops what of it is in the page cache, where it would hide what went past that from whoever
    /// reads the file, such as a backup. Nothing of it is dirty: it is synced when it is pinned.
    fn forget_cached(&self) {
        let _ = rustix::fs::fadvise(&self.plain, 0, None, rustix::fs::Advice::DontNeed);
    }

    /// Takes off what was to become more room, if growing was cut short: it may have holes, and
    /// blocks that were never written, and with either the file cannot be pinned.
    fn cut_to_size(&self) -> Result<()> {
        if lock_range(&self.direct, USE_BYTE, 1).is_err() {
            // Others use it, and did this.
            return Ok(());
        }
        let cut = self.cut_alone();
        let _ = unlock_range(&self.direct, USE_BYTE, 1);
        cut
    }

    fn cut_alone(&self) -> Result<()> {
        let bytes = rustix::fs::fstat(&self.plain).map_err(failed("look at it"))?.st_size as u64;
        let size = LAYOUT.chunk_at(self.directory()?.chunk_count());
        if bytes <= size || hold::is_pinned(&self.direct) {
            return Ok(());
        }
        rustix::fs::ftruncate(&self.plain, size).map_err(failed("cut it to its size"))?;
        self.sync()
    }

    /// Begins to use volumes in it: from here on it is pinned, unless somebody goes through the
    /// file, and all others do too then.
    ///
    /// # Errors
    /// The host is not fit, does not let us pin it; somebody grows it for longer than a minute.
    pub fn use_it(self) -> Result<Use> {
        self.cut_to_size()?;
        let begin = std::time::Instant::now();
        loop {
            match share_range(&self.direct, USE_BYTE, 1) {
                Ok(()) => break,
                Err(Errno::EAGAIN) if begin.elapsed() < OTHERS_TIME_MAX => {
                    polylane_base::sync::thread::sleep(Duration::from_millis(10));
                }
                Err(Errno::EAGAIN) => return Err(PoolError::InUse),
                Err(errno) => return Err(PoolError::Host("lock it", errno)),
            }
        }
        let disk = Disk::under(&self.plain)?;
        let used = Use { file: self, disk };
        match used.pin() {
            Ok(()) => Ok(used),
            Err(error) => {
                used.end();
                Err(error)
            }
        }
    }
}

/// A pool file in use. It stays pinned when this is dropped: [`end`](Use::end) ends that.
#[derive(Debug)]
pub struct Use {
    file: PoolFile,
    disk: Disk,
}

impl Use {
    fn pin(&self) -> Result<()> {
        // A process goes through the file: it cannot be pinned.
        if lock_range(&self.file.direct, FILE_BYTE, 1).is_err() {
            return Ok(());
        }
        let pinned = match swap::on(&proc_path(&self.file.direct)) {
            // It is: by somebody who uses it, or did so when he was killed.
            Ok(()) | Err(Errno::EBUSY) => Ok(()),
            Err(Errno::EPERM) => Err(Refused::NoRightToPin.into()),
            Err(errno) => Err(PoolError::Host("pin it (swapon)", errno)),
        };
        let _ = unlock_range(&self.file.direct, FILE_BYTE, 1);
        self.file.forget_cached();
        pinned
    }

    /// Descriptors for a process that opens volumes in it.
    ///
    /// # Errors
    /// The host's.
    pub fn files(&self) -> Result<PoolFiles> {
        let copy = |fd: &OwnedFd| {
            fd.try_clone().map_err(|error| PoolError::Host("open it again", error.into()))
        };
        Ok(PoolFiles { disk: copy(&self.disk.fd)?, pool: copy(&self.file.plain)? })
    }

    /// The pool file.
    pub fn file(&self) -> &PoolFile {
        &self.file
    }

    /// Makes a volume of zeros. `wrote` is told how many bytes of them had to be written.
    ///
    /// # Errors
    /// No room; the medium's.
    pub fn make_volume(&self, id: Id, size: u64, wrote: &dyn Fn(u64)) -> Result<()> {
        self.file.lock_for_making()?;
        let road = self.road()?;
        let volume = self.change(&road, |directory| {
            directory.reclaim(&road)?;
            directory.begin(&road, id, size)
        })?;
        let unclean = self.change(&road, |directory| Ok(directory.unclean(&volume)))?;
        for chunk in &unclean {
            let zeroed = road.zero(LAYOUT.chunk_at(*chunk), LAYOUT.chunk_bytes);
            zeroed.map_err(DirectoryError::Medium)?;
            wrote(LAYOUT.chunk_bytes);
        }
        road.flush().map_err(DirectoryError::Medium)?;
        self.change(&road, |directory| directory.finish(&road, &volume))
    }

    /// Removes a volume that nobody uses, if it is there.
    ///
    /// # Errors
    /// The medium's.
    pub fn remove_volume(&self, id: &Id) -> Result<()> {
        self.file.lock_for_making()?;
        let road = self.road()?;
        self.change(&road, |directory| {
            directory.reclaim(&road)?;
            match directory.find(id) {
                Ok(volume) => directory.remove(&road, &volume),
                Err(DirectoryError::NoVolume) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn change<T>(
        &self,
        road: &Road,
        change: impl FnOnce(&mut Directory) -> Result<T, DirectoryError>,
    ) -> Result<T> {
        wait_for_lock(&self.file.direct, DIRECTORY_BYTE, OTHERS_TIME_MAX)
            .map_err(|errno| PoolError::Host("lock its directory", errno))?;
        let result = Directory::load_to_change(road, LAYOUT, self.file.id);
        let result = result.and_then(|mut directory| change(&mut directory));
        let _ = unlock_range(&self.file.direct, DIRECTORY_BYTE, 1);
        Ok(result?)
    }

    /// The way to its bytes now.
    fn road(&self) -> Result<Road> {
        if !hold::is_pinned(&self.file.direct) {
            return self.file.file_road();
        }
        let map = hold::map(&self.file.direct, self.disk.sectors).map_err(map_error)?;
        let device = disk_device(&self.disk.fd, &self.file.plain, &self.file.direct, Way::Calls)?;
        Ok(Road::new(device, map))
    }

    /// Ends the use. The last one unpins the file.
    pub fn end(&self) {
        // A process that has just ended may take a moment to let go.
        if wait_for_lock(&self.file.direct, USE_BYTE, END_TIME_MAX).is_ok() {
            // What stays pinned harms nobody, and the next one takes it over.
            let _ = self.file.unpin();
            self.file.forget_cached();
        }
        let _ = unlock_range(&self.file.direct, USE_BYTE, 1);
    }
}

pub(super) fn map_error(error: MapError) -> PoolError {
    match error {
        MapError::Host(errno) => PoolError::Host("find out where it lies", errno),
        MapError::Doubt(doubt) => PoolError::Doubt(doubt),
    }
}

pub(super) fn copy(fd: &OwnedFd) -> Result<OwnedFd> {
    fd.try_clone().map_err(|error| PoolError::Host("open it again", error.into()))
}

pub(super) fn file_device(
    direct: &OwnedFd,
    plain: &OwnedFd,
    lock: &OwnedFd,
) -> Result<Arc<FileDevice>> {
    let files = Files { io: copy(direct)?, plain: copy(plain)?, lock: copy(lock)? };
    FileDevice::open_pool(files, Way::Ring).map_err(|errno| PoolError::Host("use it", errno))
}

pub(super) fn disk_device(
    disk: &OwnedFd,
    plain: &OwnedFd,
    lock: &OwnedFd,
    way: Way,
) -> Result<Arc<FileDevice>> {
    let files = Files { io: copy(disk)?, plain: copy(plain)?, lock: copy(lock)? };
    FileDevice::open_disk(files, way).map_err(|errno| PoolError::Host("use its disk", errno))
}

/// Descriptors of a pool file in use, to be handed to the process that opens a volume in it.
#[derive(Debug)]
pub struct PoolFiles {
    /// The disk under the pool file, with O_DIRECT.
    pub disk: OwnedFd,
    /// The pool file.
    pub pool: OwnedFd,
}

pub(super) fn id_of(direct: &OwnedFd) -> Result<Id> {
    let mut bytes = Buffer::zeroed(ID_BYTES);
    let read = rustix::io::pread(direct, &mut bytes[..], ID_AT).map_err(failed("read it"))?;
    let head: &Head = record::at(&bytes, 0);
    let is_right = read == ID_BYTES && *head == Head::of(head.id);
    if is_right { Ok(head.id) } else { Err(PoolError::Head) }
}

polylane_base::record! {
    /// What lies at [`ID_AT`].
    struct Head: 36 {
        /// [`ID_MAGIC`].
        0x00 magic: [u8; 16],
        0x10 id: Id,
        /// CRC32C of what is before it.
        0x20 checksum: U32,
    }
}

impl Head {
    fn of(id: Id) -> Head {
        let mut head = Head { magic: ID_MAGIC, id, checksum: U32::ZERO };
        let summed = &head.as_bytes()[..offset_of!(Head, checksum)];
        head.checksum = crc32c::crc32c(summed).into();
        head
    }
}

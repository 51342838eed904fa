//! A volume with all that is under it: its own file and, for a copy-on-write volume, its bases.
//!
//! What is a copy-on-write volume is decided by the sidecar *and* the trailer: the sidecar names
//! nonces with the base that belongs to each, and the file's trailer has one of them. A guest can
//! write any bytes to the end of a raw volume, but knows no nonce; and a file can be exchanged for
//! another atomically, with a sidecar beside it that knows both.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use polylane_base::Errno;
use polylane_base::shown::Shown;
use polylane_base::sync::Arc;
use polylane_block::BlockDevice;
use polylane_block::bypass::{Claim, Id, Opened};
use polylane_block::cache::host::HostStore;
use polylane_block::cache::{Cached, Mode};
use polylane_block::engine::{Engine, Options};
use polylane_block::file::{FileDevice, Files, Totals, Way};
use polylane_block::image::{self, ImageError};
use polylane_block::map::Unit;
use polylane_block::medium::Medium;
use polylane_block::overlay::Overlay;
use polylane_block::qos::governed::{Governed, Governor};
use polylane_block::remote::Remote;
use polylane_block::replace::Replaceable;
use rustix::fs::SeekFrom;

use crate::cache::{CacheSpec, through_page_cache};
use crate::failure::{Failure, Result, say};
use crate::host::failure;
use crate::pool_file::{self, Parts, Pinned};
use crate::sidecar::damage::refuse_damage;
use crate::sidecar::trailer::{format_of, reference};
use crate::sidecar::{BypassRef, OverlayRef, Sidecar, known, locate, path_of};
use crate::trust;

/// Bases below bases, at most.
pub(crate) const DEPTH_MAX: usize = 16;

/// The open files of a volume.
#[derive(Debug)]
pub struct Stack {
    /// Its own first, then base below base.
    pub files: Vec<Files>,
    /// Bytes, as the tenant sees it.
    pub size: u64,
    /// Its sidecar.
    pub sidecar: Sidecar,
    /// The pool file that its bytes are in, of a bypass volume.
    pub pinned: Option<Pinned>,
}

/// What a volume's own bytes are on.
pub enum Own {
    /// A file.
    File(Arc<FileDevice>),
    /// Chunks of a pool file.
    Bypass(Opened),
    /// An image in a cluster.
    Remote(Arc<dyn Remote>),
}

impl Own {
    /// It as it is, without what the engine on it knows.
    pub(crate) fn medium(&self) -> Arc<dyn Medium> {
        match self {
            Own::File(file) => file.clone(),
            Own::Bypass(volume) => volume.clone(),
            Own::Remote(image) => image.clone(),
        }
    }

    /// What was done.
    pub fn totals(&self) -> Totals {
        match self {
            Own::File(file) => file.totals(),
            Own::Bypass(volume) => volume.totals(),
            Own::Remote(image) => image.totals(),
        }
    }

    /// Takes a new size over. A bypass volume has one size as long as it is open.
    pub fn grow(&self) -> polylane_base::Result<()> {
        match self {
            Own::File(file) => file.grow(),
            Own::Bypass(_) => Err(polylane_base::Errno::EBUSY),
            Own::Remote(image) => image.grow().map_err(Into::into),
        }
    }

    /// Whether a failure stopped it.
    pub fn is_stopped(&self) -> bool {
        match self {
            Own::File(file) => file.is_stopped(),
            Own::Bypass(volume) => volume.is_stopped(),
            Own::Remote(image) => image.is_stopped(),
        }
    }

    /// Whether requests go past the host's file system.
    pub fn is_bypassing(&self) -> bool {
        matches!(self, Own::Bypass(volume) if volume.is_on_disk())
    }
}

impl Stack {
    /// Opens a volume alone, and its bases together with other volumes on them.
    pub fn open(path: &Path) -> Result<Stack> {
        let own = image::open(path).map_err(|error| failure(path, error))?;
        Stack::from_own(path, own)
    }

    /// The rest of a stack.
    pub(crate) fn from_own(path: &Path, own: Files) -> Result<Stack> {
        let stack = Stack::whole(path, own)?;
        match stack.sidecar.removing {
            false => Ok(stack),
            true => Err(Failure::failed(format!(
                "{0}: its removal was cut short: 'polylane volume rm {0}' ends it",
                path.display()
            ))),
        }
    }

    /// The same, also of a snapshot whose removal was cut short.
    pub(crate) fn whole(path: &Path, own: Files) -> Result<Stack> {
        trust::check_reached(path, &own.plain)?;
        let sidecar = Sidecar::load(path)?;
        let size = rustix::fs::seek(&own.plain, SeekFrom::End(0))
            .map_err(|error| Failure::path(path, "find its size", error))?;
        if let Some(bypass) = sidecar.bypass.clone() {
            return Stack::bypass(path, own, sidecar, &bypass);
        }
        let size = match reference(&own.plain, &sidecar) {
            Some((_, size)) => size,
            None => refuse_damage(path, &own.plain, &sidecar).map(|()| size)?,
        };
        let bases = Stack::bases(path, &own.plain, &sidecar)?;
        if !bases.is_empty() && !path_of(path).exists() {
            // One that was copied or moved without its sidecar: its base knows it by the record.
            known::note(path, &sidecar);
        }
        let files = std::iter::once(own).chain(bases).collect();
        Ok(Stack { size, files, sidecar, pinned: None })
    }

    /// The bases of a volume whose own file is `own`, base below base.
    ///
    /// # Errors
    /// One is not there, is not what the volume was made on, or others may have named it; the
    /// host's.
    pub fn bases(path: &Path, own: &OwnedFd, sidecar: &Sidecar) -> Result<Vec<Files>> {
        /// A snapshot that is merged changes what is seen a few times.
        const WALKS_MAX: usize = 8;
        let mut last = None;
        for _ in 1..WALKS_MAX {
            let mut seen = Vec::new();
            match walk((path, own, sidecar), &mut seen) {
                // It may have seen one snapshot before two were merged, and another after.
                Err(_) if last.as_ref() != Some(&seen) => last = Some(seen),
                walked => return walked,
            }
        }
        walk((path, own, sidecar), &mut Vec::new())
    }

    /// What is to be known of it to copy it.
    pub(crate) fn shape(&self) -> Shape {
        Shape { size: self.size, depth: self.files.len() - 1, sidecar: self.sidecar.clone() }
    }

    /// A bypass volume, whose pool file is used from here on.
    pub(crate) fn bypass(
        path: &Path,
        own: Files,
        sidecar: Sidecar,
        bypass: &BypassRef,
    ) -> Result<Stack> {
        let pinned = Some(Pinned::open(path, bypass)?);
        Ok(Stack { size: bypass.size, files: vec![own], sidecar, pinned })
    }

    /// Whether it is the file as it is.
    pub fn is_raw(&self) -> bool {
        self.files.len() == 1 && self.pinned.is_none()
    }

    /// Takes it over in this process, to be assembled. The pool file of a bypass volume is in use
    /// as long as what comes with it lives.
    pub(crate) fn parts(self) -> Result<(Parts, Option<Pinned>)> {
        let Stack { files, sidecar, pinned, .. } = self;
        let claim = match (&pinned, files.first()) {
            (Some(pinned), Some(own)) => Some(pool_file::claim(own, pinned.files()?)?),
            _ => None,
        };
        let id = sidecar.bypass.as_ref().map(|bypass| bypass.id.as_str());
        Ok((pool_file::parts(files, claim, id)?, pinned))
    }

    /// The volume as a device: an engine on its own file, an overlay on that where it has bases.
    /// Without a `unit` requests go to the files as they are; so do those that the host's page
    /// cache is to keep, since two ways to a file cannot share an engine's map of it. A
    /// `governor` has what goes on to the files charged and held back: not what the volume's own
    /// cache finds, and what the host's page cache finds like the rest, which nobody can tell
    /// before.
    pub fn assemble(
        parts: Parts,
        way: Way,
        unit: Option<(Arc<Unit>, Options)>,
        cache: CacheSpec,
        governor: Option<&Arc<Governor>>,
    ) -> Result<Assembled> {
        let failed = |error: std::io::Error| Failure::because("volume", "use it as a disk", error);
        let refused = |error| failed(polylane_base::Errno::from(error).into());
        let Parts { files, bypass, remote } = parts;
        if let Some(image) = remote {
            return Stack::assemble_remote(image, unit, cache, governor);
        }
        if let Some((claim, id)) = bypass {
            return Stack::assemble_bypass((claim, id), way, unit, cache, governor);
        }
        let mut files = files.into_iter();
        let own = files.next().ok_or_else(|| Failure::failed("volume: no file was handed down"))?;
        let format = format_of(&own.plain);
        let buffered = cache.in_host().then(|| through_page_cache(&own, way, cache.mode));
        let buffered = buffered.transpose().map_err(failed)?;
        let (unit, options) = unit.filter(|_| buffered.is_none()).unzip();
        let options = options.unwrap_or_default();
        let file = FileDevice::open(own, way).map_err(|error| failed(error.into()))?;
        let engine = Engine::open(file.clone(), unit, &options).map_err(refused)?;
        let in_host = buffered.clone().map(|buffered| {
            let store = HostStore::new(buffered, engine.clone(), cache.mode == Mode::Pdc);
            Cached::new(store, cache.mode)
        });
        let top: Arc<dyn BlockDevice> = match &in_host {
            Some(cached) => cached.clone(),
            None => engine.clone(),
        };
        let base = Stack::below(files.collect(), way, cache)?.map(Replaceable::new);
        let device: Arc<dyn BlockDevice> = match &base {
            None => top,
            Some(base) => Overlay::open(base.clone(), top, format).map_err(refused)?,
        };
        let (device, over) = finish(device, cache, governor);
        let own = Own::File(file);
        Ok(Assembled { device, base, engine, own, buffered, cache: in_host.or(over) })
    }

    /// The bases of a volume as one device, base below base; `None`: it has none.
    pub fn below(
        files: Vec<Files>,
        way: Way,
        cache: CacheSpec,
    ) -> Result<Option<Arc<dyn BlockDevice>>> {
        let failed = |error: std::io::Error| Failure::because("volume", "use its bases", error);
        let mut below: Option<Arc<dyn BlockDevice>> = None;
        for files in files.into_iter().rev() {
            let format = format_of(&files.plain);
            let base = match cache.in_host() {
                true => through_page_cache(&files, way, cache.mode).map_err(failed)?,
                false => FileDevice::open(files, way).map_err(|error| failed(error.into()))?,
            };
            below = Some(match below {
                None => base,
                Some(below) => Overlay::open(below, base, format)
                    .map_err(|error| failed(polylane_base::Errno::from(error).into()))?,
            });
        }
        Ok(below)
    }

    /// The same of a bypass volume, which has no bases and nothing in the page cache.
    fn assemble_bypass(
        (claim, id): (Claim, Id),
        way: Way,
        unit: Option<(Arc<Unit>, Options)>,
        cache: CacheSpec,
        governor: Option<&Arc<Governor>>,
    ) -> Result<Assembled> {
        refuse_host_cache(cache)?;
        let tell = |line: &str| say(format_args!("volume: {line}"));
        let opened = claim.open(id, way, Box::new(tell));
        let opened = opened.map_err(|error| Failure::failed(format!("volume: {error}")))?;
        let own = Own::Bypass(opened);
        // All of it is written already.
        let (unit, options) = unit.unzip();
        let options = Options { ahead_bytes: 0, ..options.unwrap_or_default() };
        let engine = Engine::open(own.medium(), unit, &options).map_err(|error| {
            let errno = polylane_base::Errno::from(error);
            Failure::because("volume", "use it as a disk", errno)
        })?;
        let (device, over) = finish(engine.clone(), cache, governor);
        Ok(Assembled { device, base: None, engine, own, buffered: None, cache: over })
    }

    /// The same of an image in a cluster, of whose space nothing is told.
    fn assemble_remote(
        image: Arc<dyn Remote>,
        unit: Option<(Arc<Unit>, Options)>,
        cache: CacheSpec,
        governor: Option<&Arc<Governor>>,
    ) -> Result<Assembled> {
        refuse_host_cache(cache)?;
        let own = Own::Remote(image);
        let options = unit.map(|(_, options)| options).unwrap_or_default();
        let options = Options { ahead_bytes: 0, must_translate: false, ..options };
        let engine = Engine::open(own.medium(), None, &options).map_err(|error| {
            let errno = polylane_base::Errno::from(error);
            Failure::because("volume", "use it as a disk", errno)
        })?;
        let (device, over) = finish(engine.clone(), cache, governor);
        Ok(Assembled { device, base: None, engine, own, buffered: None, cache: over })
    }
}

/// Refuses a cache in the host's page cache for what is no file of the host.
fn refuse_host_cache(cache: CacheSpec) -> Result<()> {
    match cache.in_host() {
        true => Err(Failure::failed(
            "volume: bypasses the host's page cache: use --cache-store own, or --cache none",
        )),
        false => Ok(()),
    }
}

/// The top of a volume: who charges for its I/O, and above that its cache, where that is the place
/// for it.
fn finish(
    whole: Arc<dyn BlockDevice>,
    cache: CacheSpec,
    governor: Option<&Arc<Governor>>,
) -> (Arc<dyn BlockDevice>, Option<Arc<Cached>>) {
    let charged = match governor {
        Some(governor) => Governed::new(whole, governor.clone()),
        None => whole,
    };
    let over = cache.over(&charged);
    let top = over.clone().map_or(charged, |cached| cached as _);
    (top, over)
}

/// A volume as a copy sees it.
pub(crate) struct Shape {
    /// Bytes, as the tenant sees it.
    pub(crate) size: u64,
    /// Bases below its own file.
    pub(crate) depth: usize,
    /// Its sidecar.
    pub(crate) sidecar: Sidecar,
}

impl Shape {
    /// That of a volume that somebody else has open, by its file.
    pub(crate) fn of(path: &Path, file: &File) -> Result<Shape> {
        let end = file.metadata().map_err(|error| Failure::path(path, "look at it", error))?.len();
        let sidecar = Sidecar::load(path)?;
        let mut below = reference(file, &sidecar);
        let mut shape = Shape { size: end, depth: 0, sidecar };
        if let Some((_, size)) = &below {
            shape.size = *size;
        }
        let (mut above, mut its) = (path.to_path_buf(), shape.sidecar.clone());
        let mut owner = trust::owner_of(file);
        while let Some((next, _)) = below {
            shape.depth += 1;
            if shape.depth > DEPTH_MAX {
                break;
            }
            let (base, file) = open_base((&above, &its, owner), &next)?;
            its = Sidecar::load(&base)?;
            below = reference(&file, &its);
            (above, owner) = (base, trust::owner_of(&file));
        }
        Ok(shape)
    }

    /// Refuses one that is on as many bases as there may be.
    pub(crate) fn refuse_depth(&self, path: &Path) -> Result<()> {
        match self.depth < DEPTH_MAX {
            true => Ok(()),
            false => Err(Failure::failed(format!(
                "{}: is on {DEPTH_MAX} bases, the most there may be: make it one file with \
                 'polylane volume resize {} {}' when nobody uses it, or remove an old snapshot of \
                 it with 'polylane volume rm'",
                path.display(),
                path.display(),
                self.size
            ))),
        }
    }
}

/// A volume that is ready to be used.
pub struct Assembled {
    /// The whole of it.
    pub device: Arc<dyn BlockDevice>,
    /// All that is below its own file, if anything is.
    pub base: Option<Arc<Replaceable>>,
    /// The engine on its own file.
    pub engine: Arc<Engine>,
    /// What its own bytes are on.
    pub own: Own,
    /// The same through the host's page cache, if anything goes there.
    pub buffered: Option<Arc<FileDevice>>,
    /// Its cache, if it has one.
    pub cache: Option<Arc<Cached>>,
}

/// One walk down the bases of a volume. `seen` gets the files and sidecars that it found, also when
/// it fails.
fn walk(
    (path, own, sidecar): (&Path, &OwnedFd, &Sidecar),
    seen: &mut Vec<(Option<(u64, u64)>, Sidecar)>,
) -> Result<Vec<Files>> {
    let mut found: Vec<Files> = Vec::new();
    let mut below = reference(own, sidecar);
    let (mut above, mut its) = (path.to_path_buf(), sidecar.clone());
    let mut owner = trust::owner_of(own);
    while let Some((next, size)) = below {
        if found.len() >= DEPTH_MAX {
            return Err(Failure::failed(format!("{}: too many bases", path.display())));
        }
        let base = locate(&above, &next);
        let files = image::open_shared(&base).map_err(|error| match error {
            ImageError::Host(_, Errno::ENOENT) => no_base(&base, &above),
            error => failure(&base, error),
        })?;
        check_base((&above, &its, owner), &base, &files.plain)?;
        let sidecar = Sidecar::load(&base)?;
        let stat = rustix::fs::fstat(&files.plain).ok();
        seen.push((stat.map(|stat| (stat.st_dev, stat.st_ino)), sidecar.clone()));
        below = reference(&files.plain, &sidecar);
        if below.is_none() {
            refuse_damage(&base, &files.plain, &sidecar)?;
        }
        let end = rustix::fs::seek(&files.plain, SeekFrom::End(0)).unwrap_or(0);
        let base_size = below.as_ref().map_or(end, |(_, size)| *size);
        if sidecar.id != next.base_id || base_size != size {
            return Err(Failure::failed(format!(
                "{}: is not the base that {} was made on",
                base.display(),
                above.display()
            )));
        }
        owner = trust::owner_of(&files.plain);
        found.push(files);
        (above, its) = (base, sidecar);
    }
    Ok(found)
}

/// Refuses a base that others than the volume's owner may have named as such.
///
/// `above`: the volume on it, with its sidecar and the owner of its file, unless that is gone.
pub(crate) fn check_base(
    (above, sidecar, owner): (&Path, &Sidecar, Option<u32>),
    base: &Path,
    file: impl AsFd,
) -> Result<()> {
    let stat = rustix::fs::fstat(&file);
    let stat = stat.map_err(|error| Failure::path(base, "look at it", error))?;
    trust::check_reached(base, &file)?;
    let author = sidecar.author.and(trust::way_to(base).unwrap_or_default().author);
    let may = trust::may_be_base(author, owner, &stat, false);
    if may || (trust::may_be_base(author, owner, &stat, true) && known::is_base(above, &file)) {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{}: is not taken for the base of {}: other users may have named it as such: keep both in \
         a directory that only their owner may write to",
        base.display(),
        above.display()
    )))
}

/// Opens the base of a volume for a look at it. See [`check_base`].
pub(crate) fn open_base(
    above: (&Path, &Sidecar, Option<u32>),
    overlay: &OverlayRef,
) -> Result<(PathBuf, File)> {
    let base = locate(above.0, overlay);
    let opened = trust::open_beside(&base)?;
    let (file, _) = opened.ok_or_else(|| no_base(&base, above.0))?;
    check_base(above, &base, &file)?;
    Ok((base, File::from(file)))
}

fn no_base(base: &Path, above: &Path) -> Failure {
    Failure::failed(format!(
        "{}: is not there, and {} is on it: put it back where it was",
        Shown::new(base),
        Shown::new(above)
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::host::SECTOR_BYTES;
    use crate::sidecar::trailer::{TRAILER_BYTES, make_top};
    use polylane_base::rng::Rng;
    use polylane_block::overlay::{Format, HEAD_SECTORS};

    const SIZE: u64 = 1 << 20;

    /// A volume on a base, as `clone` makes it.
    fn copy(dir: &Path) -> (PathBuf, PathBuf) {
        let (base, volume) = (dir.join("base"), dir.join("volume"));
        std::fs::write(&base, vec![7; SIZE as usize]).expect("write");
        let below = Sidecar { snapshot: true, ..Sidecar::new().expect("id") };
        below.store(&base).expect("store");
        let nonce = Sidecar::fresh_id().expect("nonce");
        let file = OwnedFd::from(File::create_new(&volume).expect("create"));
        make_top(&file, SIZE, &nonce).expect("top");
        let (base_id, was_at) = (below.id, None);
        let overlay = OverlayRef { nonce, base: "base".into(), base_id, was_at };
        let own = Sidecar { overlays: vec![overlay], ..Sidecar::new().expect("id") };
        own.store(&volume).expect("store");
        (base, volume)
    }

    #[test]
    fn a_damaged_trailer_is_named_and_never_taken_for_a_raw_volume() {
        let dir = tempfile::tempdir().expect("dir");
        let (_, volume) = copy(dir.path());
        let stack = Stack::open(&volume).expect("whole");
        assert_eq!((stack.files.len(), stack.size), (2, SIZE));
        drop(stack);
        let file = File::options().read(true).write(true).open(&volume).expect("open");
        let start = file.metadata().expect("stat").len() - TRAILER_BYTES as u64;
        let mut whole = [0; 60];
        file.read_exact_at(&mut whole, start).expect("read");
        for at in 0..whole.len() {
            let mut damaged = whole;
            damaged[at] ^= 1 << (at % 8);
            file.write_all_at(&damaged, start).expect("write");
            let refused = Stack::open(&volume).map(drop).expect_err("damaged");
            assert!(refused.line.contains("volume: its trailer is damaged"), "{at}: {refused}");
        }
        file.write_all_at(&whole, start).expect("write");
        Stack::open(&volume).expect("whole again");
    }

    /// Turns a copy's file into one of the first format, with its first block its own.
    fn make_first_format(volume: &Path) {
        let file = File::options().read(true).write(true).open(volume).expect("open");
        let mut trailer = [0; TRAILER_BYTES];
        let end = file.metadata().expect("stat").len();
        file.read_exact_at(&mut trailer, end - TRAILER_BYTES as u64).expect("read");
        trailer[56..60].fill(0);
        file.set_len(0).expect("cut");
        file.write_all_at(&[5; 4096], 0).expect("write");
        // The map of 256 blocks, with the first one's bit.
        file.write_all_at(&[1], SIZE).expect("write");
        file.write_all_at(&trailer, SIZE + 4096).expect("write");
    }

    #[test]
    fn a_copy_of_the_first_format_is_opened_as_it_is() {
        let dir = tempfile::tempdir().expect("dir");
        let (_, volume) = copy(dir.path());
        make_first_format(&volume);
        for _ in 0..2 {
            let (parts, _) = Stack::open(&volume).and_then(Stack::parts).expect("opens");
            let whole = Stack::assemble(parts, Way::Calls, None, CacheSpec::default(), None);
            let waiter = polylane_block::wait::Waiter::new(whole.expect("fits").device);
            let read = waiter.read(polylane_block::Sector(0), SIZE as usize).expect("read");
            assert!(read[..4096].iter().all(|byte| *byte == 5), "its own block");
            assert!(read[4096..].iter().all(|byte| *byte == 7), "the base's");
            let data = polylane_sys::buffer::Buffer::copy_of(&[5; 512]);
            waiter.write(polylane_block::Sector(3), data, true).expect("write");
        }
        assert_eq!(format_of(File::open(&volume).expect("open")), Format::V1);
        look(&volume);
        let looked = crate::space::measure(
            &volume,
            &File::open(&volume).expect("open"),
            &Sidecar::load(&volume).expect("sidecar"),
        );
        assert_eq!(looked.expect("measured").mapped, SIZE);
    }

    #[test]
    fn a_volume_that_lost_its_trailer_or_its_sidecar_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("dir");
        let (_, volume) = copy(dir.path());
        let refused = |path: &Path| Stack::open(path).map(drop).expect_err("not whole").line;
        // Beside the volume its nonce is known.
        let second = dir.path().join("second");
        std::fs::copy(&volume, &second).expect("copy");
        assert_eq!(Stack::open(&second).expect("found").files.len(), 2);
        Sidecar::new().and_then(|sidecar| sidecar.store(&second)).expect("store");
        assert!(refused(&second).contains("took the name of another volume"));
        std::fs::create_dir(dir.path().join("apart")).expect("mkdir");
        let alone = dir.path().join("apart/alone");
        std::fs::copy(&volume, &alone).expect("copy");
        assert!(refused(&alone).contains("alone: is a copy-on-write volume without its sidecar"));
        // A guest may write what it likes to a volume of which it is known that it is raw.
        Sidecar::new().and_then(|sidecar| sidecar.store(&alone)).expect("store");
        assert_eq!(Stack::open(&alone).expect("raw").files.len(), 1);
        let file = File::options().write(true).open(&volume).expect("open");
        for size in [SIZE + 4096, SIZE, SIZE / 2, 0] {
            file.set_len(size).expect("cut");
            let line = refused(&volume);
            assert!(
                line.contains("volume: was cut, or replaced: it was a copy on 'base'"),
                "{line}"
            );
        }
        // While its form changes it may be either.
        let sidecar = Sidecar::load(&volume).expect("sidecar");
        Sidecar { raw: true, ..sidecar }.store(&volume).expect("store");
        assert_eq!(Stack::open(&volume).expect("raw").files.len(), 1);
    }

    /// Changes one value of a sidecar, and keeps it JSON.
    fn change_a_field(text: &[u8], rng: &mut Rng) -> Vec<u8> {
        let mut json: serde_json::Value = serde_json::from_slice(text).expect("JSON");
        let fields = json.as_object_mut().expect("an object");
        let at = rng.below(fields.len() as u64) as usize;
        let value = fields.values_mut().nth(at).expect("a field");
        let value = match value.as_array_mut().filter(|_| rng.below(4) > 0) {
            Some(list) if !list.is_empty() => &mut list[0],
            _ => value,
        };
        let other = [
            serde_json::Value::Null,
            true.into(),
            rng.next_u64().into(),
            "../../etc".into(),
            "0".repeat(32).into(),
            serde_json::json!([]),
            serde_json::json!({"nonce": "", "base_id": "", "base": "/"}),
        ];
        *value = other[rng.below(other.len() as u64) as usize].clone();
        serde_json::to_vec(&json).expect("JSON")
    }

    /// What the commands that look see of a volume: it, or one line that names a file of it.
    fn look(volume: &Path) {
        let looked = [
            crate::info::info(volume).map(drop),
            crate::layers::map(volume).map(drop),
            crate::space::is_blank(volume).map(drop),
        ];
        for failure in looked.into_iter().filter_map(Result::err) {
            assert!(
                failure.line.starts_with('/') && failure.line.lines().count() == 1,
                "{failure}"
            );
        }
    }

    fn assert_names_a_structure(line: &str) {
        let structures = [
            "not a sidecar",
            "trailer is damaged",
            "trailer is missing",
            "is not the base",
            "open it",
            "is not there, and",
            "too many bases",
            "its making was cut short",
            "cannot use it",
            "not a regular file",
        ];
        let named = structures.iter().any(|structure| line.contains(structure));
        assert!(named && line.starts_with("/"), "{line}");
    }

    #[test]
    fn random_damage_is_refused_or_shows_blocks_of_the_volume_or_its_base() {
        let dir = tempfile::tempdir().expect("dir");
        let (_, volume) = copy(dir.path());
        let original = std::fs::read(&volume).expect("read");
        let sidecar = std::fs::read(crate::sidecar::path_of(&volume)).expect("read");
        let mut rng = Rng::new(1);
        let base = dir.path().join("base");
        let below = std::fs::read(crate::sidecar::path_of(&base)).expect("read");
        let (mut opened, mut refused) = (0, 0);
        for round in 0..800 {
            let (mut bytes, mut beside) = (original.clone(), sidecar.clone());
            let mut under = below.clone();
            let map = (SIZE as usize)..bytes.len();
            let head = map.end - TRAILER_BYTES - (HEAD_SECTORS * SECTOR_BYTES) as usize;
            let head = head..map.end - TRAILER_BYTES;
            for _ in 0..1 + rng.below(4) {
                let at = map.start + rng.below(map.len() as u64) as usize;
                // What is between map and trailer is data.
                if !head.contains(&at) {
                    bytes[at] = rng.next_u64() as u8;
                }
            }
            if round % 3 == 0 {
                let at = rng.below(beside.len() as u64) as usize;
                beside[at] = rng.next_u64() as u8;
            }
            match round % 8 {
                1 => under[rng.below(below.len() as u64) as usize] = rng.next_u64() as u8,
                3 => bytes.truncate(rng.below(bytes.len() as u64) as usize),
                2 => beside = change_a_field(&sidecar, &mut rng),
                4 => under = change_a_field(&below, &mut rng),
                5 => beside.truncate(rng.below(beside.len() as u64) as usize),
                7 => under.truncate(rng.below(under.len() as u64) as usize),
                _ => {}
            }
            std::fs::write(&volume, &bytes).expect("write");
            std::fs::write(crate::sidecar::path_of(&volume), &beside).expect("write");
            std::fs::write(crate::sidecar::path_of(&base), &under).expect("write");
            look(&volume);
            let stack = match Stack::open(&volume) {
                Ok(stack) => stack,
                Err(failure) => {
                    assert_names_a_structure(&failure.line);
                    refused += 1;
                    continue;
                }
            };
            let is_raw = stack.is_raw();
            let (parts, _) = stack.parts().expect("files");
            let whole = Stack::assemble(parts, Way::Calls, None, CacheSpec::default(), None);
            let waiter = polylane_block::wait::Waiter::new(whole.expect("assemble").device);
            // One that was cut may be left with nothing at all.
            let bytes = (waiter.device().sector_count() * SECTOR_BYTES).min(SIZE) as usize;
            if bytes > 0 {
                let read = waiter.read(polylane_block::Sector(0), bytes).expect("read");
                // One of which the sidecar says that it is no copy shows its own label.
                let label = if is_raw { bytes.min(4096) } else { 0 };
                assert!(read[label..].iter().all(|byte| matches!(byte, 0 | 7)), "{round}");
            }
            opened += 1;
        }
        assert!(opened > 50 && refused > 10, "{opened} opened, {refused} refused");
    }
}

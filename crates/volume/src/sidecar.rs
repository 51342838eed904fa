//! What a raw file cannot say about the volume in it: a small JSON file beside it.
//!
//! `VOLUME.polylane`, fields in docs/design/volume.md. A volume without one is an ordinary volume;
//! fields that this version does not know are ignored and lost when it writes the file. The file is
//! replaced as a whole, so a reader sees the old one or the new one, also after a power cut; what
//! was stored is durable.
//!
//! It is the word of whoever could have written it (`trust`). Where that is another user, fields
//! by which this user is bound are taken from this user's own record of the volume (`known`).

mod copied;
pub(crate) mod damage;
pub(crate) mod known;
pub(crate) mod trailer;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use polylane_base::Errno;
use polylane_block::bypass::Id;
use polylane_block::image;
use polylane_block::qos::board::WEIGHTS;
use polylane_sys::lock::lock_range;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, linkat};
use serde::{Deserialize, Serialize};

use crate::cache::CacheSpec;
use crate::failure::{Failure, Result};
use crate::host::failure;
use crate::naming;
use crate::path_text;
use crate::translation::Translation;
use crate::trust::{self, Author};
use trailer::reference;

/// Largest sidecar in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// The content.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Sidecar {
    /// 32 hexadecimal digits, never given twice.
    pub id: String,
    /// Id of the volume that this one was copied from.
    pub parent: Option<String>,
    /// The file system that was put on it here, as long as nobody else can have written its blocks.
    pub formatted: Option<String>,
    /// A state of its parent that is to stay as it is: never opened for writing.
    pub snapshot: bool,
    /// Share of a pool that is given none on the command line.
    pub weight: Option<u32>,
    /// How it is cached by whoever is told nothing else.
    pub cache: Option<CacheSpec>,
    /// Where its guest's journals lay when it was attached last: first byte and end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub journals: Vec<(u64, u64)>,
    /// How it is translated by whoever is told nothing else.
    #[serde(skip_serializing_if = "is_default")]
    pub translation: Translation,
    /// Where its bytes are, of a bypass volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bypass: Option<BypassRef>,
    /// What a copy-on-write volume is on, by the nonce in its file.
    pub overlays: Vec<OverlayRef>,
    /// The file may be raw although `overlays` names bases: a copy of it, or making it one file, is
    /// under way or was cut short.
    #[serde(skip_serializing_if = "is_false")]
    pub raw: bool,
    /// Volumes that are on this one.
    #[serde(with = "path_text::many")]
    pub children: Vec<PathBuf>,
    /// Copies of this one that are being made. One whose making was cut short never was, so it
    /// counts only while it is there.
    #[serde(with = "path_text::many", skip_serializing_if = "Vec::is_empty")]
    pub making: Vec<PathBuf>,
    /// Made to be a base, and to go with the last of its children.
    pub implicit: bool,
    /// Of a copy: the nonce of the overlay that has its name until it gets its content. A file with
    /// this nonce is a copy that was cut short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub awaits: Option<String>,
    /// Its removal has begun: it goes on as a base alone, since blocks of it that the one above
    /// hides may have changed.
    #[serde(skip_serializing_if = "is_false")]
    pub removing: bool,
    /// The users that may have written all this.
    #[serde(skip)]
    pub author: Author,
}

/// A base of a copy-on-write volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OverlayRef {
    /// In the trailer of the volume's file.
    pub nonce: String,
    /// The base's file, seen from the volume's directory.
    #[serde(with = "path_text::one")]
    pub base: PathBuf,
    /// The base's id.
    pub base_id: String,
    /// Where the base was when the volume was put on it: for a volume that was moved away from it.
    #[serde(with = "path_text::maybe", skip_serializing_if = "Option::is_none", default)]
    pub was_at: Option<PathBuf>,
}

fn is_default(translation: &Translation) -> bool {
    *translation == Translation::default()
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Where the sidecar of a volume is.
pub fn path_of(volume: &Path) -> PathBuf {
    let mut path = volume.as_os_str().to_os_string();
    path.push(".polylane");
    PathBuf::from(path)
}

/// Where the next one of a volume is until it takes the place of the last.
fn draft_of(volume: &Path) -> PathBuf {
    let mut path = path_of(volume).into_os_string();
    path.push(".new");
    PathBuf::from(path)
}

/// Removes a file, which need not be there.
///
/// # Errors
/// The host's.
pub(crate) fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::path(path, "remove it", error))
        }
        _ => Ok(()),
    }
}

/// What a sidecar holds, and who may have written it; `None`: there is none. `names`: who decides
/// about names in its directory.
///
/// # Errors
/// It is a link, not a regular file, too large, or of a user who has nothing to do with the volume.
fn read(volume: &Path, names: Author) -> Result<Option<(Vec<u8>, Author)>> {
    let path = &path_of(volume);
    let Some((file, stat)) = trust::open_beside(path)? else { return Ok(None) };
    let writer = Author::of_file(&stat);
    let strange = owner(volume).is_some_and(|owner| owner != stat.st_uid);
    if names == Author::Caller && writer != Author::Caller && strange {
        return Err(Failure::failed(format!(
            "{}: user {} may have written it, to whom the volume does not belong: remove it",
            path.display(),
            stat.st_uid
        )));
    }
    let mut text = Vec::new();
    let file = fs::File::from(file);
    let read = file.take(BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(|error| Failure::path(path, "read it", error))?;
    match text.len() as u64 > BYTES_MAX {
        true => Err(Failure::failed(format!("{}: too large for a sidecar", path.display()))),
        false => Ok(Some((text, writer))),
    }
}

/// The owner of a volume's file.
fn owner(volume: &Path) -> Option<u32> {
    rustix::fs::lstat(volume).ok().map(|stat| stat.st_uid)
}

impl Sidecar {
    /// One for a new volume.
    pub fn new() -> Result<Sidecar> {
        Ok(Sidecar { id: Sidecar::fresh_id()?, ..Sidecar::default() })
    }

    /// 32 hexadecimal digits that nobody can guess.
    pub fn fresh_id() -> Result<String> {
        Ok(Sidecar::random()?.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Bytes that cannot be guessed.
    pub(crate) fn random() -> Result<[u8; 16]> {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Failure::because("volume", "make an id for it", error))?;
        Ok(bytes)
    }

    /// The sidecar of a volume; the default for one without. Of one that was moved without it, the
    /// one that it had; of the copy of one, what is known of that one. What another user may have
    /// written binds no other user: weight, cache, translation and `formatted` are then what this
    /// user's own record has.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn load(volume: &Path) -> Result<Sidecar> {
        let way = trust::way_to(volume).unwrap_or_default();
        if let Some(own) = Sidecar::load_own(volume, way.author)? {
            return Ok(own);
        }
        let known = copied::of(volume, way.author).unwrap_or_default();
        Ok(Sidecar { author: way.author, ..known })
    }

    /// The same without what is known of the volume that it may be a copy of; `None`: it has none
    /// of its own. `names`: who decides about names in its directory.
    fn load_own(volume: &Path, names: Author) -> Result<Option<Sidecar>> {
        let Some((text, writer)) = read(volume, names)? else {
            let left = Sidecar::left_behind(volume);
            return Ok(left.map(|left| Sidecar { author: names, ..left }));
        };
        let parsed = serde_json::from_slice(&text).map_err(|error| error.to_string());
        let checked = parsed.and_then(|sidecar: Sidecar| match sidecar.nonsense() {
            None => Ok(sidecar),
            Some(what) => Err(what),
        });
        let mut sidecar = checked.map_err(|why| {
            Failure::failed(format!(
                "{}: not a sidecar: {why}: restore it; a volume that is no copy and no bypass \
                 volume can do without",
                path_of(volume).display()
            ))
        })?;
        sidecar.author = names.and(writer);
        sidecar.bind(volume);
        Ok(Some(sidecar))
    }

    /// The sidecar of a volume that has none beside it, but had one under another name.
    fn left_behind(volume: &Path) -> Option<Sidecar> {
        let record = known::of(volume)?;
        let was_moved = fs::symlink_metadata(&record.volume).is_err();
        let (file, _) = trust::open_beside(volume).ok()??;
        let sidecar = record.sidecar;
        let is_whole = sidecar.overlays.is_empty() || reference(&file, &sidecar).is_some();
        (was_moved && is_whole && sidecar.bypass.is_none()).then_some(sidecar)
    }

    /// Takes what only this user may say from this user's record.
    fn bind(&mut self, volume: &Path) {
        if self.author != Author::Caller {
            let known = known::of(volume).map(|record| record.sidecar).unwrap_or_default();
            self.weight = known.weight;
            self.cache = known.cache;
            self.translation = known.translation;
            self.formatted = known.formatted;
        }
        // Others that may write to the volume's blocks may have put anything there.
        if self.formatted.is_some() && !trust::is_caller_s(volume) {
            self.formatted = None;
        }
    }

    /// What in it nobody of us writes, by the name of its field.
    fn nonsense(&self) -> Option<String> {
        let mut ids = vec![
            ("id", Some(&self.id).filter(|id| !id.is_empty())),
            ("parent", self.parent.as_ref()),
            ("awaits", self.awaits.as_ref()),
        ];
        for overlay in &self.overlays {
            ids.push(("overlays: nonce", Some(&overlay.nonce)));
            ids.push(("overlays: base_id", Some(&overlay.base_id)));
        }
        let mut bypass = self.bypass.as_ref();
        while let Some(its) = bypass {
            ids.push(("bypass: id", Some(&its.id)));
            if its.pool.file_name() != Some(its.pool.as_os_str()) {
                return Some(format!("'bypass: pool' is no file's name: {:?}", its.pool));
            }
            bypass = its.next.as_deref();
        }
        let bad = |id: &&String| parse_id(id).is_none();
        let bad_id = ids.into_iter().find_map(|(field, id)| Some((field, id.filter(bad)?)));
        if let Some((field, id)) = bad_id {
            return Some(format!("'{field}' is not 32 hexadecimal digits: {id:?}"));
        }
        if let Some(weight) = self.weight.filter(|weight| !WEIGHTS.contains(weight)) {
            return Some(format!("'weight' is not 1 to {}: {weight}", WEIGHTS.end()));
        }
        if self.overlays.iter().any(|overlay| overlay.base.file_name().is_none()) {
            return Some("'overlays: base' is no path of a file".to_string());
        }
        let journal = self.journals.iter().find(|(first, end)| first >= end)?;
        Some(format!("'journals' has a range without bytes: {journal:?}"))
    }

    /// Replaces the sidecar of a volume, durably. It belongs to whom the volume belongs, and those
    /// who may read the volume read it.
    ///
    /// # Errors
    /// The host's.
    pub fn store(&self, volume: &Path) -> Result<()> {
        let mut named = rustix::fs::lstat(volume).ok();
        if let Some(named) = &mut named {
            // The mode of a link says nothing.
            named.st_mode = rustix::fs::stat(volume).map(|stat| stat.st_mode).unwrap_or_default();
        }
        self.store_as(volume, named)
    }

    /// The same of a volume whose name is still to be given to a file of this owner and mode;
    /// `None`: to one of the caller's alone.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn store_as(&self, volume: &Path, like: Option<Stat>) -> Result<()> {
        let path = path_of(volume);
        let failed = |error: std::io::Error| Failure::path(&path, "write it", error);
        let mut text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        text.push('\n');
        let (file, name) = draft(volume).map_err(|error| failed(error.into()))?;
        let stored = (|| {
            let mut file = fs::File::from(file);
            if let Some(like) = &like {
                belong_to_readers(&file, like)?;
            }
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            let name = match &name {
                Some(name) => name.clone(),
                None => give_name(&file, draft_of(volume))?,
            };
            fs::rename(&name, &path)
        })();
        if let (Err(_), Some(name)) = (&stored, &name) {
            let _ = fs::remove_file(name);
        }
        stored.map_err(failed)?;
        image::sync_names(&path).map_err(|error| failure(&path, error))?;
        known::note(volume, self);
        Ok(())
    }

    /// Changes the sidecar of a volume, of which others may change other fields; what is stored.
    ///
    /// # Errors
    /// Those of [`load`](Sidecar::load) and [`store`](Sidecar::store).
    pub(crate) fn change(volume: &Path, change: impl FnOnce(&mut Sidecar)) -> Result<Sidecar> {
        let _names = naming::hold(volume)?;
        let mut sidecar = Sidecar::load(volume)?;
        change(&mut sidecar);
        sidecar.store(volume)?;
        Ok(sidecar)
    }

    /// Removes the sidecar of a volume, if it has one.
    ///
    /// # Errors
    /// The host's.
    pub fn remove(volume: &Path) -> Result<()> {
        // One that was not stored whole.
        remove_if_there(&draft_of(volume))?;
        remove_if_there(&path_of(volume))
    }
}

/// A file that is going to be a sidecar: without a name, or, where the host cannot make such, with
/// one that cannot be guessed.
fn draft(volume: &Path) -> rustix::io::Result<(OwnedFd, Option<PathBuf>)> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let directory = image::directory_of(volume);
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR) => {
            let mut name = draft_of(volume).into_os_string();
            name.push(format!("-{}", Sidecar::fresh_id().unwrap_or_default()));
            let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
            Ok((rustix::fs::open(&*name, flags, mode)?, Some(name.into())))
        }
        opened => Ok((opened?, None)),
    }
}

/// Gives a draft the volume's owner, and lets those read it who may read the volume: a user who may
/// not read the volume is not told its nonce.
fn belong_to_readers(draft: &fs::File, volume: &Stat) -> std::io::Result<()> {
    // A caller who is not of the volume's group keeps that group out.
    let _ = std::os::unix::fs::fchown(draft, None, Some(volume.st_gid));
    let same_group = rustix::fs::fstat(draft)?.st_gid == volume.st_gid;
    let readers = volume.st_mode & if same_group { 0o044 } else { 0o004 };
    rustix::fs::fchmod(draft, Mode::from_raw_mode(0o600 | readers))?;
    match rustix::process::geteuid().is_root() {
        true => std::os::unix::fs::fchown(draft, Some(volume.st_uid), None),
        false => Ok(()),
    }
}

/// Gives a whole draft its name. What has that name already was cut short, or is somebody's trap.
fn give_name(file: &fs::File, name: PathBuf) -> std::io::Result<PathBuf> {
    /// Others who store the same sidecar, or play with us.
    const TRIES: u32 = 16;
    let from = image::proc_path(file);
    let mut tries = 0;
    loop {
        match linkat(CWD, &from, CWD, &name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => return Ok(name),
            Err(rustix::io::Errno::EXIST) if tries < TRIES => fs::remove_file(&name)?,
            Err(error) => return Err(error.into()),
        }
        tries += 1;
    }
}

/// The lock of a command that makes a volume, or clears up what is left of one, while its sidecar
/// is alone.
pub(crate) struct Making(#[expect(dead_code, reason = "its lock")] fs::File);

impl Making {
    /// Keeps others out until this is dropped.
    ///
    /// # Errors
    /// Somebody else is at it; there is no sidecar.
    pub(crate) fn hold(volume: &Path) -> Result<Making> {
        let path = path_of(volume);
        let failed = |error: std::io::Error| Failure::path(&path, "lock it", error);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty());
        let file = fs::File::from(file.map_err(|error| failed(error.into()))?);
        match lock_range(&file, 0, 1) {
            Ok(()) => Ok(Making(file)),
            Err(Errno::EAGAIN) => Err(Failure::failed(format!(
                "{}: is being made or removed by another command",
                volume.display()
            ))),
            Err(error) => Err(failed(error.into())),
        }
    }
}

/// Where a bypass volume's bytes are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BypassRef {
    /// The pool file, seen from the volume's directory.
    pub pool: PathBuf,
    /// The volume's number in there: 32 hexadecimal digits.
    pub id: String,
    /// Bytes.
    pub size: u64,
    /// What is going to take its place, failed to, or had it before: nobody's, and to be removed.
    #[serde(default)]
    pub next: Option<Box<BypassRef>>,
}

impl BypassRef {
    /// One that has an id, and no place yet.
    pub(crate) fn new(size: u64) -> Result<BypassRef> {
        Ok(BypassRef { pool: PathBuf::new(), id: Sidecar::fresh_id()?, size, next: None })
    }

    /// Notes its place.
    pub(crate) fn lie_in(&mut self, pool: &Path) {
        self.pool = PathBuf::from(pool.file_name().unwrap_or_default());
    }

    /// The id as bytes.
    ///
    /// # Errors
    /// The sidecar of `volume` has something else there.
    pub fn id(&self, volume: &Path) -> Result<Id> {
        parse_id(&self.id).ok_or_else(|| {
            let sidecar = path_of(volume);
            Failure::failed(format!("{}: 'bypass' has no right id", sidecar.display()))
        })
    }
}

/// 32 hexadecimal digits as bytes.
pub fn parse_id(text: &str) -> Option<Id> {
    let mut id = Id::default();
    if text.len() != 2 * id.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(id)
}

/// What a sidecar names, seen from the directory of its volume.
pub(crate) fn beside(volume: &Path, name: &Path) -> PathBuf {
    volume.parent().unwrap_or(Path::new("")).join(name)
}

/// Where the base of a volume is: where the volume says, where it was when the volume was put on
/// it, or beside the volume, of those that were moved apart or to another directory together.
pub(crate) fn locate(volume: &Path, overlay: &OverlayRef) -> PathBuf {
    let place = |path: &Path| {
        let stat = rustix::fs::lstat(path).ok()?;
        Some((stat.st_dev, stat.st_ino))
    };
    let base = beside(volume, &overlay.base);
    let along = overlay.base.file_name().map(|name| volume.with_file_name(name));
    let there = place(&base);
    let mut others: Vec<PathBuf> = overlay.was_at.clone().into_iter().chain(along).collect();
    others.retain(|other| place(other).is_some_and(|found| Some(found) != there));
    // Not what is known of a volume that it may be a copy of: that asks for bases again.
    let is_right = |path: &Path| {
        let names = trust::way_to(path).unwrap_or_default().author;
        let own = Sidecar::load_own(path, names).ok().flatten();
        own.is_some_and(|own| own.id == overlay.base_id)
    };
    if others.is_empty() || there.is_some() && is_right(&base) {
        return base;
    }
    match others.iter().find(|other| is_right(other)) {
        Some(other) => other.clone(),
        None if there.is_some() => base,
        None => others.swap_remove(0),
    }
}

/// From now on somebody else may write the blocks of a volume.
pub fn distrust(path: &Path) -> Result<()> {
    let sidecar = Sidecar::load(path)?;
    match sidecar.formatted {
        Some(_) => Sidecar { formatted: None, ..sidecar }.store(path),
        None => Ok(()),
    }
}

/// A snapshot stays as it is.
pub fn refuse_snapshot(path: &Path) -> Result<Sidecar> {
    let sidecar = Sidecar::load(path)?;
    match sidecar.snapshot {
        false => Ok(sidecar),
        true => Err(Failure::failed(format!(
            "{}: is a snapshot: make a volume of it with 'polylane volume clone'",
            path.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_loaded_and_nonsense_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("dir");
        let volume = dir.path().join("v");
        assert_eq!(Sidecar::load(&volume).expect("none"), Sidecar::default());
        let parent = Some("0".repeat(32));
        let sidecar = Sidecar { parent, snapshot: true, ..Sidecar::new().expect("id") };
        assert_eq!(sidecar.id.len(), 32);
        sidecar.store(&volume).expect("store");
        assert_eq!(Sidecar::load(&volume).expect("load"), sidecar);
        let later = format!("{{\"weight\": 7, \"id\": \"{}\", \"later\": [1]}}", "a".repeat(32));
        fs::write(path_of(&volume), later).expect("write");
        assert_eq!(Sidecar::load(&volume).expect("load").weight, Some(7));
        for nonsense in [&b"{"[..], b"", b"[1]", b"\xff\xfe", b"{\"weight\": -1}"] {
            fs::write(path_of(&volume), nonsense).expect("write");
            let failure = Sidecar::load(&volume).expect_err("nonsense");
            assert!(failure.line.contains("v.polylane: not a sidecar"), "{failure}");
        }
        fs::write(path_of(&volume), vec![b' '; 1 << 17]).expect("write");
        assert!(Sidecar::load(&volume).is_err());
    }

    #[test]
    fn those_read_a_sidecar_who_may_read_the_volume() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("dir");
        let volume = dir.path().join("v");
        let mode_of = |path: &Path| fs::metadata(path).expect("stat").permissions().mode() & 0o777;
        let sidecar = Sidecar::new().expect("id");
        sidecar.store(&volume).expect("store");
        assert_eq!(mode_of(&path_of(&volume)), 0o600, "its volume has no name yet");
        // As earlier versions stored them.
        fs::set_permissions(path_of(&volume), PermissionsExt::from_mode(0o644)).expect("chmod");
        fs::write(&volume, "").expect("write");
        for (mode, expected) in [(0o600, 0o600), (0o664, 0o644), (0o440, 0o640), (0o604, 0o604)] {
            fs::set_permissions(&volume, PermissionsExt::from_mode(mode)).expect("chmod");
            sidecar.store(&volume).expect("store");
            assert_eq!(mode_of(&path_of(&volume)), expected, "{mode:o}");
        }
    }

    #[test]
    fn what_nobody_writes_is_refused_by_its_field() {
        let dir = tempfile::tempdir().expect("dir");
        let volume = dir.path().join("v");
        let id = "a".repeat(32);
        let overlay = format!(r#""nonce": "{id}", "base_id": "{id}", "base""#);
        for (field, text) in [
            ("'id'", r#""id": "../../etc""#.to_string()),
            ("'id'", format!(r#""id": "+{}""#, "f".repeat(31))),
            ("'parent'", r#""parent": "x""#.to_string()),
            ("'awaits'", r#""awaits": "0""#.to_string()),
            ("'weight'", r#""weight": 99999999"#.to_string()),
            ("'weight'", r#""weight": 0"#.to_string()),
            ("'journals'", r#""journals": [[8, 8]]"#.to_string()),
            ("'overlays: base'", format!(r#""overlays": [{{{overlay}: ".."}}]"#)),
            (
                "'overlays: nonce'",
                r#""overlays": [{"nonce": "", "base_id": "", "base": "b"}]"#.to_string(),
            ),
            ("'bypass: id'", r#""bypass": {"pool": "p", "id": "7", "size": 1}"#.to_string()),
            ("'bypass: pool'", format!(r#""bypass": {{"pool": "../p", "id": "{id}", "size": 1}}"#)),
        ] {
            fs::write(path_of(&volume), format!("{{{text}}}")).expect("write");
            let line = Sidecar::load(&volume).expect_err(field).line;
            assert!(line.contains(&format!("v.polylane: not a sidecar: {field}")), "{line}");
        }
        fs::write(path_of(&volume), format!(r#"{{"overlays": [{{{overlay}: "b"}}]}}"#)).expect("w");
        Sidecar::load(&volume).expect("good");
    }

    #[test]
    fn a_sidecar_without_end_or_writer_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("dir");
        let volume = dir.path().join("v");
        for path in ["/dev/zero", "/dev/null", "/"] {
            let _ = fs::remove_file(path_of(&volume));
            std::os::unix::fs::symlink(path, path_of(&volume)).expect("link");
            let line = Sidecar::load(&volume).expect_err(path).line;
            assert!(line.contains("v.polylane: is a symbolic link"), "{line}");
        }
        fs::remove_file(path_of(&volume)).expect("remove");
        fs::create_dir(path_of(&volume)).expect("mkdir");
        let line = Sidecar::load(&volume).expect_err("a directory").line;
        assert!(line.contains("v.polylane: not a regular file"), "{line}");
        fs::remove_dir(path_of(&volume)).expect("remove");
        rustix::fs::mkfifoat(rustix::fs::CWD, path_of(&volume), 0o600.into()).expect("fifo");
        assert!(Sidecar::load(&volume).is_err());
    }
}

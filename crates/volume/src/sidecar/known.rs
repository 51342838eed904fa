//! What this user's own state directory knows of volumes, by the identity of their files.
//!
//! `STATE/known/INODE-BIRTH.json`: the sidecar that polylane gave a volume last, which base its
//! file was put on, and where it was. A file keeps inode number and birth time when it is renamed,
//! and no other file of a host has the same. So a volume that was moved without its sidecar is
//! known all the same; in a directory of other users only what is known here is this user's word;
//! and a base knows copies that are somewhere else by now.
//!
//! Records are a help: where none can be kept (no state directory, a host without birth times), a
//! volume has its sidecar alone.
//!
//! # Bound
//!
//! Of the records beyond [`RECORDS_MAX`] one of [`NEW_PER_LOOK`], by chance, has the oldest ones
//! looked at, by when each was last written or needed: to look at some, all have to be read, which
//! a command that makes a volume is not to wait for. A record goes if its volume has left its path
//! on the mount that it was on, unless a record is on that volume, or its volume is on one that is
//! there. A path whose file systems may wait for another host or a process is not looked at, and
//! its record stays.
//!
//! # Locking
//!
//! The directory's flock, around a rename that writes a record, and from its last look at one to
//! its unlink: under it nothing is waited for but that directory.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, ResolveFlags, StatxFlags, Timespec, Timestamps,
    UTIME_NOW, openat2, statx, utimensat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::trailer::reference;
use super::{Sidecar, locate};
use crate::host::absolute;
use crate::path_text;
#[cfg(not(test))]
use crate::places::state_dir;
use crate::trust;

/// Largest record in bytes.
const BYTES_MAX: u64 = 128 << 10;
/// Records that are kept whatever became of their volumes.
const RECORDS_MAX: usize = 1024;
/// One new record of so many has others looked at.
const NEW_PER_LOOK: u8 = 32;
/// As many are looked at then: more than have come since the last time.
const LOOKED_AT: usize = 4 * NEW_PER_LOOK as usize;
/// File systems that wait neither for another host nor for a process.
const LOCAL: [&[u8]; 13] = [
    b"bcachefs",
    b"btrfs",
    b"ext2",
    b"ext3",
    b"ext4",
    b"f2fs",
    b"jfs",
    b"overlay",
    b"ramfs",
    b"rootfs",
    b"tmpfs",
    b"xfs",
    b"zfs",
];

/// What is known of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Record {
    /// Where it was.
    #[serde(with = "path_text::one")]
    pub(crate) volume: PathBuf,
    /// Its sidecar; `overlays` has what its file is on, and nothing else.
    pub(crate) sidecar: Sidecar,
    /// Identity of the file that it is on.
    pub(crate) base: Option<String>,
    /// The mount that it was on ([`disk_of`]). `None`: not known, as in records of earlier
    /// versions, which are not pruned.
    disk: Option<String>,
    /// Its own.
    #[serde(skip)]
    identity: String,
}

/// What a file is told from all others by; `None`: its host has no birth times.
fn identity(file: impl AsFd) -> Option<String> {
    let wanted = StatxFlags::INO | StatxFlags::BTIME;
    let stat = statx(file, "", AtFlags::EMPTY_PATH, wanted).ok()?;
    let has = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let (seconds, nanoseconds) = (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
    has.then(|| format!("{:x}-{seconds:x}.{nanoseconds:x}", stat.stx_ino))
}

fn identity_at(path: &Path) -> Option<String> {
    trust::open_beside(path).ok()?.and_then(|(file, _)| identity(file))
}

/// What the mount that a path is on, as far as the path is there, is told by from another at the
/// same place, and from what is below it: the identity of its root, and the number of names that
/// lead there. `None` before Linux 5.8, too, which tells no mounts apart.
fn disk_of(path: &Path) -> Option<String> {
    let mount = |dir: &Path| {
        let stat = statx(CWD, dir, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        let has = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        has.then_some(stat.stx_mnt_id)
    };
    let there = path.ancestors().skip(1).find(|dir| dir.is_dir())?;
    let own = mount(there)?;
    let top = there.ancestors().take_while(|dir| mount(dir) == Some(own)).last()?;
    let names = top.components().count();
    Some(format!("{}@{names}", identity(fs::File::open(top).ok()?)?))
}

/// Where something is mounted, as the kernel writes it, and which file system.
struct Mounts(Vec<(PathBuf, Vec<u8>)>);

impl Mounts {
    fn now() -> Mounts {
        Mounts::of(&fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    /// "ID PARENT MAJOR:MINOR ROOT PLACE OPTIONS [TAGS…] - KIND SOURCE OPTIONS"
    fn of(table: &[u8]) -> Mounts {
        let mount = |line: &[u8]| {
            let mut words = line.split(|&byte| byte == b' ');
            let place = OsString::from_vec(words.nth(4)?.to_vec());
            let kind = words.skip_while(|word| *word != b"-").nth(1)?;
            Some((PathBuf::from(place), kind.to_vec()))
        };
        Mounts(table.split(|&byte| byte == b'\n').filter_map(mount).collect())
    }

    /// Whether all that is mounted on the way to a path without links is local.
    fn are_local(&self, path: &Path) -> bool {
        let written = path.as_os_str().as_bytes().iter().flat_map(|&byte| match byte {
            b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
            _ => vec![byte],
        });
        let written = PathBuf::from(OsString::from_vec(written.collect()));
        let mut on_way = self.0.iter().filter(|(place, _)| written.starts_with(place)).peekable();
        on_way.peek().is_some() && on_way.all(|(_, kind)| LOCAL.contains(&kind.as_slice()))
    }
}

#[cfg(not(test))]
fn dir() -> Option<PathBuf> {
    Some(state_dir().ok()?.join("known"))
}

/// Tests keep nothing in this user's own state directory.
#[cfg(test)]
fn dir() -> Option<PathBuf> {
    tests::DIR.with_borrow(Option::clone)
}

/// Has this thread's test keep records there.
#[cfg(test)]
pub(super) fn keep_in(dir: Option<PathBuf>) {
    tests::DIR.set(dir);
}

fn path_of(identity: &str) -> Option<PathBuf> {
    Some(dir()?.join(format!("{identity}.json")))
}

/// A record of this user's.
fn read(path: &Path) -> Option<Record> {
    let (file, stat) = trust::open_beside(path).ok()??;
    let mine = stat.st_uid == rustix::process::geteuid().as_raw();
    if !mine || stat.st_size as u64 > BYTES_MAX {
        return None;
    }
    // At once: a reader is asked byte by byte, and there may be thousands of records.
    let mut bytes = Vec::with_capacity(stat.st_size as usize + 1);
    fs::File::from(file).take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    let mut record: Record = serde_json::from_slice(&bytes).ok()?;
    record.identity = path.file_stem()?.to_str()?.to_string();
    Some(record)
}

/// What is known of the file that a volume has.
pub(crate) fn of(volume: &Path) -> Option<Record> {
    let path = path_of(&identity_at(volume)?)?;
    let record = read(&path)?;
    if absolute(volume).is_ok_and(|volume| volume != record.volume) {
        renew(&path);
    }
    Some(record)
}

/// A record that is needed is the youngest one.
fn renew(path: &Path) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    let _ = utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
}

/// Keeps what a volume's sidecar says, by the file that has its name.
pub(crate) fn note(volume: &Path, sidecar: &Sidecar) {
    let is_chosen = Sidecar::random().is_ok_and(|bytes| bytes[0] % NEW_PER_LOOK == 0);
    let _ = try_note(volume, sidecar, is_chosen);
}

/// `is_chosen`: a new record has others looked at.
fn try_note(volume: &Path, sidecar: &Sidecar, is_chosen: bool) -> Option<()> {
    let (file, _) = trust::open_beside(volume).ok()??;
    let identity = identity(&file)?;
    let on = reference(&file, sidecar).map(|(overlay, _)| overlay);
    let base = on.as_ref().and_then(|overlay| identity_at(&locate(volume, overlay)));
    let sidecar = Sidecar { overlays: on.into_iter().collect(), raw: false, ..sidecar.clone() };
    let volume = absolute(volume).ok()?;
    let disk = disk_of(&volume);
    let record = Record { volume, sidecar, base, disk, identity };
    let path = path_of(&record.identity)?;
    let former = read(&path);
    if former.as_ref() == Some(&record) {
        return Some(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path.parent()?).ok()?;
    if former.is_none() && is_chosen {
        prune(path.parent()?);
    }
    let draft = path.with_extension(Sidecar::fresh_id().ok()?);
    let mut options = fs::File::options();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&draft).ok()?;
    let stored = file.write_all(&serde_json::to_vec(&record).ok()?);
    let _alone = lock(path.parent()?);
    if stored.and_then(|()| fs::rename(&draft, &path)).is_err() {
        let _ = fs::remove_file(&draft);
    }
    Some(())
}

/// Removes records of volumes that are gone, of the oldest ones.
fn prune(dir: &Path) {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut records: Vec<_> = entries
        .filter(|entry| is_record(&entry.path()))
        .filter_map(|entry| {
            let stat = entry.metadata().ok()?;
            Some(((stat.mtime(), stat.mtime_nsec()), entry.path()))
        })
        .collect();
    if records.len() < RECORDS_MAX {
        return;
    }
    records.sort_unstable();
    let (known, mounts) = (all().collect::<Vec<_>>(), Mounts::now());
    let is_gone = |it: &Record| it.is_gone(&mounts);
    let is_there = |id: &String| known.iter().any(|it| it.sidecar.id == *id && !is_gone(it));
    let is_base = |id: &String| known.iter().any(|it| it.bases().any(|base| base == id));
    let is_needed = |it: &Record| it.bases().any(is_there) || is_base(&it.sidecar.id);
    for (_, path) in records.iter().take(LOOKED_AT) {
        match read(path).filter(|it| is_gone(it) && !is_needed(it)) {
            Some(judged) => drop(remove(path, &judged)),
            None => renew(path),
        }
    }
}

/// Until it is dropped, no other command writes or removes a record.
fn lock(dir: &Path) -> Option<fs::File> {
    let file = fs::File::open(dir).ok()?;
    rustix::fs::flock(&file, FlockOperation::LockExclusive).ok()?;
    Some(file)
}

/// Removes a record, unless another command has written it since it was judged.
fn remove(path: &Path, judged: &Record) -> Option<()> {
    let _alone = lock(path.parent()?)?;
    match read(path).as_ref() == Some(judged) {
        true => fs::remove_file(path).ok(),
        false => None,
    }
}

fn is_record(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json")
}

impl Record {
    /// Ids of the volumes that it is on.
    fn bases(&self) -> impl Iterator<Item = &String> {
        self.sidecar.overlays.iter().map(|overlay| &overlay.base_id)
    }

    /// Whether its path has another file or none, on the mount that it was on. A path is looked at
    /// only where that waits for nobody.
    fn is_gone(&self, mounts: &Mounts) -> bool {
        if self.disk.is_none() || !mounts.are_local(&self.volume) || !self.has_way_without_links() {
            return false;
        }
        let now = trust::open_beside(&self.volume);
        let is_another = now.is_ok_and(|file| {
            file.and_then(|(file, _)| identity(file)).as_ref() != Some(&self.identity)
        });
        is_another && self.disk == disk_of(&self.volume)
    }

    /// Whether no link is on the way to it, as there was none when the record was written: it could
    /// lead to a mount elsewhere.
    fn has_way_without_links(&self) -> bool {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = self.volume.parent().unwrap_or(&self.volume);
        let way = openat2(CWD, dir, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        matches!(way, Ok(_) | Err(Errno::NOENT | Errno::NOTDIR))
    }
}

/// The file of a volume goes, or is no volume any more.
pub(crate) fn forget(file: impl AsFd) {
    if let Some(path) = identity(file).and_then(|identity| path_of(&identity)) {
        let _ = fs::remove_file(path);
    }
}

/// [`forget`] by a name.
pub(crate) fn forget_at(path: &Path) {
    if let Ok(Some((file, _))) = trust::open_beside(path) {
        forget(file);
    }
}

/// Whether this user's polylane put a volume on this file.
pub(crate) fn is_base(volume: &Path, base: impl AsFd) -> bool {
    let known = of(volume).and_then(|record| record.base);
    known.is_some() && known == identity(base)
}

/// All that is known.
pub(super) fn all() -> impl Iterator<Item = Record> {
    let entries = dir().and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten();
    let records = entries.map(|entry| entry.path()).filter(|path| {
        is_record(path) && fs::symlink_metadata(path).is_ok_and(|stat| stat.size() <= BYTES_MAX)
    });
    records.filter_map(|path| read(&path))
}

/// Where the volumes were that were put on the base with this id, and whether each has the name
/// still.
pub(crate) fn on_base(base_id: &str) -> Vec<(PathBuf, bool)> {
    let on = |record: &Record| record.bases().any(|base| base == base_id);
    all()
        .filter(on)
        .map(|record| {
            let there = identity_at(&record.volume).as_ref() == Some(&record.identity);
            (record.volume, there)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::chain::{Child, children};
    use crate::sidecar::trailer::make_top;
    use crate::sidecar::{OverlayRef, path_of as sidecar_of};

    thread_local! {
        /// Where this thread's test keeps records.
        pub(crate) static DIR: RefCell<Option<PathBuf>> = const { RefCell::new(None) };
    }

    /// System calls that read something, by this thread so far.
    fn reads() -> Option<u64> {
        let counts = fs::read_to_string("/proc/thread-self/io").ok()?;
        let of = |line: &str| line.strip_prefix("syscr: ")?.parse().ok();
        counts.lines().find_map(of)
    }

    /// A command may look at all that its user ever made.
    #[test]
    fn a_record_is_read_at_once() {
        let dir = tempfile::tempdir().expect("dir");
        DIR.set(Some(dir.path().join("known")));
        let volume = dir.path().join("volume");
        fs::write(&volume, [7; 4096]).expect("write");
        note(&volume, &Sidecar::new().expect("id"));
        let Some(before) = reads() else {
            eprintln!("skipped: this kernel does not count reads");
            return;
        };
        let count = all().count() as u64;
        let after = reads().expect("counted before");
        // None on a host without birth times.
        assert!(after - before <= 4 + 4 * count, "{} reads of {count} records", after - before);
    }

    /// A volume in a directory that is made, and a record of it.
    fn noted(volume: &Path, sidecar: &Sidecar) -> PathBuf {
        fs::create_dir_all(volume.parent().expect("dir")).expect("mkdir");
        fs::write(volume, [7; 4096]).expect("write");
        try_note(volume, sidecar, true);
        path_of(&identity_at(volume).expect("birth time")).expect("dir")
    }

    /// A container's start makes a volume.
    #[test]
    fn few_new_records_have_all_others_read() {
        let dir = tempfile::tempdir().expect("dir");
        DIR.set(Some(dir.path().join("known")));
        fs::create_dir(dir.path().join("known")).expect("mkdir");
        for number in 0..=RECORDS_MAX {
            let path = dir.path().join(format!("known/{number:x}-1.0.json"));
            fs::write(path, serde_json::to_vec(&Record::default()).expect("json")).expect("write");
        }
        let Some(before) = reads() else {
            eprintln!("skipped: this kernel does not count reads");
            return;
        };
        let count = 2 * u64::from(NEW_PER_LOOK);
        for number in 0..count {
            let volume = dir.path().join(format!("volume-{number}"));
            fs::write(&volume, [7; 4096]).expect("write");
            note(&volume, &Sidecar::new().expect("id"));
        }
        let each = (reads().expect("counted before") - before) / count;
        // A fifth of them by chance: once in 10 million runs of this test.
        assert!(each < RECORDS_MAX as u64 / 2, "{each} reads for each new record");
        DIR.set(None);
    }

    #[test]
    fn records_are_bounded_and_those_that_are_needed_stay() {
        let dir = tempfile::tempdir().expect("dir");
        let own = |weight| Sidecar { weight: Some(weight), ..Sidecar::new().expect("id") };
        let at = |name: &str| dir.path().join(name);
        DIR.set(Some(at("known")));
        fs::create_dir(at("known")).expect("mkdir");
        let on = |base: &Sidecar| {
            let (nonce, base_id) = (Sidecar::fresh_id().expect("nonce"), base.id.clone());
            let overlay = OverlayRef { nonce, base: "base".into(), base_id, was_at: None };
            Sidecar { overlays: vec![overlay], ..own(4) }
        };
        let unlabelled = |name: &str, sidecar: Sidecar| {
            let path = noted(&at(name), &own(5));
            let record = Record { sidecar, ..read(&path).expect("record") };
            fs::write(&path, serde_json::to_vec(&record).expect("json")).expect("write");
            path
        };
        let there = noted(&at("there/volume"), &own(1));
        let moved = noted(&at("moved/volume"), &own(2));
        fs::rename(at("moved/volume"), at("elsewhere")).expect("move");
        // Of a disk that is not mounted: another directory is at its place.
        let unmounted = noted(&at("disk/volume"), &own(3));
        let record = Record { disk: Some("1-2.3".into()), ..read(&unmounted).expect("record") };
        fs::write(&unmounted, serde_json::to_vec(&record).expect("json")).expect("write");
        fs::remove_dir_all(at("disk")).expect("remove");
        let (base, lost) = (own(6), own(7));
        let base_path = noted(&at("base"), &base);
        let copy = unlabelled("copy", on(&base));
        let lost_base = noted(&at("lost"), &lost);
        let lost_copy = unlabelled("lost-copy", on(&lost));
        for name in ["copy", "lost", "lost-copy"] {
            fs::remove_file(at(name)).expect("remove");
        }
        let others = |count: usize| {
            for number in 0..count {
                let name = format!("gone/{number}");
                noted(&at(&name), &own(8));
                fs::rename(at(&name), at(&format!("gone/{number}.was"))).expect("rename");
            }
            fs::remove_dir_all(at("gone")).expect("remove");
        };
        let is_there = |records: &[&PathBuf]| records.iter().all(|path| path.exists());
        let all_of_them = [&there, &moved, &unmounted, &base_path, &copy, &lost_base, &lost_copy];
        others(RECORDS_MAX - all_of_them.len());
        assert!(is_there(&all_of_them), "not even one was too many");
        for _ in 0..3 {
            // A volume that was moved is in use.
            assert_eq!(of(&at("elsewhere")).expect("known").sidecar.weight, Some(2));
            others(RECORDS_MAX / 2);
            let count = fs::read_dir(at("known")).expect("list").count();
            assert!(count <= RECORDS_MAX, "{count} records");
        }
        assert!(is_there(&[&there, &moved, &unmounted, &base_path, &copy]));
        assert!(!lost_base.exists() && !lost_copy.exists());
        DIR.set(None);
    }

    #[test]
    fn a_record_that_is_written_while_it_is_judged_stays() {
        let dir = tempfile::tempdir().expect("dir");
        DIR.set(Some(dir.path().join("known")));
        let volume = dir.path().join("volume");
        let own = |weight| Sidecar { weight: Some(weight), ..Sidecar::new().expect("id") };
        let path = noted(&volume, &own(1));
        let judged = read(&path).expect("record");
        note(&volume, &own(2));
        remove(&path, &judged);
        let judged = read(&path).expect("written again");
        assert_eq!(judged.sidecar.weight, Some(2));
        remove(&path, &judged);
        assert_eq!(all().count(), 0);
        assert_eq!(fs::read_dir(dir.path().join("known")).expect("list").count(), 0);
        DIR.set(None);
    }

    #[test]
    fn a_record_that_stays_is_there_while_it_is_judged() {
        let dir = tempfile::tempdir().expect("dir");
        DIR.set(Some(dir.path().join("known")));
        let path = noted(&dir.path().join("volume"), &Sidecar::new().expect("id"));
        let former = Record { base: Some("1-2.3".into()), ..read(&path).expect("record") };
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| (0..2000).all(|_| read(&path).is_some()));
            while !reader.is_finished() {
                assert_eq!(remove(&path, &former), None);
            }
            assert!(reader.join().expect("ended"), "no reader misses it");
        });
        DIR.set(None);
    }

    #[test]
    fn no_path_is_looked_at_that_may_wait_for_others() {
        let mounts = Mounts::of(
            b"21 1 8:1 / / rw shared:1 master:2 - ext4 /dev/sda1 rw\n\
              22 21 0:40 / /net rw - nfs4 host:/x rw\n\
              23 22 8:2 / /net/disk rw - xfs /dev/sdb1 rw\n\
              24 21 0:41 / /a\\040b rw - fuse.sshfs host: rw\n",
        );
        for (path, is_local) in [
            ("/v", true),
            ("/network/v", true),
            ("/net/v", false),
            ("/net/disk/v", false),
            ("/a b/v", false),
            ("/a/b", true),
        ] {
            assert_eq!(mounts.are_local(Path::new(path)), is_local, "{path}");
        }
        assert!(!Mounts::of(b"").are_local(Path::new("/v")), "not known");
        let dir = tempfile::tempdir().expect("dir");
        let top = dir.path().canonicalize().expect("there");
        DIR.set(Some(top.join("known")));
        let record = read(&noted(&top.join("dir/v"), &Sidecar::new().expect("id")));
        let record = record.expect("record");
        let local = Mounts::of(b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
        assert!(!record.is_gone(&local), "it is there");
        fs::remove_dir_all(top.join("dir")).expect("remove");
        assert!(record.is_gone(&local) && !record.is_gone(&Mounts::of(b"")));
        std::os::unix::fs::symlink("/", top.join("dir")).expect("link");
        assert!(!record.is_gone(&local), "its path leads elsewhere");
        DIR.set(None);
    }

    #[test]
    fn a_volume_that_was_moved_is_known_and_its_base_knows_it() {
        let dir = tempfile::tempdir().expect("dir");
        DIR.set(Some(dir.path().join("known")));
        let at = |name: &str| dir.path().join(name);
        fs::write(at("base"), vec![7; 1 << 20]).expect("write");
        let below = Sidecar { implicit: true, ..Sidecar::new().expect("id") };
        below.store(&at("base")).expect("store");
        let nonce = Sidecar::fresh_id().expect("nonce");
        let file = fs::File::create_new(at("copy")).expect("create");
        make_top(&file.into(), 1 << 20, &nonce).expect("top");
        let (base_id, was_at) = (below.id.clone(), Some(at("base")));
        let overlay = OverlayRef { nonce, base: "base".into(), base_id, was_at };
        let own =
            Sidecar { weight: Some(9), overlays: vec![overlay], ..Sidecar::new().expect("id") };
        own.store(&at("copy")).expect("store");
        let base = fs::File::open(at("base")).expect("open");
        assert!(is_base(&at("copy"), &base) && !is_base(&at("base"), &base));
        assert_eq!(children(&at("base"), &below), [Child::There(at("copy"))]);
        // To another directory, without its sidecar.
        fs::create_dir(at("else")).expect("mkdir");
        fs::rename(at("copy"), at("else/copy")).expect("move");
        assert_eq!(Sidecar::load(&at("else/copy")).expect("known"), own);
        assert_eq!(locate(&at("else/copy"), &own.overlays[0]), at("base"));
        fs::remove_file(sidecar_of(&at("copy"))).expect("remove");
        assert_eq!(children(&at("base"), &below), [Child::Missing(at("copy"))]);
        // Looked at once more, it is known where it is now.
        own.store(&at("else/copy")).expect("store");
        assert_eq!(children(&at("base"), &below), [Child::There(at("else/copy"))]);
        forget_at(&at("else/copy"));
        assert_eq!(children(&at("base"), &below), []);
        // Another file of the same name is not the one that is known.
        fs::write(at("copy"), "other").expect("write");
        assert_eq!(Sidecar::load(&at("copy")).expect("none"), Sidecar::default());
        DIR.set(None);
    }
}

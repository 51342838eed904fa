//! What is under a lane, as descriptors: its own directory, and the lowers of a union.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use polylane_base::size::ByteSize;
use polylane_block::file::Files;
use polylane_union::Union;
use polylane_volume as volume;
use polylane_volume::log;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::ceph::CephPlace;
use crate::failure::{Failure, Result};
use crate::mountinfo::{self, Seen};
use crate::spec::{LowerCache, LowerSpec, PoolSpec};

/// Most lowers of a lane, as many as overlayfs takes.
const LOWERS_MAX: usize = 500;

/// The bits of a file's mode by which others write it.
pub(crate) const WRITERS: u32 = 0o022;

/// The bits of a directory's mode by which others reach what is in it, their own files among it.
pub(crate) const REACHERS: u32 = 0o077;

/// A layer under a lane's own files, by name. Nothing is opened yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LowerSource {
    /// A directory of the host.
    Dir(PathBuf),
    /// The root of the ext4 on a volume.
    Volume(PathBuf),
    /// A directory of a Ceph file system.
    Ceph(CephPlace),
    /// One of these of which no names are seen: files of the layers above point into it.
    Data(Box<LowerSource>),
    /// One of these in a cache of its own, of so many bytes; `None`: its share of the lane's.
    Cached(Box<LowerSource>, Option<u64>),
}

/// What follows `cached`: the size of the cache, and what is in it.
fn cache_of(text: &[u8]) -> Option<(Option<u64>, &OsStr)> {
    let colon = text.iter().position(|&byte| byte == b':')?;
    let (size, below) = (&text[..colon], OsStr::from_bytes(&text[colon + 1..]));
    let bytes = match size.strip_prefix(b"=") {
        None if size.is_empty() => None,
        Some(size) => Some(std::str::from_utf8(size).ok()?.parse::<ByteSize>().ok()?.0),
        None => return None,
    };
    Some((bytes, below))
}

/// A layer under a lane's own files, as descriptors.
#[derive(Debug)]
pub(crate) enum Lower {
    /// A directory, as a path.
    Dir(OwnedFd),
    /// The files of a volume, its own first, for reading.
    Volume(Vec<Files>),
    /// A directory of the Ceph file system whose client the service has.
    Ceph(String),
}

impl LowerSource {
    /// Reads a layer as it is written on the command line: `dir:DIR`, `volume:FILE`,
    /// `ceph:[USER@]FSNAME[:PATH]`, or a path; for a data-only one with `data:` before that, for
    /// one in a cache with `cached:` or `cached=SIZE:`. A path that leads to a file or a device is
    /// a volume's.
    pub fn parse(text: &OsStr) -> LowerSource {
        let after = |kind: &str| text.as_bytes().strip_prefix(kind.as_bytes());
        if let Some(data) = after("data:") {
            return LowerSource::Data(Box::new(LowerSource::parse(OsStr::from_bytes(data))));
        }
        if let Some((bytes, below)) = after("cached").and_then(cache_of) {
            return LowerSource::Cached(Box::new(LowerSource::parse(below)), bytes);
        }
        let path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
        let place = |bytes| std::str::from_utf8(bytes).ok()?.parse::<CephPlace>().ok();
        if let Some(place) = after("ceph:").and_then(place) {
            return LowerSource::Ceph(place);
        }
        match (after("dir:"), after("volume:")) {
            (Some(dir), _) => LowerSource::Dir(path(dir)),
            (_, Some(file)) => LowerSource::Volume(path(file)),
            _ if Path::new(text).metadata().is_ok_and(|found| !found.is_dir()) => {
                LowerSource::Volume(text.into())
            }
            _ => LowerSource::Dir(text.into()),
        }
    }

    /// Where it is, for messages: a path of the host, or a place in a cluster.
    pub fn path(&self) -> Cow<'_, Path> {
        match self {
            LowerSource::Dir(path) | LowerSource::Volume(path) => Cow::Borrowed(path),
            LowerSource::Ceph(place) => Cow::Owned(format!("ceph:{place}").into()),
            LowerSource::Data(below) | LowerSource::Cached(below, _) => below.path(),
        }
    }

    /// Its place in a cluster, where it is in one.
    pub(crate) fn ceph(&self) -> Option<&CephPlace> {
        match self {
            LowerSource::Ceph(place) => Some(place),
            LowerSource::Data(below) | LowerSource::Cached(below, _) => below.ceph(),
            LowerSource::Dir(_) | LowerSource::Volume(_) => None,
        }
    }

    /// It is on a volume.
    pub(crate) fn is_volume(&self) -> bool {
        match self {
            LowerSource::Volume(_) => true,
            LowerSource::Data(below) | LowerSource::Cached(below, _) => below.is_volume(),
            LowerSource::Dir(_) | LowerSource::Ceph(_) => false,
        }
    }

    /// Nothing of it is seen but data that files of other layers point to.
    pub(crate) fn is_data_only(&self) -> bool {
        match self {
            LowerSource::Data(_) => true,
            LowerSource::Cached(below, _) => below.is_data_only(),
            LowerSource::Dir(_) | LowerSource::Volume(_) | LowerSource::Ceph(_) => false,
        }
    }

    /// The cache that it is in, if it is in one.
    pub(crate) fn cache(&self) -> Option<LowerCache> {
        match self {
            LowerSource::Cached(_, bytes) => Some(LowerCache { bytes: *bytes }),
            LowerSource::Data(below) => below.cache(),
            LowerSource::Dir(_) | LowerSource::Volume(_) | LowerSource::Ceph(_) => None,
        }
    }

    /// The same by an absolute path without links.
    ///
    /// # Errors
    /// It is not there, or a link on the way leads through another user's directory.
    pub fn canonical(&self) -> Result<LowerSource> {
        let whole = |path: &Path| {
            path.canonicalize().map_err(|error| Failure::path(path, "use it as a lower", error))
        };
        Ok(match self {
            LowerSource::Data(data) => LowerSource::Data(Box::new(data.canonical()?)),
            LowerSource::Cached(below, bytes) => {
                LowerSource::Cached(Box::new(below.canonical()?), *bytes)
            }
            LowerSource::Dir(path) => LowerSource::Dir(whole(path)?),
            LowerSource::Volume(path) => {
                // Links that lead through other users' directories are not followed.
                volume::resolve(path)?;
                LowerSource::Volume(whole(path)?)
            }
            LowerSource::Ceph(place) => LowerSource::Ceph(place.clone()),
        })
    }

    /// As it is written on the command line, so that it is read back as the same.
    pub(crate) fn text(&self) -> Vec<u8> {
        match self {
            LowerSource::Dir(path) => path.as_os_str().as_bytes().to_vec(),
            LowerSource::Volume(path) => [b"volume:", path.as_os_str().as_bytes()].concat(),
            LowerSource::Ceph(place) => format!("ceph:{place}").into_bytes(),
            LowerSource::Data(data) => [b"data:", &data.text()[..]].concat(),
            LowerSource::Cached(below, bytes) => {
                let size = bytes.map_or(String::new(), |bytes| format!("={bytes}"));
                [b"cached", size.as_bytes(), b":", &below.text()[..]].concat()
            }
        }
    }
}

impl Lower {
    /// Where it is a directory, its descriptor.
    pub(crate) fn dir_mut(&mut self) -> Option<&mut OwnedFd> {
        match self {
            Lower::Dir(dir) => Some(dir),
            Lower::Volume(_) | Lower::Ceph(_) => None,
        }
    }

    /// Its descriptors: a directory's, or three for each file of a volume; none in a cluster.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Lower::Dir(dir) => vec![dir.as_fd()],
            Lower::Ceph(_) => Vec::new(),
            Lower::Volume(files) => {
                let each = files.iter().map(|Files { io, plain, lock }| [io, plain, lock]);
                each.flatten().map(AsFd::as_fd).collect()
            }
        }
    }
}

/// Opens the lowers, the uppermost first: directories as paths, volumes for reading, together with
/// others who read them. No two of them, nor one and `own`, where the lane's own files are, may lie
/// in each other.
pub(crate) fn open(lowers: &[LowerSource], own: Option<&LowerSource>) -> Result<Vec<Lower>> {
    if lowers.len() > LOWERS_MAX {
        return Err(Failure::usage(format!("--lower: at most {LOWERS_MAX} of them")));
    }
    check_data_only(lowers)?;
    if lowers.is_empty() {
        return Ok(Vec::new());
    }
    let mounts = mountinfo::seen();
    let mut placed = Vec::new();
    let mut opened = Vec::new();
    for (at, lower) in lowers.iter().enumerate() {
        let whole = lower.canonical()?;
        // Marks of the lowest, and of what has no names, show nothing.
        let is_lowest = at + 1 == lowers.len() || lower.is_data_only();
        opened.push(open_one(&lower.path(), &whole, is_lowest)?);
        placed.push(Placed::new(lower.path(), within(&whole), &mounts));
    }
    if let Some(own) = own {
        let (path, mut whole) = (own.path(), within(own));
        if own.ceph().is_none() {
            whole = whole_of(&path).map_err(|error| Failure::path(&path, "find it", error))?;
        }
        placed.push(Placed::new(path, whole, &mounts));
    }
    refuse_overlaps(&placed)?;
    Ok(opened)
}

/// The absolute path without links of what is there or is yet to be made, which lies where its
/// parent does.
fn whole_of(path: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for above in path.ancestors() {
        if let Ok(found) = above.canonicalize() {
            return Ok(found.join(path.strip_prefix(above).unwrap_or(Path::new(""))));
        }
    }
    Ok(path)
}

/// Where a layer is.
struct Placed<'a> {
    /// As it was written.
    path: Cow<'a, Path>,
    /// Absolute, without links.
    whole: PathBuf,
    /// In its file system: the same for all bind mounts.
    in_files: Option<PathBuf>,
}

impl<'a> Placed<'a> {
    fn new(path: Cow<'a, Path>, whole: PathBuf, mounts: &[Seen]) -> Placed<'a> {
        let in_files = mountinfo::in_files(&whole, mounts);
        Placed { path, whole, in_files }
    }
}

/// The path by which a layer is compared with others: that of a cluster's is no path of the host.
fn within(whole: &LowerSource) -> PathBuf {
    match whole.ceph() {
        Some(place) => Path::new(&format!("ceph:{}", place.fs)).join(place.names().join("/")),
        None => whole.path().into_owned(),
    }
}

/// Data-only layers are the lowest, under another one.
fn check_data_only(lowers: &[LowerSource]) -> Result<()> {
    let first = lowers.iter().position(LowerSource::is_data_only).unwrap_or(lowers.len());
    if let Some(lower) = lowers[first..].iter().find(|lower| !lower.is_data_only()) {
        let (lower, data) = (lower.path(), lowers[first].path());
        let (lower, data) = (Shown::new(&*lower), Shown::new(&*data));
        return Err(Failure::usage(format!(
            "--lower {lower}: under the data-only lower {data}: write those last"
        )));
    }
    match lowers.first() {
        Some(lower) if first == 0 => Err(Failure::usage(format!(
            "--lower data:{}: no other lower is over it, whose files would point into it",
            Shown::new(&*lower.path())
        ))),
        _ => Ok(()),
    }
}

fn open_one(path: &Path, whole: &LowerSource, is_lowest: bool) -> Result<Lower> {
    match whole {
        LowerSource::Dir(whole) => open_dir(path, whole).map(Lower::Dir),
        LowerSource::Volume(whole) => open_volume(whole, is_lowest).map(Lower::Volume),
        LowerSource::Ceph(place) => Ok(Lower::Ceph(place.path.clone())),
        LowerSource::Data(below) | LowerSource::Cached(below, _) => {
            open_one(path, below, is_lowest)
        }
    }
}

/// What the service is told of the lowers.
pub(crate) fn specs(named: &[LowerSource], opened: &[Lower]) -> Vec<LowerSpec> {
    let each = named.iter().zip(opened).map(|(named, lower)| LowerSpec {
        label: Shown::new(&*named.path()).to_string(),
        is_data_only: named.is_data_only(),
        cache: named.cache(),
        files: match lower {
            Lower::Dir(_) | Lower::Ceph(_) => None,
            Lower::Volume(files) => Some(files.len()),
        },
        ceph: named.ceph().map(|place| place.path.clone()),
    });
    each.collect()
}

fn open_dir(path: &Path, whole: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(whole, flags, Mode::empty())
        .map_err(|error| Failure::path(path, "use it as a lower", error))?;
    // A descriptor as a path needs no rights on the directory itself.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(&dir, ".", flags, Mode::empty()) {
        Ok(_) => Ok(dir),
        Err(Errno::ACCESS) => Err(Failure::failed(format!(
            "{}: cannot use it as a lower: Permission denied: this user may not list and search \
             it: give it the rights r and x there, or leave it out",
            Shown::new(path)
        ))),
        Err(error) => Err(Failure::path(path, "use it as a lower", error)),
    }
}

fn open_volume(path: &Path, is_lowest: bool) -> Result<Vec<Files>> {
    let files = volume::open_lower(path)?;
    // Its marks, too, show files of the lowers under it.
    if !is_lowest {
        files.iter().try_for_each(|files| check_upper(&files.plain, path, WRITERS))?;
    }
    Ok(files)
}

/// Opens the lane's own directory as a path, made if it is not there. `is_upper`: it is to be over
/// lowers, so one that is made is its user's alone; see [`check_upper`].
pub(crate) fn open_own(path: &Path, is_upper: bool) -> Result<OwnedFd> {
    let mut builder = std::fs::DirBuilder::new();
    let mode = if is_upper { 0o700 } else { 0o777 };
    let made = match path.parent() {
        Some(parent) if !path.exists() => {
            std::fs::create_dir_all(parent).and_then(|()| builder.mode(mode).create(path))
        }
        _ => std::fs::create_dir_all(path),
    };
    made.map_err(|error| Failure::path(path, "make the lane's directory", error))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Failure::path(path, "use it as the lane's directory", error))
}

/// Refuses an upper whose marks another user could have written: a redirect of his would show him
/// files of the lowers that he may not read. `reach`: the bits of the mode that let others write
/// marks, which are on files in a directory and in the bytes of a volume.
pub(crate) fn check_upper(upper: &OwnedFd, path: &Path, reach: u32) -> Result<()> {
    let stat = rustix::fs::fstat(upper)
        .map_err(|error| Failure::path(path, "use it over lowers", error))?;
    let shown = Shown::new(path);
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        let owner = stat.st_uid;
        return Err(Failure::failed(format!(
            "{shown}: user {owner} owns it and could show himself any file of the lowers: not used \
             over --lower; use one of your own"
        )));
    }
    // A device's group are the host's administrators.
    let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
    match stat.st_mode & if is_device { 0o002 } else { reach } {
        0 => Ok(()),
        bits => Err(Failure::failed(format!(
            "{shown}: other users could show themselves any file of the lowers (mode bits \
             {bits:03o}): not used over --lower before 'chmod go-rwx {shown}'"
        ))),
    }
}

fn refuse_overlaps(layers: &[Placed<'_>]) -> Result<()> {
    let overlap = |one: &Path, other: &Path| match (one.starts_with(other), other.starts_with(one))
    {
        (true, true) => Some("are one layer"),
        (true, _) | (_, true) => Some("lie in each other"),
        _ => None,
    };
    for (at, layer) in layers.iter().enumerate() {
        for other in &layers[..at] {
            let in_files = layer.in_files.as_ref().zip(other.in_files.as_ref());
            let Some(what) = overlap(&layer.whole, &other.whole)
                .or_else(|| in_files.and_then(|(one, other)| overlap(one, other)))
            else {
                continue;
            };
            let (path, other_path) = (Shown::new(&*layer.path), Shown::new(&*other.path));
            return Err(Failure::usage(format!(
                "--lower {other_path}: it and {path} {what}: give each layer a directory of its own"
            )));
        }
    }
    Ok(())
}

/// Has the lane's log name files of lowers that changed since parts of them were copied up: what a
/// program gets is no more than an I/O error.
pub(crate) fn say_what_changed(union: &Union, spec: &PoolSpec) {
    let labels: Vec<String> = spec.lowers.iter().map(|lower| lower.label.clone()).collect();
    union.on_changed_lower(move |at, path| {
        let lower = labels.get(at).map_or("lane", String::as_str);
        let path = Shown::new(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
        log::message(&format_args!(
            "{lower}: its {path} has changed since the lane wrote to a part of it, and cannot be \
             read there: put back what it was, with its time"
        ));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(paths: &[&'static str]) -> Option<String> {
        let placed = |path: &&'static str| Placed::new(Path::new(*path).into(), path.into(), &[]);
        let placed: Vec<_> = paths.iter().map(placed).collect();
        refuse_overlaps(&placed).err().map(|failure| failure.line)
    }

    #[test]
    fn a_lower_is_read_back_as_it_is_shown() {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = dir.path().join("dir:v");
        std::fs::write(&file, "").expect("written");
        let [as_dir, as_volume]: [fn(PathBuf) -> LowerSource; 2] =
            [LowerSource::Dir, LowerSource::Volume];
        for (text, expected) in [
            ("dir:a", as_dir("a".into())),
            ("dir:volume:a", as_dir("volume:a".into())),
            ("volume:a:b", as_volume("a:b".into())),
            ("ceph:fs", LowerSource::Ceph("fs".parse().expect("a place"))),
            ("dir:ceph:fs", as_dir("ceph:fs".into())),
            ("cached:dir:a", LowerSource::Cached(Box::new(as_dir("a".into())), None)),
            ("cached=2M:a:b", LowerSource::Cached(Box::new(as_dir("a:b".into())), Some(2 << 20))),
            ("cached=x:a", as_dir("cached=x:a".into())),
            ("dir:cached:a", as_dir("cached:a".into())),
            ("/no/such:thing", as_dir("/no/such:thing".into())),
            (file.to_str().expect("UTF-8"), as_volume(file.clone())),
        ] {
            assert_eq!(LowerSource::parse(OsStr::new(text)), expected, "{text}");
        }
        let data = LowerSource::Data(Box::new(as_volume(file.clone())));
        assert_eq!(LowerSource::parse(OsStr::new("data:volume:a:b")), {
            LowerSource::Data(Box::new(as_volume("a:b".into())))
        });
        let ceph = LowerSource::Ceph("u@fs:/a".parse().expect("a place"));
        let cached = [None, Some(3 << 20)]
            .map(|bytes| LowerSource::Cached(Box::new(as_volume(file.clone())), bytes));
        let [one, other] = cached;
        let both = LowerSource::Data(Box::new(one.clone()));
        assert!(both.is_data_only() && both.cache().is_some() && !one.is_data_only());
        let plain = [as_dir(dir.path().into()), as_volume(file.clone()), data, ceph];
        for lower in plain.into_iter().chain([one, other, both]) {
            let lower = lower.canonical().expect("there");
            assert_eq!(LowerSource::parse(OsStr::from_bytes(&lower.text())), lower);
        }
    }

    #[test]
    fn layers_in_each_other_are_refused() {
        assert_eq!(refused(&["/a", "/b", "/ab"]), None);
        for paths in [["/x", "/a", "/a"], ["/x", "/a", "/a/b"], ["/a/b/c", "/x", "/a"]] {
            assert!(refused(&paths).is_some_and(|line| line.starts_with("--lower ")), "{paths:?}");
        }
    }
}

//! What is under a lane, as descriptors: its own directory, and the lowers of a union. How they are
//! named: `source`.

mod source;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use polylane_block::file::Files;
use polylane_union::Union;
use polylane_volume as volume;
use polylane_volume::{Links, log};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{Failure, Result};
use crate::mountinfo::{self, Seen};
use crate::spec::{LowerSpec, PoolSpec};

pub use source::LowerSource;

/// Most lowers of a lane, as many as overlayfs takes.
const LOWERS_MAX: usize = 500;

/// The bits of a file's mode by which others write it.
pub(crate) const WRITERS: u32 = 0o022;

/// The bits of a directory's mode by which others reach what is in it, their own files among it.
pub(crate) const REACHERS: u32 = 0o077;

/// A layer under a lane's own files, as descriptors.
#[derive(Debug)]
pub(crate) enum Lower {
    /// A directory, as a path.
    Dir(OwnedFd),
    /// The files of a volume, its own first, for reading.
    Volume(Vec<Files>),
    /// A directory of the Ceph file system whose client the service has.
    Ceph(String),
    /// The layers of a union, the uppermost first.
    Union(Vec<Lower>),
}

impl Lower {
    /// The descriptors of the directories that it is in.
    pub(crate) fn dirs_mut(&mut self) -> Vec<&mut OwnedFd> {
        match self {
            Lower::Dir(dir) => vec![dir],
            Lower::Union(layers) => layers.iter_mut().flat_map(Lower::dirs_mut).collect(),
            Lower::Volume(_) | Lower::Ceph(_) => Vec::new(),
        }
    }

    /// Its descriptors: a directory's, or three for each file of a volume; none in a cluster; those
    /// of all layers of a union.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            Lower::Dir(dir) => vec![dir.as_fd()],
            Lower::Ceph(_) => Vec::new(),
            Lower::Union(layers) => layers.iter().flat_map(Lower::descriptors).collect(),
            Lower::Volume(files) => {
                let each = files.iter().map(|Files { io, plain, lock }| [io, plain, lock]);
                each.flatten().map(AsFd::as_fd).collect()
            }
        }
    }
}

fn too_many() -> Failure {
    Failure::usage(format!("--lower: at most {LOWERS_MAX} of them, with those of unions"))
}

/// Opens the lowers, the uppermost first: directories as paths, volumes for reading, together with
/// others who read them. No two layers of one union, nor any of them and `own`, where the lane's
/// own files are, may lie in each other.
pub(crate) fn open(lowers: &[LowerSource], own: Option<&LowerSource>) -> Result<Vec<Lower>> {
    if lowers.iter().map(|lower| lower.all().len()).sum::<usize>() > LOWERS_MAX {
        return Err(too_many());
    }
    if lowers.is_empty() {
        return Ok(Vec::new());
    }
    let mounts = mountinfo::seen();
    let mut placed = Vec::new();
    let opened = open_union(lowers, true, &mounts, &mut placed)?;
    if let Some(own) = own {
        let (path, mut whole) = (own.path(), within(own));
        if own.ceph().is_none() {
            whole = whole_of(&path).map_err(|error| Failure::path(&path, "find it", error))?;
        }
        let own = Placed::new(path, whole, &mounts);
        placed.iter().try_for_each(|layer| refuse_overlap(layer, &own))?;
    }
    Ok(opened)
}

/// Opens the layers of one union, the uppermost first, and tells where they and those below them
/// are. `is_lowest`: nothing is under it.
fn open_union<'a>(
    layers: &'a [LowerSource],
    is_lowest: bool,
    mounts: &[Seen],
    all: &mut Vec<Placed<'a>>,
) -> Result<Vec<Lower>> {
    check_data_only(layers)?;
    let (mut opened, mut placed) = (Vec::new(), Vec::new());
    for (at, layer) in layers.iter().enumerate() {
        let whole = layer.canonical()?;
        // Marks of the lowest, and of what has no names, show nothing.
        let is_lowest = at + 1 == layers.len() && is_lowest || layer.is_data_only();
        opened.push(match layer.layers() {
            [] => open_one(&layer.path(), &whole, is_lowest)?,
            below => Lower::Union(open_union(below, is_lowest, mounts, all)?),
        });
        let here = Placed::new(layer.path(), within(&whole), mounts);
        placed.iter().try_for_each(|other| refuse_overlap(other, &here))?;
        placed.push(here);
    }
    all.append(&mut placed);
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

/// The path by which a layer is compared with others: that of a cluster's, or of a union's file, is
/// no directory of the host.
fn within(whole: &LowerSource) -> PathBuf {
    match whole.ceph() {
        Some(place) => Path::new(&format!("ceph:{}", place.fs)).join(place.names().join("/")),
        None if whole.layers().is_empty() => whole.path().into_owned(),
        None => {
            let mut file = OsString::from("union:");
            file.push(&*whole.path());
            file.into()
        }
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
        LowerSource::Fixed(below) | LowerSource::Data(below) | LowerSource::Cached(below, _) => {
            open_one(path, below, is_lowest)
        }
        // It has layers, or it was refused.
        LowerSource::Union(..) => Ok(Lower::Union(Vec::new())),
    }
}

/// What the service is told of the lowers.
pub(crate) fn specs(named: &[LowerSource], opened: &[Lower]) -> Vec<LowerSpec> {
    let each = named.iter().zip(opened).map(|(named, lower)| LowerSpec {
        label: Shown::new(&*named.path()).to_string(),
        is_data_only: named.is_data_only(),
        is_fixed: named.is_fixed(),
        cache: named.cache(),
        files: match lower {
            Lower::Dir(_) | Lower::Ceph(_) | Lower::Union(_) => None,
            Lower::Volume(files) => Some(files.len()),
        },
        ceph: named.ceph().map(|place| place.path.clone()),
        layers: match lower {
            Lower::Union(opened) => specs(named.layers(), opened),
            Lower::Dir(_) | Lower::Ceph(_) | Lower::Volume(_) => Vec::new(),
        },
    });
    each.collect()
}

/// `whole`: without links. One that another user has put there since is not followed.
fn open_dir(path: &Path, whole: &Path) -> Result<OwnedFd> {
    let dir = volume::expect(whole, Links::Own, "use it as a lower")?.file;
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
/// lowers, so one that is made is its user's alone; see [`check_upper`]. No link of another user
/// leads there.
pub(crate) fn open_own(path: &Path, is_upper: bool) -> Result<OwnedFd> {
    let mode = if is_upper { 0o700 } else { 0o777 };
    volume::make_dir(path, Mode::from_raw_mode(mode), "use it as the lane's directory")
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

fn refuse_overlap(one: &Placed<'_>, other: &Placed<'_>) -> Result<()> {
    let overlap = |one: &Path, other: &Path| match (one.starts_with(other), other.starts_with(one))
    {
        (true, true) => Some("are one layer"),
        (true, _) | (_, true) => Some("lie in each other"),
        _ => None,
    };
    let in_files = one.in_files.as_ref().zip(other.in_files.as_ref());
    let in_files = || in_files.and_then(|(one, other)| overlap(one, other));
    let Some(what) = overlap(&one.whole, &other.whole).or_else(in_files) else { return Ok(()) };
    let (one, other) = (Shown::new(&*one.path), Shown::new(&*other.path));
    Err(Failure::usage(format!(
        "--lower {one}: it and {other} {what}: give each layer a directory of its own"
    )))
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
        let pairs = placed.iter().enumerate();
        let mut pairs =
            pairs.flat_map(|(at, other)| placed[..at].iter().map(move |one| (one, other)));
        pairs.find_map(|(one, other)| refuse_overlap(one, other).err()).map(|failure| failure.line)
    }

    #[test]
    fn layers_in_each_other_are_refused() {
        assert_eq!(refused(&["/a", "/b", "/ab"]), None);
        for paths in [["/x", "/a", "/a"], ["/x", "/a", "/a/b"], ["/a/b/c", "/x", "/a"]] {
            assert!(refused(&paths).is_some_and(|line| line.starts_with("--lower ")), "{paths:?}");
        }
    }
}

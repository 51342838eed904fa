//! What one tree changed of another becomes a layer's tar file.
//!
//! Both trees are whole: a union's, and that of its lowers alone. So nothing need be known of
//! marks, and files whose data is in two layers are read whole. A file is unchanged if it is the
//! same inode, of the same size and times, the time of its last change among them, which nobody
//! sets.
//!
//! | in the trees | in the layer |
//! |---|---|
//! | a name that the lowers alone have | `.wh.NAME` |
//! | a directory that has none of several names that it has in the lowers | `.wh..wh..opq` |
//! | anything that is not as in the lowers | it, whole |
//! | names of one file | the first one's file, and links to it |
//! | a directory on the way to any of these | it, with its state |
//! | a socket | nothing: it is as if there were none |
//!
//! Members are in the order of their names, so the same trees give the same bytes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use polylane_base::shown::Shown;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use crate::compression::Compression;
use crate::error::{Error, Result};
use crate::export::write_new;
use crate::pack::{self, Writer};
use crate::tree;
use crate::unpack::{OPAQUE, WHITEOUT};

/// Writes what the tree at `merged` has changed of the one at `base`, as an OCI layer, to the new
/// file `to`; `-` is standard output. Nothing may change them meanwhile.
///
/// # Errors
/// A tree cannot be read, has a name that means something else in a layer, or `to` cannot be
/// written; then it is not made.
pub fn diff(base: &Path, merged: &Path, to: &Path, packing: Compression) -> Result<()> {
    let open =
        |path: &Path| pack::open_dir(path).map_err(|errno| Error::io(path, "open it", errno));
    let (base, merged) = (open(base)?, open(merged)?);
    write_new(to, |out| {
        if packing == Compression::Plain {
            return write(&base, &merged, out).map(drop);
        }
        let failed = |error| Error::io(to, "write it", error);
        let file = tempfile::tempfile().map_err(failed)?;
        let mut tar = write(&base, &merged, io::BufWriter::new(file))?
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        tar.rewind().and_then(|()| packing.pack(tar, out)).map_err(failed)
    })
}

fn write<W: Write>(base: &OwnedFd, merged: &OwnedFd, to: W) -> Result<W> {
    let mut differ = Differ { base, merged, writer: Writer::new(to), written: HashSet::new() };
    let failed =
        |path: &[u8], error| Error::bad(shown(path), format!("cannot be put in a layer: {error}"));
    differ.root().map_err(|error| failed(b"", error))?;
    let mut left = vec![Dir { path: Vec::new(), in_base: true }];
    while let Some(dir) = left.pop() {
        let inner = differ.dir(&dir).map_err(|error| failed(&dir.path, error))?;
        left.extend(inner.into_iter().rev());
    }
    differ.writer.finish().map_err(|error| failed(b"", error))
}

fn shown(path: &[u8]) -> String {
    let path = [b"/", path].concat();
    Shown::new(OsStr::from_bytes(&path)).to_string()
}

/// A directory of the merged tree.
struct Dir {
    path: Vec<u8>,
    /// The lowers have a directory at the path.
    in_base: bool,
}

struct Differ<'a, W> {
    base: &'a OwnedFd,
    merged: &'a OwnedFd,
    writer: Writer<W>,
    /// Directories that are in the layer.
    written: HashSet<Vec<u8>>,
}

impl<W: Write> Differ<'_, W> {
    fn root(&mut self) -> io::Result<()> {
        match pack::same_dir(self.base, self.merged)? {
            true => Ok(()),
            false => self.ensure(b""),
        }
    }

    /// Writes what is new in a directory, and what is gone; the directories in it.
    fn dir(&mut self, dir: &Dir) -> io::Result<Vec<Dir>> {
        let merged = pack::beneath(self.merged, &dir.path)?;
        let base = match dir.in_base {
            true => Some(pack::beneath(self.base, &dir.path)?),
            false => None,
        };
        let names = pack::sorted_names(&merged)?;
        let mut inner = Vec::new();
        let mut sockets = HashSet::new();
        for name in &names {
            let path = join(&dir.path, name);
            let now = tree::stat(&merged, name)?;
            let before = base.as_ref().map(|base| stat(base, name)).transpose()?.flatten();
            if name.starts_with(WHITEOUT) {
                let why = "its name begins with '.wh.', which says in a layer that it is removed";
                return Err(io::Error::other(format!("{}: {why}", shown(&path))));
            }
            match FileType::from_raw_mode(now.st_mode) {
                FileType::Directory => {
                    let in_base = before.is_some_and(|before| is_dir(&before));
                    let is_same = match (&base, in_base) {
                        (Some(base), true) => pack::same_dir(
                            &pack::beneath(base, name)?,
                            &pack::beneath(&merged, name)?,
                        )?,
                        _ => false,
                    };
                    if !is_same {
                        self.ensure(&path)?;
                    }
                    inner.push(Dir { path, in_base });
                }
                FileType::Socket => drop(sockets.insert(name)),
                _ if before.is_some_and(|before| is_same_file(&before, &now)) => {}
                _ => {
                    self.ensure(&dir.path)?;
                    self.writer.add(&merged, name, &path)?;
                }
            }
        }
        let Some(base) = base else { return Ok(inner) };
        let kept: HashSet<_> = names.iter().filter(|name| !sockets.contains(name)).collect();
        let were = pack::sorted_names(&base)?;
        let gone: Vec<_> = were.iter().filter(|name| !kept.contains(name)).collect();
        if gone.is_empty() {
            return Ok(inner);
        }
        self.ensure(&dir.path)?;
        if gone.len() > 1 && gone.len() == were.len() {
            self.writer.add_mark(&join(&dir.path, OPAQUE))?;
            return Ok(inner);
        }
        for name in gone {
            self.writer.add_mark(&join(&dir.path, &[WHITEOUT, name].concat()))?;
        }
        Ok(inner)
    }

    /// Writes a directory, after those above it, if it is not in the layer yet: what reads a layer
    /// makes those that are not there with a state of its own.
    fn ensure(&mut self, path: &[u8]) -> io::Result<()> {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let ends: Vec<_> = std::iter::once(0).chain(ends).chain([path.len()]).collect();
        for end in ends {
            let path = &path[..end];
            if self.written.insert(path.to_vec()) {
                self.writer.add_dir(path, &pack::beneath(self.merged, path)?)?;
            }
        }
        Ok(())
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

fn stat(dir: &OwnedFd, name: &[u8]) -> io::Result<Option<Stat>> {
    match tree::stat(dir, name) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_dir()
}

fn is_same_file(before: &Stat, now: &Stat) -> bool {
    let all = |stat: &Stat| {
        (
            (stat.st_ino, stat.st_mode, stat.st_uid, stat.st_gid, stat.st_size, stat.st_rdev),
            (stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec),
        )
    };
    all(before) == all(now)
}

//! A layer's tar file becomes a tree, with its whiteouts as overlayfs has them.
//!
//! | in the layer | in the tree |
//! |---|---|
//! | `.wh.NAME` | a character device 0/0 called NAME, unless the layer itself has NAME |
//! | `.wh..wh..opq` | `opaque` = `y` on the directory, in the trusted and the user name space |
//! | other `.wh..wh.NAME` | nothing |
//! | NAME, a directory, and `.wh.NAME` | the directory, opaque |
//!
//! Marks that a layer brings itself (`trusted.overlay.*`, `user.overlay.*`, a device 0/0) are
//! refused: they would show files of other layers under other names. So are devices that reach
//! hardware or the kernel; those of every `/dev` (`null`, `zero`, `tty`…) are made.
//! Owners and modes: `owners.rs`.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use polylane_base::shown::Shown;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, XattrFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::limits::Budget;
use crate::member::{Broken, Kind, Member, Reader};
use crate::owners::Owners;
use crate::tree::{self, Tree};

pub(crate) const WHITEOUT: &[u8] = b".wh.";
const WHITEOUT_META: &[u8] = b".wh..wh.";
pub(crate) const OPAQUE: &[u8] = b".wh..wh..opq";

/// overlayfs' mark of a directory that hides those below.
const OPAQUE_MARKS: [&str; 2] = ["trusted.overlay.opaque", "user.overlay.opaque"];

/// Prefixes of overlayfs' marks.
const MARKS: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// Character devices that a layer may have: null, zero, full, random, urandom, tty, console, ptmx
/// (Linux: Documentation/admin-guide/devices.txt).
const DEVICES: [(u32, u32); 8] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)];

/// What was unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Unpacked {
    /// Members of the layer.
    pub(crate) members: u64,
    /// Bytes of files.
    pub(crate) bytes: u64,
    /// Members that are others in the tree: the caller may not make them as they are.
    pub(crate) squashed: u64,
}

/// Unpacks the tar file `stream` into the empty directory `to`, and reads `stream` to its end.
/// `layer`: what messages call it. A failure may be that of `budget`, which tells.
pub(crate) fn unpack(
    stream: impl Read,
    to: &Path,
    layer: &str,
    budget: &Budget,
) -> Result<Unpacked> {
    let tree = Tree::open(to).map_err(|error| Error::io(to, "open it", error))?;
    let mut unpacker = Unpacker { tree, layer, owners: Owners::of_caller() };
    let mut unpacked = Unpacked::default();
    let mut reader = Reader::new(stream);
    let broken = |error: Broken| match error {
        Broken::Io(error) => Error::bad(layer, format!("cannot be unpacked: {error}")),
        Broken::Format(why) => Error::bad(layer, format!("cannot be unpacked: {why}")),
    };
    while let Some(member) = reader.next().map_err(broken)? {
        unpacked.members += 1;
        unpacked.squashed += u64::from(unpacker.owners.squash(&member));
        unpacked.bytes = unpacked.bytes.saturating_add(member.size);
        let added = unpacker.add(&member, &mut reader).and_then(|()| {
            budget.members(1 + unpacker.tree.take_made()).map_err(|_| Wrong::TooMany)
        });
        added.map_err(|wrong| unpacker.named(&member, wrong))?;
    }
    reader.drain().map_err(broken)?;
    unpacker.tree.leave().map_err(|errno| Error::io(to, "set times in it", errno))?;
    Ok(unpacked)
}

/// Why a member cannot be made.
enum Wrong {
    /// It is refused.
    Why(String),
    /// The kernel refused it.
    Kernel(Errno),
    /// The archive cannot be read on.
    Archive(Broken),
    /// It is one member more than is allowed.
    TooMany,
}

impl From<Errno> for Wrong {
    fn from(errno: Errno) -> Self {
        Wrong::Kernel(errno)
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong::Why(why.into()))
}

struct Unpacker<'a> {
    tree: Tree,
    layer: &'a str,
    owners: Owners,
}

impl Unpacker<'_> {
    fn named(&self, member: &Member, wrong: Wrong) -> Error {
        use std::os::unix::ffi::OsStrExt as _;
        let path = std::ffi::OsStr::from_bytes(&member.path);
        let object = format!("{}: {}", self.layer, Shown::new(path));
        match wrong {
            Wrong::Why(why) => Error::bad(object, why),
            Wrong::Kernel(Errno::XDEV) => {
                Error::bad(object, "a symbolic link on its path leads out of the layer")
            }
            Wrong::Kernel(errno) => {
                let error = std::io::Error::from(errno);
                Error::bad(
                    object,
                    format!("cannot make it: {}", polylane_base::errno::plain(&error)),
                )
            }
            Wrong::TooMany => Error::bad(object, "too many members"),
            Wrong::Archive(Broken::Io(error)) => {
                Error::bad(object, format!("cannot be unpacked: {error}"))
            }
            Wrong::Archive(Broken::Format(why)) => {
                Error::bad(object, format!("cannot be unpacked: {why}"))
            }
        }
    }

    fn add(&mut self, member: &Member, reader: &mut Reader<impl Read>) -> Result<(), Wrong> {
        let path = clean(&member.path)?;
        member.xattrs.iter().try_for_each(|(attribute, _)| refuse_mark(attribute))?;
        let (dir_path, name) = tree::split(&path);
        let owners = self.owners;
        if name.is_empty() {
            return match member.kind {
                Kind::Dir => {
                    self.tree.leave()?;
                    let root = self.tree.find(b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
                    Ok(owners.give(&root, member)?)
                }
                _ => refuse("the root of a layer is a directory"),
            };
        }
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return self.whiteout(dir_path, name, hidden);
        }
        if member.kind == Kind::HardLink {
            return self.hard_link(member, dir_path, name);
        }
        let is_opaque = self.make_room(member.kind, dir_path, name)?;
        let dir = self.tree.dir(dir_path)?;
        match member.kind {
            Kind::Dir => {
                let made = make_dir(dir, name)?;
                owners.give(&made, member)?;
                if is_opaque {
                    mark_opaque(&made)?;
                }
            }
            Kind::File => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let made = rustix::fs::openat(dir, name, flags, Mode::from_raw_mode(0o600))?;
                let mut file = File::from(made);
                reader.copy(&mut file).map_err(Wrong::Archive)?;
                owners.give(&file, member)?;
            }
            Kind::Symlink => {
                rustix::fs::symlinkat(member.link.as_slice(), dir, name)?;
                owners.give_node(dir, name, member)?;
            }
            Kind::Fifo | Kind::Char | Kind::Block => {
                let kind = node_kind(member)?;
                if owners == Owners::Kept || kind == FileType::Fifo {
                    let (major, minor) = member.device;
                    let device = rustix::fs::makedev(major, minor);
                    rustix::fs::mknodat(dir, name, kind, Mode::from_raw_mode(0o600), device)?;
                    owners.give_node(dir, name, member)?;
                }
            }
            Kind::HardLink => {}
        }
        Ok(())
    }

    /// Takes away what has the name already; whether a directory of that name is to be opaque.
    fn make_room(&mut self, kind: Kind, dir_path: &[u8], name: &[u8]) -> Result<bool, Wrong> {
        let dir = self.tree.dir(dir_path)?;
        let there = match tree::stat(dir, name) {
            Ok(there) => there,
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        };
        match (is_dir(&there), kind) {
            (true, Kind::Dir) => Ok(false),
            (true, _) => refuse("a directory of the same layer has the name"),
            (false, _) => {
                rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
                // A link that paths went through may be gone.
                self.tree.leave()?;
                Ok(tree::is_whiteout(&there))
            }
        }
    }

    fn hard_link(&mut self, member: &Member, dir_path: &[u8], name: &[u8]) -> Result<(), Wrong> {
        // Some builders write it from the root.
        let slashes = member.link.iter().take_while(|&&byte| byte == b'/').count();
        let target = clean(&member.link[slashes..]).map_err(|_| {
            Wrong::Why("a hard link to a file that is not in the layer".to_string())
        })?;
        let (target_dir, target_name) = tree::split(&target);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let found = self.tree.find(target_dir, flags);
        let there = found.and_then(|dir| tree::stat(&dir, target_name).map(|stat| (dir, stat)));
        let from = match there {
            Ok((dir, stat)) if !is_dir(&stat) && !tree::is_whiteout(&stat) => dir,
            Ok(_) | Err(Errno::NOENT | Errno::NOTDIR | Errno::XDEV) => {
                return refuse("a hard link to a file that is not in the layer");
            }
            Err(errno) => return Err(errno.into()),
        };
        if target != [dir_path, name].join(&b'/') && (!dir_path.is_empty() || target != name) {
            self.make_room(member.kind, dir_path, name)?;
            let dir = self.tree.dir(dir_path)?;
            rustix::fs::linkat(&from, target_name, dir, name, AtFlags::empty())?;
        }
        Ok(())
    }

    fn whiteout(&mut self, dir_path: &[u8], name: &[u8], hidden: &[u8]) -> Result<(), Wrong> {
        if name == OPAQUE {
            self.tree.dir(dir_path)?;
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            return mark_opaque(&self.tree.find(dir_path, flags)?);
        }
        if name.starts_with(WHITEOUT_META) {
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return refuse("a whiteout of no name");
        }
        let dir = self.tree.dir(dir_path)?;
        let made = rustix::fs::mknodat(dir, hidden, FileType::CharacterDevice, Mode::empty(), 0);
        match made {
            // The layer has it itself: what is below is hidden by that.
            Err(Errno::EXIST) if is_dir(&tree::stat(dir, hidden)?) => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                mark_opaque(&rustix::fs::openat(dir, hidden, flags, Mode::empty())?)
            }
            Err(Errno::EXIST) => Ok(()),
            made => Ok(made?),
        }
    }
}

fn clean(path: &[u8]) -> Result<Vec<u8>, Wrong> {
    tree::clean(path).map_err(|bad| Wrong::Why(bad.why().to_string()))
}

fn is_dir(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_dir()
}

fn make_dir(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Wrong> {
    match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, name, flags, Mode::empty())?)
}

/// What a node is to be made as.
fn node_kind(member: &Member) -> Result<FileType, Wrong> {
    let (major, minor) = member.device;
    match member.kind {
        Kind::Fifo => Ok(FileType::Fifo),
        Kind::Char if DEVICES.contains(&member.device) => Ok(FileType::CharacterDevice),
        _ if member.device == (0, 0) => {
            refuse("a device 0/0, which is overlayfs' mark of a removed name")
        }
        _ => refuse(format!("device {major}/{minor}: not one that images may have")),
    }
}

fn refuse_mark(name: &[u8]) -> Result<(), Wrong> {
    match MARKS.iter().any(|mark| name.starts_with(mark)) {
        true => {
            refuse(format!("has overlayfs' mark {}", String::from_utf8_lossy(name).escape_debug()))
        }
        false => Ok(()),
    }
}

fn mark_opaque(dir: &OwnedFd) -> Result<(), Wrong> {
    for mark in OPAQUE_MARKS {
        match rustix::fs::fsetxattr(dir, mark, b"y", XattrFlags::empty()) {
            // Of an ordinary user, who cannot mount what needs it either.
            Err(Errno::PERM) if mark.starts_with("trusted.") => {}
            set => set?,
        }
    }
    Ok(())
}

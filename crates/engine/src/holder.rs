//! Whether another engine still has a container: told by a directory that the engine makes with the
//! container, keeps while it is stopped, and removes with it.
//!
//! | engine | directory |
//! |---|---|
//! | podman | the bundle, which podman keeps as long as the container |
//! | any, by overlayfs | the upper directory of the mount that is the bundle's root |
//! | docker, by others | the bundle's root, or what holds it where something is mounted on it |
//!
//! Others have none: `delete` removes their containers, as the runtime specification says.
//!
//! A directory is told by its inode and when it was born, not by its device: device numbers change
//! when the host starts again. The engine's directory of all containers is told as well. Where that
//! is another one or is not there, as on a disk that is not mounted, nothing is known of one.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use polylane_pool::{MountedAt, mounted_at};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The last part of the directory that containerd's shim hands to the runtime of docker's
/// containers: docker's namespace of containerd.
const DOCKER: &str = "moby";

/// By this annotation an engine says which it is.
const ENGINE: &str = "io.container.manager";

/// What tells one directory from all others that were at its path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Identity {
    inode: u64,
    /// Seconds and nanoseconds, where the file system has them.
    born: Option<(i64, u32)>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Directory {
    path: PathBuf,
    identity: Identity,
}

/// The directory by which an engine has a container.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Holder {
    own: Directory,
    /// The engine's directory of all containers.
    store: Directory,
}

/// What is known of an engine's container.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Known {
    /// The engine has it.
    Here,
    /// The engine has it no more.
    Gone,
    /// The engine's directory is not there.
    Nothing,
}

impl Directory {
    fn find(path: &Path) -> io::Result<Directory> {
        let mask = StatxFlags::INO | StatxFlags::BTIME;
        let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, mask)?;
        let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let born = has_birth.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec));
        Ok(Directory { path: path.into(), identity: Identity { inode: found.stx_ino, born } })
    }
}

impl Holder {
    /// The directory of a container with this configuration, whose paths are absolute. `state`:
    /// where the runtime keeps its state.
    pub(crate) fn find(config: &Value, bundle: &Path, state: &OsStr) -> Option<Holder> {
        if config["annotations"][ENGINE] == "libpod" {
            // Its parent is the container's as well.
            return Holder::at(bundle, 2);
        }
        let root = Path::new(config["root"]["path"].as_str()?);
        let is_docker = Path::new(state).file_name().is_some_and(|name| name == DOCKER);
        match mounted_at(root) {
            // What the engine calls it is its parent's name.
            Some(MountedAt { overlay_upper: Some(upper) }) => Holder::at(&upper, 2),
            _ if !is_docker => None,
            Some(_) => Holder::at(root.parent()?, 1),
            None => Holder::at(root, 1),
        }
    }

    /// The directory at `path`; the engine's own is so many names above it.
    fn at(path: &Path, above: usize) -> Option<Holder> {
        let own = Directory::find(path).ok()?;
        let store = Directory::find(path.ancestors().nth(above)?).ok()?;
        Some(Holder { own, store })
    }

    /// Whether both are of one container.
    pub(crate) fn is_same(&self, other: &Holder) -> bool {
        self.own.identity == other.own.identity
    }

    pub(crate) fn known(&self) -> Known {
        match Directory::find(&self.own.path) {
            Ok(found) if found == self.own => Known::Here,
            Err(error) if !is_absence(&error) => Known::Nothing,
            _ => match Directory::find(&self.store.path) {
                Ok(found) if found == self.store => Known::Gone,
                _ => Known::Nothing,
            },
        }
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

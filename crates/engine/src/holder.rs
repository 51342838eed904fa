//! Whether another engine still has a container: told by a directory that the engine makes with the
//! container, keeps while it is stopped, and removes with it.
//!
//! | engine | directory |
//! |---|---|
//! | podman | the bundle, which podman keeps as long as the container |
//! | any, by overlayfs | the upper directory of the mount that is the bundle's root |
//! | docker, by others | the bundle's root, or what holds one called `merged` that is mounted |
//!
//! Others have none: `delete` removes their containers, as the runtime specification says. So has
//! docker where something is mounted on a root of another name: what holds that is the directory of
//! all containers, as with its driver for ZFS.
//!
//! A directory is told by its inode and when it was born, not by its device: device numbers change
//! when the host starts again. Where the file system tells no birth, its path is compared as well:
//! inodes are used again. The engine's directory of all containers is told as well. Where that is
//! another one or is not there, as on a disk that is not mounted, nothing is known of one.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use polylane_pool::failure::{Failure, Result};
use polylane_pool::{MountedAt, mounted_at};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The last part of the directory that containerd's shim hands to the runtime of docker's
/// containers: docker's namespace of containerd.
const DOCKER: &str = "moby";

/// What docker's drivers call the mounted root in a directory of the container's own.
const MERGED: &str = "merged";

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
    /// where the runtime keeps its state. `None`: the engine has none.
    ///
    /// # Errors
    /// One line: it cannot be told.
    pub(crate) fn find(config: &Value, bundle: &Path, state: &OsStr) -> Result<Option<Holder>> {
        if config["annotations"][ENGINE] == "libpod" {
            // Its parent is the container's as well.
            return Holder::at(bundle, 2);
        }
        let Some(root) = config["root"]["path"].as_str().map(Path::new) else { return Ok(None) };
        let is_docker = Path::new(state).file_name().is_some_and(|name| name == DOCKER);
        let mounted = mounted_at(root)
            .map_err(|error| Failure::path(root, "tell what is mounted there", error))?;
        match (mounted, root.parent()) {
            // What the engine calls it is its parent's name.
            (Some(MountedAt { overlay_upper: Some(upper) }), _) => Holder::at(&upper, 2),
            _ if !is_docker => Ok(None),
            (Some(_), Some(above)) if root.ends_with(MERGED) => Holder::at(above, 1),
            (Some(_), _) => Ok(None),
            (None, _) => Holder::at(root, 1),
        }
    }

    /// The directory at `path`; the engine's own is so many names above it. `None`: there is none.
    fn at(path: &Path, above: usize) -> Result<Option<Holder>> {
        let Some(store) = path.ancestors().nth(above) else { return Ok(None) };
        let find = |path: &Path| match Directory::find(path) {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(Failure::path(path, "tell by it whose container it is", error)),
        };
        Ok(find(path)?.zip(find(store)?).map(|(own, store)| Holder { own, store }))
    }

    /// Whether both are of one container.
    pub(crate) fn is_same(&self, other: &Holder) -> bool {
        let has_birth = self.own.identity.born.is_some();
        self.own.identity == other.own.identity && (has_birth || self.own.path == other.own.path)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn own(holder: Result<Option<Holder>>) -> Option<PathBuf> {
        holder.expect("known").map(|holder| holder.own.path)
    }

    /// A file system without births gives an inode to the next directory.
    #[test]
    fn without_a_birth_another_path_is_another_container() {
        let at = |path: &str, born| {
            let identity = Identity { inode: 7, born };
            let own = Directory { path: path.into(), identity };
            Holder { store: own.clone(), own }
        };
        let born = Some((1, 2));
        assert!(at("/a", born).is_same(&at("/moved", born)));
        assert!(at("/a", None).is_same(&at("/a", None)));
        assert!(!at("/a", None).is_same(&at("/b", None)));
        assert!(!at("/a", born).is_same(&at("/a", None)));
        assert!(!at("/a", born).is_same(&at("/a", Some((1, 3)))));
    }

    /// docker's driver for ZFS mounts a root in the directory of all of them.
    #[test]
    fn a_mounted_root_is_told_by_a_directory_of_its_own_alone() {
        let of = |root: &str, state: &str| {
            Holder::find(&json!({ "root": { "path": root } }), Path::new("/"), state.as_ref())
        };
        assert_eq!(own(of("/proc", "/run/moby")), None);
        let dir = tempfile::tempdir().expect("tempdir");
        let root = dir.path().join("layers/c");
        std::fs::create_dir_all(&root).expect("mkdir");
        let text = root.to_str().expect("text");
        assert_eq!(own(of(text, "/run/moby")), Some(root.clone()));
        assert_eq!(own(of(text, "/run/other")), None);
        assert_eq!(own(of("/nope/c", "/run/moby")), None);
    }

    /// What cannot be told is not taken for none: a volume would be removed.
    #[test]
    fn what_cannot_be_told_is_an_error() {
        let name = format!("/{}", "x".repeat(300));
        let is_error = |config: Value| {
            let found =
                Holder::find(&config, Path::new(&name).join("a/b").as_path(), DOCKER.as_ref());
            found.is_err_and(|failure| failure.line.contains("too long"))
        };
        assert!(is_error(json!({ "annotations": { ENGINE: "libpod" } })));
        assert!(is_error(json!({ "root": { "path": name } })));
    }
}

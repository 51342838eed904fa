//! What every [`FileSystem`] must do, whatever it is made of.
//!
//! [`run`] gives each check a fresh file system, runs all of them and fails with the list of
//! those that failed. A check that needs what the host may not allow (owners, devices) asks
//! [`Can`].

mod attrs;
mod data;
mod life;
mod names;
mod rename;
mod space;

use polylane_base::{Errno, Gid, Ino, Result, Uid};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, Changed, DirEntry, FileSystem, Kind, NewNode};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// What the file system under test is able to do here.
#[derive(Clone, Copy, Debug)]
pub struct Can {
    /// Give files to other users, make devices.
    pub own: bool,
    /// `O_TMPFILE`.
    pub unnamed: bool,
    /// Punch, zero, collapse and insert ranges.
    pub fallocate: bool,
    /// Extended attributes of the `user.` name space.
    pub xattrs: bool,
    /// Leave whiteouts.
    pub whiteout: bool,
    /// Rename by `RENAME_NOREPLACE` and `RENAME_EXCHANGE`.
    pub rename_flags: bool,
    /// Holes of 4 KiB pages are told exactly by `seek` and `blocks`.
    pub exact_holes: bool,
    /// Time stamps of two successive changes differ.
    pub fine_times: bool,
}

impl Can {
    /// Everything.
    pub const ALL: Can = Can {
        own: true,
        unnamed: true,
        fallocate: true,
        xattrs: true,
        whiteout: true,
        rename_flags: true,
        exact_holes: true,
        fine_times: true,
    };
}

/// One fresh file system and what it can do.
pub struct Subject {
    /// The file system.
    pub fs: Arc<dyn FileSystem>,
    /// What it can do.
    pub can: Can,
}

type Check = (&'static str, fn(&Subject));

/// Runs every check, each on a fresh file system made by `make`.
///
/// # Panics
///
/// When a check fails, after all have run, with the names of the failed ones.
pub fn run(can: Can, make: &mut dyn FnMut() -> Arc<dyn FileSystem>) {
    let groups = [attrs::CHECKS, data::CHECKS, life::CHECKS, names::CHECKS, rename::CHECKS];
    let checks = groups.into_iter().chain([space::CHECKS]).flatten();
    let mut failed = Vec::new();
    for (name, check) in checks {
        let subject = Subject { fs: make(), can };
        if catch_unwind(AssertUnwindSafe(|| check(&subject))).is_err() {
            failed.push(*name);
        }
    }
    assert!(failed.is_empty(), "failed checks: {failed:?}");
}

/// A new node for the service's own user.
pub fn node(kind: Kind, perm: u32) -> NewNode<'static> {
    let (uid, gid) = own_ids();
    NewNode { uid, gid, ..NewNode::new(kind, perm) }
}

/// The ids of this process: what a service without privileges can create files as.
pub fn own_ids() -> (Uid, Gid) {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    (Uid(uid.as_raw()), Gid(gid.as_raw()))
}

impl Subject {
    fn root(&self) -> Ino {
        self.fs.root().unwrap().ino
    }

    fn file(&self, name: &str) -> Attr {
        self.create(self.root(), name, Kind::File).node
    }

    fn mkdir(&self, dir: Ino, name: &str) -> Attr {
        self.create(dir, name, Kind::Dir).node
    }

    fn create(&self, dir: Ino, name: &str, kind: Kind) -> Changed {
        let perm = if kind == Kind::Dir { 0o755 } else { 0o644 };
        let target: &[u8] = if kind == Kind::Symlink { b"target" } else { b"" };
        let new = NewNode { target, ..node(kind, perm) };
        self.fs.create(&OpCtx::service(), dir, name.as_bytes(), &new).unwrap()
    }

    fn lookup(&self, dir: Ino, name: &str) -> Result<Attr> {
        self.fs.lookup(&OpCtx::service(), dir, name.as_bytes())
    }

    fn write(&self, ino: Ino, offset: u64, bytes: &[u8]) {
        let written = self.fs.write(&OpCtx::service(), ino, offset, &mut &*bytes);
        assert_eq!(written, Ok(bytes.len()));
    }

    fn read(&self, ino: Ino, offset: u64, len: usize) -> Vec<u8> {
        let mut buffer = vec![0xee; len];
        let count =
            self.fs.read(&OpCtx::service(), ino, offset, len, &mut buffer.as_mut_slice()).unwrap();
        assert!(count <= len);
        buffer.truncate(count);
        buffer
    }

    /// (name, inode, kind, next) of every entry from `from` on.
    fn list(&self, dir: Ino, from: u64) -> Vec<(Vec<u8>, Ino, Kind, u64)> {
        let mut all = Vec::new();
        let mut each = |entry: DirEntry<'_>| {
            all.push((entry.name.to_vec(), entry.ino, entry.kind, entry.next));
            true
        };
        self.fs.readdir(&OpCtx::service(), dir, from, &mut each).unwrap();
        all
    }

    fn names(&self, dir: Ino) -> Vec<String> {
        let mut names: Vec<String> = self
            .list(dir, 0)
            .into_iter()
            .map(|entry| String::from_utf8_lossy(&entry.0).into_owned())
            .collect();
        names.sort();
        names
    }

    fn gone(&self, dir: Ino, name: &str) {
        assert_eq!(self.lookup(dir, name), Err(Errno::ENOENT), "{name} should be gone");
    }
}

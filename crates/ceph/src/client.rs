//! A client of a cluster: one mount, and the file systems that are directories of it.
//!
//! Layers of a union and the branch above them are on one client: they share its session, its
//! cache and its threads.

use polylane_base::sync::{Arc, Weak, thread};
use polylane_base::{Errno, Result};

use crate::counters::{Kind, Totals};
use crate::direct::Direct;
use crate::failure::Failure;
use crate::ffi::{Inode, Mount};
use crate::fs::CephFs;
use crate::inodes::{IDLE_TIME_MAX, Inodes, Tables};

/// A mounted client. Thread-safe. Its session at the MDS ends when it and all its file systems are
/// dropped.
pub struct Client {
    mount: Arc<Mount>,
    /// The directory that is mounted.
    mounted: Vec<u8>,
    /// The inodes of its file systems: one thread closes their idle handles, one wakes calls.
    all: Arc<Tables>,
}

impl Client {
    /// Takes a mounted client over; `mounted` is its root.
    pub(crate) fn new(mount: Arc<Mount>, mounted: Vec<u8>) -> Result<Client> {
        let all = Arc::new(Tables::default());
        for (name, work) in KEEPERS {
            let weak = Arc::downgrade(&all);
            let keeper = thread::Builder::new().name(name.to_string());
            keeper.spawn(move || keep(&weak, work)).map_err(|_| Errno::EAGAIN)?;
        }
        Ok(Client { mount, mounted, all })
    }

    /// The files of a directory, by its path from the file system's root; it is what is mounted, or
    /// in it. Symbolic links are not followed.
    ///
    /// # Errors
    /// [`Failure::Directory`].
    pub fn files(&self, path: &[u8]) -> std::result::Result<CephFs, Failure> {
        let shown = || String::from_utf8_lossy(path).into_owned();
        let opened = self
            .open(path)
            .and_then(|(root, is_mounted)| CephFs::new(&self.mount, root, is_mounted, &self.all));
        let fs = opened.map_err(|errno| Failure::Directory(shown(), errno))?;
        self.all.lock().push(Arc::downgrade(fs.inodes()));
        Ok(fs)
    }

    /// The files of a directory as [`Client::files`] finds it, by calls of the library alone.
    ///
    /// # Errors
    /// [`Failure::Directory`].
    pub fn direct(&self, path: &[u8]) -> std::result::Result<Direct, Failure> {
        let shown = || String::from_utf8_lossy(path).into_owned();
        let (dir, _) = self.open(path).map_err(|errno| Failure::Directory(shown(), errno))?;
        Ok(Direct::new(&self.mount, dir))
    }

    /// The directory at a path, and whether it is the one that is mounted.
    fn open(&self, path: &[u8]) -> Result<(Inode, bool)> {
        let mut names = parts(path);
        for name in parts(&self.mounted) {
            if names.next() != Some(name) {
                return Err(Errno::EXDEV);
            }
        }
        let mut at = (Inode::root(&self.mount)?, true);
        for name in names {
            if name == b".." {
                return Err(Errno::EINVAL);
            }
            at = (at.0.lookup(&self.mount.service, name)?.0, false);
        }
        match at.0.stat(&self.mount.service)?.is_dir() {
            true => Ok(at),
            false => Err(Errno::ENOTDIR),
        }
    }

    /// What shows how the client is, and keeps it from nothing.
    pub fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.mount))
    }
}

/// A look at a client from outside: it does not keep it mounted.
pub struct Watch(Weak<Mount>);

impl Watch {
    /// What its calls of a kind came to; `None`: the client is gone.
    pub fn totals(&self, kind: Kind) -> Option<Totals> {
        Some(self.0.upgrade()?.counters.totals(kind))
    }

    /// Bytes that were written since the last sync of everything: no more of them may be missing on
    /// the cluster. Those of files that were synced alone count, too.
    pub fn unsynced_bytes(&self) -> Option<u64> {
        Some(self.0.upgrade()?.counters.unsynced_bytes())
    }

    /// Inodes that are held, for each of which the client has capabilities of the MDS, and open
    /// handles of files.
    pub fn held(&self) -> Option<(u64, u64)> {
        Some(self.0.upgrade()?.counters.held())
    }
}

/// The names that a path is made of.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && name != b".")
}

/// A thread's name, and what it does for all inodes with open handles.
type Keeper = (&'static str, fn(&Inodes));

/// The second may wait for the MDS, and the first goes on meanwhile.
const KEEPERS: [Keeper; 2] = [("ceph-idle", Inodes::close_idle), ("ceph-wake", Inodes::wake_calls)];

/// Does it again and again until the client and its file systems are gone.
fn keep(all: &Weak<Tables>, work: fn(&Inodes)) {
    while let Some(tables) = all.upgrade() {
        tables.lock().retain(|inodes| inodes.strong_count() > 0);
        let now: Vec<_> = tables.lock().iter().filter_map(Weak::upgrade).collect();
        drop(tables);
        now.iter().for_each(|inodes| work(inodes));
        drop(now);
        thread::sleep(IDLE_TIME_MAX);
    }
}

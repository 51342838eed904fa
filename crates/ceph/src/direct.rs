//! Calls of the client library with nothing above it but this: what a lane's calls are measured
//! beside.
//!
//! No table of inodes, no handles that come and go, no rights: a benchmark's peer, not a way to a
//! lane's files.

use polylane_base::Result;
use polylane_base::sync::Arc;
use polylane_sys::room::Room;

use crate::ffi::{Inode, Mount, OpenFile};

/// A directory of a mounted client, whose files are used by calls of the library alone.
pub struct Direct {
    mount: Arc<Mount>,
    dir: Inode,
}

/// An open file of such a directory.
pub struct DirectFile {
    inode: Inode,
    file: OpenFile,
}

impl Direct {
    pub(crate) fn new(mount: &Arc<Mount>, dir: Inode) -> Direct {
        Direct { mount: mount.clone(), dir }
    }

    /// Makes a file, open to read and to write.
    ///
    /// # Errors
    /// `EEXIST`, and those of the cluster; so too below.
    pub fn create(&self, name: &[u8]) -> Result<DirectFile> {
        let (inode, file, _) = self.dir.create(&self.mount.service, name, 0o644)?;
        Ok(DirectFile { inode, file })
    }

    /// Opens a file to read and to write.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn open(&self, name: &[u8]) -> Result<DirectFile> {
        let (inode, _) = self.dir.lookup(&self.mount.service, name)?;
        let file = inode.open(&self.mount.service, libc::O_RDWR)?;
        Ok(DirectFile { inode, file })
    }

    /// The size of what has a name, as `stat` of its path finds it.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn size(&self, name: &[u8]) -> Result<u64> {
        Ok(self.dir.lookup(&self.mount.service, name)?.1.size)
    }

    /// Removes a file's name.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        self.dir.unlink(&self.mount.service, name)
    }
}

impl DirectFile {
    /// Its size, as `fstat` finds it.
    ///
    /// # Errors
    /// Those of the cluster; so too below.
    pub fn size(&self) -> Result<u64> {
        Ok(self.inode.stat(self.inode.service())?.size)
    }

    /// Reads at `offset`; how much.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read(offset, Room::of(into))
    }

    /// Writes at `offset`; how much.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        self.file.write(offset, from)
    }
}

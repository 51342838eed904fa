//! A libservice with one file, `f`, that comes and goes. It takes `forget` at its word: an inode
//! that was forgotten is unknown until it is looked up again.

use polylane_base::{Errno, Gid, Ino, Result, Time, Uid};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

const ROOT: Ino = Ino(1);
const FILE: Ino = Ino(2);

#[derive(Default)]
pub struct Forgetful {
    /// The name is away.
    pub away: AtomicBool,
    known: AtomicBool,
    /// Who decides about locks, if not the VFS.
    pub shared: Option<std::sync::Arc<crate::shared_locks::Server>>,
    /// It says that nobody does but the VFS.
    pub alone: AtomicBool,
    pub forgotten: AtomicU64,
}

fn attr(ino: Ino) -> Attr {
    let kind = if ino == ROOT { Kind::Dir } else { Kind::File };
    let time = Time::default();
    Attr {
        ino,
        generation: 0,
        kind,
        perm: 0o777,
        nlink: 1,
        uid: Uid(0),
        gid: Gid(0),
        rdev: 0,
        size: 1,
        blocks: 0,
        blksize: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        flags: 0,
    }
}

impl FileSystem for Forgetful {
    fn character(&self) -> Character {
        Character {
            cache_data: false,
            volatile: true,
            access_times: AccessTimes::Relatime,
            read_only: false,
            max_file_size: 1 << 40,
            max_links: 100,
            max_dir_links: 100,
            whole_seconds: false,
            acls: false,
            flags: 0,
            remembered: false,
            attributes: 0,
        }
    }
    fn root(&self) -> Result<Attr> {
        Ok(attr(ROOT))
    }
    fn lookup(&self, _: &OpCtx<'_>, _: Ino, name: &[u8]) -> Result<Attr> {
        if name != b"f" || self.away.load(SeqCst) {
            return Err(Errno::ENOENT);
        }
        self.known.store(true, SeqCst);
        std::thread::yield_now();
        Ok(attr(FILE))
    }
    fn shared_locks(&self) -> Option<&dyn SharedLocks> {
        let shared = self.shared.as_deref().filter(|_| !self.alone.load(SeqCst));
        shared.map(|server| server as _)
    }
    fn revive(&self, ino: Ino, _: Option<u64>) -> Result<Revived> {
        self.known.store(true, SeqCst);
        Ok(Revived { attr: attr(ino), dir: None })
    }
    fn getattr(&self, _: &OpCtx<'_>, ino: Ino) -> Result<Attr> {
        if ino == FILE && !self.known.load(SeqCst) { Err(Errno::ESTALE) } else { Ok(attr(ino)) }
    }
    fn forget(&self, ino: Ino) {
        std::thread::yield_now();
        if ino == FILE {
            assert!(self.known.swap(false, SeqCst), "forgotten twice");
            self.forgotten.fetch_add(1, SeqCst);
        }
    }
    fn setattr(&self, _: &OpCtx<'_>, _: Ino, _: &SetAttr) -> Result<Attr> {
        Err(Errno::ENOSYS)
    }
    fn create(&self, _: &OpCtx<'_>, _: Ino, _: &[u8], _: &NewNode<'_>) -> Result<Changed> {
        Err(Errno::ENOSYS)
    }
    fn create_unlinked(&self, _: &OpCtx<'_>, _: Ino, _: &NewNode<'_>) -> Result<Attr> {
        Err(Errno::ENOSYS)
    }
    fn link(&self, _: &OpCtx<'_>, _: Ino, _: Ino, _: &[u8]) -> Result<Changed> {
        Err(Errno::ENOSYS)
    }
    fn unlink(&self, _: &OpCtx<'_>, _: Ino, _: &[u8]) -> Result<Changed> {
        Err(Errno::ENOSYS)
    }
    fn rmdir(&self, _: &OpCtx<'_>, _: Ino, _: &[u8]) -> Result<Changed> {
        Err(Errno::ENOSYS)
    }
    fn rename(
        &self,
        _: &OpCtx<'_>,
        _: Ino,
        _: &[u8],
        _: Ino,
        _: &[u8],
        _: RenameMode,
    ) -> Result<Renamed> {
        Err(Errno::ENOSYS)
    }
    fn readlink(&self, _: &OpCtx<'_>, _: Ino) -> Result<Vec<u8>> {
        Err(Errno::ENOSYS)
    }
    fn readdir(
        &self,
        _: &OpCtx<'_>,
        _: Ino,
        _: u64,
        _: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    fn read(&self, _: &OpCtx<'_>, _: Ino, _: u64, _: usize, _: &mut dyn Sink) -> Result<usize> {
        Err(Errno::ENOSYS)
    }
    fn write(&self, _: &OpCtx<'_>, _: Ino, _: u64, _: &mut dyn Source) -> Result<usize> {
        Err(Errno::ENOSYS)
    }
    fn fallocate(&self, _: &OpCtx<'_>, _: Ino, _: Fallocate, _: u64, _: u64) -> Result<Attr> {
        Err(Errno::ENOSYS)
    }
    fn seek(&self, _: &OpCtx<'_>, _: Ino, _: u64, _: SeekFor) -> Result<u64> {
        Err(Errno::ENOSYS)
    }
    fn getxattr(&self, _: &OpCtx<'_>, _: Ino, _: &[u8]) -> Result<Vec<u8>> {
        Err(Errno::ENOSYS)
    }
    fn setxattr(&self, _: &OpCtx<'_>, _: Ino, _: &[u8], _: &[u8], _: XattrMode) -> Result<Attr> {
        Err(Errno::ENOSYS)
    }
    fn listxattr(&self, _: &OpCtx<'_>, _: Ino) -> Result<Vec<Vec<u8>>> {
        Err(Errno::ENOSYS)
    }
    fn removexattr(&self, _: &OpCtx<'_>, _: Ino, _: &[u8]) -> Result<Attr> {
        Err(Errno::ENOSYS)
    }
    fn fsync(&self, _: &OpCtx<'_>, _: Ino, _: bool) -> Result<()> {
        Err(Errno::ENOSYS)
    }
    fn sync(&self, _: &OpCtx<'_>) -> Result<()> {
        Ok(())
    }
    fn statfs(&self, _: &OpCtx<'_>) -> Result<StatFs> {
        Err(Errno::ENOSYS)
    }
}

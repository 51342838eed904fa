//! An inode's state in its form on the wire.

use polylane_ipc::message::WireAttr;
use polylane_vfs::Attr;

/// The state as replies and views carry it.
pub(super) fn wire_attr(attr: &Attr) -> WireAttr {
    let times = [attr.atime, attr.mtime, attr.ctime, attr.btime];
    WireAttr {
        ino: attr.ino.0,
        mode: attr.mode(),
        nlink: attr.nlink,
        uid: attr.uid.0,
        gid: attr.gid.0,
        rdev: attr.rdev,
        size: attr.size,
        blocks: attr.blocks,
        blksize: attr.blksize,
        flags: attr.flags,
        nsec: times.map(|time| time.nsec),
        sec: times.map(|time| time.sec),
    }
}

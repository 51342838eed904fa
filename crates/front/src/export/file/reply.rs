//! Replies about the root and the one file in it.

use zerocopy::FromZeros;

use crate::fuse::flags::OpenedFlags;
use crate::fuse::records::{AttrOut, AttrRecord, EntryOut, OpenOut, StatfsOut};
use crate::fuse::reply::Body;

/// A regular file for its owner alone (`S_IFREG | 0600`).
const FILE_MODE: u32 = 0o100_600;
/// A directory that is looked into and not changed (`S_IFDIR | 0500`).
const ROOT_MODE: u32 = 0o040_500;

/// What the kernel is told of block sizes; a loop device discards in this unit.
const BLOCK_BYTES: u32 = 4096;

/// `struct fuse_attr_out` of the file, of `size` bytes, or the root. The kernel keeps none of it.
pub(super) fn attr(out: &mut Body, node: u64, size: u64) {
    out.record(&AttrOut { attr: bare_attr(node, size), ..AttrOut::new_zeroed() });
}

/// `struct fuse_entry_out` of the file. The kernel keeps none of it.
pub(super) fn entry(out: &mut Body, size: u64) {
    let attr = bare_attr(super::FILE, size);
    out.record(&EntryOut { nodeid: super::FILE.into(), attr, ..EntryOut::new_zeroed() });
}

fn bare_attr(node: u64, size: u64) -> AttrRecord {
    let (mode, links, size) = match node {
        super::ROOT => (ROOT_MODE, 2, 0),
        _ => (FILE_MODE, 1, size),
    };
    AttrRecord {
        ino: node.into(),
        size: size.into(),
        blocks: (size / 512).into(),
        mode: mode.into(),
        nlink: links.into(),
        blksize: BLOCK_BYTES.into(),
        ..AttrRecord::new_zeroed()
    }
}

/// `struct fuse_open_out` of the file.
pub(super) fn open(out: &mut Body, backing: Option<u32>) {
    let flags = match backing {
        Some(_) => OpenedFlags::PASSTHROUGH | OpenedFlags::NOFLUSH,
        None => OpenedFlags::DIRECT_IO | OpenedFlags::NOFLUSH | OpenedFlags::PARALLEL_DIRECT_WRITES,
    };
    let backing_id = backing.unwrap_or(0).into();
    out.record(&OpenOut { fh: 0.into(), open_flags: flags.bits().into(), backing_id });
}

/// `struct fuse_statfs_out`, of a file system that is this file.
pub(super) fn statfs(out: &mut Body, size: u64) {
    out.record(&StatfsOut {
        blocks: (size / u64::from(BLOCK_BYTES)).into(),
        files: 1.into(),
        bsize: BLOCK_BYTES.into(),
        namelen: 255.into(),
        frsize: BLOCK_BYTES.into(),
        ..StatfsOut::new_zeroed()
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::file::{FILE, ROOT};
    use crate::fuse::protocol::ENTRY_BYTES;

    const ATTR_BYTES: usize = size_of::<AttrRecord>();

    #[test]
    fn replies_have_the_kernels_sizes() {
        let mut body = Body::default();
        for node in [ROOT, FILE] {
            body.0.clear();
            attr(&mut body, node, 4096);
            assert_eq!(body.0.len(), 16 + ATTR_BYTES);
        }
        body.0.clear();
        entry(&mut body, 4096);
        assert_eq!(body.0.len(), ENTRY_BYTES);
        for backing in [None, Some(7)] {
            body.0.clear();
            open(&mut body, backing);
            assert_eq!(body.0.len(), 16);
            assert_eq!(body.0[12], backing.unwrap_or(0) as u8);
        }
        body.0.clear();
        statfs(&mut body, 4096);
        assert_eq!(body.0.len(), 80);
    }
}

//! Replies about the root and the one file in it.

use crate::fuse::protocol::fopen;
use crate::fuse::reply::Body;

/// A regular file for its owner alone (`S_IFREG | 0600`).
const FILE_MODE: u32 = 0o100_600;
/// A directory that is looked into and not changed (`S_IFDIR | 0500`).
const ROOT_MODE: u32 = 0o040_500;

/// What the kernel is told of block sizes; a loop device discards in this unit.
const BLOCK_BYTES: u32 = 4096;

/// `struct fuse_attr_out` of the file, of `size` bytes, or the root. The kernel keeps none of it.
pub(super) fn attr(out: &mut Body, node: u64, size: u64) {
    out.zeros(16);
    bare_attr(out, node, size);
}

/// `struct fuse_entry_out` of the file. The kernel keeps none of it.
pub(super) fn entry(out: &mut Body, size: u64) {
    out.u64(super::FILE).zeros(32);
    bare_attr(out, super::FILE, size);
}

/// `struct fuse_attr`.
fn bare_attr(out: &mut Body, node: u64, size: u64) {
    let (mode, links, size) = match node {
        super::ROOT => (ROOT_MODE, 2, 0),
        _ => (FILE_MODE, 1, size),
    };
    out.u64(node).u64(size).u64(size / 512);
    // Three times, with their nanoseconds.
    out.zeros(24 + 12);
    // Owner and group, then the device number of special files.
    out.u32(mode).u32(links).zeros(8).u32(0).u32(BLOCK_BYTES).u32(0);
}

/// `struct fuse_open_out` of the file.
pub(super) fn open(out: &mut Body, backing: Option<u32>) {
    let flags = match backing {
        Some(_) => fopen::PASSTHROUGH | fopen::NOFLUSH,
        None => fopen::DIRECT_IO | fopen::NOFLUSH | fopen::PARALLEL_DIRECT_WRITES,
    };
    out.u64(0).u32(flags).u32(backing.unwrap_or(0));
}

/// `struct fuse_statfs_out`, of a file system that is this file.
pub(super) fn statfs(out: &mut Body, size: u64) {
    let block = u64::from(BLOCK_BYTES);
    out.u64(size / block).u64(0).u64(0).u64(1).u64(0);
    out.u32(BLOCK_BYTES).u32(255).u32(BLOCK_BYTES).zeros(28);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::file::{FILE, ROOT};
    use crate::fuse::protocol::ENTRY_BYTES;
    use crate::fuse::records::AttrRecord;

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

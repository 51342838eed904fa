//! Replies about the one file.

use crate::fuse::reply::Body;

/// A regular file for its owner alone (`S_IFREG | 0600`).
const MODE: u32 = 0o100_600;

/// What the kernel is told of block sizes; a loop device discards in this unit.
const BLOCK_BYTES: u32 = 4096;

/// `struct fuse_attr_out` of a file of `size` bytes. Nothing of it is kept by the kernel.
pub(super) fn attr(out: &mut Body, size: u64) {
    out.u64(0).u64(0).u64(super::ROOT).u64(size).u64(size / 512);
    // Three times, with their nanoseconds.
    out.zeros(24 + 12);
    // Owner and group, then the device number of special files.
    out.u32(MODE).u32(1).zeros(8).u32(0).u32(BLOCK_BYTES).u32(0);
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
    use crate::fuse::protocol::ATTR_BYTES;

    #[test]
    fn replies_have_the_kernels_sizes() {
        let mut body = Body::default();
        attr(&mut body, 4096);
        assert_eq!(body.0.len(), 16 + ATTR_BYTES);
        body.0.clear();
        statfs(&mut body, 4096);
        assert_eq!(body.0.len(), 80);
    }
}

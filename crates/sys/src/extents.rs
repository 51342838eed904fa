//! Where a file's blocks are on its host: FIEMAP.
#![expect(unsafe_code, reason = "UNSAFETY: an ioctl with an array behind its header")]

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use polylane_base::{Errno, Result};

/// `FS_IOC_FIEMAP`: `_IOWR('f', 11, struct fiemap)`.
const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 1;
const FIEMAP_EXTENT_UNWRITTEN: u32 = 0x800;
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

/// Extents per call.
const BATCH: usize = 128;

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room for [`BATCH`] extents.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

const _: () = assert!(size_of::<RawExtent>() == 56 && std::mem::offset_of!(Request, extents) == 32);

/// A run of a file's bytes that lies in one piece on its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostExtent {
    /// First byte in the file.
    pub offset: u64,
    /// First byte on the host's device, as far as the file system tells.
    pub physical: u64,
    /// Bytes.
    pub length: u64,
    /// Reserved, and reads as zeros.
    pub unwritten: bool,
    /// Other files have it too.
    pub shared: bool,
    /// `FIEMAP_EXTENT_*`, all of them.
    pub flags: u32,
}

/// `FS_IOC_FSGETXATTR`: `_IOR('X', 31, struct fsxattr)`.
const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;
const FS_XFLAG_REALTIME: u32 = 1;

/// Whether a file's data lies on another device than its file system: XFS' realtime section.
///
/// # Errors
/// `ENOTTY` and `EOPNOTSUPP` from file systems without such flags.
pub fn is_realtime(file: impl AsFd) -> Result<bool> {
    /// `struct fsxattr`.
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        flags: u32,
        others: [u32; 6],
    }
    const _: () = assert!(size_of::<Attributes>() == 28);
    let mut found = Attributes::default();
    // SAFETY: the descriptor is open, and the kernel writes one `fsxattr`.
    let result =
        unsafe { libc::ioctl(file.as_fd().as_raw_fd(), FS_IOC_FSGETXATTR, &raw mut found) };
    match result {
        0 => Ok(found.flags & FS_XFLAG_REALTIME != 0),
        _ => Err(Errno::from(std::io::Error::last_os_error())),
    }
}

/// All extents of a file, in order of their offsets. What is still to be written gets its place
/// first.
///
/// # Errors
/// `EOPNOTSUPP` from file systems without such a thing.
pub fn of(file: impl AsFd) -> Result<Vec<HostExtent>> {
    within(file, 0..u64::MAX)
}

/// The extents of a file that touch `range`, in order; the first and last may reach past it.
///
/// # Errors
/// As [`of`].
pub fn within(file: impl AsFd, range: Range<u64>) -> Result<Vec<HostExtent>> {
    let mut found = Vec::new();
    let mut start = range.start;
    loop {
        if start >= range.end {
            return Ok(found);
        }
        let mut request = Request {
            start,
            length: range.end - start,
            flags: FIEMAP_FLAG_SYNC,
            mapped_extents: 0,
            extent_count: BATCH as u32,
            reserved: 0,
            extents: [RawExtent::default(); BATCH],
        };
        // SAFETY: the descriptor is open, and the kernel writes at most `extent_count` extents.
        let result =
            unsafe { libc::ioctl(file.as_fd().as_raw_fd(), FS_IOC_FIEMAP, &raw mut request) };
        if result != 0 {
            return Err(Errno::from(std::io::Error::last_os_error()));
        }
        let count = (request.mapped_extents as usize).min(BATCH);
        for raw in &request.extents[..count] {
            found.push(HostExtent {
                offset: raw.logical,
                physical: raw.physical,
                length: raw.length,
                unwritten: raw.flags & FIEMAP_EXTENT_UNWRITTEN != 0,
                shared: raw.flags & FIEMAP_EXTENT_SHARED != 0,
                flags: raw.flags & !FIEMAP_EXTENT_LAST,
            });
        }
        let Some(last) = request.extents[..count].last() else { return Ok(found) };
        start = last.logical.saturating_add(last.length);
        if last.flags & FIEMAP_EXTENT_LAST != 0 || last.length == 0 {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn extents_are_where_data_is() {
        let file = tempfile::tempfile().expect("file");
        // More pieces than one call tells of.
        for piece in 0..3 * BATCH as u64 {
            file.write_all_at(&[1; 4096], piece << 20).expect("write");
        }
        let extents = match of(&file) {
            Err(Errno::EOPNOTSUPP) => return,
            extents => extents.expect("extents"),
        };
        assert_eq!(extents.len(), 3 * BATCH);
        let right = |(at, e): (usize, &HostExtent)| e.offset == (at as u64) << 20 && !e.unwritten;
        assert!(extents.iter().enumerate().all(right), "{extents:?}");
        let some = within(&file, 5 << 20..7 << 20).expect("extents");
        assert_eq!(some, extents[5..7]);
        assert_eq!(within(&file, (5 << 20) + 4096..6 << 20), Ok(Vec::new()));
    }
}

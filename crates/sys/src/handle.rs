//! File handles: what the kernel calls an open file of a FUSE mount.
#![expect(unsafe_code, reason = "UNSAFETY: a system call that rustix lacks")]

use std::os::fd::{AsFd, AsRawFd};

use polylane_base::{Errno, Result};

use crate::region::errno;

/// `FILEID_INO64_GEN`: two words of a node id, the high one first, and a generation.
const FUSE_KIND: i32 = 0x81;
/// Words of a FUSE file handle.
const WORDS: usize = 3;

/// `struct file_handle` with room for a FUSE handle.
#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    words: [u32; WORDS],
}

/// An open file of a FUSE mount, as the kernel knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FuseHandle {
    /// The node id that its service gave it.
    pub node: u64,
    /// Number of the mount that it was opened through, as in `/proc/PID/mountinfo`.
    pub mount: i32,
}

impl FuseHandle {
    /// Of an open file; asks no file system.
    ///
    /// # Errors
    /// `EPROTO` for a file of no FUSE mount; what name_to_handle_at(2) says.
    pub fn of(file: impl AsFd) -> Result<FuseHandle> {
        let bytes = (WORDS * size_of::<u32>()) as u32;
        let mut handle = RawHandle { bytes, kind: 0, words: [0; WORDS] };
        let mut mount = 0_i32;
        // SAFETY: the kernel reads an empty name, writes at most `bytes` bytes of `words` and one
        // number, all of which outlive the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file.as_fd().as_raw_fd(),
                c"".as_ptr(),
                &raw mut handle,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if done != 0 {
            let error = std::io::Error::last_os_error();
            return Err(Errno(error.raw_os_error().unwrap_or(libc::EIO)));
        }
        if handle.kind != FUSE_KIND || handle.bytes != bytes {
            return Err(Errno::EPROTO);
        }
        let [high, low, _] = handle.words.map(u64::from);
        Ok(FuseHandle { node: high << 32 | low, mount })
    }
}

/// Whether a directory was opened to be read, not merely as a path.
pub fn is_readable(dir: impl AsFd) -> Result<bool> {
    let flags = rustix::fs::fcntl_getfl(dir).map_err(errno)?;
    let writes = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::PATH;
    Ok(!flags.intersects(writes))
}

/// Whether a file was made without a name, to be read and written (`O_TMPFILE`).
pub fn is_unnamed(file: impl AsFd) -> Result<bool> {
    let flags = rustix::fs::fcntl_getfl(file).map_err(errno)?;
    let without_name = flags.contains(rustix::fs::OFlags::TMPFILE);
    Ok(without_name && flags & rustix::fs::OFlags::RWMODE == rustix::fs::OFlags::RDWR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_file_systems_have_no_fuse_handle() {
        let dir = std::fs::File::open("/proc").unwrap();
        assert!(FuseHandle::of(&dir).is_err());
        assert_eq!(is_readable(&dir), Ok(true));
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        let mode = rustix::fs::Mode::RUSR;
        let unnamed = rustix::fs::open("/dev/shm", flags, mode).unwrap();
        assert_eq!((is_unnamed(&unnamed), is_unnamed(&dir)), (Ok(true), Ok(false)));
        let flags = rustix::fs::OFlags::PATH;
        let path = rustix::fs::open("/", flags, rustix::fs::Mode::empty()).unwrap();
        assert_eq!(is_readable(&path), Ok(false));
    }
}

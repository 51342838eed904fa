//! Swap areas, for what they do to the file that they are on: as long as one is in use, the kernel
//! lets nobody write, cut, move or share the blocks of any part of that file (swapon(2)).
#![expect(unsafe_code, reason = "UNSAFETY: swapon(2) and swapoff(2), which rustix lacks")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use polylane_base::{Errno, Result, record};
use zerocopy::native_endian::U32;

polylane_base::record! {
    /// `union swap_header`, of which the kernel reads this much.
    struct Header: 8 {
        0x00 version: U32,
        0x04 last_page: U32,
    }
}

/// Pages of the area, its header among them: as few as mkswap(8) makes.
const PAGES: u32 = 10;

/// Largest page of any machine in bytes.
const PAGE_BYTES_MAX: usize = 64 << 10;

/// Most bytes at the start of a file that an area takes.
pub const AREA_BYTES_MAX: usize = PAGES as usize * PAGE_BYTES_MAX;

const VERSION: u32 = 1;
/// Bytes before a header, for boot loaders.
const BOOT_BYTES: usize = 1024;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";

/// The first page of the smallest area: the kernel swaps into the pages that follow it, of which
/// there are nine.
pub fn header() -> Vec<u8> {
    let page = rustix::param::page_size();
    let mut bytes = vec![0; page];
    let last_page = PAGES - 1;
    *record::at_mut(&mut bytes, BOOT_BYTES) =
        Header { version: VERSION.into(), last_page: last_page.into() };
    bytes[page - MAGIC.len()..].copy_from_slice(MAGIC);
    bytes
}

/// Takes the area at the start of a file into use.
///
/// # Errors
/// `EBUSY` when it is in use; `EPERM` without CAP_SYS_ADMIN, and when the kernel has as many areas
/// as it can; `EINVAL` for a file with holes or shared blocks; the kernel's others.
pub fn on(path: &Path) -> Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the path is a C string that lives through the call.
    check(unsafe { libc::swapon(path.as_ptr(), 0) })
}

/// Takes the area out of use. What was swapped to it goes back to memory first.
///
/// # Errors
/// `EINVAL` when it is not in use; `EPERM`; `ENOMEM`.
pub fn off(path: &Path) -> Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the path is a C string that lives through the call.
    check(unsafe { libc::swapoff(path.as_ptr()) })
}

fn check(result: i32) -> Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(Errno::from(std::io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_what_the_kernel_looks_for() {
        let bytes = header();
        assert_eq!(bytes.len(), rustix::param::page_size());
        assert!(bytes.ends_with(b"SWAPSPACE2"));
        assert_eq!(bytes[1024..1032], [1u32.to_ne_bytes(), 9u32.to_ne_bytes()].concat());
        assert!(bytes.len() * 10 <= AREA_BYTES_MAX);
    }

    #[test]
    fn a_file_that_is_no_area_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("file");
        assert!(on(file.path()).is_err());
        assert!(off(file.path()).is_err());
        assert_eq!(on(Path::new("/a\0b")), Err(Errno::EINVAL));
    }
}

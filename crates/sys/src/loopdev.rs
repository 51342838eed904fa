//! Loop devices: a file as a block device (`include/uapi/linux/loop.h`).
//!
//! What this module promises above: structures of the kernel's layout, complete; descriptors are
//! borrowed for one call.
#![expect(unsafe_code, reason = "UNSAFETY: ioctls on loop devices")]

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use polylane_base::{Errno, Result};

/// Longest tag in bytes.
pub const TAG_BYTES_MAX: usize = 63;

const LOOP_CLR_FD: u64 = 0x4c01;
const LOOP_GET_STATUS64: u64 = 0x4c05;
const LOOP_SET_CAPACITY: u64 = 0x4c07;
const LOOP_CONFIGURE: u64 = 0x4c0a;
const LOOP_CTL_GET_FREE: u64 = 0x4c82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232);
const _: () = assert!(size_of::<Config>() == 304);

const NO_INFO: Info = Info {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// The number of a free loop device, which may be made for it. `control` is `/dev/loop-control`.
/// Somebody else may be faster.
///
/// # Errors
/// The kernel's.
pub fn free(control: impl AsFd) -> Result<u32> {
    // SAFETY: this request takes no argument.
    let number = unsafe { libc::ioctl(control.as_fd().as_raw_fd(), LOOP_CTL_GET_FREE as _) };
    u32::try_from(number).map_err(|_| last())
}

/// Puts `file` under a loop device, with direct I/O where the file has it. `tag` is what others see
/// as its name, cut off at [`TAG_BYTES_MAX`].
///
/// # Errors
/// `EBUSY` when somebody was faster; the kernel's others.
pub fn configure(device: impl AsFd, file: impl AsFd, tag: &str, read_only: bool) -> Result<()> {
    let mut info = NO_INFO;
    info.flags = LO_FLAGS_DIRECT_IO | if read_only { LO_FLAGS_READ_ONLY } else { 0 };
    let bytes = &tag.as_bytes()[..tag.len().min(TAG_BYTES_MAX)];
    info.file_name[..bytes.len()].copy_from_slice(bytes);
    let fd = file.as_fd().as_raw_fd() as u32;
    let config = Config { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: the kernel reads a whole `loop_config`, which this is.
    check(unsafe {
        libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CONFIGURE as _, &raw const config)
    })
}

/// The file under a loop device: its file system's device number and its inode.
///
/// # Errors
/// `ENXIO` when it has none; the kernel's others.
pub fn backing(device: impl AsFd) -> Result<(u64, u64)> {
    let mut info = NO_INFO;
    // SAFETY: the kernel writes a whole `loop_info64`, which this is.
    check(unsafe {
        libc::ioctl(device.as_fd().as_raw_fd(), LOOP_GET_STATUS64 as _, &raw mut info)
    })?;
    Ok((info.device, info.inode))
}

/// Takes the file's new size over.
///
/// # Errors
/// The kernel's.
pub fn set_capacity(device: impl AsFd) -> Result<()> {
    // SAFETY: this request takes no argument.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_SET_CAPACITY as _, 0) })
}

/// Takes the file away, at once or when the last one closes the device.
///
/// # Errors
/// `ENXIO` when it has none; the kernel's others.
pub fn clear(device: impl AsFd) -> Result<()> {
    // SAFETY: this request takes no argument.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CLR_FD as _, 0) })
}

fn check(result: i32) -> Result<()> {
    if result == -1 { Err(last()) } else { Ok(()) }
}

fn last() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

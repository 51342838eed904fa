//! A file system of the host that does not answer: what stands for a server that was stopped, a
//! cluster that cannot be reached, a device that hangs.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rustix::mount::{MountFlags, UnmountFlags};

/// The only name that is found: a file that cannot be opened.
pub const FILE: &str = "file";

/// A file system that reads requests and answers none but those that lead to its file: the kernel
/// lets go of no process that waits. Dropped, it is gone, and those that wait get an error.
#[derive(Debug)]
pub struct Silent {
    at: PathBuf,
    /// In the end it has the device.
    server: Option<JoinHandle<File>>,
}

impl Silent {
    /// Mounts one on a directory, in which a directory has the file's name: no volume is made there
    /// once the file system is gone.
    ///
    /// # Panics
    /// It cannot be mounted.
    pub fn mount(at: &Path) -> Silent {
        std::fs::create_dir(at.join(FILE)).expect("mkdir");
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).expect("a text");
        let flags = MountFlags::empty();
        rustix::mount::mount("silent", at, "fuse", flags, options.as_c_str()).expect("mount");
        let server = std::thread::spawn(move || serve(device));
        Silent { at: at.to_path_buf(), server: Some(server) }
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // The connection is ended, and with it the server's reads.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(&self.at, flags);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const STATFS: u32 = 17;
const INIT: u32 = 26;
const ACCESS: u32 = 34;
const STATX: u32 = 52;

/// Answers what leads to the file, until the connection ends.
fn serve(mut device: File) -> File {
    let mut asked = vec![0; 1 << 17];
    while let Ok(count) = device.read(&mut asked) {
        let word = |at: usize| u32::from_ne_bytes(asked[at..at + 4].try_into().expect("4 bytes"));
        let (operation, is_root) = (word(4), word(16) == 1);
        let mut error = 0_i32;
        let body = match operation {
            INIT => [words(&[7, 31, 0, 0, 0, 1 << 16, 0]), vec![0; 36]].concat(),
            GETATTR => [words(&[1000, 0, 0, 0]), attributes(is_root)].concat(),
            LOOKUP if asked[40..count].starts_with(FILE.as_bytes()) => {
                [words(&[2, 0, 0, 0, 1000, 0, 1000, 0, 0, 0]), attributes(false)].concat()
            }
            ACCESS | STATFS | STATX => {
                error = -rustix::io::Errno::NOSYS.raw_os_error();
                Vec::new()
            }
            _ => continue,
        };
        let length = u32::try_from(16 + body.len()).expect("a short answer");
        let head = [words(&[length, error.cast_unsigned()]), asked[8..16].to_vec()].concat();
        if device.write_all(&[head, body].concat()).is_err() {
            break;
        }
    }
    device
}

/// Of the root or of the file, which has 64 MiB.
fn attributes(is_root: bool) -> Vec<u8> {
    let (node, size, mode) = if is_root { (1, 0, 0o40755) } else { (2, 64 << 20, 0o100_600) };
    let blocks_and_times = [0; 11];
    let rest = [mode, 1, 0, 0, 0, 4096, 0];
    words(&[&[node, 0, size, 0][..], &blocks_and_times, &rest].concat())
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

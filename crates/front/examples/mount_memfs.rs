//! Mounts a lane at a path and serves it until it is unmounted: `mount_memfs PATH [SIZE_MIB|DIR]`,
//! a fresh in-memory one of that size, or one on a host directory. For trying things by hand; needs
//! to be root. `WITHOUT=0x1000000000` leaves out INIT flags, here shared mappings of direct I/O.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use polylane_base::SystemClock;
use polylane_base::sync::Arc;
use polylane_front::Lane;
use polylane_front::fuse::{Door, InitFlags, ServeOptions, Stop, mount_options, negotiate_without};
use polylane_vfs::hostdir::HostDir;
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{FileSystem, Options, Vfs};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: mount_memfs PATH [SIZE_MIB]")?;
    let what = arguments.next().unwrap_or_else(|| "1024".to_string());
    let unwanted = std::env::var("WITHOUT").unwrap_or_default();
    let unwanted = u64::from_str_radix(unwanted.trim_start_matches("0x"), 16).unwrap_or(0);
    let unwanted = InitFlags::from_bits_retain(unwanted);

    let clock = Arc::new(SystemClock);
    let fs: Arc<dyn FileSystem> = match what.parse::<u64>() {
        Ok(mib) => Arc::new(MemFs::new(mib << 20, 1 << 20, clock.clone())),
        Err(_) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Arc::new(HostDir::new(rustix::fs::open(&what, flags, Mode::empty())?)?)
        }
    };
    let options = Options {
        clock,
        cache_bytes_limit: 64 << 20,
        dirty_bytes_limit: 16 << 20,
        flush_interval: Duration::from_secs(5),
        mount_path: path.clone().into_bytes(),
        covered: vec![],
    };
    let lane = Lane::new(Vfs::new(fs, options)?, 0);

    let device: OwnedFd =
        rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let options = CString::new(mount_options(device.as_raw_fd(), 0, 0, true))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("polylane", &path, "fuse.polylane", flags, Some(options.as_c_str()))?;
    let params = negotiate_without(&device, 5000, unwanted)?;
    println!("{path}: protocol 7.{}, flags {:#x}", params.minor, params.flags.bits());
    let serving =
        ServeOptions { params: Some(params), incarnation: 0, threads: 2, in_flight: None };
    let door = Door::open(device, lane, serving)?;
    let stats = door.stats();
    println!("{path}: {:?}", door.serve(&Stop::new()?, |error| eprintln!("{error}"))?);
    println!("{path}: {:?}", stats.totals());
    Ok(())
}

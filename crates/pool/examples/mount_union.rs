//! Mounts a union at a path, as mount(8) asks a FUSE file system to: `mount_union SOURCE PATH -o
//! lowerdir=A:B,upperdir=U,workdir=W`. The upper's two directories lie in one. It returns when the
//! union can be used, and serves it until it is unmounted. For test suites of union file systems;
//! needs to be root.

use std::error::Error;
use std::ffi::CString;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use polylane_base::SystemClock;
use polylane_base::sync::Arc;
use polylane_front::Lane;
use polylane_front::fuse::{
    InitFlags, ServeOptions, Stop, mount_options, negotiate_without, serve,
};
use polylane_union::{Layer, Union, UpperOn};
use polylane_vfs::hostdir::HostDir;
use polylane_vfs::{FileSystem, Options, Vfs};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;

type Done<T> = Result<T, Box<dyn Error>>;

/// Set in the process that serves.
const SERVES: &str = "MOUNT_UNION_SERVES";

fn host(path: &Path) -> Done<Arc<dyn FileSystem>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty())?;
    Ok(Arc::new(HostDir::layer(dir, 256)?))
}

fn union(options: &str) -> Done<Union> {
    let value = |name: &str| options.split(',').find_map(|option| option.strip_prefix(name));
    let lowers = value("lowerdir=").ok_or("no lowerdir")?;
    let layers = lowers.split(':').map(|path| Ok(Layer::new(host(path.as_ref())?)?));
    let layers = layers.collect::<Done<Vec<_>>>()?;
    let upper = match value("upperdir=").map(Path::new).zip(value("workdir=").map(Path::new)) {
        None => None,
        Some((tree, work)) => {
            let parent = tree.parent().ok_or("upperdir is a root")?;
            let name = |path: &Path| path.file_name().map(|name| name.as_bytes().to_vec());
            let (tree, work) = name(tree).zip(name(work)).ok_or("no name")?;
            Some(UpperOn::dirs(host(parent)?, &tree, &work))
        }
    };
    Ok(Union::open(layers, upper)?)
}

fn serve_at(path: &str, options: &str) -> Done<()> {
    let fs = Arc::new(union(options)?);
    let options = Options {
        clock: Arc::new(SystemClock),
        cache_bytes_limit: 64 << 20,
        dirty_bytes_limit: 16 << 20,
        flush_interval: Duration::from_secs(5),
        mount_path: path.as_bytes().to_vec(),
        covered: vec![],
    };
    let lane = Lane::new(Vfs::new(fs, options)?, 0);
    let device: OwnedFd =
        rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let options = CString::new(mount_options(device.as_raw_fd(), 0, 0, true))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("polylane", path, "fuse.polylane", flags, Some(options.as_c_str()))?;
    // Directories of the host keep no access lists.
    let params = negotiate_without(&device, 5000, InitFlags::POSIX_ACL)?;
    println!("ready");
    let serving =
        ServeOptions { params: Some(params), incarnation: 0, threads: 2, in_flight: None };
    serve(device, lane, serving, &Stop::new()?)?;
    Ok(())
}

fn main() -> Done<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let path = arguments.get(2).ok_or("usage: mount_union SOURCE PATH -o OPTIONS")?;
    let options: Vec<&str> = arguments.iter().skip(3).map(String::as_str).collect();
    if std::env::var_os(SERVES).is_some() {
        return serve_at(path, &options.join(",").replace("-o", ""));
    }
    let mut served = Command::new(std::env::current_exe()?)
        .args(&arguments[1..])
        .env(SERVES, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    if let Some(said) = served.stdout.take() {
        BufReader::new(said).read_line(&mut line)?;
    }
    if line.trim() == "ready" { Ok(()) } else { Err("it did not begin to serve".into()) }
}

//! The daemon's socket: made by the daemon, under a lock that one daemon has at a time.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use polylane_base::errno::plain;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::UnixListener;

use crate::DaemonError;
use crate::manager::Manager;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A socket that listens. Dropped, one that the daemon made is removed.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: StdListener,
    own: Option<Own>,
}

/// What was made for the socket.
#[derive(Debug)]
struct Own {
    path: PathBuf,
    lock_path: PathBuf,
    /// Whether the socket is another's to remove.
    is_kept: bool,
    /// Held for as long as the socket is there.
    _lock: File,
}

impl Listener {
    /// A socket that a service manager made and keeps.
    pub(crate) fn of_manager(socket: OwnedFd) -> Listener {
        Listener { socket: StdListener::from(socket), own: None }
    }

    /// Gives the socket into the keeping of a manager that has a store, for the next daemon.
    pub(crate) fn keep_by(&mut self, manager: &Manager) {
        if let Some(own) = &mut self.own
            && manager.store(&self.socket)
        {
            own.is_kept = true;
        }
    }

    /// The same socket for the runtime.
    pub(crate) fn to_async(&self) -> io::Result<UnixListener> {
        let socket = self.socket.try_clone()?;
        socket.set_nonblocking(true)?;
        UnixListener::from_std(socket)
    }
}

impl Drop for Own {
    /// The lock's file goes before it is unlocked: who opened it before sees that it is gone.
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_file(&self.path);
        }
        let _ = fs::remove_file(&self.lock_path);
    }
}

/// Makes a socket for the daemon's user and the group. One that a killed daemon left is replaced.
///
/// # Errors
/// Another daemon has it, or the path cannot be used.
pub(crate) fn listen(path: &Path, group: Option<u32>) -> Result<Listener, DaemonError> {
    let failed = |error: io::Error| DaemonError::new(path.display(), plain(&error));
    let other = || DaemonError::new(path.display(), "another daemon listens there");
    if let Some(dir) = path.parent() {
        // As the run-time directory is: others may look up names that they know.
        fs::DirBuilder::new().recursive(true).mode(0o711).create(dir).map_err(failed)?;
    }
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let lock_failed = |error: io::Error| DaemonError::new(lock_path.display(), error);
    let lock = lock(&lock_path).map_err(lock_failed)?.ok_or_else(other)?;
    // From here on no other daemon comes or goes at the path. Something else may be there.
    if is_socket(path) {
        if is_listened_to(path).map_err(failed)? {
            return Err(other());
        }
        fs::remove_file(path).map_err(failed)?;
    }
    let socket = bind(path, group).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            DaemonError::new(path.display(), "no socket: remove it, or choose another path")
        }
        _ => failed(error),
    })?;
    let own = Own { path: path.to_path_buf(), lock_path, is_kept: false, _lock: lock };
    Ok(Listener { socket, own: Some(own) })
}

/// Takes the lock; `None`: another has it.
fn lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits();
        let file = options.custom_flags(flags.cast_signed()).open(path)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // The former holder may have removed what was opened here.
        let own = file.metadata()?;
        let isown = |there: fs::Metadata| (there.dev(), there.ino()) == (own.dev(), own.ino());
        if fs::symlink_metadata(path).is_ok_and(isown) {
            return Ok(Some(file));
        }
    }
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Whether a process listens there. Does not wait for it.
fn is_listened_to(path: &Path) -> io::Result<bool> {
    let socket = stream(SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(rustix::io::Errno::CONNREFUSED) => Ok(false),
        // As many wait already as may.
        Ok(()) | Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn bind(path: &Path, group: Option<u32>) -> io::Result<StdListener> {
    let socket = stream(SocketFlags::empty())?;
    let owners = Mode::RUSR | Mode::WUSR;
    // The file that bind(2) makes has these rights at most.
    rustix::fs::fchmod(&socket, owners)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    if let Some(group) = group {
        // Not what a link leads to that another user has put there since.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        if !FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_socket() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let group = rustix::fs::Gid::from_raw(group);
        rustix::fs::chownat(&file, "", None, Some(group), AtFlags::EMPTY_PATH)?;
        let file = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::chmod(file, owners | Mode::RGRP | Mode::WGRP)?;
    }
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(StdListener::from(socket))
}

fn stream(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_socket_that_is_left_is_replaced_and_one_in_use_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("below/daemon.sock");
        let first = listen(&path, None).expect("made");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(listen(&path, None).expect_err("in use").to_string().contains("another daemon"));
        drop(first);
        assert_eq!(fs::read_dir(dir.path().join("below")).expect("read").count(), 0);
        // A killed one: nothing is removed.
        drop(bind(&path, None).expect("bound"));
        drop(listen(&path, None).expect("made again"));
        // One without a lock, of another program.
        let foreign = bind(&path, None).expect("bound");
        assert!(listen(&path, None).expect_err("in use").to_string().contains("another daemon"));
        drop(foreign);
        fs::remove_file(&path).expect("removed");
        fs::write(&path, "a file").expect("written");
        assert!(listen(&path, None).expect_err("no socket").to_string().contains("remove it"));
        assert_eq!(fs::read_to_string(&path).expect("kept"), "a file");
    }

    #[test]
    fn what_another_has_put_in_the_sockets_place_keeps_its_rights() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, file) = (dir.path().join("daemon.sock"), dir.path().join("file"));
        fs::write(&file, "").expect("written");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("chmod");
        let group = rustix::process::getegid().as_raw();
        drop(bind(&path, Some(group)).expect("bound"));
        assert_eq!(mode(&path), 0o660);
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = fs::remove_file(&path);
                    let _ = std::os::unix::fs::symlink(&file, &path);
                }
            });
            for _ in 0..500 {
                let _ = fs::remove_file(&path);
                let _ = bind(&path, Some(group));
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(mode(&file), 0o600);
    }

    /// Of many that start at once at what a killed daemon left, one listens, and is reached.
    #[test]
    fn one_of_many_daemons_that_start_at_once_has_the_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("daemon.sock");
        for _ in 0..50 {
            drop(bind(&path, None).expect("bound"));
            let start = std::sync::Barrier::new(8);
            let begin = || {
                start.wait();
                listen(&path, None).ok()
            };
            let listening: Vec<Listener> = std::thread::scope(|scope| {
                let all: Vec<_> = (0..8).map(|_| scope.spawn(begin)).collect();
                all.into_iter().filter_map(|one| one.join().expect("no panic")).collect()
            });
            assert_eq!(listening.len(), 1);
            assert!(is_listened_to(&path).expect("connected"));
        }
    }
}

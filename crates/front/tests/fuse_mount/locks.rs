//! Locks between processes.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use polylane_base::sync::thread;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::{HELPER, Mounted, await_word, python};

#[test]
#[ignore = "in a private mount namespace"]
fn locks_hold_between_processes() {
    let lane = Mounted::new("locks");
    let file = lane.file("a");
    let mut helper = lane.helper("locks::helper_that_locks");
    await_word(&mut helper, "locked");
    let try_posix = || rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
    let try_flock = || rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(try_posix(), Err(Errno::AGAIN));
    assert_eq!(try_flock(), Err(Errno::AGAIN));
    let waiting = file.as_fd().try_clone_to_owned().expect("a descriptor");
    let waiter = thread::spawn(move || {
        rustix::fs::fcntl_lock(&waiting, FlockOperation::LockExclusive)?;
        rustix::fs::flock(&waiting, FlockOperation::LockExclusive)?;
        // Closing it would drop the process's POSIX locks.
        Ok::<_, Errno>(waiting)
    });
    // While one waits, everybody else is served, however few the service's threads.
    for _ in 0..50 {
        fs::write(lane.path("b"), b"served").expect("written");
    }
    assert!(!waiter.is_finished());
    // Its process dies: its locks go.
    helper.kill().expect("killed");
    helper.wait().expect("gone");
    let _open = waiter.join().expect("no panic").expect("locked");
    let mut helper = lane.helper("locks::helper_that_is_refused");
    assert!(helper.wait().expect("waited").success());
}

/// close(2) returns before the kernel has told us: the next flock must not see the last one.
#[test]
#[ignore = "in a private mount namespace"]
fn a_closed_descriptors_flock_is_in_nobodys_way() {
    python(
        &Mounted::new("flock"),
        r#"
import fcntl, os, sys
for _ in range(5000):
    f = os.open(sys.argv[1] + '/a', os.O_RDWR | os.O_CREAT)
    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(f)
"#,
    );
}

#[test]
#[ignore = "a process of its own, for locks_hold_between_processes"]
fn helper_that_locks() {
    let Ok(at) = std::env::var(HELPER) else { return };
    let file = OpenOptions::new().read(true).write(true).open(Path::new(&at).join("a")).expect("a");
    rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive).expect("locked");
    rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("locked");
    println!("locked");
    let _closed = std::io::stdin().read(&mut [0]);
    thread::sleep(Duration::from_secs(60));
}

#[test]
#[ignore = "a process of its own, for locks_hold_between_processes"]
fn helper_that_is_refused() {
    let Ok(at) = std::env::var(HELPER) else { return };
    let file = OpenOptions::new().read(true).write(true).open(Path::new(&at).join("a")).expect("a");
    let refused = rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockShared);
    assert_eq!(refused, Err(Errno::AGAIN));
    let refused = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    assert_eq!(refused, Err(Errno::AGAIN));
}

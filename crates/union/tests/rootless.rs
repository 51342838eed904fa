//! A union of an ordinary user's whose upper is a directory of the host: the test is run once more
//! by user 65534, for whom root has made a lower.

mod common;

use common::{Fs, Tree, pattern, union};
use polylane_base::Errno;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::FileSystem;
use polylane_vfs::hostdir::HostDir;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const NOBODY: Option<u32> = Some(65534);
const LOWER: &str = "POLYLANE_TEST_LOWER";

fn host(path: &Path) -> Fs {
    let dir = std::fs::File::open(path).expect("opens");
    Arc::new(HostDir::with_descriptors(dir.into(), 64).expect("a directory"))
}

/// A directory that belongs to root, with one that is the user's, and root's that all may write to.
fn prepare(low: &Path) {
    let bytes = pattern(300_000, 5);
    for name in ["own", "theirs"] {
        std::fs::create_dir(low.join(name)).expect("made");
    }
    for name in ["own/big", "own/other", "own/gone", "theirs/kept"] {
        std::fs::write(low.join(name), &bytes).expect("written");
        let mode = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(low.join(name), mode).expect("set");
    }
    for name in ["own", "own/big", "own/other", "own/gone"] {
        chown(low.join(name), NOBODY, NOBODY).expect("given");
    }
    std::fs::set_permissions(low, std::fs::Permissions::from_mode(0o755)).expect("set");
}

/// Files of the user's are copied up, by blocks and whole; another's are not, which is `EPERM`.
fn copy_up(low: &Path) {
    let dir = tempfile::tempdir().expect("tempdir");
    let (low, upper, ctx) = (host(low), host(dir.path()), &OpCtx::service());
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    u.write(u.ino("own/big"), 100_000, b"HERE");
    u.chmod(u.ino("own/other"), 0o600);
    u.rename("own/other", "own/moved").expect("renames");
    u.unlink("own/gone");
    let theirs = u.ino("theirs/kept");
    assert_eq!(fs.write(ctx, theirs, 0, &mut &b"x"[..]), Err(Errno::EPERM));
    assert!(u.read(theirs) == pattern(300_000, 5), "it is as it was");
    drop(fs);
    let fs = union(&[&low], Some(&upper));
    let u = Tree(&*fs);
    assert_eq!(u.names("own"), ["big", "moved"]);
    let mut bytes = pattern(300_000, 5);
    assert!(u.read(u.ino("own/moved")) == bytes);
    bytes[100_000..100_004].copy_from_slice(b"HERE");
    assert!(u.read(u.ino("own/big")) == bytes);
    assert_eq!(fs.solidify().map(|solid| solid.files), Ok(2));
}

#[test]
fn an_ordinary_user_copies_up_onto_a_directory() {
    if let Some(low) = std::env::var_os(LOWER).map(PathBuf::from) {
        return copy_up(&low);
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root makes what is another user's");
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    prepare(dir.path());
    let mut again = Command::new("setpriv");
    again.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    again.arg(std::env::current_exe().expect("own path")).args(["--nocapture", "--exact"]);
    again.arg("an_ordinary_user_copies_up_onto_a_directory").env(LOWER, dir.path());
    let output = again.output().expect("setpriv");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

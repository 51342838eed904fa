//! Two instances in one process share no lock, no table and no static: one is stopped in the middle
//! of everything it can be stopped in, and the other one works on.

use polylane_base::sync::thread;
use polylane_testkit::fault::Call;
use polylane_vfs::{Cred, LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, OpCtx};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::*;

/// Everything a lane can do, once. Ends only if no lock is held by somebody else.
fn work(lane: &Lane) {
    let (cred, vfs) = (Cred::root(), &lane.vfs);
    lane.dir("w");
    lane.dir("w/x");
    let file = lane.file("w/f", &[7; 10 * PAGE]);
    assert!(lane.get("w/none").is_err());
    vfs.link(&OpCtx::as_user(&cred), file.node(), &lane.root, b"g").unwrap();
    lane.rename("w/f", "w/x/f", 0).unwrap();
    lane.rename("w/x", "x", 0).unwrap();
    lane.unlink("x/f").unwrap();
    lane.rmdir("x").unwrap();
    assert_eq!(read(&file, 0, 10), [7; 10]);
    file.fsync(&OpCtx::service(), false).unwrap();
    let request = LockRequest {
        owner: LockOwner(1),
        family: LockFamily::Posix,
        kind: LockKind::Write,
        start: 0,
        end: 9,
        pid: 1,
        user: None,
    };
    assert_eq!(vfs.set_lock(file.node(), request, None), LockOutcome::Done(Ok(())));
    vfs.drop_owner(LockOwner(1));
    vfs.sync(&OpCtx::service()).unwrap();
    names(&lane.open("w", O_RDONLY).unwrap());
    lane.unlink("g").unwrap();
    lane.rmdir("w").unwrap();
    vfs.stats();
}

/// A lane with a small cache, whose flusher is busy.
fn busy() -> Lane {
    let mut options = options();
    options.cache_bytes_limit = 64 * PAGE as u64;
    options.dirty_bytes_limit = 16 * PAGE as u64;
    options.flush_interval = Duration::from_millis(1);
    lane_with(options, |character| character.cache_data = true)
}

#[test]
fn one_instance_stands_still_and_the_other_goes_on() {
    let stopped = busy();
    let going = busy();
    for dir in ["a", "b", "a/sub"] {
        stopped.dir(dir);
    }
    let data = stopped.file("data", &[1; 8 * PAGE]);
    data.fsync(&OpCtx::service(), false).unwrap();
    let gone = stopped.file("gone", b"");
    stopped.unlink("gone").unwrap();
    let other = stopped.file("other", b"");
    stopped.vfs.sync(&OpCtx::service()).unwrap();
    for call in [Call::Change, Call::Look, Call::Write, Call::Sync, Call::Forget] {
        stopped.fs.block(call, true);
    }
    thread::scope(|scope| {
        // Each of these holds locks of its own while the libservice does not answer: the rename
        // lock and two directories; a directory to look something up; a file's data; the inode
        // table's promise of an inode that is being forgotten; the flusher, for which a writer
        // waits.
        let stopped = &stopped;
        let mut blocked = Vec::new();
        blocked.push(scope.spawn(|| stopped.rename("a/sub", "b/sub", 0).is_ok()));
        blocked.push(scope.spawn(|| stopped.get("none").is_ok()));
        blocked.push(scope.spawn(|| {
            let size = polylane_vfs::SetAttr { size: Some(1), ..Default::default() };
            stopped.vfs.setattr(&OpCtx::service(), data.node(), &size).is_ok()
        }));
        blocked.push(scope.spawn(|| {
            drop(gone);
            true
        }));
        blocked.push(scope.spawn(|| {
            (0..64).for_each(|page| write(&other, page * PAGE as u64, &[1; PAGE]));
            true
        }));
        // The fifth is the flusher.
        stopped.fs.await_blocked(5);
        blocked.push(scope.spawn(|| stopped.open("new", O_RDWR | O_CREAT).is_ok()));
        let (done, finished) = channel();
        scope.spawn(move || {
            for _ in 0..50 {
                work(&going);
            }
            drop(going);
            done.send(()).unwrap();
        });
        let result = finished.recv_timeout(Duration::from_secs(60));
        let still = blocked.iter().filter(|thread| !thread.is_finished()).count();
        for call in [Call::Change, Call::Look, Call::Write, Call::Sync, Call::Forget] {
            stopped.fs.block(call, false);
        }
        assert!(result.is_ok(), "the second instance waited for the first");
        assert_eq!(still, blocked.len(), "the first instance did stand still");
    });
}

/// The flusher, the tables and every cached inode hold the libservice: none of them is left.
#[test]
fn nothing_of_an_instance_outlives_it() {
    for lane in [lane(), busy()] {
        for _ in 0..3 {
            work(&lane);
        }
        lane.file("kept", &[1; 3 * PAGE]);
        let fs = lane.fs.clone();
        drop(lane);
        assert_eq!(std::sync::Arc::strong_count(&fs), 1);
    }
}

/// Holds which operation a thread is doing, and with it of which instance.
const CURRENT_OPERATION: &str = "src/handover/turn.rs";

/// A `static` that can change, or a thread-local, would be shared by all instances.
#[test]
fn the_crate_has_no_mutable_static() {
    let mut files = Vec::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() > 20);
    for path in files.iter().filter(|path| !path.ends_with(CURRENT_OPERATION)) {
        let text = std::fs::read_to_string(path).unwrap();
        // Tests of the crate may have what they like.
        let code = text.split("#[cfg(test)]").next().unwrap();
        for (number, line) in code.lines().enumerate() {
            let words = line.trim_start();
            let is_static = words.starts_with("static ")
                || words.starts_with("pub static ")
                || words.starts_with("pub(crate) static ")
                || words.starts_with("pub(super) static ");
            let hidden = ["thread_local!", "lazy_static!", "LazyLock"];
            let place = format!("{}:{}", path.display(), number + 1);
            assert!(!is_static, "{place}: state of an instance belongs into Core: {line}");
            for word in hidden {
                assert!(!words.contains(word), "{place}: {word} is shared by all instances");
            }
        }
    }
}

fn collect(dir: &Path, into: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push(path);
        }
    }
}

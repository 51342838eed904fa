//! A service that dies, hangs or is upgraded is replaced under the running tenant.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polylane_tests::binary;
use polylane_tests::pool::{Running, signal_to};

mod exact;
mod locks;
mod lost;
mod open_files;
mod replaced;

/// Ends a run that takes too long, so that readers of its output come to an end.
struct Limit(Arc<AtomicBool>);

impl Limit {
    fn on(run: &Running, seconds: u64) -> Limit {
        let (over, supervisor) = (Arc::new(AtomicBool::new(false)), run.child.id());
        let (seen, end) = (over.clone(), Instant::now() + Duration::from_secs(seconds));
        std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                if Instant::now() > end {
                    eprintln!("the run took more than {seconds} s: killed");
                    return signal_to(supervisor, "KILL");
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Limit(over)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn upgrade(pool: &str) -> (bool, String) {
    let output = Command::new(binary()).args(["pool", "upgrade", pool]).output().expect("polylane");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// A lower without a name in it.
fn empty_lower() -> tempfile::TempDir {
    tempfile::tempdir().expect("tempdir")
}

/// The options of a lane over it.
fn below(lower: &tempfile::TempDir) -> String {
    format!("--lower {}", lower.path().display())
}

/// An upper is its user's alone.
fn make_private(dir: &std::path::Path) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700)).expect("chmod");
}

/// Kills a run's service, and waits for the next.
fn kill_service(run: &Running) {
    let before = run.service();
    signal_to(before, "KILL");
    let end = Instant::now() + Duration::from_secs(20);
    while run.service_now().is_none_or(|now| now == before) {
        assert!(Instant::now() < end, "no service comes up");
        std::thread::sleep(Duration::from_millis(10));
    }
}

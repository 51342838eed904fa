//! Copies of a volume that a virtual machine uses, over vhost-user: a native virtio driver writes
//! numbered blocks, one after another, while the volume is copied.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polylane_front::vhost_user::driver::{Driver, Kind, Shape};
use polylane_tests::binary;
use polylane_tests::step::{STEP_TIME_MAX, good, output};
use polylane_tests::volume::HostFs;

const BLOCK_BYTES: usize = 4096;
/// Numbered blocks of a volume: after the last comes the first again.
const BLOCKS: u64 = 4096;
/// A request that is not answered by then, a copy's pause included, never is.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// A volume behind a socket, and its state directory.
struct Place {
    dir: PathBuf,
    _state: tempfile::TempDir,
}

impl Place {
    fn new(dir: &Path) -> Place {
        let state = tempfile::tempdir().expect("tempdir");
        let place = Place { dir: dir.to_path_buf(), _state: state };
        place.polylane(&["volume", "create", "v", "--size", "32M", "--fs", "none"]);
        place.polylane(&["attach", "v", "--via", "vhost-user", "--socket", "socket"]);
        place
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(words).current_dir(&self.dir).env("XDG_STATE_HOME", self._state.path());
        command
    }

    fn polylane(&self, words: &[&str]) {
        good(&output(self.command(words), STEP_TIME_MAX, &format!("{words:?}")));
    }

    /// The number in each block of a volume that is not in use.
    fn numbers(&self, volume: &str) -> Vec<u64> {
        self.polylane(&["volume", "export", volume, "raw"]);
        let raw = self.dir.join("raw");
        let bytes = fs::read(&raw).expect("read");
        fs::remove_file(raw).expect("remove");
        let number = |block: &[u8]| {
            let numbers = block.chunks_exact(8).map(|word| word.try_into().expect("eight bytes"));
            let mut numbers = numbers.map(u64::from_le_bytes);
            let first = numbers.next().expect("a number");
            assert!(numbers.all(|number| number == first), "{volume}: a torn block");
            first
        };
        bytes.chunks_exact(BLOCK_BYTES).take(BLOCKS as usize).map(number).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.command(&["detach", "v"]).output();
    }
}

/// A driver that writes block after block; the number of the last one that was acknowledged.
struct Writing {
    acknowledged: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Writing {
    fn start(socket: &Path) -> Writing {
        let shape = Shape { queues: 1, depth: 1, data_bytes: BLOCK_BYTES };
        let mut driver = Driver::connect(socket, shape).expect("a driver");
        let (acknowledged, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (told, end) = (acknowledged.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            for number in 1.. {
                if end.load(Ordering::Relaxed) {
                    break;
                }
                write(&mut driver, number)?;
                told.store(number, Ordering::SeqCst);
            }
            Ok(())
        });
        Writing { acknowledged, stop, thread: Some(thread) }
    }

    fn said(&self) -> u64 {
        self.acknowledged.load(Ordering::SeqCst)
    }

    /// Waits until it has written more.
    fn goes_on(&self) {
        let (start, before) = (Instant::now(), self.said());
        while self.said() < before + 50 {
            let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
            assert!(!ended && start.elapsed() < ANSWER_TIME_MAX, "the driver is stuck");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("once");
        thread.join().expect("no panic").expect("every request is answered");
        self.said()
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn write(driver: &mut Driver, number: u64) -> Result<(), String> {
    let queue = &mut driver.queues()[0];
    queue.set_data(0, &number.to_le_bytes().repeat(BLOCK_BYTES / 8));
    let sector = (number - 1) % BLOCKS * (BLOCK_BYTES as u64 / 512);
    queue.submit(0, Kind::Write, sector, BLOCK_BYTES as u32);
    queue.notify().map_err(|error| error.to_string())?;
    let start = Instant::now();
    while queue.take().is_none() {
        if start.elapsed() > ANSWER_TIME_MAX {
            return Err(format!("no answer to write {number}"));
        }
        queue.wait(100);
    }
    match queue.status(0) {
        0 => Ok(()),
        status => Err(format!("write {number}: status {status}")),
    }
}

/// The volume as it was after write `last`.
fn state_after(last: u64) -> impl Iterator<Item = u64> {
    // Block b holds the greatest number up to `last` that falls on it.
    (0..BLOCKS).map(move |block| match last.checked_sub(block + 1) {
        Some(past) => block + 1 + past / BLOCKS * BLOCKS,
        None => 0,
    })
}

/// A copy is one moment's state, of after all that was acknowledged before it was asked for.
fn assert_copy(place: &Place, copy: &str, asked: u64, given: u64) {
    let numbers = place.numbers(copy);
    let last = numbers.iter().copied().max().unwrap_or_default();
    assert!((asked..=given + 1).contains(&last), "{copy}: {last} is not of {asked} to {given}");
    assert!(state_after(last).eq(numbers), "{copy}: not the state after write {last}");
}

fn copies_under_a_driver(dir: &Path) {
    let place = Place::new(dir);
    let writing = Writing::start(&dir.join("socket"));
    let mut copies = Vec::new();
    for (kind, name) in [("snapshot", "s1"), ("clone", "c"), ("snapshot", "s2")] {
        writing.goes_on();
        let asked = writing.said();
        place.polylane(&["volume", kind, "v", name]);
        copies.push((name, asked, writing.said()));
    }
    writing.goes_on();
    let last = writing.end();
    place.polylane(&["detach", "v"]);
    for (name, asked, given) in copies {
        assert_copy(&place, name, asked, given);
    }
    assert_copy(&place, "v", last, last);
}

#[test]
fn a_machine_s_volume_is_copied_while_it_writes() {
    let dir = tempfile::tempdir().expect("tempdir");
    copies_under_a_driver(dir.path());
}

#[test]
fn a_machine_s_volume_is_copied_where_the_host_shares_blocks() {
    let test = "a_machine_s_volume_is_copied_where_the_host_shares_blocks";
    let Some(host) = HostFs::new(test, "xfs", 400 << 20) else { return };
    copies_under_a_driver(&host.path());
}

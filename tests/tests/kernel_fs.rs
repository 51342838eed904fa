//! `polylane run --kernel-fs`: lanes that the kernel serves.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polylane_tests::step::{STEP_TIME_MAX, good, no_loop, output, sh};
use polylane_tests::{binary, lacks};

const KINDS: [(&str, &str); 4] = [
    ("ext3", "e2fsck -fn"),
    ("ext4", "e2fsck -fn"),
    ("xfs", "xfs_repair -n -f"),
    ("btrfs", "btrfs check --readonly"),
];

/// A state directory, and a volume in it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().expect("tempdir") }
    }

    fn volume(&self) -> PathBuf {
        self.dir.path().join("v.img")
    }

    fn polylane(&self, words: &[&str]) -> Output {
        output(self.command(words), STEP_TIME_MAX, &format!("polylane {words:?}"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(words).env("XDG_STATE_HOME", self.dir.path());
        command
    }

    /// Runs a script on the volume.
    fn run(&self, kind: &str, options: &[&str], script: &str) -> Output {
        let volume = self.volume();
        let volume = volume.to_str().expect("a name");
        let words = ["run", "--volume", volume, "--kernel-fs", kind, "--at", "/lane"];
        self.polylane(&[&words[..], options, &["--", "sh", "-euc", script]].concat())
    }

    fn assert_nothing_left(&self) {
        let list = good(&self.polylane(&["attach", "--list"]));
        assert_eq!(list.lines().count(), 1, "{list}");
    }
}

fn refused(output: &Output, why: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(why), "{said}");
}

fn cannot_run(test: &str) -> bool {
    no_loop(test) || lacks(test, &["mke2fs", "e2fsck", "mkfs.xfs", "mkfs.btrfs"])
}

#[test]
fn each_file_system_is_made_once_and_keeps_its_files() {
    if cannot_run("each_file_system_is_made_once_and_keeps_its_files") {
        return;
    }
    for (kind, check) in KINDS {
        let place = Place::new();
        let made =
            place.run(kind, &["--size", "512M"], "echo one > /lane/f; mkdir /lane/d; exit 7");
        assert_eq!(made.status.code(), Some(7), "{}", String::from_utf8_lossy(&made.stderr));
        place.assert_nothing_left();
        let script = "cat /lane/f; grep ' /lane ' /proc/self/mounts; ls -d /lane/d; id -u";
        let printed = good(&place.run(kind, &[], script));
        assert!(printed.starts_with("one\n") && printed.contains("/lane/d\n0\n"), "{printed}");
        for word in [kind, "nosuid", "nodev"] {
            assert!(printed.contains(word), "{word}: {printed}");
        }
        place.assert_nothing_left();
        sh(&format!("{check} {}", place.volume().display()));
    }
}

#[test]
fn what_was_not_formatted_here_is_mounted_for_those_who_trust_it_alone() {
    if cannot_run("what_was_not_formatted_here_is_mounted_for_those_who_trust_it_alone") {
        return;
    }
    let place = Place::new();
    let (image, volume) = (place.dir.path().join("image"), place.volume());
    sh(&format!("truncate -s 64M {0}; mke2fs -q -t ext4 {0}", image.display()));
    let (image, volume) = (image.to_str().expect("a name"), volume.to_str().expect("a name"));
    good(&place.polylane(&["volume", "import", image, volume]));
    refused(&place.run("ext4", &[], "true"), "--trust-image");
    good(&place.run("ext4", &["--trust-image"], "touch /lane/f"));
    refused(&place.run("xfs", &["--trust-image"], "true"), "holds no xfs");
    // The check finds what the mount might have believed: the root directory is gone.
    sh(&format!("debugfs -w -R 'clri <2>' {volume}"));
    refused(&place.run("ext4", &["--trust-image"], "true"), "has errors");
    place.assert_nothing_left();
}

#[test]
fn a_volume_that_others_could_write_to_is_no_longer_trusted() {
    if cannot_run("a_volume_that_others_could_write_to_is_no_longer_trusted") {
        return;
    }
    let place = Place::new();
    good(&place.run("ext4", &["--size", "64M"], "true"));
    let (volume, socket) = (place.volume(), place.dir.path().join("socket"));
    let words = [volume.to_str().expect("a name"), socket.to_str().expect("a name")];
    good(&place.polylane(&["attach", words[0], "--via", "nbd", "--socket", words[1]]));
    refused(&place.run("ext4", &[], "true"), "in use");
    good(&place.polylane(&["detach", words[0]]));
    refused(&place.run("ext4", &[], "true"), "--trust-image");
}

#[test]
fn a_killed_run_leaves_a_volume_that_the_next_can_use() {
    if cannot_run("a_killed_run_leaves_a_volume_that_the_next_can_use") {
        return;
    }
    let place = Place::new();
    good(&place.run("ext4", &["--size", "64M"], "true"));
    let (volume, ready) = (place.volume(), place.dir.path().join("ready"));
    let script = format!("echo kept > /lane/f; sync -f /lane; touch {}; sleep 60", ready.display());
    let words = ["run", "--volume", volume.to_str().expect("a name"), "--kernel-fs", "ext4"];
    let mut command = place.command(&[&words[..], &["--", "sh", "-euc", &script]].concat());
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    until("COMMAND is there", || ready.exists());
    run.kill().expect("killed");
    let _ = run.wait();
    until("its attachment is gone", || {
        good(&place.polylane(&["attach", "--list"])).lines().count() == 1
    });
    assert_eq!(good(&place.run("ext4", &[], "cat /lane/f")), "kept\n");
    assert!(Path::new(&volume).exists());
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < STEP_TIME_MAX, "in vain: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

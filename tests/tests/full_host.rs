//! A host without room: `ENOSPC` to the tenant while it is full, and never a lost lane.

use std::path::{Path, PathBuf};
use std::process::Command;

use polylane_tests::pool::Run;
use polylane_tests::volume::assert_clean;
use polylane_tests::{lacks, skip, unavailable};

/// A small file system of the host, mounted while this lives.
struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    fn new(test: &str, kind: &str, mib: u64) -> Option<Host> {
        if unavailable(test) || lacks(test, &["mke2fs", "e2fsck", "fstrim"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("tempdir");
        let (image, at) = (dir.path().join("host.img"), dir.path().join("host"));
        std::fs::create_dir(&at).expect("a directory");
        let mut mount = Command::new("mount");
        if kind == "tmpfs" {
            mount.args(["-t", "tmpfs", "-o", &format!("size={mib}M"), "none"]);
        } else {
            let made = std::fs::File::create(&image).and_then(|file| file.set_len(mib << 20));
            made.expect("an image");
            let mke2fs = Command::new("mke2fs").args(["-Fq", "-t", "ext4"]).arg(&image).status();
            assert!(mke2fs.expect("mke2fs").success());
            mount.args(["-o", "loop"]).arg(&image);
        }
        if !mount.arg(&at).status().is_ok_and(|status| status.success()) {
            skip(test, &format!("a {kind} of {mib} MiB cannot be mounted"));
            return None;
        }
        Some(Host { dir })
    }

    fn volume(&self) -> PathBuf {
        self.dir.path().join("host/volume")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let at = self.dir.path().join("host");
        // Whatever else the test has said, the mount goes.
        let _ = Command::new("umount").arg("-l").arg(at).status();
    }
}

/// What a run prints; standard error is told where the run failed.
fn run(options: &str, volume: &Path, script: &str) -> String {
    let output = Run::new(&format!("{options} --volume")).arg(volume).script(script).output();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options}: {:?}: {errors}", output.status.code());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// More than the host has is written, at once or in synced pieces; then it is removed.
const FILL: &str = r#"
cd /lane; echo kept >kept; sync kept
for turn in 1 2; do
    head -c BIGM /dev/zero 2>/dev/null >big && sync big 2>/dev/null && echo "there is room"
    i=0; while head -c 1M /dev/zero 2>/dev/null >piece$i && sync piece$i 2>/dev/null; do
        i=$((i + 1)); test $i -lt BIG || { echo "there is room for pieces"; break; }
    done
    cat kept >/dev/null || echo "what was there cannot be read"
    rm -f big piece*; sync -f . || echo "sync fails"; fstrim . || echo "fstrim fails"
    head -c 1M /dev/zero >after && sync after || echo "nothing can be written"
    rm after
done
echo more >more && sync more || echo "nothing can be written"
"#;

/// A volume of that size is made, then `prepared`, filled and emptied, by either door.
fn goes_on(
    (test, kind, options): (&str, &str, &str),
    (host, size, big): (u64, &str, u64),
    prepare: impl Fn(&Path),
) {
    for door in ["", "--no-preload"] {
        let Some(host) = Host::new(test, kind, host) else { return };
        let volume = host.volume();
        assert_eq!(run(&format!("--size {size}"), &volume, "echo first >/lane/first"), "");
        prepare(&volume);
        let options = format!("{door} {options}");
        let fill = FILL.replace("BIG", &big.to_string());
        assert_eq!(run(&options, &volume, &fill), "", "{options}");
        assert_eq!(
            run(&options, &volume, "cd /lane; cat first kept more; ls"),
            "first\nkept\nmore\nfirst\nkept\nmore\n"
        );
        assert_checked(&volume);
    }
}

/// By e2fsck, as far as it knows what the file is.
fn assert_checked(volume: &Path) {
    let mut check = Command::new(polylane_tests::binary());
    let checked = check.args(["volume", "check"]).arg(volume).output().expect("polylane");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

/// Has the volume be an overlay of what it was, on a host that cannot share blocks.
fn snapshot(volume: &Path) {
    let mut snapshot = Command::new(polylane_tests::binary());
    snapshot.args(["volume", "snapshot"]).args([volume, &volume.with_extension("before")]);
    assert!(snapshot.status().expect("polylane").success());
}

#[test]
fn a_lane_on_a_full_ext4_goes_on() {
    let test = "a_lane_on_a_full_ext4_goes_on";
    goes_on((test, "ext4", ""), (160, "2G", 250), |_| {});
}

/// What is to be logged waits for no room that removing needs.
#[test]
fn a_lane_that_logs_its_data_goes_on_on_a_full_host() {
    let test = "a_lane_that_logs_its_data_goes_on_on_a_full_host";
    for kind in ["ext4", "tmpfs"] {
        goes_on((test, kind, "--journal-mode data"), (120, "1G", 200), |_| {});
    }
}

/// Blocks that lie in the base take no room of the overlay's own.
#[test]
fn a_lane_with_a_snapshot_goes_on_on_a_full_host() {
    let test = "a_lane_with_a_snapshot_goes_on_on_a_full_host";
    for (kind, options) in [("ext4", ""), ("tmpfs", ""), ("ext4", "--journal-mode data")] {
        goes_on((test, kind, options), (160, "1G", 250), snapshot);
    }
}

/// Puts a sparse image without a journal in the volume's place, that mke2fs has made.
fn without_journal(volume: &Path, by_qcow2: bool) {
    std::fs::remove_file(volume).expect("was made");
    let elsewhere = tempfile::tempdir().expect("tempdir");
    let (raw, qcow2) = (elsewhere.path().join("raw"), elsewhere.path().join("qcow2"));
    let at = if by_qcow2 { &raw } else { volume };
    std::fs::File::create(at).and_then(|file| file.set_len(1 << 30)).expect("an image");
    let done = |command: &mut Command| {
        let output = command.output().expect("a program");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    done(Command::new("mke2fs").args(["-Fq", "-t", "ext4", "-O", "^has_journal"]).arg(at));
    if by_qcow2 {
        done(Command::new("qemu-img").args(["convert", "-O", "qcow2"]).args([&raw, &qcow2]));
        let mut import = Command::new(polylane_tests::binary());
        done(import.args(["volume", "import"]).args([&qcow2, volume]));
    }
    assert_eq!(run("", volume, "cd /lane; rmdir lost+found; echo first >first"), "");
}

/// Without a log there is room for each block of metadata before it is written, or `ENOSPC`: the
/// next run writes to the image again.
#[test]
fn a_lane_without_a_journal_goes_on_on_a_full_host() {
    let test = "a_lane_without_a_journal_goes_on_on_a_full_host";
    let has_qcow2 = !lacks(test, &["qemu-img"]);
    for (kind, by_qcow2, has_snapshot) in [
        ("ext4", false, false),
        ("tmpfs", false, false),
        ("ext4", has_qcow2, false),
        ("ext4", false, true),
        ("tmpfs", has_qcow2, true),
    ] {
        goes_on((test, kind, ""), (160, "1G", 250), |volume| {
            without_journal(volume, by_qcow2);
            if has_snapshot {
                snapshot(volume);
            }
        });
    }
}

#[test]
fn a_lane_on_a_full_tmpfs_goes_on() {
    let test = "a_lane_on_a_full_tmpfs_goes_on";
    goes_on((test, "tmpfs", ""), (24, "1G", 60), |_| {});
}

/// What a run leaves on a full host the next one opens and empties.
#[test]
fn a_full_host_at_the_end_of_a_run_is_no_lost_lane() {
    let test = "a_full_host_at_the_end_of_a_run_is_no_lost_lane";
    let Some(host) = Host::new(test, "ext4", 160) else { return };
    let volume = host.volume();
    let script = "cd /lane; echo kept >kept; sync kept; i=0
        while head -c 1M /dev/zero 2>/dev/null >f$i && sync f$i 2>/dev/null; do i=$((i + 1)); done
        rm f$i; true";
    // It may say that not everything could be written; what was synced is there.
    Run::new("--size 2G --volume").arg(&volume).script(script).output();
    let script = "cd /lane; cat kept; rm f*; fstrim .; echo more >more && sync more && cat more";
    assert_eq!(run("", &volume, script), "kept\nmore\n");
    assert_clean(&volume);
}

#[test]
fn a_volume_begins_small() {
    use std::os::unix::fs::MetadataExt as _;
    let test = "a_volume_begins_small";
    if unavailable(test) || lacks(test, &["mke2fs", "e2fsck"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let volume = dir.path().join("volume");
    run("--size 10G", &volume, "echo x >/lane/x; sync /lane/x");
    let bytes = std::fs::metadata(&volume).expect("there").blocks() * 512;
    assert!(bytes <= 40 << 20, "{} MiB", bytes >> 20);
}

/// A copy that has changed nothing yet has no room of its own: where the host has none either, it
/// can be read, and is written again when there is room.
#[test]
fn a_copy_on_a_full_host_can_be_read() {
    let test = "a_copy_on_a_full_host_can_be_read";
    for door in ["", "--no-preload"] {
        let Some(host) = Host::new(test, "ext4", 160) else { return };
        let volume = host.volume();
        run(&format!("{door} --size 256M"), &volume, "echo kept >/lane/kept");
        let copy = volume.with_file_name("copy");
        let made = Command::new(polylane_tests::binary())
            .args(["volume", "clone"])
            .args([&volume, &copy])
            .output();
        let made = made.expect("polylane");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let filler = volume.with_file_name("filler");
        let fill = format!("head -c 1G /dev/zero >{} 2>/dev/null; sync", filler.display());
        let _ = Command::new("sh").args(["-c", &fill]).status();
        for of in [&volume, &copy] {
            let script = "cat /lane/kept; echo new >/lane/new || echo refused";
            assert_eq!(run(door, of, script), "kept\nrefused\n", "{door} {of:?}");
        }
        std::fs::remove_file(&filler).expect("removed");
        assert_eq!(run(door, &volume, "echo new >/lane/new; cat /lane/*"), "kept\nnew\n");
        assert_eq!(run(door, &copy, "cat /lane/*"), "kept\n");
    }
}

//! Real guests on volumes: QEMU without KVM, a Debian kernel, virtio-blk over vhost-user.
//!
//! They need a kernel and an initramfs, which `tests/scripts/guest-kernel.sh DIR` makes;
//! `POLYLANE_GUEST` names the directory. A guest takes half a minute.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use polylane_tests::volume::engine_of;
use polylane_tests::{binary, lacks, skip};

/// A volume, its socket, and a state directory of their own.
struct Place {
    dir: tempfile::TempDir,
    volume: PathBuf,
}

impl Place {
    fn new(cache: &[&str]) -> Place {
        Place::attached(cache, false)
    }

    /// With every request written down, if `record` says so.
    fn attached(cache: &[&str], record: bool) -> Place {
        let dir = tempfile::tempdir().expect("tempdir");
        let place = Place { volume: dir.path().join("guest.img"), dir };
        let create = ["volume", "create", "--size", "512M", "--fs", "none"];
        place.polylane(&[&create[..], cache].concat(), true);
        let (socket, trace) = (place.socket(), place.path("trace.csv"));
        let attach = ["attach", "--via", "vhost-user", "--socket", &socket];
        let record = if record { vec!["--record", &trace] } else { vec![] };
        place.polylane(&[&attach[..], &record].concat(), true);
        place
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("a name").into()
    }

    fn socket(&self) -> String {
        self.path("socket")
    }

    fn polylane(&self, words: &[&str], volume: bool) -> Output {
        let mut command = Command::new(binary());
        command.args(words).env("XDG_STATE_HOME", self.dir.path());
        if volume {
            command.arg(&self.volume);
        }
        let output = command.output().expect("polylane runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        output
    }

    /// What the engine counted.
    fn stats(&self) -> serde_json::Value {
        let output = self.polylane(&["attach", "--list", "--json"], false);
        let listed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        listed[0]["stats"].clone()
    }

    /// Recall and precision of the default rule on what was written down.
    fn judge(&self, journal: &str) -> (f64, f64) {
        let (trace, out) = (self.path("trace.csv"), self.path("out"));
        let bench = ["bench", "run", "pdc-trace", "--quick", "--trace", &trace, "--out", &out];
        self.polylane(&[&bench[..], &["--journal", journal]].concat(), false);
        let report = fs::read(Path::new(&out).join("pdc-trace.json")).expect("a report");
        let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
        let cells = report["cells"].as_array().expect("cells");
        let cell = cells.iter().find(|cell| cell["system"] == "flush-solo").expect("a row");
        let number = |value: &serde_json::Value| value.as_f64().unwrap_or(0.0);
        (number(&cell["samples"][0]), number(&cell["extra"]["precision"]))
    }

    /// Starts a guest that runs a shell script.
    fn guest(&self, kit: &Path, script: &str) -> Child {
        let encoded = Command::new("sh")
            .args(["-c", "printf %s \"$1\" | base64 -w0", "sh", script])
            .output()
            .expect("base64 runs");
        let encoded = String::from_utf8(encoded.stdout).expect("text");
        let path = |name: &str| kit.join(name).to_str().expect("a name").to_string();
        Command::new("timeout")
            .args(["150", "qemu-system-x86_64", "-machine", "q35,accel=tcg"])
            .args(["-cpu", "max,-cx16", "-smp", "2", "-m", "512", "-nodefaults", "-no-reboot"])
            .args(["-nographic", "-serial", "stdio"])
            .args(["-object", "memory-backend-memfd,id=mem,size=512M,share=on"])
            .args(["-numa", "node,memdev=mem"])
            .args(["-kernel", &path("vmlinuz"), "-initrd", &path("initrd.gz")])
            .args(["-append", &format!("console=ttyS0 quiet panic=-1 guest={encoded}")])
            .args(["-chardev", &format!("socket,id=c0,path={},reconnect=1", self.socket())])
            .args(["-device", "vhost-user-blk-pci,chardev=c0,num-queues=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("timeout runs")
    }

    /// What a guest printed, up to its end in good order.
    fn run(&self, kit: &Path, script: &str) -> String {
        finish(self.guest(kit, script))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut command = Command::new(binary());
        command.arg("detach").arg(&self.volume).env("XDG_STATE_HOME", self.dir.path());
        let _ = command.output();
    }
}

fn finish(guest: Child) -> String {
    let output = guest.wait_with_output().expect("the guest ends");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("GUEST-DONE"), "{printed}\n{said}");
    printed
}

/// Kernel and initramfs, if this can run here.
fn kit(test: &str) -> Option<PathBuf> {
    if lacks(test, &["qemu-system-x86_64", "timeout"]) {
        return None;
    }
    let dir = std::env::var_os("POLYLANE_GUEST").map(PathBuf::from);
    if dir.is_none() {
        skip(test, "POLYLANE_GUEST is not set: see tests/scripts/guest-kernel.sh");
    }
    dir
}

/// Fsyncs files by three writers, then checks all of them and the file system.
const WORK: &str = r#"
mkfs.ext4 -F -q /dev/vda && mount /dev/vda /mnt && echo MOUNTED
for t in 1 2 3; do (
    i=0
    while [ $i -lt 20 ]; do
        dd if=/dev/urandom of=/mnt/$t-$i bs=4k count=$((i % 8 + 1)) conv=fsync 2>/dev/null
        sha256sum /mnt/$t-$i >> /tmp/sums-$t
        sleep 0.1
        i=$((i + 1))
    done
) & done
wait
echo 3 > /proc/sys/vm/drop_caches
cat /tmp/sums-* | sha256sum -c | grep -c OK
umount /mnt
e2fsck -fn /dev/vda > /dev/null 2>&1 && echo CLEAN
dmesg | grep -i 'i/o error'
"#;

#[test]
fn a_guest_s_files_are_whole_and_its_journal_bypasses_the_cache() {
    let Some(kit) = kit("a_guest_s_files_are_whole_and_its_journal_bypasses_the_cache") else {
        return;
    };
    let place = Place::new(&["--cache", "pdc"]);
    let printed = place.run(&kit, WORK);
    assert!(printed.contains("60") && printed.contains("CLEAN"), "{printed}");
    assert!(!printed.to_lowercase().contains("i/o error"), "{printed}");
    let cache = &place.stats()["engine"]["cache"];
    assert!(cache["bypassed_bytes"].as_u64() > Some(100_000), "{cache}");
    assert_eq!(place.stats()["engine"]["failed"], 0);
}

#[test]
fn a_guest_outlives_engines_that_are_killed() {
    let Some(kit) = kit("a_guest_outlives_engines_that_are_killed") else { return };
    let place = Place::new(&["--cache", "pdc"]);
    let guest = place.guest(&kit, WORK);
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(200));
        if place.stats()["engine"]["writes"].as_u64() > Some(100) {
            break;
        }
    }
    for _ in 0..3 {
        let engine = engine_of(&place.volume).expect("an engine");
        let _ = Command::new("kill").args(["-9", &engine.to_string()]).status();
        std::thread::sleep(Duration::from_secs(1));
    }
    let printed = finish(guest);
    assert!(printed.contains("60") && printed.contains("CLEAN"), "{printed}");
    assert!(!printed.to_lowercase().contains("i/o error"), "{printed}");
    assert_eq!(place.stats()["engine_restarts"], 3);
}

#[test]
fn a_guest_that_switches_its_write_cache_off_gets_durable_writes() {
    let Some(kit) = kit("a_guest_that_switches_its_write_cache_off_gets_durable_writes") else {
        return;
    };
    let place = Place::new(&["--cache", "writeback"]);
    let script = "dd if=/dev/zero of=/dev/vda bs=4k count=4 oflag=direct 2>/dev/null; \
        echo 'write through' > /sys/block/vda/cache_type; cat /sys/block/vda/cache_type; \
        dd if=/dev/zero of=/dev/vda bs=4k count=50 oflag=direct 2>/dev/null";
    let printed = place.run(&kit, script);
    assert!(printed.contains("write through"), "{printed}");
    let engine = &place.stats()["engine"];
    assert_eq!((&engine["writes"], &engine["durable_writes"]), (&54.into(), &50.into()));
}

/// Three writers that fsync small files, for as long as it takes to commit some MiB.
const MAIL: &str = r#"
end=$(($(date +%s) + 45))
for t in 1 2 3; do (
    i=0
    while [ $(date +%s) -lt $end ]; do
        dd if=/dev/zero of=/mnt/$t-$((i % 50)) bs=4k count=$((i % 5 + 1)) conv=fsync 2>/dev/null
        i=$((i + 1))
    done
) & done
wait
umount /mnt && echo UNMOUNTED
"#;

/// A file system: its name, how a guest makes and mounts it, and how its journal's first and last
/// block are found in the volume `$1`; nothing for one without.
const KINDS: [(&str, &str, &str); 5] = [
    ("ext4", "mkfs.ext4 -F -q /dev/vda && mount -t ext4 /dev/vda /mnt", EXT_JOURNAL),
    (
        "ext4 data=journal",
        "mkfs.ext4 -F -q /dev/vda && mount -t ext4 -o data=journal /dev/vda /mnt",
        EXT_JOURNAL,
    ),
    ("ext3", "mkfs.ext4 -F -q -t ext3 /dev/vda && mount -t ext3 /dev/vda /mnt", EXT_JOURNAL),
    ("XFS", "mkfs.xfs -q -f /dev/vda && mount -t xfs /dev/vda /mnt", XFS_LOG),
    ("btrfs", "mkfs.btrfs -q -f /dev/vda && mount -t btrfs /dev/vda /mnt", ""),
];

const EXT_JOURNAL: &str = "debugfs -R 'stat <8>' \"$1\" 2>/dev/null | grep -o '):[0-9-]*' | \
    tr -d '):' | tr - '\\n' | sort -n | \
    awk 'NR == 1 { first = $1 } { last = $1 } END { print first * 4096 \"-\" last * 4096 }'";

const XFS_LOG: &str = "xfs_db -r -c 'sb 0' -c 'p blocksize agblocks agblklog logstart logblocks' \
    \"$1\" | awk '{ v[$1] = $3 } END { n = 2 ^ v[\"agblklog\"]; s = v[\"logstart\"]; \
    b = int(s / n) * v[\"agblocks\"] + s % n; printf \"%d-%d\\n\", b * v[\"blocksize\"], \
    (b + v[\"logblocks\"] - 1) * v[\"blocksize\"] }'";

#[test]
fn journals_of_guests_are_found_and_nothing_else() {
    let test = "journals_of_guests_are_found_and_nothing_else";
    let Some(kit) = kit(test) else { return };
    if lacks(test, &["debugfs", "xfs_db", "awk"]) {
        return;
    }
    for (name, make, truth) in KINDS {
        let place = Place::attached(&["--cache", "pdc"], true);
        let printed = place.run(&kit, &format!("{make} && echo MOUNTED\n{MAIL}"));
        assert!(printed.contains("MOUNTED") && printed.contains("UNMOUNTED"), "{name}: {printed}");
        let bypassed = place.stats()["engine"]["cache"]["bypassed_bytes"].as_u64();
        place.polylane(&["detach"], true);
        if truth.is_empty() {
            assert_eq!(bypassed, Some(0), "{name} has no journal");
            continue;
        }
        let found = Command::new("sh").args(["-c", truth, "sh"]).arg(&place.volume).output();
        let found = String::from_utf8(found.expect("sh runs").stdout).expect("text");
        let (recall, precision) = place.judge(found.trim());
        eprintln!("{name}: recall {recall:.3}, precision {precision:.3}, journal {}", found.trim());
        assert!(recall > 0.8 && precision > 0.95, "{name}: {recall} {precision} {found}");
    }
}

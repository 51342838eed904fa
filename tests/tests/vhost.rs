//! Real guests on volumes: QEMU without KVM, a Debian kernel, virtio-blk over vhost-user.
//!
//! They run with `make test-guest`; see `polylane_tests::guest`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use polylane_tests::attached::Attached;
use polylane_tests::guest::{Guest, Kernel, Kit};
use polylane_tests::lacks;
use polylane_tests::volume::engine_of;

/// A volume that a guest uses.
struct Place(Attached);

impl Place {
    fn new(cache: &[&str]) -> Place {
        Place::attached(cache, false)
    }

    /// With every request written down, if `record` says so.
    fn attached(cache: &[&str], record: bool) -> Place {
        let volume = Attached::new("512M", cache);
        let (socket, trace) = (volume.path("socket"), volume.path("trace.csv"));
        let attach = ["attach", "--via", "vhost-user", "--socket", &socket];
        let record = if record { vec!["--record", &trace] } else { vec![] };
        volume.on_volume(&[&attach[..], &record].concat());
        Place(volume)
    }

    /// Recall and precision of the default rule on what was written down.
    fn judge(&self, journal: &str) -> (f64, f64) {
        let (trace, out) = (self.0.path("trace.csv"), self.0.path("out"));
        let bench = ["bench", "run", "pdc-trace", "--quick", "--trace", &trace, "--out", &out];
        self.0.polylane(&[&bench[..], &["--journal", journal]].concat());
        let report = fs::read(Path::new(&out).join("pdc-trace.json")).expect("a report");
        let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
        let cells = report["cells"].as_array().expect("cells");
        let cell = cells.iter().find(|cell| cell["system"] == "flush-solo").expect("a row");
        let number = |value: &serde_json::Value| value.as_f64().unwrap_or(0.0);
        (number(&cell["samples"][0]), number(&cell["extra"]["precision"]))
    }

    /// A guest with the volume as `/dev/vda`.
    fn guest(&self, kit: &Kit, name: &str, script: &str) -> Guest {
        let socket = format!("socket,id=c0,path={},reconnect=1", self.0.path("socket"));
        Guest::new(kit, &format!("vhost-{name}"), script).arguments(&[
            "-object",
            "memory-backend-memfd,id=mem,size=1024M,share=on",
            "-numa",
            "node,memdev=mem",
            "-chardev",
            &socket,
            "-device",
            "vhost-user-blk-pci,chardev=c0,num-queues=1",
        ])
    }
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
dmesg | grep -i 'i/o error' || true
"#;

#[test]
fn a_guest_s_files_are_whole_and_its_journal_bypasses_the_cache() {
    let test = "a_guest_s_files_are_whole_and_its_journal_bypasses_the_cache";
    let Some(kit) = Kit::find(test, Kernel::Stable) else { return };
    let place = Place::new(&["--cache", "pdc"]);
    let printed = place.guest(&kit, "whole", WORK).run();
    assert!(printed.contains("60") && printed.contains("CLEAN"), "{printed}");
    assert!(!printed.to_lowercase().contains("i/o error"), "{printed}");
    let cache = &place.0.stats()["engine"]["cache"];
    assert!(cache["bypassed_bytes"].as_u64() > Some(100_000), "{cache}");
    assert_eq!(place.0.stats()["engine"]["failed"], 0);
}

#[test]
fn a_guest_outlives_engines_that_are_killed() {
    let test = "a_guest_outlives_engines_that_are_killed";
    let Some(kit) = Kit::find(test, Kernel::Stable) else { return };
    let place = Place::new(&["--cache", "pdc"]);
    let guest = place.guest(&kit, "killed", WORK).start();
    for _ in 0..200 {
        std::thread::sleep(Duration::from_millis(200));
        if place.0.stats()["engine"]["writes"].as_u64() > Some(100) {
            break;
        }
    }
    for _ in 0..3 {
        let engine = engine_of(&place.0.volume).expect("an engine");
        let _ = Command::new("kill").args(["-9", &engine.to_string()]).status();
        std::thread::sleep(Duration::from_secs(1));
    }
    let printed = guest.finish();
    assert!(printed.contains("60") && printed.contains("CLEAN"), "{printed}");
    assert!(!printed.to_lowercase().contains("i/o error"), "{printed}");
    assert_eq!(place.0.stats()["engine_restarts"], 3);
}

#[test]
fn a_guest_that_switches_its_write_cache_off_gets_durable_writes() {
    let test = "a_guest_that_switches_its_write_cache_off_gets_durable_writes";
    let Some(kit) = Kit::find(test, Kernel::Stable) else { return };
    let place = Place::new(&["--cache", "writeback"]);
    let script = "dd if=/dev/zero of=/dev/vda bs=4k count=4 oflag=direct 2>/dev/null; \
        echo 'write through' > /sys/block/vda/cache_type; cat /sys/block/vda/cache_type; \
        dd if=/dev/zero of=/dev/vda bs=4k count=50 oflag=direct 2>/dev/null";
    let printed = place.guest(&kit, "write-through", script).run();
    assert!(printed.contains("write through"), "{printed}");
    let engine = &place.0.stats()["engine"];
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
    let Some(kit) = Kit::find(test, Kernel::Stable) else { return };
    if lacks(test, &["debugfs", "xfs_db", "awk"]) {
        return;
    }
    for (name, make, truth) in KINDS {
        let place = Place::attached(&["--cache", "pdc"], true);
        let script = format!("{make} && echo MOUNTED\n{MAIL}");
        let printed = place.guest(&kit, &format!("journal-{name}"), &script).run();
        assert!(printed.contains("MOUNTED") && printed.contains("UNMOUNTED"), "{name}: {printed}");
        let bypassed = place.0.stats()["engine"]["cache"]["bypassed_bytes"].as_u64();
        place.0.on_volume(&["detach"]);
        if truth.is_empty() {
            assert_eq!(bypassed, Some(0), "{name} has no journal");
            continue;
        }
        let found = Command::new("sh").args(["-c", truth, "sh"]).arg(&place.0.volume).output();
        let found = String::from_utf8(found.expect("sh runs").stdout).expect("text");
        let (recall, precision) = place.judge(found.trim());
        eprintln!("{name}: recall {recall:.3}, precision {precision:.3}, journal {}", found.trim());
        assert!(recall > 0.8 && precision > 0.95, "{name}: {recall} {precision} {found}");
    }
}

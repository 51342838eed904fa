//! Real guests on volumes: QEMU without KVM, a Debian kernel, virtio-blk over vhost-user.
//!
//! They run with `make test-guest`; see `polylane_tests::guest`.

use std::process::Command;
use std::time::Duration;

use polylane_tests::attached::Attached;
use polylane_tests::guest::{Guest, Kernel, Kit};
use polylane_tests::volume::engine_of;

/// A volume that a guest uses.
struct Place(Attached);

impl Place {
    fn new(cache: &[&str]) -> Place {
        let volume = Attached::new("512M", cache);
        let socket = volume.path("socket");
        volume.on_volume(&["attach", "--via", "vhost-user", "--socket", &socket]);
        Place(volume)
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

/// Verifies what fio writes in the guest, over and over until the host grows the volume; then the
/// file system grows, and all of it is looked at again.
const VERIFY: &str = include_str!("../guest/verify.sh");

#[test]
fn fio_verifies_in_a_guest_whose_engines_are_killed_and_whose_disk_grows() {
    let test = "fio_verifies_in_a_guest_whose_engines_are_killed_and_whose_disk_grows";
    let Some(kit) = Kit::find(test, Kernel::Stable) else { return };
    let place = Place::new(&["--cache", "pdc"]);
    let mut guest = place.guest(&kit, "verify", VERIFY).limit(600).start();
    guest.wait_for("VERIFIED 1");
    for _ in 0..4 {
        std::thread::sleep(Duration::from_secs(2));
        let engine = engine_of(&place.0.volume).expect("an engine");
        let _ = Command::new("kill").args(["-9", &engine.to_string()]).status();
    }
    place.0.polylane(&["volume", "resize", &place.0.volume.display().to_string(), "1G"]);
    let printed = guest.finish();
    assert!(printed.contains("grew from 512 to 1024 MiB"), "{printed}");
    assert!(printed.contains("ok ext4 grew"), "{printed}");
    let stats = place.0.stats();
    assert_eq!((&stats["engine_restarts"], &stats["engine"]["failed"]), (&4.into(), &0.into()));
}

/// QEMU's words in the documentation, for a socket.
fn documented_words(socket: &str) -> Vec<String> {
    let text = include_str!("../../docs/design/vhost-user.md");
    let (_, line) = text.split_once("qemu-system-x86_64 … ").expect("QEMU's line");
    let (line, _) = line.split_once("\ncloud-hypervisor").expect("its end");
    let words = line.split_whitespace().filter(|word| *word != "\\");
    words.map(|word| word.replace("/run/v.sock", socket)).collect()
}

#[test]
fn a_guest_boots_with_the_words_of_the_documentation() {
    let test = "a_guest_boots_with_the_words_of_the_documentation";
    let Some(kit) = Kit::find(test, Kernel::Stable) else { return };
    let place = Place::new(&["--cache", "pdc"]);
    let words = documented_words(&place.0.path("socket"));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let script = "echo queues $(ls /sys/block/vda/mq | wc -l); \
        mkfs.ext4 -F -q /dev/vda && mount /dev/vda /mnt && umount /mnt && echo MOUNTED";
    let printed = Guest::new(&kit, "vhost-documented", script).arguments(&words).run();
    assert!(printed.contains("queues 2") && printed.contains("MOUNTED"), "{printed}");
}

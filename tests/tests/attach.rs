//! Attached volumes: `polylane attach` and `detach`, with real clients and the kernel's own file
//! systems on them.
//!
//! | front end | who uses it here |
//! |---|---|
//! | nbd | nbdinfo, nbdcopy, qemu-img, nbdkit |
//! | loop | mkfs, mount, fio, fsck: ext3, ext4, XFS, btrfs |
//!
//! The sizes are those of a quick run; `cargo xtask campaign attach` runs the tests that are
//! ignored, which do the same at length.
//!
//! A mount on a device without a server cannot be waited for: whatever takes too long here ends
//! with the keeper and the engine killed, which lets go of everything that waits for them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polylane_tests::step::{STEP_TIME_MAX, ended, good, no_loop, output, sh, sh_within};
use polylane_tests::volume::engine_of;
use polylane_tests::{binary, lacks};

/// How long a load of a quick run may take, and one of a long run.
const LOAD_TIME_MAX: Duration = Duration::from_secs(120);
const LONG_LOAD_TIME_MAX: Duration = Duration::from_secs(1800);

/// A state directory and a volume of its own; whatever is attached goes with it.
struct Place {
    dir: tempfile::TempDir,
    volume: PathBuf,
    /// The kernel is asked to read and write the volume's file itself.
    passthrough: bool,
}

impl Place {
    fn new(size: &str) -> Place {
        let dir = tempfile::tempdir().expect("tempdir");
        let place = Place { volume: dir.path().join("v.img"), dir, passthrough: false };
        let volume = place.volume.to_str().expect("a name");
        good(&place.polylane(&["volume", "create", volume, "--size", size, "--fs", "none"]));
        place
    }

    fn polylane(&self, words: &[&str]) -> Output {
        let mut command = Command::new(binary());
        command.args(words).env("XDG_STATE_HOME", self.dir.path());
        output(command, STEP_TIME_MAX, &format!("polylane {words:?}"))
    }

    /// What is known of the one attachment.
    fn listed(&self) -> serde_json::Value {
        let list = good(&self.polylane(&["attach", "--list", "--json"]));
        serde_json::from_str::<serde_json::Value>(&list).expect("JSON")[0].clone()
    }

    /// The device or socket.
    fn attach(&self, options: &[&str]) -> PathBuf {
        let volume = self.volume.to_str().expect("a name");
        let attach = [&["attach", volume], options].concat();
        if self.passthrough {
            let output = self.polylane(&[&attach[..], &["--passthrough"]].concat());
            let said = String::from_utf8_lossy(&output.stderr);
            if !said.contains("cannot be passed through") {
                return PathBuf::from(good(&output).trim());
            }
            eprintln!("through the engine then: {said}");
        }
        PathBuf::from(good(&self.polylane(&attach)).trim())
    }

    fn detach(&self) {
        good(&self.polylane(&["detach", self.volume.to_str().expect("a name")]));
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("a name").to_string()
    }

    /// A mount point in a mount that tells copies of it in other namespaces of what is unmounted:
    /// who makes a namespace while a volume is mounted does not keep its device busy.
    fn mount_point(&self) -> String {
        let stage = self.path("stage");
        sh(&format!("mkdir -p {stage}/mnt; mount --bind {stage} {stage}"));
        sh(&format!("mount --make-shared {stage}"));
        format!("{stage}/mnt")
    }

    /// Bytes that the volume takes on the host.
    fn allocated(&self) -> u64 {
        fs::metadata(&self.volume).expect("stat").blocks() * 512
    }
}

impl Place {
    /// Ends the process that serves the device: all that waits for it gets an error.
    fn cut_off(&self) {
        let list = fs::read_dir(self.dir.path().join("polylane/attachments"));
        for entry in list.into_iter().flatten().flatten() {
            let record = fs::read(entry.path()).ok();
            let record = record.and_then(|text| serde_json::from_slice(&text).ok());
            let record: serde_json::Value = record.unwrap_or_default();
            let keeper = record["pid"].as_u64().map(|pid| pid as u32);
            for pid in [keeper, engine_of(&self.volume)].into_iter().flatten() {
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let unmount = |name: &str| {
            let mut unmount = Command::new("umount");
            unmount.arg(self.path(name));
            unmount
        };
        let (mut mount, mut staged) = (unmount("mnt"), unmount("stage/mnt"));
        let mut stage = unmount("stage");
        let mut detach = Command::new(binary());
        detach.arg("detach").arg(&self.volume).env("XDG_STATE_HOME", self.dir.path());
        for step in [&mut mount, &mut staged, &mut stage, &mut detach] {
            if ended(step.stdout(Stdio::null()).stderr(Stdio::null()), STEP_TIME_MAX).is_none() {
                self.cut_off();
            }
        }
    }
}

#[test]
fn nbd_clients_copy_a_volume_there_and_back() {
    let test = "nbd_clients_copy_a_volume_there_and_back";
    if lacks(test, &["nbdinfo", "nbdcopy", "qemu-img"]) {
        return;
    }
    let place = Place::new("64M");
    let socket = place.path("nbd");
    place.attach(&["--via", "nbd", "--socket", &socket]);
    let uri = format!("nbd+unix:///?socket={socket}");
    let info = sh(&format!("nbdinfo --json '{uri}'"));
    for wanted in ["\"can_fua\": true", "\"can_multi_conn\": true", "base:allocation", "67108864"] {
        assert!(info.contains(wanted), "{wanted}: {info}");
    }
    let (from, to) = (place.path("from"), place.path("to"));
    sh(&format!(
        "truncate -s 64M {from}; head -c 9M /dev/urandom | dd of={from} bs=1M seek=20 conv=notrunc \
         status=none; nbdcopy {from} '{uri}'; nbdcopy '{uri}' {to}; cmp {from} {to}"
    ));
    assert!(place.allocated() < 16 << 20, "holes stay holes: {}", place.allocated());
    sh(&format!(
        "test \"$(nbdinfo --map --totals '{uri}' | awk '/hole/ {{ print $1 }}')\" -gt 50000000; \
         rm {to}; qemu-img convert -f raw -O raw '{uri}' {to}; cmp {from} {to}; \
         qemu-img compare -f raw -F raw '{uri}' {from}"
    ));
    // Trimmed, it gives its space back.
    sh(&format!("qemu-io -f raw -c 'discard 0 64M' -c flush '{uri}'"));
    assert!(place.allocated() < 1 << 20, "{}", place.allocated());
    place.detach();
    assert!(!Path::new(&socket).exists());
    assert_eq!(engine_of(&place.volume), None);
}

#[test]
fn an_nbd_client_goes_on_when_the_engine_is_killed() {
    let test = "an_nbd_client_goes_on_when_the_engine_is_killed";
    if lacks(test, &["nbdkit", "nbdcopy", "nbdinfo"]) {
        return;
    }
    let place = Place::new("32M");
    let socket = place.path("nbd");
    place.attach(&["--via", "nbd", "--socket", &socket]);
    // nbdkit is the client, and connects again by itself.
    let from = place.path("from");
    sh(&format!("head -c 32M /dev/urandom > {from}"));
    let engine = engine_of(&place.volume).expect("an engine");
    sh(&format!(
        "nbdkit -U - --filter=retry nbd socket={socket} retry-delay=1 \
         --run 'kill -9 {engine}; nbdcopy {from} \"$uri\"; nbdcopy \"$uri\" - | cmp - {from}'"
    ));
    assert_ne!(engine_of(&place.volume), Some(engine));
    let list = good(&place.polylane(&["attach", "--list"]));
    assert!(list.contains("up") && list.contains(&socket), "{list}");
}

#[test]
fn what_an_engine_was_asked_when_it_died_the_next_one_answers() {
    let place = Place::new("32M");
    place.attach(&["--via", "nbd", "--socket", &place.path("nbd")]);
    for command in [&["volume", "resize", &place.path("v.img"), "64M"][..], &["stats", "--json"]] {
        let engine = engine_of(&place.volume).expect("an engine").to_string();
        let signal = |name: &str| sh(&format!("kill -{name} {engine}"));
        signal("STOP");
        let answer = std::thread::scope(|scope| {
            let asked = scope.spawn(|| place.polylane(command));
            std::thread::sleep(Duration::from_millis(300));
            signal("KILL");
            asked.join().expect("a command")
        });
        let said = good(&answer);
        assert!(command[0] == "volume" || said.contains("\"attachment\""), "{said}");
        assert_ne!(engine_of(&place.volume).map(|pid| pid.to_string()), Some(engine));
    }
    let size = std::fs::metadata(&place.volume).expect("the volume").len();
    assert_eq!(size, 64 << 20);
}

/// What an attachment is charged, and for which weight; its weight changes while it is attached.
#[test]
fn an_attachment_shares_its_device() {
    if no_loop("an_attachment_shares_its_device") || lacks("shares", &["dd"]) {
        return;
    }
    let place = Place::new("32M");
    let device = place.attach(&["--via", "loop", "--weight", "300"]);
    let until = |what: &str, shows: &dyn Fn(&serde_json::Value) -> bool| {
        let start = Instant::now();
        loop {
            let share = place.listed()["stats"]["engine"]["share"].clone();
            if shows(&share) {
                return;
            }
            assert!(start.elapsed() < STEP_TIME_MAX, "waited for {what}: {share:#}");
            thread::sleep(Duration::from_millis(20));
        }
    };
    until("its weight", &|share| share["weight"] == 300 && share["coordinated"] == true);
    let device = device.to_str().expect("a name");
    sh(&format!("dd if=/dev/zero of={device} bs=64k count=64 oflag=direct conv=fsync 2>&1"));
    until("what it wrote", &|share| share["written_bytes"].as_u64() >= Some(4 << 20));
    good(&place.polylane(&["pool", "set", device, "--weight", "700"]));
    until("another weight", &|share| share["weight"] == 700);
    // Its engine goes on with the same lane.
    let engine = engine_of(&place.volume).expect("an engine");
    polylane_tests::pool::signal_to(engine, "KILL");
    sh(&format!("dd if=/dev/zero of={device} bs=64k count=1 oflag=direct 2>&1"));
    until("the weight as set", &|share| share["weight"] == 700 && share["writes"].is_u64());
    place.detach();
}

/// What fio gets through to a device at random places in half a second to three: requests and bytes
/// per second.
fn achieved(device: &str, bytes: &str) -> [f64; 2] {
    let said = sh(&format!(
        "fio --name=limit --filename={device} --rw=randwrite --bs={bytes} --direct=1 --size=48m \
         --ioengine=libaio --iodepth=8 --time_based --runtime=3 --ramp_time=500ms \
         --output-format=json"
    ));
    let found: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let write = &found["jobs"][0]["write"];
    [&write["iops"], &write["bw_bytes"]].map(|rate| rate.as_f64().expect("a number"))
}

/// Asks fio again until what it gets is within these: beside other tests it may get less.
fn until_achieved(device: &str, bytes: &str, index: usize, range: std::ops::Range<f64>) {
    let (start, mut seen) = (Instant::now(), Vec::new());
    while start.elapsed() < LOAD_TIME_MAX {
        let rate = achieved(device, bytes)[index];
        if range.contains(&rate) {
            return;
        }
        seen.push(rate);
    }
    panic!("waited for a rate in {range:?}; seen: {seen:?}");
}

/// Limits of an attachment hold from the start and as they are changed, by the count of whoever
/// writes to the device.
#[test]
fn limits_of_an_attachment_hold_and_change() {
    let test = "limits_of_an_attachment_hold_and_change";
    if no_loop(test) || lacks(test, &["fio"]) {
        return;
    }
    let place = Place::new("64M");
    let limits = ["--via", "loop", "--max-iops", "100", "--latency", "500ms"];
    let device = place.attach(&limits).display().to_string();
    until_achieved(&device, "4k", 0, 60.0..130.0);
    let set = |words: &[&str]| good(&place.polylane(&[&["pool", "set", &device], words].concat()));
    set(&["--max-iops", "300"]);
    until_achieved(&device, "4k", 0, 180.0..390.0);
    // Where more would get through, which shows that it was the limit that held.
    set(&["--max-iops", "0", "--max-bandwidth", "0"]);
    until_achieved(&device, "4k", 0, 400.0..f64::INFINITY);
    set(&["--max-bandwidth", "2M"]);
    until_achieved(&device, "64k", 1, 1.2e6..2.7e6);
    set(&["--max-bandwidth", "0", "--min-iops", "50", "--latency", "0"]);
    until_achieved(&device, "64k", 1, 3e6..f64::INFINITY);
    place.detach();
}

/// The name of a file is that of its attachment when no pool is called so.
#[test]
fn an_attachment_is_set_by_the_name_of_its_file() {
    let place = Place::new("16M");
    let socket = place.path("nbd");
    place.attach(&["--via", "nbd", "--socket", &socket, "--weight", "50"]);
    let set = |name: &str, options: &[&str]| {
        let mut command = Command::new(binary());
        command.args(["pool", "set", name]).args(options).current_dir(place.dir.path());
        command.env("XDG_STATE_HOME", place.dir.path());
        let set = output(command, STEP_TIME_MAX, &format!("pool set {name} {options:?}"));
        (set.status.code(), String::from_utf8_lossy(&set.stderr).into_owned())
    };
    let wanted = || place.listed()["stats"]["share"]["wanted"].clone();
    let start = Instant::now();
    while place.listed()["stats"]["share"]["joined"] != true {
        assert!(start.elapsed() < STEP_TIME_MAX, "waited for a coordinator");
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(set("v.img", &["--weight", "7", "--max-iops", "100"]), (Some(0), String::new()));
    while wanted()["weight"] != 7 {
        assert!(start.elapsed() < STEP_TIME_MAX, "waited for its weight: {}", wanted());
        thread::sleep(Duration::from_millis(20));
    }
    // Against what was set before.
    let (status, said) = set("v.img", &["--min-iops", "101", "--weight", "8"]);
    assert!(status == Some(2) && said.contains("--min-iops 101: is more than"), "{said}");
    assert_eq!(wanted()["weight"], 7);
    // What is no pool and no attachment.
    fs::write(place.path("other"), "").expect("write");
    for (name, why) in [("other", "is not attached"), ("no-such", "not running")] {
        let (status, said) = set(name, &["--weight", "7"]);
        assert!(status == Some(1) && said.contains(why) && said.contains(name), "{said}");
    }
    place.detach();
}

/// Each is refused in a line that names the option, and nothing is attached.
#[test]
fn what_contradicts_itself_is_not_attached() {
    let place = Place::new("16M");
    let (volume, socket) = (place.path("v.img"), place.path("nbd"));
    let refused = |at: &str, options: &[&str]| {
        let words = [&["attach", &volume, "--via", "nbd", "--socket", at], options].concat();
        let output = place.polylane(&words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.lines().count(), 1, "{said}");
        (output.status.code(), said)
    };
    for (options, line) in [
        ("--qos none --weight 7", "--weight: has no effect with --qos none"),
        ("--qos none --max-iops 7", "--max-iops: has no effect with --qos none"),
        ("--min-iops 9 --max-iops 8", "--min-iops 9: is more than --max-iops 8"),
        ("--min-bandwidth 2M --max-bandwidth 1M", "--min-bandwidth 2097152: is more than"),
        ("--latency 2ms --qos wdt", "--latency: has no effect with --qos wdt"),
        ("--cache none --cache-store own", "--cache-store: --cache none keeps nothing"),
        ("--cache none --cache-size 1M", "--cache-size: --cache none keeps nothing"),
    ] {
        let options: Vec<&str> = options.split(' ').collect();
        let (status, said) = refused(&socket, &options);
        assert!(status == Some(2) && said.contains(line), "{options:?}: {said}");
    }
    // Nor what cannot listen where it is to.
    let (file, folder) = (place.path("file"), place.path("folder"));
    fs::write(&file, "kept").expect("write");
    fs::create_dir(&folder).expect("mkdir");
    for (at, what) in [(&file, "is a file: "), (&folder, "is a directory: ")] {
        let (status, said) = refused(at, &[]);
        assert!(status == Some(1) && said.contains(&format!("--socket {at}: {what}")), "{said}");
    }
    assert_eq!(fs::read_to_string(&file).expect("still there"), "kept");
    assert_eq!(engine_of(&place.volume), None);
}

#[test]
fn attachments_are_listed_held_and_told_apart() {
    let place = Place::new("16M");
    let (socket, volume) = (place.path("nbd"), place.path("v.img"));
    place.attach(&["--via", "nbd", "--socket", &socket]);
    let again = place.polylane(&["attach", &volume, "--via", "nbd", "--socket", &socket]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("in use"));
    // The refusal says what to do about it.
    let refused = place.polylane(&["volume", "rm", &volume]);
    let line = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(line.contains(&format!("in use by its attachment {socket}")), "{line}");
    let list = good(&place.polylane(&["attach", "--list", "--json"]));
    assert!(list.contains("\"alive\": true") && list.contains("\"via\": \"nbd\""), "{list}");
    good(&place.polylane(&["detach", &socket]));
    assert!(!good(&place.polylane(&["attach", "--list"])).contains("nbd"));
    assert_eq!(place.polylane(&["detach", &volume]).status.code(), Some(1));
    let no_socket = ["attach", &volume, "--via", "loop", "--socket", &socket];
    let needs_one = ["attach", &volume, "--via", "vhost-user"];
    for wrong in [&needs_one[..], &no_socket, &["attach"], &["detach"]] {
        assert_eq!(place.polylane(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let state = fs::read_dir(place.path("polylane/attachments")).into_iter().flatten().flatten();
    assert_eq!(state.map(|entry| entry.file_name()).collect::<Vec<_>>(), [""; 0]);
    // One whose file was removed is detached by its name all the same.
    place.attach(&["--via", "nbd", "--socket", &socket]);
    fs::remove_file(&volume).expect("remove");
    good(&place.polylane(&["detach", &volume]));
    assert!(!good(&place.polylane(&["attach", "--list"])).contains("nbd"));
}

/// How a file system is made and checked.
const KINDS: [(&str, &str, &str); 4] = [
    ("ext3", "mkfs.ext3 -q -F", "e2fsck -fn"),
    ("ext4", "mkfs.ext4 -q -F", "e2fsck -fn"),
    ("xfs", "mkfs.xfs -q -f", "xfs_repair -n"),
    ("btrfs", "mkfs.btrfs -q -f", "btrfs check --readonly"),
];

/// fio writes at random places in random sizes and reads everything back.
fn fio(mount: &str, size: &str) -> String {
    format!(
        "fio --name=verify --directory={mount} --size={size} --rw=randwrite --bsrange=4k-1m \
         --direct=1 --ioengine=libaio --iodepth=32 --verify=crc32c \
         --do_verify=1 --verify_fatal=1 --verify_state_save=0 --output={mount}/../fio.log"
    )
}

/// Takes a mount off and waits until its device is free: other mount namespaces may have copies of
/// the mount for as long as they live.
fn unmount(mount: &str, device: &str) {
    use std::os::unix::fs::OpenOptionsExt;
    const O_EXCL: i32 = 0o200;
    sh(&format!("umount {mount}"));
    let start = Instant::now();
    while let Err(error) = fs::OpenOptions::new().read(true).custom_flags(O_EXCL).open(device) {
        assert!(start.elapsed() < STEP_TIME_MAX, "{device} after its unmount: {error}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// What happens to an attached volume while a load runs on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Nothing; the kernel reads and writes the volume's file where it can.
    PassedThrough,
    /// Nothing; all goes through the engine.
    Engine,
    /// Its engine, through which all goes, is killed.
    Killed,
}

fn verify(kind: (&str, &str, &str), volume: &str, size: &str, way: Way) {
    let (name, make, check) = kind;
    let mut place = Place::new(volume);
    place.passthrough = way == Way::PassedThrough;
    let device = place.attach(&["--via", "loop"]);
    let (device, mount) = (device.display().to_string(), place.mount_point());
    sh(&format!("{make} {device}; mount -t {name} {device} {mount}"));
    let load = fio(&mount, size);
    let limit = if size.ends_with('g') { LONG_LOAD_TIME_MAX } else { LOAD_TIME_MAX };
    if way == Way::Killed {
        let engine = engine_of(&place.volume).expect("an engine");
        sh_within(limit, &format!("{load} & sleep 0.7; kill -9 {engine}; wait $!"));
        // The kernel lets a killed one finish what it writes to the disk.
        let begin = Instant::now();
        while engine_of(&place.volume).is_none_or(|now| now == engine) {
            assert!(begin.elapsed() < STEP_TIME_MAX, "another engine goes on");
            thread::sleep(Duration::from_millis(10));
        }
    } else {
        sh_within(limit, &load);
    }
    unmount(&mount, &device);
    sh(&format!("{check} {device}; mount -t {name} {device} {mount}"));
    let before = place.allocated();
    sh(&format!("rm {mount}/verify*; sync -f {mount}; fstrim {mount}; sync -f {mount}"));
    assert!(place.allocated() < before, "{name}: {} of {before}", place.allocated());
    unmount(&mount, &device);
    let engine = &place.listed()["stats"]["engine"];
    assert!(way == Way::PassedThrough || engine["writes"].as_u64() > Some(0), "{engine}");
    // Others may have the number at once: each attachment's file has a name of its own.
    let number = device.trim_start_matches("/dev/");
    let backing = || fs::read_to_string(format!("/sys/block/{number}/loop/backing_file")).ok();
    let own = backing().expect("a loop device");
    place.detach();
    assert_ne!(backing(), Some(own));
}

fn all_kinds(test: &str, volume: &str, size: &str, way: Way) {
    if no_loop(test) || lacks(test, &["fio", "mkfs.xfs", "mkfs.btrfs", "mkfs.ext4"]) {
        return;
    }
    for kind in KINDS {
        verify(kind, volume, size, way);
    }
}

#[test]
fn the_kernels_file_systems_live_on_an_attached_volume() {
    let test = "the_kernels_file_systems_live_on_an_attached_volume";
    all_kinds(test, "512M", "24m", Way::Engine);
}

#[test]
fn the_kernels_file_systems_live_on_a_volume_that_is_passed_through() {
    let test = "the_kernels_file_systems_live_on_a_volume_that_is_passed_through";
    all_kinds(test, "512M", "24m", Way::PassedThrough);
}

#[test]
fn they_go_on_when_the_engine_is_killed() {
    all_kinds("they_go_on_when_the_engine_is_killed", "512M", "48m", Way::Killed);
}

#[test]
#[ignore = "minutes: cargo xtask campaign attach"]
fn the_kernels_file_systems_at_length() {
    for way in [Way::PassedThrough, Way::Engine, Way::Killed] {
        all_kinds("the_kernels_file_systems_at_length", "6G", "1g", way);
    }
}

/// Does it on a device that the kernel passes through, where it can, and on one that it does not.
fn by_either_way(act: impl Fn(&Place, &str, bool)) {
    for passthrough in [true, false] {
        let mut place = Place::new("64M");
        place.passthrough = passthrough;
        let device = place.attach(&["--via", "loop"]);
        act(&place, &device.display().to_string(), passthrough);
    }
}

/// What is written to the device, by either way, is in the volume's file, and the reverse; and what
/// the engine is asked to drop is no longer there.
#[test]
fn a_volume_is_the_same_through_the_kernel_and_through_the_engine() {
    let test = "a_volume_is_the_same_through_the_kernel_and_through_the_engine";
    if no_loop(test) {
        return;
    }
    by_either_way(|place, device, passthrough| {
        let engine = &place.listed()["stats"]["engine"];
        assert!(passthrough || engine["passthrough"] == false, "{engine}");
        let (data, back) = (place.path("data"), place.path("back"));
        let volume = place.path("v.img");
        sh(&format!(
            "head -c 8M /dev/urandom > {data}; blkdiscard {device}; \
             dd if={data} of={device} bs=1M seek=3 oflag=direct conv=fsync status=none; \
             cmp -n 8388608 -i 0:3145728 {data} {volume}; \
             dd if={device} of={back} bs=256k skip=12 count=32 iflag=direct status=none; \
             cmp {data} {back}"
        ));
        let taken = place.allocated();
        sh(&format!(
            "blkdiscard -o 4194304 -l 4194304 {device}; blkdiscard -z -o 0 -l 1M {device}"
        ));
        assert!(place.allocated() + (2 << 20) < taken, "{} of {taken}", place.allocated());
        sh(&format!(
            "dd if={device} of={back} bs=1M skip=4 count=4 iflag=direct status=none; \
             cmp -n 4194304 {back} /dev/zero; cmp -n 1048576 -i 0:3145728 {data} {device}"
        ));
        let failed = &place.listed()["stats"]["engine"]["failed"];
        assert_eq!(failed, 0);
        place.detach();
    });
}

#[test]
fn an_attached_volume_grows() {
    let test = "an_attached_volume_grows";
    if no_loop(test) || lacks(test, &["mkfs.ext4", "resize2fs"]) {
        return;
    }
    let place = Place::new("64M");
    let device = place.attach(&["--via", "loop"]).display().to_string();
    let mount = place.path("mnt");
    sh(&format!("mkfs.ext4 -q {device}; mkdir {mount}; mount {device} {mount}"));
    good(&place.polylane(&["volume", "resize", &place.path("v.img"), "256M"]));
    assert_eq!(sh(&format!("blockdev --getsize64 {device}")).trim(), (256 << 20).to_string());
    // Not while it is mounted: that needs CAP_SYS_RESOURCE, which containers may lack.
    unmount(&mount, &device);
    sh(&format!(
        "e2fsck -fp {device}; resize2fs {device} 2>/dev/null; mount {device} {mount}; \
         head -c 150M /dev/urandom > {mount}/f; sync -f {mount}; md5sum < {mount}/f > {mount}/sum"
    ));
    unmount(&mount, &device);
    sh(&format!(
        "e2fsck -fn {device}; mount {device} {mount}; \
         test \"$(cat {mount}/sum)\" = \"$(md5sum < {mount}/f)\""
    ));
    let busy = place.polylane(&["detach", &device]);
    assert!(String::from_utf8_lossy(&busy.stderr).contains("in use"), "{busy:?}");
}

#[test]
fn nothing_hangs_when_keeper_and_engine_are_dead() {
    let test = "nothing_hangs_when_keeper_and_engine_are_dead";
    if no_loop(test) {
        return;
    }
    by_either_way(|place, device, _| {
        let listed = place.listed();
        let passthrough = listed["stats"]["engine"]["passthrough"] == true;
        let (keeper, engine) = (&listed["pid"], engine_of(&place.volume).expect("an engine"));
        // Stopped, neither does anything about the other's death.
        sh(&format!("kill -STOP {keeper} {engine}; kill -KILL {keeper} {engine}"));
        let dd = |words: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("dd bs=4k count=1 {words} 2>/dev/null")]);
            output(command, STEP_TIME_MAX, words).status.success()
        };
        assert!(passthrough || !dd(&format!("if={device} of=/dev/null iflag=direct")), "an error");
        assert!(!dd(&format!("if=/dev/zero of={device} oflag=direct conv=fsync")), "an error");
        assert!(good(&place.polylane(&["attach", "--list"])).contains("dead"));
        if passthrough {
            let other = place.polylane(&["volume", "resize", &place.path("v.img"), "128M"]);
            let said = String::from_utf8_lossy(&other.stderr);
            assert!(said.contains("in use"), "the device can still write: {said}");
        }
        // Attached again, what the dead one left is cleared first.
        let again = place.attach(&["--via", "loop"]).display().to_string();
        sh(&format!("dd if={again} of=/dev/null bs=4k count=1 iflag=direct status=none"));
        let list = good(&place.polylane(&["attach", "--list"]));
        assert!(!list.contains("dead") && list.contains("up"), "{list}");
        place.detach();
    });
}

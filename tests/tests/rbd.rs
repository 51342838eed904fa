//! Volumes that are images of a Ceph cluster: lanes on them, attachments, copies, bad input.
//!
//! `CEPH_CLUSTER` is the folder of a cluster that `tests/ceph/cluster.sh` started; `make test-ceph`
//! starts one.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use polylane_tests::attached::commits;
use polylane_tests::ceph::{Cluster, OtherHost};
use polylane_tests::host::{self, Host, until};
use polylane_tests::pool::{Run, signal_to};
use polylane_tests::{binary, lacks, skip};
use serde_json::Value;

static IMAGES: AtomicU32 = AtomicU32::new(0);

/// A cluster, and an image of it that is not there yet and goes with this.
struct Image {
    conf: PathBuf,
    name: String,
}

impl Image {
    /// `None`: the test cannot run here.
    fn new(test: &str) -> Option<Image> {
        let cluster = Cluster::for_test(test)?;
        let number = IMAGES.fetch_add(1, Ordering::Relaxed);
        let name = format!("rbd:lane@rbd/lane-{}-{number}", std::process::id());
        Some(Image { conf: cluster.conf(), name })
    }

    fn conf(&self) -> String {
        format!("--ceph-conf {}", self.conf.display())
    }

    /// A command of polylane with the cluster's configuration; `{}` stands for the image.
    fn polylane(&self, words: &str) -> Output {
        let words = words.replace("{}", &self.name);
        let mut command = Command::new(binary());
        command.args(words.split(' ')).arg("--ceph-conf").arg(&self.conf);
        command.output().expect("polylane")
    }

    /// What it said, of one that succeeds.
    fn succeeds(&self, words: &str) -> String {
        let output = self.polylane(words);
        assert!(output.status.success(), "{words}: {}", text(&output));
        text(&output)
    }

    /// One that is refused in one line with this in it.
    fn refused(&self, words: &str, status: i32, part: &str) {
        let output = self.polylane(words);
        let said = text(&output);
        assert_eq!(output.status.code(), Some(status), "{words}: {said}");
        assert!(said.lines().count() == 1 && said.contains(part), "{words}: {said}");
    }

    /// A command of Ceph's own on it; `{}` stands for the image.
    fn rbd(&self, words: &str) {
        let words = words.replace("{}", &self.name.replace("rbd:lane@", ""));
        let mut command = Command::new("rbd");
        command.arg("-c").arg(&self.conf).args(words.split(' '));
        let output = command.output().expect("rbd");
        assert!(output.status.success(), "{words}: {}", text(&output));
    }

    /// A script in a lane on it.
    fn run(&self, options: &str, script: &str) -> Output {
        let mut command = Command::new(binary());
        command.args(["run", "--volume", &self.name]).args(self.conf().split(' '));
        command.args(options.split_whitespace()).args(["--", "sh", "-ec", script]);
        command.output().expect("polylane run")
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let plain = self.name.replace("rbd:lane@", "");
        for words in [format!("snap purge {plain}"), format!("rm {plain}")] {
            let mut command = Command::new("timeout");
            command.args(["60", "rbd", "-c"]).arg(&self.conf);
            let _ = command.args(words.split(' ')).output();
        }
    }
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

#[test]
fn a_lane_on_an_image_is_made_used_and_removed() {
    let test = "a_lane_on_an_image_is_made_used_and_removed";
    let Some(image) = Image::new(test) else { return };
    let script = "cd /lane; ls -A; echo one > f; dd if=/dev/urandom of=big bs=1M count=8 \
                  status=none; cp big copy; cmp big copy; sync; rm copy; cat f";
    let first = image.run("--size 64M", script);
    assert_eq!(text(&first), "one\n", "made, empty, by the library");
    let again =
        image.run("--no-preload --cache writeback --cache-size 8M", "cat /lane/f; ls /lane");
    assert_eq!(text(&again), "one\nbig\nf\n", "by FUSE");
    image.refused("volume create {} --size 64M", 1, "it exists");
    let info = image.succeeds("volume info {} --json");
    let info: serde_json::Value = serde_json::from_str(&info).expect("JSON");
    assert_eq!(info["size_bytes"], 64 << 20);
    assert_eq!(info["content"], "ext4-clean");
    assert!(info["used_by"].is_null() && info["allocated_bytes"].as_u64() > Some(8 << 20));
    assert!(image.succeeds("volume ls rbd:lane@rbd").contains(&image.name));
    image.succeeds("volume rm {}");
    image.refused("volume info {}", 1, "no such image");
}

#[test]
fn an_image_is_in_use_by_one_lane_at_a_time() {
    let Some(image) = Image::new("an_image_is_in_use_by_one_lane_at_a_time") else { return };
    image.succeeds("volume create {} --size 64M");
    let options = format!("--volume {} {}", image.name, image.conf());
    let (mut run, mut input) =
        Run::new(&options).script("echo up; read x; cat /lane/f 2>/dev/null").start_with_input();
    assert_eq!(run.line(), "up");
    let by = format!("in use by pool '{}' of host ", run.pool);
    assert!(image.succeeds("volume info {}").contains(&format!("pool '{}' of host", run.pool)));
    let began = Instant::now();
    let second = image.run("--timeout 2s", "true");
    let said = text(&second);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.lines().count() == 1 && said.contains(&by), "{said}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    image.refused("volume rm {}", 1, "in use by pool");
    image.refused("volume resize {} 128M", 1, "in use by pool");
    // By RBD's own, also while a lane writes.
    image.succeeds("volume snapshot {} {}@s");
    writeln!(input, "go").expect("a line");
    run.end();
    image.refused("volume rm {}", 1, "snapshots");
    image.succeeds("volume rm {}@s");
}

#[test]
fn a_lane_goes_on_when_its_service_is_killed() {
    let Some(image) = Image::new("a_lane_goes_on_when_its_service_is_killed") else { return };
    let options = format!("--volume {} --size 64M --no-preload {}", image.name, image.conf());
    let (mut run, mut input) = Run::new(&options)
        .script(
            "cd /lane; for i in 1 2 3; do echo $i > f.$i; sync f.$i; done; echo up; read x; \
             cat f.*; echo new > g; sync g; cat g",
        )
        .start_with_input();
    assert_eq!(run.line(), "up");
    signal_to(run.service(), "KILL");
    let began = Instant::now();
    writeln!(input, "go").expect("a line");
    let lines: Vec<_> = (0..4).map(|_| run.line()).collect();
    assert_eq!(lines, ["1", "2", "3", "new"]);
    assert!(began.elapsed() < Duration::from_secs(20), "at once: {:?}", began.elapsed());
    assert_eq!(run.end().code(), Some(0));
}

/// All of a lane is killed, as by the loss of its host: another one waits until the lock breaks,
/// and replays the journal.
#[test]
fn a_lane_that_died_goes_on_elsewhere_when_its_lock_breaks() {
    let test = "a_lane_that_died_goes_on_elsewhere_when_its_lock_breaks";
    let Some(image) = Image::new(test) else { return };
    image.succeeds("volume create {} --size 64M");
    let mut command = Command::new(binary());
    command.args(["run", "--volume", &image.name]).args(image.conf().split(' '));
    let script = "cd /lane; for i in $(seq 50); do echo $i > f.$i; done; sync; : > up; sleep 100";
    let mut lane = command.args(["--", "sh", "-c", script]).spawn().expect("polylane run");
    let used = || image.succeeds("volume info {}").contains("in use by");
    until("the lane has the image", used);
    std::thread::sleep(Duration::from_secs(3));
    let children = [lane.id(), host::child(lane.id(), "polylane-svc")];
    children.iter().for_each(|pid| signal_to(*pid, "KILL"));
    lane.wait().expect("killed");
    let next = image.run("--timeout 60s", "ls /lane | grep -c f.; cat /lane/f.50");
    assert_eq!(text(&next), "50\n50\n");
}

/// A host loses its network and lives on: another takes its image over with what was synced, and
/// what the first one writes when it is back reaches nothing.
#[test]
fn a_host_that_is_cut_off_is_barred_when_another_takes_its_image_over() {
    let test = "a_host_that_is_cut_off_is_barred_when_another_takes_its_image_over";
    let Some(image) = Image::new(test) else { return };
    let Some(cluster) = Cluster::for_test(test) else { return };
    let Some(one) = OtherHost::new(test, &cluster) else { return };
    let other = OtherHost::new(test, &cluster).expect("as above");
    image.succeeds("volume create {} --size 64M");
    let options = format!("--volume {} {}", image.name, image.conf());
    let mut lane = Run::new(&options)
        .by(&one.starter())
        .script(
            "cd /lane; for i in $(seq 50); do echo $i > f.$i; done; sync; echo up; \
             while echo late > late && sync late; do sleep 0.1; done 2>/dev/null; echo barred; \
             cat f.50 2>/dev/null || true",
        )
        .start();
    assert_eq!(lane.line(), "up");
    assert!(image.succeeds("volume info {}").contains(&format!("of host {}", one.name)));
    one.cut();
    let take_over = |script: &str| {
        let mut command = other.command(binary());
        command.args(["run", "--volume", &image.name, "--timeout", "90s"]);
        command.args(image.conf().split(' ')).args(["--", "sh", "-ec", script]);
        text(&command.output().expect("polylane run"))
    };
    let script = "cd /lane; ls | grep -c '^f[.]'; cat f.50; echo new > f.50; rm -f late; sync";
    assert_eq!(take_over(script), "50\n50\n");
    one.mend();
    assert_eq!(lane.line(), "barred");
    lane.end();
    assert_eq!(take_over("cd /lane; cat f.50; ls late 2>/dev/null | wc -l"), "new\n0\n");
}

#[test]
fn snapshots_and_clones_are_by_rbd_s_own() {
    let Some(image) = Image::new("snapshots_and_clones_are_by_rbd_s_own") else { return };
    let clone = Image::new("snapshots_and_clones_are_by_rbd_s_own").expect("as above");
    assert_eq!(text(&image.run("--size 64M", "echo old > /lane/f")), "");
    image.refused(&format!("volume clone {{}} {}", clone.name), 2, "volume snapshot");
    image.refused("volume snapshot {} /tmp/file", 2, "name another image or snapshot");
    image.refused(&format!("volume snapshot {{}} {}@s", clone.name), 2, "is named");
    image.succeeds("volume snapshot {} {}@s");
    image.refused("volume snapshot {} {}@s", 1, "exists");
    assert_eq!(text(&image.run("", "echo new > /lane/f")), "");
    image.succeeds(&format!("volume clone {{}}@s {}", clone.name));
    assert_eq!(text(&clone.run("", "cat /lane/f; echo changed > /lane/f")), "old\n");
    assert_eq!(text(&image.run("", "cat /lane/f")), "new\n");
    let snapshot = Image { name: format!("{}@s", image.name), conf: image.conf.clone() };
    let read = snapshot.run("", "cat /lane/f; : > /lane/g");
    assert!(text(&read).starts_with("old\n") && !read.status.success(), "{}", text(&read));
    clone.succeeds("volume rm {}");
    image.succeeds("volume rm {}@s");
}

#[test]
fn an_image_is_attached_and_grows() {
    let Some(image) = Image::new("an_image_is_attached_and_grows") else { return };
    if !Path::new("/dev/loop-control").exists() {
        return skip("an_image_is_attached_and_grows", "this host has no loop devices");
    }
    assert_eq!(text(&image.run("--size 64M", "echo kept > /lane/f")), "");
    image.succeeds("volume resize {} 96M");
    image.refused("volume resize {} 64M", 1, "only grows");
    let size = "df -B1M --output=size /lane | tail -n 1; cat /lane/f";
    let grown = text(&image.run("", size));
    let (mib, kept) = grown.split_once('\n').expect("two lines");
    assert!(mib.trim().parse::<u32>().is_ok_and(|mib| mib > 70) && kept == "kept\n", "{grown}");
    let host = Host::new();
    let said = image.succeeds("attach {} --via loop");
    let device = said.lines().next().expect("a device").to_string();
    let at = host.dir("m");
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-ec", script, "sh", &device, host::text(&at)]);
        let output = command.output().expect("sh");
        assert!(output.status.success(), "{script}: {}", text(&output));
        text(&output)
    };
    assert_eq!(shell("mount $1 $2; cat $2/f; echo by the kernel > $2/k; umount $2"), "kept\n");
    image.succeeds("volume resize {} 128M");
    assert_eq!(shell("blockdev --getsize64 $1").trim(), (128 << 20).to_string());
    let listed = host::succeeds(&["attach", "--list"]);
    assert!(listed.contains(&image.name), "{listed}");
    host::succeeds(&["detach", &image.name.replace("lane@", "client.lane@")]);
    assert_eq!(text(&image.run("", "cat /lane/k")), "by the kernel\n", "free at once");
}

/// What keeper and engine say of an attached image.
fn said_of(image: &Image) -> Value {
    let listed: Value =
        serde_json::from_str(&host::succeeds(&["attach", "--list", "--json"])).expect("JSON");
    let all = listed.as_array().expect("a list");
    all.iter().find(|one| one["volume"] == image.name).expect("it is attached").clone()
}

/// The guest writes as jbd2 does. Killed, its engine goes on with what it knew of the journal.
#[test]
fn a_journal_is_kept_out_of_the_cache_of_an_image() {
    let test = "a_journal_is_kept_out_of_the_cache_of_an_image";
    let Some(image) = Image::new(test) else { return };
    if lacks(test, &["qemu-io", "timeout"]) {
        return;
    }
    let host = Host::new();
    let dir = host.dir("sockets");
    let socket = host::text(&dir).to_string() + "/nbd";
    let guest = |commands: &[String]| {
        let mut command = Command::new("timeout");
        command.args(["60", "qemu-io", "-f", "raw"]);
        command.args(commands.iter().flat_map(|one| ["-c", one]));
        let output = command.arg(format!("nbd+unix:///?socket={socket}")).output();
        let output = output.expect("timeout runs");
        let said = text(&output);
        assert!(output.status.success() && !said.contains("failed"), "{said}");
    };
    let cache = |key: &str| said_of(&image)["stats"]["engine"]["cache"][key].clone();
    image.succeeds("volume create {} --size 64M --fs none");
    image.succeeds(&format!("attach {{}} --via nbd --socket {socket} --cache pdc"));
    let (journal, mut at) = (16 << 20, 16 << 20);
    guest(&commits(&mut at, 30));
    let bypassed = cache("bypassed_bytes").as_u64().expect("a number");
    assert!(bypassed > 20 * 8192, "{bypassed} bytes went past the cache");
    let bound = |index: usize| cache("journal_regions")[0][index].as_u64().expect("a region");
    assert!((journal..journal + (1 << 18)).contains(&bound(0)) && bound(1) == at, "{at}");
    // Another engine goes on in the middle of it.
    until("the keeper knows", || said_of(&image)["stats"]["known_journals"][0][1] == at);
    let keeper = said_of(&image)["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let engine = host::children(keeper.expect("a keeper")).expect("children")[0];
    signal_to(engine, "KILL");
    until("another engine", || {
        let said = &said_of(&image)["stats"];
        said["engine_restarts"] == 1 && said["engine"]["cache"].is_object()
    });
    let middle = (journal + at) / 2 / 4096 * 4096;
    guest(&[format!("write -P 3 {middle} 8192"), "flush".into()]);
    assert_eq!(cache("bypassed_bytes"), 8192, "at once");
    guest(&[format!("read -P 3 {middle} 8192"), format!("read -P 1 {journal} 8192")]);
    host::succeeds(&["detach", &image.name]);
}

/// An image is on no device of this host, so shares of devices are refused; limits are librbd's.
#[test]
fn limits_of_an_image_hold_for_a_lane() {
    let Some(image) = Image::new("limits_of_an_image_hold_for_a_lane") else { return };
    image.succeeds("volume create {} --size 64M");
    image.refused("attach {} --weight 50", 2, "lanes share devices of the host");
    image.rbd("config image set {} rbd_qos_write_bps_limit 2097152");
    // The write alone is timed: a lane takes long to start on a loaded host.
    let write = "began=$(date +%s%N)
        dd if=/dev/zero of=/lane/f bs=1M count=8 conv=fsync status=none
        ended=$(date +%s%N)
        echo $(((ended - began) / 1000000))";
    let said = text(&image.run("", write));
    let took_ms: u64 = said.trim().parse().unwrap_or_else(|_| panic!("{said}"));
    // The first 2 MiB may go at once.
    assert!(took_ms > 2500, "{took_ms} ms");
}

#[test]
fn what_cannot_be_used_is_one_line() {
    let Some(image) = Image::new("what_cannot_be_used_is_one_line") else { return };
    let run = |volume: &str, more: &str, part: &str| {
        let mut command = Command::new(binary());
        command.args(["run", "--volume", volume]).args(image.conf().split(' '));
        let output = command.args(more.split_whitespace()).args(["--", "true"]).output();
        let output = output.expect("polylane run");
        let said = text(&output);
        assert!(!output.status.success(), "{volume}: {said}");
        assert!(said.lines().count() == 1 && said.contains(part), "{volume}: {said}");
    };
    run("rbd:lane@rbd", "", "POOL/IMAGE");
    run("rbd:lane@nope/i", "--size 64M", "no such pool");
    run("rbd:nobody@rbd/i", "", "no key of client.nobody");
    run(&format!("{}@s", image.name), "", "no such image");
    run(&image.name, "--size 64M --cache writeback --cache-store host", "--cache-store host");
    image.succeeds("volume create {} --size 64M --fs none");
    run(&image.name, "", "holds no ext4");
    image.succeeds("volume rm {}");
    image.succeeds("volume create {} --size 64M");
    run(&image.name, "--size 128M", "exists with 64 MiB");
    image.rbd("resize --allow-shrink --size 32 {}");
    run(&image.name, "", "and the file system on it 64 MiB");
    image.rbd("resize --size 64 {}");
    image.rbd("feature disable {} fast-diff object-map exclusive-lock");
    run(&image.name, "", "exclusive lock");
    let mut command = Command::new(binary());
    command.args(["volume", "info", "/tmp", "--ceph-conf", "/x"]);
    let output = command.output().expect("polylane");
    assert!(output.status.code() == Some(2) && text(&output).contains("--ceph-conf"));
}

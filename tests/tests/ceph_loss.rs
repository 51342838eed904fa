//! A cluster loses parts of itself, or its network: what programs in a lane see.
//!
//! The table of docs/semantics.md, "Where a cluster loses parts of itself", by ways in and mount
//! options. One test at a time: each changes the cluster.

use std::io::Write as _;
use std::process::ChildStdin;
use std::thread;
use std::time::{Duration, Instant};

use polylane_testkit::effort::number;
use polylane_tests::binary;
use polylane_tests::ceph::{Cluster, OtherHost};
use polylane_tests::host::{self, Host, until};
use polylane_tests::lacks;
use polylane_tests::pool::{Run, Running};

/// Reads a word and a number from its input, over and over: writes, syncs and reads a file of that
/// number, and says how that went.
const PROGRAM: &str = r#"
cd /lane
while read word n; do
    case $word in
    write) if said=$( (dd if=/dev/zero of=f.$n bs=64k count=16 conv=fsync status=none &&
        echo $n | dd of=f.$n oflag=append conv=notrunc,fsync status=none) 2>&1); then echo ok; else
        echo "$said" | head -n 1 | sed 's/.*: //'; fi ;;
    remove) rm f.$n && echo gone ;;
    open) exec 3>>f.$n && echo opened ;;
    append) if said=$( (echo $n | cat >&3) 2>&1); then echo ok; else
        echo "$said" | head -n 1 | sed 's/.*: //'; fi ;;
    sync) sync f.$n && echo ok ;;
    read) tail -c 8 f.$n | tr -d '\0' | tail -n 1 2>&1 ;;
    esac
done
"#;

/// A lane with [`PROGRAM`] in it.
struct Program {
    /// Its directory of the cluster.
    root: String,
    run: Running,
    input: ChildStdin,
}

impl Program {
    fn new(cluster: &Cluster, word: &str, more: &str, on: Option<&OtherHost>) -> Program {
        let root = cluster.directory(word);
        let run = Run::new(&format!("{} {more}", cluster.options(&format!("admin@cephfs:{root}"))));
        let run = run.longer(Duration::from_secs(number("POLYLANE_CEPH_CUT", 0)));
        let run = match on {
            Some(host) => run.by(&host.starter()),
            None => run,
        };
        let (run, input) = run.script(PROGRAM).start_with_input();
        let mut program = Program { root, run, input };
        assert_eq!(program.does("write 0").0, "ok");
        program
    }

    fn begins(&mut self, order: &str) -> Instant {
        writeln!(self.input, "{order}").expect("a line");
        Instant::now()
    }

    /// What an order came to, and how long it took.
    fn does(&mut self, order: &str) -> (String, Duration) {
        let began = self.begins(order);
        (self.run.line(), began.elapsed())
    }

    /// All files up to this one are there.
    fn ends(mut self, count: u32) {
        for number in 0..=count {
            assert_eq!(self.does(&format!("read {number}")).0, number.to_string());
        }
        drop(self.input);
        assert_eq!(self.run.end().code(), Some(0));
    }
}

const WAYS: [&str; 2] = ["", "--no-preload"];

#[test]
fn an_osd_that_is_killed_is_waited_for() {
    let test = "an_osd_that_is_killed_is_waited_for";
    let Some(cluster) = Cluster::for_test(test) else { return };
    for way in WAYS {
        let mut program = Program::new(&cluster, "osd", way, None);
        let killed = cluster.without("osd.0");
        let began = program.begins("write 1");
        thread::sleep(Duration::from_secs(3));
        drop(killed);
        assert_eq!(program.run.line(), "ok");
        eprintln!("{test} {way}: {:?}", began.elapsed());
        program.ends(1);
    }
}

#[test]
fn an_mds_that_fails_is_followed_by_its_standby() {
    let test = "an_mds_that_fails_is_followed_by_its_standby";
    let Some(cluster) = Cluster::for_test(test) else { return };
    for way in WAYS {
        let mut program = Program::new(&cluster, "mds", way, None);
        cluster.ceph("mds fail cephfs:0");
        let (said, time) = program.does("write 1");
        assert_eq!(said, "ok");
        eprintln!("{test} {way}: {time:?}");
        program.ends(1);
        until("a standby is there again", || cluster.ceph("mds stat").contains("up:standby"));
    }
}

#[test]
fn a_monitor_that_is_gone_is_not_missed_by_lanes_that_have_begun() {
    let test = "a_monitor_that_is_gone_is_not_missed_by_lanes_that_have_begun";
    let Some(cluster) = Cluster::for_test(test) else { return };
    for way in WAYS {
        let mut program = Program::new(&cluster, "mon", way, None);
        let killed = cluster.without("mon.a");
        let (said, time) = program.does("write 1");
        assert_eq!(said, "ok");
        eprintln!("{test} {way}: {time:?}");
        let mut late = std::process::Command::new(binary());
        late.arg("run").args(cluster.options("admin@cephfs --timeout 2s").split(' '));
        let late = late.args(["--", "true"]).output().expect("polylane run");
        let said = String::from_utf8_lossy(&late.stderr);
        assert_eq!(late.status.code(), Some(1), "{said}");
        assert!(said.lines().count() == 1 && said.contains("in time"), "{said}");
        drop(killed);
        program.ends(1);
    }
    cluster.ceph("health");
}

/// After so many seconds without a word the cluster bars a client (`session_autoclose`).
const BARRED_AFTER: u64 = 300;

/// Longer than a service may take to move a step elsewhere, too: a cluster that is away is no hang.
/// One that was away for so long that it has barred the client is gone on with by another one.
#[test]
fn a_network_that_is_cut_is_waited_for() {
    let test = "a_network_that_is_cut_is_waited_for";
    let Some(cluster) = Cluster::for_test(test) else { return };
    let mut cuts = vec![(WAYS[0], 5), (WAYS[1], 5)];
    match number("POLYLANE_CEPH_CUT", 0) {
        0 => cuts.push((WAYS[1], 25)),
        asked => cuts.extend(WAYS.iter().flat_map(|way| [(*way, asked.min(60)), (*way, asked)])),
    }
    are_waited_for(test, &cluster, &cuts, BARRED_AFTER);
}

/// The same in a minute: longer than a client is kept that is not heard of, and than a handle stays
/// open that is not used.
#[test]
fn bytes_that_a_cut_lost_are_told_to_who_has_the_file_open() {
    let test = "bytes_that_a_cut_lost_are_told_to_who_has_the_file_open";
    let Some(cluster) = Cluster::for_test(test) else { return };
    let _short = ShortSessions::new(&cluster);
    let cuts: Vec<_> = WAYS.iter().flat_map(|way| [(*way, 45); 2]).collect();
    are_waited_for(test, &cluster, &cuts, ShortSessions::SECONDS);
}

/// Clients are barred soon, until this is dropped.
struct ShortSessions<'a>(&'a Cluster);

impl ShortSessions<'_> {
    /// The least that the MDS takes.
    const SECONDS: u64 = 30;

    fn new(cluster: &Cluster) -> ShortSessions<'_> {
        cluster.ceph(&format!("fs set cephfs session_timeout {}", ShortSessions::SECONDS));
        cluster.ceph(&format!("fs set cephfs session_autoclose {}", ShortSessions::SECONDS));
        ShortSessions(cluster)
    }
}

impl Drop for ShortSessions<'_> {
    fn drop(&mut self) {
        let autoclose = format!("fs set cephfs session_autoclose {BARRED_AFTER}");
        for words in [&autoclose, "fs set cephfs session_timeout 60"] {
            match thread::panicking() {
                // A second panic would hide the first.
                true => drop(self.0.try_ceph(words)),
                false => drop(self.0.ceph(words)),
            }
        }
    }
}

/// Cuts of so many seconds, side by side.
fn are_waited_for(test: &str, cluster: &Cluster, cuts: &[(&str, u64)], barred_after: u64) {
    thread::scope(|scope| {
        for (way, seconds) in cuts {
            scope.spawn(move || is_waited_for(test, cluster, way, *seconds, barred_after));
        }
    });
}

fn is_waited_for(test: &str, cluster: &Cluster, way: &str, seconds: u64, barred_after: u64) {
    let Some(host) = OtherHost::new(test, cluster) else { return };
    let mut program = Program::new(cluster, "cut", way, Some(&host));
    let service = program.run.service();
    for (order, answer) in [("open 2", "opened"), ("append 2", "ok"), ("sync 2", "ok")] {
        assert_eq!(program.does(order).0, answer, "{order}");
    }
    host.cut();
    // Into the client's cache.
    assert_eq!(program.does("append 2").0, "ok");
    let began = program.begins("write 1");
    thread::sleep(Duration::from_secs(seconds));
    host.mend();
    assert_eq!(program.run.line(), "ok");
    let time = began.elapsed();
    assert!(time >= Duration::from_secs(seconds), "{time:?}");
    eprintln!("{test} {way}, {seconds} s: {time:?}");
    let is_barred = seconds > barred_after;
    assert_eq!(program.run.service() != service, is_barred, "the service has waited");
    let told = if is_barred { "Input/output error" } else { "ok" };
    assert_eq!(program.does("append 2").0, told, "an open file with bytes that were not synced");
    assert_eq!(program.does("read 2").0, "2");
    program.ends(1);
}

/// The cluster bars a client, as it does one that it has not heard of for minutes: the lane goes on
/// with another one.
#[test]
fn a_client_that_is_barred_connects_anew() {
    let test = "a_client_that_is_barred_connects_anew";
    let Some(cluster) = Cluster::for_test(test) else { return };
    for way in WAYS {
        let mut program = Program::new(&cluster, "barred", way, None);
        let service = program.run.service();
        cluster.evict(&program.root);
        let (said, time) = program.does("write 1");
        assert_eq!(said, "ok");
        eprintln!("{test} {way}: {time:?}");
        assert_ne!(program.run.service(), service, "another service has another client");
        program.ends(1);
    }
}

/// Two programs have a file open, of which bytes are not synced. A line from its input has both
/// sync; then a new opening writes and syncs.
const UNSYNCED: &str = r#"
import os, sys
def sync(fd):
    try:
        os.fsync(fd)
        return 0
    except OSError as error:
        return error.errno
fd = os.open("/lane/f", os.O_RDWR | os.O_CREAT, 0o600)
ready, go = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    own = os.open("/lane/f", os.O_RDWR)
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    os._exit(sync(own))
os.read(ready[0], 1)
print("opened", flush=True)
sys.stdin.readline()
os.write(fd, b"x" * 65536)
print("written", flush=True)
sys.stdin.readline()
mine = sync(fd)
os.write(go[1], b"x")
print(mine, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
try:
    os.close(fd)
except OSError:
    pass
fd = os.open("/lane/f", os.O_RDWR)
os.write(fd, b"new")
print(sync(fd), flush=True)
"#;

/// Who finds out first that the cluster has barred the client.
#[derive(Clone, Copy, PartialEq, Debug)]
enum First {
    /// The programs, by their syncs.
    Programs,
    /// The service, as it has everything written back, which it does every 5 s.
    Service,
}

/// What a barred client had not written back is never taken for durable, whoever finds out first.
#[test]
fn bytes_that_a_barred_client_lost_are_told_to_all_that_have_the_file_open() {
    let test = "bytes_that_a_barred_client_lost_are_told_to_all_that_have_the_file_open";
    let Some(cluster) = Cluster::for_test(test) else { return };
    if lacks(test, &["/usr/bin/python3"]) {
        return;
    }
    let each = [First::Programs, First::Service];
    for (way, first) in WAYS.into_iter().flat_map(|way| each.map(|first| (way, first))) {
        // The service may have the bytes written back before the client is barred.
        let is_told = (0..4).any(|_| loses_bytes(&cluster, way, first));
        eprintln!("{test} {way} {first:?}: EIO: {is_told}");
    }
}

/// Whether the programs of [`UNSYNCED`] were told that bytes are lost. They are there if not.
fn loses_bytes(cluster: &Cluster, way: &str, first: First) -> bool {
    let root = cluster.directory("unsynced");
    let place = format!("admin@cephfs:{root}");
    let run = Run::new(&format!("{} {way}", cluster.options(&place)));
    let run = run.arg("--").arg("/usr/bin/python3").arg("-c").arg(UNSYNCED);
    let (mut run, mut input) = run.start_with_input();
    assert_eq!(run.line(), "opened");
    let (service, addresses) = (run.service(), cluster.addresses(&root));
    writeln!(input, "write").expect("a line");
    assert_eq!(run.line(), "written");
    cluster.bar(&addresses);
    // It finds out if it has anything to write back.
    let end = Instant::now() + Duration::from_secs(12);
    while first == First::Service && run.service() == service && Instant::now() < end {
        thread::sleep(Duration::from_millis(20));
    }
    writeln!(input, "sync").expect("a line");
    let told = run.line();
    assert_eq!(run.line(), "0", "{way} {first:?}: a new opening");
    assert_eq!(run.end().code(), Some(0));
    let found = cluster.run(&place, &[], "cd /lane; head -c 3 f; stat -c ' %s' f");
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    let is_kept = found == "new 65536\n" && told == "0 0";
    assert!(told == "5 5" || is_kept, "{way} {first:?}: {told}, and then {found}");
    told == "5 5"
}

const NO_SPACE: &str = "No space left on device";

/// Writes are ENOSPC and do not wait, in lanes that were there before and in new ones; what is
/// there is read and removed; all goes on when there is room.
#[test]
fn a_cluster_that_is_full_is_enospc() {
    let test = "a_cluster_that_is_full_is_enospc";
    let Some(cluster) = Cluster::for_test(test) else { return };
    for (way, is_pool) in WAYS.into_iter().flat_map(|way| [(way, true), (way, false)]) {
        let mut program = Program::new(&cluster, "full", way, None);
        assert_eq!(program.does("write 1").0, "ok");
        let full = match is_pool {
            true => cluster.with_full_pool("cephfs_data"),
            false => cluster.full(),
        };
        // OSDs and clients hear of it a moment after the monitor: no write waits for that.
        let began = Instant::now();
        loop {
            let (said, time) = program.does("write 2");
            assert!(time < Duration::from_secs(10), "{way}, {is_pool}: {said}: {time:?}");
            if said == NO_SPACE {
                eprintln!("{test} {way}, by a quota of the pool: {is_pool}: {time:?}");
                break;
            }
            assert!(said == "ok" && began.elapsed() < Duration::from_secs(30), "{said}");
        }
        assert_eq!(program.does("read 0").0, "0");
        assert_eq!(program.does("remove 1").0, "gone");
        let place = format!("admin@cephfs:{}", program.root);
        let script = "cd /lane; tail -c 2 f.0; dd if=/dev/zero of=f.0 bs=4k count=1 \
                      conv=notrunc,fsync status=none 2>&1 | sed 's/.*: //'";
        let late = cluster.run(&place, &way.split_whitespace().collect::<Vec<_>>(), script);
        assert_eq!(String::from_utf8_lossy(&late.stdout), format!("0\n{NO_SPACE}\n"), "{way}");
        drop(full);
        assert_eq!(program.does("write 1").0, "ok");
        assert_eq!(program.does("write 2").0, "ok");
        program.ends(2);
    }
}

/// A lane on an image in a pool that is full: its writes do not wait for room, and what was synced
/// is there.
#[test]
fn an_image_in_a_full_pool_is_not_waited_for() {
    let test = "an_image_in_a_full_pool_is_not_waited_for";
    let Some(cluster) = Cluster::for_test(test) else { return };
    for way in WAYS {
        let image = format!("rbd:admin@rbd/full-{}{way}", std::process::id());
        let conf = format!("--ceph-conf {}", cluster.conf().display());
        let (mut run, mut input) = Run::new(&format!("--volume {image} --size 256M {conf} {way}"))
            .script(PROGRAM)
            .start_with_input();
        let mut does = |order: &str| {
            writeln!(input, "{order}").expect("a line");
            let began = Instant::now();
            let said = run.line();
            let time = began.elapsed();
            assert!(time < Duration::from_secs(20), "{way} {order}: {said}: {time:?}");
            said
        };
        assert_eq!(does("write 0"), "ok", "{way}");
        let full = cluster.with_full_pool("rbd");
        // OSDs hear of it a moment after the monitor; blocks in objects that are there are written.
        let said = (1..150).map(|number| does(&format!("write {number}")));
        let said = said.into_iter().find(|said| said != "ok");
        eprintln!("{test} {way}: {said:?}");
        assert_eq!(said.as_deref(), Some(NO_SPACE), "{way}");
        assert_eq!(does("read 0"), "0", "{way}");
        assert_eq!(does("remove 1"), "gone", "{way}");
        drop(full);
        assert_eq!(does("write 1"), "ok", "{way}");
        drop(input);
        assert_eq!(run.end().code(), Some(0), "{way}");
        host::succeeds(&["volume", "rm", &image, "--ceph-conf", host::text(&cluster.conf())]);
    }
}

/// With `--timeout` a call that the cluster does not answer is EIO, and the lane goes on when the
/// cluster is back; what was synced before is there.
#[test]
fn a_network_that_is_cut_is_eio_after_the_timeout() {
    let test = "a_network_that_is_cut_is_eio_after_the_timeout";
    let Some(cluster) = Cluster::for_test(test) else { return };
    for way in WAYS {
        let Some(host) = OtherHost::new(test, &cluster) else { return };
        let options = format!("{way} --timeout 5s");
        let mut program = Program::new(&cluster, "timeout", &options, Some(&host));
        let service = program.run.service();
        host.cut();
        let (said, time) = program.does("write 1");
        assert_eq!(said, "Input/output error", "{way}");
        assert!(time >= Duration::from_secs(5), "{way}: {time:?}");
        eprintln!("{test} {way}: {time:?}");
        host.mend();
        let end = Instant::now() + Duration::from_secs(60);
        while program.does("write 1").0 != "ok" {
            assert!(Instant::now() < end, "{way}: it does not go on");
        }
        assert_eq!(program.run.service(), service, "{way}");
        program.ends(1);
    }
}

/// The same on an image: the lane's file system stops, as on a disk that fails, and goes on with
/// what was synced when it is mounted anew. Without `--timeout` the cluster is waited for.
#[test]
fn an_image_whose_cluster_is_away_is_eio_after_the_timeout() {
    let test = "an_image_whose_cluster_is_away_is_eio_after_the_timeout";
    let Some(cluster) = Cluster::for_test(test) else { return };
    for (way, limit) in WAYS.into_iter().flat_map(|way| [(way, ""), (way, "--timeout 4s")]) {
        let Some(host) = OtherHost::new(test, &cluster) else { return };
        let image = format!("rbd:admin@rbd/away-{}{way}{}", std::process::id(), limit.len());
        let conf = format!("--ceph-conf {}", cluster.conf().display());
        let lane = format!("--volume {image} --size 256M {conf}");
        let run = Run::new(&format!("{lane} {way} {limit}")).by(&host.starter());
        let (mut run, mut input) = run.script(PROGRAM).start_with_input();
        let mut does = |order: &str| {
            writeln!(input, "{order}").expect("a line");
            let began = Instant::now();
            (run.line(), began.elapsed())
        };
        assert_eq!(does("write 0").0, "ok", "{way}");
        host.cut();
        if limit.is_empty() {
            writeln!(input, "write 1").expect("a line");
            thread::sleep(Duration::from_secs(8));
            host.mend();
            assert_eq!(run.line(), "ok", "{way}: it has waited");
        } else {
            let (said, time) = does("write 1");
            eprintln!("{test} {way}: {said}: {time:?}");
            assert_eq!(said, "Input/output error", "{way}");
            assert!((4..30).contains(&time.as_secs()), "{way}: {time:?}");
            host.mend();
        }
        drop(input);
        run.end();
        let (mut run, mut input) = Run::new(&lane).script(PROGRAM).start_with_input();
        writeln!(input, "read 0").expect("a line");
        assert_eq!(run.line(), "0", "{way} {limit}: synced before");
        drop(input);
        assert_eq!(run.end().code(), Some(0), "{way} {limit}");
        host::succeeds(&["volume", "rm", &image, "--ceph-conf", host::text(&cluster.conf())]);
    }
}

/// What does not answer, is not there or is refused, by each way to begin with a cluster: one line
/// that names it, status 1, in time, nothing mounted and no session left at the MDS. What is
/// refused of images alone: `rbd::what_cannot_be_used_is_one_line`; of libraries:
/// `ceph::libraries_that_cannot_be_used_are_named`.
#[test]
fn what_a_cluster_refuses_is_one_line_and_leaves_nothing() {
    let test = "what_a_cluster_refuses_is_one_line_and_leaves_nothing";
    let Some(cluster) = Cluster::for_test(test) else { return };
    let host = Host::new();
    let (conf, at) = (cluster.conf(), host.dir("m"));
    let (conf, at) = (host::text(&conf), host::text(&at));
    let before = cluster.all_sessions();
    let refused = |place: &str, more: &str, reason: &str| {
        let object = place.trim_start_matches(|c| c != '@').trim_start_matches('@');
        let image = place.strip_prefix("rbd:");
        let (run, source) = match image {
            Some(_) => (format!("--volume {place}"), place.to_string()),
            None => (format!("--ceph {place}"), format!("ceph:{place}")),
        };
        let ways = [format!("run {run} {more} -- true"), format!("mount {more} {source} {at}")];
        let looks = image.map(|_| format!("volume info {place} {more}"));
        // Side by side: most of them wait until their time is over.
        thread::scope(|scope| {
            for command in ways.into_iter().chain(looks) {
                scope.spawn(move || is_refused(&command, object, reason));
            }
        });
        host.assert_nothing_is_left();
    };
    let here = format!("--ceph-conf {conf} --timeout 3s");
    refused("lane@nope", &here, "no such file system");
    refused("lane@cephfs:/nope", &here, "no such");
    refused("nobody@cephfs", &here, "no key of client.nobody");
    refused("rbd:nobody@rbd/i", &here, "no key of client.nobody");
    refused("rbd:lane@nope/i", &here, "no such pool");
    refused("rbd:lane@rbd/nope@s", &here, "no such image");
    for (key, words) in
        [("AQBBBBBBBBBBBBAABBBBBBBBBBBBBBBBBBBBBA==", "refuses"), ("", "no key of client.lane")]
    {
        let path = host.path("key");
        std::fs::write(&path, key).expect("a key");
        let keyed = format!("{here} --ceph-keyring {}", path.display());
        refused("lane@cephfs", &keyed, words);
        refused("rbd:lane@rbd/i", &keyed, words);
    }
    refused("lane@cephfs", &format!("{here} --ceph-keyring {at}"), at);
    refused("lane@cephfs", &format!("{here} --ceph-keyring /nope"), "/nope");
    let silent = host.path("silent.conf");
    let text = std::fs::read_to_string(conf).expect("a configuration");
    let text = text.replace("mon host = ", "mon host = v1:127.0.0.1:1 # ");
    std::fs::write(&silent, text).expect("a configuration");
    let silent = format!("--ceph-conf {} --timeout 3s", silent.display());
    refused("lane@cephfs", &silent, "in time");
    refused("rbd:lane@rbd/i", &silent, "in time");
    cluster.ceph("osd set pause");
    let undone = Undo(&cluster, "osd unset pause");
    refused("lane@cephfs", &here, "in time");
    refused("rbd:lane@rbd/i", &here, "in time");
    drop(undone);
    cluster.ceph("fs fail cephfs");
    let undone = Undo(&cluster, "fs set cephfs joinable true");
    refused("lane@cephfs", &here, "in time");
    drop(undone);
    until_an_mds_is_there(&cluster);
    let left = || cluster.all_sessions().into_iter().find(|session| !before.contains(session));
    until("no session is left", || left().is_none());
}

/// In time, by one line that has the reason in it, and the object.
fn is_refused(command: &str, object: &str, reason: &str) {
    let began = Instant::now();
    let (status, line) = host::refused(&command.split_whitespace().collect::<Vec<_>>());
    let time = began.elapsed();
    eprintln!("{command}: {time:?}: {line}");
    assert!(status == 1 && line.contains(reason), "{command}: {status} {line}");
    // The place, or the file or the user that is wrong.
    let names_it = line.contains(object) || reason.contains(['/', '.']);
    assert!(names_it, "{command}: {line}");
    assert!(time < Duration::from_secs(20), "{command}: {time:?}");
}

/// One that was told to fail starts anew, and takes its time on a busy host.
fn until_an_mds_is_there(cluster: &Cluster) {
    let end = Instant::now() + Duration::from_secs(120);
    while !cluster.ceph("mds stat").contains("up:active") {
        assert!(Instant::now() < end, "no MDS is there again");
        thread::sleep(Duration::from_millis(200));
    }
}

/// A command of Ceph's at the end, also of a test that failed.
struct Undo<'a>(&'a Cluster, &'static str);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.0.ceph(self.1);
    }
}

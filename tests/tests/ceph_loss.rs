//! A cluster loses parts of itself, or its network: what programs in a lane see.
//!
//! The table of docs/semantics.md, "Where a cluster loses parts of itself", by ways in and mount
//! options. One test at a time: each changes the cluster.

use std::io::Write as _;
use std::process::ChildStdin;
use std::thread;
use std::time::{Duration, Instant};

use polylane_tests::binary;
use polylane_tests::ceph::{Cluster, OtherHost};
use polylane_tests::host::until;
use polylane_tests::pool::{Run, Running};

/// Reads a word and a number from its input, over and over: writes, syncs and reads a file of that
/// number, and says how that went.
const PROGRAM: &str = r#"
cd /lane
while read word n; do
    case $word in
    write) if (dd if=/dev/zero of=f.$n bs=64k count=16 conv=fsync status=none && echo $n >> f.$n &&
        sync f.$n) 2>err; then echo ok; else sed 's/.*: //' err 2>/dev/null | head -n 1; fi ;;
    read) tail -c 8 f.$n | tr -d '\0' 2>&1 ;;
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

/// Longer than a service may take to move a step elsewhere, too: a cluster that is away is no hang.
#[test]
fn a_network_that_is_cut_is_waited_for() {
    let test = "a_network_that_is_cut_is_waited_for";
    let Some(cluster) = Cluster::for_test(test) else { return };
    for (way, seconds) in [(WAYS[0], 5), (WAYS[1], 5), (WAYS[1], 25)] {
        let Some(host) = OtherHost::new(test, &cluster) else { return };
        let mut program = Program::new(&cluster, "cut", way, Some(&host));
        let service = program.run.service();
        host.cut();
        let began = program.begins("write 1");
        thread::sleep(Duration::from_secs(seconds));
        host.mend();
        assert_eq!(program.run.line(), "ok");
        let time = began.elapsed();
        assert!(time >= Duration::from_secs(seconds), "{time:?}");
        eprintln!("{test} {way}, {seconds} s: {time:?}");
        assert_eq!(program.run.service(), service, "the service has waited");
        program.ends(1);
    }
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

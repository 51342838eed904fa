//! Lanes on a Ceph file system, by both ways in, beside another client of the cluster.
//!
//! `CEPH_CLUSTER` is the folder of a cluster that `tests/ceph/cluster.sh` started; `make test-ceph`
//! starts one.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use polylane_tests::pool::{Run, signal_to};
use polylane_tests::{binary, skip, unavailable};

/// The cluster's folder, unless the test cannot run here.
fn cluster(test: &str) -> Option<PathBuf> {
    if unavailable(test) {
        return None;
    }
    let dir = std::env::var_os("CEPH_CLUSTER").map(PathBuf::from);
    if dir.is_none() {
        skip(test, "CEPH_CLUSTER names no cluster: 'make test-ceph' starts one");
    }
    dir
}

fn options(cluster: &Path, place: &str) -> String {
    format!("--ceph {place} --ceph-conf {}/ceph.conf", cluster.display())
}

/// Runs a script in a lane on a new directory of the cluster, and then that it removes itself.
fn in_lane(cluster: &Path, name: &str, more: &[&str], script: &str) -> Output {
    let made = run(cluster, "admin@cephfs", &[], &format!("mkdir -p /lane/{name}"));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    run(cluster, &format!("lane@cephfs:/{name}"), more, script)
}

fn run(cluster: &Path, place: &str, more: &[&str], script: &str) -> Output {
    let mut command = Command::new(binary());
    command.arg("run").args(options(cluster, place).split(' ')).args(more);
    command.args(["--", "sh", "-ec", script]).output().expect("polylane run")
}

fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!("{}{}", String::from_utf8_lossy(out), String::from_utf8_lossy(err))
}

const WAYS: [(&str, &[&str]); 2] = [("library", &[]), ("fuse", &["--no-preload"])];

#[test]
fn programs_work_on_a_lane_of_a_cluster() {
    let Some(cluster) = cluster("programs_work_on_a_lane_of_a_cluster") else { return };
    let script = r#"
cd /lane
mkdir -p a/b && echo one > a/b/f && cat a/b/f
dd if=/dev/urandom of=big bs=1M count=24 status=none && cp big copy && cmp big copy
mv a c && ln -s c/b/f link && cat link && ln c/b/f hard && stat -c %h hard
truncate -s 5 hard && stat -c %s c/b/f && chmod 4711 hard && stat -c %a hard
for i in $(seq 200); do echo $i > c/n.$i; done; ls c | wc -l
tar cf t.tar c && mkdir x && tar xf t.tar -C x && diff -r c x/c && rm -r x
setfattr -n user.k -v v hard && getfattr --only-values -n user.k hard && echo
mkfifo pipe && (echo through > pipe &) && cat pipe
exec 5<>gone; echo kept >&5; rm gone; cat /proc/self/fd/5
rm -r /lane/* && ls -A /lane | wc -l
"#;
    let wanted = "one\none\n2\n5\n4711\n201\nv\nthrough\nkept\n0\n";
    for (way, more) in WAYS {
        let output = in_lane(&cluster, &format!("programs-{way}"), more, script);
        assert_eq!(text(&output), wanted, "{way}");
        assert!(output.status.success(), "{way}");
    }
}

#[test]
fn two_lanes_on_one_directory_see_each_other() {
    let Some(cluster) = cluster("two_lanes_on_one_directory_see_each_other") else { return };
    assert!(in_lane(&cluster, "both", &[], "true").status.success());
    for (way, more) in WAYS {
        let options = format!("{} {}", options(&cluster, "lane@cephfs:/both"), more.join(" "));
        let mut run_one = Run::new(options.trim())
            .script(
                "cd /lane; echo first > f; ls; echo up; \
                 while ! grep -qs second f; do sleep 0.05; done; cat f; rm f; \
                 while [ ! -e g ]; do sleep 0.05; done; cat g; rm g; echo end",
            )
            .start();
        assert_eq!((run_one.line(), run_one.line()), ("f".to_string(), "up".to_string()));
        let other = run(
            &cluster,
            "admin@cephfs:/both",
            &[],
            "cd /lane; cat f; echo second >> f; while [ -e f ]; do sleep 0.05; done; \
             echo third > g",
        );
        assert_eq!(text(&other), "first\n", "{way}");
        let lines: Vec<_> = (0..4).map(|_| run_one.line()).collect();
        assert_eq!(lines, ["first", "second", "third", "end"], "{way}");
        assert_eq!(run_one.end().code(), Some(0));
    }
}

#[test]
fn what_was_fsynced_is_there_after_the_service_was_killed() {
    let Some(cluster) = cluster("what_was_fsynced_is_there_after_the_service_was_killed") else {
        return;
    };
    assert!(in_lane(&cluster, "killed", &[], "true").status.success());
    let options = options(&cluster, "lane@cephfs:/killed");
    let (mut run, mut input) = Run::new(&format!("{options} --no-preload"))
        .script(
            "cd /lane; for i in 1 2 3 4 5; do echo $i > f.$i; sync f.$i; done; echo up; read x; \
             cat /lane/f.*; echo new > /lane/g; cat /lane/g",
        )
        .start_with_input();
    assert_eq!(run.line(), "up");
    signal_to(run.service(), "KILL");
    std::thread::sleep(Duration::from_millis(500));
    writeln!(input, "go").expect("a line");
    let lines: Vec<_> = (0..6).map(|_| run.line()).collect();
    assert_eq!(lines, ["1", "2", "3", "4", "5", "new"]);
    assert_eq!(run.end().code(), Some(0));
}

#[test]
fn what_cannot_be_mounted_is_one_line_and_leaves_nothing() {
    let Some(cluster) = cluster("what_cannot_be_mounted_is_one_line_and_leaves_nothing") else {
        return;
    };
    let refused = |options: &str, words: &str| {
        let mut command = Command::new(binary());
        let output = command.arg("run").args(options.split(' ')).args(["--", "true"]).output();
        let output = output.expect("polylane run");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{options}: {said}");
        assert_eq!(said.lines().count(), 1, "{options}: {said}");
        assert!(said.contains(words), "{options}: {said}");
    };
    refused(&options(&cluster, "lane@nope"), "no such file system");
    refused(&options(&cluster, "lane@cephfs:/nope"), "no such");
    refused(&options(&cluster, "nobody@cephfs"), "no key of client.nobody");
    refused("--ceph cephfs --ceph-conf /nope/ceph.conf", "/nope/ceph.conf");
    let dir = tempfile::tempdir().expect("a folder");
    let conf = dir.path().join("ceph.conf");
    let silent = "[global]\nmon host = v1:127.0.0.1:1\nkeyring = /none\n\
                  auth client required = none\nauth service required = none\n\
                  auth cluster required = none\n";
    std::fs::write(&conf, silent).expect("a configuration");
    let began = Instant::now();
    refused(&format!("--ceph cephfs --timeout 2s --ceph-conf {}", conf.display()), "in time");
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

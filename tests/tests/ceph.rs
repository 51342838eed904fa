//! Lanes on a Ceph file system, by both ways in, beside another client of the cluster.
//!
//! `CEPH_CLUSTER` is the folder of a cluster that `tests/ceph/cluster.sh` started; `make test-ceph`
//! starts one.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use polylane_tests::binary;
use polylane_tests::ceph::Cluster;
use polylane_tests::host::{self, Host, succeeds, until};
use polylane_tests::pool::{Run, signal_to};

/// The cluster's folder, unless the test cannot run here.
fn cluster(test: &str) -> Option<PathBuf> {
    Cluster::for_test(test).map(|cluster| cluster.dir().to_path_buf())
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

/// How many sessions the MDS has of clients that have this directory mounted.
fn sessions(cluster: &Path, root: &str) -> usize {
    Cluster::at(cluster).sessions(root).len()
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

/// Settings of the cluster by programs: layouts, quotas, statistics, as by its other clients.
#[test]
fn layouts_and_quotas_are_attributes() {
    let Some(cluster) = cluster("layouts_and_quotas_are_attributes") else { return };
    let script = r#"
cd /lane; rm -rf d; mkdir d; chmod 755 d
get() { getfattr --only-values -n "$@" 2>/dev/null || printf none; echo; }
setfattr -n ceph.dir.layout.object_size -v 8388608 d; get ceph.dir.layout.object_size d
echo x > d/f; get ceph.file.layout.object_size d/f; get ceph.file.layout.pool d/f
get ceph.quota.max_bytes d; setfattr -n ceph.quota.max_bytes -v 8388608 d
get ceph.quota.max_bytes d; getfattr -d -m - d | wc -l
setfattr -n ceph.file.layout.object_size -v 4194304 d/f 2>&1 | sed 's/.*: //'
setfattr -n ceph.dir.rbytes -v 1 d 2>&1 | sed 's/.*: //'
setfattr -n ceph.nothing -v 1 d 2>&1 | sed 's/.*: //'
setfattr -x ceph.dir.layout d; get ceph.dir.layout d
setpriv --reuid 1000 --clear-groups setfattr -n ceph.quota.max_bytes -v 1 d 2>&1 | sed 's/.*: //'
chmod 700 d
setpriv --reuid 1000 --clear-groups getfattr -n ceph.quota.max_bytes d 2>&1 | sed 's/.*: //'
"#;
    let wanted = "8388608\n8388608\ncephfs_data\nnone\n8388608\n0\nDirectory not empty\n\
                  Operation not supported\nInvalid argument\nnone\nPermission denied\n\
                  Permission denied\n";
    for (way, more) in WAYS {
        let output = in_lane(&cluster, &format!("layouts-{way}"), more, script);
        assert_eq!(text(&output), wanted, "{way}");
    }
}

/// A quota that a program set holds at once for those of its own lane: `df` shows it, and a write
/// past it fails. libcephfs learns of used bytes from the MDS, after some seconds.
#[test]
fn a_quota_is_a_limit() {
    let Some(cluster) = cluster("a_quota_is_a_limit") else { return };
    let script = r#"
cd /lane; rm -rf d; mkdir d
setfattr -n ceph.quota.max_files -v 3 d; for i in 1 2 3 4 5 6 7 8; do
    touch d/$i 2>err || { sed 's/.*: //' err; break; }; sync; sleep 1; done
setfattr -n ceph.quota.max_files -v 0 d; setfattr -n ceph.quota.max_bytes -v 8388608 d
for i in 1 2 3 4 5 6 7 8 9; do
    dd if=/dev/zero of=d/f bs=1M count=2 seek=$((2 * i)) conv=fsync,notrunc status=none 2>err ||
        { sed 's/.*: //' err; break; }; sleep 1; done
"#;
    for (way, more) in WAYS {
        let name = format!("quota-{way}");
        let output = in_lane(&cluster, &name, more, script);
        let wanted = "Disk quota exceeded\nDisk quota exceeded\n";
        assert_eq!(text(&output), wanted, "{way}");
        let df =
            run(&cluster, &format!("lane@cephfs:/{name}/d"), more, "df -B1M --output=size /lane");
        assert_eq!(text(&df).split_whitespace().last(), Some("8"), "{way}: {}", text(&df));
    }
}

/// Snapshots are directories of `.snap`: made, read, which cannot be changed, and removed.
#[test]
fn snapshots_are_made_and_read_as_directories() {
    let Some(cluster) = cluster("snapshots_are_made_and_read_as_directories") else { return };
    let script = r#"
cd /lane; mkdir d; chmod 750 d; echo old > d/f; echo gone > d/g; ls d/.snap | wc -l
mkdir d/.snap/one; ls d/.snap; echo new > d/f; rm d/g; mkdir d/e
cat d/.snap/one/f d/.snap/one/g; ls d/.snap/one; cat d/f
stat -c %a d/.snap/one; stat -c %a d/.snap
(echo x > d/.snap/one/f) 2>&1 | sed 's/.*: //'
(echo x > d/.snap/one/h) 2>&1 | sed 's/.*: //'
rm d/.snap/one/f 2>&1 | sed 's/.*: //'
(echo x > d/.snap/h) 2>&1 | sed 's/.*: //'
mkdir d/.snap/one 2>&1 | sed 's/.*: //'
mkdir d/.snap/two; ls -A d; mv d/.snap/two d/.snap/three; ls d/.snap
rmdir d/.snap/three; rmdir d/.snap/one; ls d/.snap | wc -l; rm -r d; ls -A
"#;
    let wanted = "0\none\nold\ngone\nf\ng\nnew\n750\n750\nRead-only file system\n\
                  Read-only file system\nRead-only file system\n\
                  Read-only file system\nFile exists\ne\nf\none\nthree\n0\n";
    for (way, more) in WAYS {
        let output = in_lane(&cluster, &format!("snap-{way}"), more, script);
        assert_eq!(text(&output), wanted, "{way}");
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
                 while [ ! -s g ]; do sleep 0.05; done; cat g; rm g; echo end",
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

/// Directories that programs are in outlive the service.
#[test]
fn directories_in_use_go_on_after_the_service_was_killed() {
    let name = "directories_in_use_go_on_after_the_service_was_killed";
    let Some(cluster) = cluster(name) else { return };
    for (way, more) in WAYS {
        let name = format!("directories-{way}");
        assert!(in_lane(&cluster, &name, &[], "true").status.success());
        let options = options(&cluster, &format!("lane@cephfs:/{name}"));
        let options = format!("{options} {}", more.join(" "));
        let (mut run, mut input) = Run::new(options.trim())
            .script(
                "mkdir -p /lane/a/b; cd /lane/a/b; echo here > f; sync f; mv /lane/a /lane/c; \
                 echo up; read x; cat f ../b/f; echo more > g; ls; ls ..; cat /lane/c/b/g",
            )
            .start_with_input();
        assert_eq!(run.line(), "up");
        signal_to(run.service(), "KILL");
        writeln!(input, "go").expect("a line");
        let lines: Vec<_> = (0..6).map(|_| run.line()).collect();
        assert_eq!(lines, ["here", "here", "f", "g", "b", "more"], "{way}");
        assert_eq!(run.end().code(), Some(0));
    }
}

/// An open file that had bytes in the service is not taken for whole afterwards; one that was
/// synced is.
#[test]
fn an_open_file_that_lost_bytes_with_its_service_says_so() {
    let Some(cluster) = cluster("an_open_file_that_lost_bytes_with_its_service_says_so") else {
        return;
    };
    for (way, more) in WAYS {
        let name = format!("unsynced-{way}");
        assert!(in_lane(&cluster, &name, &[], "true").status.success());
        let options = options(&cluster, &format!("lane@cephfs:/{name}"));
        let (mut run, mut input) = Run::new(&format!("{options} {}", more.join(" ")))
            .script(
                "exec 5>/lane/lost 6>/lane/kept; echo kept >&6; sync /lane/kept; echo lost >&5; \
                 echo up; read x; (echo more >&5) 2>/dev/null || echo refused; \
                 echo more >&6; cat /lane/kept; echo new > /lane/lost; cat /lane/lost",
            )
            .start_with_input();
        assert_eq!(run.line(), "up");
        signal_to(run.service(), "KILL");
        writeln!(input, "go").expect("a line");
        let lines: Vec<_> = (0..4).map(|_| run.line()).collect();
        assert_eq!(lines, ["refused", "kept", "more", "new"], "{way}");
        assert_eq!(run.end().code(), Some(0));
    }
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
    let keyed = |text: &str, words: &str| {
        let path = dir.path().join("key");
        std::fs::write(&path, text).expect("a key");
        let more = format!(" --ceph-keyring {}", path.display());
        refused(&(options(&cluster, "lane@cephfs") + &more), words);
    };
    keyed("AQBBBBBBBBBBBBAABBBBBBBBBBBBBBBBBBBBBA==\n", "refuses this user");
    keyed("no key", "mount it");
    keyed("", "no key of client.lane");
    refused(&format!("{} --ceph-keyring /nope/key", options(&cluster, "lane@cephfs")), "/nope/key");
    assert!(in_lane(&cluster, "bad/upper", &[], "chmod 755 /lane").status.success());
    let upper = options(&cluster, "lane@cephfs:/bad/upper");
    let lower = |place: &str| format!("{upper} --lower {place}");
    refused(&lower("ceph:lane@cephfs:/bad/low"), "/bad/upper: other users could show");
    assert!(in_lane(&cluster, "bad/upper", &[], "chmod 700 /lane").status.success());
    refused(&lower("ceph:lane@cephfs:/bad/nope"), "/bad/nope");
    until("no session is left", || sessions(&cluster, "/bad") == 0);
    let host = Host::new();
    let (at, conf) = (host.dir("m"), cluster.join("ceph.conf"));
    for (source, words) in [
        ("ceph:lane@nope", "no such file system"),
        ("ceph:lane@cephfs:/nope", "no such"),
        ("ceph:nobody@cephfs", "no key of client.nobody"),
    ] {
        let words_of = ["mount", "--ceph-conf", host::text(&conf), source, host::text(&at)];
        let (status, line) = host::refused(&words_of);
        assert!(status == 1 && line.lines().count() == 1 && line.contains(words), "{line}");
        host.assert_nothing_is_left();
    }
    let conf = dir.path().join("ceph.conf");
    let silent = "[global]\nmon host = v1:127.0.0.1:1\nkeyring = /none\n\
                  auth client required = none\nauth service required = none\n\
                  auth cluster required = none\n";
    std::fs::write(&conf, silent).expect("a configuration");
    let began = Instant::now();
    refused(&format!("--ceph cephfs --timeout 2s --ceph-conf {}", conf.display()), "in time");
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
}

/// A library that cannot be loaded, and one without a call that is needed, in their places.
#[test]
fn libraries_that_cannot_be_used_are_named() {
    let Some(cluster) = cluster("libraries_that_cannot_be_used_are_named") else { return };
    let host = Host::new();
    let (broken, old, at) = (host.path("broken"), host.path("old"), host.dir("m"));
    std::fs::write(&broken, "no library").expect("a file");
    let cc = "echo 'int ceph;' | cc -shared -nostdlib -x c - -o \"$0\"";
    let built = Command::new("sh").args(["-c", cc, host::text(&old)]).status().expect("cc");
    assert!(built.success());
    let conf = cluster.join("ceph.conf");
    let conf = conf.display();
    let mount = format!("mount --ceph-conf {conf} ceph:admin@cephfs {}", at.display());
    let cephfs = ("libcephfs.so.2", "apt install libcephfs2", "has no ceph_create");
    let rbd = ("librbd.so.1", "apt install librbd1", "has no rbd_image_options_create");
    for (words, (library, absent, lacks)) in [
        (format!("run --ceph admin@cephfs --ceph-conf {conf} -- true"), cephfs),
        (mount, cephfs),
        (format!("run --volume rbd:admin@rbd/none --size 64M --ceph-conf {conf} -- true"), rbd),
        (format!("volume info rbd:admin@rbd/none --ceph-conf {conf}"), rbd),
    ] {
        for (file, part) in [(&broken, absent), (&old, lacks)] {
            let script = format!(
                "mount --bind \"$0\" $(realpath /usr/lib/*/{library}); exec \"$1\" {words}"
            );
            let mut command = Command::new("unshare");
            command.args(["-m", "sh", "-ec", &script]).arg(file).arg(binary());
            let output = command.output().expect("unshare");
            let said = text(&output);
            assert_eq!(output.status.code(), Some(1), "{words}: {said}");
            assert!(said.lines().count() == 1 && said.contains(part), "{words}: {said}");
            assert!(said.contains(library), "{words}: {said}");
        }
    }
    host.assert_nothing_is_left();
}

#[test]
fn a_directory_of_a_cluster_is_mounted_until_it_is_unmounted() {
    let Some(cluster) = cluster("a_directory_of_a_cluster_is_mounted_until_it_is_unmounted") else {
        return;
    };
    assert!(in_lane(&cluster, "mounted", &[], "echo by a run > /lane/f").status.success());
    let host = Host::new();
    let (at, conf) = (host.dir("m"), cluster.join("ceph.conf"));
    let (at, conf) = (host::text(&at), host::text(&conf));
    let source = "ceph:lane@cephfs:/mounted";
    succeeds(&["mount", "--ceph-conf", conf, "--timeout", "20s", source, at]);
    assert_eq!(host.mounts()[0]["source"], source);
    let script = "cd \"$0\"; cat f; echo more >> f; mkdir -p a/b; seq 1000 > a/b/n; \
                  tail -n 1 a/b/n; df . | tail -n 1 | grep -q .";
    for preload in [None, Some(format!("{at}/.polylane/$LIB/libpolylane.so"))] {
        let mut command = Command::new("sh");
        command.args(["-ec", script, at]).env("POLYLANE_MOUNT", at);
        command.envs(preload.iter().map(|path| ("LD_PRELOAD", path)));
        let output = command.output().expect("sh");
        let said = text(&output);
        assert!(output.status.success() && said.starts_with("by a run\n"), "{said}");
        assert!(said.ends_with("1000\n"), "{said}");
    }
    // Of another process of this host, at once.
    let other = run(&cluster, "lane@cephfs:/mounted", &[], "tail -n 1 /lane/f");
    assert_eq!(text(&other), "more\n");
    succeeds(&["umount", at]);
    host.assert_nothing_is_left();
    until("its session has ended", || sessions(&cluster, "/mounted") == 0);
}

#[test]
fn layers_and_branch_of_a_union_are_on_one_client() {
    let Some(cluster) = cluster("layers_and_branch_of_a_union_are_on_one_client") else { return };
    let made = run(
        &cluster,
        "admin@cephfs",
        &[],
        "cd /lane; rm -rf u; mkdir -p u/low/d u/top; cd u; echo low > low/d/f; echo gone > low/g; \
         ln low/d/f low/d/h; dd if=/dev/urandom of=low/big bs=1M count=3 status=none; \
         mkdir low/e; echo e > low/e/f; echo top > top/t; mkdir b1 b2; chmod 700 b1 b2",
    );
    assert!(made.status.success(), "{}", text(&made));
    let script = r#"
cd /lane
cat d/f t && echo more >> d/f && cat d/h && rm g && [ ! -e g ]
cp big copy && printf x | dd of=big bs=1 seek=1500000 conv=notrunc status=none
cmp big copy | sed 's/.*byte \([0-9]*\),.*/\1/'
rm -r e && mkdir e && ls -A e | wc -l && mv d m && cat m/f && mv m/h over && mv over t && cat t
"#;
    let again = "cd /lane; cat m/f t; ls -A; ls -A e; cmp big copy | wc -l";
    let lowers = ["--lower", "ceph:lane@cephfs:/u/top", "--lower", "ceph:lane@cephfs:/u/low"];
    for (way, more) in WAYS {
        let place = if more.is_empty() { "lane@cephfs:/u/b1" } else { "lane@cephfs:/u/b2" };
        let options = [&lowers[..], more].concat();
        let first = run(&cluster, place, &options, script);
        let wanted = "low\ntop\nlow\nmore\n1500001\n0\nlow\nmore\nlow\nmore\n";
        assert_eq!(text(&first), wanted, "{way}");
        let found = run(&cluster, place, &options, again);
        let wanted = "low\nmore\nlow\nmore\nbig\ncopy\ne\nm\nt\n1\n";
        assert_eq!(text(&found), wanted, "{way}");
    }
    let low = run(&cluster, "admin@cephfs:/u", &[], "cat /lane/low/d/f /lane/low/g /lane/low/e/f");
    assert_eq!(text(&low), "low\ngone\ne\n", "a lower is never changed");
    let options = format!("{} --mem {}", options(&cluster, "x"), lowers.join(" "));
    let options = options.replace("--ceph x ", "");
    let mut command = Command::new(binary());
    command.arg("run").args(options.split(' ')).args(["--", "sh", "-ec", script]);
    let over_memory = command.output().expect("polylane run");
    assert!(over_memory.status.success(), "{}", text(&over_memory));
    until("no session is left", || sessions(&cluster, "/u") == 0);
}

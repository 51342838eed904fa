//! Settings of a lane's client of a Ceph file system, what `stats` says of it, and figures that
//! need a cluster.
//!
//! `CEPH_CLUSTER` is the folder of a cluster that `tests/ceph/cluster.sh` started; `make test-ceph`
//! starts one.

use std::fs;
use std::io::Write;
use std::process::Command;

use polylane_tests::binary;
use polylane_tests::ceph::Cluster;
use polylane_tests::host::{Host, refused, succeeds, text};
use polylane_tests::pool::{Run, signal_to};
use serde_json::Value;

/// Calls are their users': the cluster holds the limits of a key against who makes them.
#[test]
fn calls_are_made_on_behalf_of_their_users() {
    let test = "calls_are_made_on_behalf_of_their_users";
    let Some(cluster) = Cluster::for_test(test) else { return };
    let id = std::process::id();
    let root = cluster.directory("callers");
    let made = cluster.run("admin@cephfs", &[], &format!("chmod 1777 /lane{root}"));
    assert!(made.status.success());
    let script = r#"
cd /lane; as() { id=$1 groups=$2; shift 2; setpriv --reuid $id --regid $id --groups $groups \
    sh -c "$*" 2>&1 | sed 's/.*: //'; }
as 0 0 'echo root > by-root'; ls | wc -l
as 1000 1000,2000 'umask 0; mkdir d; echo one > d/f; chgrp 2000 d/f; chmod 660 d/f; ls -ln d/f' |
    cut -d' ' -f1,3,4; stat -c '%u %g' d
as 1001 2000 'echo two >> d/f; cat d/f; mv d/f d/g; ln d/g h; ln -s x d/s; truncate -s 4 d/g'
as 1002 1002 'cat d/g; rm h; echo three > d/own; setfattr -n user.a -v b d/own; rmdir d'
as 1000 2000 'cat h; rm h d/g d/s; sync d/own'; ls -A d
"#;
    // What a user may is decided by modes; a key is limited besides.
    let of_users = "-rw-rw---- 1000 2000\n1000 1000\none\ntwo\nPermission denied\n";
    let in_the_end = "Operation not permitted\nOperation not permitted\none\nown\n";
    let at = format!("path={root}");
    let keys = [
        ("in", format!("allow rw {at}"), "1\n"),
        ("squash", format!("allow rw {at} root_squash"), "Permission denied\n0\n"),
    ];
    for (name, caps, of_root) in keys {
        let keyring = cluster.user(&format!("{name}{id}"), &caps);
        let keyring = text(&keyring).to_string();
        for way in [&[][..], &["--no-preload"], &["--timeout", "60s"]] {
            let options = [&["--ceph-keyring", &keyring][..], way].concat();
            let output = cluster.run(&format!("{name}{id}@cephfs:{root}"), &options, script);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let wanted = format!("{of_root}{of_users}{in_the_end}");
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(said, wanted, "{name} {way:?}: {errors}");
            let cleared = cluster.run(&format!("admin@cephfs:{root}"), &[], "rm -r /lane/*");
            assert!(cleared.status.success());
        }
    }
}

/// A key of one user: what the service asks for by itself is that user's, too, where the
/// configuration says so, also after it was killed.
#[test]
fn a_key_of_one_user_is_enough_for_a_lane_of_that_user() {
    let test = "a_key_of_one_user_is_enough_for_a_lane_of_that_user";
    let Some(cluster) = Cluster::for_test(test) else { return };
    let host = Host::new();
    let (user, root) = (format!("one{}", std::process::id()), cluster.directory("one-user"));
    let made = cluster.run("admin@cephfs", &[], &format!("chmod 1777 /lane{root}"));
    assert!(made.status.success());
    let keyring = cluster.user(&user, &format!("allow rw path={root} uid=1000 gids=1000"));
    let place = format!("{user}@cephfs:{root}");
    let (status, line) = refused(&[
        "run",
        "--ceph",
        &place,
        "--ceph-conf",
        text(&cluster.conf()),
        "--ceph-keyring",
        text(&keyring),
        "--",
        "true",
    ]);
    assert!(status == 1 && line.contains("the cluster refuses this user"), "{status} {line}");
    let conf = host.path("ceph.conf");
    let whole = fs::read_to_string(cluster.conf()).expect("ceph.conf");
    let own = "[client]\nclient mount uid = 1000\nclient mount gid = 1000\n";
    fs::write(&conf, format!("{whole}\n{own}")).expect("write");
    let script = r#"
cd /lane; as() { id=$1; shift; setpriv --reuid $id --regid $id --clear-groups \
    sh -c "$*" 2>&1 | sed -u 's/.*: //'; }
as 1000 'umask 022; mkdir d; echo one > d/f; sync d/f; flock d/f echo locked; stat -c "%u %a" d/f'
as 1001 'echo two > two'; as 1000 'exec 3<>d/f; echo up; read x; cat d/f; echo two >&3
    sync d/f; cat <&3 && cat d/f; flock d/f echo locked; rm d/f; cd d && cd .. && rmdir d && ls -A'
"#;
    for way in ["", "--no-preload"] {
        let options = format!(
            "--ceph {place} --ceph-conf {} --ceph-keyring {} {way}",
            text(&conf),
            text(&keyring)
        );
        let (mut run, mut input) = Run::new(options.trim()).script(script).start_with_input();
        let lines: Vec<_> = (0..4).map(|_| run.line()).collect();
        assert_eq!(lines, ["locked", "1000 644", "Permission denied", "up"], "{way}");
        signal_to(run.service(), "KILL");
        writeln!(input, "go").expect("a line");
        let lines: Vec<_> = (0..3).map(|_| run.line()).collect();
        assert_eq!(lines, ["one", "two", "locked"], "{way}");
        assert_eq!(run.end().code(), Some(0), "{way}");
    }
}

#[test]
fn settings_of_a_client_that_cannot_be_are_refused() {
    for (options, word) in [
        ("--ceph a --ceph-cache 1M -- true", "--ceph-cache: from 8M to "),
        ("--ceph a --memory 64M --ceph-cache 17M -- true", "--ceph-cache: from 8M to 16 MiB"),
        ("--ceph a --ceph-cache lots -- true", "lots"),
        ("--ceph a --ceph-read-ahead 1G -- true", "--ceph-read-ahead: at most 256M"),
        ("--ceph a --ceph-threads 0 -- true", "--ceph-threads: from 1 to 256"),
        ("--ceph a --ceph-threads 257 -- true", "--ceph-threads: from 1 to 256"),
        ("--ceph a --ceph-threads many -- true", "many"),
        ("--ceph a --dirty-limit 1K -- true", "--dirty-limit: from 1M to "),
        ("--ceph a --flush-interval 1ms -- true", "--flush-interval: too short"),
        ("--ceph a --journal-mode data -- true", "only a lane on a volume has a journal"),
        ("--ceph a --file-cache writeback -- true", "use writethrough"),
        ("--ceph a --discard -- true", "only a lane on a volume has a journal"),
        ("--mem --ceph-cache 8M -- true", "--ceph-cache: only a lane on a Ceph file system"),
        ("--mem --ceph-threads 4 -- true", "--ceph-threads: only a lane on a Ceph file system"),
        (
            "--volume rbd:p/i --ceph-read-ahead 0 -- true",
            "--ceph-read-ahead: only a lane on a Ceph",
        ),
    ] {
        let (status, line) = Run::new(options).refusal();
        assert_eq!(status, 2, "{options}: {line}");
        assert!(line.contains(word), "{options}: {line}");
    }
    let (status, line) = refused(&["mount", "--ceph-threads", "3"]);
    assert_eq!(status, 2, "{line}");
    assert!(line.contains("SOURCE"), "{line}");
}

/// Settings of a pool are for its lanes on CephFS; 0 gives them up.
#[test]
fn a_pool_has_settings_for_clients_of_its_lanes() {
    if polylane_tests::unavailable("a_pool_has_settings_for_clients_of_its_lanes") {
        return;
    }
    let host = Host::new();
    let pool = host.pool("ceph");
    succeeds(&["pool", "create", &pool, "--memory", "256M", "--ceph-cache", "16M"]);
    let ceph = || {
        let info = succeeds(&["pool", "info", "--json", &pool]);
        serde_json::from_str::<Value>(&info).expect("JSON")["ceph"].clone()
    };
    assert_eq!(ceph()["cache_bytes"], 16 << 20);
    succeeds(&["pool", "set", "--ceph-threads", "3", "--ceph-read-ahead", "0", &pool]);
    let all = ceph();
    assert_eq!((&all["cache_bytes"], &all["io_threads"]), (&(16 << 20).into(), &3.into()));
    assert_eq!(all["read_ahead_bytes"], 0);
    for (words, why) in [
        (["--ceph-cache", "1M"], "--ceph-cache: from 8M to 64 MiB"),
        (["--ceph-cache", "65M"], "--ceph-cache: from 8M to 64 MiB"),
        (["--ceph-threads", "257"], "--ceph-threads: from 1 to 256"),
        (["--ceph-read-ahead", "1G"], "--ceph-read-ahead: at most 256M"),
        (["--memory", "32M"], "--ceph-cache: from 8M to 8 MiB"),
    ] {
        let (status, line) = refused(&["pool", "set", words[0], words[1], &pool]);
        assert!(status == 2 && line.contains(why), "{words:?}: {status} {line}");
    }
    assert_eq!(ceph(), all);
    succeeds(&["pool", "set", "--ceph-threads", "0", "--ceph-cache", "0", &pool]);
    assert_eq!((&ceph()["cache_bytes"], &ceph()["io_threads"]), (&Value::Null, &Value::Null));
}

#[test]
fn a_figure_without_a_cluster_names_what_is_missing() {
    let figures =
        ["ceph-calls", "ceph-seqread", "ceph-depth", "ceph-rbd", "ceph-rocksdb", "ceph-flood"];
    for figure in figures {
        let (status, line) = refused(&["bench", "run", figure, "--quick"]);
        assert_eq!(status, 1, "{line}");
        let is_tool = line.contains("db_bench is missing");
        assert!(is_tool || line.contains("--ceph-conf DIR/ceph.conf"), "{figure}: {line}");
    }
    let (status, line) = refused(&["bench", "run", "synced", "--ceph-conf", "/x"]);
    assert_eq!(status, 1, "{line}");
    assert!(line.contains("takes no --ceph-conf"), "{line}");
}

/// The counters of the client of a host's only lane.
fn counters(host: &Host) -> Value {
    let mounts = host.mounts();
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    let pool = mounts[0]["pool"].as_str().expect("a name");
    let lane = format!("{pool}@{}", mounts[0]["service"]);
    let said = succeeds(&["stats", "--json", "--pool", &lane]);
    let all: Value = serde_json::from_str(&said).expect("JSON");
    all[0]["service"]["cluster"].clone()
}

#[test]
fn stats_show_what_the_client_of_a_lane_did() {
    let test = "stats_show_what_the_client_of_a_lane_did";
    let Some(cluster) = Cluster::for_test(test) else { return };
    let host = Host::new();
    let (pool, at) = (host.pool("client"), host.dir("at"));
    let (conf, place) = (cluster.conf(), format!("ceph:cephfs:{}", cluster.directory("client")));
    let settings = "--ceph-cache 16M --ceph-read-ahead 0 --ceph-threads 3 --dirty-limit 2M \
                    --flush-interval 1s";
    succeeds(&["pool", "create", &pool]);
    let mut words = vec!["mount", "--pool", &pool, "--ceph-conf", text(&conf)];
    words.extend(settings.split_whitespace());
    words.extend([place.as_str(), text(&at)]);
    succeeds(&words);
    let number = |counters: &Value, pointer: &str| counters.pointer(pointer)?.as_u64();
    let before = counters(&host);
    assert_eq!(number(&before, "/writes/calls"), Some(0), "{before}");
    std::fs::write(at.join("file"), vec![7; 3 << 20]).expect("a file");
    let file = std::fs::File::open(at.join("file")).expect("the file");
    file.sync_all().expect("a sync");
    assert_eq!(std::fs::read(at.join("file")).expect("the file").len(), 3 << 20);
    assert!(std::fs::metadata(at.join("none")).is_err());
    let after = counters(&host);
    for kind in ["reads", "writes", "syncs", "looks", "changes"] {
        let of = |name: &str| number(&after, &format!("/{kind}/{name}"));
        assert!(of("calls") > Some(0), "{kind}: {after}");
        assert!(of("total_us") >= of("longest_us") && of("calls") >= of("waited"), "{after}");
    }
    assert!(number(&after, "/changes/waited") > Some(0), "a new name is the MDS's: {after}");
    assert!(number(&after, "/inodes_held") >= Some(2), "{after}");
    assert!(number(&after, "/handles_open") >= Some(1), "{after}");
    // Of files that were synced alone, too.
    assert!(number(&after, "/unsynced_bytes").is_some_and(|bytes| bytes <= 3 << 20), "{after}");
    drop(file);
    succeeds(&["umount", text(&at)]);
    // A lane on no cluster has no such counters.
    let volume = host.path("volume.img");
    let source = format!("volume:{}", text(&volume));
    succeeds(&["mount", "--pool", &pool, "--size", "64M", &source, text(&at)]);
    assert!(counters(&host).is_null());
    succeeds(&["umount", text(&at)]);
}

#[test]
fn programs_of_a_lane_do_not_wait_for_each_others_calls_of_the_cluster() {
    let test = "programs_of_a_lane_do_not_wait_for_each_others_calls_of_the_cluster";
    let Some(cluster) = Cluster::for_test(test) else { return };
    // More programs than the lane has workers wait for names of the MDS, and all of them go on.
    let script = "cd /lane; for p in 1 2 3 4 5 6 7 8 9; do \
                  (mkdir $p; for n in $(seq 30); do echo $n > $p/$n; mv $p/$n $p/m$n; done) & \
                  done; wait; ls /lane/* | grep -c m";
    let timed = &["--cpus", "0", "--timeout", "60s"];
    for more in [&["--cpus", "0"][..], &["--no-preload"], &["--ceph-threads", "1"], timed] {
        let dir = cluster.directory("beside");
        let mut command = Command::new(binary());
        command.arg("run").args(cluster.options(&format!("cephfs:{dir}")).split(' ')).args(more);
        let output = command.args(["--", "sh", "-ec", script]).output().expect("polylane run");
        let said = String::from_utf8_lossy(&output.stdout);
        let err = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.trim() == "270", "{more:?}: {said}{err}");
    }
}

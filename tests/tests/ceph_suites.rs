//! fsx and pjdfstest on lanes on CephFS, by the library, by FUSE and by both at once, beside
//! ceph-fuse on the same cluster.
//!
//! xfstests' quick generic tests are run where ceph-fuse passes them.
//!
//! `POLYLANE_CEPH_FSX` is how many operations each fsx does; without it few, for `make test-ceph`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use polylane_testkit::effort::number;
use polylane_tests::ceph::{CephFuse, Cluster};
use polylane_tests::host::{Host, text};
use polylane_tests::pool::Run;
use polylane_tests::{Lane, Script, lacks, scripts, skip, tools};

/// Where lanes are, as for the same suites on other lanes.
const AT: &str = "/srv";

/// Operations of one fsx, unless more are asked for.
const OPERATIONS: u64 = 3000;

/// A run in a lane on a directory of the cluster.
fn run(cluster: &Cluster, root: &str, way: &str, script: &str) -> std::process::Output {
    let place = format!("admin@cephfs:{root}");
    let options = format!("{} --at {AT} {way}", cluster.options(&place));
    let operations = number("POLYLANE_CEPH_FSX", OPERATIONS);
    let more = Duration::from_secs(300 + operations / 20);
    Run::new(&options).longer(more).script(script).output()
}

fn fsx(seed: u64, file: &str) -> String {
    let (fsx, conf) = (tools().join("fsx"), scripts().join("fsx-ceph.toml"));
    let operations = number("POLYLANE_CEPH_FSX", OPERATIONS);
    format!("{} -q -f {} -N {operations} -S {seed} -P . {file}", text(&fsx), text(&conf))
}

#[test]
fn fsx_on_a_cluster_by_each_way_in() {
    let test = "fsx_on_a_cluster_by_each_way_in";
    let Some(cluster) = Cluster::for_test(test) else { return };
    if lacks(test, &["fsx"]) {
        return;
    }
    let root = cluster.directory("fsx");
    let seed = number("POLYLANE_SEED", 1);
    let plain = |number: u64, file: &str| format!("cd {AT} && {}", fsx(seed + number, file));
    // An empty one: the library puts one that is missing back.
    let both = format!(
        "cd {AT}; LD_PRELOAD= grep libpolylane /proc/self/maps && exit 9; LD_PRELOAD= {} & {}; \
         library=$?; wait $!; fuse=$?; exit $((library + fuse))",
        fsx(seed + 3, "by-fuse"),
        fsx(seed + 2, "by-library")
    );
    for (name, way, script) in [
        ("library", "", plain(0, "library")),
        ("FUSE", "--no-preload", plain(1, "fuse")),
        ("both", "", both),
    ] {
        let output = run(&cluster, &root, way, &script);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}, seed {seed}: {said}");
        println!("{test}: {name}: {} operations", number("POLYLANE_CEPH_FSX", OPERATIONS));
    }
}

/// Programs that people run, by the scripts of `make test-apps`, of `tests/apps` and
/// `tests/scripts`; git prints what it prints on tmpfs.
#[test]
fn programs_on_a_cluster_by_each_way_in() {
    let test = "programs_on_a_cluster_by_each_way_in";
    let Some(cluster) = Cluster::for_test(test) else { return };
    let apps = scripts().with_file_name("apps");
    let git = Script::file("git-session.sh").limit(120);
    let tar = "mkdir d; seq 20000 | split -l 20 - d/f; tar cf t.tar d; mkdir x; tar xf t.tar -C x; \
               diff -r d x/d; rm -r d x t.tar; ls -A";
    let of = |path: std::path::PathBuf| fs::read_to_string(path).expect("a script");
    for (name, needs, script) in [
        ("git", "git", git.text().to_string()),
        ("tar", "tar", tar.to_string()),
        ("postgresql", "pgbench", of(apps.join("postgresql.sh"))),
        ("rocksdb", "db_bench", of(apps.join("rocksdb.sh"))),
    ] {
        // Minutes, for a campaign.
        let is_left_out = name == "rocksdb" && std::env::var_os("POLYLANE_CEPH_ALL").is_none();
        if is_left_out || lacks(test, &[needs]) {
            continue;
        }
        for (door, way) in [("library", ""), ("FUSE", "--no-preload")] {
            let root = cluster.directory(name);
            let options = cluster.options(&format!("admin@cephfs:{root}"));
            let run = Run::new(&format!("{options} --at {AT} {way}"));
            let run = run.longer(Duration::from_secs(300)).env("LANE", AT).env("OTHER", "");
            let run = run.env("SECONDS_EACH", "3").env("HOME", AT).env("LC_ALL", "C.UTF-8");
            let (nowhere, script) = ("/dev/null", format!("set -eu; cd {AT}\n{script}"));
            let run = run.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", nowhere);
            let began = Instant::now();
            let output = run.script(&script).output();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{name}, {door}: {said}{errors}");
            let last = said.lines().last().unwrap_or_default();
            println!("{test}: {name}, {door}: {:?}: {last}", began.elapsed());
            match name {
                "git" => assert_eq!(said, git.run(Lane::Tmpfs).stdout, "{door}"),
                "tar" => assert_eq!(said, "", "{door}"),
                _ => {}
            }
        }
    }
}

/// Cases that fail on any client of Ceph, and why.
const FAILING: [(&str, &str); 1] =
    [("utimensat::y2038", "the cluster's times have 32 bits of seconds")];

/// Cases that are skipped: parts of their names.
const SKIPPED: [&str; 3] = ["erofs", "link_count_max", "posix_fallocate"];

/// Those that pass on some lanes and not on others, as for lanes that are not on a cluster.
const VARYING: [&str; 2] = ["open::etxtbsy", "truncate::etxtbsy"];

/// Names of cases, by how they ended: passed, failed, skipped.
fn cases(said: &str) -> [Vec<String>; 3] {
    let mut cases = [const { Vec::new() }; 3];
    for line in said.lines() {
        let Some((name, result)) = line.split_once(' ').filter(|(name, _)| name.contains("::"))
        else {
            continue;
        };
        let index = match result.trim() {
            "ok" | "success" => 0,
            "skipped" => 2,
            "FAILED" => 1,
            _ => continue,
        };
        cases[index].push(name.to_string());
    }
    cases
}

fn suite(dir: &str, other: &Path) -> String {
    let (suite, conf) = (tools().join("pjdfstest"), scripts().join("pjdfstest-ceph.toml"));
    let (suite, conf, other) = (text(&suite), text(&conf), text(other));
    format!("cd {dir}; chmod 755 .; {suite} -c {conf} -s {other} -p . || true")
}

#[test]
#[ignore = "minutes: for a campaign"]
fn pjdfstest_on_a_cluster_by_each_way_in() {
    let test = "pjdfstest_on_a_cluster_by_each_way_in";
    let Some(cluster) = Cluster::for_test(test) else { return };
    if lacks(test, &["pjdfstest"]) {
        return;
    }
    let other = tempfile::tempdir().expect("a directory on another file system");
    for (name, way) in [("library", ""), ("FUSE", "--no-preload")] {
        let root = cluster.directory("pjdfstest");
        let output = run(&cluster, &root, way, &suite(AT, other.path()));
        let [passed, failed, skipped] = cases(&String::from_utf8_lossy(&output.stdout));
        let numbers = (passed.len(), failed.len(), skipped.len());
        println!("{test}: {name}: {numbers:?} passed, failed, skipped: {failed:?}");
        let known = |case: &String| {
            VARYING.contains(&case.as_str()) || FAILING.iter().any(|(name, _)| name == case)
        };
        let new: Vec<_> = failed.iter().filter(|case| !known(case)).collect();
        assert!(new.is_empty(), "{name}: {new:?}");
        let left_out = |case: &String| SKIPPED.iter().any(|part| case.contains(part));
        let left: Vec<_> = skipped.iter().filter(|case| !left_out(case)).collect();
        assert!(left.is_empty(), "{name}: skipped: {left:?}");
        assert_eq!(numbers.0 + numbers.1 + numbers.2, 398, "{name}");
    }
}

/// The same by ceph-fuse, for the table: what it fails says nothing of a lane.
#[test]
#[ignore = "no test of polylane: for the table of a campaign"]
fn suites_by_ceph_fuse() {
    let test = "suites_by_ceph_fuse";
    let Some(cluster) = Cluster::for_test(test) else { return };
    if lacks(test, &["fsx", "pjdfstest", "ceph-fuse"]) {
        return;
    }
    let (host, other) = (Host::new(), tempfile::tempdir().expect("another file system"));
    let (root, at) = (cluster.directory("peer"), host.dir("peer"));
    let mounted = CephFuse::new(&cluster, &root, &at, &["--fuse_default_permissions=true"]);
    let sh = |script: &str| {
        let output = Command::new("sh").args(["-c", script]).output().expect("sh");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = sh(&format!("cd {}; {} >&2 && echo passed", text(&at), fsx(1, "file")));
    println!("{test}: fsx: {}", if said.is_empty() { "failed" } else { said.trim() });
    fs::create_dir(at.join("p")).expect("a directory");
    let [passed, failed, skipped] = cases(&sh(&suite(text(&at.join("p")), other.path())));
    let numbers = (passed.len(), failed.len(), skipped.len());
    println!("{test}: pjdfstest: {numbers:?} passed, failed, skipped: {failed:?}");
    drop(mounted);
}

/// Of xfstests, left out: tests of mount options, which need another mount.
const OF_MOUNT_OPTIONS: [&str; 6] = ["003", "120", "128", "294", "306", "452"];

/// Seconds of one test of xfstests.
const XFSTESTS_LIMIT: &str = "150";

/// Those that pass on ceph-fuse and not on a lane, and why.
const XFSTESTS_KNOWN: [(&str, &str); 0] = [];

/// The quick generic tests of an xfstests that is built.
fn quick(xfstests: &Path) -> Vec<String> {
    if let Ok(only) = std::env::var("POLYLANE_XFSTESTS_ONLY") {
        return only.split_whitespace().map(str::to_string).collect();
    }
    let found = fs::read_dir(xfstests.join("tests/generic")).expect("tests");
    let names = found.map(|entry| entry.expect("a file").file_name().into_string().expect("text"));
    let is_quick = |name: &String| {
        name.len() == 3
            && !OF_MOUNT_OPTIONS.contains(&name.as_str())
            && fs::read_to_string(xfstests.join("tests/generic").join(name)).is_ok_and(|text| {
                let groups = text.lines().find(|line| line.starts_with("_begin_fstest"));
                groups.is_some_and(|line| line.split(' ').any(|group| group == "quick"))
            })
    };
    let mut names: Vec<_> = names.filter(is_quick).map(|name| format!("generic/{name}")).collect();
    names.sort();
    names
}

/// Names of tests with a result, by the lines of `xfstests.sh`.
fn ended(said: &str, result: &str) -> Vec<String> {
    let lines = said.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(_, how)| *how == result).map(|(name, _)| name.to_string()).collect()
}

/// What passes on ceph-fuse passes on a lane, by the library and by FUSE.
#[test]
#[ignore = "hours: for a campaign"]
fn xfstests_where_ceph_fuse_passes() {
    let test = "xfstests_where_ceph_fuse_passes";
    let Some(cluster) = Cluster::for_test(test) else { return };
    if lacks(test, &["ceph-fuse"]) {
        return;
    }
    let xfstests = tools().ancestors().nth(2).expect("the target directory").join("xfstests");
    let build = scripts().join("../../scripts/build-xfstests.sh");
    let built = Command::new(build).arg(&xfstests).output().expect("the script");
    if !built.status.success() {
        let why = String::from_utf8_lossy(&built.stderr).into_owned();
        assert_eq!(built.status.code(), Some(77), "{why}");
        return skip(test, why.trim());
    }
    let xfstests = xfstests.canonicalize().expect("what was built");
    let script = fs::read_to_string(scripts().join("xfstests.sh")).expect("a script");
    let (host, all) = (Host::new(), quick(&xfstests));
    let at = host.dir("peer");
    let env = |tests: &[String]| {
        let (tests, built) = (tests.join(" "), text(&xfstests).to_string());
        [("TESTS", tests), ("XFSTESTS", built), ("LIMIT", XFSTESTS_LIMIT.to_string())]
    };
    let root = cluster.directory("xfstests-peer");
    let mounted = CephFuse::new(&cluster, &root, &at, &["--fuse_default_permissions=true"]);
    let mut peer = Command::new("bash");
    let peer = peer.args(["-c", &script]).envs(env(&all)).env("DEVICE", "ceph-fuse").env("AT", &at);
    let said = String::from_utf8_lossy(&peer.output().expect("bash").stdout).into_owned();
    drop(mounted);
    let good = ended(&said, "pass");
    println!("{test}: ceph-fuse: {} of {} pass", good.len(), all.len());
    assert!(!good.is_empty(), "{said}");
    let mut new = Vec::new();
    for (door, way) in [("library", ""), ("FUSE", "--no-preload")] {
        let root = cluster.directory("xfstests");
        let options = cluster.options(&format!("admin@cephfs:{root}"));
        let run = Run::new(&format!("{options} --at {AT} {way}"));
        let run = run.longer(Duration::from_secs(160) * u32::try_from(good.len()).expect("few"));
        let run = env(&good).into_iter().fold(run, |run, (name, value)| run.env(name, &value));
        let run = run.env("DEVICE", "polylane").env("AT", AT);
        let output = run.arg("--").arg("bash").arg("-c").arg(&script).output();
        let said = String::from_utf8_lossy(&output.stdout);
        let passed = ended(&said, "pass");
        let others: Vec<_> = good.iter().filter(|name| !passed.contains(name)).collect();
        println!("{test}: {door}: {} of {} pass; not: {others:?}", passed.len(), good.len());
        // ceph-fuse takes space for granted that it does not have; a lane says EOPNOTSUPP.
        let left = ended(&said, "not");
        let wants_space = |name: &str| {
            let text = fs::read_to_string(xfstests.join("tests").join(name)).unwrap_or_default();
            text.contains("_require_xfs_io_command \"falloc\"")
        };
        let known = |name: &str| {
            XFSTESTS_KNOWN.iter().any(|(known, _)| *known == name)
                || left.iter().any(|left| left == name) && wants_space(name)
        };
        let others = others.into_iter().filter(|name| !known(name));
        new.extend(others.map(|name| format!("{name} by {door}")));
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(new.is_empty(), "{new:?}");
}

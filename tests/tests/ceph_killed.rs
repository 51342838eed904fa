//! The service of a lane on CephFS is killed under load, at random times: the next one takes its
//! programs over, what was synced is there, and what may be lost is told (`scripts/kills.py`).
//! A client of another process judges what is left.
//!
//! `POLYLANE_SEED` and `POLYLANE_KILLS` choose another course, and a longer one.

use std::io::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_testkit::effort::number;
use polylane_tests::ceph::Cluster;
use polylane_tests::host::until;
use polylane_tests::pool::{Run, signal_to};
use polylane_tests::{lacks, scripts};

#[test]
fn a_service_that_is_killed_under_load_loses_nothing_that_was_synced() {
    let test = "a_service_that_is_killed_under_load_loses_nothing_that_was_synced";
    let Some(cluster) = Cluster::for_test(test) else { return };
    if lacks(test, &["/usr/bin/python3"]) {
        return;
    }
    let (seed, kills) = (number("POLYLANE_SEED", 1), number("POLYLANE_KILLS", 5));
    for (number, way) in ["", "--no-preload"].into_iter().enumerate() {
        let seed = seed + number as u64 * 1000;
        let mut random = Rng::new(seed);
        let root = cluster.directory("killed");
        let place = format!("admin@cephfs:{root}");
        let run = Run::new(&format!("{} {way}", cluster.options(&place)));
        let run = run.longer(Duration::from_secs(30 * kills));
        let program = scripts().join("kills.py");
        let script = format!("cd /lane && exec /usr/bin/python3 -B {} {seed}", program.display());
        let (mut run, mut input) = run.script(&script).start_with_input();
        for kill in 0..kills {
            let service = run.service();
            writeln!(input, "go").expect("a line");
            thread::sleep(Duration::from_millis(random.below(3000)));
            let killed = Instant::now();
            signal_to(service, "KILL");
            let said = run.line();
            eprintln!("{test} {way}, seed {seed}, kill {kill}: {said}");
            assert!(said.ends_with("losses told"), "{way}, seed {seed}: {said}");
            assert_ne!(run.service(), service, "{way}, seed {seed}");
            // A service that dies too often within half a minute is not started again.
            thread::sleep(Duration::from_millis(3500).saturating_sub(killed.elapsed()));
        }
        writeln!(input, "end").expect("a line");
        let files: Vec<String> = (0..4).map(|_| run.line()).collect();
        assert_eq!(run.end().code(), Some(0), "{way}, seed {seed}: {files:?}");
        let script = "cd /lane; for f in a b c d; do set -- $(sha256sum < $f); \
                      echo $f $(stat -c %s $f) $1; done";
        let found = cluster.run(&place, &[], script);
        let found: Vec<String> =
            String::from_utf8_lossy(&found.stdout).lines().map(str::to_string).collect();
        assert_eq!(found, files, "{way}, seed {seed}: as another client finds it");
        until("its sessions have ended", || cluster.sessions(&root).is_empty());
    }
}

//! Databases whose lane is cut off: everything of the run is killed at once, and the volume is
//! opened anew. What was committed is there.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_tests::host::succeeds;
use polylane_tests::pool::{Run, Running, no_library, signal_to};
use polylane_tests::volume::assert_clean;
use polylane_tests::{lacks, unavailable};

/// Longest wait for the remains of a killed run to let go of its volume.
const PATIENCE: Duration = Duration::from_secs(60);

/// Commits numbers, one after the other, and says which are committed.
const SQLITE: &str = "cd /lane; /usr/bin/python3 -c '
import sqlite3, sys
db = sqlite3.connect(\"db\", isolation_level=None)
db.execute(\"PRAGMA journal_mode=\" + sys.argv[1])
db.execute(\"PRAGMA synchronous=EXTRA\")
db.execute(\"CREATE TABLE IF NOT EXISTS t(n INTEGER PRIMARY KEY, filling BLOB)\")
last = db.execute(\"SELECT coalesce(max(n), 0) FROM t\").fetchone()[0]
while True:
    last += 1
    db.execute(\"BEGIN\")
    db.execute(\"INSERT INTO t VALUES(?, randomblob(?))\", (last, last * 97 % 9000))
    db.execute(\"COMMIT\")
    print(last, flush=True)
' $JOURNAL";

/// What the database holds, as its own programs say: sound, how many, the last.
const SQLITE_LOOK: &str = "cd /lane; sqlite3 db \
    'PRAGMA integrity_check; SELECT count(*), max(n) FROM t' | tr '|' ' '";

/// Kills supervisor and service at once; other processes of the run end with them.
fn cut_off(mut run: Running) {
    let service = run.service();
    run.signal("KILL");
    signal_to(service, "KILL");
    run.child.wait().expect("killed");
}

/// The words of a look at the volume, once no process has it any more.
fn look(volume: &Path, script: &str) -> Vec<String> {
    let begun = Instant::now();
    loop {
        let output = Run::new("--volume").arg(volume).script(script).output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            return text.split_whitespace().map(String::from).collect();
        }
        assert!(said.contains("in use") && begun.elapsed() < PATIENCE, "{said}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn committed_transactions_of_sqlite_survive_a_cut() {
    let name = "committed_transactions_of_sqlite_survive_a_cut";
    if unavailable(name) || lacks(name, &["mke2fs", "e2fsck", "sqlite3", "python3"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    for journal in ["DELETE", "WAL"] {
        let volume = dir.path().join(journal);
        let mut committed = 0;
        for commits in [25, 3, 40] {
            let run = Run::new("--size 256M --volume").arg(&volume).env("JOURNAL", journal);
            let mut run = run.script(SQLITE).start();
            for _ in 0..commits {
                let line = run.line();
                committed = line.parse::<u64>().unwrap_or_else(|_| panic!("{journal}: {line}"));
            }
            cut_off(run);
            let found = look(&volume, SQLITE_LOOK);
            let [sound, count, last] = &found[..] else { panic!("{journal}: {found:?}") };
            assert_eq!((&**sound, count), ("ok", last), "{journal}");
            // One more may have been committed and not told.
            assert!(last.parse::<u64>().expect("a number") >= committed, "{journal}: {found:?}");
            assert_clean(&volume);
        }
    }
}

/// Runs a number of transactions each time that it is told to.
const SQLITE_ROUNDS: &str = "cd /lane; exec /usr/bin/python3 -c '
import sqlite3, sys
db = sqlite3.connect(\"db\", isolation_level=None)
db.execute(\"PRAGMA journal_mode=\" + sys.argv[1])
db.execute(\"PRAGMA synchronous=EXTRA\")
db.execute(\"CREATE TABLE t(n INTEGER PRIMARY KEY, filling BLOB)\")
for line in sys.stdin:
    for n in range(int(line)):
        db.execute(\"INSERT INTO t(filling) VALUES(randomblob(900))\")
    print(\"done\", flush=True)
' $JOURNAL";

/// How often a run's service was asked for each operation by that way.
fn asked_by(run: &Running, way: &str) -> serde_json::Map<String, serde_json::Value> {
    let stats: serde_json::Value =
        serde_json::from_str(&succeeds(&["stats", "--json", "--pool", &run.pool])).expect("JSON");
    let counts = &stats[0]["service"][way]["by_operation"];
    counts.as_object().expect("counts").clone()
}

/// A transaction opens and syncs the directory once or twice.
#[test]
fn transactions_of_sqlite_ask_the_kernel_for_nothing() {
    let name = "transactions_of_sqlite_ask_the_kernel_for_nothing";
    if unavailable(name) || no_library(name) || lacks(name, &["mke2fs", "sqlite3", "python3"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    for journal in ["DELETE", "WAL"] {
        let volume = dir.path().join(journal);
        let run = Run::new("--size 256M --volume").arg(&volume).env("JOURNAL", journal);
        let (mut run, mut input) = run.script(SQLITE_ROUNDS).start_with_input();
        let mut round = |run: &mut Running, count: u32| {
            writeln!(input, "{count}").expect("write");
            assert_eq!(run.line(), "done", "{journal}");
            asked_by(run, "fuse")
        };
        let before = round(&mut run, 20);
        let after = round(&mut run, 50);
        assert_eq!(before, after, "{journal}");
        drop(input);
        assert_eq!(run.end().code(), Some(0), "{journal}");
    }
}

/// A transaction asks for the state of the database by its path, and writes to it: neither that nor
/// the read and fstat before end the loan, so its pages are written without a request.
#[test]
fn transactions_of_sqlite_write_to_their_database_unasked() {
    const COUNT: u32 = 300;
    let name = "transactions_of_sqlite_write_to_their_database_unasked";
    if unavailable(name) || no_library(name) || lacks(name, &["mke2fs", "sqlite3", "python3"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let run = Run::new("--size 256M --volume").arg(dir.path().join("volume"));
    let (mut run, mut input) =
        run.env("JOURNAL", "DELETE").script(SQLITE_ROUNDS).start_with_input();
    let mut round = |run: &mut Running, count: u32| {
        writeln!(input, "{count}").expect("write");
        assert_eq!(run.line(), "done");
        let counts = asked_by(run, "shared_memory");
        ["write", "fstat"].map(|of| counts[of].as_u64().expect("a count"))
    };
    let before = round(&mut run, 50);
    let after = round(&mut run, COUNT);
    let [writes, states] = [0, 1].map(|of| after[of] - before[of]);
    // Of the journal, which is new each time, the state is asked for. A page that is new in the
    // database is a request, as is what follows the flusher's turn.
    assert!(writes < u64::from(COUNT), "{writes} writes");
    assert!(states < u64::from(COUNT) * 5 / 4, "{states} questions");
    drop(input);
    assert_eq!(run.end().code(), Some(0));
}

/// Writes so many pages of a log, each after the one before and the new end of that one, and makes
/// each write durable; then the pages are what was written.
const LOG: &str = "cd /lane; exec /usr/bin/python3 -c '
import os, sys
PAGE = 8192
def page(n): return bytes([n % 251 + 1]) * PAGE
log = os.open(\"log\", os.O_RDWR | os.O_CREAT)
os.pwrite(log, bytes(4 << 20), 0)
os.fsync(log)
at = 0
for line in sys.stdin:
    for at in range(at + 1, at + 1 + int(line)):
        os.pwrite(log, page(at - 1) + page(at), (at - 1) * PAGE)
        os.fdatasync(log)
    seen = os.pread(log, (at + 1) * PAGE, 0)
    print(seen == b\"\".join(map(page, range(at + 1))), flush=True)
'";

/// A log that goes on in the page behind the one that it wrote last asks for its syncs alone: that
/// page is on loan, and the next one is written by the stream.
#[test]
fn a_log_that_goes_on_asks_for_its_syncs_alone() {
    let name = "a_log_that_goes_on_asks_for_its_syncs_alone";
    if unavailable(name) || no_library(name) || lacks(name, &["mke2fs", "python3"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let run = Run::new("--size 256M --volume").arg(dir.path().join("volume"));
    let (mut run, mut input) = run.script(LOG).start_with_input();
    let mut round = |run: &mut Running, count: u32| {
        writeln!(input, "{count}").expect("write");
        assert_eq!(run.line(), "True");
        let counts = asked_by(run, "shared_memory");
        ["write", "fsync"].map(|of| counts[of].as_u64().expect("a count"))
    };
    let before = round(&mut run, 20);
    let after = round(&mut run, 200);
    assert_eq!(after[1] - before[1], 200);
    // Another one where the flusher's turn, or a process that looks, ends the loan in between.
    assert!(after[0] - before[0] < 20, "{before:?} {after:?}");
    drop(input);
    assert_eq!(run.end().code(), Some(0));
}

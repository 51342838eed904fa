//! A medium that fails: at every request of a workload in turn, once and for good.
//!
//! The file system must stop, say so, and never panic or hang; opened again on a medium that works
//! it must show everything that was acknowledged as durable.

use std::sync::mpsc;
use std::time::Duration;

use polylane_block::Error as DeviceError;
use polylane_ext4::DataMode;
use polylane_testkit::effort::is_full;
use polylane_testkit::sim::{Fault, FaultOn, Image, SimDisk, SimOptions};

use super::oracle::{History, Span, Window};
use super::script::{Op, Runner};
use super::states::{FEATURES, Run, Workload, format, keep, look, open, record, reopen_with};
use super::tree::Tree;
use super::{Limit, ace, have_tools, judge, spread};

/// Longer than any of these takes on a busy machine, or in a campaign that gives way to all else.
const PATIENCE: Duration = Duration::from_secs(300);

/// How far a run with a fault came.
struct Outcome {
    image: Image,
    /// Operations that were acknowledged.
    acknowledged: Vec<bool>,
    /// Requests that failed.
    failures: u64,
    opened: bool,
    stopped: bool,
    /// What stopped it is known.
    named: bool,
    closed: bool,
    /// What it went through itself, refusals and all; where trees could be read to the end.
    own: Option<History>,
}

fn run_with(base: &Image, ops: &[Op], fault: Fault, warm: bool) -> Outcome {
    let options = SimOptions { fault: Some(fault), ..SimOptions::default() };
    let disk = SimDisk::new(base.clone(), options);
    let mut acknowledged = Vec::new();
    let Ok(fs) = open(&disk) else {
        let (image, failures) = (disk.image(), disk.failures());
        let (opened, stopped, named, closed) = (false, true, true, false);
        let own = None;
        return Outcome { image, acknowledged, failures, opened, stopped, named, closed, own };
    };
    let mut runner = Runner::new(&fs, warm);
    // Looks as often as the recorded run did, so that clocks and caches go the same way.
    let mut seen = vec![look(&fs, &runner)];
    let mut own = History::default();
    for op in ops {
        let bytes_of = runner.synced(op);
        let ok = runner.apply(op).is_ok();
        acknowledged.push(ok);
        seen.push(look(&fs, &runner));
        own.spans.push(Span { op: op.clone(), start: 0, end: 1, ok, promises: 0, bytes_of });
    }
    let seen: Result<Vec<Tree>, String> = seen.into_iter().collect();
    let own = seen.ok().map(|states| promising(History { states, ..own }));
    runner.release_all();
    drop(runner);
    let (stopped, named) = (fs.is_stopped(), fs.stopped_by().is_some());
    let closed = fs.close().is_ok();
    drop(fs);
    let (image, failures) = (disk.image(), disk.failures());
    Outcome { image, acknowledged, failures, opened: true, stopped, named, closed, own }
}

/// The same history, with what its syncs promised.
fn promising(mut own: History) -> History {
    for at in 0..own.spans.len() {
        let states = own.states[..at + 2].to_vec();
        let upto = History { states, ..History::default() };
        own.spans[at].promises = match (&own.spans[at].op, own.spans[at].bytes_of) {
            (Op::Sync, _) => at + 1,
            (Op::Fdatasync(_), Some(ino)) => upto.last_change(ino, true),
            (_, Some(ino)) => upto.last_change(ino, false),
            _ => 0,
        };
    }
    own
}

/// The same on a thread of its own, so that a hang is a failure.
fn guarded(base: &Image, ops: &[Op], fault: Fault, warm: bool) -> Outcome {
    let (send, receive) = mpsc::channel();
    let (base, ops_here) = (base.clone(), ops.to_vec());
    std::thread::spawn(move || {
        let _ = send.send(run_with(&base, &ops_here, fault, warm));
    });
    match receive.recv_timeout(PATIENCE) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs with {fault:?}: {ops:#?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("panics with {fault:?}: {ops:#?}"),
    }
}

/// What may be found after a fault: at least what was promised before the first answer that differs
/// from the good run's, at most what had begun by then. A refused operation may have done part of
/// its work, in memory.
fn window(run: &Run, outcome: &Outcome) -> Window {
    if !outcome.opened {
        return run.history.window(0);
    }
    let spans = &run.history.spans;
    let went = |at: &usize| outcome.acknowledged.get(*at) == Some(&spans[*at].ok);
    run.history.window_after((0..outcome.acknowledged.len()).take_while(went).count())
}

/// Runs with one fault. False when the run ended before it struck.
fn check(run: &Run, ops: &[Op], fault: Fault, warm: bool) -> Result<bool, String> {
    let outcome = guarded(&run.base, ops, fault, warm);
    let window = window(run, &outcome);
    let whole = outcome.closed && !outcome.stopped;
    let struck = outcome.failures > 0;
    if outcome.opened && !outcome.stopped && !outcome.closed && !struck {
        return Err(format!("neither stopped nor closed, with {fault:?}"));
    }
    if outcome.stopped && !outcome.named {
        return Err(format!("stopped, and nobody knows why, with {fault:?}"));
    }
    let fsck = fault.nth.is_multiple_of(8);
    // Where the good run ends: a commit that was refused may be on the medium whole, and what was
    // refused before and done after is in no history but its own.
    let legal = |found: &Tree| match (run.history.judge(found, &window), &outcome.own) {
        (Ok(_), _) => Ok(()),
        (Err(_), Some(own)) if !outcome.stopped => own.judge(found, &own.window(1)).map(drop),
        (Err(why), _) => Err(why),
    };
    reopen_with(&outcome.image, fsck, &legal).map_err(|why| {
        keep(&outcome.image);
        format!("{why}\nwith {fault:?}, {:?}", outcome.acknowledged)
    })?;
    if whole {
        judge::clean(&outcome.image)?;
    }
    Ok(struck)
}

#[test]
fn a_medium_that_fails_stops_the_file_system_and_loses_nothing() {
    if !have_tools() {
        return;
    }
    let (all, mut tried, mut done) = (ace::depth_one(), 0, 0);
    let (count, reads) = if is_full() { (all.len(), 1) } else { (14, 9) };
    let limit = Limit::list(count);
    let bases = FEATURES.map(|features| format(features, &ace::setup()));
    while !limit.ends_at(done) {
        let (ops, base) = (spread(&all, done), &bases[done % bases.len()]);
        let warm = done % 3 == 0;
        done += 1;
        let data = DataMode::Ordered;
        let workload = Workload { ops: ops.clone(), delay: None, warm, backwards: false, data };
        let run = record(base, &workload).expect("works on a good medium");
        let kinds = [(FaultOn::Write, 1), (FaultOn::Flush, 1), (FaultOn::Read, reads)];
        for (on, stride) in kinds.into_iter().chain([(FaultOn::Durable, 1)]) {
            for nth in (0..).step_by(stride) {
                let lasting = tried % 2 == 1;
                match check(&run, ops, Fault { lasting, ..Fault::eio(on, nth) }, warm) {
                    Ok(true) => tried += 1,
                    Ok(false) => break,
                    Err(why) => panic!("{why}\nworkload: {ops:#?}"),
                }
            }
        }
    }
    let told = limit.told(0, done);
    println!("crash: faults: {told}; {tried} runs, each with a request that fails");
    assert!(tried > 300);
}

/// The host's disk is full: writes answer `ENOSPC` until there is space again.
#[test]
fn a_full_host_loses_nothing() {
    if !have_tools() {
        return;
    }
    let base = format(FEATURES[0], &ace::setup());
    let all = ace::depth_one();
    let (limit, mut done) = (Limit::list(if is_full() { all.len() } else { 6 }), 0);
    while !limit.ends_at(done) {
        let ops = spread(&all, done);
        done += 1;
        let data = DataMode::Ordered;
        let workload =
            Workload { ops: ops.clone(), delay: None, warm: false, backwards: false, data };
        let run = record(&base, &workload).expect("works with space");
        for nth in 0.. {
            let error = DeviceError::NoSpace;
            let fault = Fault { on: FaultOn::Write, nth, error, lasting: true };
            match check(&run, ops, fault, false) {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => panic!("{why}\nworkload: {ops:#?}"),
            }
        }
    }
    println!("crash: full host: {}", limit.told(0, done));
}

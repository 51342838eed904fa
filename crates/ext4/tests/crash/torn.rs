//! Commits by one write, torn in every way: after each of its sectors, without each of them, and
//! every subset of its blocks. What is found must be the state before or the one after. And commits
//! that revoke more than a sector says: their sums leave revoke blocks out, so these are durable
//! before the commit block is written.

use polylane_base::rng::Rng;
use polylane_ext4::DataMode;
use polylane_testkit::effort::is_full;
use polylane_testkit::sim::{Crash, Event, Fate, Image, Tear};
use polylane_vfs::fs::RenameMode;

use super::script::Op;
use super::states::{Run, Workload, keep, record, reopen, tear};
use super::{have_tools, images, judge};

/// Blocks of which every subset is tried; of larger writes, some subsets.
const SUBSET_BLOCKS: usize = 6;

/// Subsets of a larger write, or where not all is looked at.
const SAMPLE: usize = 24;

/// What writers of logs, databases and mail do.
fn workload() -> Vec<Op> {
    let path = |name: &str| name.to_string();
    let mut ops = vec![Op::Create(path("log")), Op::Fsync(path("log"))];
    for at in 0..6 {
        ops.push(Op::Write(path("log"), at * 1000, 1000));
        ops.push(Op::Fdatasync(path("log")));
    }
    for round in 0..3 {
        ops.push(Op::Create(path("new")));
        ops.push(Op::Write(path("new"), 0, 4096));
        ops.push(Op::Fsync(path("new")));
        ops.push(Op::Rename(path("new"), path("foo"), RenameMode::Replace));
        ops.push(Op::Fsync(path("")));
        ops.push(Op::Write(path("log"), 500 * round, 9000));
        ops.push(Op::Fsync(path("log")));
    }
    ops
}

/// The ways in which a write of `bytes` may be torn, and how far it tears.
fn tears(rng: &mut Rng, bytes: usize) -> Vec<(Tear, Fate)> {
    let (sectors, blocks) = (bytes / 512, bytes / 4096);
    let sector = || Tear::at(512);
    let some = |rng: &mut Rng, all: Vec<usize>| -> Vec<usize> {
        match is_full() || all.len() <= SAMPLE {
            true => all,
            false => (0..SAMPLE).map(|_| *rng.pick(&all)).collect(),
        }
    };
    let begun = some(rng, (1..sectors).collect());
    let without = some(rng, (0..sectors).collect());
    let every = blocks <= SUBSET_BLOCKS && is_full();
    let subsets: Vec<u64> = match every {
        true => (0..1 << blocks).collect(),
        false => (0..SAMPLE).map(|_| rng.next_u64()).collect(),
    };
    let begun = begun.into_iter().map(|count| (sector(), Fate::Begun(count)));
    let without = without.into_iter().map(|at| (sector(), Fate::Without(at)));
    let subsets = subsets.into_iter().map(|bits| (Tear::at(4096), Fate::Parts(bits)));
    begun.chain(without).chain(subsets).collect()
}

/// Tears every commit by one write of a run. How many states were looked at.
fn explore(run: &Run, rng: &mut Rng) -> Result<usize, String> {
    let mut crash = Crash::new(&run.base, &run.events);
    let (mut states, mut judged) = (0, 0);
    while crash.advance().is_some() {
        let Event::Write { data, fua: true, .. } = &run.events[crash.position() - 1] else {
            continue;
        };
        if data.len() <= 4096 {
            continue;
        }
        let (window, last) = (run.history.window(crash.position()), crash.in_doubt() - 1);
        for (tear, fate) in tears(rng, data.len()) {
            let image = crash.image(&tear, |n| if n == last { fate } else { Fate::Kept });
            let every = if is_full() { 10 } else { 40 };
            let outside = rng.below(every) == 0;
            let what = format!("after event {}, {fate:?}", crash.position());
            look(run, &image, &window, outside).map_err(|why| {
                keep(&image);
                format!("{why}\n{what}")
            })?;
            states += 1;
            judged += usize::from(outside);
        }
    }
    println!("crash: torn commits: {states} states, {judged} of them by e2fsck and the kernel");
    Ok(states)
}

fn look(
    run: &Run,
    image: &Image,
    window: &super::oracle::Window,
    outside: bool,
) -> Result<(), String> {
    let found = reopen(&run.history, image, window, outside)?;
    if outside {
        judge::recovered(image)?;
        if let Some(seen) = judge::kernel(image)? {
            super::states::agree(&found, &seen)?;
        }
    }
    Ok(())
}

#[test]
fn a_commit_by_one_write_is_there_whole_or_not_at_all() {
    if !have_tools() {
        return;
    }
    let mut rng = Rng::new(27);
    for (at, base) in images().iter().enumerate() {
        let data = if at % 2 == 1 { DataMode::Data } else { DataMode::Ordered };
        let workload =
            Workload { ops: workload(), delay: None, warm: true, backwards: at == 2, data };
        let run = record(base, &workload).expect("runs");
        match explore(&run, &mut rng) {
            Ok(states) => assert!(states > 100, "no commit took one write: {states}"),
            Err(why) => panic!("image {at}: {why}"),
        }
    }
}

/// Blocks of a file that are logged, [`AT_A_TIME`] by each sync, and revoked together when it is
/// removed: more records than a sector holds, which is 62.
const REVOKED: u64 = 90;
/// All of them together take less than half of the log: a checkpoint in between would leave less
/// to revoke.
const AT_A_TIME: u64 = 9;

fn revoking() -> Vec<Op> {
    let path = |name: &str| name.to_string();
    let mut ops = vec![Op::Create(path("log")), Op::Create(path("new"))];
    for at in (0..REVOKED).step_by(AT_A_TIME as usize) {
        ops.push(Op::Write(path("new"), at * 4096, AT_A_TIME as usize * 4096));
        ops.push(Op::Fsync(path("new")));
    }
    ops.push(Op::Unlink(path("new")));
    ops.push(Op::Fsync(path("")));
    // Over what was freed, in place and logged.
    ops.push(Op::Write(path("log"), 0, 200_000));
    ops.push(Op::Fsync(path("log")));
    ops.push(Op::Write(path("log"), 1000, 5000));
    ops.push(Op::Fdatasync(path("log")));
    ops
}

/// Whether an event writes a revoke block first, and more behind it.
fn revokes(event: &Event) -> bool {
    const REVOKE_BLOCK: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 5];
    let Event::Write { data, fua: false, .. } = event else { return false };
    data.len() > 4096 && data[..8] == REVOKE_BLOCK
}

/// Tears each write in doubt from the first that revokes on, and leaves others out. How many states
/// were looked at.
fn explore_revokes(run: &Run, rng: &mut Rng) -> Result<usize, String> {
    let first = run.events.iter().position(revokes).ok_or("nothing is revoked before a flush")?;
    let mut crash = Crash::new(&run.base, &run.events);
    let mut states = 0;
    while let Some(changed) = crash.advance() {
        if crash.position() <= first || !changed {
            continue;
        }
        let window = run.history.window(crash.position());
        for torn in 0..crash.in_doubt() {
            let sector = Fate::Parts(rng.next_u64());
            let ways = [
                (Tear::at(4096), Fate::Lost),
                (Tear::at(4096), Fate::Parts(rng.next_u64())),
                (tear(true), sector),
                (tear(true), Fate::Without(0)),
            ];
            for (how, fate) in ways {
                let image = crash.image(&how, |n| if n == torn { fate } else { Fate::Kept });
                let every = if is_full() { 4 } else { 20 };
                let outside = how.unit_bytes == 4096 && rng.below(every) == 0;
                look(run, &image, &window, outside).map_err(|why| {
                    keep(&image);
                    format!("{why}\nafter event {}: write {torn}: {fate:?}", crash.position())
                })?;
                states += 1;
            }
        }
    }
    Ok(states)
}

#[test]
fn a_commit_that_revokes_much_is_there_whole_or_not_at_all() {
    if !have_tools() {
        return;
    }
    let mut rng = Rng::new(62);
    for (at, base) in images().iter().enumerate() {
        let ops = revoking();
        let workload =
            Workload { ops, delay: None, warm: false, backwards: at == 2, data: DataMode::Data };
        let run = record(base, &workload).expect("runs");
        match explore_revokes(&run, &mut rng) {
            Ok(states) => assert!(states > 20, "image {at}: {states}"),
            Err(why) => panic!("image {at}: {why}"),
        }
    }
}

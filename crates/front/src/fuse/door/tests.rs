//! What becomes of a session whose threads cannot be started.

use std::cell::{Cell, RefCell};

use polylane_base::rng::Rng;
use polylane_base::sync::atomic::AtomicU32;

use super::*;

fn event() -> Stop {
    Stop::new().expect("an eventfd")
}

/// Waits until it is so, or until a session that never comes there has been given up.
fn until(done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done() && Instant::now() < end {
        thread::yield_now();
    }
}

/// What a tenant at its limit of processes makes of a session: it goes on, threads are there once
/// they can be, each once and after those that it waits for, and somebody is told once.
#[test]
fn threads_that_cannot_be_started_are_tried_again() {
    let late = [Helper::Slots, Helper::Names, Helper::Fills];
    for seed in 0..8 {
        let mut rng = Rng::new(seed);
        let (stop, ended, bell) = (event(), event(), Bell::new().expect("an eventfd"));
        let (begun, told) = (RefCell::new(Vec::new()), Cell::new(0));
        let runs = Mutex::new(Vec::new());
        let mut refusals: Vec<u64> = (0..Helper::ALL.len()).map(|_| rng.below(3)).collect();
        let expected = u32::from(refusals.iter().any(|count| *count > 0));
        let mut order = late.to_vec();
        order.rotate_left(rng.below(3) as usize);
        thread::scope(|scope| {
            let begin = |helper: Helper| {
                if let Some(left) = refusals[helper as usize].checked_sub(1) {
                    refusals[helper as usize] = left;
                    return Err(rustix::io::Errno::AGAIN.into());
                }
                begun.borrow_mut().push(helper);
                let runs = &runs;
                thread::Builder::new().spawn_scoped(scope, move || runs.lock().push(helper))
            };
            let tell = |_: io::Error| told.set(told.get() + 1);
            let mut aside = Aside::new(&bell, begin, &tell);
            Helper::FIRST.into_iter().for_each(|helper| bell.ring(helper));
            scope.spawn(|| {
                order.iter().for_each(|helper| bell.ring(*helper));
                until(|| runs.lock().len() == Helper::ALL.len());
                stop.request();
            });
            let result = wait_for_end((&stop, &ended), &bell, || aside.begin_wanted(&Helper::ALL));
            assert_eq!(result.expect("it goes on"), Ended::Stopped, "seed {seed}");
            aside.join(Helper::ALL);
        });
        let begun = begun.into_inner();
        let place = |helper| begun.iter().position(|other| *other == helper).expect("begun");
        assert_eq!(begun.len(), Helper::ALL.len(), "seed {seed}: {begun:?}");
        assert!(place(Helper::States) < place(Helper::Deferred), "seed {seed}: {begun:?}");
        assert!(place(Helper::States) < place(Helper::Fills), "seed {seed}: {begun:?}");
        assert_eq!(told.get(), expected, "seed {seed}");
    }
}

/// Whoever waits for a thread that never comes keeps no session from its end.
#[test]
fn the_end_is_heard_while_no_thread_can_be_started() {
    for ends in [Ended::Stopped, Ended::Unmounted] {
        let (stop, ended, bell) = (event(), event(), Bell::new().expect("an eventfd"));
        let (told, tries) = (Cell::new(0), AtomicU32::new(0));
        let begin = |_: Helper| -> io::Result<Thread<'_>> {
            tries.fetch_add(1, Ordering::Relaxed);
            Err(rustix::io::Errno::AGAIN.into())
        };
        let tell = |_: io::Error| told.set(told.get() + 1);
        let mut aside = Aside::new(&bell, begin, &tell);
        bell.ring(Helper::Deferred);
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                until(|| tries.load(Ordering::Relaxed) >= 3);
                if ends == Ended::Stopped { stop.request() } else { ended.request() }
            });
            wait_for_end((&stop, &ended), &bell, || aside.begin_wanted(&Helper::ALL))
        });
        assert!(tries.load(Ordering::Relaxed) >= 3, "tried again");
        assert_eq!((result.expect("an end"), told.get()), (ends, 1));
    }
}

/// A session whose first threads cannot be started: each is there once when it can be, readers in
/// order before all others, also where the end comes meanwhile.
#[test]
fn readers_that_cannot_be_started_are_tried_again() {
    for seed in 0..16 {
        let mut rng = Rng::new(seed);
        let readers = 1 + rng.below(4) as usize;
        let all = First::all(readers, rng.below(2) == 0, rng.below(2) == 0);
        let expected: Vec<First> = all.iter().copied().collect();
        let mut refusals: Vec<u64> = all.iter().map(|_| rng.below(3)).collect();
        let (tries, begun) = (refusals.iter().sum::<u64>(), Mutex::new(Vec::new()));
        let fails = rng.below(2) == 0;
        let result = thread::scope(|scope| {
            let begin = |first: First| {
                let at = expected.iter().position(|other| *other == first).expect("one of all");
                if let Some(left) = refusals[at].checked_sub(1) {
                    refusals[at] = left;
                    return Err(rustix::io::Errno::AGAIN.into());
                }
                begun.lock().push(first);
                thread::Builder::new().spawn_scoped(scope, move || match fails {
                    true => Err(rustix::io::Errno::IO.into()),
                    false => Ok(()),
                })
            };
            let mut firsts = Firsts::new(all, begin);
            let mut failures = 0;
            while let Err(error) = firsts.begin_left() {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "seed {seed}");
                failures += 1;
            }
            assert_eq!(failures, tries, "seed {seed}");
            assert!(firsts.any_reader());
            firsts.join()
        });
        assert_eq!(begun.into_inner(), expected, "seed {seed}");
        assert_eq!(result.is_err(), fails, "seed {seed}");
    }
}

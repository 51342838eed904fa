//! Start-up calibration: which copy method and chunk size move a large payload fastest on this
//! machine.
//!
//! Two threads play service and client on a payload buffer of their own: one copies in chunk by
//! chunk, the other copies out behind it, as a large read does. Each candidate's best time counts;
//! a later one must beat the default by `MARGIN_PERCENT` to be taken, so that noise does not
//! choose. It takes about `BUDGET`, and where the threads cannot run side by side (one CPU, a
//! busy machine) the default stays.
//!
//! CMA (`process_vm_readv`) is no candidate: it needs ptrace rights over the client, which a
//! service that has dropped its privileges does not have, and below 64 KiB it loses everywhere.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_sys::copy::Method;
use polylane_sys::{Region, cpu};

use crate::channel::CopyPlan;

/// About how long a calibration may take.
pub const BUDGET: Duration = Duration::from_millis(5);

/// Payload that is moved.
const PAYLOAD: usize = 256 << 10;
/// How much faster than the default a candidate must be.
const MARGIN_PERCENT: u32 = 10;
/// Looks at a word between two at the clock.
const LOOKS: u32 = 256;

const CHUNKS: [u32; 3] = [16 << 10, 32 << 10, 64 << 10];

/// Words and payload that the two threads share.
struct Stage {
    region: Region,
    /// Number of the candidate that is on, plus its round times the number of candidates, plus one.
    turn: AtomicU32,
    /// Bytes ready in this turn.
    ready: AtomicU32,
    stop: AtomicBool,
    end: Instant,
}

/// The best plan for this machine, or the default where nothing could be measured.
pub fn plan() -> CopyPlan {
    cpu::prepare();
    let several = cpu::allowed().is_ok_and(|cpus| cpus.len() > 1);
    match Region::create("polylane-calibration", PAYLOAD) {
        Ok((region, _)) if several => measure(region),
        _ => CopyPlan::default(),
    }
}

fn candidates() -> Vec<CopyPlan> {
    let methods = Method::ALL.into_iter();
    methods.flat_map(|method| CHUNKS.map(|chunk_bytes| CopyPlan { method, chunk_bytes })).collect()
}

fn measure(region: Region) -> CopyPlan {
    let (turn, ready, stop) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    let stage = Stage { region, turn, ready, stop, end: Instant::now() + BUDGET };
    let plans = candidates();
    let mut best = vec![Duration::MAX; plans.len()];
    thread::scope(|scope| {
        let filler = thread::Builder::new().spawn_scoped(scope, || stage.fill(&plans));
        if filler.is_err() {
            // Nothing is measured then.
            return;
        }
        let mut into = vec![0; PAYLOAD];
        for turn in 0.. {
            let which = turn % plans.len();
            match stage.drain(turn as u32, plans[which], &mut into) {
                Some(time) => best[which] = best[which].min(time),
                None => break,
            }
        }
        stage.stop.store(true, Ordering::Relaxed);
    });
    choose(&plans, &best)
}

/// The fastest, unless the default is nearly as fast or something was never measured.
fn choose(plans: &[CopyPlan], best: &[Duration]) -> CopyPlan {
    let default = CopyPlan::default();
    let time_of = |plan| plans.iter().position(|&other| other == plan).map(|at| best[at]);
    let fastest = plans.iter().zip(best).min_by_key(|(_, time)| **time);
    match (time_of(default), fastest) {
        (Some(own), Some((&plan, &time)))
            if own != Duration::MAX && time * (100 + MARGIN_PERCENT) < own * 100 =>
        {
            plan
        }
        _ => default,
    }
}

impl Stage {
    /// The service's part: waits for each turn and fills the payload chunk by chunk.
    fn fill(&self, plans: &[CopyPlan]) {
        let from = vec![0x5a; PAYLOAD];
        for turn in 0u32.. {
            while self.turn.load(Ordering::Acquire) != turn + 1 {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                std::hint::spin_loop();
            }
            let plan = plans[turn as usize % plans.len()];
            let mut at = 0;
            for piece in from.chunks(plan.chunk_bytes as usize) {
                self.region.copy_in_with(plan.method, at, piece);
                at += piece.len();
                self.ready.store(at as u32, Ordering::Release);
            }
        }
    }

    /// The client's part: starts a turn and copies out what is ready; `None` when the budget is
    /// spent.
    fn drain(&self, turn: u32, plan: CopyPlan, into: &mut [u8]) -> Option<Duration> {
        self.ready.store(0, Ordering::Relaxed);
        let start = Instant::now();
        self.turn.store(turn + 1, Ordering::Release);
        let (mut done, mut looks) = (0, 0);
        while done < PAYLOAD {
            let ready = self.ready.load(Ordering::Acquire) as usize;
            if ready > done {
                self.region.copy_out_with(plan.method, done, &mut into[done..ready]);
                done = ready;
                continue;
            }
            looks += 1;
            if looks % LOOKS == 0 && Instant::now() > self.end {
                return None;
            }
            std::hint::spin_loop();
        }
        let now = Instant::now();
        (now < self.end).then_some(now - start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_in_time_with_a_plan_that_exists() {
        let start = Instant::now();
        let plan = plan();
        assert!(candidates().contains(&plan), "{plan:?}");
        // Generous: this machine may be busy, but a calibration that waits for ever is caught.
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn noise_does_not_choose() {
        let plans = candidates();
        let default = plans.iter().position(|&plan| plan == CopyPlan::default()).unwrap();
        let us = Duration::from_micros;
        let mut best = vec![us(100); plans.len()];
        best[8] = us(95);
        assert_eq!(choose(&plans, &best), CopyPlan::default());
        best[8] = us(80);
        assert_eq!(choose(&plans, &best), plans[8]);
        best[default] = Duration::MAX;
        assert_eq!(choose(&plans, &best), CopyPlan::default());
        assert_eq!(choose(&[], &[]), CopyPlan::default());
    }
}

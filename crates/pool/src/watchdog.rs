//! The watchdog: a service that hangs is killed, and started again like one that died.
//!
//! The service's threads beat in a page that both map (`polylane_front::beat`). The supervisor
//! looks every [`LOOK_PERIOD`]; a thread that has something in hand and did not move in
//! [`LOOKS_MAX`] looks hangs. Looks are counted, not time: where the whole machine stands still,
//! nobody looks either.
//!
//! A slow device is no hang. While a thread of the service waits in the kernel without being
//! interruptible (`D` in /proc), or the service says that it waits for a ring or that a call of a
//! cluster's client library is under way, no worker is judged: it may wait for that one. Threads
//! that tell the kernel of changes do not count: they wait for the kernel, and with it perhaps for
//! this very service. The main thread waits for nobody, so only its own state excuses it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use polylane_base::sync::atomic::Ordering;
use polylane_front::{beat, fuse};
use polylane_sys::procstat::ProcessStat;
use polylane_vfs::handover::{Heart, Store};

use crate::failure::{Failure, Result};

/// How often the service's main thread beats.
pub(crate) const BEAT_PERIOD: Duration = Duration::from_secs(2);

/// How often the supervisor looks.
const LOOK_PERIOD: Duration = Duration::from_secs(3);

/// In so many looks a thread must have moved: 15 s.
const LOOKS_MAX: u32 = 5;

/// What was seen of a service's threads.
#[derive(Debug)]
pub(crate) struct Watchdog {
    heart: Heart,
    next: Instant,
    /// Each thread's word, and how often it was the same.
    seen: Vec<(u64, u32)>,
}

impl Watchdog {
    /// What each service leaves to the next, and who watches over their heart-beats in it.
    ///
    /// # Errors
    /// One line: the kernel has no room for it.
    pub(crate) fn with_handover() -> Result<(OwnedFd, Watchdog)> {
        let failed = |error| Failure::because("service", "make room for what it leaves", error);
        let handover = Store::create().map_err(failed)?;
        let heart = Heart::attach(&handover).map_err(failed)?;
        Ok((handover, Watchdog::new(heart)))
    }

    /// Watches a service that is about to start.
    pub(crate) fn new(heart: Heart) -> Watchdog {
        let seen = vec![(0, 0); Heart::THREADS];
        Watchdog { heart, next: Instant::now() + LOOK_PERIOD, seen }
    }

    /// Another service is about to start.
    pub(crate) fn restart(&mut self) {
        self.heart.clear();
        self.begin();
    }

    /// From now on threads have to move: what was seen of them before says nothing.
    pub(crate) fn begin(&mut self) {
        self.seen.fill((0, 0));
        self.next = Instant::now() + LOOK_PERIOD;
    }

    /// The next look is due.
    #[cfg(test)]
    pub(crate) fn hurry(&mut self) {
        self.next = Instant::now();
    }

    /// How long until the next look.
    pub(crate) fn next_in(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks, if it is time to. True: the service `pid` hangs.
    pub(crate) fn look(&mut self, pid: u32) -> bool {
        if Instant::now() < self.next {
            return false;
        }
        self.next = Instant::now() + LOOK_PERIOD;
        self.hangs(|who| waits_for_device(pid, who))
    }

    fn hangs(&mut self, waits: impl Fn(Who) -> bool) -> bool {
        let word = |thread| self.heart.word(thread).map_or(0, |word| word.load(Ordering::Relaxed));
        let main = word(beat::MAIN);
        for thread in 0..self.seen.len() {
            let now = word(thread);
            let (before, looks) = self.seen[thread];
            let same = now == before && beat::must_move(now);
            self.seen[thread] = (now, if same { looks + 1 } else { 0 });
        }
        let late = |thread: usize| self.seen[thread].1 >= LOOKS_MAX;
        let worker = (beat::WORKERS..self.seen.len()).any(late) && !beat::is_excused(main);
        late(beat::MAIN) && !waits(Who::Main) || worker && !waits(Who::Any)
    }
}

/// Whose waiting is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Main,
    /// Any thread but those that wait for the kernel by their nature.
    Any,
}

/// Whether threads of the process wait in the kernel for what cannot be interrupted.
fn waits_for_device(pid: u32, who: Who) -> bool {
    let waits =
        |stat: ProcessStat| stat.state == b'D' && stat.name != fuse::NOTIFIER_NAME.as_bytes();
    match who {
        Who::Main => ProcessStat::of(pid).is_some_and(waits),
        Who::Any => ProcessStat::threads_of(pid).any(waits),
    }
}

#[cfg(test)]
mod tests {
    use polylane_base::sync::Arc;
    use polylane_front::beat::Beat;
    use polylane_vfs::handover::Store;

    use super::*;

    fn watched() -> (Watchdog, Arc<Heart>) {
        let fd = Store::create().expect("memfd");
        let heart = Arc::new(Heart::attach(&fd).expect("map"));
        (Watchdog::new(Heart::attach(&fd).expect("map")), heart)
    }

    fn looks(dog: &mut Watchdog, device: bool) -> u32 {
        (1..100).find(|_| dog.hangs(|_| device)).unwrap_or(100)
    }

    #[test]
    fn who_has_something_in_hand_and_does_not_move_hangs() {
        let (mut dog, heart) = watched();
        assert_eq!(looks(&mut dog, false), 100, "nobody is watched");
        let mut beat = Beat::watched(heart, beat::WORKERS);
        assert_eq!(looks(&mut dog, false), 100, "it sleeps");
        beat.busy();
        for _ in 0..20 {
            beat.busy();
            assert!(!dog.hangs(|_| false), "it moves");
        }
        assert_eq!(looks(&mut dog, true), 100, "a device is slow");
        assert!(dog.hangs(|_| false));
        dog.restart();
        beat.busy();
        assert_eq!(looks(&mut dog, false), LOOKS_MAX + 1);
    }

    #[test]
    fn a_main_thread_that_waits_for_a_ring_excuses_the_workers() {
        let (mut dog, heart) = watched();
        let main = heart.clone();
        let beat_main = |times: u32| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut beat = Beat::watched(main.clone(), beat::MAIN);
                    (0..times).for_each(|_| beat.excused());
                });
            });
        };
        let mut beat = Beat::watched(heart.clone(), beat::WORKERS + 1);
        beat.busy();
        for times in 1..20 {
            beat_main(times);
            assert!(!dog.hangs(|_| false));
        }
        // A main thread that stands still is judged all the same.
        assert!(looks(&mut dog, false) <= LOOKS_MAX + 1);
    }
}

//! Heart-beats: how a supervisor sees that a service's threads do not hang.
//!
//! | bits of a thread's word | what |
//! |---|---|
//! | 0 | the thread is watched |
//! | 1 | it has something in hand: unless the next bit is set, the count has to move |
//! | 2 | a device is slow: nobody has to move |
//! | 8.. | count |
//!
//! A thread that has nothing in hand may sleep for ever. The main thread always has something in
//! hand: it listens with a time limit, and beats each time. It also says, in bit 2 of its word,
//! whether any thread waits for a device or a cluster: threads that wait for that one are excused
//! as well.

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::Ordering;
use polylane_vfs::handover::Heart;

const WATCHED: u64 = 1;
const BUSY: u64 = 2;
const EXCUSED: u64 = 4;
const COUNT_SHIFT: u32 = 8;

/// The word of the main thread.
pub const MAIN: usize = 0;
/// The first word of the workers of the fast way in.
pub const WORKERS: usize = 1;

/// The beat of one thread, which alone writes it.
pub struct Beat {
    heart: Option<Arc<Heart>>,
    thread: usize,
    count: u64,
}

impl Beat {
    /// From now on the thread that has this is watched, under this word. It has nothing in hand.
    pub fn watched(heart: Arc<Heart>, thread: usize) -> Beat {
        let beat = Beat { heart: Some(heart), thread, count: 0 };
        beat.idle();
        beat
    }

    /// That of a thread without a supervisor.
    pub fn unwatched() -> Beat {
        Beat { heart: None, thread: 0, count: 0 }
    }

    /// The thread has something in hand now, or something else than before.
    #[inline]
    pub fn busy(&mut self) {
        self.count += 1;
        self.write(BUSY);
    }

    /// The thread has nothing in hand.
    #[inline]
    pub fn idle(&self) {
        self.write(0);
    }

    /// The thread does what takes as long as a device takes.
    pub fn excused(&mut self) {
        self.count += 1;
        self.write(BUSY | EXCUSED);
    }

    fn write(&self, bits: u64) {
        if let Some(Ok(word)) = self.heart.as_ref().map(|heart| heart.word(self.thread)) {
            word.store(WATCHED | bits | self.count << COUNT_SHIFT, Ordering::Relaxed);
        }
    }
}

/// Whether a word says that its thread has to go on: else it may stay as it is.
pub fn must_move(word: u64) -> bool {
    word & (WATCHED | BUSY) == WATCHED | BUSY
}

/// Whether a word says that a device is waited for.
pub fn is_excused(word: u64) -> bool {
    word & EXCUSED != 0
}

#[cfg(test)]
mod tests {
    use polylane_vfs::handover::Store;

    use super::*;

    #[test]
    fn who_has_something_in_hand_must_move() {
        let fd = Store::create().expect("memfd");
        let heart = Arc::new(Heart::attach(&fd).expect("map"));
        let word = || heart.word(3).expect("word").load(Ordering::Relaxed);
        Beat::unwatched().busy();
        assert_eq!(word(), 0, "not watched");
        let mut beat = Beat::watched(heart.clone(), 3);
        assert!(!must_move(word()));
        beat.busy();
        let first = word();
        assert!(must_move(first));
        beat.busy();
        assert!(must_move(word()) && word() != first);
        assert!(!is_excused(word()));
        beat.excused();
        assert!(is_excused(word()) && must_move(word()));
        beat.idle();
        assert!(!must_move(word()));
    }
}

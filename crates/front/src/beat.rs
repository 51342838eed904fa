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
//! whether any thread waits for a device: whoever waits for that thread is excused as well.

use std::cell::RefCell;

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
struct Beat {
    heart: Arc<Heart>,
    thread: usize,
    count: u64,
}

impl Beat {
    fn write(&self, bits: u64) {
        if let Ok(word) = self.heart.word(self.thread) {
            word.store(WATCHED | bits | self.count << COUNT_SHIFT, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static BEAT: RefCell<Option<Beat>> = const { RefCell::new(None) };
}

fn with(beat: impl FnOnce(&mut Beat)) {
    BEAT.with(|place| place.borrow_mut().as_mut().map(beat));
}

/// From now on the calling thread is watched, under this word. It has nothing in hand.
pub fn watch(heart: Arc<Heart>, thread: usize) {
    BEAT.with(|place| *place.borrow_mut() = Some(Beat { heart, thread, count: 0 }));
    idle();
}

/// The calling thread has something in hand now, or something else than before.
#[inline]
pub fn busy() {
    with(|beat| {
        beat.count += 1;
        beat.write(BUSY);
    });
}

/// The calling thread has nothing in hand.
#[inline]
pub fn idle() {
    with(|beat| beat.write(0));
}

/// The calling thread does what takes as long as a device takes.
pub fn excused() {
    with(|beat| {
        beat.count += 1;
        beat.write(BUSY | EXCUSED);
    });
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
        busy();
        assert_eq!(word(), 0, "not watched");
        watch(heart.clone(), 3);
        assert!(!must_move(word()));
        busy();
        let first = word();
        assert!(must_move(first));
        busy();
        assert!(must_move(word()) && word() != first);
        assert!(!is_excused(word()));
        excused();
        assert!(is_excused(word()) && must_move(word()));
        idle();
        assert!(!must_move(word()));
    }
}

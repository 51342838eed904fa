//! One chunk of a volume: what is known about its space, in one word.
//!
//! | bits | what |
//! |---|---|
//! | 0..20 | changes in flight |
//! | 20..22 | [`State`] |
//! | 22 | exclusive: a translation thread makes space, nobody else changes the chunk |
//! | 23, 24 | a job for it is queued: any, and one that somebody waits for |
//! | 25 | was made ahead, and nobody has written to it |
//! | 32..64 | generation: goes up whenever the space may have changed |
//!
//! # Invariants
//!
//! - Who changes a chunk has entered it, and entering is refused while it is exclusive; it becomes
//!   exclusive only while nobody is in it.
//! - Entering a chunk that is not [`State::Whole`] makes it [`State::Unknown`] with a new
//!   generation, before the change goes to the medium. What a translation thread saw is published
//!   only if the generation is the one from before it looked, and nobody was in the chunk then. So
//!   a chunk that is [`State::Empty`] has no data, whatever is in flight elsewhere.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

const USERS: u64 = (1 << 20) - 1;
const STATE_SHIFT: u32 = 20;
const STATE: u64 = 3 << STATE_SHIFT;
const EXCLUSIVE: u64 = 1 << 22;
const QUEUED: u64 = 1 << 23;
const AWAITED: u64 = 1 << 24;
const AHEAD: u64 = 1 << 25;
const GENERATION: u64 = 1 << 32;

/// What is known about a chunk's space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Nothing.
    Unknown,
    /// It takes none, and reads as zeros.
    Empty,
    /// All of it is written: writes move nothing.
    Whole,
    /// Some of it is.
    Partial,
}

impl State {
    const fn bits(self) -> u64 {
        (self as u64) << STATE_SHIFT
    }

    const fn of(word: u64) -> State {
        match (word & STATE) >> STATE_SHIFT {
            1 => State::Empty,
            2 => State::Whole,
            3 => State::Partial,
            _ => State::Unknown,
        }
    }
}

/// What a translation thread saw before it looked: to be given back when it publishes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sight(u64);

/// One chunk.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    word: AtomicU64,
}

impl Chunk {
    pub(super) fn state(&self) -> State {
        State::of(self.word.load(SeqCst))
    }

    /// Changes the word by a rule; what it was. `None` of the rule leaves it.
    fn change(&self, rule: impl FnMut(u64) -> Option<u64>) -> Option<u64> {
        self.word.fetch_update(SeqCst, SeqCst, rule).ok()
    }

    /// Takes a change in, which `keeps` the map where all of the chunk is written. False: it is
    /// exclusive, try again later.
    pub(super) fn enter(&self, keeps: bool) -> bool {
        let entered = self.change(|word| {
            if word & EXCLUSIVE != 0 {
                return None;
            }
            let next = (word + 1) & !AHEAD;
            match keeps && State::of(word) == State::Whole {
                true => Some(next),
                false => Some((next & !STATE).wrapping_add(GENERATION)),
            }
        });
        entered.is_some()
    }

    /// Ends a change.
    pub(super) fn leave(&self) {
        let before = self.word.fetch_sub(1, SeqCst);
        debug_assert!(before & USERS > 0, "left without entering");
    }

    /// Whether this is the one change in the chunk, and the generation.
    pub(super) fn alone(&self) -> Option<u32> {
        let word = self.word.load(SeqCst);
        (word & USERS == 1).then_some((word >> 32) as u32)
    }

    /// Ends a change that gave all of the chunk's space back, alone since `generation`: nobody
    /// entered meanwhile, or else no more is known than before.
    pub(super) fn leave_empty(&self, generation: u32) {
        let emptied = self.change(|word| {
            let still = word & USERS == 1 && generation == (word >> 32) as u32;
            still.then_some((word & !STATE & !USERS) | State::Empty.bits())
        });
        if emptied.is_none() {
            self.leave();
        }
    }

    /// Marks a job as queued; false: one is already, that does as well.
    pub(super) fn queue(&self, awaited: bool) -> bool {
        let bits = if awaited { QUEUED | AWAITED } else { QUEUED };
        self.word.fetch_or(bits, SeqCst) & bits != bits
    }

    /// The queued job is over or begins.
    pub(super) fn dequeue(&self) {
        self.word.fetch_and(!(QUEUED | AWAITED), SeqCst);
    }

    /// To be called before looking at the medium. `None`: there is nothing to find out, or somebody
    /// is changing the chunk.
    pub(super) fn before_look(&self) -> Option<Sight> {
        let word = self.word.load(SeqCst);
        let quiet = word & (EXCLUSIVE | USERS) == 0;
        (quiet && State::of(word) == State::Unknown).then_some(Sight(word))
    }

    /// Publishes what was seen, if it is still so.
    pub(super) fn publish(&self, sight: Sight, state: State) -> bool {
        let published = self.change(|word| {
            let same = word >> 32 == sight.0 >> 32 && word & (EXCLUSIVE | STATE) == 0;
            same.then_some(word | state.bits())
        });
        published.is_some()
    }

    /// Makes a chunk exclusive of which something is known and not all is written, if nobody is in
    /// it: what it is.
    pub(super) fn claim(&self) -> Option<State> {
        let claimed = self.change(|word| {
            let lacks = matches!(State::of(word), State::Empty | State::Partial);
            (lacks && word & (EXCLUSIVE | USERS) == 0).then_some(word | EXCLUSIVE)
        });
        claimed.map(State::of)
    }

    /// Ends what [`claim`](Chunk::claim) began: the chunk is `whole` now, or nothing is known
    /// about it. `unused`: there is nothing but zeros in it, which can go back.
    pub(super) fn end_claim(&self, whole: bool, unused: bool) {
        let state = match (whole, unused) {
            (true, true) => State::Whole.bits() | AHEAD,
            (true, false) => State::Whole.bits(),
            (false, _) => 0,
        };
        self.change(|word| Some((word & !(EXCLUSIVE | STATE)).wrapping_add(GENERATION) | state));
    }

    /// Forgets what is known.
    pub(super) fn forget(&self) {
        self.change(|word| Some((word & !STATE).wrapping_add(GENERATION)));
    }

    /// Takes the mark of a chunk that was made ahead and never written to, for the caller that
    /// gives its space back. No thread is in the chunk.
    pub(super) fn take_ahead(&self) -> bool {
        self.word.load(SeqCst) & AHEAD != 0
            && self.word.fetch_and(!AHEAD, SeqCst) & (AHEAD | USERS) == AHEAD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(state: State) -> Chunk {
        let chunk = Chunk::default();
        let sight = chunk.before_look().expect("unknown");
        assert!(chunk.publish(sight, state));
        chunk
    }

    #[test]
    fn what_was_seen_before_a_change_is_not_published_after_it() {
        let chunk = Chunk::default();
        let sight = chunk.before_look().expect("nothing known");
        assert!(chunk.enter(true));
        assert_eq!(chunk.before_look(), None, "somebody is in it");
        chunk.leave();
        assert!(!chunk.publish(sight, State::Empty));
        assert_eq!(chunk.state(), State::Unknown);
    }

    #[test]
    fn a_write_makes_an_empty_chunk_unknown_and_leaves_a_whole_one() {
        let chunk = known(State::Empty);
        assert!(chunk.enter(true));
        assert_eq!(chunk.state(), State::Unknown);
        let chunk = known(State::Whole);
        let generation = chunk.word.load(SeqCst) >> 32;
        assert!(chunk.enter(true));
        assert_eq!((chunk.state(), chunk.word.load(SeqCst) >> 32), (State::Whole, generation));
        assert!(chunk.enter(false), "a discard does not");
        assert_eq!(
            (chunk.state(), chunk.word.load(SeqCst) >> 32),
            (State::Unknown, generation + 1)
        );
    }

    #[test]
    fn a_claim_excludes_changes_and_the_reverse() {
        let chunk = known(State::Empty);
        assert_eq!((chunk.claim(), chunk.claim()), (Some(State::Empty), None));
        assert!(!chunk.enter(true));
        chunk.end_claim(true, true);
        assert_eq!(chunk.state(), State::Whole);
        assert!(chunk.take_ahead() && !chunk.take_ahead());
        for state in [State::Empty, State::Partial] {
            let chunk = known(state);
            assert!(chunk.enter(true));
            assert_eq!(chunk.claim(), None);
        }
        assert_eq!(known(State::Whole).claim(), None, "nothing is to be made");
    }

    #[test]
    fn what_held_data_is_never_given_back() {
        let chunk = known(State::Partial);
        assert_eq!(chunk.claim(), Some(State::Partial));
        chunk.end_claim(true, false);
        assert_eq!(chunk.state(), State::Whole);
        assert!(!chunk.take_ahead());
    }

    #[test]
    fn a_discard_empties_a_chunk_only_if_it_was_alone_all_the_time() {
        let chunk = known(State::Whole);
        assert!(chunk.enter(false));
        chunk.leave_empty(chunk.alone().expect("alone"));
        assert_eq!(chunk.state(), State::Empty);
        let chunk = known(State::Whole);
        assert!(chunk.enter(false));
        let alone = chunk.alone().expect("alone");
        assert!(chunk.enter(true));
        chunk.leave();
        chunk.leave_empty(alone);
        assert_eq!(chunk.state(), State::Unknown);
        let chunk = known(State::Whole);
        assert!(chunk.enter(true) && chunk.enter(false));
        assert_eq!(chunk.alone(), None);
    }
}

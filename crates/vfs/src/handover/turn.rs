//! Operations in flight: done once, however often a service dies on the way.
//!
//! A request has a *request id*, a number that its repetition has too: the kernel's `unique` of a
//! FUSE request. While a thread serves one it has a [`Turn`]:
//!
//! ```text
//!   begin ──► the VFS is about to change something that cannot be changed twice: `intend`
//!                (a record: what is to be done, and what there was before)
//!         ──► the change ──► the front end has the answer: `done` (a record: the answer)
//!         ──► the answer is sent ──► both records go
//! ```
//!
//! A service that finds a request repeated looks for its records. With an answer, that is sent.
//! With an intention alone, the VFS compares what there is with what there was, under the locks
//! that it takes anyway, and either finds it done or does it. With neither, nothing had happened.
//! What may be done twice (a write at an offset, a mode, a size) has no intention.
//!
//! # Invariants
//!
//! - An intention's record counts before its change is begun, an answer's before the answer is
//!   sent; either is freed only when the answer is sent, or nothing was changed.
//! - A turn is lent to the VFS with the operation's context ([`OpCtx`](crate::OpCtx)), and used by
//!   one thread at a time.

use std::cell::Cell;
use std::collections::HashMap;

use polylane_base::sync::{Arc, Mutex};

use super::store::{Kind, Record, Slot, Store};

/// What a request and its repetitions have in common, in two words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId(pub u64, pub u64);

/// Changes that must not be made twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub(crate) enum Op {
    /// A new name of a new inode. There was none of that name.
    Make = 1,
    /// A name goes. Facts: number and generation of its inode.
    Remove = 2,
    /// A name moves. Facts: number and generation of its inode.
    Rename = 3,
    /// One more name. There was none of that name.
    Link = 4,
    /// A new extended attribute. There was none of that name.
    SetXattr = 5,
    /// An extended attribute goes.
    RemoveXattr = 6,
    /// A range is taken out of a file, or put in. Fact: the size before.
    Shift = 7,
    /// Bytes at the end of a file. Fact: where the end was.
    Append = 8,
}

/// What was known before a change.
pub(crate) type Facts = [u64; 4];

struct Former {
    slot: Slot,
    kind: Kind,
    op: u64,
    facts: Facts,
    answer: Vec<u8>,
}

/// The operations of one pool that are in flight, and those that were when the former service
/// ended. Thread-safe.
pub struct Turns {
    store: Arc<Store>,
    former: Mutex<HashMap<RequestId, Former>>,
}

impl Turns {
    /// Those among the records that a former service left. `lasting`: what it had done is there;
    /// if not, answers say nothing, and what there is decides alone.
    pub fn new(store: Arc<Store>, records: &[Record], lasting: bool) -> Arc<Turns> {
        let mut former: HashMap<RequestId, Former> = HashMap::new();
        for record in records {
            match record.kind {
                Kind::Begun => {}
                Kind::Done if lasting => {}
                Kind::Done => {
                    store.free(record.slot);
                    continue;
                }
                _ => continue,
            }
            let [first, second, op, facts @ ..] = record.words;
            let (slot, kind, answer) = (record.slot, record.kind, record.bytes.clone());
            let origin = RequestId(first, second);
            // A service that is killed between an answer and the end of its intention leaves both.
            let surplus = match former.get(&origin) {
                Some(known) if known.kind == Kind::Done => Some(slot),
                known => {
                    let known = known.map(|known| known.slot);
                    former.insert(origin, Former { slot, kind, op, facts, answer });
                    known
                }
            };
            if let Some(surplus) = surplus {
                store.free(surplus);
            }
        }
        Arc::new(Turns { store, former: Mutex::new(former) })
    }

    /// The answer that a former service had for a request, if it had one and could not send it. To
    /// be sent now, and then dropped.
    pub fn recall(&self, origin: RequestId) -> Option<(Vec<u8>, Answered)> {
        let mut former = self.former.lock();
        if former.get(&origin)?.kind != Kind::Done {
            return None;
        }
        let Former { slot, answer, .. } = former.remove(&origin)?;
        let answered = Answered { store: self.store.clone(), slots: [Some(slot), None] };
        Some((answer, answered))
    }

    /// A request is served from now on, until the turn is done or dropped.
    pub fn begin(self: &Arc<Self>, request: RequestId) -> Turn {
        let former = self.former.lock().remove(&request);
        let begun = Cell::new(former.as_ref().map(|former| former.slot));
        let former = former.map(|former| (former.op, former.facts));
        Turn { turns: self.clone(), request, begun, former }
    }
}

/// The turn of a request. Dropped without an answer, nothing was changed.
pub struct Turn {
    turns: Arc<Turns>,
    request: RequestId,
    begun: Cell<Option<Slot>>,
    former: Option<(u64, Facts)>,
}

impl Turn {
    /// Whether something was begun that must not be done twice, now or by a former service.
    pub fn is_begun(&self) -> bool {
        self.begun.get().is_some()
    }

    /// Nothing was done: another thread begins again, with what a former service left.
    pub fn postpone(self) {
        let (Some((op, facts)), Some(slot)) = (self.former, self.begun.get()) else { return };
        self.begun.set(None);
        let (kind, answer) = (Kind::Begun, Vec::new());
        self.turns.former.lock().insert(self.request, Former { slot, kind, op, facts, answer });
    }

    /// The operation is done, and its answer is of no use to another service, which finds it done
    /// by its intention. The result is to be dropped when the answer is sent.
    pub fn found_again(self) -> Answered {
        Answered { store: self.turns.store.clone(), slots: [self.begun.take(), None] }
    }

    /// The operation is done: records its answer. The result is to be dropped when the answer is
    /// sent. An answer that is too long for a record is found again by its intention.
    pub fn done(self, answer: &[u8]) -> Answered {
        let RequestId(first, second) = self.request;
        let store = &self.turns.store;
        let slot = store.put(Kind::Done, [first, second, 0, 0, 0, 0, 0], answer);
        Answered { store: store.clone(), slots: [self.begun.take(), slot] }
    }

    /// What a former service knew before it began with the same request, if it did.
    pub(crate) fn former(&self, op: Op) -> Option<Facts> {
        let (which, facts) = self.former?;
        (which == op as u64).then_some(facts)
    }

    /// The request is about to do what must not be done twice. A former service's intention stays.
    pub(crate) fn intend(&self, op: Op, facts: Facts) {
        if self.former.is_some() {
            return;
        }
        let (RequestId(first, second), [a, b, c, d]) = (self.request, facts);
        let store = &self.turns.store;
        let slot = store.put(Kind::Begun, [first, second, op as u64, a, b, c, d], b"");
        if let Some(old) = self.begun.replace(slot) {
            store.free(old);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.turns.store.free(begun);
        }
    }
}

/// What is recorded of an operation until its answer is sent. Dropped, it is forgotten.
pub struct Answered {
    store: Arc<Store>,
    slots: [Option<Slot>; 2],
}

impl Drop for Answered {
    /// The intention first: an answer alone is right, an intention alone would be judged by what
    /// others did since.
    fn drop(&mut self) {
        self.slots.into_iter().flatten().for_each(|slot| self.store.free(slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(fd: &std::os::fd::OwnedFd) -> (Arc<Store>, Arc<Turns>) {
        let (store, records) = Store::attach(fd).expect("attach");
        let store = Arc::new(store);
        (store.clone(), Turns::new(store, &records, true))
    }

    #[test]
    fn an_intention_is_found_again_and_goes_with_its_answer() {
        let fd = Store::create().expect("memfd");
        let (_store, first) = turns(&fd);
        let turn = first.begin(RequestId(0, 8));
        assert!(turn.former(Op::Remove).is_none());
        turn.intend(Op::Remove, [5, 6, 0, 0]);
        // As a kill leaves it.
        let _left = std::mem::ManuallyDrop::new(turn);
        let (store, second) = turns(&fd);
        assert!(second.recall(RequestId(0, 8)).is_none());
        let turn = second.begin(RequestId(0, 8));
        assert_eq!(turn.former(Op::Remove), Some([5, 6, 0, 0]));
        assert_eq!(turn.former(Op::Make), None);
        let answered = turn.done(b"gone");
        assert_eq!(store.len(), 2);
        let (_, third) = turns(&fd);
        let (answer, recalled) = third.recall(RequestId(0, 8)).expect("answered");
        assert_eq!(answer, b"gone");
        drop((answered, recalled));
        assert!(Store::attach(&fd).expect("attach").1.is_empty());
    }

    #[test]
    fn what_is_put_off_is_found_again_and_answers_that_do_not_last_are_not() {
        let fd = Store::create().expect("memfd");
        let (_store, first) = turns(&fd);
        let turn = first.begin(RequestId(1, 1));
        turn.intend(Op::Make, [1, 0, 0, 0]);
        assert!(turn.is_begun());
        let _not_sent = turn.done(b"made");
        let (store, records) = Store::attach(&fd).expect("attach");
        let second = Turns::new(Arc::new(store), &records, false);
        assert!(second.recall(RequestId(1, 1)).is_none(), "what was done may be gone");
        second.begin(RequestId(1, 1)).postpone();
        let turn = second.begin(RequestId(1, 1));
        assert_eq!(turn.former(Op::Make), Some([1, 0, 0, 0]));
        drop(turn.found_again());
        assert!(Store::attach(&fd).expect("attach").1.is_empty());
    }

    #[test]
    fn what_was_not_done_leaves_nothing() {
        let fd = Store::create().expect("memfd");
        let (store, turns) = turns(&fd);
        let turn = turns.begin(RequestId(0, 2));
        assert!(store.is_empty(), "nothing is about to be done");
        turn.intend(Op::Make, [0; 4]);
        turn.intend(Op::Append, [7; 4]);
        assert_eq!(store.len(), 1);
        drop(turn);
        assert!(store.is_empty());
        let long = turns.begin(RequestId(0, 4)).done(&[0; 300]);
        assert!(store.is_empty());
        drop(long);
    }
}

//! POSIX, OFD and flock locks: conflicts, waiting, deadlock, the ends of owners.

use polylane_base::sync::{Arc, Mutex, Weak};
use polylane_base::{Errno, Result, Uid};
use polylane_vfs::{
    LockFamily, LockKind, LockLender, LockLoan, LockOutcome, LockOwner, LockRequest, LockWaiter,
    Node, Ticket, Vfs,
};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use LockFamily::{Flock, Ofd, Posix};
use LockKind::{Read, Unlock, Write};

use crate::common::*;

struct Bench {
    lane: Lane,
    a: Node,
    b: Node,
}

fn bench() -> Bench {
    let lane = lane();
    let (a, b) = (lane.file("a", b"").node().clone(), lane.file("b", b"").node().clone());
    Bench { lane, a, b }
}

fn ask(owner: u128, family: LockFamily, kind: LockKind, start: u64, end: u64) -> LockRequest {
    let (pid, user) = (owner as u32, Some(Uid(owner as u32)));
    LockRequest { owner: LockOwner(owner), family, kind, start, end, pid, user }
}

fn posix(owner: u128, kind: LockKind, start: u64, end: u64) -> LockRequest {
    ask(owner, Posix, kind, start, end)
}

fn flock(owner: u128, kind: LockKind) -> LockRequest {
    ask(owner, Flock, kind, 0, 0)
}

/// A waiter and where its result arrives.
fn waiter() -> (LockWaiter, Receiver<Result<()>>) {
    let (send, receive) = channel();
    let wait: LockWaiter = Box::new(move |result| {
        // The test may have ended: it then dropped its end.
        let _ = send.send(result);
    });
    (wait, receive)
}

impl Bench {
    fn now(&self, node: &Node, request: LockRequest) -> Result<()> {
        match self.lane.vfs.set_lock(node, request, None) {
            LockOutcome::Done(result) => result,
            LockOutcome::Parked(_) => panic!("parked without a waiter"),
        }
    }

    fn park(&self, node: &Node, request: LockRequest) -> (Ticket, Receiver<Result<()>>) {
        let (wait, receive) = waiter();
        match self.lane.vfs.set_lock(node, request, Some(wait)) {
            LockOutcome::Parked(ticket) => (ticket, receive),
            done => panic!("{done:?}"),
        }
    }
}

#[test]
fn conflicts() {
    let bench = bench();
    let busy = Err(Errno::EAGAIN);
    for (line, held, wanted, expected) in [
        (1, posix(1, Read, 0, 9), posix(2, Read, 0, 9), Ok(())),
        (2, posix(1, Read, 0, 9), posix(2, Write, 9, 9), busy),
        (3, posix(1, Write, 0, 9), posix(2, Read, 0, 0), busy),
        (4, posix(1, Write, 0, 9), posix(2, Write, 10, u64::MAX), Ok(())),
        (5, posix(1, Write, 0, 9), posix(1, Read, 0, 9), Ok(())),
        (6, posix(1, Write, 5, u64::MAX), posix(2, Read, u64::MAX - 1, u64::MAX), busy),
        (7, posix(1, Write, 0, 9), ask(2, Ofd, Read, 0, 0), busy),
        (8, ask(1, Ofd, Read, 0, 9), posix(2, Write, 0, 0), busy),
        (9, ask(1, Ofd, Write, 0, 9), flock(2, Write), Ok(())),
        (10, flock(1, Write), flock(2, Read), busy),
        (11, flock(1, Read), flock(2, Read), Ok(())),
        (12, flock(1, Write), posix(2, Write, 0, u64::MAX), Ok(())),
    ] {
        assert_eq!(bench.now(&bench.a, held), Ok(()), "line {line}");
        assert_eq!(bench.now(&bench.a, wanted), expected, "line {line}");
        assert_eq!(bench.now(&bench.b, wanted), expected.filter_busy(), "line {line}: other file");
        let found = bench.lane.vfs.get_lock(&bench.a, &wanted).is_some();
        assert_eq!(found, expected == busy, "line {line}: F_GETLK");
        for owner in [1, 2] {
            bench.lane.vfs.drop_owner(LockOwner(owner));
        }
        assert_eq!(bench.lane.vfs.get_lock(&bench.a, &posix(9, Write, 0, u64::MAX)), None);
        assert_eq!(bench.lane.vfs.get_lock(&bench.a, &flock(9, Write)), None);
    }
}

trait FilterBusy {
    fn filter_busy(self) -> Self;
}

impl FilterBusy for Result<()> {
    /// What another file answers: nobody is in the way there.
    fn filter_busy(self) -> Self {
        if self == Err(Errno::EAGAIN) { Ok(()) } else { self }
    }
}

#[test]
fn get_lock_names_the_holder() {
    let bench = bench();
    bench.now(&bench.a, posix(7, Write, 10, 19)).unwrap();
    bench.now(&bench.a, posix(8, Read, 30, 39)).unwrap();
    let get = |request| bench.lane.vfs.get_lock(&bench.a, &request);
    assert_eq!(get(posix(1, Read, 0, 99)), Some(posix(7, Write, 10, 19)));
    assert_eq!(get(posix(1, Write, 20, 99)), Some(posix(8, Read, 30, 39)));
    assert_eq!(get(posix(1, Read, 20, 99)), None);
    assert_eq!(get(posix(7, Write, 10, 19)), None);
    assert_eq!(bench.now(&bench.a, posix(1, Write, 9, 8)), Err(Errno::EINVAL));
}

#[test]
fn parked_requests_are_granted_in_order() {
    let bench = bench();
    bench.now(&bench.a, posix(1, Write, 0, 99)).unwrap();
    let (_, second) = bench.park(&bench.a, posix(2, Read, 0, 9));
    let (_, third) = bench.park(&bench.a, posix(3, Write, 0, 9));
    let (_, fourth) = bench.park(&bench.a, posix(4, Read, 5, 9));
    bench.now(&bench.a, posix(1, Unlock, 10, 99)).unwrap();
    assert_eq!(second.try_recv(), Err(TryRecvError::Empty), "still in the way");
    bench.now(&bench.a, posix(1, Read, 0, 9)).unwrap();
    assert_eq!(second.try_recv(), Ok(Ok(())), "a downgrade lets readers in");
    assert_eq!(fourth.try_recv(), Ok(Ok(())));
    bench.lane.vfs.drop_locks(&bench.a, LockOwner(1));
    bench.lane.vfs.drop_locks(&bench.a, LockOwner(2));
    assert_eq!(third.try_recv(), Err(TryRecvError::Empty));
    bench.lane.vfs.drop_owner(LockOwner(4));
    assert_eq!(third.try_recv(), Ok(Ok(())));
    assert_eq!(bench.now(&bench.a, posix(5, Read, 0, 0)), Err(Errno::EAGAIN), "3 holds it");
}

#[test]
fn a_cancelled_request_is_never_told_nor_granted() {
    let bench = bench();
    let vfs = &bench.lane.vfs;
    bench.now(&bench.a, flock(1, Write)).unwrap();
    let (ticket, told) = bench.park(&bench.a, flock(2, Write));
    assert!(vfs.cancel_lock(ticket));
    assert!(!vfs.cancel_lock(ticket));
    bench.now(&bench.a, flock(1, Unlock)).unwrap();
    assert_eq!(told.try_recv(), Err(TryRecvError::Disconnected));
    bench.now(&bench.a, flock(3, Write)).unwrap();
    let (ticket, told) = bench.park(&bench.a, flock(4, Write));
    bench.now(&bench.a, flock(3, Unlock)).unwrap();
    assert_eq!(told.try_recv(), Ok(Ok(())));
    assert!(!vfs.cancel_lock(ticket), "too late");
}

#[test]
fn deadlocks_of_posix_owners_are_found() {
    let bench = bench();
    let (a, b) = (&bench.a, &bench.b);
    let deadlock = |node: &Node, request| {
        let (wait, _told) = waiter();
        bench.lane.vfs.set_lock(node, request, Some(wait)) == LockOutcome::Done(Err(Errno::EDEADLK))
    };
    bench.now(a, posix(1, Write, 0, 0)).unwrap();
    bench.now(b, posix(2, Write, 0, 0)).unwrap();
    bench.now(a, posix(3, Write, 5, 5)).unwrap();
    let (first, _w1) = bench.park(b, posix(1, Write, 0, 0));
    assert!(deadlock(a, posix(2, Write, 0, 0)), "1 waits for 2, so 2 must not wait for 1");
    let (second, _w2) = bench.park(a, posix(2, Read, 5, 5));
    assert!(deadlock(a, posix(3, Write, 0, 0)), "3 -> 1 -> 2 -> 3");
    assert!(bench.lane.vfs.cancel_lock(first));
    let (third, _w3) = bench.park(a, posix(3, Write, 0, 0));
    for ticket in [second, third] {
        assert!(bench.lane.vfs.cancel_lock(ticket));
    }
    // The upgrade trap: two readers of one range, both want to write.
    bench.now(a, posix(8, Read, 50, 59)).unwrap();
    bench.now(a, posix(9, Read, 50, 59)).unwrap();
    let (_ticket, _w) = bench.park(a, posix(8, Write, 50, 59));
    assert!(deadlock(a, posix(9, Write, 50, 59)));
    // Open files have no such rule: the request waits.
    bench.now(a, ask(21, Ofd, Write, 90, 90)).unwrap();
    bench.now(a, ask(22, Ofd, Write, 91, 91)).unwrap();
    bench.park(a, ask(21, Ofd, Write, 91, 91));
    bench.park(a, ask(22, Ofd, Write, 90, 90));
}

#[test]
fn flock_lets_go_before_it_waits_for_another_kind() {
    let bench = bench();
    bench.now(&bench.a, flock(1, Read)).unwrap();
    bench.now(&bench.a, flock(2, Read)).unwrap();
    let (_, first) = bench.park(&bench.a, flock(1, Write));
    assert_eq!(bench.now(&bench.a, flock(2, Write)), Ok(()), "1 gave its shared lock up to wait");
    assert_eq!(first.try_recv(), Err(TryRecvError::Empty));
    bench.now(&bench.a, flock(2, Unlock)).unwrap();
    assert_eq!(first.try_recv(), Ok(Ok(())));
    // As on Linux, also a conversion that fails has given up what it had.
    bench.now(&bench.b, flock(1, Read)).unwrap();
    bench.now(&bench.b, flock(2, Read)).unwrap();
    assert_eq!(bench.now(&bench.b, flock(1, Write)), Err(Errno::EAGAIN));
    assert_eq!(bench.now(&bench.b, flock(2, Write)), Ok(()));
}

#[test]
fn the_end_of_an_owner_ends_its_waits() {
    let bench = bench();
    let vfs = &bench.lane.vfs;
    bench.now(&bench.a, posix(1, Write, 0, 9)).unwrap();
    bench.now(&bench.b, posix(1, Write, 0, 9)).unwrap();
    let (_, two) = bench.park(&bench.a, posix(2, Write, 0, 9));
    let (_, three) = bench.park(&bench.b, posix(3, Write, 0, 9));
    let (_, four) = bench.park(&bench.a, ask(4, Ofd, Write, 0, 9));
    vfs.drop_owner(LockOwner(2));
    assert_eq!(two.try_recv(), Ok(Err(Errno::EINTR)));
    vfs.drop_locks(&bench.a, LockOwner(4));
    assert_eq!(four.try_recv(), Ok(Err(Errno::EINTR)), "the open file is gone");
    vfs.drop_owner(LockOwner(1));
    assert_eq!(three.try_recv(), Ok(Ok(())));
    assert_eq!(vfs.get_lock(&bench.a, &posix(9, Write, 0, 9)), None);
}

#[test]
fn closing_an_open_file_drops_its_own_locks() {
    let bench = bench();
    let file = bench.lane.open("a", O_RDWR).unwrap();
    let owner = file.lock_owner(Flock);
    bench.now(&bench.a, LockRequest { owner, ..flock(0, Write) }).unwrap();
    let (_, told) = bench.park(&bench.a, flock(5, Write));
    drop(file);
    assert_eq!(told.try_recv(), Ok(Ok(())));
}

/// A waiter that uses the lane: no lock of the VFS may be held when it is told.
#[test]
fn waiters_are_told_without_locks() {
    let bench = bench();
    let (send, receive) = channel();
    let (vfs, b) = (bench.lane.vfs.clone(), bench.b.clone());
    bench.now(&bench.a, posix(1, Write, 0, 0)).unwrap();
    let wait: LockWaiter = Box::new(move |result| {
        vfs.set_lock(&b, posix(2, Write, 0, 0), None);
        send.send(result).unwrap();
    });
    assert!(matches!(
        bench.lane.vfs.set_lock(&bench.a, posix(2, Write, 0, 0), Some(wait)),
        LockOutcome::Parked(_)
    ));
    bench.now(&bench.a, posix(1, Unlock, 0, 0)).unwrap();
    assert_eq!(receive.recv(), Ok(Ok(())));
    assert_eq!(bench.now(&bench.b, posix(1, Read, 0, 0)), Err(Errno::EAGAIN));
}

/// Threads hand one lock around: nobody is forgotten, never two at once.
#[test]
fn many_threads_share_one_lock() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let bench = bench();
    let inside = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for owner in 1..=4u128 {
            let (bench, inside) = (&bench, &inside);
            scope.spawn(move || {
                for _ in 0..500 {
                    let (wait, told) = waiter();
                    let vfs = &bench.lane.vfs;
                    let request = posix(owner, Write, 0, 9);
                    match vfs.set_lock(&bench.a, request, Some(wait)) {
                        LockOutcome::Done(result) => result.unwrap(),
                        LockOutcome::Parked(_) => told.recv().unwrap().unwrap(),
                    }
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    bench.now(&bench.a, posix(owner, Unlock, 0, u64::MAX)).unwrap();
                }
            });
        }
    });
}

/// A session that keeps what was lent of one file, and counts how often that was asked back.
struct Keeper {
    vfs: Arc<Vfs>,
    kept: Mutex<(Option<LockLoan>, Vec<LockRequest>)>,
    asked: Mutex<u32>,
}

impl LockLender for Keeper {
    fn end_lock_loan(&self, view: u32) {
        assert_eq!(view, 7);
        *self.asked.lock() += 1;
        let mut kept = self.kept.lock();
        if let Some(loan) = kept.0.take() {
            self.vfs.take_back_locks(loan, &std::mem::take(&mut kept.1));
        }
    }
}

impl Keeper {
    fn lend(self: &Arc<Self>, bench: &Bench, owner: u128) -> bool {
        let mut lent = false;
        let weak: Weak<Keeper> = Arc::downgrade(self);
        bench.lane.vfs.lend_locks(&bench.a, LockOwner(owner), (weak, 7), &mut |loan, held| {
            lent = true;
            *self.kept.lock() = (Some(loan), held.to_vec());
            true
        });
        lent
    }
}

#[test]
fn lent_locks_are_asked_back_by_whoever_comes_near() {
    let bench = bench();
    let vfs = &bench.lane.vfs;
    let (kept, asked) = (Mutex::default(), Mutex::default());
    let keeper = Arc::new(Keeper { vfs: vfs.clone(), kept, asked });
    let asked = || std::mem::take(&mut *keeper.asked.lock());
    assert!(!keeper.lend(&bench, 1), "of a file without locks there is no table");
    assert_eq!(bench.now(&bench.a, posix(1, Read, 0, 9)), Ok(()));
    assert!(!keeper.lend(&bench, 2), "another's");
    assert!(keeper.lend(&bench, 1) && !keeper.lend(&bench, 1), "once");
    assert_eq!(keeper.kept.lock().1, [posix(1, Read, 0, 9)]);
    // What sees them not, and what is of another file, leaves them alone.
    assert_eq!(bench.now(&bench.a, flock(2, Write)), Ok(()));
    assert_eq!(bench.now(&bench.b, posix(2, Write, 0, 9)), Ok(()));
    vfs.drop_locks(&bench.a, LockOwner(2));
    assert_eq!(asked(), 0);
    // What the owner did meanwhile is what the next one finds.
    keeper.kept.lock().1 = vec![posix(1, Write, 20, 29), posix(1, Read, 40, 40)];
    assert_eq!(bench.now(&bench.a, posix(2, Write, 0, 9)), Ok(()));
    assert_eq!((asked(), keeper.lend(&bench, 1)), (1, false));
    let blocked = posix(2, Read, 0, u64::MAX);
    assert_eq!(vfs.get_lock(&bench.a, &blocked), Some(posix(1, Write, 20, 29)));
    vfs.drop_owner(LockOwner(2));
    assert!(keeper.lend(&bench, 1));
    assert_eq!(
        vfs.get_lock(&bench.a, &ask(3, Ofd, Write, 40, 40)).map(|held| held.start),
        Some(40)
    );
    assert!(keeper.lend(&bench, 1));
    // Who waits is granted what the owner, who has to ask by now, gives back.
    let (_, told) = bench.park(&bench.a, posix(2, Write, 20, 20));
    assert_eq!((asked(), keeper.lend(&bench, 1)), (2, false));
    assert_eq!(bench.now(&bench.a, posix(1, Unlock, 20, 29)), Ok(()));
    assert_eq!(told.try_recv(), Ok(Ok(())));
    vfs.drop_owner(LockOwner(2));
    // With its process goes what was lent, whatever comes back later.
    assert!(keeper.lend(&bench, 1));
    vfs.drop_owner(LockOwner(1));
    keeper.end_lock_loan(7);
    assert_eq!(vfs.get_lock(&bench.a, &posix(3, Write, 0, u64::MAX)), None);
}

#[test]
fn lent_locks_whose_session_is_gone_are_gone() {
    let bench = bench();
    let (kept, asked) = (Mutex::default(), Mutex::default());
    let keeper = Arc::new(Keeper { vfs: bench.lane.vfs.clone(), kept, asked });
    assert_eq!(bench.now(&bench.a, posix(1, Write, 0, 9)), Ok(()));
    assert!(keeper.lend(&bench, 1));
    drop(keeper);
    assert_eq!(bench.now(&bench.a, posix(2, Write, 0, 9)), Ok(()));
}

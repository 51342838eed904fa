//! Locks that two hosts have of one file: the file system decides, each VFS asks it.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_base::sync::{Arc, Condvar, Mutex};
use polylane_base::{Errno, Ino, Result, Uid};
use polylane_vfs::fs::SharedLocks;
use polylane_vfs::lock::{LOCKS_PER_USER_MAX, LockLender, Ticket};
use polylane_vfs::{LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, Node, Vfs};

use crate::common::forgetful::Forgetful;
use crate::common::options;

/// Bytes that locks of the tests are of.
const BYTES: u64 = 16;

/// Who has a byte, and how.
type Table = Vec<(LockOwner, LockKind, u64)>;

/// How long what must happen may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

/// What a cluster does: a list of locked bytes.
#[derive(Default)]
pub struct Server(Mutex<Table>, Gate);

/// Where answers of the server can be held up.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    bell: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Whose requests get no answer.
    closed_for: Option<LockOwner>,
    /// How many wait for one.
    inside: usize,
    /// Requests so far.
    asked: usize,
    /// What each request is answered, whatever is locked.
    answer: Option<Result<()>>,
}

impl Gate {
    fn pass(&self, owner: LockOwner) -> Option<Result<()>> {
        let mut state = self.state.lock();
        state.asked += 1;
        while state.closed_for == Some(owner) {
            state.inside += 1;
            self.bell.notify_all();
            state = self.bell.wait(state);
            state.inside -= 1;
        }
        state.answer
    }

    fn close(&self, owner: u128) {
        self.state.lock().closed_for = Some(LockOwner(owner));
    }

    fn open(&self) {
        self.state.lock().closed_for = None;
        self.bell.notify_all();
    }

    /// Waits until a request of whom it is closed for is inside.
    fn until_inside(&self) {
        let state = self.state.lock();
        let (state, _) = self.bell.wait_timeout_while(state, LIMIT, |state| state.inside == 0);
        assert!(state.inside > 0, "no request came");
    }
}

fn bytes(lock: &LockRequest) -> std::ops::RangeInclusive<u64> {
    lock.start..=lock.end.min(BYTES - 1)
}

fn is_in_the_way(held: &(LockOwner, LockKind, u64), lock: &LockRequest) -> bool {
    let conflicts = held.1 == LockKind::Write || lock.kind == LockKind::Write;
    held.0 != lock.owner && conflicts && bytes(lock).contains(&held.2)
}

impl SharedLocks for Server {
    fn set(&self, _: Ino, lock: &LockRequest) -> Result<()> {
        if let Some(answer) = self.1.pass(lock.owner) {
            return answer;
        }
        let mut table = self.0.lock();
        if lock.kind != LockKind::Unlock && table.iter().any(|held| is_in_the_way(held, lock)) {
            return Err(Errno::EAGAIN);
        }
        table.retain(|held| held.0 != lock.owner || !bytes(lock).contains(&held.2));
        if lock.kind != LockKind::Unlock {
            table.extend(bytes(lock).map(|byte| (lock.owner, lock.kind, byte)));
        }
        Ok(())
    }

    fn get(&self, _: Ino, lock: &LockRequest) -> Result<Option<LockRequest>> {
        let table = self.0.lock();
        let found = table.iter().filter(|held| is_in_the_way(held, lock)).min_by_key(|held| held.2);
        Ok(found.map(|(owner, kind, byte)| LockRequest {
            owner: *owner,
            kind: *kind,
            start: *byte,
            end: *byte,
            ..*lock
        }))
    }
}

struct Host {
    fs: Arc<Forgetful>,
    vfs: Arc<Vfs>,
    file: Node,
}

fn hosts() -> (Arc<Server>, [Host; 2]) {
    let server = Arc::new(Server::default());
    let host = |_| {
        let mut fs = Forgetful::default();
        fs.shared = Some(server.clone());
        let fs = Arc::new(fs);
        let vfs = Vfs::new(fs.clone(), options()).unwrap();
        let file = vfs.revive(Ino(2), 0).unwrap();
        Host { fs, vfs, file }
    };
    let hosts = [0, 1].map(host);
    (server, hosts)
}

fn lock(owner: u128, kind: LockKind, start: u64, end: u64) -> LockRequest {
    let (family, pid, user) = (LockFamily::Posix, owner as u32, None);
    LockRequest { owner: LockOwner(owner), family, kind, start, end, pid, user }
}

impl Host {
    fn set(&self, request: LockRequest) -> Result<()> {
        match self.vfs.set_lock(&self.file, request, None) {
            LockOutcome::Done(result) => result,
            LockOutcome::Parked(_) => panic!("parked without a waiter"),
        }
    }

    /// A request that waits: its ticket, and how it ends.
    fn wait_on(&self, file: &Node, request: LockRequest) -> (Ticket, Receiver<Result<()>>) {
        match self.try_wait_on(file, request) {
            (LockOutcome::Parked(ticket), told) => (ticket, told),
            (outcome, _) => panic!("{outcome:?}"),
        }
    }

    fn try_wait_on(
        &self,
        file: &Node,
        request: LockRequest,
    ) -> (LockOutcome, Receiver<Result<()>>) {
        let (send, told) = channel();
        let waiter = Box::new(move |result| {
            let _ = send.send(result);
        });
        (self.vfs.set_lock(file, request, Some(waiter)), told)
    }
}

/// What `work` returns, on a thread of its own, which must end.
fn in_time<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, done) = channel();
    std::thread::spawn(move || send.send(work()));
    done.recv_timeout(LIMIT).expect("it is not held up")
}

/// Random requests of owners of both hosts: each has the answer of one table of bytes, and nothing
/// is left of an owner that ends.
#[test]
fn both_hosts_have_the_locks_of_one_table() {
    let (server, hosts) = hosts();
    let model = Server::default();
    let mut rng = Rng::new(11);
    for step in 0..if cfg!(miri) { 50 } else { 3000 } {
        let owner = rng.below(4);
        let host = &hosts[owner as usize % 2];
        let kind = *rng.pick(&[LockKind::Read, LockKind::Write, LockKind::Unlock]);
        let (a, b) = (rng.below(BYTES), rng.below(BYTES));
        let request = lock(u128::from(owner), kind, a.min(b), a.max(b));
        assert_eq!(host.set(request), model.set(Ino(2), &request), "step {step}: {request:?}");
        let found = host.vfs.get_lock(&host.file, &request).map(|found| found.start);
        let expected = model.get(Ino(2), &request).unwrap().map(|found| found.start);
        assert_eq!(found, expected, "step {step}");
        if rng.below(20) == 0 {
            let all = lock(u128::from(owner), LockKind::Unlock, 0, BYTES - 1);
            match rng.below(2) {
                0 => host.vfs.drop_owner(all.owner),
                _ => host.vfs.drop_locks(&host.file, all.owner),
            }
            model.set(Ino(2), &all).unwrap();
        }
        let sorted = |server: &Server| {
            let mut table = server.0.lock().clone();
            table.sort_by_key(|(owner, _, byte)| (*owner, *byte));
            table
        };
        assert_eq!(sorted(&server), sorted(&model), "step {step}");
    }
}

#[test]
fn who_waits_is_asked_for_until_the_other_host_lets_go() {
    let (server, [one, other]) = hosts();
    one.set(lock(1, LockKind::Write, 0, 9)).unwrap();
    let wait = |request| {
        let (send, told) = channel();
        let waiter = Box::new(move |result| {
            let _ = send.send(result);
        });
        (other.vfs.set_lock(&other.file, request, Some(waiter)), told)
    };
    let (outcome, cancelled) = wait(lock(2, LockKind::Write, 0, 9));
    let LockOutcome::Parked(ticket) = outcome else { panic!("{outcome:?}") };
    let (_, told) = wait(lock(3, LockKind::Read, 5, 5));
    let (_, interrupted) = wait(lock(4, LockKind::Read, 5, 5));
    assert!(other.vfs.cancel_lock(ticket) && !other.vfs.cancel_lock(ticket));
    other.vfs.drop_owner(LockOwner(4));
    let limit = Duration::from_secs(20);
    assert_eq!(interrupted.recv_timeout(limit), Ok(Err(Errno::EINTR)));
    assert!(told.try_recv().is_err());
    one.vfs.drop_owner(LockOwner(1));
    assert_eq!(told.recv_timeout(limit), Ok(Ok(())));
    assert!(cancelled.recv().is_err(), "its waiter is gone, untold");
    assert_eq!(*server.0.lock(), [(LockOwner(3), LockKind::Read, 5)]);
    assert_eq!(one.set(lock(1, LockKind::Write, 5, 5)), Err(Errno::EAGAIN));
}

/// The server does not answer a waiting request for one file: those for others are answered, and
/// any is parked, cancelled and interrupted.
#[test]
fn a_file_whose_answer_does_not_come_holds_up_no_other() {
    let (server, [one, other]) = hosts();
    let (first, second) = (other.file.clone(), other.vfs.revive(Ino(3), 0).unwrap());
    one.set(lock(1, LockKind::Write, 0, 9)).unwrap();
    let (cancelled, untold) = other.wait_on(&first, lock(2, LockKind::Write, 0, 3));
    server.1.close(2);
    server.1.until_inside();
    let other = Arc::new(other);
    let (_, told) = in_time({
        let (other, second) = (other.clone(), second.clone());
        move || other.wait_on(&second, lock(3, LockKind::Write, 5, 9))
    });
    let (_, interrupted) = in_time({
        let (other, second) = (other.clone(), second.clone());
        move || other.wait_on(&second, lock(4, LockKind::Read, 6, 6))
    });
    in_time({
        let other = other.clone();
        move || other.vfs.drop_owner(LockOwner(4))
    });
    assert_eq!(interrupted.recv_timeout(LIMIT), Ok(Err(Errno::EINTR)));
    one.set(lock(1, LockKind::Unlock, 0, 9)).unwrap();
    assert_eq!(told.recv_timeout(LIMIT), Ok(Ok(())), "a file of which the server answers");
    let vfs = other.vfs.clone();
    assert!(in_time(move || vfs.cancel_lock(cancelled)));
    server.1.open();
    assert!(untold.recv().is_err(), "its waiter is gone, untold");
    // A request of the same file comes after what is done with the answer: it is given back.
    other.set(lock(4, LockKind::Read, 12, 12)).unwrap();
    one.set(lock(1, LockKind::Write, 0, 3)).unwrap();
}

/// Never asked: nothing is lent for longer than the closure runs that says so.
struct NoLender;

impl LockLender for NoLender {
    fn end_lock_loan(&self, _: u32) {}
}

impl Host {
    /// Keeps the table of locks locked until `work` has run.
    fn with_table_held(&self, work: impl FnOnce()) {
        let held = self.vfs.revive(Ino(3), 0).unwrap();
        let LockOutcome::Done(Ok(())) =
            self.vfs.set_lock(&held, lock(7, LockKind::Read, 15, 15), None)
        else {
            panic!("it is free");
        };
        let (lender, mut work) = (Arc::downgrade(&Arc::new(NoLender)), Some(work));
        self.fs.alone.store(true, SeqCst);
        self.vfs.lend_locks(&held, LockOwner(7), (lender, 0), &mut |_, _| {
            self.fs.alone.store(false, SeqCst);
            work.take().expect("once")();
            false
        });
        assert!(work.is_none(), "it has run");
    }
}

/// A waiting request is granted while its owner ends, and the table is in use just then: nothing is
/// left of the owner, here or on the server.
#[test]
fn nothing_is_left_of_an_owner_that_ends_as_its_request_is_granted() {
    let (server, [one, other]) = hosts();
    let of = |owner| server.0.lock().iter().any(|held| held.0 == LockOwner(owner));
    for round in 0..if cfg!(miri) { 4 } else { 16 } {
        one.set(lock(1, LockKind::Write, 0, 9)).unwrap();
        let (family, start) = (LockFamily::Ofd, round % 3);
        let request = LockRequest { family, ..lock(2, LockKind::Write, start, 9) };
        let (_, told) = other.wait_on(&other.file, request);
        server.1.close(2);
        server.1.until_inside();
        one.set(lock(1, LockKind::Unlock, 0, 9)).unwrap();
        std::thread::scope(|scope| {
            other.with_table_held(|| {
                server.1.open();
                while !of(2) {
                    std::thread::yield_now();
                }
                // What is done with the grant comes to the table, or not yet.
                (0..round).for_each(|_| std::thread::yield_now());
                scope.spawn(|| match round % 2 {
                    0 => other.vfs.drop_owner(LockOwner(2)),
                    _ => other.vfs.drop_locks(&other.file, LockOwner(2)),
                });
                (0..round).for_each(|_| std::thread::yield_now());
            });
        });
        // That it was granted, or that its owner ended.
        let _ = told.recv_timeout(LIMIT).expect("it was told");
        // A request of the same file comes after what is done with the answer.
        other.set(lock(4, LockKind::Unlock, 12, 12)).unwrap();
        assert!(!of(2), "round {round}");
    }
}

/// A request that was cancelled while the server had it is granted: its owner has what it had.
#[test]
fn a_late_grant_leaves_its_owner_what_it_had_before() {
    let (server, [one, other]) = hosts();
    one.set(lock(1, LockKind::Read, 5, 5)).unwrap();
    other.set(lock(2, LockKind::Read, 2, 7)).unwrap();
    let (ticket, _told) = other.wait_on(&other.file, lock(2, LockKind::Write, 0, 9));
    server.1.close(2);
    server.1.until_inside();
    // Its answer comes after this.
    one.set(lock(1, LockKind::Unlock, 0, 9)).unwrap();
    assert!(other.vfs.cancel_lock(ticket));
    server.1.open();
    // A request of the same file comes after what is done with the answer.
    other.set(lock(4, LockKind::Read, 12, 12)).unwrap();
    let mut table = server.0.lock().clone();
    table.retain(|held| held.0 == LockOwner(2));
    table.sort_by_key(|held| held.2);
    let read = |byte| (LockOwner(2), LockKind::Read, byte);
    assert_eq!(table, (2..=7).map(read).collect::<Table>());
}

#[test]
fn what_waits_counts_for_its_user_and_too_much_is_not_asked_for() {
    let (server, [_, host]) = hosts();
    let user = Some(Uid(7));
    let of_user = |owner| LockRequest { user, ..lock(owner, LockKind::Read, 0, 0) };
    server.1.state.lock().answer = Some(Ok(()));
    for owner in 2..=LOCKS_PER_USER_MAX as u128 {
        host.set(of_user(owner)).unwrap();
    }
    server.1.state.lock().answer = Some(Err(Errno::EAGAIN));
    let (ticket, _told) = host.wait_on(&host.file, of_user(1));
    let too_many = LockOutcome::Done(Err(Errno::ENOLCK));
    assert_eq!(host.try_wait_on(&host.file, of_user(0)).0, too_many);
    assert!(host.vfs.cancel_lock(ticket));
    let (ticket, told) = host.wait_on(&host.file, of_user(0));
    host.vfs.drop_owner(LockOwner(0));
    assert_eq!(told.recv_timeout(LIMIT), Ok(Err(Errno::EINTR)));
    assert!(!host.vfs.cancel_lock(ticket));
    server.1.state.lock().answer = Some(Ok(()));
    host.set(of_user(0)).unwrap();
    let asked = server.1.state.lock().asked;
    assert_eq!(host.set(of_user(1)), Err(Errno::ENOLCK));
    assert_eq!(server.1.state.lock().asked, asked, "the cluster was not asked");
    host.set(LockRequest { user: Some(Uid(8)), ..of_user(1) }).unwrap();
}

/// Two readers that want to write, as flock(2) lets them: one does.
#[test]
fn a_shared_flock_is_given_up_where_an_exclusive_one_has_to_wait() {
    let (_, [one, other]) = hosts();
    let flock = |owner, kind| LockRequest { family: LockFamily::Flock, ..lock(owner, kind, 0, 15) };
    one.set(flock(1, LockKind::Read)).unwrap();
    other.set(flock(2, LockKind::Read)).unwrap();
    let (_, told) = one.wait_on(&one.file, flock(1, LockKind::Write));
    assert_eq!(other.set(flock(2, LockKind::Write)), Ok(()), "the first one let go");
    other.set(flock(2, LockKind::Unlock)).unwrap();
    assert_eq!(told.recv_timeout(LIMIT), Ok(Ok(())));
}

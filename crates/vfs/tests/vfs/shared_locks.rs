//! Locks that two hosts have of one file: the file system decides, each VFS asks it.

use std::sync::mpsc::channel;
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::fs::SharedLocks;
use polylane_vfs::{LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, Node, Vfs};

use crate::common::forgetful::Forgetful;
use crate::common::options;

/// Bytes that locks of the tests are of.
const BYTES: u64 = 16;

/// Who has a byte, and how.
type Table = Vec<(LockOwner, LockKind, u64)>;

/// What a cluster does: a list of locked bytes.
#[derive(Default)]
pub struct Server(Mutex<Table>);

fn bytes(lock: &LockRequest) -> std::ops::RangeInclusive<u64> {
    lock.start..=lock.end.min(BYTES - 1)
}

fn is_in_the_way(held: &(LockOwner, LockKind, u64), lock: &LockRequest) -> bool {
    let conflicts = held.1 == LockKind::Write || lock.kind == LockKind::Write;
    held.0 != lock.owner && conflicts && bytes(lock).contains(&held.2)
}

impl SharedLocks for Server {
    fn set(&self, _: Ino, lock: &LockRequest) -> Result<()> {
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
    vfs: Arc<Vfs>,
    file: Node,
}

fn hosts() -> (Arc<Server>, [Host; 2]) {
    let server = Arc::new(Server::default());
    let host = |_| {
        let mut fs = Forgetful::default();
        fs.shared = Some(server.clone());
        let vfs = Vfs::new(Arc::new(fs), options()).unwrap();
        let file = vfs.revive(Ino(2), 0).unwrap();
        Host { vfs, file }
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

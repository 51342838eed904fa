//! Who coordinates a device, and its loop.
//!
//! # Invariants
//!
//! - Whoever listens at the socket holds the lock; a lock counts only while its path still names
//!   the locked file, and the holder unlinks both paths before it unlocks.
//! - A connection has one lane at most, and the lane goes with it.
//! - Services hold the connections of their lanes, and need not be honest: such a connection is
//!   listened to once, for its `Join`, and nobody who does not read what it is sent is waited for.
//! - One thread, no lock: the board is its own.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use polylane_base::sync::thread;
use polylane_block::qos::Nanos;
use polylane_block::qos::audit::Decision;
use polylane_block::qos::board::{Board, SeatId};
use polylane_block::qos::depth::{Counted, Depth};
use polylane_block::qos::governed::monotonic_ns;
use polylane_block::qos::page::{Mapped, PAGE_BYTES};
use polylane_sys::event::{self, Epoll, Interest, Ready};
use polylane_sys::{Region, scm};
use rustix::fs::{FlockOperation, Mode, OFlags};

use super::costs::Measuring;
use super::profile::Profile;
use super::{FromCoordinator, MESSAGE_BYTES_MAX, Meeting, Policy, ToCoordinator, Wanted};
use crate::bound::{Bound, Group, Number};
use crate::failure::{Failure, Result, say};
use crate::names::ensure_private_dir;
use crate::wait::wait_either;

/// How long a candidate waits before it looks again for a coordinator that does not listen yet.
const LOOK_AGAIN: Duration = Duration::from_millis(3);

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Connections at a time: more than anybody has lanes.
const CONNECTIONS_MAX: usize = 4096;

/// Between two looks at what the kernel counted ...
const AUDIT_NS: Nanos = 1_000_000_000;

/// ... of so many lanes at most: each takes system calls.
const AUDITS_MAX: usize = 32;

/// Between two words about lanes that were let go.
const WORDS_NS: Nanos = 60_000_000_000;

/// The name of [`Epoll`]'s first three descriptors; connections count from there.
const STOP: u64 = 0;
const LISTENER: u64 = 1;
const COSTS: u64 = 2;

/// A thread that coordinates a device whenever nobody else does. Dropped, it stops, and leaves no
/// files behind if it was the one.
#[derive(Debug)]
pub(crate) struct Candidate {
    stop: OwnedFd,
    thread: Option<thread::JoinHandle<()>>,
}

impl Candidate {
    /// Starts to wait for the turn of this process.
    ///
    /// # Errors
    /// The host has no thread or event descriptor to give.
    pub(crate) fn start(meeting: Meeting, profile: Profile) -> Result<Candidate> {
        let failed =
            |error: std::io::Error| Failure::because("shares", "start their coordinator", error);
        let stop = event::eventfd().map_err(|error| failed(error.into()))?;
        let stopped = stop.try_clone().map_err(failed)?;
        let run = move || wait_for_turn(&meeting, &profile, &stopped);
        let thread = thread::Builder::new()
            .name("polylane-shares".to_string())
            .spawn(run)
            .map_err(failed)?;
        Ok(Candidate { stop, thread: Some(thread) })
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        event::notify(&self.stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The lock of a coordinator. Dropped, socket and lock are gone.
struct Hold {
    meeting: Meeting,
    _lock: OwnedFd,
}

impl Hold {
    /// Takes the lock if nobody has it.
    fn take(meeting: &Meeting) -> Option<Hold> {
        // The last keeper that was there has removed it.
        ensure_private_dir(meeting.dir()).ok()?;
        let path = meeting.holder();
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).ok()?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
        let (named, held) = (rustix::fs::lstat(&path).ok()?, rustix::fs::fstat(&lock).ok()?);
        let same = (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino);
        same.then(|| Hold { meeting: meeting.clone(), _lock: lock })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.meeting.socket());
        let _ = std::fs::remove_file(self.meeting.holder());
        let _ = std::fs::remove_dir(self.meeting.dir());
    }
}

fn wait_for_turn(meeting: &Meeting, profile: &Profile, stop: &OwnedFd) {
    // Late windows cost throughput. What may not be had is done without.
    let _ = rustix::process::setpriority_process(None, -20);
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    loop {
        if let Some(hold) = Hold::take(meeting) {
            let profile = profile.latest();
            if let Ok(mut coordinator) = Coordinator::new(&hold, &profile, stop.as_fd()) {
                coordinator.run();
                return;
            }
            drop(hold);
        }
        let stopped = match scm::connect(&meeting.socket()) {
            // Readable at its end: an observer is told nothing.
            Ok(link) => wait_either(stop.as_fd(), link.as_fd(), Duration::from_secs(3600)).0,
            Err(_) => wait_either(stop.as_fd(), stop.as_fd(), LOOK_AGAIN).0,
        };
        if stopped {
            return;
        }
    }
}

/// A connection, and its lane if it has one.
struct Connection {
    fd: OwnedFd,
    lane: Option<(SeatId, String, Wanted)>,
    /// Where the lane's process is counted and can be held back.
    group: Option<Group>,
}

impl Connection {
    /// Says something; a peer that is gone is seen by its event.
    fn tell(&self, message: &FromCoordinator) {
        if let Ok(bytes) = serde_json::to_vec(message) {
            let _ = scm::send(&self.fd, &bytes, &[]);
        }
    }
}

struct Coordinator {
    epoll: Epoll,
    listener: OwnedFd,
    profile: Profile,
    policy: Policy,
    board: Board<Mapped>,
    /// The page with the lock that all lanes share, for `wdt-shared-lock`.
    lock: Option<OwnedFd>,
    /// What the kernel counts of the device's requests.
    depth: Option<Counted>,
    connections: HashMap<u64, Connection>,
    next: u64,
    device: Number,
    /// Connections with a group: whose turn it is to be looked at comes first.
    watched: VecDeque<u64>,
    next_audit: Nanos,
    /// What requests cost is being measured.
    measuring: Option<Measuring>,
    /// How often lanes were let go beside their policy when that was said last, and when it may be
    /// said again.
    let_go: u64,
    next_word: Nanos,
}

impl Coordinator {
    fn new(hold: &Hold, profile: &Profile, stop: BorrowedFd<'_>) -> polylane_base::Result<Self> {
        let socket = hold.meeting.socket();
        // We hold the lock, so whatever lies here is a dead coordinator's.
        let _ = std::fs::remove_file(&socket);
        let listener = scm::listen(&socket, BACKLOG)?;
        let epoll = Epoll::new()?;
        epoll.add(stop, STOP, Interest::Level)?;
        epoll.add(&listener, LISTENER, Interest::Level)?;
        let measuring = profile.measuring(&hold.meeting);
        if let Some(measuring) = &measuring {
            epoll.add(measuring, COSTS, Interest::Level)?;
        }
        let policy = Policy::Ledger;
        let board = Board::new(policy.rule().unwrap_or_default(), profile.device, monotonic_ns());
        Ok(Coordinator {
            epoll,
            listener,
            profile: profile.clone(),
            policy,
            board,
            lock: None,
            depth: hold.meeting.depth(),
            connections: HashMap::new(),
            next: COSTS + 1,
            device: hold.meeting.number(),
            watched: VecDeque::new(),
            next_audit: 0,
            measuring,
            let_go: 0,
            next_word: 0,
        })
    }

    /// Until it is told to stop.
    fn run(&mut self) {
        let mut ready: Vec<Ready> = Vec::new();
        loop {
            let limit = (!self.board.is_empty()).then(|| {
                Duration::from_nanos(self.board.next_tick().saturating_sub(monotonic_ns()))
            });
            if self.epoll.wait(&mut ready, limit).is_err() {
                return;
            }
            for event in ready.drain(..) {
                match event.token {
                    STOP => return,
                    LISTENER => self.accept(),
                    COSTS => self.hear_costs(),
                    token => self.serve(token),
                }
            }
            if !self.board.is_empty() {
                let depth = self.depth.as_ref().and_then(Depth::requests);
                self.board.tick(monotonic_ns(), depth);
                self.say_let_go(monotonic_ns());
                self.audit(monotonic_ns());
            }
        }
    }

    /// Says, now and then, that lanes were let go beside their policy.
    fn say_let_go(&mut self, now: Nanos) {
        let count = self.board.let_go_count();
        if count == self.let_go || now < self.next_word {
            return;
        }
        (self.let_go, self.next_word) = (count, now + WORDS_NS);
        let ((major, minor), rule) = (self.device, self.policy.rule().unwrap_or_default().name());
        say(format_args!(
            "shares: requests waited while nothing was at device {major}:{minor}, and were let go \
             beside --qos {rule}"
        ));
    }

    /// What requests cost is known: all lanes join again, to be charged by that.
    fn hear_costs(&mut self) {
        let Some(measuring) = self.measuring.take() else { return };
        let _ = self.epoll.remove(&measuring);
        let Some(cost) = measuring.result() else { return };
        self.profile.device.cost = cost;
        let lanes = self.connections.iter().filter(|(_, one)| one.lane.is_some());
        let lanes: Vec<u64> = lanes.map(|(token, _)| *token).collect();
        lanes.into_iter().for_each(|token| self.leave(token));
        self.renew_board();
    }

    fn renew_board(&mut self) {
        let rule = self.policy.rule().unwrap_or_default();
        self.board = Board::new(rule, self.profile.device, monotonic_ns());
        (self.lock, self.let_go) = (None, 0);
    }

    /// Compares what lanes say with what the kernel counted, of some of them each second.
    fn audit(&mut self, now: Nanos) {
        if now < self.next_audit {
            return;
        }
        self.next_audit = now + AUDIT_NS;
        for _ in 0..self.watched.len().min(AUDITS_MAX) {
            let Some(token) = self.watched.pop_front() else { return };
            if self.audit_one(token, now).is_some() {
                self.watched.push_back(token);
            }
        }
    }

    /// `None`: the lane is gone, or nothing is counted.
    fn audit_one(&mut self, token: u64, now: Nanos) -> Option<()> {
        let connection = self.connections.get(&token)?;
        let ((seat, ..), group) = (connection.lane.as_ref()?, connection.group.as_ref()?);
        let was = self.board.bound(*seat).is_some();
        let bound = match self.board.audit(*seat, group.counts(self.device)?, now) {
            Decision::Keep => return Some(()),
            Decision::Bind(flows) => Some(Bound::from(flows)),
            Decision::Free => None,
        };
        // A kernel that does not take it leaves things as they would be without.
        let _ = group.bind(self.device, bound);
        if was != bound.is_some() {
            connection.tell(&FromCoordinator::Bound(bound.is_some()));
        }
        Some(())
    }

    fn accept(&mut self) {
        let Ok(fd) = scm::accept(&self.listener) else { return };
        let own = rustix::process::geteuid().as_raw();
        let known =
            scm::peer(&fd).is_ok_and(|peer| peer.identity.uid == own || peer.identity.uid == 0);
        if !known || self.connections.len() >= CONNECTIONS_MAX {
            return;
        }
        if rustix::io::ioctl_fionbio(&fd, true).is_err() {
            return;
        }
        let token = self.next;
        self.next += 1;
        if self.epoll.add(&fd, token, Interest::Level).is_ok() {
            self.connections.insert(token, Connection { fd, lane: None, group: None });
        }
    }

    fn serve(&mut self, token: u64) {
        let Some(connection) = self.connections.get(&token) else { return };
        if connection.lane.is_some() {
            // Its end, or a service that would speak for others. Its supervisor joins again.
            return self.leave(token);
        }
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut fds = Vec::new();
        let message = match scm::try_receive(&connection.fd, &mut bytes) {
            Ok(got) if got.count > 0 && !got.truncated => {
                fds = got.fds;
                serde_json::from_slice(&bytes[..got.count]).ok()
            }
            Err(polylane_base::Errno::EAGAIN | polylane_base::Errno::EINTR) => return,
            Ok(_) | Err(_) => None,
        };
        match message {
            Some(ToCoordinator::Join { pool, wanted, policy }) => {
                self.join(token, pool, wanted, policy);
            }
            Some(ToCoordinator::Set { pool, change }) => self.set(token, &pool, change),
            Some(ToCoordinator::Watch { pool }) => self.watch(token, &pool, fds.pop()),
            // It is over, or talks nonsense.
            None => self.leave(token),
        }
    }

    fn leave(&mut self, token: u64) {
        let Some(connection) = self.connections.remove(&token) else { return };
        let _ = self.epoll.remove(&connection.fd);
        if let Some((seat, ..)) = connection.lane {
            if let Some(group) = connection.group.filter(|_| self.board.bound(seat).is_some()) {
                let _ = group.bind(self.device, None);
            }
            self.board.leave(seat);
        }
    }

    /// A lane's process is in this group from now on. What an earlier coordinator held it to is
    /// over.
    fn watch(&mut self, token: u64, pool: &str, dir: Option<OwnedFd>) {
        let named = self.connections.iter_mut().find(|(_, connection)| {
            connection.lane.as_ref().is_some_and(|(_, name, _)| name == pool)
        });
        let mut count = 0;
        if let (Some((lane, connection)), Some(group)) = (named, dir.and_then(Group::from_dir)) {
            let _ = group.bind(self.device, None);
            if connection.group.replace(group).is_none() {
                self.watched.push_back(*lane);
            }
            count = 1;
        }
        self.answer(token, &FromCoordinator::Done(count), &[]);
    }

    fn join(&mut self, token: u64, pool: String, wanted: Wanted, policy: Policy) {
        let answer = match self.seat(token, pool, wanted, policy) {
            Ok(page) => {
                let depth = self.depth.as_ref().map(|depth| depth.file().as_fd());
                let extra = self.lock.as_ref().map(AsFd::as_fd).or(depth);
                let fds: Vec<_> = [Some(page.as_fd()), extra].into_iter().flatten().collect();
                return self.answer(token, &FromCoordinator::Joined, &fds);
            }
            Err(why) => FromCoordinator::Refused(why),
        };
        self.answer(token, &answer, &[]);
    }

    /// A lane for a connection: its page.
    fn seat(
        &mut self,
        token: u64,
        pool: String,
        wanted: Wanted,
        policy: Policy,
    ) -> std::result::Result<OwnedFd, String> {
        policy.rule().ok_or("--qos none: has no coordinator")?;
        if self.board.is_empty() && policy != self.policy {
            self.policy = policy;
            self.renew_board();
        }
        if policy != self.policy {
            return Err(format!(
                "--qos {}: the pools on this device share it by '{}'",
                policy.name(),
                self.policy.name()
            ));
        }
        let failed = |error: polylane_base::Errno| format!("shares: make a page: {error}");
        if policy == Policy::WdtSharedLock && self.lock.is_none() {
            self.lock = Some(Region::create("polylane-shares-lock", PAGE_BYTES).map_err(failed)?.1);
        }
        let connection = self.connections.get_mut(&token).ok_or("shares: who is there?")?;
        let (page, fd) = Region::create("polylane-share", PAGE_BYTES).map_err(failed)?;
        let seat = self.board.join(Mapped(page), wanted.limits(), monotonic_ns());
        connection.lane = Some((seat, pool, wanted));
        Ok(fd)
    }

    fn set(&mut self, token: u64, pool: &str, change: Wanted) {
        let lanes = self.connections.values().filter_map(|connection| connection.lane.as_ref());
        let mut changed = lanes.filter(|(_, name, _)| name == pool);
        // What was set under another policy is in nobody's way.
        let why = changed.find_map(|(_, _, was)| {
            let vain = change.contradiction(self.policy);
            vain.or_else(|| was.changed(change).contradiction(Policy::Ledger))
        });
        if let Some(why) = why {
            return self.answer(token, &FromCoordinator::Refused(why), &[]);
        }
        let mut count = 0;
        for connection in self.connections.values_mut() {
            let Some((seat, _, wanted)) =
                connection.lane.as_mut().filter(|(_, name, _)| name == pool)
            else {
                continue;
            };
            *wanted = wanted.changed(change);
            self.board.set(*seat, wanted.limits());
            count += 1;
            let wanted = *wanted;
            connection.tell(&FromCoordinator::Changed(wanted));
        }
        self.answer(token, &FromCoordinator::Done(count), &[]);
    }

    /// Answers; a peer that is gone is seen by its event.
    fn answer(&self, token: u64, message: &FromCoordinator, fds: &[BorrowedFd<'_>]) {
        if let Some(connection) = self.connections.get(&token)
            && let Ok(bytes) = serde_json::to_vec(message)
        {
            let _ = scm::send(&connection.fd, &bytes, fds);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Instant;

    use polylane_block::qos::page::{Words, lane};
    use rustix::net::SendFlags;

    use super::*;
    use crate::share::member::{Member, ask};
    use crate::wait::wait_for;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A place to meet, and who coordinates there.
    fn meeting() -> (tempfile::TempDir, Meeting, Candidate) {
        let dir = tempfile::tempdir().expect("tempdir");
        let file = tempfile::tempfile().expect("tempfile");
        // The directory in which they meet is for the coordinator to make.
        let meeting = Meeting::of(&dir.path().join("run"), &file).expect("a device");
        let candidate =
            Candidate::start(meeting.clone(), Profile::default()).expect("a coordinator");
        (dir, meeting, candidate)
    }

    fn joined(meeting: &Meeting, pool: &str) -> Member {
        by(meeting, pool, Some(Policy::Ledger))
    }

    fn by(meeting: &Meeting, pool: &str, policy: Option<Policy>) -> Member {
        let mut member = Member::new(meeting.clone(), pool, Wanted::default(), policy);
        let start = Instant::now();
        while !member.rejoin() {
            assert!(start.elapsed() < PATIENCE, "waited for a coordinator");
            thread::sleep(Duration::from_millis(5));
        }
        member
    }

    fn weigh(pool: &str, weight: u32) -> Vec<u8> {
        let change = Wanted { weight: Some(weight), ..Wanted::default() };
        serde_json::to_vec(&ToCoordinator::Set { pool: pool.to_string(), change }).expect("JSON")
    }

    #[test]
    fn a_lane_s_connection_changes_nobody_s_share() {
        let (_dir, meeting, _candidate) = meeting();
        let mut honest = joined(&meeting, "honest");
        let mut liar = joined(&meeting, "liar");
        // What a service holds is a duplicate of this.
        let link = liar.link().expect("joined").try_clone_to_owned().expect("dup");
        scm::send(&link, &weigh("honest", 1), &[]).expect("send");
        assert!(wait_for(link.as_fd(), PATIENCE), "waited for the end of its connection");
        liar.news();
        assert!(liar.link().is_none(), "it still has its lane");
        assert!(liar.rejoin(), "its supervisor may not join again");
        assert!(!wait_for(honest.link().expect("joined"), Duration::ZERO), "the other was changed");
        // Whoever asks on a connection of its own may.
        let message = serde_json::from_slice(&weigh("honest", 7)).expect("JSON");
        assert_eq!(ask(&meeting.socket(), &message), Some(FromCoordinator::Done(1)));
        assert!(wait_for(honest.link().expect("joined"), PATIENCE), "waited for the change");
        honest.news();
        assert_eq!(honest.wanted().weight, Some(7));
    }

    /// A group as version 1 has them, of files that only the test and the coordinator write.
    fn fake_group(dir: &Path) -> PathBuf {
        let group = dir.join("group");
        fs::create_dir(&group).expect("mkdir");
        for name in ["read_iops", "read_bps", "write_iops", "write_bps"] {
            fs::write(group.join(format!("blkio.throttle.{name}_device")), "").expect("write");
        }
        group
    }

    /// What the kernel would say that the group has read.
    fn count(group: &Path, (major, minor): Number, requests: u64) {
        for (name, each) in [("io_serviced", 1), ("io_service_bytes", 4096)] {
            let fresh = group.join("fresh");
            let text = format!("{major}:{minor} Read {}\nTotal 1\n", requests * each);
            fs::write(&fresh, text).expect("write");
            fs::rename(fresh, group.join(format!("blkio.throttle.{name}"))).expect("rename");
        }
    }

    #[test]
    fn a_lane_whose_process_does_more_than_it_says_is_bound_until_it_leaves() {
        let (dir, meeting, _candidate) = meeting();
        let (group, device) = (fake_group(dir.path()), meeting.number());
        let honest = joined(&meeting, "honest");
        let mut liar = joined(&meeting, "liar");
        liar.watch_io(Some(group.clone()));
        let page = honest.fds()[1].try_clone_to_owned().expect("dup");
        let page = Mapped(Region::attach(page, PAGE_BYTES).expect("a page"));
        let (start, mut requests) = (Instant::now(), 0);
        while liar.describe()["bound"].is_null() {
            assert!(start.elapsed() < PATIENCE, "waited for a bound");
            requests += 1000;
            count(&group, device, requests);
            // The other one always has something at the device.
            page.add(lane::SPENT, 1_000_000, Relaxed);
            page.add(lane::REQUESTS, 100, Relaxed);
            page.add(lane::READ_BYTES, 100 * 4096, Relaxed);
            liar.keep_io(std::process::id());
            thread::sleep(Duration::from_millis(10));
        }
        let written = fs::read_to_string(group.join("cgroup.procs")).expect("its process");
        assert_eq!(written, std::process::id().to_string());
        assert!(wait_for(liar.link().expect("joined"), PATIENCE), "waited to be told");
        liar.news();
        assert!(liar.link().is_some() && honest.describe()["bound"].is_null());
        drop(liar);
        let limit = group.join("blkio.throttle.read_iops_device");
        let lifted = format!("{}:{} 0", device.0, device.1);
        while fs::read_to_string(&limit).expect("a limit") != lifted {
            assert!(start.elapsed() < 2 * PATIENCE, "waited for its release");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn what_contradicts_what_was_set_before_changes_nothing() {
        let (_dir, meeting, _candidate) = meeting();
        let mut lane = joined(&meeting, "lane");
        let set = |change: Wanted| {
            let message = ToCoordinator::Set { pool: "lane".to_string(), change };
            ask(&meeting.socket(), &message)
        };
        let most = |iops| Wanted { iops_max: Some(iops), ..Wanted::default() };
        let least = |iops| Wanted { iops_min: Some(iops), weight: Some(7), ..Wanted::default() };
        assert_eq!(set(most(100)), Some(FromCoordinator::Done(1)));
        let why = "--min-iops 101: is more than --max-iops 100".to_string();
        assert_eq!(set(least(101)), Some(FromCoordinator::Refused(why)));
        assert_eq!(set(most(0)), Some(FromCoordinator::Done(1)));
        assert_eq!(set(least(101)), Some(FromCoordinator::Done(1)));
        let start = Instant::now();
        while lane.wanted() != least(101).changed(most(0)) {
            assert!(start.elapsed() < PATIENCE, "waited for the last change: {:?}", lane.wanted());
            assert!(wait_for(lane.link().expect("joined"), PATIENCE), "waited for news");
            assert_ne!(lane.wanted().weight, Some(100), "what was refused changes nothing");
            lane.news();
        }
    }

    #[test]
    fn who_asks_for_no_policy_shares_as_the_others_do() {
        let (_dir, meeting, _candidate) = meeting();
        let shares = |member: &Member| member.describe()["policy"].clone();
        let alone = by(&meeting, "alone", None);
        assert_eq!(shares(&alone), "ledger");
        drop(alone);
        let _first = by(&meeting, "first", Some(Policy::WdtSharedLock));
        let mut other = Member::new(meeting.clone(), "no", Wanted::default(), Some(Policy::Wdt));
        assert!(other.join().is_err(), "who asks for another is told so");
        let mut second = Member::new(meeting.clone(), "second", Wanted::default(), None);
        second.join().expect("joins");
        assert_eq!(shares(&second), "wdt-shared-lock");
    }

    #[test]
    fn nobody_waits_for_one_who_does_not_read() {
        let (_dir, meeting, _candidate) = meeting();
        let _honest = joined(&meeting, "honest");
        let deaf = scm::connect(&meeting.socket()).expect("connect");
        let (message, start) = (weigh("nobody", 1), Instant::now());
        // Until the answers fill its buffer, and well beyond.
        let mut sent = 0;
        while sent < 2000 {
            assert!(start.elapsed() < PATIENCE, "the coordinator stands still after {sent}");
            match rustix::net::send(&deaf, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => sent += 1,
                Err(rustix::io::Errno::AGAIN) => thread::sleep(Duration::from_millis(1)),
                // Turned away: as good.
                Err(_) => break,
            }
        }
        let message = serde_json::from_slice(&weigh("honest", 9)).expect("JSON");
        let answered = || ask(&meeting.socket(), &message) == Some(FromCoordinator::Done(1));
        while !answered() {
            assert!(start.elapsed() < PATIENCE, "waited for an answer to somebody else");
        }
    }
}

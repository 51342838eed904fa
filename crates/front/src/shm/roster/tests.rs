//! Whose request is next, on a clock that the tests move.

use std::os::fd::{AsFd, OwnedFd};

use polylane_base::sync::atomic::AtomicBool;
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::message::{Message, Op, Reply, Status};
use polylane_ipc::{ClientChannel, CopyPlan, Geometry, ServiceChannel};
use polylane_sys::event;
use polylane_vfs::{Cred, LockOwner};

use super::*;
use crate::lane::Lane;
use crate::lane::empty::lane;
use crate::lane::slots::Token;
use crate::shm::Config;
use crate::shm::connection::Connection;
use crate::shm::process::Process;
use crate::shm::rights::FramesLeft;
use crate::witness::Numbers;

fn session(lane: &Arc<Lane>, id: u64) -> (Arc<Session>, ClientChannel) {
    session_of(lane, id, Uid(0))
}

fn session_of(lane: &Arc<Lane>, id: u64, uid: Uid) -> (Arc<Session>, ClientChannel) {
    let (geometry, plan) = (Geometry::default(), CopyPlan::default());
    let channel = ServiceChannel::create(geometry, plan).unwrap();
    let own = |fd: &std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    let mut fds: Vec<OwnedFd> = channel.client_fds().iter().map(own).collect();
    let client = ClientChannel::attach(fds.remove(0), fds, geometry, plan).unwrap();
    let (pidfd, gone) = (event::eventfd().unwrap(), AtomicBool::new(false));
    let holders = Arc::default();
    let (owner, locks) = (LockOwner(1), AtomicBool::new(false));
    let user = None;
    let process = Process { pid: 1, user, pidfd, number: 1, owner, gone, locks, holders };
    let connection = Connection {
        id,
        key: id,
        cred: Cred { uid, ..Cred::root() },
        process: Arc::new(process),
        shown: 1,
        attachment: None,
        mounts: None,
        other_numbers: false,
        other_owners: false,
        channel,
        slots: lane.slots.open_session(
            Token::random().unwrap(),
            (uid, Arc::new([])),
            Numbers { pid: 0, thread: 0 },
        ),
        lane: lane.clone(),
        stats: Arc::default(),
    };
    let session = Session::new(connection, Arc::default(), Arc::new(FramesLeft::new(0)));
    (session, client)
}

fn post(client: &ClientChannel) {
    let mailbox = client.claim().unwrap();
    client.post(mailbox, &Message::new(Op::Ping), &Trusting).unwrap();
}

fn rings(session: &Session) -> bool {
    event::drain(session.connection.channel.doorbell(0).as_fd()) > 0
}

fn round(roster: &mut Roster) -> usize {
    roster.round(1, |session, mailbox| {
        session.connection.channel.reply(mailbox, &Reply::new(Status::Done(0)));
    })
}

#[test]
fn the_quiet_become_dormant_and_ring_when_they_come_back() {
    let (lane, mut roster) = (lane(), Roster::new(0));
    let (quiet, quiet_client) = session(&lane, 1);
    let (busy, busy_client) = session(&lane, 2);
    roster.add(quiet.clone(), 0);
    roster.add(busy.clone(), 0);
    for _ in 0..IDLE_ROUNDS {
        post(&busy_client);
        assert_eq!(round(&mut roster), 1);
        busy_client.release(MailboxIndex(0));
    }
    roster.rest();
    assert_eq!((roster.hot_count(), roster.any_dormant()), (1, true));
    post(&busy_client);
    assert!(!rings(&busy), "a hot session's client need not ring");
    assert_eq!(round(&mut roster), 1);
    post(&quiet_client);
    assert!(rings(&quiet), "a dormant one must");
    assert_eq!(round(&mut roster), 0);
    roster.rang(1, 0);
    roster.rang(2, 0);
    assert_eq!((roster.hot_count(), roster.any_dormant()), (2, false));
    assert_eq!(round(&mut roster), 1);
}

thread_local! {
    /// Of the clock that a test moves.
    static PASSED: std::cell::Cell<Duration> = const { std::cell::Cell::new(Duration::ZERO) };
    static BEGIN: Instant = Instant::now();
}

fn moved_clock() -> Instant {
    BEGIN.with(|begin| *begin + PASSED.get())
}

fn pass(nanoseconds: u64) {
    PASSED.set(PASSED.get() + Duration::from_nanos(nanoseconds));
}

/// A clock on which each look at it takes 10 ns, and nothing else but what a test says.
fn timed_roster() -> Roster {
    let clock = || {
        pass(10);
        moved_clock()
    };
    Roster { time: Laps::new(clock), ..Roster::new(0) }
}

/// Whose requests were served in which order, while user 1 always asks by many sessions, each
/// request for `cost`, and user 2 asks by one session for 100 ns, `thinks` after each answer.
fn order(cost: u64, thinks: u64, rounds: usize) -> Vec<u64> {
    let (lane, mut roster) = (lane(), timed_roster());
    let flood: Vec<_> = (0..20).map(|id| session_of(&lane, id, Uid(1))).collect();
    let (quiet, quiet_client) = session_of(&lane, 99, Uid(2));
    flood.iter().for_each(|(session, _)| roster.add(session.clone(), 0));
    roster.add(quiet, 0);
    flood.iter().for_each(|(_, client)| post(client));
    post(&quiet_client);
    let (mut order, mut answered) = (Vec::new(), None::<Duration>);
    for _ in 0..rounds {
        roster.round(8, |session, mailbox| {
            let id = session.connection.id;
            session.connection.channel.reply(mailbox, &Reply::new(Status::Done(0)));
            pass(if id == 99 { 100 } else { cost });
            order.push(if id == 99 { 2 } else { 1 });
            match flood.iter().find(|(flooding, _)| flooding.connection.id == id) {
                Some((_, client)) => {
                    client.release(mailbox);
                    post(client);
                }
                None => answered = Some(PASSED.get()),
            }
        });
        if answered.is_some_and(|at| PASSED.get() >= at + Duration::from_nanos(thinks)) {
            answered = None;
            quiet_client.release(MailboxIndex(0));
            post(&quiet_client);
        }
    }
    order
}

#[test]
fn users_share_the_time_whatever_sessions_they_have() {
    let count = |order: &[u64], user| order.iter().filter(|&&id| id == user).count();
    // Both always ask: 2000 ns for one are 20 requests of the other's, less its looks.
    let both = order(2000, 0, 2000);
    let part = count(&both, 2) as f64 / count(&both, 1) as f64;
    assert!((12.0..=20.5).contains(&part), "{part}");
    // As long as the other: by turns.
    let equal = order(100, 0, 2000);
    let part = count(&equal, 2) as f64 / count(&equal, 1) as f64;
    assert!((0.8..=1.25).contains(&part), "{part}");
    // Who thinks for longer waits for one request, and has none in store.
    let seldom = order(2000, 5000, 2000);
    assert!(seldom.windows(2).all(|pair| pair != [2, 2]), "one at a time");
    assert!(count(&seldom, 1) > 2 * count(&seldom, 2), "the other goes on");
}

/// What a user had while another was hot and asked for nothing, or seldom, is not held against
/// it once that one floods: at random costs and pauses, neither waits for long.
#[test]
fn what_a_user_had_before_is_not_held_against_it() {
    for seed in 0..8 {
        let waits = longest_waits(seed);
        assert!(waits < Duration::from_micros(60), "seed {seed}: {waits:?}");
    }
}

/// Two users of one session each: one is busy for 100 ms while the other asks every 5 ms, then
/// both ask after pauses of up to 3 µs. The longest time from a request to its begin.
fn longest_waits(seed: u64) -> Duration {
    let (lane, mut roster) = (lane(), timed_roster());
    let users: Vec<_> = (0..2).map(|id| session_of(&lane, id, Uid(id as u32 + 1))).collect();
    users.iter().for_each(|(session, _)| roster.add(session.clone(), 0));
    let mut state = seed + 1;
    let mut below = move |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % most
    };
    let begin = PASSED.get();
    let (mut asks_at, mut asked) = ([begin; 2], [None::<Duration>; 2]);
    let mut longest = Duration::ZERO;
    while PASSED.get() < begin + Duration::from_millis(200) {
        for user in 0..2 {
            if asked[user].is_none() && PASSED.get() >= asks_at[user] {
                post(&users[user].1);
                asked[user] = Some(PASSED.get());
            }
        }
        let seldom = PASSED.get() < begin + Duration::from_millis(100);
        roster.round(8, |session, mailbox| {
            let user = session.connection.id as usize;
            let waited = PASSED.get() - asked[user].take().expect("it asked");
            longest = longest.max(waited);
            pass(100 + below(3000));
            session.connection.channel.reply(mailbox, &Reply::new(Status::Done(0)));
            users[user].1.release(mailbox);
            let pause = if seldom && user == 1 { 5_000_000 } else { below(3000) };
            asks_at[user] = PASSED.get() + Duration::from_nanos(pause);
        });
    }
    longest
}

/// Each of a user's many sessions is looked at while another user is hot.
#[test]
fn sessions_of_a_user_take_turns() {
    let (lane, mut roster) = (lane(), timed_roster());
    let many: Vec<_> =
        (0..3 * LOOKS_MAX as u64 + 1).map(|id| session_of(&lane, id, Uid(1))).collect();
    let (other, _client) = session_of(&lane, 99, Uid(2));
    many.iter().for_each(|(session, _)| roster.add(session.clone(), 0));
    roster.add(other, 0);
    for (session, client) in &many {
        post(client);
        let mut served = None;
        let count = roster.round(8, |session, mailbox| {
            session.connection.channel.reply(mailbox, &Reply::new(Status::Done(0)));
            served = Some(session.connection.id);
        });
        assert_eq!((count, served), (1, Some(session.connection.id)), "in one round");
    }
}

#[test]
fn who_asks_in_the_last_moment_stays_hot() {
    let (lane, mut roster) = (lane(), Roster::new(0));
    let (quiet, client) = session(&lane, 1);
    roster.add(quiet, 0);
    (0..IDLE_ROUNDS).for_each(|_| assert_eq!(round(&mut roster), 0));
    post(&client);
    roster.rest();
    assert_eq!(roster.hot_count(), 1);
    assert_eq!(round(&mut roster), 1);
}

#[test]
fn sessions_leave_from_either_part() {
    let (lane, mut roster) = (lane(), Roster::new(0));
    let sessions: Vec<_> = (0..4).map(|id| session(&lane, id)).collect();
    sessions.iter().for_each(|(session, _)| roster.add(session.clone(), 0));
    (0..IDLE_ROUNDS).for_each(|_| assert_eq!(round(&mut roster), 0));
    roster.rest();
    assert_eq!(roster.hot_count(), 0);
    roster.rang(1, 0);
    roster.rang(2, 0);
    roster.remove(1);
    roster.remove(3);
    roster.remove(77);
    assert_eq!((roster.hot_count(), roster.any_dormant()), (1, true));
    roster.remove(0);
    post(&sessions[2].1);
    assert_eq!((roster.hot_count(), round(&mut roster), roster.any_dormant()), (1, 1, false));
}

/// What keeps a service busy for a user that is at all limits: an empty request, a lock beyond the
/// limit, a write whose bytes do not come, each for as long as it takes (`bench run limits`).
const COSTS: [u64; 4] = [5_000, 400, 100, 100];

thread_local! {
    /// A client that asks as soon as the clock says so much.
    static ASKS: std::cell::RefCell<Option<(Duration, ClientChannel)>> =
        const { std::cell::RefCell::new(None) };
    static ASKED: std::cell::Cell<Option<Duration>> = const { std::cell::Cell::new(None) };
}

/// Time passes, in which that client may ask.
fn pass_beside(nanoseconds: u64) {
    pass(nanoseconds);
    ASKS.with_borrow(|asks| {
        let (at, client) = asks.as_ref().expect("a client");
        if ASKED.get().is_none() && PASSED.get() >= *at {
            ASKED.set(Some(*at));
            post(client);
        }
    });
}

/// How long each empty request of user 2 takes, sorted, who asks again `thinks` after each answer,
/// which count as its way there and back; beside user 1 with `sessions` and a request in each of
/// their mailboxes at all times. And how many of that user's requests there were at most while one
/// was waited for.
fn beside_all_limits(sessions: u64, thinks: u64) -> (Vec<Duration>, usize) {
    let clock = || {
        pass_beside(10);
        moved_clock()
    };
    let lane = lane();
    let mut roster = Roster { time: Laps::new(moved_clock), ..Roster::new(0) };
    let flood: Vec<_> = (0..sessions).map(|id| session_of(&lane, id, Uid(1))).collect();
    let (quiet, quiet_client) = session_of(&lane, sessions, Uid(2));
    flood.iter().for_each(|(session, _)| roster.add(session.clone(), 0));
    roster.add(quiet, 0);
    for (_, client) in &flood {
        while let Some(mailbox) = client.claim() {
            client.post(mailbox, &Message::new(Op::Ping), &Trusting).unwrap();
        }
    }
    ASKS.set(Some((PASSED.get(), quiet_client)));
    ASKED.set(None);
    roster.time = Laps::new(clock);
    let mut rng = polylane_base::rng::Rng::new(thinks);
    let (mut waits, mut beside_max, mut beside) = (Vec::new(), 0, 0);
    while waits.len() < 4000 {
        pass_beside(10);
        roster.round(8, |session, mailbox| {
            let id = session.connection.id;
            session.connection.channel.reply(mailbox, &Reply::new(Status::Done(0)));
            if id == sessions {
                pass(100);
                let begin = ASKED.take().expect("it asked");
                let again = PASSED.get() + Duration::from_nanos(thinks);
                waits.push(again - begin);
                beside_max = beside_max.max(std::mem::take(&mut beside));
                ASKS.with_borrow_mut(|asks| {
                    let (at, client) = asks.as_mut().expect("a client");
                    *at = again;
                    client.release(mailbox);
                });
            } else {
                beside += usize::from(ASKED.get().is_some());
                pass_beside(*rng.pick(&COSTS));
                flood[id as usize].1.release(mailbox);
                post(&flood[id as usize].1);
            }
        });
    }
    ASKS.set(None);
    waits.sort();
    (waits, beside_max)
}

/// One user at all limits at once: as many sessions as a user may have, each with as many requests
/// as it has room for. Another's empty requests take no more than three times as long in the
/// middle, and none waits for more than one request of that user.
#[test]
fn a_user_at_all_limits_triples_no_request_of_another() {
    let sessions = Config::default().sessions_per_uid_max as u64;
    for thinks in [100, 200, 340, 500, 700, 900] {
        let (alone, _) = beside_all_limits(0, thinks);
        let (beside, requests) = beside_all_limits(sessions, thinks);
        let middle = |waits: &[Duration]| waits[waits.len() / 2];
        let (alone, median, most) = (middle(&alone), middle(&beside), beside[beside.len() - 1]);
        assert!(median <= 3 * alone, "after {thinks} ns: {median:?} beside {alone:?} alone");
        assert!(requests <= 1, "after {thinks} ns: {requests} requests before one");
        let longest = alone + Duration::from_nanos(COSTS[0] + 500);
        assert!(most <= longest, "after {thinks} ns: {most:?}");
    }
}

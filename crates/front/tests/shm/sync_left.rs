//! An fsync that is left to another's commit holds no thread, and is answered by the thread that
//! ends that.

use std::sync::mpsc::channel;
use std::time::Duration;

use polylane_base::Errno;
use polylane_base::rng::Rng;
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::message::{Message, Op};
use polylane_ipc::view::FRAME_BYTES;
use polylane_testkit::fault::{Call, Faulty};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{SyncLead, SyncLeft};

use crate::shm_kit::file::{File, PAGE, beside, read_beside};
use crate::shm_kit::{House, Thread, outcome, requests_of, wait_for};
use crate::sync::{dirty, fsync, house};

fn left(house: &House) -> u64 {
    house.server.totals().left
}

/// Whether `waits` ends before `give` lets go of what may be in its way.
fn is_over_before(waits: impl FnOnce() + Send, give: impl FnOnce()) -> bool {
    std::thread::scope(|scope| {
        let (send, over) = channel();
        scope.spawn(move || {
            waits();
            send.send(()).unwrap();
        });
        let in_time = over.recv_timeout(Duration::from_secs(10)).is_ok();
        give();
        in_time
    })
}

/// Tells all whose syncs were left to others that theirs are durable.
fn tell(device: &Faulty) {
    device.take_left().into_iter().for_each(|(_, told)| told(Ok(())));
}

/// Tells those whose syncs were left to others, until there is nothing to wait for.
fn tell_until(device: &Faulty, is_over: impl Fn() -> bool) {
    wait_for("all to be told", || {
        tell(device);
        is_over()
    });
}

/// However many are left, others are served by the one thread that there is; each is answered by
/// what became of its own, in whatever order.
#[test]
fn any_number_is_left_and_each_has_its_own_answer() {
    for seed in 0..4 {
        let (device, house) = house(0);
        let mut rng = Rng::new(seed);
        let clients: Vec<_> = (0..5).map(|_| house.client()).collect();
        let other = house.client();
        device.take_syncs(Some(SyncLeft::ToAnother));
        std::thread::scope(|scope| {
            let syncs: Vec<_> = (0..40)
                .map(|at| {
                    let client = &clients[at % 5];
                    let (handle, thread) = (dirty(client, &format!("f{at}")), client.thread());
                    let message = Message { handle, ..Message::new(Op::Fsync) };
                    let sync = scope.spawn(move || thread.call(&message).map(drop));
                    wait_for("it to be left", || left(&house) == at as u64 + 1);
                    other.stat(&format!("f{at}")).unwrap();
                    sync
                })
                .collect();
            assert!(syncs.iter().all(|sync| !sync.is_finished()), "nobody was told");
            let (mut waiting, mut outcomes) = (device.take_left(), Vec::new());
            let inos: Vec<_> = waiting.iter().map(|(ino, _)| *ino).collect();
            while !waiting.is_empty() {
                let (ino, told) = waiting.swap_remove(rng.below(waiting.len() as u64) as usize);
                let outcome = *rng.pick(&[Ok(()), Err(Errno::EIO), Err(Errno::ENOSPC)]);
                outcomes.push((ino, outcome));
                told(outcome);
            }
            for (sync, ino) in syncs.into_iter().zip(inos) {
                let expected = outcomes.iter().find(|it| it.0 == ino).unwrap().1;
                assert_eq!(sync.join().unwrap(), expected, "seed {seed}");
            }
        });
        let totals = house.server.totals();
        assert_eq!((totals.left, totals.kept, totals.handed_off), (40, 0, 0));
        assert_eq!(device.calls(Call::Sync), 0, "somebody synced by himself");
    }
}

/// Where nobody takes it after all the thread does the rest, and where nothing is to be done it is
/// answered at once.
#[test]
fn what_nobody_takes_is_done_or_waited_for() {
    let (device, house) = house(1);
    let client = house.client();
    let handle = dirty(&client, "f");
    device.take_syncs(Some(SyncLeft::ToCaller));
    assert_eq!(fsync(&client, handle), Ok(()));
    assert_eq!((device.calls(Call::Sync), house.server.totals().kept), (1, 1));
    device.fail_once(Call::Sync, 0, Errno::EIO);
    assert_eq!(fsync(&client, handle), Err(Errno::EIO));
    assert_eq!(fsync(&client, handle), Ok(()));
    device.take_syncs(Some(SyncLeft::Done));
    assert_eq!(fsync(&client, handle), Ok(()));
    assert_eq!((device.calls(Call::Sync), left(&house)), (3, 0));
}

/// A sync that stays with its thread, and commits, leads: what the worker found together with it,
/// and what comes meanwhile, is left to it, and needs no thread.
#[test]
fn what_comes_with_a_sync_that_is_kept_is_left_to_it() {
    let (device, house) = house(1);
    let (client, other) = (house.client(), house.client());
    let threads: Vec<_> = (0..6).map(|_| client.thread()).collect();
    let messages: Vec<_> = (0..6)
        .map(|at| Message { handle: dirty(&client, &format!("f{at}")), ..Message::new(Op::Fsync) })
        .collect();
    device.take_syncs(Some(SyncLeft::ToCaller));
    let ((begun, begins), (commit, commits)) = (channel(), channel());
    let on = device.clone();
    device.give_lead(SyncLead::new(move || {
        begun.send(()).unwrap();
        commits.recv().unwrap();
        tell(&on);
        Err(Errno::EIO)
    }));
    let post = |at: usize| {
        let Thread { channel, mailbox } = &threads[at];
        channel.post(*mailbox, &messages[at], &Trusting).unwrap();
    };
    let wait = |at: usize| {
        let Thread { channel, mailbox } = &threads[at];
        outcome(channel.wait(*mailbox, &Trusting).unwrap()).map(drop)
    };
    std::thread::scope(|scope| {
        device.block(Call::Look, true);
        let holds = scope.spawn(|| other.stat("absent"));
        device.await_blocked(1);
        (0..5).for_each(post);
        device.block(Call::Look, false);
        assert!(holds.join().unwrap().is_err());
        begins.recv().unwrap();
        post(5);
        wait_for("all others to be left", || left(&house) == 5);
        let totals = house.server.totals();
        assert_eq!((totals.kept, totals.handed_off), (1, 0));
        commit.send(()).unwrap();
        let mut outcomes: Vec<_> = (0..6).map(wait).collect();
        outcomes.sort_by_key(|outcome| outcome.is_err());
        let of_the_lead = outcomes.pop().unwrap();
        assert_eq!(of_the_lead, Err(Errno::EIO), "what became of the commit");
        assert_eq!(outcomes, [Ok(()); 5]);
    });
    assert_eq!(device.calls(Call::Sync), 0, "it was done once");
}

/// A file of which all is durable is answered at once; one with bytes to be written,
/// here or by its client on loan, is synced.
#[test]
fn what_is_durable_needs_no_thread() {
    let (device, house) = house(1);
    let client = house.client();
    let (plain, mut lent) = (dirty(&client, "plain"), File::open(&client, "lent"));
    device.be_durable(true);
    let mut before = 0;
    let mut both = |syncs: u64, lent: &File<'_>| {
        fsync(&client, plain).unwrap();
        lent.sync();
        let totals = house.server.totals();
        assert_eq!(device.calls(Call::Sync) - before, syncs);
        assert_eq!(totals.kept + totals.handed_off - before, syncs);
        before += syncs;
    };
    lent.write(0, &[1; FRAME_BYTES]);
    both(2, &lent);
    assert!(lent.write_lent(0, &[2; 9]), "it is lent again");
    client.write(plain, 0, b"more").unwrap();
    both(2, &lent);
    // It is on loan still, and was not written to.
    (0..3).for_each(|_| both(0, &lent));
}

/// A client that goes while its sync is left to others, and a commit of which nobody is told.
#[test]
fn who_goes_is_not_answered_and_who_stays_hears_of_a_commit_that_is_dropped() {
    let (device, house) = house(0);
    let [gone, stays] = [house.client(), house.client()];
    device.take_syncs(Some(SyncLeft::ToAnother));
    let handles = [dirty(&gone, "gone"), dirty(&stays, "stays")];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = fsync(&gone, handles[0]);
        });
        wait_for("it to be left", || left(&house) == 1);
        let stays = scope.spawn(|| fsync(&stays, handles[1]));
        wait_for("both to be left", || left(&house) == 2);
        rustix::net::shutdown(&gone.socket, rustix::net::Shutdown::Both).unwrap();
        wait_for("its session to end", || house.server.session_count() == 1);
        let mut waiting = device.take_left();
        let (_, of_gone) = waiting.remove(0);
        of_gone(Ok(()));
        drop(waiting);
        assert_eq!(stays.join().unwrap(), Err(Errno::EIO));
    });
    device.take_syncs(None);
    assert_eq!(fsync(&stays, handles[1]), Ok(()));
}

/// A server that stops answers first what was left.
#[test]
fn a_stop_waits_for_what_was_left() {
    let (device, house) = house(1);
    let client = house.client();
    let handle = dirty(&client, "f");
    device.take_syncs(Some(SyncLeft::ToAnother));
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| fsync(&client, handle));
        wait_for("it to be left", || left(&house) == 1);
        let (send, stopped) = channel();
        scope.spawn(move || {
            house.server.stop();
            send.send(()).unwrap();
        });
        assert!(stopped.recv_timeout(Duration::from_millis(30)).is_err(), "one is not answered");
        tell(&device);
        assert_eq!(sync.join().unwrap(), Ok(()));
        stopped.recv_timeout(Duration::from_secs(30)).expect("stops");
    });
}

/// What was on loan before it is so again when it has been answered, and what was written is there.
#[test]
fn the_file_is_lent_again_when_it_was_told() {
    let (device, house) = house(0);
    let client = house.client();
    let mut file = File::open(&client, "f");
    file.write(0, &[1; FRAME_BYTES]);
    device.take_syncs(Some(SyncLeft::ToAnother));
    for number in 0..20_u8 {
        std::thread::scope(|scope| {
            let sync = scope.spawn(|| file.sync());
            wait_for("it to be left", || left(&house) == u64::from(number) + 1);
            tell(&device);
            sync.join().unwrap();
        });
        let asked = requests_of(&house, Op::Write);
        assert!(file.write_lent(0, &[number; 9]), "{number}: it is on loan no more");
        assert_eq!(requests_of(&house, Op::Write), asked);
    }
    assert_eq!(house.server.totals().loans_failed, 0);
    assert_eq!(file.read(0, 9), [19; 9]);
}

/// The thread that tells waits for no lock of the file, and its client is answered, while another
/// one has the file's data locked and its device takes long.
#[test]
fn who_tells_waits_for_no_lock_of_the_file() {
    let (device, house) = house(0);
    let client = house.client();
    let mut file = File::open(&client, "f");
    file.truncate(64 * PAGE);
    file.write(0, &[1; FRAME_BYTES]);
    device.take_syncs(Some(SyncLeft::ToAnother));
    let other = beside(&house, "f");
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync());
        wait_for("it to be left", || left(&house) == 1);
        device.block(Call::Read, true);
        let reader = scope.spawn(|| read_beside(&other, 9 * PAGE, 9));
        device.await_blocked(1);
        let waits = || {
            tell(&device);
            sync.join().unwrap();
        };
        assert!(is_over_before(waits, || device.block(Call::Read, false)), "it waited");
        assert_eq!(reader.join().unwrap(), [0; 9]);
    });
}

/// A file that was closed and removed while its sync was left to others ends on a thread that
/// no client waits for.
#[test]
fn who_tells_does_not_end_a_closed_file() {
    let (device, house) = house(0);
    let client = house.client();
    let (handle, closer) = (dirty(&client, "f"), client.thread());
    device.take_syncs(Some(SyncLeft::ToAnother));
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| fsync(&client, handle));
        wait_for("it to be left", || left(&house) == 1);
        closer.call(&Message { handle, ..Message::new(Op::Close) }).unwrap();
        house.lane.vfs.unlink(&OpCtx::service(), &house.lane.vfs.root(), b"f").unwrap();
        device.block(Call::Forget, true);
        let waits = || {
            tell(&device);
            assert_eq!(sync.join().unwrap(), Ok(()));
        };
        let ends = || {
            device.await_blocked(1);
            device.block(Call::Forget, false);
        };
        assert!(is_over_before(waits, ends), "it waited");
    });
}

/// What was written on loan counts: much of it is not written by the worker.
#[test]
fn others_are_served_while_much_that_was_lent_is_written() {
    let (device, house) = house(1);
    let [client, other] = [house.client(), house.client()];
    let mut file = File::open(&client, "f");
    let all = [7; 64 * FRAME_BYTES];
    file.write(0, &all);
    file.sync();
    device.take_syncs(Some(SyncLeft::ToAnother));
    assert!(file.write_lent(0, &all), "it is not on loan");
    device.block(Call::Write, true);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.sync());
        device.await_blocked(1);
        let waits = || assert!(other.stat("f").is_ok());
        let in_time = is_over_before(waits, || device.block(Call::Write, false));
        tell_until(&device, || sync.is_finished());
        assert!(in_time, "nobody was served");
    });
    assert_eq!(left(&house), 0, "the worker wrote it");
    assert!(file.write_lent(0, &all[..9]), "it is lent again");
}

/// A file that another thread writes back is waited for, but not by the worker.
#[test]
fn others_are_served_while_the_file_is_written_back() {
    let (device, house) = house(1);
    let [client, other] = [house.client(), house.client()];
    let handle = dirty(&client, "f");
    other.create("g");
    device.take_syncs(Some(SyncLeft::ToAnother));
    device.block(Call::Write, true);
    let writer = beside(&house, "f");
    std::thread::scope(|scope| {
        let written = scope.spawn(|| writer.fsync(&OpCtx::service(), false));
        device.await_blocked(1);
        let sync = scope.spawn(|| fsync(&client, handle));
        wait_for("it to be taken", || requests_of(&house, Op::Fsync) == 1);
        let waits = || assert!(other.stat("g").is_ok());
        let in_time = is_over_before(waits, || device.block(Call::Write, false));
        tell_until(&device, || sync.is_finished());
        assert!(in_time, "nobody was served");
        assert_eq!((written.join().unwrap(), sync.join().unwrap()), (Ok(()), Ok(())));
    });
}

//! Both ends of a channel in one process: every queue kind, every copy method, all ways of waiting.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use polylane_ipc::channel::client::Trusting;
use polylane_ipc::message::{Message, Op, Reply, Status};
use polylane_ipc::{
    CallError, ClientChannel, CopyPlan, Geometry, MailboxIndex, QueueKind, ServiceChannel, Watch,
};
use polylane_sys::copy::Method;
use polylane_sys::event::{Epoll, Interest};

fn connect(geometry: Geometry, plan: CopyPlan) -> (ServiceChannel, ClientChannel) {
    let service = ServiceChannel::create(geometry, plan).unwrap();
    let mut fds: Vec<OwnedFd> =
        service.client_fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
    let memfd = fds.remove(0);
    let client = ClientChannel::attach(memfd, fds, geometry, plan).unwrap();
    (service, client)
}

fn byte(at: usize) -> u8 {
    (at * 31 % 251) as u8
}

/// A worker as `front` will have it: takes, serves, spins a little, sleeps in epoll.
fn work(service: &ServiceChannel, group: usize, stop: &AtomicBool) {
    let epoll = Epoll::new().unwrap();
    epoll.add(service.doorbell(group), 0, Interest::Edge).unwrap();
    let mut idle = 0;
    while !stop.load(Ordering::Relaxed) {
        if let Some(index) = service.take(group) {
            serve(service, index);
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < 200 {
            std::hint::spin_loop();
            continue;
        }
        service.set_asleep(group, true);
        if !service.has_requests(group) {
            epoll.wait(&mut Vec::new(), Some(Duration::from_millis(200))).unwrap();
        }
        service.set_asleep(group, false);
        idle = 0;
    }
}

fn serve(service: &ServiceChannel, index: MailboxIndex) {
    let Some(message) = service.message(index) else {
        return service.reply(index, &Reply::new(Status::Failed(eproto())));
    };
    let length = message.length as usize;
    let mut reply = Reply::new(Status::Done(message.length));
    match message.op {
        Op::Read => {
            let data: Vec<u8> = (0..length).map(byte).collect();
            let mut pipe = service.read_pipe(index, length);
            data.chunks(4096).enumerate().for_each(|(n, page)| pipe.put(n * 4096, page));
        }
        Op::Write => {
            let pipe = service.write_pipe(index, message.path_len as usize, length);
            let mut data = vec![0; pipe.len()];
            pipe.get(0, &mut data);
            let good = data.iter().enumerate().all(|(at, &b)| b == byte(at));
            reply = Reply::new(Status::Done(if good { pipe.len() as u64 } else { u64::MAX }));
        }
        _ => reply.value[7] = message.arg[0] + 1,
    }
    service.reply(index, &reply);
}

fn eproto() -> i32 {
    polylane_base::Errno::EPROTO.0
}

fn with_workers<R>(
    geometry: Geometry,
    plan: CopyPlan,
    test: impl FnOnce(&ClientChannel) -> R,
) -> R {
    let (service, client) = connect(geometry, plan);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for group in 0..geometry.groups as usize {
            let (service, stop) = (&service, &stop);
            scope.spawn(move || work(service, group, stop));
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&client)));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn calls_from_many_threads_get_their_own_answers() {
    for queue in QueueKind::ALL {
        for groups in [1, 2] {
            let geometry = Geometry { queue, groups, ..Geometry::default() };
            with_workers(geometry, CopyPlan::default(), |client| {
                std::thread::scope(|scope| {
                    for thread in 0..6u64 {
                        scope.spawn(move || {
                            let index = client.claim().unwrap();
                            for n in 0..3000 {
                                let mut message = Message::new(Op::Ping);
                                message.arg[0] = thread << 32 | n;
                                let reply = client.call(index, &message, &Trusting).unwrap();
                                assert_eq!(reply.value[7], (thread << 32 | n) + 1);
                            }
                            client.release(index);
                        });
                    }
                });
            });
        }
    }
}

#[test]
fn reads_and_writes_carry_their_bytes_by_every_method() {
    for method in Method::ALL {
        let plan = CopyPlan { method, chunk_bytes: 16 << 10 };
        with_workers(Geometry::default(), plan, |client| {
            let index = client.claim().unwrap();
            for len in [0, 1, 100, 4095, 4096, 32767, 32768, 65537, 200_000, 256 << 10] {
                let mut message = Message::new(Op::Read);
                message.length = len as u64;
                let mut into = vec![0; len];
                let reply = client.call_read(index, &message, &mut into, &Trusting).unwrap();
                assert_eq!(reply.status, Status::Done(len as u64));
                assert!(into.iter().enumerate().all(|(at, &b)| b == byte(at)), "{method:?} {len}");
                message.op = Op::Write;
                for overlap in [false, true] {
                    let at = 64.min((256 << 10) - len);
                    message.path_len = at as u32;
                    let from = (at, &into[..]);
                    let reply = client.call_write(index, &message, from, overlap, &Trusting);
                    let Status::Done(count) = reply.unwrap().status else { panic!("failed") };
                    assert!(count == len as u64 || overlap && count < len as u64, "{count} {len}");
                }
            }
        });
    }
}

#[test]
fn a_short_read_copies_what_the_reply_counts() {
    let (service, client) = connect(Geometry::default(), CopyPlan::default());
    let index = client.claim().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let index = loop {
                if let Some(index) = service.take(0) {
                    break index;
                }
            };
            service.read_pipe(index, 100_000).put(0, &[7; 40_000]);
            service.reply(index, &Reply::new(Status::Done(40_000)));
        });
        let mut message = Message::new(Op::Read);
        message.length = 100_000;
        let mut into = vec![1; 100_000];
        client.call_read(index, &message, &mut into, &Trusting).unwrap();
        assert!(into[..40_000].iter().all(|&b| b == 7) && into[40_000..].iter().all(|&b| b == 1));
    });
}

#[test]
fn a_posted_request_holds_its_mailbox_until_it_is_answered() {
    let (service, client) = connect(Geometry::default(), CopyPlan::default());
    let index = client.claim().unwrap();
    client.post(index, &Message::new(Op::Close), &Trusting).unwrap();
    let taken = service.take(0).unwrap();
    assert_eq!((taken, service.message(taken).unwrap().op), (index, Op::Close));
    assert_eq!(service.take(0), None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            service.reply(taken, &Reply::new(Status::Done(0)));
            let next = loop {
                if let Some(next) = service.take(0) {
                    break next;
                }
            };
            assert_eq!(service.message(next).unwrap().op, Op::Ping);
            service.reply(next, &Reply::new(Status::Done(5)));
        });
        let reply = client.call(index, &Message::new(Op::Ping), &Trusting).unwrap();
        assert_eq!(reply.status, Status::Done(5));
    });
}

struct Nervous {
    alive: AtomicBool,
    interrupts: AtomicU32,
}

impl Watch for Nervous {
    fn alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    fn interrupted(&self) -> bool {
        self.interrupts.fetch_sub(1, Ordering::Relaxed) == 1
    }
}

#[test]
fn a_wait_can_be_interrupted_resumed_and_given_up() {
    let (service, client) = connect(Geometry::default(), CopyPlan::default());
    let index = client.claim().unwrap();
    let watch = Nervous { alive: AtomicBool::new(true), interrupts: AtomicU32::new(1) };
    let interrupted = client.call(index, &Message::new(Op::Lock), &watch);
    assert_eq!(interrupted, Err(CallError::Interrupted));
    let taken = service.take(0).unwrap();
    service.reply(taken, &Reply::new(Status::Failed(4)));
    assert_eq!(client.wait(index, &watch).unwrap().status, Status::Failed(4));
    watch.alive.store(false, Ordering::Relaxed);
    let start = Instant::now();
    assert_eq!(client.call(index, &Message::new(Op::Ping), &watch), Err(CallError::Lost));
    assert!(start.elapsed() >= Duration::from_millis(90));
}

#[test]
fn mailboxes_are_claimed_once() {
    let geometry = Geometry { mailbox_count: 70, ..Geometry::default() };
    let (_service, client) = connect(geometry, CopyPlan::default());
    let mut all: Vec<_> = std::iter::from_fn(|| client.claim()).collect();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 70);
    client.release(MailboxIndex(66));
    assert_eq!(client.claim(), Some(MailboxIndex(66)));
}

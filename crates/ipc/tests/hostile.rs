//! A client that writes anything anywhere in its channel, all the time, while a good client of the
//! same worker works: the service neither panics nor hangs, and the good client gets its own
//! answers.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::message::{Message, Op, Reply, Status};
use polylane_ipc::{ClientChannel, CopyPlan, Geometry, MailboxIndex, QueueKind, ServiceChannel};
use polylane_sys::Region;

/// Requests of the good client per queue kind, each under attack.
const CALLS: u64 = 4000;

fn geometry(queue: QueueKind) -> Geometry {
    Geometry { queue, mailbox_count: 64, buffer_bytes: 128 << 10, groups: 1, frames: 64 }
}

/// Serves one request the way `front` must: lengths are claims.
fn serve(service: &ServiceChannel, index: MailboxIndex, scratch: &mut [u8]) {
    let Some(message) = service.message(index) else {
        return service.reply(index, &Reply::new(Status::Failed(22)));
    };
    let length = usize::try_from(message.length).unwrap_or(usize::MAX).min(service.buffer_bytes());
    match message.op {
        Op::Read => {
            let mut pipe = service.read_pipe(index, length);
            pipe.put(0, &[0x5a; 128 << 10][..length / 2]);
            pipe.zero(length / 2, length - length / 2);
        }
        Op::Write => {
            let start = (message.path_len as usize).min(service.buffer_bytes() - length);
            let pipe = service.write_pipe(index, start, length);
            assert!(pipe.len() <= length);
            pipe.get(0, &mut scratch[..pipe.len()]);
        }
        _ => {}
    }
    let mut reply = Reply::new(Status::Done(message.length));
    reply.value[0] = message.arg[0] + 1;
    service.reply(index, &reply);
}

/// One scribble: a random word, a plausible lie at a place that matters, or a whole run of noise.
fn scribble(region: &Region, rng: &mut Rng) {
    let words = region.len() as u64 / 8;
    let value = match rng.below(4) {
        0 => rng.next_u64(),
        1 => *rng.pick(&[0, 1, 2, 3, 0x101, 0x102, u64::MAX, u64::MAX << 32, 1 << 32]),
        2 => rng.below(128),
        _ => rng.below(1 << 12) << 32 | rng.below(128),
    };
    // Header, control lines and queues are the first pages; mailbox heads lie further on.
    let word = match rng.below(8) {
        0 => rng.below(words),
        1..=5 => rng.below(12 << 10 >> 3),
        _ => (12 << 10 >> 3) + rng.below(64) * ((128 << 10) + 256) / 8 + rng.below(32),
    };
    region.word64(word.min(words - 1) as usize * 8).store(value, Ordering::Relaxed);
    if rng.percent(1) {
        let at = rng.below(region.len() as u64 - 4096) as usize;
        region.copy_in(at, &[rng.next_u64() as u8; 4096]);
    }
}

fn clones(service: &ServiceChannel) -> Vec<OwnedFd> {
    service.client_fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect()
}

/// The worker: both channels in turn, a bounded share each.
fn work(channels: [&ServiceChannel; 2], stop: &AtomicBool, turns: &AtomicU64) {
    let mut scratch = vec![0; 128 << 10];
    while !stop.load(Ordering::Relaxed) {
        for service in channels {
            for _ in 0..8 {
                let Some(index) = service.take(0) else { break };
                assert!(index.0 < service.geometry().mailbox_count);
                serve(service, index, &mut scratch);
            }
            service.set_asleep(0, true);
            let _ = service.has_requests(0);
            service.set_asleep(0, false);
        }
        turns.fetch_add(1, Ordering::Relaxed);
    }
}

fn good_client(client: &ClientChannel, rng: &mut Rng) {
    let index = client.claim().unwrap();
    let mut data = vec![0; 60_000];
    for n in 0..CALLS {
        let mut message = Message::new(*rng.pick(&[Op::Ping, Op::Read, Op::Write]));
        message.arg[0] = n;
        let len = rng.below(data.len() as u64 + 1) as usize;
        message.length = len as u64;
        let data = &mut data[..len];
        let reply = match message.op {
            Op::Read => client.call_read(index, &message, data, &Trusting),
            Op::Write => client.call_write(index, &message, (0, data), true, &Trusting),
            _ => client.call(index, &message, &Trusting),
        };
        assert_eq!(reply.unwrap().value[0], n + 1);
        if message.op == Op::Read {
            assert!(data[..len / 2].iter().all(|&b| b == 0x5a));
            assert!(data[len / 2..].iter().all(|&b| b == 0));
        }
    }
}

#[test]
fn scribbling_hurts_the_scribbler_only() {
    for (seed, queue) in QueueKind::ALL.into_iter().enumerate() {
        let shape = geometry(queue);
        let plan = CopyPlan { chunk_bytes: 4096, ..CopyPlan::default() };
        let attacked = ServiceChannel::create(shape, plan).unwrap();
        let service = ServiceChannel::create(shape, plan).unwrap();
        let mut fds = clones(&service);
        let client = ClientChannel::attach(fds.remove(0), fds, shape, plan).unwrap();
        let bytes = shape.layout().unwrap().total_bytes();
        let region = Region::attach(&clones(&attacked)[0], bytes).unwrap();
        let (stop, turns, scribbles) =
            (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| work([&attacked, &service], &stop, &turns));
            let scribbler = scope.spawn(|| {
                let mut rng = Rng::new(seed as u64);
                while !stop.load(Ordering::Relaxed) {
                    (0..100).for_each(|_| scribble(&region, &mut rng));
                    scribbles.fetch_add(100, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
            let good = scope.spawn(|| good_client(&client, &mut Rng::new(77)));
            let deadline = Instant::now() + Duration::from_secs(120);
            while !good.is_finished() && !worker.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            let done = good.is_finished();
            stop.store(true, Ordering::Relaxed);
            worker.join().unwrap();
            scribbler.join().unwrap();
            assert!(done, "{}: the good client starved", queue.name());
            good.join().unwrap();
        });
        assert!(scribbles.into_inner() > 1000, "no attack took place");
    }
}

//! Two pinned threads at the two ends of a channel: the stage of the `ipc` and `copy` figures.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use polylane_ipc::message::{Message, Op, Reply, Status};
use polylane_ipc::{ClientChannel, CopyPlan, Geometry, MailboxIndex, ServiceChannel};
use polylane_sys::event::{Epoll, Interest};
use polylane_sys::{copy::Method, cpu};

/// What the worker tells the client about where it runs, and thereby how the client waits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Publish {
    /// The truth: the policy of the product.
    Truth,
    /// Nothing: the client always spins first.
    Nothing,
    /// The client's own CPU: the client always sleeps.
    Clients,
}

/// Which CPU each end runs on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cpus {
    /// The calling thread's.
    pub client: u32,
    /// The worker's.
    pub worker: u32,
}

impl Cpus {
    /// Two CPUs of this process, and one for both; `None` when it has one only.
    pub fn pairs() -> Result<(Option<Cpus>, Cpus)> {
        let all = cpu::allowed()?;
        let client = *all.first().context("no CPU to run on")?;
        let cross = all.get(1).map(|&worker| Cpus { client, worker });
        Ok((cross, Cpus { client, worker: client }))
    }
}

/// Bytes that reads come from: more than a cache, so that every copy has to fetch its source.
const SOURCE_BYTES: usize = 64 << 20;
/// Looks of the worker before it sleeps, when the client runs on another CPU, and when it does not:
/// there it holds up the very client it waits for.
const SPINS: [u32; 2] = [1000, 32];

/// Runs `client` on this thread against a worker that answers pings and reads, each pinned.
///
/// # Errors
/// The channel cannot be made or a thread cannot be pinned.
pub fn with_worker<R>(
    geometry: Geometry,
    plan: CopyPlan,
    cpus: Cpus,
    publish: Publish,
    client: impl FnOnce(&ClientChannel, MailboxIndex) -> R,
) -> Result<R> {
    let service = ServiceChannel::create(geometry, plan)?;
    let fds = service.client_fds().into_iter().map(|fd| fd.try_clone_to_owned());
    let mut fds = fds.collect::<Result<Vec<OwnedFd>, _>>()?;
    let channel = ClientChannel::attach(fds.remove(0), fds, geometry, plan)?;
    service.set_cpu(
        0,
        match publish {
            Publish::Truth => cpus.worker,
            Publish::Nothing => u32::MAX,
            Publish::Clients => cpus.client,
        },
    );
    let stop = AtomicBool::new(false);
    let before = cpu::allowed()?;
    let spins = SPINS[usize::from(cpus.client == cpus.worker)];
    let result = std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&service, cpus.worker, spins, &stop));
        let result = cpu::pin(&[cpus.client]).map(|()| {
            let index = channel.claim().expect("a new channel has free mailboxes");
            client(&channel, index)
        });
        stop.store(true, Ordering::Relaxed);
        worker.join().expect("the worker does not panic")?;
        anyhow::Ok(result?)
    });
    cpu::pin(&before)?;
    result
}

fn work(service: &ServiceChannel, cpu: u32, spins: u32, stop: &AtomicBool) -> Result<()> {
    cpu::pin(&[cpu])?;
    let epoll = Epoll::new()?;
    epoll.add(service.doorbell(0), 0, Interest::Edge)?;
    let source = vec![0x5a; SOURCE_BYTES];
    let (mut from, mut idle, mut ready) = (0, 0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        if let Some(index) = service.take(0) {
            serve(service, index, &source, &mut from);
            idle = 0;
            continue;
        }
        idle += 1;
        if idle < spins {
            std::hint::spin_loop();
            continue;
        }
        service.set_asleep(0, true);
        if !service.has_requests(0) {
            ready.clear();
            epoll.wait(&mut ready, Some(Duration::from_millis(20)))?;
        }
        service.set_asleep(0, false);
        idle = 0;
    }
    Ok(())
}

fn serve(service: &ServiceChannel, index: MailboxIndex, source: &[u8], from: &mut usize) {
    let Some(message) = service.message(index) else {
        return service.reply(index, &Reply::new(Status::Failed(libc::EPROTO)));
    };
    let length = (message.length as usize).min(service.buffer_bytes());
    if message.op == Op::Read {
        if *from + length > source.len() {
            *from = 0;
        }
        service.read_pipe(index, length).put(0, &source[*from..][..length]);
        *from += length;
    }
    service.reply(index, &Reply::new(Status::Done(length as u64)));
}

/// An empty request.
pub const PING: Message = Message::new(Op::Ping);

/// A plan that never overlaps: all in, then all out.
pub const fn whole(method: Method) -> CopyPlan {
    CopyPlan { method, chunk_bytes: u32::MAX }
}

//! Round trip of an empty request: the channel under each waiting policy and queue, beside what the
//! kernel offers for the same, on two CPUs and on one.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::{CopyPlan, Geometry, QueueKind};
use polylane_sys::{cpu, event, futex, scm};

use super::echo::{Cpus, PING, Publish, with_worker};
use super::sweep::available;
use crate::histogram::Histogram;
use crate::place::{Ground, Place, Tenant, together};
use crate::report::{Better, Report};
use crate::worker::Length;
use crate::{Options, progress};

/// Trips between two readings of the clock, which costs some 25 ns.
const BATCH: u64 = 8;

/// What is measured: its name, and the way to do it on given CPUs for some time.
type System = (&'static str, fn(Cpus, Duration) -> Result<Histogram>);

const SYSTEMS: [System; 8] = [
    ("mailbox", |cpus, time| channel(QueueKind::Mailbox, Publish::Truth, cpus, time)),
    ("rcqb", |cpus, time| channel(QueueKind::Rcqb, Publish::Truth, cpus, time)),
    ("lap-ring", |cpus, time| channel(QueueKind::LapRing, Publish::Truth, cpus, time)),
    ("mailbox, always spin", |cpus, time| {
        channel(QueueKind::Mailbox, Publish::Nothing, cpus, time)
    }),
    ("mailbox, always sleep", |cpus, time| {
        channel(QueueKind::Mailbox, Publish::Clients, cpus, time)
    }),
    ("futex", futexes),
    ("eventfd", eventfds),
    ("UNIX socket", sockets),
];

/// # Errors
/// A thread cannot be pinned or a descriptor cannot be made.
pub fn run(options: &Options) -> Result<Report> {
    let title = "round trip of an empty request between two pinned threads";
    let mut report = Report::new("ipc", title, "CPUs", "µs (p50)", Better::Lower);
    report.baseline = "mailbox".into();
    let (cross, same) = Cpus::pairs()?;
    if cross.is_none() {
        report.notes.push("one CPU only: the rows across two are left out".into());
    }
    let points = [("two", cross), ("one", Some(same))];
    let time = Duration::from_millis(if options.quick { 100 } else { 400 });
    for repeat in 0..options.repeats() {
        for (point, cpus) in points.iter().filter_map(|(point, cpus)| Some((point, (*cpus)?))) {
            for (system, measure) in SYSTEMS {
                progress(&format!("ipc: {system}, {point} CPUs, repeat {}", repeat + 1));
                let found = measure(cpus, time).with_context(|| system.to_string())?.summary();
                let extra = [("p99_us", found.p99_ns / 1e3), ("mean_us", found.mean_ns / 1e3)];
                report.add(system, point, found.p50_ns / 1e3, &extra);
            }
        }
    }
    fuse(options, &mut report);
    report.notes.push(format!(
        "mailbox, rcqb, lap-ring: spin when the worker is awake on another CPU, else sleep; \
         percentiles are of means over {BATCH} trips"
    ));
    Ok(report)
}

/// fstat through the lane's FUSE mount: the same trip and a VFS call at its end. Where the
/// scheduler puts the two sides is left to it, so the row stands beside the others, not in their
/// sweep.
fn fuse(options: &Options, report: &mut Report) {
    let measure = |report: &mut Report| -> Result<()> {
        let ground = Ground::new()?;
        for (place, path) in available(&ground, &[Place::LaneFuse], report) {
            for _ in 0..options.repeats() {
                let tenant = Tenant::start(place, &path, "fstat", 0, Length::Seconds(0.3))?;
                let latency = together(vec![tenant])?.remove(0).latency;
                let extra = [("p99_us", latency.p99_ns / 1e3), ("mean_us", latency.mean_ns / 1e3)];
                report.add("FUSE fstat", "any", latency.p50_ns / 1e3, &extra);
            }
        }
        Ok(())
    };
    if let Err(error) = measure(report) {
        report.notes.push(format!("FUSE left out: {error:#}"));
    }
}

/// Makes trips for some time.
fn trips(time: Duration, mut trip: impl FnMut() -> Result<()>) -> Result<Histogram> {
    let mut histogram = Histogram::default();
    for _ in 0..100 {
        trip()?;
    }
    let end = Instant::now() + time;
    let mut start = Instant::now();
    while start < end {
        for _ in 0..BATCH {
            trip()?;
        }
        let now = Instant::now();
        histogram.record((now - start).as_nanos() as u64 / BATCH, BATCH);
        start = now;
    }
    Ok(histogram)
}

fn channel(queue: QueueKind, publish: Publish, cpus: Cpus, time: Duration) -> Result<Histogram> {
    let geometry = Geometry { queue, ..Geometry::default() };
    with_worker(geometry, CopyPlan::default(), cpus, publish, |client, index| {
        trips(time, || {
            let reply = client.call(index, &PING, &Trusting);
            reply.map(|_| ()).map_err(|error| anyhow::anyhow!("{error:?}"))
        })
    })?
}

/// Runs `serve` on the worker's CPU and trips on the client's. `serve` ends when its peer does.
fn beside(
    cpus: Cpus,
    time: Duration,
    serve: impl FnOnce() -> Result<()> + Send,
    trip: impl FnMut() -> Result<()>,
    end: impl FnOnce(),
) -> Result<Histogram> {
    let before = cpu::allowed()?;
    let found = std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            cpu::pin(&[cpus.worker])?;
            serve()
        });
        let found = cpu::pin(&[cpus.client]).map_err(Into::into).and_then(|()| trips(time, trip));
        end();
        server.join().expect("the server does not panic")?;
        found
    });
    cpu::pin(&before)?;
    found
}

/// Numbers in two futex words; `u32::MAX` ends it.
fn futexes(cpus: Cpus, time: Duration) -> Result<Histogram> {
    let (there, back) = (AtomicU32::new(0), AtomicU32::new(0));
    let tell = |word: &AtomicU32, value| {
        word.store(value, Ordering::Release);
        futex::wake(word, 1);
    };
    let change = |word: &AtomicU32, seen: u32| {
        while word.load(Ordering::Acquire) == seen {
            futex::wait(word, seen, None);
        }
        word.load(Ordering::Acquire)
    };
    let serve = || {
        let mut seen = 0;
        while seen != u32::MAX {
            seen = change(&there, seen);
            tell(&back, seen);
        }
        Ok(())
    };
    let mut number = 0;
    let trip = || {
        tell(&there, number + 1);
        number = change(&back, number);
        Ok(())
    };
    beside(cpus, time, serve, trip, || tell(&there, u32::MAX))
}

/// Two blocking eventfds.
fn eventfds(cpus: Cpus, time: Duration) -> Result<Histogram> {
    let blocking = || -> Result<_> {
        let fd = event::eventfd()?;
        rustix::io::ioctl_fionbio(&fd, false)?;
        Ok(fd)
    };
    let (there, back) = (blocking()?, blocking()?);
    let serve = || {
        // A count of two or more ends it: trips take one at a time.
        while event::drain(&there) == 1 {
            event::notify(&back);
        }
        Ok(())
    };
    let trip = || {
        event::notify(&there);
        event::drain(&back);
        Ok(())
    };
    let end = || {
        let _ = rustix::io::write(&there, &2u64.to_ne_bytes());
    };
    beside(cpus, time, serve, trip, end)
}

/// A pair of sequenced-packet sockets and a message of 128 bytes, as many as ours has.
fn sockets(cpus: Cpus, time: Duration) -> Result<Histogram> {
    let (here, there) = scm::pair()?;
    let serve = || {
        let mut message = [0; 128];
        while rustix::io::read(&there, &mut message[..])? > 0 {
            rustix::io::write(&there, &message)?;
        }
        Ok(())
    };
    let mut message = [0; 128];
    let trip = || {
        rustix::io::write(&here, &message)?;
        rustix::io::read(&here, &mut message[..])?;
        Ok(())
    };
    let end = || {
        let _ = rustix::net::shutdown(here.as_fd(), rustix::net::Shutdown::Both);
    };
    beside(cpus, time, serve, trip, end)
}

//! Reads of 4 KiB to 4 MiB through the channel on two CPUs, by copy method and chunk of the
//! pipeline, beside one copy made by the kernel (CMA). The source is larger than the caches.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use polylane_base::size::ByteSize;
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::message::{Message, Op};
use polylane_ipc::{CopyPlan, Geometry, calibrate};
use polylane_sys::copy::{self, Method};

use super::echo::{Cpus, PING, Publish, whole, with_worker};
use crate::histogram::Histogram;
use crate::report::{Better, Report};
use crate::{Options, progress};

const SIZES: [usize; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];

fn chunked(method: Method, chunk_bytes: u32) -> CopyPlan {
    CopyPlan { method, chunk_bytes }
}

/// # Errors
/// One CPU only, or the channel cannot be made.
pub fn run(options: &Options) -> Result<Report> {
    let title = "read of that many bytes, service to client, two CPUs";
    let mut report = Report::new("copy", title, "bytes", "GB/s", Better::Higher);
    report.baseline = "SMC, whole".into();
    let cpus = Cpus::pairs()?.0.context("needs two CPUs")?;
    let systems = [
        ("SMC, whole", whole(Method::Smc)),
        ("SMC, 16 KiB", chunked(Method::Smc, 16 << 10)),
        ("SMC, 64 KiB", chunked(Method::Smc, 64 << 10)),
        ("rep movsb, 16 KiB", chunked(Method::RepMovsb, 16 << 10)),
        ("SMO, whole", whole(Method::Smo)),
        ("SMO, 16 KiB", chunked(Method::Smo, 16 << 10)),
    ];
    for repeat in 0..options.repeats() {
        for size in SIZES {
            progress(&format!("copy: {}, repeat {}", ByteSize(size as u64), repeat + 1));
            let time = Duration::from_millis(if options.quick { 30 } else { 150 });
            for (system, plan) in systems {
                add(&mut report, system, size, read(plan, cpus, size, time)?);
            }
            match cma(cpus, size, time)? {
                Some(found) => add(&mut report, "CMA", size, found),
                None => {
                    note_once(&mut report, "CMA left out: process_vm_readv is not allowed here")
                }
            }
        }
    }
    let plan = calibrate::plan();
    let (method, chunk) = (plan.method.name(), ByteSize(plan.chunk_bytes.into()));
    report.notes.push(format!("start-up calibration chose {method} in chunks of {chunk}"));
    report.notes.push(format!(
        "whole: all in, then all out; otherwise overlapped from {} on; below that always SMC",
        ByteSize(CopyPlan::PIPELINE_BYTES_MIN as u64)
    ));
    Ok(report)
}

fn note_once(report: &mut Report, note: &str) {
    if !report.notes.iter().any(|seen| seen == note) {
        report.notes.push(note.into());
    }
}

fn add(report: &mut Report, system: &str, size: usize, found: Histogram) {
    let found = found.summary();
    let extra = [("p50_us", found.p50_ns / 1e3), ("p99_us", found.p99_ns / 1e3)];
    report.add(system, &ByteSize(size as u64).to_string(), size as f64 / found.p50_ns, &extra);
}

fn geometry() -> Geometry {
    Geometry { mailbox_count: 2, buffer_bytes: 4 << 20, ..Geometry::default() }
}

fn timed(time: Duration, mut copy: impl FnMut() -> Result<()>) -> Result<Histogram> {
    let mut histogram = Histogram::default();
    copy()?;
    let end = Instant::now() + time;
    let mut start = Instant::now();
    while start < end {
        copy()?;
        let now = Instant::now();
        histogram.record((now - start).as_nanos() as u64, 1);
        start = now;
    }
    Ok(histogram)
}

fn read(plan: CopyPlan, cpus: Cpus, size: usize, time: Duration) -> Result<Histogram> {
    let mut into = vec![0; size];
    let mut message = Message::new(Op::Read);
    message.length = size as u64;
    with_worker(geometry(), plan, cpus, Publish::Truth, |client, index| {
        timed(time, || {
            let reply = client.call_read(index, &message, &mut into, &Trusting);
            reply.map(|_| ()).map_err(|error| anyhow::anyhow!("{error:?}"))
        })
    })?
}

/// A round trip that says where the data lies, then one copy by the kernel. `None` when it may not.
fn cma(cpus: Cpus, size: usize, time: Duration) -> Result<Option<Histogram>> {
    let (source, mut into) = (vec![0x5a_u8; 64 << 20], vec![0; size]);
    let pid = std::process::id();
    if copy::cma_read(pid, source.as_ptr() as u64, &mut into).is_err() {
        return Ok(None);
    }
    let plan = CopyPlan::default();
    let mut at = 0;
    let found = with_worker(geometry(), plan, cpus, Publish::Truth, |client, index| {
        timed(time, || {
            client.call(index, &PING, &Trusting).map_err(|e| anyhow::anyhow!("{e:?}"))?;
            at = if at + 2 * size > source.len() { 0 } else { at + size };
            copy::cma_read(pid, source[at..].as_ptr() as u64, &mut into)?;
            Ok(())
        })
    })?;
    found.map(Some)
}

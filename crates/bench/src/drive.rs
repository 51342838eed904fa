//! Block loads: the same requests through a channel in this process, and by fio on a file.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use polylane_base::rng::Rng;
use polylane_block::device::{Channel, Completion, Op, Request, SECTOR_BYTES, Sector, Submitted};
use polylane_sys::buffer::Buffer;

use crate::place::command;

/// What is read or written.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Writes; else reads.
    pub write: bool,
    /// At random places; else from the start to the end.
    pub random: bool,
    /// Bytes per request.
    pub piece: u64,
    /// Requests in flight.
    pub depth: u64,
    /// Bytes that requests fall into.
    pub span: u64,
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After this time.
    Time(Duration),
    /// After the end of the span.
    End,
}

impl Load {
    /// Its name in tables.
    pub fn name(&self) -> String {
        let kind = match (self.write, self.random) {
            (true, true) => "randwrite",
            (true, false) => "write",
            (false, true) => "randread",
            (false, false) => "read",
        };
        let size = match self.piece >> 20 {
            0 => format!("{}k", self.piece >> 10),
            size => format!("{size}m"),
        };
        format!("{kind} {size} qd{}", self.depth)
    }

    fn place(&self, number: u64, rng: &mut Rng) -> Sector {
        let pieces = self.span / self.piece;
        let piece = if self.random { rng.below(pieces) } else { number % pieces };
        Sector(piece * self.piece / SECTOR_BYTES as u64)
    }
}

/// Runs the load through a channel; requests per second.
///
/// # Errors
/// A request failed.
pub fn channel(channel: &mut dyn Channel, load: &Load, until: Until) -> Result<f64> {
    let mut rng = Rng::new(7);
    let mut spare: Vec<Vec<Buffer>> =
        (0..load.depth).map(|_| vec![Buffer::copy_of(&vec![0x5a; load.piece as usize])]).collect();
    let mut done: Vec<Completion> = Vec::with_capacity(load.depth as usize);
    let op = if load.write { Op::Write { fua: false } } else { Op::Read };
    let (begin, mut sent, mut answered) = (Instant::now(), 0, 0);
    let goes_on = |sent: u64| match until {
        // A clock read per request would be in the result.
        Until::Time(time) => !sent.is_multiple_of(16) || begin.elapsed() < time,
        Until::End => sent < load.span / load.piece,
    };
    let mut open = true;
    while open || answered < sent {
        while open && !spare.is_empty() {
            open = goes_on(sent);
            let Some(data) = spare.pop_if(|_| open) else { break };
            let request = Request::with_data(op, load.place(sent, &mut rng), data, sent);
            match channel.submit(request) {
                Submitted::Done(completion) => done.push(completion),
                Submitted::Pending => {}
                Submitted::Busy(request) => {
                    drop(request.complete(Ok(())));
                    bail!("the channel is full");
                }
            }
            sent += 1;
        }
        if done.is_empty() && answered < sent {
            channel.park();
        }
        channel.poll(&mut done);
        for completion in done.drain(..) {
            completion.result.context("a request")?;
            spare.push(completion.data);
            answered += 1;
        }
    }
    Ok(answered as f64 / begin.elapsed().as_secs_f64())
}

/// Runs the load by fio's io_uring engine, direct, on a file; requests per second.
///
/// # Errors
/// fio is missing or failed.
pub fn fio(file: &Path, load: &Load, until: Until) -> Result<f64> {
    let file = format!("--filename={}", file.display());
    let engine = ["--ioengine=io_uring", "--direct=1", "--fallocate=none", "--overwrite=0"];
    fio_by(&[&engine[..], &[&file]].concat(), load, until)
}

/// Runs the load by fio's client of the Network Block Device protocol on the server that listens at
/// `socket`; requests per second.
///
/// # Errors
/// fio is missing, has no such engine, or failed.
pub fn fio_nbd(socket: &Path, load: &Load, until: Until) -> Result<f64> {
    let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
    fio_by(&["--ioengine=nbd", &uri], load, until)
}

fn fio_by(engine: &[&str], load: &Load, until: Until) -> Result<f64> {
    let kind = match (load.write, load.random) {
        (true, true) => "randwrite",
        (true, false) => "write",
        (false, true) => "randread",
        (false, false) => "read",
    };
    let mut args: Vec<String> =
        ["--name=load", "--norandommap", "--output-format=json"].map(String::from).into();
    args.extend(engine.iter().map(|arg| arg.to_string()));
    args.push(format!("--rw={kind}"));
    args.push(format!("--bs={}", load.piece));
    args.push(format!("--iodepth={}", load.depth));
    args.push(format!("--size={}", load.span));
    if let Until::Time(time) = until {
        args.push("--time_based".into());
        args.push(format!("--runtime={}ms", time.as_millis()));
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let said = command("fio", &args)?;
    // Notes may come before the report.
    let json = said.find('{').map(|at| &said[at..]).unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(json).context("fio's report")?;
    let side = if load.write { "write" } else { "read" };
    let rate = report["jobs"][0][side]["iops"].as_f64().unwrap_or(0.0);
    ensure!(rate > 0.0, "fio did nothing");
    Ok(rate)
}

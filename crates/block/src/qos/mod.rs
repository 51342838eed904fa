//! How lanes share a device.
//!
//! | module | what it holds |
//! |---|---|
//! | [`audit`] | whether a lane does what it says, and what the kernel is to hold it to |
//! | [`board`] | the coordinator's side of the pages: lanes come and go, windows are planned |
//! | [`calibrate`] | what requests cost on a device, measured |
//! | [`depth`] | how many requests a device has, as the kernel counts them |
//! | [`cost`] | what a request costs, in nanoseconds of device time |
//! | [`share`] | weighted max-min sharing of a budget |
//! | [`fixed`] | policies `none` and `static` (the paper's ST) |
//! | [`wdt`] | the policy of WDT (HotStorage'16) as published |
//! | [`governed`] | a device whose requests are charged to a lane and wait for their turn |
//! | [`lane`] | a lane's side of its page: admission without locks, waiting |
//! | [`ledger`] | the default policy in one process |
//! | [`model`] | a device and its tenants, simulated, to compare policies on |
//! | [`page`] | the page that a lane and the coordinator share, word by word |
//! | [`plan`] | the arithmetic of `ledger`: capacity, donation, grants |
//! | [`scenarios`] | the cases that policies are compared on |
//!
//! Policies are pure code: time is an argument, the result is a decision; no locks, no I/O, no
//! clock. `docs/design/qos.md` has the reasons and the measurements.

mod admission;
pub mod audit;
pub mod board;
pub mod calibrate;
pub mod cost;
pub mod depth;
pub mod fixed;
pub mod governed;
pub mod lane;
pub mod ledger;
pub mod model;
pub mod page;
pub mod plan;
pub mod scenarios;
pub mod share;
pub mod wdt;

pub use admission::Admission;

use crate::device::{BlockDevice, Op};

/// Nanoseconds since some beginning.
pub type Nanos = u64;

/// What a request does, as far as its cost goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Bytes come from the device.
    Read,
    /// Bytes go to the device.
    Write,
    /// A range is given up.
    Discard,
    /// Everything written is made durable.
    Flush,
}

impl Kind {
    /// What a request does to a device. Zeros that the device writes itself are a write.
    pub fn of(op: Op, device: &dyn BlockDevice) -> Kind {
        match op {
            Op::Read => Kind::Read,
            Op::Write { .. } => Kind::Write,
            Op::WriteZeroes { .. } | Op::Discard if device.writes_zeros(op) => Kind::Write,
            Op::WriteZeroes { .. } | Op::Discard => Kind::Discard,
            Op::Flush => Kind::Flush,
        }
    }
}

/// A request of a lane, as a policy sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    /// What it does.
    pub kind: Kind,
    /// How much, in bytes.
    pub bytes: u64,
    /// It continues where the lane's last request of its kind ended.
    pub sequential: bool,
}

/// Whether a request may go to the device now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It may, and is charged.
    Go,
    /// Ask again at this time, or after a completion of the same lane if that comes first.
    Wait(Nanos),
}

/// Decides which lane's request may go to one device, and when. Lanes are numbered from 0.
pub trait Policy {
    /// Adds a lane; its number. Weights are at least 1.
    fn add_lane(&mut self, weight: u32) -> usize;

    /// Changes a lane's weight.
    fn set_weight(&mut self, lane: usize, weight: u32);

    /// Whether `io` of `lane` may go now; if so it is charged and must be completed later.
    fn admit(&mut self, now: Nanos, lane: usize, io: &Io) -> Verdict;

    /// What the device has now, and has done, for all lanes together: called before each `admit`
    /// and `tick` where that is known.
    fn at_device(&mut self, _now: depth::AtDevice) {}

    /// A request that went is done.
    fn complete(&mut self, now: Nanos, lane: usize, io: &Io);

    /// To be called when [`Policy::next_tick`] has come; later is borne.
    fn tick(&mut self, now: Nanos);

    /// When `tick` is due; `Nanos::MAX` for never.
    fn next_tick(&self) -> Nanos;
}

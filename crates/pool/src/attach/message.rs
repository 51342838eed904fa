//! What is said between the processes of an attachment, over [`Link`](crate::link::Link)s.

use std::path::PathBuf;
use std::time::Duration;

use polylane_volume::held::{Answer, Ask};
use serde::{Deserialize, Serialize};

use crate::copying::{Target, Wish};

/// How long an engine may take to start, or to answer.
pub(super) const ENGINE_TIME_MAX: Duration = Duration::from_secs(30);

/// What an engine serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Shape {
    /// The engine's process.
    pub(super) pid: u32,
    /// Size in sectors of 512 bytes.
    pub(super) sectors: u64,
    /// Writes fail.
    pub(super) read_only: bool,
}

/// What a command tells a keeper. The one that makes an attachment says the first two.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum ToKeeper {
    /// This is about to become the device: record it, answer `Done`.
    Engaging(#[serde(with = "polylane_volume::path_text::one")] PathBuf),
    /// It is the device: go on without me, answer `Done`.
    Engaged,
    /// Answer `Stats`.
    Stats,
    /// The volume's file is to be this long: make it so, answer `Done`.
    Grow(u64),
    /// This volume is going to be copied: what follows is a `Step` of it.
    Copy(Target),
    /// This volume is going to go over to other bases: what follows is a `Step` of it.
    Rebase(Target),
    /// Make everything durable, answer `Done`, end.
    Stop,
}

impl ToKeeper {
    /// What is wanted of the volume, of a command that goes on with a `Step`.
    pub(super) fn wish(&self) -> Option<(Wish, Target)> {
        match self {
            ToKeeper::Copy(target) => Some((Wish::Copy, *target)),
            ToKeeper::Rebase(target) => Some((Wish::Rebase, *target)),
            _ => None,
        }
    }
}

/// What a keeper answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum FromKeeper {
    /// The engine serves. Unasked, to the command that makes the attachment.
    Serving(Shape),
    /// That was done. Comes with what the command needs to go on, for a `Grow`.
    Done,
    /// It was not; one line says why.
    Failed(String),
    /// Counters as JSON.
    Stats(serde_json::Value),
}

/// What a keeper tells an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum ToEngine {
    /// The file has grown: look again, answer `Grown`.
    Grow,
    /// Answer `Stats`.
    Stats,
    /// Charge all requests to the lane of this page from now on. Not answered.
    Share,
    /// Do this for a copy of the volume, answer `Copied`.
    Copy(Ask),
    /// Make everything durable, answer `Flushed`, exit 0.
    Shutdown,
}

/// What an engine answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum FromEngine {
    /// It serves this, with these warnings.
    Ready(Shape, Vec<String>),
    /// It could not start; the keeper says this line for it.
    Failed(String),
    /// The device has its new size, or the errno why not.
    Grown(Option<i32>),
    /// Counters as JSON.
    Stats(serde_json::Value),
    /// What was asked for a copy is done, or why not.
    Copied(Answer),
    /// The other side of the front end is gone for good. Unasked.
    Ended,
    /// Its cache takes these ranges for journals now: first byte and end. Unasked.
    Journals(Vec<(u64, u64)>),
    /// The end of a shutdown: the errno of the flush, if it failed.
    Flushed(Option<i32>),
}

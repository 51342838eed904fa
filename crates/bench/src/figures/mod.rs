//! One file per figure; this list is what `bench list` prints.

use anyhow::Result;

use crate::Options;
use crate::report::Report;

mod cached;
mod copy;
mod demo;
mod echo;
mod ipc;
mod ocrd;
mod queue;

/// A figure that can be run.
pub struct Figure {
    /// Its name on the command line.
    pub name: &'static str,
    /// One line for `bench list`.
    pub about: &'static str,
    /// Measures it.
    pub run: fn(&Options) -> Result<Report>,
}

/// Every figure.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "demo",
        about: "real programs in a lane, then a quiet tenant beside a flooding one",
        run: demo::run,
    },
    Figure {
        name: "ocrd",
        about: "create, rename, unlink by 1–16 tenants: lanes, tmpfs, shared kernel file systems",
        run: ocrd::run,
    },
    Figure {
        name: "cached-read",
        about: "4 KiB reads of cached data: lane, FUSE, kernel",
        run: |options| cached::run(options, "cached-read"),
    },
    Figure {
        name: "cached-write",
        about: "4 KiB writes to cached data: lane, FUSE, kernel",
        run: |options| cached::run(options, "cached-write"),
    },
    Figure {
        name: "stat",
        about: "stat of a path and fstat of a descriptor: lane, FUSE, kernel",
        run: |options| cached::run(options, "stat"),
    },
    Figure {
        name: "open-close",
        about: "open and close: lane, FUSE, kernel",
        run: |options| cached::run(options, "open-close"),
    },
    Figure {
        name: "seqread",
        about: "sequential read in memory: lane, FUSE, kernel, share of time in IPC",
        run: |options| cached::run(options, "seqread"),
    },
    Figure {
        name: "fileio-ram",
        about: "random 16 KiB file I/O in memory: lane, FUSE, kernel, share of time in IPC",
        run: |options| cached::run(options, "fileio"),
    },
    Figure {
        name: "ipc",
        about: "round trip of an empty request: channel, FUSE, futex, eventfd, UNIX socket",
        run: ipc::run,
    },
    Figure {
        name: "queue",
        about: "request queues beside crossbeam and concurrent-queue, 1–16 producers",
        run: queue::run,
    },
    Figure {
        name: "copy",
        about: "reads of 4 KiB to 4 MiB by copy method: SMC, SMO, rep movsb, CMA, pipelines",
        run: copy::run,
    },
];

//! `polylane run --kernel-fs`: a file system of the kernel's, on a volume of the tenant's own, as a
//! lane.
//!
//! The volume is attached as a block device for as long as the run lasts, its file system mounted
//! in the tenant's mount namespace alone. There is no service: the kernel serves the files, an
//! engine the device. What ends when is the init's and the attachment's keeper's business, so
//! a run that is killed leaves nothing behind either.
//!
//! Mounting a file system gives whoever made its image a way into this host's kernel. What was
//! formatted here, and written by this host's kernel or by our own ext4 since, is mounted as
//! it is; everything else is refused, or with `--trust-image` checked first.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_sys::ns::SignalFd;
use polylane_volume::tools;
use polylane_volume::{self as volume, SetOptions, Sidecar};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::attach::{self, AttachOptions};
use crate::ceph::ClusterOptions;
use crate::failure::{FAILED, Failure, Result, say};
pub use crate::kernel_fs_kind::KernelFs;
use crate::kernel_fs_kind::KernelFsMount;
use crate::link::{FromInit, Link, ToInit};
use crate::live::PoolsAndAttachments;
use crate::process::Process;
use crate::share::{Policy, Wanted};
use crate::signals::pass_signals;
use crate::supervise::{KILLED_TIME_MAX, TERMINATION_TIME_MAX};

/// How long the kernel may take to write everything back.
const SYNC_TIME_MAX: Duration = Duration::from_secs(300);

/// What a run on a kernel's file system was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelLane {
    /// The file system.
    pub kind: KernelFs,
    /// Mount an image of somebody else's, after a check.
    pub trust_image: bool,
}

/// A volume with a file system, attached. Dropped, it is detached.
#[derive(Debug)]
pub(crate) struct Disk {
    held: attach::Held,
    kind: KernelFs,
}

impl Disk {
    /// Makes, attaches, formats and checks the volume, as far as each is needed.
    pub(crate) fn open(
        path: &Path,
        lane: KernelLane,
        asked: volume::Asked,
        cache: SetOptions,
    ) -> Result<Disk> {
        let path = &volume::resolve(path)?;
        let made = volume::make_blank(path, asked)?;
        let disk = Disk::attach(path, lane.kind, cache);
        let opened = disk.and_then(|disk| disk.prepare(path, lane, made).map(|()| disk));
        if made && opened.is_err() {
            // It holds nothing.
            let _ = volume::remove(path, false, &PoolsAndAttachments);
        }
        opened
    }

    fn attach(path: &Path, kind: KernelFs, cache: SetOptions) -> Result<Disk> {
        let volume = path.to_path_buf();
        let options = AttachOptions {
            cluster: ClusterOptions::default(),
            volume,
            via: None,
            socket: None,
            passthrough: false,
            cache,
            record: None,
            wanted: Wanted::default(),
            qos: Policy::None,
        };
        Ok(Disk { held: attach::hold(&options)?, kind })
    }

    fn prepare(&self, path: &Path, lane: KernelLane, made: bool) -> Result<()> {
        let device = self.held.device();
        // A bypass volume's own file is not blank, and only of a new one it is known what it holds.
        if made || volume::is_blank(path)? {
            format(path, device, lane.kind)?;
            let sidecar = Sidecar::load(path)?;
            let formatted = Some(lane.kind.name().to_string());
            return Sidecar { formatted, ..sidecar }.store(path);
        }
        check_magic(path, device, lane.kind)?;
        match (Sidecar::load(path)?.formatted.is_some(), lane.trust_image) {
            (true, _) => Ok(()),
            (false, true) => check(path, device, lane.kind),
            (false, false) => Err(Failure::failed(format!(
                "{}: was not formatted here, or others could write to it since: mounting it would \
                 let its author attack this host's kernel: if you trust them, add --trust-image",
                path.display()
            ))),
        }
    }

    /// What the init is to mount.
    pub(crate) fn mounted(&self) -> KernelFsMount {
        KernelFsMount { device: self.held.device().to_path_buf(), kind: self.kind }
    }

    /// Detaches it; whether everything is durable.
    pub(crate) fn end(self) -> Result<()> {
        self.held.end()
    }
}

fn format(path: &Path, device: &Path, kind: KernelFs) -> Result<()> {
    let (program, options, package) = kind.maker();
    let mut command = tools::command(program, package)?;
    command.args(options).arg(device);
    let output = tools::run(command)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: cannot format it: {}",
            path.display(),
            tools::last_words(&output)
        ))),
    }
}

fn check_magic(path: &Path, device: &Path, kind: KernelFs) -> Result<()> {
    let (offset, magic) = kind.magic();
    let mut found = vec![0; magic.len()];
    let read = File::open(device).and_then(|file| file.read_exact_at(&mut found, offset));
    read.map_err(|error| Failure::path(path, "read it", error))?;
    match found == magic {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: holds no {kind} file system, and is not blank: name the one that it holds, or \
             another volume",
            path.display()
        ))),
    }
}

fn check(path: &Path, device: &Path, kind: KernelFs) -> Result<()> {
    let (program, options, package) = kind.checker();
    let mut command = tools::command(program, package)?;
    command.args(options).arg(device);
    let output = tools::run(command)?;
    // e2fsck: 1 when all of what was wrong was mended.
    let mended = program == "e2fsck" && output.status.code() == Some(1);
    match output.status.success() || mended {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: its file system has errors ({program}: {})",
            path.display(),
            tools::last_words(&output)
        ))),
    }
}

/// A tenant without a service: its init, and what it hears.
pub(crate) struct Tenant<'a> {
    /// Pid 1 of the tenant.
    pub(crate) init: Process,
    /// The line to it.
    pub(crate) link: Link,
    /// The signals that this process gets.
    pub(crate) signals: &'a SignalFd,
}

impl Tenant<'_> {
    /// Runs COMMAND to its end; its status.
    pub(crate) fn run(mut self) -> Result<u8> {
        let _ = self.link.send(&ToInit::Begin, &[]);
        let mut deadline: Option<(Instant, bool)> = None;
        loop {
            let (ended, told, signalled) = self.wait(deadline.map(|(at, _)| at))?;
            if ended {
                return Ok(self.init.wait().map_err(wait_failed)?.status());
            }
            if let Some((at, killed)) = deadline
                && Instant::now() >= at
            {
                if killed {
                    return Err(Failure::failed("tenant: its processes do not end"));
                }
                let _ = self.link.send(&ToInit::Signal(libc::SIGKILL), &[]);
                deadline = Some((Instant::now() + KILLED_TIME_MAX, true));
            }
            if told {
                deadline = match self.link.receive() {
                    Ok(Some((FromInit::Mounted(_), _))) => {
                        let _ = self.link.send(&ToInit::Serving, &[]);
                        deadline
                    }
                    Ok(Some((FromInit::Ended, _))) => {
                        Some((Instant::now() + KILLED_TIME_MAX, true))
                    }
                    Ok(Some((FromInit::Alone, _))) => Some((Instant::now() + SYNC_TIME_MAX, true)),
                    // Its end follows.
                    _ => deadline,
                };
            }
            if signalled && pass_signals(self.signals, &self.link)? && deadline.is_none() {
                deadline = Some((Instant::now() + TERMINATION_TIME_MAX, false));
            }
        }
    }

    fn wait(&self, until: Option<Instant>) -> Result<(bool, bool, bool)> {
        let watched = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = [self.init.as_fd(), self.link.as_fd(), self.signals.as_fd()].map(watched);
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(wait_failed(error.into())),
        }
        let is = |index: usize| !fds[index].revents().is_empty();
        Ok((is(0), is(1), is(2)))
    }
}

fn wait_failed(error: std::io::Error) -> Failure {
    Failure::because("tenant", "wait for it", error)
}

/// COMMAND's status, or that of a volume that could not be detached in good order.
pub(crate) fn finish(status: Result<u8>, disk: Disk) -> Result<u8> {
    let ended = disk.end();
    match (status, ended) {
        (Ok(status), Ok(())) => Ok(status),
        (Ok(status), Err(failure)) => {
            say(failure);
            Ok(if status == 0 { FAILED } else { status })
        }
        (Err(failure), _) => Err(failure),
    }
}

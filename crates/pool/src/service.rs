//! The service process of a pool: the hidden `polylane service` command.
//!
//! It is handed descriptors by number and a specification, and holds no path of the host. Before it
//! reads a byte of its tenant's it is confined (`confine`). Its main thread listens to the
//! supervisor; the doors have threads of their own. The end of the control line is the end of the
//! supervisor: flush and go.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::time::Duration;

use polylane_base::Errno;
use polylane_block::file::Files;
use polylane_sys::{ns, sched};
use polylane_vfs::hostdir::HostDir;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::build::{self, Running, Store};
use crate::confine::confine;
use crate::failure::{FAILED, Failure, Result, say};
use crate::keeper::wait_for;
use crate::link::{FromService, Link, ToService};
use crate::spec::PoolSpec;

/// Keeps the kernel's memory killer away from the service while there is anything else in its pool.
const OOM_SCORE_ADJ: &str = "-900";

/// The descriptors of a service, by number, as on its command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceFds {
    /// The specification, a sealed memfd.
    pub spec: RawFd,
    /// The FUSE device of the live mount.
    pub fuse: RawFd,
    /// The listening socket in the lane.
    pub socket: RawFd,
    /// The line to the supervisor.
    pub control: RawFd,
    /// The host directory under the lane, for `--dir`.
    pub dir: Option<RawFd>,
    /// The files of the volume, its own and those of its bases, for data.
    pub volume: Vec<RawFd>,
    /// The same files, without O_DIRECT.
    pub volume_plain: Vec<RawFd>,
    /// The same files, with their locks.
    pub volume_lock: Vec<RawFd>,
}

/// Time slices of a service's threads. They are shorter than those of tenants' threads, which are
/// shorter than Linux' 3 ms: who waits for a service must not wait until some other tenant's thread
/// has used its slice up.
const SLICE: Duration = Duration::from_micros(100);

/// Runs a service to its end; its exit status. `confined` runs when the service has given up its
/// rights and has not begun to serve: a test does there what somebody would who took it over.
pub fn main(fds: ServiceFds, confined: impl FnOnce()) -> u8 {
    // It was started as /proc/self/exe, and would be called "exe".
    let _ = rustix::thread::set_name(c"polylane-svc");
    // Before any thread is made. A kernel that refuses has slices of its own.
    let _ = sched::set_slice(SLICE);
    let control = match ns::inherited_fd(fds.control) {
        Ok(fd) => Link::from_fd(fd),
        Err(_) => {
            say("service: started by 'polylane run' only");
            return FAILED;
        }
    };
    match start(fds, confined) {
        Ok(running) => serve(running, &control),
        Err(failure) => {
            // The supervisor says it; a lost line changes nothing about the end.
            let _ = control.send(&FromService::Failed(failure.line), &[]);
            FAILED
        }
    }
}

fn start(fds: ServiceFds, and_then: impl FnOnce()) -> Result<Running> {
    let take = |number| {
        ns::inherited_fd(number)
            .map_err(|error| Failure::because("service", "take its files", error))
    };
    let spec = PoolSpec::from_fd(take(fds.spec)?)?;
    let dir: Option<OwnedFd> = fds.dir.map(take).transpose()?;
    let mut volume = Vec::new();
    for ((io, plain), lock) in fds.volume.iter().zip(&fds.volume_plain).zip(&fds.volume_lock) {
        volume.push(Files { io: take(*io)?, plain: take(*plain)?, lock: take(*lock)? });
    }
    let (fuse, socket) = (take(fds.fuse)?, take(fds.socket)?);
    make_room();
    let failed = |error| Failure::because("lane", "open its files", error);
    // It opens /proc, and must do so before nothing can be opened any more.
    let host = dir.as_ref().map(OwnedFd::try_clone).transpose();
    let host = host.map_err(Errno::from).and_then(|dir| dir.map(HostDir::new).transpose());
    let store = match host.map_err(failed)? {
        Some(host) => Store::Host(host),
        None if volume.is_empty() => Store::Memory,
        None => Store::Volume(volume),
    };
    let confined = confine(dir.as_ref().map(AsFd::as_fd))?;
    drop(dir);
    and_then();
    build::start(&spec, fuse, socket, store, confined)
}

/// The service holds many descriptors, and its tenant's files in RAM: in a pool that runs out of
/// memory it is the last to be killed. What an ordinary user may not have is done without.
fn make_room() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
}

/// Answers the supervisor until it wants the end or is gone itself.
fn serve(mut running: Running, control: &Link) -> u8 {
    if control.send(&FromService::Ready, &[]).is_err() {
        return FAILED;
    }
    // Whoever wants to know something about a volume that stands still has to wait.
    let mut asked = false;
    loop {
        let left = running.time_left();
        if left.is_none() && std::mem::take(&mut asked) {
            let _ = control.send(&FromService::Stats(running.stats()), &[]);
        }
        if let Some(left) = left
            && !wait_for(control.as_fd(), left)
        {
            running.thaw();
            continue;
        }
        match control.receive::<ToService>() {
            Ok(Some((ToService::Stats, _))) => asked = true,
            Ok(Some((ToService::Share, fds))) => running.share(fds),
            Ok(Some((ToService::Copy(ask), fds))) => {
                let answer = FromService::Copied(running.answer(ask, fds));
                let _ = control.send(&answer, &[]);
            }
            Ok(Some((ToService::Shutdown, _))) => {
                let errno = running.end();
                let _ = control.send(&FromService::Flushed(errno), &[]);
                return 0;
            }
            Ok(None) | Err(_) => {
                running.end();
                return FAILED;
            }
        }
    }
}

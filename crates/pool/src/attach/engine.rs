//! The engine process of an attachment: the hidden `polylane engine` command.
//!
//! As a pool's service, it is handed descriptors by number and a specification, and holds no path
//! of the host. Its main thread listens to the keeper; the front end has threads of its own. The
//! end of the control line is the end of the keeper: flush and go.

use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::sync::mpsc;
use std::time::Duration;

use polylane_base::sync::{Arc, thread};
use polylane_block::BlockDevice;
use polylane_block::bypass::PoolFiles;
use polylane_block::cache::pdc::Region;
use polylane_block::file::Files;
use polylane_block::qos::governed::{Governed, Governor};
use polylane_block::recorder::Recorder;
use polylane_block::wait::Waiter;
use polylane_front::export::Serving;
use polylane_sys::ns;
use polylane_volume::held::Held;
use polylane_volume::pool_file::{self, Parts};
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::arm;
use super::message::{FromEngine, Shape, ToEngine};
use super::spec::EngineSpec;
use crate::ceph::CephFiles;
use crate::failure::{FAILED, Failure, Result, say};
use crate::link::Link;
use crate::share::{member, report};
use crate::spec;
use crate::wait::wait_either;

/// Without the engine the kernel cannot write to the attached device, and so cannot free memory.
const OOM_SCORE_ADJ: &str = "-1000";

/// Why a volume that the kernel writes to cannot stand still.
const PASSED_THROUGH: &str =
    "volume: is attached past its engine (--passthrough): detach it to copy it";

/// How long an engine sleeps without a reason to wake up.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// How long the front end may take to answer what it took in, at the end.
const DOOR_TIME_MAX: Duration = Duration::from_secs(30);

/// How long it may take until the keeper knows of a journal that was found.
const TELL_AGAIN: Duration = Duration::from_secs(5);

/// The descriptors of an engine, by number, as on its command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineFds {
    /// The specification, a sealed memfd.
    pub spec: RawFd,
    /// What the front end serves: a FUSE or ublk device, a listening socket.
    pub door: RawFd,
    /// Where engines of a FUSE device note what they have read.
    pub left: Option<RawFd>,
    /// The line to the keeper.
    pub control: RawFd,
    /// The files of the volume, its own and those of its bases, for data.
    pub volume: Vec<RawFd>,
    /// The same files, without O_DIRECT.
    pub volume_plain: Vec<RawFd>,
    /// The same files, with their locks.
    pub volume_lock: Vec<RawFd>,
    /// The disk under a bypass volume's pool file, and the pool file.
    pub bypass: Option<(RawFd, RawFd)>,
    /// Configuration and keyring of the Ceph user, of an image of a cluster.
    pub ceph: Option<(RawFd, Option<RawFd>)>,
    /// Where requests are written down.
    pub record: Option<RawFd>,
}

/// An engine at work.
struct Engine {
    serving: Box<dyn Serving>,
    volume: Held,
    recorder: Option<Arc<Recorder>>,
    passthrough: bool,
    governor: Option<Arc<Governor>>,
    /// Held as long as the lane of the governor.
    share: Option<OwnedFd>,
}

/// Runs an engine to its end; its exit status.
pub fn main(fds: EngineFds) -> u8 {
    let _ = rustix::thread::set_name(c"polylane-engine");
    let control = match ns::inherited_fd(fds.control) {
        Ok(fd) => Link::from_fd(fd),
        Err(_) => {
            say("engine: started by 'polylane attach' only");
            return FAILED;
        }
    };
    match start(fds) {
        Ok((engine, warnings)) => serve(engine, &control, warnings),
        Err(failure) => {
            // The keeper says it; a lost line changes nothing about the end.
            let _ = control.send(&FromEngine::Failed(failure.line), &[]);
            FAILED
        }
    }
}

fn start(fds: EngineFds) -> Result<(Engine, Vec<String>)> {
    let take = |number| {
        ns::inherited_fd(number)
            .map_err(|error| Failure::because("engine", "take its files", error))
    };
    let spec: EngineSpec = spec::unseal(take(fds.spec)?)?;
    let mut files = Vec::new();
    for ((io, plain), lock) in fds.volume.iter().zip(&fds.volume_plain).zip(&fds.volume_lock) {
        files.push(Files { io: take(*io)?, plain: take(*plain)?, lock: take(*lock)? });
    }
    let pool = fds
        .bypass
        .map(|(disk, pool)| Ok::<_, Failure>(PoolFiles { disk: take(disk)?, pool: take(pool)? }));
    let claim = match (pool.transpose()?, files.first()) {
        (Some(pool), Some(own)) => Some(pool_file::claim(own, pool)?),
        _ => None,
    };
    let ceph = fds.ceph.map(|(conf, keyring)| {
        Ok::<_, Failure>(CephFiles { conf: take(conf)?, keyring: keyring.map(take).transpose()? })
    });
    let image = match (&spec.image, ceph.transpose()?) {
        (Some(image), Some(files)) => Some((image, image.prepare(&files)?)),
        _ => None,
    };
    let door: OwnedFd = take(fds.door)?;
    let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    let warnings = stay_out_of_reclaim().into_iter().collect();
    harden()?;
    let parts = match image {
        Some((image, prepared)) => Parts::remote(image.open(prepared)?),
        None => pool_file::parts(files, claim, spec.bypass.as_deref())?,
    };
    let governor = spec.shared.then(Governor::new);
    let (cache, translation) = (spec.cache, spec.translation.clone());
    let volume = Held::open(&spec.name, parts, cache, translation, governor.clone())?;
    if let Some(cache) = volume.cache() {
        let known = spec.journals.iter().map(|(first, end)| Region { first: *first, end: *end });
        cache.remember(&known.collect::<Vec<_>>());
    }
    // An engine remembers where it has seen no data, and does not see what the kernel writes.
    let passthrough = spec.backing.is_some();
    let device: Arc<dyn BlockDevice> = match (passthrough, &governor) {
        (true, Some(governor)) => Governed::new(volume.file(), governor.clone()),
        (true, None) => volume.file(),
        (false, _) => volume.device(),
    };
    let trace = fds.record.map(take).transpose()?;
    let recorder = trace.map(|trace| Recorder::new(device.clone(), trace.into()));
    let device = recorder.clone().map_or(device, |device| device as _);
    let left = fds.left.map(take).transpose()?;
    let serving = arm::serve(&spec, (door, left), device)?;
    let engine = Engine { serving, volume, recorder, passthrough, governor, share: None };
    Ok((engine, warnings))
}

/// Memory that this process allocates must not be freed by writing to the device that it serves:
/// that write would wait for this process. Threads inherit the mark, so it comes first; it needs
/// CAP_SYS_RESOURCE, so it comes before privileges go.
fn stay_out_of_reclaim() -> Option<String> {
    let refused = rustix::process::configure_io_flusher_behavior(true).is_err();
    refused.then(|| {
        "engine: not allowed to mark itself as an I/O flusher (needs CAP_SYS_RESOURCE): under \
         memory pressure the attached device may be slow"
            .to_string()
    })
}

/// What an engine never needs: privileges, a core dump or a tracer with its tenant's data, a
/// working directory.
fn harden() -> Result<()> {
    let failed = |error| Failure::because("engine", "give up privileges", error);
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)?;
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)
}

/// Ends a front end, whatever its other side does: what a client keeps from being answered for so
/// long ends with this process.
fn end_in_time(serving: Box<dyn Serving>) {
    let (ended, answer) = mpsc::channel();
    let begun = thread::Builder::new().name("end".to_string()).spawn(move || {
        serving.end();
        let _ = ended.send(());
    });
    // Without a thread it is dropped, unended: the end of the process ends it.
    if begun.is_ok() && answer.recv_timeout(DOOR_TIME_MAX).is_err() {
        say("engine: a client kept requests from being answered: they end unanswered");
    }
}

/// Answers the keeper until it wants the end or is gone itself.
fn serve(mut engine: Engine, control: &Link, warnings: Vec<String>) -> u8 {
    let device = engine.volume.device();
    let shape = Shape {
        pid: std::process::id(),
        sectors: device.sector_count(),
        read_only: device.read_only(),
    };
    if control.send(&FromEngine::Ready(shape, warnings), &[]).is_err() {
        return FAILED;
    }
    let (mut told, mut journals) = (false, engine.journals());
    let pause = if engine.volume.cache().is_some() { TELL_AGAIN } else { LOOK_AGAIN };
    loop {
        // Until the end is told of, there may be one.
        let ended = engine.serving.ended().filter(|_| !told).unwrap_or(control.as_fd());
        let limit = engine.volume.time_left().map_or(pause, |left| left.min(pause));
        let (message, gone) = wait_either(control.as_fd(), ended, limit);
        engine.tell_journals(control, &mut journals);
        if !message {
            if engine.volume.time_left().is_some_and(|left| left.is_zero()) {
                engine.volume.thaw();
            }
            if gone {
                told = true;
                let _ = control.send(&FromEngine::Ended, &[]);
            }
            continue;
        }
        let answer = match control.receive::<ToEngine>() {
            Ok(Some((ToEngine::Grow, _))) => FromEngine::Grown(engine.grow()),
            Ok(Some((ToEngine::Stats, _))) => FromEngine::Stats(engine.stats()),
            Ok(Some((ToEngine::Share, fds))) => {
                engine.go_on_with(fds);
                continue;
            }
            // A kernel's file system is for its user to settle: a copy is what a power cut leaves.
            Ok(Some((ToEngine::Copy(_), _))) if engine.passthrough => {
                FromEngine::Copied(Some(PASSED_THROUGH.to_string()))
            }
            Ok(Some((ToEngine::Copy(ask), fds))) => {
                FromEngine::Copied(engine.volume.answer(ask, fds, || Ok(())))
            }
            Ok(Some((ToEngine::Shutdown, _))) => {
                let errno = engine.end();
                let _ = control.send(&FromEngine::Flushed(errno), &[]);
                return 0;
            }
            Ok(None) | Err(_) => {
                engine.end();
                return FAILED;
            }
        };
        let _ = control.send(&answer, &[]);
    }
}

impl Engine {
    /// Takes the new size of the file in; the errno if that fails.
    fn grow(&self) -> Option<i32> {
        let result = self.volume.grow();
        self.serving.grown();
        result.err().map(|errno| errno.0)
    }

    /// Counters as JSON.
    fn stats(&self) -> serde_json::Value {
        let mut stats = self.volume.stats();
        stats["passthrough"] = self.passthrough.into();
        stats["share"] = self.governor.as_deref().map(report::describe).into();
        stats
    }

    /// Charges requests to another lane from now on.
    fn go_on_with(&mut self, fds: Vec<OwnedFd>) {
        if let Some(governor) = &self.governor
            && let Ok(link) = member::adopt(governor, fds)
        {
            self.share = Some(link);
        }
    }

    /// Where its cache sees journals.
    fn journals(&self) -> Vec<(u64, u64)> {
        let mut found = self.volume.cache().map_or_else(Vec::new, |cache| cache.found());
        found.sort_unstable_by_key(|region| region.first);
        found.into_iter().map(|region| (region.first, region.end)).collect()
    }

    /// Tells the keeper where journals are, if that is news.
    fn tell_journals(&self, control: &Link, told: &mut Vec<(u64, u64)>) {
        let now = self.journals();
        if now != *told && control.send(&FromEngine::Journals(now.clone()), &[]).is_ok() {
            *told = now;
        }
    }

    /// Closes the door and makes everything durable; the errno if that fails.
    fn end(mut self) -> Option<i32> {
        // The end of its use waits for the device, not for its share of it.
        let _hurry = self.governor.as_ref().map(Governor::hurry);
        self.volume.thaw();
        end_in_time(self.serving);
        if self.recorder.is_some_and(|recorder| !recorder.finish()) {
            say("engine: not all requests could be written down");
        }
        let flushed = Waiter::new(self.volume.device()).flush();
        self.volume.close();
        flushed.err().map(|error| polylane_base::Errno::from(error).0)
    }
}

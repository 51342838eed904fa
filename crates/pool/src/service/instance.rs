//! Further lanes of a service: each over the lowers of the first one, with files, caches and doors
//! of its own, on a thread of its own. The supervisor has a line to each; they share nothing but
//! the lowers, so none waits for another.
//!
//! What a former service left them is taken in before the service is confined; one that joins later
//! has no former service.

use std::os::fd::OwnedFd;

use polylane_base::sync::{Arc, thread};
use polylane_front::beat::Beat;
use polylane_sys::footprint;
use polylane_volume::held::files_of;

use super::{beating, pass_on, serve, take_over};
use crate::build::{self, Layers, Passed, Store, Stores, Surroundings, Under};
use crate::confine::Confined;
use crate::failure::{Failure, Result};
use crate::link::{FromService, Link, ToService};
use crate::spec::{Backing, PoolSpec};
use crate::witness::Asker;

/// A lane that is to be served: what came with [`ToService::Instance`].
pub(super) struct Prepared {
    spec: PoolSpec,
    doors: (OwnedFd, OwnedFd),
    own: Store,
    passed: Passed,
    beat: Beat,
    /// Who looks at its clients: the line to it, and what tells of other mounts.
    witness: (Link, OwnedFd),
}

/// What further lanes have in common with the first.
#[derive(Clone)]
pub(super) struct Ground {
    pub(super) layers: Arc<Layers>,
    pub(super) confined: Confined,
    pub(super) guards_links: bool,
    /// Users of clients have no numbers here.
    pub(super) has_own_ids: bool,
}

/// The further lanes of a service.
pub(super) struct Instances {
    pub(super) ground: Ground,
    pub(super) threads: Vec<thread::JoinHandle<()>>,
}

/// One that was asked for: the line to the supervisor, and what is to be served, or why not.
pub(super) type Asked = (Link, Result<Prepared>);

/// Takes in what came with [`ToService::Instance`]. `None`: not even the supervisor's line.
pub(super) fn asked(fds: Vec<OwnedFd>) -> Option<Asked> {
    let mut fds = fds.into_iter();
    let control = Link::from_fd(fds.next()?);
    Some((control, Prepared::of(fds)))
}

/// As many as a new service is to serve from the first.
pub(super) fn asked_before(control: &Link, count: u32) -> Vec<Asked> {
    let next = |_| match control.receive() {
        Ok(Some((ToService::Instance, fds))) => asked(fds),
        _ => None,
    };
    (0..count).map_while(next).collect()
}

impl Prepared {
    fn of(mut fds: impl Iterator<Item = OwnedFd>) -> Result<Prepared> {
        let mut next = || fds.next().ok_or_else(|| Failure::failed("lane: its files are missing"));
        let (spec, fuse, socket) = (PoolSpec::from_fd(next()?)?, next()?, next()?);
        let (kept, witness) = (next()?, (Link::from_fd(next()?), next()?));
        let own = match spec.backing {
            Backing::Volume { .. } => Store::Volume(files_of(fds.collect()), None),
            _ => Store::Nothing,
        };
        let failed = |error| Failure::because("lane", "take over what is left of it", error);
        let former = take_over(&spec, &kept).map_err(failed)?;
        let (heart, beat) = beating(&kept)?;
        let passed = pass_on(former, heart, &kept)?;
        Ok(Prepared { spec, doors: (fuse, socket), own, passed, beat, witness })
    }

    fn serve(self, ground: Ground, control: &Link) -> Result<()> {
        let Prepared { spec, doors, own, passed, mut beat, witness } = self;
        let Ground { layers, confined, guards_links, has_own_ids } = ground;
        let stores = Stores { own, lowers: Under::Shared(layers), cluster: None };
        let told = control
            .again()
            .map_err(|error| Failure::because("lane", "keep the line to its supervisor", error))?;
        let surroundings = Surroundings {
            confined,
            guards_links,
            witness: Some(Asker::limited(witness.0, witness.1, has_own_ids)),
            instance: Some(told),
        };
        let running = build::start(&spec, doors, stores, passed, surroundings)?;
        beat.busy();
        serve(running, beat, control, None);
        // What it had is the host's again.
        footprint::trim_heap();
        Ok(())
    }
}

impl Instances {
    /// Serves one more lane, on a thread of its own.
    pub(super) fn begin(&mut self, (control, prepared): Asked) {
        self.threads.retain(|thread| !thread.is_finished());
        let ground = self.ground.clone();
        let refused = control.again();
        let work = move || {
            let served = prepared.and_then(|prepared| prepared.serve(ground, &control));
            if let Err(failure) = served {
                let _ = control.send(&FromService::Failed(failure.line), &[]);
            }
        };
        match thread::Builder::new().name("instance".to_string()).spawn(work) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => {
                let failure = Failure::because("lane", "start a thread for it", error);
                let _ = refused.map(|line| line.send(&FromService::Failed(failure.line), &[]));
            }
        }
    }

    /// Waits until all have ended, which the supervisor has told them, or its end.
    pub(super) fn end(self) {
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

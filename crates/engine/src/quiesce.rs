//! A container whose files are read: none of its processes runs meanwhile, and no command starts or
//! removes it.
//!
//! One that runs is paused by a process of its own, the *resumer*, which has the runtime let it go
//! on when the reader says so or ends, however that ends. The resumer does both, so a reader that
//! is killed while the runtime pauses the container leaves none paused.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use polylane_pool::ceph::{CephPlace, ClusterOptions};
use polylane_pool::failure::{FAILED, Failure, Result, say};
use polylane_pool::lower::LowerSource;
use polylane_sys::ns::{self, Fork, Namespaces};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, setsid, waitpid};

use crate::container::{Container, State};
use crate::lane;
use crate::place::Lock;

/// Where the files of a container are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Files {
    /// It runs: the root of its lane on the host, layers and changes in one.
    Mounted(PathBuf),
    /// It does not: the volume with its changes, which nobody has open.
    Volume(PathBuf),
    /// It does not, and its changes are in a cluster.
    Cluster(CephPlace),
}

/// A container whose files do not change. Dropped, it goes on.
pub struct Quiesced {
    /// Its files.
    pub files: Files,
    /// The layers of its image, the uppermost first.
    pub layers: Vec<LowerSource>,
    /// How the cluster is reached that they are in, if they are.
    pub cluster: ClusterOptions,
    /// The identity of its image.
    pub image_id: String,
    // In this order: commands that wait for the lock find it as it was.
    _paused: Option<Paused>,
    _lock: Lock,
}

impl Container {
    /// Keeps the container's files as they are until the answer is dropped.
    ///
    /// # Errors
    /// One line: it was never started, was removed or ended meanwhile, its runtime cannot pause it,
    /// another command has it.
    pub fn quiesce(&self) -> Result<Quiesced> {
        let lock = self.lock()?;
        let runs = matches!(self.state()?, State::Running(_));
        if !runs && lane::is_new(&self.place, &self.record) {
            return Err(Failure::failed(format!(
                "{}: was never started, so it has changed nothing",
                self.record.name
            )));
        }
        let paused = runs.then(|| Paused::new(self)).transpose();
        if paused.is_err() && !matches!(self.state()?, State::Running(_)) {
            let name = &self.record.name;
            return Err(Failure::failed(format!("{name}: ended meanwhile: try again")));
        }
        let paused = paused?;
        Ok(Quiesced {
            files: match self.record.branch() {
                _ if runs => Files::Mounted(self.place.root()),
                Some(branch) => Files::Cluster(branch),
                None => Files::Volume(lane::upper(&self.place)),
            },
            layers: self
                .record
                .layers
                .iter()
                .map(|layer| LowerSource::parse(layer.as_ref()))
                .collect::<Result<_>>()?,
            cluster: self.record.cluster.of_run(),
            image_id: self.record.image_id.clone(),
            _paused: paused,
            _lock: lock,
        })
    }
}

/// A container that is paused. Dropped, it has gone on.
struct Paused {
    /// Its end, by whatever, has the resumer let the container go on.
    held: Option<OwnedFd>,
    resumer: Option<Pid>,
}

impl Paused {
    fn new(container: &Container) -> Result<Paused> {
        let failed = |error: io::Error| Failure::because(&container.record.name, "pause it", error);
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()));
        let ((told, held), (answer, tell)) = (pipe()?, pipe()?);
        let child = match ns::fork(Namespaces::default()).map_err(failed)? {
            Fork::Child => {
                drop((held, answer));
                resume_when_told(container, told, tell)
            }
            Fork::Parent(child) => child,
        };
        drop((told, tell));
        let resumer = i32::try_from(child.pid).ok().and_then(Pid::from_raw);
        // Dropped where it is not paused, it waits for the resumer's end.
        let paused = Paused { held: Some(held), resumer };
        let mut said = Vec::new();
        File::from(answer).read_to_end(&mut said).map_err(failed)?;
        match said.split_first() {
            Some((0, _)) => Ok(paused),
            Some((&status, line)) => {
                Err(Failure { status, line: String::from_utf8_lossy(line).into_owned() })
            }
            None => Err(failed(io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // A byte, since processes that this one has started may have the pipe as well.
        if let Some(held) = self.held.take() {
            let _ = rustix::io::write(&held, &[0]);
        }
        if let Some(resumer) = self.resumer.take() {
            let _ = waitpid(Some(resumer), WaitOptions::empty());
        }
    }
}

/// The resumer's life: it pauses the container, tells how that went, and waits for a word or for
/// the reader's end. It has the container's lock as well, so no command comes in between.
fn resume_when_told(container: &Container, told: OwnedFd, tell: OwnedFd) -> ! {
    // What ends the reader by its terminal or group does not end this one, nor the runtime.
    let _ = setsid();
    let _ = rustix::process::chdir(Path::new("/"));
    let runtime = container.runtime();
    let paused = runtime.pause();
    let answer = match &paused {
        Ok(()) => vec![0],
        Err(failure) => [&[failure.status.max(FAILED)], failure.line.as_bytes()].concat(),
    };
    // The reader may be gone, and the signal that says so ends no process (`std` ignores it).
    let _ = File::from(tell).write_all(&answer);
    if paused.is_err() {
        // Some of its processes may stand still.
        let _ = runtime.resume();
        ns::exit_now(FAILED.into())
    }
    let _ = File::from(told).read(&mut [0]);
    let status = runtime.resume().map_or_else(
        |failure| {
            say(failure);
            FAILED.into()
        },
        |()| 0,
    );
    ns::exit_now(status)
}

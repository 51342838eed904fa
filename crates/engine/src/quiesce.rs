//! A container whose files are read: none of its processes runs meanwhile, and no command starts or
//! removes it.
//!
//! One that runs is paused by its runtime. A process of its own lets it go on when the reader says
//! so or ends, however that ends.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use polylane_pool::failure::{FAILED, Failure, Result, say};
use polylane_sys::ns::{self, Fork, Namespaces};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, setsid, waitpid};

use crate::container::{Container, State};
use crate::lane;
use crate::place::Lock;

/// What the process that has a container go on is told; its end without a word is the first.
const RESUME: u8 = b'r';
const NOTHING: u8 = b'n';

/// Where the files of a container are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Files {
    /// It runs: the root of its lane on the host, layers and changes in one.
    Mounted(PathBuf),
    /// It does not: the volume with its changes, which nobody has open.
    Volume(PathBuf),
}

/// A container whose files do not change. Dropped, it goes on.
pub struct Quiesced {
    /// Its files.
    pub files: Files,
    /// The directories of its image's layers, the uppermost first.
    pub layers: Vec<PathBuf>,
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
    /// One line: it was never started, its runtime cannot pause it, another command has it.
    pub fn quiesce(&self) -> Result<Quiesced> {
        let lock = self.place.lock()?;
        let runs = matches!(self.state()?, State::Running(_));
        let volume = lane::upper(&self.place);
        if !runs && !volume.exists() {
            return Err(Failure::failed(format!(
                "{}: was never started, so it has changed nothing",
                self.record.name
            )));
        }
        let paused = if runs { Some(Paused::new(self)?) } else { None };
        Ok(Quiesced {
            files: if runs { Files::Mounted(self.place.root()) } else { Files::Volume(volume) },
            layers: self.record.layers.iter().map(PathBuf::from).collect(),
            image_id: self.record.image_id.clone(),
            _paused: paused,
            _lock: lock,
        })
    }
}

/// A container that is paused. Dropped, it has gone on.
struct Paused {
    /// Its end, by whatever, has the container go on.
    held: Option<OwnedFd>,
    resumer: Option<Pid>,
}

impl Paused {
    fn new(container: &Container) -> Result<Paused> {
        let failed = |error: io::Error| Failure::because(&container.record.name, "pause it", error);
        let (told, held) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let child = match ns::fork(Namespaces::default()).map_err(failed)? {
            Fork::Child => {
                drop(held);
                resume_when_told(container, told)
            }
            Fork::Parent(child) => child,
        };
        let resumer = i32::try_from(child.pid).ok().and_then(Pid::from_raw);
        let mut paused = Paused { held: Some(held), resumer };
        match container.runtime().pause() {
            Ok(()) => Ok(paused),
            Err(failure) => {
                paused.end(NOTHING);
                Err(failure)
            }
        }
    }

    fn end(&mut self, word: u8) {
        // A byte, since processes that this one has started may have the pipe as well.
        if let Some(held) = self.held.take() {
            let _ = rustix::io::write(&held, &[word]);
        }
        if let Some(resumer) = self.resumer.take() {
            let _ = waitpid(Some(resumer), WaitOptions::empty());
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.end(RESUME);
    }
}

/// The life of the process that has a paused container go on.
fn resume_when_told(container: &Container, told: OwnedFd) -> ! {
    // What ends the reader by its terminal or group does not end this one.
    let _ = setsid();
    let _ = rustix::process::chdir(Path::new("/"));
    let mut word = [RESUME];
    let _ = File::from(told).read(&mut word);
    let resumed = match word {
        [NOTHING] => Ok(()),
        _ => container.runtime().resume(),
    };
    let status = resumed.map_or_else(
        |failure| {
            say(failure);
            FAILED.into()
        },
        |()| 0,
    );
    ns::exit_now(status)
}

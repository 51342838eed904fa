//! In the service: a volume's file as a block device, with the tenant's ext4 on it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use polylane_base::Clock;
use polylane_base::sync::Arc;
use polylane_block::file::{Files, Way};
use polylane_block::qos::governed::Governor;
use polylane_ext4::{DataMode, Error, Ext4, Options};

use super::cache::{CacheSpec, Mode, StoreKind};
use super::held::{Answer, Ask, Held};
use super::pool_file::Parts;
use super::stack::Stack;
use super::translation::Translation;
use crate::failure::{Failure, Result, say};

/// Why a volume is read only whose host had no room for its first change.
const NO_ROOM: &str = "no space left under the volume: make room, and run again";

/// The ext4 on a volume that is a layer under others, of its files for reading. The host's page
/// cache keeps what is read, for all who read it.
///
/// # Errors
/// Its journal has to be replayed, or it is damaged; the host's.
pub fn open_lower(
    name: &str,
    files: Vec<Files>,
    clock: Arc<dyn Clock>,
    options: &Options,
) -> Result<Ext4> {
    let cache =
        CacheSpec { mode: Mode::Writethrough, store: StoreKind::Host, ..CacheSpec::default() };
    let device = Stack::below(files, Way::Calls, cache)?;
    let device = device.ok_or_else(|| Failure::failed(format!("{name}: it has no files")))?;
    Ext4::open(device, clock, options)
        .map_err(|error| Failure::failed(format!("{name}: cannot be a lower: {error}")))
}

/// An open volume.
pub struct Disk {
    /// The file system.
    pub fs: Arc<Ext4>,
    /// Whose turn it is on the host's device.
    pub governor: Arc<Governor>,
    volume: Held,
}

impl Disk {
    /// Opens the volume that messages call `name`, cached and translated as told; replays its
    /// journal if need be.
    ///
    /// # Errors
    /// One line, and status 2 where the options cannot be had on this image.
    pub fn open(
        name: &str,
        parts: Parts,
        (cache, translation): (CacheSpec, Translation),
        clock: Arc<dyn Clock>,
        options: &Options,
    ) -> Result<Disk> {
        let governor = Governor::new();
        let volume = Held::open(name, parts, cache, translation, Some(governor.clone()))?;
        let fs = match Ext4::open(volume.device(), clock.clone(), options) {
            // A copy shares its blocks until it writes: its first change needs room.
            Err(error) if error.is_no_space() => {
                let data = DataMode::default();
                let options = Options { read_only: Some(NO_ROOM), data, ..options.clone() };
                Ext4::open(volume.device(), clock, &options).map_err(|_| error)
            }
            opened => opened,
        };
        let fs = fs.map_err(|error| match error {
            Error::Unjournaled(_) => {
                Failure::usage(format!("{name}: --journal-mode data: {error}"))
            }
            _ => Failure::failed(format!("{name}: cannot mount it: {error}")),
        })?;
        if !fs.read_only_reasons.is_empty() {
            say(format_args!("{name}: read only: {}", fs.read_only_reasons.join(", ")));
        }
        Ok(Disk { fs: Arc::new(fs), governor, volume })
    }

    /// Does what is asked for a copy of the volume; `settle` makes durable what the file system
    /// does not know yet.
    pub fn answer(
        &mut self,
        ask: Ask,
        fds: Vec<OwnedFd>,
        settle: impl FnOnce() -> Result<()>,
    ) -> Answer {
        self.volume.answer(ask, fds, settle)
    }

    /// How long the volume may stand still from now on; `None` when it does not.
    pub fn time_left(&self) -> Option<Duration> {
        self.volume.time_left()
    }

    /// Lets it go on, if it stood still.
    pub fn thaw(&mut self) {
        self.volume.thaw();
    }

    /// Marks the file system clean and lets go of the volume.
    ///
    /// # Errors
    /// The device's; the journal is then replayed by the next open.
    pub fn close(self) -> polylane_base::Result<()> {
        let Disk { fs, governor, volume } = self;
        let closed = fs.close();
        drop((fs, governor));
        volume.close();
        closed.map_err(Into::into)
    }

    /// Counters as JSON.
    pub fn stats(&self) -> serde_json::Value {
        let mut stats = self.volume.stats();
        stats["stopped"] = self.fs.is_stopped().into();
        stats
    }
}

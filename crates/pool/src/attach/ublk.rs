//! The `ublk` front end's kernel side: a device that the engine's queues serve.
//!
//! The command makes it and starts it once the engine serves. An engine opens it for itself, since
//! the driver takes its file for its server's life; when an engine has died, the keeper has the
//! driver wait for the next one and send it what the dead one left.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::thread;
use polylane_sys::ns::{self, Fork, Namespaces};
use polylane_sys::ublk::{CONTROL, Control, Geometry, State};
use rustix::fs::{Mode, OFlags};
use rustix::process::PidfdFlags;
use serde::{Deserialize, Serialize};

use super::device;
use super::message::{ENGINE_TIME_MAX, Shape};
use super::record::Record;
use crate::failure::{Failure, Result};
use crate::wait::wait_for;

/// How long the driver may take to notice that an engine is gone.
const NOTICE_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a dead engine may hold the device after its end was told: io_uring lets go of its files
/// on a thread of the kernel's own, which has to wait for a CPU as everybody. Less than an engine
/// may take to start.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(25);
const _: () = assert!(RELEASE_TIME_MAX.as_secs() < ENGINE_TIME_MAX.as_secs());

const SECTOR_BYTES: u64 = 512;

/// A device of the driver's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Device {
    /// Its number.
    pub(super) number: u32,
    /// Its queues.
    pub(super) queues: u16,
}

impl Device {
    /// How it is served.
    pub(super) fn geometry(self) -> Geometry {
        polylane_front::ublk::geometry(self.queues)
    }

    /// Opens it to serve it, once nobody else does.
    pub(super) fn open(self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let (path, start) = (format!("/dev/ublkc{}", self.number), Instant::now());
        loop {
            match rustix::fs::open(&path, flags, Mode::empty()) {
                Err(rustix::io::Errno::BUSY) if start.elapsed() < RELEASE_TIME_MAX => {
                    thread::sleep(Duration::from_millis(5));
                }
                result => return result,
            }
        }
    }
}

/// A line to the driver.
pub(super) fn open() -> Result<OwnedFd> {
    Control::open().map(|control| control.0).map_err(|error| match error {
        Errno::ENOENT => Failure::failed(format!("{CONTROL}: is not there (modprobe ublk_drv)")),
        Errno::EOPNOTSUPP => Failure::failed(format!(
            "{CONTROL}: this kernel's ublk cannot replace a server that died (Linux 6.5 can)"
        )),
        error => Failure::because(CONTROL, "ask what it can do", error),
    })
}

/// An attachment's id as the driver keeps it.
fn tag(id: &str) -> u64 {
    u64::from_str_radix(id, 16).unwrap_or(0)
}

/// Makes a device that nobody else sees yet.
pub(super) fn make(control: &OwnedFd, id: &str, queues: u16) -> Result<Device> {
    let geometry = polylane_front::ublk::geometry(queues);
    let number = Control(control).add(geometry, tag(id));
    let number = number.map_err(|error| Failure::because(CONTROL, "make a device", error))?;
    Ok(Device { number, queues })
}

/// Puts the device there, which an engine serves. `record` is told its path before that.
pub(super) fn engage(
    control: impl AsFd,
    made: Device,
    shape: Shape,
    mut record: impl FnMut(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let path = PathBuf::from(format!("/dev/ublkb{}", made.number));
    record(&path)?;
    let control = Control(control);
    let described = control.describe(made.number, made.geometry(), shape.sectors, shape.read_only);
    described
        .and_then(|()| control.start(made.number, shape.pid))
        .map_err(|error| Failure::path(&path, "start it", error))?;
    Ok(path)
}

/// Starts a process that stops the device when this one is killed: requests would wait for an
/// engine that nobody starts.
pub(super) fn guard(control: impl AsFd, made: Device, id: &str) -> Result<()> {
    let failed = |error: io::Error| Failure::because("attachment", "guard its device", error);
    let keeper = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
    let keeper = keeper.map_err(|error| failed(error.into()))?;
    match ns::fork(Namespaces::default()).map_err(failed)? {
        Fork::Parent(_) => Ok(()),
        Fork::Child => {
            let _ = rustix::thread::set_name(c"polylane-guard");
            let _ = ns::keep_only(&[keeper.as_fd(), control.as_fd()]);
            while !wait_for(keeper.as_fd(), Duration::from_secs(3600)) {}
            let control = Control(control);
            if control.state(made.number).is_ok_and(|(_, found)| found == tag(id)) {
                let _ = control.stop(made.number);
            }
            ns::exit_now(0)
        }
    }
}

/// Has the driver wait for another engine, after one has died.
pub(super) fn begin_recovery(control: impl AsFd, made: Device) -> Result<()> {
    let start = Instant::now();
    let control = Control(control);
    loop {
        match control.begin_recovery(made.number) {
            Err(Errno::EBUSY) if start.elapsed() < NOTICE_TIME_MAX => {
                thread::sleep(Duration::from_millis(5));
            }
            // The last engine did not get as far as to serve: the driver waits for one already.
            Err(Errno::EINVAL)
                if control.state(made.number).is_ok_and(|(state, _)| state == State::Quiesced) =>
            {
                return Ok(());
            }
            result => {
                return result.map_err(|error| Failure::because(CONTROL, "recover", error));
            }
        }
    }
}

/// Lets the device go on with an engine that serves; `engine` is its process.
pub(super) fn end_recovery(
    control: impl AsFd,
    made: Device,
    pid: u32,
    engine: impl AsFd,
) -> Result<()> {
    // The driver would not notice that a device that goes on with a dead one has lost it.
    if wait_for(engine.as_fd(), Duration::ZERO) {
        return Err(Failure::failed("engine: it ended before it was ready"));
    }
    let ended = Control(control).end_recovery(made.number, pid);
    ended.map_err(|error| Failure::because(CONTROL, "recover", error))
}

/// Gives the device's number back. Its engine is gone.
pub(super) fn remove(control: impl AsFd, made: Device) {
    let _ = Control(control).delete(made.number);
}

/// Takes the device of an attachment away, after what it holds was written.
///
/// # Errors
/// It is mounted or open exclusively.
pub(super) fn disengage(record: &Record) -> Result<()> {
    let Some((path, number)) = of(record) else { return Ok(()) };
    let control = Control(open()?);
    let Ok((state, found)) = control.state(number) else { return Ok(()) };
    if found != tag(&record.id) {
        // It went by itself; the number is somebody else's by now.
        return Ok(());
    }
    if state == State::Live {
        let opened = device::exclusively(path)?;
        // Of an engine that is dead for good nothing can be had; whoever lost data was told.
        let _ = rustix::fs::fsync(&opened);
    }
    match control.stop(number) {
        Ok(()) | Err(Errno::ENODEV) => Ok(()),
        Err(error) => Err(Failure::path(path, "take the volume off", error)),
    }
}

/// Gives the number of the device of an attachment back, whose keeper is dead.
pub(super) fn forget(record: &Record) {
    let Some((_, number)) = of(record) else { return };
    let Ok(control) = Control::open() else { return };
    if control.state(number).is_ok_and(|(_, found)| found == tag(&record.id)) {
        let _ = control.delete(number);
    }
}

/// Whether the device could take a new size over.
///
/// # Errors
/// The kernel cannot do that.
pub(super) fn may_grow(record: &Record) -> Result<()> {
    match Control(open()?).resizes() {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: this kernel's ublk devices have one size (Linux 6.16 can change it): detach it \
             first",
            record.volume.display()
        ))),
    }
}

/// The device takes the volume's new size over.
pub(super) fn grown(record: &Record) -> Result<()> {
    let Some((path, number)) = of(record) else { return Ok(()) };
    let size = fs::metadata(&record.volume)
        .map_err(|error| Failure::path(&record.volume, "look at it", error))?
        .len();
    let resized = Control(open()?).resize(number, size / SECTOR_BYTES);
    resized.map_err(|error| Failure::path(path, "give it the new size", error))
}

/// The device of an attachment: its path and number.
fn of(record: &Record) -> Option<(&Path, u32)> {
    let path = record.device.as_deref()?;
    Some((path, path.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()?))
}

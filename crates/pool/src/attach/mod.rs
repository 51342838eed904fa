//! Attachments: volumes as block devices of the kernel, or at a socket, served by a process of
//! their own. `docs/design/attach.md` has the drawing.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the commands: attach, detach |
//! | `list.rs` | the command list, and statistics |
//! | `arm.rs` | the table of front ends |
//! | `ublk.rs` | a device of the ublk driver's |
//! | `nbd.rs` | a device of the kernel's NBD client |
//! | `loopdev.rs` | a FUSE mount that is one file, under a loop device |
//! | `device.rs` | what these have in common |
//! | `keeper.rs` | the process that holds door and volume, and starts engines |
//! | `engine.rs` | the process that serves |
//! | `spec.rs` | what an engine is told |
//! | `message.rs` | what these say to each other |
//! | `served.rs` | an engine as its keeper sees it |
//! | `opened.rs` | what an attachment is on |
//! | `image.rs` | grows an image of a cluster |
//! | `share.rs` | an attachment's part of its device |
//! | `record.rs` | what is known of attachments in the state directory |
//! | `journals.rs` | where a volume's cache sees journals |

mod arm;
mod device;
pub mod engine;
mod image;
mod journals;
mod keeper;
mod list;
mod loopdev;
mod message;
mod nbd;
mod opened;
mod record;
mod served;
mod share;
mod spec;
mod ublk;

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_sys::scm;
use polylane_volume::SetOptions;
use serde::{Deserialize, Serialize};

use crate::ceph::ClusterOptions;
use crate::copying::{Copies, Target, Wish};
use crate::failure::{Failure, Result, say};
use crate::limits::CallerLimits;
use crate::link::Link;
use crate::names::{self, PoolName};
use crate::rbd::ImagePlace;
use crate::share::profile::Profile;
use crate::share::{Meeting, Policy, Wanted};
use crate::user_namespace::rootless;
use crate::wait::wait_for;
use arm::{Door, Place};
pub use image::resize_image;
pub use journals::{JournalMap, journals};
use keeper::Keeper;
pub(crate) use list::statistics;
pub use list::{Listed, list};
use message::{FromKeeper, ToKeeper};
use opened::Opened;
pub use record::Record;
use share::Share;
use spec::EngineSpec;

/// How long a keeper may take to make everything durable and end.
const STOP_TIME_MAX: Duration = Duration::from_secs(360);

/// How long a keeper that answers nothing any more may take to end.
const KEEPER_END_TIME_MAX: Duration = Duration::from_secs(30);

/// How long a keeper may take to answer a question.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(40);

/// A front end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Via {
    /// A block device of the kernel's ublk driver.
    Ublk,
    /// A block device of the kernel's NBD client.
    NbdDevice,
    /// An NBD server at a UNIX socket; without one, [`NbdDevice`](Via::NbdDevice) is meant.
    Nbd,
    /// A loop device on a file that FUSE makes of the volume.
    Loop,
    /// A vhost-user-blk server at a UNIX socket, for a virtual machine.
    VhostUser,
}

impl Via {
    /// Whether only this host's kernel writes to the volume, on behalf of root.
    fn is_kernels(self) -> bool {
        matches!(self, Via::Ublk | Via::NbdDevice | Via::Loop)
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Via::Ublk => "ublk",
            Via::NbdDevice | Via::Nbd => "nbd",
            Via::Loop => "loop",
            Via::VhostUser => "vhost-user",
        })
    }
}

/// The name under which a coordinator knows the attachment that `name` is: its device, its socket
/// or the volume.
pub(crate) fn share_name(name: &Path) -> Option<String> {
    let record = record::all(&record::dir().ok()?).into_iter().find(|record| record.is(name))?;
    Some(record.id)
}

/// What `attach` was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AttachOptions {
    /// The volume's file, or the name of an image of a cluster.
    pub volume: PathBuf,
    /// How its cluster is reached.
    pub cluster: ClusterOptions,
    /// The front end; the best that this host has, when absent.
    pub via: Option<Via>,
    /// Where to listen, for front ends that have a socket.
    pub socket: Option<PathBuf>,
    /// The kernel reads and writes the volume's file itself (`loop` alone). The volume cannot be
    /// copied meanwhile.
    pub passthrough: bool,
    /// How it is cached, where its sidecar shall not decide.
    pub cache: SetOptions,
    /// A file to write requests down in.
    pub record: Option<PathBuf>,
    /// What it is to have of its device.
    pub wanted: Wanted,
    /// How it shares its device.
    pub qos: Policy,
}

/// Attaches a volume; its device or socket.
///
/// # Errors
/// It is in use, the host lacks what the front end needs; nothing is left behind.
pub fn attach(options: &AttachOptions) -> Result<PathBuf> {
    // The caller's are not the engine's.
    CallerLimits::lift_for_lane()?;
    let made = make(options)?;
    tell(&made.link, &ToKeeper::Engaged)?;
    Ok(made.device)
}

/// An attachment that goes with its owner, however that ends.
#[derive(Debug)]
pub(crate) struct Held {
    made: Made,
    over: bool,
}

/// Attaches a volume for as long as the result lives.
///
/// # Errors
/// As [`attach`].
pub(crate) fn hold(options: &AttachOptions) -> Result<Held> {
    make(options).map(|made| Held { made, over: false })
}

impl Held {
    /// The device.
    pub(crate) fn device(&self) -> &Path {
        &self.made.device
    }

    /// Takes the device away and makes everything durable.
    ///
    /// # Errors
    /// The device is in use, or something could not be written.
    pub(crate) fn end(mut self) -> Result<()> {
        self.over = true;
        self.made.end()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.over
            && let Err(failure) = self.made.end()
        {
            say(failure);
        }
    }
}

/// An attachment whose keeper still ends with the one that made it.
#[derive(Debug)]
struct Made {
    id: String,
    device: PathBuf,
    link: Link,
    dir: PathBuf,
}

impl Made {
    fn end(&self) -> Result<()> {
        match record::all(&self.dir).into_iter().find(|record| record.id == self.id) {
            Some(record) => end(&self.dir, &record),
            None => Err(Failure::failed(format!(
                "{}: its keeper ended before it was told to",
                self.device.display()
            ))),
        }
    }
}

/// The front end that is meant.
fn front_end(options: &AttachOptions) -> Result<Via> {
    let via = match options.via {
        None if options.passthrough => Via::Loop,
        Some(Via::Nbd) if options.socket.is_none() => Via::NbdDevice,
        Some(via) => via,
        None => best(options)?,
    };
    if options.passthrough && via != Via::Loop {
        return Err(Failure::usage("--passthrough: only --via loop has it"));
    }
    if options.socket.is_some() && via.is_kernels() {
        return Err(Failure::usage(format!(
            "--socket: --via {via} makes a device and listens nowhere: leave it out, or use --via \
             nbd or vhost-user"
        )));
    }
    Ok(via)
}

fn make(options: &AttachOptions) -> Result<Made> {
    let (via, dir) = (front_end(options)?, record::made_dir()?);
    let opened = match ImagePlace::named(&options.volume)? {
        Some(place) => Opened::image(&place, options, &dir)?,
        None => Opened::file(options, via, &dir)?,
    };
    let Opened { path, handed, cache, translation, journals, bypass, image } = opened;
    let trace = options.record.as_deref().map(create_trace).transpose()?;
    // The file of a bypass volume holds none of it: the kernel cannot serve it by itself.
    let whole = if bypass.is_some() { &[][..] } else { &handed.volume[..] };
    let id = names::fresh_id("attachment")?;
    let share = match handed.volume.first().filter(|_| options.qos != Policy::None) {
        Some(files) => {
            let meeting = Meeting::of(&names::runtime_dir(), &files.plain)?;
            let profile = Profile::of(&meeting, &files.plain);
            Some(Share::Asked(meeting, Box::new(profile), options.wanted, options.qos))
        }
        None => None,
    };
    let lock = PoolName::take(&dir, &id)?;
    let place = Place { dir: &dir, id: &id };
    // From here on the keeper removes what has a name.
    let door = Door::open(via, options, place, whole, &cache);
    let door = door.inspect_err(|_| lock.remove_files())?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let record = Record { id: id.clone(), volume: path, via, device: None, pid: 0 };
    let keeper = Keeper {
        spec: EngineSpec {
            via,
            name,
            incarnation: 0,
            id: id.clone(),
            fuse: door.fuse,
            backing: door.backing,
            ublk: door.ublk,
            cache,
            translation,
            journals,
            bypass,
            image,
            shared: share.is_some(),
        },
        share,
        door,
        trace,
        handed,
        record,
        dir: dir.clone(),
        lock,
        copies: Copies::default(),
        relay: None,
        unanswered: None,
        helpers: Vec::new(),
    };
    let (link, door) = keeper::start(keeper)?;
    let device = engage(via, &id, &link, door)?;
    Ok(Made { id, device, link, dir })
}

/// A new file for requests. Lines are added at its end, by one engine after the other.
fn create_trace(path: &Path) -> Result<OwnedFd> {
    let file = fs::File::options().append(true).create_new(true).open(path);
    file.map(OwnedFd::from).map_err(|error| Failure::path(path, "make it", error))
}

/// The maker's side of a new attachment: its device.
fn engage(via: Via, id: &str, link: &Link, door: Door) -> Result<PathBuf> {
    let shape = match answer(link)? {
        FromKeeper::Serving(shape) => shape,
        other => return Err(unexpected(&other)),
    };
    let record = |device: &Path| tell(link, &ToKeeper::Engaging(device.to_path_buf()));
    arm::engage(via, id, &door, shape, record)
}

/// Says something to a keeper that it answers with `Done`.
fn tell(link: &Link, message: &ToKeeper) -> Result<()> {
    link.send(message, &[])
        .map_err(|error| Failure::because("attachment", "talk to its keeper", error))?;
    match answer(link)? {
        FromKeeper::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn answer(link: &Link) -> Result<FromKeeper> {
    match link.receive::<FromKeeper>() {
        Ok(Some((FromKeeper::Failed(line), _))) => Err(Failure::failed(line)),
        Ok(Some((answer, _))) => Ok(answer),
        _ => Err(Failure::failed("attachment: its keeper ended before the device was there")),
    }
}

fn unexpected(answer: &FromKeeper) -> Failure {
    Failure::failed(format!("attachment: its keeper answered {answer:?}"))
}

/// Asks the keeper of an attachment. `None` when there is none, or it does not answer.
fn ask(dir: &Path, id: &str, question: &ToKeeper, limit: Duration) -> Option<FromKeeper> {
    let link = Link::from_fd(scm::connect(&record::socket_of(dir, id)).ok()?);
    link.send(question, &[]).ok()?;
    if !wait_for(link.as_fd(), limit) {
        return None;
    }
    let answer = link.receive::<FromKeeper>().ok()??.0;
    if *question == ToKeeper::Stop {
        // The end of the line is the end of the keeper.
        let _ = wait_for(link.as_fd(), limit);
    }
    Some(answer)
}

/// Grows an attached volume, if this is one: its file, and the device under whoever uses it. The
/// file system on it is left to its own tools. `None`: it is not attached.
///
/// # Errors
/// It would shrink, or is on other volumes.
pub(crate) fn resize(volume: &Path, size: u64) -> Result<Option<()>> {
    let dir = record::dir()?;
    let Some(record) = record::all(&dir).into_iter().find(|record| record.is(volume)) else {
        return Ok(None);
    };
    arm::may_grow(&record)?;
    match ask(&dir, &record.id, &ToKeeper::Grow(size), ANSWER_TIME_MAX) {
        Some(FromKeeper::Done) => arm::grown(&record).map(Some),
        Some(FromKeeper::Failed(line)) => Err(Failure::failed(line)),
        _ => Ok(None),
    }
}

/// The line to the keeper of an attached volume, which was told what is wanted of `target`; `None`:
/// it is not attached.
pub(crate) fn copier(volume: &Path, wish: Wish, target: Target) -> Option<Link> {
    let dir = record::dir().ok()?;
    let record = record::all(&dir).into_iter().find(|record| record.is(volume))?;
    let link = Link::from_fd(scm::connect(&record::socket_of(&dir, &record.id)).ok()?);
    let question = match wish {
        Wish::Copy => ToKeeper::Copy(target),
        Wish::Rebase => ToKeeper::Rebase(target),
    };
    link.send(&question, &[]).ok()?;
    Some(link)
}

/// What a person calls the process that has an attached volume of this user open; `None`: it is not
/// attached. For `volume::name_holders_by`.
pub fn holder_name(volume: &Path) -> Option<String> {
    let dir = record::dir().ok()?;
    let record = record::all(&dir).into_iter().find(|record| record.is(volume))?;
    let device = record.device.filter(|_| PoolName::take_over(&dir, &record.id).is_err())?;
    Some(format!("its attachment {}, which 'polylane detach' ends", device.display()))
}

/// The best front end of this host: a block device of the kernel's, unless a socket is asked for.
fn best(options: &AttachOptions) -> Result<Via> {
    let found = choice();
    match (&options.socket, found.via) {
        (Some(_), _) => Ok(Via::Nbd),
        (None, Some(via)) => Ok(via),
        (None, None) => Err(Failure::failed(format!(
            "{}: no block device can be made of it here ({}): use --via nbd --socket PATH",
            options.volume.display(),
            found.lacking.last().map_or("", |(_, why)| why)
        ))),
    }
}

/// The front ends that make block devices of the kernel's, best first.
const DEVICES: [Via; 3] = [Via::Ublk, Via::NbdDevice, Via::Loop];

/// What `--via auto` takes here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    /// The best front end that makes block devices and lacks nothing.
    pub(crate) via: Option<Via>,
    /// The better ones, and what the host lacks for each.
    pub(crate) lacking: Vec<(Via, String)>,
}

/// See the result.
pub(crate) fn choice() -> Choice {
    choose(lacks)
}

fn choose(lacks: impl Fn(Via) -> Option<String>) -> Choice {
    let mut lacking = Vec::new();
    for via in DEVICES {
        match lacks(via) {
            None => return Choice { via: Some(via), lacking },
            Some(why) => lacking.push((via, why)),
        }
    }
    Choice { via: None, lacking }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.via {
            Some(via) => write!(f, "{via}")?,
            None => f.write_str("none")?,
        }
        for (via, why) in &self.lacking {
            write!(f, "; not {via}: {why}")?;
        }
        Ok(())
    }
}

/// What the host lacks for a front end that makes block devices; `None` when it has all.
pub(crate) fn lacks(via: Via) -> Option<String> {
    use rustix::fs::{Mode, OFlags};
    if rootless().is_some() {
        return Some("only root can make block devices".to_string());
    }
    let opens = |path: &str| {
        let opened = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        opened.err().map(|error| format!("{path}: {}", crate::failure::plain(&error.into())))
    };
    match via {
        Via::Ublk => ublk::open().err().map(|failure| failure.line),
        Via::NbdDevice => nbd::open().err().map(|failure| failure.line),
        Via::Loop => {
            [loopdev::CONTROL, crate::fuse_device::FUSE_DEVICE].into_iter().find_map(opens)
        }
        Via::Nbd | Via::VhostUser => None,
    }
}

/// Detaches what `name` is: a device, a socket or a volume.
///
/// # Errors
/// It is not attached, is in use, or could not be made durable.
pub fn detach(name: &Path) -> Result<()> {
    let dir = record::dir()?;
    let image = ImagePlace::named(name)?.map(|place| place.path());
    let name = image.as_deref().unwrap_or(name);
    let record = record::all(&dir).into_iter().find(|record| record.is(name));
    let record =
        record.ok_or_else(|| Failure::failed(format!("{}: is not attached", name.display())))?;
    end(&dir, &record)
}

/// Takes the device of an attachment away and has its keeper make everything durable and end.
fn end(dir: &Path, record: &Record) -> Result<()> {
    arm::disengage(record)?;
    match ask(dir, &record.id, &ToKeeper::Stop, STOP_TIME_MAX) {
        Some(FromKeeper::Done) => return Ok(()),
        Some(FromKeeper::Failed(line)) => return Err(Failure::failed(line)),
        _ => {}
    }
    // Its keeper is dead, or ends by itself since its device is gone.
    let start = Instant::now();
    loop {
        match PoolName::take_over(dir, &record.id) {
            Ok(Some(lock)) => {
                arm::forget(record);
                record.remove(dir, &lock);
                return Ok(());
            }
            Ok(None) => return Ok(()),
            Err(_) if start.elapsed() < KEEPER_END_TIME_MAX => {
                thread::sleep(Duration::from_millis(10));
            }
            Err(_) => {
                return Err(Failure::failed(format!(
                    "{}: process {} that keeps it does not answer",
                    record.volume.display(),
                    record.pid
                )));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_front_end_is_taken_and_the_better_ones_are_told() {
        let best = choose(|_| None);
        assert_eq!(best.to_string(), "ublk");
        let third = choose(|via| (via != Via::Loop).then(|| format!("no {via}")));
        assert_eq!(third.via, Some(Via::Loop));
        assert_eq!(third.to_string(), "loop; not ublk: no ublk; not nbd: no nbd");
        let none = choose(|_| Some("nothing".to_string()));
        assert_eq!((none.via, none.lacking.len()), (None, DEVICES.len()));
        assert!(none.to_string().starts_with("none; not ublk: nothing; "), "{none}");
    }
}

//! A copy of a volume in use, as the process sees it that holds the volume's files for good: the
//! supervisor of a pool, the keeper of an attachment. It stands between whoever makes the copy and
//! the process that serves the volume, and never waits for either.
//!
//! ```text
//!  copier             holder                       server
//!    Target ───────────►  ── Ask::Freeze ─────────────►  settles, drains, flushes
//!    ◄──── Told::Mine
//!    ◄──── Told::Done ◄──────────────── Copied(None)
//!    (copies)
//!    Step::Thaw ───────►  ── Ask::Thaw ───────────────►  goes on
//!    or Step::Exchange ►  exchanges the two names;
//!       (the new file)    ── Ask::Exchange, all files ►  goes on over the new stack
//!    ◄──── Told::Done ◄──────────────── Copied(None)
//! ```
//!
//! When snapshots under the volume have become one, it goes over to the files that there are now,
//! and need not stand still:
//!
//! ```text
//!    Target ───────────►
//!    ◄──── Told::Mine
//!    Step::Rebase ─────►  ── Ask::Rebase, new bases ──►  goes on over them
//!      (their files)
//!    ◄──── Told::Done ◄──────────────── Copied(None)
//! ```
//!
//! # Invariants
//!
//! - One copy at a time: a second copier is refused.
//! - A copier that goes away thaws the volume; so does a server that ends, and the server itself
//!   after a while ([`held`](polylane_volume::held)).
//! - Names are exchanged only while the volume stands still. From then on the holder has the new
//!   files: a server that could not go over to them is replaced by one that begins with them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_block::file::Files;
use polylane_block::image;
use polylane_volume::held::{Answer, Ask, FROZEN_TIME_MAX, files_of};
use polylane_volume::path_text;
use polylane_volume::{failure, sync_both};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use crate::build::Handed;
use crate::failure::{Failure, Result, say};
use crate::link::Link;

/// Names are not exchanged so shortly before the server goes on by itself.
const MARGIN: Duration = Duration::from_secs(5);

/// Descriptors of a file.
const FDS_EACH: usize = 3;

/// The volume that is to be copied: the host's numbers for its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    /// `st_dev`.
    pub(crate) device: u64,
    /// `st_ino`.
    pub(crate) inode: u64,
}

impl Target {
    /// That of an open file.
    pub(crate) fn of(file: impl AsFd) -> std::io::Result<Target> {
        let stat = rustix::fs::fstat(file)?;
        Ok(Target { device: stat.st_dev, inode: stat.st_ino })
    }

    /// Whether the path names it.
    pub(crate) fn is_at(self, path: &Path) -> bool {
        rustix::fs::stat(path)
            .is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (self.device, self.inode))
    }
}

/// What a copier says once the volume stands still.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Step {
    /// The copy is made: go on.
    Thaw,
    /// `base` names an empty overlay on this volume, whose descriptors come with it: exchange the
    /// names, and go on over both.
    Exchange {
        /// The volume's path.
        #[serde(with = "path_text::one")]
        volume: PathBuf,
        /// The new file's path.
        #[serde(with = "path_text::one")]
        base: PathBuf,
    },
    /// These are the files of its bases, base below base, with the same content as those before:
    /// go on over them.
    Rebase,
}

/// What somebody wants of a volume that is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// To copy it.
    Copy,
    /// To have it go over to other bases.
    Rebase,
}

/// What a copier is told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    /// Another volume is served here.
    NotMine,
    /// This is the volume; it is going to stand still.
    Mine,
    /// Done: it stands still, or goes on.
    Done,
    /// It is not done: the process that served the volume has ended.
    Ended,
    /// It is not done; one line says why.
    Failed(String),
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// New bases are to come.
    Awaiting,
    /// The server was asked to freeze ...
    Freezing,
    /// ... and did, then.
    Frozen(Instant),
    /// The server was asked to go on.
    Thawing,
    /// The holder has the new files; the server was asked to go on over them.
    Exchanging,
}

/// Whether there is more to come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Then {
    GoOn,
    Over,
    /// The server is to be killed: it would go on over the former files.
    Kill,
}

/// Asks the server for something; it answers with `Copied` later.
pub(crate) type Say<'a> = &'a dyn Fn(Ask, &[BorrowedFd<'_>]);

/// A copy under way.
#[derive(Debug)]
struct Copying {
    /// `None`: it went away.
    copier: Option<Link>,
    stage: Stage,
}

/// The place for a copy under way.
#[derive(Debug, Default)]
pub(crate) struct Copies(Option<Copying>);

impl Copies {
    /// The copier that is listened to.
    pub(crate) fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        let copying = self.0.as_ref()?;
        copying.copier.as_ref().map(AsFd::as_fd)
    }

    /// Begins a copy or a change of bases, if this is the volume that is served.
    pub(crate) fn begin(
        &mut self,
        copier: Link,
        (wish, target): (Wish, Target),
        handed: &Handed,
        server: Say<'_>,
    ) {
        let own = handed.volume.first().and_then(|files| Target::of(&files.plain).ok());
        let told = match own == Some(target) {
            false => Told::NotMine,
            true if self.0.is_some() => {
                Told::Failed("volume: is being copied by another command".to_string())
            }
            true => Told::Mine,
        };
        if copier.send(&told, &[]).is_ok() && told == Told::Mine {
            let stage = match wish {
                Wish::Rebase => Stage::Awaiting,
                Wish::Copy => {
                    server(Ask::Freeze, &[]);
                    Stage::Freezing
                }
            };
            self.0 = Some(Copying { copier: Some(copier), stage });
        }
    }

    /// Hears the copier, whose descriptor is readable.
    pub(crate) fn hear(&mut self, handed: &mut Handed, server: Say<'_>) {
        let Some(copying) = &mut self.0 else { return };
        if copying.hear(handed, server) == Then::Over {
            self.0 = None;
        }
    }

    /// Takes the server's answer in. True: it has to be killed, and another one started.
    pub(crate) fn answered(&mut self, answer: Answer, server: Say<'_>) -> bool {
        let then = self.0.as_mut().map_or(Then::GoOn, |copying| copying.answered(answer, server));
        if then != Then::GoOn {
            self.0 = None;
        }
        then == Then::Kill
    }

    /// The server has ended, and nothing stands still any more.
    pub(crate) fn server_ended(&mut self) {
        let Some(copying) = self.0.take() else { return };
        copying.tell(match copying.stage {
            // The next one begins with the new files.
            Stage::Exchanging => Told::Done,
            _ => Told::Ended,
        });
    }
}

impl Copying {
    fn tell(&self, told: Told) {
        if let Some(copier) = &self.copier {
            // One that is gone shows at its descriptor.
            let _ = copier.send(&told, &[]);
        }
    }

    fn hear(&mut self, handed: &mut Handed, server: Say<'_>) -> Then {
        let heard = self.copier.as_ref().and_then(|copier| copier.receive::<Step>().ok().flatten());
        match (heard, self.stage) {
            (Some((Step::Thaw, _)), Stage::Frozen(_)) => {
                server(Ask::Thaw, &[]);
                self.stage = Stage::Thawing;
            }
            (Some((Step::Exchange { volume, base }, fds)), Stage::Frozen(since)) => {
                match exchange(handed, &volume, &base, fds, since) {
                    Ok(()) => {
                        let fds: Vec<_> = handed.descriptors().collect();
                        server(Ask::Exchange, &fds);
                        self.stage = Stage::Exchanging;
                    }
                    Err(failure) => self.tell(Told::Failed(failure.line)),
                }
            }
            (Some((Step::Rebase, fds)), Stage::Awaiting) => {
                handed.volume.truncate(1);
                handed.volume.extend(files_of(fds));
                let fds: Vec<_> = handed.descriptors().skip(FDS_EACH).collect();
                server(Ask::Rebase, &fds);
                self.stage = Stage::Exchanging;
            }
            (_, Stage::Awaiting) => return Then::Over,
            // It is gone, or talks nonsense, which comes to the same.
            _ => {
                self.copier = None;
                if matches!(self.stage, Stage::Frozen(_)) {
                    server(Ask::Thaw, &[]);
                    self.stage = Stage::Thawing;
                }
            }
        }
        Then::GoOn
    }

    fn answered(&mut self, answer: Answer, server: Say<'_>) -> Then {
        match (self.stage, answer) {
            (Stage::Freezing, None) if self.copier.is_none() => {
                server(Ask::Thaw, &[]);
                self.stage = Stage::Thawing;
                Then::GoOn
            }
            (Stage::Freezing, None) => {
                self.stage = Stage::Frozen(Instant::now());
                self.tell(Told::Done);
                Then::GoOn
            }
            (Stage::Exchanging, Some(line)) => {
                say(format_args!("{line}: the process that serves it is started again"));
                self.tell(Told::Done);
                Then::Kill
            }
            (Stage::Frozen(_) | Stage::Awaiting, _) => Then::GoOn,
            (_, answer) => {
                self.tell(answer.map_or(Told::Done, Told::Failed));
                Then::Over
            }
        }
    }
}

/// Gives the file of a volume the name `base`, and the new file, an overlay on it, the volume's.
/// All of it or nothing.
fn exchange(
    handed: &mut Handed,
    volume: &Path,
    base: &Path,
    fds: Vec<OwnedFd>,
    since: Instant,
) -> Result<()> {
    let refuse = |why: &str| Failure::failed(format!("{}: {why}", volume.display()));
    let failed =
        |error: std::io::Error| Failure::path(volume, "exchange it for its overlay", error);
    let [top] = <[Files; 1]>::try_from(files_of(fds))
        .map_err(|_| refuse("its overlay came without its files"))?;
    let own = handed.volume.first().ok_or_else(|| refuse("has no file"))?;
    let named = Target::of(&own.plain).map_err(failed)?.is_at(volume)
        && Target::of(&top.plain).map_err(failed)?.is_at(base);
    if !named {
        return Err(refuse("is not the file that stands still"));
    }
    if since.elapsed() + MARGIN > FROZEN_TIME_MAX {
        return Err(refuse("does not stand still any more: the copy took too long"));
    }
    let read_only = image::reopen_read_only(own).map_err(|error| failure(volume, error))?;
    renameat_with(CWD, volume, CWD, base, RenameFlags::EXCHANGE)
        .map_err(|error| failed(error.into()))?;
    // Before anybody is told that something is durable in the new file.
    if let Err(error) = sync_both(volume, base) {
        say(error);
    }
    // From here on nobody writes to it.
    if let Err(error) = image::share(own) {
        say(failure(base, error));
    }
    handed.volume[0] = read_only;
    handed.volume.insert(0, top);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_volume::held::Ask;
    use std::cell::RefCell;

    fn handed(dir: &Path) -> (Handed, Target) {
        let files = image::Draft::new(&dir.join("v"), 1 << 20)
            .and_then(image::Draft::durable)
            .and_then(image::DurableDraft::publish);
        let handed = Handed { volume: vec![files.expect("volume")], ..Handed::default() };
        let target = Target::of(&handed.volume[0].plain).expect("stat");
        (handed, target)
    }

    fn told(link: &Link) -> Told {
        link.receive().expect("receive").expect("told").0
    }

    #[test]
    fn one_copier_at_a_time_and_none_of_another_volume() {
        let dir = tempfile::tempdir().expect("dir");
        let (mut handed, target) = handed(dir.path());
        let asked = RefCell::new(Vec::new());
        let server = |ask, fds: &[BorrowedFd<'_>]| asked.borrow_mut().push((ask, fds.len()));
        let mut copies = Copies::default();
        let (other, end) = Link::pair().expect("pair");
        let stranger = Target { inode: target.inode + 1, ..target };
        copies.begin(end, (Wish::Copy, stranger), &handed, &server);
        assert_eq!(told(&other), Told::NotMine);
        let (copier, end) = Link::pair().expect("pair");
        copies.begin(end, (Wish::Copy, target), &handed, &server);
        assert_eq!(told(&copier), Told::Mine);
        let (second, end) = Link::pair().expect("pair");
        copies.begin(end, (Wish::Copy, target), &handed, &server);
        assert!(matches!(told(&second), Told::Failed(line) if line.contains("another command")));
        assert!(!copies.answered(None, &server));
        assert_eq!(told(&copier), Told::Done);
        copier.send(&Step::Thaw, &[]).expect("send");
        copies.hear(&mut handed, &server);
        assert!(!copies.answered(None, &server));
        assert_eq!(told(&copier), Told::Done);
        assert!(copies.0.is_none());
        assert_eq!(*asked.borrow(), [(Ask::Freeze, 0), (Ask::Thaw, 0)]);
    }

    #[test]
    fn a_copier_that_goes_away_thaws_before_and_after_the_freeze() {
        let dir = tempfile::tempdir().expect("dir");
        let (mut handed, target) = handed(dir.path());
        for early in [true, false] {
            let asked = RefCell::new(Vec::new());
            let server = |ask, _: &[BorrowedFd<'_>]| asked.borrow_mut().push(ask);
            let mut copies = Copies::default();
            let (copier, end) = Link::pair().expect("pair");
            copies.begin(end, (Wish::Copy, target), &handed, &server);
            if early {
                drop(copier);
                copies.hear(&mut handed, &server);
                copies.answered(None, &server);
            } else {
                copies.answered(None, &server);
                drop(copier);
                copies.hear(&mut handed, &server);
            }
            assert_eq!(*asked.borrow(), [Ask::Freeze, Ask::Thaw]);
            assert!(copies.as_fd().is_none());
            copies.answered(None, &server);
            assert!(copies.0.is_none(), "a new copy may begin");
        }
    }

    #[test]
    fn an_exchange_is_of_the_files_it_names_and_a_server_that_refuses_is_replaced() {
        let dir = tempfile::tempdir().expect("dir");
        let (mut handed, target) = handed(dir.path());
        let (volume, base) = (dir.path().join("v"), dir.path().join("base"));
        let top = image::Draft::new(&base, 1 << 20)
            .and_then(image::Draft::durable)
            .and_then(image::DurableDraft::publish)
            .expect("top");
        let asked = RefCell::new(Vec::new());
        let server = |ask, fds: &[BorrowedFd<'_>]| asked.borrow_mut().push((ask, fds.len()));
        let mut copies = Copies::default();
        let (copier, end) = Link::pair().expect("pair");
        copies.begin(end, (Wish::Copy, target), &handed, &server);
        copies.answered(None, &server);
        assert_eq!((told(&copier), told(&copier)), (Told::Mine, Told::Done));
        let fds = [top.io.as_fd(), top.plain.as_fd(), top.lock.as_fd()];
        let wrong = Step::Exchange { volume: base.clone(), base: volume.clone() };
        copier.send(&wrong, &fds).expect("send");
        copies.hear(&mut handed, &server);
        assert!(matches!(told(&copier), Told::Failed(line) if line.contains("not the file")));
        let right = Step::Exchange { volume: volume.clone(), base: base.clone() };
        copier.send(&right, &fds).expect("send");
        copies.hear(&mut handed, &server);
        assert!(target.is_at(&base) && !target.is_at(&volume));
        assert_eq!(asked.borrow().last(), Some(&(Ask::Exchange, 6)));
        assert!(copies.answered(Some("no".to_string()), &server), "to be killed");
        assert_eq!(told(&copier), Told::Done);
        assert!(rustix::io::write(&handed.volume[1].plain, b"x").is_err(), "read only");
        image::open_shared(&base).expect("shared by all who are on it");
        assert!(image::open(&base).is_err() && image::open(&volume).is_err());
    }
}

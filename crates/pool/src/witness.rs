//! The witness: a child of the supervisor that looks at processes for the service.
//!
//! The service is confined and sees no `/proc`. What it must know of a client's process before it
//! lets it in (`polylane_front::witness`) this child reads there. It answers from the kernel's
//! files, and from what a client sent with its connection, which children of its own (`closer`)
//! receive and close in the service's place. It ends with the service, whose end of the line is the
//! only one.
//!
//! Where the service has a user namespace of its own (`own_ids`), the users of clients have no
//! numbers there: of a connection that it shows, the witness tells whose it is.
//!
//! A service that was taken over can have any process of the host looked at: it learns whether that
//! one is confined, and nothing of what it does.

mod account;
mod asker;
mod attend;
mod closer;
mod crew;
mod late;
mod other_mounts;
mod owners;
mod status;

use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use polylane_base::sync::Arc;
use polylane_front::witness::{Refusal, Shows};
use polylane_sys::event;
use polylane_sys::notice::Notice;
use polylane_sys::ns::{self, Fork, Namespaces};
use polylane_sys::scm::{self, Identity};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::Rlimit;
use serde::{Deserialize, Serialize};

use self::account::Account;
pub(crate) use self::asker::Asker;
use self::attend::attend;
use self::closer::Said;
use self::crew::{Crew, Hired};
pub(crate) use self::late::Late;
use self::other_mounts::{Awaited, Found, FoundWords, OtherMounts};
use self::status::{Status, THREADS_MAX};
use crate::link::Link;
use crate::mount_table::is_plain;
use crate::process::{self, Process};
use crate::service_line::ServiceLine;
use crate::spec::PoolSpec;
use crate::wait::wait_for;

/// How long a witness may take to end when the service has. It never waits for a client.
const ENDED_TIME_MAX: Duration = Duration::from_secs(1);

/// How long a closer may take to begin.
const BEGIN_TIME_MAX: Duration = Duration::from_secs(1);

/// Most processes that are looked at for the first of a namespace.
const PROCESSES_MAX: usize = 4096;

/// Namespaces of process numbers lie in each other at most that deep (`MAX_PID_NS_LEVEL`).
const NUMBERS_DEPTH_MAX: u32 = 32;

/// What the service asks; with a connection alone, whose it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Question {
    /// Names the answer.
    number: u64,
    /// The process, as supervisor and service see it.
    pid: u32,
    /// Who connected, by the same numbers as the answer to a connection has: it is to be that one
    /// still.
    #[serde(default)]
    who: Option<Who>,
    /// This thread, as the tenant sees it: whether it is one of the process's. `None`: what the
    /// process is.
    thread: Option<u32>,
    /// The process's connection comes with the question, in which its hello waits with the lane's
    /// root, as it opened it, and perhaps a file that it made there: what it sees of the lane.
    #[serde(default)]
    attaches: bool,
    /// The page that tells of the tenant's mounts is to come with the answer, if the process is at
    /// home.
    #[serde(default)]
    page: bool,
    /// What to do with a connection; there is no answer.
    #[serde(default)]
    closing: Option<Closing>,
}

impl Question {
    /// About nothing yet.
    fn none(number: u64) -> Question {
        Question {
            number,
            pid: 0,
            who: None,
            thread: None,
            attaches: false,
            page: false,
            closing: None,
        }
    }
}

/// How a client's connection is closed in which unread descriptors may be: by who alone holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Closing {
    /// The connection comes with the question, and is to be kept.
    Keep,
    /// The service has let go of the connection that came with this number.
    Close,
}

/// User, group and other groups.
type Who = (u32, u32, Vec<u32>);

/// What the witness answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Answer {
    /// The question's.
    number: u64,
    /// The process, as the tenant sees it; `None`: there is none.
    seen: Option<u32>,
    /// It is confined beyond the init, or has other mounts or other numbers of processes.
    apart: bool,
    /// It is apart by its mounts, its root or its numbers of processes, users and groups alone.
    #[serde(default)]
    elsewhere: bool,
    /// The thread is one of it.
    has_thread: bool,
    /// What it sees of the lane. The page that tells of mounts comes with the answer.
    #[serde(default)]
    sees: Option<Sees>,
    /// User, group and other groups of the other end of the connection.
    #[serde(default)]
    identity: Option<Who>,
    /// Why it has no session by what it showed.
    #[serde(default)]
    refused: Option<Refusal>,
}

/// What a process sees of the lane: see [`Seen`](polylane_front::witness::Seen).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Sees {
    node: u64,
    read_only: bool,
    confined: bool,
    #[serde(default)]
    shows_made: bool,
    made: Option<u64>,
    other_numbers: bool,
    /// [`Owners`](polylane_ipc::owners::Owners) as bytes.
    owners: Option<Vec<u8>>,
}

/// Most supplementary groups of a client that are told: as many as fit into a message.
const GROUPS_MAX: usize = 4096;

impl Answer {
    fn none(number: u64) -> Answer {
        Answer {
            number,
            seen: None,
            apart: true,
            elsewhere: false,
            has_thread: false,
            sees: None,
            identity: None,
            refused: None,
        }
    }
}

/// The tenant that a witness compares processes with.
struct Tenant {
    place: Place,
    /// Where its lane is, to it.
    lane: Vec<u8>,
    /// Its mounts.
    mounts: Option<Mounts>,
    /// Mounts of processes that see the lane elsewhere.
    others: OtherMounts,
    /// Tells the service that a notice may have changed.
    changes: OwnedFd,
    /// Waited for by the first process, which tells of its mounts at once from then on.
    at_home: Option<OwnedFd>,
}

/// What of a tenant does not change.
#[derive(Clone)]
struct Place {
    /// Its first process.
    init: u32,
    /// What was mounted in its lane from the first.
    covered: Vec<Vec<u8>>,
    /// The lane's device, as it was when it was mounted.
    device: Option<String>,
    /// Its mounts can be id-mapped: there the kernel alone knows users, and there is no session.
    id_maps: bool,
}

/// The tenant's mounts, and what is told of them.
struct Mounts {
    table: Arc<File>,
    notice: Notice,
    page: OwnedFd,
}

impl Mounts {
    fn of(init: u32) -> Option<Mounts> {
        let table = Arc::new(File::open(format!("/proc/{init}/mountinfo")).ok()?);
        let space = fs::metadata(format!("/proc/{init}/ns/mnt")).ok()?.ino();
        let (notice, page) = Notice::unnamed(space).ok()?;
        Some(Mounts { table, notice, page })
    }

    fn has_changed(&self) -> bool {
        let mut fds = [PollFd::new(&*self.table, PollFlags::PRI)];
        rustix::event::poll(&mut fds, Some(&Timespec::default())) != Ok(0)
    }
}

impl Tenant {
    /// Of a pool whose first process is `init`.
    fn new(init: u32, spec: &PoolSpec, changes: OwnedFd) -> Tenant {
        let (lane, covered) = (spec.mount_path.clone(), spec.covered.clone());
        let others = OtherMounts::beside(covered.clone());
        let (device, id_maps) = (spec.device.clone(), spec.id_maps);
        let place = Place { init, covered, device, id_maps };
        Tenant { place, lane, mounts: None, others, changes, at_home: None }
    }

    /// Whether its lane is as it was made: see [`is_plain`]. The table is read when it has changed;
    /// from the first look on it is watched.
    fn is_plain(&mut self) -> bool {
        // Before the look: what is mounted after it is told by both.
        self.at_home.take().iter().for_each(event::notify);
        let is_new = self.mounts.is_none();
        if is_new {
            self.mounts = Mounts::of(self.place.init);
        }
        if is_new || self.mounts.as_ref().is_some_and(Mounts::has_changed) {
            self.look();
            event::notify(&self.changes);
        }
        self.mounts.as_ref().is_some_and(|mounts| !mounts.notice.is_changed())
    }

    /// Reads its table, and tells whether the lane is as it was made.
    fn look(&self) {
        let Some(Mounts { table, notice, .. }) = &self.mounts else { return };
        let plain = other_mounts::read(table)
            .is_some_and(|table| is_plain(&table, &self.lane, &self.place.covered));
        notice.tell(!plain);
    }

    /// The page that tells of its mounts, which are watched from now on.
    fn page(&self) -> Option<OwnedFd> {
        self.mounts.as_ref().and_then(|mounts| mounts.page.try_clone().ok())
    }

    /// What a process sees of the lane that shows its root, and the page that tells of mounts
    /// there, which are watched for that account from now on.
    fn attach(
        &mut self,
        account: Account,
        question: &Question,
        sight: Sight,
        found: Option<Found>,
    ) -> (Answer, Option<OwnedFd>) {
        let none = Answer::none(question.number);
        let device = self.place.device.clone().unwrap_or_default().into_bytes();
        let who = (question.pid, account);
        let seen = found.and_then(|found| self.others.see(who, found, &device));
        // To see one is to look at all.
        event::notify(&self.changes);
        match seen {
            None => (Answer { refused: Some(Refusal::Mounts), ..none }, None),
            Some(seen) => {
                let Sight { number, mut sees, .. } = sight;
                (sees.node, sees.read_only) = (seen.node, seen.read_only);
                let seen_as = Some(number);
                let answer = Answer { seen: seen_as, elsewhere: true, sees: Some(sees), ..none };
                (answer, Some(seen.page))
            }
        }
    }

    /// It has ended.
    fn end(&mut self) {
        if let Some(mounts) = self.mounts.take() {
            mounts.notice.tell(true);
        }
        self.others = OtherMounts::default();
        event::notify(&self.changes);
    }

    /// What a wait for changes waits for.
    fn awaited(&self) -> Vec<Awaited> {
        let own = self.mounts.iter().map(|mounts| Awaited::Table(mounts.table.clone()));
        own.chain(self.others.awaited()).collect()
    }

    /// Looks at what has changed: `ready` are those of [`awaited`](Self::awaited) that were.
    fn wake(&mut self, ready: &[Awaited]) {
        if self.mounts.as_ref().is_some_and(|own| ready.iter().any(|one| one.is(&own.table))) {
            self.look();
        }
        self.others.wake(ready);
        event::notify(&self.changes);
    }
}

/// As many descriptors as may be: those that are closed can be kept by a client's file system.
fn raise_files() {
    let files = rustix::process::Resource::Nofile;
    let limit = rustix::process::getrlimit(files);
    let _ = rustix::process::setrlimit(files, Rlimit { current: limit.maximum, ..limit });
}

/// What a service gets of its witness.
pub(crate) struct Ends {
    /// Its end of the line.
    pub(crate) line: Link,
    /// Becomes readable when a notice may have changed.
    pub(crate) changes: OwnedFd,
}

/// Starts a witness for a pool whose first process is `init`. `at_home`: see
/// [`Supervisor`](crate::supervise::Supervisor).
pub(crate) fn start(
    init: u32,
    spec: &PoolSpec,
    at_home: Option<&OwnedFd>,
) -> std::io::Result<(Process, Ends)> {
    let (mut waiting, ends) = Waiting::of(init, spec)?;
    waiting.tenant.at_home = at_home.map(OwnedFd::try_clone).transpose()?;
    Ok((waiting.start()?, ends))
}

/// A witness that has no process yet: it needs none before it is asked something.
pub(crate) struct Waiting {
    line: ServiceLine,
    tenant: Tenant,
}

impl Waiting {
    /// For a lane of a pool whose first process is `init`.
    pub(crate) fn of(init: u32, spec: &PoolSpec) -> std::io::Result<(Waiting, Ends)> {
        let (own, line) = Link::pair()?;
        asker::limit(&line)?;
        let changes = event::eventfd()?;
        let tenant = Tenant::new(init, spec, changes.try_clone()?);
        Ok((Waiting { line: ServiceLine::new(own), tenant }, Ends { line, changes }))
    }

    /// Starts its process.
    fn start(self) -> std::io::Result<Process> {
        let Waiting { line, tenant } = self;
        match ns::fork(Namespaces::default())? {
            Fork::Child => {
                let Some(own) = line.into_link() else { ns::exit_now(1) };
                let _ = rustix::thread::set_name(c"polylane-look");
                // Out of reach of the terminal's and the user's signals.
                let _ = rustix::process::setpgid(None, None);
                let kept = [own.as_fd(), tenant.changes.as_fd()].into_iter();
                let kept: Vec<_> = kept.chain(tenant.at_home.iter().map(AsFd::as_fd)).collect();
                let _ = ns::keep_only(&kept);
                raise_files();
                let place = tenant.place.clone();
                attend(tenant, own, Crew::new(move || hire(&place)));
                ns::exit_now(0)
            }
            Fork::Parent(child) => {
                drop(line.into_link());
                Ok(Process::ends_within(child, ENDED_TIME_MAX))
            }
        }
    }
}

/// Starts a closer, in a witness that has one thread. It comes back when the closer has closed what
/// it got of the witness's descriptors: as long as the witness has them, no such close is the last.
fn hire(place: &Place) -> Option<Hired> {
    let (own, other) = Link::pair().ok()?;
    match ns::fork(Namespaces::default()).ok()? {
        Fork::Child => {
            let _ = rustix::thread::set_name(c"polylane-close");
            // With descriptors of the witness's no close here would be the last (see above).
            if ns::keep_only(&[other.as_fd()]).is_err() {
                ns::exit_now(1);
            }
            // What can wait for ever keeps no directory of the caller's, nor its terminal.
            let _ = rustix::process::chdir("/");
            if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
                let _ = rustix::stdio::dup2_stdin(&null);
                let _ = rustix::stdio::dup2_stdout(&null);
                let _ = rustix::stdio::dup2_stderr(&null);
            }
            closer::work(&other, place);
            ns::exit_now(0)
        }
        Fork::Parent(child) => {
            drop(other);
            let process = Process::new(child);
            let begun = wait_for(own.as_fd(), BEGIN_TIME_MAX)
                && matches!(own.receive::<Said>(), Ok(Some((Said::Ready, _))));
            if begun {
                return Some(Hired { line: own, process: Some(process) });
            }
            process.kill();
            process.release();
            None
        }
    }
}

/// Whose a connection is.
fn identify(socket: BorrowedFd<'_>, number: u64) -> Answer {
    let identity = scm::identity(socket).ok().filter(|one| one.groups.len() <= GROUPS_MAX);
    let identity = identity.map(|Identity { uid, gid, groups }| (uid, gid, groups));
    Answer { identity, ..Answer::none(number) }
}

/// Whether the thread is one of the process, by their numbers in the tenant and here.
fn has_thread(init: u32, question: &Question) -> bool {
    let Some(thread) = question.thread else { return false };
    let pid = question.pid;
    let process = File::open(format!("/proc/{init}/ns/pid"))
        .and_then(|namespace| ns::process_of(&namespace, thread));
    match process {
        Ok(process) => process == pid,
        // A kernel that does not say it.
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
            let depth = Status::of(init, init).map(|first| first.depth());
            let all = status::threads(pid).take(THREADS_MAX);
            let mut all = all.filter_map(|id| Status::of(pid, id));
            depth.is_some_and(|depth| all.any(|one| one.numbers.get(depth) == Some(&thread)))
        }
        Err(_) => false,
    }
}

/// What `/proc` says of a process beside its tenant's first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Stand {
    /// Its number as the tenant sees it.
    seen: u32,
    /// It has the tenant's mounts, root and numbers of processes: those of holders of locks, which
    /// it is told, are the tenant's.
    same: bool,
    other_owners: bool,
    /// Less than its user.
    less: bool,
    confined: bool,
    /// It may be confined, which does not show.
    hidden: bool,
}

impl Stand {
    fn of(init: u32, pid: u32, who: &Who) -> Result<Stand, Refusal> {
        let Both { first, it } = Both::of(init, pid, who)?;
        let seen = it.number_at(first.depth()).ok_or(Refusal::Processes)?;
        let is_same = |which| is_same(which, pid, init);
        let same = is_same("ns/mnt") && is_same("root") && is_same("ns/pid");
        let (other_owners, less) = (!is_same("ns/user"), it.is_less_than_its_user());
        let (confined, hidden) = (it.is_confined_beyond(&first), it.may_be_confined());
        Ok(Stand { seen, same, other_owners, less, confined, hidden })
    }

    /// Whether it is apart, and whether it is so by what it sees alone. `is_plain`: whether the
    /// lane is as it was made; asked last, for who is let in.
    fn apart(self, is_plain: impl FnOnce() -> bool) -> (bool, bool) {
        let Stand { same, other_owners, less, confined, hidden, .. } = self;
        let plain = same && is_plain();
        let apart = other_owners || less || confined || hidden || !plain;
        (apart, !less && (other_owners || !plain || hidden && !confined))
    }
}

/// What a process that shows the lane's root is, and sees of the lane.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Sight {
    /// Its number as the tenant sees it.
    number: u32,
    sees: Sees,
    found: FoundWords,
}

impl Sight {
    /// With it come descriptors of the process and of its table of mounts. Can wait for whatever
    /// file systems that is of which it shows.
    fn of(
        place: &Place,
        question: &Question,
        shows: &Shows<'_>,
    ) -> Result<(Sight, [OwnedFd; 2]), Refusal> {
        let (init, pid) = (place.init, question.pid);
        let device = place.device.as_ref().ok_or(Refusal::Mounts);
        let who = question.who.as_ref().ok_or(Refusal::Unknown)?;
        let Both { first, it } = Both::of(init, pid, who)?;
        let other_numbers = !is_same("ns/pid", pid, init);
        // Of a namespace beside the tenant's no number is known.
        if other_numbers && !numbers_lie_below(pid, init) {
            return Err(Refusal::Processes);
        }
        if it.is_less_than_its_user() {
            return Err(Refusal::Confined);
        }
        let owners = match is_same("ns/user", pid, init) {
            true => None,
            // The tenant's root in a namespace of its own has capabilities for no one else: the
            // lane takes it for root.
            false if it.user == 0 => return Err(Refusal::Users),
            false => Some(owners::of(pid, init).ok_or(Refusal::Users)?.to_bytes()),
        };
        let confined = it.is_confined_beyond(&first);
        // The first process of a container has what its runtime confines it by, as what runs in it
        // has.
        let beside = if other_numbers { first_beside(pid) } else { None };
        if confined && beside.is_none_or(|beside| it.is_confined_beyond(&beside)) {
            return Err(Refusal::Confined);
        }
        let confined = confined || it.may_be_confined();
        let found = Found::of(pid, shows.root, device?.as_bytes(), &place.covered);
        let (found, fds) = found.ok_or(Refusal::Mounts)?.into_parts();
        let shows_made = shows.made.is_some();
        let made = shows.made.and_then(|made| other_mounts::made_in(found.mount, made));
        let (node, read_only) = (found.node, found.read_only);
        let sees = Sees { node, read_only, confined, shows_made, made, other_numbers, owners };
        let number = it.number_at(first.depth()).ok_or(Refusal::Processes)?;
        Ok((Sight { number, sees, found }, fds))
    }
}

/// Whether a process has process numbers of a namespace below that of another.
fn numbers_lie_below(pid: u32, other: u32) -> bool {
    let inode = |file: &File| file.metadata().map(|metadata| metadata.ino());
    let open = |pid| File::open(format!("/proc/{pid}/ns/pid"));
    let (Ok(other), mut next) = (open(other).and_then(|file| inode(&file)), open(pid)) else {
        return false;
    };
    for _ in 0..NUMBERS_DEPTH_MAX {
        next = next.and_then(|file| ns::parent_namespace(&file)).map(File::from);
        match next.as_ref().map(inode) {
            Ok(Ok(found)) if found == other => return true,
            Ok(Ok(_)) => {}
            _ => return false,
        }
    }
    false
}

/// The first process of the namespace of process numbers that a process is in.
fn first_beside(pid: u32) -> Option<Status> {
    let namespace = File::open(format!("/proc/{pid}/ns/pid")).ok()?;
    match ns::process_of(&namespace, 1) {
        Ok(first) => Status::of(first, first),
        // A kernel that does not say it.
        Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
            let mut all = process::pids().take(PROCESSES_MAX);
            all.find_map(|other: u32| {
                let status = Status::of(other, other)?;
                let is_first = status.numbers.last() == Some(&1);
                (is_first && is_same("ns/pid", pid, other)).then_some(status)
            })
        }
        Err(_) => None,
    }
}

/// Whether two processes have the same namespace (`ns/KIND`) or the same `root`.
fn is_same(which: &str, pid: u32, other: u32) -> bool {
    let link = |pid| fs::read_link(format!("/proc/{pid}/{which}")).ok();
    link(pid).is_some_and(|one| link(other) == Some(one))
}

/// A process and the tenant's first.
struct Both {
    first: Status,
    it: Status,
}

impl Both {
    /// As they are now; the process is to be who connected.
    fn of(init: u32, pid: u32, who: &Who) -> Result<Both, Refusal> {
        let first = Status::of(init, init).ok_or(Refusal::Unknown)?;
        let it = Status::of_all(pid)?;
        match it.is(who) {
            true => Ok(Both { first, it }),
            false => Err(Refusal::Changed),
        }
    }
}

#[cfg(test)]
mod tests {
    use polylane_base::Errno;
    use polylane_front::witness::{Client, Looks, Standing, Witness};

    use super::*;

    /// What this process sees mounted below its root.
    fn everything() -> Vec<Vec<u8>> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let places = table.lines().filter_map(|line| line.split(' ').nth(4));
        places.map(|place| place.as_bytes()[1..].to_vec()).filter(|one| !one.is_empty()).collect()
    }

    /// Closers that are threads: the test's process has more than one.
    fn closers(init: u32) -> Crew {
        Crew::new(move || {
            let (line, other) = Link::pair().ok()?;
            let place = Place { init, covered: Vec::new(), device: None, id_maps: false };
            std::thread::spawn(move || closer::work(&other, &place));
            let begun = matches!(line.receive(), Ok(Some((Said::Ready, _))));
            begun.then_some(Hired { line, process: None })
        })
    }

    #[test]
    fn a_witness_tells_what_a_process_is_and_which_threads_it_has() {
        let (own, other) = Link::pair().unwrap();
        let me = std::process::id();
        let (stop, line) = (own.as_fd().try_clone_to_owned().unwrap(), own);
        // Where nothing but the root is mounted, or can be.
        let (lane, others) = (b"/".to_vec(), OtherMounts::default());
        let (covered, device) = (everything(), None);
        let place = Place { init: me, covered, device, id_maps: false };
        let changes = event::eventfd().unwrap();
        let tenant = Tenant { place, lane, mounts: None, others, changes, at_home: None };
        let witness = std::thread::spawn(move || attend(tenant, line, closers(me)));
        let (asker, parent) = (Asker::new(other, None, true), std::os::unix::process::parent_id());
        let is_root = rustix::process::geteuid().is_root();
        let (connected, _other) = scm::pair().unwrap();
        let identity = scm::identity(&connected).unwrap();
        let look = |pid, identity: &Identity| asker.look(Client { pid, identity });
        let looks = look(me, &identity).unwrap();
        assert!(
            looks.number == me
                && (looks == Looks { number: me, standing: Standing::AtHome } || is_root)
        );
        assert!(asker.has_thread(me, me));
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            let _ = wait.recv();
        });
        let thread = told.recv().unwrap();
        assert!(asker.has_thread(me, thread));
        assert!(!asker.has_thread(parent, thread) && !asker.has_thread(me, parent));
        assert_eq!(look(0, &identity), Err(Refusal::Unknown));
        let mut other = identity.clone();
        other.groups.push(123_456);
        let ids = (identity.uid + 1, identity.gid + 1);
        for other in [
            Identity { uid: ids.0, ..identity.clone() },
            Identity { gid: ids.1, ..identity.clone() },
            other,
        ] {
            assert_eq!(look(me, &other), Err(Refusal::Changed), "{other:?}");
        }
        let told = asker.identity(connected.as_fd()).unwrap();
        assert_eq!(told, Some(identity.clone()), "a user has one number here");
        let (file, _) = std::io::pipe().unwrap();
        assert_eq!(asker.identity(file.as_fd()), Err(Errno::EACCES), "no connection");
        drop(end);
        rustix::net::shutdown(&stop, rustix::net::Shutdown::Both).unwrap();
        witness.join().unwrap();
        // Without an answer no thread is known to be of the process.
        assert_eq!(look(me, &identity), Err(Refusal::Unknown));
        assert!(!asker.has_thread(me, me));
        assert_eq!(asker.identity(connected.as_fd()), Err(Errno::EACCES));
    }
}

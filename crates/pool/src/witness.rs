//! The witness: a child of the supervisor that looks at processes for the service.
//!
//! The service is confined and sees no `/proc`. What it must know of a client's process before it
//! lets it in (`polylane_front::witness`) this child reads there. It holds nothing else, answers
//! from the kernel's files alone, and ends with the service, whose end of the line is the only one.
//!
//! Where the service has a user namespace of its own (`own_ids`), the users of clients have no
//! numbers there: of a connection that it shows, the witness tells whose it is.
//!
//! A service that was taken over can have any process of the host looked at: it learns whether that
//! one is confined, and nothing of what it does.

mod other_mounts;
mod owners;

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use polylane_base::Errno;
use polylane_base::sync::atomic::{AtomicU64, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_front::witness::{Looks, Refusal, Seen, Shows, Standing, Witness};
use polylane_ipc::owners::Owners;
use polylane_sys::ns::{self, Fork, Namespaces};
use polylane_sys::scm::{self, Identity};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use self::other_mounts::OtherMounts;
use crate::link::Link;
use crate::mount_table::is_plain;
use crate::process::Process;
use crate::spec::PoolSpec;

/// How long an answer may take: this process reads a few small files.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// Namespaces of process numbers lie in each other at most that deep (`MAX_PID_NS_LEVEL`).
const NUMBERS_DEPTH_MAX: u32 = 32;

/// What the service asks; with a connection, whose it is, and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Question {
    /// Names the answer.
    number: u64,
    /// The process, as supervisor and service see it.
    pid: u32,
    /// This thread, as the tenant sees it: whether it is one of the process's. `None`: what the
    /// process is.
    thread: Option<u32>,
    /// The lane's root, as the process opened it, comes with the question, and perhaps a file that
    /// it made there: what it sees of the lane.
    #[serde(default)]
    attaches: bool,
}

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
    identity: Option<(u32, u32, Vec<u32>)>,
    /// Why it has no session by what it showed.
    #[serde(default)]
    refused: Option<Refusal>,
}

/// What a process sees of the lane: see [`Seen`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Sees {
    node: u64,
    read_only: bool,
    confined: bool,
    made: Option<u64>,
    other_numbers: bool,
    /// [`Owners`] as bytes.
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
    /// Its first process.
    init: u32,
    /// Where its lane is, to it.
    lane: Vec<u8>,
    /// What was mounted there from the first.
    covered: Vec<Vec<u8>>,
    /// Its mounts, and whether the lane was plain when they were last read.
    mounts: Option<(File, bool)>,
    /// Mounts of processes that see the lane elsewhere.
    others: OtherMounts,
}

impl Tenant {
    /// Of a pool whose first process is `init`.
    fn new(init: u32, spec: &PoolSpec) -> Tenant {
        let (lane, covered) = (spec.mount_path.clone(), spec.covered.clone());
        Tenant { init, lane, covered, mounts: None, others: OtherMounts::default() }
    }

    /// Whether its lane is as it was made: see [`is_plain`]. The table is read when it has changed.
    fn is_plain(&mut self) -> bool {
        let changed = |file: &File| {
            let mut fds = [PollFd::new(file, PollFlags::PRI)];
            rustix::event::poll(&mut fds, Some(&Timespec::default())) != Ok(0)
        };
        let mut file = match self.mounts.take() {
            Some((file, plain)) if !changed(&file) => {
                self.mounts = Some((file, plain));
                return plain;
            }
            Some((file, _)) => file,
            None => match File::open(format!("/proc/{}/mountinfo", self.init)) {
                Ok(file) => file,
                Err(_) => return false,
            },
        };
        let mut table = Vec::new();
        let read = file.rewind().and_then(|()| file.read_to_end(&mut table));
        let plain = read.is_ok() && is_plain(&table, &self.lane, &self.covered);
        self.mounts = Some((file, plain));
        plain
    }
}

/// Starts a witness for a pool whose first process is `init`; with it comes the service's end of
/// the line.
pub(crate) fn start(init: u32, spec: &PoolSpec) -> std::io::Result<(Process, Link)> {
    let (own, other) = Link::pair()?;
    let tenant = Tenant::new(init, spec);
    match ns::fork(Namespaces::default())? {
        Fork::Child => {
            let _ = rustix::thread::set_name(c"polylane-look");
            // Out of reach of the terminal's and the user's signals.
            let _ = rustix::process::setpgid(None, None);
            let _ = ns::keep_only(&[own.as_fd()]);
            attend(tenant, &own);
            ns::exit_now(0)
        }
        Fork::Parent(child) => Ok((Process::new(child), other)),
    }
}

/// Answers until the other end is closed. The tenant's table of mounts keeps its mounts there, so
/// it is closed with the tenant.
fn attend(mut tenant: Tenant, line: &Link) {
    let init = Pid::from_raw(tenant.init.cast_signed());
    let mut init = init.and_then(|init| pidfd_open(init, PidfdFlags::empty()).ok());
    loop {
        if let Some(pidfd) = &init {
            let mut fds = vec![PollFd::new(line, PollFlags::IN), PollFd::new(pidfd, PollFlags::IN)];
            fds.extend(tenant.others.awaited());
            // An interrupted wait says nothing of any.
            let _ = rustix::event::poll(&mut fds, None);
            let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let (asked, ended) = (is_ready(&fds[0]), is_ready(&fds[1]));
            let others: Vec<bool> = fds.iter().skip(2).map(is_ready).collect();
            drop(fds);
            if others.contains(&true) {
                tenant.others.wake(&others);
            }
            if ended {
                (tenant.mounts, tenant.others, init) = (None, OtherMounts::default(), None);
            }
            if !asked {
                continue;
            }
        }
        let Ok(Some((question, fds))) = line.receive::<Question>() else { break };
        let mut shown = fds.iter().map(AsFd::as_fd);
        let sent = match shown.next() {
            None => line.send(&answer(&mut tenant, question), &[]),
            Some(root) if question.attaches => {
                let shows = Shows { root, made: shown.next() };
                let (answer, page) = attach(&mut tenant, question, &shows);
                let page: Vec<_> = page.iter().map(AsFd::as_fd).collect();
                line.send(&answer, &page)
            }
            Some(connection) => line.send(&identify(connection, question.number), &[]),
        };
        if sent.is_err() {
            break;
        }
    }
}

/// Whose a connection is.
fn identify(socket: BorrowedFd<'_>, number: u64) -> Answer {
    let identity = scm::identity(socket).ok().filter(|one| one.groups.len() <= GROUPS_MAX);
    let identity = identity.map(|Identity { uid, gid, groups }| (uid, gid, groups));
    Answer { identity, ..Answer::none(number) }
}

fn answer(tenant: &mut Tenant, question: Question) -> Answer {
    let Question { number, pid, thread, .. } = question;
    let none = Answer::none(number);
    let Some(Both { first, it, depth }) = Both::of(tenant.init, pid) else { return none };
    let Some(&seen) = it.numbers.get(depth) else { return none };
    let has_thread = thread.is_some_and(|thread| {
        let ids = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let statuses = ids.filter_map(|id: u32| Status::of(pid, id));
        statuses.into_iter().any(|one| one.numbers.get(depth) == Some(&thread))
    });
    let is_same = |which| is_same(which, pid, tenant.init);
    // The numbers of processes that it is told, of holders of locks, are the tenant's.
    let same = is_same("ns/mnt") && is_same("root") && is_same("ns/pid");
    let (other_owners, less) = (!is_same("ns/user"), it.is_less_than_its_user());
    let confined = it.is_confined_beyond(&first);
    // Asked last: it is for who is let in.
    let plain = same && (thread.is_some() || tenant.is_plain());
    let apart = other_owners || less || confined || !plain;
    let elsewhere = !less && (other_owners || !plain) && thread.is_none();
    Answer { seen: Some(seen), apart, elsewhere, has_thread, ..none }
}

/// What a process sees of the lane that shows its root.
fn attach(tenant: &mut Tenant, question: Question, shows: &Shows<'_>) -> (Answer, Option<OwnedFd>) {
    let Question { number, pid, .. } = question;
    let none = Answer::none(number);
    match see(tenant, pid, shows) {
        Err(why) => (Answer { refused: Some(why), ..none }, None),
        Ok((as_tenant, sees, page)) => {
            let seen = Some(as_tenant);
            (Answer { seen, elsewhere: true, sees: Some(sees), ..none }, Some(page))
        }
    }
}

/// The process's number as the tenant sees it, what it sees of the lane, and the page that tells of
/// mounts there.
fn see(tenant: &mut Tenant, pid: u32, shows: &Shows<'_>) -> Result<(u32, Sees, OwnedFd), Refusal> {
    let init = tenant.init;
    let Both { first, it, depth } = Both::of(init, pid).ok_or(Refusal::Unknown)?;
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
        // The tenant's root in a namespace of its own has capabilities for no one else: the lane
        // takes it for root.
        false if it.user == 0 => return Err(Refusal::Users),
        false => Some(owners::of(pid, init).ok_or(Refusal::Users)?.to_bytes()),
    };
    let confined = it.is_confined_beyond(&first);
    // The first process of a container has what its runtime confines it by, as what runs in it has.
    let beside = if other_numbers { first_beside(pid) } else { None };
    if confined && beside.is_none_or(|beside| it.is_confined_beyond(&beside)) {
        return Err(Refusal::Confined);
    }
    let table = fs::read(format!("/proc/{init}/mountinfo")).map_err(|_| Refusal::Unknown)?;
    let device = other_mounts::device_at(&table, &tenant.lane).ok_or(Refusal::Mounts)?;
    let seen = tenant.others.see(pid, shows.root, &device).ok_or(Refusal::Mounts)?;
    let made = shows.made.and_then(|made| other_mounts::made_in(seen.mount, made));
    let (node, read_only) = (seen.node, seen.read_only);
    let sees = Sees { node, read_only, confined, made, other_numbers, owners };
    let number = *it.numbers.get(depth).ok_or(Refusal::Processes)?;
    Ok((number, sees, seen.page))
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
    let all = fs::read_dir("/proc").ok()?.flatten();
    let mut all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    all.find_map(|other: u32| {
        let status = Status::of(other, other)?;
        let is_first = status.numbers.last() == Some(&1);
        (is_first && is_same("ns/pid", pid, other)).then_some(status)
    })
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
    /// How deep the tenant's namespace of process numbers lies.
    depth: usize,
}

impl Both {
    fn of(init: u32, pid: u32) -> Option<Both> {
        let (first, it) = (Status::of(init, init)?, Status::of(pid, pid)?);
        let depth = first.numbers.len().saturating_sub(1);
        Some(Both { first, it, depth })
    }
}

/// What `/proc/PID/task/TID/status` says.
#[derive(Debug, Default)]
struct Status {
    /// The thread's numbers, from the reader's namespace inwards.
    numbers: Vec<u32>,
    no_new_privileges: u32,
    seccomp: u32,
    filters: u32,
    /// Effective user and capabilities.
    user: u32,
    capabilities: u64,
}

/// Capabilities by which root may do with files what the service takes root to may: CHOWN,
/// DAC_OVERRIDE, FOWNER, FSETID.
const OVER_FILES: u64 = 1 | 1 << 1 | 1 << 3 | 1 << 4;

impl Status {
    fn of(pid: u32, thread: u32) -> Option<Status> {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status")).ok()?;
        Some(Status::parse(&text))
    }

    fn parse(text: &str) -> Status {
        let field = |name: &str| {
            let values = text.lines().find_map(|line| line.strip_prefix(name));
            values.unwrap_or("").split_whitespace().filter_map(|word| word.parse().ok())
        };
        let first = |name| field(name).next().unwrap_or(0);
        let capabilities = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        Status {
            numbers: field("NSpid:").collect(),
            no_new_privileges: first("NoNewPrivs:"),
            seccomp: first("Seccomp:"),
            filters: first("Seccomp_filters:"),
            user: field("Uid:").nth(1).unwrap_or(0),
            capabilities: capabilities.unwrap_or(0),
        }
    }

    /// Root without what makes root root.
    fn is_less_than_its_user(&self) -> bool {
        self.user == 0 && self.capabilities & OVER_FILES != OVER_FILES
    }

    /// A process that may gain no privileges may have given up others by Landlock, of which nothing
    /// is shown.
    fn is_confined_beyond(&self, other: &Status) -> bool {
        self.no_new_privileges > other.no_new_privileges
            || self.seccomp > other.seccomp
            || self.filters > other.filters
    }
}

/// What the witness is to look at.
enum Shown<'a> {
    /// What a process shows that is not at home.
    Attaches(&'a Shows<'a>),
    /// A client's connection.
    Connection(BorrowedFd<'a>),
}

/// The service's end.
pub(crate) struct Asker {
    link: Mutex<Option<Link>>,
    last: AtomicU64,
    /// Users have other numbers here than there.
    own_ids: bool,
}

impl Asker {
    /// By this end of the line; whether users have other numbers here than at the other end.
    pub(crate) fn new(link: Link, own_ids: bool) -> Arc<Asker> {
        let limited = set_socket_timeout(link.as_fd(), Timeout::Recv, Some(ANSWER_TIME_MAX));
        let link = limited.is_ok().then_some(link);
        Arc::new(Asker { link: Mutex::new(link), last: AtomicU64::new(0), own_ids })
    }

    /// `None`: no witness answers, from now on.
    fn ask(
        &self,
        pid: u32,
        thread: Option<u32>,
        shown: Option<Shown<'_>>,
    ) -> Option<(Answer, Vec<OwnedFd>)> {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let mut line = self.link.lock();
        let link = line.as_ref()?;
        let attaches = matches!(shown, Some(Shown::Attaches(_)));
        let fds: Vec<_> = match shown {
            None => Vec::new(),
            Some(Shown::Attaches(shows)) => shows.all().collect(),
            Some(Shown::Connection(socket)) => vec![socket],
        };
        let asked = link.send(&Question { number, pid, thread, attaches }, &fds);
        let answer = asked.and_then(|()| link.receive::<Answer>());
        match answer {
            Ok(Some((answer, fds))) if answer.number == number => Some((answer, fds)),
            // A late answer would be taken for the next one's.
            _ => {
                *line = None;
                None
            }
        }
    }
}

impl Witness for Asker {
    fn look(&self, pid: u32) -> Option<Looks> {
        let (answer, _) = self.ask(pid, None, None)?;
        let standing = match (answer.apart, answer.elsewhere) {
            (false, _) => Standing::AtHome,
            (true, true) => Standing::Elsewhere,
            (true, false) => Standing::Apart,
        };
        Some(Looks { number: answer.seen?, standing })
    }

    fn attach(&self, pid: u32, shows: &Shows<'_>) -> Result<Seen, Refusal> {
        let (answer, mut fds) =
            self.ask(pid, None, Some(Shown::Attaches(shows))).ok_or(Refusal::Unknown)?;
        let told = answer.seen.zip(answer.sees).zip(fds.pop());
        let ((number, sees), notice) =
            told.ok_or_else(|| answer.refused.unwrap_or(Refusal::Unknown))?;
        let Sees { node, read_only, confined, made, other_numbers, owners } = sees;
        let owners = owners.map(|bytes| Owners::from_bytes(&bytes)).transpose();
        let owners = owners.map_err(|_| Refusal::Unknown)?;
        Ok(Seen { number, node, read_only, confined, made, other_numbers, owners, notice })
    }

    fn has_thread(&self, pid: u32, thread: u32) -> bool {
        self.ask(pid, Some(thread), None).is_some_and(|(answer, _)| answer.has_thread)
    }

    fn identity(&self, socket: BorrowedFd<'_>) -> polylane_base::Result<Option<Identity>> {
        if !self.own_ids {
            return Ok(None);
        }
        let answer = self.ask(0, None, Some(Shown::Connection(socket)));
        let identity = answer.and_then(|(answer, _)| answer.identity);
        let (uid, gid, groups) = identity.ok_or(Errno::EACCES)?;
        Ok(Some(Identity { uid, gid, groups }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What this process sees mounted below its root.
    fn everything() -> Vec<Vec<u8>> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let places = table.lines().filter_map(|line| line.split(' ').nth(4));
        places.map(|place| place.as_bytes()[1..].to_vec()).filter(|one| !one.is_empty()).collect()
    }

    #[test]
    fn a_witness_tells_what_a_process_is_and_which_threads_it_has() {
        let (own, other) = Link::pair().unwrap();
        let me = std::process::id();
        let (stop, line) = (own.as_fd().try_clone_to_owned().unwrap(), own);
        // Where nothing but the root is mounted, or can be.
        let (lane, others) = (b"/".to_vec(), OtherMounts::default());
        let tenant = Tenant { init: me, lane, covered: everything(), mounts: None, others };
        let witness = std::thread::spawn(move || attend(tenant, &line));
        let (asker, parent) = (Asker::new(other, true), std::os::unix::process::parent_id());
        let is_root = rustix::process::geteuid().is_root();
        let looks = asker.look(me).unwrap();
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
        assert_eq!(asker.look(0), None);
        let (connected, _other) = scm::pair().unwrap();
        let told = asker.identity(connected.as_fd()).unwrap();
        assert_eq!(told, Some(scm::identity(&connected).unwrap()), "a user has one number here");
        let (file, _) = std::io::pipe().unwrap();
        assert_eq!(asker.identity(file.as_fd()), Err(Errno::EACCES), "no connection");
        drop(end);
        rustix::net::shutdown(&stop, rustix::net::Shutdown::Both).unwrap();
        witness.join().unwrap();
        // Without an answer no thread is known to be of the process.
        assert_eq!((asker.look(me), asker.has_thread(me, me)), (None, false));
        assert_eq!(asker.identity(connected.as_fd()), Err(Errno::EACCES));
    }

    #[test]
    fn root_without_its_capabilities_is_less_than_its_user() {
        let status = |uid: &str, caps: &str| {
            Status::parse(&format!("Uid:\t5\t{uid}\t5\t5\nCapEff:\t{caps}\n"))
        };
        assert!(!status("0", "000001ffffffffff").is_less_than_its_user());
        assert!(!status("0", "00000000a80425fb").is_less_than_its_user(), "as containers have");
        assert!(status("0", "000001fffffffffd").is_less_than_its_user(), "no DAC_OVERRIDE");
        assert!(status("0", "0000000000000000").is_less_than_its_user());
        assert!(!status("1000", "0000000000000000").is_less_than_its_user());
    }

    #[test]
    fn who_is_confined_beyond_the_init_is_known_by_its_status() {
        let plain = "Name:\tx\nNSpid:\t400\t7\nNoNewPrivs:\t0\nSeccomp:\t0\nSeccomp_filters:\t0\n";
        let first = Status::parse(plain);
        assert_eq!(first.numbers, [400, 7]);
        assert!(!Status::parse(plain).is_confined_beyond(&first));
        for (field, value) in [("NoNewPrivs:\t0", "NoNewPrivs:\t1"), ("filters:\t0", "filters:\t2")]
        {
            let other = Status::parse(&plain.replace(field, value));
            assert!(other.is_confined_beyond(&first), "{value}");
            assert!(!other.is_confined_beyond(&other), "{value}: so is the init");
        }
    }
}

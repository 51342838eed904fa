//! What a client's process is, by the word of a witness that can look at it: the service itself
//! sees no process but by its sockets.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::{Arc, Mutex};
use polylane_ipc::handshake::HELLO_BYTES_MAX;
use polylane_ipc::owners::Owners;
use polylane_sys::notice::Notice;
use polylane_sys::scm::{self, Identity, Peer};
use serde::{Deserialize, Serialize};

/// How long a thread that was seen in a process is taken for one of it: too short for all numbers
/// of threads to be used once.
const THREAD_TIME: Duration = Duration::from_millis(100);

/// A process, by its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// As the service sees it.
    pub pid: u32,
    /// Its first thread, as the kernel's FUSE requests have it: these count as the namespace of
    /// process numbers does in which the mount was made.
    pub thread: u32,
}

/// Most descriptors that come with a hello: the lane's root and a file made there.
const SHOWN_MAX: usize = 2;

/// What comes with the hello of a connection, which is taken from it. To be called, and the
/// descriptors closed, where nobody is served.
///
/// # Errors
/// `EPROTO`: that is too much, or there is no hello.
pub fn taken(connection: BorrowedFd<'_>) -> polylane_base::Result<Vec<OwnedFd>> {
    let mut bytes = vec![0; HELLO_BYTES_MAX];
    let hello = scm::try_receive(connection, &mut bytes)?;
    match hello.truncated || hello.fds.len() > SHOWN_MAX {
        true => Err(Errno::EPROTO),
        false => Ok(hello.fds),
    }
}

/// A process that wants a session, and who it was when it connected.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// Its number, as the service sees it.
    pub pid: u32,
    /// What the kernel keeps of its connection: the session is this one's.
    pub identity: &'a Identity,
}

/// What is to be known of a process before it gets a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Looks {
    /// Its number as the kernel's FUSE requests have it.
    pub number: u32,
    /// What it sees of the lane, and what it may do there.
    pub standing: Standing,
}

impl Looks {
    /// Its number, if it may have a session as the tenant has. `EXDEV`: it has to show the lane's
    /// root. Of one that is apart the kernel alone decides what it may do.
    pub(crate) fn at_home(self) -> Result<polylane_base::Result<u32>, Refusal> {
        match self.standing {
            Standing::AtHome => Ok(Ok(self.number)),
            Standing::Elsewhere => Ok(Err(Errno::EXDEV)),
            Standing::Apart => Err(Refusal::Confined),
        }
    }
}

/// How a process stands to a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It sees the lane as the tenant's first process does.
    AtHome,
    /// It sees other mounts, another root or other numbers of processes or users: it has to show
    /// the lane's root by a real open.
    Elsewhere,
    /// It is confined beyond the tenant, or less than its user: what it may do the kernel alone
    /// decides.
    Apart,
}

/// What a process shows that is not at home: what it opened by the path that its lane has for it.
#[derive(Clone, Copy, Debug)]
pub struct Shows<'a> {
    /// The lane's root, opened to be read.
    pub root: BorrowedFd<'a>,
    /// A file that it made without a name in the root, to read and write it (`O_TMPFILE`).
    pub made: Option<BorrowedFd<'a>>,
}

/// The lane as a process sees it that is not at home.
#[derive(Debug)]
pub struct Seen {
    /// The process's number as the kernel's FUSE requests have it.
    pub number: u32,
    /// Node id of the directory that it sees as the lane's root.
    pub node: u64,
    /// Its mount may not be written to.
    pub read_only: bool,
    /// It is confined beyond the tenant, as its container is: what it may write is not known.
    pub confined: bool,
    /// It showed something as a file that it made.
    pub shows_made: bool,
    /// Node id of the file that it made, which was made by its mount.
    pub made: Option<u64>,
    /// Numbers of processes are others to it than to the tenant.
    pub other_numbers: bool,
    /// Where those of users and groups are others to it.
    pub owners: Option<Owners>,
    /// The page that tells of mounts at its lane.
    pub notice: OwnedFd,
}

/// Why a process has no session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Refusal {
    /// It is confined beyond its tenant and its container, or less than its user.
    Confined,
    /// Something is mounted in what it sees of the lane, or that is not the lane.
    Mounts,
    /// It is the host's root in another user namespace, or its users have no numbers there.
    Users,
    /// Its process numbers do not lie below the tenant's.
    Processes,
    /// Nothing could be found out of it, or its user has too many that are looked at.
    Unknown,
    /// It is another user, or of other groups, than when it connected, or its threads are.
    Changed,
}

impl Refusal {
    /// All of them, as they are numbered.
    pub const ALL: [Refusal; 6] = [
        Refusal::Confined,
        Refusal::Mounts,
        Refusal::Users,
        Refusal::Processes,
        Refusal::Unknown,
        Refusal::Changed,
    ];

    /// Its name in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Refusal::Confined => "confined",
            Refusal::Mounts => "mounts",
            Refusal::Users => "users",
            Refusal::Processes => "processes",
            Refusal::Unknown => "unknown",
            Refusal::Changed => "changed",
        }
    }
}

/// Looks at processes. Asked rarely; an answer may take a tenth of a millisecond.
pub trait Witness: Send + Sync {
    /// What a client is, or why it has no session.
    fn look(&self, client: Client<'_>) -> Result<Looks, Refusal>;

    /// What tells of mounts in the lane as the tenant sees it, once a process was found at home;
    /// `None`: nothing does.
    fn home(&self) -> Option<Arc<Notice>>;

    /// Is readable after a notice that it gave tells of other mounts; the service takes the count.
    /// `None`: nothing says so.
    fn changes(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// What a client sees of the lane, by what it shows, or why it has no session. Its hello and
    /// what it shows are in the connection still, from where the witness takes them
    /// ([`taken`]): a descriptor of a client's choice can be such as whose close never returns.
    fn attach(&self, client: Client<'_>, connection: BorrowedFd<'_>) -> Result<Seen, Refusal>;

    /// Closes a connection, in which unread descriptors may be, where no other client waits for it.
    ///
    /// # Errors
    /// The connection: it is the caller's still.
    fn close(&self, connection: OwnedFd) -> Result<(), OwnedFd>;

    /// Whether `thread`, as the kernel's FUSE requests number it, is one of the process `pid`.
    fn has_thread(&self, pid: u32, thread: u32) -> bool;

    /// Who is at the other end of a connection, where users have other numbers in the service's
    /// user namespace than on the host, or none. `Ok(None)`: they have the same.
    ///
    /// # Errors
    /// `EACCES`: it cannot tell.
    fn identity(&self, socket: BorrowedFd<'_>) -> polylane_base::Result<Option<Identity>>;
}

/// Who is at the other end of a connection, by the host's numbers of users and groups.
pub(crate) fn peer(
    socket: &OwnedFd,
    witness: Option<&Arc<dyn Witness>>,
) -> polylane_base::Result<Peer> {
    let peer = scm::peer(socket)?;
    let told = witness.map(|witness| witness.identity(socket.as_fd())).transpose()?;
    match told.flatten() {
        Some(identity) => Ok(Peer { identity, ..peer }),
        None => Ok(peer),
    }
}

/// Which threads a session's process has. Thread-safe.
pub(crate) struct Threads {
    process: Numbers,
    /// Those beside the first, and when they were known for it.
    known: Mutex<HashMap<u32, Instant>>,
}

impl Threads {
    pub(crate) fn of(process: Numbers) -> Threads {
        Threads { process, known: Mutex::default() }
    }

    /// Whether a thread is the process's first.
    pub(crate) fn is_first(&self, thread: u32) -> bool {
        thread == self.process.thread
    }

    /// Whether a thread is one of the process. What was known a moment ago still holds: no number
    /// is used again that soon. Without a witness the first alone is known.
    pub(crate) fn has(&self, thread: u32, witness: Option<&Arc<dyn Witness>>) -> bool {
        if thread == self.process.thread {
            return true;
        }
        let since = self.known.lock().get(&thread).copied();
        if since.is_some_and(|since| since.elapsed() < THREAD_TIME) {
            return true;
        }
        let asked = Instant::now();
        let own = witness.is_some_and(|witness| witness.has_thread(self.process.pid, thread));
        let mut known = self.known.lock();
        known.retain(|_, since| since.elapsed() < THREAD_TIME);
        if own {
            known.insert(thread, asked);
        }
        own
    }
}

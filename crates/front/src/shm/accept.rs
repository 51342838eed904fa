//! The acceptor: one thread that lets clients in and notices when they are gone.
//!
//! A connection says Hello within [`HELLO_TIME`] or is dropped. The kernel says whose it is. It
//! gets a channel of its own and a secret token, if it sees the mounts that the lane's tenant sees
//! and is not confined beyond it (`witness`): a socket can be reached where files cannot. Then its
//! socket is silent, and the socket's end is the session's end. The process's end, seen through a
//! pidfd, also drops its POSIX locks, which outlive sessions because they outlive exec.
//!
//! # Invariants
//!
//! - A pid in `processes` with a pidfd that is not readable *is* that process: numbers are not used
//!   again before the process is gone and reaped.
//! - Every refusal is a Welcome with an errno, or a closed socket; nothing a client does here ends
//!   the thread.
//! - What one user may hold here is bounded, and so is the total.
//! - No descriptor that a client sent is received here, nor a connection closed in which one may
//!   be: its close can wait for a file system of the client's own. The witness does, or a helper.
//! - The connection of a session receives nothing: its end keeps this process from nothing.

mod view;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use polylane_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use polylane_base::sync::{Arc, thread};
use polylane_base::{Errno, Gid, Result, Uid};
use polylane_ipc::handshake::{HELLO_BYTES_MAX, Hello, Welcome};
use polylane_ipc::{Geometry, ServiceChannel};
use polylane_sys::event::{self, Epoll, Interest, Ready};
use polylane_sys::pulse::Pulse;
use polylane_sys::scm::{self, Identity, Peeked, Peer};
use polylane_vfs::Cred;

use self::view::{Told, View};
use super::connection::Connection;
use super::crew::Crew;
use super::helpers::Helpers;
use super::process::{Full, Holders, Known, Process, is_readable};
use super::rights::FramesLeft;
use super::rights::lookup::Marks;
use super::session::Session;
use super::stats::Stats;
use super::users::Users;
use super::views::Views;
use super::worker::Inbox;
use super::{Config, guarded};
use crate::lane::Lane;
use crate::lane::locks::{FormerProcess, process_owner};
use crate::lane::record::Record;
use crate::lane::slots::Token;
use crate::witness::{self, Client, Numbers};

/// How long a connection may stay silent before its Hello.
const HELLO_TIME: Duration = Duration::from_secs(1);

/// Connections of one user that may be silent at a time; one more is refused.
const SILENT_PER_USER_MAX: usize = 64;

/// Pause after accept(2) failed for want of descriptors or memory: the listener stays ready
/// meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Whose connections are closed of which nobody knows whose they are.
const OVERFLOW_USER: u32 = u32::MAX;

/// Whose turn it is to close connections that became no session.
const NO_SESSION: u64 = 0;

const LISTENER: u64 = 0;
const STOP: u64 = 1;
/// What the witness says so by that a session's mounts are others.
const MOUNTS: u64 = 2;

/// What the acceptor shares with the rest of the server.
pub(super) struct Around {
    pub(super) lane: Arc<Lane>,
    pub(super) config: Config,
    pub(super) inboxes: Vec<Arc<Inbox>>,
    pub(super) helpers: Arc<Helpers>,
    pub(super) crew: Crew,
    pub(super) stats: Arc<Stats>,
    pub(super) stop: OwnedFd,
    pub(super) stopping: AtomicBool,
    pub(super) session_count: AtomicUsize,
    pub(super) views: Views,
    pub(super) frames_left: Arc<FramesLeft>,
    /// Beats as long as the acceptor runs: no client believes what it was shown by a dead service.
    pub(super) pulse: Arc<Pulse>,
    /// Shown where the files change through this service alone.
    pub(super) marks: Option<Arc<Marks>>,
}

impl Around {
    /// Has the threads run that serve clients.
    fn begin_crew(&self) -> Result<()> {
        self.crew.begin(&self.config, (&self.helpers, &self.inboxes))
    }

    /// What the witness says so by that a session's mounts are others.
    fn mount_changes(&self) -> Option<BorrowedFd<'_>> {
        self.lane.slots.witness.get().and_then(|one| one.changes())
    }
}

/// Something the epoll set watches.
enum Watched {
    Newcomer { socket: OwnedFd, peer: Peer, since: Instant },
    Client { socket: OwnedFd, session: Arc<Session> },
    Process { pid: u32 },
}

/// The thread's state.
pub(super) struct Acceptor {
    around: Arc<Around>,
    listener: OwnedFd,
    epoll: Epoll,
    watched: HashMap<u64, Watched>,
    processes: Known,
    holders: Arc<Holders>,
    users: Users,
    /// Users of whom a newcomer was looked at since the last wait.
    greeted: HashSet<u32>,
    next: u64,
    /// The kernel will say when we are dead.
    beats: bool,
}

impl Acceptor {
    pub(super) fn new(around: Arc<Around>, listener: OwnedFd) -> Result<Acceptor> {
        let flags = rustix::fs::fcntl_getfl(&listener).map_err(os)?;
        let flags = flags | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&listener, flags).map_err(os)?;
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER, Interest::Level)?;
        epoll.add(&around.stop, STOP, Interest::Level)?;
        if let Some(changes) = around.mount_changes() {
            epoll.add(changes, MOUNTS, Interest::Level)?;
        }
        let mut acceptor = Acceptor {
            around,
            listener,
            epoll,
            watched: HashMap::new(),
            processes: HashMap::new(),
            holders: Arc::default(),
            users: Users::default(),
            greeted: HashSet::new(),
            next: MOUNTS,
            beats: false,
        };
        acceptor.go_on_for_former()?;
        Ok(acceptor)
    }

    /// Watches the processes that had locks of a former service.
    fn go_on_for_former(&mut self) -> Result<()> {
        let lane = self.around.lane.clone();
        let Some(handover) = &lane.handover else { return Ok(()) };
        for FormerProcess { number, pid, pidfd, record } in handover.take_processes() {
            // A helper drops its locks when it ends.
            self.around.begin_crew()?;
            lane.kept.restore_process(number, Record::of(&handover.store, record));
            self.watch_process(number, pid, pidfd, None)?.locks.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Lets clients in and out until the server stops.
    pub(super) fn run(mut self) {
        self.beats = self.around.pulse.beat().is_ok();
        let mut ready = Vec::new();
        while !self.around.stopping.load(Ordering::Acquire) {
            ready.clear();
            if self.epoll.wait(&mut ready, self.patience()).is_err() {
                thread::sleep(ACCEPT_PAUSE);
            }
            self.greeted.clear();
            for event in &ready {
                guarded(|| self.handle(*event));
            }
            self.drop_silent();
        }
        self.end_all();
    }

    fn handle(&mut self, event: Ready) {
        match event.token {
            LISTENER => self.accept(),
            STOP => {}
            MOUNTS => self.end_rights(),
            token => match self.watched.get(&token) {
                // One of each user in turn: the others are ready still.
                Some(Watched::Newcomer { peer, .. }) if self.greeted.insert(peer.identity.uid) => {
                    self.greet(token);
                }
                Some(Watched::Client { .. }) if event.hangup => self.depart(token),
                Some(Watched::Process { .. }) => self.bury(token),
                _ => {}
            },
        }
    }

    /// One connection; its Hello may already be there.
    fn accept(&mut self) {
        let socket = match scm::accept(&self.listener) {
            Ok(socket) => socket,
            Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM) => {
                return thread::sleep(ACCEPT_PAUSE);
            }
            // Gone again before we came, or none at all.
            Err(_) => return,
        };
        let Ok(peer) = witness::peer(&socket, self.around.lane.slots.witness.get()) else {
            return self.close(OVERFLOW_USER, socket);
        };
        let user = peer.identity.uid;
        let (mut all, mut own) = (0, 0);
        for uid in self.newcomers() {
            all += 1;
            own += usize::from(uid == user);
        }
        let is_full = all >= self.around.config.sessions_max || own >= SILENT_PER_USER_MAX;
        if is_full || self.around.begin_crew().is_err() {
            refuse(&socket, Errno::EAGAIN);
            return self.close(user, socket);
        }
        let token = self.token();
        if self.epoll.add(&socket, token, Interest::Level).is_err() {
            return self.close(user, socket);
        }
        let since = Instant::now();
        self.watched.insert(token, Watched::Newcomer { socket, peer, since });
    }

    /// Closes a client's connection, which may be waited for as long as the client likes unless
    /// nothing that it sent is there.
    fn close(&self, user: u32, connection: OwnedFd) {
        if scm::settle(&connection) {
            return;
        }
        let left = match self.around.lane.slots.witness.get() {
            Some(witness) => witness.close(connection).err(),
            None => Some(connection),
        };
        // Where no helper can be started either, it is closed here.
        if let Some(connection) = left
            && (self.around.begin_crew().is_ok() || self.around.helpers.any())
        {
            self.around.helpers.post(Uid(user), NO_SESSION, Box::new(move || drop(connection)));
        }
    }

    /// The users of connections that are silent still.
    fn newcomers(&self) -> impl Iterator<Item = u32> {
        self.watched.values().filter_map(|watched| match watched {
            Watched::Newcomer { peer, .. } => Some(peer.identity.uid),
            _ => None,
        })
    }

    /// Limits on sessions.
    fn room_for(&self, uid: u32) -> Result<()> {
        let (mut all, mut own) = (0, 0);
        for watched in self.watched.values() {
            if let Watched::Client { session, .. } = watched {
                all += 1;
                own += usize::from(session.connection.cred.uid.0 == uid);
            }
        }
        let config = &self.around.config;
        match all < config.sessions_max && own < config.sessions_per_uid_max {
            true => Ok(()),
            false => Err(Errno::EAGAIN),
        }
    }

    /// A newcomer said something, or left.
    fn greet(&mut self, token: u64) {
        let Some(Watched::Newcomer { socket, peer, .. }) = self.watched.remove(&token) else {
            return;
        };
        // Watched anew, for its end only, when it becomes a session.
        let _ = self.epoll.remove(&socket);
        let user = peer.identity.uid;
        match self.admit(&socket, peer) {
            Ok(session) if self.epoll.add(&socket, token, Interest::Hangup).is_ok() => {
                self.watched.insert(token, Watched::Client { socket, session });
            }
            Ok(session) => {
                self.dismiss(&session);
                self.close(user, socket);
            }
            Err(errno) => {
                refuse(&socket, errno);
                self.close(user, socket);
            }
        }
    }

    /// Makes a newcomer's session and tells it and the workers.
    fn admit(&mut self, socket: &OwnedFd, peer: Peer) -> Result<Arc<Session>> {
        let mut bytes = vec![0; HELLO_BYTES_MAX];
        let Peeked { count, truncated, carries } = scm::peek(socket, &mut bytes)?;
        if !carries {
            // What lies unread at the end keeps the peer from the answer.
            scm::try_receive(socket, &mut bytes)?;
        }
        if truncated {
            return Err(Errno::EPROTO);
        }
        let (hello, mount) = Hello::from_bytes(&bytes[..count])?;
        self.room_for(peer.identity.uid)?;
        let shown = match carries {
            true if mount.is_empty() => return Err(Errno::EPROTO),
            true => Some(mount),
            false if mount.is_empty() || mount == self.around.lane.vfs.mount_path() => None,
            false => return Err(Errno::EXDEV),
        };
        let (session, told) = self.session(hello, peer, socket, shown)?;
        self.around.session_count.fetch_add(1, Ordering::Relaxed);
        self.around.views.began(&session.connection);
        match self.introduce(socket, &session, told) {
            Ok(()) => Ok(session),
            Err(errno) => {
                self.dismiss(&session);
                Err(errno)
            }
        }
    }

    /// A session of a peer that shows the lane's root, which it has at `shown`, by its connection,
    /// or that sees the lane as its tenant does; and what it is told of its view.
    fn session(
        &mut self,
        hello: Hello,
        peer: Peer,
        socket: &OwnedFd,
        shown: Option<&[u8]>,
    ) -> Result<(Arc<Session>, Told)> {
        let around = Arc::clone(&self.around);
        let Peer { pid, identity, pidfd } = peer;
        let process = self.process(pid, pidfd, identity.uid)?;
        let client = Client { pid, identity: &identity };
        let View { thread, attachment, mounts, other_numbers, told } = match shown {
            Some(mount) => View::of(&around, client, socket, mount.to_vec())?,
            None => {
                let refused = |why| around.views.refused(why);
                let numbers = around.lane.slots.admit(client, refused)?;
                let witness = around.lane.slots.witness.get();
                View::at_home(numbers, witness.and_then(|witness| witness.home()))
            }
        };
        // From now on nothing that the client sends is in the connection of its session.
        if !scm::settle(socket) {
            return Err(Errno::EPROTO);
        }
        let Identity { uid, gid, groups } = identity;
        let numbers = Numbers { pid, thread };
        if is_readable(&process.pidfd) {
            // Another one may have been looked at.
            return Err(Errno::ESRCH);
        }
        let queue = hello.queue.unwrap_or(around.config.geometry.queue);
        let groups_count = around.inboxes.len() as u32;
        let geometry = Geometry { queue, groups: groups_count, ..around.config.geometry };
        let channel = ServiceChannel::create(geometry, **around.config.plan)?;
        let groups: Arc<[Gid]> = groups.into_iter().map(Gid).collect();
        let (uid, gid) = (Uid(uid), Gid(gid));
        let whose = (uid, groups.clone());
        let slots = around.lane.slots.open_session(Token::random()?, whose, numbers);
        let (id, key) = (self.token(), hello.key);
        let cred = Cred { uid, gid, groups, ..Cred::root() };
        let shown = thread;
        let (lane, stats) = (around.lane.clone(), around.stats.clone());
        let connection = Connection {
            id,
            key,
            cred,
            process,
            shown,
            attachment,
            mounts,
            other_numbers,
            other_owners: told.owners.is_some(),
            channel,
            slots,
            lane,
            stats,
        };
        let session = Session::new(connection, self.users.of(uid), around.frames_left.clone());
        Ok((session, told))
    }

    /// First the workers, so that the client's first request finds somebody.
    fn introduce(&self, socket: &OwnedFd, session: &Arc<Session>, told: Told) -> Result<()> {
        let Told { notice, owners } = told;
        for inbox in &self.around.inboxes {
            inbox.add(session)?;
        }
        let welcome = Welcome {
            status: 0,
            token: session.connection.slots.token().0,
            geometry: *session.connection.channel.geometry(),
            plan: session.connection.channel.plan(),
            attributes: self.around.lane.vfs.character().attributes,
            attached: notice.is_some(),
            // Where the root is another, the kernel is asked for some paths that it need not be.
            covered: self.around.config.covered.clone(),
            owners,
        };
        let pulse = self.beats.then(|| self.around.pulse.fd());
        // Without the pulse nobody would know that what he sees is a dead service's.
        let marks = self.around.marks.as_ref().filter(|_| self.beats).map(|marks| marks.0.fd());
        let more = pulse.into_iter().chain(marks).chain(notice.as_ref().map(AsFd::as_fd));
        let fds: Vec<_> = session.connection.channel.client_fds().into_iter().chain(more).collect();
        scm::send(socket, &welcome.to_bytes()?, &fds)
    }

    /// The process of that number, known already or new. `ESRCH`: it is gone, or lives where we
    /// cannot see it.
    fn process(&mut self, pid: u32, pidfd: Option<OwnedFd>, user: u32) -> Result<Arc<Process>> {
        let pidfd = pidfd.filter(|_| pid != 0).ok_or(Errno::ESRCH)?;
        match self.processes.get(&pid) {
            Some(known) if !is_readable(&known.pidfd) => return Ok(known.clone()),
            Some(_) => self.bury_pid(pid),
            None => {}
        }
        let full = |own: &Self| Full::for_one_of(&own.processes, user, &own.around.config);
        if let Some(full) = full(self) {
            self.forget_idle(full);
        }
        if full(self).is_some() {
            return Err(Errno::EAGAIN);
        }
        let number = match &self.around.lane.handover {
            Some(handover) => handover.store.next_handle(),
            None => self.token(),
        };
        self.watch_process(number, pid, pidfd, Some(user))
    }

    /// Forgets some of these processes that have no session and never asked for a lock.
    fn forget_idle(&mut self, full: Full) {
        let with_session = |watched: &Watched| match watched {
            Watched::Client { session, .. } => Some(session.connection.process.pid),
            _ => None,
        };
        let busy = self.watched.values().filter_map(with_session).collect();
        for pid in full.idle(&self.processes, &busy) {
            self.bury_pid(pid);
        }
    }

    fn watch_process(
        &mut self,
        number: u64,
        pid: u32,
        pidfd: OwnedFd,
        user: Option<u32>,
    ) -> Result<Arc<Process>> {
        let token = self.token();
        self.epoll.add(&pidfd, token, Interest::Level)?;
        let owner = process_owner(number);
        let (gone, locks) = (AtomicBool::new(false), AtomicBool::new(false));
        let holders = self.holders.clone();
        let process = Process { pid, user, pidfd, number, owner, gone, locks, holders };
        let process = Arc::new(process);
        self.holders.add(&process);
        self.processes.insert(pid, process.clone());
        self.watched.insert(token, Watched::Process { pid });
        Ok(process)
    }

    /// A client closed its socket.
    fn depart(&mut self, token: u64) {
        if let Some(Watched::Client { socket, session }) = self.watched.remove(&token) {
            // Ours alone, so the set would let go of it by itself; this does not depend on it.
            let _ = self.epoll.remove(&socket);
            self.dismiss(&session);
            self.close(session.connection.cred.uid.0, socket);
        }
    }

    /// Ends a session: the workers let go of it, a helper closes what it had open.
    fn dismiss(&self, session: &Arc<Session>) {
        for inbox in &self.around.inboxes {
            inbox.remove(session);
        }
        self.around.session_count.fetch_sub(1, Ordering::Relaxed);
        self.around.views.ended(&session.connection);
        let ended = session.clone();
        self.around.helpers.post(
            session.connection.cred.uid,
            session.connection.id,
            Box::new(move || ended.end()),
        );
    }

    /// Mounts of sessions are others, or read-only: what their clients may do with names unasked
    /// ends, whether or not they ask for anything.
    fn end_rights(&self) {
        if let Some(changes) = self.around.mount_changes() {
            event::drain(changes);
        }
        for watched in self.watched.values() {
            let Watched::Client { session, .. } = watched else { continue };
            if session.connection.has_other_mounts() && session.rights().has_leases() {
                let (user, id) = (session.connection.cred.uid, session.connection.id);
                let session = session.clone();
                self.around.helpers.post(user, id, Box::new(move || session.rights().revoke()));
            }
        }
    }

    /// The process behind a pidfd is gone.
    fn bury(&mut self, token: u64) {
        if let Some(Watched::Process { pid }) = self.watched.remove(&token) {
            self.bury_pid(pid);
        }
    }

    /// Ends a process's sessions, whoever may still hold their sockets, and drops its locks.
    fn bury_pid(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else { return };
        let is_its = |watched: &Watched| match watched {
            Watched::Client { session, .. } => Arc::ptr_eq(&session.connection.process, &process),
            Watched::Process { pid: other } => *other == pid,
            Watched::Newcomer { .. } => false,
        };
        let tokens: Vec<u64> =
            self.watched.iter().filter(|(_, watched)| is_its(watched)).map(|(t, _)| *t).collect();
        for token in tokens {
            self.depart(token);
            self.watched.remove(&token);
        }
        // The set lets go of the pidfd by itself only when its last copy closes, which may be
        // later.
        let _ = self.epoll.remove(&process.pidfd);
        let (lane, turn) = (self.around.lane.clone(), self.token());
        // Of no user: no client waits for it.
        self.around.helpers.post(Uid(u32::MAX), turn, Box::new(move || process.bury(&lane)));
    }

    /// Drops connections that never said Hello.
    fn drop_silent(&mut self) {
        let is_silent = |watched: &Watched| match watched {
            Watched::Newcomer { since, .. } => since.elapsed() >= HELLO_TIME,
            _ => false,
        };
        let tokens: Vec<u64> = self
            .watched
            .iter()
            .filter(|(_, one)| is_silent(one))
            .map(|(token, _)| *token)
            .collect();
        for token in tokens {
            if let Some(Watched::Newcomer { socket, peer, .. }) = self.watched.remove(&token) {
                let _ = self.epoll.remove(&socket);
                self.close(peer.identity.uid, socket);
            }
        }
    }

    /// How long to wait: for ever, unless somebody is expected to say Hello.
    fn patience(&self) -> Option<Duration> {
        self.newcomers().next().map(|_| HELLO_TIME)
    }

    /// The server stops: every session ends. Processes keep their locks, which the next service
    /// knows.
    fn end_all(&mut self) {
        let tokens: Vec<u64> = self.watched.keys().copied().collect();
        for token in tokens {
            self.depart(token);
        }
        for (_, watched) in std::mem::take(&mut self.watched) {
            if let Watched::Newcomer { socket, peer, .. } = watched {
                self.close(peer.identity.uid, socket);
            }
        }
    }

    fn token(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

fn os(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

/// Says why there is no channel. A peer that does not listen misses it.
fn refuse(socket: &OwnedFd, errno: Errno) {
    if let Ok(bytes) = Welcome::refusal(errno).to_bytes() {
        let _ = scm::send(socket, &bytes, &[]);
    }
}

//! From a checked request to the VFS and back: one short function per operation, by concern.
//!
//! | file | operations |
//! |---|---|
//! | `files` | open, close, read, write, fallocate, seek, copy, handles and slots |
//! | `syncs` | fsync, sync |
//! | `names` | mkdir, mknod, symlink, link, unlink, rename, readlink |
//! | `attrs` | stat, access, setattr, statfs |
//! | `locks` | lock, get, cancel |
//! | `dirs`  | directory handles, readdir |
//! | `xattrs` | extended attributes |
//!
//! Every function either replies, fails, or says that it must not run on this thread
//! ([`Failure::HandOff`], [`Failure::Wait`]) before it has changed anything: then a thread that may
//! wait serves the same request from the start. A sync alone may be half done
//! ([`Failure::Leave`]): who commits next ends it.

mod attrs;
mod dirs;
mod files;
mod locks;
mod names;
mod oplocks;
mod payload;
mod syncs;
mod xattrs;

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_ipc::MailboxIndex;
use polylane_ipc::message::{Reply, Status};
use polylane_vfs::handover::Turn;
use polylane_vfs::{Attr, Kind, Node, OpCtx, OpenFile, PathError, Vfs};

use self::payload::In;
pub(super) use self::syncs::{Half, Left, Rest};
use super::attr::wire_attr;
use super::request::{At, FileRequest, Object};
use super::session::Session;
use super::stats::Stats;
use crate::lane::notifier::Range;
use crate::lane::tag::{Beside, kernel_changes_pages, kernel_has_open, kernel_has_pages};

/// One request being served.
pub(super) struct Call<'a> {
    /// Whose it is.
    pub(super) session: &'a Arc<Session>,
    /// Where it came in and its data lies.
    pub(super) mailbox: MailboxIndex,
    /// Where it is counted.
    pub(super) stats: &'a Stats,
    /// Whether this thread may wait for a device or for the kernel.
    pub(super) may_block: bool,
    /// Data that changed and that the kernel may have pages of: to be told before the reply.
    pub(super) changed: Option<Changed>,
    /// The request's turn, if it is to be done once.
    pub(super) turn: Option<&'a Turn>,
    /// What is left of a sync.
    pub(super) rest: Option<Rest>,
}

/// Data that changed.
pub(super) struct Changed {
    node: Node,
    range: Range,
    /// What was written there.
    written: Option<Written>,
}

/// A write that was done, whose bytes lie in the mailbox still.
struct Written {
    file: Arc<OpenFile>,
    /// Whether the kernel began to fill pages of the file meanwhile.
    beside: Beside,
}

impl Changed {
    /// Has the kernel give up its pages of what changed, and what was written be there all the
    /// same.
    pub(super) fn tell_kernel(&self, session: &Session, mailbox: MailboxIndex) -> Result<()> {
        let Some(Written { file, beside }) = &self.written else {
            session.connection.lane.changed(&self.node, self.range);
            return Ok(());
        };
        session.connection.lane.keep_written((file, file.flags()), self.range, *beside, |within| {
            let mut source = In(session.connection.channel.write_pipe(mailbox, 0, within));
            file.write_mapped(&session.connection.ctx(), self.range.offset, &mut source)
        })
    }
}

/// Why there is no reply from here and now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Failure {
    /// The operation failed.
    Errno(Errno),
    /// It failed after it had changed something: it is not served again.
    Late(Errno),
    /// The kernel's way must be taken.
    UseKernel,
    /// This thread must not wait; nothing was done yet.
    HandOff,
    /// The same, of a request that a device takes long over: it can stay with this thread if
    /// another one serves others meanwhile.
    Wait,
    /// The reply comes when the wait is over, from elsewhere.
    Parked,
    /// The rest of a sync is another thread's.
    Leave,
}

/// What an operation's function returns.
pub(super) type Answer = Result<Reply, Failure>;

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Failure::Errno(errno)
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        match error {
            PathError::Errno(errno) => Failure::Errno(errno),
            PathError::Leaves => Failure::UseKernel,
        }
    }
}

/// Serves one request, or leaves it to the kernel where that knows better what the client may.
pub(super) fn serve(call: &mut Call<'_>, request: &FileRequest<'_>) -> Answer {
    let connection = &call.session.connection;
    if connection.is_read_only() && request.is_of_writable_mount() {
        return Err(Failure::UseKernel);
    }
    if connection.has_other_mounts() && (request.is_by_path() || request.is_of_writable_mount()) {
        // What it does with names unasked went by the mounts that were.
        call.session.rights().revoke();
        return Err(Failure::UseKernel);
    }
    call.before_slow(request)?;
    if !connection.other_owners {
        return served(call, request);
    }
    if request.is_of_owners() {
        return Err(Failure::UseKernel);
    }
    match served(call, request) {
        // The client may have capabilities for those whom its user namespace has numbers of.
        Err(Failure::Errno(Errno::EPERM | Errno::EACCES)) if request.is_by_path() => {
            Err(Failure::UseKernel)
        }
        answer => answer,
    }
}

/// A table: one arm per operation.
fn served(call: &mut Call<'_>, request: &FileRequest<'_>) -> Answer {
    use FileRequest as R;
    match *request {
        R::Ping { position } => call.ping(position),
        R::Open { at, flags, perm, umask, slot, brings } => {
            call.open(at, flags, (perm, umask), (slot, brings))
        }
        R::Close { handle, at_rest } => call.close(handle, at_rest),
        R::Read { handle, offset, len, show } => call.read((handle, show), offset, len),
        R::Write { handle, offset, len, how } => call.write((handle, how), offset, len),
        R::Stat { object, mark } => call.stat(object, mark),
        R::Fstat { handle, show } => call.fstat(handle, show),
        R::Access { object, mask, mark } => call.access(object, mask, mark),
        R::Mkdir { at, perm, umask } => call.mkdir(at, perm, umask),
        R::Mknod { at, mode, umask, rdev } => call.mknod(at, mode, umask, rdev),
        R::Symlink { target, at } => call.symlink(target, at),
        R::Link { from, to } => call.link(from, to),
        R::Unlink { at, dir, leased } => call.unlink(at, dir, leased),
        R::Rename { from, to, flags, leased } => call.rename((from, to), flags, leased),
        R::Readlink { object } => call.readlink(object),
        R::Setattr { object, set } => call.setattr(object, &set),
        R::Fsync { handle, data_only } => call.fsync(handle, data_only),
        R::Sync => call.sync(),
        R::Fallocate { handle, flags, offset, len } => call.fallocate(handle, flags, offset, len),
        R::Seek { handle, offset, target } => call.seek(handle, offset, target),
        R::Statfs => call.statfs(),
        R::Getxattr { object, name, len } => call.getxattr(object, name, len),
        R::Setxattr { object, name, value_at, len, mode } => {
            call.setxattr(object, name, (value_at, len), mode)
        }
        R::Listxattr { object, len } => call.listxattr(object, len),
        R::Removexattr { object, name } => call.removexattr(object, name),
        R::Lock(args) => call.lock(&args),
        R::GetLock(args) => call.get_lock(&args),
        R::Cancel { mailbox } => call.cancel(mailbox),
        R::OpenDir { at, follow, list } => call.open_dir(at, follow, list),
        R::Redeem { ticket } => call.redeem(&ticket),
        R::ShareAll => call.share_all(),
        R::CopyRange { from, offset, to, at, len } => {
            call.copy_range((from, offset), (to, at), len)
        }
        R::Expose { handle, shared } => call.expose(handle, shared),
        R::ExposeAll { count } => call.expose_all(count),
        R::SetFlags { handle, flags } => call.set_flags(handle, flags),
        R::Readdir { handle, position, len } => call.readdir(handle, position, len),
        R::Lease { start, path, tell_sole } => call.lease(start, path, tell_sole),
        R::Extend { handle } => call.extend(handle),
        R::Oplock { handle, reads } => call.oplock(handle, reads),
    }
}

impl<'a> Call<'a> {
    /// A request of a session, out of a mailbox.
    pub(super) fn new(
        (session, mailbox): (&'a Arc<Session>, MailboxIndex),
        stats: &'a Stats,
        may_block: bool,
    ) -> Call<'a> {
        Call { session, mailbox, stats, may_block, changed: None, turn: None, rest: None }
    }

    fn vfs(&self) -> &'a Vfs {
        &self.session.connection.lane.vfs
    }

    /// What this request is done with.
    fn ctx(&self) -> OpCtx<'a> {
        OpCtx { turn: self.turn, ..self.session.connection.ctx() }
    }

    /// What was streamed is applied by now, as before every request.
    fn ping(&self, position: Option<u32>) -> Answer {
        let mut reply = done(0);
        reply.value[0] =
            position.is_some_and(|position| self.session.rights().was_refused(position)).into();
        Ok(reply)
    }

    /// The directory that a path starts from.
    fn start(&self, at: At<'_>) -> Result<Node> {
        let node = self.session.files.start(&self.session.connection, at.start)?;
        match node.kind() {
            Kind::Dir => Ok(node),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// The inode that a request means.
    fn node(&self, object: Object<'_>) -> Result<Node, Failure> {
        match object {
            Object::Handle(handle) => Ok(self.session.files.node(handle)?),
            Object::Start(start) => {
                Ok(self.session.files.start(&self.session.connection, start)?)
            }
            Object::Path { at, follow } => {
                let start = self.start(at)?;
                Ok(self.vfs().resolve(&self.ctx(), &start, at.path, follow)?)
            }
        }
    }

    /// To be called before anything that can take long.
    fn blocking(&self) -> Result<(), Failure> {
        if self.may_block { Ok(()) } else { Err(Failure::HandOff) }
    }

    /// A request for which the files' own host is asked, when that takes long: then others are to
    /// be served meanwhile. Syncs look at that themselves.
    fn before_slow(&self, request: &FileRequest<'_>) -> Result<(), Failure> {
        let waits = |work| !self.may_block && self.vfs().is_slow(work);
        match request.work() {
            Some(work) if waits(work) => Err(Failure::Wait),
            _ => Ok(()),
        }
    }

    /// To be called before what waits for a device, where there is one: a file system that keeps
    /// nothing back and is not checked for changes behind our back has everything in memory.
    fn device(&self) -> Result<(), Failure> {
        let waits = self.vfs().keeps_writes() || self.vfs().character().volatile;
        if waits { self.blocking() } else { Ok(()) }
    }

    /// To be called before data is read or made durable: what programs stored through mappings
    /// comes back from the kernel first.
    fn before_io(&self, node: &Node, range: Range) -> Result<(), Failure> {
        if kernel_changes_pages(node) {
            self.blocking()?;
            self.session.connection.lane.before_io(node, range);
        }
        Ok(())
    }

    /// To be called after data changed: the kernel is told before the reply, if it must be told.
    fn changed(&mut self, node: &Node, range: Range) {
        if kernel_has_pages(node) {
            self.changed = Some(Changed { node: node.clone(), range, written: None });
        } else if kernel_has_open(node) {
            self.session.connection.lane.tell_growth(node);
        }
    }

    /// As [`Call::changed`] after a write.
    fn written(&mut self, file: &Arc<OpenFile>, range: Range, beside: Beside) {
        self.changed(file.node(), range);
        if let Some(changed) = &mut self.changed {
            changed.written = Some(Written { file: file.clone(), beside });
        }
    }
}

/// Whether clients may be shown what files hold.
fn can_show(session: &Session) -> bool {
    !session.connection.lane.vfs.character().volatile
}

/// A reply with a count.
fn done(count: usize) -> Reply {
    Reply::new(Status::Done(count as u64))
}

/// A reply with an inode's state.
fn with_attr(attr: &Attr) -> Reply {
    Reply { attr: Some(wire_attr(attr)), ..done(0) }
}

//! The files and directories that a session has open, by handle.
//!
//! # Locking
//!
//! `open` and `streamed` are leaves: no VFS call is made and no file is dropped under any of them.

use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Errno, Result};
use polylane_ipc::stream::STREAMED_HANDLE;
use polylane_vfs::{Node, OpenFile};

use super::connection::Connection;
use super::request::{Handle, Start};
use super::table::{Chosen, Table};
use super::users::{HANDLES_PER_USER_MAX, HandleCharge, User};

/// Something a session has open. Cheap to clone.
#[derive(Clone)]
pub(super) enum Open {
    /// A regular file, and the slot that goes with the handle.
    File {
        /// The open file.
        file: Arc<OpenFile>,
        /// Number of the bound slot.
        slot: Option<u32>,
        /// Number of the view that shows it.
        view: Option<u32>,
    },
    /// A directory to start paths from, and the open directory once it was listed.
    Dir {
        /// The directory.
        node: Node,
        /// Opened for listing.
        listing: Option<Arc<OpenFile>>,
    },
}

impl Open {
    /// The open file, if it is one of this inode.
    fn file_of(&self, node: &Node) -> Option<&Arc<OpenFile>> {
        match self {
            Open::File { file, .. } if Arc::ptr_eq(file.node(), node) => Some(file),
            _ => None,
        }
    }

    /// The inode that is open.
    pub(super) fn node(&self) -> &Node {
        match self {
            Open::File { file, .. } => file.node(),
            Open::Dir { node, .. } => node,
        }
    }
}

/// Something open, and its part of what its user may have open.
type Charged = (Open, HandleCharge);

/// What one session has open. Thread-safe.
pub(super) struct OpenFiles {
    /// What all sessions of its user have open counts together.
    user: Arc<User>,
    open: Mutex<Table<Charged>>,
    /// Files that the client opened by its stream, under handles that it chose.
    streamed: Mutex<Chosen<Charged>>,
    /// An entry of the stream was not applied: a handle that is not known may be one of its files.
    lost: AtomicBool,
}

impl OpenFiles {
    /// Nothing open yet, for a session of that user.
    pub(super) fn new(user: Arc<User>) -> OpenFiles {
        OpenFiles {
            user,
            open: Mutex::new(Table::new(HANDLES_PER_USER_MAX)),
            streamed: Mutex::default(),
            lost: AtomicBool::new(false),
        }
    }

    /// Adds an open file or directory. `EMFILE` at the limit of its user, or after the end.
    pub(super) fn add(&self, open: Open) -> Result<Handle> {
        let charge = User::open_handle(&self.user)?;
        self.open.lock().insert((open, charge))
    }

    /// Adds an open file under a handle that the client chose. `EBADF`: not one to choose; `EBUSY`:
    /// in use. It counts for its user, and is refused to none: its client believes it open already.
    pub(super) fn add_streamed(&self, handle: Handle, open: Open) -> Result<()> {
        let charge = User::opened_handle(&self.user);
        self.streamed.lock().insert(handle, (open, charge))
    }

    /// From now on a streamed handle that is not known is `EIO`: its program believes to have a
    /// file open that was lost.
    pub(super) fn note_lost(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// The view that a handle refers to.
    pub(super) fn view_in(&self, handle: Handle) -> Option<u32> {
        let view = |open: &Open| match open {
            Open::File { view, .. } => *view,
            Open::Dir { .. } => None,
        };
        self.with(handle, view).ok().flatten()
    }

    /// Has a handle refer to a view. False: it refers to one already, or is closed.
    pub(super) fn set_view(&self, handle: Handle, number: u32) -> bool {
        let set = |open: Result<&mut Charged>| match open {
            Ok((Open::File { view: view @ None, .. }, _)) => view.replace(number).is_none(),
            _ => false,
        };
        match handle.index & STREAMED_HANDLE {
            0 => set(self.open.lock().get_mut(handle)),
            _ => set(self.streamed.lock().get_mut(handle)),
        }
    }

    fn with<T>(&self, handle: Handle, look: impl FnOnce(&Open) -> T) -> Result<T> {
        match handle.index & STREAMED_HANDLE {
            0 => self.open.lock().get(handle).map(|(open, _)| look(open)),
            _ => self
                .streamed
                .lock()
                .get(handle)
                .map(|(open, _)| look(open))
                .map_err(|_| self.unknown_handle()),
        }
    }

    /// The error for a streamed handle that is not known.
    fn unknown_handle(&self) -> Errno {
        match self.lost.load(Ordering::Acquire) {
            true => Errno::EIO,
            false => Errno::EBADF,
        }
    }

    /// What a handle means. `EBADF` when nothing.
    pub(super) fn get(&self, handle: Handle) -> Result<Open> {
        self.with(handle, Open::clone)
    }

    /// Takes an open file or directory out.
    pub(super) fn remove(&self, handle: Handle) -> Result<Open> {
        match handle.index & STREAMED_HANDLE {
            0 => self.open.lock().remove(handle),
            _ => self.streamed.lock().remove(handle),
        }
        .map(|(open, _)| open)
    }

    /// The open regular file of a handle. `EISDIR` for a directory.
    pub(super) fn file(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        self.lockable(handle)?.whole()
    }

    /// As [`OpenFiles::file`], to be locked: whether or not it has lost bytes.
    pub(super) fn lockable(&self, handle: Handle) -> Result<Arc<OpenFile>> {
        self.with(handle, |open| match open {
            Open::File { file, .. } => Ok(file.clone()),
            Open::Dir { .. } => Err(Errno::EISDIR),
        })?
    }

    /// The inode of a handle.
    pub(super) fn node(&self, handle: Handle) -> Result<Node> {
        self.with(handle, |open| open.node().clone())
    }

    /// Whether the client has a file open that it made by its stream.
    pub(super) fn has_streamed(&self, node: &Node) -> bool {
        self.streamed.lock().values().any(|(open, _)| open.file_of(node).is_some())
    }

    /// The open file of an inode, if there is one and no more.
    pub(super) fn sole_file(&self, node: &Node) -> Option<Arc<OpenFile>> {
        let file = |(open, _): &Charged| open.file_of(node).cloned();
        let mut files: Vec<_> = self.open.lock().values().filter_map(file).collect();
        files.extend(self.streamed.lock().values().filter_map(file));
        files.pop().filter(|_| files.is_empty())
    }

    /// The inode that a path starts from.
    pub(super) fn start(&self, connection: &Connection, start: Start) -> Result<Node> {
        match start {
            Start::Root => Ok(connection.root()),
            Start::Dir(handle) => self.node(handle),
        }
    }

    /// The directory of a handle opened for listing, opened now if it was not yet.
    pub(super) fn listing(&self, connection: &Connection, handle: Handle) -> Result<Arc<OpenFile>> {
        let node = match self.get(handle)? {
            Open::Dir { listing: Some(file), .. } => return Ok(file),
            Open::Dir { node, .. } => node,
            Open::File { .. } => return Err(Errno::ENOTDIR),
        };
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let file = connection.lane.vfs.open(&connection.ctx(), &node, flags)?;
        if let Ok((Open::Dir { listing, .. }, _)) = self.open.lock().get_mut(handle) {
            *listing = Some(file.clone());
        }
        Ok(file)
    }

    /// Closes everything; nothing can be opened again.
    pub(super) fn end(&self) {
        let (open, streamed) = (self.open.lock().close(), self.streamed.lock().close());
        drop((open, streamed));
    }
}

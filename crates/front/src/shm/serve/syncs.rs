//! Syncs: whole; or a half, of which the rest is left to a thread that commits the same.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_vfs::fs::{OnSynced, SyncLeft};
use polylane_vfs::{HalfSynced, OpenFile};

use super::{Answer, Call, Failure, can_show, done};
use crate::lane::notifier::Range;
use crate::shm::request::Handle;
use crate::shm::session::Session;

/// Most dirty bytes of a file that a worker syncs while others wait for it.
const SYNC_BYTES_MAX: u64 = 64 << 10;

/// Most dirty bytes of a file that a worker's thread syncs at all. More take CPU time, too, and
/// the thread runs where the one does that serves meanwhile.
const AWAY_BYTES_MAX: u64 = 1 << 20;

/// A sync whose data the file system has, and that is to become durable.
pub(in crate::shm) struct Half {
    file: Arc<OpenFile>,
    handle: Handle,
    data_only: bool,
    /// The client had the file on loan to write, which ended with this.
    lent: bool,
    half: HalfSynced,
}

/// The thread that is to end a sync that is half done.
pub(in crate::shm) enum Left {
    /// None: it has ended like this.
    Ended(Half, Result<()>),
    /// Another thread.
    ToAnother,
    /// The one that asks.
    ToCaller(Half),
}

impl Half {
    /// Leaves the rest to a thread that makes the same durable, if there is one: then what `told`
    /// makes of this is called when that is over.
    pub(in crate::shm) fn leave(self, told: impl Fn(Half) -> OnSynced) -> Left {
        let (file, data_only) = (self.file.clone(), self.data_only);
        let mut half = Some(self);
        let left = file.leave_sync(data_only, &mut || match half.take() {
            Some(half) => told(half),
            None => Box::new(|_| {}),
        });
        match (half, left) {
            (None, _) => Left::ToAnother,
            (Some(half), Ok(SyncLeft::ToAnother | SyncLeft::ToCaller)) => Left::ToCaller(half),
            (Some(half), ended) => Left::Ended(half, ended.map(|_| ())),
        }
    }

    /// Does the rest. Waits for the device.
    pub(in crate::shm) fn serve(self, session: &Session) -> Answer {
        let Half { file, handle, data_only, lent, half } = self;
        let (ctx, syncs) = (session.connection.ctx(), &session.connection.lane.syncs);
        syncs.of(true, || file.sync_rest(&ctx, data_only, half))?;
        synced(session, handle, &file, lent)
    }

    /// The rest is over, and ended like this.
    pub(in crate::shm) fn end(self, session: &Session, rest: Result<()>) -> Answer {
        self.file.end_sync(self.half, rest)?;
        synced(session, self.handle, &self.file, self.lent)
    }
}

/// The file is durable: its client has it on loan again, and hears of what it streamed.
fn synced(session: &Session, handle: Handle, file: &OpenFile, lent: bool) -> Answer {
    if lent && can_show(session) {
        session.rights().lend_again(handle, file);
    }
    session.rights().streamed_well()?;
    Ok(done(0))
}

impl Call<'_> {
    pub(super) fn fsync(&mut self, handle: Handle, data_only: bool) -> Answer {
        let file = self.session.files.file(handle);
        let file = match file {
            Err(Errno::EISDIR) => self.session.files.listing(&self.session.connection, handle)?,
            other => other?,
        };
        self.before_io(file.node(), Range::ALL)?;
        let lent = self.session.rights().is_lent(handle);
        if self.may_leave(&file) {
            let half = file.begin_sync(data_only, true)?;
            self.half = Some(Half { file, handle, data_only, lent, half });
            return Err(Failure::Leave);
        }
        self.before_sync(&file, 0)?;
        self.sync_file(&file, data_only)?;
        synced(self.session, handle, &file, lent)
    }

    /// Whether a sync can go on its way here: one that has nothing to write, since what it is of
    /// may be durable, and a small one to be left to a thread that commits the same. Where syncs
    /// are quick the worker does the former whole.
    fn may_leave(&self, file: &OpenFile) -> bool {
        let idle = || !file.has_to_write() && !self.session.connection.lane.syncs.are_quick();
        let small = || file.dirty_bytes() <= SYNC_BYTES_MAX && self.vfs().takes_syncs();
        !self.may_block && (idle() || small())
    }

    /// Before a file is synced that `more` bytes are written to first: others are to be served
    /// meanwhile, unless it takes less than a wake-up, as on a fast medium.
    pub(super) fn before_sync(
        &mut self,
        file: &OpenFile,
        more: u64,
    ) -> std::result::Result<(), Failure> {
        let dirty = file.dirty_bytes() + more;
        let quick = dirty <= SYNC_BYTES_MAX && self.session.connection.lane.syncs.are_quick();
        match dirty {
            _ if quick && !self.may_block => Ok(()),
            ..=AWAY_BYTES_MAX => self.device().map_err(|_| Failure::Wait),
            _ => self.device(),
        }
    }

    pub(super) fn sync_file(&self, file: &OpenFile, data_only: bool) -> Result<()> {
        self.session
            .connection
            .lane
            .syncs
            .of(file.has_to_write(), || file.fsync(&self.ctx(), data_only))
    }

    pub(super) fn sync(&mut self) -> Answer {
        self.device()?;
        self.vfs().sync(&self.ctx())?;
        self.session.rights().streamed_well()?;
        Ok(done(0))
    }
}

//! Syncs: whole; or a half, of which the rest is left to a thread that commits the same.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};
use polylane_vfs::fs::{OnSynced, SyncLead, SyncLeft};
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

/// What is left of a sync that its worker does not end.
pub(in crate::shm) enum Rest {
    /// To make durable what the file system has.
    Half(Half),
    /// All of it.
    Whole(Whole),
}

/// A sync whose data the file system has, and that is to become durable.
pub(in crate::shm) struct Half {
    file: Arc<OpenFile>,
    data_only: bool,
    half: HalfSynced,
    /// Others may leave theirs to it.
    lead: Option<SyncLead>,
}

/// A sync of which nothing was done but to end the file's loan.
pub(in crate::shm) struct Whole {
    file: Arc<OpenFile>,
    handle: Handle,
    data_only: bool,
    /// The client had the file on loan to write.
    lent: bool,
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

/// Makes a file durable. Waits for the device.
pub(super) fn sync_file(session: &Session, file: &OpenFile, data_only: bool) -> Result<()> {
    let connection = &session.connection;
    connection.lane.syncs.of(file.has_to_write(), || file.fsync(&connection.ctx(), data_only))
}

impl Rest {
    /// Does it. Waits for the device.
    pub(in crate::shm) fn serve(self, session: &Session) -> Answer {
        let connection = &session.connection;
        match self {
            Rest::Half(Half { file, data_only, half, lead }) => {
                let rest = || match lead.map_or(Ok(()), SyncLead::keep) {
                    // The rest finds most of it done.
                    Ok(()) => file.sync_rest(&connection.ctx(), data_only, half),
                    failed => file.end_sync(half, failed),
                };
                connection.lane.syncs.of(true, rest)?;
            }
            Rest::Whole(Whole { file, handle, data_only, lent }) => {
                sync_file(session, &file, data_only)?;
                lend_again(session, handle, &file, lent);
            }
        }
        session.rights().streamed_well()?;
        Ok(done(0))
    }
}

impl Whole {
    /// Whether it takes too much CPU time for a worker's thread.
    pub(in crate::shm) fn is_long(&self) -> bool {
        self.file.dirty_bytes() > AWAY_BYTES_MAX
    }
}

impl Half {
    /// Has others leave theirs to the calling thread, if no other makes the same durable. It serves
    /// the rest next, and nothing else before.
    pub(in crate::shm) fn lead(&mut self) {
        self.lead = self.file.lead_sync(self.data_only);
    }

    /// Leaves the rest to a thread that makes the same durable, if there is one: then what `told`
    /// makes of this is called when that is over.
    pub(in crate::shm) fn leave(self, mut told: impl FnMut(Half) -> OnSynced) -> Left {
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

    /// The rest is over, and ended like this: what to answer, and the file. Takes no lock that is
    /// held for long, as others wait for the thread that tells.
    pub(in crate::shm) fn end(
        self,
        session: &Session,
        rest: Result<()>,
    ) -> (Answer, Arc<OpenFile>) {
        let Half { file, half, .. } = self;
        let synced = file.end_sync(half, rest).and_then(|()| session.rights().streamed_well());
        (synced.map(|()| done(0)).map_err(Failure::Errno), file)
    }
}

/// The file system has all of a file, which its client had on loan if `lent`: it has it again.
fn lend_again(session: &Session, handle: Handle, file: &OpenFile, lent: bool) {
    if lent && can_show(session) {
        session.rights().lend_again(handle, file);
    }
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
        // What was written on loan counts as dirty from here on.
        self.vfs().end_loan_of(file.node());
        if self.device().is_ok() || self.is_quick(&file, 0) {
            return Rest::Whole(Whole { file, handle, data_only, lent }).serve(self.session);
        }
        let begun = match self.may_leave(&file, data_only) {
            true => file.try_begin_sync()?,
            false => None,
        };
        self.rest = Some(match begun {
            Some(half) => {
                // Before another thread has the rest: it must not wait for the file's locks.
                lend_again(self.session, handle, &file, lent);
                Rest::Half(Half { file, data_only, half, lead: None })
            }
            None => Rest::Whole(Whole { file, handle, data_only, lent }),
        });
        Err(Failure::Leave)
    }

    /// Whether the first half of a sync can be done here: of one that has nothing to write, since
    /// what it is of may be durable, and of a small one that commits, or can be left to a thread
    /// that does: not of one whose bytes may go to their place durably.
    fn may_leave(&self, file: &OpenFile, data_only: bool) -> bool {
        let small = || file.dirty_bytes() <= SYNC_BYTES_MAX && file.sync_commits(data_only);
        !file.has_to_write() || small()
    }

    /// Whether to sync a file, to which `more` bytes are written first, takes less than a wake-up,
    /// as on a fast medium.
    fn is_quick(&self, file: &OpenFile, more: u64) -> bool {
        let small = file.dirty_bytes() + more <= SYNC_BYTES_MAX;
        small && self.session.connection.lane.syncs.are_quick()
    }

    /// Before a file is synced that `more` bytes are written to first: others are to be served
    /// meanwhile, unless it takes less than a wake-up, as on a fast medium.
    pub(super) fn before_sync(
        &mut self,
        file: &OpenFile,
        more: u64,
    ) -> std::result::Result<(), Failure> {
        match file.dirty_bytes() + more {
            _ if !self.may_block && self.is_quick(file, more) => Ok(()),
            ..=AWAY_BYTES_MAX => self.device().map_err(|_| Failure::Wait),
            _ => self.device(),
        }
    }

    pub(super) fn sync(&mut self) -> Answer {
        self.device()?;
        self.vfs().sync(&self.ctx())?;
        self.session.rights().streamed_well()?;
        Ok(done(0))
    }
}

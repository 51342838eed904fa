//! From the records of a former service to a session's open files and locks.

use polylane_vfs::handover::{self, Kind};

use super::handles::{HANDLE_FILE, HANDLE_SECOND, HANDLE_SLOT, HANDLE_TAG, Handle};
use super::locks;
use super::session::Session;
use crate::lane;
use crate::lane::nodes::Target;
use crate::lane::record::Record;

/// Goes on with the open files and the locks of a former service.
pub(super) fn restore(session: &Session) {
    let Some(handover) = &session.lane.handover else { return };
    for record in handover.take(Kind::Handle) {
        let kept = Record::adopt(&handover.store, &record);
        if let Some(handle) = open_again(session, &record, kept) {
            if let Some(file) = &handle.opened {
                handover.reopen(record.words[HANDLE_TAG], file);
            }
            session.handles.restore(record.words[0], handle);
        }
    }
    for record in handover.take(Kind::Lock) {
        session.lane.kept.restore(&record, |given| locks::lock_again(session, given));
    }
    handover.end_reopening();
    session.lane.vfs.end_revival();
}

/// A handle of a former service; `None`: its file cannot be found again.
fn open_again(session: &Session, from: &handover::Record, record: Record) -> Option<Handle> {
    let [_, node_id, flags, which, ino, generation, _] = from.words;
    let slot = match which {
        HANDLE_SLOT | HANDLE_SECOND => match session.lane.nodes.get(node_id) {
            Ok(Target::Slot(slot)) => Some(slot),
            _ => return None,
        },
        _ => None,
    };
    let opened = match which {
        HANDLE_FILE | HANDLE_SECOND => {
            let handover = session.lane.handover.as_ref()?;
            Some(lane::restore::open(&session.lane.vfs, handover, flags, (ino, generation))?)
        }
        _ => None,
    };
    // The kernel may have pages of whatever is open: nobody knows any more.
    match &slot {
        Some(slot) => {
            session.lane.slots.opened(slot);
            session.lane.slots.has_pages(slot);
        }
        None if which == HANDLE_FILE => {
            let flags = opened.as_ref().map_or(0, |file| file.flags());
            session.lane.nodes.opened(node_id, session.way(flags));
            session.lane.nodes.has_pages(node_id);
            if let Some(file) = &opened {
                session.lane.nodes.tell_size(node_id, file.size());
            }
        }
        None => {}
    }
    Some(Handle::again(node_id, opened, slot, record))
}

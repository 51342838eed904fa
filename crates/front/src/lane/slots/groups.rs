//! Whose groups count where the kernel tells one of a writer's: those of processes with sessions.

use polylane_base::sync::{Arc, Weak};
use polylane_base::{Gid, Uid};

use super::{Slot, SlotTable};

impl SlotTable {
    /// The supplementary groups of the process whose slot it is, if its session is this user's;
    /// none once that ended.
    pub(crate) fn groups(&self, slot: &Slot, user: Uid) -> Arc<[Gid]> {
        match self.session(slot.session) {
            Ok(session) if session.user == user => session.groups.clone(),
            Ok(_) | Err(_) => Arc::new([]),
        }
    }

    /// The supplementary groups of the process whose first thread this is, if the session that it
    /// has is this user's; none otherwise. A process may have sessions of several users, one after
    /// the other, of which the groups are not the same.
    pub(crate) fn groups_of(&self, thread: u32, user: Uid) -> Arc<[Gid]> {
        let sessions = self.sessions.lock();
        let mut sessions = sessions.values().filter_map(Weak::upgrade);
        let own = sessions.find(|one| one.user == user && one.process.is_first(thread));
        own.map_or_else(|| Arc::new([]) as Arc<[Gid]>, |session| session.groups.clone())
    }
}

//! Whose groups count where the kernel tells one of a writer's: those of processes with sessions.

use polylane_base::Gid;
use polylane_base::sync::{Arc, Weak};

use super::{Slot, SlotTable};

impl SlotTable {
    /// The supplementary groups of the process whose slot it is; none once its session ended.
    pub(crate) fn groups(&self, slot: &Slot) -> Arc<[Gid]> {
        match self.session(slot.session) {
            Ok(session) => session.groups.clone(),
            Err(_) => Arc::new([]),
        }
    }

    /// The supplementary groups of the process whose first thread this is; none without a session.
    pub(crate) fn groups_of(&self, thread: u32) -> Arc<[Gid]> {
        let sessions = self.sessions.lock();
        let mut sessions = sessions.values().filter_map(Weak::upgrade);
        let own = sessions.find(|session| session.process.is_first(thread));
        own.map_or_else(|| Arc::new([]) as Arc<[Gid]>, |session| session.groups.clone())
    }
}

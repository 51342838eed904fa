//! Stand-ins: files that have the marks of files which can have none.
//!
//! In the `user.` name space no symbolic link, FIFO, socket or device has attributes. One of them
//! that has several names in the lowers is entered in the index (`links.rs`), and beside its entry
//! is an empty file called by the same number and [`SUFFIX`], with the marks `polylane` and
//! `nlink`. The entry is a link to the inode, so the upper's number of it is no other's meanwhile;
//! which inode a stand-in is for is looked up when the union is opened.
//!
//! A cut leaves a stand-in without an entry at most, which goes when the union is opened.

use polylane_base::Ino;
use polylane_base::sync::Mutex;
use rustc_hash::FxHashMap;

use crate::layer::Held;

/// What the name of a stand-in has after that of the entry.
pub(crate) const SUFFIX: &[u8] = b".marks";

struct StandIn {
    marks: Held,
    /// What it is for, whose number does not change while it is held.
    _of: Held,
}

/// The stand-ins of an upper, by the number in the upper of what they are for.
#[derive(Default)]
pub(crate) struct StandIns(Mutex<FxHashMap<Ino, StandIn>>);

impl StandIns {
    /// The one for an inode.
    pub(crate) fn get(&self, of: Ino) -> Option<Held> {
        self.0.lock().get(&of).map(|it| it.marks.clone())
    }

    pub(crate) fn put(&self, of: Held, marks: Held) {
        let former = self.0.lock().insert(of.ino(), StandIn { marks, _of: of });
        drop(former);
    }

    /// Whether there was one.
    pub(crate) fn remove(&self, of: Ino) -> bool {
        let former = self.0.lock().remove(&of);
        former.is_some()
    }

    pub(crate) fn clear(&self) {
        let former = std::mem::take(&mut *self.0.lock());
        drop(former);
    }
}

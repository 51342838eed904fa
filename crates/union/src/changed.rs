//! Files of lowers that changed after files of the upper were partly copied up from them.
//!
//! Such a file is an error to its reader, which does not tell him why: the union's owner is told
//! which file it is, once.

use std::sync::OnceLock;

use polylane_base::Errno;
use polylane_base::sync::Mutex;
use rustc_hash::FxHashSet;

use crate::node::{Lower, Node};
use crate::{Act, Union};

/// Most files that are remembered as told of.
const TOLD_MAX: usize = 1000;

/// Is told of a changed file: the place of its lower, 0 for the uppermost, data-only ones after the
/// others; and its path there from the root, with `/` before each name.
type Tell = Box<dyn Fn(usize, &[u8]) + Send + Sync>;

/// The watcher that is told, and of what it was.
#[derive(Default)]
pub(crate) struct Changed {
    tell: OnceLock<Tell>,
    told: Mutex<FxHashSet<(usize, Vec<u8>)>>,
}

impl Union {
    /// Has `tell` told, once for each, of files of lowers that changed after files of the upper
    /// were partly copied up from them. Only the first call counts.
    pub fn on_changed_lower(&self, tell: impl Fn(usize, &[u8]) + Send + Sync + 'static) {
        drop(self.changed.tell.set(Box::new(tell)));
    }
}

impl Act<'_> {
    /// The answer for a file whose data in a lower is not what it was.
    pub(crate) fn changed_below(&self, lower: &Lower, path: &[u8]) -> Errno {
        let Changed { tell, told } = &self.changed;
        if let Some(tell) = tell.get() {
            let is_new = {
                let mut told = told.lock();
                told.len() < TOLD_MAX && told.insert((lower.index, path.to_vec()))
            };
            if is_new {
                tell(lower.index, path);
            }
        }
        Errno::EIO
    }

    /// The same for an open file.
    pub(crate) fn changed_under(&self, node: &Node) -> Errno {
        let lower = node.data.as_ref().or(node.lowers.first());
        lower.map_or(Errno::EIO, |lower| self.changed_below(lower, &node.lower_path))
    }
}

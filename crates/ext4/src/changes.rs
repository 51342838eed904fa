//! Changes under way, which closing waits for.
//!
//! Whoever closes a file system believes that nobody uses it any more. A last reference that some
//! other thread drops in that moment frees an inode all the same: half before the image is called
//! clean, half after. So every change is counted while it lasts, closing waits until none is left,
//! and none begins after that.

use std::time::Duration;

use polylane_base::sync::atomic::{AtomicU64, Ordering};
use polylane_base::sync::{Condvar, Mutex};

/// No change begins any more.
const SHUT: u64 = 1 << 63;

/// How often the waiting look whether they wait in vain.
const PAUSE: Duration = Duration::from_millis(10);

/// How many changes are under way, and whether others may begin. Thread-safe.
#[derive(Default)]
pub(crate) struct Changes {
    /// The count, and [`SHUT`].
    word: AtomicU64,
    lock: Mutex<()>,
    /// The last one ended after they were shut out.
    none: Condvar,
}

/// A change under way.
pub(crate) struct Change<'a>(&'a Changes);

impl Changes {
    /// Begins one; `None` once they are shut out.
    pub(crate) fn begin(&self) -> Option<Change<'_>> {
        let change = Change(self);
        // Counted before the look: who shuts them out waits for it, or it sees that.
        match self.word.fetch_add(1, Ordering::SeqCst) & SHUT {
            0 => Some(change),
            _ => None,
        }
    }

    /// Lets none begin from now on and waits until none is left. False when `in_vain` said, while
    /// some were left, that they may not end.
    pub(crate) fn shut(&self, in_vain: impl Fn() -> bool) -> bool {
        self.word.fetch_or(SHUT, Ordering::SeqCst);
        let mut guard = self.lock.lock();
        while self.word.load(Ordering::SeqCst) != SHUT {
            if in_vain() {
                return false;
            }
            guard = self.none.wait_timeout(guard, PAUSE);
        }
        true
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.0.word.fetch_sub(1, Ordering::SeqCst) == SHUT | 1 {
            drop(self.0.lock.lock());
            self.0.none.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    #[test]
    fn shutting_waits_for_what_began_and_lets_nothing_begin() {
        let (changes, ended) = (Changes::default(), AtomicBool::new(false));
        let change = changes.begin().expect("open");
        thread::scope(|scope| {
            let shut = scope.spawn(|| {
                assert!(changes.shut(|| false));
                assert!(ended.load(Ordering::SeqCst), "before the change had ended");
            });
            while changes.begin().is_some() {
                thread::yield_now();
            }
            ended.store(true, Ordering::SeqCst);
            drop(change);
            shut.join().expect("waits");
        });
        assert!(changes.begin().is_none());
        assert!(changes.shut(|| true), "a second time");
    }

    #[test]
    fn who_waits_in_vain_gives_up() {
        let changes = Changes::default();
        let _change = changes.begin().expect("open");
        assert!(!changes.shut(|| true));
    }
}

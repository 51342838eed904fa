//! Which threads apply a stream just now: what they do for it may lead them to a file whose loan
//! ends, and they must not wait for a stream there.

use polylane_base::sync::Mutex;
use polylane_base::sync::thread::{self, ThreadId};

/// The threads of one lane. Thread-safe; its lock is a leaf.
#[derive(Default)]
pub struct Appliers(Mutex<Vec<ThreadId>>);

impl Appliers {
    /// The calling thread is one, as long as what is returned lives; it is one once at a time.
    pub(super) fn enter(&self) -> Applies<'_> {
        self.0.lock().push(thread::current().id());
        Applies(self)
    }

    /// Whether the calling thread is one.
    pub(super) fn has_this(&self) -> bool {
        self.0.lock().contains(&thread::current().id())
    }
}

/// See [`Appliers::enter`].
pub(super) struct Applies<'a>(&'a Appliers);

impl Drop for Applies<'_> {
    fn drop(&mut self) {
        let this = thread::current().id();
        self.0.0.lock().retain(|applier| *applier != this);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_one_while_it_says_so() {
        let appliers = Appliers::default();
        assert!(!appliers.has_this());
        let applies = appliers.enter();
        assert!(appliers.has_this());
        thread::scope(|scope| {
            scope.spawn(|| assert!(!appliers.has_this()));
        });
        drop(applies);
        assert!(!appliers.has_this());
    }
}

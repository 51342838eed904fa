//! The threads that a session begins with: its readers, and what ends a former service's affairs.

use std::collections::VecDeque;
use std::io;

use polylane_base::sync::thread;

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum First {
    Reader(usize),
    /// Has the kernel drop what a former service left it.
    Stale,
    /// Ends old requests that a former service did not answer.
    Old,
}

impl First {
    /// All of a session, readers first.
    pub(super) fn all(readers: usize, follows: bool, old: bool) -> VecDeque<First> {
        let others = [(First::Stale, follows), (First::Old, old)];
        let others = others.into_iter().filter_map(|(first, there)| there.then_some(first));
        (0..readers.max(1)).map(First::Reader).chain(others).collect()
    }
}

/// A thread that ends with what it says.
pub(super) type Thread<'scope> = thread::ScopedJoinHandle<'scope, io::Result<()>>;

/// Those that run, and those that are still to be started.
pub(super) struct Firsts<'scope, B> {
    left: VecDeque<First>,
    /// Starts one.
    begin: B,
    threads: Vec<Thread<'scope>>,
}

impl<'scope, B> Firsts<'scope, B>
where
    B: FnMut(First) -> io::Result<Thread<'scope>>,
{
    pub(super) fn new(all: VecDeque<First>, begin: B) -> Self {
        Firsts { left: all, begin, threads: Vec::new() }
    }

    /// Starts those that do not run yet, in order. An error: one cannot be started now, and those
    /// that follow were not tried.
    pub(super) fn begin_left(&mut self) -> io::Result<()> {
        while let Some(first) = self.left.front() {
            self.threads.push((self.begin)(*first)?);
            self.left.pop_front();
        }
        Ok(())
    }

    /// Whether the kernel's requests are read.
    pub(super) fn any_reader(&self) -> bool {
        !self.threads.is_empty()
    }

    /// Waits for all that run; the last error of one.
    pub(super) fn join(self) -> io::Result<()> {
        let errors = self.threads.into_iter().filter_map(|thread| match thread.join() {
            Ok(result) => result.err(),
            Err(_panic) => Some(io::Error::other("a thread of the FUSE session panicked")),
        });
        errors.last().map_or(Ok(()), Err)
    }
}

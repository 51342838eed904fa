//! The translation unit: a job queue and the few threads that work on it, for all lanes.
//!
//! Jobs go to the host's file system, whose journal and maps are shared by all volumes: few
//! threads, bound to cores that are near each other, meet there less often than one per lane would
//! (MultiLanes §3.3.2; `bench run translate` measures it). Flushes are not among the jobs, so no
//! miss ever waits behind one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use polylane_base::sync::{Condvar, Mutex, thread};
use polylane_sys::cpu;

/// How the unit works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitOptions {
    /// Threads; 1 at least.
    pub threads: usize,
    /// The CPUs that all of them are bound to; empty: wherever the scheduler likes.
    pub cpus: Vec<u32>,
}

impl Default for UnitOptions {
    fn default() -> Self {
        UnitOptions { threads: 1, cpus: Vec::new() }
    }
}

/// What is to be done with a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Find out where it lies, and its followers.
    Translate,
    /// The same, to the end of the volume.
    Survey,
    /// Make its space.
    Allocate,
}

/// A volume whose chunks are worked on.
pub(crate) trait Worked: Send + Sync {
    /// Does a job on a chunk; a survey's next one.
    fn run(&self, work: Work, chunk: u64) -> Option<u64>;
}

/// A job: some work on a chunk of a volume.
pub(crate) struct Job {
    pub(crate) lane: Arc<dyn Worked>,
    pub(crate) work: Work,
    pub(crate) chunk: u64,
}

#[derive(Default)]
struct Queue {
    /// Jobs that a request waits for.
    awaited: VecDeque<Job>,
    /// These are done when nothing else is.
    ahead: VecDeque<Job>,
    stopping: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// The unit. Threads end when it is dropped, after the job that each is at.
pub struct Unit {
    shared: Arc<Shared>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Unit {
    /// Starts the threads.
    ///
    /// # Errors
    /// The host's, for a thread that cannot be started or bound.
    pub fn start(options: &UnitOptions) -> io::Result<Arc<Unit>> {
        let shared = Arc::<Shared>::default();
        let mut unit = Unit { shared, threads: Vec::new() };
        for number in 0..options.threads.max(1) {
            let (shared, cpus) = (unit.shared.clone(), options.cpus.clone());
            let (bound, outcome) = std::sync::mpsc::channel();
            let body = move || {
                let result = if cpus.is_empty() { Ok(()) } else { cpu::pin(&cpus) };
                let failed = result.is_err();
                let _ = bound.send(result);
                if !failed {
                    work(&shared);
                }
            };
            let name = format!("translate-{number}");
            unit.threads.push(thread::Builder::new().name(name).spawn(body)?);
            match outcome.recv() {
                Ok(result) => result.map_err(io::Error::from)?,
                Err(_) => return Err(io::Error::other("a translation thread did not start")),
            }
        }
        Ok(Arc::new(unit))
    }

    /// Takes a job in.
    pub(crate) fn push(&self, job: Job, awaited: bool) {
        let mut queue = self.shared.queue.lock();
        match awaited {
            true => queue.awaited.push_back(job),
            false => queue.ahead.push_back(job),
        }
        drop(queue);
        self.shared.wake.notify_one();
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        self.shared.queue.lock().stopping = true;
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    while let Some(job) = next(shared) {
        let following = job.lane.run(job.work, job.chunk);
        if let Some(chunk) = following {
            let mut queue = shared.queue.lock();
            queue.ahead.push_back(Job { chunk, ..job });
        }
    }
}

fn next(shared: &Shared) -> Option<Job> {
    let mut queue = shared.queue.lock();
    loop {
        if queue.stopping {
            return None;
        }
        let awaited = queue.awaited.pop_front();
        if let Some(job) = awaited.or_else(|| queue.ahead.pop_front()) {
            return Some(job);
        }
        queue = shared.wake.wait(queue);
    }
}

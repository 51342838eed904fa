//! Changes that are going on or are over, as requests find them again.
//!
//! Changes of one object come one after the other, in the order in which they were asked for;
//! those of others go on meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use polylane_base::sync::{Arc, Mutex};
use serde_json::{Value, json};
use tokio::sync::{Mutex as Turn, watch};

use crate::caller::Caller;
use crate::command::{Messages, Program, TIME_MAX};
use crate::events::Events;
use crate::places::{Limits, Place, Places};
use crate::refusal::Refusal;
use crate::verbs::Change;

/// Most changes that go on or wait at a time, by who asked for them.
const RUNNING_MAX: Limits = Limits { of_a_kind: 64, each: 16 };

/// Most changes of one object, others' than the daemon's user's, that go on or wait: those of that
/// user come after them.
const OF_AN_OBJECT_MAX: usize = 4;

/// Most changes that are over and remembered.
const ENDED_MAX: usize = 256;

/// How long a request waits for its change: the answer comes within a second.
const WAIT: Duration = Duration::from_millis(800);

/// All tasks.
#[derive(Clone)]
pub(crate) struct Tasks(Arc<Shared>);

struct Shared {
    program: Program,
    events: Events,
    running: Places,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    last: u64,
    tasks: BTreeMap<u64, Arc<Task>>,
    /// For each object that changes wait for.
    turns: HashMap<String, Arc<Turn<()>>>,
}

/// How a change ended; `None`: it goes on.
type Outcome = Option<Result<(), Refusal>>;

/// One change.
pub(crate) struct Task {
    id: u64,
    verb: &'static str,
    object: String,
    start: Instant,
    messages: Messages,
    outcome: watch::Sender<Outcome>,
    /// When it ended.
    end: Mutex<Option<Instant>>,
}

impl Tasks {
    pub(crate) fn new(program: Program, events: Events) -> Tasks {
        let running = Places::new(RUNNING_MAX);
        Tasks(Arc::new(Shared { program, events, running, list: Mutex::default() }))
    }

    /// The program whose commands make changes.
    pub(crate) fn program(&self) -> &Program {
        &self.0.program
    }

    /// Starts a change.
    ///
    /// # Errors
    /// As many of this caller's, or of all callers of its kind, go on already as may be.
    pub(crate) fn start(&self, caller: Caller, change: Change) -> Result<Arc<Task>, Refusal> {
        let place = self.place(caller)?;
        if caller != Caller::Owner && self.waiting(&change.object()) >= OF_AN_OBJECT_MAX {
            return Err(Refusal::busy("as many changes of it wait as may: try again later"));
        }
        Ok(self.begin(change, TIME_MAX, Some(place)))
    }

    /// Starts a change of the daemon's own, which takes no caller's place, for a limited time.
    pub(crate) fn start_own(&self, change: Change, limit: Duration) -> Arc<Task> {
        self.begin(change, limit, None)
    }

    fn begin(&self, change: Change, limit: Duration, place: Option<Place>) -> Arc<Task> {
        let (task, turn) = self.enlist(&change);
        let (tasks, own) = (self.clone(), Arc::clone(&task));
        self.0.events.tell(&json!({ "event": "started", "task": task.describe() }));
        tokio::spawn(async move {
            let held = turn.lock().await;
            let outcome = change.make(&tasks.0.program, &own.messages, limit).await;
            drop(held);
            *own.end.lock() = Some(Instant::now());
            own.outcome.send_replace(Some(outcome));
            drop((turn, place));
            tasks.tidy_up(&own.object);
            tasks.0.events.tell(&json!({ "event": "ended", "task": own.describe() }));
        });
        task
    }

    /// How many changes of an object go on or wait.
    fn waiting(&self, object: &str) -> usize {
        let list = self.0.list.lock();
        // One of its owners is the list.
        list.turns.get(object).map_or(0, |turn| Arc::strong_count(turn) - 1)
    }

    fn place(&self, caller: Caller) -> Result<Place, Refusal> {
        let busy = || Refusal::busy("as many changes go on as may at a time: try again later");
        self.0.running.take(caller).ok_or_else(busy)
    }

    fn enlist(&self, change: &Change) -> (Arc<Task>, Arc<Turn<()>>) {
        let mut list = self.0.list.lock();
        list.last += 1;
        let task = Arc::new(Task {
            id: list.last,
            verb: change.verb(),
            object: change.object(),
            start: Instant::now(),
            messages: Messages::default(),
            outcome: watch::Sender::new(None),
            end: Mutex::new(None),
        });
        let turn = Arc::clone(list.turns.entry(task.object.clone()).or_default());
        list.tasks.insert(task.id, Arc::clone(&task));
        (task, turn)
    }

    /// Forgets an object that no change waits for, and the oldest of too many ended tasks.
    fn tidy_up(&self, object: &str) {
        let mut list = self.0.list.lock();
        if list.turns.get(object).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            list.turns.remove(object);
        }
        let ended = list.tasks.values().filter(|task| task.outcome().is_some());
        let ended: Vec<u64> = ended.map(|task| task.id).collect();
        for id in &ended[..ended.len().saturating_sub(ENDED_MAX)] {
            list.tasks.remove(id);
        }
    }

    pub(crate) fn find(&self, id: u64) -> Option<Arc<Task>> {
        self.0.list.lock().tasks.get(&id).cloned()
    }

    /// All of them, the oldest first.
    pub(crate) fn describe(&self) -> Value {
        let tasks: Vec<_> = self.0.list.lock().tasks.values().cloned().collect();
        tasks.iter().map(|task| task.describe()).collect()
    }
}

impl Task {
    fn outcome(&self) -> Outcome {
        self.outcome.borrow().clone()
    }

    /// Waits for its end for as long as a request may take; `None`: it goes on.
    pub(crate) async fn wait(&self) -> Outcome {
        tokio::time::timeout(WAIT, self.end()).await.ok()
    }

    /// Waits for its end.
    pub(crate) async fn end(&self) -> Result<(), Refusal> {
        let mut outcome = self.outcome.subscribe();
        match outcome.wait_for(Option::is_some).await {
            Ok(ended) => (*ended).clone().unwrap_or(Ok(())),
            Err(closed) => Err(Refusal::internal(&closed)),
        }
    }

    /// As a body: what it is about, how long it has taken, what its command said last, its error.
    pub(crate) fn describe(&self) -> Value {
        let (state, error) = match self.outcome() {
            None => ("running", Value::Null),
            Some(Ok(())) => ("done", Value::Null),
            Some(Err(refusal)) => ("failed", refusal.body()["error"].clone()),
        };
        let end = self.end.lock().unwrap_or_else(Instant::now);
        json!({
            "id": self.id,
            "verb": self.verb,
            "object": self.object,
            "state": state,
            "seconds": end.duration_since(self.start).as_secs_f64(),
            "progress": self.messages.last_line(),
            "error": error,
        })
    }
}

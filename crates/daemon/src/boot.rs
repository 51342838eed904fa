//! The desired state brought about: pools, then mounts, side by side, each for a limited time.
//!
//! A mount waits for those in which it lies, and for no others. One that takes long gives its place
//! to the next: sources that do not answer hold up nothing but what lies in their mounts.

use std::time::Duration;

use polylane_base::sync::Arc;
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::desired::Desired;
use crate::events::Events;
use crate::tasks::Tasks;
use crate::verbs::Change;

/// Most changes at a time, those that take long not counted.
const SIDE_BY_SIDE_MAX: usize = 16;

/// After so long a change takes long.
const LONG: Duration = Duration::from_secs(5);

/// How changes are made.
#[derive(Clone)]
struct Making {
    tasks: Tasks,
    places: Arc<Semaphore>,
    limit: Duration,
    report: fn(&str),
}

/// Whether a mount is there; `None`: that is not known yet.
type Outcome = Option<bool>;

/// Makes pools and mounts that are not there; what cannot be is reported and blocks nothing.
pub(crate) async fn bring_about(desired: Desired, tasks: Tasks, events: Events, report: fn(&str)) {
    let places = Arc::new(Semaphore::new(SIDE_BY_SIDE_MAX));
    let making = Making { tasks, places, limit: desired.daemon.time_limit(), report };
    let (mut pools, mut mounts) = (JoinSet::new(), JoinSet::new());
    for pool in desired.pools.clone() {
        let making = making.clone();
        pools.spawn(async move { making.make(Change::Pool(pool, None)).await });
    }
    ended(pools, report).await;
    let outcomes: Vec<watch::Sender<Outcome>> =
        desired.mounts.iter().map(|_| watch::Sender::new(None)).collect();
    let before: Vec<Vec<_>> = desired.mounts_before();
    let before = before.into_iter().map(|all| {
        let of = |other: usize| (desired.mounts[other].clone(), outcomes[other].subscribe());
        all.into_iter().map(of).collect::<Vec<_>>()
    });
    let before: Vec<_> = before.collect();
    for ((mount, before), outcome) in desired.mounts.iter().zip(before).zip(outcomes) {
        let (making, change) = (making.clone(), Change::Mount(mount.clone()));
        mounts.spawn(async move {
            for (other, mut outcome) in before {
                // What it lies in would be another file system.
                if !outcome.wait_for(Option::is_some).await.is_ok_and(|made| *made == Some(true)) {
                    let (object, other) = (change.object(), Change::Mount(other).object());
                    (making.report)(&format!("{object}: not tried, since {other} is not mounted"));
                    return;
                }
            }
            // Those that wait take a sender that is gone for a mount that is not there.
            outcome.send_replace(Some(making.make(change).await));
        });
    }
    ended(mounts, report).await;
    events.tell(&json!({ "event": "desired-state-tried" }));
}

async fn ended<T: 'static>(mut all: JoinSet<T>, report: fn(&str)) {
    while let Some(ended) = all.join_next().await {
        if let Err(error) = ended {
            report(&format!("desired state: {error}"));
        }
    }
}

impl Making {
    /// Whether a change could be made; what cannot is reported.
    async fn make(&self, change: Change) -> bool {
        let place = self.places.acquire().await;
        let object = change.object();
        let task = self.tasks.start_own(change, self.limit);
        let outcome = match tokio::time::timeout(LONG, task.end()).await {
            Ok(outcome) => outcome,
            Err(_) => {
                drop(place);
                task.end().await
            }
        };
        if let Err(refusal) = &outcome {
            (self.report)(&line(&object, &refusal.message));
        }
        outcome.is_ok()
    }
}

/// A line that names its object once.
fn line(object: &str, message: &str) -> String {
    match message.contains(object) {
        true => message.to_string(),
        false => format!("{object}: {message}"),
    }
}

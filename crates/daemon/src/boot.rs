//! The desired state brought about: pools, then mounts, side by side, each for a limited time.

use std::time::Duration;

use polylane_base::sync::Arc;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::caller::Caller;
use crate::desired::Desired;
use crate::events::Events;
use crate::refusal::Refusal;
use crate::tasks::Tasks;
use crate::verbs::Change;

/// Most changes at a time.
const SIDE_BY_SIDE_MAX: usize = 16;

/// How long a change waits where requests have taken all places.
const PAUSE: Duration = Duration::from_millis(200);

/// Makes pools and mounts that are not there; what cannot be is reported and blocks nothing.
pub(crate) async fn bring_about(desired: Desired, tasks: Tasks, events: Events, report: fn(&str)) {
    let steps = desired.steps();
    step(desired.pools.into_iter().map(Change::Pool), &tasks, report).await;
    for mounts in steps {
        step(mounts.into_iter().map(Change::Mount), &tasks, report).await;
    }
    events.tell(&json!({ "event": "desired-state-tried" }));
}

async fn step(changes: impl Iterator<Item = Change>, tasks: &Tasks, report: fn(&str)) {
    let places = Arc::new(Semaphore::new(SIDE_BY_SIDE_MAX));
    let mut waiting = JoinSet::new();
    for change in changes {
        let (tasks, places) = (tasks.clone(), Arc::clone(&places));
        waiting.spawn(async move {
            let _place = places.acquire().await;
            (change.object(), made(&tasks, change).await)
        });
    }
    while let Some(ended) = waiting.join_next().await {
        match ended {
            Ok((object, Err(refusal))) => report(&line(&object, &refusal.message)),
            Ok((_, Ok(()))) => {}
            Err(error) => report(&format!("desired state: {error}")),
        }
    }
}

async fn made(tasks: &Tasks, change: Change) -> Result<(), Refusal> {
    loop {
        match tasks.start(Caller::Owner, change.clone()) {
            Ok(task) => return task.end().await,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// A line that names its object once.
fn line(object: &str, message: &str) -> String {
    match message.contains(object) {
        true => message.to_string(),
        false => format!("{object}: {message}"),
    }
}

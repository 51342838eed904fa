//! What comes and goes on this host, as events: also what other commands did. Only while anyone
//! listens is it looked for.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::command::Program;
use crate::events::Events;
use crate::verbs::look;

/// How often it is looked.
const PERIOD: Duration = Duration::from_secs(1);

/// The kinds of things, the command that lists them, and their names in its JSON.
const KINDS: [(&str, &[&str], &str); 2] =
    [("pool", &["pool", "ls", "--json"], "pool"), ("mount", &["mount", "--json"], "path")];

/// Tells listeners what comes, changes and goes, for ever.
pub(crate) async fn watch(program: Program, events: Events) {
    let mut before: [Option<BTreeMap<String, Value>>; 2] = [None, None];
    loop {
        tokio::time::sleep(PERIOD).await;
        if !events.has_listeners() {
            before = [None, None];
            continue;
        }
        for ((kind, line, key), before) in KINDS.into_iter().zip(&mut before) {
            // One that cannot be read now is read the next time.
            let Ok(list) = look(&program, line).await else { continue };
            let now = by_name(&list, key);
            if let Some(before) = before {
                differences(kind, before, &now).iter().for_each(|event| events.tell(event));
            }
            *before = Some(now);
        }
    }
}

fn by_name(list: &Value, key: &str) -> BTreeMap<String, Value> {
    let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
    all.iter().filter_map(|one| Some((one[key].as_str()?.to_string(), one.clone()))).collect()
}

/// An event for each thing that is not as it was.
fn differences(
    kind: &str,
    before: &BTreeMap<String, Value>,
    now: &BTreeMap<String, Value>,
) -> Vec<Value> {
    let event =
        |what: &str, thing: &Value| json!({ "event": format!("{kind}-{what}"), kind: thing });
    let gone = before.iter().filter(|(name, _)| !now.contains_key(*name));
    let gone = gone.map(|(_, thing)| event("gone", thing));
    let came = now.iter().filter_map(|(name, thing)| match before.get(name) {
        None => Some(event("there", thing)),
        Some(former) => (former != thing).then(|| event("changed", thing)),
    });
    gone.chain(came).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_changes_and_goes_is_told() {
        let list = |list: Value| by_name(&list, "path");
        let one = |count| json!({ "path": "/a", "count": count });
        let (before, now) =
            (list(json!([one(1), { "path": "/b" }])), list(json!([{ "path": "/c" }, one(2)])));
        let told: Vec<String> = differences("mount", &before, &now)
            .iter()
            .map(|event| format!("{} {}", event["event"], event["mount"]["path"]).replace('"', ""))
            .collect();
        assert_eq!(told, ["mount-gone /b", "mount-changed /a", "mount-there /c"]);
        assert_eq!(differences("mount", &now, &now), Vec::<Value>::new());
        assert_eq!(list(json!({ "not": "a list" })), BTreeMap::new());
    }
}

//! What pools and attachments did between two looks at their counters: for `polylane top`.

use std::time::Duration;

use polylane_block::qos::lane::percentile;
use serde_json::Value;

use super::RUNNING;

/// A pool's or an attachment's doings in the time between two looks. What a lane does not have is
/// `None`: one in memory has no device, one without a policy no share, an attachment no files.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rates {
    /// The pool, or the attachment's device or socket.
    pub name: String,
    /// It is an attachment.
    pub attached: bool,
    /// Why it tells nothing: it is stopped, or does not answer.
    pub silent: Option<String>,
    /// Its weight.
    pub weight: Option<u64>,
    /// Its part of the device by weight, 0 to 1.
    pub entitled: Option<f64>,
    /// Its part of what was done on the device in the last second, 0 to 1.
    pub achieved: Option<f64>,
    /// The kernel holds its service back, since it did more than it said.
    pub bound: bool,
    /// Calls of the file system per second.
    pub operations: Option<f64>,
    /// Requests to the volume's device per second.
    pub iops: Option<f64>,
    /// Bytes read from it per second.
    pub read_bytes: Option<f64>,
    /// Bytes written to it per second.
    pub written_bytes: Option<f64>,
    /// Microseconds that half of its requests stayed below.
    pub p50_us: Option<f64>,
    /// Microseconds that 99 per cent of them stayed below.
    pub p99_us: Option<f64>,
    /// Microseconds that a request was held back, on average over all of them.
    pub held_us: Option<f64>,
    /// Part of the pages looked for that were in the lane's cache, or of the bytes in the
    /// attachment's, 0 to 1.
    pub hits: Option<f64>,
    /// Bytes of journals written past the volume's cache per second.
    pub bypassed_bytes: Option<f64>,
}

/// What the pools of `after` did since `before`; a pool that is new did nothing yet.
pub fn rates(before: &[Value], after: &[Value], elapsed: Duration) -> Vec<Rates> {
    let same = |old: &Value, new: &Value| names(old) == names(new);
    let earlier = |pool: &Value| before.iter().find(|old| same(old, pool));
    after.iter().map(|pool| Rates::between(earlier(pool).unwrap_or(pool), pool, elapsed)).collect()
}

impl Rates {
    /// From two answers of one pool. A service that was started again counts from nothing.
    fn between(before: &Value, after: &Value, elapsed: Duration) -> Rates {
        let restarted = before["service_restarts"] != after["service_restarts"];
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let grown = |pointer: &str| -> Option<f64> {
            let old = if restarted { 0.0 } else { number(before, pointer)? };
            Some((number(after, pointer)? - old).max(0.0))
        };
        let rate = |pointer: &str| grown(pointer).map(|count| count / seconds);
        let latencies = latencies(if restarted { &Value::Null } else { before }, after);
        let time = |part| percentile(latencies.as_deref()?, part).map(|ns| ns as f64 / 1e3);
        let of = |name: &str| grown(&format!("/service/{name}"));
        let hits = |hits: &str, misses: &str| hit_ratio(of(hits), of(misses));
        let attached = after["attachment"].is_string();
        let requests = grown("/service/share/requests").filter(|count| *count > 0.0);
        let held_ns = grown("/service/share/held_ns");
        Rates {
            name: names(after).into_iter().flatten().next().unwrap_or_default().to_string(),
            attached,
            silent: after["state"].as_str().filter(|state| *state != RUNNING).map(str::to_string),
            weight: after.pointer("/service/share/weight").and_then(Value::as_u64),
            entitled: number(after, "/service/share/entitled_part"),
            achieved: number(after, "/service/share/achieved_part"),
            bound: after.pointer("/share/bound").is_some_and(Value::is_object),
            operations: rate("/service/vfs/operations"),
            iops: sum([rate("/service/volume/reads"), rate("/service/volume/writes")]),
            read_bytes: rate("/service/volume/read_bytes"),
            written_bytes: rate("/service/volume/written_bytes"),
            p50_us: time(0.5),
            p99_us: time(0.99),
            held_us: requests.zip(held_ns).map(|(requests, ns)| ns / requests / 1e3),
            hits: match attached {
                true => hits("volume/cache/hit_bytes", "volume/cache/missed_bytes"),
                false => hits("vfs/page_hits", "vfs/page_misses"),
            },
            bypassed_bytes: rate("/service/volume/cache/bypassed_bytes"),
        }
    }
}

/// What a pool, or an attachment, is told apart by.
fn names(stats: &Value) -> [Option<&str>; 2] {
    ["pool", "attachment"].map(|name| stats[name].as_str())
}

fn number(stats: &Value, pointer: &str) -> Option<f64> {
    stats.pointer(pointer).and_then(Value::as_f64)
}

fn sum(parts: [Option<f64>; 2]) -> Option<f64> {
    parts.into_iter().flatten().reduce(|sum, part| sum + part)
}

fn hit_ratio(hits: Option<f64>, misses: Option<f64>) -> Option<f64> {
    let (hits, misses) = hits.zip(misses)?;
    (hits + misses > 0.0).then(|| hits / (hits + misses))
}

/// By bucket, how many requests were as fast.
fn latencies(before: &Value, after: &Value) -> Option<Vec<u64>> {
    let counts = |stats: &Value| -> Option<Vec<u64>> {
        let counts = stats.pointer("/service/share/latency_counts")?.as_array()?;
        Some(counts.iter().map(|count| count.as_u64().unwrap_or(0)).collect())
    };
    let (old, mut new) = (counts(before).unwrap_or_default(), counts(after)?);
    new.iter_mut().zip(old).for_each(|(new, old)| *new = new.saturating_sub(old));
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pool(reads: u64, fast: u64, hits: u64) -> Value {
        json!({
            "pool": "p", "weight": 7, "service_restarts": 0,
            "service": {
                "vfs": {"operations": 10 * reads, "page_hits": hits, "page_misses": 5},
                "volume": {"reads": reads, "writes": 1, "read_bytes": 4096 * reads,
                    "written_bytes": 0},
                "share": {"weight": 7, "entitled_part": 0.5, "achieved_part": 0.25,
                    "requests": reads, "held_ns": 3000 * reads, "latency_counts": [fast, 2]},
            },
        })
    }

    #[test]
    fn rates_are_differences_over_time() {
        let found = &rates(&[pool(10, 1, 5)], &[pool(30, 9, 5)], Duration::from_secs(2))[0];
        assert_eq!((found.iops, found.read_bytes), (Some(10.0), Some(40_960.0)));
        assert_eq!((found.operations, found.held_us), (Some(100.0), Some(3.0)));
        assert_eq!((found.entitled, found.achieved), (Some(0.5), Some(0.25)));
        assert_eq!(found.hits, None, "nothing was looked for");
        assert!(found.p99_us.is_some_and(|us| us < 0.5), "all were in the first bucket: {found:?}");
    }

    #[test]
    fn a_new_pool_did_nothing_and_a_new_service_counts_from_nothing() {
        let found = &rates(&[], &[pool(30, 9, 5)], Duration::from_secs(1))[0];
        assert_eq!((found.iops, found.p50_us), (Some(0.0), None));
        let mut after = pool(30, 9, 5);
        after["service_restarts"] = 1.into();
        let found = &rates(&[pool(70, 90, 7)], &[after], Duration::from_secs(1))[0];
        assert_eq!((found.iops, found.hits), (Some(31.0), Some(0.5)));
    }

    #[test]
    fn an_attachment_has_a_cache_and_no_files() {
        let attached = |hit: u64, bypassed: u64| {
            let cache = json!({"hit_bytes": hit, "missed_bytes": 512, "bypassed_bytes": bypassed});
            json!({"attachment": "/dev/loop1", "service_restarts": 0,
                "service": {"volume": {"reads": 1, "cache": cache}, "share": null}})
        };
        let (mut before, mut after) = (attached(0, 0), attached(1536, 8192));
        before["service"]["volume"]["cache"]["missed_bytes"] = 0.into();
        // A pool of this name is somebody else.
        let other = json!({"pool": "/dev/loop1", "service_restarts": 0});
        let looks = [[other, before], [json!({"pool": "p"}), after.clone()]];
        let found = &rates(&looks[0], &looks[1], Duration::from_secs(2))[1];
        assert_eq!((found.name.as_str(), found.attached), ("/dev/loop1", true));
        assert_eq!((found.hits, found.bypassed_bytes), (Some(0.75), Some(4096.0)));
        assert_eq!((found.operations, found.iops), (None, Some(0.0)));
        after["service"]["volume"]["cache"] = Value::Null;
        let found = &rates(&[], &[after], Duration::from_secs(2))[0];
        assert_eq!((found.hits, found.bypassed_bytes), (None, None));
    }

    #[test]
    fn a_lane_in_memory_has_no_device() {
        let stats = json!({"pool": "m", "service": {"vfs": {"operations": 3}, "share": null}});
        let found = &rates(&[], &[stats], Duration::from_secs(1))[0];
        assert_eq!((found.iops, found.entitled, found.p99_us), (None, None, None));
    }

    #[test]
    fn a_lane_that_is_held_back_by_the_kernel_shows() {
        let mut stats = pool(1, 1, 1);
        for (bound, shows) in [(Value::Null, false), (json!({"read_bytes": 1}), true)] {
            stats["share"] = json!({ "bound": bound });
            let found = &rates(&[], std::slice::from_ref(&stats), Duration::from_secs(1))[0];
            assert_eq!(found.bound, shows);
        }
    }
}

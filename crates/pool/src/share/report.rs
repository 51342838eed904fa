//! A lane's counters as JSON, for `stats` and `top`.

use std::sync::atomic::Ordering::Relaxed;

use polylane_block::qos::cost::{CostModel, Line};
use polylane_block::qos::governed::{Governor, monotonic_ns};
use polylane_block::qos::lane::percentile;
use polylane_block::qos::page::{Terms, Words, ahead, counters, flag, lane, note};
use serde_json::Value;

/// What a lane did and may do; null without one.
pub(crate) fn describe(governor: &Governor) -> Value {
    let Some(shared) = governor.lane() else { return Value::Null };
    let words = shared.words();
    let get = |word| governor.total(word);
    let terms = Terms::read(words).unwrap_or_default();
    let histogram = |first: usize| -> Vec<u64> {
        (0..counters::BUCKETS).map(|bucket| get(first + bucket)).collect()
    };
    let (latency, holding) = (histogram(counters::LATENCY), histogram(counters::HOLDING));
    let time = |counts: &[u64], part| percentile(counts, part).map(|ns| ns as f64 / 1000.0);
    let now = |word| words.load(word, Relaxed);
    let inflight = ahead(now(lane::SPENT), now(lane::DONE)).max(0);
    let sectors = terms.flags & flag::SECTORS != 0;
    serde_json::json!({
        "weight": now(note::WEIGHT),
        "entitled_part": terms.entitled as f64 / 1e6,
        "achieved_part": terms.achieved as f64 / 1e6,
        "sees_device": shared.sees_device(),
        "low_water": terms.low_water,
        "limited": terms.flags & flag::OPEN == 0,
        "coordinated": monotonic_ns() < terms.stale_at,
        "costs_ns": costs(words),
        "unit": if sectors { "sectors" } else { "nanoseconds of device time" },
        "spent": get(lane::SPENT),
        "inflight": inflight,
        "requests": get(lane::REQUESTS),
        "reads": get(counters::READS),
        "read_bytes": get(lane::READ_BYTES),
        "writes": get(counters::WRITES),
        "written_bytes": get(lane::WRITTEN_BYTES),
        "flushes": get(counters::FLUSHES),
        "discards": get(counters::DISCARDS),
        "held": get(counters::HELD),
        "held_ns": get(counters::HELD_NS),
        "idle_while_held_ns": get(note::IDLE_NS),
        "let_go": get(note::LET_GO),
        "held_p99_us": time(&holding, 0.99),
        "latency_p50_us": time(&latency, 0.5),
        "latency_p99_us": time(&latency, 0.99),
        "latency_counts": latency,
        "latency_ns": get(counters::LATENCY_NS),
    })
}

/// What requests cost here.
fn costs(words: &impl Words) -> Value {
    let CostModel { read, write, discard_ns, flush_ns } = CostModel::load(words);
    let line = |line: Line| {
        let Line { sequential_ns, random_ns, page_ns } = line;
        serde_json::json!({ "sequential": sequential_ns, "random": random_ns, "page": page_ns })
    };
    serde_json::json!({
        "read": line(read), "write": line(write), "discard": discard_ns, "flush": flush_ns,
    })
}

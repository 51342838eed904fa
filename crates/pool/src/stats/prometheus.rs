//! Statistics in the text format that Prometheus scrapes (version 0.0.4).
//!
//! Each family is one row of `FAMILIES`: where its number is in a pool's statistics, and what
//! makes it seconds or bytes. A pool that does not have the number has no sample. An attachment is
//! labelled `attachment` and `volume` where a pool is labelled `pool`.

use std::fmt::Write;

use polylane_base::shown::escape_control;
use polylane_block::qos::lane::bucket_end;
use serde_json::Value;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Counter,
    Gauge,
}

/// One metric family with one sample for each pool.
struct Family {
    name: &'static str,
    of: Type,
    help: &'static str,
    /// Where the number is in a pool's statistics.
    at: &'static str,
    /// What one of them is in the family's unit.
    unit: f64,
}

const NANOSECOND: f64 = 1e-9;

const fn counter(name: &'static str, at: &'static str, help: &'static str) -> Family {
    Family { name, of: Type::Counter, help, at, unit: 1.0 }
}

const fn gauge(name: &'static str, at: &'static str, help: &'static str) -> Family {
    Family { name, of: Type::Gauge, help, at, unit: 1.0 }
}

const fn seconds(name: &'static str, at: &'static str, help: &'static str) -> Family {
    Family { name, of: Type::Counter, help, at, unit: NANOSECOND }
}

const fn microseconds(name: &'static str, at: &'static str, help: &'static str) -> Family {
    Family { name, of: Type::Counter, help, at, unit: 1e-6 }
}

const FAMILIES: &[Family] = &[
    counter(
        "polylane_service_restarts_total",
        "/service_restarts",
        "Times that the pool's service, or the attachment's engine, died and was started again.",
    ),
    counter(
        "polylane_operations_total",
        "/service/vfs/operations",
        "Calls of the lane's file system, by whichever way.",
    ),
    counter(
        "polylane_shm_requests_total",
        "/service/shared_memory/requests",
        "Requests over shared memory.",
    ),
    counter("polylane_fuse_requests_total", "/service/fuse/requests", "Requests over FUSE."),
    gauge(
        "polylane_clients",
        "/service/shared_memory/clients",
        "Processes connected over shared memory.",
    ),
    counter(
        "polylane_page_hits_total",
        "/service/vfs/page_hits",
        "Pages found in the lane's cache.",
    ),
    counter(
        "polylane_page_misses_total",
        "/service/vfs/page_misses",
        "Pages that had to be fetched.",
    ),
    gauge("polylane_dirty_bytes", "/service/vfs/dirty_bytes", "Bytes not written back yet."),
    gauge("polylane_size_bytes", "/service/files/size_bytes", "Size of the lane."),
    gauge("polylane_free_bytes", "/service/files/free_bytes", "What is free of it."),
    counter(
        "polylane_cluster_reads_total",
        "/service/cluster/reads/calls",
        "Reads by the lane's Ceph client.",
    ),
    counter(
        "polylane_cluster_reads_waited_total",
        "/service/cluster/reads/waited",
        "Those that waited for the cluster.",
    ),
    microseconds(
        "polylane_cluster_reads_seconds_total",
        "/service/cluster/reads/total_us",
        "Time of all of them.",
    ),
    counter("polylane_cluster_writes_total", "/service/cluster/writes/calls", "Writes by it."),
    counter(
        "polylane_cluster_writes_waited_total",
        "/service/cluster/writes/waited",
        "Those that waited for the cluster.",
    ),
    microseconds(
        "polylane_cluster_writes_seconds_total",
        "/service/cluster/writes/total_us",
        "Time of all of them.",
    ),
    counter("polylane_cluster_syncs_total", "/service/cluster/syncs/calls", "Syncs by it."),
    counter(
        "polylane_cluster_syncs_waited_total",
        "/service/cluster/syncs/waited",
        "Those that waited for the cluster.",
    ),
    microseconds(
        "polylane_cluster_syncs_seconds_total",
        "/service/cluster/syncs/total_us",
        "Time of all of them.",
    ),
    counter(
        "polylane_cluster_looks_total",
        "/service/cluster/looks/calls",
        "Names and states that it was asked for.",
    ),
    counter(
        "polylane_cluster_looks_waited_total",
        "/service/cluster/looks/waited",
        "Those that waited for the cluster.",
    ),
    microseconds(
        "polylane_cluster_looks_seconds_total",
        "/service/cluster/looks/total_us",
        "Time of all of them.",
    ),
    counter(
        "polylane_cluster_changes_total",
        "/service/cluster/changes/calls",
        "Changes of names and states by it.",
    ),
    counter(
        "polylane_cluster_changes_waited_total",
        "/service/cluster/changes/waited",
        "Those that waited for the cluster.",
    ),
    microseconds(
        "polylane_cluster_changes_seconds_total",
        "/service/cluster/changes/total_us",
        "Time of all of them.",
    ),
    gauge(
        "polylane_cluster_unsynced_bytes",
        "/service/cluster/unsynced_bytes",
        "Bytes written since the Ceph client synced everything.",
    ),
    gauge(
        "polylane_cluster_inodes_held",
        "/service/cluster/inodes_held",
        "Inodes that it holds, with capabilities of the MDS.",
    ),
    gauge("polylane_cluster_handles_open", "/service/cluster/handles_open", "Its open handles."),
    counter("polylane_volume_reads_total", "/service/volume/reads", "Reads of the volume's file."),
    counter("polylane_volume_writes_total", "/service/volume/writes", "Writes to it."),
    counter(
        "polylane_volume_read_bytes_total",
        "/service/volume/read_bytes",
        "Bytes read from it.",
    ),
    counter(
        "polylane_volume_written_bytes_total",
        "/service/volume/written_bytes",
        "Bytes written to it.",
    ),
    counter("polylane_volume_flushes_total", "/service/volume/flushes", "Flushes of it."),
    counter("polylane_volume_failed_total", "/service/volume/failed", "Requests that failed."),
    counter(
        "polylane_volume_cache_hit_bytes_total",
        "/service/volume/cache/hit_bytes",
        "Bytes that reads found in the volume's cache, where it can say.",
    ),
    counter(
        "polylane_volume_cache_missed_bytes_total",
        "/service/volume/cache/missed_bytes",
        "Bytes that they did not find there.",
    ),
    counter(
        "polylane_volume_cache_written_bytes_total",
        "/service/volume/cache/written_bytes",
        "Bytes written to the volume, by way of its cache or past it.",
    ),
    counter(
        "polylane_volume_cache_bypassed_bytes_total",
        "/service/volume/cache/bypassed_bytes",
        "Those that were a journal's and so were kept out of its cache.",
    ),
    gauge("polylane_share_weight", "/service/share/weight", "Weight of the lane, 1 to 10000."),
    gauge(
        "polylane_share_entitled_ratio",
        "/service/share/entitled_part",
        "The lane's part of the device by weight, among the lanes that are active.",
    ),
    gauge(
        "polylane_share_achieved_ratio",
        "/service/share/achieved_part",
        "Its part of what was done on the device in the last second.",
    ),
    gauge(
        "polylane_share_bound_read_bytes",
        "/share/bound/read_bytes",
        "Bytes per second that the kernel lets the lane read, since it did more than it said.",
    ),
    gauge(
        "polylane_share_bound_written_bytes",
        "/share/bound/written_bytes",
        "Bytes per second that it lets it write.",
    ),
    counter(
        "polylane_share_requests_total",
        "/service/share/requests",
        "Requests that went to the device.",
    ),
    counter("polylane_share_held_total", "/service/share/held", "Requests that were held back."),
    seconds(
        "polylane_share_held_seconds_total",
        "/service/share/held_ns",
        "Time that requests were held back, summed over them.",
    ),
];

/// Latencies of requests; those of one in eight are taken.
const LATENCY: &str = "polylane_share_latency_seconds";

/// Buckets of a lane's histogram that make up one of the family's: a doubling.
const BUCKETS_TOGETHER: usize = 4;

/// Pools' statistics as a scraper reads them.
pub fn text(pools: &[Value]) -> String {
    let mut text = String::new();
    for family in FAMILIES {
        let samples: Vec<(String, f64)> = pools
            .iter()
            .filter_map(|pool| Some((labels(pool), pool.pointer(family.at)?.as_f64()?)))
            .collect();
        if samples.is_empty() {
            continue;
        }
        let of = if family.of == Type::Counter { "counter" } else { "gauge" };
        head(&mut text, family.name, of, family.help);
        for (labels, value) in samples {
            line(&mut text, family.name, &labels, value * family.unit);
        }
    }
    latencies(&mut text, pools);
    text
}

fn latencies(text: &mut String, pools: &[Value]) {
    let counts = |pool: &Value| -> Option<Vec<u64>> {
        let counts = pool.pointer("/service/share/latency_counts")?.as_array()?;
        counts.iter().map(Value::as_u64).collect()
    };
    let found: Vec<_> = pools.iter().filter_map(|pool| Some((pool, counts(pool)?))).collect();
    if found.is_empty() {
        return;
    }
    head(text, LATENCY, "histogram", "Time from a request's making to its answer, one in eight.");
    for (pool, counts) in found {
        let labels = labels(pool);
        let mut sum = 0_u64;
        for (index, counts) in counts.chunks(BUCKETS_TOGETHER).enumerate() {
            sum = counts.iter().fold(sum, |sum, count| sum.saturating_add(*count));
            let end = bucket_end(index * BUCKETS_TOGETHER + BUCKETS_TOGETHER - 1);
            let le = (end + 1) as f64 * NANOSECOND;
            line(text, &format!("{LATENCY}_bucket"), &format!("{labels},le=\"{le}\""), sum as f64);
        }
        line(text, &format!("{LATENCY}_bucket"), &format!("{labels},le=\"+Inf\""), sum as f64);
        let all_ns = pool.pointer("/service/share/latency_ns").and_then(Value::as_f64);
        line(text, &format!("{LATENCY}_sum"), &labels, all_ns.unwrap_or(0.0) * NANOSECOND);
        line(text, &format!("{LATENCY}_count"), &labels, sum as f64);
    }
}

fn head(text: &mut String, name: &str, of: &str, help: &str) {
    let help = help.replace('\\', "\\\\").replace('\n', "\\n");
    // Writing to a string does not fail.
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {of}");
}

fn line(text: &mut String, name: &str, labels: &str, value: f64) {
    let _ = writeln!(text, "{name}{{{labels}}} {value}");
}

fn labels(pool: &Value) -> String {
    let of = |name: &str| pool.pointer(name).and_then(Value::as_str);
    let label = |name: &str, value: &str| format!("{name}=\"{}\"", escaped(value));
    let mut labels = match of("/attachment") {
        Some(device) => {
            let volume = of("/volume").unwrap_or_default();
            label("attachment", device) + "," + &label("volume", volume)
        }
        None => label("pool", of("/pool").unwrap_or_default()),
    };
    if let Some(device) = of("/share/device") {
        let _ = write!(labels, ",{}", label("device", device));
    }
    labels
}

fn escaped(value: &str) -> String {
    // The format has escapes for these three alone; other control characters are told by theirs.
    let quoted = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    escape_control(&quoted)
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use serde_json::json;

    /// Labels as read back.
    type Labels = BTreeMap<String, String>;

    /// Reads the text format as its specification has it; panics at anything else.
    #[derive(Default)]
    struct Scrape {
        types: BTreeMap<String, String>,
        samples: Vec<(String, Labels, f64)>,
    }

    impl Scrape {
        fn of(text: &str) -> Scrape {
            assert!(text.is_empty() || text.ends_with('\n'), "the last line ends");
            let mut scrape = Scrape::default();
            let (mut helped, mut seen) = (BTreeSet::new(), BTreeSet::new());
            for line in text.lines() {
                if let Some(rest) = line.strip_prefix("# HELP ") {
                    let (name, help) = rest.split_once(' ').expect("a name and a text");
                    assert!(is_name(name) && !help.is_empty() && helped.insert(name.to_string()));
                } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                    let (name, of) = rest.split_once(' ').expect("a name and a type");
                    assert!(["counter", "gauge", "histogram"].contains(&of), "{line}");
                    assert!(helped.contains(name), "HELP stands before TYPE: {line}");
                    let twice = scrape.types.insert(name.to_string(), of.to_string());
                    assert!(twice.is_none(), "{name} once");
                } else {
                    let sample = read_sample(line);
                    assert!(seen.insert((sample.0.clone(), sample.1.clone())), "twice: {line}");
                    assert!(scrape.knows(&sample.0), "of no family: {line}");
                    scrape.samples.push(sample);
                }
            }
            scrape
        }

        /// Whether a sample of this name belongs to a family that was announced.
        fn knows(&self, name: &str) -> bool {
            let histogram = ["_bucket", "_sum", "_count"]
                .iter()
                .filter_map(|end| name.strip_suffix(end))
                .any(|name| self.types.get(name).is_some_and(|of| of == "histogram"));
            histogram || self.types.get(name).is_some_and(|of| of != "histogram")
        }

        fn value(&self, name: &str, label: (&str, &str)) -> Option<f64> {
            let found = |(other, labels, _): &&(String, Labels, f64)| {
                other == name && labels.get(label.0).is_some_and(|value| value == label.1)
            };
            self.samples.iter().find(found).map(|sample| sample.2)
        }
    }

    fn is_name(name: &str) -> bool {
        let first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
        name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
    }

    fn read_sample(line: &str) -> (String, Labels, f64) {
        let (name, rest) = line.split_once('{').expect("labels");
        assert!(is_name(name), "{line}");
        let (mut labels, mut chars) = (Labels::new(), rest.chars());
        loop {
            let key: String = chars.by_ref().take_while(|c| *c != '=').collect();
            assert!(is_name(&key) && chars.next() == Some('"'), "{line}");
            let mut value = String::new();
            loop {
                match chars.next().expect("a closing quote") {
                    '"' => break,
                    '\\' => value.push(match chars.next() {
                        Some('n') => '\n',
                        Some(c @ ('\\' | '"')) => c,
                        other => panic!("escape {other:?} in {line}"),
                    }),
                    c => value.push(c),
                }
            }
            assert!(labels.insert(key, value).is_none(), "{line}");
            match chars.next() {
                Some(',') => {}
                Some('}') => break,
                other => panic!("{other:?} in {line}"),
            }
        }
        let value = chars.as_str().strip_prefix(' ').expect("a blank").parse().expect("a number");
        (name.to_string(), labels, value)
    }

    fn pool(name: &str) -> Value {
        let mut counts = vec![0_u64; 128];
        (counts[0], counts[5], counts[127]) = (3, 4, 1);
        json!({
            "pool": name, "service_restarts": 2, "share": {
                "device": "254-0", "bound": {"read_bytes": 5, "written_bytes": 6},
            },
            "service": {
                "vfs": {"operations": 17, "dirty_bytes": 4096},
                "cluster": {"reads": {"calls": 9, "total_us": 2_500_000}, "unsynced_bytes": 7},
                "share": {"held_ns": 1_500_000_000_u64, "entitled_part": 0.25,
                    "latency_counts": counts, "latency_ns": 2_000_000},
            },
        })
    }

    #[test]
    fn what_is_printed_is_the_text_format() {
        let strange = "a\\b\"c\nd";
        let memory = json!({"pool": "m", "service": {"share": null}, "service_restarts": 0});
        let scrape = Scrape::of(&text(&[pool("p"), pool(strange), memory]));
        let of = |name: &str| scrape.value(name, ("pool", "p"));
        assert_eq!(of("polylane_service_restarts_total"), Some(2.0));
        assert_eq!(of("polylane_share_held_seconds_total"), Some(1.5));
        assert_eq!(of("polylane_share_entitled_ratio"), Some(0.25));
        assert_eq!(of("polylane_share_bound_written_bytes"), Some(6.0));
        assert_eq!(of("polylane_cluster_reads_total"), Some(9.0));
        assert_eq!(of("polylane_cluster_reads_seconds_total"), Some(2.5));
        assert_eq!(of("polylane_cluster_unsynced_bytes"), Some(7.0));
        assert_eq!(scrape.value("polylane_operations_total", ("pool", strange)), Some(17.0));
        assert_eq!(scrape.value("polylane_operations_total", ("pool", "m")), None);
        for (name, of) in &scrape.types {
            assert_eq!(of == "counter", name.ends_with("_total"), "{name} is a {of}");
        }
    }

    #[test]
    fn an_attachment_has_its_device_and_its_volume_for_labels() {
        let cache = json!({"hit_bytes": 512, "missed_bytes": null, "bypassed_bytes": 8192});
        let attached = json!({
            "attachment": "/dev/loop3", "volume": "/v \"1\".img", "service_restarts": 1,
            "share": {"device": "254-0"}, "service": {"volume": {"reads": 5, "cache": cache}},
        });
        let scrape = Scrape::of(&text(&[pool("p"), attached]));
        for label in [("attachment", "/dev/loop3"), ("volume", "/v \"1\".img")] {
            let of = |name: &str| scrape.value(&format!("polylane_{name}_total"), label);
            assert_eq!((of("volume_reads"), of("service_restarts")), (Some(5.0), Some(1.0)));
            assert_eq!(of("volume_cache_hit_bytes"), Some(512.0));
            assert_eq!(of("volume_cache_missed_bytes"), None);
            assert_eq!(of("volume_cache_bypassed_bytes"), Some(8192.0));
        }
        let pools = |(_, labels, _): &&(String, Labels, f64)| labels.contains_key("pool");
        assert!(scrape.samples.iter().filter(pools).all(|(_, labels, _)| labels["pool"] == "p"));
    }

    #[test]
    fn buckets_count_up_to_all() {
        let scrape = Scrape::of(&text(&[pool("p")]));
        let buckets: Vec<(f64, f64)> = scrape
            .samples
            .iter()
            .filter(|(name, ..)| name == "polylane_share_latency_seconds_bucket")
            .map(|(_, labels, count)| (labels["le"].parse().expect("a number"), *count))
            .collect();
        assert!(buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1));
        assert_eq!(buckets[0], (512e-9, 3.0), "requests below 512 ns");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, 8.0)));
        let of = |name: &str| scrape.value(name, ("device", "254-0"));
        assert_eq!(of("polylane_share_latency_seconds_count"), Some(8.0));
        assert_eq!(of("polylane_share_latency_seconds_sum"), Some(0.002));
    }

    #[test]
    fn every_family_is_named_after_its_type_and_no_two_alike() {
        let names: BTreeSet<_> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
        assert_eq!(text(&[]), "");
    }
}

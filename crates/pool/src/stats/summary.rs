//! A pool's or an attachment's statistics in a dozen lines, with units.

use polylane_base::shown::Shown;
use polylane_base::size::ByteSize;
use serde_json::Value;

use super::RUNNING;

/// Layers of confinement by their names in the statistics.
const LAYERS: [(&str, &str); 6] = [
    ("namespaces", "namespaces"),
    ("user", "user"),
    ("capabilities", "capabilities"),
    ("own_ids", "own user numbers"),
    ("landlock", "Landlock"),
    ("seccomp", "system calls"),
];

/// What a person wants to know first, as lines of a word and what it is. What a lane does not have
/// has no line.
pub fn lines(stats: &Value) -> Vec<String> {
    let of = Of(stats);
    let rows = [
        ("pool", of.name("/pool")),
        ("attachment", of.name("/attachment")),
        ("volume", of.name("/volume")),
        ("state", of.state()),
        ("lane", of.lane()),
        ("CPUs", of.cpus()),
        ("files", of.files()),
        ("calls", of.calls()),
        ("page cache", of.cache()),
        ("volume read", of.traffic("/service/volume/read_bytes", "/service/volume/reads")),
        ("written", of.traffic("/service/volume/written_bytes", "/service/volume/writes")),
        ("cluster", of.cluster()),
        ("share", of.share()),
        ("confined by", of.confined()),
    ];
    let told = rows.into_iter().filter_map(|(name, value)| Some((name, value?)));
    told.map(|(name, value)| format!("{name:<12} {value}")).collect()
}

struct Of<'a>(&'a Value);

impl Of<'_> {
    fn number(&self, at: &str) -> Option<u64> {
        self.0.pointer(at).and_then(Value::as_u64)
    }

    fn part(&self, at: &str) -> Option<String> {
        let part = self.0.pointer(at).and_then(Value::as_f64)?;
        Some(format!("{:.1} %", 100.0 * part))
    }

    fn text(&self, at: &str) -> Option<&str> {
        self.0.pointer(at).and_then(Value::as_str)
    }

    fn name(&self, at: &str) -> Option<String> {
        self.text(at).map(|name| Shown::new(name).to_string())
    }

    fn size(&self, at: &str) -> Option<String> {
        self.number(at).map(|bytes| ByteSize(bytes).to_string())
    }

    fn state(&self) -> Option<String> {
        let state = self.text("/state").unwrap_or(RUNNING);
        let mut text = state.to_string();
        for (word, at) in [("process", "/pid"), ("service", "/service_pid")] {
            if let Some(pid) = self.number(at) {
                text += &format!(", {word} {pid}");
            }
        }
        match self.number("/service_restarts") {
            None | Some(0) => {}
            Some(1) => text += ", started again once",
            Some(count) => text += &format!(", started again {count} times"),
        }
        Some(text)
    }

    fn lane(&self) -> Option<String> {
        let mount = self.name("/mount")?;
        Some(format!("{} at {mount}", self.text("/lane")?))
    }

    fn cpus(&self) -> Option<String> {
        Some(format!("{}, weight {}", self.text("/cpus")?, self.number("/weight")?))
    }

    fn files(&self) -> Option<String> {
        let (size, free) =
            (self.number("/service/files/size_bytes")?, self.number("/service/files/free_bytes")?);
        let (inodes, left) =
            (self.number("/service/files/inodes")?, self.number("/service/files/free_inodes")?);
        let used = ByteSize(size.saturating_sub(free));
        Some(format!("{used} of {} used, {} files", ByteSize(size), inodes.saturating_sub(left)))
    }

    fn calls(&self) -> Option<String> {
        Some(format!(
            "{}; {} by {} programs over shared memory, {} by FUSE",
            self.number("/service/vfs/operations")?,
            self.number("/service/shared_memory/requests")?,
            self.number("/service/shared_memory/clients")?,
            self.number("/service/fuse/requests")?,
        ))
    }

    fn cluster(&self) -> Option<String> {
        let count =
            |kind: &str, what: &str| self.number(&format!("/service/cluster/{kind}/{what}"));
        let kinds = ["reads", "writes", "syncs", "looks", "changes"];
        let sum = |what: &str| kinds.iter().map(|kind| count(kind, what)).sum::<Option<u64>>();
        let unsynced = self.size("/service/cluster/unsynced_bytes")?;
        let (calls, waited) = (sum("calls")?, sum("waited")?);
        Some(format!("{calls} calls, {waited} waited for it; {unsynced} since a sync of all"))
    }

    fn cache(&self) -> Option<String> {
        /// Bytes of a page.
        const PAGE: u64 = 4096;
        let pages = ByteSize(self.number("/service/vfs/pages")? * PAGE);
        let (hits, misses) =
            (self.number("/service/vfs/page_hits")?, self.number("/service/vfs/page_misses")?);
        let found = match hits + misses {
            0 => String::new(),
            all => format!(", {:.1} % found there", 100.0 * hits as f64 / all as f64),
        };
        let dirty = self.size("/service/vfs/dirty_bytes")?;
        let own =
            || Some((self.size("/service/cache/size_bytes")?, self.name("/service/cache/mode")?));
        let own = own().map(|(size, mode)| format!(" of {size}, {mode}")).unwrap_or_default();
        Some(format!("{pages}{own}{found}, {dirty} not written back"))
    }

    fn traffic(&self, bytes: &str, requests: &str) -> Option<String> {
        Some(format!("{} in {} requests", self.size(bytes)?, self.number(requests)?))
    }

    fn share(&self) -> Option<String> {
        let due = self.part("/service/share/entitled_part")?;
        let had = self.part("/service/share/achieved_part")?;
        let device = self.name("/share/device");
        let of = device.map(|device| format!(" of {device}")).unwrap_or_default();
        Some(format!("{due} due, {had} had{of}"))
    }

    fn confined(&self) -> Option<String> {
        let layers = self.0.pointer("/service/confined")?;
        let there = LAYERS.iter().filter(|(key, _)| layers[*key] == true).map(|(_, name)| *name);
        Some(there.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pool_is_told_in_a_dozen_lines() {
        let stats = json!({
            "pool": "web", "state": "running", "pid": 7, "service_pid": 9, "service_restarts": 2,
            "mount": "/la ne", "lane": "volume", "cpus": "0-1", "weight": 300,
            "share": { "device": "8:0" },
            "service": {
                "files": { "size_bytes": 3u64 << 30, "free_bytes": 1u64 << 30, "inodes": 10,
                    "free_inodes": 4 },
                "vfs": { "operations": 12, "pages": 256, "page_hits": 3, "page_misses": 1,
                    "dirty_bytes": 0 },
                "shared_memory": { "requests": 8, "clients": 2 },
                "fuse": { "requests": 4 },
                "cache": { "mode": "writeback", "size_bytes": 4u64 << 20 },
                "volume": { "reads": 5, "read_bytes": 4096, "writes": 6, "written_bytes": 8192 },
                "share": { "entitled_part": 0.75, "achieved_part": 0.5 },
                "confined": { "namespaces": true, "user": true, "capabilities": true,
                    "landlock": false, "seccomp": true },
            },
        });
        let expected = [
            "pool         web",
            "state        running, process 7, service 9, started again 2 times",
            "lane         volume at '/la ne'",
            "CPUs         0-1, weight 300",
            "files        2 GiB of 3 GiB used, 6 files",
            "calls        12; 8 by 2 programs over shared memory, 4 by FUSE",
            "page cache   1 MiB of 4 MiB, writeback, 75.0 % found there, 0 B not written back",
            "volume read  4 KiB in 5 requests",
            "written      8 KiB in 6 requests",
            "share        75.0 % due, 50.0 % had of 8:0",
            "confined by  namespaces, user, capabilities, system calls",
        ];
        let lines = lines(&stats);
        assert!(lines.len() <= 12, "{lines:?}");
        assert_eq!(lines, expected);
    }

    #[test]
    fn one_that_does_not_answer_has_a_name_and_a_state() {
        let stopped = json!({ "pool": "web", "pid": 7, "state": "stopped" });
        assert_eq!(lines(&stopped), ["pool         web", "state        stopped, process 7"]);
        let unknown = json!({ "pool": "web", "pid": null, "state": "no answer" });
        assert_eq!(lines(&unknown), ["pool         web", "state        no answer"]);
        let attached = json!({ "attachment": "/s\u{1b}\nx", "volume": "/v", "pid": 7,
            "service": { "volume": { "reads": 0, "read_bytes": 0 } } });
        let expected = [
            "attachment   $'/s\\e\\nx'",
            "volume       /v",
            "state        running, process 7",
            "volume read  0 B in 0 requests",
        ];
        assert_eq!(lines(&attached), expected);
    }

    #[test]
    fn a_lane_on_a_cluster_tells_of_its_client() {
        let kind = |calls: u64, waited: u64| json!({ "calls": calls, "waited": waited });
        let stats = json!({ "pool": "web", "pid": 7, "service": { "cluster": {
            "reads": kind(9, 1), "writes": kind(3, 0), "syncs": kind(2, 2), "looks": kind(5, 0),
            "changes": kind(1, 1), "unsynced_bytes": 4096,
        } } });
        let expected = "cluster      20 calls, 4 waited for it; 4 KiB since a sync of all";
        assert!(lines(&stats).iter().any(|line| line == expected), "{:?}", lines(&stats));
    }
}

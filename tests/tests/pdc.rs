//! Journals kept out of the cache of an attached volume, end to end: found, shown, counted,
//! remembered when the engine is killed and when the volume is attached again, and written down.
//!
//! The guest is qemu-io: it writes as jbd2 does, a descriptor with blocks, flush, a commit record,
//! flush, round and round.

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use polylane_tests::attached::{Attached, commits};
use polylane_tests::volume::engine_of;
use polylane_tests::{binary, lacks};

const MIB: u64 = 1 << 20;
/// Where the journal lies.
const JOURNAL: u64 = 16 * MIB;
/// No wait takes longer.
const TIME_MAX: Duration = Duration::from_secs(60);

struct Place(Attached);

impl Place {
    fn new(store: &str) -> Place {
        Place(Attached::new("64M", &["--cache", "pdc", "--cache-store", store]))
    }

    fn attach(&self, options: &[&str]) {
        let socket = self.0.path("nbd");
        self.0.on_volume(&[&["attach", "--via", "nbd", "--socket", &socket], options].concat());
    }

    /// Executes commands of qemu-io on it.
    fn guest(&self, commands: &[String]) {
        let mut command = Command::new("timeout");
        command.args(["60", "qemu-io", "-f", "raw"]);
        command.args(commands.iter().flat_map(|one| ["-c", one]));
        command.arg(format!("nbd+unix:///?socket={}", self.0.path("nbd")));
        let said = good("qemu-io", &command.output().expect("timeout runs"));
        assert!(!said.contains("failed"), "{said}");
    }

    /// Kills the engine and waits for the next one.
    fn kill(&self) {
        let restarts = |stats: &serde_json::Value| stats["engine_restarts"].as_u64();
        let before = restarts(&self.0.stats());
        let killed = engine_of(&self.0.volume).expect("an engine");
        let killed = killed.to_string();
        good("kill", &Command::new("kill").args(["-9", &killed]).output().expect("kill runs"));
        self.wait_for("another engine", |stats| {
            restarts(stats) > before && stats["engine"]["cache"].is_object()
        });
    }

    fn bypassed(&self) -> u64 {
        self.0.stats()["engine"]["cache"]["bypassed_bytes"].as_u64().expect("a number")
    }

    fn wait_for(&self, what: &str, done: impl Fn(&serde_json::Value) -> bool) {
        let start = Instant::now();
        loop {
            let stats = self.0.stats();
            if done(&stats) {
                return;
            }
            assert!(start.elapsed() < TIME_MAX, "waited in vain for {what}: {stats}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn good(what: &str, output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {printed}{said}");
    printed
}

#[test]
fn a_journal_is_found_shown_and_remembered() {
    if lacks("a_journal_is_found_shown_and_remembered", &["qemu-io", "timeout"]) {
        return;
    }
    let place = Place::new("host");
    let trace = place.0.path("trace.csv");
    place.attach(&["--record", &trace]);
    let mut at = JOURNAL;
    place.guest(&commits(&mut at, 30));
    let bypassed = place.bypassed();
    assert!(bypassed > 20 * 8192, "{bypassed} bytes went past the cache");
    // Shown.
    let svg = place.0.path("journal.svg");
    let map = place.0.on_volume(&["volume", "map", "--journal", "--json", "--svg", &svg]);
    let map: serde_json::Value = serde_json::from_str(&map).expect("JSON");
    let region = |map: &serde_json::Value| {
        let bound = |index: usize| map["regions"][0][index].as_u64().expect("a region");
        (bound(0), bound(1))
    };
    let (first, end) = region(&map);
    assert!((JOURNAL..JOURNAL + MIB / 4).contains(&first) && end == at, "{first} {end} {at}");
    let picture = fs::read_to_string(&svg).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"), "{picture}");
    assert_eq!(picture.matches("fill=\"#d00000\"").count(), 1, "{picture}");
    let text = place.0.on_volume(&["volume", "map", "--journal"]);
    let lines: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["FIRST", "END", "LENGTH"]);
    assert_eq!(lines[1][..2], [first.to_string(), end.to_string()]);
    assert_eq!(lines.len(), 2, "{text}");
    // Another engine goes on in the middle of it.
    place.wait_for("the keeper to know", |stats| stats["known_journals"][0][1] == at);
    place.kill();
    assert_eq!(place.bypassed(), 0, "a new engine counts anew");
    let middle = (first + end) / 2 / 4096 * 4096;
    place.guest(&[format!("write -P 3 {middle} 8192"), "flush".into()]);
    assert_eq!(place.bypassed(), 8192, "at once");
    place.guest(&[format!("read -P 3 {middle} 8192")]);
    place.0.on_volume(&["detach"]);
    // So does another attachment.
    let sidecar = fs::read_to_string(place.0.path("v.img.polylane")).expect("a sidecar");
    let sidecar: serde_json::Value = serde_json::from_str(&sidecar).expect("JSON");
    assert_eq!(sidecar["journals"][0][1].as_u64(), Some(end));
    let map = place.0.on_volume(&["volume", "map", "--journal", "--json", "--svg", &svg]);
    let map: serde_json::Value = serde_json::from_str(&map).expect("JSON");
    assert!(region(&map) == (first, end) && map["of_last_use"] == true, "{map}");
    assert!(map["size_bytes"] == 64 * MIB, "{map}");
    let picture = fs::read_to_string(&svg).expect("a picture");
    assert!(picture.contains("v.img, 64 MiB: journals of the last use"), "{picture}");
    let text = place.0.on_volume(&["volume", "map", "--journal"]);
    assert!(text.starts_with("of the last use:\n") && text.contains(&end.to_string()), "{text}");
    place.attach(&[]);
    let map = place.0.on_volume(&["volume", "map", "--journal", "--json"]);
    assert_eq!(region(&serde_json::from_str(&map).expect("JSON")), (first, end));
    // What was written down is what was asked for, by both engines.
    let lines = fs::read_to_string(&trace).expect("a trace");
    assert_eq!(lines.matches("# time_us,op,").count(), 2);
    assert_eq!(lines.lines().filter(|line| line.contains(",W,")).count(), 61);
    let (out, lo, hi) = (place.0.path("out"), JOURNAL, at - 4096);
    let mut judge = Command::new(binary());
    judge.args(["bench", "run", "pdc-trace", "--quick", "--trace", &trace, "--out", &out]);
    judge.args(["--journal", &format!("{lo}-{hi}")]);
    let table = good("bench", &judge.output().expect("polylane runs"));
    assert!(table.contains("flush-solo") && table.contains("precision"), "{table}");
}

#[test]
fn a_map_of_journals_says_why_there_is_none() {
    let place = Place::new("host");
    let (volume, svg) = (place.0.volume.display().to_string(), place.0.path("m.svg"));
    let (missing, never) = (place.0.path("nosuch.img"), "is not attached, and no journal is known");
    for (words, status, line) in [
        (&["--journal", &missing][..], 1, "nosuch.img: cannot open it: No such file"),
        (&["--journal", &volume], 1, never),
        (&[&volume, "--svg", &svg], 2, "--svg: draws journals alone: say --journal, too"),
    ] {
        let mut map = Command::new(binary());
        map.args(["volume", "map"]).args(words).env("XDG_STATE_HOME", place.0.path("state"));
        let output = map.output().expect("polylane runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(line) && said.lines().count() == 1, "{said}");
    }
}

/// `stats`, for people, as JSON and for a scraper, and `top` show attachments beside pools.
#[test]
fn what_an_attachment_does_shows_beside_pools() {
    if lacks("what_an_attachment_does_shows_beside_pools", &["qemu-io", "timeout"]) {
        return;
    }
    let place = Place::new("own");
    place.attach(&["--weight", "250", "--qos", "ledger"]);
    let mut at = JOURNAL;
    place.guest(&commits(&mut at, 30));
    place.guest(&["write -P 5 0 64k", "read -P 5 0 64k", "read -P 5 0 64k"].map(String::from));
    let bypassed = place.bypassed();
    place.wait_for("its lane", |stats| stats["engine"]["share"]["weight"] == 250);
    let socket = place.0.path("nbd");
    let said = place.0.polylane(&["stats", "--json"]);
    let all: Vec<serde_json::Value> = serde_json::from_str(&said).expect("JSON");
    let own = all.iter().find(|one| one["attachment"] == socket.as_str()).expect("its counters");
    let volume = place.0.volume.display().to_string();
    assert!(own["volume"] == volume.as_str() && own["share"]["policy"] == "ledger", "{own}");
    assert_eq!(own["service"]["volume"]["cache"]["bypassed_bytes"], bypassed);
    // A scraper.
    let said = place.0.polylane(&["stats", "--prometheus"]);
    let label = format!("{{attachment=\"{socket}\",volume=\"{volume}\",device=\"");
    let sample = |name: &str| -> f64 {
        let own = said.lines().find(|line| line.starts_with(&format!("polylane_{name}{label}")));
        let own = own.unwrap_or_else(|| panic!("no {name}: {said}"));
        own.rsplit(' ').next().expect("a value").parse().expect("a number")
    };
    assert_eq!(sample("volume_cache_bypassed_bytes_total"), bypassed as f64);
    assert!(sample("volume_cache_hit_bytes_total") >= 65_536.0, "{said}");
    assert!(sample("volume_cache_missed_bytes_total") >= 0.0);
    assert_eq!(sample("share_weight"), 250.0);
    let histogram = format!("polylane_share_latency_seconds_bucket{label}");
    assert!(said.contains(&histogram), "{said}");
    // People: no histograms, and a row of its own.
    let said = place.0.polylane(&["stats", "--all"]);
    assert!(said.contains(&format!("attachment: {socket}")), "{said}");
    assert!(said.contains("latency_p99_us") && !said.contains("latency_counts"), "{said}");
    let said = place.0.polylane(&["top", "--once", "--interval", "0.2"]);
    let row = said.lines().find(|line| line.starts_with(&socket)).expect("its row");
    assert_eq!(row.split_whitespace().nth(1), Some("250"), "{said}");
    assert!(!place.0.polylane(&["pool", "ls"]).contains(&socket));
}

/// Journal and data, in marked ranges and outside, over each other: what was flushed before the
/// engine was killed is what the next one reads.
#[test]
fn what_was_flushed_outlives_killed_engines() {
    if lacks("what_was_flushed_outlives_killed_engines", &["qemu-io", "timeout"]) {
        return;
    }
    for store in ["host", "own"] {
        let place = Place::new(store);
        place.attach(&[]);
        // Patterns of blocks, as they should be.
        let mut model = std::collections::BTreeMap::new();
        let (mut at, mut marked) = (JOURNAL, 0);
        for round in 0..4u64 {
            let start = at;
            let mut commands = commits(&mut at, 12);
            // The journal's own blocks are not looked at where it wrote last.
            model.retain(|block, _| !(start / 4096..at / 4096).contains(block));
            for number in 0..40 {
                let pattern = 10 + (round * 40 + number) % 200;
                // Every second one where the journal is, or was.
                let base = if number % 2 == 0 { JOURNAL / 4096 } else { 9000 };
                let block = base + (number * 7 + round * 3) % 60;
                let count = 1 + number % 3;
                commands.push(format!("write -P {pattern} {} {}", block * 4096, count * 4096));
                model.extend((block..block + count).map(|block| (block, pattern)));
            }
            commands.push("flush".into());
            place.guest(&commands);
            marked += place.bypassed();
            place.kill();
            let read = |(block, pattern)| format!("read -P {pattern} {} 4096", block * 4096);
            let reads: Vec<String> = model.iter().map(read).collect();
            place.guest(&reads);
            place.guest(&reads);
            // The host's page cache outlives the engine; what lies in memory alone tells nothing.
            let ratio = place.0.stats()["engine"]["cache"]["hit_ratio"].as_f64();
            assert!(ratio.is_some() || store == "host", "{store}");
            assert!(ratio.is_none_or(|ratio| (0.4..=1.0).contains(&ratio)), "{store}: {ratio:?}");
            assert!(ratio != Some(1.0) || store == "host", "its own memory goes with the engine");
        }
        assert!(marked > 0, "{store}: nothing went past the cache");
        place.0.on_volume(&["detach"]);
    }
}

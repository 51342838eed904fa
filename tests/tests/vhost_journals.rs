//! Journals of real guests, by file system and load: QEMU without KVM, a Debian kernel, one volume
//! for each load over vhost-user, its requests written down and judged afterwards.
//!
//! They run with `make test-guest`; see `polylane_tests::guest`. The rows that are printed are
//! those of docs/results: journal and lead in MiB, recall (after the lead), precision, and recall
//! and precision of the rule when it is shown addresses alone. `POLYLANE_GUEST_SECONDS` is how long
//! each load runs, 15 unless set; `POLYLANE_GUEST_TRACES` a directory that keeps what was recorded.

use std::fs;
use std::path::Path;
use std::process::Command;

use polylane_tests::attached::Attached;
use polylane_tests::guest::{Guest, Kernel, Kit};
use polylane_tests::{lacks, skip, tool};

/// A load of `tests/guest/journals.sh`, and the host's programs that it runs.
type Load = (&'static str, &'static [&'static str]);

const LOADS: [Load; 6] = [
    ("mail", &[]),
    ("sqlite", &["sqlite3"]),
    ("mariadb", &["mariadbd", "mariadb", "mariadb-admin", "mariadb-install-db"]),
    ("rocksdb", &["db_bench"]),
    ("stream", &[]),
    ("copy", &[]),
];

/// A file system.
struct Kind {
    name: &'static str,
    /// Makes it on `$d`, its journal on `$j` if that is a device of its own, and mounts it.
    make: &'static str,
    /// Prints where the journal of the volume `$1` lies; empty for one that has none.
    truth: &'static str,
    external: bool,
    /// Least recall after the lead, and least precision, where enough was journalled.
    goal: (f64, f64),
}

impl Kind {
    /// One with its journal inside.
    const fn new(
        name: &'static str,
        make: &'static str,
        truth: &'static str,
        goal: (f64, f64),
    ) -> Kind {
        Kind { name, make, truth, external: false, goal }
    }
}

/// Journalled bytes from which on shares say something.
const JOURNAL_MIB_MIN: f64 = 1.0;

const EXT_JOURNAL: &str = "debugfs -R 'stat <8>' \"$1\" 2>/dev/null | grep -o '):[0-9-]*' | \
    tr -d '):' | tr - '\\n' | sort -n | \
    awk 'NR == 1 { first = $1 } { last = $1 } END { print first * 4096 \"-\" last * 4096 }'";

const XFS_LOG: &str = "xfs_db -r -c 'sb 0' -c 'p blocksize agblocks agblklog logstart logblocks' \
    \"$1\" | awk '{ v[$1] = $3 } END { n = 2 ^ v[\"agblklog\"]; s = v[\"logstart\"]; \
    b = int(s / n) * v[\"agblocks\"] + s % n; printf \"%d-%d\\n\", b * v[\"blocksize\"], \
    (b + v[\"logblocks\"] - 1) * v[\"blocksize\"] }'";

/// All but the superblock in its second KiB.
const JOURNAL_DEVICE: &str = "echo 4096-$(($(stat -c %s \"$1\") - 4096))";

/// Makes the files of a server without any data.
const INSTALL: &str = "mariadb-install-db --no-defaults --user=root --datadir=\"$1\" \
    --innodb-log-file-size=4M --auth-root-authentication-method=normal >/dev/null 2>&1";

/// Volumes of a load: the file system's, and its journal's.
struct Place {
    load: &'static str,
    volume: Attached,
    journal: Option<Attached>,
}

fn attach(size: &str) -> Attached {
    let volume = Attached::new(size, &["--cache", "pdc"]);
    let (socket, trace) = (volume.path("socket"), volume.path("trace.csv"));
    let attach = ["attach", "--via", "vhost-user", "--socket", &socket, "--record", &trace];
    volume.on_volume(&attach);
    volume
}

/// The loads whose programs are installed; the others are noted as skipped.
fn loads(test: &str) -> Vec<&'static Load> {
    let has = |load: &&Load| {
        let missing = load.1.iter().find(|program| tool(program).is_none());
        if let Some(program) = missing {
            skip(test, &format!("{}: {program} is not installed", load.0));
        }
        missing.is_none()
    };
    LOADS.iter().filter(has).collect()
}

/// The guest's words for QEMU and its script.
fn describe(kind: &Kind, places: &[Place], seconds: &str) -> (Vec<String>, String) {
    let words = ["-object", "memory-backend-memfd,id=mem,size=1024M,share=on"];
    let mut words: Vec<String> = words.map(String::from).to_vec();
    words.extend(["-numa", "node,memdev=mem"].map(String::from));
    let mut script = include_str!("../guest/journals.sh").to_string();
    script += &format!("SECONDS_EACH={seconds}\n");
    let mut letters = 'a'..='z';
    let mut device = |volume: &Attached| {
        let letter = letters.next().expect("few devices");
        let socket = volume.path("socket");
        let chardev = format!("socket,id=c{letter},path={socket},reconnect=1");
        let front = format!("vhost-user-blk-pci,chardev=c{letter},num-queues=1");
        words.extend(["-chardev".into(), chardev, "-device".into(), front]);
        format!("/dev/vd{letter}")
    };
    for place in places {
        let (d, j) = (device(&place.volume), place.journal.as_ref().map(&mut device));
        let j = j.unwrap_or_default();
        script += &format!("d={d} j={j}\n{}\nload {}\n", kind.make, place.load);
    }
    (words, script)
}

/// What the rule made of a volume's requests.
struct Verdict {
    journal_mib: f64,
    lead_mib: f64,
    bypassed_mib: f64,
    recall: f64,
    recall_after_lead: f64,
    precision: f64,
}

/// Judges what was written down: all of it, and addresses alone.
fn judge(volume: &Attached, truth: &str) -> [Verdict; 2] {
    let path = volume.volume.display().to_string();
    let found = Command::new("sh").args(["-c", truth, "sh", &path]).output().expect("sh runs");
    let found = String::from_utf8(found.stdout).expect("text");
    let (trace, blind) = (volume.path("trace.csv"), volume.path("blind.csv"));
    let lines = fs::read_to_string(&trace).expect("a trace");
    let cut = lines.lines().map(|line| line.splitn(6, ',').take(5).collect::<Vec<_>>().join(","));
    fs::write(&blind, cut.collect::<Vec<_>>().join("\n")).expect("written");
    let out = volume.path("out");
    let bench = ["bench", "run", "pdc-trace", "--quick", "--trace", &trace, "--trace", &blind];
    let journal = ["--journal", found.trim()];
    let journal = if found.trim().is_empty() { &[][..] } else { &journal };
    volume.polylane(&[&bench[..], &["--out", &out], journal].concat());
    let report = fs::read(Path::new(&out).join("pdc-trace.json")).expect("a report");
    let note =
        format!("# first and last block with a log header: {}", found.trim().replace('-', " "));
    fs::write(&trace, format!("{note}\n{lines}")).expect("written");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    ["trace", "blind"].map(|point| verdict(&report, point))
}

fn verdict(report: &serde_json::Value, point: &str) -> Verdict {
    let cells = report["cells"].as_array().expect("cells");
    let mine = |cell: &&serde_json::Value| cell["system"] == "flush-solo" && cell["point"] == point;
    let cell = cells.iter().find(mine).expect("a row");
    let extra = |name: &str| cell["extra"][name].as_f64().unwrap_or(0.0);
    Verdict {
        journal_mib: extra("journal_MiB"),
        lead_mib: extra("lead_MiB"),
        bypassed_mib: extra("bypassed_MiB"),
        recall: cell["samples"][0].as_f64().unwrap_or(0.0),
        recall_after_lead: extra("recall_after_lead"),
        precision: extra("precision"),
    }
}

/// Prints a volume's row; what of it misses the goal.
fn check(kind: &Kind, load: &str, volume: &Attached, truth: &str) -> Option<String> {
    let bypassed = &volume.stats()["engine"]["cache"]["bypassed_bytes"];
    let live = bypassed.as_u64().expect("a number") as f64 / f64::from(1 << 20);
    volume.on_volume(&["detach"]);
    let [seen, blind] = judge(volume, truth);
    if let Some(kept) = std::env::var_os("POLYLANE_GUEST_TRACES") {
        let name = format!("{}-{load}.csv", kind.name).replace(' ', "-");
        fs::copy(volume.path("trace.csv"), Path::new(&kept).join(name)).expect("kept");
    }
    let row = format!(
        "| {}, {load} | {:.1} | {:.2} | {:.2} ({:.2}) | {:.2} | {:.2}, {:.2} |",
        kind.name,
        seen.journal_mib,
        seen.lead_mib,
        seen.recall,
        seen.recall_after_lead,
        seen.precision,
        blind.recall,
        blind.precision,
    );
    eprintln!("{row} {live:.1} MiB bypassed");
    let nothing = seen.bypassed_mib == 0.0 && blind.bypassed_mib == 0.0 && live == 0.0;
    let precise =
        |verdict: &Verdict| verdict.bypassed_mib == 0.0 || verdict.precision >= kind.goal.1;
    let rest = seen.journal_mib - seen.lead_mib;
    let fine = match truth.is_empty() {
        true => nothing,
        false => {
            let found = rest < JOURNAL_MIB_MIN || seen.recall_after_lead >= kind.goal.0;
            precise(&seen) && precise(&blind) && found
        }
    };
    (!fine).then_some(row)
}

fn journals(test: &str, kind: &Kind) {
    let Some(kit) = Kit::find(test, Kernel::Stable) else { return };
    if lacks(test, &["debugfs", "xfs_db", "awk"]) {
        return;
    }
    let data = tempfile::tempdir().expect("tempdir");
    let (loads, data) = (loads(test), data.path().join("data"));
    let place = |load: &&'static Load| Place {
        load: load.0,
        volume: attach("512M"),
        journal: kind.external.then(|| attach("64M")),
    };
    let places: Vec<Place> = loads.iter().map(place).collect();
    let seconds = std::env::var("POLYLANE_GUEST_SECONDS").unwrap_or_else(|_| "15".into());
    let (words, script) = describe(kind, &places, &seconds);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let name = format!("journals-{}", kind.name.replace(['=', ','], ""));
    let mut guest = Guest::new(&kit, &name, &script).arguments(&words).limit(1800);
    for program in loads.iter().flat_map(|load| load.1).filter_map(|program| tool(program)) {
        guest = guest.program(&program);
    }
    if loads.iter().any(|load| load.0 == "mariadb") {
        let made = Command::new("sh").args(["-c", INSTALL, "sh"]).arg(&data).status();
        assert!(made.expect("sh runs").success(), "mariadb-install-db");
        guest = guest.tree(&data);
    }
    let printed = guest.run();
    assert_eq!(printed.matches("ENDED ").count(), places.len(), "{printed}");
    let mut missed = Vec::new();
    for place in &places {
        missed.extend(check(kind, place.load, &place.volume, kind.truth));
        if let Some(journal) = &place.journal {
            let load = format!("{} (its device)", place.load);
            missed.extend(check(kind, &load, journal, JOURNAL_DEVICE));
        }
    }
    assert!(missed.is_empty(), "short of {:?}:\n{}", kind.goal, missed.join("\n"));
}

#[test]
fn ext4() {
    let make = "mkfs.ext4 -F -q $d && mount -t ext4 $d /mnt";
    journals("ext4", &Kind::new("ext4", make, EXT_JOURNAL, (0.95, 0.95)));
}

#[test]
fn ext4_with_data_in_its_journal() {
    let make = "mkfs.ext4 -F -q $d && mount -t ext4 -o data=journal $d /mnt";
    let kind = Kind::new("ext4 data=journal", make, EXT_JOURNAL, (0.95, 0.95));
    journals("ext4_with_data_in_its_journal", &kind);
}

#[test]
fn ext4_with_fast_commits() {
    let make = "mkfs.ext4 -F -q -O fast_commit $d && mount -t ext4 $d /mnt";
    let kind = Kind::new("ext4 fast_commit", make, EXT_JOURNAL, (0.85, 0.95));
    journals("ext4_with_fast_commits", &kind);
}

#[test]
fn ext4_with_an_external_journal() {
    let make = "mkfs.ext4 -F -q -O journal_dev -b 4096 $j; \
        mkfs.ext4 -F -q -b 4096 -J device=$j $d && mount -t ext4 $d /mnt";
    let kind =
        Kind { external: true, ..Kind::new("ext4, external journal", make, "", (0.95, 0.95)) };
    journals("ext4_with_an_external_journal", &kind);
}

#[test]
fn ext3() {
    let make = "mkfs.ext4 -F -q -t ext3 $d && mount -t ext3 $d /mnt";
    journals("ext3", &Kind::new("ext3", make, EXT_JOURNAL, (0.95, 0.95)));
}

#[test]
fn xfs() {
    let make = "mkfs.xfs -q -f $d && mount -t xfs $d /mnt";
    journals("xfs", &Kind::new("XFS", make, XFS_LOG, (0.85, 0.85)));
}

#[test]
fn btrfs_has_none() {
    let make = "mkfs.btrfs -q -f $d && mount -t btrfs $d /mnt";
    journals("btrfs_has_none", &Kind::new("btrfs", make, "", (0.0, 1.0)));
}

//! `demo`: what `make demo` shows in about a minute.
//!
//! First real programs (git, sqlite3) work in a lane and the lane's own statistics are printed.
//! Then two tenants side by side: one does small transactions (write 4 KiB, fsync, rename), the
//! other floods: with large writes and fsyncs where fsync means something (in RAM a shared ext4, an
//! ext4 on a loop device each, an ext4 lane each; on the disk a shared directory and an ext4 lane
//! each), with creates, renames and deletes where it does not (a shared tmpfs, a lane in memory
//! each).

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::sweep::available;
use crate::place::{Ground, Place, Tenant, together};
use crate::report::{Better, Report, align, number};
use crate::worker::{Length, Outcome};
use crate::{Options, progress};

const PLACES: [Place; 7] = [
    Place::Kernel("ext4"),
    Place::KernelEach("ext4"),
    Place::LaneExt4,
    Place::Disk,
    Place::LaneExt4Disk,
    Place::Tmpfs,
    Place::Lane,
];

/// What the flooding tenant does there.
fn flood_in(place: Place) -> &'static str {
    match place {
        Place::Tmpfs | Place::Lane => "ocrd",
        _ => "flood",
    }
}

/// Where tenants are looked at on a CPU each, too: what they share then is storage alone, and no
/// disk.
const IN_RAM: [Place; 3] = [Place::Kernel("ext4"), Place::KernelEach("ext4"), Place::LaneExt4];

/// What runs in the lane of the first part. It ends by waiting for a line, so that the statistics
/// can be asked for while the lane still exists.
const SCRIPT: &str = r#"
set -e
cd /lane
git init -q project && cd project
git config user.name demo && git config user.email demo@example.org
for n in $(seq 200); do echo "file $n" > "file$n.txt"; done
git add . && git commit -qm 'two hundred files' && git gc -q
files=$(git ls-files | wc -l); complaints=$(git fsck 2>&1 | wc -l)
echo "git: $(git log --oneline | wc -l) commit, $files files, fsck: $complaints complaints"
cd /lane
sqlite3 shop.db 'PRAGMA journal_mode=WAL' > /dev/null
sqlite3 shop.db 'CREATE TABLE sale(id INTEGER PRIMARY KEY, cents INT)'
sqlite3 shop.db 'WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<20000)
                 INSERT INTO sale(cents) SELECT i*7%1000 FROM n;'
rows=$(sqlite3 shop.db 'SELECT count(*) FROM sale')
sound=$(sqlite3 shop.db 'PRAGMA integrity_check')
echo "sqlite3: $rows rows, integrity check: $sound"
df -h /lane | tail -1 | awk '{print "df: " $2 " in all, " $3 " used, mounted on " $6}'
echo done
read answer
"#;

/// Runs both parts.
///
/// # Errors
/// A program failed in the lane, or a tenant could not be started.
pub fn run(options: &Options) -> Result<Report> {
    programs()?;
    neighbours(options)
}

fn programs() -> Result<()> {
    crate::line!(
        "1. Real programs in a lane (in memory; own service process, preload library + FUSE)\n"
    );
    let me = std::env::current_exe().context("own path")?;
    let pool = format!("demo-{}", std::process::id());
    let mut lane = Command::new(&me)
        .args(["run", "--mem", "--pool", &pool, "--", "sh", "-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start polylane run")?;
    let said = BufReader::new(lane.stdout.take().context("the lane's output")?);
    let mut finished = false;
    for line in said.lines() {
        let line = line?;
        if line == "done" {
            finished = true;
            break;
        }
        crate::line!("   {line}");
    }
    if finished {
        let stats = Command::new(&me)
            .args(["stats", "--pool", &pool])
            .output()
            .context("polylane stats")?;
        crate::line!("\n   The lane's statistics:\n");
        let stats = String::from_utf8_lossy(&stats.stdout).into_owned();
        // What never happened says little here; `polylane stats` shows it all.
        let told = stats.lines().filter(|line| !line.ends_with(": 0"));
        told.for_each(|line| crate::line!("   {line}"));
    }
    if let Some(mut answer) = lane.stdin.take() {
        let _ = answer.write_all(b"go\n");
    }
    let status = lane.wait().context("wait for the lane")?;
    ensure!(finished && status.success(), "the programs in the lane failed ({status})");
    crate::line!("");
    Ok(())
}

/// The quiet tenant's latency alone and beside the flood, in each place.
fn neighbours(options: &Options) -> Result<Report> {
    crate::line!("2. A quiet tenant beside a flooding one\n");
    let ground = Ground::new()?;
    let title = "A quiet tenant's p99 (write 4 KiB, fsync, rename), alone and beside a flood";
    let mut report = Report::new("demo", title, "quiet tenant is", "p99 µs", Better::Lower);
    report.baseline = "ext4".into();
    let length = Length::Seconds(if options.quick { 0.4 } else { 0.6 });
    let ready = available(&ground, &PLACES, &mut report);
    let cpus = polylane_sys::cpu::allowed()?;
    for repeat in 0..options.repeats() {
        for (place, shared) in &ready {
            progress(&format!("{}, repeat {}", place.name(), repeat + 1));
            for (seats, [own, other]) in seatings(*place, &cpus) {
                let tenant =
                    |cpu, load, index| Tenant::start_on(cpu, *place, shared, load, index, length);
                let alone = together(vec![tenant(own, "transact", 0)?])?;
                record(&mut report, *place, seats.alone, &alone[0]);
                let flood = tenant(other, flood_in(*place), 1)?;
                let both = together(vec![tenant(own, "transact", 0)?, flood])?;
                record(&mut report, *place, seats.beside, &both[0]);
            }
        }
    }
    progress("");
    report.notes = notes(report.notes);
    if cpus.len() < 2 {
        report.notes.push("a CPU each: left out, there is one CPU".into());
    }
    crate::line!("{}", harm(&report));
    Ok(report)
}

/// Where the two tenants run, as the report calls it.
struct Seats {
    /// The point of the quiet tenant alone.
    alone: &'static str,
    /// The point of the quiet tenant beside the flood.
    beside: &'static str,
    /// Follows a place's name in the table of harm.
    suffix: &'static str,
}

/// Both wherever the scheduler puts them.
const SHARED: Seats = Seats { alone: "alone", beside: "beside a flood", suffix: "" };

/// A CPU for each.
const APART: Seats = Seats {
    alone: "alone, on one CPU",
    beside: "beside a flood, a CPU each",
    suffix: ", a CPU each",
};

/// How the tenants are seated in that place, one way after the other, with the CPUs of the quiet
/// and of the flooding one.
fn seatings(place: Place, cpus: &[u32]) -> Vec<(&'static Seats, [Option<u32>; 2])> {
    let mut seatings = vec![(&SHARED, [None; 2])];
    if let ([own, other, ..], true) = (cpus, IN_RAM.contains(&place)) {
        seatings.push((&APART, [Some(*own), Some(*other)]));
    }
    seatings
}

fn record(report: &mut Report, place: Place, point: &str, outcome: &Outcome) {
    let extra = [("p50_us", outcome.latency.p50_ns / 1000.0), ("tx_per_s", outcome.rate())];
    report.add(&place.name(), point, outcome.latency.p99_ns / 1000.0, &extra);
}

fn notes(mut left_out: Vec<String>) -> Vec<String> {
    left_out.extend(
        [
            "ext4: both in one ext4 in RAM; ext4 each: one on a loop device in RAM for each",
            "lane (ext4): a lane each, ext4 in user space on a volume in RAM",
            "disk: both in one directory of the host's own file system; fsync reaches the disk",
            "lane (ext4, disk): the same on volumes in that directory",
            "a CPU each: all of a tenant, its service too, is on one CPU; kernel threads are free",
            "tmpfs: both in one tmpfs; lane: a lane each in memory; fsync does nothing in either",
            "the flood: 256 KiB writes and fsyncs; on tmpfs and lanes in memory: names come and go",
        ]
        .map(String::from),
    );
    left_out
}

/// How much slower the flood makes the quiet tenant, per place: the point of the demo in one table.
fn harm(report: &Report) -> String {
    let mut rows = vec![["place", "p50", "p99", "transactions/s"].map(String::from).to_vec()];
    for Seats { alone, beside, suffix } in [SHARED, APART] {
        for system in report.systems() {
            let cells = (report.cell(system, alone), report.cell(system, beside));
            let (Some(alone), Some(beside)) = cells else { continue };
            let change =
                |name: &str| format!("× {}", number(beside.extra[name] / alone.extra[name]));
            rows.push(vec![
                format!("{system}{suffix}"),
                change("p50_us"),
                format!("× {}", number(beside.median() / alone.median())),
                change("tx_per_s"),
            ]);
        }
    }
    format!("  What the flood does to the quiet tenant:\n{}", align(&rows))
}

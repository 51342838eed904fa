//! `fig10`: what a lane costs a tenant who is alone (MultiLanes, FAST '14, §5.3): unpacking,
//! building and removing a source tree; Filebench's web server; a stream of 1 MiB writes to 1 GiB.
//!
//! The source tree is an archive that the variable `POLYLANE_BENCH_SOURCE` names: one directory
//! with a `configure` and a Makefile. The paper took Apache's.

use std::path::Path;

use anyhow::Result;

use super::multilanes::{NOTES, PLACES};
use super::sweep::{Work, available};
use crate::place::{Ground, Script, together};
use crate::report::{Better, Report};
use crate::worker::{Length, Outcome};
use crate::{Options, progress};

/// Names the archive with the source tree.
const SOURCE: &str = "POLYLANE_BENCH_SOURCE";

const BUILD: Script = Script {
    name: "build",
    text: r#"
rm -rf "$1"
mkdir -p "$1"
cd "$1"
echo ready
read -r go
begin=$(date +%s%N)
(tar --extract --file "$2" && cd ./*/ && ./configure && make -j 16) >log 2>&1
rm -rf ./*/
end=$(date +%s%N)
tell 1 $((end - begin))
read -r end || true
cd /
rm -r "$1"
"#,
    outcome: Outcome::from_json,
};

/// Measures each of the three in every place with one tenant.
///
/// # Errors
/// Not root, or a tenant failed.
pub fn run(options: &Options) -> Result<Report> {
    let ground = Ground::with_tenants(1)?;
    let title = "fig10: one tenant alone; the baseline is a kernel ext4 shared with nobody";
    let unit = "builds/min, operations/s, MiB/s";
    let mut report = Report::new("fig10", title, "load", unit, Better::Higher);
    let ready = available(&ground, &PLACES, &mut report);
    report.baseline = PLACES[0].name();
    let loads = loads(options, &mut report);
    let slow = options.slow(&mut report);
    for repeat in 0..slow.repeats() {
        for (name, work, per_op) in &loads {
            for (place, shared) in &ready {
                progress(&format!("{name} {}, repeat {}", place.name(), repeat + 1));
                let outcome = together(vec![work.start(*place, shared, 0)?])?.remove(0);
                let p99 = [("p99_us", outcome.latency.p99_ns / 1000.0)];
                // A build is one operation.
                let extra = p99.iter().copied().filter(|(_, us)| *us > 0.0).collect::<Vec<_>>();
                report.add(&place.name(), name, outcome.rate() * per_op, &extra);
                ground.tidy(*place, shared)?;
            }
        }
    }
    report.notes.extend(NOTES[..4].iter().map(|note| note.to_string()));
    Ok(report)
}

fn loads(options: &Options, report: &mut Report) -> Vec<(&'static str, Work, f64)> {
    let mut loads = Vec::new();
    match std::env::var(SOURCE) {
        Ok(archive) => {
            let name = Path::new(&archive).file_name().unwrap_or_default().display();
            report.notes.push(format!("build: {name}, unpacked, built with make -j 16, removed"));
            loads.push(("build", Work::Script(BUILD, vec![archive]), 60.0));
        }
        Err(_) => report.notes.push(format!("build left out: {SOURCE} names no archive")),
    }
    let seconds = if options.quick { 1.0 } else { 10.0 };
    loads.push(("webserver", Work::Load("webserver", Length::Seconds(seconds)), 31.0));
    let writes = if options.quick { 128 } else { 1024 };
    loads.push(("streamwrite", Work::Load("streamwrite", Length::Ops(writes)), 1.0));
    loads
}

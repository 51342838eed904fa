//! `pdc-trace`: journal detectors on recorded block requests, without a device.

use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use polylane_base::size::ByteSize;
use polylane_block::cache::pdc::score::{Judge, Score};
use polylane_block::cache::pdc::{Access, FlushSolo, Paper, Region, Rule};

use super::pdc_csv::{self, Trace};
use crate::report::{Better, Report};
use crate::{Options, progress};

/// The byte addresses of the first and the last block of something: `LO-HI`, both inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressRange {
    /// Address of the first block.
    pub first: u64,
    /// Address of the last block.
    pub last: u64,
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').ok_or("not LO-HI, two byte addresses")?;
        let address = |text: &str| text.trim().parse::<ByteSize>().map(|size| size.0);
        let bad = |error| format!("not LO-HI, two byte addresses: {error}");
        let (first, last) = (address(first).map_err(bad)?, address(last).map_err(bad)?);
        match first <= last {
            true => Ok(AddressRange { first, last }),
            false => Err("LO is above HI".into()),
        }
    }
}

const MIB: f64 = (1 << 20) as f64;

/// # Errors
/// No trace was named, or one cannot be read.
pub fn run(options: &Options) -> Result<Report> {
    ensure!(!options.traces.is_empty(), "it replays a recorded trace: give --trace FILE.csv[.gz]");
    let title = "share of the journal's bytes that bypass the cache (recall), by rule";
    let mut report = Report::new("pdc-trace", title, "trace", "recall", Better::Higher);
    report.baseline = "paper".into();
    for path in &options.traces {
        progress(&format!("pdc-trace {}", path.display()));
        let trace = pdc_csv::load(path)?;
        let name = path.file_name().context("a trace is a file")?.to_string_lossy();
        let point = name.trim_end_matches(".gz").trim_end_matches(".csv");
        let said = trace.journal.map(|(first, last)| AddressRange { first, last });
        let journal = options.journal.or(said);
        let region = |j: AddressRange| Region { first: j.first, end: j.last.saturating_add(1) };
        let truth: Vec<Region> = journal.map(region).into_iter().collect();
        judge(&mut report, point, "paper", &trace, &truth, Paper::default);
        judge(&mut report, point, "flush-solo", &trace, &truth, FlushSolo::default);
        describe(&mut report, point, &trace, journal);
    }
    report.notes.push(
        "precision: the journal's share of the bypassed bytes; lead: journal bytes before the \
         first bypass; reread: share of bypassed bytes read again before they are overwritten"
            .into(),
    );
    Ok(report)
}

/// Replays a trace through a rule and adds its row. `journal`: where it truly is.
pub(super) fn judge<R: Rule>(
    report: &mut Report,
    point: &str,
    system: &str,
    trace: &Trace,
    journal: &[Region],
    rule: fn() -> R,
) {
    let times = (0..3).map(|_| time_per_request(trace, rule()));
    let nanoseconds = times.fold(f64::INFINITY, f64::min);
    let mut judge = Judge::new(rule(), journal.iter().copied());
    for record in &trace.records {
        judge.observe(record.time_us, record.access, record.range);
    }
    let score = judge.score();
    let mut extra = vec![
        ("bypassed_MiB", score.bypassed_bytes as f64 / MIB),
        ("cold_MiB", score.cold_bytes as f64 / MIB),
        ("journal_MiB", score.journal_bytes as f64 / MIB),
        ("lead_MiB", score.lead_bytes as f64 / MIB),
        ("ns_per_request", nanoseconds),
    ];
    extra.extend(score.precision().map(|precision| ("precision", precision)));
    extra.extend(score.recall_after_lead().map(|recall| ("recall_after_lead", recall)));
    extra.extend(score.reread().map(|reread| ("reread", reread)));
    report.add(system, point, score.recall().unwrap_or(f64::NAN), &extra);
    note_regions(report, point, system, &score, &judge.rule().regions());
}

fn note_regions(report: &mut Report, point: &str, system: &str, score: &Score, found: &[Region]) {
    let show = |region: &Region| match region.end {
        u64::MAX => "the whole volume".into(),
        end => format!("{}-{end}", region.first),
    };
    let text = match (found.is_empty(), score.bypassed_bytes) {
        (true, 0) => "nothing".into(),
        (true, _) => "nothing at the end".into(),
        (false, _) => found.iter().map(show).collect::<Vec<_>>().join(", "),
    };
    report.notes.push(format!("{point}, {system}: takes for a journal: {text}"));
}

fn describe(report: &mut Report, point: &str, trace: &Trace, journal: Option<AddressRange>) {
    let writes = trace.records.iter().filter(|r| matches!(r.access, Access::Write { .. }));
    let bytes: u64 = writes.map(|record| record.range.bytes()).sum();
    let truth = match journal {
        Some(AddressRange { first, last }) => format!("journal blocks at {first}-{last}"),
        None => "no journal known by address: recall has no meaning".into(),
    };
    let requests = trace.records.len();
    report
        .notes
        .push(format!("{point}: {requests} requests, {} written; {truth}", ByteSize(bytes)));
    if trace.unknown_count > 0 {
        let count = trace.unknown_count;
        let first = trace.unknown_first.as_ref();
        let first =
            first.map_or(String::new(), |(op, line)| format!(", first '{op}' in line {line}"));
        report.notes.push(format!("{point}: {count} lines of unknown operations left out{first}"));
    }
}

/// Replays the trace on the bare rule; the time that one request takes on average.
fn time_per_request<R: Rule>(trace: &Trace, mut rule: R) -> f64 {
    let start = Instant::now();
    for record in &trace.records {
        let admission = rule.observe(record.time_us, record.access, record.range);
        std::hint::black_box(admission);
    }
    start.elapsed().as_nanos() as f64 / trace.records.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_range_is_two_addresses_in_order() {
        let range = |text: &str| text.parse::<AddressRange>();
        assert_eq!(range("4096-8192"), Ok(AddressRange { first: 4096, last: 8192 }));
        assert_eq!(range("1M-2M"), Ok(AddressRange { first: 1 << 20, last: 2 << 20 }));
        for bad in ["", "1", "2-1", "a-b", "1-", "-1-2"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}

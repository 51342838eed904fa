//! `shares-mixed` on a real disk (`--disk DIR`): two tenants whose requests are as unlike as can
//! be, by size, depth, kind and weight. Shown is what the heavier one has of the charged device
//! time, over what is due to it: its part by weight, or as much as it does alone if that is less.

use std::path::Path;

use anyhow::{Context, Result};
use polylane_block::qos::board::Rule;
use polylane_block::qos::model::{Tenant, io};
use polylane_block::qos::share::{Claim, max_min};
use polylane_block::qos::{Io, Kind};

use super::wdt_disk::{Entry, Ground};
use crate::report::{Better, Report};
use crate::tenants::{Got, Way};
use crate::{Options, progress};

/// How long shares are measured.
const MEASURED_MS: u64 = 2000;

/// What a tenant asks for: bytes of a request, requests at a time.
type Load = (u64, u32);

/// Loads beside each other, the smaller requests first.
const PAIRS: [[Load; 2]; 6] = [
    [(4 << 10, 64), (256 << 10, 8)],
    [(4 << 10, 64), (1 << 20, 1)],
    [(4 << 10, 8), (64 << 10, 64)],
    [(4 << 10, 1), (1 << 20, 8)],
    [(16 << 10, 16), (1 << 20, 4)],
    [(64 << 10, 8), (1 << 20, 8)],
];

/// Kinds of requests by name: of both tenants, or of each.
const KINDS: [(&str, [Kind; 2]); 4] = [
    ("reads", [Kind::Read; 2]),
    ("writes", [Kind::Write; 2]),
    ("reads beside writes", [Kind::Read, Kind::Write]),
    ("discards beside writes", [Kind::Discard, Kind::Write]),
];

const WEIGHTS: [(&str, [u32; 2]); 2] = [("10:1", [1000, 100]), ("1:10", [100, 1000])];

/// Runs it.
///
/// # Errors
/// No directory was given, it cannot be written to, or a request failed.
pub fn run(options: &Options) -> Result<Report> {
    let disk = options.disk.as_deref().context("it measures a real disk: give --disk DIR")?;
    let title = "charged device time of the heavier of two over what is due to it, on a disk";
    let axis = "weights, kinds, sizes x depths";
    let mut report = Report::new("shares-mixed", title, axis, "achieved/due", Better::Higher);
    report.baseline = "none".into();
    let ground = Ground::beside_peers(disk, &mut report)?;
    report.notes.push(about_iocost(Path::new("/sys/fs/cgroup")).into());
    let pairs = if options.quick { &PAIRS[..2] } else { &PAIRS[..] };
    for repeat in 0..options.repeats() {
        for (kinds, pair) in KINDS.iter().flat_map(|kinds| pairs.iter().map(move |p| (kinds, p))) {
            point(&mut report, (&ground, options, repeat as u64), kinds, pair)?;
        }
    }
    report.notes.extend(NOTES.map(String::from));
    Ok(report)
}

const NOTES: [&str; 4] = [
    "1 is fair; due: max-min shares by weight of what both did; each wants what it does alone",
    "error: distance of the part from the due one, of the whole; kept: of what it does alone",
    "throughput: charged device time of both over that of the ungoverned run beside it",
    "tenants: a thread each on its half of a file, O_DIRECT, io_uring; BFQ shares reads and writes",
];

/// Both weights of one pair of loads.
fn point(
    report: &mut Report,
    (ground, options, repeat): (&Ground, &Options, u64),
    (kinds_name, kinds): &(&str, [Kind; 2]),
    pair: &[Load; 2],
) -> Result<()> {
    let tenant = |weight, kind, (bytes, depth): Load| {
        Tenant::reader(weight, depth).with_mix(vec![(100, Io { ..io(kind, bytes) })])
    };
    let [small, large] = pair.map(|(bytes, depth)| format!("{}Kx{depth}", bytes >> 10));
    let when = (MEASURED_MS, repeat);
    let mut alone = [0.0; 2];
    for (index, alone) in alone.iter_mut().enumerate() {
        progress(&format!("shares-mixed {kinds_name} {small} {large}, {index} alone"));
        let one = [tenant(100, kinds[index], pair[index])];
        *alone =
            ground.run(&one, (Way::Ungoverned, ground.device.clone()), options, when)?[0].cost_ns();
    }
    for (weights_name, weights) in WEIGHTS {
        let both = [0, 1].map(|index| tenant(weights[index], kinds[index], pair[index]));
        let label = format!("{weights_name} {kinds_name} {small} {large}");
        let mut ways: Vec<Entry> = vec![
            ("none", Way::Ungoverned, ground.device.clone()),
            (Rule::Ledger.name(), Way::Governed(Rule::Ledger), ground.device.clone()),
        ];
        let mut ungoverned = f64::NAN;
        while !ways.is_empty() {
            let (policy, way, device) = ways.remove(0);
            progress(&format!("shares-mixed {label}, {policy}, repeat {}", repeat + 1));
            let got = ground.run(&both, (way, device), options, when)?;
            if policy == "none" {
                ungoverned = got.iter().map(Got::cost_ns).sum();
                let shares = !kinds.contains(&Kind::Discard);
                let peers = ground.peers(&both, &got);
                ways.extend(peers.into_iter().filter(|(name, ..)| shares && *name == "BFQ"));
            }
            add(report, (policy, &label), (&weights, &alone, ungoverned), &got);
        }
    }
    Ok(())
}

/// Adds what a way gave the heavier of the two.
fn add(
    report: &mut Report,
    (policy, label): (&str, &str),
    (weights, alone, ungoverned): (&[u32; 2], &[f64; 2], f64),
    got: &[Got],
) {
    let done = [got[0].cost_ns(), got[1].cost_ns()];
    let all = (done[0] + done[1]).max(1.0);
    let claim = |index: usize| Claim { weight: weights[index], demand: alone[index] as u64 };
    let due = max_min(all as u64, &[claim(0), claim(1)]);
    let heavy = usize::from(weights[1] > weights[0]);
    // What neither would do alone was there for both.
    let due = due[heavy] as f64 / due.iter().sum::<u64>().max(1) as f64;
    let part = done[heavy] / all;
    let extra = [
        ("part", part),
        ("due", due),
        ("error", (part - due).abs()),
        ("kept", done[heavy] / alone[heavy].max(1.0)),
        ("throughput", all / ungoverned),
    ];
    report.add(policy, label, part / due, &extra);
}

/// Whether Linux' iocost could be beside it: it is a part of version 2 of control groups.
fn about_iocost(root: &Path) -> &'static str {
    let has = |dir: &Path| {
        std::fs::read_to_string(dir.join("cgroup.controllers"))
            .is_ok_and(|names| names.split_whitespace().any(|name| name == "io"))
    };
    match has(root) || has(&root.join("unified")) {
        true => {
            "iocost left out: it shares by groups of version 2, which this figure does not make"
        }
        false => "iocost left out: this host has the controller io not in version 2",
    }
}

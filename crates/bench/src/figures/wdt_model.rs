//! Figures of WDT (HotStorage'16) on the simulated device: `wdt-fig2`, `wdt-fig3`, `wdt-fig4`,
//! `wdt-fig8`, `wdt-fig9` and `wdt-percentile`, with synthetic equivalents of Table 1's workloads,
//! and `bully`.

use anyhow::Result;
use polylane_block::qos::fixed::Static;
use polylane_block::qos::model::{self, Device, MILLISECOND, Outcome, SECOND, Scenario};
use polylane_block::qos::scenarios::{self, Case, Findings, PolicyName, WEIGHTS};
use polylane_block::qos::wdt::Wdt;
use polylane_block::qos::{Kind, Policy};

use super::wdt_disk::{self, COMBINATIONS};
use crate::report::{Better, Report};
use crate::{Options, progress};

const CONTAINERS: [&str; 4] = ["C1 Exchange", "C2 MSNMeta", "C3 MSNFS", "C4 Finance"];

/// The first second is not shown: policies find their rates in it.
const WARM_UP_SECONDS: u64 = 2;

fn scenario(options: &Options, seed: u64) -> Scenario {
    let seconds = if options.quick { 6 } else { 22 };
    Scenario {
        device: Device { noise_percent: 20, ..Device::default() },
        tenants: scenarios::table1(),
        weights: Vec::new(),
        late_ns: (0, 0),
        cpu_ns: (0, 0),
        until: seconds * SECOND,
        bucket_ns: SECOND,
        seed,
    }
}

fn case(scenario: Scenario) -> Case {
    let span = (WARM_UP_SECONDS * SECOND, scenario.until);
    Case { name: "table1", scenario, span, event: None, small: None, fair: true }
}

/// Bandwidths of the four containers by policy.
///
/// # Errors
/// None.
pub fn fig2(options: &Options) -> Result<Report> {
    let title = "bandwidth of four containers, weights 10:5:2.5:1, Table 1, simulated device";
    let mut report = Report::new("wdt-fig2", title, "container", "MB/s", Better::Higher);
    report.baseline = "none".into();
    for seed in 0..options.repeats() as u64 {
        let case = case(scenario(options, seed + 1));
        for policy in PolicyName::ALL {
            progress(&format!("wdt-fig2 {}", policy.name()));
            let outcome = case.run(policy);
            let bytes: Vec<f64> = (0..4).map(|tenant| bytes(&outcome, tenant, case.span)).collect();
            let device = |tenant| outcome.device_ns(tenant, case.span.0, case.span.1) as f64;
            let seconds = (case.span.1 - case.span.0) as f64 / SECOND as f64;
            for (tenant, name) in CONTAINERS.into_iter().enumerate() {
                let extra = [
                    ("ratio", bytes[tenant] / bytes[3]),
                    ("device_time_ratio", device(tenant) / device(3)),
                    ("weight_ratio", f64::from(WEIGHTS[tenant]) / f64::from(WEIGHTS[3])),
                ];
                report.add(policy.name(), name, bytes[tenant] / seconds / 1e6, &extra);
            }
        }
    }
    report.notes.push("none is the paper's BASELINE, static its ST; ratios are to C4".into());
    Ok(report)
}

/// Shares of Table 1's containers by four combinations of weights.
///
/// # Errors
/// None.
pub fn fig8(options: &Options) -> Result<Report> {
    if let Some(disk) = &options.disk {
        return wdt_disk::fig8(options, disk);
    }
    let title = "device time over what the weight gives, Table 1, four sets of weights, simulated";
    let mut report =
        Report::new("wdt-fig8", title, "weights, container", "achieved/entitled", Better::Higher);
    report.baseline = "none".into();
    for seed in 0..options.repeats() as u64 {
        for (label, weights) in COMBINATIONS {
            let mut scenario = scenario(options, seed + 1);
            for (tenant, weight) in scenario.tenants.iter_mut().zip(weights) {
                tenant.weight = weight;
            }
            add_shares(&mut report, label, &case(scenario));
        }
    }
    report.notes.push(
        "1 is fair; jain: weighted, of device time over the run; throughput: part of the device"
            .into(),
    );
    Ok(report)
}

/// Shares and bandwidth of four containers with random 4 KiB requests, 90 to 60 % of them reads.
///
/// # Errors
/// None.
pub fn fig9(options: &Options) -> Result<Report> {
    if let Some(disk) = &options.disk {
        return wdt_disk::fig9(options, disk);
    }
    let title = "device time over what the weight gives, 4 KiB random, Fig. 9's mixes, simulated";
    let mut report =
        Report::new("wdt-fig9", title, "weights, container", "achieved/entitled", Better::Higher);
    report.baseline = "none".into();
    for seed in 0..options.repeats() as u64 {
        let scenario = Scenario { tenants: scenarios::fig9(), ..scenario(options, seed + 1) };
        add_shares(&mut report, "10:5:2.5:1", &case(scenario));
    }
    report.notes.push(
        "1 is fair; jain: weighted, of device time over the run; throughput: part of the device"
            .into(),
    );
    Ok(report)
}

/// What every policy gives the four containers of a case.
fn add_shares(report: &mut Report, label: &str, case: &Case) {
    let (weights, (from, until)) = (case.weights(), case.span);
    let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
    let seconds = (until - from) as f64 / SECOND as f64;
    for policy in PolicyName::ALL {
        progress(&format!("{} {label} {}", report.figure, policy.name()));
        let outcome = case.run(policy);
        let all: f64 = (0..4).map(|tenant| outcome.device_ns(tenant, from, until) as f64).sum();
        let jain = outcome.jain(&weights, from, until).unwrap_or(f64::NAN);
        for (tenant, weight) in weights.iter().enumerate() {
            let got = outcome.device_ns(tenant, from, until) as f64 / all.max(1.0);
            let extra = [
                ("jain", jain),
                ("throughput", outcome.throughput(from, until)),
                ("mb_per_s", bytes(&outcome, tenant, case.span) / seconds / 1e6),
            ];
            let point = format!("{label} C{}", tenant + 1);
            report.add(policy.name(), &point, got * sum / f64::from(*weight), &extra);
        }
    }
}

/// How long the heaviest of four, who was idle, waits for its share when it joins.
///
/// # Errors
/// None.
pub fn joins(options: &Options) -> Result<Report> {
    if let Some(disk) = &options.disk {
        return wdt_disk::joins(options, disk);
    }
    let title =
        "the heaviest of four is idle, then joins: until all shares are within 5 %, simulated";
    let mut report = Report::new("joins", title, "weights", "ms", Better::Lower);
    report.baseline = "none".into();
    for seed in 0..options.repeats() as u64 {
        let mut case = scenarios::joins();
        case.scenario.seed = seed + 1;
        for policy in PolicyName::ALL {
            progress(&format!("joins {}", policy.name()));
            let outcome = case.run(policy);
            let found = Findings::of(&case, &outcome);
            let rest = (case.scenario.until - case.span.0) as f64 / MILLISECOND as f64;
            // Never: all of the time.
            let ms = found.settle_ms.min(rest);
            let idle = outcome.throughput(SECOND, case.event.unwrap_or(SECOND));
            report.add(policy.name(), "10:5:2.5:1", ms, &[("idle_throughput", idle)]);
        }
    }
    report.notes.push("never: all of the time".into());
    report.notes.push("idle_throughput: part of the device that is used before".into());
    Ok(report)
}

/// A tenant with one small read at a time beside three that flood the device.
///
/// # Errors
/// None.
pub fn bully(options: &Options) -> Result<Report> {
    if let Some(disk) = &options.disk {
        return wdt_disk::bully(options, disk);
    }
    let title = "latency of a small reader beside a flood, simulated device";
    let mut report = Report::new("bully", title, "device, percentile", "us", Better::Lower);
    report.baseline = "alone".into();
    for seed in 0..options.repeats() as u64 {
        for (device, made) in
            [("1 unit", scenarios::bully()), ("32 units", scenarios::parallel_bully())]
        {
            let mut beside = made;
            beside.scenario.seed = seed + 1;
            add_latencies(&mut report, device, "none", &beside.run(PolicyName::None));
            for policy in PolicyName::ALL.into_iter().filter(|name| *name != PolicyName::None) {
                progress(&format!("bully {device} {}", policy.name()));
                add_latencies(&mut report, device, policy.name(), &beside.run(policy));
            }
            let mut alone = beside;
            alone.scenario.tenants.truncate(1);
            add_latencies(&mut report, device, "alone", &alone.run(PolicyName::None));
        }
    }
    report.notes.push("the flood: three tenants with 256 random 4 KiB reads each".into());
    Ok(report)
}

fn add_latencies(report: &mut Report, device: &str, series: &str, outcome: &Outcome) {
    let seconds = outcome.buckets.len() as u64 * outcome.bucket_ns;
    let throughput = outcome.throughput(0, seconds);
    for (part, name) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
        let us = outcome.latency_ns(0, part) as f64 / 1000.0;
        report.add(series, &format!("{device} {name}"), us, &[("throughput", throughput)]);
    }
}

fn bytes(outcome: &Outcome, tenant: usize, span: (u64, u64)) -> f64 {
    let range = (span.0 / SECOND) as usize..(span.1 / SECOND) as usize;
    let cells = outcome.buckets[range].iter().map(|cells| cells[tenant]);
    cells.map(|cell| (cell.read_bytes + cell.write_bytes) as f64).sum()
}

/// What C1 uses of the read bandwidth that ST gives it, second by second.
///
/// # Errors
/// None.
pub fn fig3(options: &Options) -> Result<Report> {
    let title = "ST: read bandwidth that C1 was given and that it used, simulated device";
    let mut report = Report::new("wdt-fig3", title, "second", "MB/s", Better::Higher);
    report.baseline = "allocated".into();
    usage(options, &mut report, 0, &[Kind::Read]);
    Ok(report)
}

/// What C2 uses of the read and of the write bandwidth that ST gives it, second by second.
///
/// # Errors
/// None.
pub fn fig4(options: &Options) -> Result<Report> {
    let title = "ST: bandwidth that C2 was given and that it used, simulated device";
    let mut report = Report::new("wdt-fig4", title, "second", "MB/s", Better::Higher);
    usage(options, &mut report, 1, &[Kind::Read, Kind::Write]);
    Ok(report)
}

fn usage(options: &Options, report: &mut Report, tenant: usize, kinds: &[Kind]) {
    let case = case(scenario(options, 1));
    let outcome = case.run(PolicyName::Static);
    let given = allocation(&case.scenario, tenant);
    for (second, cells) in outcome.buckets.iter().enumerate().skip(WARM_UP_SECONDS as usize) {
        for kind in kinds {
            let (label, given, used) = match kind {
                Kind::Read => ("read ", given.0, cells[tenant].read_bytes),
                _ => ("write ", given.1, cells[tenant].write_bytes),
            };
            let label = if kinds.len() > 1 { label } else { "" };
            let point = second.to_string();
            let part = [("used_part", used as f64 / given)];
            report.add(&format!("{label}allocated"), &point, given / 1e6, &[]);
            report.add(&format!("{label}used"), &point, used as f64 / 1e6, &part);
        }
    }
}

/// Bytes per second that ST lets a tenant read and write.
fn allocation(scenario: &Scenario, tenant: usize) -> (f64, f64) {
    let (read, write) = scenarios::nominal_bandwidths(&scenario.device.cost);
    let mut policy = Static::new(read, write);
    scenario.tenants.iter().for_each(|tenant| {
        policy.add_lane(tenant.weight);
    });
    let slice = policy.limit(tenant);
    (slice.read as f64 * 10.0, slice.write as f64 * 10.0)
}

/// WDT with other percentiles of the demand (the paper's footnote 3).
///
/// # Errors
/// None.
pub fn percentile(options: &Options) -> Result<Report> {
    let title = "WDT: throughput by percentile of the demand provided for, simulated device";
    let mut report =
        Report::new("wdt-percentile", title, "percentile", "part of the device", Better::Higher);
    report.baseline = "table1".into();
    let percentiles: &[u32] =
        if options.quick { &[50, 80, 99] } else { &[50, 60, 70, 80, 90, 95, 99] };
    for seed in 0..options.repeats() as u64 {
        for percent in percentiles {
            progress(&format!("wdt-percentile {percent}"));
            let steady = scenario(options, seed + 1);
            let mut light = scenario(options, seed + 1);
            light.tenants[0] = light.tenants[0].clone().thinking(2_000_000);
            light.tenants[0].depth = 96;
            for (name, scenario) in [("table1", steady), ("C1 half as busy", light)] {
                let bandwidth = scenarios::nominal_bandwidths(&scenario.device.cost).0;
                let wdt = Wdt::with_percentile(bandwidth, f64::from(*percent) / 100.0);
                let outcome = model::run(&scenario, wdt);
                let (from, until) = (WARM_UP_SECONDS * SECOND, scenario.until);
                let jain = outcome.jain(&WEIGHTS, from, until).unwrap_or(f64::NAN);
                let throughput = outcome.throughput(from, until);
                report.add(name, &percent.to_string(), throughput, &[("jain", jain)]);
            }
        }
    }
    report.notes.push("jain: of device time over the run; the paper uses 80".into());
    Ok(report)
}

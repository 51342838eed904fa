//! `gapbs-bfs`: tenants that read a graph and search it breadth first, each through a union of its
//! own over the graph's file, as Polytropon does with the GAP benchmark suite. Graph, file and
//! search are this program's own (`worker/bfs.rs`).

use std::path::Path;

use anyhow::{Context, Result};

use super::shared_lower::{Reading, tenants};
use crate::Options;
use crate::report::{Better, Report};
use crate::tools;
use crate::unions::Ground;
use crate::worker::bfs;

/// Most bytes of the graph: as the paper's.
const BYTES_MAX: u64 = 1_300_000_000;

/// The same for a look.
const BYTES_MAX_QUICK: u64 = 16 << 20;

/// The same on a Ceph cluster, which may be a small one.
const BYTES_MAX_CEPH: u64 = 256 << 20;

/// The graph's name in the lower.
const GRAPH: &str = "graph";

/// Measures millions of the graph's edges per second, read and searched, all tenants in total.
///
/// # Errors
/// Not root, or a tenant failed.
pub fn run(options: &Options) -> Result<Report> {
    let title = "read a graph of a shared lower and search it breadth first, all tenants in total";
    let unit = "M edges/s";
    let mut report = Report::new("gapbs-bfs", title, "tenants", unit, Better::Higher);
    let most = tenants(options).into_iter().max().unwrap_or(1);
    let bytes_max = match (options.quick, &options.ceph_conf) {
        (true, _) => BYTES_MAX_QUICK,
        (false, None) => BYTES_MAX,
        (false, Some(_)) => BYTES_MAX_CEPH,
    };
    let bytes = graph_bytes(bytes_max, available_bytes()?, most as u64);
    let ground = Ground::of(options)?;
    let lower = ground.lower()?;
    let size = bfs::make(&lower.path().join(GRAPH), bytes).context("make a graph")?;
    report.notes.extend([
        format!(
            "the graph: {} vertices, {} edges, a file of {} MiB: all copies of {most} tenants fit \
             in memory",
            size.vertices,
            size.edges,
            size.bytes() >> 20
        ),
        "each tenant reads the file by 1 MiB into memory of its own and searches once".to_string(),
    ]);
    let program = std::env::current_exe().context("own path")?;
    Reading {
        ground: &ground,
        lower: lower.path(),
        program: tools::path(&program)?,
        arguments: &["bench", "worker", bfs::LOAD, GRAPH, "1"],
        units: size.edges as f64 / 1e6,
    }
    .measure(options, &mut report)?;
    Ok(report)
}

/// Bytes of a graph that takes no more than three quarters of the memory: one copy is the host's;
/// each tenant has one, with an eighth more for its search, and its mount may cache another.
fn graph_bytes(most: u64, available: u64, tenants: u64) -> u64 {
    most.min(available / 4 * 3 / (tenants * 17 / 8 + 1))
}

fn available_bytes() -> Result<u64> {
    let text = std::fs::read_to_string(Path::new("/proc/meminfo")).context("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.context("MemAvailable in /proc/meminfo")? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_copies_of_the_graph_fit_in_memory() {
        const GIB: u64 = 1 << 30;
        assert_eq!(graph_bytes(BYTES_MAX, 64 * GIB, 8), BYTES_MAX);
        for tenants in 1..=64 {
            let bytes = graph_bytes(BYTES_MAX, 16 * GIB, tenants);
            assert!(bytes * (2 * tenants + 1) <= 12 * GIB, "{tenants}: {bytes}");
        }
        assert!(available_bytes().expect("memory") > 0);
    }
}

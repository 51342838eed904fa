//! A service's client of a cluster, and what of its directories is fit for a lane.

use std::time::Duration;

use polylane_base::sync::Arc;
use polylane_ceph::counters::Kind;
use polylane_ceph::{Client, Prepared, TimedFs, Watch};
use polylane_sys::ns;
use polylane_vfs::{Attr, FileSystem};

use crate::ceph::CephPlace;
use crate::failure::{FAILED, Failure, Result, say};
use crate::lower;
use crate::spec::PoolSpec;

/// Threads that wait for a lane's cluster, unless it is said.
const IO_THREADS: usize = 8;

/// Refuses an upper in a cluster in which other users could have written marks.
pub(crate) fn check_upper(place: &CephPlace, owner: u32, root: &Attr) -> Result<()> {
    if root.uid.0 != owner {
        let other = root.uid.0;
        return Err(Failure::failed(format!(
            "ceph:{place}: user {other} owns it and could show himself any file of the lowers: not \
             used over --lower; use one of your own"
        )));
    }
    match root.perm & lower::REACHERS {
        0 => Ok(()),
        bits => Err(Failure::failed(format!(
            "ceph:{place}: other users could show themselves any file of the lowers (mode bits \
             {bits:03o}): not used over --lower before 'chmod go-rwx' of that directory"
        ))),
    }
}

/// A directory of the service's cluster, whose calls end in time where that was asked for.
pub(crate) fn directory(
    spec: &PoolSpec,
    client: Option<&Client>,
    path: &str,
) -> Result<Arc<dyn FileSystem>> {
    let client = client.ok_or_else(|| Failure::failed("lane: its service has no client"))?;
    let fs = client.files(path.as_bytes());
    let fs = fs.map_err(|why| Failure::failed(format!("ceph: {why}")))?;
    let limit = spec.cluster.as_ref().and_then(|cluster| cluster.call_time_max_ms);
    Ok(match limit {
        Some(limit) => Arc::new(TimedFs::new(fs, Duration::from_millis(limit))),
        None => Arc::new(fs),
    })
}

/// Connects the service's client of a cluster. One that the cluster bars ends the service: the next
/// one has a client of its own, and goes on with what programs have open.
pub(crate) fn mount_cluster(spec: &PoolSpec, prepared: Prepared) -> Result<Client> {
    let place = spec.cluster.as_ref().map(|cluster| cluster.place.to_string());
    let place = place.unwrap_or_default();
    let mounted = prepared.mount();
    let client = mounted.map_err(|why| Failure::failed(format!("ceph:{place}: {why}")))?;
    polylane_ceph::on_barred(move || {
        say(format_args!(
            "ceph:{place}: the cluster has barred this client, which it had not heard of for long \
             or was told to bar: it connects anew"
        ));
        ns::exit_now(FAILED.into())
    });
    Ok(client)
}

/// Threads that wait for the lane's cluster; `None`: it is on none.
pub(crate) fn io_threads(spec: &PoolSpec) -> Option<usize> {
    let asked = spec.cluster.as_ref()?.client.io_threads;
    Some(asked.map_or(IO_THREADS, |count| count as usize))
}

/// Counters of a client of a Ceph file system as JSON; `None`: it is gone.
pub(crate) fn describe(watch: &Watch) -> Option<serde_json::Value> {
    let mut all = serde_json::Map::new();
    for kind in Kind::ALL {
        let totals = watch.totals(kind)?;
        let calls = serde_json::json!({
            "calls": totals.count,
            "waited": totals.slow,
            "total_us": totals.total_ns / 1000,
            "longest_us": totals.longest_ns / 1000,
        });
        all.insert(kind.name().to_string(), calls);
    }
    let (inodes, handles) = watch.held()?;
    all.insert("inodes_held".to_string(), inodes.into());
    all.insert("handles_open".to_string(), handles.into());
    all.insert("unsynced_bytes".to_string(), watch.unsynced_bytes()?.into());
    Some(all.into())
}

//! A service's client of a cluster, and what of its directories is fit for a lane.

use polylane_ceph::{Client, Prepared};
use polylane_sys::ns;
use polylane_vfs::Attr;

use crate::ceph::CephPlace;
use crate::failure::{FAILED, Failure, Result, say};
use crate::lower;
use crate::spec::PoolSpec;

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

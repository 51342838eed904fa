//! A running lane's counters.

use polylane_ext4::trace::Step;
use polylane_vfs::OpCtx;
use polylane_volume::disk::Disk;

use super::Running;
use super::lowers::Over;
use crate::{cluster, share};

/// Counters by name.
type Named = serde_json::Map<String, serde_json::Value>;

fn named(counts: impl IntoIterator<Item = (&'static str, u64)>) -> Named {
    counts.into_iter().map(|(name, count)| (name.to_string(), count.into())).collect()
}

/// The last syncs of an ext4.
fn syncs(steps: &[Step]) -> Vec<serde_json::Value> {
    let described = |step: &Step| {
        serde_json::json!({
            "part": step.part.name(),
            "why": step.why,
            "bytes": step.bytes,
            "at_us": step.at_us,
            "took_us": step.took_us,
        })
    };
    steps.iter().map(described).collect()
}

impl Running {
    /// Counters as JSON.
    pub(crate) fn stats(&self) -> serde_json::Value {
        let totals = self.server.totals();
        let by_op: Named = totals
            .by_op
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(op, count)| (format!("{op:?}").to_lowercase(), (*count).into()))
            .collect();
        let views = self.server.views();
        let vfs = self.caches.stats(&self.vfs);
        let fuse = self.fuse.stats.totals();
        let fuse_by_op: Named = fuse
            .by_operation
            .iter()
            .map(|(name, count)| (name.to_lowercase(), (*count).into()))
            .collect();
        serde_json::json!({
            "shared_memory": {
                "clients": self.server.session_count(),
                "clients_by_view": named(views.sessions),
                "not_admitted": named(views.refused),
                "requests": totals.requests(),
                "by_operation": by_op,
                "failed": totals.failed,
                "sent_to_kernel": totals.use_kernel,
                "refused": totals.refused,
                "handed_off": totals.handed_off,
                "kept": totals.kept,
                "left_to_others": totals.left,
                "read_bytes": totals.read_bytes,
                "written_bytes": totals.written_bytes,
                "worker_sleeps": totals.sleeps,
            },
            "fuse": {
                "requests": fuse.requests(),
                "by_operation": fuse_by_op,
                "failed": fuse.failed,
                "deferred": fuse.deferred,
                "page_notices": fuse.page_notices,
                "name_notices": fuse.name_notices,
                "state_notices": fuse.state_notices,
            },
            "vfs": {
                "operations": vfs.ops,
                "dentry_hits": vfs.dentry_hits,
                "dentry_misses": vfs.dentry_misses,
                "dentries": vfs.dentries,
                "inodes": vfs.inodes,
                "page_hits": vfs.page_hits,
                "page_misses": vfs.page_misses,
                "pages": vfs.pages,
                "dirty_bytes": vfs.dirty_bytes,
                "written_back_bytes": vfs.written_back_bytes,
            },
            "cluster": self.watch.as_ref().and_then(cluster::describe),
            "cache": self.caches.own(),
            "lower_caches": self.caches.of_lowers(),
            "absent_names": self.union.as_ref().map(Over::absent_names),
            "confined": self.confined,
            "volume": self.disk.as_ref().map(Disk::stats),
            "commits": self.disk.as_ref().map(|disk| named(disk.fs.commits())),
            "writes": self.disk.as_ref().map(|disk| named(disk.fs.writes())),
            "syncs": self.disk.as_ref().map(|disk| syncs(&disk.fs.syncs())),
            "share": self.disk.as_ref().map(|disk| share::report::describe(&disk.governor)),
            "files": self.files(),
        })
    }

    fn files(&self) -> Option<serde_json::Value> {
        let totals = self.vfs.statfs(&OpCtx::service()).ok()?;
        Some(serde_json::json!({
            "size_bytes": totals.blocks * u64::from(totals.bsize),
            "free_bytes": totals.bfree * u64::from(totals.bsize),
            "inodes": totals.files,
            "free_inodes": totals.ffree,
        }))
    }
}

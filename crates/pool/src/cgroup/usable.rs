//! What pools could use of this host's control groups: for `doctor`.

use std::fs;
use std::path::Path;

use super::Host;

/// The version-1 and version-2 controllers of this host that a pool could use now.
pub(crate) fn usable_controllers() -> Vec<(&'static str, Option<&'static str>)> {
    let host = Host::own();
    ["memory", "cpuset", "cpu", "net_cls"]
        .into_iter()
        .map(|controller| {
            let writable = |dir: &Path| {
                rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok().then_some(())
            };
            let version = match (host.v1_dir(controller), host.v2_parent(&[controller])) {
                (Some(dir), _) => writable(dir).map(|()| "v1"),
                (None, Some(parent)) => writable(&parent.dir).map(|()| "v2"),
                (None, None) => None,
            };
            (controller, version)
        })
        .collect()
}

/// Whether the kernel has network classes, in a hierarchy that is not mounted.
pub(crate) fn network_class_is_unmounted() -> bool {
    let all = fs::read_to_string("/proc/cgroups").unwrap_or_default();
    // NAME HIERARCHY GROUPS ENABLED
    let is_it = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        matches!(words[..], ["net_cls", "0", _, "1"])
    };
    all.lines().any(is_it)
}

//! Maps of users and groups of processes of another user namespace than the lane's tenant.

use std::fs;

use polylane_base::{ID_RANGES_MAX, IdRange};
use polylane_ipc::owners::Owners;

/// What the kernel shows for users and groups without a number, unless it is told otherwise.
const OVERFLOW: u32 = 65534;

/// The maps of a process; `None` where it has none yet, or where the tenant's numbers are not those
/// of the lane.
pub(super) fn of(pid: u32, tenant: u32) -> Option<Owners> {
    let map = |which: &str| {
        let tenants = fs::read_to_string(format!("/proc/{tenant}/{which}")).ok()?;
        let own = fs::read_to_string(format!("/proc/{pid}/{which}")).ok()?;
        seen(&lines(&tenants)?, lines(&own)?)
    };
    let (users, groups) = (map("uid_map")?, map("gid_map")?);
    Some(Owners { users, groups, overflow: [overflow("uid"), overflow("gid")] })
}

/// A process's map, to be used where the tenant has the same numbers as who reads both.
fn seen(tenants: &[IdRange], own: Vec<IdRange>) -> Option<Vec<IdRange>> {
    let same = tenants.iter().all(|line| line.shown == line.kept);
    (same && !own.is_empty()).then_some(own)
}

fn overflow(which: &str) -> u32 {
    let said = fs::read_to_string(format!("/proc/sys/kernel/overflow{which}"));
    said.ok().and_then(|said| said.trim().parse().ok()).unwrap_or(OVERFLOW)
}

/// Of `/proc/PID/uid_map`: `INSIDE OUTSIDE COUNT`.
fn lines(text: &str) -> Option<Vec<IdRange>> {
    let line = |line: &str| {
        let words: Vec<u32> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        let [shown, kept, count] = words[..] else { return None };
        Some(IdRange { shown, kept, count })
    };
    let all = text.lines().map(line).collect::<Option<Vec<_>>>()?;
    (all.len() <= ID_RANGES_MAX).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_lines_of_three_numbers() {
        let text = "         0     100000      65536\n     70000          5          1\n";
        let all = lines(text).unwrap();
        assert_eq!(all[0], IdRange { shown: 0, kept: 100_000, count: 65_536 });
        assert_eq!(all[1], IdRange { shown: 70_000, kept: 5, count: 1 });
        assert_eq!(lines(""), Some(Vec::new()));
        for text in ["0", "0 1", "0 1 2 3", "0 x 1", "-1 0 1", "0 0 4294967296"] {
            assert_eq!(lines(text), None, "{text}");
        }
        assert_eq!(lines(&"0 0 1\n".repeat(ID_RANGES_MAX + 1)), None);
    }

    #[test]
    fn a_map_counts_where_the_tenant_has_the_readers_numbers() {
        let own = || lines("0 1000 1").unwrap();
        for (tenants, counts) in [("0 0 4294967295", true), ("1000 1000 1", true), ("0 7 9", false)]
        {
            let seen = seen(&lines(tenants).unwrap(), own());
            assert_eq!(seen, counts.then(own), "{tenants}");
        }
        assert_eq!(seen(&[], Vec::new()), None, "no map yet");
    }
}

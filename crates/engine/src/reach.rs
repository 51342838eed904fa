//! How the root of a container with users of its own comes to the container's lanes.
//!
//! That root is an ordinary user of the host, who prepares the container's mounts. It has to pass
//! the directories in which the lanes are mounted. Those of one container let its group pass: the
//! host's group that the container's group 0 is. Members of that group on the host pass as well,
//! and come to lanes that are mounted with set-id bits. Engines map groups that have no members; an
//! existing one (`--gidmap 0:1000:1`) lets its members in. The directories above let everyone pass,
//! and are listed by root alone.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use polylane_base::shown::Shown;
use polylane_pool::failure::{Failure, Result};
use rustix::fs::{Gid, chown};
use serde_json::Value;

use crate::kept;
use crate::place::Place;

/// To pass a directory: its group, and others.
const GROUP: u32 = 0o010;
const OTHERS: u32 = 0o001;
const ALL: u32 = GROUP | OTHERS;

/// Lets the container's root pass, where that is another user than the host's.
///
/// # Errors
/// One line: a directory above ours keeps it out.
pub(crate) fn open(place: &Place, config: &Value) -> Result<()> {
    let Some(user) = mapped(config, "/linux/uidMappings") else { return Ok(()) };
    let group = mapped(config, "/linux/gidMappings").unwrap_or_default();
    for dir in [place.dir().to_path_buf(), place.file("mounts")].iter().filter(|dir| dir.exists()) {
        let given = chown(dir, None, Some(Gid::from_raw(group)));
        given.map_err(|error| Failure::path(dir, "give it to the container's group", error))?;
        let_pass(dir, GROUP)?;
    }
    let all = kept::all_dir()?;
    let state = all.parent().unwrap_or(&all);
    for dir in place.dir().ancestors().skip(1) {
        let is_ours = dir.starts_with(state);
        let found = dir.metadata().map_err(|error| Failure::path(dir, "look at it", error))?;
        match found.mode() & ALL {
            ALL => {}
            _ if is_ours => let_pass(dir, ALL)?,
            passing if passing & OTHERS == 0 => {
                return Err(Failure::failed(format!(
                    "{}: the container's root is user {user} here and cannot pass this directory \
                     to its lanes: chmod o+x it, or have another state directory (XDG_STATE_HOME)",
                    Shown::new(dir)
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Which user or group of the host is the container's 0; `None`: it is the host's 0.
fn mapped(config: &Value, pointer: &str) -> Option<u32> {
    let all = config.pointer(pointer).and_then(Value::as_array)?;
    let of_root = all.iter().find(|one| one["containerID"] == 0)?;
    u32::try_from(of_root["hostID"].as_u64()?).ok().filter(|id| *id != 0)
}

fn let_pass(dir: &Path, whom: u32) -> Result<()> {
    let failed = |error| Failure::path(dir, "let the container's root pass", error);
    let mode = dir.metadata().map_err(failed)?.mode() & 0o7777;
    std::fs::set_permissions(dir, PermissionsExt::from_mode(mode | whom)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_hosts_user_of_a_containers_root_is_told() {
        let config = json!({ "linux": {
            "uidMappings": [
                { "containerID": 1, "hostID": 7, "size": 9 },
                { "containerID": 0, "hostID": 100_000, "size": 1 },
            ],
            "gidMappings": [{ "containerID": 0, "hostID": 0, "size": 1 }],
        } });
        assert_eq!(mapped(&config, "/linux/uidMappings"), Some(100_000));
        assert_eq!(mapped(&config, "/linux/gidMappings"), None);
        assert_eq!(mapped(&json!({}), "/linux/uidMappings"), None);
    }
}

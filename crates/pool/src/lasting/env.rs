//! `polylane env`: what gives a process or a container the fast way into a lane.
//!
//! | form | for |
//! |---|---|
//! | shell | `eval "$(polylane env PATH)"` |
//! | `json` | programs: mount, socket, library for each C library, environment |
//! | `oci` | a runtime's `config.json`: its `mounts` and `process.env` |
//! | `cdi` | a file in /etc/cdi, after which containers ask for the device by its name |
//! | `docker`, `podman` | arguments of `run` |
//!
//! A container gets the lane at the path that it has on the host. The library and the socket come
//! with it, in `.polylane`, mounted read-only.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use polylane_ipc::message::RESERVED_DIR;
use serde_json::{Value, json};

use super::places;
use crate::failure::{Failure, Result};
use crate::preload;

/// The version of the container device interface that is written.
const CDI_VERSION: &str = "0.5.0";

/// Vendor and class of lanes as container devices.
const CDI_KIND: &str = "polylane.io/lane";

/// The fast way into a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneEnv {
    /// Where the lane is mounted.
    mount: PathBuf,
    /// What `LD_PRELOAD` is to be, for each dynamic linker to find the build for its C library;
    /// `None`: there is no library in the lane, or linkers cannot be told of such a path.
    library: Option<PathBuf>,
}

/// The fast way into the lane that PATH is in.
///
/// # Errors
/// One line: PATH is in no lane, or in a mount of one that has no fast way.
pub fn env(path: &Path) -> Result<LaneEnv> {
    let path = places::find(path)?;
    let bytes = path.as_os_str().as_bytes();
    let is_above = |place: &[u8]| path.starts_with(OsStr::from_bytes(place));
    let all = places::seen();
    let above = all.iter().filter(|seen| is_above(&seen.place));
    let Some(lane) = above.max_by_key(|seen| seen.place.len()).filter(|seen| seen.is_lane()) else {
        let shown = Shown::new(OsStr::from_bytes(bytes));
        return Err(Failure::failed(format!("{shown}: in no lane: 'polylane mount' lists them")));
    };
    let mount = PathBuf::from(OsStr::from_bytes(&lane.place));
    let within = mount.join(RESERVED_DIR);
    if !places::is_mount(&all, &within) {
        return Err(Failure::failed(format!(
            "{}: shares another mount's service, and is reached through FUSE: use that other path",
            Shown::new(&mount)
        )));
    }
    let library = preload::for_linker(&within);
    let is_there = within.join(preload::BUILDS[0].place).exists() && preload::can_name(&mount);
    Ok(LaneEnv { mount, library: is_there.then_some(library) })
}

impl LaneEnv {
    /// The environment; empty where there is no library.
    pub(crate) fn variables(&self) -> Vec<(&'static str, OsString)> {
        let Some(library) = &self.library else { return Vec::new() };
        vec![
            ("LD_PRELOAD", library.clone().into_os_string()),
            ("ASAN_OPTIONS", preload::asan_options()),
            ("POLYLANE_MOUNT", self.mount.clone().into_os_string()),
        ]
    }

    fn assignments(&self) -> Vec<String> {
        let text = |value: &OsString| value.to_string_lossy().into_owned();
        self.variables().iter().map(|(name, value)| format!("{name}={}", text(value))).collect()
    }

    /// Lines for a shell.
    pub fn shell(&self) -> String {
        let text = |value: &OsString| quoted(&value.to_string_lossy());
        let line = |(name, value): &(&str, OsString)| format!("export {name}={}\n", text(value));
        self.variables().iter().map(line).collect()
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let within = self.mount.join(RESERVED_DIR);
        let build = |index: usize| {
            let path = within.join(preload::BUILDS[index].place);
            path.exists().then(|| path.to_string_lossy().into_owned())
        };
        let environment: serde_json::Map<String, Value> = self
            .variables()
            .iter()
            .map(|(name, value)| ((*name).to_string(), json!(value.to_string_lossy())))
            .collect();
        json!({
            "mount": self.mount.to_string_lossy(),
            "socket": within.join("socket").to_string_lossy(),
            "library": { "glibc": build(0), "musl": build(1) },
            "environment": environment,
        })
    }

    /// What is added to the configuration of an OCI runtime.
    pub fn oci(&self) -> Value {
        let mount = self.mount.to_string_lossy();
        json!({
            "mounts": [{
                "destination": mount,
                "source": mount,
                "type": "bind",
                "options": ["rbind", "rslave", "nosuid", "nodev"],
            }],
            "process": { "env": self.assignments() },
        })
    }

    /// A specification of the container device interface.
    pub fn cdi(&self) -> Value {
        let mount = self.mount.to_string_lossy();
        json!({
            "cdiVersion": CDI_VERSION,
            "kind": CDI_KIND,
            "devices": [{
                "name": device_name(&mount),
                "containerEdits": {
                    "env": self.assignments(),
                    "mounts": [{
                        "hostPath": mount,
                        "containerPath": mount,
                        "options": ["rbind", "rslave", "nosuid", "nodev"],
                    }],
                },
            }],
        })
    }

    /// Arguments of `docker run` and `podman run`, quoted for a shell, on one line.
    ///
    /// # Errors
    /// The path has a comma or a quote in it, which neither can be told.
    pub fn container_arguments(&self) -> Result<String> {
        let mount = self.mount.to_string_lossy();
        if mount.contains([',', '"', '\n']) {
            return Err(Failure::failed(format!(
                "{}: --mount of docker and podman takes no such path: use --oci",
                Shown::new(&self.mount)
            )));
        }
        let bind = format!("type=bind,source={mount},target={mount},bind-propagation=rslave");
        let mut words = vec!["--mount".to_string(), quoted(&bind)];
        for assignment in self.assignments() {
            words.extend(["--env".to_string(), quoted(&assignment)]);
        }
        Ok(words.join(" "))
    }
}

/// A word that a shell reads as this text.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A path as the name of a container device: letters, digits, `_`, `-`, `.`, `:`, with a letter or
/// a digit at both ends.
fn device_name(path: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = path.chars().map(plain).collect();
    match name.trim_matches('-') {
        "" => "lane".to_string(),
        name => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(mount: &str) -> LaneEnv {
        let mount = PathBuf::from(mount);
        let library = preload::for_linker(&mount.join(RESERVED_DIR));
        LaneEnv { library: Some(library), mount }
    }

    #[test]
    fn shells_read_what_was_meant() {
        let text = lane("/srv/it's").shell();
        assert!(text.contains(r"export POLYLANE_MOUNT='/srv/it'\''s'"), "{text}");
        assert!(text.contains("/.polylane/$LIB/libpolylane.so'"), "not expanded: {text}");
        assert_eq!(LaneEnv { library: None, ..lane("/m") }.shell(), "");
    }

    #[test]
    fn containers_get_the_lane_at_its_own_path() {
        let lane = lane("/srv/web");
        assert_eq!(lane.oci()["mounts"][0]["destination"], "/srv/web");
        let env = lane.oci()["process"]["env"].to_string();
        assert!(env.contains("POLYLANE_MOUNT=/srv/web"), "{env}");
        assert_eq!(lane.cdi()["devices"][0]["name"], "srv-web");
        let words = lane.container_arguments().expect("arguments");
        assert!(words.starts_with("--mount 'type=bind,source=/srv/web,target=/srv/web,"));
        assert!(super::tests::lane("/a,b").container_arguments().is_err());
    }

    #[test]
    fn devices_have_names_that_the_interface_takes() {
        for (path, name) in [("/", "lane"), ("/a/b", "a-b"), ("/ä/x.y", "x-y"), ("/m/", "m")] {
            assert_eq!(device_name(path), name, "{path}");
        }
    }
}

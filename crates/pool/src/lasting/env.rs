//! `polylane env`: what gives a process or a container the fast way into lanes.
//!
//! | form | for |
//! |---|---|
//! | shell | `eval "$(polylane env PATH)"` |
//! | `json` | programs: mount, socket, library for each C library, environment |
//! | `oci` | a runtime's `config.json`: its `mounts` and `process.env` |
//! | `cdi` | a file in /etc/cdi, after which containers ask for the device by its name |
//! | `docker`, `podman` | arguments of `run` |
//!
//! A container gets each lane at the path that it has on the host, and beside it the lane's run
//! directory with the library and the socket, read-only, at its path on the host. They are not
//! taken from `.polylane` in the lane: a lane's service can have the kernel take a mount in its
//! lane away, and show files of its own there.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use polylane_ipc::handshake::LANES_MAX;
use serde_json::{Value, json};

use super::places;
use crate::failure::{Failure, Result};
use crate::init::LANE_FILE;
use crate::mountinfo::{self, Seen};
use crate::preload::LanePlace;
use crate::{names, preload};

/// The version of the container device interface that is written.
const CDI_VERSION: &str = "0.5.0";

/// Vendor and class of lanes as container devices.
const CDI_KIND: &str = "polylane.io/lane";

/// The fast way into lanes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneEnv {
    /// Where they are, the first one first; not empty.
    lanes: Vec<LanePlace>,
    /// What `LD_PRELOAD` is to be, for each dynamic linker to find the build for its C library;
    /// `None`: there is no library in any run directory, or linkers cannot be told of such a path.
    library: Option<PathBuf>,
}

/// The fast way into the lanes that PATHS are in, the first one's first.
///
/// # Errors
/// One line: a path is in no lane, or in a file system that another user calls a lane; no path, or
/// more lanes than the library takes.
pub fn env(paths: &[PathBuf]) -> Result<LaneEnv> {
    let all = mountinfo::seen();
    let mut lanes: Vec<LanePlace> = Vec::new();
    for path in paths {
        let lane = place_of(&places::find(path)?, &all)?;
        if !lanes.contains(&lane) {
            lanes.push(lane);
        }
    }
    if lanes.is_empty() {
        return Err(Failure::usage("no PATH: name one in each lane"));
    }
    if lanes.len() > LANES_MAX {
        return Err(Failure::usage(format!(
            "{}: a process has the fast way into {LANES_MAX} lanes at most: name fewer",
            Shown::new(&lanes[LANES_MAX].mount)
        )));
    }
    let has_library = |lane: &&LanePlace| {
        let there = lane.run_dir.join(preload::BUILDS[0].place).exists();
        there && preload::can_name(&lane.run_dir)
    };
    let library = lanes.iter().find(has_library).map(|lane| preload::for_linker(&lane.run_dir));
    Ok(LaneEnv { lanes, library })
}

/// The lane that a path is in.
fn place_of(path: &Path, all: &[Seen]) -> Result<LanePlace> {
    let is_above = |place: &[u8]| path.starts_with(OsStr::from_bytes(place));
    let above = all.iter().filter(|seen| is_above(&seen.place));
    let Some(lane) = above.max_by_key(|seen| seen.place.len()).filter(|seen| seen.is_lane()) else {
        let shown = Shown::new(path);
        return Err(Failure::failed(format!("{shown}: in no lane: 'polylane mount' lists them")));
    };
    let mount = PathBuf::from(OsStr::from_bytes(&lane.place));
    let shown = Shown::new(&mount);
    let found = all.iter().rev().filter_map(run_dir_of).find(|(device, ..)| *device == lane.device);
    let Some((_, run_dir)) = found else {
        return Err(Failure::failed(format!(
            "{shown}: not a lane that 'polylane' mounted on this host: 'polylane mount' lists them"
        )));
    };
    Ok(LanePlace { run_dir, mount })
}

/// The lane that a mount is the run directory of: its device number, and the run directory. One
/// directory is for all mounts of the lane. A directory that others than root and this user can
/// change has none.
fn run_dir_of(seen: &Seen) -> Option<(u64, PathBuf)> {
    let path = PathBuf::from(OsStr::from_bytes(&seen.place));
    let dir = path.parent().filter(|_| seen.kind == "tmpfs" && names::is_run_dir(&path))?;
    let stat = rustix::fs::lstat(dir).ok()?;
    let owners = [0, rustix::process::geteuid().as_raw()];
    if !owners.contains(&stat.st_uid) || stat.st_mode & 0o22 != 0 {
        return None;
    }
    let label = std::fs::read(path.join(LANE_FILE)).ok()?;
    let end = label.iter().position(|&byte| byte == b'\n')?;
    let device = std::str::from_utf8(&label[..end]).ok()?.parse().ok()?;
    Some((device, path))
}

impl LaneEnv {
    /// The environment of a program of this one's making; empty where there is no library.
    pub(crate) fn variables(&self) -> Vec<(String, OsString)> {
        self.preloading(preload::list)
    }

    fn preloading(&self, list: impl Fn(&Path) -> OsString) -> Vec<(String, OsString)> {
        let Some(library) = &self.library else { return Vec::new() };
        let linker = [("LD_PRELOAD", list(library)), ("ASAN_OPTIONS", preload::asan_options())];
        let linker = linker.into_iter().map(|(name, value)| (name.to_string(), value));
        let lanes = preload::lane_variables(&self.lanes).into_iter();
        linker.chain(lanes.filter_map(|(name, value)| Some((name, value?)))).collect()
    }

    /// The environment of a container, which has none of the caller's variables.
    fn of_container(&self) -> Result<Vec<(String, String)>> {
        let all = self.preloading(|library| library.as_os_str().to_os_string());
        all.into_iter().map(|(name, value)| Ok((name, utf8(Path::new(&value))?))).collect()
    }

    fn assignments(&self) -> Result<Vec<String>> {
        let all = self.of_container()?.into_iter();
        Ok(all.map(|(name, value)| format!("{name}={value}")).collect())
    }

    /// Lines for a shell, in the bytes that the paths have.
    pub fn shell(&self) -> Vec<u8> {
        let line = |(name, value): &(String, OsString)| {
            [b"export ", name.as_bytes(), b"=", &quoted(value.as_bytes()), b"\n"].concat()
        };
        self.variables().iter().flat_map(line).collect()
    }

    /// For programs.
    ///
    /// # Errors
    /// A path is not UTF-8, which JSON has no words for.
    pub fn json(&self) -> Result<Value> {
        let build = |index: usize| {
            let all = self.lanes.iter().map(|lane| lane.run_dir.join(preload::BUILDS[index].place));
            all.filter(|path| path.exists()).map(|path| utf8(&path)).next().transpose()
        };
        let environment: serde_json::Map<String, Value> =
            self.of_container()?.into_iter().map(|(name, value)| (name, json!(value))).collect();
        let lane = |lane: &LanePlace| -> Result<Value> {
            Ok(json!({
                "mount": utf8(&lane.mount)?,
                "run": utf8(&lane.run_dir)?,
                "socket": utf8(&lane.run_dir.join("socket"))?,
            }))
        };
        let lanes: Vec<Value> = self.lanes.iter().map(lane).collect::<Result<_>>()?;
        let mut whole = lanes[0].clone();
        whole["library"] = json!({ "glibc": build(0)?, "musl": build(1)? });
        whole["environment"] = Value::Object(environment);
        whole["lanes"] = Value::Array(lanes);
        Ok(whole)
    }

    /// What is added to the configuration of an OCI runtime.
    ///
    /// # Errors
    /// As [`json`](LaneEnv::json).
    pub fn oci(&self) -> Result<Value> {
        let mount = |(path, options): (String, Vec<&str>)| -> Value {
            json!({ "destination": path, "source": path, "type": "bind", "options": options })
        };
        let mounts: Vec<Value> = self.container_mounts()?.into_iter().map(mount).collect();
        Ok(json!({ "mounts": mounts, "process": { "env": self.assignments()? } }))
    }

    /// A specification of the container device interface.
    ///
    /// # Errors
    /// As [`json`](LaneEnv::json).
    pub fn cdi(&self) -> Result<Value> {
        let mount = |(path, options): (String, Vec<&str>)| -> Value {
            json!({ "hostPath": path, "containerPath": path, "options": options })
        };
        let mounts: Vec<Value> = self.container_mounts()?.into_iter().map(mount).collect();
        Ok(json!({
            "cdiVersion": CDI_VERSION,
            "kind": CDI_KIND,
            "devices": [{
                "name": device_name(&self.lanes)?,
                "containerEdits": { "env": self.assignments()?, "mounts": mounts },
            }],
        }))
    }

    /// What is mounted in a container, at its path on the host: each lane, and its run directory. A
    /// lane within another comes after that one.
    fn container_mounts(&self) -> Result<Vec<(String, Vec<&'static str>)>> {
        let of_lane = ["rbind", "rslave", "nosuid", "nodev"];
        let of_run_dir = ["rbind", "rslave", "ro", "nosuid", "nodev"];
        let mut lanes: Vec<&LanePlace> = self.lanes.iter().collect();
        lanes.sort_by_key(|lane| lane.mount.components().count());
        let mut mounts = Vec::new();
        for lane in lanes {
            mounts.push((utf8(&lane.mount)?, of_lane.to_vec()));
            mounts.push((utf8(&lane.run_dir)?, of_run_dir.to_vec()));
        }
        Ok(mounts)
    }

    /// Arguments of `docker run` and `podman run`, quoted for a shell, on one line.
    ///
    /// # Errors
    /// The path has a comma or a quote in it, which neither can be told, or is not UTF-8.
    pub fn container_arguments(&self) -> Result<String> {
        let all = mountinfo::seen();
        let own = |path: &str| all.iter().rfind(|seen| seen.place == path.as_bytes());
        self.arguments_where(|path| own(path).is_some_and(|seen| seen.propagates))
    }

    /// The same; `propagates`: whether the host's mount at a path hands mounts on.
    fn arguments_where(&self, propagates: impl Fn(&str) -> bool) -> Result<String> {
        let mut words = Vec::new();
        for (path, options) in self.container_mounts()? {
            if path.contains([',', '"', '\n']) {
                return Err(Failure::failed(format!(
                    "{}: --mount of docker and podman takes no such path: use --oci",
                    Shown::new(&path)
                )));
            }
            let read_only = if options.contains(&"ro") { ",readonly" } else { "" };
            // Docker refuses it where the host has nothing to propagate.
            let propagation = if propagates(&path) { ",bind-propagation=rslave" } else { "" };
            let bind = format!("type=bind,source={path},target={path}{propagation}{read_only}");
            words.extend(["--mount".to_string(), quoted_text(&bind)]);
        }
        for assignment in self.assignments()? {
            words.extend(["--env".to_string(), quoted_text(&assignment)]);
        }
        Ok(words.join(" "))
    }
}

/// The text of a path.
///
/// # Errors
/// One line when it has none.
fn utf8(path: &Path) -> Result<String> {
    path.to_str().map(str::to_string).ok_or_else(|| {
        Failure::failed(format!(
            "{}: not UTF-8, so JSON and containers cannot be told of it: mount the lane at another \
             path, or use the lines for a shell",
            Shown::new(path)
        ))
    })
}

fn quoted_text(text: &str) -> String {
    String::from_utf8_lossy(&quoted(text.as_bytes())).into_owned()
}

/// A word that a shell reads as this text.
fn quoted(text: &[u8]) -> Vec<u8> {
    let parts: Vec<&[u8]> = text.split(|&byte| byte == b'\'').collect();
    [b"'", parts.join(&br"'\''"[..]).as_slice(), b"'"].concat()
}

/// Mount paths as the name of a container device: letters, digits, `_`, `-`, `.`, `:`, with a
/// letter or a digit at both ends.
fn device_name(lanes: &[LanePlace]) -> Result<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let part = |lane: &LanePlace| -> Result<String> {
        let name: String = utf8(&lane.mount)?.chars().map(plain).collect();
        Ok(match name.trim_matches('-') {
            "" => "lane".to_string(),
            name => name.to_string(),
        })
    };
    Ok(lanes.iter().map(part).collect::<Result<Vec<_>>>()?.join("_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(mount: &[u8]) -> LaneEnv {
        lanes(&[mount])
    }

    fn lanes(mounts: &[&[u8]]) -> LaneEnv {
        let lane = |(index, mount): (usize, &&[u8])| LanePlace {
            run_dir: PathBuf::from(format!("/run/polylane/web@{}.lane", index + 1)),
            mount: PathBuf::from(OsStr::from_bytes(mount)),
        };
        let lanes: Vec<LanePlace> = mounts.iter().enumerate().map(lane).collect();
        let library = Some(preload::for_linker(&lanes[0].run_dir));
        LaneEnv { lanes, library }
    }

    #[test]
    fn shells_read_what_was_meant() {
        let text = String::from_utf8(lane(b"/srv/it's").shell()).expect("text");
        assert!(text.contains(r"export POLYLANE_MOUNT='/srv/it'\''s'"), "{text}");
        assert!(text.contains("'/run/polylane/web@1.lane/$LIB/libpolylane.so"), "{text}");
        assert_eq!(LaneEnv { library: None, ..lane(b"/m") }.shell(), b"");
    }

    #[test]
    fn the_bytes_of_a_path_reach_a_shell_and_nothing_that_cannot_have_them() {
        let lane = lane(b"/srv/\xffx");
        let needle = b"POLYLANE_MOUNT='/srv/\xffx'\n";
        assert!(lane.shell().windows(needle.len()).any(|part| part == needle));
        assert!(lane.json().is_err() && lane.oci().is_err() && lane.cdi().is_err());
        let line = lane.container_arguments().expect_err("not UTF-8").line;
        assert!(line.contains("not UTF-8"), "{line}");
    }

    #[test]
    fn containers_get_the_lane_and_its_run_directory_at_their_own_paths() {
        let lane = lane(b"/srv/web");
        let oci = lane.oci().expect("OCI");
        assert_eq!(oci["mounts"][0]["destination"], "/srv/web");
        assert_eq!(oci["mounts"][1]["source"], "/run/polylane/web@1.lane");
        let options = oci["mounts"][1]["options"].to_string();
        assert!(options.contains("\"ro\""), "{options}");
        let env = oci["process"]["env"].to_string();
        assert!(env.contains("POLYLANE_MOUNT=/srv/web"), "{env}");
        assert!(env.contains("POLYLANE_RUN=/run/polylane/web@1.lane:/srv/web"), "{env}");
        assert_eq!(lane.cdi().expect("CDI")["devices"][0]["name"], "srv-web");
        let words = lane.container_arguments().expect("arguments");
        assert!(words.starts_with("--mount 'type=bind,source=/srv/web,target=/srv/web' "));
        let words = lane.arguments_where(|path| path == "/srv/web").expect("arguments");
        let bind = "--mount 'type=bind,source=/srv/web,target=/srv/web,bind-propagation=rslave' ";
        assert!(words.starts_with(bind), "{words}");
        assert!(words.contains("target=/run/polylane/web@1.lane,readonly' "), "{words}");
        assert!(words.contains("readonly' --env "), "{words}");
        assert!(super::tests::lane(b"/a,b").container_arguments().is_err());
    }

    #[test]
    fn containers_get_several_lanes_one_within_another_last() {
        let lanes = lanes(&[b"/srv/web/cache", b"/srv/web"]);
        let oci = lanes.oci().expect("OCI");
        let all = oci["mounts"].as_array().expect("mounts");
        let places: Vec<&str> = all.iter().filter_map(|m| m["destination"].as_str()).collect();
        let [web, cache] = ["/run/polylane/web@2.lane", "/run/polylane/web@1.lane"];
        assert_eq!(places, ["/srv/web", web, "/srv/web/cache", cache]);
        let env = oci["process"]["env"].to_string();
        assert!(env.contains("POLYLANE_MOUNT=/srv/web/cache"), "{env}");
        assert!(env.contains("POLYLANE_RUN_2=/run/polylane/web@2.lane:/srv/web\""), "{env}");
        assert_eq!(lanes.cdi().expect("CDI")["devices"][0]["name"], "srv-web-cache_srv-web");
        let json = lanes.json().expect("JSON");
        assert_eq!(json["lanes"][1]["socket"], "/run/polylane/web@2.lane/socket");
        assert_eq!(json["mount"], "/srv/web/cache");
    }

    #[test]
    fn devices_have_names_that_the_interface_takes() {
        for (path, name) in [("/", "lane"), ("/a/b", "a-b"), ("/ä/x.y", "x-y"), ("/m/", "m")] {
            let place = lane(path.as_bytes()).lanes;
            assert_eq!(device_name(&place).expect("text"), name, "{path}");
        }
    }
}

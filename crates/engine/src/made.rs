//! Whether a container can still run that no engine's directory tells of: by the run of the host in
//! which it was made, and by what its runtime says of one whose `create` was killed.
//!
//! Both are told by annotations of the configuration that the runtime is given.
//!
//! | annotation | |
//! |---|---|
//! | `io.polylane.host` | the host's machine number, and its name: copies share a number |
//! | `io.polylane.boot` | the number of the kernel's run |
//! | `io.polylane.runtime`, `io.polylane.state` | the runtime's program, and its `--root` |

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use polylane_pool::failure::Result;
use polylane_sys::ns;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use serde_json::{Map, Value, json};

use crate::place::{CONFIG, Place};

/// A file that is there while a container is made.
const MAKING: &str = "making";

const HOST: &str = "io.polylane.host";
const BOOT: &str = "io.polylane.boot";
const RUNTIME: &str = "io.polylane.runtime";
const STATE: &str = "io.polylane.state";

/// Marks a container as one that is being made. Where it cannot be marked, and the command is
/// killed, its runtime is not asked.
pub(crate) fn begin(place: &Place) {
    let _ = File::create(place.file(MAKING));
}

/// Takes the mark away.
pub(crate) fn end(place: &Place) -> Result<()> {
    place.remove_file(MAKING)
}

/// Says in a configuration where and by what its container is made. What it said before, as by an
/// image, goes.
pub(crate) fn tell(config: &mut Value, program: &Path, state: Option<&OsStr>) {
    if !config["annotations"].is_object() {
        config["annotations"] = Value::Object(Map::new());
    }
    let absolute = state.map(std::path::absolute).and_then(std::result::Result::ok);
    let state = absolute.as_deref().map_or(Some(""), Path::to_str);
    for (name, value) in [
        (HOST, host().as_deref()),
        (BOOT, boot().as_deref()),
        (RUNTIME, program.to_str()),
        (STATE, state),
    ] {
        config["annotations"][name] = value.map_or(Value::Null, |value| json!(value));
    }
    let all = config["annotations"].as_object_mut().into_iter();
    all.for_each(|all| all.retain(|_, value| !value.is_null()));
}

/// Whether a container that has a configuration does not run, and will not without a new one.
/// What is not known is no.
pub(crate) fn has_ended(place: &Place) -> bool {
    let Ok(Some(config)) = place.read::<Value>(CONFIG) else { return false };
    let told = |name| config["annotations"][name].as_str();
    let is_here = told(HOST).is_some() && told(HOST) == host().as_deref();
    match told(BOOT).zip(boot()) {
        Some((then, now)) if is_here && then == now => {}
        other => return is_here && other.is_some(),
    }
    let Some((program, state)) = told(RUNTIME).zip(told(STATE)) else { return false };
    place.file(MAKING).exists() && is_unknown(place, program, state) == Some(true)
}

/// Whether the runtime has no such container, or a dead one; `None`: it does not say. The runtime
/// ends with this process, which has a limited time.
fn is_unknown(place: &Place, program: &str, state: &str) -> Option<bool> {
    let mut command = Command::new(program);
    if !state.is_empty() {
        command.args(["--root", state]);
    }
    command.args(["list", "--format", "json"]).stdin(Stdio::null());
    let own = getpid();
    ns::before_exec(&mut command, move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if getppid() == Some(own) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    });
    let output = command.output().ok().filter(|output| output.status.success())?;
    let all = match serde_json::from_slice(&output.stdout).ok()? {
        // As runc says that there are none.
        Value::Null => Vec::new(),
        Value::Array(all) => all,
        _ => return None,
    };
    let id = place.dir().file_name()?.to_str()?;
    // runc passes over one that it cannot load, says so, and succeeds.
    if String::from_utf8_lossy(&output.stderr).contains(id) {
        return None;
    }
    Some(all.iter().all(|one| one["id"] != id || one["status"] == "stopped"))
}

fn host() -> Option<String> {
    let read = |path| fs::read_to_string(path).ok().map(|text| text.trim().to_string());
    let name = read("/proc/sys/kernel/hostname")?;
    Some(format!("{} {name}", read("/etc/machine-id").unwrap_or_default()))
}

fn boot() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_string())
}

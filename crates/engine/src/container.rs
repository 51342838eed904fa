//! A container: what it is to be, its state and its removal.
//!
//! Each step leaves what the next command can use or remove:
//!
//! | command | steps |
//! |---|---|
//! | `create` | directory, record that says `making`, image held, record that says `ready` |
//! | `start` | lanes, configuration, runtime |
//! | `rm` | record that says `removing`, runtime's state, lanes, image released, files |
//!
//! After a kill any later command removes what says `making` or `removing`, but what is in a store
//! `rm` alone or who makes another one there; and the next `start` or `rm` clears lanes and a
//! runtime's state.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use polylane_image::Store;
use polylane_pool::ceph::CephPlace;
use polylane_pool::failure::{Failure, Result};
use polylane_pool::lasting::{self, NsKind};
use polylane_pool::names;
use polylane_sys::procstat::ProcessStat;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

use crate::lane;
use crate::place::{self, Lock, Place};
use crate::record::{
    Cluster, Exit, FileCache, Mount, NamespacesOf, Network, Record, Stage, VERSION,
};
use crate::runtime::Runtime;
use crate::store;

/// Longest name of a container, in bytes: as long as a host name may be.
const NAME_BYTES_MAX: usize = 63;

/// Longest host name, in bytes (`__NEW_UTS_LEN` of linux/utsname.h).
const HOST_NAME_BYTES_MAX: usize = 64;

/// Least memory of a container.
const MEMORY_BYTES_MIN: u64 = 6 << 20;

/// Most bytes of a container's arguments and environment, which an image may say, and how many
/// they may be: what a runtime can execute.
const WORDS_BYTES_MAX: usize = 1 << 20;
const WORDS_MAX: usize = 4096;

/// How often a container that runs is killed before its removal is given up.
const REMOVAL_ROUNDS: usize = 3;

/// How long a container that was killed may take until it is cleared up.
pub(crate) const END_TIME_MAX: Duration = Duration::from_secs(60);

/// The file that tells where its control groups are, as long as there may be any.
pub(crate) const GROUPS: &str = "groups.json";

/// What a container is to be.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// The image: its name, or first digits of its identity.
    pub image: String,
    /// Arguments; none: the image's.
    pub command: Vec<String>,
    /// What is executed with them, in place of the image's; an empty text: they are all.
    pub entrypoint: Option<String>,
    /// Its name; made up when absent.
    pub name: Option<String>,
    /// Pool of its lanes and processes.
    pub pool: Option<String>,
    /// NAME=VALUE, or NAME for the caller's value.
    pub env: Vec<String>,
    /// Working directory in place of the image's.
    pub workdir: Option<String>,
    /// `USER[:GROUP]` in place of the image's.
    pub user: Option<String>,
    /// Its host name; its name when absent.
    pub hostname: Option<String>,
    /// Its network.
    pub network: Network,
    /// Whose namespaces it has, of those that its pool has for containers; none: the pool's.
    pub namespaces: Option<NamespacesOf>,
    /// Thousandths of a CPU.
    pub cpus: Option<u64>,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Bytes of its own volume.
    pub size: Option<u64>,
    /// The directory of a cluster for its layers and its changes.
    pub store: Option<CephPlace>,
    /// How the cluster of its store and of its mounts is reached.
    pub cluster: Cluster,
    /// A cache of its root's files.
    pub file_cache: Option<FileCache>,
    /// What it sees besides its image.
    pub mounts: Vec<Mount>,
    /// The runtime: a name or a path.
    pub runtime: Option<String>,
    /// Its processes are without the library.
    pub no_preload: bool,
    /// A terminal for its first process.
    pub terminal: bool,
    /// It reads the caller's standard input.
    pub interactive: bool,
    /// It is removed when it ends.
    pub remove: bool,
}

/// What a container does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It was never started.
    Created,
    /// Its first process has this number.
    Running(u32),
    /// It ended with this status; `None`: whoever waited for it was killed.
    Exited(Option<u8>),
}

/// A container of this host.
#[derive(Clone, Debug)]
pub struct Container {
    pub(crate) place: Place,
    /// What was asked for.
    pub record: Record,
}

/// Whether a process has a thread that lives: its first may have ended before the others.
fn lives(pid: u32) -> bool {
    ProcessStat::threads_of(pid).any(|thread| !thread.has_ended())
}

pub(crate) fn store() -> Result<Store> {
    Ok(Store::in_state(&polylane_volume::state_dir()?))
}

pub(crate) fn failed(error: polylane_image::Error) -> Failure {
    Failure::failed(error.to_string())
}

/// Now, in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Container {
    /// What it does now.
    ///
    /// # Errors
    /// Its files cannot be read.
    pub fn state(&self) -> Result<State> {
        let text = std::fs::read_to_string(self.place.file("pid")).unwrap_or_default();
        if let Some(pid) = text.trim().parse().ok().filter(|&pid| self.has_process(pid)) {
            return Ok(State::Running(pid));
        }
        let ended = self.place.read::<Exit>("exit.json")?;
        Ok(match ended {
            Some(exit) => State::Exited(Some(exit.status)),
            None if text.is_empty() => State::Created,
            None => State::Exited(None),
        })
    }

    /// Whether a live process is one of the container's: numbers are used again.
    fn has_process(&self, pid: u32) -> bool {
        let name = self.group();
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        lives(pid) && groups.lines().any(|line| line.split('/').any(|part| part == name))
    }

    /// Kills the container's first process, which the runtime takes for ended when its first thread
    /// has.
    pub(crate) fn kill_first(&self) -> Result<()> {
        let State::Running(pid) = self.state()? else { return Ok(()) };
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        let failed = |error: Errno| Failure::because(&self.record.name, "send it SIGKILL", error);
        let process = match pidfd_open(number, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(()),
            process => process.map_err(failed)?,
        };
        // Looked at again: the number may have become another's before it was opened.
        if !self.has_process(pid) {
            return Ok(());
        }
        match pidfd_send_signal(&process, Signal::KILL) {
            // It ended by itself meanwhile.
            Err(Errno::SRCH) => Ok(()),
            sent => sent.map_err(failed),
        }
    }

    /// The name of its control groups.
    pub(crate) fn group(&self) -> String {
        format!("polylane-{}", self.record.id)
    }

    /// Where its output is kept.
    pub(crate) fn output(&self) -> PathBuf {
        self.place.file("output")
    }

    pub(crate) fn runtime(&self) -> Runtime<'_> {
        Runtime {
            program: Path::new(&self.record.runtime),
            place: &self.place,
            id: &self.record.id,
        }
    }

    /// Takes away what a start that was cut off has left, and the last run.
    pub(crate) fn clear(&self) -> Result<()> {
        self.end_at_runtime()?;
        lane::unmount(&self.place, &self.record, true)
    }

    /// Ends what there is of it at the runtime, and what a runtime that was killed has left of it
    /// in its control groups.
    pub(crate) fn end_at_runtime(&self) -> Result<()> {
        self.runtime().delete()?;
        let groups: Vec<PathBuf> = self.place.read(GROUPS)?.unwrap_or_default();
        lasting::end_groups(&groups);
        self.place.remove_file(GROUPS)
    }

    /// Takes the right to start it, or to read its files.
    ///
    /// # Errors
    /// One line: it was removed meanwhile, or another command has it for too long.
    pub(crate) fn lock(&self) -> Result<Lock> {
        self.place.lock_if_there()?.ok_or_else(|| {
            Failure::failed(format!("{}: another command has removed it", self.record.name))
        })
    }

    /// Removes the container. With `force` also one that runs.
    ///
    /// # Errors
    /// One line: it runs, or something cannot be removed; a further try goes on.
    pub fn remove(&self, force: bool) -> Result<()> {
        for _ in 0..REMOVAL_ROUNDS {
            // One that is being started is not removed half way.
            let Some(lock) = self.place.lock_if_there()? else { return Ok(()) };
            let State::Running(_) = self.state()? else {
                // A command that waited for it has nothing more to do, or waits for this lock.
                return self.remove_all(&lock, force);
            };
            if !force {
                return Err(Failure::failed(format!(
                    "{0}: runs: 'polylane container stop {0}' first, or 'rm --force'",
                    self.record.name
                )));
            }
            drop(lock);
            // What is gone meanwhile is what was wanted.
            let _ = self.runtime().kill("SIGKILL");
            self.kill_first()?;
            self.wait_ended(END_TIME_MAX)?;
            self.place.wait_unwatched(END_TIME_MAX)?;
        }
        Err(Failure::failed(format!("{}: does not end after SIGKILL", self.record.name)))
    }

    /// Waits until it does not run, for so long at most.
    pub(crate) fn wait_ended(&self, limit: Duration) -> Result<()> {
        let end = std::time::Instant::now() + limit;
        while matches!(self.state()?, State::Running(_)) && std::time::Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Removes all of it.
    pub(crate) fn remove_all(&self, lock: &Lock, force: bool) -> Result<()> {
        let record = Record { stage: Stage::Removing, ..self.record.clone() };
        self.place.write("record.json", &record)?;
        self.end_at_runtime()?;
        lane::unmount(&self.place, &self.record, force)?;
        store::remove((&self.place, lock), &self.record)?;
        store()?.release(&self.record.id).map_err(failed)?;
        self.place.remove()
    }
}

pub(crate) fn utf8(path: &Path) -> Result<String> {
    path.to_str().map(str::to_string).ok_or_else(|| {
        Failure::failed(format!("{}: not UTF-8, which runtimes cannot be told of", path.display()))
    })
}

/// Refuses what no container can be.
pub(crate) fn check(wanted: &Wanted) -> Result<()> {
    if let Some(name) = &wanted.name
        && (!names::is_name(name) || name.len() > NAME_BYTES_MAX || place::is_id(name))
    {
        return Err(Failure::usage(format!(
            "--name {}: 63 letters, digits, '.', '_' and '-' at most, and not 16 digits of an \
             identity",
            polylane_base::shown::Shown::new(name)
        )));
    }
    let is_host = |name: &String| (1..=HOST_NAME_BYTES_MAX).contains(&name.len());
    if wanted.hostname.as_ref().is_some_and(|name| !is_host(name)) {
        return Err(Failure::usage("--hostname: 1 to 64 bytes, as the kernel has it"));
    }
    if wanted.memory.is_some_and(|bytes| bytes < MEMORY_BYTES_MIN) {
        return Err(Failure::usage("--memory: too small: at least 6M are needed"));
    }
    let bad_env = |text: &&String| text.starts_with('=') || text.is_empty() || text.contains('\0');
    if let Some(text) = wanted.env.iter().find(bad_env) {
        return Err(Failure::usage(format!("--env {text:?}: write it as NAME=VALUE or NAME")));
    }
    let is_in_cluster = wanted.store.is_some() || wanted.mounts.iter().any(Mount::is_in_cluster);
    if !wanted.cluster.is_default() && !is_in_cluster {
        return Err(Failure::usage(
            "--ceph-conf, --ceph-keyring and --timeout: are of --store and of mounts in a cluster",
        ));
    }
    if wanted.size.is_some() && wanted.store.is_some() {
        return Err(Failure::usage("--size: is of a container's own volume, and --store has none"));
    }
    if wanted.workdir.as_ref().is_some_and(|path| !path.starts_with('/')) {
        return Err(Failure::usage("--workdir: not an absolute path"));
    }
    lane::check(&wanted.mounts)
}

/// The record of a container with the image's `config` where nothing else is asked for.
pub(crate) fn specify(
    wanted: &Wanted,
    config: &Value,
    (id, others): (String, &[Container]),
) -> Result<Record> {
    let text = |name: &str| config[name].as_str().map(str::to_string);
    let list = |name: &str| -> Vec<String> {
        let words = config[name].as_array().into_iter().flatten();
        words.filter_map(|word| word.as_str().map(str::to_string)).collect()
    };
    let name = wanted.name.clone().unwrap_or_else(|| format!("c-{}", &id[..8]));
    if others.iter().any(|one| one.record.name == name) {
        return Err(Failure::failed(format!(
            "{name}: a container has that name: 'polylane container rm {name}' first"
        )));
    }
    let args = arguments(wanted, list("Entrypoint"), list("Cmd"));
    if args.is_empty() {
        return Err(Failure::usage(format!(
            "{}: the image says no command: write one after it",
            wanted.image
        )));
    }
    let mut env = list("Env");
    env.extend(wanted.env.iter().filter_map(|text| given(text)));
    let bytes: usize = args.iter().chain(&env).map(|word| word.len() + 1).sum();
    if bytes > WORDS_BYTES_MAX || args.len() + env.len() > WORDS_MAX {
        return Err(Failure::failed(format!(
            "{}: {} arguments and variables of {bytes} bytes: {WORDS_MAX} of {WORDS_BYTES_MAX} \
             bytes at most can be executed",
            wanted.image,
            args.len() + env.len(),
        )));
    }
    let or = |asked: &Option<String>, name: &str| asked.clone().or_else(|| text(name));
    let cwd = or(&wanted.workdir, "WorkingDir").filter(|path| path.starts_with('/'));
    let not_empty = |text: &String| !text.is_empty();
    Ok(Record {
        version: VERSION,
        stage: Stage::Making,
        hostname: name.clone(),
        id,
        name,
        pool: wanted.pool.clone(),
        image: String::new(),
        image_id: String::new(),
        layers: Vec::new(),
        store: wanted.store.clone(),
        cluster: wanted.cluster.clone(),
        file_cache: wanted.file_cache.clone(),
        created: now(),
        runtime: String::new(),
        args,
        env,
        cwd: cwd.unwrap_or_else(|| "/".to_string()),
        user: or(&wanted.user, "User").unwrap_or_default(),
        stop_signal: text("StopSignal").filter(not_empty).unwrap_or_else(|| "SIGTERM".to_string()),
        network: wanted.network,
        namespaces: wanted.namespaces.unwrap_or_default(),
        cpus: wanted.cpus,
        memory: wanted.memory,
        pids: wanted.pids,
        mounts: wanted.mounts.clone(),
        size: wanted.size,
        preload: !wanted.no_preload,
        terminal: wanted.terminal,
        interactive: wanted.interactive,
        remove: wanted.remove,
    })
}

/// The kinds of namespaces that a container is to join of its pool.
pub(crate) fn joined(wanted: &Wanted) -> Result<Vec<NsKind>> {
    let pool = wanted.pool.as_deref().unwrap_or(lasting::POOL_DEFAULT);
    let kinds = match pool == lasting::POOL_DEFAULT && !lasting::exists(pool)? {
        true => Vec::new(),
        false => lasting::namespaces(pool)?,
    };
    match wanted.namespaces {
        Some(NamespacesOf::Own) => Ok(Vec::new()),
        Some(NamespacesOf::Pool) if kinds.is_empty() => Err(Failure::usage(format!(
            "--ns pool: pool '{pool}' has none: make one with 'polylane pool create --ns \
             ipc,uts,net'"
        ))),
        _ => Ok(kinds),
    }
}

/// The host name of a container that joins these; `None`: its name.
pub(crate) fn hostname(wanted: &Wanted, joined: &[NsKind]) -> Result<Option<String>> {
    match (joined.contains(&NsKind::Uts), &wanted.hostname) {
        (false, asked) => Ok(asked.clone()),
        (true, None) => Ok(wanted.pool.clone()),
        (true, Some(_)) => Err(Failure::usage(
            "--hostname: the host name is the pool's: leave it out, or give the container its own \
             with --ns own",
        )),
    }
}

/// What is executed: the image's entry point with the arguments that were asked for, else with its
/// own; with another entry point only what was asked for.
fn arguments(wanted: &Wanted, entrypoint: Vec<String>, own: Vec<String>) -> Vec<String> {
    let (mut first, own) = match wanted.entrypoint.as_deref() {
        None => (entrypoint, own),
        Some("") => (Vec::new(), Vec::new()),
        Some(program) => (vec![program.to_string()], Vec::new()),
    };
    first.extend(if wanted.command.is_empty() { own } else { wanted.command.clone() });
    first
}

/// NAME=VALUE; of NAME alone the caller's value, if it has one.
pub(crate) fn given(text: &str) -> Option<String> {
    match text.contains('=') {
        true => Some(text.to_string()),
        false => std::env::var(text).ok().map(|value| format!("{text}={value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wanted(command: &[&str]) -> Wanted {
        Wanted {
            image: "i".into(),
            command: command.iter().map(|word| word.to_string()).collect(),
            ..Wanted::default()
        }
    }

    fn record(wanted: &Wanted, config: Value) -> Result<Record> {
        specify(wanted, &config, ("0123456789abcdef".into(), &[]))
    }

    #[test]
    fn the_image_says_what_nobody_asked_for() {
        let config = json!({
            "Entrypoint": ["/init"], "Cmd": ["serve"], "Env": ["A=1"], "User": "web",
            "WorkingDir": "/srv", "StopSignal": "SIGQUIT",
        });
        let own = record(&wanted(&[]), config.clone()).unwrap();
        assert_eq!(own.args, ["/init", "serve"]);
        assert_eq!((&*own.user, &*own.cwd, &*own.stop_signal), ("web", "/srv", "SIGQUIT"));
        assert_eq!((&*own.name, own.env), ("c-01234567", vec!["A=1".to_string()]));
        let other = Wanted { user: Some("0".into()), workdir: Some("/".into()), ..wanted(&["x"]) };
        let other = record(&other, config.clone()).unwrap();
        assert_eq!(other.args, ["/init", "x"]);
        assert_eq!((&*other.user, &*other.cwd), ("0", "/"));
        let plain = Wanted { entrypoint: Some(String::new()), ..wanted(&["x"]) };
        assert_eq!(record(&plain, config.clone()).unwrap().args, ["x"]);
        let program = Wanted { entrypoint: Some("/p".into()), ..wanted(&[]) };
        assert_eq!(record(&program, config).unwrap().args, ["/p"]);
        assert_eq!(record(&wanted(&[]), json!({})).unwrap_err().status, 2);
        assert_eq!(record(&wanted(&["x"]), Value::Null).unwrap().cwd, "/");
    }

    #[test]
    fn what_no_container_can_be_is_refused() {
        let bad = [
            Wanted { name: Some("a/b".into()), ..wanted(&["x"]) },
            Wanted { name: Some("0123456789abcdef".into()), ..wanted(&["x"]) },
            Wanted { memory: Some(1), ..wanted(&["x"]) },
            Wanted { env: vec!["=x".into()], ..wanted(&["x"]) },
            Wanted { workdir: Some("srv".into()), ..wanted(&["x"]) },
            Wanted {
                cluster: Cluster { timeout_us: Some(1), ..Cluster::default() },
                ..wanted(&["x"])
            },
            Wanted { store: "fs".parse().ok(), size: Some(1 << 30), ..wanted(&["x"]) },
            Wanted { mounts: vec![Mount::parse("/:/proc").unwrap()], ..wanted(&["x"]) },
        ];
        for wanted in bad {
            assert_eq!(check(&wanted).map_err(|failure| failure.status), Err(2), "{wanted:?}");
        }
    }
}

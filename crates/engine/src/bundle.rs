//! `config.json` of a container: what its runtime is told (OCI runtime specification 1.0.2).
//!
//! The sandbox is the runtime's: namespaces, capabilities, hidden parts of `/proc`, the filter of
//! system calls. What is set here are the defaults that container engines have in common.

use std::path::{Path, PathBuf};

use polylane_pool::lasting::NsKind;
use serde_json::{Value, json};

use crate::record::{Mount, Network, Record};
use crate::seccomp;
use crate::users::User;

/// What root of a container may: of its own files and processes much, of the host nothing.
const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// What of `/proc` and `/sys` a container does not see ...
const MASKED: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

/// ... and what it sees and does not change.
const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Directories of the root on which the runtime mounts something.
const SYSTEM: [&str; 3] = ["proc", "sys", "dev"];

/// Where programs are looked for, unless the image says.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Microseconds in which a container has its share of CPUs.
const CPU_PERIOD_US: u64 = 100_000;

/// What gives a process of a container the fast way. The library and the socket lie in `.polylane`
/// of the lane's root, which is a read-only mount there; the linker puts in for `$LIB` where the
/// build for its C library is.
const FAST: [&str; 3] = [
    "LD_PRELOAD=/.polylane/$LIB/libpolylane.so",
    "POLYLANE_MOUNT=/",
    "ASAN_OPTIONS=verify_asan_link_order=0",
];

/// Paths from the lane's root where the runtime mounts something else.
pub(crate) fn covered(record: &Record) -> Vec<Vec<u8>> {
    let own = SYSTEM.iter().map(|name| name.as_bytes().to_vec());
    own.chain(record.mounts.iter().map(|mount| mount.target_parts().into_bytes())).collect()
}

/// Those of them where it mounts directories.
pub(crate) fn directories(record: &Record) -> Vec<String> {
    let is_dir = |mount: &&Mount| mount.is_lane() || Path::new(&mount.source).is_dir();
    let mounted = record.mounts.iter().filter(is_dir).map(Mount::target_parts);
    SYSTEM.map(str::to_string).into_iter().chain(mounted).collect()
}

/// The environment of a process: of two values of a name the last counts.
pub(crate) fn environment(
    record: &Record,
    user: &User,
    more: &[String],
    terminal: bool,
) -> Vec<String> {
    let mut all = vec![PATH.to_string(), format!("HOSTNAME={}", record.hostname)];
    all.push(format!("HOME={}", user.home));
    if terminal {
        all.push("TERM=xterm".to_string());
    }
    let given = all.into_iter().chain(record.env.iter().cloned()).chain(more.iter().cloned());
    let mut env: Vec<String> = Vec::new();
    given.for_each(|assignment| assign(&mut env, assignment));
    if record.preload { with_library(env) } else { env }
}

/// The place of a variable.
fn position(env: &[String], assignment: &str) -> Option<usize> {
    let name = |text: &str| text.split('=').next().map(str::to_string);
    env.iter().position(|other| name(other) == name(assignment))
}

fn assign(env: &mut Vec<String>, assignment: String) {
    match position(env, &assignment) {
        Some(at) => env[at] = assignment,
        None => env.push(assignment),
    }
}

/// An environment with the fast way. What it preloads already comes behind the library.
pub(crate) fn with_library(mut env: Vec<String>) -> Vec<String> {
    for text in FAST {
        let user = match position(&env, text) {
            Some(at) if text.starts_with("LD_PRELOAD=") => {
                env[at].split_once('=').map_or(String::new(), |(_, value)| value.to_string())
            }
            _ => String::new(),
        };
        let more = if user.is_empty() { user } else { format!(":{user}") };
        assign(&mut env, format!("{text}{more}"));
    }
    env
}

/// `process` of a container, or of a further one in it.
pub(crate) fn process(
    user: &User,
    env: &[String],
    args: &[String],
    cwd: &str,
    terminal: bool,
) -> Value {
    let capabilities = json!(CAPABILITIES);
    // Those of other users are kept back by exec: they are in no set that it takes over.
    let own = if user.uid == 0 { capabilities.clone() } else { json!([]) };
    json!({
        "terminal": terminal,
        "user": { "uid": user.uid, "gid": user.gid, "additionalGids": user.groups, "umask": 0o022 },
        "args": args,
        "env": env,
        "cwd": cwd,
        "capabilities": { "bounding": capabilities, "effective": own.clone(), "permitted": own },
        "noNewPrivileges": false,
    })
}

/// Where on the host something of a container is.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnHost {
    /// Its mounts, one after the other.
    pub(crate) sources: Vec<String>,
    /// Namespaces of its pool that it joins.
    pub(crate) namespaces: Vec<(NsKind, PathBuf)>,
}

/// The whole configuration. `groups`: the path of its control groups as the runtime takes it.
pub(crate) fn config(
    record: &Record,
    (root, groups): (&Path, &str),
    (user, env): (&User, &[String]),
    on_host: &OnHost,
) -> Value {
    let mut mounts = system_mounts();
    let binds = record.mounts.iter().zip(&on_host.sources);
    mounts.extend(binds.map(|(mount, source)| bind(mount, source)));
    let mut config = json!({
        "ociVersion": "1.0.2",
        "process": process(user, env, &record.args, &record.cwd, record.terminal),
        "root": { "path": root, "readonly": false },
        "mounts": mounts,
        "linux": {
            "cgroupsPath": groups,
            "namespaces": namespaces(record.network, &on_host.namespaces),
            "resources": resources(record),
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
            "seccomp": seccomp::profile(),
        },
    });
    // The pool's name is nothing that a container sets.
    if !on_host.namespaces.iter().any(|(kind, _)| *kind == NsKind::Uts) {
        config["hostname"] = json!(record.hostname);
    }
    config
}

fn namespaces(network: Network, joined: &[(NsKind, PathBuf)]) -> Vec<Value> {
    let own = ["pid", "mount", "cgroup"].map(|kind| json!({ "type": kind })).into_iter();
    let of_pool = NsKind::ALL.into_iter().filter_map(|kind| {
        let word = if kind == NsKind::Net { "network" } else { kind.name() };
        let path = joined.iter().find(|(joined, _)| *joined == kind).map(|(_, path)| path);
        match (kind, network, path) {
            (NsKind::Net, Network::Host, _) => None,
            (_, _, Some(path)) => Some(json!({ "type": word, "path": path })),
            (_, _, None) => Some(json!({ "type": word })),
        }
    });
    own.chain(of_pool).collect()
}

fn resources(record: &Record) -> Value {
    let mut all = json!({
        // Those that every container has, the runtime adds.
        "devices": [{ "allow": false, "access": "rwm" }],
    });
    if let Some(bytes) = record.memory {
        all["memory"] = json!({ "limit": bytes });
    }
    if let Some(thousandths) = record.cpus {
        let quota = thousandths.saturating_mul(CPU_PERIOD_US / 1000);
        all["cpu"] = json!({ "period": CPU_PERIOD_US, "quota": quota });
    }
    if let Some(count) = record.pids {
        all["pids"] = json!({ "limit": count });
    }
    all
}

fn system_mounts() -> Vec<Value> {
    let mount = |at: &str, kind: &str, options: &[&str]| {
        let source = kind;
        json!({ "destination": at, "type": kind, "source": source, "options": options })
    };
    vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/shm", "tmpfs", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        // Never the host's, whose mounts below (tracing, debugging, FUSE's) would be there as well.
        mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        mount("/sys/fs/cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", "ro"]),
    ]
}

/// A mount of a lane or of a path of the host, in a configuration. A read-only one is without what
/// is mounted below: `ro` counts for the mount itself alone, and older runtimes know no `rro`.
pub(crate) fn bind(mount: &Mount, source: &str) -> Value {
    let (kind, access) = if mount.read_only { ("bind", "ro") } else { ("rbind", "rw") };
    json!({
        "destination": format!("/{}", mount.target_parts()),
        "type": "bind",
        "source": source,
        "options": [kind, "rprivate", "nosuid", "nodev", access],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{NamespacesOf, Stage, VERSION};

    fn record() -> Record {
        let mount = Mount { source: "/a".into(), target: "/srv//data/".into(), read_only: true };
        Record {
            version: VERSION,
            stage: Stage::Ready,
            id: "0123456789abcdef".into(),
            name: "web".into(),
            pool: None,
            image: "debian".into(),
            image_id: String::new(),
            layers: Vec::new(),
            created: 0,
            runtime: "/bin/runc".into(),
            args: vec!["sh".into()],
            env: vec!["A=1".into(), "A=2".into(), "LD_PRELOAD=/x.so".into()],
            cwd: "/".into(),
            user: String::new(),
            stop_signal: "SIGTERM".into(),
            hostname: "web".into(),
            network: Network::None,
            namespaces: NamespacesOf::Pool,
            cpus: Some(1500),
            memory: Some(1 << 20),
            pids: Some(5),
            mounts: vec![mount],
            size: None,
            preload: true,
            terminal: false,
            interactive: false,
            remove: false,
            store: None,
            cluster: crate::record::Cluster::default(),
            file_cache: None,
        }
    }

    fn root() -> User {
        User { uid: 0, gid: 0, groups: Vec::new(), home: "/root".into() }
    }

    #[test]
    fn the_last_value_of_a_variable_counts() {
        let env = environment(&record(), &root(), &["HOME=/h".into()], false);
        let of = |name: &str| -> Vec<&str> {
            env.iter().filter_map(|text| text.strip_prefix(name)?.strip_prefix('=')).collect()
        };
        assert_eq!((of("A"), of("HOME")), (vec!["2"], vec!["/h"]));
        assert_eq!(of("LD_PRELOAD"), ["/.polylane/$LIB/libpolylane.so:/x.so"]);
        let slow = Record { preload: false, ..record() };
        let env = environment(&slow, &root(), &[], true);
        assert!(env.contains(&"LD_PRELOAD=/x.so".to_string()), "{env:?}");
        assert!(env.contains(&"TERM=xterm".to_string()), "{env:?}");
    }

    #[test]
    fn limits_mounts_and_namespaces_are_the_records() {
        let record = record();
        let on_host = OnHost { sources: vec!["/host".into()], ..OnHost::default() };
        let whole = config(&record, (Path::new("/r"), "g"), (&root(), &[]), &on_host);
        let linux = &whole["linux"];
        assert_eq!(linux["resources"]["cpu"]["quota"], 150_000);
        assert_eq!(linux["resources"]["memory"]["limit"], 1 << 20);
        assert_eq!(linux["resources"]["pids"]["limit"], 5);
        let last = whole["mounts"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["source"], &last["destination"]), (&json!("/host"), &json!("/srv/data")));
        assert!(last["options"].as_array().unwrap().contains(&json!("ro")));
        let kinds = linux["namespaces"].to_string();
        assert!(kinds.contains("network") && !kinds.contains("user"), "{kinds}");
        assert_eq!(covered(&record).last().unwrap(), b"srv/data");
        let host = Record { network: Network::Host, ..record };
        let whole = |record: &Record, joined: &[NsKind]| {
            let namespaces = joined.iter().map(|kind| (*kind, kind.name().into())).collect();
            let on_host = OnHost { namespaces, ..OnHost::default() };
            config(record, (Path::new("/r"), "g"), (&root(), &[]), &on_host)
        };
        let of_host = whole(&host, &NsKind::ALL);
        assert!(!of_host["linux"]["namespaces"].to_string().contains("net"), "{of_host}");
        assert_eq!(
            (&of_host["hostname"], &whole(&host, &[])["hostname"]),
            (&Value::Null, &json!("web"))
        );
        let joined = whole(&self::record(), &[NsKind::Ipc, NsKind::Net]);
        let all = joined["linux"]["namespaces"].as_array().unwrap();
        let path = |kind: &str| &all.iter().find(|one| one["type"] == kind).unwrap()["path"];
        assert_eq!((path("ipc"), path("network")), (&json!("ipc"), &json!("net")));
        assert_eq!((path("uts"), path("pid"), all.len()), (&Value::Null, &Value::Null, 6));
    }

    #[test]
    fn other_users_begin_without_capabilities() {
        let user = User { uid: 33, ..root() };
        let process = process(&user, &[], &[], "/", false);
        assert_eq!(process["capabilities"]["effective"], json!([]));
        assert_eq!(process["capabilities"]["bounding"].as_array().unwrap().len(), 14);
    }
}

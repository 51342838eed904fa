//! `polylane doctor`: what this host can do, what polylane uses of it, what is worse without.

use std::fs;

use polylane_front::fuse::Params;
use polylane_volume::tools;
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::thread::CapabilitySet;
use serde::Serialize;

use crate::attach::{self, Via};
use crate::fuse_device;
use crate::{cgroup, confine, own_ids, preload, probe, subordinate};

/// What a finding means for polylane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// There.
    Good,
    /// Missing, and something is slower or not enforced; the note says what.
    Degraded,
    /// Missing, and `polylane run` cannot work.
    Missing,
    /// Looked at for later versions only.
    Unused,
}

/// One thing looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What was looked at; a stable name for scripts.
    pub name: &'static str,
    /// What it means.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What polylane uses it for, or what is worse without.
    pub note: &'static str,
}

impl Finding {
    fn new(
        name: &'static str,
        good: bool,
        found: impl Into<String>,
        notes: [&'static str; 2],
    ) -> Self {
        let (state, note) = match good {
            true => (State::Good, notes[0]),
            false => (State::Degraded, notes[1]),
        };
        Finding { name, state, found: found.into(), note }
    }

    /// Not used by this version.
    fn unused(name: &'static str, found: impl Into<String>) -> Self {
        let note = "not used by this version";
        Finding { name, state: State::Unused, found: found.into(), note }
    }

    /// Without this there is no lane at all.
    fn needed(mut self) -> Self {
        if self.state == State::Degraded {
            self.state = State::Missing;
        }
        self
    }
}

/// Looks at everything. Changes nothing, and takes a few milliseconds. To be called while the
/// process has one thread; with more the mount is not tried.
pub fn look() -> Vec<Finding> {
    let kernel = Kernel::running();
    let device = fuse_device();
    let device_opens = device.state == State::Good;
    let mut findings = vec![kernel.finding(), device];
    findings.extend(fuse_mount(kernel, device_opens));
    findings.push(user_namespaces());
    findings.push(user_ranges());
    findings.push(service_user());
    findings.extend(id_mapped_mounts());
    findings.push(peer_pidfd(kernel));
    findings.push(openat2());
    findings.extend(controllers());
    findings.push(landlock());
    findings.push(io_uring());
    findings.extend(ceph());
    findings.extend(volume_tools());
    findings.extend(block_doors());
    findings.extend(preload_libraries());
    findings
}

/// Whether `polylane run` can work.
pub fn can_run(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.state != State::Missing)
}

/// A kernel version, major and minor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Kernel(u32, u32);

impl Kernel {
    fn running() -> Kernel {
        Kernel::parse(&rustix::system::uname().release().to_string_lossy())
    }

    fn parse(release: &str) -> Kernel {
        let mut numbers =
            release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        Kernel(numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    fn finding(self) -> Finding {
        let found = format!("{}.{}", self.0, self.1);
        let notes = ["new enough", "polylane is made for Linux 6.1 and later"];
        Finding::new("kernel", self >= Kernel(6, 1), found, notes).needed()
    }
}

/// Asked for by lanes on Ceph alone.
fn ceph() -> [Finding; 2] {
    let cephfs = ["'run --ceph' keeps a lane on CephFS", "'run --ceph' does not work"];
    let rbd = [
        "a volume can be an image of a Ceph cluster",
        "no volume can be an image of a Ceph cluster",
    ];
    let looked = [
        ("libcephfs", polylane_ceph::look().map_err(|why| why.to_string()), cephfs),
        ("librbd", polylane_ceph::rbd::check().map_err(|why| why.to_string()), rbd),
    ];
    looked.map(|(name, found, notes)| {
        let (is_good, words) = (found.is_ok(), found.err().unwrap_or("loads".to_string()));
        Finding::new(name, is_good, words, notes)
    })
}

fn fuse_device() -> Finding {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = rustix::fs::open(fuse_device::FUSE_DEVICE, flags, Mode::empty());
    let (found, bad) = match &opened {
        Ok(_) => ("opens".to_string(), ""),
        Err(error) => {
            (crate::failure::plain(&(*error).into()).to_string(), fuse_device::fuse_remedy(*error))
        }
    };
    let found = format!("{}: {found}", fuse_device::FUSE_DEVICE);
    Finding::new("fuse", opened.is_ok(), found, ["every lane is mounted through it", bad]).needed()
}

/// Mounts a lane's FUSE file system in namespaces of its own, as `run` does, and asks the kernel
/// what it offers.
fn fuse_mount(kernel: Kernel, device_opens: bool) -> Vec<Finding> {
    let probed = probe::fuse_mount();
    let found = match &probed {
        Ok(params) => format!("protocol 7.{}", params.minor),
        Err(failure) => failure.to_string(),
    };
    let bad = match device_opens {
        true => "no lane can be mounted: a container or a security module refuses it",
        false => "no lane can be mounted without the device",
    };
    let notes = ["a lane can be mounted", bad];
    let mount = Finding::new("fuse-mount", probed.is_ok(), found, notes).needed();
    let feature = |name, there: bool, notes| {
        Finding::new(name, there, if there { "offered" } else { "not offered" }, notes)
    };
    let mmap = [
        "file data goes past the kernel page cache, shared mappings included",
        "file data goes through the kernel page cache; Linux 6.6 has what is missing",
    ];
    let resend = [
        "requests in flight are sent again to a restarted service",
        "requests in flight when a service dies fail (EIO); since Linux 6.9 they are sent again",
    ];
    let through = [
        "attached volumes can be read and written inside the kernel ('attach --passthrough')",
        "attached volumes are read and written by their engines",
    ];
    let id_maps = [
        "mounts of a lane can be id-mapped by container runtimes ('mount --idmap')",
        "the service maps users of a lane ('mount --map-users'); Linux 6.12 has what is missing",
    ];
    let passthrough = match kernel >= Kernel(6, 9) {
        true => "there since Linux 6.9",
        false => "not before Linux 6.9",
    };
    let switch = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let on = switch.is_ok_and(|text| matches!(text.trim(), "Y" | "1"));
    let has = |what: fn(&Params) -> bool| probed.as_ref().is_ok_and(what);
    vec![
        mount,
        feature("fuse-direct-io-mmap", has(Params::direct_mmap), mmap),
        feature("fuse-resend", has(Params::resend), resend),
        feature("fuse-idmap", has(Params::id_maps), id_maps),
        Finding::new("fuse-passthrough", kernel >= Kernel(6, 9), passthrough, through),
        Finding::unused("fuse-io-uring", if on { "switched on" } else { "off or not there" }),
    ]
}

fn user_namespaces() -> Finding {
    let number =
        |path| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let limit = number("/proc/sys/user/max_user_namespaces");
    // Debian's and Ubuntu's switches, absent elsewhere.
    let switch = number("/proc/sys/kernel/unprivileged_userns_clone") != Some(0);
    let confined = number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == Some(1);
    let good = limit.is_some_and(|limit| limit > 0) && switch && !confined;
    let found = match (good, limit) {
        (true, _) => "allowed for ordinary users",
        (false, None) => "not in this kernel",
        (false, Some(_)) => "not allowed for ordinary users",
    };
    let notes = [
        "ordinary users run lanes in one, without control groups and other users' files",
        "only root can run lanes",
    ];
    Finding::new("user-namespaces", good, found, notes)
}

/// What an ordinary user's lanes have besides the own user.
fn user_ranges() -> Finding {
    let user = rustix::process::getuid();
    if user.is_root() {
        let has = ["newuidmap", "newgidmap"].iter().all(|program| tools::find(program).is_some());
        let found = if has { "newuidmap and newgidmap are there" } else { "not found" };
        return Finding::new("user-ranges", has, found, RANGES_NOTES);
    }
    let count = subordinate::count(user.as_raw());
    let found = count.map_or("none".to_string(), |count| format!("{count} users and groups"));
    Finding::new("user-ranges", count.is_some(), found, RANGES_NOTES)
}

const RANGES_NOTES: [&str; 2] = [
    "lanes of ordinary users have the users of /etc/subuid and /etc/subgid",
    "lanes of ordinary users have one user: install uidmap, and give ranges by usermod",
];

/// The user that a service has.
fn service_user() -> Finding {
    let own = confine::own_user().is_some();
    let found = if own { "one for each pool" } else { "the caller" };
    let notes = [
        "services of two pools cannot reach each other",
        "a service is held by namespaces and its system calls, and shares its user with yours",
    ];
    Finding::new("service-user", own, found, notes)
}

/// Whether the capabilities of a `--dir` lane's service are good for its directory alone, as far as
/// the file system of the working directory shows it.
fn id_mapped_mounts() -> Option<Finding> {
    confine::own_user()?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut here = rustix::fs::open(".", flags, Mode::empty()).ok()?;
    let mapped = own_ids::map(&mut [&mut here]).is_some();
    let found = if mapped { "here" } else { "not here" };
    let notes = [
        "services of --dir lanes on this file system have rights over their directories alone",
        "services of --dir lanes here keep capabilities to make files for others: the file system \
         or the kernel lets no mount be id-mapped, or others are mounted below this directory",
    ];
    Some(Finding::new("id-mapped-mounts", mapped, found, notes))
}

fn peer_pidfd(kernel: Kernel) -> Finding {
    let notes = [
        "a client's process is known exactly",
        "a client is found by its process number right after it connects",
    ];
    Finding::new("so-peerpidfd", kernel >= Kernel(6, 5), "since Linux 6.5", notes)
}

fn openat2() -> Finding {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH;
    let result = rustix::fs::openat2(rustix::fs::CWD, ".", flags, Mode::empty(), resolve);
    let found = match &result {
        Ok(_) => "works".to_string(),
        Err(error) => error.to_string(),
    };
    let notes = ["keeps --dir lanes inside of their directory", "no --dir lanes"];
    Finding::new("openat2", result.is_ok(), found, notes)
}

fn controllers() -> Vec<Finding> {
    let names = [
        (
            "memory",
            "cgroup-memory",
            ["--memory is enforced", "--memory limits the lane's own memory only"],
        ),
        (
            "cpuset",
            "cgroup-cpuset",
            ["--cpus is enforced", "--cpus is where processes start, not a fence"],
        ),
        ("cpu", "cgroup-cpu", ["--weight shares the CPU", "--weight is recorded only"]),
        (
            "net_cls",
            "cgroup-network",
            [
                "packets of a pool that lasts have its class ('polylane pool info')",
                "packets of a pool have no class: match its control group of version 2 (nft \
                 'socket cgroupv2')",
            ],
        ),
    ];
    let usable = cgroup::usable_controllers();
    names
        .into_iter()
        .map(|(controller, name, notes)| {
            let version =
                usable.iter().find(|(known, _)| *known == controller).and_then(|(_, v)| *v);
            let found = match version {
                Some(version) => format!("version {}", &version[1..]),
                None if controller == "net_cls" && cgroup::network_class_is_unmounted() => {
                    "in this kernel, but mounted nowhere (mount -t cgroup -o net_cls)".to_string()
                }
                None => "no usable group".to_string(),
            };
            Finding::new(name, version.is_some(), found, notes)
        })
        .collect()
}

fn landlock() -> Finding {
    let has = polylane_volume::has_landlock();
    let notes = [
        "a service can open no path",
        "what keeps a service from paths is namespaces when run as root, and its system calls",
    ];
    Finding::new("landlock", has, if has { "enforced" } else { "absent" }, notes)
}

fn io_uring() -> Finding {
    let switch = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let works = polylane_sys::uring::Ring::new(1, &[rustix::stdio::stdin()]).is_ok();
    let found = match switch.as_deref().map(str::trim) {
        _ if works => "works",
        Ok("0") => "switched on, and refused all the same",
        Ok("1") => "allowed for one group only",
        Ok(_) => "switched off",
        // Kernels before 6.6 have no switch.
        Err(_) => "no switch in this kernel",
    };
    let notes = [
        "volumes are read and written through it",
        "volumes are read and written by preadv2 and pwritev2, which wait",
    ];
    Finding::new("io-uring", works, found, notes)
}

/// The programs of e2fsprogs that volumes need.
fn volume_tools() -> Vec<Finding> {
    let tool = |name, program: &str, notes| {
        let path = tools::find(program);
        let found = path.as_ref().map_or("not found".to_string(), |p| p.display().to_string());
        Finding::new(name, path.is_some(), found, notes)
    };
    vec![
        tool(
            "mke2fs",
            "mke2fs",
            ["formats lanes of the kernel's ext4", "no '--kernel-fs ext4': install e2fsprogs"],
        ),
        tool("e2fsck", "e2fsck", ["checks volumes", "no 'volume check': install e2fsprogs"]),
        tool("resize2fs", "resize2fs", ["grows volumes", "no 'volume resize': install e2fsprogs"]),
        tool(
            "qemu-img",
            "qemu-img",
            ["converts qcow2 files", "import and export of raw files only: install qemu-utils"],
        ),
    ]
}

/// What makes block devices of volumes, and which of it 'attach' takes.
fn block_doors() -> Vec<Finding> {
    let device = |name, via, good: &'static str, bad: &'static str| {
        let lacks = attach::lacks(via);
        let found = lacks.clone().unwrap_or_else(|| "ready".to_string());
        Finding::new(name, lacks.is_none(), found, [good, bad])
    };
    let choice = attach::choice();
    let auto_notes = [
        "what 'attach --via auto' takes: the first there is of ublk, nbd and loop",
        "'attach' serves volumes at sockets only (--via nbd or vhost-user, --socket)",
    ];
    let flusher = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE));
    let flusher_notes = [
        "engines of attached volumes keep out of memory reclaim",
        "attached devices may be slow under memory pressure: give CAP_SYS_RESOURCE",
    ];
    vec![
        device(
            "ublk",
            Via::Ublk,
            "volumes become block devices through it ('attach --via ublk')",
            "the fastest block devices of volumes: modprobe ublk_drv, Linux 6.5 or newer",
        ),
        device(
            "nbd",
            Via::NbdDevice,
            "volumes become block devices through it ('attach --via nbd')",
            "block devices of volumes by the kernel's NBD client: modprobe nbd",
        ),
        device(
            "loop",
            Via::Loop,
            "volumes become block devices through FUSE and it ('attach --via loop')",
            "block devices of volumes on any kernel: needs /dev/loop-control and /dev/fuse",
        ),
        Finding::new("attach", choice.via.is_some(), choice.to_string(), auto_notes),
        Finding::new(
            "io-flusher",
            flusher,
            if flusher { "allowed" } else { "no CAP_SYS_RESOURCE" },
            flusher_notes,
        ),
    ]
}

fn preload_libraries() -> [Finding; 2] {
    let path = preload::find();
    let told = |path: &Option<std::path::PathBuf>| {
        path.as_ref().map_or("not found".to_string(), |path| path.display().to_string())
    };
    let [_, musl] = preload::BUILDS;
    let for_musl = path.as_ref().and_then(|path| musl.beside(path));
    let notes = [
        "dynamic programs reach the service through shared memory",
        "FUSE only: put libpolylane.so beside the program or set POLYLANE_LIB",
    ];
    let notes_of_musl = [
        "dynamic programs for the C library musl too",
        "programs for the C library musl use FUSE: build libpolylane-musl.so beside the other",
    ];
    [
        Finding::new("preload-library", path.is_some(), told(&path), notes),
        Finding::new("preload-musl", for_musl.is_some(), told(&for_musl), notes_of_musl),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_compared_as_numbers() {
        assert_eq!(Kernel::parse("6.1.0-13-amd64"), Kernel(6, 1));
        assert!(Kernel::parse("6.10.3") > Kernel::parse("6.9.12"));
        assert_eq!(Kernel::parse("odd"), Kernel(0, 0));
    }

    #[test]
    fn only_what_is_needed_can_be_missing() {
        let notes = ["", ""];
        let worse = Finding::new("a", false, "", notes);
        assert_eq!(worse.state, State::Degraded);
        assert!(can_run(std::slice::from_ref(&worse)));
        assert!(!can_run(&[worse.needed()]));
        assert!(look().len() > 10);
    }
}

//! Limits of a pool in the kernel's control groups, version 1 and 2.
//!
//! A pool gets one group per v1 hierarchy it needs and one in the v2 hierarchy, below the group
//! that the supervisor itself is in (v1) or the nearest one above it that hands down what is needed
//! (v2), so limits set from outside stay in force. Nothing is switched on in the host's own groups.
//! A limit that cannot be set is said, never silently dropped.
//!
//! What a lane's service does at a device is counted in a group with nobody else in it. In version
//! 1 that is one of its own; in version 2, where a process is in one group only, the pool's group
//! is parted into one for the tenant and one for the service.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_volume::cpus::CpuList;

use crate::bound;
use crate::failure::say;

mod lifted;
mod usable;

pub(crate) use usable::{network_class_is_unmounted, usable_controllers};

/// How long a group may need to become empty after its last process ended.
const EMPTY_WAIT_MAX: Duration = Duration::from_secs(5);

/// `cpu.shares` of version 1 that weigh like a `cpu.weight` of 100.
const SHARES_PER_100: u64 = 1024;

/// What lines of mountinfo have that are of groups.
const GROUPS: &str = " - cgroup";

/// systemd's own hierarchy of version 1, and the group for what outlives a session.
const SYSTEMD: &str = "name=systemd";
const SESSION_GROUP: &str = "polylane@lanes";

/// What a pool that lasts has a group for, wherever the kernel has it.
const POOL_CONTROLLERS: [&str; 4] = ["cpu", "memory", "pids", "net_cls"];

/// The class of what the sockets of a group's processes send.
const NETWORK_CLASS: &str = "net_cls.classid";

/// Everybody's share of the CPU unless another one is asked for.
const WEIGHT_DEFAULT: u32 = 100;

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Limits {
    /// Bytes of memory.
    pub(crate) memory: Option<u64>,
    /// CPUs.
    pub(crate) cpus: Option<CpuList>,
    /// Share of the CPU, 1–10000, 100 being everybody's default.
    pub(crate) weight: Option<u32>,
    /// Processes and threads.
    pub(crate) pids: Option<u64>,
    /// Class of what its sockets send, `MAJOR << 16 | MINOR` as tc(8) has it.
    pub(crate) network_class: Option<u32>,
}

/// One group to make.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// Files in it and what to write, in order, with the option that asked for it.
    settings: Vec<(&'static str, String, Option<&'static str>)>,
    /// Its processes are in groups below it, by [`Leaf`].
    parted: bool,
}

/// Whose process it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leaf {
    /// The tenant's.
    Tenant,
    /// The lane's service.
    Service,
}

impl Leaf {
    const ALL: [Leaf; 2] = [Leaf::Tenant, Leaf::Service];

    /// Its directory in a parted group.
    fn name(self) -> &'static str {
        match self {
            Leaf::Tenant => "tenant",
            Leaf::Service => "service",
        }
    }
}

/// The groups for a pool and the options that no group can enforce.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Plan {
    /// To be made.
    pub(crate) groups: Vec<Group>,
    /// Options that nothing on this host enforces.
    pub(crate) not_enforced: Vec<&'static str>,
    /// A group for what the service does at a device, which is made when there is reason to.
    io: Option<PathBuf>,
    /// They are those of a pool that may have other lanes.
    lasting: bool,
}

/// Where the groups of this process are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Host {
    /// Version-1 controllers with this process's own directory.
    v1: Vec<(String, PathBuf)>,
    /// Mount point and own directory of version 2.
    v2: Option<(PathBuf, PathBuf)>,
}

/// A group of version 2 that hands controllers down.
struct V2Parent {
    dir: PathBuf,
    enabled: Vec<String>,
}

impl V2Parent {
    fn has(&self, controller: &str) -> bool {
        self.enabled.iter().any(|name| name == controller)
    }
}

/// Plans the groups of pool `name` on this host. Changes nothing.
pub(crate) fn plan(name: &str, limits: &Limits) -> Plan {
    plan_on(&Host::own(), name, limits)
}

/// Plans the groups of a pool that was made to last: one in each hierarchy that counts or limits
/// anything, whatever is limited, so that its processes are known. Changes nothing.
pub(crate) fn plan_pool(name: &str, limits: &Limits) -> Plan {
    plan_pool_on(&Host::own().at_top(), name, limits)
}

/// Plans the groups of a run's own pool for one of its lanes besides the first, which may have made
/// them otherwise. Changes nothing.
pub(crate) fn plan_lanes(name: &str, limits: &Limits) -> Plan {
    let mut plan = plan(name, limits);
    for group in &mut plan.groups {
        group.parted |= group.dir.join(Leaf::Tenant.name()).is_dir();
    }
    plan
}

fn plan_pool_on(host: &Host, name: &str, limits: &Limits) -> Plan {
    let mut plan = plan_on(host, name, limits);
    let unlimited = lifted::unlimited(limits);
    let by_v2: Vec<_> = POOL_CONTROLLERS
        .into_iter()
        .filter(|controller| host.v1_dir(controller).is_none())
        .collect();
    let parent = host.v2_parent(&by_v2);
    for controller in POOL_CONTROLLERS {
        let class = limits.network_class.filter(|_| controller == "net_cls");
        let class = class.map(|class| (NETWORK_CLASS, class.to_string()));
        let lifted = |version: usize| {
            let own = unlimited.iter().filter(|one| one.controller == controller);
            own.map(|one| one.files[version].clone()).chain(class.clone()).collect()
        };
        match (host.v1_dir(controller), &parent) {
            (Some(dir), _) => plan.add(dir.join(format!("polylane-{name}")), None, lifted(0)),
            (None, Some(parent)) if parent.has(controller) => {
                plan.add(parent.dir.join(format!("polylane-{name}")), None, lifted(1));
            }
            (None, _) => {}
        }
    }
    let cpus = lifted::cpus(host, parent.as_ref(), &format!("polylane-{name}"));
    if let Some((dir, all)) = cpus.filter(|_| limits.cpus.is_none()) {
        plan.add(dir, None, vec![("cpuset.cpus", all)]);
    }
    // As a lane on a volume is going to need them: processes cannot be parted later.
    let mut with_io = plan.clone();
    with_io.watch_io_on(host, name);
    for (group, with_io) in plan.groups.iter_mut().zip(with_io.groups) {
        group.parted = with_io.parted || group.dir.join(Leaf::Tenant.name()).is_dir();
    }
    plan.lasting = true;
    plan
}

/// Moves this process out of the groups by which a service manager ends its caller's session, as
/// systemd does at logout, into one that outlives it. Where that cannot be, it stays.
pub(crate) fn leave_session() {
    let own = Host::own();
    let top = own.clone().at_top();
    for dir in own.session_dirs(&top) {
        if make(&dir).is_ok() {
            let _ = enter(&dir, std::process::id());
        }
    }
}

/// Removes the groups of [`leave_session`] when nothing is in them any more.
pub(crate) fn remove_session_groups() {
    let own = Host::own();
    let top = own.clone().at_top();
    for dir in own.session_dirs(&top) {
        let _ = fs::remove_dir(dir);
    }
}

/// This process's directory in each hierarchy, or, `at_top`, the topmost one that it sees.
pub(crate) fn hierarchies(at_top: bool) -> Vec<PathBuf> {
    let own = Host::own();
    let host = if at_top { own.at_top() } else { own };
    let v1 = host.v1.into_iter().map(|(_, dir)| dir);
    v1.chain(host.v2.map(|(_, dir)| dir)).collect()
}

/// Where what a process does at a device could be counted and limited, in a group of its own for
/// `name`; `None` where it cannot.
pub(crate) fn io_dir(name: &str) -> Option<PathBuf> {
    io_dir_on(&Host::own(), name)
}

fn io_dir_on(host: &Host, name: &str) -> Option<PathBuf> {
    let parent = match host.v1_dir("blkio") {
        Some(dir) => dir.to_path_buf(),
        None => host.v2_parent(&["io"])?.dir,
    };
    bound::usable(&parent).then(|| parent.join(format!("polylane-{name}@io")))
}

impl Host {
    /// That of this process.
    fn own() -> Host {
        // A host with many lanes has a long table, of which few lines are of groups.
        static MOUNTED: OnceLock<String> = OnceLock::new();
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let mounted = MOUNTED.get_or_init(|| {
            let table = read("/proc/self/mountinfo");
            table.split_inclusive('\n').filter(|line| line.contains(GROUPS)).collect()
        });
        Host::parse(mounted, &read("/proc/self/cgroup"))
    }

    fn parse(mountinfo: &str, own: &str) -> Host {
        let mut host = Host::default();
        for line in mountinfo.lines().filter(|line| line.contains(GROUPS)) {
            // "ID PARENT DEV ROOT MOUNT-POINT OPTIONS [TAGS…] - TYPE SOURCE SUPER-OPTIONS"
            let Some((left, right)) = line.split_once(" - ") else { continue };
            let left: Vec<&str> = left.split(' ').collect();
            let right: Vec<&str> = right.split(' ').collect();
            let (&[_, _, _, root, mount, ..], &[kind, _, options, ..]) = (&left[..], &right[..])
            else {
                continue;
            };
            let mount = Path::new(mount);
            match kind {
                "cgroup2" if host.v2.is_none() => {
                    let dir = own_dir(mount, root, own_path(own, ""));
                    host.v2 = Some((mount.to_path_buf(), dir));
                }
                "cgroup" => {
                    for controller in options.split(',') {
                        if host.v1_dir(controller).is_none() {
                            let dir = own_dir(mount, root, own_path(own, controller));
                            host.v1.push((controller.to_string(), dir));
                        }
                    }
                }
                _ => {}
            }
        }
        host
    }

    /// As a process in the topmost groups sees it.
    fn at_top(mut self) -> Host {
        for (_, dir) in &mut self.v1 {
            *dir = topmost(dir);
        }
        if let Some((mount, own)) = &mut self.v2 {
            own.clone_from(mount);
        }
        self
    }

    /// Groups for what outlives a session, in the hierarchies by which sessions are ended; none
    /// where this process is at the top already.
    fn session_dirs(&self, top: &Host) -> Vec<PathBuf> {
        let systemd = self.v1_dir(SYSTEMD).zip(top.v1_dir(SYSTEMD));
        let v2 = self.v2.as_ref().map(|(mount, own)| (own.as_path(), mount.as_path()));
        let places = systemd.into_iter().chain(v2);
        places.filter(|(own, top)| own != top).map(|(_, top)| top.join(SESSION_GROUP)).collect()
    }

    fn v1_dir(&self, controller: &str) -> Option<&Path> {
        self.v1.iter().find(|(name, _)| name == controller).map(|(_, dir)| dir.as_path())
    }

    /// The group at or above the own one that hands the most of `controllers` down to its
    /// children; of several, the nearest. One for all: a process is in one group of version 2.
    /// Groups other than the root with processes in them hand nothing down (the "no internal
    /// processes" rule).
    fn v2_parent(&self, controllers: &[&str]) -> Option<V2Parent> {
        let (mount, own) = self.v2.as_ref()?;
        let above = own.ancestors().take_while(|dir| dir.starts_with(mount));
        let parents = above.filter_map(|dir| {
            let enabled = fs::read_to_string(dir.join("cgroup.subtree_control")).ok()?;
            let enabled = enabled.split_whitespace().map(String::from).collect();
            Some(V2Parent { dir: dir.to_path_buf(), enabled })
        });
        let count = |parent: &V2Parent| controllers.iter().filter(|name| parent.has(name)).count();
        // The last of several maxima is taken, so the farthest comes first.
        let parents: Vec<_> = parents.filter(|parent| count(parent) > 0).collect();
        parents.into_iter().rev().max_by_key(count)
    }
}

/// The topmost group at or above one: the mount's.
fn topmost(dir: &Path) -> PathBuf {
    let device = |dir: &Path| fs::metadata(dir).ok().map(|found| found.dev());
    let own = device(dir);
    // Where hierarchies are mounted side by side, the directory that they are in is none of them,
    // whatever files it has.
    let is_group = |dir: &&Path| device(dir) == own && dir.join("cgroup.procs").exists();
    dir.ancestors().take_while(is_group).last().unwrap_or(dir).to_path_buf()
}

/// The path of this process in the hierarchy of a controller, from `/proc/self/cgroup`.
fn own_path<'a>(own: &'a str, controller: &str) -> &'a str {
    own.lines()
        .filter_map(|line| line.split_once(':')?.1.split_once(':'))
        .find(|(controllers, _)| controllers.split(',').any(|name| name == controller))
        .map_or("/", |(_, path)| path)
}

/// A group's directory. Inside of a container the mount may show only the part below `root`.
fn own_dir(mount: &Path, root: &str, path: &str) -> PathBuf {
    let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    let dir = mount.join(below);
    if dir.is_dir() { dir } else { mount.to_path_buf() }
}

/// What one option sets, in either version.
struct Setting {
    controller: &'static str,
    option: &'static str,
    v1: Vec<(&'static str, String)>,
    v2: Vec<(&'static str, String)>,
}

fn settings(host: &Host, limits: &Limits) -> Vec<Setting> {
    let mut found = Vec::new();
    if let Some(bytes) = limits.memory {
        let [v1, v2] =
            ["memory.limit_in_bytes", "memory.max"].map(|file| vec![(file, bytes.to_string())]);
        found.push(Setting { controller: "memory", option: "--memory", v1, v2 });
    }
    if let Some(cpus) = &limits.cpus {
        let v2 = vec![("cpuset.cpus", cpus.to_string())];
        let mut v1 = v2.clone();
        if let Some(dir) = host.v1_dir("cpuset") {
            let nodes = fs::read_to_string(dir.join("cpuset.mems")).unwrap_or_default();
            v1.insert(0, ("cpuset.mems", nodes.trim().to_string()));
        }
        found.push(Setting { controller: "cpuset", option: "--cpus", v1, v2 });
    }
    if let Some(weight) = limits.weight {
        let [v1, v2] = weight_settings(weight).map(|setting| vec![setting]);
        found.push(Setting { controller: "cpu", option: "--weight", v1, v2 });
    }
    if let Some(pids) = limits.pids {
        let set = vec![("pids.max", pids.to_string())];
        found.push(Setting { controller: "pids", option: "--pids", v1: set.clone(), v2: set });
    }
    found
}

fn plan_on(host: &Host, name: &str, limits: &Limits) -> Plan {
    let mut plan = Plan::default();
    let group = format!("polylane-{name}");
    let settings = settings(host, limits);
    let by_v2 = settings.iter().filter(|one| host.v1_dir(one.controller).is_none());
    let by_v2: Vec<_> = by_v2.map(|one| one.controller).collect();
    let parent = host.v2_parent(&by_v2);
    for Setting { controller, option, v1, v2 } in settings {
        let parent = parent.as_ref().filter(|parent| parent.has(controller));
        match (host.v1_dir(controller), parent) {
            (Some(dir), _) => plan.add(dir.join(&group), Some(option), v1),
            (None, Some(parent)) => plan.add(parent.dir.join(&group), Some(option), v2),
            (None, None) => plan.not_enforced.push(option),
        }
    }
    plan
}

/// A share of the CPU in version 1 and in version 2.
fn weight_settings(weight: u32) -> [(&'static str, String); 2] {
    let shares = (u64::from(weight) * SHARES_PER_100 / 100).max(2).to_string();
    [("cpu.shares", shares), ("cpu.weight", weight.to_string())]
}

impl Plan {
    fn add(
        &mut self,
        dir: PathBuf,
        option: Option<&'static str>,
        settings: Vec<(&'static str, String)>,
    ) {
        let settings = settings.into_iter().map(|(file, value)| (file, value, option));
        match self.groups.iter_mut().find(|group| group.dir == dir) {
            Some(group) => group.settings.extend(settings),
            None => {
                let settings = settings.collect();
                self.groups.push(Group { dir, settings, parted: false });
            }
        }
    }

    /// Where what the service does at a device can be counted and limited; parts the pool's group
    /// for that where it has to. `None` where it cannot be.
    pub(crate) fn watch_io(&mut self, name: &str) -> Option<PathBuf> {
        self.watch_io_on(&Host::own(), name)
    }

    fn watch_io_on(&mut self, host: &Host, name: &str) -> Option<PathBuf> {
        let dir = io_dir_on(host, name)?;
        let own = host.v2.as_ref().filter(|_| host.v1_dir("blkio").is_none());
        let mut groups = self.groups.iter_mut();
        let pool = own.and_then(|(mount, _)| groups.find(|group| group.dir.starts_with(mount)));
        let Some(pool) = pool else {
            self.io = Some(dir.clone());
            return Some(dir);
        };
        // In another place than where `io` is handed down it cannot be: a process is in one group.
        pool.parted = pool.dir.parent() == dir.parent();
        pool.parted.then(|| pool.dir.join(Leaf::Service.name()))
    }

    /// The directories of the groups, those below others first.
    pub(crate) fn dirs(&self) -> Vec<PathBuf> {
        let of = |group: &Group| {
            let leaves = Leaf::ALL.into_iter().filter(|_| group.parted);
            let leaves: Vec<_> = leaves.map(|leaf| group.dir.join(leaf.name())).collect();
            leaves.into_iter().chain([group.dir.clone()])
        };
        self.io.iter().cloned().chain(self.groups.iter().flat_map(of)).collect()
    }

    /// The directories of groups that are the lane's own, not its pool's.
    pub(crate) fn io_dirs(&self) -> Vec<PathBuf> {
        self.io.iter().cloned().collect()
    }

    /// Makes the groups and writes the limits; what fails moves to `not_enforced`.
    pub(crate) fn create(&mut self) {
        for group in &mut self.groups {
            let made = make(&group.dir);
            for (file, value, option) in &group.settings {
                let set = made.is_ok() && fs::write(group.dir.join(file), value).is_ok();
                let asked = option.filter(|option| !set && !self.not_enforced.contains(option));
                self.not_enforced.extend(asked);
            }
            group.parted = group.parted && made.is_ok() && group.part().is_ok();
        }
    }

    /// Says which limits no control group enforces, and what is left of each.
    pub(crate) fn say_not_enforced(&self) {
        for option in &self.not_enforced {
            let effect = match *option {
                "--memory" => "only the lane's own caches and files are limited",
                "--cpus" => "processes start on these CPUs but may leave them",
                _ => "it is recorded only",
            };
            say(format_args!("{option}: no usable control group: {effect}"));
        }
    }

    /// Changes the share of the CPU, of groups that were made with one for this lane alone.
    pub(crate) fn reweigh(&mut self, weight: u32) {
        if self.lasting {
            return;
        }
        let new = weight_settings(weight);
        for group in &mut self.groups {
            for (file, value, _) in &mut group.settings {
                if let Some((_, new)) = new.iter().find(|(name, _)| name == file) {
                    // A group that is gone has nobody in it.
                    let _ = fs::write(group.dir.join(&file), new);
                    value.clone_from(new);
                }
            }
        }
    }

    /// The processes in the groups.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let files = self.dirs().into_iter().map(|dir| dir.join("cgroup.procs"));
        let lists = files.filter_map(|file| fs::read_to_string(file).ok());
        let mut found: Vec<u32> = lists
            .flat_map(|list| list.lines().map(str::parse).collect::<Vec<_>>())
            .flatten()
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Those of the groups that are there.
    pub(crate) fn made(&self) -> Vec<PathBuf> {
        self.groups.iter().map(|group| group.dir.clone()).filter(|dir| dir.is_dir()).collect()
    }

    /// The class of what its sockets send, as tc(8) writes it; `None`: its groups give none.
    pub(crate) fn network_class(&self) -> Option<String> {
        let class = |group: &Group| fs::read_to_string(group.dir.join(NETWORK_CLASS)).ok();
        let class: u32 = self.groups.iter().find_map(class)?.trim().parse().ok()?;
        (class > 0).then(|| format!("{:x}:{:x}", class >> 16, class & 0xffff))
    }

    /// Moves a process into the groups.
    pub(crate) fn attach(&mut self, pid: u32, leaf: Leaf) {
        for group in &self.groups {
            let dir = if group.parted { group.dir.join(leaf.name()) } else { group.dir.clone() };
            if enter(&dir, pid).is_ok() {
                continue;
            }
            for (_, _, option) in &group.settings {
                let asked = option.filter(|option| !self.not_enforced.contains(option));
                self.not_enforced.extend(asked);
            }
        }
    }
}

impl Group {
    /// Makes the groups below it, and hands `io` down to them.
    fn part(&self) -> io::Result<()> {
        for leaf in Leaf::ALL {
            make(&self.dir.join(leaf.name()))?;
        }
        fs::write(self.dir.join("cgroup.subtree_control"), "+io")
    }
}

/// Makes a group that may be there already.
pub(crate) fn make(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Moves a process into a group.
pub(crate) fn enter(dir: &Path, pid: u32) -> io::Result<()> {
    fs::write(dir.join("cgroup.procs"), pid.to_string())
}

/// Removes groups, waiting for their last processes to leave.
pub(crate) fn remove(dirs: &[PathBuf]) {
    let start = Instant::now();
    for dir in dirs {
        while let Err(error) = fs::remove_dir(dir) {
            let busy = error.raw_os_error() == Some(libc::EBUSY);
            if !busy || start.elapsed() > EMPTY_WAIT_MAX {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
22 1 8:1 / / rw - ext4 /dev/vda rw
nonsense
";

    #[test]
    fn the_own_groups_are_found() {
        let host = Host::parse(V1, "9:memory:/a\n1:cpu,cpuacct:/b\n0::/c\n");
        // None of these directories exists here, so each falls back to its mount point.
        assert_eq!(host.v1_dir("memory"), Some(Path::new("/sys/fs/cgroup/memory")));
        assert_eq!(host.v1_dir("cpuacct"), Some(Path::new("/sys/fs/cgroup/cpu,cpuacct")));
        assert_eq!(host.v1_dir("cpuset"), None);
        assert!(host.v2.is_some());
        assert_eq!(own_path("9:memory:/a\n1:cpu,cpuacct:/b\n0::/c\n", "cpu"), "/b");
        assert_eq!(own_path("0::/c\n", ""), "/c");
    }

    /// A directory that stands for a cgroup2 hierarchy: `/slice` hands memory and cpu down, the own
    /// group `/slice/scope` hands nothing down.
    fn v2_host() -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().expect("tempdir");
        let own = dir.path().join("slice/scope");
        fs::create_dir_all(&own).expect("mkdir");
        let control = |dir: &Path, text| {
            fs::write(dir.join("cgroup.subtree_control"), text).expect("write");
        };
        control(dir.path(), "cpuset cpu memory\n");
        control(&dir.path().join("slice"), "memory cpu\n");
        control(&own, "");
        let v2 = Some((dir.path().to_path_buf(), own));
        (dir, Host { v1: Vec::new(), v2 })
    }

    #[test]
    fn version_2_groups_are_made_where_controllers_are_handed_down() {
        let (dir, host) = v2_host();
        let limits = Limits { memory: Some(64 << 20), weight: Some(50), ..Limits::default() };
        let mut plan = plan_on(&host, "p", &limits);
        let dirs: Vec<_> = plan.groups.iter().map(|group| group.dir.clone()).collect();
        let slice = dir.path().join("slice/polylane-p");
        assert_eq!(dirs, std::slice::from_ref(&slice), "the nearest that has all");
        plan.create();
        plan.attach(42, Leaf::Tenant);
        assert!(plan.not_enforced.is_empty());
        let read = |path: PathBuf| fs::read_to_string(path).expect("setting");
        assert_eq!(read(slice.join("memory.max")), (64 << 20).to_string());
        assert_eq!(read(slice.join("cpu.weight")), "50");
        assert_eq!(read(slice.join("cgroup.procs")), "42");
        plan.reweigh(700);
        assert_eq!(read(slice.join("cpu.weight")), "700");
    }

    /// The kernel makes these files; here they are for it to be overwritten.
    fn put_procs(dir: &Path) {
        fs::create_dir_all(dir).expect("mkdir");
        fs::write(dir.join("cgroup.procs"), "").expect("write");
    }

    #[test]
    fn a_service_is_watched_in_a_group_of_its_own() {
        let (dir, mut host) = v2_host();
        let control = dir.path().join("slice/cgroup.subtree_control");
        let mut plan = plan_on(&host, "p", &Limits::default());
        assert_eq!(plan.watch_io_on(&host, "p"), None, "nobody hands io down");
        fs::write(control, "memory io").expect("write");
        let slice = dir.path().join("slice");
        assert_eq!(plan.watch_io_on(&host, "p"), Some(slice.join("polylane-p@io")));
        // Beside limits of version 2 the pool's group is parted.
        let limits = Limits { memory: Some(64 << 20), ..Limits::default() };
        let mut plan = plan_on(&host, "p", &limits);
        let group = slice.join("polylane-p");
        assert_eq!(plan.watch_io_on(&host, "p"), Some(group.join("service")));
        let dirs = plan.dirs();
        assert_eq!(dirs, [group.join("tenant"), group.join("service"), group.clone()]);
        plan.create();
        dirs.iter().for_each(|dir| put_procs(dir));
        plan.attach(7, Leaf::Service);
        plan.attach(8, Leaf::Tenant);
        let read = |dir: &Path, name: &str| fs::read_to_string(dir.join(name)).expect("read");
        assert_eq!(read(&group, "cgroup.subtree_control"), "+io");
        let inside: Vec<_> = dirs.iter().map(|dir| read(dir, "cgroup.procs")).collect();
        assert_eq!(inside, ["8", "7", ""]);
        // Version 1 has a hierarchy of its own for it.
        let blkio = dir.path().join("blkio");
        fs::create_dir(&blkio).expect("mkdir");
        host.v1 = vec![("blkio".to_string(), blkio.clone())];
        assert_eq!(plan.watch_io_on(&host, "p"), None, "it cannot throttle");
        fs::write(blkio.join("blkio.throttle.read_iops_device"), "").expect("write");
        assert_eq!(plan.watch_io_on(&host, "p"), Some(blkio.join("polylane-p@io")));
    }

    /// A directory that stands for the hierarchy of network classes.
    #[test]
    fn a_pool_that_lasts_has_a_network_class_where_the_kernel_has_that() {
        let (dir, mut host) = v2_host();
        let limits = Limits { network_class: Some(0x7080_0012), ..Limits::default() };
        let mut plan = plan_pool_on(&host, "p", &limits);
        plan.create();
        assert_eq!(plan.network_class(), None, "version 2 has none");
        let net_cls = dir.path().join("net_cls");
        fs::create_dir(&net_cls).expect("mkdir");
        host.v1 = vec![("net_cls".to_string(), net_cls.clone())];
        let mut plan = plan_pool_on(&host, "p", &limits);
        plan.create();
        let said = fs::read_to_string(net_cls.join("polylane-p").join(NETWORK_CLASS));
        assert_eq!(said.expect("a class"), 0x7080_0012.to_string());
        assert_eq!(plan.network_class().as_deref(), Some("7080:12"));
        assert!(plan.not_enforced.is_empty());
    }

    /// A process that moves from one group of version 2 to another leaves the first one's limits.
    #[test]
    fn there_is_one_group_of_version_2() {
        let (dir, host) = v2_host();
        let cpus = "0-1".parse().ok();
        let limits = Limits { memory: Some(64 << 20), cpus, weight: Some(50), ..Limits::default() };
        let plan = plan_on(&host, "p", &limits);
        let dirs: Vec<_> = plan.groups.iter().map(|group| group.dir.clone()).collect();
        assert_eq!((dirs, plan.not_enforced), (vec![dir.path().join("polylane-p")], Vec::new()));
        let control = dir.path().join("cgroup.subtree_control");
        fs::write(control, "cpuset").expect("write");
        let plan = plan_on(&host, "p", &limits);
        let dirs: Vec<_> = plan.groups.iter().map(|group| group.dir.clone()).collect();
        assert_eq!(
            (dirs, plan.not_enforced),
            (vec![dir.path().join("slice/polylane-p")], vec!["--cpus"])
        );
    }

    #[test]
    fn what_cannot_be_limited_is_named() {
        let limits = Limits { memory: Some(1), ..Limits::default() };
        assert_eq!(plan_on(&Host::default(), "p", &limits).not_enforced, ["--memory"]);
        assert_eq!(plan_on(&Host::default(), "p", &Limits::default()), Plan::default());
    }
}

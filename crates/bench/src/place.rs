//! Where a load runs: a lane, the same without the preload library, or a kernel file system.
//!
//! Kernel file systems live on one RAM-backed loop device per file system, mounted in a mount
//! namespace that only this process and its workers are in: when the bench ends, however it ends,
//! mounts and loop devices are gone. Attached volumes are detached by `attached`, likewise.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::attached::{Attached, Front};
use crate::ceph::{self, Cluster};
use crate::tools::{command, path};
use crate::worker::{Length, Outcome, libcephfs};

/// One way to store files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Every tenant in a lane of its own on memfs, through the preload library.
    Lane,
    /// The same with every change of a name awaited: no leases.
    LaneAwaited,
    /// Every tenant in a lane of its own on ext4 on a volume in RAM, through the preload library.
    LaneExt4,
    /// The same on a volume in the directory on the disk.
    LaneExt4Disk,
    /// The one in RAM through FUSE alone.
    LaneExt4Fuse,
    /// A lane on memfs through FUSE alone.
    LaneFuse,
    /// Every tenant in a directory of one tmpfs.
    Tmpfs,
    /// Every tenant in a directory of one kernel file system on a RAM-backed loop device.
    Kernel(&'static str),
    /// Every tenant in a kernel file system of its own, on a RAM-backed loop device of its own.
    KernelEach(&'static str),
    /// The same with loop devices that do direct I/O.
    KernelEachDirect(&'static str),
    /// Every tenant in a kernel file system of its own on a lane's volume, attached to the host.
    Attached(&'static str),
    /// The same with data in the file system's journal too (`data=journal`; ext3, ext4).
    AttachedJournal(&'static str),
    /// Every tenant in a directory of one host directory on the disk (the current directory's).
    Disk,
    /// Every tenant in a directory of a Ceph file system, by a client of its own.
    Ceph(ceph::Way, &'static Cluster),
}

impl Place {
    /// Its name in tables.
    pub fn name(self) -> String {
        match self {
            Place::Lane => "lane".into(),
            Place::LaneAwaited => "lane (awaited)".into(),
            Place::LaneExt4 => "lane (ext4)".into(),
            Place::LaneExt4Disk => "lane (ext4, disk)".into(),
            Place::LaneExt4Fuse => "lane (ext4, FUSE)".into(),
            Place::LaneFuse => "lane (FUSE)".into(),
            Place::Tmpfs => "tmpfs".into(),
            Place::Kernel(kind) => kind.into(),
            Place::KernelEach(kind) => format!("{kind} each"),
            Place::KernelEachDirect(kind) => format!("{kind} each, direct"),
            Place::Attached(kind) => format!("{kind} on a lane"),
            Place::AttachedJournal(kind) => format!("{kind} on a lane, data=journal"),
            Place::Disk => "disk".into(),
            Place::Ceph(way, _) => way.name().into(),
        }
    }
}

impl Place {
    /// Whether each tenant has a kernel file system of its own, mounted at its number below the
    /// directory that all share.
    fn is_each(self) -> bool {
        match self {
            Place::KernelEach(_) | Place::KernelEachDirect(_) => true,
            Place::Attached(_) | Place::AttachedJournal(_) => true,
            Place::Lane | Place::LaneAwaited | Place::LaneFuse => false,
            Place::LaneExt4 | Place::LaneExt4Disk | Place::LaneExt4Fuse => false,
            Place::Tmpfs | Place::Kernel(_) | Place::Disk | Place::Ceph(..) => false,
        }
    }

    /// Where tenant number `index` works below the directory that all share.
    fn own(self, shared: &Path, index: usize, load: &str) -> PathBuf {
        let number = || shared.join(index.to_string());
        match self {
            Place::Ceph(way, _) if way.is_peer() => number().join(load),
            Place::Ceph(..) => number(),
            _ if self.is_each() => number().join(load),
            _ => shared.join(format!("tenant-{index}-{load}")),
        }
    }

    /// The arguments of `polylane` that make the tenant's lane; none for a kernel file system.
    /// `own` is a path for what only this tenant needs.
    fn lane(self, own: &Path) -> Vec<OsString> {
        let mem = ["run", "--mem"].map(OsString::from);
        match self {
            Place::Lane | Place::LaneAwaited => mem.into(),
            Place::LaneFuse => [&mem[..], &["--no-preload".into()]].concat(),
            Place::LaneExt4 | Place::LaneExt4Disk => on_volume(own),
            Place::LaneExt4Fuse => [on_volume(own), vec!["--no-preload".into()]].concat(),
            Place::Tmpfs | Place::Disk => Vec::new(),
            Place::Kernel(_) | Place::KernelEach(_) => Vec::new(),
            Place::KernelEachDirect(_) => Vec::new(),
            Place::Attached(_) | Place::AttachedJournal(_) => Vec::new(),
            Place::Ceph(way @ (ceph::Way::Lane | ceph::Way::LaneFuse), cluster) => {
                cluster.lane(own, way)
            }
            Place::Ceph(..) => Vec::new(),
        }
    }

    /// What a worker calls the load here.
    fn load(self, name: &str) -> String {
        match self {
            Place::Ceph(ceph::Way::Library, _) => [libcephfs::PREFIX, name].concat(),
            _ => name.to_string(),
        }
    }
}

/// All ways to a tenant's directory of a cluster that this host has; the others become notes.
pub fn on_cluster(
    cluster: &'static Cluster,
    ways: &[ceph::Way],
    notes: &mut Vec<String>,
) -> Vec<Place> {
    let has_peer = command("ceph-fuse", &["--version"]).is_ok();
    let (found, missing): (Vec<ceph::Way>, Vec<ceph::Way>) =
        ways.iter().partition(|way| has_peer || !way.is_peer());
    let note = |way: &ceph::Way| format!("{}: ceph-fuse is not on this host", way.name());
    notes.extend(missing.iter().map(note));
    found.into_iter().map(|way| Place::Ceph(way, cluster)).collect()
}

/// The arguments for a lane on a volume beside `own`.
fn on_volume(own: &Path) -> Vec<OsString> {
    let volume = own.with_extension("img").into_os_string();
    ["run".into(), "--volume".into(), volume, "--size".into(), VOLUME_SIZE.into()].into()
}

/// Size of the RAM-backed image under a kernel file system that all tenants share; sparse.
const SHARED_BYTES: u64 = 8 << 30;

/// Size of the image or volume under a tenant's own file system: MultiLanes' (FAST '14, §5.1).
const OWN_BYTES: u64 = 2500 << 20;

/// The same for `polylane`.
const VOLUME_SIZE: &str = "2500M";

/// Most tenants of a figure that does not say.
const TENANTS_MAX: usize = 16;

/// Marks a process that already has a mount namespace of its own.
const NAMESPACE_MARK: &str = "POLYLANE_BENCH_NAMESPACE";

/// Goes on in a mount namespace of this run's own, by executing the program again in one. Without
/// root it does nothing: kernel file systems are then left out.
///
/// # Errors
/// `unshare` of util-linux is missing or refused.
pub fn enter_namespace() -> Result<()> {
    if !rustix::process::geteuid().is_root() || std::env::var_os(NAMESPACE_MARK).is_some() {
        return Ok(());
    }
    let failure = Command::new("unshare")
        .args(["--mount", "--propagation", "slave", "--"])
        .arg(std::env::current_exe().context("own path")?)
        .args(std::env::args_os().skip(1))
        .env(NAMESPACE_MARK, "1")
        .exec();
    Err(failure).context("run unshare")
}

/// Where kernel file systems and shared directories are made; everything goes when it is dropped.
pub struct Ground {
    memory: tempfile::TempDir,
    disk: tempfile::TempDir,
    root: bool,
    /// Most tenants that are going to work at a time.
    tenants: usize,
    /// Volumes with an engine.
    attached: Attached,
    /// What is on a Ceph cluster.
    ceph: RefCell<Option<ceph::Tenants>>,
}

impl Ground {
    /// A ground for up to 16 tenants.
    ///
    /// # Errors
    /// As [`Ground::with_tenants`].
    pub fn new() -> Result<Self> {
        Ground::with_tenants(TENANTS_MAX)
    }

    /// A ground for the most of these numbers of tenants.
    ///
    /// # Errors
    /// As [`Ground::with_tenants`].
    pub fn for_tenants(points: &[usize]) -> Result<Self> {
        Ground::with_tenants(points.iter().copied().max().unwrap_or(1))
    }

    /// A tmpfs (root: one of its own; otherwise the host's `/dev/shm`) and a directory on the disk,
    /// below the current one, for up to so many `tenants` at a time.
    ///
    /// # Errors
    /// A directory cannot be made or the tmpfs not be mounted.
    pub fn with_tenants(tenants: usize) -> Result<Self> {
        Ground::on(Path::new("."), tenants)
    }

    /// The same with the directory on the disk below `dir`.
    ///
    /// # Errors
    /// As [`Ground::with_tenants`].
    pub fn on(dir: &Path, tenants: usize) -> Result<Self> {
        let root = rustix::process::geteuid().is_root();
        let disk = tempfile::tempdir_in(dir).context("directory on the disk")?;
        let memory = match root {
            true => tempfile::tempdir(),
            false => tempfile::tempdir_in("/dev/shm"),
        };
        let memory = memory.context("temporary directory")?;
        if root {
            command("mount", &["-t", "tmpfs", "-o", "size=80%", "tmpfs", path(memory.path())?])?;
        }
        let ceph = RefCell::default();
        Ok(Ground { memory, disk, root, tenants, attached: Attached::new()?, ceph })
    }

    /// Makes `place` ready and returns the directory its tenants share; lanes need none.
    ///
    /// # Errors
    /// A file system that this host cannot make or mount; the caller reports it as left out.
    pub fn prepare(&self, place: Place) -> Result<PathBuf> {
        match place {
            Place::Lane | Place::LaneAwaited | Place::LaneFuse => Ok(PathBuf::new()),
            Place::LaneExt4 | Place::LaneExt4Fuse => self.directory("volumes"),
            Place::LaneExt4Disk => {
                let dir = self.disk.path().join("volumes");
                fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
                Ok(dir)
            }
            Place::Disk => Ok(self.disk.path().to_path_buf()),
            Place::Tmpfs => self.directory("tmpfs"),
            Place::Kernel(kind) => {
                self.mount(kind, kind, SHARED_BYTES, false)?;
                self.directory(kind)
            }
            Place::KernelEach(kind) => self.mount_each(kind, false),
            Place::KernelEachDirect(kind) => self.mount_each(kind, true),
            Place::Attached(kind) => self.attach_each(kind, "ordered"),
            Place::AttachedJournal(kind) => self.attach_each(kind, "journal"),
            Place::Ceph(way, cluster) => {
                ensure!(self.root || !way.is_peer(), "mounting it needs root");
                let mut tenants = self.ceph.borrow_mut();
                let tenants =
                    tenants.get_or_insert_with(|| ceph::Tenants::new(cluster, self.tenants));
                tenants.prepare(way, self.memory.path())
            }
        }
    }

    /// CPU time of what serves all tenants of this place but is not below their processes, in
    /// seconds.
    pub fn cpu_seconds(&self, place: Place) -> f64 {
        match (place, &*self.ceph.borrow()) {
            (Place::Ceph(way, _), Some(tenants)) => tenants.cpu_seconds(way),
            _ => 0.0,
        }
    }

    /// Frees the RAM that a measurement took, after its tenants are gone: volumes are removed, what
    /// kernel file systems still have to write is written and their free blocks go back.
    ///
    /// # Errors
    /// A volume cannot be removed.
    pub fn tidy(&self, place: Place, shared: &Path) -> Result<()> {
        match place {
            Place::LaneExt4 | Place::LaneExt4Disk | Place::LaneExt4Fuse => {
                fs::remove_dir_all(shared).context("remove volumes")?;
                fs::create_dir_all(shared).context("directory of volumes")
            }
            Place::Kernel(_) => trim(shared),
            _ if place.is_each() => {
                (0..self.tenants).try_for_each(|n| trim(&shared.join(n.to_string())))
            }
            _ => Ok(()),
        }
    }

    fn directory(&self, name: &str) -> Result<PathBuf> {
        let dir = self.memory.path().join(name);
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(dir)
    }

    fn mount_each(&self, kind: &str, direct: bool) -> Result<PathBuf> {
        let name = format!("{kind}-each{}", if direct { "-direct" } else { "" });
        for number in 0..self.tenants {
            self.mount(kind, &format!("{name}/{number}"), OWN_BYTES, direct)?;
        }
        self.directory(&name)
    }

    /// A file system of that kind on a loop device, mounted at `name` in the tmpfs, unless it is.
    fn mount(&self, kind: &str, name: &str, bytes: u64, direct: bool) -> Result<()> {
        ensure!(self.root, "mounting it needs root");
        let dir = self.directory(name)?;
        let image = dir.with_extension("img");
        if image.exists() {
            return Ok(());
        }
        fs::File::create(&image)?.set_len(bytes)?;
        format(kind, path(&image)?)?;
        let dir = path(&dir)?;
        on_loop(&image, direct, |device| command("mount", &["-t", kind, device, dir]).map(drop))
    }

    fn attach_each(&self, kind: &str, journal: &str) -> Result<PathBuf> {
        let name = format!("{kind}-attached-{journal}");
        for number in 0..self.tenants {
            self.attach(kind, &format!("{name}/{number}"), journal)?;
        }
        self.directory(&name)
    }

    /// The same on a volume of a lane, served by an engine until the ground goes. `journal` is what
    /// the journals of ext3 and ext4 hold: `ordered` (metadata alone) or `journal` (all).
    fn attach(&self, kind: &str, name: &str, journal: &str) -> Result<()> {
        ensure!(self.root, "attaching volumes needs root");
        let dir = self.directory(name)?;
        let volume = dir.with_extension("img");
        if volume.exists() {
            return Ok(());
        }
        let device = self.attached.attach(&volume, OWN_BYTES, Front::Loop, &|_| Ok(()))?;
        let (device, dir) = (path(&device)?, path(&dir)?);
        format(kind, device)?;
        let options = format!("data={journal}");
        let options: &[&str] = if kind.starts_with("ext") { &["-o", &options] } else { &[] };
        command("mount", &[&["-t", kind], options, &[device, dir]].concat()).map(drop)
    }

    /// The volumes that this host has attached for this run.
    pub fn attachments(&self) -> &Attached {
        &self.attached
    }
}

/// Makes a file system of that kind.
///
/// # Errors
/// Its program is missing or failed.
pub fn format(kind: &str, device: &str) -> Result<()> {
    // What mke2fs leaves for later, the kernel would do during the measurement.
    let options: &[&str] = match kind.starts_with("ext") {
        true => &["-Fq", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
        false => &["-f"],
    };
    command(&format!("mkfs.{kind}"), &[options, &[device]].concat()).map(drop)
}

fn trim(mount: &Path) -> Result<()> {
    command("sync", &["--file-system", path(mount)?])?;
    command("fstrim", &[path(mount)?]).map(drop)
}

impl Drop for Ground {
    fn drop(&mut self) {
        drop(self.ceph.take());
        if let Err(error) = self.attached.detach() {
            eprintln!("polylane bench: {error:#}; see 'polylane attach --list'");
        }
        if let (true, Ok(memory)) = (self.root, path(self.memory.path())) {
            // Below the tmpfs lie the loop mounts: take the whole tree.
            if let Err(error) = command("umount", &["--recursive", memory]) {
                eprintln!("polylane bench: {error:#}; the mounts end with this process");
            }
        }
    }
}

/// Has `open` open, or mount, a loop device on a file, which goes with the last who has it open.
///
/// # Errors
/// There can be none, or what `open` says.
pub fn on_loop<T>(file: &Path, direct: bool, open: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    let direct = format!("--direct-io={}", if direct { "on" } else { "off" });
    let device = command("losetup", &["--find", "--show", &direct, path(file)?])?;
    let device = device.trim();
    let opened = open(device);
    // Takes effect when nobody has it open.
    command("losetup", &["--detach", device])?;
    opened
}

/// `tell OPERATIONS NANOSECONDS` of every script: prints what [`Outcome::from_json`] reads.
const TELL: &str = r#"
tell() {
    awk -v ops="$1" -v ns="$2" 'BEGIN {
        form = "{\"ops\":%d,\"seconds\":%f,\"settle_seconds\":0,\"latency\":{}}\n"
        printf form, ops, ns / 1e9
    }'
}
"#;

/// A tenant's load that is a shell script: prepares the directory `$1`, prints `ready`, reads a
/// line, works, prints a line about what it did, reads a line and removes the directory.
pub struct Script {
    /// Its name in paths.
    pub name: &'static str,
    /// Its text, for `sh -eu`.
    pub text: &'static str,
    /// Reads the line about what it did.
    pub outcome: Understand,
}

/// How to read what a tenant says at the end.
type Understand = fn(&str) -> Result<Outcome>;

/// One tenant at work.
pub struct Tenant {
    child: Child,
    go: ChildStdin,
    told: std::io::BufReader<ChildStdout>,
    understand: Understand,
}

impl Tenant {
    /// Starts load `load` of that `length` in `place` as tenant number `index`; `shared` is the
    /// directory that [`Ground::prepare`] gave.
    ///
    /// # Errors
    /// The process cannot be started or ends before it is ready.
    pub fn start(
        place: Place,
        shared: &Path,
        load: &str,
        index: usize,
        length: Length,
    ) -> Result<Self> {
        Tenant::start_on(None, place, shared, load, index, length)
    }

    /// The same with all that the tenant consists of, its lane's service included, on one CPU if
    /// one is given. What the kernel does for it on threads of the kernel's own stays where that
    /// is.
    ///
    /// # Errors
    /// As [`Tenant::start`]; the CPU may not be used; `taskset` of util-linux is missing.
    pub fn start_on(
        cpu: Option<u32>,
        place: Place,
        shared: &Path,
        load: &str,
        index: usize,
        length: Length,
    ) -> Result<Self> {
        let me = std::env::current_exe().context("own path")?.into_os_string();
        let length = length.to_string();
        let before = [me, "bench".into(), "worker".into(), place.load(load).into()];
        let args = [&before[..], &[length.into()]];
        Tenant::spawn(cpu, place, shared, load, index, args, Outcome::from_json)
    }

    /// The same for a shell script that speaks as a worker does; it is given its directory and
    /// `arguments`.
    ///
    /// # Errors
    /// As [`Tenant::start`].
    pub fn script(
        place: Place,
        shared: &Path,
        script: &Script,
        index: usize,
        arguments: &[String],
    ) -> Result<Self> {
        let text = [TELL, script.text].concat();
        let before = ["sh", "-euc", &text, script.name].map(OsString::from);
        let after: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        let args = [&before[..], &after];
        Tenant::spawn(None, place, shared, script.name, index, args, script.outcome)
    }

    /// Starts `before DIRECTORY after`, all on one CPU if one is given; a program's answer is for
    /// `understand` to read.
    fn spawn(
        cpu: Option<u32>,
        place: Place,
        shared: &Path,
        load: &str,
        index: usize,
        [before, after]: [&[OsString]; 2],
        understand: Understand,
    ) -> Result<Self> {
        let me = std::env::current_exe().context("own path")?;
        let own = place.own(shared, index, load);
        let lane = place.lane(&own);
        let mut args = Vec::new();
        if let Some(cpu) = cpu {
            args.extend(["taskset", "--cpu-list", &cpu.to_string()].map(OsString::from));
        }
        if !lane.is_empty() {
            args.push(me.into_os_string());
            args.extend([lane.as_slice(), &["--".into()]].concat());
        }
        let dir = match lane.is_empty() {
            true => own,
            false => PathBuf::from(format!("/lane/{load}")),
        };
        args.extend([before, &[dir.into_os_string()], after].concat());
        let leases = if place == Place::LaneAwaited { "0" } else { "1" };
        let mut command = Command::new(&args[0]);
        if let Place::Ceph(_, cluster) = place {
            command.envs(cluster.environment());
        }
        let mut child = command
            .args(&args[1..])
            .env("POLYLANE_LEASES", leases)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start a tenant")?;
        let go = child.stdin.take().context("tenant's standard input")?;
        let told = std::io::BufReader::new(child.stdout.take().context("tenant's output")?);
        let mut tenant = Tenant { child, go, told, understand };
        match tenant.line()?.trim() {
            "ready" => Ok(tenant),
            other => bail!("tenant {index} ({}, {load}) said '{other}', not ready", place.name()),
        }
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut self.told, &mut line).context("tenant's output")?;
        Ok(line)
    }

    fn release(&mut self) -> Result<()> {
        std::io::Write::write_all(&mut self.go, b"go\n").context("tenant went away")
    }

    fn outcome(&mut self) -> Result<Outcome> {
        let line = self.line()?;
        (self.understand)(line.trim()).with_context(|| format!("a tenant said '{}'", line.trim()))
    }

    /// CPU time of its processes, its lane's included, since each began.
    fn cpu_seconds(&self) -> f64 {
        crate::tools::cpu_seconds(self.child.id())
    }

    /// Lets it clean up and go.
    fn end(mut self) -> Result<()> {
        drop(self.go);
        self.child.wait().context("wait for a tenant").map(drop)
    }
}

/// Starts all tenants, lets them go at once and collects what they did.
///
/// # Errors
/// Any tenant failed.
pub fn together(mut tenants: Vec<Tenant>) -> Result<Vec<Outcome>> {
    let before: Vec<f64> = tenants.iter().map(Tenant::cpu_seconds).collect();
    tenants.iter_mut().try_for_each(Tenant::release)?;
    let outcome = |(tenant, before): (&mut Tenant, &f64)| {
        let mut outcome = tenant.outcome()?;
        outcome.cpu_seconds = tenant.cpu_seconds() - before;
        Ok(outcome)
    };
    let outcomes = tenants.iter_mut().zip(&before).map(outcome).collect();
    tenants.into_iter().try_for_each(Tenant::end)?;
    outcomes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_with_a_file_system_of_its_own_works_on_it() {
        let shared = Path::new("/shared");
        let own = |place: Place| place.own(shared, 3, "load");
        for place in [
            Place::KernelEach("xfs"),
            Place::KernelEachDirect("ext4"),
            Place::Attached("btrfs"),
            Place::AttachedJournal("ext3"),
        ] {
            assert_eq!(own(place), Path::new("/shared/3/load"), "{}", place.name());
        }
        assert_eq!(own(Place::Kernel("ext4")), Path::new("/shared/tenant-3-load"));
    }
}

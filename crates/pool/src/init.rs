//! Pid 1 of a tenant: makes the tenant's view of the file tree, starts COMMAND, reaps, cleans up.
//!
//! It runs in a child forked from the supervisor, in namespaces of its own, and never returns.
//! Steps:
//!
//! 1. `Begin` arrives (limits are in place); the mount table is cut off from the host's.
//! 2. The FUSE mount and the run directory (with the listening socket) are made, detached;
//!    `Mounted`.
//! 3. `Serving` arrives: from here on the lane answers. Everything is put into its place.
//! 4. COMMAND is forked and executed; orphans are reaped, signals passed on.
//! 5. COMMAND has ended: what is left in the namespace is killed, the lane synced, and this process
//!    ends with COMMAND's status; with it go the namespaces and every mount in them.
//!
//! The kernel ignores signals to a pid 1 that has no handler for them, so Ctrl-C on the terminal
//! reaches COMMAND alone.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polylane_front::fuse::{self, Params, Wants};
use polylane_ipc::message::RESERVED_DIR;
use polylane_sys::ns::{self, Fork, Namespaces, SignalFd};
use polylane_sys::{sched, scm, seccomp};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::mount::{MountAttrFlags, UnmountFlags};
use rustix::process::{Signal, WaitOptions};

use crate::failure::{FAILED, Failure, Result, say};
use crate::fuse_device::open_fuse;
use crate::kernel_fs_kind::{KernelFs, KernelFsMount};
use crate::limits::CallerLimits;
use crate::link::{FromInit, Link, ToInit};
use crate::mount_table::MountTable;
use crate::mounts::Parameter;
use crate::preload::LanePlace;
use crate::process::Ended;
use crate::skeleton::{self, MountPoint};
use crate::user_namespace::map_rest;
use crate::{confine, mounts, preload, root, subordinate};

/// Exit status when COMMAND exists but cannot be executed.
const NOT_EXECUTABLE: u8 = 126;
/// Exit status when COMMAND does not exist.
const NOT_FOUND: u8 = 127;

/// How long the kernel may take to send FUSE_INIT after the mount.
const INIT_TIME_MAX_MS: u32 = 10_000;

/// Waiting connections of the lane's socket: every program that starts makes one.
const SOCKET_BACKLOG: i32 = 512;

/// Where the lane appears.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// At a mount path.
    At(MountPoint),
    /// As the root of the file tree.
    Root,
}

impl Place {
    /// The mount path as COMMAND sees it.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Place::At(point) => point.path(),
            Place::Root => PathBuf::from("/"),
        }
    }
}

/// What the init is to do; fixed before the fork.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Where the lane appears.
    pub(crate) place: Place,
    /// An ordinary user: this uid and gid are mapped to themselves, if the supervisor has not
    /// mapped them with the user's ranges, and the init opens /dev/fuse.
    pub(crate) rootless: Option<(u32, u32)>,
    /// The FUSE device when the supervisor could open it.
    pub(crate) fuse: Option<OwnedFd>,
    /// A file system of the kernel's, in place of a FUSE mount.
    pub(crate) kernel_fs: Option<KernelFsMount>,
    /// The preload library, unless it is not wanted or not there.
    pub(crate) library: Option<PathBuf>,
    /// Where the lane's run directory is mounted outside of the lane; `None`: nowhere.
    pub(crate) run_dir: Option<PathBuf>,
    /// Other lanes that are in this process's mount namespace already.
    pub(crate) beside: Vec<LanePlace>,
    /// COMMAND and its arguments; not empty.
    pub(crate) command: Vec<OsString>,
    /// Working directory of COMMAND.
    pub(crate) directory: PathBuf,
    /// What COMMAND may do.
    pub(crate) rights: Rights,
}

/// What COMMAND may do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rights {
    /// Set-id programs of a lane at a path work.
    pub(crate) suid: bool,
    /// In a root file system: what an OCI runtime gives a container, and no more.
    pub(crate) contained: bool,
    /// It may become each user that its namespace has, the ranges of an ordinary user, if it has
    /// any.
    pub(crate) becomes_others: bool,
    /// The memory killer is to take it before the service, which could not ask that for itself.
    pub(crate) killed_first: bool,
    /// The limits of the caller's shell.
    pub(crate) limits: CallerLimits,
}

/// `oom_score_adj` of COMMAND where its service has 0: what the service has below COMMAND
/// elsewhere.
const OOM_SCORE_ADJ: &str = "900";

/// Requests of ioctl(2) that type: into a terminal's input (`TIOCSTI`), and by a virtual console's
/// selection (`TIOCLINUX`). The caller's terminal is COMMAND's as well.
const TYPING: [u32; 2] = [0x5412, 0x541c];

impl Plan {
    /// What is not let through on the lane: devices, and at a path set-id programs, unless that was
    /// asked for or the lane began empty (decision 0055).
    fn attributes(&self) -> MountAttrFlags {
        let mut attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
        let keeps = self.rights.suid || self.place == Place::Root;
        attributes.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !keeps);
        attributes
    }

    /// What COMMAND's environment says of lanes; `None`: nothing of that name.
    fn lane_variables(&self) -> Vec<(String, Option<OsString>)> {
        let mount = self.place.path();
        let Some(run_dir) = self.run_dir.clone() else {
            let mut variables = preload::lane_variables(&[]);
            variables.push((preload::MOUNT_VARIABLE.to_string(), Some(mount.into_os_string())));
            return variables;
        };
        let first = LanePlace { run_dir, mount };
        let all: Vec<LanePlace> =
            std::iter::once(first).chain(self.beside.iter().cloned()).collect();
        preload::lane_variables(&all)
    }
}

/// Time slices of the tenant's threads, so that one that floods keeps nobody waiting for Linux' own
/// 3 ms. See the service's, which are shorter.
const SLICE: Duration = Duration::from_micros(300);

/// Runs the init to its end.
pub(crate) fn main(plan: Plan, link: &Link) -> ! {
    let status = match run(plan, link) {
        Ok(ended) => ended.status(),
        Err(failure) => {
            say(&failure);
            FAILED
        }
    };
    ns::exit_now(status.into())
}

fn run(mut plan: Plan, link: &Link) -> Result<Ended> {
    // Killed with the supervisor, however that ends. If it is gone already, `Begin` never arrives.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::because("init", "tie its life to the supervisor", error))?;
    let _ = rustix::thread::set_name(c"polylane-init");
    let _ = sched::set_slice(SLICE);
    let types = has_terminal();
    // Of what the supervisor has open it keeps nothing else. With a copy of the FUSE device it
    // could wait for ever for an answer that nobody but itself could give.
    let kept: Vec<_> =
        [link.as_fd()].into_iter().chain(plan.fuse.as_ref().map(AsFd::as_fd)).collect();
    ns::keep_only(&kept)
        .map_err(|error| Failure::because("init", "close the supervisor's files", error))?;
    expect(link, ToInit::Begin)?;
    if let Some((uid, gid)) = plan.rootless {
        let written = subordinate::written();
        map_rest(uid, gid, written)?;
        plan.rights.becomes_others &= written.are_whole();
    }
    if types {
        seccomp::refuse_ioctls(&TYPING)
            .map_err(|error| Failure::because("init", "keep COMMAND from typing", error))?;
    }
    mounts::cut_off().map_err(|error| Failure::because("mount namespace", "cut it off", error))?;
    // The device is closed here once it is mounted: the tenant is to find no copy of it.
    let device = plan.fuse.take();
    let lane = match &plan.kernel_fs {
        Some(mounted) => mount_kernel_fs(mounted, plan.attributes(), link)?,
        None => mount_lane(device, (mounts::SOURCE, plan.attributes()), link)?,
    };
    let (lane_dir, mut table) = put_in_place(&mut plan, lane)?;
    let signals = SignalFd::new(&[libc::SIGCHLD])
        .map_err(|error| Failure::because("init", "watch its children", error))?;
    let command = start_command(&plan)?;
    let ended = watch(command, link, &signals, table.as_mut())?;
    let _ = link.send(&FromInit::Ended, &[]);
    kill_the_rest();
    let _ = link.send(&FromInit::Alone, &[]);
    // Mapped files: the service must have every byte that the kernel still holds.
    match rustix::fs::syncfs(&lane_dir) {
        Err(error) if plan.kernel_fs.is_some() => {
            Err(Failure::because("lane", "write everything back", error))
        }
        _ => Ok(ended),
    }
}

/// Whether the run has a terminal: the caller's session has one, or a descriptor may be of one.
fn has_terminal() -> bool {
    /// Of memory (`/dev/null`) and of what is neither terminal nor disk (`/dev/fuse`).
    const NO_TERMINALS: [u32; 2] = [1, 10];
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let of_session =
        rustix::fs::open("/dev/tty", flags, Mode::empty()).err() != Some(rustix::io::Errno::NXIO);
    let may_be_one = |entry: fs::DirEntry| {
        fs::metadata(entry.path()).is_ok_and(|stat| {
            let major = rustix::fs::major(stat.rdev());
            stat.file_type().is_char_device() && !NO_TERMINALS.contains(&major)
        })
    };
    let open = fs::read_dir("/proc/self/fd");
    of_session || open.map_or(true, |open| open.flatten().any(may_be_one))
}

/// Waits for exactly this message. The end of the line is the end of the supervisor.
pub(crate) fn expect(link: &Link, expected: ToInit) -> Result<()> {
    match link.receive::<ToInit>() {
        Ok(Some((message, _))) if message == expected => Ok(()),
        _ => ns::exit_now(FAILED.into()),
    }
}

/// The detached mounts of a lane.
pub(crate) struct LaneMounts {
    /// The lane's own.
    pub(crate) lane: OwnedFd,
    /// Where the lane's service listens.
    pub(crate) run_dir: Option<OwnedFd>,
}

/// Mounts a file system of the kernel's.
fn mount_kernel_fs(
    mounted: &KernelFsMount,
    attributes: MountAttrFlags,
    link: &Link,
) -> Result<LaneMounts> {
    let device = mounted.device.display().to_string();
    let mut parameters = vec![Parameter::Value("source", device.clone())];
    // Copies of a volume have its identity, and are mounted beside it.
    parameters.extend((mounted.kind == KernelFs::Xfs).then_some(Parameter::Flag("nouuid")));
    let lane = mounts::create(mounted.kind.name(), &parameters, attributes).map_err(|error| {
        Failure::because(&device, &format!("mount the {} on it", mounted.kind), error)
    })?;
    link.send(&FromInit::Mounted(None), &[])
        .map_err(|error| Failure::because("lane", "tell the supervisor of it", error))?;
    expect(link, ToInit::Serving)?;
    Ok(LaneMounts { lane, run_dir: None })
}

/// Makes the FUSE mount and the run directory, hands their descriptors over, waits for the service.
pub(crate) fn mount_lane(
    given: Option<OwnedFd>,
    (source, attributes): (&str, MountAttrFlags),
    link: &Link,
) -> Result<LaneMounts> {
    let opened = given.is_none();
    let device = match given {
        Some(device) => device,
        None => open_fuse()?,
    };
    let (lane, socket, device_number) = make_mounts(&device, (source, attributes))?;
    let mut fds = vec![socket.as_fd()];
    fds.extend(opened.then(|| device.as_fd()));
    link.send(&FromInit::Mounted(Some(device_number)), &fds)
        .map_err(|error| Failure::because("lane", "hand it to the supervisor", error))?;
    drop(device);
    expect(link, ToInit::Serving)?;
    Ok(lane)
}

/// The mounts of a lane, its listening socket, and the number of the lane's device.
pub(crate) fn make_mounts(
    device: &OwnedFd,
    (source, attributes): (&str, MountAttrFlags),
) -> Result<(LaneMounts, OwnedFd, (u32, u32))> {
    let mount_failed = |error| Failure::because("lane", "mount it through FUSE", error);
    let fuse = mounts::fuse(device, source, attributes).map_err(mount_failed)?;
    let run_dir_failed = |error: std::io::Error| Failure::because("lane", "make its socket", error);
    let run_dir = mounts::tmpfs(0o755, "64k", MountAttrFlags::MOUNT_ATTR_NODEV)
        .map_err(|error| run_dir_failed(error.into()))?;
    let socket = listen_in(&run_dir).map_err(run_dir_failed)?;
    // Nothing is asked of a service, which does not run yet.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&fuse, "", flags, StatxFlags::empty())
        .map_err(|error| Failure::because("lane", "look at its mount", error))?;
    let number = (stat.stx_dev_major, stat.stx_dev_minor);
    Ok((LaneMounts { lane: fuse, run_dir: Some(run_dir) }, socket, number))
}

/// What the kernel and the service of a mount agree on.
pub(crate) fn negotiate(device: &OwnedFd, wants: Wants) -> Result<Params> {
    let params = fuse::negotiate(device, INIT_TIME_MAX_MS, wants)
        .map_err(|error| Failure::because("/dev/fuse", "agree on a protocol", error))?;
    match wants.id_maps && !params.id_maps() {
        true => Err(Failure::failed(
            "--idmap: this kernel lets no mount of a lane be id-mapped (Linux 6.12 does): let the \
             service map users by --map-users",
        )),
        false => Ok(params),
    }
}

/// The lane's socket, in a directory that is mounted nowhere yet. Every user of the tenant may
/// connect.
fn listen_in(dir: &OwnedFd) -> std::io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    let path = PathBuf::from(format!("/proc/self/fd/{}/socket", dir.as_raw_fd()));
    let socket = scm::listen(&path, SOCKET_BACKLOG)?;
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666))?;
    Ok(socket)
}

/// Puts the tenant's tree together; returns the lane's root directory for the final sync, and the
/// table of mounts where the library is to be told of it.
fn put_in_place(plan: &mut Plan, lane: LaneMounts) -> Result<(OwnedFd, Option<MountTable>)> {
    let mut libraries = pick_up_libraries(plan.library.as_deref())?;
    match &plan.place {
        Place::At(point) => {
            let path = point.path();
            let failed = |error| Failure::path(&path, "mount the lane there", error);
            let proc = root::new_proc();
            skeleton::build(point).map_err(failed)?;
            mounts::attach_at(&lane.lane, &path).map_err(failed)?;
            root::attach_proc(proc, Path::new("/proc"))?;
        }
        Place::Root => {
            root::enter(&lane.lane, plan.rights.contained)?;
            libraries.retain(|(build, _)| build.has_linker());
            if plan.library.is_some() && libraries.is_empty() {
                say(
                    "lane: no dynamic linker in this root that the library is built for: FUSE only",
                );
                plan.library = None;
            }
        }
    }
    let mut watched = furnish(&lane, &plan.place.path(), plan.run_dir.as_deref(), &libraries)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if let Some(table) = &mut watched {
        table.begin();
    }
    rustix::fs::openat(&lane.lane, ".", flags, Mode::empty())
        .map(|root| (root, watched))
        .map_err(|error| Failure::because("lane", "open its root", error))
}

/// Puts the run directory with the libraries into a lane that is mounted at `path`, and at
/// `outside`, which the lane's service cannot change; the table of mounts where the library is to
/// be told of it.
pub(crate) fn furnish(
    lane: &LaneMounts,
    path: &Path,
    outside: Option<&Path>,
    libraries: &[Library],
) -> Result<Option<MountTable>> {
    let Some(run_dir) = &lane.run_dir else { return Ok(None) };
    let failed = |error| Failure::because("lane", "mount its run directory", error);
    let within = path.join(RESERVED_DIR);
    let first = outside.unwrap_or(&within);
    // Each mount that is made or goes wakes the holders of all other lanes. From Linux 6.15 on,
    // which copies a mount that has no place, its tree is put together before it has one.
    let has_place = mounts::copy_of(run_dir, Path::new(".")).is_err();
    if has_place {
        mounts::attach_at(run_dir, first).map_err(failed)?;
    }
    let mut watched = None;
    if !libraries.is_empty() {
        preload::make_folders(run_dir).map_err(failed)?;
        watched = MountTable::watch(&lane.lane, path, run_dir);
    }
    for (build, library) in libraries {
        let place = Path::new(build.place);
        skeleton::make_file(run_dir, place).map_err(failed)?;
        mounts::attach(library, run_dir, place).map_err(failed)?;
    }
    let label = [lane_label(&lane.lane).map_err(failed)?, path.as_os_str().as_bytes().to_vec()];
    write_in(run_dir, LANE_FILE, &label.concat()).map_err(failed)?;
    let shown: Vec<OwnedFd> =
        outside.iter().map(|_| read_only(run_dir)).collect::<Result<_, _>>().map_err(failed)?;
    let shown_within = read_only(run_dir).map_err(failed)?;
    if has_place {
        // This process goes on writing through the former mount.
        rustix::mount::unmount(first, UnmountFlags::DETACH).map_err(failed)?;
    }
    for (mount, place) in shown.iter().zip(outside) {
        mounts::attach_at(mount, place).map_err(failed)?;
    }
    mounts::attach(&shown_within, &lane.lane, Path::new(RESERVED_DIR)).map_err(failed)?;
    Ok(watched)
}

/// Of the lane that a run directory belongs to: its device number, a newline, its mount path.
pub(crate) const LANE_FILE: &str = "lane";

fn lane_label(lane: &OwnedFd) -> rustix::io::Result<Vec<u8>> {
    let stat = rustix::fs::statx(lane, "", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    Ok(format!("{device}\n").into_bytes())
}

fn write_in(dir: &OwnedFd, name: &str, bytes: &[u8]) -> rustix::io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::RGRP | Mode::ROTH;
    let file = rustix::fs::openat(dir, name, flags, mode)?;
    rustix::fs::fchmod(&file, mode)?;
    match rustix::io::write(&file, bytes)? {
        count if count == bytes.len() => Ok(()),
        _ => Err(rustix::io::Errno::NOSPC),
    }
}

/// The run directory, which is mounted somewhere, as the tenant sees it: sockets and libraries to
/// be used, nothing to be changed.
fn read_only(run_dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let shown = mounts::copy_of(run_dir, Path::new("."))?;
    mounts::make_read_only(&shown)?;
    Ok(shown)
}

/// A build of the library and a detached mount of its file.
pub(crate) type Library = (&'static preload::Build, OwnedFd);

/// What there is of the library, picked up before the lane may cover it.
pub(crate) fn pick_up_libraries(library: Option<&Path>) -> Result<Vec<Library>> {
    let Some(path) = library else { return Ok(Vec::new()) };
    let beside = |build: &'static preload::Build| build.beside(path).map(|path| (build, path));
    let pick_up = |(build, path): (_, PathBuf)| {
        mounts::copy_of(rustix::fs::CWD, &path)
            .map(|library| (build, library))
            .map_err(|error| Failure::path(&path, "bring it into the lane", error))
    };
    preload::BUILDS.iter().filter_map(beside).map(pick_up).collect()
}

/// Forks and executes COMMAND.
fn start_command(plan: &Plan) -> Result<Process> {
    let failed = |error| Failure::because(plan.command[0].display(), "start it", error);
    match ns::fork(Namespaces::default()).map_err(failed)? {
        Fork::Parent(child) => Ok(Process { pid: child.pid }),
        Fork::Child => execute(plan),
    }
}

/// COMMAND as the init sees it: a number of its own pid namespace, reaped with all the others.
struct Process {
    pid: u32,
}

impl Process {
    /// An error can only mean that it has ended.
    fn signal(&self, number: i32) {
        if let (Some(pid), Some(signal)) =
            (rustix::process::Pid::from_raw(self.pid as i32), Signal::from_named_raw(number))
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

fn execute(plan: &Plan) -> ! {
    ns::unblock_signals();
    let name = &plan.command[0];
    if plan.rights.killed_first {
        let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE_ADJ);
    }
    plan.rights.limits.restore();
    if plan.rights.contained
        && let Err(error) = confine::contain()
    {
        say(Failure::because(name.display(), "give it a container's capabilities", error));
        ns::exit_now(FAILED.into());
    }
    if plan.rights.becomes_others
        && let Err(error) = subordinate::let_become()
    {
        say(Failure::because(name.display(), "let it have its user's ranges", error));
        ns::exit_now(FAILED.into());
    }
    if let Err(error) = std::env::set_current_dir(&plan.directory) {
        say(Failure::path(&plan.directory, "enter it in the lane", error));
        ns::exit_now(FAILED.into());
    }
    let mut command = std::process::Command::new(name);
    command.args(&plan.command[1..]);
    let mount = plan.place.path();
    match &plan.library {
        Some(_) => {
            let within = mount.join(RESERVED_DIR);
            let library = preload::for_linker(plan.run_dir.as_deref().unwrap_or(&within));
            command.env("LD_PRELOAD", preload::list(&library));
            command.env("ASAN_OPTIONS", preload::asan_options());
        }
        None => preload::clean(&mut command),
    }
    for (variable, value) in plan.lane_variables() {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    let error = command.exec();
    ns::exit_now(say_not_started(name, &error).into())
}

/// Says why COMMAND could not be executed; the exit status of a shell for it.
pub(crate) fn say_not_started(name: &OsStr, error: &std::io::Error) -> u8 {
    match error.kind() {
        std::io::ErrorKind::NotFound => {
            say(format_args!("{}: command not found", name.display()));
            NOT_FOUND
        }
        kind => {
            say(Failure::because(name.display(), "execute it", std::io::Error::from(kind)));
            NOT_EXECUTABLE
        }
    }
}

/// Reaps and passes signals on until COMMAND has ended.
fn watch(
    command: Process,
    link: &Link,
    signals: &SignalFd,
    mut table: Option<&mut MountTable>,
) -> Result<Ended> {
    let failed = |error: std::io::Error| Failure::because("init", "wait for COMMAND", error);
    loop {
        let mut fds = vec![PollFd::new(signals, PollFlags::IN), PollFd::new(link, PollFlags::IN)];
        fds.extend(table.iter().map(|table| PollFd::new(&table.file, PollFlags::PRI)));
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
        let told = !fds[1].revents().is_empty();
        let mounted = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        if let (true, Some(table)) = (mounted, &mut table) {
            table.look();
        }
        while signals.next().map_err(failed)?.is_some() {}
        if let Some(ended) = reap(command.pid) {
            return Ok(ended);
        }
        if told {
            match link.receive::<ToInit>() {
                Ok(Some((ToInit::Signal(signal), _))) => command.signal(signal),
                Ok(Some(_)) => {}
                // The supervisor is gone, and with it the reason to be here.
                Ok(None) | Err(_) => ns::exit_now(FAILED.into()),
            }
        }
    }
}

/// Reaps whatever has ended; COMMAND's end if it is among them.
fn reap(command: u32) -> Option<Ended> {
    let mut found = None;
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid.as_raw_nonzero().get() as u32 == command {
            found = Some(match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ended::Exit(code as u8),
                (None, signal) => Ended::Signal(signal.unwrap_or(0) as u8),
            });
        }
    }
    found
}

/// Kills and reaps what COMMAND left running.
fn kill_the_rest() {
    let _ = ns::kill_namespace();
    while rustix::process::wait(WaitOptions::empty()).is_ok() {}
}

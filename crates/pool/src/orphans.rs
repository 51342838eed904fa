//! Services of lanes whose supervisors are dead: they write back what the death found unwritten,
//! and the next lane of their files waits for them.
//!
//! A service is known by what it calls itself, by its user and by its parent: a supervisor that
//! lives has its lane's name open. One that was taken over calls itself as it likes, but cannot
//! leave its parent: it is no orphan as long as its supervisor lives. Lanes of another run-time
//! directory may have the same names (a container's, say), so its command line names its own one.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polylane_base::sync::thread;
use polylane_block::image::{self, Holder, ImageError};
use polylane_sys::procstat::{self, ProcessStat, real_user};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::{confine, names, own_ids, pool_record, process};

/// How long the service of a dead supervisor may take to write everything back. Its keeper gives it
/// as long.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(30);

/// Most bytes of what a service calls itself.
const TITLE_BYTES_MAX: u64 = 512;

/// Waits until no service of this lane runs any more: it writes back what its supervisor's death
/// found unwritten, and holds its volume as long.
pub(crate) fn wait_for_service(lane: &str) {
    let dir = names_dir();
    wait_while(|| service_runs(&dir, lane));
}

/// Whether a service of this dead lane runs.
pub(crate) fn has_service(lane: &str) -> bool {
    service_runs(&names_dir(), lane)
}

/// Waits until no service of any dead lane runs any more.
pub(crate) fn wait_for_orphans() {
    let dir = names_dir();
    wait_while(|| orphans(&dir).next().is_some());
}

/// The directory of lanes' names, as links of /proc have it.
pub(crate) fn names_dir() -> PathBuf {
    let dir = names::runtime_dir();
    dir.canonicalize().unwrap_or(dir)
}

/// Waits as long as services of dead lanes may take.
fn wait_while(runs: impl Fn() -> bool) {
    let start = Instant::now();
    while start.elapsed() < FLUSH_TIME_MAX && runs() {
        thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process calls itself this lane's service, or is a process of this program that is not
/// called anything yet: one that executes it just now, which holds the lane's name no more. Others
/// may call their processes so: only a user that services run as is believed, and no tenant. A
/// service whose supervisor lives is of the next lane of that name, and may run for long.
fn service_runs(dir: &Path, lane: &str) -> bool {
    let (own, names) = (fs::read_link("/proc/self/exe").ok(), names::identity(dir));
    process::pids().filter(|&pid| may_be_service(pid)).any(|pid| {
        let line = title(pid);
        let begins = || own.is_some() && fs::read_link(proc(pid, "exe")).ok() == own;
        let is_it = line.is_ok_and(|line| match line.is_empty() {
            true => begins(),
            false => lane_of(&line) == Some(lane) && is_below(&line, &names),
        });
        is_it && !parent_of(pid).is_some_and(|parent| is_supervisor(dir, parent, lane))
    })
}

/// The lanes of services whose supervisors are dead, by what the services call themselves.
fn orphans(dir: &Path) -> impl Iterator<Item = String> {
    let names = names::identity(dir);
    // Whose it is before what it calls itself: a stranger's words may never end.
    process::pids().filter(|&pid| may_be_service(pid)).filter_map(move |pid| {
        let line = title(pid).unwrap_or_default();
        let lane = lane_of(&line).filter(|_| is_below(&line, &names))?;
        let is_orphan = || parent_of(pid).is_some_and(|parent| !is_supervisor(dir, parent, lane));
        is_orphan().then(|| lane.to_string())
    })
}

/// What a process calls itself, or the beginning of that.
fn title(pid: u32) -> std::io::Result<Vec<u8>> {
    procstat::head(proc(pid, "cmdline"), TITLE_BYTES_MAX)
}

/// The lane whose service a process calls itself, by its command line.
fn lane_of(line: &[u8]) -> Option<&str> {
    let title = str::from_utf8(line.split(|&byte| byte == 0).next()?).ok()?;
    title.strip_prefix("polylane-service[")?.strip_suffix(']')
}

/// Whether a service's lane may have its name in this run-time directory, by the service's command
/// line. One of a former version does not say.
fn is_below(line: &[u8], names: &str) -> bool {
    let mut words = line.split(|&byte| byte == 0).skip_while(|word| *word != b"--names");
    let is_it = |said: &[u8]| said.is_empty() || names.is_empty() || said == names.as_bytes();
    words.nth(1).is_none_or(is_it)
}

/// Whether a process is of a user that services run as, in this process's pid namespace, which no
/// tenant's process is in. One that was killed is not: it may take long to be gone, and does no
/// more for its lane.
fn may_be_service(pid: u32) -> bool {
    // Its links say more, and only to some.
    let status = procstat::status(pid);
    is_near(&status)
        && !procstat::is_killed(&status)
        && real_user(&status).is_some_and(is_service_user)
}

/// Whether a process has no other number in a pid namespace below this one's, by its `status`.
fn is_near(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_whitespace().count() == 1)
}

/// An ordinary user's services are that user's own.
fn is_service_user(user: u32) -> bool {
    let own = rustix::process::geteuid();
    let known = |user| confine::is_services_user(user) || pool_record::is_pools_user(user);
    user == own.as_raw() || own.is_root() && (known(user) || known(own_ids::in_namespace(user)))
}

/// What /proc says of a process.
fn proc(pid: u32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

/// Waits as long as a volume is held by a process of a lane whose supervisor is dead: its service,
/// or a child that was forked a moment before. Another holder is not waited for.
pub(crate) fn wait_for_volume(path: &Path) {
    let dir = names_dir();
    wait_while(|| match image::open(path) {
        Err(ImageError::InUse(Some(holder))) => is_orphan(&dir, &holder),
        _ => false,
    });
}

/// Whether a process is of a lane, and no supervisor lives that started it: one holds the lane's
/// name.
fn is_orphan(dir: &Path, holder: &Holder) -> bool {
    let comm = fs::read_to_string(proc(holder.pid, "comm")).unwrap_or_default();
    // A service is called as its program's link is, and nothing at all before, while it begins.
    let begins = holder.name.starts_with("polylane-service[") || holder.name.is_empty();
    let is_ours = begins || comm.starts_with("polylane");
    if !is_ours || holder.name.starts_with("polylane-engine") {
        return false;
    }
    let lane = lane_of(holder.name.as_bytes());
    let is_supervisor = |parent| match lane {
        Some(lane) => is_supervisor(dir, parent, lane),
        None => holds_any_name(dir, parent),
    };
    let parent = parent_of(holder.pid);
    !holds_any_name(dir, holder.pid) && parent.is_some_and(|parent| !is_supervisor(parent))
}

/// Whether a process has the lock of a lane's or pool's name open, as supervisors do.
fn holds_any_name(dir: &Path, pid: u32) -> bool {
    let is_name = |link: &Path| {
        link.parent() == Some(dir) && link.extension().is_some_and(|extension| extension == "lock")
    };
    has_open(pid, is_name)
}

/// Whether the parent of a service that says that it is of this lane is its supervisor.
///
/// Orphans are given to the first process of their namespace, which may be another lane's
/// supervisor (in a container), or to one that asks for them, which none does
/// ([`run`](crate::run::run)). So a child of any other supervisor was started by that one,
/// whatever it says.
fn is_supervisor(dir: &Path, parent: u32, lane: &str) -> bool {
    supervises(parent, lane) || parent != 1 && holds_any_name(dir, parent)
}

/// Whether a process has the name of this lane open. The lock's directory may have another path
/// here.
fn supervises(pid: u32, lane: &str) -> bool {
    let lock = OsString::from(format!("{lane}.lock"));
    has_open(pid, |link| link.file_name() == Some(&lock))
}

/// Whether a process has a file open that has, or had, such a path.
fn has_open(pid: u32, is: impl Fn(&Path) -> bool) -> bool {
    files_of(pid).any(|file| {
        let link = fs::read_link(file).map(OsString::from).map(OsString::into_vec);
        link.is_ok_and(|link| {
            let path = link.strip_suffix(b" (deleted)").unwrap_or(&link);
            is(Path::new(OsStr::from_bytes(path)))
        })
    })
}

/// Whether a process has taken a lane's name in this run-time directory. No file system is asked:
/// that of another file may not answer.
pub(crate) fn holders_of(dir: &Path, lane: &str) -> impl Fn(u32) -> bool + use<> {
    let place = |path: PathBuf| {
        let stat = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
        Some((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
    };
    let lock = place(names::lock_path(dir, lane));
    move |pid| lock.is_some() && files_of(pid).any(|file| place(file) == lock)
}

/// What a process has open, as links of /proc.
fn files_of(pid: u32) -> impl Iterator<Item = PathBuf> {
    let files = fs::read_dir(proc(pid, "fd")).into_iter().flatten().flatten();
    files.map(|file| file.path())
}

/// The parent of a process.
fn parent_of(pid: u32) -> Option<u32> {
    Some(ProcessStat::of(pid)?.parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::PoolName;

    #[test]
    fn another_users_process_is_no_service_whatever_it_is_called() {
        let of = |uid: &str| real_user(&format!("Name:\tx\nUid:\t{uid}\t0\t0\t0\nGid:\t1\n"));
        let own = rustix::process::geteuid().as_raw();
        for (user, believed) in [
            (own, true),
            (0x7000_0001, true),
            (0x7080_0002, true),
            (0xF000_0001, true),
            (0x8000_0001, false),
            (own + 12345, false),
        ] {
            assert_eq!(of(&user.to_string()).map(is_service_user), Some(believed), "{user}");
        }
        assert_eq!(real_user("Name:\tx\n"), None);
        let near = ["NSpid:\t7\n", "NSpid:\t7\t1\n", "Pid:\t7\n"].map(is_near);
        assert_eq!(near, [true, false, false], "a tenant's has a number of its own");
        assert!(may_be_service(std::process::id()));
        assert!(!may_be_service(u32::MAX), "no process at all");
    }

    /// A process that calls itself a lane's service, with these words after it; its parent is this
    /// one.
    fn called_service(lane: &str, words: &[&str]) -> std::process::Child {
        let mut command = std::process::Command::new("bash");
        command.args(["-c", "read", "service"]).args(words).stdin(std::process::Stdio::piped());
        let title = format!("polylane-service[{lane}]");
        let child = std::os::unix::process::CommandExt::arg0(&mut command, title).spawn();
        let child = child.expect("bash");
        // The parent goes on before the kernel shows the child's arguments.
        let end = Instant::now() + Duration::from_secs(10);
        let is_shown =
            || super::title(child.id()).is_ok_and(|line| line.starts_with(b"polylane-service["));
        while !is_shown() && Instant::now() < end {
            thread::yield_now();
        }
        child
    }

    #[test]
    fn a_service_whose_supervisor_lives_is_none_that_a_dead_lane_left() {
        let dir = tempfile::tempdir().expect("tempdir");
        let lane = format!("test-{}@1", std::process::id());
        let mut service = called_service(&lane, &[]);
        let dir = dir.path().canonicalize().expect("canonical");
        let orphan = || (service_runs(&dir, &lane), orphans(&dir).any(|one| one == lane));
        let alone = orphan();
        // This process is its parent, and so a supervisor from here on: one of another lane, whose
        // service was taken over and says that it is this lane's, and then one of this lane.
        let other = PoolName::take_lane(&dir, "web").expect("a lane");
        let pretends = orphan();
        drop(other);
        let elsewhere = tempfile::tempdir().expect("tempdir");
        let own = PoolName::take_lane(elsewhere.path(), &lane[..lane.len() - 2]).expect("a lane");
        let supervised = orphan();
        // Another program removes the directory under it.
        fs::remove_file(names::lock_path(elsewhere.path(), &lane)).expect("remove");
        let removed = orphan();
        drop(own);
        let again = orphan();
        service.kill().expect("kill");
        service.wait().expect("wait");
        assert_eq!((alone, pretends), ((true, true), (false, false)));
        assert_eq!((supervised, removed), ((false, false), (false, false)));
        assert_eq!((again, orphan()), ((true, true), (false, false)), "and it has ended");
    }

    /// Names are unique in a run-time directory, of which a host may have several.
    #[test]
    fn lanes_of_other_run_time_directories_are_others() {
        let [dir, other] = [(); 2].map(|()| tempfile::tempdir().expect("tempdir"));
        let lane = format!("test-{}@2", std::process::id());
        let said = names::identity(dir.path());
        assert_ne!(said, names::identity(other.path()));
        let mut service = called_service(&lane, &["--names", &said, "--spec", "3"]);
        let seen = [&dir, &other].map(|dir| {
            let is_orphan = orphans(dir.path()).any(|one| one == lane);
            (service_runs(dir.path(), &lane), is_orphan)
        });
        service.kill().expect("kill");
        service.wait().expect("wait");
        assert_eq!(seen, [(true, true), (false, false)]);
        assert!(is_below(b"polylane-service[a@1]\0service\0--names\0\0--spec\x003\0", &said));
        let own = PoolName::take_lane(dir.path(), "web").expect("a lane");
        let of = |dir: &tempfile::TempDir| holders_of(dir.path(), "web@1")(std::process::id());
        assert_eq!([&dir, &other].map(of), [true, false], "no such lane there");
        drop(own);
        let _same_name = PoolName::take_lane(other.path(), "web").expect("a lane");
        assert_eq!([&dir, &other].map(of), [false, true]);
    }
}

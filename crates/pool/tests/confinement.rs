//! A service that was taken over: real pools whose service, once confined, does what an attacker
//! would. Nothing of it may succeed.
//!
//! This program is its own `polylane`: the supervisor executes /proc/self/exe, and so comes back
//! here as `service`. What to try is in the pool's name, since a service gets nothing else. In a
//! debug build a call that no service makes ends it with SIGSYS; that counts as held.

use std::io::{Error, Result};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use polylane_pool::lasting;
use polylane_pool::run::{RunOptions, Source};
use polylane_pool::service::{self, ServiceFds};
use polylane_pool::share::Policy;
use polylane_sys::subverted;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

/// What to try, and with the number that it needs: the test's process, or its TCP port.
type Attack = (&'static str, fn(u32) -> Result<()>);

const ATTACKS: &[Attack] = &[
    ("nothing", |_| Err(Error::other("tried nothing"))),
    ("shadow", |_| std::fs::read("/etc/shadow").map(drop)),
    ("tree", |_| std::fs::read_dir("/usr").map(drop)),
    ("volume", |test| std::fs::read(place(test).join("other.img")).map(drop)),
    ("volume-write", |test| std::fs::write(place(test).join("other.img"), "x")),
    ("socket", |test| UnixStream::connect(place(test).join("socket")).map(drop)),
    ("abstract", |test| UnixStream::connect_addr(&abstract_name(test)?).map(drop)),
    ("network", |port| TcpStream::connect(("127.0.0.1", port as u16)).map(drop)),
    ("execute", |_| Command::new("/bin/true").status().map(drop)),
    ("signal", |test| Ok(rustix::process::test_kill_process(pid(test)?)?)),
    ("files", files_of),
    ("trace", subverted::trace),
    ("mount", |_| Ok(rustix::mount::unmount("/", rustix::mount::UnmountFlags::DETACH)?)),
    ("ring", |_| subverted::ring_opens(c"/etc/passwd")),
    ("limit", subverted::limit),
    ("idle", subverted::idle),
    ("pin", subverted::pin),
    ("own-signals", subverted::own_signals),
    ("type", |_| subverted::types()),
    ("user", |_| match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(Error::other("is another user")),
    }),
    ("ring-network", |port| subverted::ring_connects(port as u16)),
    ("owner", |_| {
        outside(|file| Ok(rustix::fs::chownat(file, "", Some(Uid::from_raw(1)), None, EMPTY)?))
    }),
    ("times", |_| outside(|file| Ok(rustix::fs::utimensat(file, "", &epoch(), EMPTY)?))),
    ("device", device),
    ("make-device", make_device),
];

/// A descriptor of a file that is not the lane's.
static OTHER: OnceLock<OwnedFd> = OnceLock::new();
const EMPTY: AtFlags = AtFlags::EMPTY_PATH;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [name, "service", options @ ..] => {
            hold_other(name);
            ExitCode::from(service::main(descriptors(options), || attack(name)))
        }
        [_, "pool", name, source] => pool(name, source),
        _ => all(),
    }
}

/// The test proper.
fn all() -> ExitCode {
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        println!("skipped: confinement: /dev/fuse: {error}");
        return ExitCode::SUCCESS;
    }
    let number = std::process::id();
    let dir = place(number);
    std::fs::create_dir_all(dir.join("lane")).expect("a directory");
    std::fs::write(dir.join("other.img"), "another tenant's").expect("a file");
    let zero = rustix::fs::makedev(1, 5);
    let node = dir.join("lane/device");
    // An ordinary user may make none, nor may the service of one open what others make.
    let _ = rustix::fs::mknodat(CWD, &node, FileType::CharacterDevice, Mode::from(0o666), zero);
    let _socket = UnixListener::bind(dir.join("socket")).expect("a socket");
    let _abstract = UnixListener::bind_addr(&abstract_name(number).expect("a name")).expect("one");
    let network = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = u32::from(network.local_addr().expect("bound").port());
    let (mut held, mut broken) = (0, Vec::new());
    for (name, _) in ATTACKS {
        let number = if name.ends_with("network") { port } else { number };
        for source in ["mem", dir.join("lane").to_str().expect("UTF-8")] {
            let tried = attempt(name, number, source);
            let ended = *name != "nothing" && tried.contains("before it was ready");
            match tried.contains(&format!("held {name}:")) || ended {
                true => held += 1,
                false => broken.push(format!("{name} from {source}: {tried}")),
            }
        }
    }
    std::fs::remove_dir_all(&dir).expect("removes");
    broken.iter().for_each(|line| eprintln!("FAILED {line}"));
    let result = if broken.is_empty() { "ok" } else { "FAILED" };
    println!("\nrunning {} tests", held + broken.len());
    println!(
        "test result: {result}. {held} passed; {} failed; 0 ignored; 0 measured; 0 filtered out\n",
        broken.len()
    );
    ExitCode::from(u8::from(!broken.is_empty()))
}

/// Runs a pool whose service tries it; what it said.
fn attempt(name: &str, number: u32, source: &str) -> String {
    let own = std::env::current_exe().expect("this program");
    let name = format!("attack.{name}.{number}");
    let output = Command::new(own).args(["pool", &name, source]).output().expect("runs");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// `polylane run --pool NAME -- true`.
fn pool(name: &str, source: &str) -> ExitCode {
    let source = match source {
        "mem" => Source::Mem,
        dir => Source::Dir(PathBuf::from(dir)),
    };
    let options = RunOptions {
        at: PathBuf::from("/srv"),
        pool: Some(name.to_string()),
        qos: Some(Policy::None),
        preload: false,
        ..RunOptions::new(source, vec!["true".into()])
    };
    match lasting::run(options) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// What a service is to try, and the number, by the name of its process.
fn told(process: &str) -> (&str, u32) {
    let name = process.trim_start_matches("polylane-service[").trim_end_matches(']');
    let mut parts = name.split('.').skip(1);
    let (what, number) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    (what, number.parse().expect("a number in the pool's name"))
}

/// Opens what a service never has: a file outside of the lane. What it may do with it is then up to
/// its capabilities alone.
fn hold_other(process: &str) {
    let path = place(told(process).1).join("other.img");
    if let Ok(file) = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        OTHER.set(file).expect("once");
    }
}

fn outside(act: impl FnOnce(&OwnedFd) -> Result<()>) -> Result<()> {
    act(OTHER.get().expect("it was opened"))
}

fn epoch() -> Timestamps {
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    Timestamps { last_access: zero, last_modification: zero }
}

/// The device in the lane's directory, by whichever descriptor is of that.
fn device(_: u32) -> Result<()> {
    in_the_lane(|dir| {
        Ok(rustix::fs::openat(dir, "device", OFlags::RDONLY, Mode::empty()).map(drop)?)
    })
}

fn make_device(_: u32) -> Result<()> {
    let null = rustix::fs::makedev(1, 3);
    let (kind, mode) = (FileType::CharacterDevice, Mode::from(0o666));
    in_the_lane(|dir| Ok(rustix::fs::mknodat(dir, "made", kind, mode, null)?))
}

fn in_the_lane(act: impl Fn(BorrowedFd<'_>) -> Result<()>) -> Result<()> {
    let mut last = Error::other("no descriptor");
    for dir in subverted::descriptors() {
        match act(dir) {
            Ok(()) => return Ok(()),
            // Neither a directory nor open.
            Err(error) if matches!(error.raw_os_error(), Some(20 | 9)) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// In the confined service.
fn attack(process: &str) {
    let (what, number) = told(process);
    let (_, attack) = ATTACKS.iter().find(|(name, _)| *name == what).expect("an attack");
    match attack(number) {
        Ok(()) => eprintln!("broken {what}"),
        Err(error) => eprintln!("held {what}: {error}"),
    }
}

fn descriptors(options: &[&str]) -> ServiceFds {
    let of = |option: &str| {
        let at = options.iter().position(|word| *word == option)?;
        options.get(at + 1)?.parse().ok()
    };
    let needed = |option| of(option).expect("given by the supervisor");
    ServiceFds {
        bypass: None,
        spec: needed("--spec"),
        fuse: needed("--fuse"),
        socket: needed("--socket"),
        control: needed("--control"),
        handover: needed("--handover"),
        witness: of("--witness"),
        mounts: of("--mounts"),
        ceph: None,
        dir: of("--dir"),
        lowers: vec![],
        volume: vec![],
        volume_plain: vec![],
        volume_lock: vec![],
    }
}

/// Where the test keeps what a service must not reach.
fn place(number: u32) -> PathBuf {
    std::env::temp_dir().join(format!("polylane-confinement-{number}"))
}

fn abstract_name(number: u32) -> Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("polylane-confinement-{number}"))
}

fn pid(number: u32) -> Result<Pid> {
    Pid::from_raw(number as i32).ok_or_else(|| Error::from(std::io::ErrorKind::InvalidInput))
}

fn files_of(test: u32) -> Result<()> {
    let process = rustix::process::pidfd_open(pid(test)?, PidfdFlags::empty())?;
    Ok(rustix::process::pidfd_getfd(process, 0, PidfdGetfdFlags::empty()).map(drop)?)
}

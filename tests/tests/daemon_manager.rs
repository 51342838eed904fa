//! `polylane daemon` under a service manager, which the test plays: sockets that are handed down,
//! readiness, a store of descriptors; and the units that are installed.

use std::fs;
use std::io::{BufReader, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use polylane_tests::host::{Host, text};
use polylane_tests::http;
use polylane_tests::pool::signal_to;
use polylane_tests::{binary, skip, unavailable};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

/// A manager.
struct Manager {
    notify: UnixDatagram,
    host: Host,
}

impl Manager {
    fn new() -> Manager {
        let host = Host::new();
        let notify = UnixDatagram::bind(host.path("notify")).expect("bound");
        notify.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        Manager { notify, host }
    }

    /// Starts a daemon with a socket as its descriptor 3, if any.
    fn start(&self, config: &Path, socket: Option<OwnedFd>) -> Child {
        let fds = u32::from(socket.is_some());
        // `exec` keeps the shell's process.
        let script = "exec 3<&0 0</dev/null; [ $1 = 1 ] || exec 3<&-; LISTEN_PID=$$ LISTEN_FDS=$1 \
                      exec \"$2\" daemon --config \"$3\" --socket \"$4\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", &fds.to_string()]).arg(binary());
        command.args([config, &self.host.path("daemon.sock")]);
        command.env("NOTIFY_SOCKET", self.host.path("notify")).env("WATCHDOG_USEC", "200000");
        command.stdin(socket.map_or(Stdio::null(), Stdio::from)).spawn().expect("sh")
    }

    /// Reads what it is told until something that begins so; a descriptor that came with that.
    fn told(&self, what: &str) -> Option<OwnedFd> {
        loop {
            let mut bytes = [0; 400];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let got = rustix::net::recvmsg(&self.notify, &mut parts, &mut control, flags)
                .unwrap_or_else(|error| panic!("not told {what}: {error}"));
            let fd = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
                _ => None,
            });
            if bytes[..got.bytes].starts_with(what.as_bytes()) {
                return fd;
            }
        }
    }
}

/// Asks on a socket that nobody may accept on yet; the answer's status.
fn asked(socket: &Path) -> impl FnOnce() -> u16 {
    let mut stream = http::connect(socket);
    let head = "GET /v1/tasks HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("written");
    move || http::read(&mut BufReader::new(stream)).expect("an answer").status
}

#[test]
fn a_handed_down_socket_is_served_and_readiness_waits_for_the_desired_state() {
    if unavailable("a_handed_down_socket_is_served_and_readiness_waits_for_the_desired_state") {
        return;
    }
    let manager = Manager::new();
    let host = &manager.host;
    let (config, at) = (host.dir("config"), host.dir("m"));
    let mount = format!("[[mount]]\nsource = 'mem:64M'\npath = '{}'\n", text(&at));
    fs::write(config.join("a.toml"), mount).expect("written");
    let path = host.path("handed.sock");
    let listener = UnixListener::bind(&path).expect("bound");
    let early = asked(&path);
    let mut daemon = manager.start(&config, Some(listener.into()));
    manager.told("READY=1");
    assert_eq!(host.mounts()[0]["state"], "serving", "what comes after the daemon finds it");
    assert_eq!(early(), 200, "who connected before it was started");
    assert!(!host.path("daemon.sock").exists(), "no second socket");
    manager.told("WATCHDOG=1");
    signal_to(daemon.id(), "HUP");
    manager.told("RELOADING=1\nMONOTONIC_USEC=");
    manager.told("READY=1");
    // A lane's processes are told nothing of the manager and hold none of its descriptors.
    let environment = fs::read(format!("/proc/{}/environ", host.supervisor())).expect("environ");
    let environment = String::from_utf8_lossy(&environment);
    for name in ["NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_"] {
        assert!(!environment.contains(name), "{environment}");
    }
    signal_to(daemon.id(), "TERM");
    manager.told("STOPPING=1");
    assert_eq!(daemon.wait().expect("ended").code(), Some(0));
    assert!(path.exists(), "the manager's socket is the manager's");
    assert_eq!(host.mounts().len(), 1);
}

/// The daemon's own socket is in the manager's store: who connects while it is started again waits.
#[test]
fn a_stored_socket_outlives_a_killed_daemon() {
    if unavailable("a_stored_socket_outlives_a_killed_daemon") {
        return;
    }
    let manager = Manager::new();
    let config = manager.host.path("absent");
    let path = manager.host.path("daemon.sock");
    let mut daemon = manager.start(&config, None);
    let stored = manager.told("FDSTORE=1\nFDNAME=polylane-daemon").expect("a descriptor");
    manager.told("READY=1");
    assert_eq!(asked(&path)(), 200);
    for signal in ["KILL", "TERM"] {
        signal_to(daemon.id(), signal);
        daemon.wait().expect("ended");
        let meanwhile = asked(&path);
        daemon = manager.start(&config, Some(stored.try_clone().expect("a descriptor")));
        assert_eq!(meanwhile(), 200, "{signal}");
    }
    signal_to(daemon.id(), "KILL");
    daemon.wait().expect("ended");
}

#[test]
fn the_units_are_what_systemd_takes() {
    let found = Command::new("systemd-analyze").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return skip("the_units_are_what_systemd_takes", "no systemd-analyze");
    }
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dist/systemd");
    let host = Host::new();
    let dir: PathBuf = host.dir("units");
    // As `make install` does it, with a program that is there.
    let program = host.dir("bin").join("polylane");
    std::os::unix::fs::symlink("/bin/true", program).expect("linked");
    for name in ["polylane.service", "polylane.socket", "srv-web.mount"] {
        let unit = fs::read_to_string(units.join(name)).expect(name);
        let unit = unit.replace("@PREFIX@", text(&host.path("")).trim_end_matches('/'));
        fs::write(dir.join(name), unit).expect("written");
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", "--recursive-errors=no"]);
    for name in ["polylane.service", "polylane.socket", "srv-web.mount"] {
        command.arg(dir.join(name));
    }
    let output = command.output().expect("systemd-analyze");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

//! The service manager, where one started the daemon: sockets that it handed down, and what it is
//! told (sd_listen_fds(3), sd_notify(3); neither needs a library).

use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use polylane_sys::ns;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// The first descriptor that a manager hands down.
const LISTEN_FDS_START: i32 = 3;

/// Most descriptors that are looked at.
const LISTEN_FDS_MAX: i32 = 64;

/// The name of the daemon's socket in the manager's store of descriptors.
const STORED_NAME: &str = "polylane-daemon";

/// Variables of a manager that are for the daemon alone.
pub(crate) const VARIABLES: [&str; 6] = [
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
];

/// The manager of this process, as its environment says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manager {
    /// Where it is told of what goes on.
    address: Option<SocketAddrUnix>,
    /// How often it wants to be told that the daemon is alive.
    pub(crate) watchdog: Option<Duration>,
}

impl Manager {
    /// That of this process; one that is absent is told nothing.
    pub(crate) fn of_process() -> Manager {
        Manager::of(|name| std::env::var_os(name), std::process::id())
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>, own: u32) -> Manager {
        let address = variable("NOTIFY_SOCKET").map(OsString::into_vec);
        let address = address.and_then(|path| match path.strip_prefix(b"@") {
            Some(name) => SocketAddrUnix::new_abstract_name(name).ok(),
            None => SocketAddrUnix::new(path).ok(),
        });
        let number = |name| variable(name)?.to_str()?.parse::<u64>().ok();
        let is_own = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(own));
        let period = number("WATCHDOG_USEC").filter(|&period| is_own && period > 0);
        // Twice in each period.
        Manager { address, watchdog: period.map(|period| Duration::from_micros(period) / 2) }
    }

    /// Says something, as `READY=1`. Nobody is waited for; that nobody listens is no error.
    pub(crate) fn tell(&self, state: &str) {
        let _ = self.send(state, &[]);
    }

    /// Gives the daemon's socket to the manager's store: the next daemon finds it, and who connects
    /// meanwhile waits and is not refused. Whether there is such a manager.
    pub(crate) fn store(&self, socket: impl AsFd) -> bool {
        let state = format!("FDSTORE=1\nFDNAME={STORED_NAME}");
        self.address.is_some() && self.send(&state, &[socket.as_fd()]).is_ok()
    }

    fn send(&self, state: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let Some(address) = &self.address else { return Ok(()) };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let parts = [IoSlice::new(state.as_bytes())];
        let flags = SendFlags::NOSIGNAL;
        rustix::net::sendmsg_addr(&socket, address, &parts, &mut control, flags)?;
        Ok(())
    }
}

/// The listening UNIX socket among the descriptors that a manager handed down to this process;
/// the others are closed.
pub(crate) fn socket_handed_down() -> Option<OwnedFd> {
    let count = handed_down(|name| std::env::var_os(name), std::process::id());
    let fds =
        (LISTEN_FDS_START..LISTEN_FDS_START + count).filter_map(|fd| ns::inherited_fd(fd).ok());
    // All are taken before one is chosen: what is not taken stays open in commands.
    let fds: Vec<OwnedFd> = fds.collect();
    fds.into_iter().find(is_listening)
}

/// How many descriptors there are for this process.
fn handed_down(variable: impl Fn(&str) -> Option<OsString>, own: u32) -> i32 {
    let number = |name| variable(name)?.to_str()?.parse::<i32>().ok();
    match number("LISTEN_PID").and_then(|pid| u32::try_from(pid).ok()) == Some(own) {
        true => number("LISTEN_FDS").unwrap_or(0).clamp(0, LISTEN_FDS_MAX),
        false => 0,
    }
}

fn is_listening(fd: &OwnedFd) -> bool {
    use rustix::net::sockopt;
    sockopt::socket_acceptconn(fd).unwrap_or(false)
        && sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd) == Ok(SocketType::STREAM)
}

/// The time by which a manager orders `RELOADING=1`, in microseconds.
pub(crate) fn monotonic_usec() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000 + now.tv_nsec.cast_unsigned() / 1000
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    fn variables(all: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        let all: Vec<_> =
            all.iter().map(|(name, value)| (name.to_string(), value.into())).collect();
        move |name| {
            all.iter()
                .find(|(other, _)| other == name)
                .map(|(_, value): &(_, OsString)| value.clone())
        }
    }

    #[test]
    fn a_manager_is_told_by_a_path_or_an_abstract_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let name = format!("polylane-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        for (manager, said) in [
            (UnixDatagram::bind(&path).expect("bound"), path.to_str().expect("UTF-8").to_string()),
            (UnixDatagram::bind_addr(&address).expect("bound"), format!("@{name}")),
        ] {
            Manager::of(variables(&[("NOTIFY_SOCKET", &said)]), 1).tell("READY=1");
            let mut bytes = [0; 99];
            let count = manager.recv(&mut bytes).expect("a message");
            assert_eq!(&bytes[..count], b"READY=1");
        }
        // Nobody listens any more.
        let gone = Manager::of(variables(&[("NOTIFY_SOCKET", path.to_str().expect("UTF-8"))]), 1);
        gone.tell("READY=1");
        let none = Manager::of(variables(&[]), 1);
        none.tell("READY=1");
        let null = File::open("/dev/null").expect("opened");
        assert!(!gone.store(&null) && !none.store(&null));
    }

    #[test]
    fn what_is_for_another_process_is_not_taken() {
        let of = |pid: &str, fds: &str| {
            handed_down(variables(&[("LISTEN_PID", pid), ("LISTEN_FDS", fds)]), 7)
        };
        assert_eq!(of("7", "2"), 2);
        for (pid, fds) in [("8", "2"), ("", "2"), ("-7", "2"), ("7", ""), ("7", "-1"), ("7x", "1")]
        {
            assert_eq!(of(pid, fds), 0, "{pid} {fds}");
        }
        assert_eq!(of("7", "2000000000"), LISTEN_FDS_MAX);
        assert_eq!(handed_down(variables(&[("LISTEN_FDS", "1")]), 7), 0);
        let watchdog = |all: &[(&str, &str)]| Manager::of(variables(all), 7).watchdog;
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "3000000")]), Some(Duration::from_millis(1500)));
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "3000000"), ("WATCHDOG_PID", "8")]), None);
        assert_eq!(watchdog(&[("WATCHDOG_USEC", "0")]), None);
    }
}

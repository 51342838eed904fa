//! The private lines between the supervisor and its children: JSON messages on sequenced packets.
//!
//! Each side trusts the other no further than its words: a message that does not parse is `EPROTO`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use polylane_base::{Errno, Result};
use polylane_sys::scm;
use polylane_volume::held::{Answer, Ask};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Largest message in bytes; statistics are the longest.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// A message brings descriptors that nobody expects.
pub(crate) const CARRIES: Errno = Errno(libc::EBADMSG);

/// What the supervisor tells the init.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToInit {
    /// Limits are in place: make the mounts.
    Begin,
    /// The service answers: go on to COMMAND.
    Serving,
    /// Send this signal to COMMAND.
    Signal(i32),
    /// Take the lane's mount away and end; with `lazy` also one that is in use.
    Unmount {
        /// Files may be open on it.
        lazy: bool,
    },
    /// The service has lost its further lane of this number: take that one's mounts away.
    Lost(u32),
}

/// What the init tells the supervisor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FromInit {
    /// The mount exists; a FUSE mount on this device (major, minor). Comes with the listening
    /// socket and, rootless, the FUSE descriptor.
    Mounted(Option<(u32, u32)>),
    /// COMMAND has ended; what it left running is being killed.
    Ended,
    /// The init is the last process of the tenant; it syncs the lane and ends.
    Alone,
    /// The mount stays: this errno.
    Stays(i32),
}

/// What the supervisor asks the service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToService {
    /// Make everything durable, answer `Flushed`, exit 0.
    Shutdown,
    /// Answer `Stats`.
    Stats,
    /// Make everything durable and leave it to the next service, answer `Flushed`, exit 0.
    HandOver,
    /// Go by the lane's page that comes with it, after the connection that keeps the lane.
    Share,
    /// Do this for a copy of the lane's volume, answer `Copied`.
    Copy(Ask),
    /// Make the files of the upper whole, answer `Solid` when they are.
    Solidify,
    /// Serve one more lane over the same lowers, whose descriptors come with it.
    Instance,
}

/// What the service answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum FromService {
    /// It serves both doors.
    Ready {
        /// The version of what it speaks with the library.
        wire: u32,
    },
    /// It could not start; the supervisor says this line for it.
    Failed(String),
    /// The same, where its options are to blame.
    Misused(String),
    /// Counters as JSON.
    Stats(serde_json::Value),
    /// What was asked for a copy is done, or why not.
    Copied(Answer),
    /// How many files of the upper were made whole, or why not all of them are.
    Solid(std::result::Result<u64, String>),
    /// The kernel has let go of the mount of a further instance.
    Unmounted,
    /// The end of a shutdown: the errno of the flush, if it failed.
    Flushed(Option<i32>),
}

/// One end of a line. Thread-safe: a message is one packet.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

impl Link {
    /// Both ends, close-on-exec.
    pub(crate) fn pair() -> Result<(Link, Link)> {
        let (one, other) = scm::pair()?;
        Ok((Link(one), Link(other)))
    }

    /// An end that was handed down.
    pub(crate) fn from_fd(fd: OwnedFd) -> Link {
        Link(fd)
    }

    /// The same end once more.
    pub(crate) fn again(&self) -> std::io::Result<Link> {
        self.0.try_clone().map(Link)
    }

    /// Sends one message. `EPIPE` when the peer is gone.
    pub(crate) fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let bytes = serde_json::to_vec(message).map_err(|_| Errno::EPROTO)?;
        scm::send(&self.0, &bytes, fds)
    }

    /// As [`receive`](Self::receive), of a message that is there and brings no descriptors. One
    /// that does is not received: what a client gave to a service can be such as whose close never
    /// returns.
    ///
    /// # Errors
    /// [`CARRIES`]: it brings some; `EPROTO`: it does not parse.
    pub(crate) fn receive_words<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        let mut start = [0; 1];
        match scm::peek(&self.0, &mut start) {
            Ok(peeked) if peeked.carries => Err(CARRIES),
            _ => Ok(self.receive()?.map(|(message, _)| message)),
        }
    }

    /// Waits for a message; `None` when the peer is gone.
    pub(crate) fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let got = loop {
            match scm::receive(&self.0, &mut bytes) {
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) => return Ok(None),
                other => break other?,
            }
        };
        match got.count {
            0 => Ok(None),
            _ if got.truncated => Err(Errno::EPROTO),
            count => serde_json::from_slice(&bytes[..count])
                .map(|message| Some((message, got.fds)))
                .map_err(|_| Errno::EPROTO),
        }
    }
}

impl From<Link> for OwnedFd {
    fn from(link: Link) -> OwnedFd {
        link.0
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_with_their_descriptors_and_the_end_is_seen() {
        let (one, other) = Link::pair().expect("pair");
        let file = std::fs::File::open("/dev/null").expect("/dev/null");
        one.send(&FromInit::Mounted(Some((0, 40))), &[file.as_fd()]).expect("send");
        one.send(&ToInit::Signal(15), &[]).expect("send");
        let (message, fds) = other.receive::<FromInit>().expect("receive").expect("one");
        assert_eq!((message, fds.len()), (FromInit::Mounted(Some((0, 40))), 1));
        let (message, fds) = other.receive::<ToInit>().expect("receive").expect("one");
        assert_eq!((message, fds.len()), (ToInit::Signal(15), 0));
        drop(one);
        assert!(other.receive::<ToInit>().expect("end").is_none());
        assert_eq!(other.send(&ToInit::Begin, &[]), Err(Errno::EPIPE));
    }

    #[test]
    fn descriptors_that_are_not_expected_are_not_received() {
        let (one, other) = Link::pair().expect("pair");
        let (file, end) = std::io::pipe().expect("pipe");
        one.send(&1, &[]).expect("send");
        one.send(&2, &[end.as_fd()]).expect("send");
        drop(end);
        assert_eq!(other.receive_words::<i32>(), Ok(Some(1)));
        for _ in 0..2 {
            assert_eq!(other.receive_words::<i32>(), Err(CARRIES));
        }
        let mut fds = [rustix::event::PollFd::new(&file, rustix::event::PollFlags::IN)];
        let now = rustix::fs::Timespec::default();
        assert_eq!(rustix::event::poll(&mut fds, Some(&now)), Ok(0), "it is open still");
        drop(one);
    }

    #[test]
    fn a_message_that_does_not_parse_is_an_error() {
        let (one, other) = Link::pair().expect("pair");
        one.send(&"nonsense", &[]).expect("send");
        assert_eq!(other.receive::<ToInit>().map(|_| ()), Err(Errno::EPROTO));
    }
}

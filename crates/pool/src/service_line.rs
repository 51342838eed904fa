//! The supervisor's end of a line to its service, which it never closes as the last.
//!
//! Messages that are still in a line can carry descriptors: a question for the witness brings a
//! client's connection, and a service that was taken over sends what it likes. The last close of a
//! file can wait for ever, as in a file system of a client's own that does not answer, and with the
//! supervisor the watchdog and all lanes of the pool would wait.

use std::ops::Deref;
use std::os::fd::IntoRawFd;

use polylane_sys::scm;
use rustix::net::Shutdown;

use crate::link::Link;
use crate::timely;

/// Such an end. Dropped, its service sees the end of the line.
#[derive(Debug)]
pub(crate) struct ServiceLine(Option<Link>);

impl ServiceLine {
    /// Of an end that this process alone has.
    pub(crate) fn new(link: Link) -> ServiceLine {
        ServiceLine(Some(link))
    }

    /// For a process that may wait for a close, and for this one where such a process has the line.
    pub(crate) fn into_link(mut self) -> Option<Link> {
        self.0.take()
    }
}

impl Deref for ServiceLine {
    type Target = Link;

    fn deref(&self) -> &Link {
        self.0.as_ref().expect("it is taken at its end alone")
    }
}

impl Drop for ServiceLine {
    fn drop(&mut self) {
        let Some(link) = self.0.take().filter(|link| !scm::settle(link)) else { return };
        let _ = rustix::net::shutdown(&link, Shutdown::Both);
        if let Err(left) = timely::close_apart(vec![link.into()]) {
            // Open until this process ends: no process could be made, and a thread that waits for
            // ever would keep this one from ever making one again.
            for file in left {
                let _ = file.into_raw_fd();
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::wait::wait_for;

    /// How long the last close of [`slow_to_close`] takes.
    const CLOSE_TIME: Duration = Duration::from_secs(20);

    /// A connection whose close waits until its peer, the other one, has read everything.
    pub(crate) fn slow_to_close() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let mut file = TcpStream::connect(listener.local_addr().expect("bound")).expect("connect");
        let (peer, _) = listener.accept().expect("accept");
        file.set_nonblocking(true).expect("set");
        while file.write(&[0; 1 << 16]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&file, Some(CLOSE_TIME)).expect("set");
        (file, peer)
    }

    /// Does it, which may not take as long as such a close.
    pub(crate) fn at_once(what: impl FnOnce()) {
        let start = Instant::now();
        what();
        assert!(start.elapsed() < CLOSE_TIME / 2, "it waits for what a client left");
    }

    #[test]
    fn a_line_ends_without_a_wait_for_what_is_in_it() {
        for bytes in [&b""[..], b"\"words\""] {
            let (link, service) = Link::pair().expect("pair");
            let (file, _peer) = slow_to_close();
            scm::send(&service, b"words first", &[]).expect("send");
            scm::send(&service, bytes, &[file.as_fd()]).expect("send");
            drop(file);
            at_once(|| drop(ServiceLine::new(link)));
            assert!(wait_for(service.as_fd(), CLOSE_TIME), "the service sees its end");
        }
    }
}

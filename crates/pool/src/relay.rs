//! What a service says on standard error, on its way to that of the supervisor.
//!
//! The service has a pipe for it, not the caller's terminal. Lines come out whole, with control
//! characters escaped: a service that was taken over cannot steer the terminal.
//!
//! # Invariants
//!
//! - A service never waits for a supervisor that reads nothing: what the pipe has no room for is
//!   lost.
//! - The supervisor never waits for a service that says nothing.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use polylane_base::shown::escape_control;

use crate::own_log::OwnLog;

/// A longer line is cut into lines of this length, in bytes.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Most bytes taken in at once, so that a service that floods keeps its supervisor from nothing.
const TURN_BYTES_MAX: usize = 64 << 10;

/// The pipe. Dropped, what is in it is passed on.
#[derive(Debug)]
pub(crate) struct Relay {
    from: OwnedFd,
    to: OwnedFd,
    line: Vec<u8>,
    log: Option<OwnLog>,
}

impl Relay {
    /// A pipe for all services of a supervisor, one after the other. `log` is its standard error,
    /// where that is a file of its own.
    pub(crate) fn new(log: Option<OwnLog>) -> std::io::Result<Relay> {
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (from, to) = rustix::pipe::pipe_with(flags)?;
        Ok(Relay { from, to, line: Vec::new(), log })
    }

    /// The end that a service writes to.
    pub(crate) fn end(&self) -> BorrowedFd<'_> {
        self.to.as_fd()
    }

    /// Passes on the whole lines that have come.
    pub(crate) fn pass(&mut self) {
        let mut said = vec![0; TURN_BYTES_MAX];
        loop {
            match rustix::io::read(&self.from, &mut said) {
                Err(Errno::INTR) => {}
                Ok(count) => {
                    self.say(&said[..count]);
                    return;
                }
                Err(_) => return,
            }
        }
    }

    /// The log.
    pub(crate) fn log(&self) -> Option<&File> {
        self.log.as_ref().map(OwnLog::file)
    }

    /// Keeps the log from growing without end: services, and this process, may say a lot.
    pub(crate) fn bound_log(&self) {
        if let Some(log) = &self.log {
            log.bound();
        }
    }

    /// Whole lines go to the log, which may be this process's standard error, or there.
    fn say(&mut self, said: &[u8]) {
        let log = self.log.take();
        match &log {
            Some(log) => self.take(said, &mut log.file()),
            None => self.take(said, &mut std::io::stderr()),
        }
        self.log = log;
    }

    /// Adds what was said; whole lines go to `out`, each by one write. Nobody to tell when that
    /// fails.
    fn take(&mut self, said: &[u8], out: &mut impl Write) {
        for piece in said.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LINE_BYTES_MAX {
                let line = std::mem::take(&mut self.line);
                let line = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(&line));
                let _ = out.write_all(format!("{}\n", escape_control(&line)).as_bytes());
            }
        }
    }
}

impl AsFd for Relay {
    /// Readable while there is something to pass on.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.from.as_fd()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.pass();
        if !self.line.is_empty() {
            self.say(b"\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_and_plain() {
        let mut relay = Relay::new(None).expect("a pipe");
        let mut out = Vec::new();
        relay.take(b"one\nt\x1b]0;x\x07wo", &mut out);
        assert_eq!(out, b"one\n");
        relay.take(b"\r\nthree\xff\n", &mut out);
        let said = String::from_utf8(out).expect("UTF-8");
        assert_eq!(said, "one\nt\\e]0;x\\awo\\r\nthree\u{fffd}\n");
        let mut out = Vec::new();
        relay.take(&[b'x'; LINE_BYTES_MAX + 1], &mut out);
        assert_eq!(out.len(), LINE_BYTES_MAX + 2, "cut, and nothing is kept for ever");
    }

    #[test]
    fn what_is_said_without_end_fills_no_log() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("0123.log");
        let log = OwnLog::make(&path).expect("made");
        let mut relay = Relay::new(Some(log)).expect("a pipe");
        for _ in 0..1000 {
            rustix::io::write(relay.end(), &[[b'x'; 4095].as_slice(), b"\n"].concat())
                .expect("room");
            relay.pass();
            relay.bound_log();
        }
        let length = std::fs::metadata(&path).expect("there").len();
        assert!((1 << 19..=(1 << 20) + 4096).contains(&length), "{length}");
    }

    #[test]
    fn a_full_pipe_keeps_nobody_waiting() {
        let relay = Relay::new(None).expect("a pipe");
        let mut written = 0;
        while let Ok(count) = rustix::io::write(relay.end(), &[b'.'; 4096]) {
            written += count;
        }
        assert!(written >= 4096);
        let mut all = vec![0; written];
        assert_eq!(rustix::io::read(&relay.from, &mut all), Ok(written));
    }
}

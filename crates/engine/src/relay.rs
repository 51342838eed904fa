//! What a container's processes write goes through pipes. They never hold a file or a terminal of
//! the host: of a file they could change the mode and the content, and execute it later where the
//! host's mounts count.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// Most bytes of a log; the one before is kept beside it.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// What one read takes.
const READ_BYTES: usize = 64 << 10;

/// What a pipe that can be written to takes without a wait (`PIPE_BUF`).
const WRITE_BYTES: usize = 4096;

/// Most bytes that are in a pipe when its container has ended: who still writes is none of its
/// processes.
const REST_BYTES_MAX: usize = 1 << 20;

/// Where output goes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A stream of this process.
    Stream(OwnedFd),
    /// A file that `logs` shows.
    Log(Log),
}

/// A file that begins anew when it is long.
#[derive(Debug)]
pub(crate) struct Log {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Log {
    /// The log of that path, to be added to.
    ///
    /// # Errors
    /// It cannot be opened or made.
    pub(crate) fn open(path: &Path) -> io::Result<Log> {
        let file = open_log(path)?;
        let bytes = file.metadata()?.len();
        Ok(Log { path: path.to_owned(), file, bytes })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes >= LOG_BYTES_MAX {
            fs::rename(&self.path, former(&self.path))?;
            *self = Log::open(&self.path)?;
        }
        let count = self.file.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

/// The file of a log, to be added to; it is made if there is none.
pub(crate) fn open_log(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// The part of a log before the present one.
pub(crate) fn former(path: &Path) -> PathBuf {
    path.with_extension("former")
}

impl Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Sink::Stream(fd) => fd.as_fd(),
            Sink::Log(log) => log.file.as_fd(),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::Stream(fd) => Ok(rustix::io::write(&*fd, bytes)?),
            Sink::Log(log) => log.write(bytes),
        }
    }

    /// Whether a write of [`WRITE_BYTES`] does not wait.
    fn is_ready(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.as_fd(), PollFlags::OUT)];
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
    }
}

/// Output on its way from a container to where it goes.
#[derive(Debug, Default)]
pub(crate) struct Relays(Vec<Relay>);

#[derive(Debug)]
struct Relay {
    from: OwnedFd,
    to: Sink,
    /// Read and not written yet.
    pending: Vec<u8>,
}

/// What became of a relay's turn.
#[derive(PartialEq, Eq)]
enum Turn {
    /// It waits: for the container, or where something is pending for who reads.
    Waits,
    /// Nobody writes any more, or nobody reads.
    Over,
}

impl Relays {
    /// A pipe to `to`; the end that the container gets.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn add(&mut self, to: Sink) -> io::Result<OwnedFd> {
        let (from, end) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&from, OFlags::NONBLOCK)?;
        self.0.push(Relay { from, to, pending: Vec::new() });
        Ok(end)
    }

    /// What to wait for.
    pub(crate) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.0.iter().map(|relay| match relay.pending.is_empty() {
            true => PollFd::from_borrowed_fd(relay.from.as_fd(), PollFlags::IN),
            false => PollFd::from_borrowed_fd(relay.to.as_fd(), PollFlags::OUT),
        })
    }

    /// Moves one piece of each that can be moved without a wait.
    pub(crate) fn turn(&mut self) {
        self.0.retain_mut(|relay| relay.turn() != Turn::Over);
    }

    /// Moves what is left in the pipes when the container has ended; waits for whoever reads it.
    pub(crate) fn finish(&mut self) {
        for relay in &mut self.0 {
            let mut rest = REST_BYTES_MAX;
            loop {
                let before = relay.pending.len();
                if relay.turn() == Turn::Over || (before == 0 && relay.pending.is_empty()) {
                    break;
                }
                rest = rest.saturating_sub(before.saturating_sub(relay.pending.len()));
                if rest == 0 {
                    break;
                }
                if !relay.pending.is_empty() {
                    let mut fds = [PollFd::from_borrowed_fd(relay.to.as_fd(), PollFlags::OUT)];
                    let _ = poll(&mut fds, None);
                }
            }
        }
        self.0.clear();
    }
}

impl Relay {
    fn turn(&mut self) -> Turn {
        if self.pending.is_empty() {
            self.pending.resize(READ_BYTES, 0);
            let read = rustix::io::read(&self.from, &mut self.pending[..]);
            self.pending.truncate(read.unwrap_or(0));
            match read {
                Ok(0) => return Turn::Over,
                Ok(_) => {}
                Err(Errno::AGAIN | Errno::INTR) => return Turn::Waits,
                Err(_) => return Turn::Over,
            }
        }
        while !self.pending.is_empty() && self.to.is_ready() {
            let piece = self.pending.len().min(WRITE_BYTES);
            match self.to.write(&self.pending[..piece]) {
                Ok(count) => drop(self.pending.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Turn::Over,
            }
        }
        Turn::Waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_arrives_in_a_log_and_the_log_is_bounded() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("output");
        let mut relays = Relays::default();
        let end = relays.add(Sink::Log(Log::open(&path).expect("log"))).expect("pipe");
        let writer = std::thread::spawn(move || {
            let mut end = File::from(end);
            for number in 0..40_000u32 {
                end.write_all(&[number as u8; 1024]).expect("written");
            }
        });
        while relays.fds().count() > 0 {
            let mut fds: Vec<_> = relays.fds().collect();
            poll(&mut fds, None).expect("poll");
            relays.turn();
        }
        writer.join().expect("writer");
        let length = |path: &Path| fs::metadata(path).expect("there").len();
        let (now, before) = (length(&path), length(&former(&path)));
        let most = LOG_BYTES_MAX + WRITE_BYTES as u64;
        assert!(now <= most && before <= most && before >= LOG_BYTES_MAX, "{now} {before}");
        let text = fs::read(&path).expect("read");
        assert_eq!(text[text.len() - 1024..], [39_999u32 as u8; 1024], "the newest is there");
    }

    #[test]
    fn who_reads_slowly_gets_everything_and_who_does_not_ends_it() {
        let mut relays = Relays::default();
        let (out, into) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
        let end = relays.add(Sink::Stream(into)).expect("pipe");
        rustix::io::write(&end, &[7; 60_000]).expect("room in the pipe");
        relays.turn();
        rustix::io::write(&end, &[7; 60_000]).expect("room in the pipe");
        drop(end);
        let reader = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let mut all = Vec::new();
            io::Read::read_to_end(&mut File::from(out), &mut all).expect("read");
            all.len()
        });
        relays.finish();
        assert_eq!(reader.join().expect("reader"), 120_000);

        let (out, into) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
        let end = relays.add(Sink::Stream(into)).expect("pipe");
        drop(out);
        rustix::io::write(&end, &[7; 10]).expect("written");
        relays.turn();
        assert_eq!(rustix::io::write(&end, &[7; 10]), Err(Errno::PIPE));
    }
}

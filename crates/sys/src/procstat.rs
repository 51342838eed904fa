//! The line that `/proc/PID/stat` and `/proc/PID/task/TID/stat` hold (proc_pid_stat(5)), and what
//! else of /proc is read of processes that may be another user's.
//!
//! A process decides how long some of its files there are, and `cmdline`, `environ` are its memory:
//! read of a mapped file whose file system does not answer, they never end. So such files are read
//! up to a length, and those two of processes alone that are known to be no stranger's.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Ticks of CPU time in a second: what the kernel counts in, for programs, on every architecture.
pub const TICKS_PER_SECOND: u64 = 100;

/// What the kernel says of a process, or of a thread.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessStat {
    /// The program's name, of at most 15 bytes; it may hold any byte, brackets and blanks too.
    pub name: Vec<u8>,
    /// `R`, `S`, `D`, `T`, `t`, `Z`, `X` …
    pub state: u8,
    /// The number of the parent process.
    pub parent: u32,
    /// CPU time in ticks: as a program, as the kernel, ...
    pub own_ticks: [u64; 2],
    /// ... and the same of children that were waited for.
    pub children_ticks: [u64; 2],
}

impl ProcessStat {
    /// The process with this number; `None`: there is none, or it may not be looked at.
    pub fn of(pid: u32) -> Option<ProcessStat> {
        ProcessStat::read(format!("/proc/{pid}/stat"))
    }

    /// Every thread of a process that can be looked at.
    pub fn threads_of(pid: u32) -> impl Iterator<Item = ProcessStat> {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
        let stat = |thread: std::fs::DirEntry| ProcessStat::read(thread.path().join("stat"));
        threads.into_iter().flatten().flatten().filter_map(stat)
    }

    /// The line in a file; `None`: it cannot be read, or is no such line.
    pub fn read(path: impl AsRef<Path>) -> Option<ProcessStat> {
        ProcessStat::parse(&std::fs::read(path).ok()?)
    }

    /// `PID (NAME) STATE PARENT …`; `None`: it is no such line.
    pub fn parse(line: &[u8]) -> Option<ProcessStat> {
        let begin = line.iter().position(|&byte| byte == b'(')? + 1;
        let end = line.iter().rposition(|&byte| byte == b')')?;
        let name = line.get(begin..end)?.to_vec();
        let fields = std::str::from_utf8(line.get(end + 1..)?).ok()?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // Counted from the state, which is the third field of the line.
        let ticks = |at: usize| fields.get(at)?.parse().ok();
        Some(ProcessStat {
            name,
            state: *fields.first()?.as_bytes().first()?,
            parent: fields.get(1)?.parse().ok()?,
            own_ticks: [ticks(11)?, ticks(12)?],
            children_ticks: [ticks(13)?, ticks(14)?],
        })
    }

    /// Whether a signal, or a debugger, has stopped it.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    /// Whether it has ended: no more than its exit status is left, if that.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// The numbers of all processes, as /proc has them now.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Most bytes that are read of `/proc/PID/status`.
const STATUS_BYTES_MAX: u64 = 64 << 10;

/// The first bytes of a file of a process.
///
/// # Errors
/// The host's.
pub fn head(path: impl AsRef<Path>, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// `/proc/PID/status`, or the beginning of it; empty: there is no such process.
pub fn status(pid: u32) -> String {
    let text = head(format!("/proc/{pid}/status"), STATUS_BYTES_MAX).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// The real user of a process, by its `status`: that of its files in /proc may be root.
pub fn real_user(status: &str) -> Option<u32> {
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().next()?.parse().ok()
}

/// Whether a process, by its `status`, was sent `SIGKILL` and has not ended yet.
pub fn is_killed(status: &str) -> bool {
    let kill = 1 << (libc::SIGKILL - 1);
    let pending = |name| {
        let signals = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(signals.trim(), 16).ok()
    };
    ["SigPnd:", "ShdPnd:"].into_iter().filter_map(pending).any(|signals| signals & kill != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    const LINE: &[u8] = b"7 (a) R) (b) S 3 7 7 0 -1 64 1 2 3 4 11 12 13 14 20 0 1 0 99";

    #[test]
    fn who_was_killed_is_known_before_it_is_gone() {
        let of = |own: &str, process: &str| {
            is_killed(&format!("Name:\tx\nSigPnd:\t{own}\nShdPnd:\t{process}\nSigBlk:\t0100\n"))
        };
        assert!(of("0000000000000100", "0000000000000000") && of("0", "0000000000044100"));
        assert!(!of("0000000000004000", "0000000000000200") && !is_killed(""));
        assert!(!is_killed(&status(std::process::id())));
    }

    #[test]
    fn names_may_hold_any_byte() {
        let stat = ProcessStat::parse(LINE).expect("a line");
        let expected = ProcessStat {
            name: b"a) R) (b".to_vec(),
            state: b'S',
            parent: 3,
            own_ticks: [11, 12],
            children_ticks: [13, 14],
        };
        assert_eq!(stat, expected);
        let foreign = [b"7 (\xff\n) 1) ".as_slice(), &LINE[13..]].concat();
        assert_eq!(ProcessStat::parse(&foreign).expect("a line").name, b"\xff\n) 1");
    }

    #[test]
    fn whatever_is_read_is_a_line_or_none() {
        let mut rng = Rng::new(1);
        for len in 0..LINE.len() {
            ProcessStat::parse(&LINE[..len]);
            let mut line = LINE.to_vec();
            line[len] = rng.next_u64() as u8;
            ProcessStat::parse(&line);
        }
        for line in [&b""[..], b")(", b"()", b"1 () ", b"1 (x) R", b"1 (x) R y"] {
            assert_eq!(ProcessStat::parse(line), None);
        }
    }

    #[test]
    fn what_stops_and_ends_is_told() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("sleep");
        let signal = |name: &str| {
            let pid = child.id().to_string();
            std::process::Command::new("kill").args([name, &pid]).status().expect("kill");
        };
        let is = |what: fn(&ProcessStat) -> bool| {
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while !ProcessStat::of(child.id()).is_some_and(|stat| what(&stat)) {
                assert!(std::time::Instant::now() < until);
                std::thread::yield_now();
            }
        };
        is(|stat| !stat.is_stopped() && stat.parent == std::process::id());
        signal("-STOP");
        is(ProcessStat::is_stopped);
        signal("-KILL");
        is(ProcessStat::has_ended);
        child.wait().expect("ends");
        assert_eq!(ProcessStat::of(child.id()), None);
    }

    #[test]
    fn no_more_of_a_process_is_read_than_is_wanted() {
        let mut child = std::process::Command::new("sh");
        child.args(["-c", "read line", &"x".repeat(100_000)]).stdin(std::process::Stdio::piped());
        let mut child = child.spawn().expect("sh");
        let path = format!("/proc/{}/cmdline", child.id());
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !head(&path, 6).is_ok_and(|head| head == b"sh\0-c\0") {
            assert!(std::time::Instant::now() < until);
            std::thread::yield_now();
        }
        assert_eq!(head(&path, 256).expect("read").len(), 256);
        child.kill().and_then(|()| child.wait()).expect("ends");
        let own = rustix::process::getuid().as_raw();
        assert_eq!(real_user(&status(std::process::id())), Some(own));
        assert_eq!(real_user(&status(u32::MAX)), None);
    }

    #[test]
    fn this_process_is_one() {
        let own = ProcessStat::of(std::process::id()).expect("this process");
        assert!(!own.has_ended() && !own.is_stopped());
        assert!(ProcessStat::threads_of(std::process::id()).count() >= 1);
        assert_eq!(ProcessStat::of(0), None);
    }
}

//! The line that `/proc/PID/stat` and `/proc/PID/task/TID/stat` hold (proc_pid_stat(5)).

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

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    const LINE: &[u8] = b"7 (a) R) (b) S 3 7 7 0 -1 64 1 2 3 4 11 12 13 14 20 0 1 0 99";

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
    fn this_process_is_one() {
        let own = ProcessStat::of(std::process::id()).expect("this process");
        assert!(!own.has_ended() && !own.is_stopped());
        assert!(ProcessStat::threads_of(std::process::id()).count() >= 1);
        assert_eq!(ProcessStat::of(0), None);
    }
}

//! The log of a supervisor without a terminal: a file of its own, of bounded size.
//!
//! The supervisor and its children write to it by one description that appends, so it is bounded
//! in place: above [`BYTES_MAX`] its older half goes. A file that the supervisor did not make
//! itself (the standard error of a run) is never changed.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::failure::{Failure, Result};

/// Most bytes of a log, beside what is said before the next look at it.
const BYTES_MAX: u64 = 1 << 20;

/// Bytes that stay, from the first whole line on.
const BYTES_KEPT: usize = 512 << 10;

/// The line that stands for what went.
const CUT: &[u8] = b"polylane: (older lines are gone)\n";

/// A log that this process has made.
#[derive(Debug)]
pub(crate) struct OwnLog(File);

impl OwnLog {
    /// Makes the log at `path`, in place of what a dead process left there.
    ///
    /// # Errors
    /// One line when it cannot be made.
    pub(crate) fn make(path: &Path) -> Result<OwnLog> {
        let mut options = File::options();
        options.read(true).append(true).create_new(true).mode(0o600);
        options.custom_flags(libc::O_NOFOLLOW);
        let _ = std::fs::remove_file(path);
        let file = options.open(path).map_err(|error| Failure::path(path, "make it", error))?;
        Ok(OwnLog(file))
    }

    /// The file; what is written there is appended.
    pub(crate) fn file(&self) -> &File {
        &self.0
    }

    /// Lets the older half go once there is too much. What another process says at this very moment
    /// may go as well. An error leaves it to the next look.
    pub(crate) fn bound(&self) {
        let bytes = self.0.metadata().map_or(0, |metadata| metadata.len());
        if bytes <= BYTES_MAX {
            return;
        }
        let mut kept = vec![0; BYTES_KEPT];
        if self.0.read_exact_at(&mut kept, bytes - BYTES_KEPT as u64).is_err() {
            return;
        }
        let line = kept.iter().position(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        if self.0.set_len(0).is_ok() {
            let _ = (&self.0).write_all(&[CUT, &kept[line..]].concat());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_keeps_its_newest_lines_whole_however_much_is_said() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("web@1.log");
        std::fs::write(&path, "of a dead lane\n").expect("write");
        let log = OwnLog::make(&path).expect("made");
        let other = log.file().try_clone().expect("as a child has it");
        for number in 0..60_000 {
            // Of several processes, by one description.
            let mut file = if number % 2 == 0 { log.file() } else { &other };
            writeln!(file, "line {number}: {}", "x".repeat(number % 90)).expect("write");
            log.bound();
        }
        let text = std::fs::read_to_string(&path).expect("read");
        assert!((BYTES_KEPT / 2..=BYTES_MAX as usize).contains(&text.len()), "{}", text.len());
        let mut lines = text.lines();
        assert_eq!(lines.next().map(str::as_bytes), CUT.strip_suffix(b"\n"));
        let numbers: Vec<u32> = lines
            .map(|line| line["line ".len()..].split(':').next().expect("text").parse().expect("n"))
            .collect();
        assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "whole, in order");
        assert_eq!(numbers.last(), Some(&59_999));
    }

    #[test]
    fn a_log_below_its_bound_is_left_alone() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("log");
        let log = OwnLog::make(&path).expect("made");
        let text = "x".repeat(BYTES_MAX as usize - 1) + "\n";
        (&mut log.file()).write_all(text.as_bytes()).expect("write");
        log.bound();
        assert!(std::fs::read_to_string(&path).expect("read") == text);
        (&mut log.file()).write_all(b"one more\n").expect("write");
        log.bound();
        let left = std::fs::read_to_string(&path).expect("read");
        assert!(left.ends_with("one more\n") && left.len() <= BYTES_KEPT + CUT.len());
    }
}

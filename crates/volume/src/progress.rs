//! How far long work is: one line on standard error that is drawn again in its place, where that is
//! a terminal. What is over within a moment shows none, and nothing of it is left at the end.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::size::ByteSize;

use crate::log;

/// Work that is over before this shows nothing.
const FIRST: Duration = Duration::from_millis(300);

/// Between two drawings.
const PERIOD: Duration = Duration::from_millis(200);

/// Columns of the bar.
const BAR_COLUMNS: usize = 12;

/// Most of a name that is shown, so that all fits in 80 columns.
const NAME_COLUMNS_MAX: usize = 13;

/// Some work under way. Not thread-safe: one thread does it.
pub struct Progress {
    /// What is done, and with what: the line's start.
    what: String,
    /// Bytes in all; of a share of something else, [`WHOLE`].
    total: u64,
    done: Cell<u64>,
    began: Instant,
    /// When it is drawn next; `None`: nobody looks.
    next: Cell<Option<Instant>>,
    drawn: Cell<bool>,
}

/// All of something that is not counted in bytes.
const WHOLE: u64 = 10_000;

impl Progress {
    /// Begins to show `verb` (as in "copying") of `total` bytes of the file `object`.
    pub fn new(verb: &str, object: &Path, total: u64) -> Progress {
        let seen = std::io::stderr().is_terminal() && !log::is_json();
        Progress::at(verb, object, total, Instant::now(), seen)
    }

    fn at(verb: &str, object: &Path, total: u64, now: Instant, seen: bool) -> Progress {
        let name = object.file_name().unwrap_or(object.as_os_str()).to_string_lossy();
        // A name may hold anything, also what moves the cursor.
        let plain: Vec<char> = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let name: String = match plain.len() {
            ..=NAME_COLUMNS_MAX => plain.into_iter().collect(),
            _ => plain[..NAME_COLUMNS_MAX - 1].iter().chain(&['…']).collect(),
        };
        Progress {
            what: format!("{name}: {verb}"),
            total,
            done: Cell::new(0),
            began: now,
            next: Cell::new(seen.then(|| now + FIRST)),
            drawn: Cell::new(false),
        }
    }

    /// The same of work that tells its share alone.
    pub fn of_share(verb: &str, object: &Path) -> Progress {
        Progress::new(verb, object, WHOLE)
    }

    /// Whether anybody looks.
    pub fn is_seen(&self) -> bool {
        self.next.get().is_some()
    }

    /// So many bytes more are done.
    pub fn add(&self, bytes: u64) {
        self.done.set(self.done.get().saturating_add(bytes));
        self.look();
    }

    /// So much is done: 0 to 1.
    pub fn set_share(&self, share: f64) {
        self.done.set((share.clamp(0.0, 1.0) * WHOLE as f64) as u64);
        self.look();
    }

    fn look(&self) {
        if self.next.get().is_some()
            && let Some(line) = self.due(Instant::now())
        {
            self.drawn.set(true);
            // Nobody to tell when it fails.
            let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        }
    }

    /// What to draw at `now`, when it is time.
    fn due(&self, now: Instant) -> Option<String> {
        self.next.get().filter(|next| now >= *next)?;
        self.next.set(Some(now + PERIOD));
        let done = self.done.get().min(self.total);
        let share = done as f64 / self.total.max(1) as f64;
        let full = (share * BAR_COLUMNS as f64) as usize;
        let (full, rest) = ("#".repeat(full), "-".repeat(BAR_COLUMNS - full));
        let line = format!("{} [{full}{rest}] {:3.0} %", self.what, (share * 100.0).floor());
        if self.total == WHOLE {
            return Some(line);
        }
        let seconds = now.duration_since(self.began).as_secs_f64().max(0.001);
        let rate = ByteSize((done as f64 / seconds) as u64 >> 20 << 20);
        let rounded =
            |bytes: u64| ByteSize(if bytes < 1 << 20 { bytes } else { bytes >> 20 << 20 });
        Some(format!("{line} {} of {}, {rate}/s", rounded(done), rounded(self.total)))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.get() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_drawn_when_it_is_time_and_somebody_looks() {
        // Later than it is, so that nothing is due by the clock while this runs.
        let now = Instant::now() + Duration::from_secs(3600);
        let path = Path::new("/somewhere/v.img");
        let unseen = Progress::at("copying", path, 1 << 30, now, false);
        assert!(!unseen.is_seen() && unseen.due(now + FIRST * 9).is_none());
        let seen = Progress::at("copying", path, 1 << 30, now, true);
        assert_eq!(seen.due(now), None, "too early");
        seen.add(256 << 20);
        let line = seen.due(now + Duration::from_secs(1)).expect("it is time");
        assert_eq!(line, "v.img: copying [###---------]  25 % 256 MiB of 1 GiB, 256 MiB/s");
        assert_eq!(seen.due(now + Duration::from_secs(1)), None, "too early again");
        seen.add(u64::MAX);
        let line = seen.due(now + Duration::from_secs(2)).expect("it is time");
        assert!(line.contains("] 100 % 1 GiB of 1 GiB"), "{line}");
        let share = Progress::at("checking", Path::new("a\x1b[2Jb"), WHOLE, now, true);
        share.set_share(0.5);
        let line = share.due(now + FIRST).expect("it is time");
        assert_eq!(line, "a?[2Jb: checking [######------]  50 %");
        let long = Path::new("x234567890123456789012345678901234567890");
        let long = Progress::at("exchanging", long, u64::MAX, now, true);
        let line = long.due(now + FIRST).expect("it is time");
        assert!(line.chars().count() < 80, "{line}");
    }
}

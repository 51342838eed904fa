//! `polylane top`: what running pools and attachments do, over and over.
//!
//! It reads the counters that `polylane stats` prints and shows what they grew by.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use polylane_base::shown::Shown;
use polylane_pool::failure::{Failure, Result};
use polylane_pool::stats;
use polylane_pool::stats::rates::{Rates, rates};
use polylane_sys::ns::SignalFd;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Row, Table};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde_json::Value;

use crate::print::{columns, print};

/// `polylane top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Seconds between two looks, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Print one look as text and end
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let wrong = || "must be 0.1 to 3600".to_string();
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Columns of the table.
const HEAD: [&str; 12] = [
    "POOL/DEVICE",
    "WEIGHT",
    "ENTITLED",
    "ACHIEVED",
    "CALLS/s",
    "IOPS",
    "READ/s",
    "WRITTEN/s",
    "p50/p99 us",
    "WAIT us",
    "HITS",
    "BYPASSED/s",
];

/// Executes `top`; the exit status.
pub(crate) fn execute(arguments: &TopArgs) -> Result<u8> {
    if arguments.once {
        let (before, start) = (stats::all()?, Instant::now());
        std::thread::sleep(arguments.interval);
        let after = stats::all()?;
        print(&text(&rates(&before, &after, start.elapsed())))?;
        return Ok(0);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::usage("top: standard output is no terminal: use --once"));
    }
    let signals = SignalFd::new(&WATCHED)
        .map_err(|error| Failure::because("signals", "watch them", error))?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = show(&mut terminal, arguments.interval, &signals);
    ratatui::restore();
    shown.map(|signal| signal.map_or(0, |signal| 128 + signal as u8))
}

/// Signals that end a program or stop it, and must not leave the terminal as it is.
const WATCHED: [i32; 8] = [HANG_UP, 2, 3, 10, 12, 14, 15, STOP];
/// The signal of a terminal that is gone.
const HANG_UP: i32 = 1;
/// The signal of Ctrl-Z.
const STOP: i32 = 20;

fn failed(error: std::io::Error) -> Failure {
    Failure::because("terminal", "draw on it", error)
}

fn text(pools: &[Rates]) -> String {
    columns(std::iter::once(HEAD.map(str::to_string)).chain(pools.iter().map(words)).collect())
}

/// Until a key or a signal wants the end; which signal it was.
fn show(
    terminal: &mut ratatui::DefaultTerminal,
    interval: Duration,
    signals: &SignalFd,
) -> Result<Option<i32>> {
    let (mut before, mut start): (Vec<Value>, _) = (stats::all()?, Instant::now());
    let mut shown = rates(&before, &before, interval);
    let mut dirty = true;
    loop {
        if std::mem::take(&mut dirty) {
            terminal.draw(|frame| draw(frame, &shown, interval)).map_err(failed)?;
        }
        match wait(signals, interval.saturating_sub(start.elapsed()))? {
            Some(STOP) => dirty = stop(terminal)?,
            Some(signal) => return Ok(Some(signal)),
            None => {}
        }
        while event::poll(Duration::ZERO).map_err(failed)? {
            match event::read().map_err(failed)? {
                Event::Key(key) if ends(key) => return Ok(None),
                Event::Key(key) if is_control(key, 'z') => dirty = stop(terminal)?,
                _ => dirty = true,
            }
        }
        if start.elapsed() >= interval {
            let after = stats::all()?;
            shown = rates(&before, &after, start.elapsed());
            (before, start, dirty) = (after, Instant::now(), true);
        }
    }
}

/// Stops this process, the terminal being as it was before, until it is continued. All is to be
/// drawn again then.
fn stop(terminal: &mut ratatui::DefaultTerminal) -> Result<bool> {
    terminal.show_cursor().map_err(failed)?;
    ratatui::restore();
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::STOP)
        .map_err(|error| failed(error.into()))?;
    *terminal = ratatui::try_init().map_err(failed)?;
    Ok(true)
}

/// Waits for a key, a change of the terminal's size, or the end of `limit`; a signal, if there is
/// one. A terminal that is gone is its SIGHUP: crossterm would read its end for ever.
fn wait(signals: &SignalFd, limit: Duration) -> Result<Option<i32>> {
    let keys = rustix::stdio::stdin();
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    let mut fds = [PollFd::new(&keys, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(failed(error.into())),
    }
    let gone = fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
    match signals.next() {
        Ok(Some(received)) => Ok(Some(received.signal)),
        _ => Ok(gone.then_some(HANG_UP)),
    }
}

fn ends(key: KeyEvent) -> bool {
    let quits = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) || is_control(key, 'c');
    key.kind == KeyEventKind::Press && quits
}

fn is_control(key: KeyEvent, letter: char) -> bool {
    key.code == KeyCode::Char(letter) && key.modifiers == KeyModifiers::CONTROL
}

fn draw(frame: &mut Frame<'_>, pools: &[Rates], interval: Duration) {
    let [title, body] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(frame.area());
    let attached = pools.iter().filter(|pool| pool.attached).count();
    let line = format!(
        "polylane: {} pools, {attached} attachments, every {} s; q ends",
        pools.len() - attached,
        interval.as_secs_f64()
    );
    frame.render_widget(Line::from(line), title);
    let rows: Vec<[String; HEAD.len()]> = pools.iter().map(words).collect();
    let width = |column: usize| {
        let widest = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        Constraint::Length(widest.max(HEAD[column].len()) as u16)
    };
    let widths: Vec<Constraint> = (0..HEAD.len()).map(width).collect();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let shown = rows.iter().map(|row| Row::new(row.iter().map(|word| Cell::from(word.as_str()))));
    let table = Table::new(shown, widths).header(Row::new(HEAD).style(bold)).column_spacing(2);
    frame.render_widget(table, body);
}

/// A pool's row.
fn words(pool: &Rates) -> [String; HEAD.len()] {
    let or_dash = |word: Option<String>| word.unwrap_or_else(|| "-".to_string());
    let part = |part: Option<f64>| or_dash(part.map(|part| format!("{:.1} %", 100.0 * part)));
    let time = |us: Option<f64>| or_dash(us.map(|us| format!("{us:.0}")));
    [
        Shown::new(&pool.name).to_string(),
        or_dash(pool.weight.map(|weight| weight.to_string())),
        part(pool.entitled),
        part(pool.achieved) + if pool.bound { " bound" } else { "" },
        or_dash(pool.silent.clone().or(pool.operations.map(short))),
        or_dash(pool.iops.map(short)),
        or_dash(pool.read_bytes.map(short)),
        or_dash(pool.written_bytes.map(short)),
        match (pool.p50_us, pool.p99_us) {
            (None, None) => "-".to_string(),
            (p50, p99) => format!("{}/{}", time(p50), time(p99)),
        },
        or_dash(pool.held_us.map(|us| format!("{us:.1}"))),
        part(pool.hits),
        or_dash(pool.bypassed_bytes.map(short)),
    ]
}

/// A number in at most five characters: 999, 12.3k, 4.5G.
fn short(number: f64) -> String {
    let (mut number, mut units) = (number, ["", "k", "M", "G", "T"].into_iter());
    let mut unit = units.next().unwrap_or_default();
    while number >= 999.5 {
        let Some(next) = units.next() else { break };
        (number, unit) = (number / 1000.0, next);
    }
    if unit.is_empty() || number >= 99.95 {
        format!("{number:.0}{unit}")
    } else {
        format!("{number:.1}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn pools() -> Vec<Rates> {
        let governed = Rates {
            name: "web\u{1b}[2J".to_string(),
            attached: false,
            silent: None,
            weight: Some(300),
            entitled: Some(0.75),
            achieved: Some(0.731),
            bound: true,
            operations: Some(12_345.0),
            iops: Some(999.6),
            read_bytes: Some(4_096_000.0),
            written_bytes: Some(0.0),
            p50_us: Some(95.0),
            p99_us: Some(447.0),
            held_us: Some(1.25),
            hits: Some(0.5),
            bypassed_bytes: Some(8192.0),
        };
        let silent = Some("stopped".to_string());
        let scratch = Rates { name: "scratch".to_string(), silent, ..Rates::default() };
        let attached = Rates { name: "/dev/loop0".to_string(), attached: true, ..governed.clone() };
        vec![governed, scratch, attached]
    }

    #[test]
    fn the_screen_shows_every_pool() {
        let mut terminal = Terminal::new(TestBackend::new(130, 6)).expect("a terminal");
        let frame =
            terminal.draw(|frame| draw(frame, &pools(), Duration::from_secs(1))).expect("draws");
        let lines: Vec<String> =
            (0..6).map(|y| (0..130).map(|x| frame.buffer[(x, y)].symbol()).collect()).collect();
        assert!(lines[0].starts_with("polylane: 2 pools, 1 attachments, every 1 s"), "{lines:?}");
        assert!(lines[1].starts_with("POOL") && lines[1].contains("ENTITLED"), "{lines:?}");
        let words: Vec<&str> = lines[2].split("  ").filter(|word| !word.is_empty()).collect();
        let words: Vec<&str> = words.iter().map(|word| word.trim()).collect();
        let expected = [
            "$'web\\e[2J'",
            "300",
            "75.0 %",
            "73.1 % bound",
            "12.3k",
            "1.0k",
            "4.1M",
            "0",
            "95/447",
            "1.2",
            "50.0 %",
            "8.2k",
        ];
        assert_eq!(words[..12], expected);
        assert!(lines[3].contains("stopped"), "{lines:?}");
        assert!(lines[3].starts_with("scratch") && lines[4].starts_with("/dev/loop0"));
    }

    #[test]
    fn numbers_are_short() {
        let words = [0.0, 999.4, 999.5, 12_340.0, 99_949.0, 99_951.0, 5e9, 3e15].map(short);
        assert_eq!(words, ["0", "999", "1.0k", "12.3k", "99.9k", "100k", "5.0G", "3000T"]);
        assert_eq!(text(&pools()).lines().count(), 4);
    }

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e9", "x"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }
}

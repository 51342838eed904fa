//! Log lines: what supervisors, services and engines say, one JSON object a line with
//! `POLYLANE_LOG=json`, plain text otherwise.
//!
//! | field | what |
//! |---|---|
//! | `time` | UTC, to the millisecond |
//! | `process` | `polylane`, `service` or `engine` |
//! | `pid` | its number |
//! | `name` | the pool's or the volume's, where there is one |
//! | `event` | what happened: `message` for what is said to people |
//! | others | by the event |
//!
//! Events other than `message` are said in JSON only.

use std::fmt;
use std::io::Write;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use polylane_base::shown::escape_control;
use serde_json::{Map, Value};

/// The variable that asks for JSON.
pub const VARIABLE: &str = "POLYLANE_LOG";

/// What this process is, and for what. Set once, before its threads are made.
static WHO: OnceLock<(&'static str, String)> = OnceLock::new();

/// Names this process in its lines.
pub fn name(process: &'static str, name: &str) {
    let _ = WHO.set((process, name.to_string()));
}

/// Whether lines are to be JSON.
pub fn is_json() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == "json")
}

/// Something that a person need not be told.
pub fn event(event: &str, fields: Value) {
    if is_json() {
        write(&line(SystemTime::now(), event, fields));
    }
}

/// Something that a person is told, on one line: names may hold what a terminal would obey.
pub fn message(text: &dyn fmt::Display) {
    match is_json() {
        true => {
            let fields = serde_json::json!({ "text": text.to_string() });
            write(&line(SystemTime::now(), "message", fields));
        }
        false => write(&format!("polylane: {}\n", escape_control(&text.to_string()))),
    }
}

fn write(line: &str) {
    // One write, so that lines of several processes do not mix. Nobody to tell when it fails.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

fn line(now: SystemTime, event: &str, fields: Value) -> String {
    let (process, name) = WHO.get().map_or(("polylane", ""), |(process, name)| (process, name));
    let mut object = Map::new();
    object.insert("time".into(), utc(now).into());
    object.insert("process".into(), process.into());
    object.insert("pid".into(), std::process::id().into());
    if !name.is_empty() {
        object.insert("name".into(), name.into());
    }
    object.insert("event".into(), event.into());
    if let Value::Object(fields) = fields {
        object.extend(fields);
    }
    format!("{}\n", Value::Object(object))
}

/// `2026-11-22T15:04:05.678Z`, by the proleptic Gregorian calendar.
fn utc(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (seconds, millis) = (since.as_secs(), since.subsec_millis());
    let (mut days, of_day) = (seconds / 86_400, seconds % 86_400);
    let of = |year: u64, years: u64| year.is_multiple_of(years);
    let leap = |year: u64| of(year, 4) && (!of(year, 100) || of(year, 400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        (days, month) = (days - length, month + 1);
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds: u64| utc(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7));
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_827_696), "2000-02-29T12:34:56.007Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59.007Z");
    }

    #[test]
    fn a_line_is_one_object_whatever_is_said() {
        let text = "two\nlines \"and\" quotes";
        let said = line(UNIX_EPOCH, "message", serde_json::json!({ "text": text }));
        assert_eq!(said.matches('\n').count(), 1);
        let object: Value = serde_json::from_str(&said).expect("JSON");
        assert_eq!((&object["text"], &object["event"]), (&text.into(), &"message".into()));
        assert_eq!(object["pid"], std::process::id());
    }
}

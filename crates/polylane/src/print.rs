//! What commands print on standard output: text, JSON, columns.

use std::io::Write as _;

use polylane_base::shown::{Shown, escape_json};
use polylane_pool::failure::{Failure, Result};
use polylane_volume::Content;
use serde_json::Value;

/// Prints to standard output. A reader that closed it (`| head`) has seen enough.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// Prints what may be no text, as paths.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::because("standard output", "write to it", error))
        }
        _ => Ok(()),
    }
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::because("result", "print it", std::io::Error::from(error)))?;
    print(&format!("{}\n", escape_json(&text)))
}

/// A value in a table: "-" for none, names as [`Shown`] writes them.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_string(),
        Value::String(text) => Shown::new(text).to_string(),
        other => other.to_string(),
    }
}

/// Rows as lines, each column as wide as its widest word.
pub(crate) fn columns<const N: usize>(rows: Vec<[String; N]>) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or(0));
    let line = |row: &[String; N]| {
        let words = row.iter().zip(widths).map(|(word, width)| format!("{word:<width$}"));
        words.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

/// The file system on a volume, for people.
pub(crate) fn content(content: Content) -> &'static str {
    match content {
        Content::Ext4Clean => "ext4",
        Content::Ext4NeedsReplay => "ext4, journal to be replayed",
        Content::Ext4Errors => "ext4, with errors",
        Content::None => "none",
    }
}

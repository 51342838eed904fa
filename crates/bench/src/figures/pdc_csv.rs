//! Recorded block requests: CSV, plain or gzip, one request a line.
//!
//! The columns are `time_us,op,fua,offset,length`, or those that a line of names gives; `op`,
//! `offset` and `length` must be among them. Operations: R, W, F(lush), D(iscard), Z
//! (write-zeroes). Lines that start with `#` are comments; the first one that speaks of a `header`
//! names the lowest and the highest address of a journal block, `0 0` for none. Addresses and
//! lengths are bytes. A sixth column, `opening`, may say what the data begins with
//! ([`Opening::named`]). `polylane attach --record FILE` writes such files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use flate2::bufread::MultiGzDecoder;
use polylane_block::cache::pdc::{Access, Opening, Region};

/// No block layer makes larger requests than this; more is another unit or a broken file.
const LENGTH_MAX: u64 = 1 << 30;

/// One request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Record {
    /// When, since some beginning; never falls.
    pub time_us: u64,
    /// What.
    pub access: Access,
    /// Where.
    pub range: Region,
}

/// A trace in memory.
#[derive(Debug, Default)]
pub struct Trace {
    /// The requests in the order of the file.
    pub records: Vec<Record>,
    /// First and last address of a journal block, as the file says.
    pub journal: Option<(u64, u64)>,
    /// Lines left out because their operation is unknown.
    pub unknown_count: u64,
    /// The first of them: its operation and its number.
    pub unknown_first: Option<(String, usize)>,
}

/// Reads a trace.
///
/// # Errors
/// The file cannot be read, or one of its lines; the message names the line.
pub fn load(path: &Path) -> Result<Trace> {
    let file = File::open(path).with_context(|| format!("open trace {}", path.display()))?;
    let mut raw = BufReader::new(file);
    let start = raw.fill_buf().with_context(|| format!("read trace {}", path.display()))?;
    let reader: Box<dyn Read> = match start.starts_with(&[0x1f, 0x8b]) {
        true => Box::new(MultiGzDecoder::new(raw)),
        false => Box::new(raw),
    };
    parse(BufReader::new(reader)).with_context(|| format!("trace {}", path.display()))
}

fn parse(reader: impl BufRead) -> Result<Trace> {
    let (mut trace, mut columns, mut time_us) = (Trace::default(), Columns::default(), 0);
    for (index, line) in reader.lines().enumerate() {
        let line = line.with_context(|| format!("line {}", index + 1))?;
        let line = line.trim();
        let text = line.trim_start_matches(['#', '\u{feff}']).trim();
        if let Some(named) = Columns::named(text) {
            columns = named.with_context(|| format!("line {}", index + 1))?;
        } else if line.starts_with('#') {
            trace.journal = trace.journal.or_else(|| journal_of(text));
        } else if !line.is_empty() {
            let record = columns.record(line).with_context(|| format!("line {}", index + 1))?;
            match record {
                Ok(record) => {
                    time_us = record.time_us.max(time_us);
                    trace.records.push(Record { time_us, ..record });
                }
                Err(Unknown(operation)) => {
                    trace.unknown_count += 1;
                    trace.unknown_first.get_or_insert((operation, index + 1));
                }
            }
        }
    }
    if let (true, Some((operation, line))) = (trace.records.is_empty(), &trace.unknown_first) {
        bail!(
            "no requests in it: line {line}: operation '{operation}' is unknown: R, W, F, D and Z \
             are known"
        );
    }
    ensure!(!trace.records.is_empty(), "no requests in it");
    Ok(trace)
}

/// The two addresses after the word "header"; `None` without them, or when both are 0.
fn journal_of(comment: &str) -> Option<(u64, u64)> {
    let (_, rest) = comment.rsplit_once("header")?;
    let mut numbers = rest.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let (first, last) = (numbers.next()?, numbers.next()?);
    (last > 0 && first <= last).then_some((first, last))
}

/// An operation that is none of those known.
struct Unknown(String);

/// Where each field is in a line.
#[derive(Clone, Copy)]
struct Columns {
    time: Option<usize>,
    op: usize,
    fua: Option<usize>,
    offset: usize,
    length: usize,
    opening: Option<usize>,
}

impl Default for Columns {
    fn default() -> Self {
        Columns { time: Some(0), op: 1, fua: Some(2), offset: 3, length: 4, opening: Some(5) }
    }
}

impl Columns {
    /// `None` when the line is not one of names. A name may be followed by an explanation.
    fn named(line: &str) -> Option<Result<Columns>> {
        let names: Vec<&str> = split_outside_brackets(line)
            .map(|name| name.split(['(', ' ']).next().unwrap_or("").trim())
            .collect();
        let place = |name: &str| names.iter().position(|n| n.eq_ignore_ascii_case(name));
        let op = place("op")?;
        let need = |name: &str| place(name).with_context(|| format!("no column '{name}'"));
        Some(need("offset").and_then(|offset| {
            let (time, fua, length) = (place("time_us"), place("fua"), need("length")?);
            let opening = place("opening");
            Ok(Columns { time, op, fua, offset, length, opening })
        }))
    }

    /// The request in a line, if its operation is known.
    fn record(&self, line: &str) -> Result<Result<Record, Unknown>> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |at: usize| fields.get(at).copied().filter(|field| !field.is_empty());
        let Some(op) = field(self.op) else { bail!("no operation: '{}'", excerpt(line)) };
        let fua = self.fua.and_then(field).is_some_and(|fua| fua != "0");
        let opening = self.opening.and_then(field).map_or(Opening::Unknown, Opening::named);
        let access = match op.to_ascii_lowercase().as_str() {
            "r" | "read" => Access::Read,
            "w" | "write" => Access::Write { fua, opening },
            "f" | "flush" => Access::Flush,
            "d" | "discard" | "trim" | "z" | "write-zeroes" => Access::Discard,
            _ => return Ok(Err(Unknown(excerpt(op)))),
        };
        let time_us = match self.time.and_then(field) {
            Some(text) => number("time", text)?,
            None => 0,
        };
        if access == Access::Flush {
            return Ok(Ok(Record { time_us, access, range: Region::at(0, 0) }));
        }
        let [Some(offset), Some(length)] = [field(self.offset), field(self.length)] else {
            bail!("'{}' has no offset or no length", excerpt(line));
        };
        let (offset, length) = (number("offset", offset)?, number("length", length)?);
        let sane = length <= LENGTH_MAX || access == Access::Discard;
        ensure!(sane, "length {length} is more than 1 GiB; lengths are in bytes");
        ensure!(offset.checked_add(length).is_some(), "offset {offset} is past 2^64");
        Ok(Ok(Record { time_us, access, range: Region::at(offset, length) }))
    }
}

fn number(what: &str, text: &str) -> Result<u64> {
    let found = text.parse::<u64>().ok();
    // Clocks may be printed with a fraction.
    let found = found.or_else(|| text.parse::<f64>().ok().filter(|n| *n >= 0.0).map(|n| n as u64));
    found.with_context(|| format!("{what} '{}' is not a number", excerpt(text)))
}

fn excerpt(text: &str) -> String {
    text.chars().take(60).collect()
}

fn split_outside_brackets(line: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    line.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Trace> {
        parse(text.as_bytes())
    }

    fn message(text: &str) -> String {
        format!("{:#}", read(text).expect_err("refused"))
    }

    #[test]
    fn a_trace_as_recorded_is_read() {
        let text = "# guest block trace: ext4 ordered; first and last block with a log header: \
                    4096 8192 (bytes; 0 0 = none by address)\n\
                    # time_us,op(R read, W write),fua,offset,length\n\
                    10,W,1,4096,512\n\n12,F,0,0,0\r\n  13 , d , 0 , 0 , 1099511627776\n\
                    14,R,0,512,4";
        let trace = read(text).expect("valid");
        assert_eq!(trace.journal, Some((4096, 8192)));
        assert_eq!(trace.records.len(), 4);
        assert_eq!(trace.records[0].access, Access::Write { fua: true, opening: Opening::Unknown });
        assert_eq!(trace.records[1].access, Access::Flush);
        assert_eq!(trace.records[2].range.bytes(), 1 << 40);
        assert_eq!(trace.records[3].range, Region { first: 512, end: 516 });
    }

    #[test]
    fn a_sixth_column_says_what_the_data_begins_with() {
        let trace =
            read("1,W,0,0,512,jbd2-commit\n2,W,0,0,512,\n3,W,0,0,512,other\n").expect("valid");
        let opening = |record: &Record| match record.access {
            Access::Write { opening, .. } => opening,
            _ => panic!("{record:?}"),
        };
        let openings: Vec<Opening> = trace.records.iter().map(opening).collect();
        assert_eq!(openings, [Opening::JournalCommit, Opening::Unknown, Opening::Unknown]);
    }

    #[test]
    fn columns_may_be_named_and_missing() {
        let trace = read("op,offset,length\nW,0,512\nF\nX,1,2\nF,,\n").expect("valid");
        assert_eq!((trace.records.len(), trace.unknown_count), (3, 1));
        assert_eq!(trace.journal, None);
    }

    #[test]
    fn no_journal_is_known_from_zeros_or_without_the_word() {
        for comment in ["# header: 0 0", "# ext4 64 MiB", "# header: 12", "# header 9 3"] {
            let trace = read(&format!("{comment}\n1,F,0,0,0\n")).expect("valid");
            assert_eq!(trace.journal, None, "{comment}");
        }
    }

    #[test]
    fn a_broken_line_is_named() {
        assert_eq!(message("1,W,0,0,512\n2,W,0,x,512"), "line 2: offset 'x' is not a number");
        assert!(message("1,W,0,4096").starts_with("line 1: '1,W,0,4096' has no offset or no"));
        assert!(message("1,W,0,0,2147483648").contains("lengths are in bytes"));
        assert!(message("1,R,0,18446744073709551615,2").contains("past 2^64"));
        assert!(message("time_us,op,offset\n1,W,0").contains("line 1: no column 'length'"));
        assert_eq!(message("# nothing\n\n"), "no requests in it");
        let unknown = message("# made by another tool\n1,Q,0,0,512\n2,C,0,0,512\n");
        assert!(unknown.starts_with("no requests in it: line 2: operation 'Q' is"), "{unknown}");
    }

    #[test]
    fn gzip_is_recognised_and_a_cut_file_refused() {
        use std::io::Write;
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        (0..2000).for_each(|i| writeln!(gzip, "{i},W,0,{},512", i * 7919).expect("in memory"));
        let bytes = gzip.finish().expect("in memory");
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("trace");
        std::fs::write(&path, &bytes).expect("written");
        assert_eq!(load(&path).expect("valid").records.len(), 2000);
        std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
        assert!(load(&path).is_err());
        assert!(load(&dir.path().join("none")).is_err());
    }
}

//! `--map-users U:H:N`: owners of a lane's files as this host shows them.

use polylane_base::{ID_RANGES_MAX, IdRange};
use polylane_vfs::mapped::{IdMap, NOBODY};

use crate::failure::{Failure, Result};

/// The ranges `U:H:N` of a command line: users and groups `U` to `U + N - 1` of the files are `H`
/// to `H + N - 1` of this host. `None`: there are none.
///
/// # Errors
/// One line: a word that is no range, or two that overlap.
pub fn parse(words: &[String]) -> Result<Option<IdMap>> {
    let usage = |why: String| Failure::usage(format!("--map-users {why}"));
    if words.len() > ID_RANGES_MAX {
        return Err(usage(format!("has {} ranges, and can have {ID_RANGES_MAX}", words.len())));
    }
    let mut ranges: Vec<IdRange> = Vec::new();
    for word in words {
        let range = range(word).ok_or_else(|| {
            usage(format!(
                "{word}: write it as U:H:N: N users from U on have the numbers from H on, all \
                 below {NOBODY}"
            ))
        })?;
        let overlaps = |(at, other): (usize, &IdRange)| {
            IdMap::new(vec![range, *other]).is_none().then(|| words[at].clone())
        };
        if let Some(other) = ranges.iter().enumerate().find_map(overlaps) {
            return Err(usage(format!("{word}: overlaps {other}: a number can have one other")));
        }
        ranges.push(range);
    }
    Ok(IdMap::new(ranges))
}

fn range(word: &str) -> Option<IdRange> {
    let mut numbers = word.split(':').map(|number| {
        let plain = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse().ok().filter(|_| plain)
    });
    let (kept, shown, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let range = IdRange { kept, shown, count };
    (numbers.next().is_none() && IdMap::new(vec![range]).is_some()).then_some(range)
}

/// A map as it stands in a mount table, and as people are told of it: `U:H:N,…`; empty: there is
/// none.
pub(crate) fn text(map: Option<&IdMap>) -> String {
    let ranges = map.map(IdMap::ranges).unwrap_or_default().iter();
    let words = ranges.map(|range| format!("{}:{}:{}", range.kept, range.shown, range.count));
    words.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Result<Option<IdMap>> {
        parse(&words.iter().map(|word| word.to_string()).collect::<Vec<_>>())
    }

    #[test]
    fn ranges_are_read_and_written() {
        let map = parsed(&["0:100000:65536", "70000:5:1"]).expect("a map").expect("ranges");
        assert_eq!((map.shown(0), map.shown(65_535), map.shown(70_000)), (100_000, 165_535, 5));
        assert_eq!((map.shown(65_536), map.kept(0).is_err()), (NOBODY, true));
        assert_eq!(text(Some(&map)), "0:100000:65536,70000:5:1");
        assert_eq!((parsed(&[]), text(None)), (Ok(None), String::new()));
    }

    #[test]
    fn what_is_no_range_is_one_line() {
        for word in [
            "",
            "1",
            "1:2",
            "1:2:3:4",
            "a:1:1",
            "1:-1:1",
            "+1:1:1",
            "1:1:0",
            "4294967295:0:1",
            "0:4294967290:6",
            "1: 2:3",
            "99999999999:0:1",
        ] {
            let failure = parsed(&[word]).expect_err(word);
            assert_eq!((failure.status, failure.line.lines().count()), (2, 1), "{failure}");
        }
        for words in [["0:100:10", "5:200:10"], ["0:100:10", "20:109:10"], ["3:3:1", "3:3:1"]] {
            let line = parsed(&words).expect_err("they overlap").line;
            assert!(line.contains(words[0]) && line.contains(words[1]), "{line}");
        }
        assert!(parsed(&["0:10:10", "10:0:10"]).is_ok(), "side by side");
    }
}

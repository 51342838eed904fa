//! The list of known differences, `tests/suites/known.txt`, and what a suite's outcomes in a lane
//! are beside it.
//!
//! A line is `SUITE | TEST | DOOR | NUMBER | WHY`: by `library`, `FUSE` or `both`, the test fails
//! that passes on the host, by the difference of that number in docs/semantics.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::suites::SUITES;

/// Each test's name, and whether it passed.
pub type Outcomes = BTreeMap<String, bool>;

/// How a lane is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    /// The preload library.
    Library,
    /// FUSE alone.
    Fuse,
}

impl Door {
    /// As it stands in the list and in the names of files.
    pub const fn name(self) -> &'static str {
        match self {
            Door::Library => "library",
            Door::Fuse => "FUSE",
        }
    }
}

impl fmt::Display for Door {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "by {}", self.name())
    }
}

/// A line of the list.
struct Line {
    suite: String,
    test: String,
    /// None: both.
    door: Option<Door>,
}

/// The list.
pub struct Known(Vec<Line>);

impl Known {
    /// Reads the list of the workspace at `root`.
    ///
    /// # Errors
    /// It cannot be read, or a line is not of its form; the line is named.
    pub fn read(root: &Path) -> Result<Known> {
        let read = |name: &str| {
            let path = root.join(name);
            std::fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        let list = "tests/suites/known.txt";
        Known::parse(&read(list)?, &read("docs/semantics.md")?).context(list)
    }

    /// The lines of `text`; `document` has the differences that they refer to.
    fn parse(text: &str, document: &str) -> Result<Known> {
        let lines = text.lines().enumerate();
        let full = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let parse = |(at, line): (usize, &str)| {
            Line::parse(line, document).with_context(|| format!("line {}: '{line}'", at + 1))
        };
        Ok(Known(full.map(parse).collect::<Result<_>>()?))
    }

    /// The tests of a suite that are known to differ by a door.
    pub fn of(&self, suite: &str, door: Door) -> BTreeSet<String> {
        let here = |line: &&Line| line.suite == suite && line.door.is_none_or(|own| own == door);
        self.0.iter().filter(here).map(|line| line.test.clone()).collect()
    }
}

impl Line {
    fn parse(line: &str, document: &str) -> Result<Line> {
        let fields: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let [suite, test, door, number, why] = fields[..] else {
            anyhow::bail!("a line is SUITE | TEST | DOOR | NUMBER | WHY");
        };
        ensure!(SUITES.iter().any(|known| known.name == suite), "there is no suite '{suite}'");
        ensure!(!why.is_empty(), "the reason is missing");
        let door = match door {
            "library" => Some(Door::Library),
            "FUSE" => Some(Door::Fuse),
            "both" => None,
            _ => anyhow::bail!("a door is library, FUSE or both"),
        };
        let head = format!("\n{number}. **");
        ensure!(document.contains(&head), "docs/semantics.md has no difference '{number}'");
        Ok(Line { suite: suite.into(), test: test.into(), door })
    }
}

/// What a suite's outcomes in a lane are beside the host's and the list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// How many tests pass on the host and in the lane.
    pub same: usize,
    /// Listed, and different.
    pub known: Vec<String>,
    /// Different, and not listed.
    pub unlisted: Vec<String>,
    /// Listed, and pass in the lane.
    pub needless: Vec<String>,
    /// Failed in the lane and passed when they were run again.
    pub flaky: Vec<String>,
}

/// Compares a lane's outcomes with the host's. A test that passes on the host and has no outcome in
/// the lane is different: its program may have died.
pub fn judge(host: &Outcomes, lane: &Outcomes, listed: &BTreeSet<String>) -> Judgement {
    let mut judgement = Judgement::default();
    for name in host.iter().filter(|(_, passed)| **passed).map(|(name, _)| name) {
        let passes = lane.get(name).copied().unwrap_or(false);
        let list = match (passes, listed.contains(name)) {
            (true, false) => {
                judgement.same += 1;
                continue;
            }
            (true, true) => {
                judgement.same += 1;
                &mut judgement.needless
            }
            (false, true) => &mut judgement.known,
            (false, false) => &mut judgement.unlisted,
        };
        list.push(name.clone());
    }
    judgement
}

impl Judgement {
    /// The tests whose outcome would count as wrong.
    pub fn to_run_again(&self) -> Vec<String> {
        self.unlisted.iter().chain(&self.needless).cloned().collect()
    }

    /// A line for each outcome that is wrong.
    pub fn wrong(&self) -> impl Iterator<Item = String> + '_ {
        let unlisted = self.unlisted.iter();
        let unlisted = unlisted.map(|name| format!("{name} passes on the host alone"));
        let needless = self.needless.iter().map(|name| format!("{name} is listed and passes"));
        unlisted.chain(needless)
    }
}

impl fmt::Display for Judgement {
    /// As it stands in a table.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} pass", self.same)?;
        for (what, names) in [
            ("known", &self.known),
            ("**not listed**", &self.unlisted),
            ("**listed and pass**", &self.needless),
            ("passed when run again", &self.flaky),
        ] {
            if !names.is_empty() {
                write!(out, ", {} {what}", names.len())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(pairs: &[(&str, bool)]) -> Outcomes {
        pairs.iter().map(|(name, passed)| ((*name).to_string(), *passed)).collect()
    }

    #[test]
    fn what_passes_on_the_host_alone_is_a_difference() {
        let host = outcomes(&[("a", true), ("b", true), ("c", false), ("d", true), ("e", true)]);
        let lane = outcomes(&[("a", true), ("b", false), ("c", false), ("e", true), ("f", false)]);
        let listed = ["d", "e", "g"].map(String::from).into();
        let judgement = judge(&host, &lane, &listed);
        assert_eq!(judgement.same, 2, "a and e");
        assert_eq!(judgement.unlisted, ["b"]);
        assert_eq!(judgement.known, ["d"], "no outcome is a difference");
        assert_eq!(judgement.needless, ["e"]);
        assert_eq!(judgement.to_run_again(), ["b", "e"]);
        assert_eq!(judgement.wrong().count(), 2);
    }

    #[test]
    fn a_line_that_is_not_of_the_form_is_named() {
        let (suite, document) = (SUITES[0].name, "Differences\n\n5. **Bad pointers**\n");
        let good = format!("# a comment\n\n{suite} | a.b | library | 5 | a bad pointer\n");
        let known = Known::parse(&good, document).unwrap();
        assert!(known.of(suite, Door::Library).contains("a.b"));
        assert!(known.of(suite, Door::Fuse).is_empty());
        for bad in [
            format!("{suite} | a.b | library | 5"),
            format!("{suite} | a.b | library | 6 | a number that is not there"),
            format!("{suite} | a.b | window | 5 | why"),
            format!("{suite} | a.b | both | 5 | "),
            "nothing | a.b | both | 5 | why".to_string(),
        ] {
            let error = Known::parse(&format!("\n{bad}"), document).err().unwrap();
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }

    #[test]
    fn the_list_is_of_its_form() {
        Known::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    }
}

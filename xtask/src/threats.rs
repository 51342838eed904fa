//! Threats: each promise of `docs/design/threats.md` names tests, which must exist.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};

const DOCUMENT: &str = "docs/design/threats.md";

/// Ends the beginning of a name that stands for the whole.
const CUT: char = '…';

/// Checks the last column of the document's tables that end in `test`.
pub fn check(root: &Path) -> Result<()> {
    let text = std::fs::read_to_string(root.join(DOCUMENT)).context(DOCUMENT)?;
    let known = Known::of(root)?;
    let mut wrong = Vec::new();
    for promise in promises(&text) {
        let tests: Vec<&str> = promise.tests.split('`').skip(1).step_by(2).collect();
        if tests.is_empty() && !promise.tests.starts_with("the same") {
            wrong.push(format!("{DOCUMENT}:{}: names no test", promise.line));
        }
        let unknown = tests.iter().flat_map(|test| test.split_whitespace());
        for word in unknown.filter(|word| !known.has(word)) {
            wrong.push(format!("{DOCUMENT}:{}: there is no test {word}", promise.line));
        }
    }
    match wrong.len() {
        0 => Ok(()),
        count => bail!("{}\n{count} wrong test(s) in {DOCUMENT}", wrong.join("\n")),
    }
}

/// One row of a table of promises.
struct Promise<'a> {
    line: usize,
    /// Its last cell.
    tests: &'a str,
}

fn promises(text: &str) -> Vec<Promise<'_>> {
    let (mut found, mut inside) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let cell = line.strip_prefix('|').map(|row| row.trim_end().trim_end_matches('|'));
        let Some(tests) = cell.and_then(|row| row.rsplit('|').next()).map(str::trim) else {
            inside = false;
            continue;
        };
        let is_rule = tests.starts_with('-') && tests.chars().all(|letter| letter == '-');
        if inside && !is_rule {
            found.push(Promise { line: index + 1, tests });
        }
        inside |= tests == "test";
    }
    found
}

/// What a test may be called by.
#[derive(Default)]
struct Known {
    /// Functions, programs and cases of tests, and crates.
    names: BTreeSet<String>,
    /// Sources without their ending.
    files: Vec<String>,
}

impl Known {
    fn of(root: &Path) -> Result<Known> {
        let mut known = Known::default();
        for room in std::fs::read_dir(root.join("crates")).context("crates")?.flatten() {
            known.names.insert(room.file_name().to_string_lossy().into_owned());
        }
        for dir in ["crates", "tests"] {
            known.read(root, &root.join(dir))?;
        }
        Ok(known)
    }

    fn read(&mut self, root: &Path, dir: &Path) -> Result<()> {
        for entry in std::fs::read_dir(dir).context("read sources")?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                self.read(root, &path)?;
            } else if path.extension().is_some_and(|end| end == "rs") {
                let code = std::fs::read_to_string(&path).context("read a source")?;
                let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                self.take(&shown, &code);
            }
        }
        Ok(())
    }

    fn take(&mut self, path: &str, code: &str) {
        let name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let functions = code.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
        self.names.extend(functions.filter(|one| one.chars().all(name)).map(str::to_string));
        if path.starts_with("tests/tests/") || path.contains("/tests/") {
            // Programs in a table of tests, and what an attacker is told to do.
            let entries = code.split(" = ").filter_map(|before| before.split_whitespace().last());
            self.names.extend(entries.map(str::to_string));
            let quoted = code.split('"').filter(|text| text.len() < 32 && !text.contains(' '));
            self.names.extend(quoted.map(str::to_string));
        }
        let stem = path.strip_suffix(".rs").unwrap_or(path);
        self.files.push(stem.strip_suffix("/mod").unwrap_or(stem).to_string());
    }

    fn has(&self, word: &str) -> bool {
        if let Some((path, name)) = word.rsplit_once("::")
            && self.has_file(path)
        {
            return self.has(name) || self.has_file(word);
        }
        if let Some(begin) = word.strip_suffix(CUT) {
            let mut rest = self.names.range(begin.to_string()..);
            return rest.next().is_some_and(|name| name.starts_with(begin));
        }
        self.names.contains(word) || self.has_file(word)
    }

    /// Whether a path, or the end of one, is a source's; `::` may stand for `/`.
    fn has_file(&self, path: &str) -> bool {
        let path =
            path.strip_suffix(".rs").unwrap_or(path).replace("::", "/").replace("/src/", "/");
        self.files.iter().any(|file| {
            let file = file.replace("/src/", "/");
            file == path || file.strip_suffix(&path).is_some_and(|before| before.ends_with('/'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_rows_of_tables_that_end_in_tests() {
        let text = "| who | trusts |\n|---|---|\n| a | `no` |\n\n| promise | test |\n|---|---|\n\
                    | one | `a b_c`, `d…` |\n| two | |\n\nwords\n| x | `y` |\n";
        let found: Vec<_> = promises(text).iter().map(|one| (one.line, one.tests)).collect();
        assert_eq!(found, [(7, "`a b_c`, `d…`"), (8, "")]);
    }

    #[test]
    fn a_test_is_known_by_its_name_its_file_and_the_begin_of_its_name() {
        let mut known = Known::default();
        known.take("crates/pool/src/witness/status.rs", "#[test]\nfn a_long_name() {}\n");
        known.take("tests/tests/topics.rs", "    set_id = Topic { source: \"x-y\" },\n");
        for word in ["a_long_name", "a_long…", "witness/status", "pool/witness/status.rs"] {
            assert!(known.has(word), "{word}");
        }
        for word in ["status", "witness::status", "status::a_long…", "topics.rs", "set_id", "x-y"]
        {
            assert!(known.has(word), "{word}");
        }
        for word in ["a_long", "a_longer…", "tatus", "source", "status::other"] {
            assert!(!known.has(word), "{word}");
        }
    }
}

//! Walks: documents that follow a call through the rooms. Each step names a file and a function;
//! both must exist, or the walk leads astray.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// Checks every document under `docs/walks`.
pub fn check(root: &Path) -> Result<()> {
    let mut wrong = Vec::new();
    let walks = std::fs::read_dir(root.join("docs/walks")).context("docs/walks")?;
    for walk in walks.flatten() {
        let text = std::fs::read_to_string(walk.path()).context("read a walk")?;
        let shown = format!("docs/walks/{}", walk.file_name().to_string_lossy());
        let steps = steps(&text);
        if steps.is_empty() {
            wrong.push(format!("{shown}: no step names a file and a function"));
        }
        for step in steps {
            let path = source(step.file);
            let has = std::fs::read_to_string(root.join(&path))
                .is_ok_and(|code| defines(&code, step.name));
            if !has {
                wrong.push(format!("{shown}:{}: {path} has no function {}", step.line, step.name));
            }
        }
    }
    match wrong.len() {
        0 => Ok(()),
        count => bail!("{}\n{count} wrong step(s) in docs/walks", wrong.join("\n")),
    }
}

struct Step<'a> {
    line: usize,
    file: &'a str,
    name: &'a str,
}

/// Lines of the drawings that begin, after a number perhaps, with a file and a function.
fn steps(text: &str) -> Vec<Step<'_>> {
    let mut drawing = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            drawing = !drawing;
        }
        let mut words = line.split_whitespace().skip_while(|word| word.parse::<u32>().is_ok());
        if let (true, Some(file), Some(name)) = (drawing, words.next(), words.next())
            && file.ends_with(".rs")
        {
            found.push(Step { line: index + 1, file, name });
        }
    }
    found
}

/// `vfs/cache/io.rs` is `crates/vfs/src/cache/io.rs`.
fn source(file: &str) -> String {
    match file.split_once('/') {
        Some((room, rest)) => format!("crates/{room}/src/{rest}"),
        None => file.to_string(),
    }
}

fn defines(code: &str, name: &str) -> bool {
    let ends = |rest: &str| rest.starts_with(['(', '<']);
    code.match_indices("fn ").any(|(at, _)| code[at + 3..].strip_prefix(name).is_some_and(ends))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_lines_of_a_drawing_with_a_file_and_a_function() {
        let text = "a/b.rs no\n```text\n 12  a/b.rs  go  and on\n    c/d/e.rs go_on\n\
                    words\n```\nx/y.rs z\n";
        let found: Vec<_> = steps(text).iter().map(|s| (s.line, s.file, s.name)).collect();
        assert_eq!(found, [(3, "a/b.rs", "go"), (4, "c/d/e.rs", "go_on")]);
        assert_eq!(source("c/d/e.rs"), "crates/c/src/d/e.rs");
    }

    #[test]
    fn a_function_is_found_by_its_whole_name() {
        assert!(defines("pub fn write<T>(x: T) {}", "write") && defines("fn write() {}", "write"));
        assert!(!defines("fn write_all() {}", "write") && !defines("fn rewrite() {}", "write"));
    }
}

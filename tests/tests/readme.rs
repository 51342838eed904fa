//! The README's commands, exactly as a newcomer types them: every line behind a prompt in a
//! `console` block, in one directory, from top to bottom.
//!
//! What a block shows is held against what is printed: words without digits (sizes, dates and
//! hashes differ) must come in the same order.

use std::path::Path;
use std::process::{Command, Stdio};

use polylane_tests::{binary, skip, tool, unavailable};

/// A command, whether it is root's, and the lines that it is shown to print.
#[derive(Debug)]
struct Typed {
    command: String,
    root: bool,
    shown: Vec<String>,
}

/// The commands of all `console` blocks.
fn typed(text: &str) -> Vec<Typed> {
    let mut all: Vec<Typed> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
            continue;
        }
        if !inside {
            continue;
        }
        let prompt = [("$ ", false), ("# ", true)];
        let begun = prompt.into_iter().find_map(|(p, root)| Some((line.strip_prefix(p)?, root)));
        match (begun, all.last_mut()) {
            (Some((command, root)), _) => {
                all.push(Typed { command: command.to_string(), root, shown: Vec::new() });
            }
            (None, Some(last)) if last.shown.is_empty() && is_open(&last.command) => {
                last.command += "\n";
                last.command += line;
            }
            (None, Some(last)) => last.shown.push(line.to_string()),
            (None, None) => panic!("output before any command: {line}"),
        }
    }
    all
}

/// Whether a quotation has not ended.
fn is_open(command: &str) -> bool {
    command.matches('\'').count() % 2 == 1
}

/// Words of a line that do not differ from run to run.
fn words(line: &str) -> Vec<&str> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let lasting = |word: &&str| !word.contains(|c: char| c.is_ascii_digit());
    line.split_whitespace().filter(lasting).filter(|word| !MONTHS.contains(word)).collect()
}

/// Whether `printed` has a line with the words of each line of `shown`.
fn missing<'a>(shown: &'a [String], printed: &str) -> Option<&'a String> {
    shown.iter().find(|line| !printed.lines().any(|printed| words(printed) == words(line)))
}

/// The programs that a command needs besides this one.
fn lacking(command: &str) -> Option<&'static str> {
    let programs = ["git", "sqlite3", "e2fsck"];
    programs.into_iter().find(|name| command.contains(name) && tool(name).is_none())
}

#[test]
fn the_readmes_commands_work_as_they_are_written() {
    let name = "the_readmes_commands_work_as_they_are_written";
    if unavailable(name) {
        return;
    }
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let text = std::fs::read_to_string(readme).expect("README.md");
    let dir = tempfile::tempdir().expect("tempdir");
    let path = std::env::var("PATH").expect("PATH");
    let path = format!("{}:{path}:/usr/sbin:/sbin", binary().parent().expect("a folder").display());
    let at = |command: &str| {
        let mut shell = Command::new("timeout");
        shell.args(["60", "bash", "-c", command]).current_dir(dir.path()).stdin(Stdio::null());
        shell.env("PATH", &path).env("XDG_STATE_HOME", dir.path().join("state")).env("LC_ALL", "C");
        shell.env("HOME", dir.path()).output().expect("bash")
    };
    let devices = at("polylane doctor | grep -q '^ok *attach '").status.success();
    let commands = typed(&text);
    assert!(commands.len() >= 8, "{commands:?}");
    for Typed { command, root, shown } in commands {
        if root && !devices {
            skip(name, &format!("no block devices of volumes here: {command}"));
            continue;
        }
        if let Some(program) = lacking(&command) {
            skip(name, &format!("{program} is not installed: {command}"));
            continue;
        }
        let output = at(&format!("({command}) 2>&1"));
        let printed = String::from_utf8_lossy(&output.stdout);
        // What is shown to fail fails.
        let fails = shown.iter().any(|line| line.contains("cannot access"));
        assert_eq!(output.status.success(), !fails, "{command}: {printed}");
        // Which device it is depends on the host.
        if !root {
            assert_eq!(missing(&shown, &printed), None, "{command}: {printed}");
        }
    }
    at("polylane detach site.img");
}

#[test]
fn commands_are_found_with_what_they_print() {
    let text = "# title\n```sh\n$ no\n```\n```console\n$ a 'b\n  c'\none\n# d\n$ e\n```\n";
    let found = typed(text);
    let told: Vec<_> = found.iter().map(|t| (t.command.as_str(), t.root, t.shown.len())).collect();
    assert_eq!(told, [("a 'b\n  c'", false, 1), ("d", true, 0), ("e", false, 0)]);
    let shown = ["polylane  12G 1% /lane".to_string(), "ab12 first".to_string()];
    assert_eq!(missing(&shown, "x\npolylane 7G 3% /lane\ncd34 first\n"), None);
    assert_eq!(missing(&shown, "polylane 7G /lane\n"), Some(&shown[1]));
}

//! Ratchets over every source file: sizes, headers, forbidden words. Each message names the
//! replacement.
//!
//! What breaks a rule today and is to be mended later stands in `xtask/tidy-exceptions.txt` with
//! its measure. The list may only shrink: a line that is larger than the truth, or not needed any
//! more, is an error too.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::lexer::{blank, functions, line_of, without_tests, words};
use crate::records::{raw_access, untyped_flags};

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 100;

/// Of README.md, which newcomers read whole.
const README_BYTES_MAX: usize = 7 << 10;

/// Crates with unsafe code; every other one forbids it in its root.
const UNSAFE_CRATES: [&str; 3] = ["crates/sys/", "crates/client/", "crates/ceph/src/ffi/"];

/// Crates of which one folder has unsafe code: their roots deny it, and that folder expects it.
const PARTLY_UNSAFE_CRATES: [&str; 1] = ["crates/ceph/"];

/// Begins the reason that a module with unsafe code gives.
const UNSAFETY: &str = "UNSAFETY:";

/// Rooms of which one process may hold many instances: what is static would be shared by them.
const STATELESS_ROOMS: [&str; 5] = [
    "crates/vfs/src/",
    "crates/ipc/src/",
    "crates/front/src/",
    "crates/block/src/",
    "crates/ext4/src/",
];

/// Rooms whose locks and threads a test build may swap for a scheduler that repeats.
const SCHEDULED_ROOMS: [&str; 4] =
    ["crates/vfs/src/", "crates/front/src/", "crates/volume/src/", "crates/pool/src/"];

/// Rooms with structures of a format, on disk or on a wire: they are records, not offsets.
const RECORD_ROOMS: [&str; 11] = [
    "crates/base/src/",
    "crates/block/src/",
    "crates/client/src/",
    "crates/ext4/src/",
    "crates/front/src/",
    "crates/ipc/src/",
    "crates/pool/src/",
    "crates/sys/src/",
    "crates/union/src/",
    "crates/vfs/src/",
    "crates/volume/src/",
];

/// Rooms whose flags are types. The other bits of block and ipc stand beside counts, in words that
/// change atomically as wholes.
const FLAG_ROOMS: [&str; 10] = [
    "crates/base/src/",
    "crates/client/src/",
    "crates/ext4/src/",
    "crates/front/src/",
    "crates/ipc/src/message",
    "crates/pool/src/",
    "crates/sys/src/",
    "crates/union/src/",
    "crates/vfs/src/",
    "crates/volume/src/",
];

/// What reads the wall clock, to stamp files, events, images and lines of logs. Whatever else takes
/// time goes by the monotonic clock, which nobody sets and which stands still in a suspended host.
const STAMPERS: [&str; 9] = [
    "crates/base/src/clock.rs",
    "crates/bench/src/report.rs",
    "crates/ceph/src/fs.rs",
    "crates/client/src/rights/lease/mod.rs",
    "crates/client/src/rights/view.rs",
    "crates/daemon/src/events.rs",
    "crates/engine/src/container.rs",
    "crates/image/src/store.rs",
    "crates/volume/src/log.rs",
];

/// Names of the wall clock.
const WALL_CLOCKS: [&str; 5] =
    ["SystemTime", "Realtime", "RealtimeCoarse", "CLOCK_REALTIME", "FUTEX_CLOCK_REALTIME"];

/// Types that make a `static` a variable.
const CELLS: [&str; 12] = [
    "AtomicBool",
    "AtomicPtr",
    "AtomicU16",
    "AtomicU32",
    "AtomicU64",
    "AtomicUsize",
    "LazyLock",
    "Mutex",
    "OnceLock",
    "RwLock",
    "RefCell",
    "UnsafeCell",
];

/// Directories of one machine or one person.
const MACHINE_PATHS: [&str; 3] = ["/home/", "/root/", "/Users/"];

/// One broken rule.
#[derive(Debug)]
struct Finding {
    rule: &'static str,
    path: String,
    /// What in the file: a function's name, or `-`.
    what: String,
    line: usize,
    /// The measure for rules that have one, else the number of this rule's hits is counted.
    measure: Option<usize>,
    message: String,
}

/// One source file, read once, in the three forms the rules look at.
struct Source {
    path: String,
    text: String,
    /// Comments and literals blanked out.
    code: Vec<char>,
    /// The same without `#[cfg(test)]` modules.
    product: Vec<char>,
    /// The file, or the head of its folder, says what its unsafe code is for.
    unsafe_explained: bool,
}

/// Checks every Rust file of the workspace.
pub fn check(root: &Path) -> Result<()> {
    let mut files = Vec::new();
    for top in ["crates", "tests", "xtask"] {
        collect(&root.join(top), &mut files)?;
    }
    files.sort();
    let mut findings = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        let path = file.strip_prefix(root).unwrap_or(file).display().to_string();
        let mut source = Source::new(path, text);
        // The head of a folder of modules speaks for all of them.
        let head = fs::read_to_string(file.with_file_name("mod.rs")).unwrap_or_default();
        source.unsafe_explained |= head.contains(UNSAFETY);
        findings.extend(inspect(&source));
    }
    findings.extend(readme(&fs::read_to_string(root.join("README.md")).context("README.md")?));
    let list = root.join("xtask/tidy-exceptions.txt");
    let list = fs::read_to_string(&list).with_context(|| format!("read {}", list.display()))?;
    let wrong = compare(findings, exceptions(&list)?);
    for line in &wrong {
        eprintln!("tidy: {line}");
    }
    match wrong.len() {
        0 => Ok(()),
        count => bail!("{count} finding(s) in {} files", files.len()),
    }
}

fn readme(text: &str) -> Option<Finding> {
    let bytes = text.len();
    let message = format!("{bytes} bytes, {README_BYTES_MAX} at most: details belong in docs/");
    let (rule, path, what) = ("readme", "README.md".into(), "-".into());
    let long = Finding { rule, path, what, line: 1, measure: Some(bytes), message };
    (bytes > README_BYTES_MAX).then_some(long)
}

fn collect(dir: &Path, files: &mut Vec<std::path::PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if entry.file_name() != "target" {
                collect(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

impl Source {
    fn new(path: String, text: String) -> Self {
        let code = blank(&text);
        let product = without_tests(&code);
        let unsafe_explained = text.contains(UNSAFETY);
        Source { path, text, code, product, unsafe_explained }
    }

    fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }

    fn is_in(&self, rooms: &[&str]) -> bool {
        rooms.iter().any(|room| self.path.starts_with(room))
    }

    fn is_crate_root(&self) -> bool {
        self.path.ends_with("src/lib.rs") || self.path.ends_with("src/main.rs")
    }

    fn finding(&self, rule: &'static str, line: usize, message: &str) -> Finding {
        let (path, message) = (self.path.clone(), message.to_string());
        Finding { rule, path, what: "-".into(), line, measure: None, message }
    }
}

fn inspect(source: &Source) -> Vec<Finding> {
    let mut found = sizes(source);
    found.extend(header(source));
    found.extend(unsafety(source));
    found.extend(forbidden_words(source));
    found.extend(statics(source));
    found.extend(schedule(source));
    found.extend(machine_paths(source));
    found.extend(wall_clock(source));
    found.extend(raw_records(source));
    found
}

fn sizes(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for function in functions(&source.code) {
        if function.lines > FUNCTION_LINES_MAX {
            let message = format!(
                "function {} has {} lines, {FUNCTION_LINES_MAX} at most: name its steps and make \
                 them functions",
                function.name, function.lines
            );
            let mut finding = source.finding("function-lines", function.line, &message);
            finding.what = function.name;
            finding.measure = Some(function.lines);
            found.push(finding);
        }
    }
    let lines = source.product.iter().filter(|c| **c == '\n').count();
    if lines > FILE_LINES_MAX && !source.is_test() {
        let message = format!(
            "{lines} lines without tests, {FILE_LINES_MAX} at most: make it a folder of modules"
        );
        let mut finding = source.finding("file-lines", 1, &message);
        finding.measure = Some(lines);
        found.push(finding);
    }
    for (index, line) in source.text.lines().enumerate() {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let message = format!("{columns} columns, {COLUMNS_MAX} at most: break the line");
            found.push(source.finding("columns", index + 1, &message));
        }
    }
    found
}

fn header(source: &Source) -> Option<Finding> {
    let message = "no `//!` header: say what the file is, its invariants, its lock order";
    (!source.text.starts_with("//!")).then(|| source.finding("header", 1, message))
}

fn unsafety(source: &Source) -> Vec<Finding> {
    if source.is_in(&UNSAFE_CRATES) {
        let unsafe_here = words(&source.code).iter().any(|(_, word)| word == "unsafe");
        let explained = source.unsafe_explained || source.is_test();
        let message = "unsafe without `#![expect(unsafe_code, reason = \"UNSAFETY: …\")]` at the \
                       head of the file: say what for";
        let wrong = unsafe_here && !explained;
        return wrong.then(|| source.finding("unsafety", 1, message)).into_iter().collect();
    }
    let mut found = Vec::new();
    let mut rule = "#![forbid(unsafe_code)]";
    if source.is_in(&PARTLY_UNSAFE_CRATES) {
        rule = "#![deny(unsafe_code)]";
    }
    if source.is_crate_root() && !source.text.contains(rule) {
        let message = "crate root without `#![forbid(unsafe_code)]`";
        found.push(source.finding("unsafety", 1, message));
    }
    for (at, word) in words(&source.code) {
        if word == "unsafe" {
            let message = "unsafe outside crates/sys and crates/client: give sys a safe function \
                           for it";
            found.push(source.finding("unsafety", line_of(&source.code, at), message));
        }
    }
    found
}

fn forbidden_words(source: &Source) -> Vec<Finding> {
    let mut found = Vec::new();
    for (at, word) in words(&source.code) {
        let next = source.code.get(at + word.chars().count());
        let message = match (word.as_str(), next) {
            ("todo" | "unimplemented", Some('!')) => "write it, or leave the function out",
            ("dbg", Some('!')) => "use the tracer or a test's assertion",
            _ => continue,
        };
        found.push(source.finding("macro", line_of(&source.code, at), message));
    }
    let served = source.is_in(&STATELESS_ROOMS) && !source.is_test();
    let unwrap: Vec<char> = ".unwrap()".chars().collect();
    for (at, window) in source.product.windows(unwrap.len()).enumerate() {
        if served && window == unwrap {
            let message = "unwrap() where a peer may be hostile: return an Errno, or \
                           expect(\"why it cannot fail\")";
            found.push(source.finding("unwrap", line_of(&source.product, at), message));
        }
    }
    found
}

fn statics(source: &Source) -> Vec<Finding> {
    if !source.is_in(&STATELESS_ROOMS) || source.is_test() {
        return Vec::new();
    }
    let message = "state outside an instance: hang it off the Vfs, Lane or channel it belongs to";
    let mut found = Vec::new();
    for (at, word) in words(&source.product) {
        let lifetime = at > 0 && source.product[at - 1] == '\'';
        let shared = match word.as_str() {
            "thread_local" => true,
            "static" if !lifetime => {
                let item: String =
                    source.product[at..].iter().take_while(|c| !matches!(**c, '=' | ';')).collect();
                CELLS.iter().any(|cell| item.contains(cell)) || item.starts_with("static mut")
            }
            _ => false,
        };
        if shared {
            found.push(source.finding("static", line_of(&source.product, at), message));
        }
    }
    found
}

fn schedule(source: &Source) -> Vec<Finding> {
    if !source.is_in(&SCHEDULED_ROOMS) || source.is_test() {
        return Vec::new();
    }
    let text: String = source.product.iter().collect();
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let name = ["std::thread", "std::sync::Mutex", "std::sync::RwLock", "std::sync::Condvar"]
            .into_iter()
            .find(|name| line.contains(name));
        if let Some(name) = name {
            let replacement = name.replace("std::sync", "sync").replace("std::", "sync::");
            let message = format!("{name}: use polylane_base::{replacement}");
            found.push(source.finding("schedule", index + 1, &message));
        }
    }
    found
}

/// A clock that can be set, in a file that does not stamp things.
fn wall_clock(source: &Source) -> Vec<Finding> {
    if source.is_test() || !source.is_in(&["crates/"]) || source.is_in(&STAMPERS) {
        return Vec::new();
    }
    let message = "the wall clock, which can be set: wait and measure by Instant or \
                   ClockId::Monotonic; stamp files by base::clock";
    let text: String = source.product.iter().collect();
    let is_read = |line: &str| {
        let names = ["ClockId::", "SystemTime::now", "libc::", "use "];
        names.iter().any(|name| line.contains(name))
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_read(line));
    let named = lines.filter(|(_, line)| {
        let all: Vec<char> = line.chars().collect();
        words(&all).iter().any(|(_, word)| WALL_CLOCKS.contains(&word.as_str()))
    });
    named.map(|(index, _)| source.finding("wall-clock", index + 1, message)).collect()
}

fn raw_records(source: &Source) -> Vec<Finding> {
    if !source.is_in(&RECORD_ROOMS) || source.is_test() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (at, what) in raw_access(&source.product) {
        let message = format!(
            "{what}: a structure of a format by raw offsets; declare it with base::record!, or use \
             the integers of zerocopy"
        );
        found.push(source.finding("record", line_of(&source.product, at), &message));
    }
    let flags = if source.is_in(&FLAG_ROOMS) { untyped_flags(&source.product) } else { Vec::new() };
    for (at, what) in flags {
        let message = format!("{what}: flags are types of bitflags, or an enum where they exclude");
        found.push(source.finding("flags", line_of(&source.product, at), &message));
    }
    found
}

fn machine_paths(source: &Source) -> Vec<Finding> {
    if source.path == "xtask/src/tidy.rs" {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (index, line) in source.text.lines().enumerate() {
        if let Some(path) = MACHINE_PATHS.iter().find(|path| line.contains(**path)) {
            let message = format!("{path}: a path of one machine; take it from the environment");
            found.push(source.finding("machine-path", index + 1, &message));
        }
    }
    found
}

type Key = (String, String, String);

/// Reads lines `RULE PATH WHAT MEASURE`; `#` starts a comment.
fn exceptions(list: &str) -> Result<BTreeMap<Key, usize>> {
    let mut known = BTreeMap::new();
    for line in list.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            continue;
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [rule, path, what, measure] = fields[..] else {
            bail!("tidy-exceptions.txt: '{line}' is not RULE PATH WHAT MEASURE");
        };
        let measure = measure.parse().with_context(|| format!("tidy-exceptions.txt: '{line}'"))?;
        known.insert((rule.into(), path.into(), what.into()), measure);
    }
    Ok(known)
}

/// What is wrong: findings beyond the exceptions, and exceptions beyond the findings.
fn compare(findings: Vec<Finding>, mut known: BTreeMap<Key, usize>) -> Vec<String> {
    let mut groups: BTreeMap<Key, Vec<Finding>> = BTreeMap::new();
    for finding in findings {
        let key = (finding.rule.to_string(), finding.path.clone(), finding.what.clone());
        groups.entry(key).or_default().push(finding);
    }
    let mut wrong = Vec::new();
    for (key, group) in groups {
        let measure = group.iter().filter_map(|finding| finding.measure).max();
        let measure = measure.unwrap_or(group.len());
        let allowed = known.remove(&key).unwrap_or(0);
        if measure > allowed {
            let show = |f: &Finding| format!("{}:{}: [{}] {}", f.path, f.line, f.rule, f.message);
            wrong.extend(group.iter().map(show));
        } else if measure < allowed {
            let (rule, path, what) = key;
            wrong.push(format!("exception {rule} {path} {what}: lower it to {measure}"));
        }
    }
    let unused = |(rule, path, what): Key| format!("exception {rule} {path} {what}: remove it");
    wrong.extend(known.into_keys().map(unused));
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_readme_is_found() {
        assert!(readme(&"x".repeat(README_BYTES_MAX)).is_none());
        assert!(readme(&"x".repeat(README_BYTES_MAX + 1)).is_some());
    }

    fn rules(path: &str, text: &str) -> Vec<&'static str> {
        let source = Source::new(path.into(), text.into());
        inspect(&source).into_iter().map(|finding| finding.rule).collect()
    }

    const VFS: &str = "crates/vfs/src/x.rs";

    #[test]
    fn a_clean_file_passes() {
        let text = "//! x\nfn f(a: &'static str) { let _ = \"todo! unsafe\"; } // unsafe, dbg!\n";
        assert!(rules(VFS, text).is_empty());
    }

    #[test]
    fn each_rule_can_fail() {
        let long = format!("//! x\nfn f() {{\n{}}}\n", "x();\n".repeat(70));
        assert_eq!(rules(VFS, &long), ["function-lines"]);
        let big = format!("//! x\n{}", "\n".repeat(700));
        assert_eq!(rules(VFS, &big), ["file-lines"]);
        assert_eq!(rules("crates/vfs/tests/x.rs", &big), [""; 0]);
        assert_eq!(rules(VFS, &format!("//! {}\n", "x".repeat(100))), ["columns"]);
        assert_eq!(rules(VFS, "fn f() {}\n"), ["header"]);
        assert_eq!(rules(VFS, "//! x\nfn f() { unsafe { g() } }\n"), ["unsafety"]);
        assert_eq!(rules("crates/sys/src/x.rs", "//! x\nunsafe fn f() {}\n"), ["unsafety"]);
        assert_eq!(rules("crates/vfs/src/lib.rs", "//! x\n"), ["unsafety"]);
        assert_eq!(rules(VFS, "//! x\nfn f() { todo!() }\n"), ["macro"]);
        assert_eq!(rules(VFS, "//! x\nfn f() { g().unwrap() }\n"), ["unwrap"]);
        assert_eq!(rules(VFS, "//! x\nstatic A: AtomicU32 = AtomicU32::new(0);\n"), ["static"]);
        assert_eq!(rules(VFS, "//! x\nuse std::sync::Mutex;\n"), ["schedule"]);
        assert_eq!(rules(VFS, "//! x\nconst A: &str = \"/root/x\";\n"), ["machine-path"]);
        let wall = "//! x\nfn f() { let now = clock_gettime(ClockId::Realtime); }\n";
        assert_eq!(rules(VFS, wall), ["wall-clock"]);
        assert_eq!(rules("crates/base/src/clock.rs", wall), [""; 0]);
        let raw = "//! x\nfn f(b: &[u8]) -> u8 { b[0x1e] }\n";
        assert_eq!(rules("crates/ext4/src/x.rs", raw), ["record"]);
        let flags = "//! x\nconst A: u32 = 1 << 0;\nconst B: u32 = 1 << 1;\n";
        assert_eq!(rules("crates/ext4/src/x.rs", flags), ["flags"]);
    }

    #[test]
    fn test_modules_may_unwrap() {
        let text = "//! x\n#[cfg(test)]\nmod tests {\n fn f() { g().unwrap() }\n}\n";
        assert!(rules(VFS, text).is_empty());
    }

    #[test]
    fn exceptions_may_only_shrink() {
        let findings = || inspect(&Source::new(VFS.into(), "//! x\nfn f() { a.unwrap() }".into()));
        let list = |text: &str| exceptions(text).expect("well-formed");
        assert_eq!(compare(findings(), list("")).len(), 1);
        assert!(compare(findings(), list("unwrap crates/vfs/src/x.rs - 1")).is_empty());
        assert!(compare(findings(), list("unwrap crates/vfs/src/x.rs - 2"))[0].contains("lower"));
        let unused = list("unwrap crates/vfs/src/x.rs - 1\nheader crates/vfs/src/x.rs - 1");
        assert!(compare(findings(), unused)[0].contains("remove"));
        assert!(exceptions("unwrap x").is_err());
    }
}

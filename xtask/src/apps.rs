//! `cargo xtask apps`: programs that people run, on ext4 volumes, by each way into a lane.
//!
//! A program is a shell script `tests/apps/NAME.sh` that starts in an empty lane, fails when
//! anything it finds is not as it must be, and ends with a line that says how fast it was. It knows
//! `LANE` (the lane's path), `SECONDS_EACH` (how long a load runs), `CACHE` (a directory of the
//! host for what all runs share) and `OTHER`: what it puts before some of its commands, nothing or
//! what takes the preload library from them (an `LD_PRELOAD` of another value: one that is missing
//! the library puts back). First each runs in a directory of the host: what fails there is not the
//! lane's. When a script has ended, all that it left is removed: the lane must have the free blocks
//! and inodes that it began with. After each run e2fsck looks at the volume. What a failed script
//! did is in `apps-NAME.log` beside the binary.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

/// A program and what its script needs.
struct App {
    name: &'static str,
    about: &'static str,
    needs: &'static [&'static str],
    /// Seconds after which it has failed.
    limit: u32,
    /// A second script, with the lane as root file system.
    as_root_file_system: Option<&'static str>,
}

const fn app(
    name: &'static str,
    about: &'static str,
    needs: &'static [&'static str],
    limit: u32,
) -> App {
    App { name, about, needs, limit, as_root_file_system: None }
}

const APPS: &[App] = &[
    app("postgresql", "initdb, pgbench, kill -9, recovery, sums", &["pgbench", "setpriv"], 240),
    app(
        "mariadb",
        "sysbench update_index, kill -9, recovery, CHECK",
        &["mariadbd", "mariadb-install-db", "sysbench"],
        300,
    ),
    app("rocksdb", "db_bench: fill, read, half and half, checksums", &["db_bench"], 300),
    app("redis", "append-only file, rewrite, kill -9, digest", &["redis-server"], 120),
    app("nginx", "a changing directory under wrk", &["nginx", "wrk", "curl"], 120),
    app("tree", "100 000 files unpacked, compared, removed", &["tar", "/usr/bin/python3"], 600),
    app("node", "npm install of three packages; they work", &["node", "npm"], 300),
    app("cargo", "a workspace built, tested, changed, built", &["cargo"], 300),
    app("java", "javac, jar, java with maps and locks", &["javac", "jar", "java"], 120),
    App {
        name: "dpkg",
        about: "a Debian unpacked; dpkg and apt in it as the root file system",
        needs: &["debootstrap"],
        limit: 600,
        as_root_file_system: Some("dpkg-root"),
    },
    app(
        "python",
        "test_os io shutil tempfile subprocess mmap asyncio sqlite3",
        &["/usr/bin/python3"],
        1500,
    ),
    app(
        "ltp",
        "the Linux Test Project's runtest/fs and file system calls",
        &["${POLYLANE_LTP:-no-POLYLANE_LTP}/runtest/fs"],
        3000,
    ),
    app(
        "xfstests",
        "xfstests' quick generic tests that need one file system",
        &["${POLYLANE_XFSTESTS:-no-POLYLANE_XFSTESTS}/tests/generic/001", "losetup"],
        2500,
    ),
];

/// How a program's files are reached.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A directory of the host; no lane.
    Host,
    /// The preload library.
    Preload,
    /// FUSE alone.
    Fuse,
    /// The preload library, but for the commands that scripts mark with `OTHER`.
    Mixed,
}

const WAYS: [(Way, &str); 4] = [
    (Way::Host, "no lane"),
    (Way::Preload, "preload"),
    (Way::Fuse, "FUSE only"),
    (Way::Mixed, "mixed"),
];

/// Runs `SCRIPT` in a fresh lane, and removes what it left; fails where blocks or inodes do not
/// come back. A directory keeps its blocks, as in Linux, so those of the root count as free. What
/// the kernel has not forgotten yet is waited for, 10 seconds at most.
const COUNTED: &str = r#"
free() {
    set -- $(stat -f -c '%f %d %S' .) $(stat -c '%b %B' .)
    echo "$(($1 + $4 * $5 / $3)) blocks, $2 inodes"
}
began=$(free)
(
SCRIPT
)
cd "$LANE"
find . -mindepth 1 -maxdepth 1 ! -name lost+found -exec rm -rf {} +
for _ in $(seq 100); do
    ended=$(free)
    [ "$ended" != "$began" ] || exit 0
    sleep 0.1
done
echo "free at the begin: $began; when all was removed: $ended" >&2
exit 1
"#;

/// Runs the named programs, or all, in every way and prints a table in Markdown.
///
/// # Errors
/// One failed in a lane and not without.
pub fn run(root: &Path, target: &Path, names: &[String]) -> Result<()> {
    if let Some(wrong) = names.iter().find(|name| APPS.iter().all(|app| app.name != **name)) {
        bail!("there is no program '{wrong}'");
    }
    let binary = target.join("release/polylane");
    ensure!(binary.exists(), "{} is missing; run make build", binary.display());
    let heads = WAYS.map(|(_, name)| name).join(" | ");
    let mut table = format!("| program | what | {heads} |\n|---|---|---|---|---|---|\n");
    let mut failed = 0;
    for app in APPS.iter().filter(|app| names.is_empty() || names.iter().any(|n| n == app.name)) {
        let mut row = format!("| {} | {} |", app.name, app.about);
        let lacks = app.needs.iter().find(|tool| !is_there(tool));
        let mut sound_without = true;
        for (way, _) in WAYS {
            let cell = match lacks {
                Some(tool) => format!("skipped: no {tool}"),
                None if way == Way::Host && app.as_root_file_system.is_some() => "–".into(),
                None => match app.run(root, &binary, way)? {
                    Ok(said) => said,
                    Err(said) => {
                        sound_without &= way != Way::Host;
                        failed += usize::from(sound_without);
                        format!("**fails**: {said}")
                    }
                },
            };
            eprintln!("xtask: {} {}: {cell}", app.name, name_of(way));
            let _ = write!(row, " {cell} |");
        }
        table += &(row + "\n");
    }
    println!("{table}");
    ensure!(failed == 0, "{failed} failed");
    Ok(())
}

fn name_of(way: Way) -> &'static str {
    WAYS.iter().find(|(known, _)| *known == way).map_or("", |(_, name)| name)
}

/// Whether there is such a program, or executable file.
pub fn is_there(tool: &str) -> bool {
    let look = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
    look.is_ok_and(|done| done.status.success())
}

impl App {
    /// How it went: what it says of its speed and how long it took, or what went wrong.
    fn run(&self, root: &Path, binary: &Path, way: Way) -> Result<Result<String, String>> {
        let dir = Scratch::new(self.name)?;
        let volume = dir.0.join("volume.img");
        let begin = Instant::now();
        let mut said = self.script(root, binary, way, &dir.0, self.name, &["--at", "/lane"])?;
        if let (Ok(_), Some(second)) = (&said, self.as_root_file_system) {
            said = self.script(root, binary, way, &dir.0, second, &["--root"])?;
        }
        if way != Way::Host {
            let check = Command::new(binary).args(["volume", "check"]).arg(&volume).output()?;
            if !check.status.success() {
                said = Err(format!("volume check: {}", last_line(&check.stderr)));
            }
        }
        let seconds = begin.elapsed().as_secs();
        Ok(said.map(|speed| format!("{speed}, {seconds} s").trim_start_matches(", ").to_string()))
    }

    fn script(
        &self,
        root: &Path,
        binary: &Path,
        way: Way,
        dir: &Path,
        name: &str,
        place: &[&str],
    ) -> Result<Result<String, String>> {
        let path = root.join(format!("tests/apps/{name}.sh"));
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let lane = if way == Way::Host { dir.display().to_string() } else { "/lane".into() };
        let mut command = Command::new("timeout");
        let limit = self.limit * patience();
        command.args(["--kill-after=20", &limit.to_string()]);
        if way != Way::Host {
            command.arg(binary).args(["run", "--size", "8G", "--volume"]);
            command.arg(dir.join("volume.img")).args(place);
            command.args((way == Way::Fuse).then_some("--no-preload")).arg("--");
        }
        let keeps = way == Way::Host || self.as_root_file_system.is_some();
        let text = if keeps { text } else { COUNTED.replace("SCRIPT", &text) };
        let start = if place.contains(&"--root") { "/" } else { lane.as_str() };
        command.args(["sh", "-euxc", &format!("cd {start}\n{text}")]);
        let seconds = std::env::var("POLYLANE_APPS_SECONDS").unwrap_or_else(|_| "60".into());
        let other = if way == Way::Mixed { "env LD_PRELOAD=" } else { "" };
        command.env("OTHER", other).env("LANE", lane).env("SECONDS_EACH", seconds);
        let cache = binary.with_file_name("apps-cache");
        std::fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
        command.env("CACHE", cache).stdin(Stdio::null()).current_dir(dir);
        let done = command.output().context("run timeout")?;
        Ok(match done.status.code() {
            Some(0) => Ok(last_line(&done.stdout)),
            Some(124 | 137) => Err(format!("not done after {limit} s")),
            code => {
                let log = binary.with_file_name(format!("apps-{name}.log"));
                std::fs::write(&log, &done.stderr).with_context(|| log.display().to_string())?;
                let words = [last_line(&done.stdout), last_line(&done.stderr)].join(" ");
                Err(format!("{} (status {})", words.trim(), code.unwrap_or(-1)))
            }
        })
    }
}

/// How many times its limit a program may take: `POLYLANE_APPS_PATIENCE`, for hosts that are busy.
pub fn patience() -> u32 {
    let said = std::env::var("POLYLANE_APPS_PATIENCE").ok();
    said.and_then(|number| number.parse().ok()).unwrap_or(1)
}

/// The last line that is not empty, as it can stand in a table.
pub fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim().replace('|', "/").chars().take(200).collect()
}

/// A directory that goes with this value.
pub struct Scratch(pub PathBuf);

impl Scratch {
    /// Makes an empty directory for `name` in the host's directory for temporary files.
    pub fn new(name: &str) -> Result<Scratch> {
        let path = std::env::temp_dir().join(format!("polylane-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
        // Servers that are not root pass through it.
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("xtask: {}: {error}", self.0.display());
        }
    }
}

//! Files of the desired state, and the commands that bring it about.
//!
//! All files `*.toml` of one directory, in the order of their names, hold `[[pool]]` and
//! `[[mount]]` tables, but for `oci.toml`. A word that is not known is an error: a mistyped limit
//! is not passed over.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polylane_base::errno::plain;
use serde::Deserialize;

use crate::command::TIME_MAX;

/// What annotations of containers may name, for `polylane oci`: nothing of the daemon's.
const NOT_OURS: &str = "oci.toml";

/// Most bytes of one file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What is to be there.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Desired {
    #[serde(default)]
    pub(crate) daemon: Settings,
    #[serde(default, rename = "pool")]
    pub(crate) pools: Vec<Pool>,
    #[serde(default, rename = "mount")]
    pub(crate) mounts: Vec<Mount>,
}

/// Settings of the daemon itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Settings {
    /// Whose members are served beside the daemon's user: a name of /etc/group or a number.
    pub(crate) group: Option<String>,
    /// Seconds that each pool and mount of the desired state may take.
    time_limit: Option<u16>,
}

impl Settings {
    /// How long each pool and mount of the desired state may take.
    pub(crate) fn time_limit(&self) -> Duration {
        self.time_limit.map_or(TIME_MAX, |seconds| Duration::from_secs(seconds.into()))
    }
}

/// A pool that lasts; its limits as `polylane pool create` takes them.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Pool {
    pub(crate) name: String,
    cpus: Option<String>,
    memory: Option<String>,
    pids: Option<u64>,
    weight: Option<u32>,
    dirty_limit: Option<String>,
    ceph_cache: Option<String>,
    ceph_read_ahead: Option<String>,
    ceph_threads: Option<u32>,
    /// Kinds of namespaces that its containers have together.
    #[serde(default)]
    ns: Vec<String>,
}

/// A lane; its options as `polylane mount` takes them.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mount {
    pub(crate) source: String,
    pub(crate) path: PathBuf,
    #[serde(default)]
    lower: Vec<String>,
    /// Ranges `U:H:N`.
    #[serde(default, rename = "map-users")]
    map_users: Vec<String>,
    pub(crate) pool: Option<String>,
    pub(crate) size: Option<String>,
    pub(crate) weight: Option<u32>,
    #[serde(default)]
    share: bool,
    #[serde(default)]
    ro: bool,
    /// Mounts of it can be id-mapped.
    #[serde(default)]
    idmap: bool,
    #[serde(default)]
    noatime: bool,
    #[serde(default)]
    nodiratime: bool,
}

impl Pool {
    /// Arguments of the command that makes it or sets its limits, for a member of the daemon's
    /// group or the daemon's user.
    pub(crate) fn command(&self, member: Option<u32>) -> Vec<String> {
        let mut words = ["pool", "create", "--once"].map(str::to_string).to_vec();
        words.extend(member.map(|user| format!("--member={user}")));
        words.extend(self.options());
        words.extend(["--".to_string(), self.name.clone()]);
        words
    }

    fn options(&self) -> Vec<String> {
        let options = [
            ("cpus", self.cpus.clone()),
            ("memory", self.memory.clone()),
            ("pids", self.pids.map(|count| count.to_string())),
            ("weight", self.weight.map(|weight| weight.to_string())),
            ("dirty-limit", self.dirty_limit.clone()),
            ("ceph-cache", self.ceph_cache.clone()),
            ("ceph-read-ahead", self.ceph_read_ahead.clone()),
            ("ceph-threads", self.ceph_threads.map(|count| count.to_string())),
            ("ns", Some(self.ns.join(",")).filter(|kinds| !kinds.is_empty())),
        ];
        options.into_iter().filter_map(|(name, value)| option(name, value)).collect()
    }
}

impl Mount {
    /// A mount without options.
    pub(crate) fn of(source: String, path: PathBuf) -> Mount {
        Mount {
            source,
            path,
            lower: Vec::new(),
            map_users: Vec::new(),
            pool: None,
            size: None,
            weight: None,
            share: false,
            ro: false,
            idmap: false,
            noatime: false,
            nodiratime: false,
        }
    }

    /// Arguments of the command that mounts it, unless it is mounted.
    pub(crate) fn command(&self) -> Vec<String> {
        let mut words = vec!["mount".to_string(), "--once".to_string()];
        let options = [
            ("pool", self.pool.clone()),
            ("size", self.size.clone()),
            ("weight", self.weight.map(|weight| weight.to_string())),
        ];
        words.extend(options.into_iter().filter_map(|(name, value)| option(name, value)));
        words.extend(self.lower.iter().map(|lower| format!("--lower={lower}")));
        words.extend(self.map_users.iter().map(|range| format!("--map-users={range}")));
        let flags = [
            ("--share", self.share),
            ("--ro", self.ro),
            ("--idmap", self.idmap),
            ("--noatime", self.noatime),
            ("--nodiratime", self.nodiratime),
        ];
        words.extend(flags.iter().filter(|(_, on)| *on).map(|(name, _)| (*name).to_string()));
        words.extend(["--".to_string(), self.source.clone(), self.path.display().to_string()]);
        words
    }
}

impl Mount {
    /// Whether its path, its source or a lower of it is below another mount's path.
    fn lies_in(&self, other: &Mount) -> bool {
        // Words may stand before a path (`fixed:dir:PATH`), and colons in it.
        let files = |source| {
            std::iter::successors(Some(source), |rest: &&str| {
                rest.split_once(':').map(|(_, rest)| rest)
            })
        };
        let sources = std::iter::once(&self.source).chain(&self.lower);
        let mut all = sources.flat_map(|source| files(source.as_str())).map(Path::new);
        self.path != other.path
            && (self.path.starts_with(&other.path) || all.any(|path| path.starts_with(&other.path)))
    }
}

/// Takes what a file says, unless another has said it: then it is said `twice`.
fn once<T>(own: &mut Option<T>, said: Option<T>, twice: impl FnOnce(T)) {
    match (&*own, said) {
        (Some(_), Some(said)) => twice(said),
        (Some(_), None) => {}
        (None, said) => *own = said,
    }
}

/// One word, so that a value cannot be taken for an option.
fn option(name: &str, value: Option<String>) -> Option<String> {
    value.map(|value| format!("--{name}={value}"))
}

/// Reads a directory, and what is wrong there, one line each: a file that cannot be read or
/// understood, a pool or path that is there twice. What is wrong is left out. A directory that is
/// absent desires nothing.
pub(crate) fn read(dir: &Path) -> (Desired, Vec<String>) {
    let (mut desired, mut faults) = (Desired::default(), Vec::new());
    let files = files(dir).unwrap_or_else(|error| {
        faults.push(format!("{}: {}", dir.display(), plain(&error)));
        Vec::new()
    });
    for path in files {
        match read_file(&path) {
            Ok(file) => desired.add(file, &path, &mut faults),
            Err(why) => faults.push(format!("{}: {why}", path.display())),
        }
    }
    (desired, faults)
}

/// The files of a directory, in the order of their names.
fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut files: Vec<PathBuf> = paths.collect::<io::Result<_>>()?;
    files.retain(|path| {
        path.extension().is_some_and(|extension| extension == "toml") && !path.ends_with(NOT_OURS)
    });
    files.sort();
    Ok(files)
}

fn read_file(path: &Path) -> Result<Desired, String> {
    let read = |error: io::Error| plain(&error);
    let metadata = fs::metadata(path).map_err(read)?;
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(format!("no file of at most {FILE_BYTES_MAX} bytes"));
    }
    parse(&fs::read_to_string(path).map_err(read)?)
}

impl Desired {
    /// Adds what a file says, without what is there already.
    fn add(&mut self, file: Desired, path: &Path, faults: &mut Vec<String>) {
        let mut twice = |what: String| faults.push(format!("{}: {what} twice", path.display()));
        for pool in file.pools {
            match self.pools.iter().any(|other| other.name == pool.name) {
                true => twice(format!("pool {}", pool.name)),
                false => self.pools.push(pool),
            }
        }
        for mount in file.mounts {
            match self.mounts.iter().any(|other| other.path == mount.path) {
                true => twice(format!("path {}", mount.path.display())),
                false => self.mounts.push(mount),
            }
        }
        once(&mut self.daemon.group, file.daemon.group, |group| twice(format!("group {group}")));
        let limit = file.daemon.time_limit;
        once(&mut self.daemon.time_limit, limit, |limit| twice(format!("time-limit {limit}")));
    }

    /// For each mount the numbers of those that come before it: in which it lies, by its path or
    /// its source. In a circle none comes before another: all are tried, and say why they cannot
    /// be.
    pub(crate) fn mounts_before(&self) -> Vec<Vec<usize>> {
        let lies_in = |one: usize, other: usize| self.mounts[one].lies_in(&self.mounts[other]);
        let mut before = vec![Vec::new(); self.mounts.len()];
        let (mut done, mut left) = (Vec::new(), (0..self.mounts.len()).collect::<Vec<_>>());
        while !left.is_empty() {
            let waits = |one: &usize| left.iter().any(|other| lies_in(*one, *other));
            let (mut later, mut now): (Vec<usize>, Vec<usize>) =
                left.iter().copied().partition(waits);
            if now.is_empty() {
                std::mem::swap(&mut later, &mut now);
            }
            for &one in &now {
                before[one] = done.iter().copied().filter(|other| lies_in(one, *other)).collect();
            }
            done.extend(now);
            left = later;
        }
        before
    }
}

/// One line for what is wrong with a file.
fn parse(text: &str) -> Result<Desired, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let before = error.span().map_or("", |span| text.get(..span.start).unwrap_or_default());
        let line = before.matches('\n').count() + 1;
        format!("line {line}: {}", error.message().replace('\n', " "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_become_commands() {
        let desired = parse(
            "[[pool]]\nname = 'web'\nmemory = '512M'\npids = 9\n\
             [[mount]]\nsource = '/v.img'\npath = '/srv/a'\npool = 'web'\nro = true\n",
        )
        .expect("understood");
        let line = |words: Vec<String>| words.join(" ");
        let pool = line(desired.pools[0].command(None));
        assert_eq!(pool, "pool create --once --memory=512M --pids=9 -- web");
        let pool = line(desired.pools[0].command(Some(7)));
        assert_eq!(pool, "pool create --once --member=7 --memory=512M --pids=9 -- web");
        let shared = parse("[[pool]]\nname = 'web'\nns = ['ipc', 'net']\n").expect("understood");
        let pool = line(shared.pools[0].command(None));
        assert_eq!(pool, "pool create --once --ns=ipc,net -- web");
        let mount = line(desired.mounts[0].command());
        assert_eq!(mount, "mount --once --pool=web --ro -- /v.img /srv/a");
    }

    #[test]
    fn what_is_not_understood_is_said_with_its_line() {
        for (text, line) in [
            ("[[pool]]\nname = 'a'\nmemroy = '1G'\n", "line 3: unknown field"),
            ("[[pool]]\nname = 7\n", "line 2: invalid type"),
            ("\n[[mount]]\nsource = 'mem:1G'\n", "line 2: missing field `path`"),
            ("[daemon]\nuser = 'a'\n", "line 2: unknown field"),
            ("[[pool\n", "line 1: "),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(line) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn files_are_read_in_order_and_what_is_wrong_is_left_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).expect(name);
        assert_eq!(read(&dir.path().join("absent")), (Desired::default(), Vec::new()));
        write("b.toml", "[[pool]]\nname = 'second'\n[daemon]\ngroup = 'g'\n");
        write("a.toml", "[[pool]]\nname = 'first'\n");
        write("c.toml.old", "nonsense");
        write("oci.toml", "sources = []\n");
        let names = || {
            let (desired, faults) = read(dir.path());
            let names: Vec<_> = desired.pools.into_iter().map(|pool| pool.name).collect();
            (names.join(" "), faults)
        };
        assert_eq!(names(), ("first second".to_string(), Vec::new()));
        write("c.toml", "[[pool]]\nname = 'first'\n[[pool]]\nname = 'third'\n");
        write("d.toml", "nonsense");
        fs::create_dir(dir.path().join("e.toml")).expect("mkdir");
        let (names, faults) = names();
        assert_eq!(names, "first second third");
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[0].ends_with("c.toml: pool first twice"), "{faults:?}");
    }

    #[test]
    fn a_mount_in_another_comes_after_it() {
        let of = |mounts: &[(&str, &str)]| {
            let table = |(source, path): &(&str, &str)| {
                format!("[[mount]]\nsource = '{source}'\npath = '{path}'\n")
            };
            parse(&mounts.iter().map(table).collect::<String>()).expect("TOML").mounts_before()
        };
        let chain = [("mem", "/b/c"), ("dir:/b/c/d", "/x"), ("/v", "/b"), ("mem", "/bc")];
        assert_eq!(of(&chain).as_slice(), &[vec![2], vec![2, 0], vec![], vec![]]);
        let circle = [("dir:/y/1", "/x"), ("/x/2", "/y"), ("mem", "/x/z")];
        assert_eq!(of(&circle), vec![Vec::<usize>::new(); 3], "a circle ends");
        assert_eq!(of(&[]), Vec::<Vec<usize>>::new());
        let words = [("mem", "/a"), ("cached:fixed:dir:/a/x", "/b"), ("/a:y", "/c")];
        assert_eq!(of(&words).as_slice(), &[vec![], vec![0], vec![]]);
    }

    #[test]
    fn the_time_limit_is_said_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let limit = || {
            let (desired, faults) = read(dir.path());
            (desired.daemon.time_limit().as_secs(), faults.len())
        };
        assert_eq!(limit(), (90, 0));
        for (name, limits) in [("a.toml", (7, 0)), ("b.toml", (7, 1))] {
            fs::write(dir.path().join(name), "[daemon]\ntime-limit = 7\n").expect("write");
            assert_eq!(limit(), limits);
        }
    }
}

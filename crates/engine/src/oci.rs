//! `polylane oci`: the OCI runtime of another engine (podman, containerd, docker), its containers
//! on lanes where their annotations say so.
//!
//! All words go to a runtime of the host. Before one that makes a container, the lanes that the
//! bundle's annotations name are mounted, and the runtime is given a bundle of ours: its
//! configuration with the lane as root, and with the lanes among its mounts. After one that removes
//! it they are unmounted (`kept.rs`). What has no such annotation is left to the runtime alone.
//!
//! Annotations and files: docs/design/oci.md.
//!
//! # Trust
//!
//! An engine that root runs writes the bundle. It copies annotations of an image's manifest into
//! it, which are not told from those of its own command line. So an annotation may be the image's
//! author's: it names what root's file lists ([`Permitted`]), and else a volume that goes with the
//! container.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use polylane_base::shown::Shown;
use polylane_base::size::ByteSize;
use polylane_pool::failure::{FAILED, Failure, Result, say};
use polylane_pool::lasting::LaneSource;
use polylane_sys::ns::{self, Fork, Namespaces};
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::bundle;
use crate::holder::Holder;
use crate::kept;
use crate::lane::{self, Upper};
use crate::made;
use crate::permitted::Permitted;
use crate::place::{CONFIG, Lock, Place};
use crate::reach;
use crate::record::{Cluster, Mount};
use crate::relay::Relays;
use crate::runtime;
use crate::start;

/// Names the runtime, as the first word.
const OPTION: &str = "--oci-runtime";

/// The same, where the first words do not.
const VARIABLE: &str = "POLYLANE_OCI_RUNTIME";

/// Options before the verb that have a value in the next word.
const GLOBAL: [&str; 6] =
    ["--log", "--log-format", "--root", "--criu", "--rootless", "--cgroup-manager"];

/// Where runtimes keep their state unless told. It tells containers of one name apart, no more.
const STATE_DEFAULT: &str = "/run/runtime";

/// Most bytes of a configuration.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Longest identity of a container.
const ID_BYTES_MAX: usize = 255;

/// Annotations that are ours begin so.
const PREFIX: &str = "polylane.";

/// A command line of a runtime.
struct Call<'a> {
    words: &'a [OsString],
    /// Where the verb is.
    verb: usize,
}

/// What a bundle's annotations ask for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    root: Option<Root>,
    mounts: Vec<Mount>,
    size: Option<u64>,
    pool: Option<String>,
    no_preload: bool,
}

/// The upper over a bundle's root.
#[derive(Debug, PartialEq, Eq)]
enum Root {
    /// A volume of the container's own, which is there as long as its engine has the container.
    Own,
    /// A lane's source, or `none`.
    Source(String),
}

/// Does what the words of a runtime's command line say. `words` may begin with `--oci-runtime
/// PROGRAM`, or with both as one word. The runtime's status.
///
/// # Errors
/// One line, which is also written to the file that `--log` names: no runtime, a bundle that cannot
/// be read, a lane that cannot be mounted.
pub fn oci(words: &[OsString]) -> Result<u8> {
    let (asked, words) = asked(words);
    let asked = asked.or_else(|| std::env::var_os(VARIABLE));
    let asked = asked.map(|program| program.to_string_lossy().into_owned());
    let program = runtime::find(asked.as_deref())?;
    let Some(call) = Call::parse(words) else { return execute(&program, words) };
    let verb = call.words[call.verb].to_str();
    let done = match verb {
        Some(verb @ ("create" | "run")) => call.make(&program, verb == "run"),
        Some("delete") => call.delete(&program),
        _ => return execute(&program, words),
    };
    let done = done.inspect_err(|failure| call.log(&failure.line));
    sweep();
    done
}

/// What it cannot do keeps no container from being made or deleted.
fn sweep() {
    let _ = kept::sweep();
}

/// The runtime that the first words name, and the words for it.
fn asked(words: &[OsString]) -> (Option<OsString>, &[OsString]) {
    match words {
        [option, program, rest @ ..] if option == OPTION => (Some(program.clone()), rest),
        [first, rest @ ..] => {
            let named = first.as_bytes().strip_prefix(OPTION.as_bytes());
            match named.and_then(|named| named.strip_prefix(b"=")) {
                Some(program) => (Some(OsStr::from_bytes(program).into()), rest),
                None => (None, words),
            }
        }
        [] => (None, words),
    }
}

/// Becomes the runtime, for a container that is made or deleted without us.
fn pass_on(program: &Path, words: &[OsString]) -> Result<u8> {
    sweep();
    execute(program, words)
}

/// Becomes the runtime.
fn execute(program: &Path, words: &[OsString]) -> Result<u8> {
    let error = Command::new(program).args(words).exec();
    Err(Failure::path(program, "execute it", error))
}

/// Executes the runtime to its end, with the signals that this process gets; its status. It ends
/// with this process: an engine that kills its runtime ends what would make a container.
fn complete(command: &mut Command) -> Result<u8> {
    let failed = |error: io::Error| Failure::because("oci", "execute the runtime", error);
    let signals = start::signals()?;
    let own = rustix::process::getpid();
    let Fork::Parent(child) = ns::fork(Namespaces::default()).map_err(failed)? else {
        ns::unblock_signals();
        let with_parent =
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        if with_parent.is_ok() && rustix::process::getppid() == Some(own) {
            let error = command.exec();
            say(failed(error));
        }
        ns::exit_now(FAILED.into())
    };
    let pid = i32::try_from(child.pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::failed("oci: the runtime has no number"))?;
    start::wait(&signals, pid, &mut Relays::default(), |_| true)
}

/// The value of an option: in its own word, or in the next one.
fn value<'a>(words: &'a [OsString], names: &[&str]) -> Option<&'a OsStr> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        for name in names {
            if word == name {
                return words.next().map(OsString::as_os_str);
            }
            let rest = word.as_bytes().strip_prefix(name.as_bytes());
            if let Some(value) = rest.and_then(|rest| rest.strip_prefix(b"=")) {
                return Some(OsStr::from_bytes(value));
            }
        }
    }
    None
}

impl<'a> Call<'a> {
    /// `None`: there is no verb.
    fn parse(words: &'a [OsString]) -> Option<Call<'a>> {
        let mut at = 0;
        while let Some(word) = words.get(at) {
            if !word.as_bytes().starts_with(b"-") {
                return Some(Call { words, verb: at });
            }
            at += if GLOBAL.iter().any(|name| word == name) { 2 } else { 1 };
        }
        None
    }

    fn before(&self) -> &'a [OsString] {
        &self.words[..self.verb]
    }

    fn after(&self) -> &'a [OsString] {
        &self.words[self.verb + 1..]
    }

    /// The files of the container that the last word names; `None`: it names none.
    fn place(&self) -> Result<Option<Place>> {
        let is_id = |id: &&str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-.".contains(&byte);
            id.len() <= ID_BYTES_MAX && id.bytes().all(plain) && !id.starts_with(['-', '.'])
        };
        let Some(id) = self.after().last().and_then(|id| id.to_str()).filter(is_id) else {
            return Ok(None);
        };
        let root = std::path::absolute(self.state()).unwrap_or_else(|_| self.state().into());
        let number = hash(root.as_os_str().as_bytes());
        let all = kept::all_dir()?.join(format!("{number:016x}"));
        Ok(Some(Place::of(&all, id)))
    }

    /// Where the runtime keeps its state.
    fn state(&self) -> &'a OsStr {
        value(self.before(), &["--root"]).unwrap_or(OsStr::new(STATE_DEFAULT))
    }

    /// Makes a container, on lanes if its annotations say so.
    fn make(&self, program: &Path, waits: bool) -> Result<u8> {
        let bundle = value(self.after(), &["--bundle", "-b"]).map_or(".".into(), PathBuf::from);
        // What is wrong with a bundle the runtime says better.
        let Ok(mut config) = read_config(&bundle) else { return pass_on(program, self.words) };
        let wanted = Wanted::read(&config)?;
        let (Some(wanted), Some(place)) = (wanted, self.place()?) else {
            return pass_on(program, self.words);
        };
        if !rustix::process::geteuid().is_root() {
            return Err(Failure::failed("oci: only root can mount a container's lanes"));
        }
        wanted.check()?;
        let bundle = std::path::absolute(&bundle)
            .map_err(|error| Failure::path(&bundle, "find it", error))?;
        make_absolute(&mut config, &bundle);
        let holder = match wanted.root {
            Some(Root::Own) => Holder::find(&config, &bundle, self.state())?,
            _ => None,
        };
        let lock = place.make_locked()?;
        if place.file(CONFIG).exists() && self.is_there(program) {
            return Err(Failure::failed("oci: there is a container of this name: delete it first"));
        }
        // Of a container that was not removed by this program.
        kept::unmount(&place)?;
        made::tell(&mut config, program, value(self.before(), &["--root"]));
        made::begin(&place);
        let made = kept::take_up(&place, &lock, holder.as_ref())
            .and_then(|()| prepare((&place, &lock), &wanted, &mut config))
            .and_then(|()| self.run(program, &place));
        let stays = made.as_ref().is_ok_and(|status| *status == 0) && !self.ends(waits);
        let cleared = match stays {
            true => made::end(&place),
            false => kept::end(&place, &lock),
        };
        // Why there is no container is said before what is left of it.
        made.and_then(|status| cleared.map(|()| status))
    }

    /// Whether the runtime has such a container.
    fn is_there(&self, program: &Path) -> bool {
        let mut state = Command::new(program);
        state.args(self.before()).arg("state").args(self.after().last());
        state.output().is_ok_and(|output| output.status.success())
    }

    /// Whether the container has ended with the command.
    fn ends(&self, waits: bool) -> bool {
        waits && !self.after().iter().any(|word| word == "--detach" || word == "-d")
    }

    /// Has the runtime make what `place` has the configuration of.
    fn run(&self, program: &Path, place: &Place) -> Result<u8> {
        let mut command = Command::new(program);
        command.args(&self.words[..=self.verb]).arg("--bundle").arg(place.dir());
        command.args(without_bundle(self.after()));
        complete(&mut command)
    }

    /// Removes a container, then its lanes.
    fn delete(&self, program: &Path) -> Result<u8> {
        let Some(place) = self.place()?.filter(|place| place.dir().exists()) else {
            return pass_on(program, self.words);
        };
        // A command that was killed may have left one that still mounts.
        let Some(lock) = place.lock_dir()? else { return pass_on(program, self.words) };
        let status = complete(Command::new(program).args(self.words))?;
        let forced = self.after().iter().any(|word| word == "--force" || word == "-f");
        if status == 0 || forced {
            kept::end(&place, &lock)?;
        }
        Ok(status)
    }

    /// Tells an engine that reads the runtime's log why there is no container.
    fn log(&self, line: &str) {
        let Some(path) = value(self.before(), &["--log"]) else { return };
        let is_json = value(self.before(), &["--log-format"]).is_some_and(|is| is == "json");
        let text = match is_json {
            true => json!({ "level": "error", "msg": format!("polylane: {line}") }).to_string(),
            false => format!("polylane: {line}"),
        };
        // Standard error has it as well.
        let file = File::options().create(true).append(true).open(path);
        let _ = file.and_then(|mut file| writeln!(file, "{text}"));
    }
}

/// FNV-1a, 64 bits (<http://www.isthe.com/chongo/tech/comp/fnv/>).
fn hash(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

fn without_bundle(words: &[OsString]) -> Vec<&OsString> {
    let mut kept = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        match () {
            () if word == "--bundle" || word == "-b" => drop(words.next()),
            () if bytes.starts_with(b"--bundle=") || bytes.starts_with(b"-b=") => {}
            () => kept.push(word),
        }
    }
    kept
}

fn read_config(bundle: &Path) -> io::Result<Value> {
    let mut text = Vec::new();
    File::open(bundle.join("config.json"))?.take(CONFIG_BYTES_MAX).read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

impl Wanted {
    /// What the annotations of a configuration ask for; `None`: nothing of ours.
    fn read(config: &Value) -> Result<Option<Wanted>> {
        let mut wanted = Wanted::default();
        let mut any = false;
        for (name, value) in config["annotations"].as_object().into_iter().flatten() {
            let (Some(name), Some(value)) = (name.strip_prefix(PREFIX), value.as_str()) else {
                continue;
            };
            any = true;
            wanted.add(name, value).map_err(|why| {
                Failure::usage(format!("annotation {PREFIX}{}: {why}", Shown::new(name)))
            })?;
        }
        let is_empty = wanted.root.is_none() && wanted.mounts.is_empty();
        match any && is_empty {
            true => Err(Failure::usage(format!(
                "annotations {PREFIX}*: none of them names a lane: give {PREFIX}root or \
                 {PREFIX}mount.NAME"
            ))),
            false => Ok((!is_empty).then_some(wanted)),
        }
    }

    /// Refuses what root's file does not list.
    fn check(&self) -> Result<()> {
        let mut sources: Vec<&str> = self.mounts.iter().map(|mount| &*mount.source).collect();
        if let Some(Root::Source(source)) = &self.root {
            sources.push(source);
        }
        // Layers alone are the bundle's own root.
        sources.retain(|source| *source != "none");
        if sources.is_empty() && self.pool.is_none() {
            return Ok(());
        }
        let permitted = Permitted::read()?;
        sources.iter().try_for_each(|source| permitted.check_source(source))?;
        // A lane in RAM has this size, whatever its source says.
        if let (Some(Root::Source(source)), Some(size)) = (&self.root, self.size)
            && source.starts_with("mem:")
        {
            permitted.check_source(&format!("mem:{size}"))?;
        }
        self.pool.iter().try_for_each(|pool| permitted.check_pool(pool))
    }

    fn add(&mut self, name: &str, value: &str) -> std::result::Result<(), String> {
        let shown = Shown::new(value);
        match (name, value) {
            ("root", "own") => self.root = Some(Root::Own),
            ("root", _) => {
                check_source(value)?;
                self.root = Some(Root::Source(value.into()));
            }
            ("size", _) => {
                let size: ByteSize = value.parse().map_err(|_| format!("{shown}: not a size"))?;
                self.size = Some(size.0);
            }
            ("pool", _) => self.pool = Some(value.into()),
            ("preload", "on") => self.no_preload = false,
            ("preload", "off") => self.no_preload = true,
            ("preload", _) => return Err(format!("{shown}: is on or off")),
            _ if name.starts_with("mount.") => {
                let mount = Mount::parse(value)?;
                check_source(&mount.source)?;
                self.mounts.push(mount);
            }
            _ => return Err("is not known: root, mount.NAME, size, pool, preload are".into()),
        }
        Ok(())
    }
}

/// Refuses what is no source of a lane, and what depends on where the engine works.
fn check_source(source: &str) -> std::result::Result<(), String> {
    let is_whole = match source.split_once(':') {
        Some(("volume" | "dir", path)) => path.starts_with('/'),
        Some(_) => true,
        None => source == "none",
    };
    if !is_whole {
        let shown = Shown::new(source);
        return Err(format!("{shown}: write it as volume:/FILE, dir:/DIR, mem:SIZE or none"));
    }
    LaneSource::parse(source.as_ref()).map(drop).map_err(|failure| failure.line)
}

/// Mounts the lanes and writes the configuration with them.
fn prepare((place, lock): (&Place, &Lock), wanted: &Wanted, config: &mut Value) -> Result<()> {
    place.make_dir("root")?;
    let mut covered: Vec<Vec<u8>> = Vec::new();
    for mount in config["mounts"].as_array().into_iter().flatten() {
        covered.extend(mount["destination"].as_str().and_then(parts).map(String::into_bytes));
    }
    covered.extend(wanted.mounts.iter().map(|mount| mount.target_parts().into_bytes()));
    let mut sources = Vec::new();
    lane::check(&wanted.mounts)?;
    for (number, mount) in wanted.mounts.iter().enumerate() {
        let pool = wanted.pool.as_deref();
        let cluster = Cluster::default();
        sources.push(lane::mount_lane((place, lock), (pool, &cluster), number, mount)?);
    }
    if let Some(root) = &wanted.root {
        let lower = format!("dir:{}", config["root"]["path"].as_str().unwrap_or_default());
        let source = match root {
            Root::Own => None,
            Root::Source(source) => Some(OsString::from(source)),
        };
        let options = Vec::new();
        let upper = Upper { source, size: wanted.size, preload: !wanted.no_preload, options };
        lane::mount_root((place, lock), wanted.pool.as_deref(), &upper, (&[lower], covered))?;
        lane::make_mount_points(&place.root(), &directories(config, wanted))?;
        config["root"]["path"] = json!(place.root());
        add_library(config, wanted);
    }
    if !config["mounts"].is_array() {
        config["mounts"] = json!([]);
    }
    let mounts = config["mounts"].as_array_mut().into_iter();
    for all in mounts {
        all.extend(wanted.mounts.iter().zip(&sources).map(|(mount, at)| bundle::bind(mount, at)));
    }
    reach::open(place, config)?;
    place.write(CONFIG, config)
}

/// Where the runtime mounts directories. None where the container's root is another user: what is
/// made there is that one's.
fn directories(config: &Value, wanted: &Wanted) -> Vec<String> {
    let maps = config.pointer("/linux/uidMappings").and_then(Value::as_array);
    if maps.is_some_and(|maps| !maps.is_empty()) {
        return Vec::new();
    }
    let is_file = |mount: &&Value| {
        let source = mount["source"].as_str().map(Path::new);
        source.is_some_and(|source| source.is_absolute() && !source.is_dir())
    };
    let own = config["mounts"].as_array().into_iter().flatten().filter(|mount| !is_file(mount));
    let own = own.filter_map(|mount| mount["destination"].as_str().and_then(parts));
    own.chain(wanted.mounts.iter().map(Mount::target_parts)).collect()
}

/// A path of the container without slashes that say nothing; `None`: it has `..`, or is the root.
fn parts(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.is_empty() && !parts.contains(&"..")).then(|| parts.join("/"))
}

/// Paths in a bundle's configuration that are relative to the bundle: ours lies elsewhere.
fn make_absolute(config: &mut Value, bundle: &Path) {
    let absolute = |value: &mut Value| {
        if let Some(path) = value.as_str().map(|path| bundle.join(path)) {
            *value = json!(path);
        }
    };
    if let Some(path) = config.get_mut("root").and_then(|root| root.get_mut("path")) {
        absolute(path);
    }
    for mount in config["mounts"].as_array_mut().into_iter().flatten() {
        let is_bind = |option: &Value| matches!(option.as_str(), Some("bind" | "rbind"));
        let options = mount["options"].as_array();
        let binds = mount["type"] == "bind" || options.is_some_and(|all| all.iter().any(is_bind));
        if let Some(source) = mount.get_mut("source").filter(|_| binds) {
            absolute(source);
        }
    }
}

/// Gives the container's processes the library.
fn add_library(config: &mut Value, wanted: &Wanted) {
    if wanted.no_preload {
        return;
    }
    if let Some(env) = config.pointer_mut("/process/env") {
        let all = env.as_array().into_iter().flatten();
        let all: Vec<String> = all.filter_map(Value::as_str).map(str::to_string).collect();
        *env = json!(bundle::with_library(all));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn command_lines_of_engines_are_read() {
        let podman =
            "--systemd-cgroup --log-format=json --log /l create --bundle /b --pid-file /p id";
        let all = words(podman);
        let call = Call::parse(&all).expect("a verb");
        assert_eq!(call.words[call.verb], "create");
        assert_eq!(value(call.before(), &["--log"]), Some(OsStr::new("/l")));
        assert_eq!(value(call.before(), &["--log-format"]), Some(OsStr::new("json")));
        assert_eq!(value(call.after(), &["--bundle", "-b"]), Some(OsStr::new("/b")));
        let kept: Vec<&str> =
            without_bundle(call.after()).iter().filter_map(|word| word.to_str()).collect();
        assert_eq!(kept, ["--pid-file", "/p", "id"]);
        for (text, verb) in [
            ("--root /r delete --force id", Some("delete")),
            ("--root=/r --debug run -b=/b id", Some("run")),
            ("--log create state id", Some("state")),
            ("--version", None),
            ("", None),
        ] {
            let all = words(text);
            let found = Call::parse(&all).map(|call| call.words[call.verb].clone());
            assert_eq!(found.as_deref(), verb.map(OsStr::new), "{text}");
        }
    }

    #[test]
    fn the_runtime_is_named_by_one_word_or_two() {
        for (text, program, rest) in [
            ("--oci-runtime crun state x", Some("crun"), "state x"),
            ("--oci-runtime=crun state x", Some("crun"), "state x"),
            ("--oci-runtimes=crun state x", None, "--oci-runtimes=crun state x"),
            ("state --oci-runtime=crun", None, "state --oci-runtime=crun"),
            ("--oci-runtime", None, "--oci-runtime"),
            ("", None, ""),
        ] {
            let all = words(text);
            let expected = (program.map(OsString::from), &words(rest)[..]);
            assert_eq!(asked(&all), expected, "{text}");
        }
    }

    #[test]
    fn annotations_are_read() {
        let read = |annotations: Value| Wanted::read(&json!({ "annotations": annotations }));
        assert_eq!(Wanted::read(&json!({})), Ok(None));
        assert_eq!(read(json!({ "io.other": "x" })), Ok(None));
        let all = json!({
            "polylane.root": "own", "polylane.size": "1G", "polylane.pool": "p",
            "polylane.mount.data": "volume:/v:/data:ro", "polylane.preload": "off",
        });
        let mount = Mount { source: "volume:/v".into(), target: "/data".into(), read_only: true };
        let wanted = Wanted {
            root: Some(Root::Own),
            mounts: vec![mount],
            size: Some(1 << 30),
            pool: Some("p".into()),
            no_preload: true,
        };
        assert_eq!(read(all), Ok(Some(wanted)));
        for bad in [
            json!({ "polylane.root": "nope:x" }),
            json!({ "polylane.root": "nope" }),
            json!({ "polylane.root": "volume:nope" }),
            json!({ "polylane.mount.x": "dir:nope:/x" }),
            json!({ "polylane.size": "1G" }),
            json!({ "polylane.root": "own", "polylane.size": "big" }),
            json!({ "polylane.mount.x": "/host:/x" }),
            json!({ "polylane.mount.x": "volume:/v" }),
            json!({ "polylane.rooot": "own" }),
        ] {
            assert_eq!(read(bad.clone()).map_err(|failure| failure.status), Err(2), "{bad}");
        }
    }

    #[test]
    fn a_bundle_may_be_moved() {
        let mut config = json!({
            "root": { "path": "rootfs" },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/a", "type": "bind", "source": "here" },
                { "destination": "/b", "type": "none", "source": "/there", "options": ["rbind"] },
            ],
        });
        make_absolute(&mut config, Path::new("/bundle"));
        assert_eq!(config["root"]["path"], "/bundle/rootfs");
        let sources: Vec<&Value> =
            config["mounts"].as_array().unwrap().iter().map(|mount| &mount["source"]).collect();
        assert_eq!(sources, ["proc", "/bundle/here", "/there"]);
        assert_eq!(parts("//dev/./pts/"), Some("dev/pts".to_string()));
        assert_eq!((parts("/"), parts("/a/../b")), (None, None));
    }
}

//! The volume plugin of Docker and podman: `/Plugin.Activate` and `/VolumeDriver.*`.
//!
//! A volume is a record in the state directory, beside the directory that it is mounted at. It is
//! mounted as long as a container has it: each mount comes with an identifier of the container's,
//! by which a request that comes twice is known. What containers had before the host was started
//! again counts no more.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use hyper::StatusCode;
use polylane_base::sync::{Arc, Mutex};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Mutex as Turn;

use crate::caller::Caller;
use crate::command::{Messages, TIME_MAX};
use crate::desired::Mount;
use crate::refusal::Refusal;
use crate::tasks::Tasks;
use crate::verbs::Change;

/// Most bytes of a volume's name.
const NAME_BYTES_MAX: usize = 128;

/// The only options.
const OPTIONS: [&str; 5] = ["size", "weight", "image", "dir", "pool"];

/// The plugin. Thread-safe.
#[derive(Clone, Debug)]
pub(crate) struct Volumes(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Where the records are.
    dir: PathBuf,
    /// Changed each time the host is started.
    boot: String,
    /// Changes of one volume come one after the other. Only volumes with a change
    /// under way or waiting are in it.
    turns: Mutex<BTreeMap<String, Arc<Turn<()>>>>,
}

/// What a request says.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Request {
    name: String,
    opts: Option<BTreeMap<String, String>>,
    #[serde(rename = "ID")]
    id: String,
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Record {
    options: BTreeMap<String, String>,
    /// Who has it mounted, since `boot`.
    users: BTreeSet<String>,
    boot: String,
}

/// Whether a request is the plugin's.
pub(crate) fn is_request(path: &str) -> bool {
    path.starts_with("/Plugin.") || path.starts_with("/VolumeDriver.")
}

impl Volumes {
    /// The volumes whose records are in a directory of the state directory.
    pub(crate) fn new(state: &Path) -> Volumes {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let dir = state.join("plugin-volumes");
        let boot = boot.trim().to_string();
        Volumes(Arc::new(Shared { dir, boot, turns: Mutex::default() }))
    }

    /// The status and the body of an answer. An error is text in `Err`, as the protocol has it.
    pub(crate) async fn answer(
        &self,
        tasks: &Tasks,
        caller: Caller,
        path: &str,
        body: &[u8],
    ) -> (StatusCode, Value) {
        let (own, tasks) = (self.clone(), tasks.clone());
        let (path, body) = (path.to_string(), body.to_vec());
        // A caller that goes away leaves nothing half done.
        let answering =
            tokio::spawn(async move { own.execute(&tasks, caller, &path, &body).await });
        let outcome = answering.await.unwrap_or_else(|error| Err(Refusal::internal(&error)));
        match outcome {
            Ok(value) => (StatusCode::OK, value),
            Err(refusal) => (refusal.status, json!({ "Err": refusal.message })),
        }
    }

    async fn execute(
        &self,
        tasks: &Tasks,
        caller: Caller,
        path: &str,
        body: &[u8],
    ) -> Result<Value, Refusal> {
        caller.must_own()?;
        let request = read(body)?;
        match path {
            "/Plugin.Activate" => Ok(json!({ "Implements": ["VolumeDriver"] })),
            "/VolumeDriver.Capabilities" => Ok(json!({ "Capabilities": { "Scope": "local" } })),
            "/VolumeDriver.Create"
            | "/VolumeDriver.Remove"
            | "/VolumeDriver.Mount"
            | "/VolumeDriver.Unmount" => self.change(tasks, path, &request).await,
            "/VolumeDriver.Path" => {
                let record = self.expect(&request.name)?;
                let place = self.place_if_used(&request.name, &record);
                Ok(json!({ "Mountpoint": place, "Err": "" }))
            }
            "/VolumeDriver.Get" => {
                let record = self.expect(&request.name)?;
                let volume = self.describe(&request.name, &record);
                Ok(json!({ "Volume": volume, "Err": "" }))
            }
            "/VolumeDriver.List" => {
                let all = self.all()?;
                let all: Vec<Value> =
                    all.iter().map(|(name, record)| self.describe(name, record)).collect();
                Ok(json!({ "Volumes": all, "Err": "" }))
            }
            _ => Err(Refusal::not_found(format!("{path}: no request of volume plugins"))),
        }
    }

    /// Makes a change of a volume, in its turn: one whose source does not answer holds up no other.
    async fn change(&self, tasks: &Tasks, path: &str, request: &Request) -> Result<Value, Refusal> {
        let turn = Arc::clone(self.0.turns.lock().entry(request.name.clone()).or_default());
        let held = turn.lock().await;
        let outcome = match path {
            "/VolumeDriver.Create" => self.create(tasks, request).await,
            "/VolumeDriver.Remove" => self.remove(tasks, request).await,
            "/VolumeDriver.Mount" => self.mount(tasks, request).await,
            _ => self.unmount(tasks, request).await,
        };
        drop(held);
        let mut turns = self.0.turns.lock();
        // No other request waits: one is here, the other in the list.
        if Arc::strong_count(&turn) == 2 {
            turns.remove(&request.name);
        }
        outcome
    }

    async fn create(&self, tasks: &Tasks, request: &Request) -> Result<Value, Refusal> {
        check_name(&request.name)?;
        let options = request.opts.clone().unwrap_or_default();
        check_options(&options)?;
        if let Some(there) = self.load(&request.name)? {
            return match there.options == options {
                true => Ok(json!({ "Err": "" })),
                false => Err(conflict(format!(
                    "volume '{}': exists with other options: remove it first",
                    request.name
                ))),
            };
        }
        let dir = self.dir_of(&request.name);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(broken)?;
        let image = self.image(&request.name);
        // What a former request made, and did not get as far as to record.
        let has_own = !options.contains_key("image") && !options.contains_key("dir");
        if has_own && !image.exists() {
            let mut words = vec!["volume".to_string(), "create".to_string()];
            let of_file = ["size", "weight"];
            words.extend(
                of_file
                    .iter()
                    .filter_map(|name| options.get(*name).map(|value| format!("--{name}={value}"))),
            );
            words.extend(["--".to_string(), image.display().to_string()]);
            let made = tasks.program().execute(&words, TIME_MAX, &Messages::default()).await;
            if let Err(refusal) = made {
                let _ = fs::remove_dir(self.dir_of(&request.name));
                return Err(refusal);
            }
        }
        self.save(&request.name, &Record { options, ..Record::default() })?;
        Ok(json!({ "Err": "" }))
    }

    async fn remove(&self, tasks: &Tasks, request: &Request) -> Result<Value, Refusal> {
        let record = self.expect(&request.name)?;
        if let Some(user) = record.users.first() {
            let name = &request.name;
            let line = format!("volume '{name}': in use by {user}: end that container first");
            return Err(conflict(line));
        }
        let place = self.place(&request.name);
        // Nothing looks at it: a lane that hangs is there, if one is.
        done(tasks, Change::Unmount(place.display().to_string())).await?;
        match fs::remove_dir(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(broken(error)),
            _ => {}
        }
        let image = self.image(&request.name);
        if image.exists() {
            let words = ["volume", "rm", "--"].map(str::to_string);
            let words: Vec<String> =
                words.into_iter().chain([image.display().to_string()]).collect();
            tasks.program().execute(&words, TIME_MAX, &Messages::default()).await?;
        }
        fs::remove_file(self.record(&request.name)).map_err(broken)?;
        fs::remove_dir(self.dir_of(&request.name)).map_err(broken)?;
        Ok(json!({ "Err": "" }))
    }

    async fn mount(&self, tasks: &Tasks, request: &Request) -> Result<Value, Refusal> {
        let mut record = self.expect(&request.name)?;
        let place = self.place(&request.name);
        // Made again where a lane is, mkdir(2) asks nothing of that.
        match fs::DirBuilder::new().mode(0o700).create(&place) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(broken(error));
            }
            _ => {}
        }
        let option = |name: &str| record.options.get(name).cloned();
        let source = match (option("image"), option("dir")) {
            (Some(image), _) => format!("volume:{image}"),
            (None, Some(dir)) => format!("dir:{dir}"),
            (None, None) => format!("volume:{}", self.image(&request.name).display()),
        };
        let mut mount = Mount::of(source, place.clone());
        mount.pool = option("pool");
        mount.weight = option("weight").and_then(|weight| weight.parse().ok());
        if option("image").is_some() {
            mount.size = option("size");
        }
        done(tasks, Change::Mount(mount)).await?;
        record.users.insert(request.id.clone());
        self.save(&request.name, &record)?;
        Ok(json!({ "Mountpoint": place, "Err": "" }))
    }

    async fn unmount(&self, tasks: &Tasks, request: &Request) -> Result<Value, Refusal> {
        let mut record = self.expect(&request.name)?;
        record.users.remove(&request.id);
        if record.users.is_empty() {
            let place = self.place(&request.name).display().to_string();
            done(tasks, Change::Unmount(place)).await?;
        }
        self.save(&request.name, &record)?;
        Ok(json!({ "Err": "" }))
    }

    fn dir_of(&self, name: &str) -> PathBuf {
        self.0.dir.join(name)
    }

    fn record(&self, name: &str) -> PathBuf {
        self.dir_of(name).join("volume.json")
    }

    /// The file of a volume that the plugin made.
    fn image(&self, name: &str) -> PathBuf {
        self.dir_of(name).join("volume.img")
    }

    /// Where it is mounted.
    fn place(&self, name: &str) -> PathBuf {
        self.dir_of(name).join("data")
    }

    fn place_if_used(&self, name: &str, record: &Record) -> String {
        match record.users.is_empty() {
            true => String::new(),
            false => self.place(name).display().to_string(),
        }
    }

    fn describe(&self, name: &str, record: &Record) -> Value {
        json!({ "Name": name, "Mountpoint": self.place_if_used(name, record),
            "Status": { "options": record.options, "users": record.users.len() } })
    }

    fn expect(&self, name: &str) -> Result<Record, Refusal> {
        check_name(name)?;
        let none = || Refusal::not_found(format!("volume '{name}': no such volume"));
        self.load(name)?.ok_or_else(none)
    }

    fn load(&self, name: &str) -> Result<Option<Record>, Refusal> {
        let path = self.record(name);
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(broken)?,
        };
        let bad = |error| Refusal::internal(&format_args!("{}: {error}", path.display()));
        let mut record: Record = serde_json::from_slice(&text).map_err(bad)?;
        if record.boot != self.0.boot {
            record.users.clear();
        }
        Ok(Some(record))
    }

    /// By a draft and a rename: a daemon that is killed leaves the former record or this one.
    fn save(&self, name: &str, record: &Record) -> Result<(), Refusal> {
        let record = Record { boot: self.0.boot.clone(), ..record.clone() };
        let path = self.record(name);
        let draft = path.with_extension("json-new");
        let text = serde_json::to_vec(&record).map_err(|error| Refusal::internal(&error))?;
        let mut options = fs::File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&draft).map_err(broken)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(broken)?;
        fs::rename(&draft, &path).map_err(broken)
    }

    fn all(&self) -> Result<Vec<(String, Record)>, Refusal> {
        let entries = match fs::read_dir(&self.0.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(broken)?,
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        let mut all = Vec::new();
        for name in names {
            // One that cannot be read is told of where it is asked for.
            if let Ok(Some(record)) = self.load(&name) {
                all.push((name, record));
            }
        }
        Ok(all)
    }
}

async fn done(tasks: &Tasks, change: Change) -> Result<(), Refusal> {
    tasks.start(Caller::Owner, change)?.end().await
}

/// An empty body and `null` are requests without members.
fn read(body: &[u8]) -> Result<Request, Refusal> {
    match body.trim_ascii() {
        b"" => Ok(Request::default()),
        body => {
            let request: Result<Option<Request>, _> = serde_json::from_slice(body);
            Ok(request.map_err(|error| Refusal::malformed(&error))?.unwrap_or_default())
        }
    }
}

/// A name is one part of a path, and no option.
fn check_name(name: &str) -> Result<(), Refusal> {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let starts = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    match starts && name.len() <= NAME_BYTES_MAX && name.bytes().all(good) {
        true => Ok(()),
        false => Err(Refusal::malformed(&format_args!(
            "volume {name:?}: use letters, digits, '.', '_' and '-', at most {NAME_BYTES_MAX}, a \
             letter or digit first"
        ))),
    }
}

fn check_options(options: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let malformed = |line: String| Err(Refusal::malformed(&line));
    for (name, value) in options {
        if !OPTIONS.contains(&name.as_str()) {
            return malformed(format!("option {name:?}: the options are {}", OPTIONS.join(", ")));
        }
        if matches!(name.as_str(), "image" | "dir") && !value.starts_with('/') {
            return malformed(format!("{name}={value}: not an absolute path"));
        }
        if name == "weight"
            && !value.parse().is_ok_and(|weight: u32| (1..=10_000).contains(&weight))
        {
            return malformed(format!("weight={value}: must be 1 to 10000"));
        }
    }
    let has = |name: &str| options.contains_key(name);
    match has("dir") && (has("image") || has("size") || has("weight")) {
        true => malformed("dir: goes with none of image, size and weight".to_string()),
        false => Ok(()),
    }
}

fn conflict(line: String) -> Refusal {
    Refusal::new(StatusCode::CONFLICT, "failed", line)
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of map_err")]
fn broken(error: io::Error) -> Refusal {
    Refusal::internal(&format_args!("volume plugin: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_part_of_a_path_and_options_agree() {
        for name in ["a", "0f", "a.b_c-d", &"a".repeat(128)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", ".", "..", "-x", "a/b", "a b", "a\n", "ä", &"a".repeat(129)] {
            assert_eq!(check_name(name).expect_err(name).code, "malformed");
        }
        let check = |words: &[(&str, &str)]| {
            let pairs = words.iter().map(|(name, value)| (name.to_string(), value.to_string()));
            check_options(&pairs.collect())
        };
        for good in [
            &[("size", "1G"), ("weight", "300")][..],
            &[("image", "/v.img"), ("pool", "web")],
            &[("dir", "/srv")],
            &[],
        ] {
            assert_eq!(check(good), Ok(()), "{good:?}");
        }
        for bad in [
            &[("siz", "1G")][..],
            &[("image", "v.img")],
            &[("dir", "/srv"), ("image", "/v")],
            &[("dir", "/srv"), ("size", "1G")],
            &[("weight", "0")],
            &[("weight", "many")],
        ] {
            assert_eq!(check(bad).expect_err("refused").code, "malformed", "{bad:?}");
        }
    }

    #[test]
    fn requests_are_read_as_docker_writes_them() {
        for body in ["", "null", "{}", "\n"] {
            assert_eq!(read(body.as_bytes()).expect("read").name, "");
        }
        let request = read(br#"{"Name":"a","Opts":null,"ID":"7","New":1}"#).expect("read");
        assert_eq!((&*request.name, request.opts, &*request.id), ("a", None, "7"));
        for body in ["7", "{", r#"{"Opts":{"size":7}}"#] {
            assert_eq!(read(body.as_bytes()).expect_err(body).code, "malformed");
        }
    }

    #[test]
    fn records_are_kept_and_users_of_a_former_boot_are_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let volumes = Volumes::new(dir.path());
        assert_eq!(volumes.all(), Ok(Vec::new()));
        fs::create_dir_all(volumes.dir_of("web")).expect("mkdir");
        assert_eq!(volumes.all(), Ok(Vec::new()), "without a record it is none");
        let record = Record { users: ["7".to_string()].into(), ..Record::default() };
        volumes.save("web", &record).expect("saved");
        assert_eq!(volumes.expect("web").expect("there").users, record.users);
        let shared =
            Shared { dir: volumes.0.dir.clone(), boot: "later".into(), turns: Mutex::default() };
        let later = Volumes(Arc::new(shared));
        assert!(later.expect("web").expect("there").users.is_empty());
        fs::write(volumes.record("web"), "{").expect("written");
        assert_eq!(volumes.expect("web").expect_err("damaged").code, "internal");
        assert_eq!(volumes.all(), Ok(Vec::new()), "the others are listed");
    }
}

//! Pools that last, as the state directory knows them: a file for each, `pools/NAME.json`.
//!
//! The file is what makes a pool. It is written aside and renamed, so a command that is killed
//! leaves the former pool or the new one. Control groups are made from it whenever a process enters
//! the pool, so a reboot, or a kill between the two, takes nothing away.
//!
//! | field | what |
//! |---|---|
//! | `version` | 1 |
//! | `memory`, `pids` | bytes and processes of the pool, if limited |
//! | `cpus` | its CPUs, as `0-3,6`, if limited |
//! | `weight` | its share of the CPU, and of devices unless a lane has one of its own |
//! | `dirty_limit` | most changed bytes of each lane that wait to be written |
//! | `ceph` | settings of the clients of its lanes on CephFS, if it has any |
//! | `user` | the host's user that its services run as; none of an ordinary user's pool |
//! | `namespaces` | kinds of namespaces that its containers have together |
//! | `member` | the member of the daemon's group who had it made, if one did |
//!
//! The file's group is that user's number as well: who has a number is known also where the content
//! is lost. One record that cannot be read keeps no other pool from anything.
//!
//! # Locking
//!
//! Commands that write records hold the lock of all mount tables.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;
use polylane_volume::cpus::CpuList;
use rustix::process::Gid;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ceph::ClientOptions;
use crate::cgroup::{self, Limits};
use crate::failure::{Failure, Result, say};
use crate::names;
use crate::pool_namespaces::NsKind;

/// The only version there is.
const VERSION: u32 = 1;

/// Most bytes of a record.
const BYTES_MAX: u64 = 64 << 10;

/// First of the host's users that are pools', above those that services have of their own
/// (`confine`).
const USERS_FIRST: u32 = 0x7080_0000;

/// How many there are: as many as pools.
const USERS: u32 = 1 << 16;

/// Whether a user is one that pools are given.
pub(crate) fn is_pools_user(user: u32) -> bool {
    (USERS_FIRST..USERS_FIRST + USERS).contains(&user)
}

/// A pool that lasts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PoolRecord {
    /// Its name.
    pub name: String,
    /// Bytes of memory of all its processes.
    pub memory: Option<u64>,
    /// Its CPUs.
    pub cpus: Option<CpuList>,
    /// How many processes and threads it may have.
    pub pids: Option<u64>,
    /// Its share, 1–10000.
    pub weight: Option<u32>,
    /// Most changed bytes of a lane that wait to be written.
    pub dirty_limit: Option<u64>,
    /// Settings of the clients of its lanes on CephFS.
    pub client: ClientOptions,
    /// The host's user of its services.
    pub user: Option<u32>,
    /// Namespaces that its containers have together.
    pub namespaces: Vec<NsKind>,
    /// The member of the daemon's group who had it made.
    pub member: Option<u32>,
    /// What a later program says of it: kept as it is.
    pub(crate) more: Box<Map<String, Value>>,
}

/// The file's content. Programs of several versions may use it: what one does not know it keeps,
/// and what it must not leave out has another `version`.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    memory: Option<u64>,
    cpus: Option<String>,
    pids: Option<u64>,
    weight: Option<u32>,
    dirty_limit: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ceph: Option<ClientOptions>,
    user: Option<u32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    namespaces: Vec<NsKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    member: Option<u32>,
    #[serde(flatten)]
    more: Box<Map<String, Value>>,
}

impl PoolRecord {
    /// The pool of that name below the state directory `state`; `None`: there is none.
    ///
    /// # Errors
    /// One line when its file cannot be read, or is none of this version.
    pub(crate) fn load(state: &Path, name: &str) -> Result<Option<PoolRecord>> {
        let path = path_of(state, name);
        let mut options = File::options();
        options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match options.open(&path) {
            Ok(file) => file,
            // Another user's state directory holds no pool of this user's.
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(Failure::path(&path, "read the pool's record", error)),
        };
        // What another user wrote names no user for services to run as.
        let owner = file.metadata().map_err(|error| Failure::path(&path, "read it", error))?;
        if ![0, rustix::process::geteuid().as_raw()].contains(&owner.uid()) {
            return Err(Failure::failed(format!(
                "{}: another user's file: remove it, then create the pool again",
                Shown::new(&path)
            )));
        }
        let mut text = Vec::new();
        file.take(BYTES_MAX)
            .read_to_end(&mut text)
            .map_err(|error| Failure::path(&path, "read the pool's record", error))?;
        let refused = || {
            Failure::failed(format!(
                "{}: not a pool's record of this version: remove it, then create the pool again",
                path.display()
            ))
        };
        let stored: Stored = serde_json::from_slice(&text).map_err(|_| refused())?;
        let cpus = stored.cpus.as_deref().map(str::parse).transpose().map_err(|_| refused())?;
        let Stored {
            version,
            memory,
            pids,
            weight,
            dirty_limit,
            ceph,
            user,
            namespaces,
            member,
            more,
            ..
        } = stored;
        if version != VERSION || !user.is_none_or(is_pools_user) {
            return Err(refused());
        }
        let (name, client) = (name.to_string(), ceph.unwrap_or_default());
        Ok(Some(PoolRecord {
            name,
            memory,
            cpus,
            pids,
            weight,
            dirty_limit,
            client,
            user,
            namespaces,
            member,
            more,
        }))
    }

    /// The pool of that name.
    ///
    /// # Errors
    /// As [`load`](PoolRecord::load); there is none, or can be none of that name.
    pub(crate) fn expect(state: &Path, name: &str) -> Result<PoolRecord> {
        check_name(name)?;
        PoolRecord::load(state, name)?.ok_or_else(|| {
            Failure::failed(format!(
                "pool '{name}': no such pool: make it with 'polylane pool create {name}'"
            ))
        })
    }

    /// All pools below the state directory, by name, and why others could not be read.
    ///
    /// # Errors
    /// One line when the directory of the records cannot be read.
    pub(crate) fn all(state: &Path) -> Result<(Vec<PoolRecord>, Vec<Failure>)> {
        let (mut pools, mut unread) = (Vec::new(), Vec::new());
        for name in names_in(state)? {
            match PoolRecord::load(state, &name) {
                Ok(pool) => pools.extend(pool),
                Err(failure) => unread.push(failure),
            }
        }
        Ok((pools, unread))
    }

    /// Writes it, durably, in place of an earlier one.
    ///
    /// # Errors
    /// One line; the earlier one stays.
    pub(crate) fn save(&self, state: &Path) -> Result<()> {
        let (dir, path) = (dir_of(state), path_of(state, &self.name));
        let failed = |error| Failure::path(&path, "write the pool's record", error);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed)?;
        let stored = Stored {
            version: VERSION,
            memory: self.memory,
            cpus: self.cpus.as_ref().map(ToString::to_string),
            pids: self.pids,
            weight: self.weight,
            dirty_limit: self.dirty_limit,
            ceph: Some(self.client).filter(|client| *client != ClientOptions::default()),
            user: self.user,
            namespaces: self.namespaces.clone(),
            member: self.member,
            more: self.more.clone(),
        };
        let text = serde_json::to_vec_pretty(&stored).map_err(|error| failed(error.into()))?;
        let draft = draft_of(state, &self.name);
        let mut options = File::options();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.custom_flags(libc::O_NOFOLLOW).open(&draft).map_err(failed)?;
        if let Some(user) = self.user {
            // A file system without groups has the content alone.
            let _ = rustix::fs::fchown(&file, None, Some(Gid::from_raw(user)));
        }
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        let renamed = written.and_then(|()| fs::rename(&draft, &path));
        renamed.and_then(|()| File::open(&dir)?.sync_all()).map_err(|error| {
            let _ = fs::remove_file(&draft);
            failed(error)
        })
    }

    /// Removes its file, durably.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn remove(&self, state: &Path) -> Result<()> {
        let path = path_of(state, &self.name);
        // A command that was killed may have left it.
        let _ = fs::remove_file(draft_of(state, &self.name));
        fs::remove_file(&path)
            .and_then(|()| File::open(dir_of(state))?.sync_all())
            .map_err(|error| Failure::path(&path, "remove the pool's record", error))
    }

    /// A user of the host that no other pool below the state directory has. Records that cannot be
    /// read are said.
    ///
    /// # Errors
    /// One line when the directory of the records cannot be read, or no number is left.
    pub(crate) fn free_user(state: &Path) -> Result<u32> {
        let (mut taken, mut is_one_unknown) = (HashSet::new(), false);
        for name in names_in(state)? {
            match PoolRecord::load(state, &name) {
                Ok(pool) => taken.extend(pool.and_then(|pool| pool.user)),
                Err(failure) => {
                    say(&failure);
                    let group = fs::symlink_metadata(path_of(state, &name)).map(|file| file.gid());
                    match group.ok().filter(|group| is_pools_user(*group)) {
                        Some(user) => drop(taken.insert(user)),
                        None => is_one_unknown = true,
                    }
                }
            }
        }
        // Versions that did not set the group gave the lowest number that was free.
        let mut all = USERS_FIRST..USERS_FIRST + USERS;
        let is_free = |user: &u32| !taken.contains(user);
        let found = if is_one_unknown { all.rfind(is_free) } else { all.find(is_free) };
        found.ok_or_else(|| Failure::failed(format!("pools: there are {USERS}: remove some first")))
    }

    /// Its control groups.
    pub(crate) fn groups(&self) -> cgroup::Plan {
        let limits = Limits {
            memory: self.memory,
            cpus: self.cpus.clone(),
            weight: self.weight,
            pids: self.pids,
            // As its user's number, it is no other pool's: 7080:0 and on.
            network_class: self.user,
        };
        cgroup::plan_pool(&self.name, &limits)
    }
}

/// Refuses what no pool can be called.
///
/// # Errors
/// One line, exit status 2.
pub(crate) fn check_name(name: &str) -> Result<()> {
    match names::is_name(name) {
        true => Ok(()),
        false => Err(Failure::usage(format!(
            "{}: no name of a pool: use letters, digits, '.', '_' and '-', at most 64, no leading \
             '.'",
            Shown::new(name)
        ))),
    }
}

fn dir_of(state: &Path) -> PathBuf {
    state.join("pools")
}

/// Names of pools that have files below the state directory.
fn names_in(state: &Path) -> Result<Vec<String>> {
    let dir = dir_of(state);
    let failed = |error| Failure::path(&dir, "read the pools' records", error);
    let entries = match fs::read_dir(&dir) {
        // Another user's state directory holds no pool of this user's.
        Err(error)
            if [ErrorKind::NotFound, ErrorKind::PermissionDenied].contains(&error.kind()) =>
        {
            return Ok(Vec::new());
        }
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        names.extend(name.to_str().and_then(|name| name.strip_suffix(".json")).map(str::to_string));
    }
    names.retain(|name| names::is_name(name));
    names.sort();
    Ok(names)
}

fn path_of(state: &Path, name: &str) -> PathBuf {
    dir_of(state).join(format!("{name}.json"))
}

/// Where a record is written, before it has its name. No pool can be called so.
fn draft_of(state: &Path, name: &str) -> PathBuf {
    dir_of(state).join(format!(".{name}.new"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let state = tempfile::tempdir().expect("tempdir");
        let state = state.path().join("state");
        assert_eq!(PoolRecord::load(&state, "web"), Ok(None));
        assert_eq!(PoolRecord::all(&state), Ok((Vec::new(), Vec::new())));
        let full = PoolRecord {
            name: "web".to_string(),
            memory: Some(1 << 30),
            cpus: "0-1,5".parse().ok(),
            pids: Some(64),
            weight: Some(300),
            dirty_limit: Some(1 << 24),
            client: ClientOptions { io_threads: Some(3), ..ClientOptions::default() },
            user: PoolRecord::free_user(&state).ok(),
            namespaces: vec![NsKind::Ipc, NsKind::Net],
            member: Some(1001),
            more: Box::default(),
        };
        let bare = PoolRecord { name: "a.b".to_string(), ..PoolRecord::default() };
        for record in [&full, &bare] {
            record.save(&state).expect("save");
            assert_eq!(PoolRecord::expect(&state, &record.name), Ok(record.clone()));
        }
        let both = vec![bare.clone(), full.clone()];
        assert_eq!(PoolRecord::all(&state), Ok((both, Vec::new())));
        assert_eq!(PoolRecord::free_user(&state), Ok(USERS_FIRST + 1));
        full.remove(&state).expect("remove");
        assert_eq!(PoolRecord::all(&state), Ok((vec![bare], Vec::new())));
        assert!(PoolRecord::expect(&state, "web").expect_err("gone").line.contains("create web"));
    }

    #[test]
    fn what_another_version_says_is_kept() {
        let state = tempfile::tempdir().expect("tempdir");
        let path = path_of(state.path(), "web");
        fs::create_dir(dir_of(state.path())).expect("mkdir");
        // One of before there were settings of clusters, and one of a time to come.
        let text = r#"{"version":1,"memory":null,"cpus":null,"pids":7,"weight":null,
            "dirty_limit":null,"user":null,"later":{"a":[1]}}"#;
        fs::write(&path, text).expect("write");
        let record = PoolRecord::expect(state.path(), "web").expect("a record");
        assert_eq!((record.pids, record.client), (Some(7), ClientOptions::default()));
        PoolRecord { pids: Some(8), ..record }.save(state.path()).expect("save");
        let kept = fs::read_to_string(&path).expect("a file").replace([' ', '\n'], "");
        assert!(kept.contains(r#""pids":8"#) && kept.contains(r#""later":{"a":[1]}"#), "{kept}");
    }

    #[test]
    fn what_is_no_record_is_refused_and_left() {
        let state = tempfile::tempdir().expect("tempdir");
        let path = path_of(state.path(), "web");
        fs::create_dir(dir_of(state.path())).expect("mkdir");
        let whole = concat!(
            r#"{"version":1,"memory":null,"cpus":"0-1","pids":null,"weight":null,"#,
            r#""dirty_limit":null,"user":null}"#
        );
        fs::write(&path, whole).expect("write");
        assert!(PoolRecord::load(state.path(), "web").is_ok_and(|found| found.is_some()));
        let wrong = [
            whole.replace("version\":1", "version\":2"),
            whole.replace("0-1", "1-0"),
            whole.replace("null,\"weight", "-1,\"weight"),
            whole[..40].to_string(),
            String::new(),
        ];
        for text in wrong {
            fs::write(&path, &text).expect("write");
            let failure = PoolRecord::load(state.path(), "web").expect_err("refused");
            assert!(failure.line.contains("web.json"), "{failure}");
            assert_eq!(fs::read_to_string(&path).expect("left"), text);
        }
        fs::remove_file(&path).expect("remove");
        std::os::unix::fs::symlink("other", &path).expect("symlink");
        assert!(PoolRecord::load(state.path(), "web").is_err(), "a link is not followed");
    }
    /// Whatever becomes of records, no two pools have the same user.
    #[test]
    fn a_record_that_is_lost_keeps_no_pool_from_being_made_and_gives_its_user_to_none() {
        let state = tempfile::tempdir().expect("tempdir");
        let state = state.path();
        let make = |name: &str| {
            let user = PoolRecord::free_user(state).expect("a user");
            let name = name.to_string();
            PoolRecord { name, user: Some(user), ..PoolRecord::default() }
                .save(state)
                .expect("save");
            user
        };
        let has_groups = rustix::process::geteuid().is_root();
        let mut given = vec![make("a"), make("b"), make("c")];
        assert_eq!(given, [USERS_FIRST, USERS_FIRST + 1, USERS_FIRST + 2]);
        fs::write(path_of(state, "b"), "{").expect("write");
        given.push(make("d"));
        if has_groups {
            assert_eq!(given[3], USERS_FIRST + 3, "its group says which it had");
        }
        // As an earlier version left it, or a copy without groups.
        fs::remove_file(path_of(state, "a")).expect("remove");
        fs::write(path_of(state, "a"), "").expect("write");
        for name in ["e", "f", "g"] {
            given.push(make(name));
            fs::write(path_of(state, name), "not JSON").expect("write");
        }
        let last = USERS_FIRST + USERS - 1;
        if has_groups {
            assert_eq!(given[4..], [last, last - 1, last - 2]);
            let distinct: HashSet<u32> = given.iter().copied().collect();
            assert_eq!(distinct.len(), given.len());
        }
        let (pools, unread) = PoolRecord::all(state).expect("readable");
        let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        assert_eq!((names, unread.len()), (vec!["c", "d"], 5));
        assert!(unread[0].line.contains("a.json"), "{}", unread[0]);
        fs::remove_dir_all(dir_of(state)).expect("remove");
        fs::write(dir_of(state), "no directory").expect("write");
        PoolRecord::free_user(state).expect_err("nobody knows who has which");
    }
}

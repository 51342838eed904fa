//! What is shown of containers.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use polylane_pool::failure::{Failure, Result};
use serde_json::{Value, json};

use crate::container::{Container, State};
use crate::relay::former;

/// How often a log that is followed is looked at.
const PAUSE: Duration = Duration::from_millis(50);

fn is_same(one: &File, other: &File) -> bool {
    let identity = |file: &File| file.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    identity(one) == identity(other)
}

/// Writes what is left of a log; whether anybody reads it.
fn copy(file: &mut File, path: &Path, out: &mut impl Write) -> Result<bool> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        let count = file.read(&mut bytes).map_err(|error| Failure::path(path, "read it", error))?;
        if count == 0 {
            return Ok(true);
        }
        match out.write_all(&bytes[..count]).and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
            written => written.map_err(|error| Failure::because("logs", "write", error))?,
        }
    }
}

impl State {
    /// One word.
    pub fn word(self) -> &'static str {
        match self {
            State::Created => "created",
            State::Running(_) => "running",
            State::Exited(_) => "exited",
        }
    }
}

impl Container {
    /// One line of `ps`.
    ///
    /// # Errors
    /// As [`state`](Container::state).
    pub fn summary(&self) -> Result<Value> {
        let state = self.state()?;
        let record = &self.record;
        let (pid, status) = match state {
            State::Running(pid) => (Some(pid), None),
            State::Exited(status) => (None, status),
            State::Created => (None, None),
        };
        Ok(json!({
            "id": record.id, "name": record.name, "image": record.image, "state": state.word(),
            "pid": pid, "exit_status": status, "pool": record.pool, "created": record.created,
            "command": record.args,
        }))
    }

    /// All that is known of it.
    ///
    /// # Errors
    /// As [`state`](Container::state).
    pub fn inspect(&self) -> Result<Value> {
        let mut all = self.summary()?;
        let record = &self.record;
        let more = json!({
            "image_id": record.image_id, "layers": record.layers, "runtime": record.runtime,
            "env": record.env, "cwd": record.cwd, "user": record.user,
            "stop_signal": record.stop_signal, "hostname": record.hostname,
            "network": record.network, "namespaces": record.namespaces,
            "mounts": record.mounts, "remove": record.remove,
            "limits": { "cpus": record.cpus.map(|n| n as f64 / 1000.0), "memory": record.memory,
                        "pids": record.pids, "size": record.size },
            "store": record.store.as_ref().map(|store| format!("ceph:{store}")),
            "preload": record.preload, "terminal": record.terminal,
            "root": self.place.root(), "bundle": self.place.dir(), "output": self.output(),
        });
        if let (Some(all), Value::Object(more)) = (all.as_object_mut(), more) {
            all.extend(more);
        }
        Ok(all)
    }

    /// Writes what a detached container has said so far; with `follow` until it ends.
    ///
    /// # Errors
    /// The file cannot be read, or `out` not written.
    pub fn logs(&self, follow: bool, out: &mut impl Write) -> Result<()> {
        let path = self.output();
        let failed = |error| Failure::path(&path, "read it", error);
        let open = |path: &Path| match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some).map_err(failed),
        };
        let Some(mut file) = open(&former(&path))?.or(open(&path)?) else { return Ok(()) };
        loop {
            // What is said after this look the next one finds.
            let runs = follow && matches!(self.state()?, State::Running(_));
            if !copy(&mut file, &path, out)? {
                return Ok(());
            }
            // One that became too long goes on in a new file.
            match open(&path)?.filter(|next| !is_same(next, &file)) {
                Some(next) => {
                    // What was said to the former one after the look.
                    if !copy(&mut std::mem::replace(&mut file, next), &path, out)? {
                        return Ok(());
                    }
                }
                None if !runs => return Ok(()),
                None => std::thread::sleep(PAUSE),
            }
        }
    }
}

//! What each change executes. All are idempotent: what is so already is left so.

use std::time::Duration;

use crate::command::{Messages, Program};
use crate::desired::{Mount, Pool};
use crate::refusal::Refusal;

/// A change of a pool or a mount.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// The pool is there, with these limits; others that it has stay. By a member of the daemon's
    /// group, or the daemon's user.
    Pool(Pool, Option<u32>),
    /// No pool has this name; by whom.
    RemovePool(String, Option<u32>),
    /// The lane is mounted there.
    Mount(Mount),
    /// No lane is mounted at this path.
    Unmount(String),
}

impl Change {
    /// Its name in tasks and events.
    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Change::Pool(..) => "put-pool",
            Change::RemovePool(..) => "delete-pool",
            Change::Mount(_) => "put-mount",
            Change::Unmount(_) => "delete-mount",
        }
    }

    /// The name of the pool, or the path of the mount.
    pub(crate) fn object(&self) -> String {
        match self {
            Change::Pool(pool, _) => pool.name.clone(),
            Change::Mount(mount) => mount.path.display().to_string(),
            Change::RemovePool(name, _) => name.clone(),
            Change::Unmount(path) => path.clone(),
        }
    }

    /// Brings it about, by a command that takes `limit` at most.
    ///
    /// # Errors
    /// The command's own line.
    pub(crate) async fn make(
        self,
        program: &Program,
        messages: &Messages,
        limit: Duration,
    ) -> Result<(), Refusal> {
        let words = match &self {
            Change::Pool(pool, member) => pool.command(*member),
            Change::RemovePool(name, member) => {
                let mut words = words(&["pool", "rm", "--if-exists"]);
                words.extend(member.map(|user| format!("--member={user}")));
                words.extend(["--".to_string(), name.clone()]);
                words
            }
            Change::Mount(mount) => mount.command(),
            Change::Unmount(path) => words(&["umount", "--all", "--", path]),
        };
        program.execute(&words, limit, messages).await.map(drop)
    }
}

/// The JSON that a command prints.
///
/// # Errors
/// The command's own line.
pub(crate) async fn look(program: &Program, line: &[&str]) -> Result<serde_json::Value, Refusal> {
    let output = program.look(&words(line)).await?;
    serde_json::from_str(&output).map_err(|error| {
        Refusal::internal(&format_args!("{line:?}: the answer of another version: {error}"))
    })
}

fn words(line: &[&str]) -> Vec<String> {
    line.iter().map(|word| (*word).to_string()).collect()
}

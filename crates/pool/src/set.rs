//! `pool set`: what the lanes of a running pool, or of an attachment, are to have from now on.

use std::path::Path;

use crate::failure::{Failure, Result};
use crate::share::member;
use crate::share::{FromCoordinator, Policy, ToCoordinator, WEIGHTS, Wanted};
use crate::{attach, names, stats};

/// What `pool set` was told to change.
enum Subject {
    /// A pool.
    Pool,
    /// An attachment, by the name under which its coordinator knows it.
    Attachment(String),
}

/// A path is that of an attachment, and so is the name of a file when no pool is called so.
fn subject(name: &str) -> Result<Subject> {
    let is_pool = || stats::collect(Some(name)).is_ok();
    if !name.contains('/') && (!Path::new(name).exists() || is_pool()) {
        return Ok(Subject::Pool);
    }
    match attach::share_name(Path::new(name)) {
        Some(id) => Ok(Subject::Attachment(id)),
        None => Err(Failure::failed(format!("{name}: is not attached"))),
    }
}

/// Changes what the lanes of a running pool, or of an attachment, are to have.
///
/// # Errors
/// One line when the pool does not run, or has no volume and so no share of a device, and when
/// nobody can have what is asked for beside what was set before.
pub fn set(pool: &str, change: Wanted) -> Result<()> {
    if let Some(weight) = change.weight
        && !WEIGHTS.contains(&weight)
    {
        return Err(Failure::usage(format!("--weight {weight}: must be 1 to 10000")));
    }
    if change == Wanted::default() {
        return Err(Failure::usage(format!("pool '{pool}': say what to change, as --weight N")));
    }
    if let Some(why) = change.contradiction(Policy::Ledger) {
        return Err(Failure::usage(why));
    }
    let dir = names::runtime_dir();
    let subject = subject(pool)?;
    let lane = match &subject {
        Subject::Pool => pool,
        Subject::Attachment(id) => id,
    };
    let mut changed = 0;
    for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("shares-") && name.ends_with(".socket") {
            let message = ToCoordinator::Set { pool: lane.to_string(), change };
            match member::ask(&entry.path(), &message) {
                Some(FromCoordinator::Done(count)) => changed += count,
                Some(FromCoordinator::Refused(why)) => return Err(Failure::usage(why)),
                _ => {}
            }
        }
    }
    if changed == 0 {
        if let Subject::Attachment(_) = subject {
            return Err(Failure::failed(format!(
                "{pool}: shares no device: attach it with --qos ledger, a weight or a limit"
            )));
        }
        // A pool that does not run is the likelier mistake, and is said first.
        stats::collect(Some(pool))?;
        return Err(Failure::failed(format!(
            "pool '{pool}': its lane shares no device: it has no volume, or runs with --qos none"
        )));
    }
    Ok(())
}

//! Where volumes are: the state directory, a pool's own volume, the file that a path means.

use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;

use crate::failure::{Failure, Result};
use crate::trust::{self, Author, Links};

/// The state directory: `$XDG_STATE_HOME/polylane`; else `/var/lib/polylane` for root and
/// `~/.local/state/polylane` for others.
///
/// # Errors
/// Other users decide what is in it: its records say which programs are executed, which files are
/// removed, and who may read them.
pub fn state_dir() -> Result<PathBuf> {
    let dir = named_state_dir()?;
    let who = match trust::strangers_on(&dir) {
        Author::Caller => return Ok(dir),
        Author::User(user) => format!("user {user} decides"),
        Author::Anyone => "several users decide".to_string(),
    };
    Err(Failure::failed(format!(
        "{}: {who} what is in this state directory, by owner, mode or links on the way: set \
         XDG_STATE_HOME to one of your own, or unset it",
        Shown::new(&dir)
    )))
}

fn named_state_dir() -> Result<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute())
    };
    if let Some(dir) = absolute("XDG_STATE_HOME") {
        return Ok(dir.join("polylane"));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/polylane"));
    }
    let home = absolute("HOME").ok_or_else(|| {
        Failure::failed("state directory: set HOME or XDG_STATE_HOME, or use --volume FILE")
    })?;
    Ok(home.join(".local/state/polylane"))
}

/// Where containers are kept, a directory for each.
///
/// # Errors
/// As [`state_dir`].
pub fn containers_dir() -> Result<PathBuf> {
    Ok(state_dir()?.join("containers"))
}

/// Where the volumes of pools lie that were given none.
pub fn volumes_dir() -> Result<PathBuf> {
    Ok(state_dir()?.join("volumes"))
}

/// The own volume of a pool; its directory is made.
pub fn default_path(pool: &str) -> Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let dir = volumes_dir()?;
    let mut builder = std::fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|error| Failure::path(&dir, "make the directory of volumes", error))?;
    Ok(dir.join(format!("{pool}.img")))
}

/// The file that a volume's path means. A symbolic link is followed here and nowhere else: the
/// sidecar has the file's name, and names are exchanged where the file has its own.
///
/// # Errors
/// It is a link that leads nowhere, or one of another user to a file that is not that user's.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    let is_link = std::fs::symlink_metadata(path).is_ok_and(|stat| stat.is_symlink());
    match is_link {
        true => trust::expect(path, Links::ToTheirs, "follow the link").map(|found| found.path),
        // What it is asked for says better that it is not there.
        false => trust::refuse_astray(path).map(|()| path.to_path_buf()),
    }
}

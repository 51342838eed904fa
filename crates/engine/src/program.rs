//! The program of a container, looked for before the runtime does: what a runtime says of one that
//! is not there comes on the container's own standard error, in the runtime's words.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use polylane_pool::failure::{Failure, Result};
use rustix::fs::OFlags;

use crate::record::Mount;
use crate::users::open_inside;

/// Exit status where the container's program is not there, or cannot be executed.
pub(crate) const NOT_FOUND: u8 = 127;
pub(crate) const NOT_EXECUTABLE: u8 = 126;

/// What was found at a path.
enum Found {
    Nothing,
    Other,
    Program,
}

/// Refuses a program that is not in the root file system at `root`. What may lie in one of the
/// container's mounts is left to the runtime.
///
/// # Errors
/// One line, with the exit status that a shell has for it.
pub(crate) fn check(
    root: &Path,
    (name, cwd): (&str, &str),
    env: &[String],
    mounts: &[Mount],
) -> Result<()> {
    let dir = File::open(root).map_err(|error| Failure::path(root, "open it", error))?;
    let path = env.iter().find_map(|text| text.strip_prefix("PATH=")).unwrap_or_default();
    let candidates: Vec<String> = match name.contains('/') {
        true if name.starts_with('/') => vec![name.to_string()],
        true => vec![format!("{cwd}/{name}")],
        false => path.split(':').map(|dir| format!("{dir}/{name}")).collect(),
    };
    let in_mount = |path: &String| {
        let system = ["/proc/", "/dev/", "/sys/", "/.polylane/"];
        let below = |target: String| path.trim_start_matches('/').starts_with(&target);
        system.iter().any(|place| path.starts_with(place))
            || mounts.iter().any(|mount| below(mount.target_parts()))
    };
    let mut other = false;
    for candidate in &candidates {
        if in_mount(candidate) {
            return Ok(());
        }
        match look(&dir, candidate) {
            Found::Program => return Ok(()),
            Found::Other => other = true,
            Found::Nothing => {}
        }
    }
    let failure = |status, line| Err(Failure { status, line });
    match other {
        true => failure(
            NOT_EXECUTABLE,
            format!("{name}: no program that can be executed in the container"),
        ),
        false => failure(NOT_FOUND, format!("{name}: not found in the container")),
    }
}

fn look(root: &File, path: &str) -> Found {
    match open_inside(root, path, OFlags::PATH)
        .and_then(|file| Ok(rustix::fs::fstat(&file)?.st_mode))
    {
        // A link may lead into a mount of the container.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => match is_link(root, path) {
            true => Found::Program,
            false => Found::Nothing,
        },
        Err(_) => Found::Other,
        Ok(mode) => {
            let is_file =
                rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::RegularFile;
            let executable = std::fs::Permissions::from_mode(mode).mode() & 0o111 != 0;
            if is_file && executable { Found::Program } else { Found::Other }
        }
    }
}

fn is_link(root: &File, path: &str) -> bool {
    open_inside(root, path, OFlags::PATH | OFlags::NOFOLLOW).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::write(root.join("bin/sh"), "x").unwrap();
        std::fs::write(root.join("bin/text"), "x").unwrap();
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(root.join("bin/sh"), all).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", root.join("bin/me")).unwrap();
        let mounts = [Mount::parse("/x:/opt/tools").unwrap()];
        let status = |name: &str| {
            let env = ["PATH=/usr/bin:/bin".to_string()];
            check(root, (name, "/bin"), &env, &mounts).map_err(|failure| failure.status)
        };
        for name in
            ["sh", "/bin/sh", "./sh", "/bin/../bin/sh", "/proc/self/exe", "/opt/tools/x", "me"]
        {
            assert_eq!(status(name), Ok(()), "{name}");
        }
        assert_eq!(status("text"), Err(NOT_EXECUTABLE));
        assert_eq!(status("/bin"), Err(NOT_EXECUTABLE));
        for name in ["nothing", "/sh", "./bin/sh", "/bin/sh/x"] {
            assert_eq!(status(name), Err(NOT_FOUND), "{name}");
        }
    }
}

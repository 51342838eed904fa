//! Where the preload library is, and `LD_PRELOAD` with it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// File name of the library.
pub(crate) const LIBRARY: &str = "libpolylane.so";

/// The library: `POLYLANE_LIB`, or beside the program, or in `../lib` or `../lib/polylane` from
/// there.
pub fn find() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("POLYLANE_LIB") {
        let path = PathBuf::from(path);
        return path.is_file().then(|| path.canonicalize().ok()).flatten();
    }
    let program = std::env::current_exe().ok()?;
    let dir = program.parent()?;
    let candidates = ["", "../lib/polylane", "../lib"].map(|place| dir.join(place).join(LIBRARY));
    candidates.into_iter().find(|path| path.is_file())?.canonicalize().ok()
}

/// Whether the root file system has the dynamic linker that the library needs. In a root with
/// another C library, a library that cannot be loaded would keep every program from starting.
pub(crate) fn loader_exists() -> bool {
    ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"]
        .iter()
        .any(|loader| Path::new(loader).exists())
}

/// Whether the dynamic linker can be told of a library below this path: it splits at blanks and
/// colons, and knows no quoting.
pub(crate) fn can_name(mount: &Path) -> bool {
    !mount.as_os_str().as_bytes().iter().any(|b| matches!(b, b' ' | b':' | b'\t' | b'\n' | b'$'))
}

/// Where the dynamic linker of the GNU C library finds libraries, as it puts it for `$LIB`, on the
/// systems there are; names that lead from `dir` to itself.
const FOLDERS: [&str; 6] =
    ["lib", "lib64", "libx32", "x86_64-linux-gnu", "aarch64-linux-gnu", "x86_64-linux-gnux32"];

/// Lets the library in a directory be found under every name that [`for_linker`] may mean.
pub(crate) fn link_folders(dir: &OwnedFd) -> rustix::io::Result<()> {
    FOLDERS.iter().try_for_each(|name| rustix::fs::symlinkat(".", dir, *name))
}

/// The library's path below `dir` as the GNU C library's linker reads it. That of musl, which could
/// not load the library and would end the program, takes `$LIB` for a name, finds nothing, and goes
/// on.
pub(crate) fn for_linker(dir: &Path) -> PathBuf {
    dir.join("$LIB").join(LIBRARY)
}

/// The value of `LD_PRELOAD`: `library`, then what the user has there, without other lanes'
/// libraries.
pub(crate) fn list(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_os_string();
    let others = others();
    if !others.is_empty() {
        value.push(":");
        value.push(others);
    }
    value
}

/// Takes other lanes' libraries out of a command's `LD_PRELOAD`.
pub(crate) fn clean(command: &mut std::process::Command) {
    let others = others();
    match others.is_empty() {
        true => command.env_remove("LD_PRELOAD"),
        false => command.env("LD_PRELOAD", others),
    };
}

fn others() -> OsString {
    let value = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let parts = value.as_bytes().split(|b| matches!(b, b' ' | b':'));
    let kept: Vec<&[u8]> =
        parts.filter(|part| !part.is_empty() && !part.ends_with(LIBRARY.as_bytes())).collect();
    OsString::from_vec(kept.join(&b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_path_that_the_linker_would_split_is_seen() {
        assert!(can_name(Path::new("/lane")));
        assert!(!can_name(Path::new("/my lane")));
        assert!(!can_name(Path::new("/a:b")));
    }
}

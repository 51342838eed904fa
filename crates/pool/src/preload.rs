//! Where the preload library is, and `LD_PRELOAD` with it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use polylane_ipc::handshake::LANES_MAX;

/// File name of the library.
const LIBRARY: &str = "libpolylane.so";

/// The library as it is built for one C library.
pub(crate) struct Build {
    /// Its file's name beside the library for the GNU C library; `None` for that one itself.
    file: Option<&'static str>,
    /// Where it is in the lane's run directory.
    pub(crate) place: &'static str,
    /// The linkers that can load it.
    linkers: [&'static str; 2],
}

/// Every build, that for the GNU C library first. That for musl may be missing.
pub(crate) const BUILDS: [Build; 2] = [
    Build {
        file: None,
        place: LIBRARY,
        linkers: ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"],
    },
    Build {
        file: Some("libpolylane-musl.so"),
        place: "$LIB/libpolylane.so",
        linkers: ["/lib/ld-musl-x86_64.so.1", "/lib/ld-musl-aarch64.so.1"],
    },
];

impl Build {
    /// Its file, given that of the library for the GNU C library.
    pub(crate) fn beside(&self, library: &Path) -> Option<PathBuf> {
        let path = self.file.map_or(library.to_path_buf(), |name| library.with_file_name(name));
        path.is_file().then_some(path)
    }

    /// Whether the root file system has a dynamic linker for it. Where there is none for any, no
    /// program could use the library.
    pub(crate) fn has_linker(&self) -> bool {
        self.linkers.iter().any(|linker| Path::new(linker).exists())
    }
}

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

/// Where the library finds a lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LanePlace {
    /// The lane's run directory, outside of the lane.
    pub(crate) run_dir: PathBuf,
    /// The lane's mount path.
    pub(crate) mount: PathBuf,
}

/// The variables that tell the library where lanes are, the first one's first; `None`: it is not to
/// be told, or there is no such lane. Lanes beyond [`LANES_MAX`] have none.
pub(crate) fn lane_variables(lanes: &[LanePlace]) -> Vec<(String, Option<OsString>)> {
    let mount = lanes.first().map(|lane| lane.mount.clone().into_os_string());
    let run_dirs = (0..LANES_MAX).map(|index| (run_variable(index), lanes.get(index).map(run_of)));
    [(MOUNT_VARIABLE.to_string(), mount)].into_iter().chain(run_dirs).collect()
}

/// The variable that tells the library of the first lane's mount path.
pub(crate) const MOUNT_VARIABLE: &str = "POLYLANE_MOUNT";

/// The variable that tells the library where the run directory of a lane is.
fn run_variable(index: usize) -> String {
    match index {
        0 => "POLYLANE_RUN".to_string(),
        further => format!("POLYLANE_RUN_{}", further + 1),
    }
}

/// The value of [`run_variable`]: the directory, and the mount path that it belongs to.
fn run_of(lane: &LanePlace) -> OsString {
    let mut value = lane.run_dir.as_os_str().to_os_string();
    value.push(":");
    value.push(&lane.mount);
    value
}

/// Whether the dynamic linker can be told of a library below this path: it splits at blanks and
/// colons, and knows no quoting.
pub(crate) fn can_name(dir: &Path) -> bool {
    !dir.as_os_str().as_bytes().iter().any(|b| matches!(b, b' ' | b':' | b'\t' | b'\n' | b'$'))
}

/// Where the dynamic linker of the GNU C library finds libraries, as it puts it for `$LIB`, on the
/// systems there are; names that lead from `dir` to itself.
const FOLDERS: [&str; 6] =
    ["lib", "lib64", "libx32", "x86_64-linux-gnu", "aarch64-linux-gnu", "x86_64-linux-gnux32"];

/// Where [`for_linker`] leads: for the GNU C library's linker back to the directory, and for
/// musl's, which knows no `$LIB`, to a directory of that very name.
pub(crate) fn make_folders(dir: &OwnedFd) -> rustix::io::Result<()> {
    FOLDERS.iter().try_for_each(|name| rustix::fs::symlinkat(".", dir, *name))?;
    rustix::fs::mkdirat(dir, "$LIB", rustix::fs::Mode::from_raw_mode(0o755))
}

/// The library's path below `dir` as dynamic linkers read it: each finds the build for its C
/// library, since one that it could not load would end the program. musl's goes on where it finds
/// none.
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

/// The value of `ASAN_OPTIONS`: the user's, and the option without which AddressSanitizer's runtime
/// ends its program behind a preloaded library (its documentation: `verify_asan_link_order`).
pub(crate) fn asan_options() -> OsString {
    with_link_order(std::env::var_os("ASAN_OPTIONS").unwrap_or_default())
}

fn with_link_order(mut options: OsString) -> OsString {
    const OPTION: &str = "verify_asan_link_order";
    let given = options.as_bytes();
    if given.windows(OPTION.len()).any(|window| window == OPTION.as_bytes()) {
        return options;
    }
    if !options.is_empty() {
        options.push(":");
    }
    options.push(OPTION);
    options.push("=0");
    options
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
    fn each_linker_finds_the_build_for_its_c_library() {
        let path = for_linker(Path::new("run"));
        let [gnu, musl] = BUILDS;
        assert_eq!(path, Path::new("run").join(musl.place));
        for folder in FOLDERS {
            let path = path.to_string_lossy().replace("$LIB", folder);
            assert_eq!(path, format!("run/{folder}/{}", gnu.place));
        }
    }

    #[test]
    fn each_lane_has_a_variable_and_those_of_other_lanes_go() {
        let place = |name: &str| LanePlace {
            run_dir: PathBuf::from(format!("/run/{name}.lane")),
            mount: PathBuf::from(format!("/{name}")),
        };
        let told = lane_variables(&[place("a"), place("b")]);
        let of = |name: &str| {
            let (_, value) = told.iter().find(|(variable, _)| variable == name).expect(name);
            value.as_ref().map(|value| value.to_str().expect("text").to_string())
        };
        assert_eq!(of("POLYLANE_MOUNT").as_deref(), Some("/a"));
        assert_eq!(of("POLYLANE_RUN").as_deref(), Some("/run/a.lane:/a"));
        assert_eq!(of("POLYLANE_RUN_2").as_deref(), Some("/run/b.lane:/b"));
        assert_eq!((of("POLYLANE_RUN_3"), of("POLYLANE_RUN_8")), (None, None));
        let many: Vec<LanePlace> = (0..LANES_MAX + 3).map(|n| place(&n.to_string())).collect();
        assert_eq!(lane_variables(&many).len(), LANES_MAX + 1);
    }

    #[test]
    fn options_of_address_sanitizer_are_kept() {
        let with = |given: &str| with_link_order(given.into()).into_string().unwrap();
        assert_eq!(with(""), "verify_asan_link_order=0");
        assert_eq!(with("detect_leaks=0"), "detect_leaks=0:verify_asan_link_order=0");
        assert_eq!(with("verify_asan_link_order=1"), "verify_asan_link_order=1");
    }

    #[test]
    fn a_mount_path_that_the_linker_would_split_is_seen() {
        assert!(can_name(Path::new("/lane")));
        assert!(!can_name(Path::new("/my lane")));
        assert!(!can_name(Path::new("/a:b")));
    }
}

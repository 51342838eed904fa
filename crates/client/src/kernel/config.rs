//! Where the lane is: `POLYLANE_MOUNT` and `POLYLANE_RUN`, read once in the constructor.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The variable with the mount path.
const MOUNT_VARIABLE: &[u8] = b"POLYLANE_MOUNT=";
/// The variable with the lane's run directory, where it has one outside of the lane, a colon and
/// the mount path that it belongs to: a program may be given another lane's mount path alone.
const RUN_VARIABLE: &[u8] = b"POLYLANE_RUN=";
/// The run directory within a lane that has none outside.
const RUN_WITHIN: &[u8] = b".polylane";
/// The variable with [`patience`].
const PATIENCE_VARIABLE: &[u8] = b"POLYLANE_PATIENCE=";
/// The variable that switches [`leases`] off (`0`) or has them asked for at once (`eager`).
const LEASES_VARIABLE: &[u8] = b"POLYLANE_LEASES=";
/// The variable that switches [`views`] off (`0`) or has them asked for at once (`eager`).
const VIEWS_VARIABLE: &[u8] = b"POLYLANE_VIEWS=";
/// The variable that has the library say on standard error, once, why a process has no session.
const DEBUG_VARIABLE: &[u8] = b"POLYLANE_DEBUG=";
/// The variable that the dynamic loader reads.
const PRELOAD_VARIABLE: &[u8] = b"LD_PRELOAD=";
/// Longest mount path; a longer one switches the library off.
pub(crate) const MOUNT_BYTES_MAX: usize = 1024;

static MOUNT: OnceLock<([u8; MOUNT_BYTES_MAX], usize)> = OnceLock::new();
/// Length of the mount path without a slash at its end; `OFF`: no lane. For `/` it is 0.
static MOUNT_LEN: AtomicUsize = AtomicUsize::new(OFF);
const OFF: usize = usize::MAX;

/// `LD_PRELOAD=...`, `POLYLANE_MOUNT=...` and `POLYLANE_RUN=...` as this program was started with
/// them.
static ENVIRONMENT: [OnceLock<CString>; 3] = [const { OnceLock::new() }; 3];

/// Takes an entry of the environment, if it is one of ours. Called in the constructor.
pub(crate) fn take(entry: &CStr) {
    let bytes = entry.to_bytes();
    for (place, name) in [PRELOAD_VARIABLE, MOUNT_VARIABLE, RUN_VARIABLE].into_iter().enumerate() {
        if bytes.starts_with(name) {
            ENVIRONMENT[place].get_or_init(|| entry.to_owned());
        }
    }
    if let Some(path) = bytes.strip_prefix(MOUNT_VARIABLE) {
        set_mount(path);
    }
    match bytes.strip_prefix(LEASES_VARIABLE) {
        Some(b"0") => LEASES.store(false, Ordering::Relaxed),
        Some(b"eager") => EAGER.store(true, Ordering::Relaxed),
        _ => {}
    }
    match bytes.strip_prefix(VIEWS_VARIABLE) {
        Some(b"0") => VIEWS.store(NEVER, Ordering::Relaxed),
        Some(b"eager") => VIEWS.store(0, Ordering::Relaxed),
        _ => {}
    }
    if bytes.strip_prefix(DEBUG_VARIABLE).is_some_and(|value| !matches!(value, b"" | b"0")) {
        DEBUG.store(true, Ordering::Relaxed);
    }
    let number = bytes.strip_prefix(PATIENCE_VARIABLE).and_then(|text| str::from_utf8(text).ok());
    if let Some(calls) = number.and_then(|text| text.parse().ok()) {
        PATIENCE.store(calls, Ordering::Relaxed);
    }
}

/// How many calls a process makes through the kernel before it connects. A connection costs about
/// as much as a dozen calls through FUSE, and many programs that others run make fewer.
pub(crate) fn patience() -> u32 {
    PATIENCE.load(Ordering::Relaxed)
}

static PATIENCE: AtomicU32 = AtomicU32::new(8);

/// Whether the next such line is to be said: the first alone is.
pub(crate) fn says_why() -> bool {
    DEBUG.swap(false, Ordering::Relaxed)
}

static DEBUG: AtomicBool = AtomicBool::new(false);

/// Whether leases are asked for. `POLYLANE_LEASES=0` has every change of a name awaited.
pub(crate) fn leases() -> bool {
    LEASES.load(Ordering::Relaxed)
}

/// Whether leases are asked for after the second change, however early the last ones ended: for
/// tests, which look often.
pub(crate) fn leases_eager() -> bool {
    EAGER.load(Ordering::Relaxed)
}

static LEASES: AtomicBool = AtomicBool::new(true);
static EAGER: AtomicBool = AtomicBool::new(false);

/// After how many requests on an open file it is to be shown: many programs close a file sooner
/// than that pays. [`NEVER`]: no file is.
pub(crate) fn views() -> u32 {
    VIEWS.load(Ordering::Relaxed)
}

/// See [`views`].
pub(crate) const NEVER: u32 = u32::MAX;

static VIEWS: AtomicU32 = AtomicU32::new(3);

/// The options of AddressSanitizer's runtime.
pub(crate) const ASAN_VARIABLE: &[u8] = b"ASAN_OPTIONS=";
/// The one without which that runtime ends its program behind a preloaded library.
pub(crate) const ASAN_ORDER: &[u8] = b"verify_asan_link_order";
/// An entry that sets it.
const ASAN_ENTRY: &CStr = c"ASAN_OPTIONS=verify_asan_link_order=0";

/// The entries that every program run from here should have; `None` without a lane.
pub(crate) fn environment() -> Option<[Option<&'static CStr>; 4]> {
    mount()?;
    let [preload, mount, run] =
        ENVIRONMENT.each_ref().map(|entry| entry.get().map(CString::as_c_str));
    Some([preload, mount, run, preload.and(Some(ASAN_ENTRY))])
}

/// Takes the mount path, or leaves the library off when it is unfit: not absolute, or too long.
fn set_mount(path: &[u8]) {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    if path.first() != Some(&b'/') || end > MOUNT_BYTES_MAX {
        return;
    }
    let mut bytes = [0; MOUNT_BYTES_MAX];
    bytes[..end].copy_from_slice(&path[..end]);
    if MOUNT.set((bytes, end)).is_ok() {
        MOUNT_LEN.store(end, Ordering::Release);
    }
}

/// The mount path without a slash at its end (empty for the root); `None`: no lane in this process.
#[inline]
pub(crate) fn mount() -> Option<&'static [u8]> {
    let len = MOUNT_LEN.load(Ordering::Acquire);
    if len == OFF {
        return None;
    }
    MOUNT.get().map(|(bytes, _)| &bytes[..len])
}

/// There is no lane in this process from here on, nor in what is forked from it.
pub(crate) fn switch_off() {
    MOUNT_LEN.store(OFF, Ordering::SeqCst);
}

/// `path` under the mount, in `into`.
pub(crate) fn under_mount<'a>(into: &'a mut [u8], path: &[u8]) -> Option<&'a [u8]> {
    let mount = mount()?;
    join(into, mount, path)
}

/// A file of the lane's run directory, in `into`: of the directory outside of the lane that
/// `POLYLANE_RUN` names, which no service can change, or else of that within it.
pub(crate) fn in_run_dir<'a>(into: &'a mut [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mount = mount()?;
    let entry = ENVIRONMENT[2].get().and_then(|entry| entry.to_bytes().strip_prefix(RUN_VARIABLE));
    match entry.and_then(|entry| run_dir_of(entry, mount)) {
        Some(dir) => join(into, dir, name),
        None => {
            let mut within = [0; RUN_WITHIN.len() + 16];
            under_mount(into, join(&mut within, RUN_WITHIN, name)?)
        }
    }
}

/// The directory in `DIR:MOUNT`, if it belongs to this mount path.
fn run_dir_of<'a>(entry: &'a [u8], mount: &[u8]) -> Option<&'a [u8]> {
    let colon = entry.iter().position(|&byte| byte == b':')?;
    let (dir, of) = (&entry[..colon], &entry[colon + 1..]);
    let of = of.strip_suffix(b"/").unwrap_or(of);
    (dir.starts_with(b"/") && of == mount).then_some(dir)
}

fn join<'a>(into: &'a mut [u8], dir: &[u8], name: &[u8]) -> Option<&'a [u8]> {
    let into = into.get_mut(..dir.len() + 1 + name.len())?;
    into[..dir.len()].copy_from_slice(dir);
    into[dir.len()] = b'/';
    into[dir.len() + 1..].copy_from_slice(name);
    Some(into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_directory_belongs_to_one_mount_path() {
        let of = |entry: &'static str, mount: &str| run_dir_of(entry.as_bytes(), mount.as_bytes());
        assert_eq!(of("/run/p/a.lane:/srv", "/srv"), Some(&b"/run/p/a.lane"[..]));
        assert_eq!(of("/run/p/a.lane:/a:b", "/a:b"), Some(&b"/run/p/a.lane"[..]));
        assert_eq!(of("/r:/", ""), Some(&b"/r"[..]), "a lane that is the root");
        for other in ["/run/p/a.lane:/other", "/run/p/a.lane", "run:/srv", "", ":/srv"] {
            assert_eq!(of(other, "/srv"), None, "{other}");
        }
    }
}

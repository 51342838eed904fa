//! Where the lanes are: `POLYLANE_MOUNT`, `POLYLANE_RUN` and `POLYLANE_RUN_2` to `POLYLANE_RUN_8`,
//! read once in the constructor.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use polylane_ipc::handshake::LANES_MAX;

/// The variable with the mount path of the first lane.
const MOUNT_VARIABLE: &[u8] = b"POLYLANE_MOUNT=";
/// The variable with the first lane's run directory, where it has one outside of the lane, a colon
/// and the mount path that it belongs to: a program may be given another lane's mount path alone.
const RUN_VARIABLE: &[u8] = b"POLYLANE_RUN=";
/// How the variable of each further lane begins, with the same content; a digit and `=` follow, 2
/// for the second lane.
const RUN_VARIABLES: &[u8] = b"POLYLANE_RUN_";
const _: () = assert!(LANES_MAX <= 9);
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
/// What a program is told whose process shares its place; see [`shares_place`].
const PLACE_ENTRY: &CStr = c"POLYLANE_SHARED_PLACE=1";
/// The variable that the dynamic loader reads.
const PRELOAD_VARIABLE: &[u8] = b"LD_PRELOAD=";
/// Longest mount path; a longer one switches the library off.
pub(crate) const MOUNT_BYTES_MAX: usize = 1024;

/// One of the lanes that the environment names, the first being that of `POLYLANE_MOUNT`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LaneNumber(u8);

impl LaneNumber {
    /// The lane of `POLYLANE_MOUNT`.
    pub(crate) const FIRST: LaneNumber = LaneNumber(0);

    /// Its place in a table of `LANES_MAX`.
    #[inline]
    pub(crate) fn index(self) -> usize {
        usize::from(self.0) % LANES_MAX
    }

    /// The lane of that place.
    #[inline]
    pub(crate) fn at(index: usize) -> LaneNumber {
        LaneNumber((index % LANES_MAX) as u8)
    }
}

/// A mount path and its length without a slash at its end; for `/` that is 0.
type MountPath = ([u8; MOUNT_BYTES_MAX], usize);

static MOUNTS: [OnceLock<MountPath>; LANES_MAX] = [const { OnceLock::new() }; LANES_MAX];
/// One more than the number of the last lane; 0: there is none.
static LANES: AtomicUsize = AtomicUsize::new(0);

const PRELOAD: usize = 0;
const MOUNT: usize = 1;
/// The variable with the run directory of the first lane; those of the others follow.
const RUN: usize = 2;
const VARIABLES: usize = RUN + LANES_MAX;

/// `LD_PRELOAD=...`, `POLYLANE_MOUNT=...`, `POLYLANE_RUN=...` and those of further lanes as this
/// program was started with them.
static ENVIRONMENT: [OnceLock<CString>; VARIABLES] = [const { OnceLock::new() }; VARIABLES];

/// Which of [`ENVIRONMENT`] an entry is, and its value.
fn recognised(entry: &[u8]) -> Option<(usize, &[u8])> {
    let known = [(PRELOAD, PRELOAD_VARIABLE), (MOUNT, MOUNT_VARIABLE), (RUN, RUN_VARIABLE)];
    let first = |(place, name)| entry.strip_prefix(name).map(|value| (place, value));
    known.into_iter().find_map(first).or_else(|| {
        let [digit, b'=', value @ ..] = entry.strip_prefix(RUN_VARIABLES)? else { return None };
        let lane = usize::from(digit.checked_sub(b'1')?);
        (1..LANES_MAX).contains(&lane).then_some((RUN + lane, value))
    })
}

/// Takes an entry of the environment, if it is one of ours. Called in the constructor.
pub(crate) fn take(entry: &CStr) {
    let bytes = entry.to_bytes();
    if let Some((place, value)) = recognised(bytes) {
        ENVIRONMENT[place].get_or_init(|| entry.to_owned());
        match place {
            PRELOAD | RUN => {}
            MOUNT => set_mount(LaneNumber::FIRST, value),
            further => {
                if let Some((_, path)) = parts_of_run(value) {
                    set_mount(LaneNumber::at(further - RUN), path);
                }
            }
        }
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
    if entry == PLACE_ENTRY {
        share_place(true);
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

/// Whether this process may have its working directory, root and umask in common with another one
/// (`CLONE_FS`). Linux lets it have them so over exec as well: then [`environment`] tells the
/// program, which takes that out of its own environment, since what it forks shares nothing.
pub(crate) fn shares_place() -> bool {
    SHARES_PLACE.load(Ordering::Relaxed)
}

/// See [`shares_place`].
pub(crate) fn share_place(shares: bool) {
    SHARES_PLACE.store(shares, Ordering::Relaxed);
}

/// The name of the variable that says so.
pub(crate) const PLACE_VARIABLE: &CStr = c"POLYLANE_SHARED_PLACE";

static SHARES_PLACE: AtomicBool = AtomicBool::new(false);

/// The options of AddressSanitizer's runtime.
pub(crate) const ASAN_VARIABLE: &[u8] = b"ASAN_OPTIONS=";
/// The one without which that runtime ends its program behind a preloaded library.
pub(crate) const ASAN_ORDER: &[u8] = b"verify_asan_link_order";
/// An entry that sets it.
const ASAN_ENTRY: &CStr = c"ASAN_OPTIONS=verify_asan_link_order=0";

/// How many entries [`environment`] has.
pub(crate) const ENTRIES: usize = VARIABLES + 2;

/// The entries that every program run from here should have; `None` without a lane.
pub(crate) fn environment() -> Option<[Option<&'static CStr>; ENTRIES]> {
    if !has_lane() {
        return None;
    }
    let mut entries = [None; ENTRIES];
    for (entry, kept) in entries.iter_mut().zip(&ENVIRONMENT) {
        *entry = kept.get().map(CString::as_c_str);
    }
    entries[VARIABLES] = entries[PRELOAD].and(Some(ASAN_ENTRY));
    entries[VARIABLES + 1] = shares_place().then_some(PLACE_ENTRY);
    Some(entries)
}

/// Leaves out the lanes of this process that an environment with this entry is not to be told of:
/// it names another first lane.
pub(crate) fn leave_out(missing: &mut [Option<&'static CStr>; ENTRIES], given: &[u8]) {
    let own = ENVIRONMENT[MOUNT].get().map(|entry| entry.to_bytes());
    if given.starts_with(MOUNT_VARIABLE) && own != Some(given) {
        missing[RUN + 1..VARIABLES].fill(None);
    }
}

/// Takes the mount path of a lane, or leaves the library off there when it is unfit: not absolute,
/// or too long.
fn set_mount(lane: LaneNumber, path: &[u8]) {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    if path.first() != Some(&b'/') || end > MOUNT_BYTES_MAX {
        return;
    }
    let mut bytes = [0; MOUNT_BYTES_MAX];
    bytes[..end].copy_from_slice(&path[..end]);
    if MOUNTS[lane.index()].set((bytes, end)).is_ok() {
        LANES.fetch_max(lane.index() + 1, Ordering::Release);
    }
}

/// Whether there is a lane in this process.
#[inline]
pub(crate) fn has_lane() -> bool {
    LANES.load(Ordering::Acquire) > 0
}

/// The lanes of this process.
#[inline]
pub(crate) fn lanes() -> impl Iterator<Item = LaneNumber> {
    (0..LANES.load(Ordering::Acquire))
        .map(LaneNumber::at)
        .filter(|lane| MOUNTS[lane.index()].get().is_some())
}

/// The mount path of a lane without a slash at its end (empty for the root); `None`: there is no
/// such lane in this process.
#[inline]
pub(crate) fn mount(lane: LaneNumber) -> Option<&'static [u8]> {
    if lane.index() >= LANES.load(Ordering::Acquire) {
        return None;
    }
    MOUNTS[lane.index()].get().map(|(bytes, len)| &bytes[..*len])
}

/// That lane and those after it are none in this process.
pub(crate) fn leave_out_from(lane: LaneNumber) {
    LANES.store(lane.index(), Ordering::SeqCst);
}

/// There is no lane in this process from here on, nor in what is forked from it.
pub(crate) fn switch_off() {
    LANES.store(0, Ordering::SeqCst);
}

/// `path` under the mount of a lane, in `into`.
pub(crate) fn under_mount<'a>(
    lane: LaneNumber,
    into: &'a mut [u8],
    path: &[u8],
) -> Option<&'a [u8]> {
    let mount = mount(lane)?;
    join(into, mount, path)
}

/// A file of a lane's run directory, in `into`: of the directory outside of the lane that its
/// variable names, which no service can change, or else of that within it.
pub(crate) fn in_run_dir<'a>(
    lane: LaneNumber,
    into: &'a mut [u8],
    name: &[u8],
) -> Option<&'a [u8]> {
    let mount = mount(lane)?;
    let entry =
        ENVIRONMENT[RUN + lane.index()].get().and_then(|entry| recognised(entry.to_bytes()));
    match entry.and_then(|(_, value)| run_dir_of(value, mount)) {
        Some(dir) => join(into, dir, name),
        None => {
            let mut within = [0; RUN_WITHIN.len() + 16];
            under_mount(lane, into, join(&mut within, RUN_WITHIN, name)?)
        }
    }
}

/// The two parts of `DIR:MOUNT`.
fn parts_of_run(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = entry.iter().position(|&byte| byte == b':')?;
    Some((&entry[..colon], &entry[colon + 1..]))
}

/// The directory in `DIR:MOUNT`, if it belongs to this mount path.
fn run_dir_of<'a>(entry: &'a [u8], mount: &[u8]) -> Option<&'a [u8]> {
    let (dir, of) = parts_of_run(entry)?;
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
    fn each_lane_has_a_variable() {
        let of = |entry: &'static str| recognised(entry.as_bytes());
        assert_eq!(of("POLYLANE_MOUNT=/a"), Some((MOUNT, &b"/a"[..])));
        assert_eq!(of("POLYLANE_RUN=/r:/a"), Some((RUN, &b"/r:/a"[..])));
        assert_eq!(of("POLYLANE_RUN_2=/r:/b"), Some((RUN + 1, &b"/r:/b"[..])));
        assert_eq!(of("POLYLANE_RUN_8=/r:/b"), Some((RUN + 7, &b"/r:/b"[..])));
        for other in ["POLYLANE_RUN_1=/r:/b", "POLYLANE_RUN_9=/r:/b", "POLYLANE_RUN_22=/r:/b"] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(of("POLYLANE_RUN_"), None);
    }

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

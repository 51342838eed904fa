//! The text of paths: which lane one leads into, and what it is from the root of that.

use polylane_ipc::message::{PATH_BYTES_MAX, RESERVED_DIR, SLOT_DIR};

use crate::kernel::config::{self, LaneNumber};
use crate::kernel::outcome::{Detour, Outcome, make_room};
use crate::kernel::real;
use crate::kernel::thread;
use crate::session::{Session, namespace};

/// The lane that an absolute path leads into by its text, and what it is there: of several lanes
/// the one whose mount path is the longest.
#[inline]
pub(crate) fn lane_of(path: &[u8]) -> Option<(LaneNumber, &[u8])> {
    let mut found = None;
    let mut longest = 0;
    for lane in config::lanes() {
        let Some(mount) = config::mount(lane) else { continue };
        if (found.is_none() || mount.len() > longest)
            && let Some(rest) = inside(mount, path)
        {
            (found, longest) = (Some((lane, rest)), mount.len());
        }
    }
    found
}

/// What a path of a lane is from its root, relative ones as seen from the working directory.
pub(crate) fn from_root(lane: LaneNumber, path: &[u8], into: &mut Vec<u8>) -> Outcome<()> {
    namespace::any_lane()?;
    let mount = config::mount(lane).ok_or(Detour::Kernel)?;
    into.clear();
    if path.len() > PATH_BYTES_MAX {
        return Err(Detour::Kernel);
    }
    make_room(into, 2 * PATH_BYTES_MAX + 2)?;
    if path.first() == Some(&b'/') {
        into.extend(inside(mount, path).ok_or(Detour::Kernel)?);
    } else {
        let mut cwd = [0; PATH_BYTES_MAX + 1];
        let cwd = thread::slow(|| real::working_directory(&mut cwd)).ok_or(Detour::Kernel)?;
        into.extend(inside(mount, cwd).ok_or(Detour::Kernel)?);
        into.push(b'/');
        into.extend(path);
    }
    match mount.len() + 1 + into.len() > PATH_BYTES_MAX {
        true => Err(Detour::Kernel),
        false => Ok(()),
    }
}

/// The part of an absolute path below the mount: relative, `.` for the root itself.
pub(crate) fn inside<'a>(mount: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(mount)?;
    let start = rest.iter().position(|&byte| byte != b'/').unwrap_or(rest.len());
    match (rest, &rest[start..]) {
        ([], _) => Some(b"."),
        (rest, _) if rest[0] != b'/' => None,
        (_, []) => Some(b"."),
        (_, below) => Some(below),
    }
}

/// Whether the path plainly leads to where something else is mounted. The service knows the other
/// ways.
pub(crate) fn is_covered(session: &Session, path: &[u8]) -> bool {
    let covers =
        |dir: &[u8]| path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    covers(RESERVED_DIR.as_bytes())
        || covers(SLOT_DIR.as_bytes())
        || session.covered.iter().any(|dir| covers(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_path_ends_at_a_component() {
        let lane = |path: &'static str| inside(b"/lane", path.as_bytes());
        assert_eq!(lane("/lane"), Some(&b"."[..]));
        assert_eq!(lane("/lane/"), Some(&b"."[..]));
        assert_eq!(lane("/lane///"), Some(&b"."[..]));
        assert_eq!(lane("/lane/a/b/"), Some(&b"a/b/"[..]));
        assert_eq!(lane("/lane//a"), Some(&b"a"[..]));
        assert_eq!(lane("/lane/../etc"), Some(&b"../etc"[..]));
        assert_eq!(lane("/lanes/a"), None);
        assert_eq!(lane("/lan"), None);
        assert_eq!(lane("/"), None);
    }

    #[test]
    fn a_root_lane_takes_every_absolute_path() {
        assert_eq!(inside(b"", b"/"), Some(&b"."[..]));
        assert_eq!(inside(b"", b"/etc/passwd"), Some(&b"etc/passwd"[..]));
        assert_eq!(inside(b"", b"//etc"), Some(&b"etc"[..]));
    }
}

//! Whose the files of a tree are, and what else of a member's state they get.
//!
//! Root gives files the owners that a layer says. An ordinary user gets a tree of his own, in which
//! he can read everything (decision 0094):
//!
//! | in the layer | in the tree |
//! |---|---|
//! | an owner | the caller |
//! | set-id bits of another owner's | none |
//! | bits that keep the owner from a file's data or a directory | as if he had them |
//! | attributes `security.*` and `trusted.*` | none |
//! | a device | nothing |

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::member::{Kind, Member};

const SET_ID: u32 = 0o6000;

/// Whose the files of a tree are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owners {
    /// Those of the layer.
    Kept,
    /// This user and group.
    Squashed(u32, u32),
}

impl Owners {
    /// Those that the caller may give.
    pub(crate) fn of_caller() -> Owners {
        let may = CapabilitySet::CHOWN | CapabilitySet::MKNOD | CapabilitySet::DAC_OVERRIDE;
        match rustix::thread::capabilities(None) {
            Ok(sets) if sets.effective.contains(may) => Owners::Kept,
            _ => Owners::Squashed(
                rustix::process::geteuid().as_raw(),
                rustix::process::getegid().as_raw(),
            ),
        }
    }

    /// Whether a member is another in the tree than in the layer.
    pub(crate) fn squash(self, member: &Member) -> bool {
        let Owners::Squashed(uid, gid) = self else { return false };
        let is_device = matches!(member.kind, Kind::Char | Kind::Block);
        (member.uid, member.gid) != (uid, gid)
            || is_device
            || member.xattrs.iter().any(|(name, _)| is_privileged(name))
    }

    fn mode(self, member: &Member) -> Mode {
        let Owners::Squashed(uid, gid) = self else { return Mode::from_raw_mode(member.mode) };
        let own = match member.kind {
            Kind::Dir => 0o700,
            _ => 0o400,
        };
        let kept = if (member.uid, member.gid) == (uid, gid) { !0 } else { !SET_ID };
        Mode::from_raw_mode(member.mode & kept | own)
    }

    /// Gives a file or directory the member's owner, attributes, mode and time.
    pub(crate) fn give(self, file: impl AsFd, member: &Member) -> Result<(), Errno> {
        let file = file.as_fd();
        // In this order: a change of owner takes set-id bits and capabilities away.
        if self == Owners::Kept {
            let (uid, gid) = (Uid::from_raw(member.uid), Gid::from_raw(member.gid));
            rustix::fs::fchown(file, Some(uid), Some(gid))?;
        }
        for (name, value) in &member.xattrs {
            if self != Owners::Kept && is_privileged(name) {
                continue;
            }
            match rustix::fs::fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
                // Labels of a security module that this host does not have.
                Err(Errno::OPNOTSUPP) if name.starts_with(b"security.") => {}
                set => set?,
            }
        }
        rustix::fs::fchmod(file, self.mode(member))?;
        rustix::fs::futimens(file, &times(member.mtime))
    }

    /// Gives what cannot be opened the member's owner, mode and time.
    pub(crate) fn give_node(
        self,
        dir: &OwnedFd,
        name: &[u8],
        member: &Member,
    ) -> Result<(), Errno> {
        if self == Owners::Kept {
            let (uid, gid) = (Uid::from_raw(member.uid), Gid::from_raw(member.gid));
            rustix::fs::chownat(dir, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if member.kind != Kind::Symlink {
            rustix::fs::chmodat(dir, name, self.mode(member), AtFlags::empty())?;
        }
        rustix::fs::utimensat(dir, name, &times(member.mtime), AtFlags::SYMLINK_NOFOLLOW)
    }
}

fn is_privileged(attribute: &[u8]) -> bool {
    attribute.starts_with(b"security.") || attribute.starts_with(b"trusted.")
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_owners_set_id_bits_go_and_the_caller_can_read() {
        let member = |kind, uid, mode| Member {
            kind,
            path: Vec::new(),
            link: Vec::new(),
            size: 0,
            mode,
            uid,
            gid: uid,
            mtime: (0, 0),
            device: (0, 0),
            xattrs: Vec::new(),
        };
        let owners = Owners::Squashed(7, 7);
        for (kind, uid, mode, expected, is_squashed) in [
            (Kind::File, 0, 0o4755, 0o755, true),
            (Kind::File, 7, 0o6755, 0o6755, false),
            (Kind::File, 0, 0o000, 0o400, true),
            (Kind::Dir, 0, 0o2555, 0o755, true),
            (Kind::Dir, 7, 0o1777, 0o1777, false),
        ] {
            let member = member(kind, uid, mode);
            assert_eq!(owners.mode(&member), Mode::from_raw_mode(expected));
            assert_eq!(owners.squash(&member), is_squashed);
            assert_eq!(Owners::Kept.mode(&member), Mode::from_raw_mode(mode));
            assert!(!Owners::Kept.squash(&member));
        }
    }
}

//! Credentials: the identity of a caller, as a front end established it.

use polylane_base::sync::Arc;
use polylane_base::{Gid, Uid};

/// Whether an identity has `CAP_FSETID`: the set-id bits of a file stay when it changes the
/// contents, and a file of a group that it is no member of may have the set-gid bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fsetid {
    /// As its user has it: root has it.
    #[default]
    OfUser,
    /// It has it, whoever its user is.
    Held,
    /// It has not, even if its user is root.
    Dropped,
}

/// The numbers that an identity has on the host, where files have others
/// ([`Mapped`](crate::mapped::Mapped)).
#[derive(Clone, Debug)]
pub struct HostIds {
    /// File-system user id.
    pub uid: Uid,
    /// File-system group id.
    pub gid: Gid,
    /// Supplementary groups.
    pub groups: Arc<[Gid]>,
}

/// The identity on whose behalf an operation runs. Made by a front end from what the kernel said
/// (`SO_PEERCRED`, a FUSE header), never from a message's own claims.
#[derive(Clone, Debug)]
pub struct Cred {
    /// File-system user id. 0 has `CAP_DAC_OVERRIDE`, `CAP_FOWNER`, `CAP_CHOWN`; of `CAP_FSETID`
    /// [`fsetid`](Self::fsetid) tells.
    pub uid: Uid,
    /// File-system group id.
    pub gid: Gid,
    /// Supplementary groups.
    pub groups: Arc<[Gid]>,
    /// Whether it has `CAP_FSETID`.
    pub fsetid: Fsetid,
    /// Who it is on the host, if that is another: what it may take of a volume is the host's, who
    /// may be a user whose files are kept as root's. `None`: the same.
    pub host: Option<HostIds>,
}

impl Cred {
    /// User 0, group 0.
    pub fn root() -> Cred {
        Cred { uid: Uid(0), gid: Gid(0), groups: Arc::new([]), fsetid: Fsetid::OfUser, host: None }
    }

    /// Whether this identity overrides permission bits.
    pub fn is_root(&self) -> bool {
        self.uid == Uid(0)
    }

    /// Whether this identity has `CAP_FSETID`.
    pub fn has_fsetid(&self) -> bool {
        match self.fsetid {
            Fsetid::OfUser => self.is_root(),
            Fsetid::Held => true,
            Fsetid::Dropped => false,
        }
    }

    /// Whether `gid` is the group or one of the supplementary groups.
    pub fn in_group(&self, gid: Gid) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Its user on the host.
    pub fn host_uid(&self) -> Uid {
        self.host.as_ref().map_or(self.uid, |host| host.uid)
    }

    /// Whether `gid` is a group that it has on the host.
    pub fn in_host_group(&self, gid: Gid) -> bool {
        match &self.host {
            Some(host) => host.gid == gid || host.groups.contains(&gid),
            None => self.in_group(gid),
        }
    }
}

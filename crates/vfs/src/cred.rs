//! Who asks: identity of a caller, as a front end established it.

use polylane_base::sync::Arc;
use polylane_base::{Gid, Uid};

/// The identity on whose behalf an operation runs. Made by a front end from what the kernel said
/// (`SO_PEERCRED`, a FUSE header), never from a message's own claims.
#[derive(Clone, Debug)]
pub struct Cred {
    /// File-system user id. 0 has `CAP_DAC_OVERRIDE`, `CAP_FOWNER`, `CAP_CHOWN`, `CAP_FSETID`.
    pub uid: Uid,
    /// File-system group id.
    pub gid: Gid,
    /// Supplementary groups.
    pub groups: Arc<[Gid]>,
    /// The kernel checked the permissions of this operation already (FUSE `default_permissions`, or
    /// an operation on an open file whose access mode the front end checked); ours are skipped.
    pub kernel_checked: bool,
    /// Process id, for `F_GETLK`.
    pub pid: u32,
    /// The front end's session that asks, by a number of its own; 0: none that could hold leases.
    pub session: u64,
    /// The call applies what the session's client did under a lease; see [`crate::Holder`].
    pub streamed: bool,
}

impl Cred {
    /// User 0, group 0.
    pub fn root() -> Cred {
        Cred {
            uid: Uid(0),
            gid: Gid(0),
            groups: Arc::new([]),
            kernel_checked: false,
            pid: 0,
            session: 0,
            streamed: false,
        }
    }

    /// Whether this identity overrides permission bits.
    pub fn is_root(&self) -> bool {
        self.uid == Uid(0)
    }

    /// Whether `gid` is the group or one of the supplementary groups.
    pub fn in_group(&self, gid: Gid) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

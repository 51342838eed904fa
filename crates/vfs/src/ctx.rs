//! The context of an operation: who acts, on whose behalf, by which door, in which turn.
//!
//! A front end makes one for each request and hands it down. The VFS, the libservices and ext4's
//! journal take it as the first argument of what they do for it, so that no layer has to keep or to
//! guess any of it. What the service does of its own accord (write-back, the end of an inode) has
//! [`OpCtx::service`].

use polylane_base::{Clock, Gid, Time, Uid};

use crate::attachment::Attachment;
use crate::cred::Cred;
use crate::handover::{Facts, Op, Turn};

/// By which door an operation came in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// By none: the service itself acts.
    Service,
    /// The kernel asks, through FUSE.
    Fuse,
    /// A client asks, through shared memory.
    Library {
        /// The session that asks, by the front end's number; from 1.
        session: u64,
    },
}

/// What an operation is done with. A few words, made anew for each request and passed by reference.
#[derive(Clone, Copy)]
pub struct OpCtx<'a> {
    /// By which door it came in.
    pub origin: Origin,
    /// On whose behalf; `None`: the service's own, which has the rights of root.
    pub cred: Option<&'a Cred>,
    /// The request's turn, if it changes something that must not be done twice.
    pub turn: Option<&'a Turn>,
    /// Tells the time that the changes are stamped with; `None`: the file system's own clock.
    pub clock: Option<&'a dyn Clock>,
    /// The kernel checked the permissions of this operation already (FUSE `default_permissions`, or
    /// an operation on an open file whose access mode the front end checked); ours are skipped.
    pub kernel_checked: bool,
    /// The call applies what the session's client did under a lease; see [`crate::Holder`].
    pub streamed: bool,
    /// The part of the lane in which paths are walked; `None`: all of it.
    pub attachment: Option<&'a Attachment>,
}

impl<'a> OpCtx<'a> {
    /// The service's own, with the rights of root.
    pub const fn service() -> OpCtx<'static> {
        OpCtx {
            origin: Origin::Service,
            cred: None,
            turn: None,
            clock: None,
            kernel_checked: false,
            streamed: false,
            attachment: None,
        }
    }

    /// On behalf of `cred`, by a door.
    pub const fn new(origin: Origin, cred: &'a Cred) -> OpCtx<'a> {
        OpCtx { origin, cred: Some(cred), ..OpCtx::service() }
    }

    /// The service's own, with the rights of `cred`.
    pub const fn as_user(cred: &'a Cred) -> OpCtx<'a> {
        OpCtx::new(Origin::Service, cred)
    }

    /// The same, of which the kernel checked the permissions.
    pub const fn kernel_checked(self) -> OpCtx<'a> {
        OpCtx { kernel_checked: true, ..self }
    }

    /// The session that asks, which may hold leases; 0: none.
    pub fn session(&self) -> u64 {
        match self.origin {
            Origin::Library { session } => session,
            Origin::Service | Origin::Fuse => 0,
        }
    }

    /// File-system user id.
    pub fn uid(&self) -> Uid {
        self.cred.map_or(Uid(0), |cred| cred.uid)
    }

    /// File-system group id.
    pub fn gid(&self) -> Gid {
        self.cred.map_or(Gid(0), |cred| cred.gid)
    }

    /// Whether it overrides permission bits.
    pub fn is_root(&self) -> bool {
        self.uid() == Uid(0)
    }

    /// Its user on the host.
    pub fn host_uid(&self) -> Uid {
        self.cred.map_or(Uid(0), Cred::host_uid)
    }

    /// Whether `gid` is a group that it has on the host.
    pub fn in_host_group(&self, gid: Gid) -> bool {
        self.cred.map_or(gid == Gid(0), |cred| cred.in_host_group(gid))
    }

    /// Whether it has `CAP_SYS_RESOURCE`, past limits of quotas and to blocks that are kept: the
    /// host's root has it.
    pub fn has_sys_resource(&self) -> bool {
        self.host_uid() == Uid(0)
    }

    /// Whether it has `CAP_FSETID`.
    pub fn has_fsetid(&self) -> bool {
        self.cred.is_none_or(Cred::has_fsetid)
    }

    /// Whether `gid` is the group or one of the supplementary groups.
    pub fn in_group(&self, gid: Gid) -> bool {
        self.cred.map_or(gid == Gid(0), |cred| cred.in_group(gid))
    }

    /// The time of its changes on a file system with this clock.
    pub fn now(&self, own: &dyn Clock) -> Time {
        self.clock.unwrap_or(own).now()
    }

    /// Whether it is to be done once.
    pub(crate) fn is_once(&self) -> bool {
        self.turn.is_some()
    }

    /// What a former service knew before it began with the same request, if it did.
    pub(crate) fn former(&self, op: Op) -> Option<Facts> {
        self.turn?.former(op)
    }

    /// It is about to do what must not be done twice. A former service's intention stays.
    pub(crate) fn intend(&self, op: Op, facts: Facts) {
        if let Some(turn) = self.turn {
            turn.intend(op, facts);
        }
    }
}

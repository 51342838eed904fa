//! Access control lists of live inodes: read once, kept with the inode, changed with its mode.
//!
//! That an inode has none, as nearly all, is a bit beside its permission bits ([`LISTED`]): one
//! load wherever rights are decided.
//!
//! # Why nobody is judged by bits without the list that they belong to
//!
//! The group bits of an inode with a list are the list's mask, which grants more than the owning
//! group may have. The bits and that they belong to a list are one word; who finds that they do
//! takes both again with `acls` locked, and who changes a list holds that lock from before the
//! bits change until the list is there, or gone.

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::Ordering::{AcqRel, Acquire};
use polylane_base::{Errno, Result};

use crate::access::{self, GROUP_CLASS};
use crate::acl::{Acl, AclKind};
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::fs::{Acls, Attr, Character, Kind, SET_GID, SetAttr};
use crate::inode::{Inode, LISTED, NO_DEFAULT_ACL, Node};
use crate::names::check_alive;
use crate::vfs::Vfs;

type Known = [Option<Arc<Acl>>; 2];

/// What is said of the lists of an inode of which nothing is known but its kind: [`LISTED`] if it
/// may have one of its own, the flag [`NO_DEFAULT_ACL`] if it cannot have another.
pub(crate) fn unknown_acls(attr: &Attr, character: &Character) -> (u32, u32) {
    match attr.kind {
        _ if !character.acls => (0, NO_DEFAULT_ACL),
        Kind::Symlink => (0, NO_DEFAULT_ACL),
        Kind::Dir => (LISTED, 0),
        _ => (LISTED, NO_DEFAULT_ACL),
    }
}

impl Inode {
    /// Permission bits and the list that they belong to, if they do, of one moment. `EIO` for a
    /// list that is not well-formed, the errors of reading it.
    #[inline]
    pub(crate) fn rights(&self, ctx: &OpCtx<'_>) -> Result<(u32, Option<Arc<Acl>>)> {
        let perm = self.perm.load(Acquire);
        // Linux does not look at a list whose mask grants nothing: who is named is one of the
        // others.
        if perm & LISTED == 0 || perm & GROUP_CLASS == 0 {
            return Ok((perm & 0o7777, None));
        }
        let mut known = self.acls.lock();
        let acl = self.find_acl(ctx, &mut known, AclKind::Access)?;
        Ok((self.perm(), acl))
    }

    /// A list of its, if it has one. Errors as of [`rights`](Self::rights).
    #[inline]
    pub(crate) fn acl(&self, ctx: &OpCtx<'_>, kind: AclKind) -> Result<Option<Arc<Acl>>> {
        match self.may_have(kind) {
            true => self.find_acl(ctx, &mut self.acls.lock(), kind),
            false => Ok(None),
        }
    }

    /// Whether it has such a list, as far as that is known.
    #[inline]
    fn may_have(&self, kind: AclKind) -> bool {
        match kind {
            AclKind::Access => self.perm.load(Acquire) & LISTED != 0,
            AclKind::Default => !self.has(NO_DEFAULT_ACL),
        }
    }

    /// Notes whether it may have such a list. Call with `acls` locked.
    fn note(&self, kind: AclKind, may_have: bool) {
        match (kind, may_have) {
            (AclKind::Access, true) => _ = self.perm.fetch_or(LISTED, AcqRel),
            (AclKind::Access, false) => _ = self.perm.fetch_and(!LISTED, AcqRel),
            (AclKind::Default, true) => _ = self.lower(NO_DEFAULT_ACL),
            (AclKind::Default, false) => self.raise(NO_DEFAULT_ACL),
        }
    }

    fn find_acl(
        &self,
        ctx: &OpCtx<'_>,
        known: &mut Known,
        kind: AclKind,
    ) -> Result<Option<Arc<Acl>>> {
        let known = &mut known[kind as usize];
        if known.is_none() && self.may_have(kind) {
            *known = self.read_acl(ctx, kind)?.map(Arc::new);
            self.note(kind, known.is_some());
        }
        Ok(known.clone())
    }

    fn read_acl(&self, ctx: &OpCtx<'_>, kind: AclKind) -> Result<Option<Acl>> {
        match self.core.fs.getxattr(ctx, self.ino(), kind.name()) {
            Ok(value) => Acl::parse(&value).map_err(|_| Errno::EIO),
            Err(Errno::ENODATA) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// The lists of an inode that was just made, and that nobody knows yet.
    pub(crate) fn made_with(&self, inherited: Inherited) {
        let mut known = self.acls.lock();
        let each = [(AclKind::Access, inherited.access), (AclKind::Default, inherited.default)];
        for (kind, acl) in each {
            self.note(kind, acl.is_some());
            known[kind as usize] = acl;
        }
    }

    /// Gives it a list, or takes it away, and with it permission bits if `perm` is given. Call with
    /// the state locked.
    fn change_acl(
        &self,
        ctx: &OpCtx<'_>,
        held: &mut Attr,
        kind: AclKind,
        acl: Option<Acl>,
        perm: Option<u32>,
    ) -> Result<()> {
        let mut known = self.acls.lock();
        self.note(kind, true);
        let new = self.core.fs.set_acl(ctx, self.ino(), kind, acl.as_ref(), perm)?;
        self.keep(held, new);
        self.note(kind, acl.is_some());
        known[kind as usize] = acl.map(Arc::new);
        Ok(())
    }
}

/// What something new gets from the directory that it is made in.
pub(crate) struct Inherited {
    /// Permission bits.
    pub(crate) perm: u32,
    /// Its own list.
    pub(crate) access: Option<Arc<Acl>>,
    /// Its default list.
    pub(crate) default: Option<Arc<Acl>>,
}

impl Inherited {
    /// For something of that kind, made with permission bits `perm`. The umask counts where the
    /// directory has no default list.
    pub(crate) fn new(
        ctx: &OpCtx<'_>,
        dir: &Inode,
        kind: Kind,
        perm: u32,
        umask: u32,
    ) -> Result<Inherited> {
        if kind == Kind::Symlink {
            return Ok(Inherited { perm, access: None, default: None });
        }
        let Some(default) = dir.acl(ctx, AclKind::Default)? else {
            return Ok(Inherited { perm: perm & !umask, access: None, default: None });
        };
        let (access, perm) = default.inherited(perm);
        let access = Some(access).filter(|acl| !acl.is_mode_alone()).map(Arc::new);
        Ok(Inherited { perm, access, default: Some(default).filter(|_| kind == Kind::Dir) })
    }

    /// The lists, for the file system.
    pub(crate) fn acls(&self) -> Acls<'_> {
        Acls { access: self.access.as_deref(), default: self.default.as_deref() }
    }
}

impl Core {
    /// Before permission bits are set: the list of an inode that has one follows them, with the
    /// bits as one change.
    pub(crate) fn follow_mode(&self, ctx: &OpCtx<'_>, node: &Inode, set: &SetAttr) -> Result<()> {
        let Some(perm) = set.perm.filter(|_| node.may_have(AclKind::Access)) else { return Ok(()) };
        let mut held = node.attr();
        let Some(acl) = node.acl(ctx, AclKind::Access)? else { return Ok(()) };
        let new = acl.with_mode(perm);
        if new == *acl {
            return Ok(());
        }
        node.change_acl(ctx, &mut held, AclKind::Access, Some(new), Some(perm))
    }
}

impl Vfs {
    /// The value of the attribute that holds a list. `ENODATA`, `EOPNOTSUPP`.
    pub(crate) fn get_acl(&self, ctx: &OpCtx<'_>, node: &Node, kind: AclKind) -> Result<Vec<u8>> {
        self.check_keeps_acls(node)?;
        Ok(node.acl(ctx, kind)?.ok_or(Errno::ENODATA)?.to_value())
    }

    /// Sets or removes (`None`, or one without entries) a list. An access list sets the permission
    /// bits, and is not kept where these say all that it says. `EPERM` unless `ctx` owns the
    /// inode, `EACCES` for a default list of what is no directory, the errors of [`Acl::parse`].
    pub(crate) fn set_acl(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        kind: AclKind,
        value: Option<&[u8]>,
    ) -> Result<()> {
        self.check_keeps_acls(node)?;
        let acl = value.map(Acl::parse).transpose().map(Option::flatten);
        if kind == AclKind::Default && !node.is_dir() {
            // Also what is no list: the kernel looks at it last.
            return if acl == Ok(None) { Ok(()) } else { Err(Errno::EACCES) };
        }
        access::check_owner(ctx, node)?;
        let acl = acl?;
        // As a change of its mode: who may search it may be another afterwards, and what a lease's
        // holder makes in it may inherit.
        let _announced = node.is_dir().then(|| self.core.change_paths());
        let _entries = node.is_dir().then(|| self.core.lock_entries(ctx, node));
        if node.is_dir() {
            check_alive(node)?;
        }
        let is_file = node.kind() == Kind::File;
        let _data = is_file.then(|| self.core.lock_shared(node));
        let mut held = node.attr();
        if acl.is_none() && node.acl(ctx, kind) == Ok(None) {
            return Ok(());
        }
        let Some(acl) = acl else { return node.change_acl(ctx, &mut held, kind, None, None) };
        if kind == AclKind::Default {
            return node.change_acl(ctx, &mut held, kind, Some(acl), None);
        }
        let special = match access::keeps_set_gid(ctx, node) {
            true => held.perm & !0o777,
            false => held.perm & !(0o777 | SET_GID),
        };
        let perm = special | acl.mode();
        let acl = Some(acl).filter(|acl| !acl.is_mode_alone());
        node.change_acl(ctx, &mut held, kind, acl, Some(perm))
    }

    fn check_keeps_acls(&self, node: &Node) -> Result<()> {
        match self.core.character.acls && node.kind() != Kind::Symlink {
            true => Ok(()),
            false => Err(Errno::EOPNOTSUPP),
        }
    }
}

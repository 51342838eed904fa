//! Extended attributes and the rules of their name spaces (xattr(7)).

use polylane_base::sync::{RwLockReadGuard, RwLockWriteGuard};
use polylane_base::{Errno, Result};

use crate::access::{self, READ, STICKY, WRITE};
use crate::acl::AclKind;
use crate::caps::CAPABILITY;
use crate::core::Core;
use crate::ctx::OpCtx;
use crate::fs::{Kind, XattrMode};
use crate::handover::Op;
use crate::inode::{FROZEN, Inode, NO_CAPS, Node, ONLY_GROWS};
use crate::names::check_alive;
use crate::vfs::Vfs;

/// Longest name, `XATTR_NAME_MAX`.
const NAME_BYTES_MAX: usize = 255;
/// Longest value, `XATTR_SIZE_MAX`.
const VALUE_BYTES_MAX: usize = 65536;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    User,
    Trusted,
    Security,
    /// The file system's own ([`own_xattrs`](crate::FileSystem::own_xattrs)).
    Own,
    /// One that Linux does not know, either: it asks for permission as for those of users.
    Unknown,
}

/// The name space of an attribute. `EOPNOTSUPP` for what else the system keeps; access control
/// lists are in none (see [`acls`](crate::acls)).
fn space(node: &Inode, name: &[u8]) -> Result<Space> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Errno::ERANGE);
    }
    let own = node.core.fs.own_xattrs();
    if !own.is_empty() && name.starts_with(own) {
        return Ok(Space::Own);
    }
    let spaces: [(&[u8], Space); 3] =
        [(b"user.", Space::User), (b"trusted.", Space::Trusted), (b"security.", Space::Security)];
    for (prefix, space) in spaces {
        if name.starts_with(prefix) {
            return Ok(space);
        }
    }
    if name.starts_with(b"system.") { Err(Errno::EOPNOTSUPP) } else { Ok(Space::Unknown) }
}

/// `EINVAL` for a prefix without a name, which Linux looks at last.
fn check_whole(name: &[u8]) -> Result<()> {
    if name.ends_with(b".") && name.iter().filter(|byte| **byte == b'.').count() == 1 {
        return Err(Errno::EINVAL);
    }
    if name.contains(&0) { Err(Errno::EINVAL) } else { Ok(()) }
}

fn check_get(ctx: &OpCtx<'_>, node: &Inode, name: &[u8]) -> Result<()> {
    may_get(ctx, node, name).and(check_whole(name))
}

fn may_get(ctx: &OpCtx<'_>, node: &Inode, name: &[u8]) -> Result<()> {
    match space(node, name)? {
        Space::User if !matches!(node.kind(), Kind::File | Kind::Dir) => Err(Errno::ENODATA),
        Space::User | Space::Own => access::check(ctx, node, READ),
        Space::Unknown => access::check(ctx, node, READ).and(Err(Errno::EOPNOTSUPP)),
        Space::Trusted if !ctx.is_root() => Err(Errno::ENODATA),
        Space::Trusted | Space::Security => Ok(()),
    }
}

/// `EPERM` where inode flags forbid a change of attributes and lists, and where it is nobody's.
fn check_flags(node: &Inode) -> Result<()> {
    if node.has(FROZEN | ONLY_GROWS) || access::is_nobodys(node) {
        Err(Errno::EPERM)
    } else {
        Ok(())
    }
}

fn check_change(ctx: &OpCtx<'_>, node: &Inode, name: &[u8]) -> Result<()> {
    may_change(ctx, node, name).and(check_whole(name))
}

fn may_change(ctx: &OpCtx<'_>, node: &Inode, name: &[u8]) -> Result<()> {
    match space(node, name)? {
        Space::User if !matches!(node.kind(), Kind::File | Kind::Dir) => Err(Errno::EPERM),
        Space::User => {
            // In a sticky directory everybody could otherwise write attributes of the directory.
            if node.is_dir() && node.perm() & STICKY != 0 {
                access::check_owner(ctx, node)?;
            }
            access::check(ctx, node, WRITE)
        }
        Space::Own => access::check(ctx, node, WRITE),
        Space::Unknown => access::check(ctx, node, WRITE).and(Err(Errno::EOPNOTSUPP)),
        Space::Trusted if !ctx.is_root() => Err(Errno::EPERM),
        Space::Security if !ctx.is_root() && !ctx.kernel_checked => Err(Errno::EPERM),
        Space::Trusted | Space::Security => Ok(()),
    }
}

impl Vfs {
    /// Reads an extended attribute whole. `ENODATA`, `EOPNOTSUPP`.
    pub fn getxattr(&self, ctx: &OpCtx<'_>, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        self.begin();
        if let Some(kind) = AclKind::from_name(name) {
            return self.get_acl(ctx, node, kind);
        }
        check_get(ctx, node, name)?;
        self.core.fs.getxattr(ctx, node.ino(), name)
    }

    /// Writes an extended attribute. `EEXIST`, `ENODATA`, `E2BIG`, `EPERM`, `EOPNOTSUPP`.
    pub fn setxattr(
        &self,
        ctx: &OpCtx<'_>,
        node: &Node,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        self.begin();
        self.core.writable()?;
        if value.len() > VALUE_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        check_flags(node)?;
        // Lists are set whether or not they are there already, as in Linux.
        if let Some(kind) = AclKind::from_name(name) {
            return self.set_acl(ctx, node, kind, Some(value));
        }
        if name == CAPABILITY && !value.is_empty() && !is_capability(value) {
            return Err(Errno::EINVAL);
        }
        check_change(ctx, node, name)?;
        let _contents = self.core.lock_contents(node)?;
        let mut held = node.attr();
        let mode = self.xattr_mode(ctx, node, name, mode);
        let new = self.core.fs.setxattr(ctx, node.ino(), name, value, mode)?;
        if name == CAPABILITY {
            node.lower(NO_CAPS);
        }
        node.keep(&mut held, new);
        Ok(())
    }

    /// The names of the extended attributes that `ctx` may know of.
    pub fn listxattr(&self, ctx: &OpCtx<'_>, node: &Node) -> Result<Vec<Vec<u8>>> {
        self.begin();
        let mut names = self.core.fs.listxattr(ctx, node.ino())?;
        if !ctx.is_root() {
            names.retain(|name| !name.starts_with(b"trusted."));
        }
        Ok(names)
    }

    /// Removes an extended attribute. `ENODATA`, `EPERM`, `EOPNOTSUPP`.
    pub fn removexattr(&self, ctx: &OpCtx<'_>, node: &Node, name: &[u8]) -> Result<()> {
        self.begin();
        self.core.writable()?;
        check_flags(node)?;
        if let Some(kind) = AclKind::from_name(name) {
            return self.set_acl(ctx, node, kind, None);
        }
        check_change(ctx, node, name)?;
        let _contents = self.core.lock_contents(node)?;
        let mut held = node.attr();
        if ctx.is_once() {
            match self.core.fs.getxattr(ctx, node.ino(), name) {
                Ok(_) => ctx.intend(Op::RemoveXattr, [0; 4]),
                // A former service did it.
                Err(Errno::ENODATA) if ctx.former(Op::RemoveXattr).is_some() => return Ok(()),
                Err(_) => {}
            }
        }
        let new = self.core.fs.removexattr(ctx, node.ino(), name)?;
        node.keep(&mut held, new);
        Ok(())
    }
}

impl Vfs {
    /// How to write an attribute that must be new: it may be there already by a former service's
    /// attempt at this very request.
    fn xattr_mode(&self, ctx: &OpCtx<'_>, node: &Node, name: &[u8], mode: XattrMode) -> XattrMode {
        if mode != XattrMode::Create || !ctx.is_once() {
            return mode;
        }
        if ctx.former(Op::SetXattr).is_some() {
            return XattrMode::Any;
        }
        if self.core.fs.getxattr(ctx, node.ino(), name) == Err(Errno::ENODATA) {
            ctx.intend(Op::SetXattr, [0; 4]);
        }
        mode
    }
}

/// What is locked of an inode while an attribute of it changes.
type Contents<'a> = (Option<RwLockWriteGuard<'a, ()>>, Option<RwLockReadGuard<'a, ()>>);

impl Core {
    /// Before a change of attributes. A directory's state is kept under the lock of its entries. Of
    /// a file nothing is on loan meanwhile: what was written before comes before, and what is
    /// written afterwards finds the attribute. Call without locks.
    pub(crate) fn lock_contents<'a>(&self, node: &'a Node) -> Result<Contents<'a>> {
        if !node.is_dir() {
            return Ok((None, (node.kind() == Kind::File).then(|| self.lock_shared(node))));
        }
        let guard = node.lock.write();
        check_alive(node)?;
        Ok((Some(guard), None))
    }
}

/// Whether a value is one of Linux' `struct vfs_cap_data` or `vfs_ns_cap_data`: its length is that
/// of its version.
fn is_capability(value: &[u8]) -> bool {
    matches!((value.len(), value.get(3)), (20, Some(2)) | (24, Some(3)))
}

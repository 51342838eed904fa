//! open(2): by path, by inode.

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::Ordering::Relaxed;
use polylane_base::{Errno, Result};
use rustix::fs::OFlags;

use crate::access::{self, READ, WRITE};
use crate::ctx::OpCtx;
use crate::file::OpenFile;
use crate::fs::{Kind, SetAttr};
use crate::inode::{LINKABLE, Node, ONLY_GROWS};
use crate::names::check_name;
use crate::oplock;
use crate::vfs::{Create, PathError, Vfs};
use crate::walk::{End, Goal, Walk};

/// The bits of open(2)'s flags.
fn bits(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags.cast_unsigned())
}

/// `O_TMPFILE` without the `O_DIRECTORY` that is part of it.
const TMPFILE: OFlags = OFlags::TMPFILE.difference(OFlags::DIRECTORY);

/// Times that a name may be removed behind our back while it is being opened, at most.
const RACES_MAX: u32 = 100;

/// What the last name of a path is, where a file may be made.
enum Last {
    Opened(Arc<OpenFile>),
    /// A symbolic link that is to be followed.
    Link(Node),
}

/// How a new file is to be made, if there is none.
struct Missing {
    perm: u32,
    umask: u32,
}

impl Vfs {
    /// Opens what `path` names as open(2) does, creation, `O_EXCL`, `O_NOFOLLOW`, `O_DIRECTORY`,
    /// `O_TRUNC` and `O_TMPFILE` included. Does not look at what kind of file it is: FIFOs, sockets
    /// and devices are the caller's affair.
    pub fn open_path(
        &self,
        ctx: &OpCtx<'_>,
        start: &Node,
        path: &[u8],
        flags: i32,
        perm: u32,
        umask: u32,
    ) -> Result<Arc<OpenFile>, PathError> {
        self.begin();
        let wish = bits(flags);
        let missing = Missing { perm, umask };
        let mut walk = Walk::new(self, ctx, start, path)?;
        if wish.contains(OFlags::PATH) || !wish.intersects(OFlags::CREATE | TMPFILE) {
            let nofollow = wish.contains(OFlags::NOFOLLOW);
            walk.run(ctx, if nofollow { Goal::NoFollow } else { Goal::Follow })?;
            return Ok(self.open(ctx, &walk.here(), flags)?);
        }
        if wish.intersects(TMPFILE) {
            walk.run(ctx, Goal::Follow)?;
            return Ok(self.open_unlinked(ctx, &walk.here(), flags, &missing)?);
        }
        if wish.contains(OFlags::DIRECTORY) {
            return Err(Errno::EINVAL.into());
        }
        self.open_or_create(ctx, walk, flags, &missing)
    }

    fn open_unlinked(
        &self,
        ctx: &OpCtx<'_>,
        dir: &Node,
        flags: i32,
        missing: &Missing,
    ) -> Result<Arc<OpenFile>> {
        let wish = bits(flags);
        if !wish.contains(OFlags::DIRECTORY) || !wish.intersects(OFlags::WRONLY | OFlags::RDWR) {
            return Err(Errno::EINVAL);
        }
        let node = self.create_unlinked(ctx, dir, missing.perm, missing.umask)?;
        if wish.contains(OFlags::EXCL) {
            node.lower(LINKABLE);
        }
        Ok(OpenFile::new(node, flags))
    }

    /// `O_CREAT`: the last name is opened, followed or created.
    fn open_or_create(
        &self,
        ctx: &OpCtx<'_>,
        mut walk: Walk<'_>,
        flags: i32,
        missing: &Missing,
    ) -> Result<Arc<OpenFile>, PathError> {
        let wish = bits(flags);
        loop {
            match walk.run(ctx, Goal::Parent)? {
                End::Here if wish.contains(OFlags::EXCL) => return Err(Errno::EEXIST.into()),
                End::Name { slash: true } | End::Here => return Err(Errno::EISDIR.into()),
                End::Name { .. } if walk.is_covered(ctx, walk.last()) => {
                    return Err(PathError::Leaves);
                }
                End::Name { .. } => check_name(walk.last())?,
            }
            match self.open_last(ctx, &walk, flags, missing)? {
                Last::Opened(file) => return Ok(file),
                Last::Link(link) => walk.enter_link(ctx, &link)?,
            }
        }
    }

    /// Opens or creates what the last name of a walk means in the directory that it came to.
    fn open_last(
        &self,
        ctx: &OpCtx<'_>,
        walk: &Walk<'_>,
        flags: i32,
        missing: &Missing,
    ) -> Result<Last> {
        let (wish, mut races) = (bits(flags), RACES_MAX);
        loop {
            let found = self.find_or_create(ctx, walk.at(), walk.last(), missing);
            let (node, created) = match found {
                // Removed behind our back since it was found: it is looked for again.
                Err(Errno::ESTALE | Errno::ENOENT) if races > 0 => {
                    races -= 1;
                    continue;
                }
                found => found?,
            };
            if created {
                let file = OpenFile::new(node, flags);
                file.made.store(true, Relaxed);
                return Ok(Last::Opened(file));
            }
            if wish.contains(OFlags::EXCL) {
                return Err(Errno::EEXIST);
            }
            match node.kind() {
                Kind::Symlink if wish.contains(OFlags::NOFOLLOW) => return Err(Errno::ELOOP),
                Kind::Symlink => return Ok(Last::Link(node)),
                Kind::Dir => return Err(Errno::EISDIR),
                _ => match self.open(ctx, &node, flags) {
                    Err(Errno::ESTALE) if races > 0 => races -= 1,
                    opened => return opened.map(Last::Opened),
                },
            }
        }
    }

    /// The inode of `name` in `dir`, and whether it was created. For a name that nobody knows yet,
    /// creating is the question whether it exists.
    fn find_or_create(
        &self,
        ctx: &OpCtx<'_>,
        dir: &Node,
        name: &[u8],
        missing: &Missing,
    ) -> Result<(Node, bool)> {
        let known = self.core.look(ctx, dir, || self.core.known_child(dir, name));
        if let Some(Ok(known)) = known {
            return Ok((known, false));
        }
        let (perm, umask) = (missing.perm, missing.umask);
        let new = Create { kind: Kind::File, perm, umask, rdev: 0, target: b"" };
        self.core.with_room(ctx, || {
            let _entries = self.core.lock_entries(ctx, dir);
            match self.create_locked(ctx, dir, name, &new) {
                Ok(node) => Ok((node, true)),
                Err(Errno::EEXIST) => Ok((self.core.child_locked(ctx, dir, name)?, false)),
                Err(errno) => Err(errno),
            }
        })
    }

    /// Opens a known inode. Checks the rights that the access mode needs, truncates for `O_TRUNC`.
    /// `EISDIR` for writing a directory, `ENOTDIR`, `ELOOP` for a symbolic link, `EROFS`, `EPERM`
    /// for another owner's file with `O_NOATIME`, and for writing where [`flags`](crate::flags)
    /// forbid it. `EAGAIN`: the kernel may have a lease on it, and is to open it for a client.
    pub fn open(&self, ctx: &OpCtx<'_>, node: &Node, flags: i32) -> Result<Arc<OpenFile>> {
        let wish = bits(flags);
        if wish.contains(OFlags::DIRECTORY) && !node.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if wish.contains(OFlags::PATH) {
            return Ok(OpenFile::new(node.clone(), flags));
        }
        let mask = rights(wish);
        match node.kind() {
            Kind::Symlink => return Err(Errno::ELOOP),
            Kind::Dir if mask & WRITE != 0 => return Err(Errno::EISDIR),
            Kind::Dir | Kind::File if mask & WRITE != 0 => self.core.writable()?,
            _ => (),
        }
        access::check(ctx, node, mask)?;
        if node.has(ONLY_GROWS) && mask & WRITE != 0 && !appends(wish) {
            return Err(Errno::EPERM);
        }
        // A device the kernel opens, or refuses on its mount before it asks for an owner.
        if wish.contains(OFlags::NOATIME) && !matches!(node.kind(), Kind::Char | Kind::Block) {
            access::check_owner(ctx, node)?;
        }
        self.core.age_atime(ctx, node);
        let file = oplock::opened(ctx, node, flags)?;
        if wish.contains(OFlags::TRUNC) && node.kind() == Kind::File {
            // The right to write was checked above.
            let checked = OpCtx { kernel_checked: true, ..*ctx };
            self.setattr(&checked, node, &SetAttr { size: Some(0), ..SetAttr::default() })?;
        }
        Ok(file)
    }

    /// Opens an inode again that a former service had open: all was checked then.
    pub fn reopen(&self, node: &Node, flags: i32) -> Arc<OpenFile> {
        self.core.age_atime(&OpCtx::service(), node);
        OpenFile::new(node.clone(), flags)
    }
}

/// Whether what is opened so can do no more than append.
fn appends(wish: OFlags) -> bool {
    wish.contains(OFlags::APPEND) && !wish.contains(OFlags::TRUNC)
}

/// The rights that an access mode needs.
fn rights(wish: OFlags) -> u32 {
    let mode = match wish & OFlags::ACCMODE {
        OFlags::RDONLY => READ,
        OFlags::WRONLY => WRITE,
        // Linux takes 3 as "both rights, but neither read nor write".
        _ => READ | WRITE,
    };
    if wish.contains(OFlags::TRUNC) { mode | WRITE } else { mode }
}

//! Path walk: from a start directory, over names, `..` and symbolic links, to an inode or to a last
//! name.
//!
//! The walk takes no lock over more than one component. Access to every directory is checked before
//! a name is looked up in it. A path that leads out of the lane ends in [`PathError::Leaves`]: the
//! caller repeats the call through the kernel, which knows what lies outside.

use std::borrow::Cow;
use std::ops::Range;

use polylane_base::Errno;
use polylane_base::sync::Arc;

use crate::access::{self, EXEC};
use crate::core::{Core, is_ancestor};
use crate::ctx::OpCtx;
use crate::fs::Kind;
use crate::inode::{ATIME_DUE, Node};
use crate::name::Name;
use crate::vfs::{Last, PathError, Vfs};

/// Symbolic links followed in one walk (`MAXSYMLINKS`).
const LINKS_MAX: u32 = 40;
/// Longest name in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// Longest path and longest target of a symbolic link, without a final NUL.
pub(crate) const PATH_MAX: usize = 4095;

/// Where a walk that looks for a last name stopped.
pub(crate) enum End {
    /// At a name that was not looked up: [`Walk::last`] has it. `slash` when slashes followed it.
    Name { slash: bool },
    /// At the directory it stands on: the path ended in `.`, `..` or was a slash only.
    Here,
}

/// What becomes of the last component.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Look it up; a symbolic link is followed.
    Follow,
    /// Look it up; a symbolic link is the result.
    NoFollow,
    /// Leave it alone.
    Parent,
}

/// A walk under way.
pub(crate) struct Walk<'a> {
    core: &'a Arc<Core>,
    lane_root: &'a Node,
    /// What `/` at the begin of a path means, and what no `..` leads above: the lane's root, or its
    /// attachment's.
    root: Cow<'a, Node>,
    ctx: &'a OpCtx<'a>,
    start: &'a Node,
    /// Where it stands; `start` while `None`, which saves the count of a reference.
    at: Option<Node>,
    text: Cow<'a, [u8]>,
    /// Bytes of `text` behind us.
    done: usize,
    /// The component looked at last.
    last: Range<usize>,
    /// Whether to keep `looked_up`.
    keeps: bool,
    /// The directory in which a name was looked up last, and that name.
    looked_up: Option<(Node, Vec<u8>)>,
    links: u32,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        vfs: &'a Vfs,
        ctx: &'a OpCtx<'a>,
        start: &'a Node,
        path: &'a [u8],
    ) -> Result<Walk<'a>, PathError> {
        match path {
            [] => return Err(Errno::ENOENT.into()),
            _ if path.len() > PATH_MAX => return Err(Errno::ENAMETOOLONG.into()),
            _ if path.contains(&0) => return Err(Errno::EINVAL.into()),
            _ => (),
        }
        let root = match ctx.attachment {
            None => Cow::Borrowed(&vfs.root),
            Some(attachment) => Cow::Owned(vfs.live(attachment.root).ok_or(Errno::ESTALE)?),
        };
        let (start, at) = match (path[0], &root) {
            (b'/', Cow::Owned(root)) => (start, Some(root.clone())),
            (b'/', Cow::Borrowed(root)) => (*root, None),
            _ => (start, None),
        };
        let text = Cow::Borrowed(path);
        let (core, lane_root, last) = (&vfs.core, &vfs.root, 0..0);
        let looked_up = None;
        let (done, keeps, links) = (0, false, 0);
        Ok(Walk {
            core,
            lane_root,
            root,
            ctx,
            start,
            at,
            text,
            done,
            last,
            keeps,
            looked_up,
            links,
        })
    }

    /// The same, and remembers which name it looks up last.
    pub(crate) fn keeping(self) -> Walk<'a> {
        Walk { keeps: true, ..self }
    }

    /// The directory in which a name was looked up last, and that name.
    pub(crate) fn take_looked_up(&mut self) -> Option<(Node, Vec<u8>)> {
        self.looked_up.take()
    }

    /// The inode that the walk stands on.
    pub(crate) fn here(self) -> Node {
        self.at.unwrap_or_else(|| self.start.clone())
    }

    pub(crate) fn at(&self) -> &Node {
        self.at.as_ref().unwrap_or(self.start)
    }

    /// Whether a symbolic link lay on the way.
    pub(crate) fn followed_links(&self) -> bool {
        self.links > 0
    }

    /// The last name, after a walk that ended at one.
    pub(crate) fn last(&self) -> &[u8] {
        &self.text[self.last.clone()]
    }

    /// Whether the kernel has something else mounted on `name` in the directory the walk stands on.
    pub(crate) fn is_covered(&self, ctx: &OpCtx<'_>, name: &[u8]) -> bool {
        let mut named = self.core.covered.iter().filter(|covered| covered.name == name);
        named.any(|covered| covered.lies_in(ctx, self.core, self.lane_root, self.at()))
    }

    /// Walks on until the path ends. With [`Goal::Parent`] it may stop before the last name.
    pub(crate) fn run(&mut self, ctx: &OpCtx<'_>, goal: Goal) -> Result<End, PathError> {
        loop {
            self.skip_slashes();
            if self.done == self.text.len() {
                return Ok(End::Here);
            }
            let (from, to) = (self.done, self.component_end());
            self.done = to;
            self.skip_slashes();
            let slash = self.done > to;
            let last = self.done == self.text.len();
            self.may_search()?;
            match &self.text[from..to] {
                b"." => (),
                b".." => self.step_up()?,
                // Its lookup refuses a long one: a rename walks to both directories first.
                _ if last && goal == Goal::Parent => {
                    self.last = from..to;
                    return Ok(End::Name { slash });
                }
                name if name.len() > NAME_MAX => return Err(Errno::ENAMETOOLONG.into()),
                name => {
                    if self.is_covered(ctx, name) {
                        return Err(PathError::Leaves);
                    }
                    if self.keeps {
                        self.looked_up = Some((self.at().clone(), name.to_vec()));
                    }
                    let look = || self.core.child(ctx, self.at(), name);
                    let child = self.core.look(self.ctx, self.at(), look)?;
                    let follow = !last || slash || goal == Goal::Follow;
                    if child.kind() == Kind::Symlink && follow {
                        self.enter_link(ctx, &child)?;
                    } else {
                        self.enter(child, slash)?;
                    }
                }
            }
        }
    }

    /// Moves to `child`, which must be a directory if slashes follow its name.
    fn enter(&mut self, child: Node, slash: bool) -> Result<(), PathError> {
        if slash && !child.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        self.at = Some(child);
        Ok(())
    }

    /// Goes on along the target of a symbolic link that lies in the directory the walk stands on.
    pub(crate) fn enter_link(&mut self, ctx: &OpCtx<'_>, link: &Node) -> Result<(), PathError> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::ELOOP.into());
        }
        let target = link.target(ctx)?;
        if link.has(ATIME_DUE) {
            self.core.touch(ctx, link);
        }
        let mut inside = target;
        if target.first() == Some(&b'/') {
            inside = below_mount(target, self.mount_path()).ok_or(PathError::Leaves)?;
            self.at = Some(Node::clone(&self.root));
        } else if target.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        // What follows the link in the text begins where its name ended.
        let rest = &self.text[self.done..];
        let slash = self.done > 0 && self.text[self.done - 1] == b'/';
        let mut text = Vec::with_capacity(inside.len() + 1 + rest.len());
        text.extend_from_slice(inside);
        if slash {
            text.push(b'/');
        }
        text.extend_from_slice(rest);
        self.text = Cow::Owned(text);
        self.done = 0;
        Ok(())
    }

    fn step_up(&mut self) -> Result<(), PathError> {
        if self.at().id == self.root.id {
            // `/..` is `/`; above any other mount path lies the host's directory.
            return if self.mount_path() == b"/" { Ok(()) } else { Err(PathError::Leaves) };
        }
        let parent = self.at().parent();
        // A directory that the client holds may have been moved out of its attachment.
        if self.ctx.attachment.is_some() && !is_ancestor(&self.root, &parent) {
            return Err(PathError::Leaves);
        }
        self.at = Some(parent);
        Ok(())
    }

    /// Where the root is in the caller's name space.
    fn mount_path(&self) -> &'a [u8] {
        let lane = &self.core.options.mount_path;
        self.ctx.attachment.map_or(lane, |attachment| &attachment.path)
    }

    fn may_search(&self) -> Result<(), Errno> {
        let at = self.at();
        if !at.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        access::check(self.ctx, at, EXEC)
    }

    fn skip_slashes(&mut self) {
        while self.text.get(self.done) == Some(&b'/') {
            self.done += 1;
        }
    }

    fn component_end(&self) -> usize {
        let rest = &self.text[self.done..];
        self.done + rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len())
    }
}

/// The part of an absolute path that lies below the mount path.
fn below_mount<'t>(target: &'t [u8], mount: &[u8]) -> Option<&'t [u8]> {
    let mount = mount.strip_suffix(b"/").unwrap_or(mount);
    let inside = target.strip_prefix(mount)?;
    if inside.is_empty() || inside[0] == b'/' { Some(inside) } else { None }
}

/// A directory on which the kernel has something else mounted.
pub(crate) struct Covered {
    /// The directories above it.
    above: Vec<Vec<u8>>,
    name: Vec<u8>,
}

impl Covered {
    /// The directory of that path from the lane's root; `None` for the root itself.
    pub(crate) fn new(path: &[u8]) -> Option<Covered> {
        let parts = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty());
        let mut above: Vec<Vec<u8>> = parts.map(<[u8]>::to_vec).collect();
        let name = above.pop()?;
        Some(Covered { above, name })
    }

    fn lies_in(&self, ctx: &OpCtx<'_>, core: &Arc<Core>, root: &Node, dir: &Node) -> bool {
        let mut at = root.clone();
        for part in &self.above {
            match core.child(ctx, &at, part) {
                Ok(child) if child.is_dir() => at = child,
                _ => return false,
            }
        }
        at.id == dir.id
    }
}

impl Vfs {
    /// The inode that `path` names, seen from directory `start` (or the lane's root, when it begins
    /// with a slash). Every directory on the way must grant `ctx` the right to search it.
    /// `follow`: follow a symbolic link in last place.
    pub fn resolve(
        &self,
        ctx: &OpCtx<'_>,
        start: &Node,
        path: &[u8],
        follow: bool,
    ) -> Result<Node, PathError> {
        self.begin();
        let mut walk = Walk::new(self, ctx, start, path)?;
        walk.run(ctx, if follow { Goal::Follow } else { Goal::NoFollow })?;
        Ok(walk.here())
    }

    /// The directory and the name that `path` ends in, for an operation that makes or removes the
    /// name. A symbolic link in last place is not followed.
    pub fn resolve_parent(
        &self,
        ctx: &OpCtx<'_>,
        start: &Node,
        path: &[u8],
    ) -> Result<Last, PathError> {
        let mut walk = Walk::new(self, ctx, start, path)?;
        match walk.run(ctx, Goal::Parent)? {
            End::Here => Err(PathError::Leaves),
            End::Name { slash } => {
                if walk.is_covered(ctx, walk.last()) {
                    return Err(PathError::Leaves);
                }
                let name = Name::new(walk.last());
                Ok(Last { name, dir: walk.here(), must_be_dir: slash })
            }
        }
    }
}

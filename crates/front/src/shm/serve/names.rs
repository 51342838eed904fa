//! Names: making, moving and removing them.

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_ipc::message::{NameEffects, Reply};
use polylane_vfs::{Create, Kind, Last, Node, OpCtx, RENAME_EXCHANGE, RENAME_NOREPLACE};

use super::{Answer, Call, Failure, done};
use crate::lane::is_virtual;
use crate::shm::request::{At, Object};

impl Call<'_> {
    /// The directory and the name that a path ends in.
    fn last(&self, at: At<'_>) -> Result<Last, Failure> {
        let start = self.start(at)?;
        let last = self.vfs().resolve_parent(&self.ctx(), &start, at.path)?;
        match is_virtual(self.vfs(), &last.dir, &last.name) {
            true => Err(Failure::UseKernel),
            false => Ok(last),
        }
    }

    /// Leaves a name that the kernel was told for good to the kernel, which changes it with the
    /// directory locked and so needs no word of it.
    fn untold(&self, last: &Last) -> Result<(), Failure> {
        let lane = &self.session.connection.lane;
        if !lane.remembers() {
            return Ok(());
        }
        // That there is none, the change itself says.
        let node = self.vfs().lookup(&self.ctx(), &last.dir, &last.name);
        let is_told = node.is_ok_and(|node| lane.is_name_told(&node));
        if is_told { Err(Failure::UseKernel) } else { Ok(()) }
    }

    /// The same for something new that is no directory: `name/` names nothing that could be made.
    fn last_file(&self, at: At<'_>) -> Result<Last, Failure> {
        let last = self.last(at)?;
        if !last.must_be_dir {
            return Ok(last);
        }
        let found = self.vfs().lookup(&self.ctx(), &last.dir, &last.name);
        Err(Failure::Errno(if found.is_ok() { Errno::EEXIST } else { Errno::ENOENT }))
    }

    fn create(&self, last: &Last, new: &Create<'_>) -> Answer {
        self.vfs().create(&self.ctx(), &last.dir, &last.name, new)?;
        Ok(done(0))
    }

    pub(super) fn mkdir(&mut self, at: At<'_>, perm: u32, umask: u32) -> Answer {
        let last = self.last(at)?;
        self.create(&last, &Create { kind: Kind::Dir, perm, umask, rdev: 0, target: b"" })
    }

    pub(super) fn mknod(&mut self, at: At<'_>, mode: u32, umask: u32, rdev: u64) -> Answer {
        let kind = Kind::from_mode(mode).ok_or(Errno::EINVAL)?;
        let perm = mode & 0o7777;
        let last = self.last_file(at)?;
        self.create(&last, &Create { kind, perm, umask, rdev, target: b"" })
    }

    pub(super) fn symlink(&mut self, target: &[u8], at: At<'_>) -> Answer {
        let last = self.last_file(at)?;
        self.create(&last, &Create { kind: Kind::Symlink, perm: 0o777, umask: 0, rdev: 0, target })
    }

    pub(super) fn link(&mut self, from: Object<'_>, to: At<'_>) -> Answer {
        // linkat(fd, "", …, AT_EMPTY_PATH) wants CAP_DAC_READ_SEARCH.
        if matches!(from, Object::Start(_)) && !self.ctx().is_root() {
            return Err(Failure::Errno(Errno::ENOENT));
        }
        let node = self.node(from)?;
        let last = self.last_file(to)?;
        if !self.session.connection.lane.may_link(&self.ctx(), &node)? {
            // What the kernel finds at the new name comes first.
            let found = self.vfs().lookup(&self.ctx(), &last.dir, &last.name);
            return Err(match found {
                Ok(_) => Errno::EEXIST.into(),
                Err(Errno::ENAMETOOLONG) => Errno::ENAMETOOLONG.into(),
                Err(_) => Errno::EPERM.into(),
            });
        }
        self.vfs().link(&self.ctx(), &node, &last.dir, &last.name)?;
        Ok(done(0))
    }

    pub(super) fn unlink(&mut self, at: At<'_>, dir: bool, leased: bool) -> Answer {
        let last = self.last(at)?;
        self.untold(&last)?;
        if dir {
            let known = self.vfs().known_child(&last.dir, &last.name);
            let is_known = known.is_some_and(|dir| self.is_known_dir(&dir));
            if is_known {
                self.blocking()?;
            }
            let had_leases = self.session.rights().has_leases();
            let gone = self.vfs().take_removed_dir(&self.ctx(), &last.dir, &last.name)?;
            if let Some(gone) = gone.as_ref().filter(|_| is_known) {
                self.session.connection.lane.name_gone(&last.dir, &last.name, gone);
                // Before the caller makes the name anew, and works there.
                self.session.connection.lane.settle_names();
            }
            let mut reply = dirs(gone.is_some_and(|gone| self.is_known_dir(&gone)), false);
            if had_leases && !self.session.rights().has_leases() {
                reply.value[0] |= NameEffects::ENDED_LEASES.bits();
            }
            return Ok(reply);
        }
        if last.must_be_dir {
            let node = self.vfs().lookup(&self.ctx(), &last.dir, &last.name)?;
            let is_dir = node.kind() == Kind::Dir;
            return Err(if is_dir { Errno::EISDIR } else { Errno::ENOTDIR }.into());
        }
        let unlink = |ctx: &OpCtx<'_>| self.vfs().take_unlinked(ctx, &last.dir, &last.name);
        let gone =
            self.session.rights().as_holder(&self.ctx(), leased.then_some(&last.dir), unlink)?;
        if let Some(gone) = gone {
            self.session.connection.lane.name_gone(&last.dir, &last.name, &gone);
            self.vfs().lost_a_name(&gone);
        }
        Ok(done(0))
    }

    pub(super) fn rename(
        &mut self,
        (from, to): (At<'_>, At<'_>),
        flags: u32,
        leased: bool,
    ) -> Answer {
        let from = self.last(from)?;
        let to = self.last(to)?;
        self.untold(&from)?;
        self.untold(&to)?;
        if from.must_be_dir || to.must_be_dir {
            self.check_slashes(&from, &to, flags)?;
        }
        let (from_dir, to_dir) = (&from.dir, &to.dir);
        let rename = |ctx: &OpCtx<'_>| {
            self.vfs().take_renamed(ctx, from_dir, &from.name, to_dir, &to.name, flags)
        };
        let leased = leased && Arc::ptr_eq(from_dir, to_dir);
        let names =
            self.session.rights().as_holder(&self.ctx(), leased.then_some(from_dir), rename)?;
        self.session.connection.lane.name_moved(from_dir, &from.name, &names.moved);
        if let Some(replaced) = &names.replaced {
            self.session.connection.lane.name_moved(to_dir, &to.name, replaced);
            self.vfs().lost_a_name(replaced);
        }
        let replaced = names.replaced.as_ref().is_some_and(|node| self.is_known_dir(node));
        Ok(dirs(self.is_known_dir(&names.moved), replaced))
    }

    /// Whether it is a directory that the kernel knows, by its former name.
    fn is_known_dir(&self, node: &Node) -> bool {
        node.kind() == Kind::Dir && self.session.connection.lane.nodes.id_of(node).is_some()
    }

    /// Slashes after a name that is renamed: what they mean, in the kernel's order.
    fn check_slashes(&self, from: &Last, to: &Last, flags: u32) -> Result<(), Failure> {
        let look = |last: &Last| self.vfs().lookup(&self.ctx(), &last.dir, &last.name);
        let is_file = |node: &Node| node.kind() != Kind::Dir;
        let (moved, target) = (look(from)?, look(to));
        let exchange = flags & RENAME_EXCHANGE != 0;
        if flags & RENAME_NOREPLACE != 0 && target.is_ok() {
            return Err(Errno::EEXIST.into());
        }
        if exchange && is_file(&target?) && to.must_be_dir {
            return Err(Errno::ENOTDIR.into());
        }
        let must_be_dir = from.must_be_dir || to.must_be_dir && !exchange;
        if must_be_dir && is_file(&moved) { Err(Errno::ENOTDIR.into()) } else { Ok(()) }
    }

    pub(super) fn readlink(&mut self, object: Object<'_>) -> Answer {
        let node = self.node(object)?;
        if node.kind() != Kind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        let target = self.vfs().readlink(&self.ctx(), &node)?;
        let count = target.len().min(self.session.connection.channel.buffer_bytes());
        self.session.connection.channel.payload_put(self.mailbox, 0, &target[..count]);
        Ok(done(count))
    }
}

/// Done; which of the inodes that changed names are directories that the kernel knows.
fn dirs(moved: bool, replaced: bool) -> Reply {
    let mut effects = NameEffects::empty();
    effects.set(NameEffects::MOVED_DIR, moved);
    effects.set(NameEffects::REPLACED_DIR, replaced);
    let mut reply = done(0);
    reply.value[0] = effects.bits();
    reply
}

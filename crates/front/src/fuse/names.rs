//! Operations on names: lookup and forget, create, remove, move, link.

use polylane_base::sync::Arc;
use polylane_base::{Errno, Gid, Ino, Result, Uid};
use polylane_vfs::fs::Attr;
use polylane_vfs::{Create, Kind, Node, OpCtx, OpenFile, RENAME_EXCHANGE};

use super::call::{Call, End, Exit, Outcome};
use super::flags::OpenedFlags;
use super::handles::Handle;
use super::records::{
    BatchForgetIn, CreateIn, ForgetIn, ForgetOne, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn,
};
use super::reply::decode_device;
use crate::lane::nodes::{Place, ROOT_ID, Target, VirtualDir};
use crate::lane::notifier::Range;
use crate::lane::slots::{self, Access, Slot, Token};
use crate::lane::{Lane, is_reserved, runs_as_another};

/// How long the kernel may remember the virtual directories, in seconds: they never change.
const VIRTUAL_SECONDS: u64 = 3600;

impl Call<'_> {
    /// The directory of a request that looks up or changes a name in it.
    fn dir(&self) -> Result<Node> {
        self.inode(self.header.node_id)
    }

    /// Refuses to change one of the lane's own names in its root.
    fn not_reserved(&self, dir_id: u64, name: &[u8], errno: Errno) -> Result<()> {
        match dir_id == ROOT_ID && is_reserved(name) {
            true => Err(errno),
            false => Ok(()),
        }
    }

    /// Appends `fuse_entry_out` for an inode, found by the name at `place` if any, and counts the
    /// lookup.
    pub(super) fn entry(&mut self, node: &Node, place: Place) -> Result<u64> {
        self.sized_entry(node, place).map(|(id, _)| id)
    }

    /// [`entry`](Self::entry), and the size that it tells the kernel.
    fn sized_entry(&mut self, node: &Node, place: Place) -> Result<(u64, u64)> {
        let attr = self.session.lane.vfs.getattr(&self.ctx(&self.caller()), node)?;
        let id = self.session.lane.nodes.remember(node, place);
        self.session.lane.nodes.tell_size(id, attr.size);
        self.out.entry(id, node.generation(), &attr, 0);
        Ok((id, attr.size))
    }

    /// [`entry`](Self::entry) of what a name in the directory of the request is. The fast lane may
    /// take the name from it while the kernel does not know the inode yet, and so without telling
    /// the kernel, which is told here.
    pub(super) fn entry_of(&mut self, (dir, name): (&Node, &[u8]), node: &Node) -> Result<u64> {
        let (dir_id, lane) = (self.header.node_id, &self.session.lane);
        let attr = lane.vfs.getattr(&self.ctx(&self.caller()), node)?;
        let (id, seconds) = lane.tell_name(node, dir_id, name);
        lane.nodes.tell_size(id, attr.size);
        let is_over = lane.name_told((dir, dir_id), name, node);
        // The fast lane may have moved a directory before the kernel knew the inode.
        let is_there = || lane.vfs.known_child(dir, name).is_some_and(|it| Arc::ptr_eq(&it, node));
        let seconds = if seconds > 0 && !is_over && is_there() { seconds } else { 0 };
        self.out.named(id, node.generation(), &attr, seconds);
        Ok(id)
    }

    /// The state of a virtual directory: owned as the root is, so that its ids are mapped wherever
    /// the root's are.
    pub(super) fn virtual_attr(&self, dir: VirtualDir) -> Result<Attr> {
        let root = self
            .session
            .lane
            .vfs
            .getattr(&self.ctx(&self.caller()), &self.session.lane.vfs.root())?;
        let perm = match dir {
            VirtualDir::Reserved => 0o755,
            // Not sticky: `fs.protected_regular` would refuse files of other owners.
            VirtualDir::Slots => 0o733,
        };
        let ino = Ino(u64::MAX - dir.id());
        Ok(Attr { ino, perm, nlink: 2, size: 0, blocks: 0, ..root })
    }

    /// A free slot's state: an empty file of its maker.
    pub(super) fn free_slot_attr(&self, slot: &Slot) -> Result<Attr> {
        let base = self.virtual_attr(VirtualDir::Slots)?;
        let ino = Ino(u64::MAX - 16 - u64::from(slot.number));
        let (uid, gid) = slot.owner;
        Ok(Attr { ino, kind: Kind::File, perm: 0o600, nlink: 1, uid, gid, ..base })
    }

    fn virtual_entry(&mut self, dir: VirtualDir) -> End {
        let attr = self.virtual_attr(dir)?;
        self.out.entry(dir.id(), 0, &attr, VIRTUAL_SECONDS);
        Ok(Outcome::Reply)
    }

    /// Makes one name of any kind and replies with its entry.
    fn make(&mut self, name: &[u8], new: &Create<'_>) -> End {
        let dir = self.dir()?;
        self.not_reserved(self.header.node_id, name, Errno::EEXIST)?;
        let node = self.session.lane.vfs.create(&self.ctx(&self.cred()?), &dir, name, new)?;
        self.entry_of((&dir, name), &node)?;
        Ok(Outcome::Reply)
    }

    /// Opens a new file, and replies with its entry, found by that name if any, and its handle.
    fn open_new(&mut self, node: &Node, name: Option<(&Node, &[u8])>, flags: i32) -> End {
        let file = self.session.lane.vfs.open(&self.ctx(&self.cred()?), node, flags)?;
        self.reply_opened(node, name, (file, flags))?;
        Ok(Outcome::Reply)
    }

    fn reply_opened(
        &mut self,
        node: &Node,
        name: Option<(&Node, &[u8])>,
        (file, flags): (Arc<OpenFile>, i32),
    ) -> Result<()> {
        let id = match name {
            Some(name) => self.entry_of(name, node)?,
            None => self.entry(node, Place::NONE)?,
        };
        self.session.opened(id, flags);
        let how = self.session.open_flags((node, id), flags);
        let handle = Handle { node_id: id, opened: Some(file), ..Handle::default() };
        let fh = self.session.handles.insert(handle);
        self.out.open(fh, how);
        Ok(())
    }
}

pub(super) fn lookup(call: &mut Call<'_>) -> End {
    let name = call.args.name()?;
    if name == b"." {
        return itself(call);
    }
    match call.target()? {
        // What is there is only ever created.
        Target::Virtual(_) => return Err(Errno::ENOENT.into()),
        Target::Slot(_) => return Err(Errno::ENOTDIR.into()),
        Target::Node(_) => {}
    }
    if call.header.node_id == ROOT_ID && is_reserved(name) {
        let slots = name == polylane_ipc::message::SLOT_DIR.as_bytes();
        return call.virtual_entry(if slots { VirtualDir::Slots } else { VirtualDir::Reserved });
    }
    let dir = call.dir()?;
    let found = call.session.lane.vfs.lookup(&call.ctx(&call.cred()?), &dir, name);
    let slots = name == polylane_ipc::message::SLOT_DIR.as_bytes();
    if slots && matches!(found, Err(Errno::ENOENT)) && call.session.lane.is_attached(&dir) {
        return call.virtual_entry(VirtualDir::Slots);
    }
    call.entry_of((&dir, name), &found?)?;
    Ok(Outcome::Reply)
}

/// `.` in anything: what a file handle means that the kernel was given while it knew the inode.
fn itself(call: &mut Call<'_>) -> End {
    let id = call.header.node_id;
    let lane = &call.session.lane;
    let node = match lane.nodes.get(id) {
        Ok(Target::Node(node)) => node,
        Ok(Target::Slot(_) | Target::Virtual(_)) => return Err(Errno::ESTALE.into()),
        Err(_) => {
            let live = lane.nodes.ino_of(id).and_then(|ino| lane.vfs.live(ino));
            live.ok_or(Errno::ESTALE)?
        }
    };
    // What is removed is there for who has it open by the library.
    let open = node.kind() != Kind::Dir && node.is_open();
    if lane.vfs.getattr(&call.ctx(&call.caller()), &node)?.nlink == 0 && !open {
        return Err(Errno::ESTALE.into());
    }
    call.entry(&node, Place::NONE)?;
    Ok(Outcome::Reply)
}

pub(super) fn forget(call: &mut Call<'_>) -> End {
    let count = call.args.record::<ForgetIn>()?.nlookup.get();
    call.session.lane.nodes.forget(call.header.node_id, count);
    Ok(Outcome::Silent)
}

pub(super) fn batch_forget(call: &mut Call<'_>) -> End {
    let count = call.args.record::<BatchForgetIn>()?.count.get();
    for _ in 0..count {
        let one = call.args.record::<ForgetOne>()?;
        call.session.lane.nodes.forget(one.nodeid.get(), one.nlookup.get());
    }
    Ok(Outcome::Silent)
}

pub(super) fn symlink(call: &mut Call<'_>) -> End {
    let name = call.args.name()?;
    let target = call.args.string()?;
    call.make(name, &Create { kind: Kind::Symlink, perm: 0o777, umask: 0, rdev: 0, target })
}

pub(super) fn mknod(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<MknodIn>()?;
    let (mode, umask) = (asked.mode.get(), asked.umask.get());
    let name = call.args.name()?;
    let kind = Kind::from_mode(mode).ok_or(Errno::EINVAL)?;
    let rdev = decode_device(asked.rdev.get());
    call.make(name, &Create { kind, perm: mode & 0o7777, umask, rdev, target: b"" })
}

pub(super) fn mkdir(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<MkdirIn>()?;
    let (perm, umask) = (asked.mode.get() & 0o7777, asked.umask.get());
    let name = call.args.name()?;
    call.make(name, &Create { kind: Kind::Dir, perm, umask, rdev: 0, target: b"" })
}

pub(super) fn unlink(call: &mut Call<'_>) -> End {
    let name = call.args.name()?;
    let dir = call.dir()?;
    call.not_reserved(call.header.node_id, name, Errno::EBUSY)?;
    call.session.lane.vfs.unlink(&call.ctx(&call.cred()?), &dir, name)?;
    Ok(Outcome::Reply)
}

pub(super) fn rmdir(call: &mut Call<'_>) -> End {
    let name = call.args.name()?;
    let dir = call.dir()?;
    call.not_reserved(call.header.node_id, name, Errno::EBUSY)?;
    call.session.lane.vfs.rmdir(&call.ctx(&call.cred()?), &dir, name)?;
    Ok(Outcome::Reply)
}

pub(super) fn rename(call: &mut Call<'_>) -> End {
    let to_dir = call.args.record::<RenameIn>()?.newdir.get();
    rename_to(call, to_dir, 0)
}

pub(super) fn rename2(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<Rename2In>()?;
    rename_to(call, asked.newdir.get(), asked.flags.get())
}

fn rename_to(call: &mut Call<'_>, to_id: u64, flags: u32) -> End {
    let (from, to) = (call.args.name()?, call.args.name()?);
    let (from_dir, to_dir) = (call.dir()?, call.inode(to_id)?);
    call.not_reserved(call.header.node_id, from, Errno::EBUSY)?;
    call.not_reserved(to_id, to, Errno::EBUSY)?;
    let lane = &call.session.lane;
    let from_id = call.header.node_id;
    let told = match lane.remembers() {
        true => names_to_move(lane, (&from_dir, from_id, from), (&to_dir, to_id, to), flags),
        false => Vec::new(),
    };
    let renamed = lane.vfs.rename(&call.ctx(&call.cred()?), &from_dir, from, &to_dir, to, flags);
    told.iter().for_each(|(node, to)| lane.nodes.has_moved(node, renamed.is_ok().then_some(*to)));
    renamed?;
    // Both, where they were exchanged.
    for (dir, id, name) in [(&to_dir, to_id, to), (&from_dir, from_id, from)] {
        if let Some(node) = lane.vfs.known_child(dir, name) {
            lane.nodes.moved(&node, Place::of(id, name));
        }
    }
    Ok(Outcome::Reply)
}

/// A directory, its id, and a name in it.
type Named<'a> = (&'a Node, u64, &'a [u8]);

/// What a rename moves of which the kernel was told the name for good, and where to: the lane knows
/// that it will.
fn names_to_move(lane: &Lane, from: Named<'_>, to: Named<'_>, flags: u32) -> Vec<(Node, Place)> {
    let back = (flags & RENAME_EXCHANGE != 0).then_some((to, from));
    let moves = [(from, to)].into_iter().chain(back);
    let told = |((dir, dir_id, name), (_, to_id, to)): (Named<'_>, Named<'_>)| {
        // Also where it is not in memory any more; that there is none the rename says.
        let node = lane.vfs.lookup(&OpCtx::service(), dir, name).ok()?;
        let is_told = lane.will_move(&node, Place::of(dir_id, name), (to_id, to));
        is_told.then(|| (node, Place::of(to_id, to)))
    };
    moves.filter_map(told).collect()
}

pub(super) fn link(call: &mut Call<'_>) -> End {
    let id = call.args.record::<LinkIn>()?.oldnodeid.get();
    let name = call.args.name()?;
    let (node, dir) = (call.inode(id)?, call.dir()?);
    call.not_reserved(call.header.node_id, name, Errno::EEXIST)?;
    let cred = call.cred()?;
    // By a descriptor the kernel goes by what it last heard of the file: the owner and the mode
    // that it takes a slot to have; of a node those of its last look, whose set-id bits it asks
    // for before it looks again.
    let lane = &call.session.lane;
    let unchecked = OpCtx { kernel_checked: false, ..call.ctx(&cred) };
    let may = match lane.nodes.get(id)? {
        Target::Slot(_) => lane.may_link(&unchecked, &node)?,
        // No owner is known here, and the library, whose nodes it is for, is not there.
        _ if call.names_no_user() => true,
        _ => {
            !runs_as_another(&lane.vfs.getattr(&unchecked, &node)?)
                || lane.may_link(&unchecked, &node)?
        }
    };
    if !may {
        return Err(Errno::EPERM.into());
    }
    call.session.lane.vfs.link(&call.ctx(&cred), &node, &dir, name)?;
    call.session.lane.nodes.linked(id);
    call.entry_of((&dir, name), &node)?;
    Ok(Outcome::Reply)
}

pub(super) fn readlink(call: &mut Call<'_>) -> End {
    let target = call.session.lane.vfs.readlink(&call.ctx(&call.caller()), &call.node()?)?;
    call.out.0.extend_from_slice(&target);
    Ok(Outcome::Reply)
}

pub(super) fn create(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<CreateIn>()?;
    let (flags, umask) = (asked.flags.get() as i32, asked.umask.get());
    let name = call.args.name()?;
    if let Target::Virtual(dir) = call.target()? {
        return match dir {
            VirtualDir::Slots => create_slot(call, name, flags),
            VirtualDir::Reserved => Err(Errno::EPERM.into()),
        };
    }
    let dir = call.dir()?;
    call.not_reserved(call.header.node_id, name, Errno::EISDIR)?;
    let perm = asked.mode.get() & 0o7777;
    let new = Create { kind: Kind::File, perm, umask, rdev: 0, target: b"" };
    for _ in 0..RACES_MAX {
        match call.session.lane.vfs.create(&call.ctx(&call.cred()?), &dir, name, &new) {
            Ok(node) => return call.open_new(&node, Some((&dir, name)), open_flags(flags)),
            Err(Errno::EEXIST) if flags & libc::O_EXCL == 0 => {}
            Err(errno) => return Err(errno.into()),
        }
        match open_made(call, &dir, name, flags) {
            // Gone again.
            Err(Exit::Failed(Errno::ENOENT | Errno::ESTALE)) => {}
            done => return done,
        }
    }
    Err(Errno::ESTALE.into())
}

/// Times that others may make and remove a name while it is being opened, at most.
const RACES_MAX: u32 = 1000;

/// Another caller was faster to make a file. The kernel checks no permissions of what it has asked
/// to be made, and to have it look again could go on for ever beside one who makes and removes the
/// name. So they are checked here, of what this can be known of; the rest is left to the kernel: a
/// stale entry makes it look again.
fn open_made(call: &mut Call<'_>, dir: &Node, name: &[u8], flags: i32) -> End {
    let vfs = &call.session.lane.vfs;
    let cred = call.cred()?;
    let node = vfs.lookup(&call.ctx(&cred), dir, name)?;
    let attr = vfs.getattr(&call.ctx(&call.caller()), &node)?;
    // Which capabilities root has the kernel alone knows.
    if node.kind() != Kind::File || cred.is_root() && attr.uid != cred.uid {
        return Err(Exit::Late(Errno::ESTALE));
    }
    if flags & libc::O_TRUNC != 0 {
        call.settle(&node, Range::ALL)?;
    }
    let unchecked = OpCtx { kernel_checked: false, ..call.ctx(&cred) };
    let opened = vfs.open(&unchecked, &node, open_flags(flags) | flags & libc::O_TRUNC);
    let file = match opened {
        Err(Errno::EACCES | Errno::EPERM) => return Err(Exit::Late(Errno::ESTALE)),
        opened => opened?,
    };
    call.reply_opened(&node, Some((dir, name)), (file, open_flags(flags)))?;
    match flags & libc::O_TRUNC {
        0 => Ok(Outcome::Reply),
        _ => Ok(call.changed(&node, Range::ALL)),
    }
}

pub(super) fn tmpfile(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<CreateIn>()?;
    let (flags, umask) = (asked.flags.get() as i32, asked.umask.get());
    let perm = asked.mode.get() & 0o7777;
    let dir = call.dir()?;
    let vfs = &call.session.lane.vfs;
    let node = vfs.create_unlinked(&call.ctx(&call.cred()?), &dir, perm, umask)?;
    call.session.lane.made_unnamed(&node, &dir, call.header.pid);
    call.open_new(&node, None, open_flags(flags))
}

/// Flags that mean something once the file exists.
pub(super) fn open_flags(flags: i32) -> i32 {
    flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC | libc::O_TMPFILE)
}

/// `<token>-<number>`: makes a slot of that session. `x-<ticket>`: gives a descriptor of the own
/// node of a ticket's open file.
fn create_slot(call: &mut Call<'_>, name: &[u8], flags: i32) -> End {
    if let Some(ticket) = name.strip_prefix(b"x-") {
        let ticket = Token::from_hex(ticket).ok_or(Errno::EACCES)?;
        return open_own(call, (name, ticket), flags);
    }
    let (token, number) = slots::from_name(name).ok_or(Errno::EACCES)?;
    let access = Access::from_flags(flags).ok_or(Errno::EINVAL)?;
    let table = &call.session.lane.slots;
    let owner = (Uid(call.header.uid), Gid(call.header.gid));
    let slot = table.create(token, number, access, owner)?;
    let id = call.session.lane.nodes.remember_slot(slot.clone());
    table.name(&slot, id);
    table.opened(&slot);
    // The caller that makes it has it.
    table.met(&slot, call.header.pid);
    let attr = call.free_slot_attr(&slot)?;
    let slot = Some(slot);
    let fh = call.session.handles.insert(Handle { node_id: id, slot, ..Handle::default() });
    call.out.entry(id, 0, &attr, 0).open(fh, OpenedFlags::DIRECT_IO | OpenedFlags::NOFLUSH);
    Ok(Outcome::Reply)
}

/// The open file of a ticket gets a descriptor of the file's own node, for a client that puts it in
/// its slot's place. The permissions of today do not count: the file is open.
fn open_own(call: &mut Call<'_>, (name, ticket): (&[u8], Token), flags: i32) -> End {
    let tickets = &call.session.lane.tickets;
    let file = tickets.redeem(&ticket.0).ok_or(Errno::EACCES)?.file;
    tickets.has_opened();
    if (file.flags() ^ flags) & libc::O_ACCMODE != 0 {
        return Err(Errno::EINVAL.into());
    }
    let (node, lane) = (file.node().clone(), call.session.lane.clone());
    let (id, size) = call.sized_entry(&node, Place::NONE)?;
    // The name is for one open: its descriptor keeps the inode, and nothing else does.
    lane.notifier.forget_name(VirtualDir::Slots.id(), name, || lane.nodes.len());
    // A size that the kernel learns meanwhile is newer than the one in this reply. Where there is
    // none it is told nothing: with a size goes a byte, and what the caller stores there through a
    // mapping, once it has the reply, is newer than that.
    let again = call.session.lane.nodes.is_open(id);
    call.session.opened(id, flags);
    let how = call.session.open_flags((&node, id), flags);
    let handle = Handle { node_id: id, opened: Some(file), ..Handle::default() };
    let fh = call.session.handles.insert(handle);
    call.out.open(fh, how | OpenedFlags::NOFLUSH);
    Ok(if again { Outcome::ReplyThenTell(node, size) } else { Outcome::Reply })
}

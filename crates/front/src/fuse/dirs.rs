//! Directory streams.
//!
//! Positions are the libservice's own and stable, so a handle keeps no state: a listing goes on
//! wherever the kernel says, also after seekdir(3).

use polylane_base::{Errno, Result};
use polylane_vfs::Kind;

use super::call::{Call, End, Outcome};
use super::flags::{FsyncFlags, OpenedFlags};
use super::handles::Handle;
use super::init::TRANSFER_BYTES_MAX;
use super::protocol::{DIRENT_BYTES, ENTRY_BYTES};
use super::records::{FsyncIn, ReleaseIn};
use super::request::TransferIn;
use crate::lane::is_reserved;
use crate::lane::nodes::{ROOT_ID, Target};

/// An entry as it was listed.
struct Listed {
    ino: u64,
    next: u64,
    kind: Kind,
    name: Vec<u8>,
}

pub(super) fn opendir(call: &mut Call<'_>) -> End {
    let opened = match call.target()? {
        Target::Virtual(_) => None,
        Target::Slot(_) => return Err(Errno::ENOTDIR.into()),
        Target::Node(node) => {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            Some(call.session.lane.vfs.open(&call.ctx(&call.cred()?), &node, flags)?)
        }
    };
    let handle = Handle { node_id: call.header.node_id, opened, ..Handle::default() };
    let fh = call.session.handles.insert(handle);
    call.out.open(fh, OpenedFlags::empty());
    Ok(Outcome::Reply)
}

pub(super) fn readdir(call: &mut Call<'_>) -> End {
    for entry in list(call, 0)? {
        call.out.dirent(entry.ino, entry.next, entry.kind, &entry.name);
    }
    Ok(Outcome::Reply)
}

/// A listing whose entries the kernel learns as if it had looked each up. `.` and `..` are not
/// counted.
pub(super) fn readdirplus(call: &mut Call<'_>) -> End {
    for entry in list(call, ENTRY_BYTES)? {
        let known = match entry.name.as_slice() {
            b"." | b".." => None,
            name => {
                let (vfs, dir) = (&call.session.lane.vfs, call.node()?);
                let node = vfs.lookup(&call.ctx(&call.cred()?), &dir, name).ok();
                node.and_then(|node| call.entry_of((&dir, name), &node).ok())
            }
        };
        // What vanished since it was listed is listed all the same, and looked up when it is used.
        if known.is_none() {
            call.out.no_entry();
        }
        call.out.dirent(entry.ino, entry.next, entry.kind, &entry.name);
    }
    Ok(Outcome::Reply)
}

/// The entries from the asked position on that fit the reply, each with `extra` bytes before it.
fn list(call: &mut Call<'_>, extra: usize) -> Result<Vec<Listed>> {
    let transfer = TransferIn::read(&mut call.args)?;
    let handle = call.session.handles.get(transfer.fh)?;
    let Some(dir) = &handle.opened else { return Ok(list_virtual(call, transfer.offset)) };
    let mut room = transfer.size.min(TRANSFER_BYTES_MAX) as usize;
    let in_root = handle.node_id == ROOT_ID;
    let mut entries = Vec::new();
    dir.readdir(&call.ctx(&call.caller()), transfer.offset, &mut |entry| {
        if in_root && is_reserved(entry.name) {
            return true;
        }
        let bytes = extra + DIRENT_BYTES + entry.name.len().next_multiple_of(8);
        let Some(left) = room.checked_sub(bytes) else { return false };
        room = left;
        let (ino, next) = (entry.ino.0, entry.next);
        entries.push(Listed { ino, next, kind: entry.kind, name: entry.name.to_vec() });
        true
    })?;
    Ok(entries)
}

/// A virtual directory shows nothing but itself and its parent.
fn list_virtual(call: &Call<'_>, from: u64) -> Vec<Listed> {
    let (this, root) = (u64::MAX - call.header.node_id, call.session.lane.vfs.root().ino().0);
    let all = [(this, 1, b".".to_vec()), (root, 2, b"..".to_vec())];
    let rest = all.into_iter().filter(|(_, next, _)| *next > from);
    rest.map(|(ino, next, name)| Listed { ino, next, kind: Kind::Dir, name }).collect()
}

pub(super) fn releasedir(call: &mut Call<'_>) -> End {
    let fh = call.args.record::<ReleaseIn>()?.fh.get();
    if let Some(handle) = call.session.handles.remove(fh) {
        call.session.close(&handle);
    }
    Ok(Outcome::Reply)
}

pub(super) fn fsyncdir(call: &mut Call<'_>) -> End {
    let asked = call.args.record::<FsyncIn>()?;
    let how = FsyncFlags::from_bits_retain(asked.fsync_flags.get());
    if let Some(dir) = &call.session.handles.get(asked.fh.get())?.opened {
        dir.fsync(&call.ctx(&call.caller()), how.contains(FsyncFlags::FDATASYNC))?;
    }
    Ok(Outcome::Reply)
}

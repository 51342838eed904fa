//! The own node of an open file, in its slot's place.
//!
//! The kernel knows a slot as an inode of its own: its pages, its size and its end are not the
//! file's. What the kernel does by itself (mappings, splice, sendfile, `RWF_APPEND`, rings), and
//! what another process may do, needs a descriptor of the file's own node. Before either, each
//! number that means the open file becomes a copy of one descriptor that the kernel opened, with
//! the same position and flags. The service gives that the same open file: its locks and its
//! handle stay.
//!
//! # Invariants
//!
//! - Who gives a number another descriptor says first that the file is moving, and then looks for
//!   its numbers; who makes a copy notes the number first, and then looks whether the file moves.
//!   So no copy of a slot is left behind.
//! - A number is not closed, nor found to mean anything, while it gets another descriptor.

use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

use polylane_ipc::message::{EXPOSED_MAX, Message, Op, SLOT_DIR};
use rustix::fs::{SeekFrom, seek};
use zerocopy::little_endian::U64;

use super::file;
use super::state::State;
use crate::fd;
use crate::fd::file::STATUS_FLAGS;
use crate::fd::preopened::Slot;
use crate::fd::record::FileBits;
use crate::fd::table::Pin;
use crate::kernel::config::{self, LaneNumber};
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::kernel::thread;
use crate::session::{Session, call};

/// Files of which one request asks the tickets.
pub(crate) const BATCH: usize = EXPOSED_MAX;

/// Has every number that means `file` be of the file's own node. `Kernel`: that cannot be done now.
pub(crate) fn settle(state: &'static State, file: &Pin) -> Outcome<()> {
    let Some((session, handle)) = to_expose(state, file)? else { return Ok(()) };
    let name = call::plain(session, Message { handle, ..Message::new(Op::Expose) })?.value;
    let ticket: [u8; 16] = zerocopy::transmute!([U64::new(name[0]), U64::new(name[1])]);
    thread::slow(|| take_place(state, file, &ticket))
}

/// As [`settle`], of at most [`BATCH`] files of one lane, with one request for all of them; tells
/// `each` what became of its file.
pub(crate) fn settle_all<'a>(
    state: &'static State,
    files: impl Iterator<Item = &'a Pin> + Clone,
    mut each: impl FnMut(&Pin, Outcome<()>),
) {
    let (mut handles, mut tickets) = ([U64::ZERO; BATCH], [[0; 16]; BATCH]);
    let (mut asked, mut count) = (None, 0);
    for (file, place) in files.clone().zip(&mut handles) {
        // Handles of another session than that of the first one mean nothing to it.
        if let Ok(Some((session, handle))) = to_expose(state, file)
            && std::ptr::eq(*asked.get_or_insert(session), session)
        {
            place.set(handle);
        }
        count += 1;
    }
    let answered = asked.is_some_and(|session| {
        call::expose_all(session, &handles[..count], &mut tickets[..count]).is_ok()
    });
    for (file, ticket) in files.zip(&tickets) {
        let done = match file::slot(state, file) {
            None => Ok(()),
            Some(_) if !answered || *ticket == [0; 16] => Err(Detour::Kernel),
            Some(_) => thread::slow(|| take_place(state, file, ticket)),
        };
        each(file, done);
    }
}

/// The session and the handle by which the ticket of a file is asked; `None`: it has no slot.
fn to_expose(state: &'static State, file: &Pin) -> Outcome<Option<(&'static Session, u64)>> {
    let Some(slot) = file::slot(state, file) else { return Ok(None) };
    let (session, handle) = file::usable(state, file, slot.master())?;
    // Copies that others have of the slot would stay behind; a process with this one's memory has
    // other descriptors.
    if file.is(FileBits::ESCAPED | FileBits::SHARED) || !session.is_own() {
        return Err(Detour::Kernel);
    }
    file.meet();
    Ok(Some((session, handle)))
}

/// As [`settle`], of what `fd` means. Where it cannot be done, the slot's own node does what it
/// can: position and size are the file's.
pub(crate) fn settle_fd(state: &'static State, fd: RawFd) {
    let Some(file) = file::find_known(state, fd) else { return };
    if settle(state, &file).is_err() && !file::publish(state, &file) {
        fd::file::tell_size(real::borrow(fd));
    }
}

/// A copy of `from`, which means `file`, was noted on `new`: it must be of the file's own node if
/// `from` is by now.
pub(crate) fn follow(file: &Pin, from: RawFd, new: RawFd) {
    fence(Ordering::SeqCst);
    if file.is(FileBits::MOVES) {
        thread::slow(|| {
            let _moved = file.offset_lock.lock();
            // What was closed meanwhile needs nothing.
            let _ = real::replace(new, from);
        });
    }
}

fn take_place(state: &'static State, file: &Pin, ticket: &[u8; 16]) -> Outcome<()> {
    let _guard = file.offset_lock.lock();
    let Some(slot) = file::slot(state, file) else { return Ok(()) };
    let mut named = false;
    state.get().table.each_known(file.index(), |_| named = true);
    if !named {
        // It is being opened: its number is not known yet.
        return Err(Detour::Kernel);
    }
    let position = match file.is(FileBits::KERNEL_OFFSET) {
        true => seek(real::borrow(slot.master()), SeekFrom::Current(0))?,
        false => file.offset.load(Ordering::Relaxed),
    };
    let opened = open(state, file.lane(), ticket, flags(file, slot)?)?;
    // A position that the slot had, or that was checked when it was set: the kernel takes it.
    let _ = seek(real::borrow(opened), SeekFrom::Start(position));
    real::copy_signals(slot.master(), opened);
    let node = real::node_cached(opened).unwrap_or(0);
    file.node.store(node, Ordering::Relaxed);
    file.leaves_end();
    file.set(FileBits::MOVES | FileBits::KERNEL_OFFSET);
    fence(Ordering::SeqCst);
    state.get().table.each_number(file.index(), |number| {
        // One that was closed past the hooks needs nothing.
        let _ = real::replace(number, opened);
    });
    let place = file.slot.swap(0, Ordering::AcqRel) - 1;
    state.get().lane(file.lane()).slots.release(place, None);
    real::close_quietly(opened);
    Ok(())
}

/// Opens the own node of a ticket's file. Where no number is free, the library's spare ones go.
fn open(state: &'static State, lane: LaneNumber, ticket: &[u8; 16], flags: i32) -> Outcome<RawFd> {
    const INFIX: &[u8] = b"/x-";
    let mut name = [0; SLOT_DIR.len() + INFIX.len() + 32];
    let (dir, rest) = name.split_at_mut(SLOT_DIR.len());
    let (infix, digits) = rest.split_at_mut(INFIX.len());
    dir.copy_from_slice(SLOT_DIR.as_bytes());
    infix.copy_from_slice(INFIX);
    for (two, byte) in digits.chunks_exact_mut(2).zip(ticket) {
        let digit = |value: u8| b"0123456789abcdef"[usize::from(value & 15)];
        two.copy_from_slice(&[digit(byte >> 4), digit(*byte)]);
    }
    let mut path = [0; config::MOUNT_BYTES_MAX + 96];
    let path = config::under_mount(lane, &mut path, &name).ok_or(Detour::Kernel)?;
    let flags = flags | libc::O_CREAT | libc::O_CLOEXEC;
    match real::open_file(path, flags) {
        Err(rustix::io::Errno::MFILE) if state.get().shed() => {
            real::open_file(path, flags).map_err(|_| Detour::Kernel)
        }
        opened => opened.map_err(|_| Detour::Kernel),
    }
}

/// As the kernel is to have them. Where others may have changed them it knows best.
fn flags(file: &Pin, slot: &Slot) -> Outcome<i32> {
    let known = file.flags.load(Ordering::Relaxed) as i32;
    if !file.is(FileBits::COMMON | FileBits::FLAGGED) {
        return Ok(known);
    }
    Ok(known & !STATUS_FLAGS | real::status_flags(slot.master())? & STATUS_FLAGS)
}

//! Leases of fcntl(2) (`F_SETLEASE`; oplocks).
//!
//! The kernel keeps them, and tells their holders before it opens the file again. That needs the
//! file's own node: a file that the library opened is *moved* to it first. Every number that means
//! the file becomes a copy of a descriptor that the kernel opened, with the same position and
//! flags. Then the service is told, and leaves opens of the file to the kernel from then on.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use polylane_base::Errno;
use polylane_ipc::message::{Message, Op};
use rustix::fs::{SeekFrom, seek};

use super::map;
use crate::call;
use crate::file;
use crate::outcome::{Detour, Outcome};
use crate::real;
use crate::state;
use crate::table::{Pin, Record, bit};

/// Looks whether others still have the file open: a close that nobody waited for, or the end of a
/// process, may be on its way.
const LOOKS_MAX: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// There can be no lease now.
const REFUSED: Detour = Detour::Errno(Errno::EAGAIN);

/// Before the kernel is asked for a lease of this kind, `F_RDLCK` or `F_WRLCK`. `EAGAIN`: others
/// have the file open, or it cannot be moved.
pub(crate) fn begins(fd: RawFd, kind: i32) -> Outcome<()> {
    if !file::is_of_lane(fd) {
        return Err(Detour::Kernel);
    }
    state::get().sessions.hurry();
    let file = file::find(fd)?;
    if file.is(bit::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    if file.slot.load(Ordering::Relaxed) != 0 {
        move_to_kernel(&file, fd).map_err(|_| REFUSED)?;
    }
    for _ in 0..LOOKS_MAX {
        let (session, handle) = file::usable(&file, fd)?;
        let asked = Message { handle, mode: kind as u32, ..Message::new(Op::Oplock) };
        match call::plain(session, asked) {
            Err(REFUSED) => std::thread::sleep(PAUSE),
            told => return told.map(drop),
        }
    }
    Err(REFUSED)
}

fn move_to_kernel(file: &Pin, fd: RawFd) -> Outcome<()> {
    // Copies that others have, and locks of the open file, would stay behind.
    if file.is(bit::ESCAPED | bit::SHARED | bit::LOCKED) {
        return Err(REFUSED);
    }
    let opened = map::open_true_node(file, fd)?;
    let moved = put_in_place(file, fd, opened);
    real::close_quietly(opened);
    moved
}

/// Has every number that means `file` be a copy of `opened`.
fn put_in_place(file: &Pin, fd: RawFd, opened: RawFd) -> Outcome<()> {
    let (session, handle) = file::usable(file, fd)?;
    let ticket = u128::from_le_bytes(real::identify(opened).ok_or(REFUSED)?);
    let _guard = file.offset_lock.lock();
    let slot = file::slot(file).ok_or(REFUSED)?;
    let position = match file.is(bit::KERNEL_OFFSET) {
        true => seek(real::borrow(slot.master()), SeekFrom::Current(0))?,
        false => file.offset.load(Ordering::Relaxed),
    };
    seek(real::borrow(opened), SeekFrom::Start(position))?;
    real::copy_signals(slot.master(), opened);
    file.node.store(real::node_cached(opened)?, Ordering::Relaxed);
    let mut message = Message { handle, ..Message::new(Op::Redeem) };
    (message.arg[0], message.arg[1]) = (ticket as u64, (ticket >> 64) as u64);
    call::plain(session, message)?;
    let table = &state::get().table;
    let means_it = |&number: &RawFd| file::find_known(number).is_some_and(|one| is(&one, file));
    for number in (0..table.top() as RawFd).filter(means_it) {
        // One that was closed meanwhile needs nothing.
        let _ = real::replace(number, opened);
    }
    file.leaves_end();
    file.set(bit::KERNEL_OFFSET);
    let place = file.slot.swap(0, Ordering::AcqRel) - 1;
    state::get().slots.release(place, None);
    Ok(())
}

fn is(one: &Record, other: &Record) -> bool {
    std::ptr::eq(one, other)
}

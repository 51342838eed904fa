//! Leases of fcntl(2) (`F_SETLEASE`; oplocks).
//!
//! The kernel keeps them, and tells their holders before it opens the file again. That needs the
//! file's own node (`own`). Then the service is told, and leaves opens of the file to the kernel
//! from then on.

use std::os::fd::RawFd;
use std::time::Duration;

use polylane_base::Errno;
use polylane_ipc::message::{Message, Op};

use super::state::State;
use super::{file, own};
use crate::fd::record::FileBits;
use crate::kernel::outcome::{Detour, Outcome};
use crate::session::call;

/// Looks whether others still have the file open: a close that nobody waited for, or the end of a
/// process, may be on its way.
const LOOKS_MAX: u32 = 10;
const PAUSE: Duration = Duration::from_millis(2);

/// There can be no lease now.
const REFUSED: Detour = Detour::Errno(Errno::EAGAIN);

/// Before the kernel is asked for a lease of this kind, `F_RDLCK` or `F_WRLCK`. `EAGAIN`: others
/// have the file open, or it cannot be moved.
pub(crate) fn begins(state: &'static State, fd: RawFd, kind: i32) -> Outcome<()> {
    file::lane_of(state, fd).ok_or(Detour::Kernel)?.sessions.hurry();
    let file = file::find(state, fd)?;
    if file.is(FileBits::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    own::settle(state, &file).map_err(|_| REFUSED)?;
    for _ in 0..LOOKS_MAX {
        let (session, handle) = file::usable(state, &file, fd)?;
        let asked = Message { handle, mode: kind as u32, ..Message::new(Op::Oplock) };
        match call::plain(session, asked) {
            Err(REFUSED) => polylane_sys::sched::pause(PAUSE),
            told => return told.map(drop),
        }
    }
    Err(REFUSED)
}

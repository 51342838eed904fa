//! Calls that change an inode's state, its size or its allocation, and those that make it durable.

use std::os::fd::RawFd;

use polylane_base::Errno;
use polylane_ipc::message::{Message, Op, SetWhat};
use polylane_ipc::stream::SetState;

use super::name::Place;
use super::state::{Fields, Lane, State};
use super::{file, limit, own, path};
use crate::fd::record::FileBits;
use crate::fd::table::Pin;
use crate::kernel::outcome::{Detour, Outcome};
use crate::rights::lease::NewState;
use crate::session::Session;
use crate::session::call;
use crate::session::namespace;
use crate::session::path::lane_of;

/// A change of one time stamp, as utimensat(2) has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stamp {
    /// `UTIME_OMIT`
    Keep,
    /// `UTIME_NOW`
    Now,
    /// Seconds and nanoseconds.
    At(i64, i64),
}

/// What is to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Permission bits.
    Mode(u32),
    /// Owner and group; `u32::MAX` leaves one as it is.
    Owner(u32, u32),
    /// Size in bytes.
    Size(i64),
    /// Access and modification time.
    Times(Stamp, Stamp),
}

/// What the kernel sends a FUSE mount as it sends the begin of a write by another: whether the
/// caller owns the file it does not ask.
const LEFT_AS_IT_IS: Change = Change::Owner(u32::MAX, u32::MAX);

/// `chmod`, `chown`, `truncate`, `utimensat` by path.
pub(crate) fn change(
    state: &'static State,
    place: Place<'_>,
    what: Change,
    follow: bool,
) -> Outcome<()> {
    if what == LEFT_AS_IT_IS {
        hurry_at(state, place)?;
    }
    let (session, at) = path::at(state, place.0, place.1)?;
    let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW as u32 };
    let message = fill(state, Message { flags, ..Message::new(Op::SetattrPath) }, what)?;
    if matches!(what, Change::Size(_)) {
        state.get().lane(session.lane).leases.meets(session);
    }
    call::paths(session, message, (at.dir, at.path), (at.dir, b""))?;
    Ok(())
}

/// `fchmod`, `fchown`, `futimens`.
pub(crate) fn change_open(state: &'static State, fd: RawFd, what: Change) -> Outcome<()> {
    if what == LEFT_AS_IT_IS {
        hurry(state, fd)?;
    }
    let file = file::find(state, fd)?;
    let (session, handle) = file::usable(state, &file, fd)?;
    let leases = &state.get().lane(session.lane).leases;
    if to_stream(what).is_some_and(|fields| leases.set(session, &file, &fields)) {
        return Ok(());
    }
    let message = fill(state, Message { handle, ..Message::new(Op::SetattrHandle) }, what)?;
    call::plain(session, message)?;
    Ok(())
}

/// Has what the kernel would take for something else be done by the library, were it the first call
/// of a process: the next call in the lane that a path leads into connects.
fn hurry_at(state: &'static State, (dir, path): Place<'_>) -> Outcome<()> {
    namespace::any_lane()?;
    let fields = state.get();
    match path.first() {
        Some(b'/') => {
            let (lane, _) = lane_of(path).ok_or(Detour::Kernel)?;
            fields.lane(lane).sessions.hurry();
        }
        _ if dir != libc::AT_FDCWD => hurry(state, dir)?,
        _ => fields.lanes().for_each(|lane| lane.sessions.hurry()),
    }
    Ok(())
}

/// As [`hurry_at`], in the lane of a descriptor.
fn hurry(state: &'static State, fd: RawFd) -> Outcome<()> {
    file::lane_of(state, fd).ok_or(Detour::Kernel)?.sessions.hurry();
    Ok(())
}

/// A change as a stream can tell it.
fn to_stream(what: Change) -> Option<NewState> {
    match what {
        Change::Mode(mode) => Some(NewState {
            mask: SetState::PERM,
            perm: (mode & 0o7777) as u16,
            ..NewState::default()
        }),
        Change::Times(atime, mtime) => {
            let mut state = NewState::default();
            let places =
                [(SetState::ATIME, SetState::ATIME_NOW), (SetState::MTIME, SetState::MTIME_NOW)];
            for (n, (stamp, (given, now))) in [atime, mtime].into_iter().zip(places).enumerate() {
                match stamp {
                    Stamp::Keep => {}
                    Stamp::Now => state.mask |= now,
                    Stamp::At(sec, nsec) => {
                        state.mask |= given;
                        state.times[n] = sec.checked_mul(1_000_000_000)?.checked_add(nsec)?;
                    }
                }
            }
            Some(state)
        }
        Change::Owner(..) | Change::Size(_) => None,
    }
}

/// `ftruncate`. What the kernel takes to be longer it cuts itself, on the file's own node.
pub(crate) fn truncate_open(state: &'static State, fd: RawFd, size: i64) -> Outcome<()> {
    let asked = ask_to_truncate(state, fd, size);
    if asked == Err(Detour::Kernel) {
        own::settle_fd(state, fd);
    }
    asked
}

fn ask_to_truncate(state: &'static State, fd: RawFd, size: i64) -> Outcome<()> {
    let (session, handle) = resizable(state, fd, Errno::EINVAL)?;
    let message =
        fill(state, Message { handle, ..Message::new(Op::SetattrHandle) }, Change::Size(size))?;
    call::plain(session, message)?;
    Ok(())
}

/// What the kernel refuses on every FUSE mount, without asking the service.
const NOT_BY_KERNEL: i32 = libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE;

/// `fallocate`.
pub(crate) fn fallocate(
    state: &'static State,
    fd: RawFd,
    flags: i32,
    offset: i64,
    len: i64,
) -> Outcome<()> {
    if flags & NOT_BY_KERNEL != 0 {
        hurry(state, fd)?;
    }
    // Linux looks at range and mode before it asks whether the file is open for writing.
    let range = (u64::try_from(offset), u64::try_from(len));
    let (Ok(offset), Ok(length @ 1..)) = range else {
        return resizable(state, fd, Errno::EINVAL).and(Err(Errno::EINVAL.into()));
    };
    if !is_known_mode(flags) {
        return resizable(state, fd, Errno::EOPNOTSUPP).and(Err(Errno::EOPNOTSUPP.into()));
    }
    let (session, handle) = resizable(state, fd, Errno::EBADF)?;
    if flags & libc::FALLOC_FL_KEEP_SIZE == 0 {
        limit::check_size(state, offset.saturating_add(length))?;
    }
    let flags = flags as u32;
    call::plain(session, Message { handle, flags, offset, length, ..Message::new(Op::Fallocate) })?;
    Ok(())
}

/// Whether fallocate(2) knows the mode.
fn is_known_mode(flags: i32) -> bool {
    let keeps = flags & libc::FALLOC_FL_KEEP_SIZE != 0;
    match flags & !libc::FALLOC_FL_KEEP_SIZE {
        0 | libc::FALLOC_FL_ZERO_RANGE => true,
        libc::FALLOC_FL_PUNCH_HOLE => keeps,
        libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE => !keeps,
        _ => false,
    }
}

/// `posix_fadvise`: the service caches by what is read, and the kernel must not fill pages of its
/// own, of which it would have to be told whenever the file is read or written.
pub(crate) fn advise(state: &'static State, fd: RawFd, len: i64, advice: i32) -> Outcome<()> {
    data_file(state, fd)?;
    let known = (libc::POSIX_FADV_NORMAL..=libc::POSIX_FADV_NOREUSE).contains(&advice);
    if known && len >= 0 { Ok(()) } else { Err(Errno::EINVAL.into()) }
}

/// `readahead`: as [`advise`].
pub(crate) fn read_ahead(state: &'static State, fd: RawFd) -> Outcome<()> {
    match data_file(state, fd)?.access_mode() {
        libc::O_WRONLY => Err(Errno::EBADF.into()),
        _ => Ok(()),
    }
}

/// The regular file of the lane that `fd` means, attached: its flags are known.
fn data_file(state: &'static State, fd: RawFd) -> Outcome<Pin> {
    let file = file::find(state, fd)?;
    if file.is(FileBits::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    file::usable(state, &file, fd)?;
    Ok(file)
}

/// `fsync`, `fdatasync`.
pub(crate) fn fsync(state: &'static State, fd: RawFd, data_only: bool) -> Outcome<()> {
    well_streamed(state, fd, ask_fsync(state, fd, data_only))
}

/// A sync that fails where what was streamed before was lost with its service, once.
fn well_streamed(state: &'static State, fd: RawFd, synced: Outcome<()>) -> Outcome<()> {
    let told = !matches!(synced, Err(Detour::Errno(_)));
    match told && file::lane_of(state, fd).is_some_and(take_lost) {
        true => Err(Errno::EIO.into()),
        false => synced,
    }
}

/// Whether something was streamed that was lost, of which no call has told yet.
fn take_lost(lane: &'static Lane) -> bool {
    lane.leases.take_lost(&lane.sessions, || _ = lane.await_next())
}

/// Whether something was streamed that no sync came after yet.
fn is_unsynced(state: &'static State) -> bool {
    let unsynced = |fields: &'static Fields| fields.lanes().any(|lane| lane.leases.is_unsynced());
    state.started().is_some_and(unsynced)
}

fn ask_fsync(state: &'static State, fd: RawFd, data_only: bool) -> Outcome<()> {
    // What the service refused of a stream is told by the library's way alone.
    if !is_unsynced(state) && file::is_synced_once(state, fd) {
        return Err(Detour::Kernel);
    }
    let file = file::find(state, fd)?;
    let (session, handle) = file::usable(state, &file, fd)?;
    let message = Message { handle, flags: data_only.into(), ..Message::new(Op::Fsync) };
    state.get().lane(session.lane).leases.syncs();
    call::plain(session, message)?;
    Ok(())
}

/// `sync`, of all lanes, whatever comes of one. `Kernel`: one cannot be asked.
pub(crate) fn sync(state: &'static State) -> Outcome<()> {
    namespace::any_lane()?;
    let mut all = Ok(());
    for lane in state.get().lanes() {
        let one = sync_lane(lane);
        if all.is_ok() || one == Err(Detour::Kernel) {
            all = one;
        }
    }
    all
}

fn sync_lane(lane: &'static Lane) -> Outcome<()> {
    // The kernel's own does not reach the service.
    lane.sessions.hurry();
    let synced = call::plain(lane.ready()?, Message::new(Op::Sync));
    if matches!(synced, Err(Detour::Errno(_))) {
        lane.leases.loses();
    }
    synced.map(drop)
}

/// `syncfs`, of a descriptor that the library may not have seen yet.
pub(crate) fn syncfs(state: &'static State, fd: RawFd) -> Outcome<()> {
    well_streamed(state, fd, ask_syncfs(state, fd))
}

fn ask_syncfs(state: &'static State, fd: RawFd) -> Outcome<()> {
    hurry(state, fd)?;
    let file = file::find(state, fd)?;
    let (session, _) = file::usable(state, &file, fd)?;
    call::plain(session, Message::new(Op::Sync))?;
    Ok(())
}

/// A regular file that is open for writing, and about to end elsewhere.
fn resizable(
    state: &'static State,
    fd: RawFd,
    otherwise: Errno,
) -> Outcome<(&'static Session, u64)> {
    let file = file::find(state, fd)?;
    if file.is(FileBits::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    let usable = file::usable(state, &file, fd)?;
    if file.access_mode() == libc::O_RDONLY {
        return Err(otherwise.into());
    }
    file.end_moves();
    Ok(usable)
}

fn fill(state: &'static State, mut message: Message, what: Change) -> Outcome<Message> {
    match what {
        Change::Mode(mode) => {
            message.arg[0] = SetWhat::PERM.bits();
            message.mode = mode & 0o7777;
        }
        Change::Owner(user, group) => {
            for (bit, place, id) in [(SetWhat::UID, 1, user), (SetWhat::GID, 2, group)] {
                if id != u32::MAX {
                    message.arg[0] |= bit.bits();
                    message.arg[place] = id.into();
                }
            }
        }
        Change::Size(size) => {
            message.arg[0] = SetWhat::SIZE.bits();
            message.length = u64::try_from(size).map_err(|_| Errno::EINVAL)?;
            limit::check_size(state, message.length)?;
        }
        Change::Times(atime, mtime) => {
            let bits = [(SetWhat::ATIME, SetWhat::ATIME_NOW), (SetWhat::MTIME, SetWhat::MTIME_NOW)];
            for (n, (stamp, (given, now))) in [atime, mtime].into_iter().zip(bits).enumerate() {
                match stamp {
                    Stamp::Keep => {}
                    Stamp::Now => message.arg[0] |= now.bits(),
                    Stamp::At(sec, nsec) => {
                        message.arg[0] |= given.bits();
                        message.time[2 * n] = sec as u64;
                        message.time[2 * n + 1] = nsec as u64;
                    }
                }
            }
        }
    }
    Ok(message)
}

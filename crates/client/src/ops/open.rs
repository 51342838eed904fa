//! open: a copy of a free slot's descriptor, and one request that finds, checks and binds the file.
//!
//! A directory is opened by the kernel. Where that was done before, the library keeps the kernel's
//! descriptor (`fd::directories`), and the request alone finds and checks it.

use std::os::fd::{IntoRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use polylane_base::Errno;
use polylane_ipc::message::{DIR_ROOT, MADE_IT, MAY_BE_DIR, Message, NO_SLOT, Op, Status};

use super::state::State;
use super::{file, path, process, share, stat};
use crate::fd::at::At;
use crate::fd::directories::Wanted;
use crate::fd::record::{FileBits, Record};
use crate::fd::rings;
use crate::fd::table::Pin;
use crate::kernel::FDS_MAX;
use crate::kernel::config::LaneNumber;
use crate::kernel::outcome::{Detour, Outcome};
use crate::kernel::real;
use crate::rights::handles::{self, Evicted};
use crate::rights::inline_data;
use crate::rights::lease::{NewFile, Says};
use crate::rights::lookup::Asked;
use crate::session::call;
use crate::session::{Session, boxes};

/// Opens that the kernel does: results that are neither regular files nor directories, and modes
/// that only it knows.
const KERNEL_FLAGS: i32 =
    libc::O_PATH | libc::O_TMPFILE & !libc::O_DIRECTORY | libc::O_ASYNC | libc::O_DIRECT;

/// Looks whether a process is made still, and the pause between them.
const LOOKS_MAX: u32 = 10_000;
const PAUSE: Duration = Duration::from_micros(100);

/// Flags that are the open's own and not reported by `F_GETFL`.
const CREATION_FLAGS: i32 =
    libc::O_CREAT | libc::O_EXCL | libc::O_NOCTTY | libc::O_TRUNC | libc::O_CLOEXEC;

/// `openat(2)`; `by_kernel` does the same by the kernel, for a directory that the service found.
pub(crate) fn open(
    state: &'static State,
    (dir, path): (RawFd, &[u8]),
    flags: i32,
    mode: u32,
    by_kernel: impl FnOnce() -> RawFd,
) -> Outcome<RawFd> {
    let (session, at) = path::at(state, dir, path)?;
    let lane = state.get().lane(session.lane);
    if flags & KERNEL_FLAGS != 0 || rings::any() {
        return Err(Detour::Kernel);
    }
    // Nothing is there to be followed, and nothing is to be made.
    let looks = flags & (libc::O_CREAT | libc::O_NOFOLLOW) == 0;
    if looks && stat::is_absent(state, session, &at) {
        return Err(Errno::ENOENT.into());
    }
    let asked = handles::question(&at, flags);
    if let Some(found) = look_for_dir(state, session, (&at, asked.as_ref()), flags) {
        return give_dir(state, session, asked.as_ref(), (found?, flags), by_kernel);
    }
    if let Some(fd) = asked.as_ref().and_then(|asked| reopen(state, session, asked, flags)) {
        return Ok(fd);
    }
    let (file, evicted) = prepare(state, session, flags)?;
    // What the stream binds to the slot needs it free.
    let evicted = evicted.filter(|_| flags & libc::O_CREAT == 0);
    let slot = file::slot(state, &file).ok_or(Detour::Kernel)?;
    let fd = copy(state, session.lane, slot.master(), flags & libc::O_CLOEXEC != 0)
        .map_err(|error| refused(&file, error))?;
    let umask = if flags & libc::O_CREAT != 0 { process::umask_now(state) } else { 0 };
    let new = NewFile { flags, perm: mode & 0o7777, umask, file: &file, slot: slot.number() };
    match make_leased(state, session, &at, &new) {
        Some(Ok(())) => {
            file.set(FileBits::MADE);
            share::share_late(state, &file);
            file::install(state, fd, file);
            return Ok(fd);
        }
        Some(Err(error)) => {
            real::close_quietly(fd);
            return Err(error);
        }
        None => lane.leases.meets(session),
    }
    match request(state, session, &at, &new, mode, asked.as_ref(), evicted) {
        Ok(Some(found)) => {
            // The slot is free again, and its number.
            real::close_quietly(fd);
            drop(file);
            give_dir(state, session, asked.as_ref(), (found, flags), by_kernel)
        }
        Ok(None) => {
            share::share_late(state, &file);
            file::install(state, fd, file);
            if flags & libc::O_CREAT != 0 {
                lane.leases.changed(session, &at, false);
            }
            Ok(fd)
        }
        Err(error) => {
            real::close_quietly(fd);
            let error = refused(&file, error);
            if looks && error == Errno::ENOENT.into() {
                stat::note_absent(state, session, &at);
            }
            Err(error)
        }
    }
}

/// Has the service open a file and bind it to its slot; or what it found, if that is a directory.
/// `evicted`: what is to be closed before.
fn request(
    state: &'static State,
    session: &'static Session,
    at: &At<'_>,
    new: &NewFile<'_>,
    mode: u32,
    asked: Option<&Asked<'_>>,
    evicted: Option<Evicted>,
) -> Outcome<Option<FoundDir>> {
    let (fields, file) = (state.get(), new.file);
    let handles = fields.lane(session.lane).handles();
    if at.dir != DIR_ROOT {
        fields.lane(session.lane).kernel.opened_below();
    }
    let locks = fields.has_locked.load(Ordering::Relaxed) != 0;
    let (flags, umask) = (new.flags as u32, new.umask);
    let mut message = Message { flags, mode, umask, ..Message::new(Op::Open) };
    message.arg[0] = new.slot.into();
    let wish = inline_data::wish(session, new.flags);
    message.arg[1] = wish.bytes;
    let in_row = wish.bytes > 0;
    let parks = asked.map(|asked| (asked, handles.wish(asked, new.flags, in_row, locks)));
    message.arg[2] = parks.as_ref().map_or(0, |(_, parks)| parks.arg);
    // Where nothing is sent, it is closed as it is dropped.
    let rested = move || evicted.map_or(0, Evicted::into_handle);
    let (reply, mark) = call::open(session, wish.place, message, (at.dir, at.path), rested)?;
    if let Some(attr) = reply.attr {
        return Ok(Some(FoundDir { handle: reply.handle, ino: attr.ino }));
    }
    if reply.status == Status::Done(MADE_IT) {
        file.set(FileBits::MADE);
    }
    file.handle.store(reply.handle, Ordering::Relaxed);
    file.session.store(session.number, Ordering::Release);
    inline_data::learn(session, file, wish.place, (&reply, mark));
    if let Some((asked, parks)) = parks {
        handles.learn(session, file, (asked, parks.once), &reply);
    }
    Ok(None)
}

/// A directory that the service has resolved a path to, and that the caller may read.
struct FoundDir {
    handle: u64,
    ino: u64,
}

/// Whether such an open is likely to give a directory whose descriptor is kept, or to be.
fn is_likely_dir(state: &'static State, session: &Session, asked: &Asked<'_>, flags: i32) -> bool {
    let lane = state.get().lane(session.lane);
    handles::may_be_dir(flags)
        && (lane.directories.expects(session, asked.hash)
            || flags & libc::O_DIRECTORY != 0 && lane.handles().came_before(asked))
}

/// Asks the service for a directory where such an open is likely to give one. `None`: the ordinary
/// way.
fn look_for_dir(
    state: &'static State,
    session: &'static Session,
    (at, asked): (&At<'_>, Option<&Asked<'_>>),
    flags: i32,
) -> Option<Outcome<FoundDir>> {
    let directory = flags & libc::O_DIRECTORY != 0;
    if !asked.is_some_and(|asked| is_likely_dir(state, session, asked, flags)) {
        return directory.then_some(Err(Detour::Kernel));
    }
    match find_dir(session, at, flags) {
        // It was one before.
        Err(Detour::Errno(Errno::ENOTDIR)) if !directory => None,
        found => Some(found),
    }
}

/// Asks the service for the directory that a path leads to.
fn find_dir(session: &'static Session, at: &At<'_>, flags: i32) -> Outcome<FoundDir> {
    let flags = (flags | libc::O_DIRECTORY) as u32;
    let mut message = Message { flags, ..Message::new(Op::Open) };
    (message.arg[0], message.arg[2]) = (NO_SLOT, MAY_BE_DIR);
    let reply = call::paths(session, message, (at.dir, at.path), (at.dir, b""))?;
    let attr = reply.attr.ok_or(Detour::Kernel)?;
    Ok(FoundDir { handle: reply.handle, ino: attr.ino })
}

/// The lowest free number for a directory: a copy of the kernel's descriptor that is kept, or one
/// that the kernel opens now. `Kernel`: it opens another one by the same path, or the copy might
/// be another process's, too.
fn give_dir(
    state: &'static State,
    session: &'static Session,
    asked: Option<&Asked<'_>>,
    (found, flags): (FoundDir, i32),
    by_kernel: impl FnOnce() -> RawFd,
) -> Outcome<RawFd> {
    let fields = state.get();
    let file = match fields.records().allocate(session.lane) {
        Some(file) => file,
        None => {
            // The message reaches no service only where the session is over.
            let close = Message { handle: found.handle, ..Message::new(Op::Close) };
            let _ = session.post(&close);
            return Err(Detour::Kernel);
        }
    };
    file.set(FileBits::DIRECTORY | FileBits::KERNEL_OFFSET);
    file.node.store(found.ino, Ordering::Relaxed);
    file.flags.store((flags & !CREATION_FLAGS) as u32 | LARGEFILE, Ordering::Relaxed);
    file.handle.store(found.handle, Ordering::Relaxed);
    // From here on dropping the record closes the handle.
    file.session.store(session.number, Ordering::Release);
    let hash = asked.map_or(0, |asked| asked.hash);
    let wanted = Wanted { session: session.number, ino: found.ino, flags, hash };
    let fd = match fields.lane(session.lane).directories.take(&wanted, &file) {
        Some(master) => copy(state, session.lane, master, flags & libc::O_CLOEXEC != 0)?,
        None => open_dir(state, &file, &wanted, by_kernel)?,
    };
    file::install(state, fd, file);
    Ok(fd)
}

/// Has the kernel open a directory, and keeps its descriptor.
fn open_dir(
    state: &'static State,
    file: &Record,
    wanted: &Wanted,
    by_kernel: impl FnOnce() -> RawFd,
) -> Outcome<RawFd> {
    let fields = state.get();
    let lane = fields.lane(file.lane());
    let before = fields.shares.load(Ordering::SeqCst);
    let fd = by_kernel();
    if fd < 0 {
        return Err(Detour::Kernel);
    }
    let is_it = real::kind_cached(fd).is_ok_and(|(device, kind, ino)| {
        kind == libc::S_IFDIR && ino == wanted.ino && lane.device() == Ok(device)
    });
    if !is_it || fd as usize >= FDS_MAX {
        real::close_quietly(fd);
        return Err(Detour::Kernel);
    }
    // Another thread is making a process, which may have a copy, or did so meanwhile.
    if fields.shares.load(Ordering::SeqCst) != before || fields.sharing.load(Ordering::SeqCst) > 0 {
        file.set(FileBits::COMMON);
    }
    lane.directories.keep(fd, wanted, file);
    Ok(fd)
}

/// Flags of opens that a lease can answer.
const LEASED_FLAGS: i32 = libc::O_ACCMODE
    | CREATION_FLAGS
    | libc::O_APPEND
    | libc::O_NOFOLLOW
    | libc::O_NONBLOCK
    | LARGEFILE as i32;

/// Makes the file under a lease, or says that it does not exist. `None`: the ordinary way.
fn make_leased(
    state: &'static State,
    session: &'static Session,
    at: &At<'_>,
    new: &NewFile<'_>,
) -> Option<Outcome<()>> {
    let create = new.flags & libc::O_CREAT != 0;
    if new.flags & !LEASED_FLAGS != 0 {
        return None;
    }
    let leases = &state.get().lane(session.lane).leases;
    let said = match leases.ask(session, at) {
        Says::Nothing if create && leases.enters_new(session, at) => leases.ask(session, at),
        said => said,
    };
    match said {
        Says::Absent(claim) if create => match claim.make(new) {
            Err(Detour::Kernel) => None,
            done => Some(done),
        },
        Says::Absent(_) => Some(Err(Errno::ENOENT.into())),
        Says::Exists if create && new.flags & libc::O_EXCL != 0 => Some(Err(Errno::EEXIST.into())),
        Says::Exists | Says::Nothing => None,
    }
}

/// A record that owns a slot, and the file that was parked there and is to be closed before. It is
/// complete before the request is sent, so that a fork in another thread finds it.
fn prepare(
    state: &'static State,
    session: &'static Session,
    flags: i32,
) -> Outcome<(Pin, Option<Evicted>)> {
    let fields = state.get();
    let slot = fields.lane(session.lane).handles().take_slot(session, flags)?;
    let file = fields.records().allocate(session.lane).ok_or(Detour::Kernel)?;
    file.flags.store((flags & !CREATION_FLAGS) as u32 | LARGEFILE, Ordering::Relaxed);
    let (index, evicted) = slot.keep();
    file.slot.store(index + 1, Ordering::Release);
    Ok((file, evicted))
}

/// Opens a parked file. Where that cannot be done it is parked again, and the ordinary way says
/// why.
fn reopen(
    state: &'static State,
    session: &'static Session,
    asked: &Asked<'_>,
    flags: i32,
) -> Option<RawFd> {
    let lane = state.get().lane(session.lane);
    let file = lane.handles().again(session, asked, flags)?;
    lane.leases.meets(session);
    let master = file::slot(state, &file)?.master();
    let fd = copy(state, session.lane, master, flags & libc::O_CLOEXEC != 0).ok()?;
    share::share_late(state, &file);
    file::install(state, fd, file);
    Some(fd)
}

/// The lowest free number as a copy of a master. `Kernel` while another thread makes a process,
/// which may get it and does not say so. The master is a record's by now.
fn copy(
    state: &'static State,
    lane: LaneNumber,
    master: RawFd,
    close_on_exec: bool,
) -> Outcome<RawFd> {
    fence(Ordering::SeqCst);
    let is_sharing = || state.get().sharing.load(Ordering::Relaxed) > 0;
    // A client that asks the next service what became of an open cannot ask the kernel, which knows
    // no more.
    let mut looks = if boxes::is_asked_again(lane) { LOOKS_MAX } else { 0 };
    while is_sharing() && looks > 0 {
        polylane_sys::sched::pause(PAUSE);
        looks -= 1;
    }
    if is_sharing() {
        return Err(Detour::Kernel);
    }
    let master = real::borrow(master);
    let copy = match close_on_exec {
        true => rustix::io::fcntl_dupfd_cloexec(master, 0),
        false => rustix::io::dup(master),
    };
    match copy.map(IntoRawFd::into_raw_fd) {
        Ok(fd) if (fd as usize) < FDS_MAX => Ok(fd),
        Ok(fd) => {
            real::close_quietly(fd);
            Err(Detour::Kernel)
        }
        // Our own spare descriptors are the first to go.
        Err(rustix::io::Errno::MFILE) if state.get().shed() => Err(Detour::Kernel),
        Err(error) => Err(error.into()),
    }
}

/// `O_LARGEFILE` as the kernel reports it; libc's own constant is 0 on 64-bit machines.
pub(crate) const LARGEFILE: u32 = 0o100000;

/// A slot that the service calls busy is in other hands (a second open through /proc, a foreign
/// copy); one without a master was closed past our hooks. Neither can be used again.
fn refused(file: &Record, error: Detour) -> Detour {
    if matches!(error, Detour::Errno(Errno::EBUSY | Errno::EBADF)) {
        file.set(FileBits::ESCAPED);
        return Detour::Kernel;
    }
    error
}

//! read and write in all their forms.
//!
//! The bytes of one call lie in one or several places ([`Sinks`], [`Sources`]); what differs
//! between the calls is only where the offset comes from.

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use polylane_base::Errno;
use polylane_ipc::message::{Message, Op, Reply, TransferFlags};
use polylane_ipc::view::FRAME_BYTES;

use super::state::State;
use super::{file, limit, offset, own, retry};
use crate::fd;
use crate::fd::record::FileBits;
use crate::fd::rings;
use crate::fd::table::Pin;
use crate::kernel::outcome::{Detour, Outcome};
use crate::rights::inline_data;
use crate::rights::view;
use crate::session::{Session, call};

/// Most bytes of one call, as the kernel's `MAX_RW_COUNT`.
const RW_BYTES_MAX: usize = 0x7fff_f000;

/// Most places of one call that is handled here; more go to the kernel (which allows 1024).
pub(crate) const PLACES_MAX: usize = 64;
/// Places to fill, in order.
pub(crate) type Sinks<'a, 'b> = &'a mut [&'b mut [u8]];
/// Places to take from, in order.
pub(crate) type Sources<'a, 'b> = &'a [&'b [u8]];

/// Where a call finds its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Position {
    /// The file's own, which moves.
    Own,
    /// This one.
    At(u64),
}

impl Position {
    /// As `pread` takes it: not negative.
    pub(crate) fn at(offset: i64) -> Outcome<Position> {
        u64::try_from(offset).map(Position::At).map_err(|_| Errno::EINVAL.into())
    }
}

/// A file open for a request.
struct Open<'a> {
    state: &'static State,
    file: &'a Pin,
    fd: RawFd,
    session: &'static Session,
    handle: u64,
    /// What the service is to be told of its status flags with a write.
    status: TransferFlags,
}

/// `pread`. What is shown is read in the hook itself: a call would cost as much as the look-up.
#[inline(always)]
pub(crate) fn read_one(
    state: &'static State,
    fd: RawFd,
    into: &mut [u8],
    offset: i64,
) -> Outcome<usize> {
    match u64::try_from(offset).ok().and_then(|offset| read_shown(state, fd, offset, into)) {
        Some(count) => Ok(count),
        None => read(state, fd, &mut [into], Position::at(offset)?),
    }
}

/// `read`, `readv`, `preadv`.
#[inline(never)]
pub(crate) fn read(
    state: &'static State,
    fd: RawFd,
    into: Sinks<'_, '_>,
    position: Position,
) -> Outcome<usize> {
    let file = file::find(state, fd)?;
    let done = open(state, &file, fd, libc::O_WRONLY).and_then(|open| match position {
        Position::At(offset) => open.read_at(offset, into),
        Position::Own => open.read(into),
    });
    file::or_kernel(state, &file, done)
}

/// Reads at an offset what is shown.
#[inline(always)]
fn read_shown(state: &'static State, fd: RawFd, offset: u64, into: &mut [u8]) -> Option<usize> {
    check_end(offset, into.len()).ok()?;
    let file = file::glance(state, fd)?;
    let readable = file.access_mode() != libc::O_WRONLY;
    view::read_glanced(state.get().session_of(&file).filter(|_| readable)?, &file, offset, into)
}

/// `pwrite`, as [`read_one`].
#[inline(always)]
pub(crate) fn write_one(
    state: &'static State,
    fd: RawFd,
    from: &[u8],
    offset: i64,
) -> Outcome<usize> {
    match u64::try_from(offset).ok().and_then(|offset| write_shown(state, fd, offset, from)) {
        Some(_) => Ok(from.len()),
        None => write(state, fd, &[from], Position::at(offset)?),
    }
}

/// `write`, `writev`, `pwritev`.
#[inline(never)]
pub(crate) fn write(
    state: &'static State,
    fd: RawFd,
    from: Sources<'_, '_>,
    position: Position,
) -> Outcome<usize> {
    let file = file::find(state, fd)?;
    let done = open(state, &file, fd, libc::O_RDONLY).and_then(|open| match position {
        Position::At(offset) => {
            file.end_moves();
            open.write_at(offset, from).map(|(count, end)| {
                if rings::any() {
                    rings::written(fd, end);
                }
                count
            })
        }
        Position::Own => open.write(from).inspect(|_| {
            if rings::any()
                && let Ok(end) = offset::advance(fd, 0)
            {
                rings::written(fd, end);
            }
        }),
    });
    file::or_kernel(state, &file, done)
}

/// `pwritev2` with `RWF_APPEND` (`at_end`) or `RWF_NOAPPEND`. What one request cannot carry is the
/// kernel's, on the file's own node.
pub(crate) fn write_placed(
    state: &'static State,
    fd: RawFd,
    from: Sources<'_, '_>,
    position: Position,
    at_end: bool,
) -> Outcome<usize> {
    let file = file::find(state, fd)?;
    let done = open(state, &file, fd, libc::O_RDONLY).and_then(|open| {
        let total: usize = from.iter().map(|source| source.len()).sum();
        if total == 0
            || total > open.session.channel.buffer_bytes()
            || limit::is_set_for(state, total)
        {
            return Err(Detour::Kernel);
        }
        file.meet();
        file.end_moves();
        let _guard = file.offset_lock.lock();
        let (at, flag) = match (position, at_end) {
            (_, true) => (0, TransferFlags::AT_END),
            (Position::At(at), false) => (at, TransferFlags::AT_OFFSET),
            (Position::Own, false) => {
                (offset::given_or_current(&file, fd, None)?, TransferFlags::AT_OFFSET)
            }
        };
        check_end(at, total)?;
        let (count, end) = open.write_placed((at, flag), from, total)?;
        if position == Position::Own {
            offset::store(&file, fd, end)?;
        }
        Ok(count)
    });
    if done == Err(Detour::Kernel) {
        own::settle_fd(state, fd);
    }
    done
}

/// Writes at an offset where it is lent, and nobody else is to be told.
#[inline(always)]
fn write_shown(state: &'static State, fd: RawFd, offset: u64, from: &[u8]) -> Option<u64> {
    let file = file::glance(state, fd)?;
    let fits = file.access_mode() != libc::O_RDONLY
        && !file.appends()
        && !file.is(FileBits::COMMON)
        && !file.is_streamed()
        && !limit::is_set(state)
        && !rings::any();
    view::write_glanced(state.get().session_of(&file).filter(|_| fits)?, &file, offset, from)
}

/// No call reaches past the last offset that there can be, however little there is to be read.
#[inline]
fn check_end(at: u64, total: usize) -> Outcome<()> {
    match at.checked_add(total as u64) {
        Some(end) if end <= i64::MAX as u64 => Ok(()),
        _ => Err(Errno::EINVAL.into()),
    }
}

/// Looks whether the file can be used this way.
fn open<'a>(state: &'static State, file: &'a Pin, fd: RawFd, wrong_mode: i32) -> Outcome<Open<'a>> {
    if file.is(FileBits::DIRECTORY) {
        return Err(Detour::Kernel);
    }
    let (session, handle) = file::usable(state, file, fd)?;
    if file.access_mode() == wrong_mode {
        return Err(Errno::EBADF.into());
    }
    let status = match wrong_mode {
        libc::O_RDONLY => fd::file::status_now(file, fd)?,
        _ => TransferFlags::empty(),
    };
    Ok(Open { state, file, fd, session, handle, status })
}

/// How much of `left` bytes at `start` a request of `room` takes: all, or up to a page's end.
fn whole_pages(start: u64, room: usize, left: usize) -> usize {
    let beyond = ((start + room as u64) % FRAME_BYTES as u64) as usize;
    if room < left && beyond < room { room - beyond } else { room }
}

/// The parts of sources in which `len` bytes after the first `skip` lie; how many they are.
fn cut<'a>(
    from: &[&'a [u8]],
    (mut skip, mut len): (usize, usize),
    parts: &mut [&'a [u8]; PLACES_MAX],
) -> usize {
    let mut count = 0;
    for source in from {
        let passed = skip.min(source.len());
        let part = &source[passed..][..len.min(source.len() - passed)];
        (skip, len) = (skip - passed, len - part.len());
        if let Some(place) = parts.get_mut(count).filter(|_| !part.is_empty()) {
            *place = part;
            count += 1;
        }
    }
    count
}

/// As [`cut`], of places to fill.
fn cut_sinks<'a>(
    into: &'a mut [&mut [u8]],
    (mut skip, mut len): (usize, usize),
    parts: &mut [&'a mut [u8]; PLACES_MAX],
) -> usize {
    let mut count = 0;
    for sink in into {
        let passed = skip.min(sink.len());
        let part = &mut sink[passed..];
        let taken = len.min(part.len());
        (skip, len) = (skip - passed, len - taken);
        if let Some(place) = parts.get_mut(count).filter(|_| taken > 0) {
            *place = &mut part[..taken];
            count += 1;
        }
    }
    count
}

/// Room for what [`cut_sinks`] finds.
fn no_parts<'a>() -> [&'a mut [u8]; PLACES_MAX] {
    std::array::from_fn(|_| &mut [][..])
}

impl Open<'_> {
    fn read(&self, into: Sinks<'_, '_>) -> Outcome<usize> {
        let _guard = self.file.offset_lock.lock();
        if self.file.is(FileBits::KERNEL_OFFSET) {
            return self.read_shared(into);
        }
        let at = self.file.offset.load(Ordering::Relaxed);
        let count = self.read_at(at, into)?;
        if count > 0 {
            self.file.leaves_end();
            self.file.offset.store(at + count as u64, Ordering::Relaxed);
        }
        Ok(count)
    }

    /// Reads where the kernel's position is, then claims the bytes. Where another process was
    /// faster, what was claimed is read again from its right place.
    fn read_shared(&self, into: Sinks<'_, '_>) -> Outcome<usize> {
        let at = offset::advance(self.fd, 0)?;
        let count = self.read_at(at, into)?;
        if count == 0 {
            return Ok(0);
        }
        let claimed = offset::advance(self.fd, count as i64)?;
        if claimed == at {
            return Ok(count);
        }
        let again = self.read_limited(claimed, into, count)?;
        offset::advance(self.fd, again as i64 - count as i64)?;
        Ok(again)
    }

    /// Reads at most `most` bytes.
    #[inline(never)]
    fn read_limited(&self, at: u64, into: Sinks<'_, '_>, most: usize) -> Outcome<usize> {
        let mut parts = no_parts();
        let count = cut_sinks(into, (0, most), &mut parts);
        self.read_at(at, &mut parts[..count])
    }

    fn read_at(&self, at: u64, into: Sinks<'_, '_>) -> Outcome<usize> {
        let total: usize = into.iter().map(|sink| sink.len()).sum();
        check_end(at, total)?;
        let room = self.session.channel.buffer_bytes();
        match into {
            [sink] if total <= room => self.read_message(at, sink),
            _ if total <= room => self.read_scattered(at, into, total),
            _ => self.read_long(at, into, total),
        }
    }

    fn read_scattered(&self, offset: u64, into: Sinks<'_, '_>, total: usize) -> Outcome<usize> {
        let (handle, length) = (self.handle, total as u64);
        let message = Message { handle, offset, length, ..Message::new(Op::Read) };
        call::scatter(self.session, &message, into)
    }

    /// Request by request, until one falls short. Each ends where a page of the file does: a write
    /// that is still on its way, whose writer was stopped or killed, may be done between two of
    /// them. An error after the first bytes is reported by the next call.
    #[inline(never)]
    fn read_long(&self, at: u64, into: Sinks<'_, '_>, total: usize) -> Outcome<usize> {
        let (room, most) = (self.session.channel.buffer_bytes(), total.min(RW_BYTES_MAX));
        let mut done = 0;
        while done < most {
            let start = at + done as u64;
            let want = whole_pages(start, room.min(most - done), most - done);
            let mut parts = no_parts();
            let count = cut_sinks(into, (done, want), &mut parts);
            let read = match &mut parts[..count] {
                [part] => self.read_message(start, part),
                parts => self.read_scattered(start, parts, want),
            };
            let count = match read {
                Ok(count) => count,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            done += count;
            if count < want {
                break;
            }
        }
        Ok(done)
    }

    #[inline]
    fn read_message(&self, offset: u64, into: &mut [u8]) -> Outcome<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if let Some(count) = view::read(self.session, self.file, offset, into) {
            return Ok(count);
        }
        if let Some(count) = inline_data::read(self.session, self.file, offset, into) {
            return Ok(count);
        }
        let wish = view::wish_to_read(self.file, into.len());
        let (handle, length, flags) = (self.handle, into.len() as u64, wish.bits());
        let message = Message { handle, offset, length, flags, ..Message::new(Op::Read) };
        let reply = call::read(self.session, &message, into)?;
        let count = call::count(&reply).min(into.len());
        if offset == 0 {
            inline_data::missed(self.file, count);
        }
        view::learn(self.session, self.file, wish, reply.handle);
        Ok(count)
    }

    fn write(&self, from: Sources<'_, '_>) -> Outcome<usize> {
        let _guard = self.file.offset_lock.lock();
        let kernel = self.file.is(FileBits::KERNEL_OFFSET);
        if self.file.appends() {
            let (count, end) = self.write_at(0, from)?;
            match kernel {
                _ if count == 0 => {}
                true => offset::set(self.fd, end)?,
                false => self.file.offset.store(end, Ordering::Relaxed),
            }
            return Ok(count);
        }
        if kernel {
            return self.write_shared(from);
        }
        let at = self.file.offset.load(Ordering::Relaxed);
        let (count, _) = self.write_at(at, from)?;
        self.file.offset.store(at + count as u64, Ordering::Relaxed);
        Ok(count)
    }

    /// Reserves the range in the kernel's position first, and gives back what was not written.
    fn write_shared(&self, from: Sources<'_, '_>) -> Outcome<usize> {
        let total: usize = from.iter().map(|source| source.len()).sum();
        let total = total.min(RW_BYTES_MAX) as i64;
        let at = offset::advance(self.fd, total)?;
        let done = self.write_at(at, from);
        let count = done.as_ref().map_or(0, |(count, _)| *count as i64);
        if count != total {
            offset::advance(self.fd, count - total)?;
        }
        done.map(|(count, _)| count)
    }

    /// Bytes written, and the offset after the last one.
    fn write_at(&self, at: u64, from: Sources<'_, '_>) -> Outcome<(usize, u64)> {
        let total: usize = from.iter().map(|source| source.len()).sum();
        if total == 0 {
            return Ok((0, at));
        }
        check_end(at, total)?;
        if limit::is_set_for(self.state, total) {
            return self.write_limited(at, from, total);
        }
        self.write_all(at, from, total)
    }

    fn write_all(&self, at: u64, from: Sources<'_, '_>, total: usize) -> Outcome<(usize, u64)> {
        let room = self.session.channel.buffer_bytes();
        let place = (!self.file.appends()).then_some(at);
        let leases = &self.state.get().lane(self.session.lane).leases;
        if let [source] = from
            && let Some(end) = leases.write(self.session, self.file, place, source)
        {
            return Ok((total, end));
        }
        if place.is_none() {
            self.file.leaves_end();
        }
        if let [source] = from
            && let Some(end) = view::write(self.session, self.file, place, source)
        {
            return Ok((total, end));
        }
        if let ([source], Some(at)) = (from, place)
            && let done @ 1.. = leases.write_in_parts(self.session, self.file, at, source)
        {
            // An error after the first bytes is reported by the next call.
            let rest = self.write_message(at + done as u64, &source[done..]).unwrap_or_default();
            return Ok((done + rest.0, at + (done + rest.0) as u64));
        }
        match from {
            [source] if total <= room => self.write_message(at, source),
            _ if total <= room => self.write_gathered(at, from, total),
            _ if place.is_none() => self.append_long(),
            _ => self.write_long(at, from, total),
        }
    }

    /// Appends more than a request carries: by the kernel, on the file's own node, where all who do
    /// so take turns. Nobody else's long append comes to lie in between.
    #[cold]
    fn append_long(&self) -> Outcome<(usize, u64)> {
        own::settle(self.state, self.file)?;
        Err(Detour::Kernel)
    }

    /// Under `RLIMIT_FSIZE`. Where an append will land is known to the service only; the size now
    /// is the best that can be had without its lock.
    #[cold]
    fn write_limited(&self, at: u64, from: Sources<'_, '_>, total: usize) -> Outcome<(usize, u64)> {
        let start = match self.file.appends() {
            true => offset::size(self.state, self.file, self.fd)? as u64,
            false => at,
        };
        let allowed = limit::cap(self.state, start, total)?;
        if allowed == total {
            return self.write_all(at, from, total);
        }
        self.write_long(start, from, allowed)
    }

    /// The first `most` bytes, request by request, until one falls short. Each request ends where a
    /// page of the file does: whoever is killed in between leaves no page half old and half new.
    fn write_long(&self, at: u64, from: Sources<'_, '_>, most: usize) -> Outcome<(usize, u64)> {
        let (room, most) = (self.session.channel.buffer_bytes(), most.min(RW_BYTES_MAX));
        let (mut done, mut end) = (0, at);
        while done < most {
            let start = at + done as u64;
            let want = whole_pages(start, room.min(most - done), most - done);
            let mut parts = [&[][..]; PLACES_MAX];
            let count = cut(from, (done, want), &mut parts);
            let written = match &parts[..count] {
                [part] => self.write_message(start, part),
                parts => self.write_gathered(start, parts, want),
            };
            let (count, after) = match written {
                Ok(written) => written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            (done, end) = (done + count, after);
            if count < want {
                break;
            }
        }
        Ok((done, end))
    }

    fn write_gathered(
        &self,
        offset: u64,
        from: Sources<'_, '_>,
        total: usize,
    ) -> Outcome<(usize, u64)> {
        let reply = self.put(|session, handle, turn| {
            let (length, flags) = (total as u64, self.status.bits());
            let message =
                Message { handle, offset, length, turn, flags, ..Message::new(Op::Write) };
            call::gather(session, &message, from)
        })?;
        Ok((call::count(&reply).min(total), reply.value[0]))
    }

    /// Writes at the end, or at an offset, whatever the open file does otherwise.
    fn write_placed(
        &self,
        (at, flag): (u64, TransferFlags),
        from: Sources<'_, '_>,
        total: usize,
    ) -> Outcome<(usize, u64)> {
        let reply = self.put(|session, handle, turn| {
            let (offset, length) = (at, total as u64);
            let flags = (self.status | flag).bits();
            let message =
                Message { handle, offset, length, turn, flags, ..Message::new(Op::Write) };
            call::gather(session, &message, from)
        })?;
        Ok((call::count(&reply).min(total), reply.value[0]))
    }

    /// Sends a write. One that appends is repeated here when the service dies, as the piece that it
    /// is: what was written before it counts.
    #[inline]
    fn put(
        &self,
        mut send: impl FnMut(&'static Session, u64, u32) -> Outcome<Reply>,
    ) -> Outcome<Reply> {
        if !self.file.appends() {
            return send(self.session, self.handle, 0);
        }
        let mut first = true;
        Ok(retry::once(self.state, &mut || {
            let (session, handle) = match std::mem::take(&mut first) {
                true => (self.session, self.handle),
                false => file::usable(self.state, self.file, self.fd)?,
            };
            send(session, handle, session.sessions().turn())
        })?)
    }

    /// One payload buffer at most. A large one may be served in part when this thread is stopped
    /// while it copies; the rest follows, so that a write is short for the service's own reasons
    /// only.
    fn write_message(&self, at: u64, from: &[u8]) -> Outcome<(usize, u64)> {
        let (mut done, mut end) = (0, at);
        while done < from.len() {
            let (at, left) = (at + done as u64, &from[done..]);
            let (count, after) = match self.write_once(at, left) {
                Ok(written) => written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            (done, end) = (done + count, after);
            if count == 0 {
                break;
            }
        }
        Ok((done, end))
    }

    #[inline]
    fn write_once(&self, at: u64, from: &[u8]) -> Outcome<(usize, u64)> {
        let overlap = !self.file.appends();
        let (length, wish) = (from.len() as u64, view::wish_to_write(self.file, from.len()));
        let reply = self.put(|session, handle, turn| {
            let flags = (wish | self.status).bits();
            let message =
                Message { handle, offset: at, length, turn, flags, ..Message::new(Op::Write) };
            call::write(session, &message, from, overlap)
        })?;
        if !self.session.is_lost() {
            view::learn(self.session, self.file, wish, reply.handle);
        }
        Ok((call::count(&reply).min(from.len()), reply.value[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_reads_are_cut_where_pages_end_and_nothing_is_left_out() {
        let bytes: Vec<u8> = (0..40_000_u32).map(|n| (n % 251) as u8).collect();
        for (start, room) in [(0, 8192), (100, 8192), (4095, 16384), (12_288, 4096), (1000, 9000)] {
            for places in [1, 3, 7, PLACES_MAX] {
                let mut read = vec![0; bytes.len()];
                let mut into: Vec<&mut [u8]> =
                    read.chunks_mut(bytes.len().div_ceil(places)).collect();
                let mut done = 0;
                while done < bytes.len() {
                    let left = bytes.len() - done;
                    let want = whole_pages(start + done as u64, room.min(left), left);
                    let mut parts = no_parts();
                    let count = cut_sinks(&mut into, (done, want), &mut parts);
                    for part in &mut parts[..count] {
                        part.copy_from_slice(&bytes[done..][..part.len()]);
                        done += part.len();
                    }
                    let end = start + done as u64;
                    assert!(end.is_multiple_of(FRAME_BYTES as u64) || done == bytes.len());
                }
                assert!(read == bytes, "{start} {room} {places}");
            }
        }
    }

    #[test]
    fn long_writes_are_cut_where_pages_end_and_nothing_is_left_out() {
        let bytes: Vec<u8> = (0..40_000_u32).map(|n| (n % 251) as u8).collect();
        for (start, room) in [(0, 8192), (100, 8192), (4095, 16384), (12_288, 4096), (5, 100)] {
            for places in [1, 3, 7, PLACES_MAX] {
                let from: Vec<&[u8]> = bytes.chunks(bytes.len().div_ceil(places)).collect();
                let (mut at, mut written) = (start, Vec::new());
                while written.len() < bytes.len() {
                    let left = bytes.len() - written.len();
                    let want = whole_pages(at, room.min(left), left);
                    let mut parts = [&[][..]; PLACES_MAX];
                    let count = cut(&from, (written.len(), want), &mut parts);
                    let piece = parts[..count].concat();
                    at += piece.len() as u64;
                    let ends = at.is_multiple_of(FRAME_BYTES as u64) || piece.len() == left;
                    assert!(piece.len() == want && want <= room && (ends || room < FRAME_BYTES));
                    written.extend(piece);
                }
                assert!(written == bytes, "{start} {room} {places}");
            }
        }
    }
}

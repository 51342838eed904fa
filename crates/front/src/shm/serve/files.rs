//! Open files: open and close, data, handles and slots.

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::Ordering;
use polylane_base::{Errno, Result};
use polylane_ipc::ioctl::UNFLAGGED;
use polylane_ipc::message::{EXPOSED_MAX, MADE_IT, NO_SLOT, Reply, Status};
use polylane_vfs::fs::SeekFor;
use polylane_vfs::{Kind, LockFamily, Mark, Node, OpenFile, synchronous};

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use super::oplocks::left_to_kernel;
use super::payload::{In, Out};
use super::syncs;
use super::{Answer, Call, Failure, done, with_attr};
use crate::lane::notifier::Range;
use crate::lane::tag::Moment;
use crate::lane::tickets::{Ticket, TicketSlot};
use crate::shm::files::Open;
use crate::shm::request::{At, Brings, Handle, HowToWrite, ShowRead};
use crate::shm::rights::Wish;
use crate::shm::rights::lookup;

/// Most bytes copied by one request, so that a helper comes back to others; the caller goes on.
const COPY_BYTES_MAX: u64 = 64 << 20;

/// Flags of an open file that may rest: those that change nothing, or that the client tells apart.
/// `O_RDONLY` is none, `O_WRONLY` not among them.
const REST_FLAGS: i32 = libc::O_RDWR
    | libc::O_APPEND
    | libc::O_CLOEXEC
    | libc::O_NOFOLLOW
    | libc::O_NONBLOCK
    | libc::O_NOCTTY
    | LARGEFILE;
/// Flags of an open of a directory that a client may be answered. `O_RDONLY` is none.
const DIR_FLAGS: i32 = libc::O_DIRECTORY
    | libc::O_CLOEXEC
    | libc::O_NOFOLLOW
    | libc::O_NONBLOCK
    | libc::O_NOCTTY
    | LARGEFILE;
/// `O_LARGEFILE` of programs; libc's own constant is 0 on 64-bit machines.
const LARGEFILE: i32 = 0o100_000;

impl Call<'_> {
    pub(super) fn open(
        &mut self,
        at: At<'_>,
        flags: i32,
        (perm, umask): (u32, u32),
        (slot, brings): (Option<u32>, Brings),
    ) -> Answer {
        let may_be_dir = brings.may_be_dir && flags & !DIR_FLAGS == 0;
        if is_for_kernel(flags) && !may_be_dir {
            return Err(Failure::UseKernel);
        }
        if let Some(number) = slot {
            // Before anything is created: the client repeats a refused open through the kernel.
            self.session.connection.slots.check_free(number)?;
        }
        let start = self.start(at)?;
        if flags & libc::O_TRUNC != 0 && flags & libc::O_EXCL == 0 {
            self.before_truncation(&start, at.path, flags)?;
        }
        let rests = brings.may_rest && self.may_rest(flags);
        let (file, mark) = match rests {
            true => self.open_marked((&start, at.path), flags)?,
            false => {
                let (vfs, ctx) = (self.vfs(), self.ctx());
                let opened = vfs.open_path(&ctx, &start, at.path, flags, perm, umask);
                (opened.map_err(left_to_kernel)?, None)
            }
        };
        match file.node().kind() {
            Kind::File => {}
            Kind::Dir if may_be_dir => return self.hold_dir(file),
            _ => return Err(Failure::UseKernel),
        }
        if flags & libc::O_TRUNC != 0 {
            self.changed(file.node(), Range::ALL);
        }
        // No state: a reply without it is one cache line instead of three, and few who open ask.
        let handle = self.hold(file.clone(), slot)?;
        let made = Status::Done(if file.made_it() { MADE_IT } else { 0 });
        let mut reply = Reply { handle: handle.to_wire(), ..Reply::new(made) };
        if let Some(mark) = mark {
            self.let_rest(handle, &file, mark, &mut reply);
        }
        if brings.bytes > 0 && self.can_show() {
            self.bring(handle, &file, brings, &mut reply);
        }
        if brings.first && self.session.rights().is_on_loan(handle) {
            // Its close ends the loan: what was noted of its reads does not wait for another open.
            let [_, _, rest @ .., _, _] = &mut reply.value;
            *rest = [0; 4];
        }
        Ok(reply)
    }

    /// Whether a file that is opened so may rest after its close: it is read, and the process has
    /// never had POSIX locks, which a close gives up.
    fn may_rest(&self, flags: i32) -> bool {
        flags & !REST_FLAGS == 0
            && self.can_show()
            && !self.session.connection.process.locks.load(Ordering::SeqCst)
    }

    /// Opens what is there, with the mark of what the path leads to.
    fn open_marked(
        &self,
        path: (&Node, &[u8]),
        flags: i32,
    ) -> Result<(Arc<OpenFile>, Option<Mark>), Failure> {
        let (vfs, ctx, follow) = (self.vfs(), self.ctx(), flags & libc::O_NOFOLLOW == 0);
        let open = |node: &Node, _| vfs.open(&ctx, node, flags);
        let (file, mark) = vfs.resolve_marked(&ctx, path, follow, open);
        Ok((file.map_err(left_to_kernel)?, mark))
    }

    /// Lets an open file rest, as long as its mark holds.
    fn let_rest(&self, handle: Handle, file: &OpenFile, mark: Mark, reply: &mut Reply) {
        if let Some((view, number)) = self.session.rights().let_park(handle, file) {
            let [places, sum, ..] = lookup::values(Some(mark));
            let [_, _, values @ .., _, _] = &mut reply.value;
            *values = [places, sum, number, u64::from(view) + 1];
        }
    }

    /// Has the answer to an open bring all of a small file along, with the state at which it
    /// counts; nothing where that takes more than a copy.
    fn bring(&mut self, handle: Handle, file: &OpenFile, brings: Brings, reply: &mut Reply) {
        let Brings { bytes, first, .. } = brings;
        let readable = file.flags() & libc::O_ACCMODE != libc::O_WRONLY;
        if !readable || !file.ends_by(bytes as u64) || file.ends_by(0) {
            return;
        }
        let mut brought = None;
        let bring = || {
            let mut sink = Out(self.session.connection.channel.read_pipe(self.mailbox, bytes));
            // What cannot be read is not brought; the read says why.
            brought = file.peek(&self.ctx(), 0, bytes, &mut sink).ok();
            brought.is_some()
        };
        let Some(opened) = self.session.rights().show_opened((handle, first), file, bring) else {
            return;
        };
        (reply.value[0], reply.value[1]) = (u64::from(opened.view) + 1, opened.sequence.into());
        if let Some(count) = brought {
            self.stats.read(count);
            reply.status = done(count).status;
        }
    }

    /// What programs stored through mappings of the file comes back before the file is cut: pages
    /// that the kernel wrote back later would make it long again. A path that does not resolve has
    /// no pages.
    fn before_truncation(&self, start: &Node, path: &[u8], flags: i32) -> Result<(), Failure> {
        let follow = flags & libc::O_NOFOLLOW == 0;
        match self.vfs().resolve(&self.ctx(), start, path, follow) {
            Ok(node) => {
                self.before_cut(&node, 0)?;
                self.before_io(&node, Range::ALL)
            }
            Err(_) => Ok(()),
        }
    }

    /// Gives an open file a handle and binds it to a slot.
    fn hold(&self, file: Arc<OpenFile>, slot: Option<u32>) -> Result<Handle> {
        if let Some(number) = slot {
            self.session.connection.slots.bind(number, file.clone())?;
        }
        let handle = self.session.files.add(Open::File { file, slot, view: None });
        if let (Err(_), Some(number)) = (handle, slot) {
            self.session.connection.slots.unbind(number)?;
        }
        handle
    }

    /// Gives an open directory a handle, which goes with a descriptor of the kernel's.
    fn hold_dir(&self, file: Arc<OpenFile>) -> Answer {
        let attr = self.vfs().getattr(&self.ctx(), file.node())?;
        let dir = Open::Dir { node: file.node().clone(), listing: Some(file) };
        let handle = self.session.files.add(dir)?.to_wire();
        Ok(Reply { handle, ..with_attr(&attr) })
    }

    pub(super) fn close(&mut self, handle: Handle, at_rest: bool) -> Answer {
        let mut reply = done(0);
        reply.value[0] = self.session.rights().close(handle, at_rest)?.into();
        Ok(reply)
    }

    pub(super) fn read(
        &mut self,
        (handle, show): (Handle, ShowRead),
        offset: u64,
        len: usize,
    ) -> Answer {
        let file = self.session.files.file(handle)?;
        self.before_io(file.node(), Range { offset, len: len as u64 })?;
        let mut sink = Out(self.session.connection.channel.read_pipe(self.mailbox, len));
        let count = file.read(&self.ctx(), offset, len, &mut sink)?;
        self.stats.read(count);
        let mut reply = done(count);
        let wish = Wish { handle, offset, len: count as u64 };
        reply.handle = match show {
            ShowRead::Pages { found } if self.can_show() => {
                self.session.rights().show_read(wish, found, &file)
            }
            ShowRead::End if self.can_show() => self.session.rights().show_end(wish, &file),
            _ => 0,
        };
        Ok(reply)
    }

    pub(super) fn write(
        &mut self,
        (handle, how): (Handle, HowToWrite),
        offset: u64,
        len: usize,
    ) -> Answer {
        let file = self.session.files.file(handle)?;
        if let Some(appends) = how.appends {
            file.set_appends(appends);
        }
        let append = how.at_end.unwrap_or(file.flags() & libc::O_APPEND != 0);
        let range = if append { Range::ALL } else { Range { offset, len: len as u64 } };
        let before = Moment::of(file.node());
        self.before_io(file.node(), range)?;
        if self.vfs().write_may_wait(len) {
            self.blocking()?;
        }
        let durable = synchronous(file.flags());
        if durable.is_some() {
            self.before_sync(&file, len as u64)?;
        }
        let changes = if how.show { self.session.rights().changes_of(file.node()) } else { None };
        let mut pipe = self.session.connection.channel.write_pipe(self.mailbox, 0, len);
        // Of a client that was stopped while it copied: whole pages, as by the kernel.
        pipe.end_with_page(offset, len);
        let mut source = In(pipe);
        let written = match how.at_end {
            None => file.write(&self.ctx(), Some(offset), &mut source)?,
            Some(at_end) => {
                let at = (!at_end).then_some(offset);
                file.write_placed(&self.ctx(), at, &mut source)?
            }
        };
        let beside = before.until_now(file.node());
        let start = written.end.saturating_sub(written.count as u64);
        let range = Range { offset: start, len: written.count as u64 };
        if written.count > 0 {
            self.written(&file, range, beside);
        }
        if let Some(data_only) = durable {
            syncs::sync_file(self.session, &file, data_only).map_err(Failure::Late)?;
        }
        self.stats.written(written.count);
        let mut reply = done(written.count);
        reply.value[0] = written.end;
        if how.show && self.can_show() {
            let wish = Wish { handle, offset: start, len: written.count as u64 };
            reply.handle = self.session.rights().show_written(wish, changes, &file);
        }
        Ok(reply)
    }

    /// What cannot be taken in now is asked for by a write that finds no room.
    pub(super) fn extend(&mut self, handle: Handle) -> Answer {
        let file = self.session.files.file(handle)?;
        self.session.rights().extend_loan(handle, file.node());
        Ok(done(0))
    }

    pub(super) fn fallocate(
        &mut self,
        handle: Handle,
        flags: u32,
        offset: u64,
        len: u64,
    ) -> Answer {
        let file = self.session.files.file(handle)?;
        self.before_io(file.node(), Range::ALL)?;
        self.device()?;
        file.fallocate(&self.ctx(), flags as i32, offset, len)?;
        // Collapsing and inserting move everything behind the range.
        self.changed(file.node(), Range { offset, len: 0 });
        Ok(done(0))
    }

    pub(super) fn seek(&mut self, handle: Handle, offset: u64, target: SeekFor) -> Answer {
        let file = self.session.files.file(handle)?;
        self.before_io(file.node(), Range { offset, len: 0 })?;
        let mut reply = done(0);
        reply.value[0] = file.seek(&self.ctx(), offset, target)?;
        Ok(reply)
    }

    pub(super) fn copy_range(
        &mut self,
        (from, offset): (Handle, u64),
        (to, at): (Handle, u64),
        len: u64,
    ) -> Answer {
        let (from, to) = (self.session.files.file(from)?, self.session.files.file(to)?);
        self.blocking()?;
        let len = len.min(COPY_BYTES_MAX);
        self.before_io(from.node(), Range { offset, len: 0 })?;
        self.before_io(to.node(), Range { offset: at, len: 0 })?;
        let count = from.copy_range(&self.ctx(), offset, (&to, at), len)?;
        self.changed(to.node(), Range { offset: at, len: 0 });
        Ok(done(count as usize))
    }

    pub(super) fn set_flags(&mut self, handle: Handle, flags: i32) -> Answer {
        self.session.files.lockable(handle)?.set_flags(flags)?;
        Ok(done(0))
    }

    pub(super) fn redeem(&mut self, key: &[u8; 16]) -> Answer {
        let ticket = self.session.connection.lane.tickets.redeem(key).ok_or(Errno::ENOENT)?;
        let Ticket { file, slot } = ticket;
        if let Some(TicketSlot { session, number, .. }) = slot {
            // Where it is another session's, a copy of its descriptor is in our process's hands,
            // and that session need not know: pidfd_getfd asks nobody.
            self.session.connection.lane.slots.stray(
                session,
                number,
                self.session.connection.slots.token(),
            );
        }
        let attr = self.vfs().getattr(&self.ctx(), file.node())?;
        // Whether or not the slot is one of ours, this handle does not own it: the slot's file ends
        // with its kernel descriptor, or with the handle that bound it.
        let own = slot.filter(|slot| slot.session == self.session.connection.slots.token());
        let unheard = if slot.is_some_and(|slot| !slot.has_flags) { UNFLAGGED } else { 0 };
        let flags = u64::from(file.flags() as u32) | unheard;
        let open = match file.node().kind() {
            Kind::File => Open::File { file, slot: None, view: None },
            Kind::Dir => Open::Dir { node: file.node().clone(), listing: Some(file) },
            _ => return Err(Failure::UseKernel),
        };
        let handle = self.session.files.add(open)?;
        let mut reply = with_attr(&attr);
        reply.handle = handle.to_wire();
        reply.value[0] = flags;
        reply.value[1] = own.map_or(NO_SLOT, |slot| u64::from(slot.number));
        Ok(reply)
    }

    pub(super) fn share_all(&mut self) -> Answer {
        self.session.connection.slots.share_all();
        Ok(done(0))
    }

    /// The name under which the kernel opens the file's own node is a ticket of its own. `shared`:
    /// whether the file may be mapped so is all that is asked.
    pub(super) fn expose(&mut self, handle: Handle, shared: bool) -> Answer {
        let file = self.session.files.file(handle)?;
        if shared {
            file.may_be_mapped_shared()?;
            return Ok(done(0));
        }
        // Others may reach the file past the session from now on.
        self.session.rights().revoke();
        let words: [U64; 2] = zerocopy::transmute!(self.ticket_of(file)?);
        self.session.connection.lane.tickets.expect_opens(1);
        let mut reply = done(0);
        (reply.value[0], reply.value[1]) = (words[0].get(), words[1].get());
        Ok(reply)
    }

    /// As [`Call::expose`], of the `count` handles in the payload, which is within bounds.
    pub(super) fn expose_all(&mut self, count: usize) -> Answer {
        let (mut handles, mut tickets) = ([U64::ZERO; EXPOSED_MAX], [[0; 16]; EXPOSED_MAX]);
        let (handles, tickets) = (&mut handles[..count], &mut tickets[..count]);
        let channel = &self.session.connection.channel;
        channel.payload_get(self.mailbox, 0, handles.as_mut_bytes());
        self.session.rights().revoke();
        for (handle, ticket) in handles.iter().zip(tickets.iter_mut()) {
            let handle = Handle::from_wire(handle.get());
            let found = self.session.files.file(handle).and_then(|file| self.ticket_of(file));
            // What has been closed meanwhile needs none.
            *ticket = found.unwrap_or_default();
        }
        channel.payload_put(self.mailbox, 0, tickets.as_flattened());
        let issued = tickets.iter().filter(|ticket| **ticket != [0; 16]).count();
        self.session.connection.lane.tickets.expect_opens(issued);
        Ok(done(16 * count))
    }

    fn ticket_of(&self, file: Arc<OpenFile>) -> Result<[u8; 16]> {
        self.session.connection.lane.tickets.issue(&Ticket { file, slot: None })
    }

    /// The open file of a lock request, whose mode must allow that kind of lock.
    pub(super) fn lockable(
        &self,
        handle: Handle,
        family: LockFamily,
        refused_mode: Option<i32>,
    ) -> Result<Arc<OpenFile>> {
        let file = self.session.files.lockable(handle)?;
        let mode = file.flags() & libc::O_ACCMODE;
        match family {
            LockFamily::Posix | LockFamily::Ofd if refused_mode == Some(mode) => Err(Errno::EBADF),
            _ => Ok(file),
        }
    }
}

/// Opens that never give a regular file for reading or writing.
fn is_for_kernel(flags: i32) -> bool {
    let tmpfile = flags & libc::O_TMPFILE == libc::O_TMPFILE;
    flags & libc::O_PATH != 0
        || flags & libc::O_ACCMODE == libc::O_ACCMODE
        || (flags & libc::O_DIRECTORY != 0 && !tmpfile)
}

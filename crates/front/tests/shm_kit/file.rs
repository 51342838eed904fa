//! An open file of a client that uses its view as the library does, and the other door beside.

use std::sync::Mutex;
use std::sync::atomic::Ordering::SeqCst;

use polylane_base::sync::Arc;
use polylane_base::{Clock, SystemClock};
use polylane_ipc::MailboxIndex;
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::message::{Message, Op, Reply, SetWhat, TransferFlags, WireAttr};
use polylane_ipc::stream::{Change, DATA_BYTES, Entry, LENT, Posted};
use polylane_ipc::view::{FRAME_BYTES, Found, HAS_DATA, NOTES_READS};
use polylane_vfs::{OpCtx, OpenFile};

use super::{Client, House, count, outcome};

pub const PAGE: u64 = FRAME_BYTES as u64;

/// The time as the library notes it, by the clock of the service.
pub fn now() -> i64 {
    let now = SystemClock.now();
    now.sec * 1_000_000_000 + i64::from(now.nsec)
}

/// An open file of a client that uses its view as the library does.
pub struct File<'a> {
    pub client: &'a Client,
    /// The mailbox of the thread that uses it.
    pub mailbox: MailboxIndex,
    pub handle: u64,
    pub view: u32,
    /// Reads and writes that needed no request.
    pub unasked: u32,
    /// Of these, writes by the stream.
    pub streamed: u32,
    /// Bytes were found since the last request to read.
    found: bool,
}

impl<'a> File<'a> {
    pub fn open(client: &'a Client, path: &str) -> File<'a> {
        let handle = client.open(path, libc::O_CREAT | libc::O_RDWR).unwrap().0;
        let message =
            Message { handle, flags: TransferFlags::SHOW.bits(), ..Message::new(Op::Fstat) };
        let reply = client.call(&message).unwrap();
        assert!(reply.handle > 0, "no view");
        File::of(client, handle, reply.handle as u32 - 1)
    }

    pub fn of(client: &'a Client, handle: u64, view: u32) -> File<'a> {
        File {
            client,
            mailbox: client.mailbox,
            handle,
            view,
            unasked: 0,
            streamed: 0,
            found: false,
        }
    }

    pub fn read_shown(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        let views = self.client.channel.views().unwrap();
        let look = views.look(self.view).filter(|look| look.has(HAS_DATA))?;
        let count = views.size(self.view)?.saturating_sub(offset).min(into.len() as u64) as usize;
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let part = (FRAME_BYTES - within).min(count - done);
            let found = views.find(look, at / PAGE)?;
            let from = views.found_offset(found) + within;
            self.client.channel.frame_get(from, &mut into[done..done + part]);
            if !views.is_whole(found) {
                return None;
            }
            done += part;
        }
        if look.has(NOTES_READS) && !into.is_empty() {
            views.note_read(self.view, now);
        }
        views.is_same(self.view, look).then_some(count)
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        if let Some(count) = self.read_shown(offset, &mut data) {
            self.unasked += 1;
            self.found |= count > 0;
            data.truncate(count);
            return data;
        }
        let mut flags = TransferFlags::SHOW;
        flags.set(TransferFlags::FOUND, std::mem::take(&mut self.found));
        let mut message = Message { handle: self.handle, offset, ..Message::new(Op::Read) };
        (message.length, message.flags) = (len as u64, flags.bits());
        let (channel, mailbox) = (&self.client.channel, self.mailbox);
        let reply = channel.call_read(mailbox, &message, &mut data, &Trusting).unwrap();
        data.truncate(outcome(reply).map(|reply| count(&reply)).unwrap());
        data
    }

    /// Writes what is lent, from inside the gate: behind the end in place, else anew.
    pub fn put(&self, offset: u64, data: &[u8]) -> Option<()> {
        let views = self.client.channel.views().unwrap();
        let end = offset + data.len() as u64;
        let behind = end > views.size(self.view)?;
        let may =
            |found: &Found| if behind { views.mark(*found) } else { views.may_switch(*found) };
        let pages = offset / PAGE..=(end - 1) / PAGE;
        let frames: Vec<Found> =
            pages.map(|page| self.find(page).filter(may)).collect::<Option<_>>()?;
        let mut done = 0;
        for frame in frames {
            let within = ((offset + done as u64) % PAGE) as usize;
            let part = (FRAME_BYTES - within).min(data.len() - done);
            let bytes = &data[done..done + part];
            if behind {
                self.client.channel.frame_put(views.found_offset(frame) + within, bytes);
            } else {
                let spare = self.fill_spare(frame, within, bytes)?;
                views.switch(self.view, frame, spare).then_some(())?;
            }
            done += part;
        }
        Some(())
    }

    pub fn find(&self, page: u64) -> Option<Found> {
        let views = self.client.channel.views().unwrap();
        views.find(views.look(self.view).filter(|look| look.has(HAS_DATA))?, page)
    }

    /// Puts into the spare frame what a page is to hold; that frame.
    pub fn fill_spare(&self, found: Found, within: usize, bytes: &[u8]) -> Option<u32> {
        let (channel, views) = (&self.client.channel, self.client.channel.views().unwrap());
        let spare = views.spare(self.view)?;
        let (old, new) = (views.found_offset(found), views.frame_offset(spare));
        channel.frame_copy(old, new, FRAME_BYTES);
        channel.frame_put(new + within, bytes);
        Some(spare)
    }

    pub fn write_lent(&self, offset: u64, data: &[u8]) -> bool {
        let views = self.client.channel.views().unwrap();
        let Some(inside) = views.enter(self.view) else { return false };
        let (size, room) = views.end_and_room(self.view, &inside);
        let end = offset + data.len() as u64;
        let fits = end <= size || offset == size && end <= room;
        let put = if fits { self.put(offset, data) } else { None };
        let end = if put.is_some() { end.max(size) } else { size };
        let done = views.leave(self.view, inside, put.map(|()| now()), end) && put.is_some();
        if done && views.is_to_ask(self.view, end) {
            self.ask();
        }
        done
    }

    /// Makes it durable, as fdatasync does.
    pub fn sync(&self) {
        let message = Message { handle: self.handle, ..Message::new(Op::Fsync) };
        let reply = self.client.channel.call(self.mailbox, &message, &Trusting).unwrap();
        outcome(reply).map(drop).unwrap();
    }

    /// The same file as another thread of its client uses it.
    pub fn on_thread(&self) -> File<'a> {
        let mailbox = self.client.channel.claim().unwrap();
        File { mailbox, unasked: 0, streamed: 0, ..*self }
    }

    /// The loan on which a page that is not lent may be streamed; 0: none.
    pub fn stream_for(&self, offset: u64) -> u64 {
        let views = self.client.channel.views().unwrap();
        let look = || {
            let look = views.look(self.view).filter(|look| look.has(HAS_DATA))?;
            let fits = views.size(self.view)? >= offset + PAGE;
            (fits && views.find(look, offset / PAGE).is_none()).then_some(look)
        };
        let loan = views.streams(self.view);
        let same = look().is_some_and(|look| views.is_same(self.view, look));
        if same { loan } else { 0 }
    }

    /// Writes one whole page by the stream: whether that counts.
    pub fn write_streamed(&mut self, offset: u64, data: &[u8]) -> bool {
        let whole = data.len() == FRAME_BYTES && offset.is_multiple_of(PAGE);
        let loan = if whole { self.stream_for(offset) } else { 0 };
        self.client.channel.views().unwrap().will_stream(self.view);
        let position = if loan == 0 { None } else { self.post(offset, data) };
        let Some(position) = position else { return false };
        std::sync::atomic::fence(SeqCst);
        let unasked = self.stream_for(offset) == loan;
        if unasked {
            (self.unasked, self.streamed) = (self.unasked + 1, self.streamed + 1);
        }
        unasked || self.client.was_done(self.mailbox, position)
    }

    /// Puts a page into the ring, by one thread at a time, and an entry.
    pub fn post(&self, offset: u64, data: &[u8]) -> Option<u32> {
        static LOCK: Mutex<()> = Mutex::new(());
        const PLACES: u32 = (DATA_BYTES / FRAME_BYTES) as u32;
        let _lock = LOCK.lock().unwrap();
        let stream = self.client.channel.stream();
        let tail = || stream.last_position().wrapping_add(1);
        if tail().wrapping_sub(stream.done()) >= PLACES {
            let ping = self.client.channel.call(self.mailbox, &Message::new(Op::Ping), &Trusting);
            ping.unwrap();
        }
        let at = (tail() % PLACES) as usize * FRAME_BYTES;
        self.client.channel.stream_put(at, data);
        let (change, handle, time) = (Change::Write, self.handle, now());
        let (at, len, flags) = (at as u32, FRAME_BYTES as u32, LENT);
        let entry = Entry { change, handle, time, at, len, offset, flags, ..Entry::default() };
        matches!(stream.post(&entry), Posted::Waiting(_)).then(|| stream.last_position())
    }

    /// Asks for more room, and goes on.
    pub fn ask(&self) {
        let message = Message { handle: self.handle, ..Message::new(Op::Extend) };
        self.client.channel.post(self.mailbox, &message, &Trusting).unwrap();
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if self.write_lent(offset, data) {
            self.unasked += 1;
            return;
        }
        if self.write_streamed(offset, data) {
            return;
        }
        let mut message = Message { handle: self.handle, offset, ..Message::new(Op::Write) };
        (message.length, message.flags) = (data.len() as u64, TransferFlags::SHOW.bits());
        let (channel, mailbox) = (&self.client.channel, self.mailbox);
        let reply = channel.call_write(mailbox, &message, (0, data), false, &Trusting).unwrap();
        assert_eq!(outcome(reply).map(|reply| count(&reply)), Ok(data.len()));
    }

    pub fn state(&mut self) -> WireAttr {
        if let Some(attr) = self.client.channel.views().unwrap().attr(self.view) {
            self.unasked += 1;
            return attr;
        }
        let message = Message {
            handle: self.handle,
            flags: TransferFlags::SHOW.bits(),
            ..Message::new(Op::Fstat)
        };
        self.client.call(&message).unwrap().attr.unwrap()
    }

    pub fn call(&self, message: Message) -> Reply {
        self.client.call(&Message { handle: self.handle, ..message }).unwrap()
    }

    pub fn truncate(&self, length: u64) {
        let arg = [SetWhat::SIZE.bits(), 0, 0, 0];
        self.call(Message { length, arg, ..Message::new(Op::SetattrHandle) });
    }

    pub fn punch(&self, offset: u64, length: u64) {
        let flags = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
        self.call(Message { flags, offset, length, ..Message::new(Op::Fallocate) });
    }
}

/// The file as the other door opens it.
pub fn beside(house: &House, path: &str) -> Arc<OpenFile> {
    let vfs = &house.lane.vfs;
    let opened = vfs.open_path(&OpCtx::service(), &vfs.root(), path.as_bytes(), libc::O_RDWR, 0, 0);
    opened.unwrap()
}

pub fn read_beside(file: &OpenFile, offset: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    let count = file.read(&OpCtx::service(), offset, len, &mut data.as_mut_slice()).unwrap();
    data.truncate(count);
    data
}

pub fn write_beside(file: &OpenFile, offset: u64, mut data: &[u8]) {
    file.write(&OpCtx::service(), Some(offset), &mut data).unwrap();
}

//! One connection after the handshake: requests in, replies out, in whatever order they are done.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use polylane_base::sync::Arc;
use polylane_block::device::SECTOR_BYTES;
use polylane_block::{Allocation, BlockDevice, Completion, Op, Sector};
use polylane_sys::buffer::Buffer;
use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, recv};

use super::handshake::Agreed;
use super::protocol::ExtentState;
use super::reply::{Outbox, number};
use super::request::{Command, HEADER_BYTES, Header};
use crate::export::Bell;
use crate::export::work::{Job, Work};

/// Bytes taken from the socket at a time while no payload is due: some hundred requests.
const INBOX_BYTES: usize = 16 << 10;

/// Extents in one answer to a question for block status.
const EXTENTS_MAX: usize = 1024;

/// How long a client may take nothing of the replies that wait for it.
const STALLED_TIME_MAX: Duration = Duration::from_secs(30);

/// How long it may take for all of them once the server is to end.
const LEAVING_TIME_MAX: Duration = Duration::from_secs(5);

/// Who asked, and for what.
struct Asked {
    cookie: u64,
    offset: u64,
    command: Command,
}

/// What comes next from the client.
enum Due {
    Header,
    /// The data of a write that was accepted.
    Payload {
        header: Header,
        fua: bool,
        buffer: Buffer,
        filled: usize,
    },
    /// The data of one that was not.
    Refused {
        left: usize,
    },
}

/// What reading found.
#[derive(PartialEq, Eq)]
enum Input {
    /// Something was taken in.
    Taken,
    /// Nothing is there at the moment.
    Empty,
    /// Nothing will come any more.
    Over,
}

struct Session<'a> {
    stream: &'a UnixStream,
    device: &'a Arc<dyn BlockDevice>,
    agreed: Agreed,
    work: Work<Asked>,
    out: Outbox,
    inbox: Box<[u8]>,
    /// The part of `inbox` that is still to be looked at.
    start: usize,
    end: usize,
    due: Due,
    /// The client said that it leaves.
    left: bool,
    /// When the connection ends at the latest, once it is to end.
    leave_by: Option<Instant>,
}

/// Serves requests until the client leaves or `stop` rings; what was taken in is answered. Whether
/// the client said that it leaves.
///
/// # Errors
/// The stream's; `InvalidData` when the client does not speak the protocol; `TimedOut` when it does
/// not take its replies.
pub(super) fn transmit(
    stream: &UnixStream,
    device: &Arc<dyn BlockDevice>,
    agreed: Agreed,
    stop: &Bell,
) -> io::Result<bool> {
    let mut session = Session {
        stream,
        device,
        agreed,
        work: Work::new(device),
        out: Outbox::default(),
        inbox: vec![0; INBOX_BYTES].into_boxed_slice(),
        start: 0,
        end: 0,
        due: Due::Header,
        left: false,
        leave_by: None,
    };
    let mut open = true;
    loop {
        let input = if open { session.take_all()? } else { Input::Over };
        open &= input != Input::Over && !stop.is_rung();
        session.answer();
        let work = &mut session.work;
        session.out.send(stream, |buffer| work.recycle(buffer))?;
        if !open && session.work.is_idle() && !session.out.is_waiting() {
            return Ok(session.left);
        }
        // Requests that were received and had no room are taken in before anything is waited for.
        if !(open && input == Input::Taken && session.has_room()) {
            session.wait(open, stop)?;
        }
    }
}

impl Session<'_> {
    /// Whether a request may be taken in.
    fn has_room(&self) -> bool {
        !self.work.is_full() && !self.out.is_waiting()
    }

    /// Takes in what is there, as far as there is room: `Taken` when it is room that ended it.
    fn take_all(&mut self) -> io::Result<Input> {
        while self.has_room() {
            let input = self.take()?;
            if input != Input::Taken {
                return Ok(input);
            }
        }
        Ok(Input::Taken)
    }

    /// Sleeps until something is over, the client sends or takes something, or `stop` rings.
    fn wait(&mut self, open: bool, stop: &Bell) -> io::Result<()> {
        let (waiting, ending) = (self.out.is_waiting(), stop.is_rung());
        if ending && self.leave_by.is_none() {
            self.leave_by = Some(Instant::now() + LEAVING_TIME_MAX);
        }
        let stalled = self.out.stalled_since().map(|since| since + STALLED_TIME_MAX);
        let end = [stalled, self.leave_by.filter(|_| waiting)].into_iter().flatten().min();
        let limit = end.map(|end| end.saturating_duration_since(Instant::now()));
        if limit.is_some_and(|limit| limit.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let flags = match waiting {
            true => Some(PollFlags::OUT),
            false => (open && self.has_room()).then_some(PollFlags::IN),
        };
        let line = flags.map(|flags| PollFd::from_borrowed_fd(self.stream.as_fd(), flags));
        self.work.wait_for(line, (!ending).then(|| stop.as_fd()), limit)
    }

    /// Takes the next thing in.
    fn take(&mut self) -> io::Result<Input> {
        match std::mem::replace(&mut self.due, Due::Header) {
            Due::Header => self.take_header(),
            Due::Payload { header, fua, buffer, filled } => {
                self.take_payload(header, fua, buffer, filled)
            }
            Due::Refused { left } => self.skip_payload(left),
        }
    }

    fn take_header(&mut self) -> io::Result<Input> {
        let Some(bytes) = self.inbox[self.start..self.end].first_chunk() else {
            return self.fill();
        };
        let header = Header::parse(bytes).ok_or(io::ErrorKind::InvalidData)?;
        self.start += HEADER_BYTES;
        let payload = header.payload().ok_or(io::ErrorKind::InvalidData)?;
        match header.check(&**self.device, self.agreed.allocation) {
            Ok(Command::Disconnect) => {
                self.left = true;
                return Ok(Input::Over);
            }
            Ok(Command::Write { fua }) => {
                let buffer = self.work.buffer(payload);
                self.due = Due::Payload { header, fua, buffer, filled: 0 };
            }
            Ok(Command::Status { one }) => self.status(header, one),
            Ok(command) => self.start(header, command, None),
            Err(error) => {
                self.out.failed(self.agreed.structured, header.cookie, error);
                self.due = match payload {
                    0 => Due::Header,
                    left => Due::Refused { left },
                };
            }
        }
        Ok(Input::Taken)
    }

    fn take_payload(
        &mut self,
        header: Header,
        fua: bool,
        mut buffer: Buffer,
        mut filled: usize,
    ) -> io::Result<Input> {
        let wanted = &mut buffer[filled..];
        let here = wanted.len().min(self.end - self.start);
        let input = if here > 0 {
            wanted[..here].copy_from_slice(&self.inbox[self.start..self.start + here]);
            self.start += here;
            filled += here;
            Input::Taken
        } else {
            let (input, count) = receive(self.stream, wanted)?;
            filled += count;
            input
        };
        if filled == buffer.len() {
            self.start(header, Command::Write { fua }, Some(buffer));
        } else {
            self.due = Due::Payload { header, fua, buffer, filled };
        }
        Ok(input)
    }

    fn skip_payload(&mut self, left: usize) -> io::Result<Input> {
        if self.start == self.end {
            self.due = Due::Refused { left };
            return self.fill();
        }
        let here = left.min(self.end - self.start);
        self.start += here;
        if left > here {
            self.due = Due::Refused { left: left - here };
        }
        Ok(Input::Taken)
    }

    /// Gets more bytes into the inbox, behind those of an unfinished header.
    fn fill(&mut self) -> io::Result<Input> {
        self.inbox.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let (input, count) = receive(self.stream, &mut self.inbox[self.end..])?;
        self.end += count;
        Ok(input)
    }

    fn start(&mut self, header: Header, command: Command, data: Option<Buffer>) {
        let Header { cookie, offset, length, .. } = header;
        let sector = Sector(offset / SECTOR_BYTES as u64);
        let count = u64::from(length) / SECTOR_BYTES as u64;
        let (op, data) = match command {
            Command::Read => (Op::Read, Some(self.work.buffer(length as usize))),
            Command::Write { fua } => (Op::Write { fua }, data),
            Command::Trim { .. } => (Op::Discard, None),
            Command::Zero { fua, unmap } => (Op::WriteZeroes { unmap, fua }, None),
            _ => return self.work.start(Job::FLUSH, Asked { cookie, offset, command }),
        };
        self.work.start(Job { op, sector, count, data }, Asked { cookie, offset, command });
    }

    /// Answers everything that is over.
    fn answer(&mut self) {
        while let Some((asked, completion)) = self.work.next() {
            self.answer_one(asked, completion);
        }
    }

    fn answer_one(&mut self, asked: Asked, completion: Completion) {
        let structured = self.agreed.structured;
        let data = completion.data.into_iter().next();
        match (completion.result, asked.command) {
            (Err(error), _) => self.out.failed(structured, asked.cookie, number(error)),
            // A trim has no FUA of its own: what follows it is over when it is durable.
            (Ok(()), Command::Trim { fua: true }) => {
                let flush = Asked { command: Command::Flush, ..asked };
                return self.work.start(Job::FLUSH, flush);
            }
            (Ok(()), Command::Read) => {
                if let Some(data) = data {
                    self.out.data(structured, asked.cookie, asked.offset, data);
                }
                return;
            }
            (Ok(()), _) => self.out.done(structured, asked.cookie),
        }
        if let Some(buffer) = data {
            self.work.recycle(buffer);
        }
    }

    /// What of a range takes space. The device sees every write that was answered before.
    fn status(&mut self, header: Header, one: bool) {
        let mut extents: Vec<(u32, ExtentState)> = Vec::new();
        let mut sector = header.offset / SECTOR_BYTES as u64;
        let end = sector + u64::from(header.length) / SECTOR_BYTES as u64;
        while sector < end {
            let (allocation, count) = self.device.allocation(Sector(sector), end - sector);
            let count = count.clamp(1, end - sector);
            let state = match allocation == Allocation::Hole {
                true => ExtentState::HOLE | ExtentState::ZERO,
                false => ExtentState::empty(),
            };
            // At most the length of the request, which is 32 bits.
            let bytes = (count * SECTOR_BYTES as u64) as u32;
            let room = extents.is_empty() || !(one || extents.len() == EXTENTS_MAX);
            match extents.last_mut() {
                Some(last) if last.1 == state => last.0 += bytes,
                _ if room => extents.push((bytes, state)),
                _ => break,
            }
            sector += count;
        }
        self.out.status(header.cookie, &extents);
    }
}

/// Receives what is there, at most `into`, which is not empty.
fn receive(stream: &UnixStream, into: &mut [u8]) -> io::Result<(Input, usize)> {
    match recv(stream, into, RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Ok((Input::Over, 0)),
        Ok((_, count)) => Ok((Input::Taken, count)),
        Err(rustix::io::Errno::AGAIN) => Ok((Input::Empty, 0)),
        Err(rustix::io::Errno::INTR) => Ok((Input::Taken, 0)),
        Err(error) => Err(error.into()),
    }
}

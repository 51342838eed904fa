//! One thread of a session: requests from the kernel in, jobs to the device out, replies back.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use polylane_base::sync::Arc;
use polylane_base::{Errno, record};
use polylane_block::device::SECTOR_BYTES;
use polylane_block::{BlockDevice, Completion, Op, Sector};
use polylane_sys::buffer::Buffer;
use rustix::event::epoll;

use super::{FILE, FileOptions, ROOT, reply};
use crate::export::Bell;
use crate::export::work::{Job, LARGE_BYTES, Work};
use crate::fuse::flags::SetattrFields;
use crate::fuse::protocol::{IN_HEADER_BYTES, opcode};
use crate::fuse::records::{FallocateIn, InHeader, Transfer};
use crate::fuse::reply::{Body, Device};
use crate::fuse::request::{Request, SetattrIn, TransferIn, wants_reply};

/// Largest read or write in one request: what 256 pages hold, the kernel's default limit.
pub(super) const TRANSFER_BYTES_MAX: u32 = LARGE_BYTES as u32;

/// What comes before the data of a WRITE: the header and `struct fuse_write_in`. Read into memory
/// of its own, it leaves the data aligned.
const HEAD_BYTES: usize = IN_HEADER_BYTES + size_of::<Transfer>();

/// Writes up to this size are copied out of the receiving buffer; with a larger one that buffer
/// goes down itself.
const COPY_BYTES_MAX: usize = 32 << 10;

/// `fallocate(2)` modes.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// Who asked, and for what.
struct Asked {
    unique: u64,
    /// Bytes to be told of a WRITE.
    written: Option<u32>,
}

/// What a request becomes.
enum Outcome {
    /// Answered with the body.
    Reply,
    /// Answered when the device is done.
    Started,
}

/// See the [module](self).
pub(super) struct Session {
    kernel: Device,
    device: Arc<dyn BlockDevice>,
    options: Arc<FileOptions>,
    /// Wakes one sleeping thread per request, and all when they are to stop.
    doorbell: OwnedFd,
    work: Work<Asked>,
    head: [u8; HEAD_BYTES],
    receive: Buffer,
    /// A request other than a WRITE, in one piece.
    message: Vec<u8>,
    body: Body,
}

/// What reading found.
enum Input {
    Taken,
    Empty,
    /// The mount is gone.
    Over,
}

impl Session {
    pub(super) fn new(
        kernel: &Device,
        device: &Arc<dyn BlockDevice>,
        options: &Arc<FileOptions>,
        stop: &Bell,
    ) -> rustix::io::Result<Session> {
        let doorbell = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let exclusive = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
        epoll::add(&doorbell, kernel.as_fd(), epoll::EventData::new_u64(0), exclusive)?;
        epoll::add(&doorbell, stop, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        let mut work = Work::new(device);
        Ok(Session {
            kernel: kernel.clone(),
            device: device.clone(),
            options: options.clone(),
            doorbell,
            receive: work.buffer(LARGE_BYTES),
            work,
            head: [0; HEAD_BYTES],
            message: Vec::new(),
            body: Body::default(),
        })
    }

    /// Serves until the mount is gone or `stop` rings; what was taken in is answered.
    pub(super) fn run(mut self, stop: &Bell) {
        let mut open = true;
        while open || !self.work.is_idle() {
            open &= self.take_all(open) && !stop.is_rung();
            while let Some((asked, completion)) = self.work.next() {
                self.answer(&asked, completion);
            }
            let waited = match open && !self.work.is_full() {
                true => self.work.wait_at(&self.doorbell),
                false => self.work.wait(None, open.then(|| stop.as_fd())),
            };
            if waited.is_err() {
                return;
            }
        }
    }

    /// Takes in what is there, as far as there is room, and answers what needs no waiting; whether
    /// more may come.
    fn take_all(&mut self, open: bool) -> bool {
        while open && !self.work.is_full() {
            match self.take() {
                Input::Taken => {
                    while let Some((asked, completion)) = self.work.over() {
                        self.answer(&asked, completion);
                    }
                }
                Input::Empty => return true,
                Input::Over => return false,
            }
        }
        open
    }

    fn take(&mut self) -> Input {
        let mut into = [IoSliceMut::new(&mut self.head), IoSliceMut::new(&mut self.receive)];
        match rustix::io::readv(&self.kernel, &mut into) {
            Ok(0) => Input::Over,
            Ok(count) => {
                self.serve(count);
                Input::Taken
            }
            Err(rustix::io::Errno::AGAIN) => Input::Empty,
            // ENOENT: the request was taken back while we read it.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::NOENT) => Input::Taken,
            // ENODEV: unmounted. Whatever else it is will not get better.
            Err(_) => Input::Over,
        }
    }

    /// Serves the message of `count` bytes that was read.
    fn serve(&mut self, count: usize) {
        let (head, rest) = (count.min(HEAD_BYTES), count.saturating_sub(HEAD_BYTES));
        let header = record::at::<InHeader>(&self.head, 0);
        let code = header.opcode.get();
        if let Some(in_flight) = &self.options.in_flight {
            in_flight.read(header.unique.get());
        }
        if code == opcode::WRITE && rest > 0 {
            return self.write(rest);
        }
        let mut message = std::mem::take(&mut self.message);
        message.clear();
        message.extend_from_slice(&self.head[..head]);
        message.extend_from_slice(&self.receive[..rest]);
        // What has no header has no address for a reply either.
        if let Some(request) = Request::parse(&message) {
            self.reply(&request);
        }
        self.message = message;
    }

    fn reply(&mut self, request: &Request<'_>) {
        let (code, unique) = (request.header.opcode, request.header.unique);
        self.body.0.clear();
        match self.dispatch(request) {
            Ok(Outcome::Reply) if wants_reply(code) => self.kernel.reply(unique, &self.body.0),
            Ok(_) => {}
            Err(errno) if wants_reply(code) => self.kernel.fail(unique, errno),
            Err(_) => {}
        }
    }

    fn dispatch(&mut self, request: &Request<'_>) -> Result<Outcome, Errno> {
        let mut args = request.args;
        let (unique, size) = (request.header.unique, self.size());
        match request.header.opcode {
            opcode::READ => {
                let read = TransferIn::read(&mut args)?;
                let sector = sector(read.offset, u64::from(read.size))?;
                if read.size > TRANSFER_BYTES_MAX {
                    return Err(Errno::EINVAL);
                }
                let data = Some(self.work.buffer(read.size as usize));
                return Ok(self.start(Job { op: Op::Read, sector, count: 0, data }, unique));
            }
            opcode::FSYNC => return Ok(self.start(Job::FLUSH, unique)),
            opcode::FALLOCATE => {
                let asked = args.record::<FallocateIn>()?;
                let (offset, length) = (asked.offset.get(), asked.length.get());
                let op = match asked.mode.get() {
                    mode if mode == PUNCH_HOLE | KEEP_SIZE => Op::Discard,
                    mode if mode == ZERO_RANGE | KEEP_SIZE => {
                        Op::WriteZeroes { unmap: false, fua: false }
                    }
                    _ => return Err(Errno::EOPNOTSUPP),
                };
                let (sector, count) = (sector(offset, length)?, length / SECTOR_BYTES as u64);
                return Ok(self.start(Job { op, sector, count, data: None }, unique));
            }
            opcode::LOOKUP if request.header.node_id == ROOT => {
                if args.name()? != self.options.name.as_bytes() {
                    return Err(Errno::ENOENT);
                }
                reply::entry(&mut self.body, size);
            }
            opcode::GETATTR => reply::attr(&mut self.body, request.header.node_id, size),
            opcode::SETATTR => {
                let change = SetattrIn::read(&mut args)?;
                if !HARMLESS.contains(change.valid) {
                    return Err(Errno::EPERM);
                }
                reply::attr(&mut self.body, request.header.node_id, size);
            }
            opcode::OPEN if request.header.node_id == FILE => {
                reply::open(&mut self.body, self.options.backing);
            }
            opcode::STATFS => reply::statfs(&mut self.body, size),
            opcode::RELEASE | opcode::FLUSH | opcode::ACCESS | opcode::DESTROY => {}
            _ => return Err(Errno::ENOSYS),
        }
        Ok(Outcome::Reply)
    }

    /// A WRITE, of which `rest` bytes of data lie in the receiving buffer.
    fn write(&mut self, rest: usize) {
        // With the length that it has without its data, the head is a request of its own.
        let mut head = self.head;
        let header = record::at_mut::<InHeader>(&mut head, 0);
        let length = std::mem::replace(&mut header.len, (HEAD_BYTES as u32).into());
        let length = length.get() as usize;
        let Some(request) = Request::parse(&head) else { return };
        let unique = request.header.unique;
        let mut args = request.args;
        let checked = TransferIn::read(&mut args).and_then(|write| {
            let whole = length == HEAD_BYTES + rest && write.size as usize == rest;
            let sector = sector(write.offset, u64::from(write.size))?;
            whole.then_some((write, sector)).ok_or(Errno::EIO)
        });
        let (write, sector) = match checked {
            Ok(checked) => checked,
            Err(errno) => return self.kernel.fail(unique, errno),
        };
        let data = if rest <= COPY_BYTES_MAX {
            let mut data = self.work.buffer(rest);
            data.copy_from_slice(&self.receive[..rest]);
            data
        } else {
            let next = self.work.buffer(LARGE_BYTES);
            let mut data = std::mem::replace(&mut self.receive, next);
            data.set_len(rest);
            data
        };
        let op = Op::Write { fua: write.flags & DSYNC == DSYNC };
        let job = Job { op, sector, count: 0, data: Some(data) };
        self.work.start(job, Asked { unique, written: Some(write.size) });
    }

    fn start(&mut self, job: Job, unique: u64) -> Outcome {
        self.work.start(job, Asked { unique, written: None });
        Outcome::Started
    }

    fn answer(&mut self, asked: &Asked, completion: Completion) {
        let data = completion.data.into_iter().next();
        match (completion.result, asked.written) {
            (Err(error), _) => self.kernel.fail(asked.unique, error.into()),
            (Ok(()), Some(count)) => {
                self.body.0.clear();
                self.body.count(count);
                self.kernel.reply(asked.unique, &self.body.0);
            }
            (Ok(()), None) => {
                self.kernel.reply(asked.unique, data.as_deref().unwrap_or_default());
            }
        }
        if let Some(mut buffer) = data {
            buffer.set_len(buffer.capacity());
            self.work.recycle(buffer);
        }
    }

    fn size(&self) -> u64 {
        self.device.sector_count().saturating_mul(SECTOR_BYTES as u64)
    }
}

/// What a SETATTR may set, without any of it being kept: times, and what the kernel adds.
const HARMLESS: SetattrFields = SetattrFields::FH
    .union(SetattrFields::KILL_SUIDGID)
    .union(SetattrFields::ATIME)
    .union(SetattrFields::ATIME_NOW)
    .union(SetattrFields::MTIME)
    .union(SetattrFields::MTIME_NOW)
    .union(SetattrFields::CTIME);

/// `O_DSYNC`: the write is durable when it is answered.
const DSYNC: i32 = 0o10000;

/// The sector at which a range of whole sectors begins.
fn sector(offset: u64, length: u64) -> Result<Sector, Errno> {
    let whole = length > 0 && length.is_multiple_of(SECTOR_BYTES as u64);
    Sector::at_byte(offset).filter(|_| whole).ok_or(Errno::EINVAL)
}

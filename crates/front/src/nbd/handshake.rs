//! The handshake: fixed newstyle, one option after the other, until the client goes on or away.

use std::io::{self, Read, Write};

use polylane_base::record::Record;
use polylane_block::device::SECTOR_BYTES;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::Export;
use super::protocol::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, BLOCK_BYTES_PREFERRED, Exported, Greeting, Handshake,
    INIT_MAGIC, InfoBlockSize, InfoExport, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader,
    OptionReply, TRANSFER_BYTES_MAX, Transmission, info, opt, rep,
};

/// Longest data of an option. A longer one ends the connection.
const OPTION_BYTES_MAX: u32 = 64 << 10;

/// Options that one client may send: nobody needs more than a handful.
const OPTIONS_MAX: usize = 1024;

/// What client and server agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Agreed {
    /// Replies are structured.
    pub(super) structured: bool,
    /// `base:allocation` can be asked for.
    pub(super) allocation: bool,
}

/// How an option changed the conversation.
enum After {
    /// There are more.
    Next,
    /// Requests follow.
    Go,
    /// The client leaves.
    End,
}

/// Negotiates; `None` when the client leaves in good order.
///
/// # Errors
/// The stream's; `InvalidData` when the client does not speak the protocol.
pub(super) fn negotiate(
    stream: &mut (impl Read + Write),
    export: &Export,
) -> io::Result<Option<Agreed>> {
    let greeting = Greeting {
        magic: INIT_MAGIC.into(),
        option_magic: OPTION_MAGIC.into(),
        flags: Handshake::all().bits().into(),
    };
    stream.write_all(greeting.as_bytes())?;
    let flags = U32::read_from_io(&mut *stream)?.get();
    let flags = u16::try_from(flags).ok().and_then(Handshake::from_bits);
    let flags = flags.filter(|flags| flags.contains(Handshake::FIXED_NEWSTYLE));
    let flags = flags.ok_or_else(invalid)?;
    let mut talk = Talk {
        stream,
        export,
        agreed: Agreed::default(),
        no_zeroes: flags.contains(Handshake::NO_ZEROES),
    };
    for _ in 0..OPTIONS_MAX {
        match talk.option()? {
            After::Next => {}
            After::Go => return Ok(Some(talk.agreed)),
            After::End => return Ok(None),
        }
    }
    Err(invalid())
}

struct Talk<'a, S> {
    stream: &'a mut S,
    export: &'a Export,
    agreed: Agreed,
    no_zeroes: bool,
}

impl<S: Read + Write> Talk<'_, S> {
    /// Reads one option and answers it.
    fn option(&mut self) -> io::Result<After> {
        let header = OptionHeader::read_from_io(&mut *self.stream)?;
        if header.magic != OPTION_MAGIC {
            return Err(invalid());
        }
        let (option, length) = (header.option.get(), header.length.get());
        if length > OPTION_BYTES_MAX {
            self.reply(option, rep::ERR_TOO_BIG, &[])?;
            return Err(invalid());
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        match option {
            opt::EXPORT_NAME => self.export_name(&data),
            opt::ABORT => {
                // The client may be gone before it reads this.
                let _ = self.reply(option, rep::ACK, &[]);
                Ok(After::End)
            }
            opt::LIST => self.list(&data),
            opt::INFO | opt::GO => self.go(option, &data),
            opt::STRUCTURED_REPLY if data.is_empty() => {
                self.agreed.structured = true;
                self.reply(option, rep::ACK, &[])
            }
            opt::STRUCTURED_REPLY => self.reply(option, rep::ERR_INVALID, &[]),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.contexts(option, &data),
            _ => self.reply(option, rep::ERR_UNSUP, &[]),
        }
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<After> {
        let reply = OptionReply {
            magic: OPTION_REPLY_MAGIC.into(),
            option: option.into(),
            kind: kind.into(),
            length: (data.len() as u32).into(),
        };
        self.stream.write_all(&[reply.as_bytes(), data].concat())?;
        Ok(After::Next)
    }

    fn is_ours(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.export.name.as_bytes()
    }

    /// Size and flags, as `EXPORT_NAME` and `INFO_EXPORT` tell them.
    fn exported(&self) -> Exported {
        let device = &self.export.device;
        let size = device.sector_count().saturating_mul(SECTOR_BYTES as u64);
        let mut flags = Transmission::HAS_FLAGS
            | Transmission::SEND_FLUSH
            | Transmission::SEND_FUA
            | Transmission::CAN_MULTI_CONN;
        flags |= match device.read_only() {
            true => Transmission::READ_ONLY,
            false => Transmission::SEND_TRIM | Transmission::SEND_WRITE_ZEROES,
        };
        flags.set(Transmission::SEND_DF, self.agreed.structured);
        Exported { size: size.into(), flags: flags.bits().into() }
    }

    /// The oldest option: it has no error reply, so a wrong name ends the connection.
    fn export_name(&mut self, name: &[u8]) -> io::Result<After> {
        if !self.is_ours(name) {
            return Err(invalid());
        }
        let mut bytes = self.exported().as_bytes().to_vec();
        if !self.no_zeroes {
            bytes.resize(bytes.len() + 124, 0);
        }
        self.stream.write_all(&bytes)?;
        Ok(After::Go)
    }

    fn list(&mut self, data: &[u8]) -> io::Result<After> {
        if !data.is_empty() {
            return self.reply(opt::LIST, rep::ERR_INVALID, &[]);
        }
        let name = self.export.name.as_bytes();
        let mut entry = U32::new(name.len() as u32).as_bytes().to_vec();
        entry.extend_from_slice(name);
        self.reply(opt::LIST, rep::SERVER, &entry)?;
        self.reply(opt::LIST, rep::ACK, &[])
    }

    fn go(&mut self, option: u32, data: &[u8]) -> io::Result<After> {
        let mut data = Data(data);
        let parsed = data.string().and_then(|name| {
            let count = data.record::<U16>()?.get();
            let wanted: Option<Vec<U16>> = (0..count).map(|_| data.record().copied()).collect();
            Some((name, wanted?)).filter(|_| data.0.is_empty())
        });
        let Some((name, wanted)) = parsed else {
            return self.reply(option, rep::ERR_INVALID, &[]);
        };
        if !self.is_ours(name) {
            return self.reply(option, rep::ERR_UNKNOWN, &[]);
        }
        let export = InfoExport { kind: info::EXPORT.into(), exported: self.exported() };
        self.reply(option, rep::INFO, export.as_bytes())?;
        if wanted.iter().any(|kind| *kind == info::NAME) {
            let mut bytes = U16::new(info::NAME).as_bytes().to_vec();
            bytes.extend_from_slice(self.export.name.as_bytes());
            self.reply(option, rep::INFO, &bytes)?;
        }
        let sizes = InfoBlockSize {
            kind: info::BLOCK_SIZE.into(),
            least: (SECTOR_BYTES as u32).into(),
            preferred: BLOCK_BYTES_PREFERRED.into(),
            most: TRANSFER_BYTES_MAX.into(),
        };
        self.reply(option, rep::INFO, sizes.as_bytes())?;
        self.reply(option, rep::ACK, &[])?;
        Ok(if option == opt::GO { After::Go } else { After::Next })
    }

    fn contexts(&mut self, option: u32, data: &[u8]) -> io::Result<After> {
        let mut data = Data(data);
        let parsed = data.string().and_then(|name| {
            let count = data.record::<U32>()?.get();
            let mut queries = Vec::new();
            for _ in 0..count {
                queries.push(data.string()?);
            }
            Some((name, queries)).filter(|_| data.0.is_empty())
        });
        let set = option == opt::SET_META_CONTEXT;
        if set {
            self.agreed.allocation = false;
        }
        let Some((name, queries)) = parsed.filter(|_| self.agreed.structured) else {
            return self.reply(option, rep::ERR_INVALID, &[]);
        };
        if !self.is_ours(name) {
            return self.reply(option, rep::ERR_UNKNOWN, &[]);
        }
        let all = !set && (queries.is_empty() || queries.contains(&&b"base:"[..]));
        if all || queries.contains(&BASE_ALLOCATION.as_bytes()) {
            self.agreed.allocation |= set;
            let id = if set { BASE_ALLOCATION_ID } else { 0 };
            let mut bytes = U32::new(id).as_bytes().to_vec();
            bytes.extend_from_slice(BASE_ALLOCATION.as_bytes());
            self.reply(option, rep::META_CONTEXT, &bytes)?;
        }
        self.reply(option, rep::ACK, &[])
    }
}

/// A cursor that cannot leave its bytes.
struct Data<'a>(&'a [u8]);

impl<'a> Data<'a> {
    fn record<T: Record>(&mut self) -> Option<&'a T> {
        let (head, rest) = T::ref_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(head)
    }

    /// A string with its length before it.
    fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.record::<U32>()?.get() as usize;
        let (head, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(head)
    }
}

pub(super) fn invalid() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

//! The other side of the handshake: a connection to a server of ours that the kernel's NBD client
//! takes over.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

use super::handshake::invalid;
use super::protocol::{
    Greeting, Handshake, INIT_MAGIC, InfoExport, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader,
    OptionReply, info, opt, rep,
};

/// How long a server may take over one step: it may be one that is still to be started.
const STEP_TIME_MAX: Duration = Duration::from_secs(60);

/// Longest reply that is read.
const REPLY_BYTES_MAX: u32 = 4 << 10;

/// A connection over which requests may be sent.
#[derive(Debug)]
pub struct Connection {
    /// The line.
    pub stream: UnixStream,
    /// Size of the export.
    pub size_bytes: u64,
    /// Transmission flags, `NBD_FLAG_*`.
    pub flags: u16,
}

/// Connects to the server at `path` and goes on with its only export, with simple replies.
///
/// # Errors
/// The stream's; `InvalidData` when the server does not speak the protocol.
pub fn connect(path: &Path) -> io::Result<Connection> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(STEP_TIME_MAX))?;
    stream.set_write_timeout(Some(STEP_TIME_MAX))?;
    let (size_bytes, flags) = negotiate(&mut stream)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(None)?;
    Ok(Connection { stream, size_bytes, flags })
}

/// Size and flags of the export.
fn negotiate(stream: &mut (impl Read + Write)) -> io::Result<(u64, u16)> {
    let greeting = Greeting::read_from_io(&mut *stream)?;
    let flags = Handshake::from_bits_truncate(greeting.flags.get());
    let magic = greeting.magic == INIT_MAGIC && greeting.option_magic == OPTION_MAGIC;
    if !magic || !flags.contains(Handshake::FIXED_NEWSTYLE) {
        return Err(invalid());
    }
    // No name, and no more told than has to be.
    let go = [0; 6];
    let header = OptionHeader {
        magic: OPTION_MAGIC.into(),
        option: opt::GO.into(),
        length: (go.len() as u32).into(),
    };
    let flags = U32::new(flags.bits().into());
    stream.write_all(&[flags.as_bytes(), header.as_bytes(), &go].concat())?;
    let mut export = None;
    loop {
        let (kind, data) = reply(stream)?;
        match (kind, export) {
            (rep::ACK, Some(export)) => return Ok(export),
            (rep::INFO, _) => export = export_of(&data).or(export),
            _ => return Err(invalid()),
        }
    }
}

/// A reply to `GO`: its kind and data.
fn reply(stream: &mut impl Read) -> io::Result<(u32, Vec<u8>)> {
    let reply = OptionReply::read_from_io(&mut *stream)?;
    let is_right = reply.magic == OPTION_REPLY_MAGIC && reply.option == opt::GO;
    if !is_right || reply.length > REPLY_BYTES_MAX {
        return Err(invalid());
    }
    let mut data = vec![0; reply.length.get() as usize];
    stream.read_exact(&mut data)?;
    Ok((reply.kind.get(), data))
}

/// Size and flags, if that is what a reply informs of.
fn export_of(data: &[u8]) -> Option<(u64, u16)> {
    let (info, _) = InfoExport::read_from_prefix(data).ok()?;
    let told = (info.exported.size.get(), info.exported.flags.get());
    (info.kind == info::EXPORT).then_some(told)
}

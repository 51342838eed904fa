//! The other side of the handshake: a connection to a server of ours that the kernel's NBD client
//! takes over.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::handshake::{array, invalid};
use super::protocol::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, INIT_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, info, opt,
    rep,
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
    let greeting: [u8; 8] = array(stream)?;
    let option: [u8; 8] = array(stream)?;
    let flags = u16::from_be_bytes(array(stream)?);
    let known = FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES;
    let magic =
        u64::from_be_bytes(greeting) == INIT_MAGIC && u64::from_be_bytes(option) == OPTION_MAGIC;
    if !magic || flags & FLAG_FIXED_NEWSTYLE == 0 {
        return Err(invalid());
    }
    // No name, and no more told than has to be.
    let mut message = u32::from(flags & known).to_be_bytes().to_vec();
    message.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    message.extend_from_slice(&opt::GO.to_be_bytes());
    message.extend_from_slice(&6u32.to_be_bytes());
    message.extend_from_slice(&[0; 6]);
    stream.write_all(&message)?;
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
    let magic = u64::from_be_bytes(array(stream)?);
    let option = u32::from_be_bytes(array(stream)?);
    let kind = u32::from_be_bytes(array(stream)?);
    let length = u32::from_be_bytes(array(stream)?);
    if magic != OPTION_REPLY_MAGIC || option != opt::GO || length > REPLY_BYTES_MAX {
        return Err(invalid());
    }
    let mut data = vec![0; length as usize];
    stream.read_exact(&mut data)?;
    Ok((kind, data))
}

/// Size and flags, if that is what a reply informs of.
fn export_of(data: &[u8]) -> Option<(u64, u16)> {
    let (kind, rest) = data.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let flags = rest.first_chunk()?;
    let told = (u64::from_be_bytes(*size), u16::from_be_bytes(*flags));
    (u16::from_be_bytes(*kind) == info::EXPORT).then_some(told)
}

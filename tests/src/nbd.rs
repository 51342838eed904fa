//! A client of the NBD door, of the protocol's oldest kind: `NBD_OPT_EXPORT_NAME`, simple replies,
//! one request at a time (doc/proto.md of the NBD project).

use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Commands.
pub const READ: u16 = 0;
/// Data follows the request.
pub const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
/// What was answered is durable.
pub const FLUSH: u16 = 3;
/// The range's content is not needed.
pub const TRIM: u16 = 4;
/// The range is zeros.
pub const WRITE_ZEROES: u16 = 6;
/// A flag: durable before it is answered.
pub const FUA: u16 = 1;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const COOKIE: u64 = 7;

/// How long an answer may take.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// A connection.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    /// Bytes of the export, as the server says.
    pub size: u64,
}

/// A request without its data.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// A command.
    pub kind: u16,
    /// [`FUA`], or 0.
    pub flags: u16,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub length: u32,
}

impl Request {
    /// One without flags.
    pub fn new(kind: u16, (offset, length): (u64, u32)) -> Request {
        Request { kind, flags: 0, offset, length }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend_from_slice(&self.flags.to_be_bytes());
        bytes.extend_from_slice(&self.kind.to_be_bytes());
        bytes.extend_from_slice(&COOKIE.to_be_bytes());
        bytes.extend_from_slice(&self.offset.to_be_bytes());
        bytes.extend_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

impl Client {
    /// Connects to the export without a name.
    ///
    /// # Errors
    /// The server is not there, or closes the connection.
    ///
    /// # Panics
    /// It speaks another protocol.
    pub fn connect(socket: impl AsRef<Path>) -> Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
        let (mut greeting, mut size, mut flags) = ([0; 18], [0; 8], [0; 2]);
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // No padding after the size.
        stream.write_all(&3u32.to_be_bytes())?;
        stream.write_all(&[&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat())?;
        stream.read_exact(&mut size)?;
        stream.read_exact(&mut flags)?;
        Ok(Client { stream, size: u64::from_be_bytes(size) })
    }

    /// The error of a request, 0 for none; `data` follows it, and `answer` is filled where there is
    /// no error.
    ///
    /// # Errors
    /// The connection ends.
    ///
    /// # Panics
    /// The answer is to another request.
    pub fn ask(&mut self, request: Request, data: &[u8], answer: &mut [u8]) -> Result<u32> {
        self.send(request)?;
        self.stream.write_all(data)?;
        self.answer(answer)
    }

    /// Sends a request that has no data, and does not wait.
    ///
    /// # Errors
    /// The connection ends.
    pub fn send(&mut self, request: Request) -> Result<()> {
        self.stream.write_all(&request.bytes())
    }

    /// The error of the next answer, 0 for none, with which `answer` is filled.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    ///
    /// # Panics
    /// As [`ask`](Self::ask).
    pub fn answer(&mut self, answer: &mut [u8]) -> Result<u32> {
        let (mut magic, mut error, mut cookie) = ([0; 4], [0; 4], [0; 8]);
        for part in [&mut magic[..], &mut error, &mut cookie] {
            self.stream.read_exact(part)?;
        }
        assert_eq!((magic, cookie), (REPLY_MAGIC.to_be_bytes(), COOKIE.to_be_bytes()));
        let error = u32::from_be_bytes(error);
        if error == 0 {
            self.stream.read_exact(answer)?;
        }
        Ok(error)
    }

    /// Ends the connection as the protocol has it.
    ///
    /// # Errors
    /// It has ended already.
    pub fn leave(mut self) -> Result<()> {
        self.stream.write_all(&Request::new(DISCONNECT, (0, 0)).bytes())
    }
}

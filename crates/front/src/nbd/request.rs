//! Requests: 28 bytes to a command, checked once against the device.

use polylane_block::BlockDevice;
use polylane_block::device::SECTOR_BYTES;

use zerocopy::FromBytes;

use super::protocol::{CommandFlags, REQUEST_MAGIC, Request, TRANSFER_BYTES_MAX, cmd, error};

/// Bytes of a request's header.
pub(super) const HEADER_BYTES: usize = size_of::<Request>();

/// A request as it came, in numbers of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) flags: CommandFlags,
    pub(super) kind: u16,
    pub(super) cookie: u64,
    pub(super) offset: u64,
    pub(super) length: u32,
}

/// What a client wants, of a range that was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Command {
    Read,
    Write { fua: bool },
    Flush,
    Trim { fua: bool },
    Zero { fua: bool, unmap: bool },
    Status { one: bool },
    Disconnect,
}

impl Header {
    /// Takes the bytes apart. `None` when they are no request: nothing after them can be trusted.
    pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let request = Request::read_from_bytes(bytes).ok()?;
        (request.magic == REQUEST_MAGIC).then_some(Header {
            flags: CommandFlags::from_bits_retain(request.flags.get()),
            kind: request.kind.get(),
            cookie: request.cookie.get(),
            offset: request.offset.get(),
            length: request.length.get(),
        })
    }

    /// Bytes that follow it. `None`: more than anybody may send.
    pub(super) fn payload(&self) -> Option<usize> {
        match self.kind {
            cmd::WRITE if self.length > TRANSFER_BYTES_MAX => None,
            cmd::WRITE => Some(self.length as usize),
            _ => Some(0),
        }
    }

    /// The command, or the protocol's error for it.
    pub(super) fn check(&self, device: &dyn BlockDevice, status: bool) -> Result<Command, u32> {
        let command = self.command(status).ok_or(error::INVAL)?;
        if matches!(command, Command::Flush | Command::Disconnect) {
            return Ok(command);
        }
        let changes = !matches!(command, Command::Read | Command::Status { .. });
        if changes && device.read_only() {
            return Err(error::PERM);
        }
        let sector = SECTOR_BYTES as u64;
        let whole = (self.offset | u64::from(self.length)).is_multiple_of(sector);
        if self.length == 0 || !whole {
            return Err(error::INVAL);
        }
        let size = device.sector_count().saturating_mul(sector);
        if self.offset.checked_add(u64::from(self.length)).is_none_or(|end| end > size) {
            return Err(if changes { error::NOSPC } else { error::INVAL });
        }
        match command {
            Command::Read if self.length > TRANSFER_BYTES_MAX => Err(error::INVAL),
            command => Ok(command),
        }
    }

    /// `None`: there is no such command, or not with these flags.
    fn command(&self, status: bool) -> Option<Command> {
        let fua = self.flags.contains(CommandFlags::FUA);
        // Clients may set FUA on anything once the server offers it.
        let (command, known) = match self.kind {
            cmd::READ => (Command::Read, CommandFlags::FUA | CommandFlags::DF),
            cmd::WRITE => (Command::Write { fua }, CommandFlags::FUA),
            cmd::DISC => (Command::Disconnect, self.flags),
            cmd::FLUSH => (Command::Flush, CommandFlags::FUA),
            cmd::TRIM => (Command::Trim { fua }, CommandFlags::FUA),
            cmd::WRITE_ZEROES => {
                let unmap = !self.flags.contains(CommandFlags::NO_HOLE);
                (Command::Zero { fua, unmap }, CommandFlags::FUA | CommandFlags::NO_HOLE)
            }
            cmd::BLOCK_STATUS if status => {
                let one = self.flags.contains(CommandFlags::REQ_ONE);
                (Command::Status { one }, CommandFlags::FUA | CommandFlags::REQ_ONE)
            }
            _ => return None,
        };
        known.contains(self.flags).then_some(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_block::ram::RamDevice;

    fn header(kind: u16, flags: u16, offset: u64, length: u32) -> Header {
        let flags = CommandFlags::from_bits_retain(flags);
        Header { flags, kind, cookie: 7, offset, length }
    }

    #[test]
    fn requests_are_checked_against_the_device() {
        let device = RamDevice::new(2048);
        let check = |header: Header| header.check(&device, true);
        assert_eq!(check(header(cmd::READ, 0, 0, 4096)), Ok(Command::Read));
        assert_eq!(check(header(cmd::WRITE, 1, 512, 512)), Ok(Command::Write { fua: true }));
        assert_eq!(check(header(cmd::FLUSH, 0, 0, 0)), Ok(Command::Flush));
        let zero = Command::Zero { fua: false, unmap: false };
        assert_eq!(check(header(cmd::WRITE_ZEROES, 2, 0, 1 << 20)), Ok(zero));
        for (kind, flags, offset, length, error) in [
            (cmd::READ, 0, 0, 0, error::INVAL),
            (cmd::READ, 0, 1, 512, error::INVAL),
            (cmd::READ, 0, 0, 511, error::INVAL),
            (cmd::READ, 0, 1 << 20, 512, error::INVAL),
            (cmd::READ, 0, u64::MAX - 511, 512, error::INVAL),
            (cmd::READ, 0, 0, u32::MAX, error::INVAL),
            (cmd::WRITE, 0, 1 << 20, 512, error::NOSPC),
            (cmd::TRIM, 0, u64::MAX - 1023, 1024, error::NOSPC),
            (cmd::WRITE_ZEROES, 1 << 4, 0, 512, error::INVAL),
            (5, 0, 0, 512, error::INVAL),
            (99, 0, 0, 512, error::INVAL),
        ] {
            assert_eq!(check(header(kind, flags, offset, length)), Err(error), "{kind} {offset}");
        }
        let status = header(cmd::BLOCK_STATUS, 8, 0, 512);
        assert_eq!(status.check(&device, true), Ok(Command::Status { one: true }));
        assert_eq!(status.check(&device, false), Err(error::INVAL));
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let mut bytes = [0; HEADER_BYTES];
        assert_eq!(Header::parse(&bytes), None);
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        assert!(Header::parse(&bytes).is_some());
        assert_eq!(header(cmd::WRITE, 0, 0, TRANSFER_BYTES_MAX + 1).payload(), None);
        assert_eq!(header(cmd::READ, 0, 0, u32::MAX).payload(), Some(0));
    }
}

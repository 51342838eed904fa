//! The kernel's NBD client: block devices that are served at sockets, set up over generic netlink
//! (`include/uapi/linux/{netlink,genetlink,nbd-netlink}.h`).
//!
//! What this module promises above: a client's descriptor is its own; sockets are borrowed for one
//! call, and the kernel holds those that it took in.
#![expect(unsafe_code, reason = "UNSAFETY: membership in a multicast group is a socket option")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use polylane_base::record::{self, Record};
use polylane_base::{Errno, Result};
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use zerocopy::native_endian::{I32, U16, U32};
use zerocopy::{FromZeros, IntoBytes};

/// A device of these is free to take: `/dev/nbdN`.
pub type Index = u32;

const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLA_F_NESTED: u16 = 1 << 15;
/// `NLA_TYPE_MASK`
const TYPE_MASK: u16 = (1 << 14) - 1;

polylane_base::record! {
    /// `struct nlmsghdr`
    struct MessageHeader: 16 {
        0x00 len: U32,
        0x04 kind: U16,
        0x06 flags: U16,
        0x08 sequence: U32,
        0x0c port: U32,
    }

    /// `struct genlmsghdr`
    struct GenericHeader: 4 {
        0x00 command: u8,
        0x01 version: u8,
        0x02 reserved: U16,
    }

    /// `struct nlattr`
    struct AttributeHeader: 4 {
        0x00 len: U16,
        0x02 kind: U16,
    }
}

/// Bytes of `struct nlmsghdr`, of it with `struct genlmsghdr`, and of `struct nlattr`.
const HEAD_BYTES: usize = size_of::<MessageHeader>();
const GENERIC_HEAD_BYTES: usize = HEAD_BYTES + size_of::<GenericHeader>();
const ATTRIBUTE_BYTES: usize = size_of::<AttributeHeader>();

/// Largest message that is expected.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

const SOL_NETLINK: i32 = 270;
const NETLINK_ADD_MEMBERSHIP: i32 = 1;

/// The family that knows of the others, `GENL_ID_CTRL`, and its words, `CTRL_*`.
mod control {
    pub(super) const ID: u16 = 0x10;
    pub(super) const GET_FAMILY: u8 = 3;
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;
    pub(super) const GROUPS: u16 = 7;
    pub(super) const GROUP_NAME: u16 = 1;
    pub(super) const GROUP_ID: u16 = 2;
}

/// `NBD_CMD_*`
mod command {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const DISCONNECT: u8 = 2;
    pub(super) const RECONFIGURE: u8 = 3;
    pub(super) const LINK_DEAD: u8 = 4;
}

/// `NBD_ATTR_*`
mod attribute {
    pub(super) const INDEX: u16 = 1;
    pub(super) const SIZE_BYTES: u16 = 2;
    pub(super) const BLOCK_SIZE_BYTES: u16 = 3;
    pub(super) const TIMEOUT: u16 = 4;
    pub(super) const SERVER_FLAGS: u16 = 5;
    pub(super) const SOCKETS: u16 = 7;
    pub(super) const DEAD_CONN_TIMEOUT: u16 = 8;
    pub(super) const BACKEND_IDENTIFIER: u16 = 10;
    /// `NBD_SOCK_ITEM` and, in it, `NBD_SOCK_FD`.
    pub(super) const SOCK_ITEM: u16 = 1;
    pub(super) const SOCK_FD: u16 = 1;
}

const FAMILY: &str = "nbd";
const GROUP: &str = "nbd_mc_group";

/// What a device is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup<'a> {
    /// Its number.
    pub index: Index,
    /// Its size.
    pub size_bytes: u64,
    /// Its sectors.
    pub block_bytes: u64,
    /// The transmission flags that the server told.
    pub flags: u16,
    /// After so many seconds without an answer a request is sent again, on another connection.
    pub timeout_s: u64,
    /// After so many seconds without any connection requests fail.
    pub dead_conn_timeout_s: u64,
    /// What others see of its purpose (Linux 5.14); who changes it has to say it.
    pub identifier: &'a str,
}

/// A line to the kernel's NBD client.
#[derive(Debug)]
pub struct Client {
    commands: OwnedFd,
    /// Where the kernel tells of connections that are lost.
    news: OwnedFd,
    family: u16,
}

impl Client {
    /// Opens one.
    ///
    /// # Errors
    /// `ENOENT` when the kernel has no such client, or its module is not loaded.
    pub fn open() -> Result<Client> {
        let (commands, news) = (generic()?, generic()?);
        let mut ask = Message::new(control::ID, control::GET_FAMILY);
        ask.text(control::FAMILY_NAME, FAMILY);
        let answer = ask.exchange(&commands)?.ok_or(Errno::ENOENT)?;
        let found = Attributes(&answer).find(control::FAMILY_ID).ok_or(Errno::ENOENT)?;
        let family = number::<U16>(found)?.get();
        let groups = Attributes(&answer).find(control::GROUPS).unwrap_or_default();
        let named = |group: &&[u8]| {
            let name = Attributes(group).find(control::GROUP_NAME).unwrap_or_default();
            name.strip_suffix(b"\0").unwrap_or(name) == GROUP.as_bytes()
        };
        let group = Attributes(groups).map(|(_, group)| group).find(named);
        let group = group.and_then(|group| Attributes(group).find(control::GROUP_ID));
        join(&news, number::<U32>(group.ok_or(Errno::ENOENT)?)?.get())?;
        Ok(Client { commands, news, family })
    }

    /// Makes a device of connections over which requests may be sent at once.
    ///
    /// # Errors
    /// `EBUSY` when the device is in use; the kernel's others.
    pub fn connect(&self, setup: &Setup<'_>, sockets: &[BorrowedFd<'_>]) -> Result<()> {
        let mut message = Message::new(self.family, command::CONNECT);
        message.number(attribute::INDEX, setup.index);
        message.long(attribute::SIZE_BYTES, setup.size_bytes);
        message.long(attribute::BLOCK_SIZE_BYTES, setup.block_bytes);
        message.long(attribute::SERVER_FLAGS, setup.flags.into());
        message.long(attribute::TIMEOUT, setup.timeout_s);
        message.long(attribute::DEAD_CONN_TIMEOUT, setup.dead_conn_timeout_s);
        message.text(attribute::BACKEND_IDENTIFIER, setup.identifier);
        message.sockets(sockets);
        message.exchange(&self.commands).map(drop)
    }

    /// Puts a connection in the place of one that is lost. Where none is, the kernel lets go of it.
    ///
    /// # Errors
    /// `EINVAL` when the device is nobody's, or somebody else's; the kernel's others.
    pub fn replace(&self, index: Index, identifier: &str, socket: BorrowedFd<'_>) -> Result<()> {
        let mut message = self.change(index, identifier);
        message.sockets(&[socket]);
        message.exchange(&self.commands).map(drop)
    }

    /// Gives a device another size.
    ///
    /// # Errors
    /// As [`replace`](Client::replace).
    pub fn resize(&self, index: Index, identifier: &str, size_bytes: u64) -> Result<()> {
        let mut message = self.change(index, identifier);
        message.long(attribute::SIZE_BYTES, size_bytes);
        message.exchange(&self.commands).map(drop)
    }

    fn change(&self, index: Index, identifier: &str) -> Message {
        let mut message = Message::new(self.family, command::RECONFIGURE);
        message.number(attribute::INDEX, index);
        message.text(attribute::BACKEND_IDENTIFIER, identifier);
        message
    }

    /// Ends a device: its server is told, what is under way fails.
    ///
    /// # Errors
    /// The kernel's.
    pub fn disconnect(&self, index: Index) -> Result<()> {
        let mut message = Message::new(self.family, command::DISCONNECT);
        message.number(attribute::INDEX, index);
        message.exchange(&self.commands).map(drop)
    }

    /// The device of which a connection was lost, if that is what the next news are. Does not wait.
    pub fn lost(&self) -> Option<Index> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let (count, _) = recv(&self.news, &mut bytes[..], RecvFlags::DONTWAIT).ok()?;
            let message = bytes.get(..count)?;
            let generic = record::get::<GenericHeader>(message, HEAD_BYTES);
            if generic.is_none_or(|generic| generic.command != command::LINK_DEAD) {
                continue;
            }
            let body = message.get(GENERIC_HEAD_BYTES..).unwrap_or_default();
            if let Some(index) = Attributes(body).find(attribute::INDEX) {
                return number::<U32>(index).ok().map(|index| index.get());
            }
        }
    }
}

/// Readable when there are news.
impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }
}

/// A socket with an address of the kernel's choice: one without is told nothing.
fn generic() -> Result<OwnedFd> {
    let (family, flags) = (AddressFamily::NETLINK, SocketFlags::CLOEXEC);
    let socket = socket_with(family, SocketType::RAW, flags, Some(GENERIC)).map_err(errno)?;
    bind(&socket, &SocketAddrNetlink::new(0, 0)).map_err(errno)?;
    Ok(socket)
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error())
}

fn join(socket: &OwnedFd, group: u32) -> Result<()> {
    // SAFETY: the kernel reads an integer of the length told.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            SOL_NETLINK,
            NETLINK_ADD_MEMBERSHIP,
            (&raw const group).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))),
    }
}

/// A request under construction.
struct Message(Vec<u8>);

impl Message {
    fn new(family: u16, command: u8) -> Message {
        let mut head = MessageHeader::new_zeroed();
        head.kind.set(family);
        head.flags.set(NLM_F_REQUEST | NLM_F_ACK);
        let generic = GenericHeader { command, version: 1, reserved: U16::ZERO };
        Message([head.as_bytes(), generic.as_bytes()].concat())
    }

    fn attribute(&mut self, kind: u16, data: &[u8]) {
        let len = ((ATTRIBUTE_BYTES + data.len()) as u16).into();
        self.0.extend_from_slice(AttributeHeader { len, kind: kind.into() }.as_bytes());
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    fn long(&mut self, kind: u16, value: u64) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    fn text(&mut self, kind: u16, value: &str) {
        self.attribute(kind, &[value.as_bytes(), b"\0"].concat());
    }

    fn sockets(&mut self, sockets: &[BorrowedFd<'_>]) {
        let mut list = Message(Vec::new());
        for socket in sockets {
            let mut item = Message(Vec::new());
            item.number(attribute::SOCK_FD, socket.as_raw_fd().cast_unsigned());
            list.attribute(attribute::SOCK_ITEM | NLA_F_NESTED, &item.0);
        }
        self.attribute(attribute::SOCKETS | NLA_F_NESTED, &list.0);
    }

    /// Sends it; the attributes of what is answered before the end, if there is something.
    fn exchange(mut self, socket: &OwnedFd) -> Result<Option<Vec<u8>>> {
        let length = self.0.len() as u32;
        record::at_mut::<MessageHeader>(&mut self.0, 0).len.set(length);
        send(socket, &self.0, SendFlags::empty()).map_err(errno)?;
        let (mut bytes, mut answer) = (vec![0; MESSAGE_BYTES_MAX], None);
        loop {
            let (count, _) = recv(socket, &mut bytes[..], RecvFlags::empty()).map_err(errno)?;
            let mut rest = &bytes[..count];
            while let Some(head) = record::get::<MessageHeader>(rest, 0) {
                let length = head.len.get() as usize;
                let message = rest.get(..length).ok_or(Errno::EIO)?;
                let body = message.get(HEAD_BYTES..).ok_or(Errno::EIO)?;
                if head.kind == NLMSG_ERROR {
                    return match number::<I32>(body)?.get() {
                        0 => Ok(answer),
                        error => Err(Errno(-error)),
                    };
                }
                let attributes = body.get(size_of::<GenericHeader>()..);
                answer = Some(attributes.unwrap_or_default().to_vec());
                rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            }
        }
    }
}

/// The number that a piece of memory begins with.
fn number<T: Record>(bytes: &[u8]) -> Result<&T> {
    record::get(bytes, 0).ok_or(Errno::EIO)
}

/// The attributes of a message, one after the other: kind and data.
struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    fn find(mut self, kind: u16) -> Option<&'a [u8]> {
        self.find_map(|(found, data)| (found == kind).then_some(data))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let head: &AttributeHeader = record::get(self.0, 0)?;
        let (length, kind) = (usize::from(head.len.get()), head.kind.get() & TYPE_MASK);
        let data = self.0.get(ATTRIBUTE_BYTES..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_out_as_they_went_in() {
        let mut message = Message::new(7, 1);
        message.number(attribute::INDEX, 3);
        message.text(attribute::BACKEND_IDENTIFIER, "ab");
        message.sockets(&[std::io::stdin().as_fd()]);
        let body = &message.0[GENERIC_HEAD_BYTES..];
        assert_eq!(body.len() % 4, 0);
        assert_eq!(Attributes(body).find(attribute::INDEX), Some(&3u32.to_ne_bytes()[..]));
        assert_eq!(Attributes(body).find(attribute::BACKEND_IDENTIFIER), Some(&b"ab\0"[..]));
        let sockets = Attributes(body).find(attribute::SOCKETS).expect("a list");
        let item = Attributes(sockets).find(attribute::SOCK_ITEM).expect("an item");
        assert_eq!(Attributes(item).find(attribute::SOCK_FD), Some(&0u32.to_ne_bytes()[..]));
        assert_eq!(Attributes(body).find(99), None);
    }

    #[test]
    fn broken_attributes_are_the_last() {
        for bytes in [&[][..], &[8], &[8, 0, 1, 0], &[2, 0, 1, 0, 9, 9, 9, 9], &[255, 255, 1, 0]] {
            assert_eq!(Attributes(bytes).count(), 0, "{bytes:?}");
        }
    }

    #[test]
    fn a_kernel_without_the_client_says_so() {
        let opened = Client::open().map(drop);
        assert!(matches!(opened, Ok(()) | Err(Errno::ENOENT | Errno::EPERM)), "{opened:?}");
    }
}

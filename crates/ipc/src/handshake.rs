//! The first two messages on a session's socket: `Hello` from the client, `Welcome` from the
//! service.
//!
//! Little-endian bytes at fixed places; `docs/design/wire.md` has the table. Both carry the wire
//! version, which must be equal: client library and service come from one build. The welcome
//! travels with the channel's memfd and one eventfd per core group. Then the socket is silent; its
//! end is the session's.
//!
//! A client that sees the lane otherwise than its tenant does is told `EXDEV`. It connects again
//! and sends the lane's root with its hello, opened by the path that it has for it.

use polylane_base::{Errno, Result};
use polylane_sys::copy::Method;
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::channel::CopyPlan;
use crate::layout::{Geometry, QueueKind};
use crate::message::{PATH_BYTES_MAX, VERSION};
use crate::owners::Owners;

/// Lanes of which a process can have sessions at a time: more are reached through FUSE. The library
/// keeps tables for each.
pub const LANES_MAX: usize = 8;

/// What a hello begins with.
const HELLO_MAGIC: [u8; 8] = *b"plhello\0";
/// What a welcome begins with.
const WELCOME_MAGIC: [u8; 8] = *b"plwelcm\0";

/// A hello on the wire, before its mount path.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireHello {
    magic: [u8; 8],
    version: U32,
    queue: U32,
    key: U64,
}

/// A welcome on the wire, before its list of covered directories and its maps.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct WireWelcome {
    magic: [u8; 8],
    version: U32,
    status: I32,
    token: [u8; 16],
    mailbox_count: U32,
    buffer_bytes: U32,
    queue: U32,
    groups: U32,
    copy_method: U32,
    copy_chunk_bytes: U32,
    covered: U32,
    frames: U32,
    attributes: U32,
    attached: U32,
    owners: U32,
}

/// Bytes of a hello before its mount path.
pub const HELLO_HEAD_BYTES: usize = size_of::<WireHello>();
/// Longest hello.
pub const HELLO_BYTES_MAX: usize = HELLO_HEAD_BYTES + PATH_BYTES_MAX;
/// Bytes of a welcome before its list of covered directories.
pub const WELCOME_HEAD_BYTES: usize = size_of::<WireWelcome>();
const _: () = assert!(HELLO_HEAD_BYTES == 24 && WELCOME_HEAD_BYTES == 76);
/// Longest welcome; a receive buffer of this size takes any.
pub const WELCOME_BYTES_MAX: usize = 60 << 10;

/// `Hello::queue` on the wire: the service's default.
const ANY_QUEUE: u32 = u32::MAX;

/// What a client says first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The request queue it would like; `None` for the service's default.
    pub queue: Option<QueueKind>,
    /// A secret of the client process, the same in all its sessions: with it goes the `turn` of a
    /// message.
    pub key: u64,
}

impl Hello {
    /// The hello of a client that sees the lane where its tenant does, as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.at(&[])
    }

    /// The hello of a client in whose name space the lane is at `mount`, absolute, as bytes.
    pub fn at(&self, mount: &[u8]) -> Vec<u8> {
        let hello = WireHello {
            magic: HELLO_MAGIC,
            version: VERSION.into(),
            queue: self.queue.map_or(ANY_QUEUE, |kind| kind as u32).into(),
            key: self.key.into(),
        };
        [hello.as_bytes(), mount].concat()
    }

    /// Bytes as a hello, and where the lane is for the client (empty: where its tenant sees it):
    /// `EPROTO` for another version, a path that is not absolute, or no hello at all.
    pub fn from_bytes(bytes: &[u8]) -> Result<(Hello, &[u8])> {
        let (hello, mount) = WireHello::read_from_prefix(bytes).map_err(|_| Errno::EPROTO)?;
        if mount.first().is_some_and(|&byte| byte != b'/') {
            return Err(Errno::EPROTO);
        }
        if mount.len() > PATH_BYTES_MAX || mount.contains(&0) {
            return Err(Errno::EPROTO);
        }
        if hello.magic != HELLO_MAGIC || hello.version != VERSION {
            return Err(Errno::EPROTO);
        }
        let queue = match hello.queue.get() {
            ANY_QUEUE => None,
            number => Some(QueueKind::from_number(number).ok_or(Errno::EPROTO)?),
        };
        Ok((Hello { queue, key: hello.key.get() }, mount))
    }
}

/// What the service answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Welcome {
    /// 0, or why there is no channel; then all else is without meaning.
    pub status: i32,
    /// The session's secret: names its FUSE slots.
    pub token: [u8; 16],
    /// The channel's shape.
    pub geometry: Geometry,
    /// How large payloads are moved.
    pub plan: CopyPlan,
    /// Attributes of statx(2) of which the lane knows for each file whether it has them; they have
    /// the bits of its inode flags.
    pub attributes: u32,
    /// The client has an attachment of its own: the last descriptor that comes with the welcome is
    /// the page that tells of mounts at it (`polylane_sys::notice`).
    pub attached: bool,
    /// Directories of the lane that something else is mounted on: their paths from the root of the
    /// lane, without a leading slash.
    pub covered: Vec<Vec<u8>>,
    /// Where numbers of users and groups are others to the client than to the lane's tenant.
    pub owners: Option<Owners>,
}

impl Welcome {
    /// A refusal.
    pub fn refusal(error: Errno) -> Welcome {
        Welcome {
            status: error.0,
            token: [0; 16],
            geometry: Geometry::default(),
            plan: CopyPlan::default(),
            attributes: 0,
            attached: false,
            covered: Vec::new(),
            owners: None,
        }
    }

    /// The welcome as bytes; `E2BIG` when the covered directories do not fit.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let owners = self.owners.as_ref().map(Owners::to_bytes).unwrap_or_default();
        let geometry = &self.geometry;
        let head = WireWelcome {
            magic: WELCOME_MAGIC,
            version: VERSION.into(),
            status: self.status.into(),
            token: self.token,
            mailbox_count: geometry.mailbox_count.into(),
            buffer_bytes: geometry.buffer_bytes.into(),
            queue: (geometry.queue as u32).into(),
            groups: geometry.groups.into(),
            copy_method: (self.plan.method as u32).into(),
            copy_chunk_bytes: self.plan.chunk_bytes.into(),
            covered: (self.covered.len() as u32).into(),
            frames: geometry.frames.into(),
            attributes: self.attributes.into(),
            attached: u32::from(self.attached).into(),
            owners: (owners.len() as u32).into(),
        };
        let mut bytes = head.as_bytes().to_vec();
        for path in &self.covered {
            let len = u16::try_from(path.len()).map_err(|_| Errno::E2BIG)?;
            bytes.extend(U16::from(len).as_bytes());
            bytes.extend(path);
        }
        bytes.extend(owners);
        if bytes.len() <= WELCOME_BYTES_MAX { Ok(bytes) } else { Err(Errno::E2BIG) }
    }

    /// Bytes as a welcome: `EPROTO` for another version or anything malformed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Welcome> {
        let (head, rest) = WireWelcome::read_from_prefix(bytes).map_err(|_| Errno::EPROTO)?;
        if head.magic != WELCOME_MAGIC || head.version != VERSION {
            return Err(Errno::EPROTO);
        }
        let geometry = Geometry {
            mailbox_count: head.mailbox_count.get(),
            buffer_bytes: head.buffer_bytes.get(),
            queue: QueueKind::from_number(head.queue.get()).ok_or(Errno::EPROTO)?,
            groups: head.groups.get(),
            frames: head.frames.get(),
        };
        geometry.layout().map_err(|_| Errno::EPROTO)?;
        let plan = CopyPlan {
            method: Method::from_number(head.copy_method.get()).ok_or(Errno::EPROTO)?,
            chunk_bytes: head.copy_chunk_bytes.get(),
        };
        let count = (head.owners.get() as usize).min(rest.len() + 1);
        let end = rest.len().checked_sub(count).ok_or(Errno::EPROTO)?;
        let (rest, owners) = rest.split_at(end);
        let covered = paths(rest, head.covered.get())?;
        let owners = match owners {
            [] => None,
            bytes => Some(Owners::from_bytes(bytes)?),
        };
        Ok(Welcome {
            status: head.status.get(),
            token: head.token,
            geometry,
            plan,
            attributes: head.attributes.get(),
            attached: head.attached.get() != 0,
            covered,
            owners,
        })
    }
}

fn paths(mut bytes: &[u8], count: u32) -> Result<Vec<Vec<u8>>> {
    let mut paths = Vec::new();
    for _ in 0..count {
        let (len, rest) = U16::read_from_prefix(bytes).map_err(|_| Errno::EPROTO)?;
        let len = usize::from(len.get());
        if len > PATH_BYTES_MAX || len > rest.len() {
            return Err(Errno::EPROTO);
        }
        let (path, rest) = rest.split_at(len);
        paths.push(path.to_vec());
        bytes = rest;
    }
    if bytes.is_empty() { Ok(paths) } else { Err(Errno::EPROTO) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    fn sample() -> Welcome {
        Welcome {
            status: 0,
            token: *b"0123456789abcdef",
            geometry: Geometry { groups: 2, queue: QueueKind::LapRing, ..Geometry::default() },
            plan: CopyPlan { method: Method::RepMovsb, chunk_bytes: 32768 },
            attributes: 0x70,
            attached: true,
            covered: vec![b".polylane".to_vec(), b"proc".to_vec()],
            owners: Some(Owners { overflow: [1, 2], ..Owners::default() }),
        }
    }

    #[test]
    fn both_survive_the_wire() {
        for queue in [None, Some(QueueKind::Mailbox), Some(QueueKind::Rcqb)] {
            let hello = Hello { queue, key: u64::MAX - 5 };
            let (home, away) = (hello.to_bytes(), hello.at(b"/a b"));
            assert_eq!(Hello::from_bytes(&home), Ok((hello.clone(), &b""[..])));
            assert_eq!(Hello::from_bytes(&away), Ok((hello.clone(), &b"/a b"[..])));
            assert_eq!(Hello::from_bytes(&hello.at(b"a b")), Err(Errno::EPROTO));
        }
        let welcome = sample();
        assert_eq!(Welcome::from_bytes(&welcome.to_bytes().unwrap()), Ok(welcome));
        let refusal = Welcome::refusal(Errno::EACCES);
        assert_eq!(Welcome::from_bytes(&refusal.to_bytes().unwrap()).unwrap().status, 13);
    }

    #[test]
    fn malformed_bytes_are_an_error() {
        let (good, mut rng) = (sample().to_bytes().unwrap(), Rng::new(2));
        for len in 0..good.len() {
            assert_eq!(Welcome::from_bytes(&good[..len]), Err(Errno::EPROTO), "cut at {len}");
        }
        for _ in 0..if cfg!(miri) { 200 } else { 20_000 } {
            let mut bytes = good.clone();
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.next_u64() as u8;
            if let Ok(welcome) = Welcome::from_bytes(&bytes) {
                assert!(welcome.geometry.layout().is_ok());
            }
            let _ = Hello::from_bytes(&bytes[..HELLO_HEAD_BYTES + 9]);
        }
        let big = Welcome { covered: vec![vec![b'x'; 4000]; 16], ..sample() };
        assert_eq!(big.to_bytes(), Err(Errno::E2BIG));
    }
}

//! The first two messages on a session's socket: `Hello` from the client, `Welcome` from the
//! service.
//!
//! Little-endian bytes at fixed places; `docs/design/wire.md` has the table. Both carry the wire
//! version, which must be equal: client library and service come from one build. The welcome
//! travels with the channel's memfd and one eventfd per core group. Then the socket is silent; its
//! end is the session's.

use polylane_base::{Errno, Result};
use polylane_sys::copy::Method;

use crate::channel::CopyPlan;
use crate::layout::{Geometry, QueueKind};
use crate::message::{PATH_BYTES_MAX, VERSION};

/// First word of a hello: "plhello\0".
const HELLO_MAGIC: u64 = u64::from_le_bytes(*b"plhello\0");
/// First word of a welcome: "plwelcm\0".
const WELCOME_MAGIC: u64 = u64::from_le_bytes(*b"plwelcm\0");

/// Bytes of a hello.
pub const HELLO_BYTES: usize = 24;
/// Bytes of a welcome before its list of covered directories.
pub const WELCOME_HEAD_BYTES: usize = 68;
/// Longest welcome; a receive buffer of this size takes any.
pub const WELCOME_BYTES_MAX: usize = 60 << 10;

/// `Hello::queue` on the wire: the service's default.
const ANY_QUEUE: u32 = u32::MAX;

/// What a client says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The request queue it would like; `None` for the service's default.
    pub queue: Option<QueueKind>,
    /// A secret of the client process, the same in all its sessions: with it goes the `turn` of a
    /// message.
    pub key: u64,
}

impl Hello {
    /// The hello as bytes.
    pub fn to_bytes(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&HELLO_MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let queue = self.queue.map_or(ANY_QUEUE, |kind| kind as u32);
        bytes[12..16].copy_from_slice(&queue.to_le_bytes());
        bytes[16..].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    /// Bytes as a hello: `EPROTO` for another version or no hello at all.
    pub fn from_bytes(bytes: &[u8]) -> Result<Hello> {
        let fits = bytes.len() == HELLO_BYTES
            && u64_at(bytes, 0) == HELLO_MAGIC
            && u32_at(bytes, 8) == VERSION;
        if !fits {
            return Err(Errno::EPROTO);
        }
        let queue = match u32_at(bytes, 12) {
            ANY_QUEUE => None,
            number => Some(QueueKind::from_number(number).ok_or(Errno::EPROTO)?),
        };
        Ok(Hello { queue, key: u64_at(bytes, 16) })
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
    /// Directories of the lane that something else is mounted on: their paths from the root of the
    /// lane, without a leading slash.
    pub covered: Vec<Vec<u8>>,
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
            covered: Vec::new(),
        }
    }

    /// The welcome as bytes; `E2BIG` when the covered directories do not fit.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = WELCOME_MAGIC.to_le_bytes().to_vec();
        let geometry = &self.geometry;
        for word in [VERSION, self.status as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.token);
        for word in [
            geometry.mailbox_count,
            geometry.buffer_bytes,
            geometry.queue as u32,
            geometry.groups,
            self.plan.method as u32,
            self.plan.chunk_bytes,
            self.covered.len() as u32,
            geometry.frames,
            self.attributes,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        for path in &self.covered {
            let len = u16::try_from(path.len()).map_err(|_| Errno::E2BIG)?;
            bytes.extend(len.to_le_bytes());
            bytes.extend(path);
        }
        if bytes.len() <= WELCOME_BYTES_MAX { Ok(bytes) } else { Err(Errno::E2BIG) }
    }

    /// Bytes as a welcome: `EPROTO` for another version or anything malformed.
    pub fn from_bytes(bytes: &[u8]) -> Result<Welcome> {
        let fits = bytes.len() >= WELCOME_HEAD_BYTES
            && u64_at(bytes, 0) == WELCOME_MAGIC
            && u32_at(bytes, 8) == VERSION;
        if !fits {
            return Err(Errno::EPROTO);
        }
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[16..32]);
        let geometry = Geometry {
            mailbox_count: u32_at(bytes, 32),
            buffer_bytes: u32_at(bytes, 36),
            queue: QueueKind::from_number(u32_at(bytes, 40)).ok_or(Errno::EPROTO)?,
            groups: u32_at(bytes, 44),
            frames: u32_at(bytes, 60),
        };
        geometry.layout().map_err(|_| Errno::EPROTO)?;
        let plan = CopyPlan {
            method: Method::from_number(u32_at(bytes, 48)).ok_or(Errno::EPROTO)?,
            chunk_bytes: u32_at(bytes, 52),
        };
        let (status, attributes) = (u32_at(bytes, 12) as i32, u32_at(bytes, 64));
        let covered = paths(&bytes[WELCOME_HEAD_BYTES..], u32_at(bytes, 56))?;
        Ok(Welcome { status, token, geometry, plan, attributes, covered })
    }
}

fn paths(mut bytes: &[u8], count: u32) -> Result<Vec<Vec<u8>>> {
    let mut paths = Vec::new();
    for _ in 0..count {
        let (len, rest) = bytes.split_first_chunk().ok_or(Errno::EPROTO)?;
        let len = usize::from(u16::from_le_bytes(*len));
        if len > PATH_BYTES_MAX || len > rest.len() {
            return Err(Errno::EPROTO);
        }
        let (path, rest) = rest.split_at(len);
        paths.push(path.to_vec());
        bytes = rest;
    }
    if bytes.is_empty() { Ok(paths) } else { Err(Errno::EPROTO) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
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
            covered: vec![b".polylane".to_vec(), b"proc".to_vec()],
        }
    }

    #[test]
    fn both_survive_the_wire() {
        for queue in [None, Some(QueueKind::Mailbox), Some(QueueKind::Rcqb)] {
            let hello = Hello { queue, key: u64::MAX - 5 };
            assert_eq!(Hello::from_bytes(&hello.to_bytes()), Ok(hello));
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
            let _ = Hello::from_bytes(&bytes[..HELLO_BYTES]);
        }
        let big = Welcome { covered: vec![vec![b'x'; 4000]; 16], ..sample() };
        assert_eq!(big.to_bytes(), Err(Errno::E2BIG));
    }
}

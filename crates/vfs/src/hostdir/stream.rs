//! Directory streams: positions are the host's, so they are as stable as the host makes them.
//!
//! One descriptor per directory serves all streams of it; a stream that goes on where the last
//! batch ended needs no seek. Entries are copied out before anybody is called back.

use super::descriptors::Descriptors;
use super::host::{self, errno};
use super::node::{Held, Node, Stream};
use crate::fs::Kind;
use polylane_base::{Errno, Ino, Result};
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Bytes of host entries read at a time.
const BATCH_SIZE: usize = 16 << 10;
/// Largest position the seam allows; ext4 ends its streams at `i64::MAX`.
const POSITION_MAX: u64 = i64::MAX as u64 - 2;

/// An entry as the host gave it.
pub(super) struct Listed {
    pub(super) ino: Ino,
    pub(super) next: u64,
    pub(super) kind: Kind,
    pub(super) name: Box<[u8]>,
}

/// The entries after position `from`: some, or none at the end.
pub(super) fn batch(fds: &Descriptors, dir: &Arc<Node>, from: u64) -> Result<Vec<Listed>> {
    let path = fds.path(dir)?;
    let from = if from >= POSITION_MAX { i64::MAX as u64 } else { from };
    let mut slot = dir.stream.lock();
    let mut stream = match slot.take() {
        Some(stream) => stream,
        None => open(fds, &path)?,
    };
    // The start is always sought: that makes some hosts look again.
    if from == 0 || stream.at != from {
        rustix::fs::seek(&stream.fd, SeekFrom::Start(from)).map_err(errno)?;
        stream.at = from;
    }
    loop {
        let listed = read(&path, &mut stream)?;
        // A batch of nothing but `.` and `..` is not the end.
        match listed {
            Some(listed) if listed.is_empty() => {}
            listed => {
                *slot = Some(stream);
                return Ok(listed.unwrap_or_default());
            }
        }
    }
}

fn open(fds: &Descriptors, path: &Held) -> Result<Stream> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd = fds.roomy(|| host::open(path, b".", flags, 0))?;
    Ok(Stream { fd: fds.counted(fd), at: 0 })
}

/// One `getdents64`; `None` at the end.
fn read(path: &Held, stream: &mut Stream) -> Result<Option<Vec<Listed>>> {
    let mut buffer = [MaybeUninit::uninit(); BATCH_SIZE];
    let mut raw = RawDir::new(&stream.fd, &mut buffer);
    let mut listed = Vec::new();
    let mut any = false;
    while let Some(entry) = raw.next() {
        let entry = entry.map_err(errno)?;
        any = true;
        stream.at = entry.next_entry_cookie();
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            listed.extend(kind(path, entry.file_type(), name)?.map(|kind| Listed {
                ino: Ino(entry.ino()),
                next: stream.at.min(POSITION_MAX),
                kind,
                name: name.into(),
            }));
        }
        if raw.is_buffer_empty() {
            break;
        }
    }
    Ok(any.then_some(listed))
}

/// What an entry is; hosts that do not say are asked. `None` when it has gone.
fn kind(path: &Held, told: FileType, name: &[u8]) -> Result<Option<Kind>> {
    Ok(Some(match told {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Symlink,
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        FileType::CharacterDevice => Kind::Char,
        FileType::BlockDevice => Kind::Block,
        FileType::Unknown => match host::stat_at(path, name) {
            Ok(found) => found.attr.kind,
            Err(Errno::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        },
    }))
}

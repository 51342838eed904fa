//! What client and service say to each other through a mailbox.
//!
//! A [`Message`] is at most sixteen little-endian 64-bit words, copied out of shared memory before
//! anything in it is looked at. A [`Reply`] has room for one inode's state beside. Paths, names and
//! file data travel in the mailbox's request buffer. Nothing in a message names its sender:
//! identity comes from the socket (`SO_PEERCRED`, `SO_PEERGROUPS`) when the channel is made.
//!
//! The table of fields per operation is `docs/design/wire.md`; it changes in the same commit.

mod entry;
mod flags;
mod set_what;

pub use self::entry::{ENTRY_HEAD_BYTES, EntryHead};
pub use self::flags::{LockFlags, NameEffects, TransferFlags};
pub use self::set_what::SetWhat;

/// Version of the whole wire format: a number made of the sources that define it. Client and
/// service must agree exactly, so that two builds of which one is older are told apart.
pub const VERSION: u32 = {
    let hash = 0x811c_9dc5;
    let hash = fnv1a(hash, include_bytes!("message.rs"));
    let hash = fnv1a(hash, include_bytes!("message/entry.rs"));
    let hash = fnv1a(hash, include_bytes!("message/flags.rs"));
    let hash = fnv1a(hash, include_bytes!("message/set_what.rs"));
    let hash = fnv1a(hash, include_bytes!("layout.rs"));
    let hash = fnv1a(hash, include_bytes!("stream.rs"));
    let hash = fnv1a(hash, include_bytes!("view.rs"));
    let hash = fnv1a(hash, include_bytes!("lent.rs"));
    fnv1a(hash, include_bytes!("channel/mailbox.rs"))
};

/// FNV-1a, 32 bits.
const fn fnv1a(mut hash: u32, bytes: &[u8]) -> u32 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

/// 64-bit words that a mailbox has for a message or a reply.
pub const WORDS: usize = 24;

/// Words of a message; the rest are zero.
pub const MESSAGE_WORDS: usize = 16;

/// Words of a message whose others are zero.
pub const MESSAGE_HEAD_WORDS: usize = 6;

/// Words of a reply that carries a status and a handle only.
pub const REPLY_HEAD_WORDS: usize = 3;

/// Longest path accepted, terminating NUL not counted (`PATH_MAX` - 1).
pub const PATH_BYTES_MAX: usize = 4095;

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $value:literal),* $(,)?) => {
        /// What a request asks for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u16)]
        pub enum Op { $($(#[$doc])* $name = $value),* }

        impl Op {
            /// Every operation, in the order of their numbers.
            pub const ALL: &'static [Op] = &[$(Op::$name),*];

            /// The operation of that number, if there is one.
            pub fn from_number(number: u16) -> Option<Op> {
                match number { $($value => Some(Op::$name),)* _ => None }
            }
        }
    };
}

ops! {
    /// Nothing: measures the way there and back. `flags`: [`STREAMED`].
    Ping = 0,
    /// Opens `path` below `dir`. `flags`: open(2) flags; `mode`, `umask`; `arg[0]`: number of the
    /// FUSE slot to bind, `NO_SLOT` for none; `arg[1]`: bytes that the answer may bring; `arg[2]`:
    /// [`MAY_REST`], [`MAY_BE_DIR`], [`FIRST`]; `arg[3]`: handle of a file at rest that is closed
    /// first, 0 for none. Reply: handle; count: [`MADE_IT`] where it made the file, else 0. A
    /// result that is neither a regular file nor a directory that was asked for is answered
    /// [`Status::UseKernel`], and nothing stays open.
    Open = 1,
    /// Drops `handle`, and unbinds its slot unless it escaped (then `value[0]` of the reply is 1).
    /// Sent without waiting for the reply. `flags`: [`AT_REST`].
    Close = 2,
    /// Reads `length` bytes at `offset`. Reply: count; data in the buffer.
    Read = 3,
    /// Writes `length` bytes from the buffer at `offset`; at the end of the file when the handle
    /// was opened `O_APPEND`. Reply: count; `value[0]`: offset after the last byte.
    Write = 4,
    /// State of `path` below `dir`; `flags`: `AT_SYMLINK_NOFOLLOW` | `AT_EMPTY_PATH`. Reply: attr.
    Stat = 5,
    /// State of `handle`. Reply: attr.
    Fstat = 6,
    /// `faccessat2`: `mode` is the access mask, `flags` as faccessat2(2).
    Access = 7,
    /// `mkdirat`: `mode`, `umask`.
    Mkdir = 8,
    /// `mknodat`: `mode` with its kind bits, `umask`, `arg[0]`: device number.
    Mknod = 9,
    /// `symlinkat`: first path: target; second path: the new name.
    Symlink = 10,
    /// `linkat`: first path below `dir`, second below `dir2`; `flags`: `AT_SYMLINK_FOLLOW`. With
    /// `AT_EMPTY_PATH` as well and no first path: `handle`, an open file by its link in `/proc`.
    Link = 11,
    /// `unlinkat`; `flags`: `AT_REMOVEDIR`. Reply: `value[0]`: [`NameEffects`].
    Unlink = 12,
    /// `renameat2`: first path below `dir`, second below `dir2`; `flags`: `RENAME_*`. Reply:
    /// `value[0]`: [`NameEffects`].
    Rename = 13,
    /// `readlinkat`. Reply: count; target in the buffer.
    Readlink = 14,
    /// chmod, chown, utimensat and truncate by path: [`SetWhat`] in `arg[0]`. `flags`:
    /// `AT_SYMLINK_NOFOLLOW`.
    SetattrPath = 15,
    /// The same on `handle`.
    SetattrHandle = 16,
    /// `fsync` of `handle`; `flags` 1: data only.
    Fsync = 17,
    /// `syncfs` of the lane.
    Sync = 18,
    /// `fallocate` of `handle`: `flags`: `FALLOC_FL_*`; `offset`, `length`.
    Fallocate = 19,
    /// `lseek` SEEK_DATA (`flags` 3) or SEEK_HOLE (`flags` 4) from `offset`. Reply: `value[0]`.
    Seek = 20,
    /// `statfs` of the lane. Reply: `value[0..8]` = bsize, blocks, bfree, bavail, files, ffree,
    /// namelen, magic.
    Statfs = 21,
    /// `getxattr`: first path below `dir`, or `handle` when the path is empty; second path: the
    /// name; `length`: size of the caller's buffer (0 asks for the size). `flags`:
    /// `AT_SYMLINK_NOFOLLOW`.
    Getxattr = 22,
    /// `setxattr`: as above, value after the two paths, `length` its size, `arg[0]`: `XATTR_*`.
    Setxattr = 23,
    /// `listxattr`: NUL-terminated names in the buffer.
    Listxattr = 24,
    /// `removexattr`.
    Removexattr = 25,
    /// POSIX or OFD lock or unlock (`F_SETLK`) on `handle`, for the session's process: `flags`:
    /// `LOCK_*`; `mode`: `F_RDLCK`, `F_WRLCK`, `F_UNLCK`; `offset`, `length` (0: to the end).
    Lock = 26,
    /// `F_GETLK`: as `Lock`. Reply: `value[0..4]` = type, start, length (0: to the end), and
    /// the holder's number as the tenant sees it (`u32::MAX`: no process).
    GetLock = 27,
    /// Takes back a waiting `Lock` of the mailbox number in `arg[0]`: its reply is `EINTR`.
    Cancel = 28,
    /// A handle on the directory `path` below `dir`, good as `dir` and for `Readdir`. `length`: as
    /// of that, from the begin; 0: none. `flags`: `O_NOFOLLOW`. Reply: handle, attr, the entries.
    OpenDir = 29,
    /// A handle for an inherited descriptor by its ticket, `arg[0..2]`. Reply: handle, attr,
    /// `value[0]`: open flags, [`crate::ioctl::UNFLAGGED`]; `value[1]`: slot number or `NO_SLOT`.
    Redeem = 30,
    /// The slots of all handles of this client are about to be shared with other processes: from
    /// now on they belong to their kernel descriptors and live until the kernel releases them.
    ShareAll = 31,
    /// `copy_file_range` from `handle` at `offset` to handle `dir` at `arg[0]`, `length` bytes.
    CopyRange = 32,
    /// Reply: `value[0..2]`: the ticket by which the own node of `handle`'s file is opened, once:
    /// `SLOT_DIR/x-<ticket>`, `O_CREAT`, the same access mode. [`MAP_SHARED`] in `flags` only asks.
    Expose = 33,
    /// `O_APPEND` and `O_DIRECT` of `handle` become those in `flags` (`F_SETFL`).
    SetFlags = 34,
    /// Up to `length` bytes of packed entries of the directory handle from position `offset`, in
    /// `linux_dirent64` form. Reply: count; `value[0]`: [`LISTED`] or 0.
    Readdir = 35,
    /// Asks for a lease on the directory `path` below `dir` (see [`crate::stream`]); an empty path
    /// is `dir` itself. `EAGAIN`: not now. Reply: count of names, `value[0]` = number of the lease;
    /// in the buffer each name of at most `stream::NAME_BYTES_MAX` bytes after its length in one
    /// byte, whose highest bit says, for [`TELL_SOLE`], that it is the only way to its file.
    Lease = 36,
    /// Takes in what the client wrote of `handle` on loan behind the end, as far as whole pages go,
    /// and gives room for more, while the client goes on. Sent without waiting for the reply.
    Extend = 37,
    /// The kernel, which opened `handle`, may have a lease of fcntl(2) on it from now on, `mode`:
    /// `F_RDLCK` or `F_WRLCK`. `EAGAIN`: others have the file open through their channels.
    Oplock = 38,
    /// As `Expose`, of as many open files as handles lie in the payload, 8 bytes each, at most
    /// [`EXPOSED_MAX`]; `length`: bytes of them. Reply: count of bytes; in the payload a ticket of
    /// 16 bytes for each handle, zeros for one that has none.
    ExposeAll = 39,
}

/// `arg[0]` of [`Op::Open`]: no slot, the file is to be used through this channel only.
pub const NO_SLOT: u64 = u64::MAX;

/// `arg[2]` of [`Op::Open`], for reading: the client would close the file and open it again
/// without a request ([`crate::view`]: "at rest"). The reply's `value[2..4]` are a mark as for
/// [`MARK`], `value[4]` the number under which the file may rest (0: it may not), `value[5]` its
/// view's number plus one.
pub const MAY_REST: u64 = 1;
/// `arg[2]` of [`Op::Open`], for reading: the client has, or is about to have, the kernel's
/// descriptor of what the path leads to, if that is a directory. Then the reply is a handle as that
/// of [`Op::OpenDir`], with the state, and no slot is bound.
pub const MAY_BE_DIR: u64 = 2;
/// Count of a reply to [`Op::Open`]: the opening made the file.
pub const MADE_IT: u64 = 1;
/// `arg[2]` of [`Op::Open`], with [`MAY_REST`]: no such open came before, of late. What the answer
/// brings comes in the payload: frames are for files that are read again.
pub const FIRST: u64 = 4;
/// `flags` of [`Op::Close`]: the program closed the file before, and the locks of its process on
/// the file are none that this close gives up.
pub const AT_REST: u32 = 1;

/// `dir` of a message: the root of the lane.
pub const DIR_ROOT: u64 = u64::MAX;

/// Beside the other `flags` of [`Op::Unlink`] and [`Op::Rename`]: the client keeps account of the
/// names in the directory, on which it has a lease, and the lease goes on.
pub const LEASED: u32 = 1 << 31;

/// `flags` of [`Op::Lease`]: the client is about to remove names, and is to be told which are the
/// only way to a regular file: whose name is its only one, which nobody has in hand, and which the
/// client may remove.
pub const TELL_SOLE: u32 = 1;
/// The length of such a name in the reply of [`Op::Lease`] has this bit.
pub const SOLE: u8 = 1 << 7;

/// In replies of [`Op::OpenDir`], [`Op::Readdir`]: these were the last entries.
pub const LISTED: u64 = 1;
/// `flags` of [`Op::Ping`]: what became of the entry of the stream at position `arg[0]`? The
/// reply's `value[0]` is 1, once, where it was refused and nothing of it was done.
pub const STREAMED: u32 = 1;
/// `flags` of [`Op::Stat`] and [`Op::Access`], beside the others: with the answer, and with
/// `ENOENT`, a mark is wanted, by which the client knows that it still holds. The reply's
/// `value[0]` is [`IS_MARK`] with the places of two counts (bits 0..32, 32..63), `value[1]` the
/// sum of these and of the first count; 0: no mark.
pub const MARK: u32 = 1 << 30;
/// Beside the places of a mark: it is one.
pub const IS_MARK: u64 = 1 << 63;
/// In `value[0]` of the reply to [`Op::Stat`] without [`MARK`]: the kernel remembers what this
/// answer says, or does once it is asked, so that it gives the same without a request.
pub const KERNEL_KNOWS: u64 = 1;
/// Counts that the service shows for marks.
pub const MARK_PLACES: usize = 8192;

/// A request as it lies in a mailbox. Every field is a claim of the client until it was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// What is asked for.
    pub op: Op,
    /// Flags of the operation.
    pub flags: u32,
    /// Permission bits, access mask or lock type.
    pub mode: u32,
    /// The caller's umask, for operations that create.
    pub umask: u32,
    /// Bytes of the first path, at the start of the buffer: at most [`PATH_BYTES_MAX`].
    pub path_len: u32,
    /// Bytes of the second path, right after the first.
    pub path2_len: u32,
    /// Which of the client's requests that must be done once this is, whichever service does it;
    /// 0: one that may be done again.
    pub turn: u32,
    /// The open file meant.
    pub handle: u64,
    /// Where the first path starts: a directory handle or [`DIR_ROOT`].
    pub dir: u64,
    /// Where the second path starts.
    pub dir2: u64,
    /// Byte offset.
    pub offset: u64,
    /// Byte count.
    pub length: u64,
    /// More arguments, by operation.
    pub arg: [u64; 4],
    /// Times of [`Op::SetattrPath`].
    pub time: [u64; 4],
}

impl Message {
    /// A message with every argument zero and both directories the root.
    pub const fn new(op: Op) -> Self {
        Message {
            op,
            flags: 0,
            mode: 0,
            umask: 0,
            path_len: 0,
            path2_len: 0,
            turn: 0,
            handle: 0,
            dir: DIR_ROOT,
            dir2: DIR_ROOT,
            offset: 0,
            length: 0,
            arg: [0; 4],
            time: [0; 4],
        }
    }

    /// The first words: what most messages use, in the cache line of the mailbox's state.
    #[inline]
    pub(crate) fn head(&self) -> [u64; MESSAGE_HEAD_WORDS] {
        let used = if self.has_tail() { MESSAGE_WORDS } else { MESSAGE_HEAD_WORDS };
        [
            pair(self.op as u32 | (used as u32) << 16, self.flags),
            self.handle,
            self.offset,
            self.length,
            pair(self.mode, self.umask),
            pair(self.path_len & 0xffff | self.path2_len << 16, self.turn),
        ]
    }

    /// The other words. Directories are inverted, so that the root is zero.
    #[inline]
    pub(crate) fn tail(&self) -> [u64; MESSAGE_WORDS - MESSAGE_HEAD_WORDS] {
        let ([a, b, c, d], [e, f, g, h]) = (self.arg, self.time);
        [!self.dir, !self.dir2, a, b, c, d, e, f, g, h]
    }

    /// Whether the other words are not all zero, and hence travel.
    #[inline]
    pub(crate) fn has_tail(&self) -> bool {
        self.dir != DIR_ROOT || self.dir2 != DIR_ROOT || self.arg != [0; 4] || self.time != [0; 4]
    }

    /// The message as words.
    pub fn to_words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[..MESSAGE_HEAD_WORDS].copy_from_slice(&self.head());
        words[MESSAGE_HEAD_WORDS..MESSAGE_WORDS].copy_from_slice(&self.tail());
        words
    }

    /// How many words of a message travel, going by its first one; `None` when that is impossible.
    #[inline]
    pub fn words_used(first: u64) -> Option<usize> {
        let used = (low(first) >> 16) as usize;
        (used == MESSAGE_HEAD_WORDS || used == MESSAGE_WORDS).then_some(used)
    }

    /// Words as a message; `None` when the operation does not exist. Words that do not travel are
    /// zero.
    #[inline]
    pub fn from_words(words: &[u64; WORDS]) -> Option<Self> {
        Self::words_used(words[0])?;
        Some(Message {
            op: Op::from_number(low(words[0]) as u16)?,
            flags: high(words[0]),
            handle: words[1],
            offset: words[2],
            length: words[3],
            mode: low(words[4]),
            umask: high(words[4]),
            path_len: low(words[5]) & 0xffff,
            path2_len: low(words[5]) >> 16,
            turn: high(words[5]),
            dir: !words[6],
            dir2: !words[7],
            arg: [words[8], words[9], words[10], words[11]],
            time: [words[12], words[13], words[14], words[15]],
        })
    }
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// Done; a count where the operation has one, else 0.
    Done(u64),
    /// Failed with this errno.
    Failed(i32),
    /// The path leaves the lane (an absolute link, `..` above the root, another mount), or the
    /// object is of a kind that the kernel must open: repeat the call through the kernel.
    UseKernel,
}

/// An inode's state in a reply: `statx` fields without what the client knows already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WireAttr {
    /// Inode number.
    pub ino: u64,
    /// `st_mode`.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// 512-byte units.
    pub blocks: u64,
    /// Preferred I/O size.
    pub blksize: u32,
    /// Inode flags (ioctl_iflags(2)).
    pub flags: u32,
    /// Nanosecond parts of atime, mtime, ctime, btime.
    pub nsec: [u32; 4],
    /// Second parts of atime, mtime, ctime, btime.
    pub sec: [i64; 4],
}

/// A reply as it lies in a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reply {
    /// How it ended.
    pub status: Status,
    /// A new handle, for operations that give one.
    pub handle: u64,
    /// More results, by operation. Operations that return `attr` use the first two only.
    pub value: [u64; 8],
    /// The state of the inode, for operations that return one.
    pub attr: Option<WireAttr>,
}

impl Reply {
    /// A reply with a status and nothing else.
    pub const fn new(status: Status) -> Self {
        Reply { status, handle: 0, value: [0; 8], attr: None }
    }

    /// The first words: all of a reply that carries a status and a handle only.
    #[inline]
    pub(crate) fn head(&self) -> [u64; REPLY_HEAD_WORDS] {
        let (tag, errno, count) = match self.status {
            Status::Done(count) => (TAG_DONE, 0, count),
            Status::Failed(errno) => (TAG_FAILED, errno, 0),
            Status::UseKernel => (TAG_USE_KERNEL, 0, 0),
        };
        let tail = match self.attr {
            Some(_) => HAS_ATTR,
            None if self.value != [0; 8] => HAS_VALUES,
            None => 0,
        };
        [pair(tag | tail, errno as u32), count, self.handle]
    }

    /// The reply as words. A reply with `attr` keeps `value[0..2]` only.
    pub fn to_words(&self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        words[..VALUES].copy_from_slice(&self.head());
        words[VALUES..][..VALUE_WORDS].copy_from_slice(&self.value);
        if let Some(attr) = &self.attr {
            words[ATTR..].copy_from_slice(&[0; WORDS - ATTR]);
            words[ATTR..ATTR + WireAttr::WORDS].copy_from_slice(&attr.to_words());
        }
        words
    }

    /// Words as a reply; `None` when they are none. Words that the first one does not announce are
    /// not looked at.
    #[inline]
    pub fn from_words(words: &[u64; WORDS]) -> Option<Self> {
        let mut reply = Self::from_head([words[0], words[1], words[2]])?;
        match low(words[0]) & !TAG_MASK {
            HAS_VALUES => reply.value.copy_from_slice(&words[VALUES..][..VALUE_WORDS]),
            HAS_ATTR => {
                reply.value[..ATTR - VALUES].copy_from_slice(&words[VALUES..ATTR]);
                reply.attr = Some(WireAttr::from_words(&words[ATTR..]));
            }
            _ => {}
        }
        Some(reply)
    }

    /// The first words as a reply without its tail.
    #[inline]
    pub(crate) fn from_head(head: [u64; REPLY_HEAD_WORDS]) -> Option<Self> {
        let status = match low(head[0]) & TAG_MASK {
            TAG_DONE => Status::Done(head[1]),
            TAG_FAILED => Status::Failed(high(head[0]) as i32),
            TAG_USE_KERNEL => Status::UseKernel,
            _ => return None,
        };
        let tail = low(head[0]) & !TAG_MASK;
        let known = tail == 0 || tail == HAS_VALUES || tail == HAS_ATTR;
        known.then_some(Reply { handle: head[2], ..Reply::new(status) })
    }

    /// How many words mean something, going by the first one.
    #[inline]
    pub fn words_used(first: u64) -> usize {
        match low(first) & !TAG_MASK {
            HAS_ATTR => ATTR + WireAttr::WORDS,
            HAS_VALUES => VALUES + VALUE_WORDS,
            _ => REPLY_HEAD_WORDS,
        }
    }
}

const TAG_DONE: u32 = 0;
const TAG_FAILED: u32 = 1;
const TAG_USE_KERNEL: u32 = 2;
const TAG_MASK: u32 = 0xff;
/// Beside a tag: `value` is not all zero.
const HAS_VALUES: u32 = 0x100;
/// Beside a tag: `attr` is there, and the first two of `value`.
const HAS_ATTR: u32 = 0x200;

/// First word of `value`.
const VALUES: usize = REPLY_HEAD_WORDS;
/// Words of `value`.
const VALUE_WORDS: usize = 8;
/// First word of `attr`, which lies over `value[2..]`.
const ATTR: usize = VALUES + 2;

const _: () = assert!(ATTR + WireAttr::WORDS <= WORDS);

impl WireAttr {
    /// Words of an attr.
    pub const WORDS: usize = 13;

    /// As words.
    pub fn to_words(self) -> [u64; Self::WORDS] {
        let [anow, mnow, cnow, bnow] = self.nsec;
        let [asec, msec, csec, bsec] = self.sec.map(|sec| sec as u64);
        [
            self.ino,
            pair(self.mode, self.nlink),
            pair(self.uid, self.gid),
            self.rdev,
            self.size,
            self.blocks,
            pair(self.blksize, self.flags),
            pair(anow, mnow),
            pair(cnow, bnow),
            asec,
            msec,
            csec,
            bsec,
        ]
    }

    /// From the first [`WireAttr::WORDS`] of `words`, of which there are that many.
    #[inline(always)]
    pub fn from_words(words: &[u64]) -> Self {
        WireAttr {
            ino: words[0],
            mode: low(words[1]),
            nlink: high(words[1]),
            uid: low(words[2]),
            gid: high(words[2]),
            rdev: words[3],
            size: words[4],
            blocks: words[5],
            blksize: low(words[6]),
            flags: high(words[6]),
            nsec: [low(words[7]), high(words[7]), low(words[8]), high(words[8])],
            sec: [words[9], words[10], words[11], words[12]].map(|sec| sec as i64),
        }
    }
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

const fn low(word: u64) -> u32 {
    word as u32
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

/// Most handles of one [`Op::ExposeAll`].
pub const EXPOSED_MAX: usize = 64;

/// In the flags of [`Op::Expose`]: the mapping is to be shared.
pub const MAP_SHARED: u32 = 1;

/// A directory name in the root of every lane that no libservice sees. The supervisor mounts the
/// pool's run directory (socket, preload library) on it; `readdir` does not show it.
pub const RESERVED_DIR: &str = ".polylane";

/// Name of the hidden directory in the root of a lane under which a client opens its slots:
/// `SLOT_DIR/<32 hex digits of its token>-<number>`, with `O_CREAT`.
pub const SLOT_DIR: &str = ".polylane-slots";

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    fn attr(rng: &mut Rng) -> WireAttr {
        let mut next = || rng.next_u64();
        WireAttr {
            ino: next(),
            mode: next() as u32,
            nlink: next() as u32,
            uid: next() as u32,
            gid: next() as u32,
            rdev: next(),
            size: next(),
            blocks: next(),
            blksize: next() as u32,
            flags: next() as u32,
            nsec: [next() as u32, next() as u32, next() as u32, next() as u32],
            sec: [next() as i64, next() as i64, next() as i64, next() as i64],
        }
    }

    #[test]
    fn messages_survive_the_wire() {
        let mut rng = Rng::new(1);
        for &op in Op::ALL {
            for used in [MESSAGE_HEAD_WORDS, MESSAGE_WORDS] {
                let mut words = [0; WORDS];
                words[..used].fill_with(|| rng.next_u64() | 1);
                words[0] = words[0] << 32 | (used as u64) << 16 | op as u64;
                assert_eq!(Message::words_used(words[0]), Some(used));
                let message = Message::from_words(&words).unwrap();
                assert_eq!((message.op, message.to_words()), (op, words));
            }
        }
    }

    #[test]
    fn replies_survive_the_wire_in_the_words_they_use() {
        let mut rng = Rng::new(2);
        let statuses = [Status::Done(7), Status::Failed(-3), Status::UseKernel];
        for round in 0..300 {
            let mut reply = Reply::new(statuses[round % 3]);
            reply.handle = rng.next_u64();
            match round / 3 % 3 {
                0 => {}
                1 => reply.value = std::array::from_fn(|_| rng.next_u64()),
                _ => {
                    (reply.value[0], reply.value[1]) = (rng.next_u64(), rng.next_u64());
                    reply.attr = Some(attr(&mut rng));
                }
            }
            let words = reply.to_words();
            let used = Reply::words_used(words[0]);
            assert_eq!(used == REPLY_HEAD_WORDS, round / 3 % 3 == 0);
            let mut seen = [0; WORDS];
            seen[..used].copy_from_slice(&words[..used]);
            assert_eq!(Reply::from_words(&seen), Some(reply));
        }
    }

    #[test]
    fn nonsense_is_no_message_and_no_reply() {
        let mut words = [0; WORDS];
        let ops = Op::ALL.len() as u64;
        for first in [0, 6 << 16 | ops, 0x6_ffff, 7 << 16, 17 << 16, 0xffff_0000, 0xffff_ffff] {
            words[0] = first;
            assert_eq!(Message::from_words(&words), None, "{first:#x}");
        }
        assert_eq!(Message::new(Op::Ping).to_words()[0], 6 << 16);
        for tag in [3, 0xff, 0x300, 0x400, 0x8000_0000] {
            words[0] = tag;
            assert_eq!(Reply::from_words(&words), None, "{tag:#x}");
        }
    }
}

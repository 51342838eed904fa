//! FUSE_INIT and mount options: what kernel and lane agree on.
//!
//! The supervisor negotiates once per mount and keeps the [`Params`]; every service of that mount
//! is told them. A session that meets an INIT all the same (a mount whose supervisor is the
//! service, as in tests) answers it in the same way.

use std::io;
use std::os::fd::AsFd;

use polylane_base::{Errno, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use zerocopy::FromZeros;
use zerocopy::native_endian::U32;

use super::flags::InitFlags;
use super::protocol::{MAJOR, MINOR, MINOR_MIN, OUT_HEADER_BYTES, opcode};
use super::records::{InitOut, InitVersion, InitWish, OutHeader};
use super::reply::Body;
use super::request::{Reader, Request};

/// Largest read or write in one request: what 256 pages hold, the kernel's default limit.
pub const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// A message is a header and arguments beside the data of a WRITE; the kernel asks for a page of
/// room.
pub const MESSAGE_BYTES_MAX: usize = TRANSFER_BYTES_MAX as usize + MESSAGE_ROOM;
const MESSAGE_ROOM: usize = 8192;
const PAGE_BYTES: u32 = 4096;
/// Requests that the kernel may have outstanding without a waiting caller (readahead, writeback).
const BACKGROUND_MAX: u16 = 64;
/// Above this many the kernel tells its writeback to slow down: three quarters, as it does itself.
const CONGESTION: u16 = BACKGROUND_MAX / 4 * 3;

/// Everything wanted where the kernel offers it. Not wanted: writeback cache, cached symbolic
/// links, zero-message opens (a fast-lane open must be seen), splice. With asynchronous direct I/O
/// or without, Linux does not move the position of io_uring's requests that name no offset.
const WANTED: InitFlags = InitFlags::ASYNC_READ
    .union(InitFlags::POSIX_LOCKS)
    .union(InitFlags::ATOMIC_O_TRUNC)
    .union(InitFlags::EXPORT_SUPPORT)
    .union(InitFlags::BIG_WRITES)
    .union(InitFlags::ASYNC_DIO)
    .union(InitFlags::DONT_MASK)
    .union(InitFlags::FLOCK_LOCKS)
    .union(InitFlags::HAS_IOCTL_DIR)
    .union(InitFlags::PARALLEL_DIROPS)
    .union(InitFlags::MAX_PAGES)
    .union(InitFlags::POSIX_ACL)
    .union(InitFlags::EXPLICIT_INVAL_DATA)
    .union(InitFlags::HANDLE_KILLPRIV_V2)
    .union(InitFlags::SETXATTR_EXT)
    .union(InitFlags::INIT_EXT)
    .union(InitFlags::CREATE_SUPP_GROUP)
    .union(InitFlags::DIRECT_IO_ALLOW_MMAP)
    .union(InitFlags::HAS_RESEND);

/// What one lane wants and another does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wants {
    /// It keeps access control lists ([`Character::acls`](polylane_vfs::fs::Character::acls)).
    pub acls: bool,
    /// Its mounts can be id-mapped. Of requests that make nothing the kernel alone knows the user
    /// then, on all mounts of the connection.
    pub id_maps: bool,
    /// What programs read and write goes through the kernel's page cache, as before Linux 6.6.
    pub kernel_cache: bool,
}

/// What one kind of mount wants of the kernel.
pub(crate) struct Wish {
    /// INIT flags, where the kernel offers them.
    pub(crate) flags: InitFlags,
    /// Largest read or write in one request.
    pub(crate) transfer_bytes: u32,
    /// Requests without a waiting caller that the kernel may have outstanding.
    pub(crate) background: u16,
    /// From how many of these on it slows its writers down.
    pub(crate) congestion: u16,
    /// File systems that may lie on each other below this one, for passthrough; 0: none of it.
    pub(crate) stack_depth: u32,
}

/// A lane's, without some INIT flags.
fn lane_without(unwanted: InitFlags) -> Wish {
    Wish {
        flags: WANTED - unwanted,
        transfer_bytes: TRANSFER_BYTES_MAX,
        background: BACKGROUND_MAX,
        congestion: CONGESTION,
        stack_depth: 0,
    }
}

/// What was agreed on for the life of a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Params {
    /// The kernel's minor version, or ours where that is older.
    pub minor: u32,
    /// INIT flags that both sides have.
    pub flags: InitFlags,
}

impl Params {
    /// Whether files can be mapped shared although reads and writes go past the page cache (Linux
    /// 6.6). Without it, they go through the page cache, and the lane tells the kernel what to
    /// drop.
    pub fn direct_mmap(&self) -> bool {
        self.flags.contains(InitFlags::DIRECT_IO_ALLOW_MMAP)
    }

    /// Whether the kernel can read and write another file in a file's place (Linux 6.9).
    pub fn passthrough(&self) -> bool {
        self.flags.contains(InitFlags::PASSTHROUGH)
    }

    /// Whether the kernel minds access control lists.
    pub fn acls(&self) -> bool {
        self.flags.contains(InitFlags::POSIX_ACL)
    }

    /// Whether mounts of the lane can be id-mapped (Linux 6.12), and so requests name no user.
    pub fn id_maps(&self) -> bool {
        self.flags.contains(InitFlags::ALLOW_IDMAP)
    }

    /// Whether requests in flight survive a dead service (Linux 6.9).
    pub fn resend(&self) -> bool {
        self.flags.contains(InitFlags::HAS_RESEND)
    }
}

/// Answers FUSE_INIT on a freshly mounted /dev/fuse descriptor. Waits at most `timeout_ms` for it.
/// Fails with `TimedOut` when none comes, with `EPROTO` when the kernel is too old.
pub fn negotiate(fd: impl AsFd, timeout_ms: u32, wants: Wants) -> io::Result<Params> {
    let mut wish = lane_without(without_acls(wants.acls));
    if wants.id_maps {
        wish.flags |= InitFlags::ALLOW_IDMAP;
    }
    if wants.kernel_cache {
        wish.flags -= InitFlags::DIRECT_IO_ALLOW_MMAP;
    }
    negotiate_as(fd, timeout_ms, &wish)
}

/// What is not wanted of a lane that keeps access control lists, or keeps none: the kernel would
/// ask it for some at each step of a path.
fn without_acls(acls: bool) -> InitFlags {
    if acls { InitFlags::empty() } else { InitFlags::POSIX_ACL }
}

/// [`negotiate`], leaving out the INIT flags in `unwanted`: to see how a lane does on an older
/// kernel.
pub fn negotiate_without(
    fd: impl AsFd,
    timeout_ms: u32,
    unwanted: InitFlags,
) -> io::Result<Params> {
    negotiate_as(fd, timeout_ms, &lane_without(unwanted))
}

/// [`negotiate`] for a mount that wants something else than a lane.
pub(crate) fn negotiate_as(fd: impl AsFd, timeout_ms: u32, wish: &Wish) -> io::Result<Params> {
    let mut message = vec![0; wish.transfer_bytes as usize + MESSAGE_ROOM];
    loop {
        let mut ready = [PollFd::new(&fd, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: i64::from(timeout_ms / 1000),
            tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000,
        };
        match poll(&mut ready, Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let count = match rustix::io::read(&fd, &mut message) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
            Err(error) => return Err(error.into()),
        };
        let request = Request::parse(&message[..count]).ok_or(io::ErrorKind::InvalidData)?;
        if request.header.opcode != opcode::INIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = Body::default();
        let params = answer_as(request.args, wish, &mut body).map_err(io::Error::from);
        let error = if params.is_err() { -Errno::EPROTO.0 } else { 0 };
        write_reply(&fd, request.header.unique, error, &body.0)?;
        match params? {
            Some(params) => return Ok(params),
            None => continue,
        }
    }
}

fn write_reply(fd: impl AsFd, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
    let mut reply = Body::default();
    let len = ((OUT_HEADER_BYTES + body.len()) as u32).into();
    reply.record(&OutHeader { len, error: error.into(), unique: unique.into() });
    reply.0.extend_from_slice(body);
    rustix::io::write(fd, &reply.0)?;
    Ok(())
}

/// Writes a lane's answer to an INIT. `None` when the kernel has a newer major version: it will
/// send another INIT for ours. `acls` as in [`Wants`]. `EPROTO` when it is too old.
pub fn answer(args: Reader<'_>, acls: bool, out: &mut Body) -> Result<Option<Params>> {
    answer_as(args, &lane_without(without_acls(acls)), out)
}

fn answer_as(mut args: Reader<'_>, wish: &Wish, out: &mut Body) -> Result<Option<Params>> {
    let version = args.record::<InitVersion>()?;
    let (major, minor) = (version.major.get(), version.minor.get());
    let ours = InitOut { major: MAJOR.into(), minor: MINOR.into(), ..InitOut::new_zeroed() };
    if major > MAJOR {
        out.record(&ours);
        return Ok(None);
    }
    if major < MAJOR || minor < MINOR_MIN {
        return Err(Errno::EPROTO);
    }
    let asked = *args.record::<InitWish>()?;
    let low = InitFlags::from_bits_retain(asked.flags.get().into());
    let high = match low.contains(InitFlags::INIT_EXT) {
        true => args.record::<U32>()?.get(),
        false => 0,
    };
    let flags = (low | InitFlags::from_bits_retain(u64::from(high) << 32)) & wish.flags;
    out.record(&InitOut {
        max_readahead: asked.max_readahead,
        flags: (flags.bits() as u32).into(),
        max_background: wish.background.into(),
        congestion_threshold: wish.congestion.into(),
        max_write: wish.transfer_bytes.into(),
        time_gran: 1.into(),
        max_pages: ((wish.transfer_bytes / PAGE_BYTES) as u16).into(),
        flags2: ((flags.bits() >> 32) as u32).into(),
        max_stack_depth: wish.stack_depth.into(),
        ..ours
    });
    Ok(Some(Params { minor: minor.min(MINOR), flags }))
}

/// The data argument of mount(2) for a mount that `fd` serves. `everyone`: users other than the
/// mounter may use it, which needs privilege in the mount's user namespace.
pub fn mount_options(fd: i32, uid: u32, gid: u32, everyone: bool) -> String {
    let allow_other = if everyone { ",allow_other" } else { "" };
    format!(
        "fd={fd},rootmode=40000,user_id={uid},group_id={gid},default_permissions,\
         max_read={TRANSFER_BYTES_MAX}{allow_other}"
    )
}

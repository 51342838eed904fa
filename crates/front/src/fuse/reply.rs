//! Replies: values as bytes, each reply one `writev` to /dev/fuse.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use polylane_base::record::Record;
use polylane_base::sync::Arc;
use polylane_base::{Errno, Time};
use polylane_sys::fault;
use polylane_vfs::fs::{Attr, Kind, Sink, StatFs};
use zerocopy::{FromZeros, IntoBytes};

use super::flags::OpenedFlags;
use super::protocol::{ENTRY_BYTES, OUT_HEADER_BYTES, STATX_MASK, notify};
use super::records::{
    AttrOut, AttrRecord, CountOut, Dirent, EntryOut, InvalEntry, InvalInode, LongOut, OpenOut,
    OutHeader, StatfsOut, Statx, StatxOut, Store, SxTime,
};
use crate::lane::notifier::Range;

/// A growing reply body.
#[derive(Default, Debug)]
pub struct Body(pub Vec<u8>);

impl Body {
    /// Appends a structure.
    pub(crate) fn record(&mut self, record: &impl Record) -> &mut Self {
        self.0.extend_from_slice(record.as_bytes());
        self
    }

    /// Appends `count` zero bytes.
    pub fn zeros(&mut self, count: usize) -> &mut Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// `struct fuse_attr_out`, good for `seconds`.
    pub fn attr_out(&mut self, attr: &Attr, seconds: u64) -> &mut Self {
        self.record(&AttrOut {
            attr_valid: seconds.into(),
            attr_valid_nsec: 0.into(),
            dummy: 0.into(),
            attr: attr_record(attr),
        })
    }

    /// `struct fuse_entry_out`, good for `seconds`.
    pub fn entry(&mut self, node_id: u64, generation: u64, attr: &Attr, seconds: u64) -> &mut Self {
        self.record(&EntryOut {
            nodeid: node_id.into(),
            generation: generation.into(),
            entry_valid: seconds.into(),
            attr_valid: seconds.into(),
            entry_valid_nsec: 0.into(),
            attr_valid_nsec: 0.into(),
            attr: attr_record(attr),
        })
    }

    /// `struct fuse_entry_out` of a name that is good for `seconds`, with a state that is not.
    pub fn named(&mut self, node_id: u64, generation: u64, attr: &Attr, seconds: u64) -> &mut Self {
        self.record(&EntryOut {
            nodeid: node_id.into(),
            generation: generation.into(),
            entry_valid: seconds.into(),
            attr_valid: 0.into(),
            entry_valid_nsec: 0.into(),
            attr_valid_nsec: 0.into(),
            attr: attr_record(attr),
        })
    }

    /// An entry of READDIRPLUS that makes the kernel know no inode.
    pub fn no_entry(&mut self) -> &mut Self {
        self.zeros(ENTRY_BYTES)
    }

    /// `struct fuse_dirent` with its name, padded to eight bytes.
    pub fn dirent(&mut self, ino: u64, next: u64, kind: Kind, name: &[u8]) -> &mut Self {
        self.record(&Dirent {
            ino: ino.into(),
            off: next.into(),
            namelen: (name.len() as u32).into(),
            kind: (kind as u32).into(),
        });
        self.0.extend_from_slice(name);
        self.zeros(name.len().next_multiple_of(8) - name.len())
    }

    /// `struct fuse_open_out`.
    pub fn open(&mut self, fh: u64, flags: OpenedFlags) -> &mut Self {
        let open_flags = flags.bits().into();
        self.record(&OpenOut { fh: fh.into(), open_flags, backing_id: 0.into() })
    }

    /// `struct fuse_write_out` and everything else that is one 32-bit count.
    pub fn count(&mut self, count: u32) -> &mut Self {
        self.record(&CountOut { size: count.into(), padding: 0.into() })
    }

    /// `struct fuse_lseek_out` and everything else that is one 64-bit number.
    pub fn long(&mut self, value: u64) -> &mut Self {
        self.record(&LongOut { value: value.into() })
    }

    /// `struct fuse_statfs_out`.
    pub fn statfs(&mut self, st: &StatFs) -> &mut Self {
        self.record(&StatfsOut {
            blocks: st.blocks.into(),
            bfree: st.bfree.into(),
            bavail: st.bavail.into(),
            files: st.files.into(),
            ffree: st.ffree.into(),
            bsize: st.bsize.into(),
            namelen: st.namelen.into(),
            frsize: st.bsize.into(),
            ..StatfsOut::new_zeroed()
        })
    }

    /// `struct fuse_statx_out`; `known`: the attributes that are known of every file, of which
    /// Linux (6.18) tells nobody.
    pub fn statx(&mut self, attr: &Attr, known: u32) -> &mut Self {
        let stat = Statx {
            mask: STATX_MASK.into(),
            blksize: attr.blksize.into(),
            attributes: u64::from(attr.flags & known).into(),
            nlink: attr.nlink.into(),
            uid: attr.uid.0.into(),
            gid: attr.gid.0.into(),
            mode: (attr.mode() as u16).into(),
            ino: attr.ino.0.into(),
            size: attr.size.into(),
            blocks: attr.blocks.into(),
            attributes_mask: u64::from(known).into(),
            atime: statx_time(attr.atime),
            btime: statx_time(attr.btime),
            ctime: statx_time(attr.ctime),
            mtime: statx_time(attr.mtime),
            rdev_major: major(attr.rdev).into(),
            rdev_minor: minor(attr.rdev).into(),
            ..Statx::new_zeroed()
        };
        self.record(&StatxOut { stat, ..StatxOut::new_zeroed() })
    }
}

fn attr_record(attr: &Attr) -> AttrRecord {
    AttrRecord {
        ino: attr.ino.0.into(),
        size: attr.size.into(),
        blocks: attr.blocks.into(),
        atime: attr.atime.sec.into(),
        mtime: attr.mtime.sec.into(),
        ctime: attr.ctime.sec.into(),
        atimensec: attr.atime.nsec.into(),
        mtimensec: attr.mtime.nsec.into(),
        ctimensec: attr.ctime.nsec.into(),
        mode: attr.mode().into(),
        nlink: attr.nlink.into(),
        uid: attr.uid.0.into(),
        gid: attr.gid.0.into(),
        rdev: encode_device(attr.rdev).into(),
        blksize: attr.blksize.into(),
        flags: 0.into(),
    }
}

fn statx_time(time: Time) -> SxTime {
    SxTime { tv_sec: time.sec.into(), tv_nsec: time.nsec.into(), reserved: 0.into() }
}

/// A body takes what is read in the order it comes, without filling itself with zeros first.
impl Sink for Body {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if at == self.0.len() {
            return self.0.extend_from_slice(bytes);
        }
        let end = at + bytes.len();
        if self.0.len() < end {
            self.0.resize(end, 0);
        }
        self.0[at..end].copy_from_slice(bytes);
    }

    fn zero(&mut self, at: usize, len: usize) {
        let (filled, end) = (self.0.len(), at + len);
        self.0.resize(filled.max(end), 0);
        if at < filled {
            self.0[at..filled.min(end)].fill(0);
        }
    }
}

fn major(device: u64) -> u32 {
    libc::major(device)
}

fn minor(device: u64) -> u32 {
    libc::minor(device)
}

/// The kernel's `new_encode_dev`.
pub fn encode_device(device: u64) -> u32 {
    let minor = minor(device);
    minor & 0xff | major(device) << 8 | (minor & !0xff) << 12
}

/// The kernel's `new_decode_dev`.
pub fn decode_device(device: u32) -> u64 {
    libc::makedev((device & 0xf_ff00) >> 8, device & 0xff | device >> 12 & 0xf_ff00)
}

/// The way to the kernel. Cheap to clone; thread-safe: the kernel takes each write as a whole.
#[derive(Clone, Debug)]
pub struct Device(Arc<OwnedFd>);

impl Device {
    /// A device on a /dev/fuse descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        Device(Arc::new(fd))
    }

    /// The descriptor.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        self.0.clone()
    }

    /// Answers a request. A failure means that the request is gone: aborted, or the mount is.
    pub fn reply(&self, unique: u64, body: &[u8]) {
        let _gone = self.send(0, unique, &[body]);
    }

    /// Answers a request with an error.
    pub fn fail(&self, unique: u64, errno: Errno) {
        let _gone = self.send(-errno.0, unique, &[]);
    }

    /// Tells the kernel to write back and drop pages. Blocks until it did.
    pub(crate) fn invalidate(&self, node_id: u64, range: Range) {
        // A length of 0 means to the end; an offset below 0 would mean attributes only.
        let offset = range.offset.min(i64::MAX as u64);
        let len = range.len.min(i64::MAX as u64 - offset);
        let body = InvalInode { ino: node_id.into(), off: offset.into(), len: len.into() };
        let _unknown_to_kernel = self.send(notify::INVAL_INODE, 0, &[body.as_bytes()]);
    }

    /// Tells the kernel to drop what it remembers of an inode's state.
    pub(crate) fn forget_state(&self, node_id: u64) {
        let body = InvalInode { ino: node_id.into(), off: u64::MAX.into(), len: 0.into() };
        let _unknown_to_kernel = self.send(notify::INVAL_INODE, 0, &[body.as_bytes()]);
    }

    /// Tells the kernel to drop a name, or to look it up before it believes it again (`expires`).
    /// Blocks while somebody holds the directory.
    pub(crate) fn forget_name(&self, dir_id: u64, name: &[u8], expires: bool) {
        let mut body = Body::default();
        let namelen = (name.len() as u32).into();
        let flags = if expires { notify::EXPIRE_ONLY } else { 0 };
        body.record(&InvalEntry { parent: dir_id.into(), namelen, flags: flags.into() });
        body.0.extend_from_slice(name);
        body.0.push(0);
        let _unknown_to_kernel = self.send(notify::INVAL_ENTRY, 0, &[&body.0]);
    }

    /// Makes the kernel know that a file has grown. There is no other way than to store the last
    /// byte. The kernel takes the size over before it reads the byte, and is given none: a program
    /// may have stored another one through a mapping by then.
    pub(crate) fn grow(&self, node_id: u64, size: u64) {
        let Some(offset) = size.checked_sub(1) else { return };
        let mut message = Body::default();
        let length = OUT_HEADER_BYTES + size_of::<Store>() + 1;
        message.record(&OutHeader {
            len: (length as u32).into(),
            error: notify::STORE.into(),
            unique: 0.into(),
        });
        let (nodeid, padding) = (node_id.into(), 0.into());
        message.record(&Store { nodeid, offset: offset.into(), size: 1.into(), padding });
        let _fault_or_unknown_to_kernel = fault::write_and_fault(self, &message.0);
    }

    /// Asks for the requests that a former service had read and not answered.
    pub(crate) fn resend(&self) {
        let _none = self.send(notify::RESEND, 0, &[]);
    }

    fn send(&self, error: i32, unique: u64, parts: &[&[u8]]) -> rustix::io::Result<()> {
        let length = OUT_HEADER_BYTES + parts.iter().map(|part| part.len()).sum::<usize>();
        let header =
            OutHeader { len: (length as u32).into(), error: error.into(), unique: unique.into() };
        let body = parts.first().copied().unwrap_or_default();
        rustix::io::writev(self, &[IoSlice::new(header.as_bytes()), IoSlice::new(body)]).map(drop)
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_takes_pieces_in_any_order() {
        let mut body = Body::default();
        body.put(0, b"abc");
        body.zero(3, 2);
        body.put(7, b"xy");
        assert_eq!(body.0, b"abc\0\0\0\0xy");
        body.put(2, b"CDE");
        body.zero(6, 2);
        body.zero(8, 2);
        assert_eq!(body.0, b"abCDE\0\0\0\0\0");
    }

    #[test]
    fn device_numbers_are_packed_as_the_kernel_does() {
        // 8:1, and the largest the kernel has: 12 bits of major, 20 of minor.
        assert_eq!(encode_device(libc::makedev(8, 1)), 0x801);
        assert_eq!(encode_device(libc::makedev(0xfff, 0xf_ffff)), 0xffff_ffff);
        for device in [libc::makedev(0x123, 0x6_789a), libc::makedev(0, 0), libc::makedev(5, 300)] {
            assert_eq!(decode_device(encode_device(device)), device);
        }
    }
}

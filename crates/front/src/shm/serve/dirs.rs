//! Directories: handles to start paths from, and listings.

use polylane_base::Errno;
use polylane_base::sync::Arc;
use polylane_ipc::message::{ENTRY_HEAD_BYTES, EntryHead, LISTED, Reply};
use polylane_vfs::fs::DirEntry;
use polylane_vfs::{Kind, Look, OpenFile};
use zerocopy::IntoBytes;

use super::{Answer, Call, Failure, done};
use crate::lane::is_virtual;
use crate::shm::attr::wire_attr;
use crate::shm::files::Open;
use crate::shm::request::{At, Handle, Object, Start};

/// Bytes of an entry with the longest name.
const RECORD_BYTES_MAX: usize = (ENTRY_HEAD_BYTES + 255 + 1).next_multiple_of(8);

impl Call<'_> {
    /// A handle on a directory, and its first entries if some are wanted.
    pub(super) fn open_dir(&mut self, at: At<'_>, follow: bool, list: usize) -> Answer {
        let node = self.node(Object::Path { at, follow })?;
        if node.kind() != Kind::Dir {
            return Err(Errno::ENOTDIR.into());
        }
        let (mut listing, mut listed) = (None, done(0));
        if list > 0 {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            let file = self.vfs().open(&self.ctx(), &node, flags)?;
            listed = self.list(&file, 0, list)?;
            listing = Some(file);
        }
        let attr = Some(wire_attr(&self.vfs().getattr(&self.ctx(), &node)?));
        let handle = self.session.files.add(Open::Dir { node, listing })?.to_wire();
        Ok(Reply { handle, attr, ..listed })
    }

    /// A lease on a directory, and the names in it. To look at each file may take a device.
    pub(super) fn lease(&mut self, start: Start, path: &[u8], tell_sole: bool) -> Answer {
        let start = self.session.files.start(&self.session.connection, start)?;
        if self.session.connection.slots.has_strays() {
            return Err(Errno::EAGAIN.into());
        }
        let look = match (tell_sole, self.device()) {
            (false, _) => Look::Names,
            (true, Ok(())) => Look::Sole,
            (true, Err(_)) => Look::Remembered,
        };
        let granted = self.session.rights().grant((&start, path), look)?.ok_or(Failure::HandOff)?;
        // The acceptor may have looked for leases before this one was there.
        if self.session.connection.has_other_mounts() {
            self.session.rights().revoke();
            return Err(Failure::UseKernel);
        }
        self.session.connection.channel.payload_put(self.mailbox, 0, &granted.names);
        let mut reply = done(granted.count);
        let told = [granted.lease.into(), granted.afresh.into(), granted.data.into()];
        for (value, told) in reply.value.iter_mut().zip(told) {
            *value = told;
        }
        Ok(reply)
    }

    pub(super) fn readdir(&mut self, handle: Handle, position: u64, len: usize) -> Answer {
        let file = self.session.files.listing(&self.session.connection, handle)?;
        self.list(&file, position, len)
    }

    /// Puts the entries from a position on into the payload.
    fn list(&self, file: &OpenFile, position: u64, len: usize) -> Answer {
        let (node, vfs) = (file.node(), self.vfs());
        let in_root = Arc::ptr_eq(node, &vfs.root());
        let (mut used, mut cut, mut record) = (0, false, Vec::with_capacity(RECORD_BYTES_MAX));
        file.readdir(&self.ctx(), position, &mut |entry| {
            if in_root && is_virtual(vfs, node, entry.name) {
                return true;
            }
            put_record(&mut record, &entry);
            cut = record.len() > len - used;
            if !cut {
                self.session.connection.channel.payload_put(self.mailbox, used, &record);
                used += record.len();
            }
            !cut
        })?;
        if used == 0 && cut {
            return Err(Errno::EINVAL.into());
        }
        let mut reply = done(used);
        reply.value[0] = if cut { 0 } else { LISTED };
        Ok(reply)
    }
}

/// Makes `record` what `getdents64` has for an entry.
fn put_record(record: &mut Vec<u8>, entry: &DirEntry<'_>) {
    let size = (ENTRY_HEAD_BYTES + entry.name.len() + 1).next_multiple_of(8);
    record.clear();
    let head = EntryHead {
        ino: entry.ino.0.into(),
        next: entry.next.into(),
        // A name is at most 255 bytes long.
        len: (size as u16).into(),
        kind: entry.kind as u8,
    };
    record.extend(head.as_bytes());
    record.extend(entry.name);
    record.resize(size, 0);
}

#[cfg(test)]
mod tests {
    use polylane_base::Ino;

    use super::*;

    #[test]
    fn records_have_the_kernel_form() {
        let mut record = vec![7; 100];
        let entry = |name| DirEntry { ino: Ino(5), next: 9, kind: Kind::Dir, name };
        put_record(&mut record, &entry(b"abcd"));
        assert_eq!(record.len(), 24);
        assert_eq!(&record[16..18], &24u16.to_ne_bytes());
        assert_eq!(&record[18..24], b"\x04abcd\0");
        put_record(&mut record, &entry(b"abcde"));
        assert_eq!((record.len(), &record[23..]), (32, &[b'e', 0, 0, 0, 0, 0, 0, 0, 0][..]));
        put_record(&mut record, &entry(&[b'x'; 255]));
        assert_eq!(record.len(), RECORD_BYTES_MAX);
    }
}

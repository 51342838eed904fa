//! Files become a layer's tar file: the same files, the same bytes.
//!
//! Members are in the order of their names, without names of users, access times and fractions of
//! seconds.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tar::{EntryType, Header};

use crate::error::{Error, Result};

const BLOCK: usize = 512;

/// Attributes that a layer carries. Others are the host's own, or overlayfs' marks.
const XATTRS: [&[u8]; 3] = [b"user.", b"security.capability", b"system.posix_acl_"];
const MARKS: &[u8] = b"user.overlay.";

/// Writes a tar file.
pub(crate) struct Writer<W> {
    to: W,
    /// The first names of files with several: device and number.
    links: HashMap<(u64, u64), PathBuf>,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(to: W) -> Self {
        Writer { to, links: HashMap::new() }
    }

    /// Adds everything below `root`.
    pub(crate) fn add_tree(&mut self, root: &Path) -> Result<()> {
        self.add(root, Path::new(""))?;
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            let mut inner = Vec::new();
            for name in sorted(&root.join(&dir))? {
                let path = dir.join(name);
                if self.add(root, &path)?.is_dir() {
                    inner.push(path);
                }
            }
            dirs.extend(inner.into_iter().rev());
        }
        Ok(())
    }

    /// Adds the file at `path` below `root`. Sockets are left out.
    pub(crate) fn add(&mut self, root: &Path, path: &Path) -> Result<Metadata> {
        let full = root.join(path);
        let failed = |error| Error::io(&full, "read it", error);
        let metadata = fs::symlink_metadata(&full).map_err(failed)?;
        let kind = metadata.file_type();
        if kind.is_socket() {
            return Ok(metadata);
        }
        let mut name = match path.as_os_str().is_empty() {
            true => b".".to_vec(),
            false => path.as_os_str().as_bytes().to_vec(),
        };
        if kind.is_dir() {
            name.push(b'/');
        }
        let mut link = Vec::new();
        let entry = match () {
            () if kind.is_dir() => EntryType::Directory,
            () if kind.is_symlink() => {
                link = fs::read_link(&full).map_err(failed)?.into_os_string().into_encoded_bytes();
                EntryType::Symlink
            }
            () if kind.is_fifo() => EntryType::Fifo,
            () if kind.is_char_device() => EntryType::Char,
            () if kind.is_block_device() => EntryType::Block,
            () => EntryType::Regular,
        };
        if !kind.is_dir() && metadata.nlink() > 1 {
            let id = (metadata.dev(), metadata.ino());
            if let Some(first) = self.links.get(&id) {
                link = first.as_os_str().as_bytes().to_vec();
                let header = header(&metadata, EntryType::Link);
                self.head(header, &name, &link, &[]).map_err(failed)?;
                return Ok(metadata);
            }
            self.links.insert(id, path.to_path_buf());
        }
        let xattrs = xattrs(&full, kind.is_file() || kind.is_dir()).map_err(failed)?;
        let header = header(&metadata, entry);
        self.head(header, &name, &link, &xattrs).map_err(failed)?;
        if entry == EntryType::Regular {
            let file = File::open(&full).map_err(failed)?;
            self.data(file, metadata.len()).map_err(failed)?;
        }
        Ok(metadata)
    }

    /// Adds a file of these bytes, of root's.
    pub(crate) fn add_bytes(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.add_stream(name, bytes, bytes.len() as u64)
    }

    /// Adds a file of root's whose `size` bytes are `data`'s.
    pub(crate) fn add_stream(&mut self, name: &str, data: impl Read, size: u64) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(size);
        self.head(header, name.as_bytes(), b"", &[])?;
        self.data(data, size)
    }

    /// Ends the file.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.to.write_all(&[0; 2 * BLOCK])?;
        self.to.flush()?;
        Ok(self.to)
    }

    fn data(&mut self, data: impl Read, size: u64) -> io::Result<()> {
        let copied = io::copy(&mut data.take(size), &mut self.to)?;
        if copied < size {
            return Err(io::Error::other("it became shorter while it was read"));
        }
        self.pad(size)
    }

    fn pad(&mut self, size: u64) -> io::Result<()> {
        let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
        self.to.write_all(&[0; BLOCK][..(BLOCK - over) % BLOCK])
    }

    /// Writes a header, with an extended one before it where it does not say all.
    fn head(
        &mut self,
        mut header: Header,
        name: &[u8],
        link: &[u8],
        xattrs: &[(Vec<u8>, Vec<u8>)],
    ) -> io::Result<()> {
        let mut records = Vec::new();
        if header.set_path(OsStr::from_bytes(name)).is_err() || header.path_bytes() != name {
            record(&mut records, b"path", name);
            set_start(&mut header, name);
        }
        if !link.is_empty() && header.set_link_name_literal(link).is_err() {
            record(&mut records, b"linkpath", link);
        }
        for (field, key) in [(header.uid()?, "uid"), (header.gid()?, "gid")] {
            if field > 0o777_7777 {
                record(&mut records, key.as_bytes(), field.to_string().as_bytes());
            }
        }
        if header.size()? > 0o777_7777_7777 {
            record(&mut records, b"size", header.size()?.to_string().as_bytes());
        }
        for (attribute, value) in xattrs {
            record(&mut records, &[b"SCHILY.xattr.", &attribute[..]].concat(), value);
        }
        if !records.is_empty() {
            let mut extended = Header::new_ustar();
            extended.set_entry_type(EntryType::XHeader);
            extended.set_path("pax")?;
            extended.set_mode(0o644);
            extended.set_uid(0);
            extended.set_gid(0);
            extended.set_mtime(0);
            extended.set_size(records.len() as u64);
            extended.set_cksum();
            self.to.write_all(extended.as_bytes())?;
            self.to.write_all(&records)?;
            self.pad(records.len() as u64)?;
        }
        header.set_cksum();
        self.to.write_all(header.as_bytes())
    }
}

/// What a reader without extensions sees of a long name.
fn set_start(header: &mut Header, name: &[u8]) {
    let field = &mut header.as_old_mut().name;
    field.fill(0);
    let end = name.len().min(field.len());
    field[..end].copy_from_slice(&name[..end]);
    if let Some(ustar) = header.as_ustar_mut() {
        ustar.prefix.fill(0);
    }
}

fn header(metadata: &Metadata, kind: EntryType) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(metadata.mode() & 0o7777);
    header.set_uid(metadata.uid().into());
    header.set_gid(metadata.gid().into());
    header.set_mtime(metadata.mtime().max(0).cast_unsigned());
    header.set_size(if kind == EntryType::Regular { metadata.len() } else { 0 });
    if matches!(kind, EntryType::Char | EntryType::Block) {
        let device = metadata.rdev();
        // Of a ustar header, which has them.
        let _ = header.set_device_major(rustix::fs::major(device));
        let _ = header.set_device_minor(rustix::fs::minor(device));
    }
    header
}

/// `LENGTH KEY=VALUE\n`, where LENGTH counts its own digits, too.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    records.extend_from_slice(&[key, b"=", value, b"\n"].concat());
}

/// Names in a directory, in order.
pub(crate) fn sorted(dir: &Path) -> Result<Vec<std::ffi::OsString>> {
    let failed = |error| Error::io(dir, "list it", error);
    let entries = fs::read_dir(dir).map_err(failed)?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names: Vec<_> = names.collect::<io::Result<_>>().map_err(failed)?;
    names.sort();
    Ok(names)
}

/// The extended attributes that a layer carries.
pub(crate) fn xattrs(path: &Path, has_some: bool) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    if !has_some {
        return Ok(Vec::new());
    }
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::llistxattr(path, names.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let mut xattrs = Vec::new();
    for name in names[..length].split(|&byte| byte == 0) {
        let is_carried = XATTRS.iter().any(|prefix| name.starts_with(prefix));
        if is_carried && !name.starts_with(MARKS) {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::lgetxattr(path, name, value.as_mut_slice())?;
            value.truncate(length);
            xattrs.push((name.to_vec(), value));
        }
    }
    xattrs.sort();
    Ok(xattrs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::{Kind, Reader};

    #[test]
    fn lengths_count_their_own_digits() {
        for size in [0, 1, 90, 91, 92, 93, 94, 95, 989, 990, 991, 992] {
            let mut records = Vec::new();
            record(&mut records, b"k", &vec![b'x'; size]);
            let text = String::from_utf8(records).expect("text");
            assert!(text.starts_with(&format!("{} k=", text.len())), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().expect("tempdir");
        let long = "n".repeat(200);
        fs::create_dir(dir.path().join("d")).expect("mkdir");
        fs::write(dir.path().join("d").join(&long), "data").expect("write");
        fs::hard_link(dir.path().join("d").join(&long), dir.path().join("e")).expect("link");
        std::os::unix::fs::symlink("l".repeat(150), dir.path().join("f")).expect("symlink");
        let mut writer = Writer::new(Vec::new());
        writer.add_tree(dir.path()).expect("packed");
        let bytes = writer.finish().expect("to memory");
        let mut reader = Reader::new(&bytes[..]);
        let mut members = Vec::new();
        while let Some(member) = reader.next().expect("well-formed") {
            members.push((String::from_utf8(member.path).expect("text"), member.kind));
        }
        let inner = format!("d/{long}");
        let expected = [
            ("./", Kind::Dir),
            ("d/", Kind::Dir),
            ("e", Kind::File),
            ("f", Kind::Symlink),
            (&inner, Kind::HardLink),
        ];
        assert_eq!(members, expected.map(|(name, kind)| (name.to_string(), kind)));
    }
}

//! Files become a layer's tar file: the same files, the same bytes.
//!
//! Members are in the order of their names, without names of users, access times and fractions of
//! seconds.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tar::{EntryType, Header};

use crate::error::{Error, Result};
use crate::tree;

const BLOCK: usize = 512;

/// Attributes that a layer carries. Others are the host's own, or overlayfs' marks.
const XATTRS: [&[u8]; 3] = [b"user.", b"security.capability", b"system.posix_acl_"];
const MARKS: &[u8] = b"user.overlay.";

const DIR: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Writes a tar file.
pub(crate) struct Writer<W> {
    to: W,
    /// The first names of files with several: device and number.
    links: HashMap<(u64, u64), Vec<u8>>,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(to: W) -> Self {
        Writer { to, links: HashMap::new() }
    }

    /// Adds everything below `root`. Its owner may change it meanwhile: no link in it is followed,
    /// so nothing outside of it is read.
    pub(crate) fn add_tree(&mut self, root: &Path) -> Result<()> {
        let top = open_dir(root).map_err(|errno| Error::io(root, "open it", errno))?;
        let failed =
            |path: &[u8], error| Error::io(&root.join(OsStr::from_bytes(path)), "read it", error);
        self.add_dir(b"", &top).map_err(|error| failed(b"", error))?;
        let mut dirs = vec![Vec::new()];
        while let Some(path) = dirs.pop() {
            let dir = beneath(&top, &path).map_err(|error| failed(&path, error))?;
            let mut inner = Vec::new();
            for name in sorted_names(&dir).map_err(|error| failed(&path, error))? {
                let mut path = path.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&name);
                let is_dir = self.add(&dir, &name, &path).map_err(|error| failed(&path, error))?;
                if is_dir {
                    inner.push(path);
                }
            }
            dirs.extend(inner.into_iter().rev());
        }
        Ok(())
    }

    /// Adds a directory without what is in it.
    pub(crate) fn add_dir(&mut self, path: &[u8], dir: &OwnedFd) -> io::Result<()> {
        let name = match path {
            b"" => b"./".to_vec(),
            path => [path, b"/"].concat(),
        };
        let stat = rustix::fs::fstat(dir)?;
        self.head(header(&stat, EntryType::Directory), &name, b"", &xattrs(dir)?)
    }

    /// Adds what is called `name` in `dir` as `path`; whether it is a directory. Sockets are left
    /// out.
    pub(crate) fn add(&mut self, dir: &OwnedFd, name: &[u8], path: &[u8]) -> io::Result<bool> {
        let seen = tree::stat(dir, name)?;
        let entry = match FileType::from_raw_mode(seen.st_mode) {
            FileType::Directory => {
                self.add_dir(path, &openat(dir, name, DIR)?)?;
                return Ok(true);
            }
            FileType::Socket => return Ok(false),
            FileType::RegularFile => EntryType::Regular,
            FileType::Symlink => EntryType::Symlink,
            FileType::Fifo => EntryType::Fifo,
            FileType::CharacterDevice => EntryType::Char,
            FileType::BlockDevice => EntryType::Block,
            FileType::Unknown => return Err(io::Error::other("of an unknown type")),
        };
        if entry != EntryType::Regular {
            if self.linked(&seen, path)? {
                return Ok(false);
            }
            let link = match entry {
                EntryType::Symlink => rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes(),
                _ => Vec::new(),
            };
            self.head(header(&seen, entry), path, &link, &[])?;
            return Ok(false);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(dir, name, flags)?;
        let stat = rustix::fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it became another one while it was read"));
        }
        if !self.linked(&stat, path)? {
            self.head(header(&stat, entry), path, b"", &xattrs(&file)?)?;
            self.data(File::from(file), stat.st_size.cast_unsigned())?;
        }
        Ok(false)
    }

    /// Whether a file has another name already, to which a link is added then.
    fn linked(&mut self, stat: &Stat, path: &[u8]) -> io::Result<bool> {
        if stat.st_nlink < 2 {
            return Ok(false);
        }
        let id = (stat.st_dev, stat.st_ino);
        let Some(first) = self.links.get(&id).cloned() else {
            self.links.insert(id, path.to_vec());
            return Ok(false);
        };
        self.head(header(stat, EntryType::Link), path, &first, &[])?;
        Ok(true)
    }

    /// Adds a file of these bytes, of root's.
    pub(crate) fn add_bytes(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.add_stream(name, bytes, bytes.len() as u64)
    }

    /// Adds a file of root's whose `size` bytes are `data`'s.
    pub(crate) fn add_stream(&mut self, name: &str, data: impl Read, size: u64) -> io::Result<()> {
        self.head(own_header(size), name.as_bytes(), b"", &[])?;
        self.data(data, size)
    }

    /// Adds an empty file of root's, which says something about its directory.
    pub(crate) fn add_mark(&mut self, path: &[u8]) -> io::Result<()> {
        self.head(own_header(0), path, b"", &[])
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
        let seconds = header.mtime()?.cast_signed();
        if seconds < 0 {
            record(&mut records, b"mtime", seconds.to_string().as_bytes());
            header.set_mtime(0);
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

/// The header of a file of root's.
fn own_header(size: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

fn header(stat: &Stat, kind: EntryType) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    // One before 1970 gets a record.
    header.set_mtime(stat.st_mtime.cast_unsigned());
    header.set_size(if kind == EntryType::Regular { stat.st_size.cast_unsigned() } else { 0 });
    if matches!(kind, EntryType::Char | EntryType::Block) {
        // Of a ustar header, which has them.
        let _ = header.set_device_major(rustix::fs::major(stat.st_rdev));
        let _ = header.set_device_minor(rustix::fs::minor(stat.st_rdev));
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

fn openat(dir: impl AsFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Opens the root of a tree.
pub(crate) fn open_dir(root: &Path) -> Result<OwnedFd, Errno> {
    openat(CWD, root.as_os_str().as_bytes(), DIR.difference(OFlags::NOFOLLOW))
}

/// Whether two directories have the same state, whatever is in them.
pub(crate) fn same_dir(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    let all = |dir: &OwnedFd| {
        let stat = rustix::fs::fstat(dir)?;
        io::Result::Ok((stat.st_mode, stat.st_uid, stat.st_gid, stat.st_mtime, xattrs(dir)?))
    };
    Ok(all(one)? == all(other)?)
}

/// The directory at a path below `top`, by no link.
pub(crate) fn beneath(top: &OwnedFd, path: &[u8]) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    loop {
        match rustix::fs::openat2(top, path, DIR, Mode::empty(), resolve) {
            // Something was renamed meanwhile, anywhere.
            Err(Errno::AGAIN) => {}
            opened => return Ok(opened?),
        }
    }
}

/// Names in a directory, in order.
pub(crate) fn sorted_names(dir: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if !matches!(name.as_slice(), b"." | b"..") {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The extended attributes that a layer carries.
fn xattrs(file: &OwnedFd) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut names = vec![0; 64 << 10];
    let length = match rustix::fs::flistxattr(file, names.as_mut_slice()) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno.into()),
    };
    let mut xattrs = Vec::new();
    for name in names[..length].split(|&byte| byte == 0) {
        let is_carried = XATTRS.iter().any(|prefix| name.starts_with(prefix));
        if is_carried && !name.starts_with(MARKS) {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::fgetxattr(file, name, value.as_mut_slice())?;
            value.truncate(length);
            xattrs.push((name.to_vec(), value));
        }
    }
    xattrs.sort();
    Ok(xattrs)
}

#[cfg(test)]
mod tests {
    use std::fs;

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
    fn times_before_1970_are_kept() {
        let dir = tempfile::tempdir().expect("tempdir");
        let times = [(-315_619_200, "a"), (-1, "b"), (0, "c"), (1 << 33, "d")];
        for (seconds, name) in times {
            let time = rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 };
            let file = fs::File::create(dir.path().join(name)).expect("made");
            let both = rustix::fs::Timestamps { last_access: time, last_modification: time };
            rustix::fs::futimens(&file, &both).expect("set");
        }
        let mut writer = Writer::new(Vec::new());
        writer.add_tree(dir.path()).expect("packed");
        let bytes = writer.finish().expect("to memory");
        // As readers without numbers of base 256 have it.
        let record = b"20 mtime=-315619200\n";
        assert!(bytes.windows(record.len()).any(|bytes| bytes == record));
        let mut reader = Reader::new(&bytes[..]);
        let mut found = Vec::new();
        while let Some(member) = reader.next().expect("well-formed") {
            found.extend((member.kind == Kind::File).then_some(member.mtime));
        }
        assert_eq!(found, times.map(|(seconds, _)| (seconds, 0)));
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

    /// Its owner swaps a file and a directory for links to what root alone may read, and back, as
    /// fast as it can: nothing of that is ever packed.
    #[test]
    fn links_that_are_swapped_in_are_not_followed() {
        use std::os::unix::fs::symlink;
        use std::sync::atomic::{AtomicBool, Ordering};

        const SECRET: &[u8] = b"only-root-may-read-this";
        let place = tempfile::tempdir().expect("tempdir");
        let (root, secrets) = (place.path().join("root"), place.path().join("secrets"));
        for dir in [&root, &secrets, &root.join("d"), &root.join("links")] {
            fs::create_dir(dir).expect("mkdir");
        }
        fs::write(secrets.join("f"), SECRET).expect("write");
        fs::write(root.join("d/f"), "own").expect("write");
        fs::write(root.join("f"), "own").expect("write");
        symlink(secrets.join("f"), root.join("links/f")).expect("symlink");
        symlink(&secrets, root.join("links/d")).expect("symlink");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                while !done.load(Ordering::Relaxed) {
                    for name in ["f", "d"] {
                        let (one, other) = (root.join(name), root.join("links").join(name));
                        rustix::fs::renameat_with(CWD, one, CWD, other, exchange).expect("swapped");
                    }
                }
            });
            for _ in 0..2000 {
                let mut writer = Writer::new(Vec::new());
                // It may fail: what was a file is a link when it is opened.
                if writer.add_tree(&root).is_ok() {
                    let bytes = writer.finish().expect("to memory");
                    assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET));
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    }
}

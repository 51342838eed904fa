//! Members of a tar file, read one after the other from bytes that nothing vouches for.
//!
//! ustar, the extensions of POSIX (`x`: names, sizes, owners, times, attributes) and GNU's long
//! names. Extensions and names have a largest size. Sparse members are refused.

use std::io::{self, Read, Write};

use tar::{EntryType, Header};

use crate::compression::BUFFER_BYTES;

/// Most bytes of all extensions of a member. Attributes have 64 KiB at most, and names 4 KiB.
const EXTENSIONS_BYTES_MAX: u64 = 1 << 20;

/// Most bytes of a name or of what a link leads to: Linux takes no longer ones.
const NAME_BYTES_MAX: usize = 4096;

const BLOCK: u64 = 512;

/// What a member is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    File,
    Dir,
    Symlink,
    HardLink,
    Fifo,
    Char,
    Block,
}

/// A member of a tar file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Member {
    pub(crate) kind: Kind,
    /// As it was written.
    pub(crate) path: Vec<u8>,
    /// What a link leads to.
    pub(crate) link: Vec<u8>,
    /// Bytes of data that follow.
    pub(crate) size: u64,
    /// The lower twelve bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    pub(crate) device: (u32, u32),
    /// Extended attributes.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Why a tar file cannot be read on.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The stream could not be read.
    Io(io::Error),
    /// It is no valid tar file, for this reason.
    Format(&'static str),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Broken::Io(error)
    }
}

/// Reads members. Data that is not read is skipped.
pub(crate) struct Reader<R> {
    stream: R,
    /// Bytes from the stream's start.
    at: u64,
    /// Data of the present member that was not read yet.
    left: u64,
    /// Bytes after it, up to a whole block.
    padding: u64,
}

/// What extensions said about the member that follows.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl<R: Read> Reader<R> {
    pub(crate) fn new(stream: R) -> Self {
        Reader { stream, at: 0, left: 0, padding: 0 }
    }

    /// Where the present member's data begins.
    pub(crate) fn data_offset(&self) -> u64 {
        self.at
    }

    /// The next member; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, Broken> {
        let mut extended = Extended::default();
        let mut budget = EXTENSIONS_BYTES_MAX;
        loop {
            self.skip()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.entry_size().map_err(|_| Broken::Format("a size is no number"))?;
            match header.entry_type() {
                EntryType::XGlobalHeader => drop(self.extension(size, &mut budget)?),
                EntryType::XHeader => pax(&self.extension(size, &mut budget)?, &mut extended)?,
                EntryType::GNULongName => {
                    extended.path = Some(text(self.extension(size, &mut budget)?));
                }
                EntryType::GNULongLink => {
                    extended.link = Some(text(self.extension(size, &mut budget)?));
                }
                kind => return self.member(&header, kind, size, extended).map(Some),
            }
        }
    }

    /// Writes the data of the present member to `to`.
    pub(crate) fn copy(&mut self, to: &mut impl Write) -> Result<(), Broken> {
        let mut buffer =
            vec![0; BUFFER_BYTES.min(usize::try_from(self.left).unwrap_or(usize::MAX))];
        while self.left > 0 {
            let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let count = self.read(&mut buffer[..most])?;
            to.write_all(&buffer[..count])?;
            self.left -= count as u64;
        }
        Ok(())
    }

    /// Reads what follows the last member.
    pub(crate) fn drain(mut self) -> Result<(), Broken> {
        io::copy(&mut self.stream, &mut io::sink())?;
        Ok(())
    }

    /// Some bytes; the end of the stream is an error.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Broken> {
        match self.stream.read(buffer) {
            Ok(0) => Err(Broken::Format("it ends within a member")),
            Ok(count) => {
                self.at += count as u64;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn skip(&mut self) -> Result<(), Broken> {
        self.copy(&mut io::sink())?;
        self.left = std::mem::take(&mut self.padding);
        self.copy(&mut io::sink())
    }

    /// The next header; `None` at the end: a block of zeros, or the end of the stream.
    fn header(&mut self) -> Result<Option<Header>, Broken> {
        let mut header = Header::new_old();
        let mut filled = 0;
        while filled < BLOCK as usize {
            match self.stream.read(&mut header.as_mut_bytes()[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(Broken::Format("it ends within a header")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.at += BLOCK;
        if header.as_bytes().iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let said = header.cksum().map_err(|_| Broken::Format("not a tar file"))?;
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u32::from(byte)).sum::<u32>();
        let bytes = header.as_bytes();
        // The field itself counts as spaces.
        match said == sum(&bytes[..148]) + 8 * 0x20 + sum(&bytes[156..]) {
            true => Ok(Some(header)),
            false => Err(Broken::Format("a header's checksum is wrong")),
        }
    }

    /// The data of an extension. Each costs a block of the member's budget, also an empty one.
    fn extension(&mut self, size: u64, budget: &mut u64) -> Result<Vec<u8>, Broken> {
        *budget = size
            .checked_add(BLOCK)
            .and_then(|cost| budget.checked_sub(cost))
            .ok_or(Broken::Format("extended headers of a member are larger than 1 MiB"))?;
        self.begin(size);
        let mut bytes = Vec::new();
        self.copy(&mut bytes)?;
        Ok(bytes)
    }

    fn begin(&mut self, size: u64) {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK;
    }

    fn member(
        &mut self,
        header: &Header,
        kind: EntryType,
        size: u64,
        extended: Extended,
    ) -> Result<Member, Broken> {
        let size = extended.size.unwrap_or(size);
        let kind = match kind {
            EntryType::Regular | EntryType::Continuous => Kind::File,
            EntryType::Directory => Kind::Dir,
            EntryType::Symlink => Kind::Symlink,
            EntryType::Link => Kind::HardLink,
            EntryType::Fifo => Kind::Fifo,
            EntryType::Char => Kind::Char,
            EntryType::Block => Kind::Block,
            EntryType::GNUSparse => return Err(Broken::Format("it has sparse members")),
            _ => return Err(Broken::Format("a member is of an unknown type")),
        };
        let path = extended.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = extended
            .link
            .unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
        if path.len().max(link.len()) > NAME_BYTES_MAX {
            return Err(Broken::Format("a name is longer than 4096 bytes"));
        }
        // As before POSIX: a directory is a file whose name ends in a slash.
        let kind = if kind == Kind::File && path.ends_with(b"/") { Kind::Dir } else { kind };
        // A link's size is not followed by data, whatever it says.
        self.begin(if kind == Kind::File { size } else { 0 });
        let number = |value: io::Result<u64>| {
            let value = value.map_err(|_| Broken::Format("an owner is no number"))?;
            u32::try_from(value).map_err(|_| Broken::Format("an owner has more than 32 bits"))
        };
        let mtime = match extended.mtime {
            Some(mtime) => mtime,
            None => {
                let seconds = header.mtime().map_err(|_| Broken::Format("a time is no number"))?;
                (seconds.cast_signed(), 0)
            }
        };
        let part = |part: io::Result<Option<u32>>| part.ok().flatten().unwrap_or(0);
        Ok(Member {
            kind,
            link,
            size: if kind == Kind::File { size } else { 0 },
            mode: header.mode().map_err(|_| Broken::Format("a mode is no number"))? & 0o7777,
            uid: number(extended.uid.map_or_else(|| header.uid(), Ok))?,
            gid: number(extended.gid.map_or_else(|| header.gid(), Ok))?,
            mtime,
            device: (part(header.device_major()), part(header.device_minor())),
            xattrs: extended.xattrs,
            path,
        })
    }
}

/// A text that may end with a zero.
fn text(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

/// Records of POSIX: `LENGTH KEY=VALUE\n`, where LENGTH counts all of it.
fn pax(mut bytes: &[u8], extended: &mut Extended) -> Result<(), Broken> {
    const BAD: Broken = Broken::Format("an extended header cannot be read");
    while !bytes.is_empty() {
        let space = bytes.iter().position(|&byte| byte == b' ').ok_or(BAD)?;
        let length: usize = number(&bytes[..space]).ok_or(BAD)?;
        if length > bytes.len() || length < space + 2 {
            return Err(BAD);
        }
        let (record, rest) = bytes.split_at(length);
        bytes = rest;
        let record = record[space + 1..].strip_suffix(b"\n").ok_or(BAD)?;
        let equals = record.iter().position(|&byte| byte == b'=').ok_or(BAD)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => extended.path = Some(value.to_vec()),
            b"linkpath" => extended.link = Some(value.to_vec()),
            b"size" => extended.size = Some(number(value).ok_or(BAD)?),
            b"uid" => extended.uid = Some(number(value).ok_or(BAD)?),
            b"gid" => extended.gid = Some(number(value).ok_or(BAD)?),
            b"mtime" => extended.mtime = Some(time(value).ok_or(BAD)?),
            _ if key.starts_with(b"GNU.sparse.") => {
                return Err(Broken::Format("it has sparse members"));
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    extended.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
    }
    Ok(())
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_number)?.parse().ok()
}

/// Seconds with a fraction, before 1970 with a sign.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (is_negative, text) = match text.strip_prefix('-') {
        Some(text) => (true, text),
        None => (false, text),
    };
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = number(seconds.as_bytes())?;
    let nanoseconds: u32 = match fraction {
        "" => 0,
        _ => {
            let digits = &fraction.as_bytes()[..fraction.len().min(9)];
            let scale = 10u32.pow(9 - u32::try_from(digits.len()).ok()?);
            number::<u32>(digits)? * scale
        }
    };
    Some(match (is_negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    fn all(bytes: &[u8]) -> Result<Vec<Member>, Broken> {
        let mut reader = Reader::new(bytes);
        let mut members = Vec::new();
        while let Some(member) = reader.next()? {
            members.push(member);
        }
        Ok(members)
    }

    #[test]
    fn times_have_fractions_and_signs() {
        assert_eq!(time(b"12.5"), Some((12, 500_000_000)));
        assert_eq!(time(b"-1.25"), Some((-2, 750_000_000)));
        assert_eq!(time(b"-3"), Some((-3, 0)));
        assert_eq!(time(b"1.1234567899"), Some((1, 123_456_789)));
        for bad in [&b""[..], b".", b"x", b"1.x", b"--1", b"99999999999999999999"] {
            assert_eq!(time(bad), None);
        }
    }

    #[test]
    fn attributes_may_hold_any_byte() {
        let mut extended = Extended::default();
        pax(b"26 SCHILY.xattr.user.a=\n=\n", &mut extended).expect("a record");
        assert_eq!(extended.xattrs, [(b"user.a".to_vec(), b"\n=".to_vec())]);
        for bad in [
            &b"5 a=b"[..],
            b"99 a=b\n",
            b"2 \n",
            b"x a=b\n",
            b"7 size=\n",
            b"18446744073709551616 ",
        ] {
            assert!(pax(bad, &mut Extended::default()).is_err());
        }
    }

    #[test]
    fn extended_headers_have_a_largest_size() {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        header.set_size(1 << 40);
        header.set_cksum();
        assert!(
            matches!(all(header.as_bytes()), Err(Broken::Format(why)) if why.contains("1 MiB"))
        );
    }

    /// An extension of this type and data.
    fn extension(kind: EntryType, data: &[u8]) -> Vec<u8> {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(data.len() as u64);
        header.set_cksum();
        let mut bytes = [header.as_bytes(), data].concat();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    #[test]
    fn extensions_of_a_member_share_one_budget() {
        let record = format!("70000 SCHILY.xattr.user.a={}\n", "x".repeat(70_000 - 27));
        for kind in [EntryType::XHeader, EntryType::XGlobalHeader, EntryType::GNULongName] {
            let one = extension(kind, record.as_bytes());
            let why = all(&one.repeat(16)).expect_err("16 times 70,000 bytes");
            assert!(matches!(why, Broken::Format(why) if why.contains("1 MiB")), "{why:?}");
            let empty = extension(kind, b"").repeat(3000);
            let why = all(&empty).expect_err("3000 blocks");
            assert!(matches!(why, Broken::Format(why) if why.contains("1 MiB")), "{why:?}");
        }
    }

    #[test]
    fn names_have_a_largest_size() {
        let file = {
            let mut header = Header::new_ustar();
            for set in [Header::set_uid, Header::set_gid, Header::set_mtime, Header::set_size] {
                set(&mut header, 0);
            }
            header.set_mode(0o644);
            header.set_cksum();
            header.as_bytes().to_vec()
        };
        for (length, is_taken) in [(4096, true), (4097, false), (1 << 19, false)] {
            let name = "n".repeat(length);
            for kind in [EntryType::GNULongName, EntryType::GNULongLink] {
                let bytes = [extension(kind, name.as_bytes()), file.clone()].concat();
                assert_eq!(all(&bytes).is_ok(), is_taken, "{length}");
            }
            for key in ["path", "linkpath"] {
                let rest = key.len() + length + 3;
                let total = (rest..).find(|total| total - total.to_string().len() == rest);
                let record = format!("{} {key}={name}\n", total.expect("one"));
                let bytes = [extension(EntryType::XHeader, record.as_bytes()), file.clone()];
                assert_eq!(all(&bytes.concat()).is_ok(), is_taken, "{length}");
            }
        }
    }

    #[test]
    fn any_bytes_are_an_answer() {
        let mut rng = Rng::new(28);
        for _ in 0..2000 {
            let mut bytes = vec![0; rng.below(2048) as usize];
            bytes.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
            let mut header = Header::new_ustar();
            header.set_path("a").expect("short");
            let bits = rng.below(63) + 1;
            header.set_size(rng.below(1 << bits));
            header.set_entry_type(EntryType::new(rng.below(256) as u8));
            header.set_mode(0o644);
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            header.set_cksum();
            let _ = all(&[header.as_bytes(), &bytes[..]].concat());
            let _ = all(&bytes);
        }
    }
}

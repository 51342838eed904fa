//! Import and export: from and to files on any file system, pipes, and images of other programs.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use polylane_block::Sector;
use polylane_block::file::Way;
use polylane_block::image::{Draft, DurableDraft};
use polylane_block::wait::Waiter;
use rustix::fs::SeekFrom;

use super::cache::CacheSpec;
use super::check::nameless;
use super::copy::{beside_temporary, materialize};
use super::foreign::{self, Kind};
use super::host::{SECTOR_BYTES, failure, refuse_full};
use super::make::{introduce, reserve};
use super::open::open_to_read;
use super::options::MediumKind;
use super::places::resolve;
use super::sidecar::Sidecar;
use super::stack::Stack;
use super::{bypass, info};
use crate::failure::{Failure, Result, say};

/// Bytes moved at once through our memory ...
const PIECE_BYTES: usize = 1 << 20;
/// ... of which pieces of this many zeros are left out of files.
const HOLE_BYTES: usize = 4096;

/// What standard input and output are called.
const STANDARD: &str = "-";

/// What an imported volume is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Form {
    /// How it is reached.
    pub medium: MediumKind,
    /// All of its space is reserved on the host.
    pub thick: bool,
    /// The file is the disk, byte by byte, whatever it looks like.
    pub raw: bool,
}

/// Makes a volume of a raw file, of an image of another program, or of what the tenant of another
/// volume sees. What the file is, is told by its content. It may be a pipe, or `-`.
///
/// # Errors
/// The file cannot be read or is in use, was cut, goes on in other files, or is of a kind that is
/// not known; the volume exists; qemu-img is not installed.
pub fn import(from: &Path, to: &Path, form: Form) -> Result<()> {
    let draft = match source(from)? {
        Some(stream) => of_stream(from, stream, to, form)?,
        None => of_file(&resolve(from)?, to, form)?,
    };
    let size = size_of(&draft, to)?;
    if size == 0 {
        return Err(Failure::failed(format!("{}: is empty: no volume of it", from.display())));
    }
    match form.medium {
        MediumKind::Bypass => bypass::create(to, size, Sidecar::new()?, Some(&draft)).map(drop),
        MediumKind::File => {
            if form.thick {
                refuse_full(to, size.saturating_sub(allocated(&draft)))?;
                reserve(to, &draft, size)?;
            }
            introduce(draft, to, &Sidecar::new()?).map(drop)
        }
    }
}

fn of_file(from: &Path, to: &Path, form: Form) -> Result<Draft> {
    let source = info::open_to_look(from)?;
    let sidecar = Sidecar::load(from)?;
    let draft = new_draft(to)?;
    // The guest of a volume may write any header.
    if sidecar.id.is_empty()
        && !form.raw
        && let Some(format) = image_in(from, &source)?
    {
        convert(from, &source, format, &draft)?;
        return Ok(draft);
    }
    let stack = Stack::from_own(from, open_to_read(from, &sidecar)?)?;
    let size = stack.size;
    materialize(from, stack, draft.file(), to)?;
    fill_sector(from, size, &draft, to)?;
    Ok(draft)
}

fn of_stream(from: &Path, mut stream: File, to: &Path, form: Form) -> Result<Draft> {
    let draft = new_draft(to)?;
    let size = spool(from, &mut stream, draft.file(), to)?;
    if !form.raw {
        let held = file_of(&draft, to)?;
        if let Some(format) = image_in(from, &held)? {
            let converted = new_draft(to)?;
            convert(from, &held, format, &converted)?;
            return Ok(converted);
        }
    }
    fill_sector(from, size, &draft, to)?;
    Ok(draft)
}

/// The format of the image in a file; `None`: it is the disk itself.
///
/// # Errors
/// It holds a disk in a way that is not known, or less of one than its headers say.
fn image_in(from: &Path, file: &File) -> Result<Option<foreign::Format>> {
    let refused = |why: String| {
        Err(Failure::failed(format!(
            "{}: {why}; '--format raw' takes the file's bytes for the disk's",
            from.display()
        )))
    };
    match foreign::kind(from, file)? {
        Kind::Image(format) => Ok(Some(format)),
        Kind::Container(what) => refused(format!("is {what}: unpack it first")),
        Kind::Raw => match foreign::promised(file) {
            Some((what, bytes)) => {
                refused(format!("was cut: its {what} says {bytes} bytes, and the file has fewer"))
            }
            None => Ok(None),
        },
    }
}

fn convert(from: &Path, source: &File, format: foreign::Format, to: &Draft) -> Result<()> {
    foreign::check(from, source, format)?;
    foreign::convert(from, source, format, &file_of(to, from)?)
}

fn file_of(draft: &Draft, path: &Path) -> Result<File> {
    let file = draft.file().try_clone();
    Ok(File::from(file.map_err(|error| Failure::path(path, "open it again", error))?))
}

fn new_draft(to: &Path) -> Result<Draft> {
    Draft::new(to, 0).map_err(|error| failure(to, error))
}

fn size_of(draft: &Draft, to: &Path) -> Result<u64> {
    rustix::fs::seek(draft.file(), SeekFrom::End(0))
        .map_err(|error| Failure::path(to, "find its size", error))
}

/// Bytes that the host has set aside for it already.
fn allocated(draft: &Draft) -> u64 {
    rustix::fs::fstat(draft.file()).map_or(0, |stat| stat.st_blocks as u64 * 512)
}

/// Disks are whole sectors: a file that ends within one is continued with zeros.
fn fill_sector(from: &Path, size: u64, draft: &Draft, to: &Path) -> Result<()> {
    let whole = size.next_multiple_of(SECTOR_BYTES);
    if whole == size {
        return Ok(());
    }
    say(format_args!(
        "{}: is {size} bytes, no whole sectors: {} bytes of zeros follow in {}",
        from.display(),
        whole - size,
        to.display()
    ));
    rustix::fs::ftruncate(draft.file(), whole)
        .map_err(|error| Failure::path(to, "give it its size", error))
}

/// Whether bytes come and go at a path one after the other.
fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|stat| {
        let kind = stat.file_type();
        kind.is_fifo() || kind.is_char_device() || kind.is_socket()
    })
}

fn standard(fd: impl AsFd, path: &Path) -> Result<File> {
    let fd = fd.as_fd().try_clone_to_owned();
    Ok(File::from(fd.map_err(|error| Failure::path(path, "open it", error))?))
}

/// What is read one byte after the other, if `path` is that.
fn source(path: &Path) -> Result<Option<File>> {
    if path == Path::new(STANDARD) {
        return standard(std::io::stdin(), path).map(Some);
    }
    let open = || File::open(path).map_err(|error| Failure::path(path, "open it", error));
    is_stream(path).then(open).transpose()
}

/// What is written one byte after the other, if `path` is that.
fn sink(path: &Path) -> Result<Option<File>> {
    if path == Path::new(STANDARD) {
        return standard(std::io::stdout(), path).map(Some);
    }
    let open = || {
        let file = File::options().write(true).open(path);
        file.map_err(|error| Failure::path(path, "open it", error))
    };
    is_stream(path).then(open).transpose()
}

/// Stores what comes from a pipe in an empty file, in which zeros are holes; how much that is.
fn spool(from: &Path, stream: &mut File, to: &OwnedFd, name: &Path) -> Result<u64> {
    let wrote = |error| Failure::path(name, "write it", error);
    let mut bytes = vec![0; PIECE_BYTES];
    let mut size = 0;
    loop {
        // Whole pieces, so that zeros are seen.
        let mut count = 0;
        while count < bytes.len() {
            match stream.read(&mut bytes[count..]) {
                Ok(0) => break,
                Ok(more) => count += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::path(from, "read it", error)),
            }
        }
        if count == 0 {
            rustix::fs::ftruncate(to, size).map_err(wrote)?;
            return Ok(size);
        }
        for (piece, at) in bytes[..count].chunks(HOLE_BYTES).zip((size..).step_by(HOLE_BYTES)) {
            if piece.iter().any(|byte| *byte != 0) {
                super::copy::write_all(to, piece, at)
                    .map_err(|error| Failure::path(name, "write it", error))?;
            }
        }
        size += count as u64;
    }
}

/// Writes a volume that is not in use to a new file, to a pipe, or to standard output (`-`).
///
/// # Errors
/// The volume is in use, the file exists, the pipe has no reader, qemu-img is not installed.
pub fn export(from: &Path, to: &Path, qcow2: bool) -> Result<()> {
    let from = &resolve(from)?;
    let own = open_to_read(from, &Sidecar::load(from)?)?;
    let stack = Stack::from_own(from, own)?;
    let Some(mut sink) = sink(to)? else {
        let draft = new_draft(to)?;
        match qcow2 {
            true => to_qcow2(from, stack, &draft, to)?,
            false => materialize(from, stack, draft.file(), to)?,
        }
        return draft
            .durable()
            .and_then(DurableDraft::publish)
            .map(drop)
            .map_err(|error| failure(to, error));
    };
    if !qcow2 {
        return pour(from, stack, &mut sink, to);
    }
    let draft = nameless(from)?;
    to_qcow2(from, stack, &draft, from)?;
    let size = size_of(&draft, from)?;
    pour_file(&file_of(&draft, from)?, size, &mut sink, to)
}

fn to_qcow2(from: &Path, stack: Stack, draft: &Draft, name: &Path) -> Result<()> {
    let to = file_of(draft, name)?;
    if stack.is_raw() {
        let raw = stack.files[0].plain.try_clone();
        let raw = raw.map_err(|error| Failure::path(from, "open it again", error))?;
        return foreign::convert_to_qcow2(from, &File::from(raw), &to);
    }
    let raw = Draft::new(&beside_temporary(name), 0).map_err(|error| failure(name, error))?;
    materialize(from, stack, raw.file(), name)?;
    foreign::convert_to_qcow2(from, &file_of(&raw, name)?, &to)
}

/// Writes all that a volume holds to a pipe, in order.
fn pour(from: &Path, stack: Stack, to: &mut File, name: &Path) -> Result<()> {
    let size = stack.size;
    if stack.is_raw() {
        let file = stack.files[0].plain.try_clone();
        let file = file.map_err(|error| Failure::path(from, "open it again", error))?;
        return pour_file(&File::from(file), size, to, name);
    }
    let (parts, _pinned) = stack.parts()?;
    let whole = Stack::assemble(parts, Way::Calls, None, CacheSpec::default(), None)?;
    let waiter = Waiter::new(whole.device);
    let mut at = 0;
    while at < size {
        let bytes = (size - at).min(PIECE_BYTES as u64);
        let read = waiter.read(Sector(at / SECTOR_BYTES), bytes as usize);
        let data = read
            .map_err(|error| Failure::path(from, "read it", polylane_base::Errno::from(error)))?;
        to.write_all(&data).map_err(|error| Failure::path(name, "write it", error))?;
        at += bytes;
    }
    Ok(())
}

fn pour_file(file: &File, size: u64, to: &mut File, name: &Path) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let mut bytes = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < size {
        let piece = &mut bytes[..(size - at).min(PIECE_BYTES as u64) as usize];
        file.read_exact_at(piece, at).map_err(|error| Failure::path(name, "read for it", error))?;
        to.write_all(piece).map_err(|error| Failure::path(name, "write it", error))?;
        at += piece.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_any_pieces_is_stored_whole_and_zeros_are_holes() {
        let (reader, mut writer) = std::io::pipe().expect("pipe");
        let mut content = vec![0u8; 3 * PIECE_BYTES + 77];
        content[HOLE_BYTES * 3 + 5] = 1;
        content[2 * PIECE_BYTES - 1] = 2;
        let sent = content.clone();
        let sender = std::thread::spawn(move || {
            for piece in sent.chunks(7777) {
                writer.write_all(piece).expect("write");
            }
        });
        let file = tempfile::tempfile().expect("file");
        let name = Path::new("to");
        let mut stream = File::from(OwnedFd::from(reader));
        let to = OwnedFd::from(file.try_clone().expect("clone"));
        let size = spool(name, &mut stream, &to, name).expect("spool");
        sender.join().expect("sender");
        assert_eq!(size, content.len() as u64);
        let mut found = Vec::new();
        let (reader, writer) = std::io::pipe().expect("pipe");
        let mut writer = File::from(OwnedFd::from(writer));
        let poured = std::thread::spawn(move || pour_file(&file, size, &mut writer, name));
        File::from(OwnedFd::from(reader)).read_to_end(&mut found).expect("read");
        poured.join().expect("thread").expect("pour");
        assert!(found == content);
    }
}

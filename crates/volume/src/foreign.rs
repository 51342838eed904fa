//! Images of other programs, told by what they begin and end with.
//!
//! What is in an image is its maker's word. Headers are looked at here only to say by name what is
//! not taken: images that go on in other files, and containers that nothing here opens. That no
//! other file is read is seen to by the sandbox that converts them.

mod headers;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use polylane_base::record;
use zerocopy::{FromZeros, IntoBytes};

use self::headers::{
    GPT_OFFSET, GPT_SIGNATURE, GptStart, QCOW_VERSION_2, Qcow3Start, QcowIncompatible, QcowStart,
    QedFeatures, QedStart, VDI_SIGNATURE, VHD_COOKIE, VHD_DIFFERENCING, VHD_FIXED, VdiStart,
    VhdFooter, VmdkStart, XFS_MAGIC, XfsStart,
};
use super::progress::Progress;
use super::sandbox::{Right, Sandbox};
use super::tools;
use crate::confine;
use crate::failure::{Failure, Result};
use crate::host::SECTOR_BYTES;
use crate::superblock::{START_BYTES, Superblock};

/// Bytes of the footers that are looked at.
const FOOTER_BYTES: usize = size_of::<VhdFooter>();

/// How much of a VMDK's embedded descriptor is looked at.
const DESCRIPTOR_BYTES: usize = 64 << 10;

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A disk, byte by byte, as far as its content tells.
    Raw,
    /// An image that qemu-img converts.
    Image(Format),
    /// Something that holds a disk, and that nothing here opens.
    Container(&'static str),
}

/// A format of images: qemu's name for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    Qcow,
    Qcow2,
    Qed,
    Vmdk,
    Vdi,
    Vpc,
    Vhdx,
    Parallels,
}

impl Format {
    fn driver(self) -> &'static str {
        match self {
            Format::Qcow => "qcow",
            Format::Qcow2 => "qcow2",
            Format::Qed => "qed",
            Format::Vmdk => "vmdk",
            Format::Vdi => "vdi",
            Format::Vpc => "vpc",
            Format::Vhdx => "vhdx",
            Format::Parallels => "parallels",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Format::Qcow => "qcow",
            Format::Qcow2 => "qcow2",
            Format::Qed => "QED",
            Format::Vmdk => "VMDK",
            Format::Vdi => "VDI",
            Format::Vpc => "VHD",
            Format::Vhdx => "VHDX",
            Format::Parallels => "Parallels",
        }
    }
}

/// What images begin with.
const STARTS: [(&[u8], Format); 9] = [
    (b"QFI\xfb\0\0\0\x01", Format::Qcow),
    (b"QFI\xfb", Format::Qcow2),
    (b"QED\0", Format::Qed),
    (b"KDMV", Format::Vmdk),
    (b"COWD", Format::Vmdk),
    (b"vhdxfile", Format::Vhdx),
    (b"conectix", Format::Vpc),
    (b"WithoutFreeSpace", Format::Parallels),
    (b"WithouFreSpacExt", Format::Parallels),
];

/// What begins with this is no disk.
const CONTAINERS: [(usize, &[u8], &str); 16] = [
    (0, b"A polylane copy-on-write volume", "a copy-on-write volume without its sidecar"),
    (0, b"A polylane bypass volume", "a bypass volume without its sidecar"),
    (0, b"# Disk DescriptorFile", "a VMDK descriptor, which names other files"),
    (0, b"\x1f\x8b\x08", "compressed by gzip"),
    (0, b"BZh", "compressed by bzip2"),
    (0, b"\xfd7zXZ\0", "compressed by xz"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by zstd"),
    (0, b"\x04\x22\x4d\x18", "compressed by lz4"),
    (0, b"PK\x03\x04", "a zip archive"),
    (257, b"ustar", "a tar archive (an OVA is one)"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"\x3a\xff\x26\xed", "an Android sparse image"),
    (0, b"VMA\0", "a Proxmox VMA archive"),
    (0, b"Bochs Virtual HD Image", "a Bochs image"),
    (0, b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop", "a cloop image"),
    (0, b"MSWIM\0\0\0", "a WIM archive"),
];

/// What a file holds.
///
/// # Errors
/// It cannot be read.
pub(crate) fn kind(path: &Path, file: &File) -> Result<Kind> {
    let failed = |error| Failure::path(path, "read it", error);
    let length = file.metadata().map_err(failed)?.len();
    let mut start = [0; START_BYTES];
    let at_hand = length.min(START_BYTES as u64) as usize;
    file.read_exact_at(&mut start[..at_hand], 0).map_err(failed)?;
    let mut end = VhdFooter::new_zeroed();
    if let Some(at) = length.checked_sub(FOOTER_BYTES as u64) {
        file.read_exact_at(end.as_mut_bytes(), at).map_err(failed)?;
    }
    Ok(judge(&start, &end))
}

fn judge(start: &[u8; START_BYTES], end: &VhdFooter) -> Kind {
    if let Some((_, format)) = STARTS.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Kind::Image(*format);
    }
    if record::at::<VdiStart>(start, 0).signature == VDI_SIGNATURE {
        return Kind::Image(Format::Vdi);
    }
    let is = |(at, magic, _): &&(usize, &[u8], &str)| start[*at..].starts_with(magic);
    if let Some((_, _, what)) = CONTAINERS.iter().find(is) {
        return Kind::Container(what);
    }
    if end.as_bytes().starts_with(b"koly\0\0\0\x04") {
        return Kind::Container("a DMG image");
    }
    match is_footer(end) {
        true => Kind::Image(Format::Vpc),
        false => Kind::Raw,
    }
}

/// What a raw disk says that it is longer than its file: a file system or a partition table, and
/// how many bytes that needs.
pub(crate) fn promised(file: &File) -> Option<(&'static str, u64)> {
    let length = file.metadata().ok()?.len();
    let mut start = [0; START_BYTES];
    file.read_exact_at(&mut start, 0).ok()?;
    let needs = needs(&start)?;
    (needs.1 > length).then_some(needs)
}

fn needs(start: &[u8; START_BYTES]) -> Option<(&'static str, u64)> {
    if let Some(ext4) = Superblock::of(start) {
        return Some(("ext4 file system", ext4.bytes()?));
    }
    let xfs = record::at::<XfsStart>(start, 0);
    if xfs.magicnum == XFS_MAGIC {
        let block_bytes = u64::from(xfs.blocksize.get());
        return Some(("XFS file system", xfs.dblocks.get().checked_mul(block_bytes)?));
    }
    let gpt = record::at::<GptStart>(start, GPT_OFFSET);
    if gpt.signature == GPT_SIGNATURE {
        let last = gpt.alternate_lba.get();
        return Some(("partition table", last.checked_add(1)?.checked_mul(SECTOR_BYTES)?));
    }
    None
}

/// Whether these bytes are a VHD's footer: its sum is right.
fn is_footer(footer: &VhdFooter) -> bool {
    let unsummed = VhdFooter { checksum: 0.into(), ..*footer };
    let sum: u32 = unsummed.as_bytes().iter().map(|byte| u32::from(*byte)).sum();
    footer.cookie == VHD_COOKIE && footer.checksum == !sum
}

/// Refuses an image that goes on in another file, or that was cut.
///
/// # Errors
/// That; it cannot be read.
pub(crate) fn check(path: &Path, file: &File, format: Format) -> Result<()> {
    let refused = |why: &str| {
        let name = format.name();
        Err(Failure::failed(format!("{}: a {name} image {why}", path.display())))
    };
    if let Some(what) = goes_on(file, format) {
        return refused(&format!("that goes on in another file ({what}): convert it first"));
    }
    if format == Format::Vpc {
        let length = file.metadata().map_or(0, |stat| stat.len());
        let mut end = VhdFooter::new_zeroed();
        let at = length.checked_sub(FOOTER_BYTES as u64);
        let read = at.is_some_and(|at| file.read_exact_at(end.as_mut_bytes(), at).is_ok());
        let is_fixed = end.disk_type == VHD_FIXED;
        let size = end.current_size.get();
        if !read || !is_footer(&end) || (is_fixed && at.is_some_and(|at| size > at)) {
            return refused("that was cut: its end is missing");
        }
    }
    if !confine::has_landlock() {
        return refused("cannot be converted here: the kernel has no Landlock to confine qemu-img");
    }
    let checked = tools::run({
        let (mut command, source) = qemu_img("check", file, format)?;
        command.arg("-q").args(source);
        command
    })?;
    if checked.status.code() == Some(DAMAGED) {
        return refused("that is damaged, or was cut: 'qemu-img check' finds errors");
    }
    match reaches_past_its_end(file, format) {
        Err(error) => Err(Failure::path(path, "look at it by qemu-img", error)),
        Ok(true) => refused("that was cut: it says to have data behind its end"),
        Ok(false) => Ok(()),
    }
}

/// What `qemu-img check` ends with when it finds damage.
const DAMAGED: i32 = 2;

/// By what an image names another file.
fn goes_on(file: &File, format: Format) -> Option<&'static str> {
    let mut start = [0; START_BYTES];
    let count = file.read_at(&mut start, 0).unwrap_or(0);
    let start = &start[..count];
    // A header that the file is too short for names another file, as far as this can tell.
    let qcow = record::get::<QcowStart>(start, 0);
    match format {
        Format::Qcow | Format::Qcow2 if qcow.is_none_or(|qcow| qcow.backing_file_offset != 0) => {
            Some("a backing file")
        }
        Format::Qcow2 if qcow.is_some_and(|qcow| qcow.version == QCOW_VERSION_2) => None,
        Format::Qcow2 => {
            let features = record::get::<Qcow3Start>(start, 0).map(|header| {
                QcowIncompatible::from_bits_retain(header.incompatible_features.get())
            });
            let is_split = features.is_none_or(|its| its.contains(QcowIncompatible::EXTERNAL_DATA));
            is_split.then_some("a data file")
        }
        Format::Qed => {
            let features = record::get::<QedStart>(start, 0)
                .map(|header| QedFeatures::from_bits_retain(header.features.get()));
            let is_based = features.is_none_or(|its| its.contains(QedFeatures::BACKING_FILE));
            is_based.then_some("a base")
        }
        Format::Vpc => {
            let copy = record::get::<VhdFooter>(start, 0)?;
            (copy.disk_type == VHD_DIFFERENCING).then_some("a parent")
        }
        Format::Vmdk => {
            let header = record::get::<VmdkStart>(start, 0)?;
            let at = header.descriptor_offset.get().checked_mul(SECTOR_BYTES)?;
            let mut text = vec![0; DESCRIPTOR_BYTES];
            let count = file.read_at(&mut text, at).unwrap_or(0);
            let text = String::from_utf8_lossy(&text[..count]).to_lowercase();
            let (_, parent) = text.split_once("parentcid=")?;
            (!parent.starts_with("ffffffff")).then_some("a parent")
        }
        _ => None,
    }
}

/// qemu-img with a verb, in a sandbox with this file alone, and the options by which it finds it.
fn qemu_img(verb: &str, file: &File, format: Format) -> Result<(Command, [String; 2])> {
    let mut sandbox = Sandbox::new("qemu-img", "qemu-utils")?;
    let name = sandbox.give(file, Right::Read)?;
    let mut command = sandbox.command()?;
    command.arg(verb);
    Ok((command, source(format, &name)))
}

fn source(format: Format, name: &Path) -> [String; 2] {
    let driver = format.driver();
    let what = format!("driver={driver},file.driver=file,file.filename={}", name.display());
    ["--image-opts".to_string(), what]
}

/// Whether an image says that data of it lies where its file has ended.
fn reaches_past_its_end(file: &File, format: Format) -> std::io::Result<bool> {
    let length = file.metadata()?.len();
    let (mut command, source) = qemu_img("map", file, format).map_err(std::io::Error::other)?;
    command.arg("--output=json").args(source).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let mut past = false;
    if let Some(said) = child.stdout.take() {
        for line in BufReader::new(said).lines() {
            past |= end_of_extent(&line?).is_some_and(|end| end > length);
        }
    }
    child.wait()?;
    Ok(past)
}

/// Where the data of one line of `qemu-img map --output=json` ends in the image's file.
fn end_of_extent(line: &str) -> Option<u64> {
    let json = line.trim().trim_matches(|c| matches!(c, '[' | ']' | ','));
    let extent: serde_json::Value = serde_json::from_str(json).ok()?;
    let number = |name: &str| extent.get(name)?.as_u64();
    (extent.get("data")?.as_bool()?).then_some(())?;
    number("offset")?.checked_add(number("length")?)
}

/// Writes the disk that an image holds to an empty file.
///
/// # Errors
/// qemu-img is not installed, or cannot.
pub(crate) fn convert(from: &Path, file: &File, format: Format, to: &File) -> Result<()> {
    let mut sandbox = Sandbox::new("qemu-img", "qemu-utils")?;
    let source = source(format, &sandbox.give(file, Right::Read)?);
    let target = sandbox.give(to, Right::Write)?;
    let mut command = sandbox.command()?;
    command.args(["convert", "-O", "raw"]).args(source).arg(&target);
    run_convert(command, from)
}

/// Writes a raw file, which we have locked, as a qcow2 image to an empty file.
///
/// # Errors
/// qemu-img is not installed, or cannot.
pub(crate) fn convert_to_qcow2(from: &Path, raw: &File, to: &File) -> Result<()> {
    let mut sandbox = Sandbox::new("qemu-img", "qemu-utils")?;
    let source = sandbox.give(raw, Right::Read)?;
    let target = sandbox.give(to, Right::Write)?;
    let mut command = sandbox.command()?;
    // No locks are looked for, because ours are on it.
    let source =
        format!("driver=raw,file.driver=file,file.locking=off,file.filename={}", source.display());
    command.args(["convert", "-O", "qcow2", "--image-opts", &source]).arg(&target);
    run_convert(command, from)
}

fn run_convert(mut command: Command, name: &Path) -> Result<()> {
    let progress = Progress::of_share("converting", name);
    if progress.is_seen() {
        command.arg("-p");
    }
    let output = tools::run_watched(command, &progress, convert_share)?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: cannot convert it: {}",
            name.display(),
            tools::last_words(&output)
        ))),
    }
}

/// What `qemu-img -p` says of how far it is: `    (12.34/100%)`.
fn convert_share(line: &str) -> Option<f64> {
    let percent: f64 = line.trim().strip_prefix('(')?.strip_suffix("/100%)")?.parse().ok()?;
    Some(percent / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(start: &[u8], end: &[u8]) -> Kind {
        let (mut first, mut last) = ([0; START_BYTES], VhdFooter::new_zeroed());
        first[..start.len()].copy_from_slice(start);
        last.as_mut_bytes()[..end.len()].copy_from_slice(end);
        judge(&first, &last)
    }

    #[test]
    fn every_format_is_told_by_its_content() {
        for (magic, format) in STARTS {
            assert_eq!(kind_of(magic, b""), Kind::Image(format));
        }
        for (at, magic, what) in CONTAINERS {
            let mut start = vec![0; at];
            start.extend(magic);
            assert_eq!(kind_of(&start, b""), Kind::Container(what));
        }
        let vdi = VdiStart { text: [0; 64], signature: VDI_SIGNATURE.into() };
        assert_eq!(kind_of(vdi.as_bytes(), b""), Kind::Image(Format::Vdi));
        assert_eq!(vdi.signature.as_bytes(), b"\x7f\x10\xda\xbe");
        assert_eq!(kind_of(b"", b"koly\0\0\0\x04"), Kind::Container("a DMG image"));
        // A guest's own last sector is no footer unless its sum is right.
        assert_eq!(kind_of(b"", b"conectix"), Kind::Raw);
        let mut footer = [0; FOOTER_BYTES];
        footer[..8].copy_from_slice(b"conectix");
        let sum: u32 = footer.iter().map(|byte| u32::from(*byte)).sum();
        footer[64..68].copy_from_slice(&(!sum).to_be_bytes());
        assert_eq!(kind_of(b"", &footer), Kind::Image(Format::Vpc));
        assert_eq!(kind_of(b"\xeb\x63\x90", b""), Kind::Raw);
    }

    #[test]
    fn a_disk_says_how_long_it_is() {
        let with = |parts: &[(usize, &[u8])]| {
            let mut start = [0; START_BYTES];
            for (at, bytes) in parts {
                start[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            needs(&start).map(|(_, bytes)| bytes)
        };
        let [magic, blocks] = [(1024 + 0x38, &b"\x53\xef"[..]), (1028, &b"\x10\0\0\0"[..])];
        assert_eq!(with(&[magic, blocks]), Some(16 << 10));
        assert_eq!(with(&[magic, blocks, (1024 + 0x18, b"\x02")]), Some(16 << 12));
        let high = (1024 + 0x150, &b"\x01"[..]);
        assert_eq!(with(&[magic, blocks, high]), Some(16 << 10));
        assert_eq!(with(&[magic, high, (1024 + 0x60, b"\x80")]), Some(1 << 42));
        assert_eq!(with(&[magic, blocks, (1024 + 0x18, b"\xff")]), None);
        assert_eq!(with(&[(0, b"XFSB\0\0\x10\0"), (15, b"\x05")]), Some(5 << 12));
        assert_eq!(with(&[(512, b"EFI PART"), (544, b"\xff")]), Some(256 * 512));
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn images_that_go_on_elsewhere_are_named() {
        let file = |bytes: &[u8]| {
            let file = tempfile::tempfile().expect("file");
            file.write_all_at(bytes, 0).expect("write");
            file
        };
        let qcow2 = |version: u8, backing: u8, features: u8| {
            let mut header = vec![0; 104];
            header[..8].copy_from_slice(&[b'Q', b'F', b'I', 0xfb, 0, 0, 0, version]);
            (header[15], header[79]) = (backing, features);
            goes_on(&file(&header), Format::Qcow2)
        };
        assert_eq!(qcow2(3, 0, 1), None);
        assert_eq!(qcow2(3, 1, 0), Some("a backing file"));
        assert_eq!(qcow2(3, 0, 4), Some("a data file"));
        // The second version has no such field there.
        assert_eq!(qcow2(2, 0, 4), None);
        assert_eq!(goes_on(&file(b"QFI\xfb"), Format::Qcow2), Some("a backing file"));
        assert_eq!(goes_on(&file(b"QED\0"), Format::Qed), Some("a base"));
    }

    #[test]
    fn extents_of_a_map_are_read_line_by_line() {
        let line = r#"[{ "start": 0, "length": 65536, "data": true, "offset": 327680},"#;
        assert_eq!(end_of_extent(line), Some(393_216));
        let hole = r#"{ "start": 65536, "length": 65536, "zero": true, "data": false}]"#;
        assert_eq!(end_of_extent(hole), None);
        assert_eq!(end_of_extent("]"), None);
    }
}

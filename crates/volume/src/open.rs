//! Opening a volume's file, or making it first.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use polylane_base::Errno;
use polylane_base::size::ByteSize;
use polylane_block::claimed::Claimed;
use polylane_block::file::Files;
use polylane_block::image::{self, Draft, Holder, ImageError};

use super::cache::CacheSpec;
use super::change::{MediumKind, SetOptions, make_bypass, refuse_host_cache, refuse_snapshot};
use super::cow;
use super::known;
use super::sidecar::Sidecar;
use super::stack::Stack;
use super::tools;
use super::translation::Translation;
use super::trust;
use crate::failure::{Failure, Result, plain};

/// Size of a volume that was given none.
pub const SIZE_DEFAULT: u64 = 10 << 30;

/// Sizes are whole blocks of the file system.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// What is left free on a host when space is reserved on it; of a small host a sixteenth.
const RESERVE_BYTES: u64 = 256 << 20;

/// Where ext4's magic number is, and what it is.
const MAGIC_OFFSET: u64 = 1024 + 0x38;
const MAGIC: [u8; 2] = 0xef53u16.to_le_bytes();

/// The state directory: `$XDG_STATE_HOME/polylane`; else `/var/lib/polylane` for root and
/// `~/.local/state/polylane` for others.
pub fn state_dir() -> Result<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute())
    };
    if let Some(dir) = absolute("XDG_STATE_HOME") {
        return Ok(dir.join("polylane"));
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/polylane"));
    }
    let home = absolute("HOME").ok_or_else(|| {
        Failure::failed("state directory: set HOME or XDG_STATE_HOME, or use --volume FILE")
    })?;
    Ok(home.join(".local/state/polylane"))
}

/// Where the volumes of pools lie that were given none.
pub fn volumes_dir() -> Result<PathBuf> {
    Ok(state_dir()?.join("volumes"))
}

/// The file that a volume's path means. A symbolic link is followed here and nowhere else: the
/// sidecar has the file's name, and names are exchanged where the file has its own.
///
/// # Errors
/// It is a link that leads nowhere, or one of another user to a file that is not that user's.
pub fn resolve(path: &Path) -> Result<PathBuf> {
    trust::check_links(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(stat) if stat.is_symlink() => {
            path.canonicalize().map_err(|error| Failure::path(path, "follow the link", error))
        }
        _ => Ok(path.to_path_buf()),
    }
}

/// Opens a volume that is only going to be read, so that nobody changes it meanwhile: alone; what
/// never changes, or may not be written by this user or on this host, together with others who
/// read.
pub(super) fn open_to_read(path: &Path, sidecar: &Sidecar) -> Result<Files> {
    if sidecar.snapshot {
        return image::open_snapshot(path).map_err(|error| failure(path, error));
    }
    match image::open(path) {
        Err(ImageError::Host(_, Errno::EROFS | Errno::EACCES | Errno::EPERM)) => {
            image::open_shared(path)
        }
        opened => opened,
    }
    .map_err(|error| failure(path, error))
}

/// Refuses a file that has other names: they would go on to mean what the volume was.
pub(super) fn refuse_links(path: &Path) -> Result<()> {
    let stat = rustix::fs::stat(path).map_err(|error| Failure::path(path, "look at it", error))?;
    match stat.st_nlink {
        0 | 1 => Ok(()),
        count => Err(Failure::failed(format!(
            "{}: its file has {count} names (hard links), which would mean different volumes \
             after this: remove the others first",
            path.display()
        ))),
    }
}

/// The own volume of a pool; its directory is made.
pub fn default_path(pool: &str) -> Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt;
    let dir = volumes_dir()?;
    let mut builder = std::fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(&dir)
        .map_err(|error| Failure::path(&dir, "make the directory of volumes", error))?;
    Ok(dir.join(format!("{pool}.img")))
}

/// What is known of a lane's source: by its volume's sidecar, of its use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// Share of a pool on it.
    pub weight: Option<u32>,
    /// How it is cached.
    pub cache: CacheSpec,
    /// How it is translated.
    pub translation: Translation,
    /// Its id in its pool file, of a bypass volume.
    pub bypass: Option<String>,
    /// It was made just now, and is empty: all that will be in it is made by COMMAND.
    pub is_new: bool,
}

/// What a volume is to be: a new one is made so, an existing one must be so already.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// Bytes.
    pub size: Option<u64>,
    /// How it is reached.
    pub medium: Option<MediumKind>,
}

/// Opens a volume alone, to be cached as `cache` says; makes it, formatted, when there is none.
/// What its sidecar says of its use comes with it.
pub fn open_or_create(
    path: &Path,
    asked: Asked,
    cache: &SetOptions,
    owner: (u32, u32),
) -> Result<(Stack, Kept)> {
    match image::open(path) {
        Err(ImageError::Host(_, Errno::ENOENT)) => {
            let files = create(path, asked, cache, owner)?;
            let stack = Stack::from_own(path, files)?;
            let bypass = stack.sidecar.bypass.as_ref().map(|bypass| bypass.id.clone());
            Ok((stack, Kept { bypass, is_new: true, ..Kept::default() }))
        }
        opened => {
            let files = opened.map_err(|error| failure(path, error))?;
            check_medium(path, asked.medium)?;
            let stack = Stack::from_own(path, files)?;
            check_size(path, stack.size, asked.size)?;
            if stack.is_raw() {
                check_magic(path, &stack.files[0].plain)?;
            }
            let Sidecar { weight, cache: kept, translation, bypass, .. } = refuse_snapshot(path)?;
            let (kept, bypass) = (kept.unwrap_or_default(), bypass.map(|bypass| bypass.id));
            if bypass.is_some() {
                refuse_host_cache(path, cache.change(kept))?;
            }
            Ok((stack, Kept { weight, cache: kept, translation, bypass, is_new: false }))
        }
    }
}

fn create(path: &Path, asked: Asked, cache: &SetOptions, owner: (u32, u32)) -> Result<Files> {
    let sidecar = Sidecar { formatted: Some("ext4".to_string()), ..Sidecar::new()? };
    let size = asked.size.unwrap_or(SIZE_DEFAULT);
    match asked.medium.unwrap_or_default() {
        MediumKind::File => introduce(draft(path, size, Some(owner))?, path, &sidecar),
        MediumKind::Bypass => {
            refuse_host_cache(path, cache.change(CacheSpec::default()))?;
            make_bypass(path, size, Some(owner), sidecar)
        }
    }
}

/// Refuses to reserve `bytes` beside `path` where its host has no room for them. Trying would fill
/// the host first, for everybody on it.
pub(super) fn refuse_full(path: &Path, bytes: u64) -> Result<()> {
    let Ok(host) = rustix::fs::statvfs(image::directory_of(path)) else { return Ok(()) };
    let free = host.f_bavail.saturating_mul(host.f_frsize);
    let kept = RESERVE_BYTES.min(host.f_blocks.saturating_mul(host.f_frsize) / 16);
    match bytes.saturating_add(kept) <= free {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: its host has {} left, of which {} are kept free: no room for {}",
            path.display(),
            ByteSize(free),
            ByteSize(kept),
            ByteSize(bytes)
        ))),
    }
}

/// Makes an empty volume when there is none; whether it did.
pub fn make_blank(path: &Path, asked: Asked) -> Result<bool> {
    let size = asked.size.unwrap_or(SIZE_DEFAULT);
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            match asked.medium.unwrap_or_default() {
                MediumKind::File => introduce(draft(path, size, None)?, path, &Sidecar::new()?)?,
                MediumKind::Bypass => make_bypass(path, size, None, Sidecar::new()?)?,
            };
            Ok(true)
        }
        _ => {
            check_medium(path, asked.medium)?;
            if asked.size.is_some() {
                let stack = Stack::open(path)?;
                check_size(path, stack.size, asked.size)?;
            }
            Ok(false)
        }
    }
}

/// Refuses a volume that is reached in another way than asked.
fn check_medium(path: &Path, asked: Option<MediumKind>) -> Result<()> {
    let Some(asked) = asked else { return Ok(()) };
    let has = match Sidecar::load(path)?.bypass {
        Some(_) => MediumKind::Bypass,
        None => MediumKind::File,
    };
    match asked == has {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{0}: exists on the medium {has}: leave --medium out, or make another volume of it \
             with 'polylane volume import {0} NEW --medium {asked}'",
            path.display()
        ))),
    }
}

/// Makes what is going to be a volume: with an ext4 whose root belongs to `owner`, or empty.
pub(super) fn draft(path: &Path, size: u64, owner: Option<(u32, u32)>) -> Result<Draft> {
    let size = size.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(size);
    let draft = Draft::new(path, size).map_err(|error| failure(path, error))?;
    if let Some(owner) = owner {
        tools::make_ext4(path, &image::proc_path(draft.file()), owner)?;
    }
    Ok(draft)
}

/// Gives a new volume its name, and opens it. Its sidecar comes first: what has a name is whole,
/// and a sidecar that a former volume of that name left says nothing of this one.
///
/// # Errors
/// The name is taken, and its sidecar stays as it was; the host's.
pub(super) fn introduce(draft: Draft, path: &Path, sidecar: &Sidecar) -> Result<Files> {
    let _names = image::hold_names(path);
    if std::fs::symlink_metadata(path).is_ok() {
        return Err(failure(path, ImageError::Host("create it", Errno::EEXIST)));
    }
    cow::refuse_half_gone(path)?;
    sidecar.store(path)?;
    let published = draft.publish().map_err(|error| {
        let _ = Sidecar::remove(path);
        failure(path, error)
    });
    if published.is_ok() {
        known::note(path, sidecar);
    }
    published
}

fn check_size(path: &Path, size: u64, asked: Option<u64>) -> Result<()> {
    let Some(asked) = asked else { return Ok(()) };
    match asked.checked_next_multiple_of(BLOCK_BYTES) == Some(size) {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: exists with {}: leave --size out, or use 'polylane volume resize' first",
            path.display(),
            ByteSize(size)
        ))),
    }
}

fn check_magic(path: &Path, file: &OwnedFd) -> Result<()> {
    let mut magic = [0; 2];
    let read = rustix::io::pread(file, &mut magic, MAGIC_OFFSET)
        .map_err(|error| Failure::path(path, "read it", error))?;
    match read == magic.len() && magic == MAGIC {
        true => Ok(()),
        false => Err(Failure::failed(format!(
            "{}: holds no ext4 file system: format it with mke2fs, or remove it to have it made",
            path.display()
        ))),
    }
}

/// The one line for what went wrong with a volume's file.
pub fn failure(path: &Path, error: ImageError) -> Failure {
    let why = match error {
        ImageError::NotAFile => "not a regular file or block device".to_string(),
        ImageError::Host(what, errno) => format!("cannot {what}: {}", plain(&errno.into())),
        ImageError::InUse(holder) => format!("in use by {}", holder_text(path, holder.as_ref())),
        ImageError::Claimed(claimed) => claimed_text(&claimed),
    };
    Failure::failed(format!("{}: {why}", path.display()))
}

/// How the kernel uses a volume, for a person.
fn claimed_text(Claimed { by, at }: &Claimed) -> String {
    let by = by.as_ref().map_or(String::new(), |by| format!(" (by {})", by.display()));
    match at {
        Some(at) => format!("the kernel has it mounted at {}{by}: unmount it first", at.display()),
        None => format!(
            "the kernel uses it{by}: it is mounted out of sight, swap, or a part of another \
             device: end that first"
        ),
    }
}

/// What a person calls the holder of a volume, where that is more than a process. Set once.
///
/// A refusal is one line, made by whichever function meets the lock: handed down, this would pass
/// through every one of them for the sake of that line.
static HOLDER_NAME: OnceLock<fn(&Path) -> Option<String>> = OnceLock::new();

/// Has refusals name the holder of a volume as this function does, where it knows one. The first
/// call counts.
pub fn name_holders_by(name: fn(&Path) -> Option<String>) {
    let _ = HOLDER_NAME.set(name);
}

/// Who has a volume open, for a person.
pub(super) fn holder_text(path: &Path, holder: Option<&Holder>) -> String {
    if let Some(name) = HOLDER_NAME.get().and_then(|name| name(path)) {
        return name;
    }
    let Some(Holder { pid, name }) = holder else {
        return "a process that cannot be seen from here".to_string();
    };
    match name.strip_prefix("polylane-service[").and_then(|rest| rest.strip_suffix(']')) {
        Some(pool) => format!("pool '{pool}' (process {pid})"),
        None => format!("process {pid} ({name})"),
    }
}

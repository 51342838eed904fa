//! Where images are kept, and how they are removed.
//!
//! ```text
//! images/lock            held while names of the store change, and never while a source is read
//! images/names/NAME.json an image: NAME with '/' and '%' as %2F and %25
//! images/blobs/HEX       documents and layers as they came, by the digest of their bytes
//! images/layers/HEX      a layer's tree, by the digest of its tar file
//! images/used/ID.json    the image and the layers that a container uses
//! images/tmp/ID/         what a command makes or removes, and holds locked meanwhile: removed by
//!                        the next command that changes anything, where nobody holds it
//! ```
//!
//! # Invariants
//!
//! - What has a name outside of `tmp` is whole, verified and durable.
//! - A name refers to blobs and layers that are there; what no name refers to is removed.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::layout::Descriptor;
use crate::limits::Limits;

/// Longest name of an image.
const NAME_BYTES_MAX: usize = 200;

/// Fewest digits by which an image is found.
const DIGITS_MIN: usize = 4;

const DIRS: [&str; 5] = ["names", "blobs", "layers", "used", "tmp"];

/// A layer of an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layer {
    /// The digest of its tar file.
    pub(crate) diff_id: Digest,
    /// The file that it came in.
    pub(crate) blob: Descriptor,
    /// Members of its tar file.
    pub(crate) members: u64,
    /// Bytes of its files.
    pub(crate) bytes: u64,
    /// Members that are others in its tree than in its tar file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) squashed: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// An image of the store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Image {
    /// Its name.
    pub name: String,
    pub(crate) manifest: Descriptor,
    pub(crate) config: Descriptor,
    /// The lowest first.
    pub(crate) layers: Vec<Layer>,
    /// When it was imported, in seconds since 1970.
    pub created: u64,
}

impl Image {
    /// The digest of its config, as `docker images` shows it.
    pub fn id(&self) -> String {
        self.config.digest.to_string()
    }

    /// Enough of [`id`](Self::id) for people.
    pub fn short_id(&self) -> &str {
        self.config.digest.short()
    }

    /// How many layers it has.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// Members whose owner, device or capabilities the user who imported it could not give: they
    /// are his files, or left out. None for root.
    pub fn squashed_count(&self) -> u64 {
        self.layers.iter().map(|layer| layer.squashed).sum()
    }

    /// Bytes of files in its layers.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.bytes).sum()
    }
}

/// What a container uses.
#[derive(Serialize, Deserialize)]
struct Used {
    image: String,
    config: Digest,
    layers: Vec<Digest>,
}

/// The images of a state directory. Any number of processes may use it at once.
pub struct Store {
    dir: PathBuf,
}

/// The right to change names of the store. Nothing that others decide the length of is done
/// meanwhile: sources are read, and trees removed, without it.
pub(crate) struct Changing<'a> {
    pub(crate) store: &'a Store,
    _lock: File,
    /// What killed commands left: removed after the lock is given back.
    _left: Vec<Work>,
}

/// A directory for one command, in the store. It is removed with all that is in it; where that
/// fails, or the command is killed, by a later command.
pub struct Work {
    path: PathBuf,
    _lock: File,
}

impl Work {
    /// Locks a directory in `tmp`; `None`: another process has it, or it is gone.
    fn claim(path: &Path) -> Result<Option<Work>> {
        let failed = |error: io::Error| Error::io(path, "lock it", error);
        let lock = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Work { path: path.to_path_buf(), _lock: lock })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Where things may be made.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // What is left is no image: it takes room until a later command can remove it.
        let _ = remove_tree(&self.path);
    }
}

impl Store {
    /// The store in the state directory `state`; nothing is made.
    pub fn in_state(state: &Path) -> Store {
        Store { dir: state.join("images") }
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.dir.join("blobs").join(digest.hex())
    }

    pub(crate) fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.dir.join("layers").join(diff_id.hex())
    }

    fn tmp(&self) -> PathBuf {
        self.dir.join("tmp")
    }

    /// The directory `blobs`, `layers`…
    pub(crate) fn kind_dir(&self, kind: &str) -> PathBuf {
        self.dir.join(kind)
    }

    pub(crate) fn name_file(&self, name: &str) -> PathBuf {
        let file = name.replace('%', "%25").replace('/', "%2F");
        self.dir.join("names").join(format!("{file}.json"))
    }

    /// All images, by their names.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn list(&self) -> Result<Vec<Image>> {
        let mut images = records::<Image>(&self.dir.join("names"))?;
        images.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(images)
    }

    /// The image called `word`: its name, its name without `:latest`, or the first digits of its
    /// identity.
    ///
    /// # Errors
    /// There is none, or the digits are those of several.
    pub fn find(&self, word: &str) -> Result<Image> {
        let images = self.list()?;
        let latest = format!("{word}:latest");
        if let Some(image) = images.iter().find(|image| image.name == word || image.name == latest)
        {
            return Ok(image.clone());
        }
        let digits = word.strip_prefix("sha256:").unwrap_or(word);
        let mut found: Vec<_> = images
            .into_iter()
            .filter(|image| {
                digits.len() >= DIGITS_MIN && image.config.digest.hex().starts_with(digits)
            })
            .collect();
        let same = found.windows(2).all(|pair| pair[0].config.digest == pair[1].config.digest);
        match found.pop() {
            Some(image) if same => Ok(image),
            Some(_) => Err(Error::bad(word, "several images begin so: write more digits")),
            None => Err(Error::bad(word, "no such image: 'polylane image ls' lists them")),
        }
    }

    /// The directories of an image's layers, the uppermost first.
    pub fn lowers(&self, image: &Image) -> Vec<PathBuf> {
        image.layers.iter().rev().map(|layer| self.layer(&layer.diff_id)).collect()
    }

    /// The image's config document.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn config(&self, image: &Image) -> Result<Value> {
        let path = self.blob(&image.config.digest);
        let bytes = fs::read(&path).map_err(|error| Error::io(&path, "read it", error))?;
        crate::layout::parse(&bytes, &format!("config {}", image.config.digest))
    }

    /// Records that container `id` uses the image, whose layers stay until
    /// [`release`](Self::release).
    ///
    /// # Errors
    /// The image was removed meanwhile, or the store cannot be written.
    pub fn hold(&self, image: &Image, id: &str) -> Result<()> {
        let changing = self.change()?;
        let work = changing.work()?;
        self.find(&image.id())?;
        let used = Used {
            image: image.name.clone(),
            config: image.config.digest.clone(),
            layers: image.layers.iter().map(|layer| layer.diff_id.clone()).collect(),
        };
        write_record(&self.dir.join("used").join(format!("{id}.json")), work.path(), &used)
    }

    /// Container `id` uses nothing any more.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn release(&self, id: &str) -> Result<()> {
        let path = self.dir.join("used").join(format!("{id}.json"));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(&path, "remove it", error))
            }
            _ => Ok(()),
        }
    }

    /// The image of the same identity in another store, which gets it if it has none: by that
    /// identity, since names of images are this store's.
    ///
    /// # Errors
    /// The image was removed meanwhile, or the other store cannot be written.
    pub fn copy_to(&self, image: &Image, other: &Store) -> Result<Image> {
        let id = image.id();
        if let Ok(there) = other.find(&id) {
            return Ok(there);
        }
        let work = self.work()?;
        let archive = work.path().join("archive");
        self.export(&id, &archive)?;
        other.import(&archive, Some(&id), Limits { bytes: u64::MAX, members: u64::MAX })
    }

    /// Removes an image, and the layers that no other one has.
    ///
    /// # Errors
    /// There is no such image, or a container uses it.
    pub fn remove(&self, word: &str) -> Result<()> {
        let changing = self.change()?;
        let image = self.find(word)?;
        let used = self.dir.join("used");
        let others = self.list()?;
        let has_other_name =
            others.iter().any(|other| other.name != image.name && other.config == image.config);
        for name in names(&used)? {
            let Some(by) = record::<Used>(&used.join(&name))? else { continue };
            if by.config == image.config.digest && !has_other_name {
                let id = name.trim_end_matches(".json");
                let why = format!("container {id} uses it: 'polylane container rm {id}' first");
                return Err(Error::bad(image.name, why));
            }
        }
        let path = self.name_file(&image.name);
        fs::remove_file(&path).map_err(|error| Error::io(&path, "remove it", error))?;
        let work = changing.work()?;
        changing.collect(&work)
    }

    /// A directory for what a command makes.
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn work(&self) -> Result<Work> {
        self.change()?.work()
    }

    /// Waits for the right to change names of the store.
    pub(crate) fn change(&self) -> Result<Changing<'_>> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        for name in DIRS {
            let dir = self.dir.join(name);
            builder.create(&dir).map_err(|error| Error::io(&dir, "make it", error))?;
        }
        let path = self.dir.join("lock");
        let failed = |error: io::Error| Error::io(&path, "lock it", error);
        let mut options = File::options();
        options.create(true).truncate(false).write(true).mode(0o600);
        let lock = options.open(&path).map_err(failed)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)
            .map_err(|errno| failed(errno.into()))?;
        let mut left = Vec::new();
        for name in names(&self.tmp())? {
            let path = self.tmp().join(name);
            match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => left.extend(Work::claim(&path)?),
                // Of an older version.
                Ok(_) => remove_tree(&path)?,
                Err(_) => {}
            }
        }
        Ok(Changing { store: self, _lock: lock, _left: left })
    }
}

impl Changing<'_> {
    /// A directory for what this command makes.
    pub(crate) fn work(&self) -> Result<Work> {
        let tmp = self.store.tmp();
        let made = tempfile::Builder::new().prefix("").tempdir_in(&tmp);
        let path = made.map_err(|error| Error::io(&tmp, "make a directory in it", error))?.keep();
        match Work::claim(&path)? {
            Some(work) => Ok(work),
            None => Err(Error::bad_file(&path, "another process took it")),
        }
    }

    /// Moves blobs and layers that no image and no container refers to into `work`, with which
    /// they go: their names are whole or not there. The lock is given back.
    pub(crate) fn collect(self, work: &Work) -> Result<()> {
        let store = self.store;
        let mut blobs = HashSet::new();
        let mut layers = HashSet::new();
        for image in store.list()? {
            blobs.extend([image.manifest.digest, image.config.digest]);
            for layer in image.layers {
                blobs.insert(layer.blob.digest);
                layers.insert(layer.diff_id);
            }
        }
        for used in records::<Used>(&store.dir.join("used"))? {
            layers.extend(used.layers);
        }
        for (kind, kept) in [("blobs", &blobs), ("layers", &layers)] {
            let kept: HashSet<&str> = kept.iter().map(Digest::hex).collect();
            let dir = store.dir.join(kind);
            for name in names(&dir)? {
                if kept.contains(name.as_str()) {
                    continue;
                }
                let path = dir.join(&name);
                let aside = work.path().join(format!("{kind}-{name}"));
                fs::rename(&path, aside).map_err(|error| Error::io(&path, "remove it", error))?;
            }
        }
        Ok(())
    }
}

/// Whether an image may be called so.
///
/// # Errors
/// It may not.
pub fn check_name(name: &str) -> Result<()> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@+".contains(&byte);
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    match starts_well && name.len() <= NAME_BYTES_MAX && name.bytes().all(is_part) {
        true => Ok(()),
        false => Err(Error::bad(
            format!("{name:?}"),
            "not a name of an image: 200 letters, digits and ._-:/@+ at most, a letter or digit \
             first",
        )),
    }
}

/// Now, in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Names in a directory of the store; none where it is not there.
fn names(dir: &Path) -> Result<Vec<String>> {
    let failed = |error| Error::io(dir, "list it", error);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let name = |entry: io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    entries.map(name).collect::<io::Result<_>>().map_err(failed)
}

fn records<T: for<'a> Deserialize<'a>>(dir: &Path) -> Result<Vec<T>> {
    let mut records = Vec::new();
    for name in names(dir)? {
        records.extend(record(&dir.join(name))?);
    }
    Ok(records)
}

/// A record; `None`: it was removed meanwhile.
fn record<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<Option<T>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path, "read it", error)),
        Ok(bytes) => {
            let object = polylane_base::shown::Shown::new(path).to_string();
            crate::layout::parse(&bytes, &object).map(Some)
        }
    }
}

/// Writes a record: whole and durable, or not at all.
pub(crate) fn write_record(path: &Path, tmp: &Path, record: &impl Serialize) -> Result<()> {
    let failed = |error| Error::io(path, "write it", error);
    let text = serde_json::to_vec_pretty(record).map_err(|error| failed(error.into()))?;
    let aside = tmp.join("record");
    let write = || {
        fs::write(&aside, text)?;
        File::open(&aside)?.sync_all()?;
        fs::rename(&aside, path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    };
    write().map_err(failed)
}

/// Removes a file or a directory with all that is in it.
fn remove_tree(path: &Path) -> Result<()> {
    polylane_sys::removal::remove_tree(path).map_err(|error| Error::io(path, "remove it", error))
}

//! A source becomes an image.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use polylane_base::shown::Shown;

use crate::compression::{self, BUFFER_BYTES, Compression};
use crate::digest::{Copying, Digest, Hashing};
use crate::error::{Error, Result};
use crate::layout::{self, Descriptor, SourceImage, SourceLayer};
use crate::limits::{Budget, Limits};
use crate::members::{Members, Section};
use crate::pack::Writer;
use crate::store::{self, Image, Layer, Store, Work};
use crate::unpack::{Unpacked, unpack};

impl Store {
    /// Imports the image at `source`: an OCI layout (a directory or an archive), what `docker save`
    /// wrote, or a root file system (a directory or a tar file); archives may be packed with gzip
    /// or zstd. `name`: what it is called, by default what the source calls it. It takes the name
    /// of an image that is called so already. Any number of imports may run at once.
    ///
    /// # Errors
    /// The source cannot be read, is refused, or goes past a limit; then nothing has changed.
    pub fn import(&self, source: &Path, name: Option<&str>, limits: Limits) -> Result<Image> {
        name.map_or(Ok(()), store::check_name)?;
        fs::metadata(source).map_err(|error| Error::io(source, "read it", error))?;
        let work = self.change()?.work()?;
        let (budget, copied) = (Budget::new(limits), Budget::new(limits));
        let import = Import {
            store: self,
            source,
            wanted: name,
            work: &work,
            budget: &budget,
            copied: &copied,
            made: Vec::new(),
            asides: 0,
        };
        let imported = import.import();
        let object = Shown::new(source).to_string();
        let refused = || budget.refusal(&object).or_else(|| copied.refusal(&object));
        imported.map_err(|error| refused().unwrap_or(error))
    }
}

struct Import<'a> {
    store: &'a Store,
    source: &'a Path,
    wanted: Option<&'a str>,
    work: &'a Work,
    budget: &'a Budget,
    /// Of the source as one file, where it has to be made.
    copied: &'a Budget,
    /// What is complete in the work directory, and the name that it gets.
    made: Vec<(PathBuf, PathBuf)>,
    /// How many names in the work directory were used.
    asides: u64,
}

/// An image of which all layers are in the store or made.
struct Complete {
    name: String,
    manifest: Option<(Descriptor, Vec<u8>)>,
    config: Vec<u8>,
    layers: Vec<Layer>,
}

impl Import<'_> {
    fn import(self) -> Result<Image> {
        let object = Shown::new(self.source).to_string();
        if self.source.is_dir() {
            let members = Members::of_dir(self.source)?;
            return match members.find(layout::LAYOUT_FILE)?.is_some() {
                true => {
                    let image = layout::of_oci(&members, &object, self.wanted)?;
                    self.layers(&members, image)
                }
                false => self.packed_dir(),
            };
        }
        let file = self.plain_file()?;
        let copy = file.try_clone().map_err(|error| self.unreadable(error))?;
        let members = Members::of_archive(self.source, copy)?;
        let image = match () {
            () if members.find(layout::INDEX_FILE)?.is_some()
                && members.find(layout::LAYOUT_FILE)?.is_some() =>
            {
                layout::of_oci(&members, &object, self.wanted)?
            }
            () if members.find(layout::DOCKER_FILE)?.is_some() => {
                layout::of_docker(&members, &object, self.wanted)?
            }
            () => return self.root(file),
        };
        self.layers(&members, image)
    }

    fn unreadable(&self, error: impl Into<io::Error>) -> Error {
        Error::io(self.source, "read it", error)
    }

    /// The source as a file whose bytes are not packed and can be read anywhere.
    fn plain_file(&self) -> Result<File> {
        let mut file = File::open(self.source).map_err(|error| self.unreadable(error))?;
        let metadata = file.metadata().map_err(|error| self.unreadable(error))?;
        if metadata.is_file() {
            let mut head = Vec::new();
            Read::by_ref(&mut file)
                .take(4)
                .read_to_end(&mut head)
                .map_err(|error| self.unreadable(error))?;
            file.rewind().map_err(|error| self.unreadable(error))?;
            if Compression::of(&head) == Compression::Plain {
                return Ok(file);
            }
        }
        let path = self.work.path().join("source");
        let failed = |error| Error::io(&path, "write it", error);
        let stream = compression::unpacked(file).map_err(|error| self.unreadable(error))?;
        let mut stream = self.copied.counting(stream);
        let mut plain = File::create_new(&path).map_err(failed)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let count = match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Error::bad_file(
                        self.source,
                        format!("cannot be unpacked: {error}"),
                    ));
                }
            };
            plain.write_all(&buffer[..count]).map_err(failed)?;
        }
        File::open(&path).map_err(failed)
    }

    /// A directory that is a root file system.
    fn packed_dir(self) -> Result<Image> {
        let path = self.work.path().join("source");
        let failed = |error| Error::io(&path, "write it", error);
        let file = File::create_new(&path).map_err(failed)?;
        let file = self.copied.counting(file);
        let mut writer = Writer::new(BufWriter::with_capacity(BUFFER_BYTES, file));
        writer.add_tree(self.source)?;
        writer.finish().map_err(failed)?;
        let file = File::open(&path).map_err(failed)?;
        self.root_from(file)
    }

    /// A tar file that is a root file system.
    fn root(self, file: File) -> Result<Image> {
        let length = file.metadata().map_err(|error| self.unreadable(error))?.len();
        match length {
            0 => Err(Error::bad_file(self.source, "empty")),
            _ => self.root_from(file),
        }
    }

    fn root_from(mut self, mut file: File) -> Result<Image> {
        file.rewind().map_err(|error| self.unreadable(error))?;
        let section = Section::whole(file).map_err(|error| self.unreadable(error))?;
        let object = Shown::new(self.source).to_string();
        let layer = self.layer(section, &object, None, None)?;
        let config = layout::new_config(&layer.diff_id);
        let complete =
            Complete { name: self.name(None)?, manifest: None, config, layers: vec![layer] };
        match self.publish(&complete)? {
            Some(image) => Ok(image),
            None => Err(Error::bad(object, "its layer was removed while it was imported")),
        }
    }

    fn layers(mut self, members: &Members, image: SourceImage) -> Result<Image> {
        let SourceImage { name, manifest, config, layers: sources } = image;
        let name = self.name(name)?;
        // Those made here stay, so that every round makes one more at least.
        let mut made: Vec<Option<Layer>> = vec![None; sources.len()];
        loop {
            let mut layers = Vec::new();
            for (source, made) in sources.iter().zip(&mut made) {
                layers.push(match made.clone() {
                    Some(layer) => layer,
                    None => self.source_layer(members, source, made)?,
                });
            }
            let (name, manifest, config) = (name.clone(), manifest.clone(), config.clone());
            // Another command may have removed a layer that was in the store.
            if let Some(image) = self.publish(&Complete { name, manifest, config, layers })? {
                return Ok(image);
            }
        }
    }

    /// A layer of the store, or one that is made of the source.
    fn source_layer(
        &mut self,
        members: &Members,
        source: &SourceLayer,
        made: &mut Option<Layer>,
    ) -> Result<Layer> {
        let SourceLayer { file, blob, diff_id } = source;
        if let Some(layer) = self.kept(blob.as_ref(), diff_id)? {
            return Ok(layer);
        }
        let object = match blob {
            Some(blob) => format!("layer {}", blob.digest),
            None => format!("layer {}", Shown::new(file)),
        };
        let Some(section) = members.find(file)? else {
            return Err(Error::bad(object, "not in the source"));
        };
        let layer = self.layer(section, &object, blob.clone(), Some(diff_id.clone()))?;
        Ok(made.insert(layer).clone())
    }

    /// A layer that is there already, as it was kept.
    fn kept(&self, blob: Option<&Descriptor>, diff_id: &Digest) -> Result<Option<Layer>> {
        let all = self.store.list()?.into_iter().flat_map(|image| image.layers);
        let is_same = |layer: &Layer| {
            let is_blob = |blob: &Descriptor| {
                blob.digest == layer.blob.digest && blob.size == layer.blob.size
            };
            layer.diff_id == *diff_id && blob.is_none_or(is_blob)
        };
        Ok(all.into_iter().find(is_same).map(|layer| Layer {
            blob: blob.cloned().unwrap_or_else(|| layer.blob.clone()),
            ..layer
        }))
    }

    /// Verifies, keeps and unpacks a layer.
    fn layer(
        &mut self,
        section: Section,
        object: &str,
        said: Option<Descriptor>,
        diff_id: Option<Digest>,
    ) -> Result<Layer> {
        let (blob_path, tree) = (self.aside("blob"), self.aside("tree"));
        let failed = |error| Error::io(&blob_path, "write it", error);
        let unread = |error: io::Error| Error::bad(object, format!("cannot be read: {error}"));
        fs::create_dir(&tree).map_err(|error| Error::io(&tree, "make it", error))?;
        let mut kept = File::create_new(&blob_path).map_err(failed)?;
        let mut packed = Hashing::new(Copying { from: section, to: Some(&mut kept) });
        let stream = compression::unpacked(&mut packed).map_err(unread)?;
        let mut plain = Hashing::new(self.budget.counting(stream));
        let unpacked = unpack(&mut plain, &tree, object, self.budget);
        let (tar, _, stream) = plain.finish();
        drop(stream.into_inner());
        let unpacked = unpacked?;
        // Bytes after what was packed.
        io::copy(&mut packed, &mut io::sink()).map_err(unread)?;
        let (digest, size, _) = packed.finish();
        if said.as_ref().is_some_and(|said| said.digest != digest) {
            return Err(Error::bad(object, format!("its bytes have another digest: {digest}")));
        }
        if let Some(said) = &said {
            said.expect_size(size, object)?;
        }
        if diff_id.as_ref().is_some_and(|diff_id| *diff_id != tar) {
            let why = format!("unpacked it has another digest than the config says: {tar}");
            return Err(Error::bad(object, why));
        }
        let mut head = [0; 4];
        File::open(&blob_path).and_then(|mut file| file.read(&mut head)).map_err(failed)?;
        let blob = said.unwrap_or_else(|| {
            Descriptor::new(layout::layer_type(Compression::of(&head)), digest.clone(), size)
        });
        self.made.push((blob_path, self.store.blob(&digest)));
        self.made.push((tree, self.store.layer(&tar)));
        let Unpacked { members, bytes, squashed } = unpacked;
        Ok(Layer { diff_id: tar, blob, members, bytes, squashed })
    }

    /// A name in the work directory that nothing has.
    fn aside(&mut self, what: &str) -> PathBuf {
        self.asides += 1;
        self.work.path().join(format!("{what}-{}", self.asides))
    }

    fn document(&mut self, bytes: &[u8]) -> Result<Digest> {
        let digest = Digest::of(bytes);
        let path = self.aside("document");
        fs::write(&path, bytes).map_err(|error| Error::io(&path, "write it", error))?;
        self.made.push((path, self.store.blob(&digest)));
        Ok(digest)
    }

    /// What the image is called: `said` is what its source calls it.
    fn name(&self, said: Option<String>) -> Result<String> {
        let name = match (self.wanted, said) {
            (Some(wanted), _) => wanted.to_string(),
            (None, Some(name)) => name,
            (None, None) => name_of(self.source),
        };
        store::check_name(&name)?;
        Ok(name)
    }

    /// Makes everything durable, then gives it its names, the image's last. `None`: a layer that
    /// was in the store is gone.
    fn publish(&mut self, complete: &Complete) -> Result<Option<Image>> {
        let config_digest = self.document(&complete.config)?;
        let manifest = match &complete.manifest {
            Some((manifest, bytes)) => {
                self.document(bytes)?;
                manifest.clone()
            }
            None => {
                let blobs: Vec<_> =
                    complete.layers.iter().map(|layer| layer.blob.clone()).collect();
                let bytes = layout::new_manifest(&complete.config, &blobs);
                let digest = self.document(&bytes)?;
                Descriptor::new(layout::MANIFEST, digest, bytes.len() as u64)
            }
        };
        let size = complete.config.len() as u64;
        let config = Descriptor::new(layout::CONFIG, config_digest, size);
        let (name, layers) = (complete.name.clone(), complete.layers.clone());
        let image = Image { name, manifest, config, layers, created: store::now() };
        self.place(&image)
    }

    fn place(&mut self, image: &Image) -> Result<Option<Image>> {
        let tmp = self.work.path();
        let failed = |error: io::Error| Error::io(tmp, "make what is in it durable", error);
        make_durable(tmp).map_err(failed)?;
        let changing = self.store.change()?;
        let is_made = |path: &Path| path.exists() || self.made.iter().any(|(_, to)| to == path);
        let is_there = |layer: &Layer| {
            is_made(&self.store.layer(&layer.diff_id))
                && is_made(&self.store.blob(&layer.blob.digest))
        };
        if !image.layers.iter().all(is_there) {
            return Ok(None);
        }
        for (from, to) in &self.made {
            // Another image may have the layer, or this one twice.
            if !to.exists() {
                fs::rename(from, to).map_err(|error| Error::io(to, "make it", error))?;
            }
        }
        for dir in ["blobs", "layers"] {
            let dir = self.store.kind_dir(dir);
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        }
        store::write_record(&self.store.name_file(&image.name), tmp, image)?;
        changing.collect(self.work)?;
        Ok(Some(image.clone()))
    }
}

/// `f_type` of what a FUSE server serves.
const FUSE_MAGIC: rustix::fs::FsWord = 0x6573_5546;

/// Makes a directory and all that is in it durable. The kernel does not pass `syncfs` on to a FUSE
/// server, as which a store on a lane is served: there each file is synced.
fn make_durable(dir: &Path) -> io::Result<()> {
    let open = File::open(dir)?;
    if rustix::fs::fstatfs(&open)?.f_type != FUSE_MAGIC {
        return Ok(rustix::fs::syncfs(&open)?);
    }
    let mut dirs = vec![dir.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => dirs.push(entry.path()),
                kind if kind.is_file() => File::open(entry.path())?.sync_all()?,
                // Links and devices are names.
                _ => {}
            }
        }
        File::open(&dir)?.sync_all()?;
    }
    Ok(())
}

/// A name for an image that its source does not call anything.
fn name_of(source: &Path) -> String {
    let whole = source.canonicalize().unwrap_or_else(|_| source.to_path_buf());
    let name = whole.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name = [".gz", ".zst", ".tgz", ".tar"]
        .iter()
        .fold(name.as_str(), |name, end| name.strip_suffix(end).unwrap_or(name));
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    let name: String = name.chars().map(|c| if is_part(c) { c } else { '-' }).collect();
    match name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric()) {
        "" => "image".to_string(),
        name => name.to_string(),
    }
}

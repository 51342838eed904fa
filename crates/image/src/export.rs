//! An image becomes an archive: an OCI layout that is at the same time what `docker load` reads.
//!
//! Blobs are written as they came: an image that came in a layout has the same digests.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use crate::compression::{BUFFER_BYTES, Compression};
use crate::digest::{Digest, Hashing};
use crate::error::{Error, Result};
use crate::layout::{self, Descriptor};
use crate::pack::Writer;
use crate::store::{Image, Store, check_name};

/// What is written of an image.
struct Parts {
    name: String,
    manifest: Descriptor,
    config: Digest,
    /// Its layers, the lowest first.
    layers: Vec<Digest>,
    blobs: Vec<(Digest, Blob)>,
}

/// What has a digest.
enum Blob {
    /// From where the file stands.
    File(File),
    Bytes(Vec<u8>),
}

impl Blob {
    fn add(self, writer: &mut Writer<&mut dyn Write>, name: &str) -> io::Result<()> {
        match self {
            Blob::Bytes(bytes) => writer.add_bytes(name, &bytes),
            Blob::File(file) => {
                let size = file.metadata()?.len();
                writer.add_stream(name, file, size)
            }
        }
    }
}

impl Store {
    /// Writes the image called `word` as an archive to the new file `to`; `-` is standard output.
    ///
    /// # Errors
    /// There is no such image, `to` is there already, or cannot be written; then it is not made.
    pub fn export(&self, word: &str, to: &Path) -> Result<()> {
        let (image, blobs) = self.opened(word)?;
        let parts = Parts {
            name: image.name,
            manifest: image.manifest,
            config: image.config.digest,
            layers: image.layers.into_iter().map(|layer| layer.blob.digest).collect(),
            blobs: blobs.into_iter().map(|(digest, file)| (digest, Blob::File(file))).collect(),
        };
        write_new(to, |out| write_archive(parts, out))
    }

    /// Writes an image called `name` as an archive to the new file `to`: the one that `word` names,
    /// with the layer over it whose tar file is `layer`.
    ///
    /// # Errors
    /// As [`export`](Self::export); `name` is none; the image has no room for a layer.
    pub fn export_over(
        &self,
        (word, name): (&str, &str),
        (layer, packing): (&Path, Compression),
        to: &Path,
    ) -> Result<()> {
        check_name(name)?;
        let (image, blobs) = self.opened(word)?;
        let config = layout::with_layer(&self.config(&image)?, &digest_of(layer)?)?;
        let packed = Packed::new(layer, packing)?;
        let mut layers: Vec<Descriptor> =
            image.layers.into_iter().map(|layer| layer.blob.in_oci()).collect();
        layers.push(packed.descriptor);
        layout::check_layer_count(layers.len(), name)?;
        let manifest = layout::new_manifest(&config, &layers);
        let (manifest_digest, config_digest) = (Digest::of(&manifest), Digest::of(&config));
        let described = [&image.manifest.digest, &image.config.digest];
        let kept = blobs.into_iter().filter(|(digest, _)| !described.contains(&digest));
        let mut blobs: Vec<_> = kept.map(|(digest, file)| (digest, Blob::File(file))).collect();
        let bytes = manifest.len() as u64;
        blobs.push((manifest_digest.clone(), Blob::Bytes(manifest)));
        blobs.push((config_digest.clone(), Blob::Bytes(config)));
        let layers: Vec<_> = layers.into_iter().map(|layer| layer.digest).collect();
        if let Some(own) = layers.last().filter(|own| blobs.iter().all(|(d, _)| d != *own)) {
            blobs.push((own.clone(), Blob::File(packed.file)));
        }
        blobs.sort_by(|(one, _), (other, _)| one.cmp(other));
        let parts = Parts {
            name: name.to_string(),
            manifest: Descriptor::new(layout::MANIFEST, manifest_digest, bytes),
            config: config_digest,
            layers,
            blobs,
        };
        write_new(to, |out| write_archive(parts, out))
    }

    /// An image, and its blobs in the order of their digests: another command may remove it while
    /// it is written.
    fn opened(&self, word: &str) -> Result<(Image, Vec<(Digest, File)>)> {
        let _changing = self.change()?;
        let image = self.find(word)?;
        let mut digests = vec![&image.manifest.digest, &image.config.digest];
        digests.extend(image.layers.iter().map(|layer| &layer.blob.digest));
        digests.sort();
        digests.dedup();
        let open = |digest: &Digest| {
            let path = self.blob(digest);
            let file = File::open(&path).map_err(|error| Error::io(&path, "read it", error))?;
            Ok((digest.clone(), file))
        };
        let blobs = digests.into_iter().map(open).collect::<Result<_>>()?;
        Ok((image, blobs))
    }
}

/// A layer as it is in an archive.
struct Packed {
    descriptor: Descriptor,
    /// At its start.
    file: File,
}

impl Packed {
    fn new(layer: &Path, packing: Compression) -> Result<Packed> {
        let failed = |error: io::Error| Error::io(layer, "pack it", error);
        let make = || {
            let tar = File::open(layer)?;
            let mut out = Hashing::new(BufWriter::new(tempfile::tempfile()?));
            packing.pack(tar, &mut out)?;
            out.flush()?;
            let (digest, bytes, file) = out.finish();
            let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.rewind()?;
            let kind = layout::layer_type(packing);
            Ok(Packed { descriptor: Descriptor::new(kind, digest, bytes), file })
        };
        make().map_err(failed)
    }
}

/// The digest of a file.
fn digest_of(path: &Path) -> Result<Digest> {
    let read = || {
        let mut stream = Hashing::new(File::open(path)?);
        io::copy(&mut stream, &mut io::sink())?;
        Ok(stream.finish().0)
    };
    read().map_err(|error: io::Error| Error::io(path, "read it", error))
}

fn write_archive(parts: Parts, out: &mut dyn Write) -> Result<()> {
    let name = parts.name.clone();
    write_members(parts, out).map_err(|error| Error::io(Path::new(&name), "export it", error))
}

fn write_members(parts: Parts, out: &mut dyn Write) -> io::Result<()> {
    let Parts { name, mut manifest, config, layers, blobs } = parts;
    let mut writer = Writer::new(out);
    let layout = json!({ "imageLayoutVersion": "1.0.0" }).to_string();
    writer.add_bytes(layout::LAYOUT_FILE, layout.as_bytes())?;
    manifest.annotations.insert(layout::NAME.to_string(), name.clone());
    let index = json!({
        "schemaVersion": 2,
        "mediaType": layout::INDEX,
        "manifests": [manifest],
    });
    writer.add_bytes(layout::INDEX_FILE, index.to_string().as_bytes())?;
    for (digest, blob) in blobs {
        blob.add(&mut writer, &layout::blob_file(&digest))?;
    }
    let docker = layout::docker_manifest(&name, &config, &layers);
    writer.add_bytes(layout::DOCKER_FILE, &docker)?;
    writer.finish()?;
    Ok(())
}

/// Writes a file that is whole or not there; `-` is standard output.
pub(crate) fn write_new(to: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let failed = |error: io::Error| Error::io(to, "write it", error);
    if to == Path::new("-") {
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, io::stdout().lock());
        write(&mut out)?;
        return out.flush().map_err(failed);
    }
    if fs::symlink_metadata(to).is_ok() {
        return Err(Error::bad_file(to, "is there already"));
    }
    let dir = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o644))
        .tempfile_in(dir)
        .map_err(failed)?;
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, file.as_file_mut());
    write(&mut out)?;
    out.flush().map_err(failed)?;
    drop(out);
    file.as_file().sync_all().map_err(failed)?;
    file.persist_noclobber(to).map_err(|error| failed(error.error))?;
    Ok(())
}

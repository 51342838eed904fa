//! An image becomes an OCI layout, in an archive.
//!
//! Blobs are written as they came: an image that came in a layout has the same digests.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use crate::compression::BUFFER_BYTES;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::layout;
use crate::pack::Writer;
use crate::store::{Image, Store};

impl Store {
    /// Writes the image called `word` as an OCI archive to the new file `to`; `-` is standard
    /// output.
    ///
    /// # Errors
    /// There is no such image, `to` is there already, or cannot be written; then it is not made.
    pub fn export(&self, word: &str, to: &Path) -> Result<()> {
        let (image, blobs) = self.opened(word)?;
        write_new(to, |out| self.write_archive(&image, blobs, out))
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

    fn write_archive(
        &self,
        image: &Image,
        blobs: Vec<(Digest, File)>,
        out: &mut dyn Write,
    ) -> Result<()> {
        let name = Path::new(&image.name);
        let failed = |error| Error::io(name, "export it", error);
        let mut writer = Writer::new(out);
        let layout = json!({ "imageLayoutVersion": "1.0.0" }).to_string();
        writer.add_bytes(layout::LAYOUT_FILE, layout.as_bytes()).map_err(failed)?;
        let mut manifest = image.manifest.clone();
        manifest.annotations.insert(layout::NAME.to_string(), image.name.clone());
        let index = json!({
            "schemaVersion": 2,
            "mediaType": layout::INDEX,
            "manifests": [manifest],
        });
        writer.add_bytes(layout::INDEX_FILE, index.to_string().as_bytes()).map_err(failed)?;
        for (digest, file) in blobs {
            let path = self.blob(&digest);
            let read = |error| Error::io(&path, "read it", error);
            let size = file.metadata().map_err(read)?.len();
            writer.add_stream(&layout::blob_file(&digest), file, size).map_err(failed)?;
        }
        writer.finish().map_err(failed)?;
        Ok(())
    }
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

//! What a raw file cannot say about the volume in it: a small JSON file beside it.
//!
//! `VOLUME.polylane`, fields in docs/design/volume.md. A volume without one is an ordinary volume;
//! fields that this version does not know are ignored and lost when it writes the file. The file is
//! replaced as a whole, so a reader sees the old one or the new one, also after a power cut; what
//! was stored is durable.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use polylane_block::image;
use serde::{Deserialize, Serialize};

use super::bypass::BypassRef;
use super::cache::CacheSpec;
use super::open::failure;
use super::translation::Translation;
use crate::failure::{Failure, Result};

/// Largest sidecar in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// The content.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sidecar {
    /// 32 hexadecimal digits, never given twice.
    pub(crate) id: String,
    /// Id of the volume that this one was copied from.
    pub(crate) parent: Option<String>,
    /// The file system that was put on it here, as long as nobody else can have written its blocks.
    pub(crate) formatted: Option<String>,
    /// A state of its parent that is to stay as it is: never opened for writing.
    pub(crate) snapshot: bool,
    /// Share of a pool that is given none on the command line.
    pub(crate) weight: Option<u32>,
    /// How it is cached by whoever is told nothing else.
    pub(crate) cache: Option<CacheSpec>,
    /// Where its guest's journals lay when it was attached last: first byte and end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) journals: Vec<(u64, u64)>,
    /// How it is translated by whoever is told nothing else.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) translation: Translation,
    /// Where its bytes are, of a bypass volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bypass: Option<BypassRef>,
    /// What a copy-on-write volume is on, by the nonce in its file.
    pub(crate) overlays: Vec<OverlayRef>,
    /// The file may be raw although `overlays` names bases: a copy of it, or making it one file, is
    /// under way or was cut short.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) raw: bool,
    /// Volumes that are on this one.
    pub(crate) children: Vec<PathBuf>,
    /// Made to be a base, and to go with the last of its children.
    pub(crate) implicit: bool,
    /// Of a copy: the nonce of the overlay that has its name until it gets its content. A file with
    /// this nonce is a copy that was cut short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) awaits: Option<String>,
}

/// A base of a copy-on-write volume.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct OverlayRef {
    /// In the trailer of the volume's file.
    pub(crate) nonce: String,
    /// The base's file, seen from the volume's directory.
    pub(crate) base: PathBuf,
    /// The base's id.
    pub(crate) base_id: String,
}

fn is_default(translation: &Translation) -> bool {
    *translation == Translation::default()
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Where the sidecar of a volume is.
pub(crate) fn path_of(volume: &Path) -> PathBuf {
    let mut path = volume.as_os_str().to_os_string();
    path.push(".polylane");
    PathBuf::from(path)
}

/// Removes a file, which need not be there.
///
/// # Errors
/// The host's.
pub(super) fn remove_if_there(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::path(path, "remove it", error))
        }
        _ => Ok(()),
    }
}

impl Sidecar {
    /// One for a new volume.
    pub(crate) fn new() -> Result<Sidecar> {
        Ok(Sidecar { id: Sidecar::fresh_id()?, ..Sidecar::default() })
    }

    /// 32 hexadecimal digits that nobody can guess.
    pub(crate) fn fresh_id() -> Result<String> {
        let mut bytes = [0; 16];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Failure::because("volume", "make an id for it", error))?;
        Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// The sidecar of a volume; the default for one without.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub(crate) fn load(volume: &Path) -> Result<Sidecar> {
        let path = path_of(volume);
        match fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Sidecar::default());
            }
            Ok(stat) if stat.len() > BYTES_MAX => {
                return Err(Failure::failed(format!("{}: too large", path.display())));
            }
            _ => {}
        }
        let text = fs::read(&path).map_err(|error| Failure::path(&path, "read it", error))?;
        serde_json::from_slice(&text).map_err(|error| {
            Failure::failed(format!(
                "{}: not a sidecar: {error}: restore it; a volume that is no copy and no bypass \
                 volume can do without",
                path.display()
            ))
        })
    }

    /// Replaces the sidecar of a volume, durably.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn store(&self, volume: &Path) -> Result<()> {
        let path = path_of(volume);
        let mut draft = path.as_os_str().to_os_string();
        draft.push(".new");
        let draft = PathBuf::from(draft);
        let failed = |error: std::io::Error| Failure::path(&path, "write it", error);
        let mut text = serde_json::to_string_pretty(self).map_err(|error| failed(error.into()))?;
        text.push('\n');
        let mut file = fs::File::create(&draft).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        fs::rename(&draft, &path).map_err(failed)?;
        image::sync_names(&path).map_err(|error| failure(&path, error))
    }

    /// Removes the sidecar of a volume, if it has one.
    ///
    /// # Errors
    /// The host's.
    pub(crate) fn remove(volume: &Path) -> Result<()> {
        remove_if_there(&path_of(volume))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_loaded_and_nonsense_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("dir");
        let volume = dir.path().join("v");
        assert_eq!(Sidecar::load(&volume).expect("none"), Sidecar::default());
        let parent = Some("x".to_string());
        let sidecar = Sidecar { parent, snapshot: true, ..Sidecar::new().expect("id") };
        assert_eq!(sidecar.id.len(), 32);
        sidecar.store(&volume).expect("store");
        assert_eq!(Sidecar::load(&volume).expect("load"), sidecar);
        fs::write(path_of(&volume), r#"{"id": "7", "later": [1]}"#).expect("write");
        assert_eq!(Sidecar::load(&volume).expect("load").id, "7");
        for nonsense in [&b"{"[..], b"", b"[1]", b"\xff\xfe", b"{\"weight\": -1}"] {
            fs::write(path_of(&volume), nonsense).expect("write");
            let failure = Sidecar::load(&volume).expect_err("nonsense");
            assert!(failure.line.contains("v.polylane: not a sidecar"), "{failure}");
        }
        fs::write(path_of(&volume), vec![b' '; 1 << 17]).expect("write");
        assert!(Sidecar::load(&volume).is_err());
    }
}

//! What annotations of a container may name: the sources and pools that root's file lists.
//!
//! ```toml
//! sources = ["volume:/srv/volumes", "dir:/srv/shared", "mem:1G"]
//! pools = ["web"]
//! ```
//!
//! A source permits itself and what lies in it: `volume:DIR` all volumes below DIR, `dir:DIR` all
//! directories below it, `mem:SIZE` lanes in RAM of at most SIZE. A source that is not there
//! permits nothing.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use polylane_base::shown::Shown;
use polylane_pool::failure::{Failure, Result, USAGE};
use polylane_pool::lasting::LaneSource;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

/// Where root lists them.
const FILE: &str = "/etc/polylane/oci.toml";

/// Names another file.
const VARIABLE: &str = "POLYLANE_OCI_CONFIG";

/// Most bytes of that file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The mode bits by which others than its owner write a file.
const WRITERS: u32 = 0o022;

/// What annotations may name.
#[derive(Debug)]
pub(crate) struct Permitted {
    /// The file that lists it.
    path: PathBuf,
    sources: Vec<LaneSource>,
    pools: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    #[serde(default)]
    sources: Vec<String>,
    #[serde(default)]
    pools: Vec<String>,
}

impl Permitted {
    /// Reads the file; without it, nothing is permitted.
    ///
    /// # Errors
    /// One line: another user could write the file, or it is not understood.
    pub(crate) fn read() -> Result<Permitted> {
        let path = std::env::var_os(VARIABLE).map_or_else(|| FILE.into(), PathBuf::from);
        let wrong = |why: String| Failure::failed(format!("{}: {why}", Shown::new(&path)));
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let listed = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(file) => text_of(File::from(file)).and_then(|text| {
                toml::from_str(&text).map_err(|error| error.message().to_string())
            }),
            Err(rustix::io::Errno::NOENT) => Ok(Listed::default()),
            Err(error) => return Err(Failure::path(&path, "read it", error)),
        };
        let Listed { sources, pools } = listed.map_err(wrong)?;
        let mut known = Vec::new();
        for source in sources {
            match LaneSource::parse(source.as_ref()) {
                Ok(source) => known.push(source),
                Err(failure) if failure.status == USAGE => return Err(wrong(failure.line)),
                // It is not there: nothing lies in it.
                Err(_) => {}
            }
        }
        Ok(Permitted { path, sources: known, pools })
    }

    /// Refuses a source that is not listed.
    pub(crate) fn check_source(&self, text: &str) -> Result<()> {
        let source = LaneSource::parse(text.as_ref())?;
        match self.sources.iter().any(|listed| source.lies_in(listed)) {
            true => Ok(()),
            false => Err(self.refused(text, "sources")),
        }
    }

    /// Refuses a pool that is not listed.
    pub(crate) fn check_pool(&self, pool: &str) -> Result<()> {
        match self.pools.iter().any(|listed| listed == pool) {
            true => Ok(()),
            false => Err(self.refused(pool, "pools")),
        }
    }

    fn refused(&self, text: &str, list: &str) -> Failure {
        let (text, file) = (Shown::new(text), Shown::new(&self.path));
        Failure::failed(format!(
            "{text}: an annotation names it, which may be the image's: it is used only if {list} \
             in {file} lists it"
        ))
    }
}

/// The text of a file that only root, or this user, can write.
fn text_of(file: File) -> std::result::Result<String, String> {
    let failed = |error: std::io::Error| polylane_pool::failure::plain(&error);
    let found = file.metadata().map_err(failed)?;
    let own = rustix::process::geteuid().as_raw();
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(format!("no file of at most {FILE_BYTES_MAX} bytes"));
    }
    if found.uid() != 0 && found.uid() != own || found.mode() & WRITERS != 0 {
        return Err("another user may write it: use a file of root's, after 'chmod go-w'".into());
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok(text)
}

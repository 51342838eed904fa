//! The pool file of a bypass volume, used and handed to the process that serves the volume.

use std::path::{Path, PathBuf};

use polylane_base::sync::Arc;
use polylane_block::bypass::{Claim, Id, PoolError, PoolFile, PoolFiles, Use};
use polylane_block::file::Files;
use polylane_block::remote::Remote;

use crate::failure::{Failure, Result, plain};
use crate::sidecar::{BypassRef, beside, parse_id};
use crate::trust::{self, Author};

/// Refuses a directory in which others than the caller may exchange the pool file for another, by
/// which a lane has the host's disk.
pub(crate) fn refuse_others(volume: &Path) -> Result<()> {
    match trust::way_to(volume) {
        Ok(way) if way.author != Author::Caller => Err(Failure::failed(format!(
            "{}: other users may change names in its directory: bypass volumes are kept where \
             only their owner can",
            volume.display()
        ))),
        _ => Ok(()),
    }
}

/// A pool file in use, and pinned as long as anybody uses it.
#[derive(Debug)]
pub struct Pinned(Option<Arc<Use>>);

impl Pinned {
    /// Begins to use the pool file of a volume.
    pub fn open(volume: &Path, wanted: &BypassRef) -> Result<Pinned> {
        let (path, file) = open(volume, wanted)?;
        let used = file.use_it().map_err(|error| pool_failure(&path, &error))?;
        Ok(Pinned(Some(Arc::new(used))))
    }

    /// Descriptors for the process that opens the volume.
    pub fn files(&self) -> Result<PoolFiles> {
        let used = self.0.as_ref().ok_or_else(|| Failure::failed("volume: let go of"))?;
        used.files().map_err(|error| pool_failure(used.file().path(), &error))
    }

    /// Leaves the end of the use to a process that was forked since.
    pub fn leave_to_child(&mut self) {
        self.0 = None;
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(used) = self.0.take() {
            used.end();
        }
    }
}

/// The one line for what went wrong with a pool file.
pub fn pool_failure(path: &Path, error: &PoolError) -> Failure {
    let path = path.display();
    match error {
        PoolError::Host(what, errno) => {
            Failure::failed(format!("{path}: cannot {what}: {}", plain(&(*errno).into())))
        }
        PoolError::Refused(_) => {
            Failure::failed(format!("{path}: {error}: '--medium file' needs none of this"))
        }
        other => Failure::failed(format!("{path}: {other}")),
    }
}

/// Takes a volume over in the process that serves it, while it may still open files.
pub fn claim(own: &Files, files: PoolFiles) -> Result<Claim> {
    let failed = |error: PoolError| Failure::failed(format!("volume: {error}"));
    Claim::new(&own.plain, files).map_err(failed)
}

/// A claim and what it is on, to be assembled.
pub fn parts(files: Vec<Files>, claim: Option<Claim>, id: Option<&str>) -> Result<Parts> {
    let bypass = match (claim, id.and_then(parse_id)) {
        (None, None) => None,
        (Some(claim), Some(id)) => Some((claim, id)),
        _ => return Err(Failure::failed("volume: what was handed down is not what it is on")),
    };
    Ok(Parts { files, bypass, remote: None })
}

/// Opens the pool file of a volume.
pub(crate) fn open(volume: &Path, wanted: &BypassRef) -> Result<(PathBuf, PoolFile)> {
    refuse_others(volume)?;
    let path = beside(volume, &wanted.pool);
    let file = PoolFile::open(&path).map_err(|error| pool_failure(&path, &error))?;
    Ok((path, file))
}

/// What a volume is on, ready to be assembled.
pub struct Parts {
    /// Its own first, then base below base.
    pub files: Vec<Files>,
    /// Of a bypass volume.
    pub bypass: Option<(Claim, Id)>,
    /// Of a volume in a cluster, which has no files here.
    pub remote: Option<Arc<dyn Remote>>,
}

impl Parts {
    /// Of a volume that is an image in a cluster.
    pub fn remote(image: Arc<dyn Remote>) -> Parts {
        Parts { files: Vec::new(), bypass: None, remote: Some(image) }
    }
}

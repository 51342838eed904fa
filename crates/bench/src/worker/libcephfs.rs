//! Loads by calls of libcephfs alone, with nothing of a lane between it and the program: what the
//! calls through lanes and ceph-fuse are measured beside.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use polylane_ceph::{Caching, Client, Direct, DirectFile, Settings};

use super::{BLOCK, DATA, FILE_BLOCKS, LARGE, Length, Step, scattered, speak};
use crate::ceph::Cluster;

/// What a load's name begins with if it is done by the library alone.
pub(crate) const PREFIX: &str = "libcephfs:";

/// Bytes of file data that the client caches: what ceph-fuse has by itself.
const CACHE_BYTES: u64 = 200 << 20;

/// Runs the load of that name in a directory of the file system that the environment names.
///
/// # Errors
/// There is no such load, no cluster, or a call failed.
pub(crate) fn work(name: &str, dir: &Path, length: Length) -> Result<()> {
    let client = client()?;
    let direct = client.direct(dir.as_os_str().as_bytes())?;
    let (step, batch) = prepare(name, direct)?;
    speak(vec![step], batch, length, || Ok(()))?;
    let direct = client.direct(dir.as_os_str().as_bytes())?;
    match direct.unlink(DATA.as_bytes()) {
        Ok(()) | Err(polylane_base::Errno::ENOENT) => Ok(()),
        Err(errno) => bail!("remove what was made: {errno}"),
    }
}

fn client() -> Result<Client> {
    let cluster = Cluster::of_environment()?;
    let settings = Settings {
        user: cluster.user().to_string(),
        fs: Some(cluster.fs().to_string()),
        root: b"/".to_vec(),
        conf: CString::new(cluster.conf().as_os_str().as_bytes())?,
        key: cluster.key()?,
        caching: Caching::of(CACHE_BYTES),
        session: format!("polylane-bench-{}", std::process::id()),
        timeout: Duration::from_secs(30),
    };
    Ok(settings.prepare()?.mount()?)
}

/// A file of so many bytes, all written.
fn filled(direct: &Direct, bytes: usize) -> Result<DirectFile> {
    let file = direct.create(DATA.as_bytes())?;
    let block = vec![0x5a; LARGE.min(bytes)];
    for offset in (0..bytes).step_by(block.len()) {
        ensure!(file.write(offset as u64, &block)? == block.len(), "a short write");
    }
    Ok(file)
}

/// A load's step, and how many of them share a look at the clock; as the loads of the same names.
fn prepare(name: &str, direct: Direct) -> Result<(Step, u64)> {
    let whole = |count: usize, wanted: usize| match count == wanted {
        true => Ok(()),
        false => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
    };
    let mut buffer = vec![1; BLOCK];
    let data = DATA.as_bytes();
    Ok(match name {
        "cached-read" => {
            let file = filled(&direct, FILE_BLOCKS as usize * BLOCK)?;
            let read = move |index| whole(file.read(scattered(index), &mut buffer)?, BLOCK);
            (Box::new(read), 64)
        }
        "cached-write" => {
            let file = filled(&direct, FILE_BLOCKS as usize * BLOCK)?;
            (Box::new(move |index| whole(file.write(scattered(index), &buffer)?, BLOCK)), 64)
        }
        "fstat" => {
            let file = filled(&direct, BLOCK)?;
            (Box::new(move |_| Ok(file.size().map(drop)?)), 64)
        }
        "stat" => {
            drop(filled(&direct, BLOCK)?);
            (Box::new(move |_| Ok(direct.size(data).map(drop)?)), 64)
        }
        "open-close" => {
            drop(filled(&direct, BLOCK)?);
            (Box::new(move |_| Ok(direct.open(data).map(drop)?)), 32)
        }
        "create" => {
            // They stay until the figure ends, beside those of other workers.
            let (process, mut number) = (std::process::id(), 0_u64);
            let create = move |_| {
                number += 1;
                let name = format!("new-{process}-{number}");
                whole(direct.create(name.as_bytes())?.write(0, &buffer)?, BLOCK)
            };
            (Box::new(create), 1)
        }
        "seqread" => {
            let file = filled(&direct, 64 * LARGE)?;
            let mut buffer = vec![0; LARGE];
            let read =
                move |index: u64| whole(file.read(index % 64 * LARGE as u64, &mut buffer)?, LARGE);
            (Box::new(read), 1)
        }
        other => bail!("load '{other}' has no form by the library alone"),
    })
}

//! The lanes of a container: its root file system, and those of its mounts.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use polylane_pool::failure::{Failure, Result};
use polylane_pool::lasting::{self, LaneSource};
use polylane_volume::{self as volume, Links};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, mkdirat};

use crate::bundle;
use crate::place::{Lock, Place, UPPER};
use crate::record::{Cluster, FileCache, Mount, Network, Record};
use crate::users::open_inside;

/// Most bytes of what a command has said that are read.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// The file that is there once a container in a store has its names.
const NAMED: &str = "named";

/// The volume with what a container changed; there is none before its first start.
pub(crate) fn upper(place: &Place) -> PathBuf {
    place.file(UPPER)
}

/// What is over the layers of a root.
pub(crate) struct Upper {
    /// A lane's source, or `none`; absent: a volume of the container's own.
    pub(crate) source: Option<OsString>,
    /// Bytes of a new volume.
    pub(crate) size: Option<u64>,
    /// Whether processes have the library.
    pub(crate) preload: bool,
    /// More options of its mount.
    pub(crate) options: Vec<OsString>,
}

/// Whether the container was never started, so it has changed nothing.
pub(crate) fn is_new(place: &Place, record: &Record) -> bool {
    let mark = if record.store.is_some() { place.file(NAMED) } else { upper(place) };
    !mark.exists()
}

/// Mounts the container's lanes; where each of its mounts is on the host.
///
/// # Errors
/// One line. What was mounted is to be unmounted.
pub(crate) fn mount((place, lock): (&Place, &Lock), record: &Record) -> Result<Vec<String>> {
    let mut options = match record.store {
        Some(_) => record.cluster.options(),
        None => Vec::new(),
    };
    options.extend(record.file_cache.iter().flat_map(FileCache::options));
    let source = record.branch().map(|branch| format!("ceph:{branch}").into());
    let upper = Upper { source, size: record.size, preload: record.preload, options };
    let pool = record.pool.as_deref();
    // What the store has unpacked stays as it is.
    let of_store = |layer: &String| match layer.starts_with('/') {
        true => format!("fixed:dir:{layer}"),
        false => layer.clone(),
    };
    let layers: Vec<String> = record.layers.iter().map(of_store).collect();
    mount_root((place, lock), pool, &upper, (&layers, bundle::covered(record)))?;
    make_mount_points(&place.root(), &bundle::directories(record))?;
    let mut sources = Vec::new();
    for (number, mount) in record.mounts.iter().enumerate() {
        sources.push(match mount.is_lane() {
            true => mount_lane((place, lock), (pool, &record.cluster), number, mount)?,
            // The runtime looks it up: by a path without links.
            false => {
                let found = volume::expect(mount.source.as_ref(), Links::Own, "mount it")?;
                found.path.to_string_lossy().into_owned()
            }
        });
    }
    Ok(sources)
}

/// Mounts the root: `layers`, which are sources, the uppermost first, under `upper`. At the paths
/// `covered` the runtime mounts something else.
pub(crate) fn mount_root(
    (place, lock): (&Place, &Lock),
    pool: Option<&str>,
    upper: &Upper,
    (layers, covered): (&[String], Vec<Vec<u8>>),
) -> Result<()> {
    // Its set-id programs work: what they can come to the runtime bounds.
    let mut options = [&["--suid".into()], &upper.options[..]].concat();
    if !upper.preload {
        options.push("--no-preload".into());
    }
    if let Some(size) = upper.size {
        options.extend(["--size".into(), size.to_string().into()]);
    }
    for covered in covered {
        options.extend(["--covered".into(), OsString::from_vec(covered)]);
    }
    for layer in layers {
        options.extend(["--lower".into(), layer.into()]);
    }
    // A pool is one tenant: its containers are instances of one service, which has their layers.
    if pool.is_some() && upper.source.is_none() {
        options.push("--share".into());
    }
    let source = upper.source.clone().unwrap_or_else(|| {
        let mut own = OsString::from("volume:");
        own.push(self::upper(place));
        own
    });
    mount_one((pool, lock), options, &source, &place.root())
}

/// Makes the directories that the runtime will mount on, as far as the root has none, and waits
/// until they are durable: a mount goes with its mount point, and a service that is killed loses
/// one that was not synced. `targets` are relative to the root, in the order of the mounts. What
/// cannot be made is left to the runtime, which tells why.
pub(crate) fn make_mount_points(root: &Path, targets: &[String]) -> Result<()> {
    let failed = |error| Failure::path(root, "have its mount points be durable", error);
    let dir = File::open(root).map_err(failed)?;
    let mut changed = BTreeMap::new();
    for (number, target) in targets.iter().enumerate() {
        // What is below another mount is made there.
        if targets[..number].iter().any(|other| Path::new(target).starts_with(other)) {
            continue;
        }
        let ends = target.match_indices('/').map(|(end, _)| end).chain([target.len()]);
        for path in ends.map(|end| &target[..end]) {
            let (above, name) = path.rsplit_once('/').unwrap_or((".", path));
            let found = open_inside(&dir, above, OFlags::RDONLY | OFlags::DIRECTORY);
            let made = |above: &File| mkdirat(above, name, Mode::from_raw_mode(0o755)).is_ok();
            changed.extend(found.ok().filter(made).map(|found| (above, found)));
        }
    }
    changed.values().try_for_each(File::sync_all).map_err(failed)
}

/// Mounts the lane of mount `number`; where.
pub(crate) fn mount_lane(
    (place, lock): (&Place, &Lock),
    (pool, cluster): (Option<&str>, &Cluster),
    number: usize,
    mount: &Mount,
) -> Result<String> {
    let at = place.lane(number);
    place.make_dir(&format!("mounts/{number}"))?;
    let mut options = if mount.read_only { vec!["--ro".into()] } else { Vec::new() };
    if mount.is_in_cluster() {
        options.extend(cluster.options());
    }
    mount_one((pool, lock), options, mount.source.as_ref(), &at)?;
    Ok(at.to_string_lossy().into_owned())
}

/// Mounts a lane by the command, which is executed: a supervisor that was only forked would have
/// this process's open files, and be its child. The command holds the container's lock, too, as
/// what it reads, until the lane is mounted: whoever waits for that finds no mount half made by a
/// command whose caller was killed.
pub(crate) fn mount_one(
    (pool, lock): (Option<&str>, &Lock),
    options: Vec<OsString>,
    source: &OsStr,
    at: &Path,
) -> Result<()> {
    let failed = |error: io::Error| Failure::path(at, "mount a lane there", error);
    // Not a pipe: the supervisor may inherit it, and would keep it open.
    let said = memfd_create("polylane-mount", MemfdFlags::CLOEXEC);
    let mut said = File::from(said.map_err(|error| failed(error.into()))?);
    let mut command = Command::new("/proc/self/exe");
    // The engine unmounts it, and nobody by umount(8).
    command.args(["mount", "--once", "--utab=none"]).args(options);
    if let Some(pool) = pool {
        command.args(["--pool", pool]);
    }
    command.arg("--").arg(source).arg(at);
    command.stdin(lock.share().map_err(failed)?).stdout(Stdio::null());
    command.stderr(said.try_clone().map_err(failed)?);
    let status = command.status().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    let read = said.rewind().and_then(|()| (&said).take(LINE_BYTES_MAX).read_to_string(&mut text));
    let line = read.ok().and_then(|_| text.lines().next_back().map(str::to_string));
    let line = line.unwrap_or_else(|| format!("{}: mount: {status}", at.display()));
    let line = line.strip_prefix("polylane: ").unwrap_or(&line).to_string();
    Err(Failure::failed(line))
}

/// Unmounts the container's lanes; what is mounted no more is no error. With `lazy` also those that
/// are in use.
///
/// # Errors
/// One line: one is in use, or not everything could be written back.
pub(crate) fn unmount(place: &Place, record: &Record, lazy: bool) -> Result<()> {
    let lanes = record.mounts.iter().enumerate().filter(|(_, mount)| mount.is_lane());
    let mut all = vec![place.root()];
    // Of a command that was killed.
    all.extend(Some(place.store()).filter(|at| at.exists()));
    all.extend(lanes.map(|(number, _)| place.lane(number)).filter(|at| at.exists()));
    let unmount = |at: &PathBuf| lasting::umount_all(at, lazy).map_err(|stays| stays.failure);
    let unmounted: Vec<Result<()>> = all.iter().map(unmount).collect();
    unmounted.into_iter().collect()
}

/// Refuses what cannot be mounted, as far as it can be known before.
pub(crate) fn check(mounts: &[Mount]) -> Result<()> {
    for (number, mount) in mounts.iter().enumerate() {
        match mount.is_lane() {
            true => LaneSource::parse(mount.source.as_ref()).map(drop)?,
            false => volume::expect(mount.source.as_ref(), Links::Own, "mount it").map(drop)?,
        }
        let target = mount.target_parts();
        let mut before = mounts[..number].iter();
        if before.any(|other| other.target_parts() == target) {
            return Err(Failure::usage(format!("/{target}: mounted twice in the container")));
        }
        if ["proc", "sys", "dev", ".polylane"].contains(&&*target) {
            return Err(Failure::usage(format!("/{target}: is the container's own")));
        }
    }
    Ok(())
}

/// Writes the files of the root that tell of the container's name and network.
pub(crate) fn write_names(place: &Place, record: &Record) -> Result<()> {
    let root = &place.root();
    let dir = File::open(root).map_err(|error| Failure::path(root, "open it", error))?;
    let hosts = format!("127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {}\n", record.hostname);
    let mut files = vec![
        ("etc/hostname", format!("{}\n", record.hostname).into_bytes()),
        ("etc/hosts", hosts.into_bytes()),
    ];
    if record.network == Network::Host {
        files.extend(std::fs::read("/etc/resolv.conf").ok().map(|text| ("etc/resolv.conf", text)));
    }
    for (path, text) in files {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        // An image without /etc, or with something else there, has its reasons.
        let Ok(mut file) = open_inside(&dir, path, flags) else { continue };
        if file.metadata().is_ok_and(|found| found.is_file()) {
            file.write_all(&text)
                .map_err(|error| Failure::because(format!("/{path}"), "write it", error))?;
        }
    }
    match record.store {
        Some(_) => place.write(NAMED, &()),
        None => Ok(()),
    }
}

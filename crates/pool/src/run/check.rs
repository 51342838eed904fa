//! What of a run's options is refused before anything exists.

use polylane_base::size::ByteSize;
use polylane_volume::SetOptions;
use polylane_volume::cache::StoreKind;

use super::{RunOptions, Source, cache_bytes_limit};
use crate::ceph::{self, CephPlace, ClusterOptions};
use crate::failure::{Failure, Result};
use crate::file_cache::BYTES_MIN;
use crate::lower::LowerSource;
use crate::names;
use crate::share::{Policy, WEIGHTS};
use crate::spec::{AccessTimes, FileCache, FileCacheMode, FileCachePlace, WriteBack};
use crate::user_namespace::rootless;

/// Least `--memory`: below this the service itself does not fit.
pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Least of `--dirty-limit`, in bytes, and of `--flush-interval`, in microseconds.
pub(crate) const DIRTY_BYTES_MIN: u64 = 1 << 20;
const FLUSH_INTERVAL_US_MIN: u64 = 10_000;

impl Source {
    /// Whether the lane's own files are in an ext4 on a volume.
    pub(super) fn is_volume(&self) -> bool {
        matches!(self, Source::Volume(_) | Source::Image(_))
    }

    /// Where the lane's own files are, as a layer would be named, where layers may not lie.
    pub(super) fn as_layer(&self) -> Option<LowerSource> {
        match self {
            Source::Dir(path) => Some(LowerSource::Dir(path.clone())),
            Source::Ceph(place) => Some(LowerSource::Ceph(place.clone())),
            Source::Mem | Source::Volume(_) | Source::Image(_) | Source::Lowers => None,
        }
    }
}

impl RunOptions {
    /// The places in a cluster that the lane needs.
    pub(crate) fn ceph_places(&self) -> Vec<&CephPlace> {
        let own = if let Source::Ceph(place) = &self.source { Some(place) } else { None };
        let lowers = self.lowers.iter().flat_map(LowerSource::all);
        own.into_iter().chain(lowers.filter_map(LowerSource::ceph)).collect()
    }

    /// The Ceph user of all that the lane needs of a cluster; `None`: it needs nothing of one.
    ///
    /// # Errors
    /// There are several.
    pub(crate) fn cluster_user(&self) -> Result<Option<&str>> {
        let image = if let Source::Image(place) = &self.source { Some(place) } else { None };
        let below = self.ceph_places().first().map(|place| place.user.as_str());
        match (image, below) {
            (Some(image), Some(user)) if image.user != user => Err(Failure::usage(format!(
                "{image}: over layers of the Ceph user '{user}': use one user for both"
            ))),
            (Some(image), _) => Ok(Some(&image.user)),
            (None, user) => Ok(user),
        }
    }
}

/// Refuses options that contradict each other, or themselves.
pub(crate) fn check(options: &RunOptions) -> Result<()> {
    if let Some(name) = &options.pool
        && !names::is_name(name)
    {
        return Err(Failure::usage(format!(
            "--pool {name}: use letters, digits, '.', '_' and '-', at most 64, no leading '.'"
        )));
    }
    if let Some(weight) = options.weight
        && !WEIGHTS.contains(&weight)
    {
        return Err(Failure::usage(format!("--weight {weight}: must be 1 to 10000")));
    }
    for (option, size) in [("--memory", options.memory), ("--size", options.size)] {
        if size.is_some_and(|size| size < MEMORY_BYTES_MIN) {
            return Err(Failure::usage(format!("{option}: too small: at least 16M are needed")));
        }
    }
    if options.size.is_some() && matches!(options.source, Source::Dir(_) | Source::Ceph(_)) {
        return Err(Failure::usage("--size: a directory has no size of its own"));
    }
    if !options.lowers.is_empty() && options.kernel_fs.is_some() {
        return Err(Failure::usage("--lower: the kernel's file systems have none: no --kernel-fs"));
    }
    if options.access_times != AccessTimes::Relatime && matches!(options.source, Source::Dir(_)) {
        return Err(Failure::usage(
            "--noatime, --nodiratime: the access times of a directory are its own file system's: \
             mount that so",
        ));
    }
    let places = options.ceph_places();
    ceph::cluster(&places, &options.cluster)?;
    check_client(options, places.is_empty())?;
    if options.cluster_user()?.is_none() && options.cluster != ClusterOptions::default() {
        return Err(Failure::usage(
            "--ceph-conf, --ceph-keyring and --timeout: only a lane on a cluster, or over layers \
             on one, has them",
        ));
    }
    if options.size.is_some() && options.source == Source::Lowers {
        return Err(Failure::usage("--size: a read-only lane has no size of its own"));
    }
    refuse_without_volume(options)?;
    check_write_back(options)?;
    check_caches(options)?;
    if options.kernel_fs.is_some() {
        if let Source::Image(place) = &options.source {
            return Err(Failure::usage(format!(
                "--kernel-fs: not on an image of a cluster: use 'polylane attach {place}' and \
                 mount the device"
            )));
        }
        if !matches!(options.source, Source::Volume(_)) {
            return Err(Failure::usage(
                "--kernel-fs: lives on a volume: leave --dir, --mem and --ceph out",
            ));
        }
        if options.qos.is_some_and(|policy| policy != Policy::None) {
            return Err(Failure::usage("--kernel-fs: its device knows no shares: no --qos"));
        }
        if rootless().is_some() {
            return Err(Failure::failed("--kernel-fs: only root can mount file systems"));
        }
    }
    Ok(())
}

/// Refuses settings of a client of a Ceph file system that cannot be, or where there is none.
fn check_client(options: &RunOptions, has_none: bool) -> Result<()> {
    let client = &options.cluster.client;
    match client.given() {
        Some(option) if has_none => Err(Failure::usage(format!(
            "{option}: only a lane on a Ceph file system, or over layers on one, has such a client"
        ))),
        _ => client.check(cache_bytes_limit(options.memory)),
    }
}

/// Refuses what says how a volume, or its device, is used, for a lane that is on none.
fn refuse_without_volume(options: &RunOptions) -> Result<()> {
    if matches!(options.source, Source::Volume(_)) {
        return Ok(());
    }
    let shares = options.qos.is_some_and(|policy| policy != Policy::None);
    let cached = options.cache != SetOptions::default() && !options.source.is_volume();
    if options.cache.store == Some(StoreKind::Host) && options.source.is_volume() {
        return Err(Failure::usage(
            "--cache-store host: an image of a cluster is no file of the host: use own",
        ));
    }
    let refused = [
        (cached, "--cache: only a volume has one"),
        (options.medium.is_some(), "--medium: only a volume has one of the host's"),
        (shares, "--qos: lanes share the devices of their volumes"),
    ];
    match refused.into_iter().find(|(given, _)| *given) {
        Some((_, why)) => Err(Failure::usage(format!("{why}: this lane is on none"))),
        None => Ok(()),
    }
}

fn check_write_back(options: &RunOptions) -> Result<()> {
    let WriteBack { dirty_bytes_limit: dirty, flush_interval_us: interval, .. } =
        options.write_back;
    if options.write_back.volatile
        && (options.lowers.is_empty() || options.source == Source::Lowers)
    {
        return Err(Failure::usage("--volatile: is of changes over --lower"));
    }
    let Some(option) = write_back_option(&options.write_back) else { return Ok(()) };
    let waits = (dirty, interval) != (None, None);
    let cache = options.write_back.file_cache;
    if options.kernel_fs.is_some() {
        let why = match waits {
            true => "the kernel writes back as it does for all",
            false => "the kernel mounts its file systems as it does for all",
        };
        return Err(Failure::usage(format!("{option}: {why}")));
    }
    let is_ceph = matches!(options.source, Source::Ceph(_));
    let is_of_volume = options.write_back.journal_mode.is_some() || options.write_back.discard;
    if is_ceph && is_of_volume {
        return Err(Failure::usage(
            "--journal-mode and --discard: only a lane on a volume has a journal and blocks to \
             free",
        ));
    }
    // All of such a union has pages in its service.
    let over_volume =
        options.source != Source::Lowers && options.lowers.iter().any(LowerSource::is_volume);
    let is_cached =
        !is_of_volume && cache.map_or(over_volume, |cache| cache.keeps_back() || !waits);
    if !options.source.is_volume() && !is_ceph && !is_cached {
        let why = match waits {
            true => {
                "a volume or over one, on a Ceph file system or with --file-cache writeback keeps \
                 changes back"
            }
            false => "a volume has a journal and blocks to free",
        };
        return Err(Failure::usage(format!("{option}: only a lane on {why}")));
    }
    let most = cache_bytes_limit(options.memory);
    if dirty.is_some_and(|bytes| !(DIRTY_BYTES_MIN..=most).contains(&bytes)) {
        return Err(Failure::usage(format!(
            "--dirty-limit: from 1M to {}, a quarter of the pool's memory",
            ByteSize(most)
        )));
    }
    if interval.is_some_and(|us| us < FLUSH_INTERVAL_US_MIN) {
        return Err(Failure::usage("--flush-interval: too short: at least 10ms"));
    }
    Ok(())
}

/// Refuses caches of files that cannot be.
fn check_caches(options: &RunOptions) -> Result<()> {
    let most = cache_bytes_limit(options.memory);
    let own = options.write_back.file_cache;
    if options.kernel_cache && options.kernel_fs.is_some() {
        return Err(Failure::usage(
            "--kernel-cache: is of what goes by FUSE; the kernel's file systems have its cache",
        ));
    }
    let is_shared = matches!(options.source, Source::Ceph(_)) && options.lowers.is_empty();
    if is_shared && own.is_some_and(|cache| cache.keeps_back()) {
        return Err(Failure::usage(
            "--file-cache writeback: other hosts would not see what programs wrote: on a Ceph file \
             system use writethrough, under which its client keeps changes back",
        ));
    }
    if let Some(FileCache { mode, over: FileCachePlace::Upper, .. }) = own {
        if options.lowers.is_empty() || options.source == Source::Lowers {
            return Err(Failure::usage(
                "--file-cache-over upper: is of a lane's own files over --lower",
            ));
        }
        if mode == FileCacheMode::WriteBack {
            return Err(Failure::usage(
                "--file-cache-over upper: with --file-cache writethrough alone: a union's upper \
                 keeps no data back",
            ));
        }
    }
    let of_own = own.and_then(|cache| cache.bytes).map(|bytes| ("--file-cache-size", bytes));
    let lowers = options.lowers.iter().flat_map(LowerSource::all);
    let lowers = lowers.filter_map(|lower| lower.cache()?.bytes);
    let sizes = of_own.into_iter().chain(lowers.map(|bytes| ("--lower cached=SIZE", bytes)));
    let mut total: u64 = 0;
    for (option, bytes) in sizes {
        total = total.saturating_add(bytes);
        if bytes < BYTES_MIN || total > most {
            return Err(Failure::usage(format!(
                "{option}: from 1M to {}, a quarter of the pool's memory, all caches together",
                ByteSize(most)
            )));
        }
    }
    Ok(())
}

/// The first of these options that was given.
fn write_back_option(asked: &WriteBack) -> Option<&'static str> {
    let given = [
        ("--dirty-limit", asked.dirty_bytes_limit.is_some()),
        ("--flush-interval", asked.flush_interval_us.is_some()),
        ("--journal-mode", asked.journal_mode.is_some()),
        ("--discard", asked.discard),
        ("--file-cache", asked.file_cache.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
}

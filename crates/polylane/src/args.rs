//! Arguments that several commands take.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use polylane_base::size::{BadSize, ByteSize};
use polylane_pool::ceph::{ClientOptions, ClusterOptions};
use polylane_pool::failure::Failure;
use polylane_pool::share::{Policy, Wanted};
use polylane_pool::spec::{FileCache, FileCacheMode, FileCachePlace, JournalMode, WriteBack};
use polylane_volume::cache::{Mode, StoreKind};
use polylane_volume::cpus::CpuList;
use polylane_volume::translation::{PREFETCH_BYTES_MIN, Translation};
use polylane_volume::{MediumKind, SetOptions};

#[derive(Debug, Args)]
pub(crate) struct JsonArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The names of the policies by which a device is shared.
pub(crate) fn policies() -> clap::builder::PossibleValuesParser {
    Policy::ALL.map(Policy::name).into()
}

/// The names of the modes of a lane's journal.
fn journal_modes() -> clap::builder::PossibleValuesParser {
    JournalMode::ALL.map(JournalMode::name).into()
}

/// The names of the modes of a cache of files.
pub(crate) fn file_cache_modes() -> clap::builder::PossibleValuesParser {
    FileCacheMode::ALL.map(FileCacheMode::name).into()
}

/// The names of what a cache of files is over.
fn file_cache_places() -> clap::builder::PossibleValuesParser {
    FileCachePlace::ALL.map(FileCachePlace::name).into()
}

/// The names of what a volume is made on.
pub(crate) fn media() -> clap::builder::PossibleValuesParser {
    MediumKind::ALL.map(MediumKind::name).into()
}

/// When a lane's changed data is written.
#[derive(Clone, PartialEq, Eq, Default, Debug, Args)]
pub(crate) struct WriteBackArgs {
    /// Most changed data that waits to be written; writers wait above it [default: a sixteenth of
    /// the pool's memory]
    #[arg(long, value_name = "SIZE")]
    dirty_limit: Option<ByteSize>,
    /// How long changes wait at most to be written, such as 500ms [default: 5s]
    #[arg(long, value_name = "TIME", value_parser = microseconds)]
    flush_interval: Option<u64>,
    /// Where new data is before the metadata that shows it: on the volume (ordered), in the journal
    /// (data), or on its way (writeback) [default: ordered]
    #[arg(long, value_name = "MODE", value_parser = journal_modes())]
    journal_mode: Option<String>,
    /// Give what is freed back to the host at once, not only when fstrim asks
    #[arg(long)]
    discard: bool,
    /// Over --lower: do not wait for the disk when programs sync; what a lane that did not end in
    /// order has written is refused afterwards
    #[arg(long)]
    volatile: bool,
    /// Keep files in a cache of the lane's own: changes go on after --flush-interval and when they
    /// are synced (writeback), or at once (writethrough)
    #[arg(long, value_name = "MODE", value_parser = file_cache_modes())]
    file_cache: Option<String>,
    /// Most file data in that cache [default: a quarter of the pool's memory]
    #[arg(long, value_name = "SIZE", requires = "file_cache")]
    file_cache_size: Option<ByteSize>,
    /// What that cache is over: all that the lane is made of, or its own files alone, which are
    /// over --lower (upper)
    #[arg(long, value_name = "PART", requires = "file_cache", value_parser = file_cache_places())]
    file_cache_over: Option<String>,
}

impl WriteBackArgs {
    /// What a run is given.
    pub(crate) fn options(&self) -> WriteBack {
        WriteBack {
            dirty_bytes_limit: self.dirty_limit.map(|size| size.0),
            flush_interval_us: self.flush_interval,
            journal_mode: self.journal_mode.as_deref().and_then(JournalMode::named),
            discard: self.discard,
            volatile: self.volatile,
            file_cache: self.file_cache.as_deref().and_then(FileCacheMode::named).map(|mode| {
                FileCache {
                    mode,
                    bytes: self.file_cache_size.map(|size| size.0),
                    over: self
                        .file_cache_over
                        .as_deref()
                        .and_then(FileCachePlace::named)
                        .unwrap_or_default(),
                }
            }),
        }
    }
}

/// How a cluster is reached.
#[derive(Clone, PartialEq, Eq, Default, Debug, Args)]
pub(crate) struct ClusterArgs {
    /// Configuration of the cluster [default: /etc/ceph/ceph.conf]
    #[arg(long, value_name = "FILE")]
    ceph_conf: Option<PathBuf>,
    /// Keyring of the cluster's user, or a file with the key alone [default: as the configuration
    /// says]
    #[arg(long, value_name = "FILE")]
    ceph_keyring: Option<PathBuf>,
    /// How long the cluster may take to answer, such as 5s: at the start, and on CephFS each call
    /// afterwards, which then is EIO [default: 30s at the start; calls wait]
    #[arg(long, value_name = "TIME", value_parser = microseconds)]
    timeout: Option<u64>,
}

impl ClusterArgs {
    /// What a run is given.
    pub(crate) fn options(self) -> Result<ClusterOptions, Failure> {
        let timeout = self.timeout.map(Duration::from_micros);
        let (conf, keyring) = (self.ceph_conf, self.ceph_keyring);
        ClusterOptions { conf, keyring, timeout, ..ClusterOptions::default() }.absolute()
    }

    /// Refuses them for what is in no cluster.
    ///
    /// # Errors
    /// One is given.
    pub(crate) fn refuse(&self, what: &impl std::fmt::Display) -> Result<(), Failure> {
        match *self == ClusterArgs::default() {
            true => Ok(()),
            false => Err(Failure::usage(format!(
                "{what}: --ceph-conf, --ceph-keyring and --timeout are of what is in a cluster"
            ))),
        }
    }
}

/// How a lane's client of a Ceph file system works.
#[derive(Clone, PartialEq, Eq, Default, Debug, Args)]
pub(crate) struct ClientArgs {
    /// Memory in which a Ceph lane's client caches file data [default: half of the lane's cache]
    #[arg(long, value_name = "SIZE")]
    ceph_cache: Option<ByteSize>,
    /// Most that it reads ahead of a program; 0: nothing [default: four stripes of the file]
    #[arg(long, value_name = "SIZE")]
    ceph_read_ahead: Option<ByteSize>,
    /// Threads that wait for the cluster, 1 to 256 [default: 8]
    #[arg(long, value_name = "N")]
    ceph_threads: Option<u32>,
}

impl ClientArgs {
    /// What a run is given, whose cluster is reached so.
    pub(crate) fn of(self, cluster: ClusterArgs) -> Result<ClusterOptions, Failure> {
        Ok(ClusterOptions { client: self.options(), ..cluster.options()? })
    }

    /// The settings.
    pub(crate) fn options(self) -> ClientOptions {
        ClientOptions {
            cache_bytes: self.ceph_cache.map(|size| size.0),
            read_ahead_bytes: self.ceph_read_ahead.map(|size| size.0),
            io_threads: self.ceph_threads,
        }
    }
}

/// How a volume is cached and translated.
#[derive(Clone, PartialEq, Eq, Default, Debug, Args)]
pub(crate) struct CacheArgs {
    /// Cache mode: none, writeback, writethrough, directsync or pdc
    #[arg(long = "cache", value_name = "MODE")]
    mode: Option<Mode>,
    /// Where cached blocks lie: in the host's page cache, or in the service's own memory
    #[arg(long = "cache-store", value_name = "host|own")]
    store: Option<StoreKind>,
    /// Memory of a cache of its own [default: 64M]
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<ByteSize>,
    /// CPUs of the threads that find out where the volume lies on the host, as 0-3,6
    #[arg(long, value_name = "LIST")]
    translation_cpus: Option<CpuList>,
    /// How much of the volume they look at in one go [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = prefetch)]
    prefetch: Option<ByteSize>,
}

fn prefetch(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: BadSize| error.to_string())?;
    match size.0 >= PREFETCH_BYTES_MIN {
        true => Ok(size),
        false => Err("at least 1M".to_string()),
    }
}

impl CacheArgs {
    /// As options of a volume.
    ///
    /// # Errors
    /// One says that there is a cache, and another one that there is none.
    pub(crate) fn options(self) -> Result<SetOptions, Failure> {
        let of_a_cache =
            [(self.store.is_some(), "--cache-store"), (self.cache_size.is_some(), "--cache-size")];
        if let Some(mode) = self.mode.filter(|mode| !mode.has_cache())
            && let Some((_, option)) = of_a_cache.into_iter().find(|(given, _)| *given)
        {
            return Err(Failure::usage(format!("{option}: --cache {mode} keeps nothing")));
        }
        Ok(SetOptions {
            weight: None,
            mode: self.mode,
            store: self.store,
            cache_bytes: self.cache_size.map(|size| size.0),
            translation: Translation {
                cpus: self.translation_cpus,
                prefetch_bytes: self.prefetch.map(|size| size.0),
            },
        })
    }
}

/// Limits of a lane on its device.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    /// Requests per second that it is to have at least, if it wants them
    #[arg(long, value_name = "N")]
    min_iops: Option<u64>,
    /// Most requests per second
    #[arg(long, value_name = "N")]
    max_iops: Option<u64>,
    /// Bytes per second that it is to have at least, if it wants them, such as 20M
    #[arg(long, value_name = "SIZE")]
    min_bandwidth: Option<ByteSize>,
    /// Most bytes per second, such as 100M
    #[arg(long, value_name = "SIZE")]
    max_bandwidth: Option<ByteSize>,
    /// Time that 99 per cent of its requests are to stay below, such as 500us or 2ms
    #[arg(long, value_name = "TIME", value_parser = microseconds)]
    latency: Option<u64>,
}

impl LimitArgs {
    /// What they and a weight ask for.
    pub(crate) fn wanted(&self, weight: Option<u32>) -> Wanted {
        Wanted {
            weight,
            iops_max: self.max_iops,
            iops_min: self.min_iops,
            bw_max: self.max_bandwidth.map(|size| size.0),
            bw_min: self.min_bandwidth.map(|size| size.0),
            latency_target_us: self.latency,
        }
    }
}

/// A time such as `500us`, `2ms` or `1s`, or 0, in microseconds.
pub(crate) fn microseconds(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_us = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "" if number == "0" => 1,
        _ => return Err("write a number and us, ms or s".to_string()),
    };
    let number: u64 = number.parse().map_err(|_| "write a number and us, ms or s".to_string())?;
    number.checked_mul(unit_us).ok_or_else(|| "too long".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let read = |text| microseconds(text).ok();
        assert_eq!(
            [read("500us"), read("2ms"), read("1s")],
            [Some(500), Some(2_000), Some(1_000_000)]
        );
        assert_eq!(read("0"), Some(0), "lifts");
        for wrong in ["", "5", "ms", "-1ms", "1.5ms", "1h", "99999999999999999999s"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(read("18446744073709551615s"), None);
    }
}

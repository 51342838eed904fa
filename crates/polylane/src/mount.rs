//! `polylane mount` and `umount`: lanes that outlive the command.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use clap::Args;
use polylane_base::shown::Shown;
use polylane_base::size::ByteSize;
use polylane_pool::failure::{Failure, Result, say};
use polylane_pool::lasting::{self, LaneSource, MountOptions, Mounted};
use polylane_pool::run::{RunOptions, Source};
use polylane_pool::share::Policy;
use polylane_pool::spec::AccessTimes;
use polylane_volume::MediumKind;
use serde_json::Value;

use crate::args::{CacheArgs, ClientArgs, ClusterArgs, JsonArgs, WriteBackArgs, media, policies};
use crate::print::{cell, columns, print, print_json};

/// `polylane mount`.
#[derive(Debug, Args)]
#[command(
    after_help = "SOURCE: volume:FILE (or FILE alone; made and formatted if absent), dir:DIR, \
    mem:SIZE, ceph:[USER@]FSNAME[:PATH], rbd:[USER@]POOL/IMAGE[@SNAP], or none with --lower: a \
    read-only lane. With --share also a directory in such a lane: volume:FILE/DIR, mem:SIZE/DIR, \
    a directory below. Mounting the same again is counted: umount takes one away."
)]
pub(crate) struct MountArgs {
    /// What to mount
    #[arg(value_name = "SOURCE", requires = "path")]
    source: Option<OsString>,
    /// An empty directory
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,
    #[arg(
        long,
        value_name = "SOURCE",
        requires = "source",
        help = "A layer under the lane's own files, which is never changed: DIR, dir:DIR, a \
                volume, FILE or volume:FILE, ceph:[USER@]FSNAME[:PATH], or union:FILE, which \
                names layers; fixed:DIR, which nobody changes; repeat it, the uppermost first"
    )]
    lower: Vec<OsString>,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    client: ClientArgs,
    /// Pool of the lane [default: default]
    #[arg(long, value_name = "NAME", requires = "source")]
    pool: Option<String>,
    /// Let a service of the pool that serves the same SOURCE, or more, serve this path as well
    #[arg(long, requires = "source")]
    share: bool,
    /// Nothing can be changed through this mount
    #[arg(long, requires = "source")]
    ro: bool,
    /// Show users and groups U to U + N - 1 of the files as H to H + N - 1 of this host, the others
    /// as nobody's; repeat it
    #[arg(long, value_name = "U:H:N", requires = "source", conflicts_with = "suid")]
    map_users: Vec<String>,
    /// Let mounts of the lane be id-mapped, as container runtimes do (Linux 6.12); FUSE only
    #[arg(long, requires = "source", conflicts_with = "map_users")]
    idmap: bool,
    /// The kernel caches what programs read and write by FUSE: io_uring moves a file's position
    #[arg(long, requires = "source")]
    kernel_cache: bool,
    /// No read moves an access time
    #[arg(long, requires = "source")]
    noatime: bool,
    /// No read of a directory moves its access time
    #[arg(long, requires = "source")]
    nodiratime: bool,
    /// Where the same is mounted already, leave it so: it is not counted once more
    #[arg(long, requires = "source")]
    once: bool,
    /// Let set-user-ID programs in the lane change the user
    #[arg(long, requires = "source")]
    suid: bool,
    /// A path from the lane's root where whoever uses the lane mounts something else
    #[arg(long, value_name = "PATH", requires = "source", hide = true)]
    covered: Vec<OsString>,
    /// Options that /run/mount/utab is to have of the mount; "none": it is not to be there
    #[arg(long, value_name = "LIST", default_value = "", hide = true)]
    utab: String,
    /// FUSE only: no preload library in PATH/.polylane
    #[arg(long, requires = "source")]
    no_preload: bool,
    /// Size of a new volume [default: 10G]
    #[arg(long, value_name = "SIZE", requires = "source")]
    size: Option<ByteSize>,
    /// What a new volume is made on, and an existing one must be
    #[arg(long, value_name = "file|bypass", value_parser = media(), requires = "source")]
    medium: Option<String>,
    /// Share of the volume's device, 1 to 10000 [default: 100]
    #[arg(long, value_name = "N", requires = "source")]
    weight: Option<u32>,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    write_back: WriteBackArgs,
    /// How lanes on the volume's device share it [default: as others there do, else ledger]
    #[arg(long, value_name = "POLICY", value_parser = policies(), requires = "source")]
    qos: Option<String>,
    #[command(flatten)]
    json: JsonArgs,
}

/// `polylane umount`.
#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// Mount paths of lanes
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Also a lane that is in use: what is open on it gets errors once all is written back
    #[arg(long, short)]
    lazy: bool,
    /// Take a mount away however often it was counted; where none is, nothing is to be done
    #[arg(long)]
    all: bool,
}

/// Executes `polylane mount`; the exit status.
pub(crate) fn mount(arguments: MountArgs) -> Result<u8> {
    let (Some(source), Some(path)) = (&arguments.source, &arguments.path) else {
        // The others need a source by their own declaration.
        let (cache, write_back) = (CacheArgs::default(), WriteBackArgs::default());
        let client = ClientArgs::default();
        let of_lane = (&arguments.cache, &arguments.write_back, &arguments.cluster);
        if of_lane != (&cache, &write_back, &ClusterArgs::default()) || arguments.client != client {
            return Err(Failure::usage("mount: options of a lane go with SOURCE and PATH"));
        }
        return list(arguments.json.json);
    };
    let source = LaneSource::parse(source)?.over(&arguments.lower)?;
    let path = path.clone();
    let (pool, share, read_only) = (arguments.pool.clone(), arguments.share, arguments.ro);
    let once = arguments.once;
    let utab = arguments.utab.clone();
    let lane = lane(arguments)?;
    let at = path.clone();
    match lasting::mount(MountOptions { source, path: at, pool, share, read_only, once, lane })? {
        Mounted::Again(_) if once => {}
        Mounted::New | Mounted::Shared => list_for_umount_8(&path, &utab, 1),
        Mounted::Again(count) => {
            list_for_umount_8(&path, &utab, count);
            say(format_args!("{}: mounted already, now {count} times", Shown::new(&path)));
        }
    }
    Ok(0)
}

/// Lists a lane in `/run/mount/utab`, unless it is not to be there.
fn list_for_umount_8(path: &Path, utab: &str, count: u32) {
    if utab != "none" {
        lasting::utab::list(path, utab, count);
    }
}

/// What a run of such a lane would be given.
fn lane(arguments: MountArgs) -> Result<RunOptions> {
    Ok(RunOptions {
        cluster: arguments.client.of(arguments.cluster)?,
        pool: arguments.pool,
        size: arguments.size.map(|size| size.0),
        medium: arguments.medium.as_deref().and_then(MediumKind::named),
        weight: arguments.weight,
        cache: arguments.cache.options()?,
        write_back: arguments.write_back.options(),
        qos: arguments.qos.as_deref().and_then(Policy::named),
        preload: !arguments.no_preload && !arguments.idmap,
        suid: arguments.suid,
        map_users: lasting::parse_users(&arguments.map_users)?,
        id_maps: arguments.idmap,
        kernel_cache: arguments.kernel_cache,
        access_times: match (arguments.noatime, arguments.nodiratime) {
            (true, _) => AccessTimes::Never,
            (false, true) => AccessTimes::NotOfDirs,
            (false, false) => AccessTimes::Relatime,
        },
        covered: arguments.covered.into_iter().map(OsString::into_vec).collect(),
        // The mount's own source and path stand for these.
        ..RunOptions::new(Source::Mem, Vec::new())
    })
}

fn list(json: bool) -> Result<u8> {
    let mounts = lasting::list()?;
    match json {
        true => print_json(&mounts)?,
        false => print(&table(&mounts))?,
    }
    Ok(0)
}

fn table(mounts: &[Value]) -> String {
    let names = ["path", "source", "pool", "service", "instance", "count", "state"];
    let head = names.map(str::to_uppercase);
    let rows = mounts.iter().map(|mount| names.map(|name| cell(&mount[name])));
    columns(std::iter::once(head).chain(rows).collect())
}

/// Executes `polylane umount`; the exit status. The first path that cannot be unmounted ends it.
pub(crate) fn umount(arguments: &UmountArgs) -> Result<u8> {
    for path in &arguments.paths {
        if arguments.all {
            lasting::umount_all(path, arguments.lazy).map_err(|stays| stays.failure)?;
            lasting::utab::unlist(path);
            continue;
        }
        match lasting::umount(path, arguments.lazy)? {
            0 => lasting::utab::unlist(path),
            count => say(format_args!("{}: still mounted {count} times", Shown::new(path))),
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        mount: MountArgs,
    }

    #[test]
    fn options_of_a_lane_need_a_lane() {
        for options in [&["--discard"][..], &["--cache", "none"], &["--flush-interval", "1s"]] {
            let words = ["mount"].iter().chain(options);
            let line = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(mount(line.mount).expect_err("refused").status, 2, "{options:?}");
        }
        for options in [&["--share"][..], &["--weight", "5"], &["--lower", "/"]] {
            assert!(Line::try_parse_from(["mount"].iter().chain(options)).is_err(), "{options:?}");
        }
    }
}

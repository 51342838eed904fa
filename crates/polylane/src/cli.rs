//! The command line as clap sees it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use polylane_base::size::ByteSize;
use polylane_bench::AddressRange;
use polylane_bench::worker::Length;
use polylane_pool::kernel_fs::KernelFs;
use polylane_volume::MediumKind;
use polylane_volume::cpus::CpuList;

use crate::args::{CacheArgs, ClientArgs, ClusterArgs, JsonArgs, WriteBackArgs, media, policies};
use crate::attach;
use crate::lane_args::LaneArgs;

/// Storage lanes for tenants: a private file system, its own service process, and a short way in.
#[derive(Debug, Parser)]
#[command(name = "polylane", version, about, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run COMMAND in a pool with its lane mounted; exit with its status
    Run(Box<RunArgs>),
    /// Mount a lane that outlives this command; without arguments: list what is mounted
    Mount(Box<crate::mount::MountArgs>),
    /// Unmount a lane; everything is durable then
    Umount(crate::mount::UmountArgs),
    /// Make and look after volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Make a volume a block device of this host, or serve it at a socket
    Attach(attach::AttachArgs),
    /// End an attachment; everything is durable then
    Detach(attach::DetachArgs),
    /// Show what running pools and attachments do and what share of the device they get
    Top(crate::top::TopArgs),
    /// Make and look after pools, and their shares
    #[command(subcommand)]
    Pool(crate::pool::PoolCommand),
    /// Execute COMMAND in a pool that lasts; exit with its status
    Exec(crate::pool::ExecArgs),
    /// Import, list, export and remove container images
    #[command(subcommand)]
    Image(crate::image::ImageCommand),
    /// Run containers of images, their files on lanes of their own, by the host's OCI runtime
    #[command(subcommand)]
    Container(crate::container::ContainerCommand),
    /// Be the OCI runtime of podman, containerd or docker: containers whose annotations ask for it
    /// are on lanes
    #[command(disable_help_flag = true)]
    Oci {
        /// [--oci-runtime PROGRAM] and the words of runc or crun, which does the work
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORDS")]
        words: Vec<OsString>,
    },
    /// Print what gives a process or a container the fast way into the lanes at PATHs
    Env(crate::lane_env::EnvArgs),
    /// Keep pools and mounts as configuration files say, and serve an HTTP interface to them
    Daemon(crate::daemon::DaemonArgs),
    /// Show the counters of running pools and of attachments
    Stats(StatsArgs),
    /// Say what this host can do and what polylane uses of it
    Doctor(JsonArgs),
    /// Benchmarks
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Show polylane at work: the same as 'bench run demo'
    Demo,
    /// Print a completion script for a shell
    Completions {
        /// Shell
        shell: clap_complete::Shell,
    },
    /// A pool's service process; started by 'run'
    #[command(hide = true)]
    Service(ServiceArgs),
    /// An attachment's engine process; started by 'attach'
    #[command(hide = true)]
    Engine(attach::EngineArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: COMMAND's own, 128+n when signal n ended it, 127 when it was not \
    found, 126 when it could not be executed; 1 for a failure of the lane, 2 for wrong usage."
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) lanes: LaneArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
    /// The lane is COMMAND's root file system
    #[arg(long)]
    pub(crate) root: bool,
    /// Name of the pool
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,
    /// CPUs of the pool, such as 0-3,6
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<CpuList>,
    /// Memory of the pool, such as 512M
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,
    /// Size of a new volume [default: 10G] or of a lane in RAM [default: half of the memory]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<ByteSize>,
    /// What a new volume is made on, and an existing one must be: a file of its own, or chunks of a
    /// pool file past the host's file system (which reserves all of it); mem: no volume, the same
    /// as --mem [default: file for a new one]
    #[arg(long, value_name = "file|bypass|mem")]
    pub(crate) medium: Option<LaneMedium>,
    /// Share of the pool, 1 to 10000 [default: 100]
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u32>,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) write_back: WriteBackArgs,
    /// How lanes on the volume's device share it [default: as others there do, else ledger]
    #[arg(long, value_name = "POLICY", value_parser = policies())]
    pub(crate) qos: Option<String>,
    /// Let the kernel serve the lane, by a file system of its own on the volume
    #[arg(long, value_name = "KIND", value_parser = kernel_file_systems())]
    #[arg(conflicts_with_all = ["dir", "mem", "ceph"])]
    pub(crate) kernel_fs: Option<String>,
    /// Mount an image that was not formatted here, after a check
    #[arg(long, requires = "kernel_fs")]
    pub(crate) trust_image: bool,
    /// FUSE only: no preload library
    #[arg(long)]
    pub(crate) no_preload: bool,
    /// The kernel caches what programs read and write by FUSE: io_uring moves a file's position
    #[arg(long)]
    pub(crate) kernel_cache: bool,
    /// Let set-user-ID programs change the user also where the lane did not begin empty
    #[arg(long)]
    pub(crate) suid: bool,
    /// Leave COMMAND all of the caller's rights, not only a container's
    #[arg(long, requires = "root")]
    pub(crate) privileged: bool,
    /// Let COMMAND, and all that it starts, become each user and group that an ordinary user has in
    /// /etc/subuid and /etc/subgid, as rootless podman does, and come back
    #[arg(long)]
    pub(crate) become_users: bool,
    /// Program to run, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

fn kernel_file_systems() -> clap::builder::PossibleValuesParser {
    KernelFs::ALL.map(KernelFs::name).into()
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume: a sparse file with a file system on it
    Create(VolumeCreateArgs),
    /// List the volumes of directories
    Ls {
        /// Directories, or pools of a cluster (`rbd:[USER@]POOL`) [default: where the volumes of
        /// pools are]
        #[arg(value_name = "DIR")]
        dirs: Vec<PathBuf>,
        #[command(flatten)]
        cluster: ClusterArgs,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Say what is to be known about a volume
    Info {
        /// Its file, or an image: `rbd:[USER@]POOL/IMAGE[@SNAP]`
        volume: PathBuf,
        #[command(flatten)]
        cluster: ClusterArgs,
        #[command(flatten)]
        json: JsonArgs,
    },
    /// Remove volumes that are not in use, and snapshots between others
    Rm {
        /// Also files that nothing says to be volumes (no sidecar, no name in .img), volumes whose
        /// sidecar cannot be read, and bases of volumes that cannot be found
        #[arg(long)]
        force: bool,
        /// Their files
        #[arg(required = true, value_name = "VOLUME")]
        volumes: Vec<PathBuf>,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Grow a volume and the file system on it; make one with an ext4 smaller that nobody uses
    Resize {
        /// Its file
        volume: PathBuf,
        /// New size, such as 20G
        size: ByteSize,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Change how a volume is cached, and its share
    Set {
        /// Its file
        volume: PathBuf,
        /// Share of pools on it, 1 to 10000
        #[arg(long, value_name = "N")]
        weight: Option<u32>,
        #[command(flatten)]
        cache: CacheArgs,
    },
    /// Copy up all data that an upper's files still have in its lowers, so that it is whole without
    /// them, for overlayfs, too. Its lane may be in use. Cut off, it goes on when it is run again
    Solidify {
        /// The file of the volume, or the directory, that is the upper
        upper: PathBuf,
        /// Its lowers, as of 'run'; needed where no lane is on it
        #[arg(long, value_name = "SOURCE")]
        lower: Vec<OsString>,
    },
    /// Keep a volume's present state; blocks are shared where the host can
    Snapshot {
        /// Its file
        volume: PathBuf,
        /// The file of the snapshot; of an image `rbd:[USER@]POOL/IMAGE@SNAP`
        to: PathBuf,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Make a volume of a volume or snapshot; blocks are shared where the host can. It is a file,
    /// as thin as can be: 'import' makes a thick one, or one on another medium
    Clone {
        /// Its file
        volume: PathBuf,
        /// The file of the new volume
        to: PathBuf,
        #[command(flatten)]
        cluster: ClusterArgs,
    },
    /// Check the file system on a volume, settled as by a mount
    Check {
        /// Its file
        volume: PathBuf,
        /// Mend what can be mended
        #[arg(long)]
        repair: bool,
        /// Only look: change nothing, not even what a mount would
        #[arg(short = 'n', conflicts_with = "repair")]
        look: bool,
    },
    /// Make a volume of a raw file, of an image of another program (qcow2, VMDK, VDI, VHD, VHDX,
    /// QED, Parallels), or of what the tenant of another volume sees
    Import {
        /// The file, a pipe, or - for standard input
        from: PathBuf,
        /// The file of the new volume
        volume: PathBuf,
        /// Reserve all of its space on the host
        #[arg(long)]
        thick: bool,
        /// What the file is [default: told by its content]
        #[arg(long, value_name = "FORMAT")]
        format: Option<ImportFormat>,
        /// How it is reached: through a file of its own, or past the host's file system
        #[arg(long, value_name = "file|bypass", default_value = "file", value_parser = media())]
        medium: String,
    },
    /// Write a volume to a new file
    Export {
        /// Its file
        volume: PathBuf,
        /// The new file, a pipe, or - for standard output
        to: PathBuf,
        /// Format of the new file [default: qcow2 for names in .qcow2, else raw]
        #[arg(long)]
        format: Option<ExportFormat>,
    },
    /// Show where a volume lies on its host
    Map {
        /// Its file
        volume: PathBuf,
        /// Show where its cache sees journals instead, or saw them when it was attached last
        #[arg(long)]
        journal: bool,
        /// Draw the journals to this file (with --journal)
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        #[command(flatten)]
        json: JsonArgs,
    },
}

#[derive(Debug, Args)]
pub(crate) struct VolumeCreateArgs {
    /// The volume's file, or an image of a Ceph cluster: `rbd:[USER@]POOL/IMAGE`
    pub(crate) volume: PathBuf,
    /// Size [default: 10G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<ByteSize>,
    /// File system to put on it
    #[arg(long, default_value = "ext4")]
    pub(crate) fs: FileSystemKind,
    /// Reserve all of its space on the host
    #[arg(long)]
    pub(crate) thick: bool,
    /// How it is reached: through a file of its own, or past the host's file system
    #[arg(long, value_name = "file|bypass", default_value = "file", value_parser = media())]
    pub(crate) medium: String,
    /// Share of pools on it, 1 to 10000
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u32>,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// What a lane is on, by `--medium`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LaneMedium {
    /// A volume of this kind.
    Volume(MediumKind),
    /// RAM.
    Mem,
}

impl ValueEnum for LaneMedium {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Volume(MediumKind::File), Self::Volume(MediumKind::Bypass), Self::Mem]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(match self {
            LaneMedium::Volume(kind) => kind.name().into(),
            LaneMedium::Mem => "mem".into(),
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum FileSystemKind {
    Ext4,
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ImportFormat {
    /// The disk, byte by byte
    Raw,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ExportFormat {
    Raw,
    Qcow2,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    /// Only this pool
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,
    /// Print all counters, under the names that they have in JSON
    #[arg(long, conflicts_with_all = ["prometheus", "json"])]
    pub(crate) all: bool,
    /// Print what a Prometheus scraper reads
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
    #[command(flatten)]
    pub(crate) json: JsonArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Name all figures
    List(JsonArgs),
    /// Run figures
    Run(BenchRunArgs),
    /// The load of one tenant; started by figures
    #[command(hide = true)]
    Worker { load: String, dir: PathBuf, length: Length },
}

#[derive(Debug, Args)]
pub(crate) struct BenchRunArgs {
    /// Figures
    #[arg(required = true, value_name = "FIGURE")]
    pub(crate) figures: Vec<String>,
    /// Fewer points and shorter runs
    #[arg(long)]
    pub(crate) quick: bool,
    /// Repeats of every measurement
    #[arg(long, value_name = "N")]
    pub(crate) repeat: Option<usize>,
    /// Where results go
    #[arg(long, value_name = "DIR", default_value = "polylane-results")]
    pub(crate) out: PathBuf,
    /// Block trace to replay, plain or gzip (pdc-trace; repeatable)
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Vec<PathBuf>,
    /// Byte addresses of the journal's first and last block [default: as the trace says]
    #[arg(long, value_name = "LO-HI", requires = "trace")]
    pub(crate) journal: Option<AddressRange>,
    /// Directory on the disk to measure on, not a simulated device (wdt-fig8,
    /// wdt-fig9, joins, bully, shares-mixed, group-commit, rolling, synced)
    #[arg(long, value_name = "DIR")]
    pub(crate) disk: Option<PathBuf>,
    /// Numbers of tenants to measure, such as 1,4,16 (figures that go over several)
    #[arg(long, value_name = "N,N…", value_delimiter = ',',
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) tenants: Vec<u16>,
    /// What to measure, by its name in the figure's table (the same figures, pdc-fig6,
    /// pdc-fig7, and rows of synced; repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) system: Vec<String>,
    /// Configuration of the Ceph cluster to measure on (ceph-calls and other figures on Ceph)
    #[arg(long, value_name = "FILE")]
    pub(crate) ceph_conf: Option<PathBuf>,
    /// Its file system, in whose directory PATH the figure works [default: cephfs]
    #[arg(long, value_name = "[USER@]FSNAME[:PATH]", requires = "ceph_conf")]
    pub(crate) ceph: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    /// The run-time directory that has its lane's name, for commands that look at its arguments
    #[arg(long)]
    pub(crate) names: Option<String>,
    #[arg(long)]
    pub(crate) spec: i32,
    #[arg(long)]
    pub(crate) fuse: i32,
    #[arg(long)]
    pub(crate) socket: i32,
    #[arg(long)]
    pub(crate) control: i32,
    #[arg(long)]
    pub(crate) handover: i32,
    #[arg(long)]
    pub(crate) witness: Option<i32>,
    #[arg(long)]
    pub(crate) mounts: Option<i32>,
    #[arg(long)]
    pub(crate) dir: Option<i32>,
    #[arg(long)]
    pub(crate) lower: Vec<i32>,
    #[arg(long)]
    pub(crate) ceph_conf: Option<i32>,
    #[arg(long, requires = "ceph_conf")]
    pub(crate) ceph_keyring: Option<i32>,
    #[arg(long)]
    pub(crate) volume: Vec<i32>,
    #[arg(long)]
    pub(crate) volume_plain: Vec<i32>,
    #[arg(long)]
    pub(crate) volume_lock: Vec<i32>,
    #[arg(long, requires = "bypass_pool")]
    pub(crate) bypass_disk: Option<i32>,
    #[arg(long, requires = "bypass_disk")]
    pub(crate) bypass_pool: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_cache_has_no_place_and_no_size() {
        let options = |words: &str| {
            let line = format!("polylane volume set v {words}");
            let cli = Cli::try_parse_from(line.split(' ')).expect("valid");
            let Command::Volume(VolumeCommand::Set { cache, .. }) = cli.command else {
                panic!("not a set")
            };
            cache.options().map_err(|failure| (failure.status, failure.line))
        };
        for (words, line) in [
            ("--cache none --cache-store own", "--cache-store: --cache none keeps nothing"),
            ("--cache none --cache-size 1M", "--cache-size: --cache none keeps nothing"),
            (
                "--cache directsync --cache-size 1M",
                "--cache-size: --cache directsync keeps nothing",
            ),
        ] {
            assert_eq!(options(words), Err((2, line.to_string())));
        }
        for words in ["--cache none", "--cache-store own", "--cache pdc --cache-size 1M"] {
            assert!(options(words).is_ok(), "{words}");
        }
    }

    #[test]
    fn a_run_is_read() {
        let line = "polylane run --mem --cpus 0-1 --memory 64M --pool p -- sh -c --mem";
        let cli = Cli::try_parse_from(line.split(' ')).expect("valid");
        let Command::Run(run) = cli.command else { panic!("not a run") };
        assert_eq!(run.command, ["sh", "-c", "--mem"]);
        assert_eq!(run.memory, Some(ByteSize(64 << 20)));
        assert_eq!(run.lanes.lanes.len(), 1);
        for bad in ["run --mem", "run --mem --dir x -- y", "run --root --at /x -- y", "run --nope"]
        {
            let line = format!("polylane {bad}");
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{bad}");
        }
    }
}

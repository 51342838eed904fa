//! One file per figure; this list is what `bench list` prints.

use anyhow::Result;

use crate::Options;
use crate::report::Report;

mod attach;
mod cached;
mod ceph_calls;
mod ceph_depth;
mod ceph_rbd;
mod container_files;
mod copy;
mod demo;
mod echo;
mod engine;
mod fileappend;
mod forks;
mod gapbs_bfs;
mod group_commit;
mod guest;
mod ipc;
mod layers;
mod limits;
mod locks;
mod mariadb;
mod multilanes;
mod ocrd;
mod overhead;
mod pdc_csv;
mod pdc_guests;
mod pdc_hdd;
mod pdc_hits;
mod pdc_loads;
mod pdc_precision;
mod pdc_programs;
mod pdc_shares;
mod pdc_sync;
mod pdc_trace;
mod pools;
mod qos_scenarios;
mod queue;
mod rocksdb;
mod rocksdb_flood;
mod rolling;
mod service_separation;
mod shared_instance;
mod shared_lower;
mod shares_mixed;
mod sqlite;
mod srcdiff;
mod stream;
mod sweep;
mod synced;
mod synced_programs;
mod takes;
mod translate;
mod vhost;
mod wdt_cores;
mod wdt_disk;
mod wdt_model;
mod webstart;

pub use pdc_trace::AddressRange;
pub use takes::{BY_ROW, PDC_GUESTS, SWEEPS, TAKE_A_CLUSTER, TAKE_A_DISK, TAKE_TRACES};

/// A figure that can be run.
pub struct Figure {
    /// Its name on the command line.
    pub name: &'static str,
    /// Whether it mounts file systems or starts pools, and so needs a mount namespace of its own.
    pub mounts: bool,
    /// One line for `bench list`.
    pub about: &'static str,
    /// Measures it.
    pub run: fn(&Options) -> Result<Report>,
}

/// Every figure.
pub const FIGURES: &[Figure] = &[
    Figure {
        name: "demo",
        mounts: true,
        about: "real programs in a lane, then a quiet tenant beside a flooding one",
        run: demo::run,
    },
    Figure {
        name: "pools",
        mounts: true,
        about: "memory and CPU of 1, 16, 64 lasting pools at rest, and the start of a lane",
        run: pools::run,
    },
    Figure {
        name: "service-separation",
        mounts: true,
        about: "a tenant's p99 as another's service is killed, stopped, out of memory, upgraded",
        run: service_separation::run,
    },
    Figure {
        name: "shared-instance",
        mounts: true,
        about: "memory and hits of two mounts of one service beside two services",
        run: shared_instance::run,
    },
    Figure {
        name: "container-files",
        mounts: true,
        about: "create, write, rename, unlink in a container: lane, FUSE, kernel",
        run: container_files::run,
    },
    Figure {
        name: "fileappend",
        mounts: true,
        about: "1 MiB appended to a large file of a lower: lanes, overlayfs, fuse-overlayfs",
        run: fileappend::run,
    },
    Figure {
        name: "layers",
        mounts: true,
        about: "ls -lR, find, tar over three layers: lanes, overlayfs, fuse-overlayfs",
        run: layers::run,
    },
    Figure {
        name: "large-dirs",
        mounts: true,
        about: "a lower's directory of 10^4 to 10^5 names: list, look up, create",
        run: layers::run_names,
    },
    Figure {
        name: "webstart",
        mounts: true,
        about: "1 to 256 web servers on one image until all answer: lanes, overlayfs and others",
        run: webstart::run,
    },
    Figure {
        name: "srcdiff",
        mounts: true,
        about: "diff -r over two source trees of a shared lower, 1–32 tenants, cold and warm",
        run: srcdiff::run,
    },
    Figure {
        name: "gapbs-bfs",
        mounts: true,
        about: "a graph of a shared lower read and searched by 1–32 tenants, cold and warm",
        run: gapbs_bfs::run,
    },
    Figure {
        name: "ocrd",
        mounts: true,
        about: "create, rename, unlink by 1–16 tenants: lanes, tmpfs, shared kernel file systems",
        run: ocrd::run,
    },
    Figure {
        name: "ocrd-spread",
        mounts: true,
        about: "the same on files that live for a while, where nothing cancels out",
        run: ocrd::run_spread,
    },
    Figure {
        name: "fig1",
        mounts: true,
        about: "MultiLanes: 256 MB of 4 KiB buffered writes by each of 1–16 tenants",
        run: multilanes::fig1,
    },
    Figure {
        name: "fig5",
        mounts: true,
        about: "MultiLanes: ocrd on Linux, on lanes with kernel file systems, on complete lanes",
        run: multilanes::fig5,
    },
    Figure {
        name: "fig6-buffered",
        mounts: true,
        about: "MultiLanes: sequential 4 KiB writes through the page cache, 1–16 tenants",
        run: multilanes::fig6_buffered,
    },
    Figure {
        name: "fig6-direct",
        mounts: true,
        about: "MultiLanes: sequential 4 KiB writes with O_DIRECT, 1–16 tenants",
        run: multilanes::fig6_direct,
    },
    Figure {
        name: "fig7",
        mounts: true,
        about: "MultiLanes: random 4 KiB writes through the page cache, 1–16 tenants",
        run: multilanes::fig7,
    },
    Figure {
        name: "fig8-varmail",
        mounts: true,
        about: "MultiLanes: Filebench's mail server, 1–16 tenants",
        run: multilanes::fig8_varmail,
    },
    Figure {
        name: "fig8-fileserver",
        mounts: true,
        about: "MultiLanes: Filebench's file server, 1–16 tenants",
        run: multilanes::fig8_fileserver,
    },
    Figure {
        name: "fig9",
        mounts: true,
        about: "MultiLanes: MariaDB under sysbench's update_key, 1–16 tenants",
        run: mariadb::run,
    },
    Figure {
        name: "fig10",
        mounts: true,
        about: "MultiLanes: what a lane costs one tenant: a build, a web server, a stream",
        run: overhead::run,
    },
    Figure {
        name: "table1",
        mounts: true,
        about: "MultiLanes: the most contended kernel locks when 16 tenants write",
        run: locks::table1,
    },
    Figure {
        name: "table3",
        mounts: true,
        about: "MultiLanes: the most contended kernel locks when 16 tenants make and remove files",
        run: locks::table3,
    },
    Figure {
        name: "unpack",
        mounts: true,
        about: "unpack 100 000 small files, 1–16 tenants",
        run: multilanes::unpack,
    },
    Figure {
        name: "remove",
        mounts: true,
        about: "remove 100 000 small files, 1–16 tenants",
        run: multilanes::remove,
    },
    Figure {
        name: "rocksdb-mixed",
        mounts: true,
        about: "RocksDB: half gets, half puts by db_bench, 1–32 tenants",
        run: rocksdb::mixed,
    },
    Figure {
        name: "rocksdb-read",
        mounts: true,
        about: "RocksDB: gets of random keys by db_bench, 1–32 tenants",
        run: rocksdb::read,
    },
    Figure {
        name: "rocksdb-flood",
        mounts: true,
        about: "RocksDB's puts beside a neighbour who floods with fsyncs: lanes, FUSE, kernel",
        run: rocksdb_flood::run,
    },
    Figure {
        name: "sqlite",
        mounts: true,
        about: "SQLite: a fixed load like speedtest1, by every way in",
        run: sqlite::run,
    },
    Figure {
        name: "synced",
        mounts: true,
        about: "small syncs, threads, databases beside the host's ext4 with a journal (disk)",
        run: synced::run,
    },
    Figure {
        name: "forks",
        mounts: true,
        about: "forks of a program with 3 and 100 open files; bash, make, nginx, PostgreSQL",
        run: forks::run,
    },
    Figure {
        name: "cached-read",
        mounts: true,
        about: "4 KiB reads of cached data: lane, FUSE, kernel",
        run: |options| cached::run(options, "cached-read"),
    },
    Figure {
        name: "cached-write",
        mounts: true,
        about: "4 KiB writes to cached data: lane, FUSE, kernel",
        run: |options| cached::run(options, "cached-write"),
    },
    Figure {
        name: "stat",
        mounts: true,
        about: "stat of a path and fstat of a descriptor: lane, FUSE, kernel",
        run: |options| cached::run(options, "stat"),
    },
    Figure {
        name: "open-close",
        mounts: true,
        about: "open and close: lane, FUSE, kernel",
        run: |options| cached::run(options, "open-close"),
    },
    Figure {
        name: "seqread",
        mounts: true,
        about: "sequential read in memory: lane, FUSE, kernel, share of time in IPC",
        run: |options| cached::run(options, "seqread"),
    },
    Figure {
        name: "fileio-ram",
        mounts: true,
        about: "random 16 KiB file I/O in memory: lane, FUSE, kernel, share of time in IPC",
        run: |options| cached::run(options, "fileio"),
    },
    Figure {
        name: "ipc",
        mounts: true,
        about: "round trip of an empty request: channel, FUSE, futex, eventfd, UNIX socket",
        run: ipc::run,
    },
    Figure {
        name: "limits",
        mounts: true,
        about: "empty requests of a user beside one that is at all limits of a user at once",
        run: limits::run,
    },
    Figure {
        name: "queue",
        mounts: true,
        about: "request queues beside crossbeam and concurrent-queue, 1–16 producers",
        run: queue::run,
    },
    Figure {
        name: "copy",
        mounts: true,
        about: "reads of 4 KiB to 4 MiB by copy method: SMC, SMO, rep movsb, CMA, pipelines",
        run: copy::run,
    },
    Figure {
        name: "pdc-trace",
        mounts: false,
        about: "journal detectors on a recorded block trace (--trace FILE.csv[.gz])",
        run: pdc_trace::run,
    },
    Figure {
        name: "pdc-fig2",
        mounts: false,
        about: "a volume through the host's cache, own memory, and past both",
        run: pdc_sync::fig2,
    },
    Figure {
        name: "pdc-fig3",
        mounts: false,
        about: "the journal's share of a trace's traffic, footprint and flushes (--trace)",
        run: pdc_shares::shares,
    },
    Figure {
        name: "ceph-calls",
        mounts: true,
        about: "read, fstat, stat, create on CephFS: lanes, ceph-fuse, libcephfs (--ceph-conf)",
        run: ceph_calls::run,
    },
    Figure {
        name: "ceph-seqread",
        mounts: true,
        about: "a file on CephFS read from the client's cache: lanes, ceph-fuse, libcephfs",
        run: ceph_calls::seqread,
    },
    Figure {
        name: "ceph-depth",
        mounts: true,
        about: "1–32 reads under way on one file of CephFS: lanes beside fio's rados",
        run: ceph_depth::run,
    },
    Figure {
        name: "ceph-rbd",
        mounts: true,
        about: "4 KiB requests on an RBD image: engine, attached, fio's rbd (--ceph-conf)",
        run: ceph_rbd::run,
    },
    Figure {
        name: "ceph-rocksdb",
        mounts: true,
        about: "RocksDB on CephFS, half gets and half puts: lanes beside ceph-fuse (--ceph-conf)",
        run: rocksdb::ceph,
    },
    Figure {
        name: "ceph-flood",
        mounts: true,
        about: "RocksDB's puts on CephFS beside a neighbour who floods (--ceph-conf)",
        run: rocksdb_flood::ceph,
    },
    Figure {
        name: "pdc-fig4",
        mounts: false,
        about: "a journal's write and flush, through the host's cache and around it",
        run: pdc_sync::fig4,
    },
    Figure {
        name: "pdc-fig5",
        mounts: false,
        about: "addresses of a trace over time with what goes past the cache (--trace)",
        run: pdc_shares::addresses,
    },
    Figure {
        name: "pdc-fig6",
        mounts: true,
        about: "mail and databases on ext4 on an attached volume: no cache, WB, PDC",
        run: pdc_guests::fig6,
    },
    Figure {
        name: "pdc-fig7",
        mounts: true,
        about: "the same loads on four guests at the same time",
        run: pdc_guests::fig7,
    },
    Figure {
        name: "pdc-hdd",
        mounts: false,
        about: "mail by one and four guests on an emulated 7200 rpm disk",
        run: pdc_hdd::run,
    },
    Figure {
        name: "group-commit",
        mounts: false,
        about: "synced appends by 1–64 threads: commits by one write, and by two",
        run: group_commit::run,
    },
    Figure {
        name: "pdc-precision",
        mounts: true,
        about: "recall and precision of the journal detectors, by file system and load",
        run: pdc_precision::run,
    },
    Figure {
        name: "pdc-fig8",
        mounts: true,
        about: "hit ratio of caches smaller than the working set, WB and PDC (mail, or --trace)",
        run: pdc_hits::run,
    },
    Figure {
        name: "vhost-user",
        mounts: false,
        about: "a native virtio driver on this vhost-user-blk server and on qemu-storage-daemon's",
        run: vhost::run,
    },
    Figure {
        name: "wdt-fig2",
        mounts: false,
        about: "bandwidth of four containers by policy, Table 1 (simulated device)",
        run: wdt_model::fig2,
    },
    Figure {
        name: "wdt-fig3",
        mounts: false,
        about: "ST: read bandwidth given to C1 and used (simulated device)",
        run: wdt_model::fig3,
    },
    Figure {
        name: "wdt-fig4",
        mounts: false,
        about: "ST: read and write bandwidth given to C2 and used (simulated device)",
        run: wdt_model::fig4,
    },
    Figure {
        name: "wdt-fig6",
        mounts: false,
        about: "admission by policy, threads and kind of lock (no device)",
        run: wdt_cores::fig6,
    },
    Figure {
        name: "wdt-fig7",
        mounts: false,
        about: "cache misses of admission, where the CPU's counters can be read",
        run: wdt_cores::fig7,
    },
    Figure {
        name: "qos-cost",
        mounts: false,
        about: "what the coordinator of shares costs, by lanes (no device)",
        run: wdt_cores::cost,
    },
    Figure {
        name: "wdt-fig8",
        mounts: false,
        about: "shares of four containers by policy and weights, Table 1 (simulated device)",
        run: wdt_model::fig8,
    },
    Figure {
        name: "wdt-fig9",
        mounts: false,
        about: "shares of four containers by policy, random 4 KiB (simulated device)",
        run: wdt_model::fig9,
    },
    Figure {
        name: "joins",
        mounts: false,
        about: "the heaviest of four is idle, then joins, by policy (simulated device)",
        run: wdt_model::joins,
    },
    Figure {
        name: "shares-mixed",
        mounts: false,
        about: "small requests beside large ones, by size, depth, kind and weight (real disk)",
        run: shares_mixed::run,
    },
    Figure {
        name: "rolling",
        mounts: false,
        about: "the oldest of 16 snapshots of an attached volume removed beside its requests",
        run: rolling::run,
    },
    Figure {
        name: "bully",
        mounts: false,
        about: "a small reader beside a flood, by policy (simulated device)",
        run: wdt_model::bully,
    },
    Figure {
        name: "wdt-percentile",
        mounts: false,
        about: "WDT by percentile of the demand (simulated device)",
        run: wdt_model::percentile,
    },
    Figure {
        name: "qos-scenarios",
        mounts: false,
        about: "all policies where shares go wrong (simulated device)",
        run: qos_scenarios::run,
    },
    Figure {
        name: "engine",
        mounts: true,
        about: "direct 4 KiB requests through the block engine, beside fio on the plain file",
        run: engine::run,
    },
    Figure {
        name: "attach",
        mounts: true,
        about: "attached volumes (FUSE+loop, passed through, NBD) beside plain loop devices",
        run: attach::run,
    },
    Figure {
        name: "stream",
        mounts: true,
        about: "stream writes onto a fresh sparse volume, beside fio on a sparse file",
        run: stream::run,
    },
    Figure {
        name: "translate",
        mounts: true,
        about: "binding the translation threads to one core, and prefetching, on cold volumes",
        run: translate::run,
    },
];

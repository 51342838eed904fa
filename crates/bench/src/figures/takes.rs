//! Which figures take which options: names in [`FIGURES`](super::FIGURES).

/// Figures that replay recorded traces.
pub const TAKE_TRACES: &[&str] = &["pdc-trace", "pdc-fig3", "pdc-fig5", "pdc-fig8"];

/// Figures of one load in several places by several numbers of tenants, which can be chosen.
pub const SWEEPS: &[&str] = &[
    "ocrd",
    "ocrd-spread",
    "fig1",
    "fig5",
    "fig6-buffered",
    "fig6-direct",
    "fig7",
    "fig8-varmail",
    "fig8-fileserver",
    "fig9",
    "unpack",
    "remove",
    "rocksdb-mixed",
    "rocksdb-read",
    "sqlite",
    "srcdiff",
    "gapbs-bfs",
    "ceph-rocksdb",
    "fileappend",
    "webstart",
];

/// Figures of guests on volumes by cache mode, which can be chosen as the systems of the former.
pub const PDC_GUESTS: &[&str] = &["pdc-fig6", "pdc-fig7"];

/// Figures of rows, which can be chosen as the systems of the former.
pub const BY_ROW: &[&str] =
    &["synced", "ceph-calls", "ceph-seqread", "ceph-depth", "ceph-rbd", "ceph-flood"];

/// Figures that a Ceph cluster is named to.
pub const TAKE_A_CLUSTER: &[&str] = &[
    "ceph-calls",
    "ceph-seqread",
    "ceph-depth",
    "ceph-rbd",
    "ceph-rocksdb",
    "ceph-flood",
    "fileappend",
    "srcdiff",
    "gapbs-bfs",
];

/// Figures that a real disk can be given to.
pub const TAKE_A_DISK: &[&str] = &[
    "wdt-fig8",
    "wdt-fig9",
    "joins",
    "bully",
    "shares-mixed",
    "group-commit",
    "rolling",
    "synced",
];

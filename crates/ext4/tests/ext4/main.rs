//! What `ext4` does on images of every kind, beside models, e2fsck and the kernel's errno. One
//! program: a test binary of its own for each file costs as much to build as the crate.

mod acls;
mod closing;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod damaged_logs;
mod feature_limits;
mod features;
mod filling;
mod full;
mod full_host;
mod inline;
mod kept_features;
mod large_dirs;
mod large_values;
mod last_name;
mod late;
mod limits;
mod make;
mod maps;
mod model;
mod projects;
mod quota_limits;
mod quotas;
mod reader;
mod refused;
mod room;
mod stress;
mod synced;
mod traced;
mod truncated;
mod writeback;

//! The test kit: a model file system, a reference for whole paths, generated operations,
//! conformance suites and decorators that fail on purpose.
//!
//! | module | what | used by |
//! |---|---|---|
//! | `fs_suite` | checks that every `FileSystem` must pass | `tests/` of each implementation |
//! | `fault` | a `FileSystem` that fails or blocks when told | tests of what stands above |
//! | `model` | a file system in plain maps, obviously right | the reference, the page cache |
//! | `reference` | system calls on the model: paths, permissions, open files | the driver |
//! | `ops` | operations, their generator and shrinker | the driver |
//! | `subject` | the same operations on a real `Vfs` | the driver |
//! | `kernel` | the same operations on the host's kernel | the driver, to check the reference |
//! | `probe` | what a host directory can do | tests that use one |
//! | `sim` | a disk that records, delays, fails, and is cut off at any write | crash tests |
//! | `block_suite` | checks that every `BlockDevice` must pass | `tests/` of each device |
//! | `acl` | values of access control lists | tests that set some |
//! | `quota` | limits of users and projects in an image | tests of quotas |
//! | `effort` | how much a test does: a sample or everything | what the campaign runs in full |
//! | `driver` | both side by side, compared after every step | `tests/model.rs` |
//!
//! Code here may panic: it runs in tests, and a panic is how a test says no.
#![forbid(unsafe_code)]

pub mod acl;
pub mod block_suite;
pub mod driver;
pub mod effort;
pub mod fault;
pub mod fs_suite;
pub mod kernel;
pub mod model;
mod model_rules;
pub mod ops;
pub mod probe;
pub mod quota;
pub mod reference;
pub mod sim;
pub mod subject;

//! Container images: imported from files, kept by digest, each layer unpacked once and shared.
//!
//! | file | what |
//! |---|---|
//! | `error.rs` | what can go wrong |
//! | `limits.rs` | how much an import may make of its source |
//! | `digest.rs` | digests, and streams that compute them |
//! | `member.rs` | members of a tar file, read from untrusted bytes |
//! | `members.rs` | members of an archive by their name, and files of a layout directory |
//! | `compression.rs` | gzip and zstd |
//! | `tree.rs` | files of a layer below its root, and never outside of it |
//! | `unpack.rs` | a layer's tar file becomes a tree with overlayfs' marks |
//! | `owners.rs` | whose the files of a tree are |
//! | `pack.rs` | a tree becomes a tar file |
//! | `layout.rs` | the JSON of OCI layouts and of `docker save` |
//! | `store.rs` | what is kept where, and how it is removed |
//! | `import.rs` | a source becomes an image |
//! | `export.rs` | an image becomes an archive |
//! | `diff.rs` | what a tree changed of another becomes a layer |
//! | `overlay.rs` | an upper of the kernel's overlayfs over its lowers |
//!
//! Files of the store: docs/design/images.md.
//!
//! # Trust
//!
//! A source is hostile. Its digests are computed, its paths never leave the layer's tree
//! (`openat2` with `RESOLVE_BENEATH`), headers, names and documents have a largest size, so have
//! all bytes and members together, and nothing has a name in the store before all of it was
//! verified. What memory an import takes does not depend on the number of members. A source is read
//! without the store's lock.
#![forbid(unsafe_code)]

mod compression;
mod diff;
mod digest;
mod error;
mod export;
mod import;
mod layout;
mod limits;
mod member;
mod members;
mod overlay;
mod owners;
mod pack;
mod store;
mod tree;
mod unpack;

pub use compression::Compression;
pub use diff::diff;
pub use error::{Error, Result};
pub use limits::Limits;
pub use overlay::Overlay;
pub use store::{Image, Layer, Store, Work, check_name};

//! Descriptors: which open file each number means, and what the library keeps of it.
//!
//! | module | what it knows |
//! |---|---|
//! | `abandon` | what becomes of open files when there is no session any more |
//! | `at` | where a path starts |
//! | `cwd` | the working directory |
//! | `directories` | kernel descriptors of directories that are opened again and again |
//! | `file` | the position and the status flags of an open file |
//! | `preopened` | kernel descriptors opened ahead, called slots |
//! | `record` | one open file |
//! | `rings` | whether the kernel uses descriptors unseen |
//! | `table` | what every number means |

pub(crate) mod abandon;
pub(crate) mod at;
pub(crate) mod cwd;
pub(crate) mod directories;
pub(crate) mod file;
pub(crate) mod preopened;
pub(crate) mod record;
pub(crate) mod rings;
pub(crate) mod table;

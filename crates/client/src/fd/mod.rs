//! Descriptors: which open file each number means, and what the library keeps of it.
//!
//! | module | what it knows |
//! |---|---|
//! | `cwd` | the working directory |
//! | `file` | the life of an open file |
//! | `preopened` | kernel descriptors opened ahead, called slots |
//! | `rings` | what changes where the kernel uses descriptors unseen |
//! | `table` | numbers, and the records of open files |

pub(crate) mod cwd;
pub(crate) mod file;
pub(crate) mod preopened;
pub(crate) mod rings;
pub(crate) mod table;

//! Whether the calling thread is to the kernel what its user is: the service knows users and groups
//! alone.

use crate::kernel::real;

/// Capabilities that decide over files. Root has all of them, and nobody else has any: so the
/// service takes it, which knows users and groups alone.
const OVER_FILES: u64 = CHOWN | DAC_OVERRIDE | FOWNER | FSETID;
const CHOWN: u64 = 1;
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const FOWNER: u64 = 1 << 3;
const FSETID: u64 = 1 << 4;

/// Whether the calling thread may on files what its user may.
pub(crate) fn is_what_it_seems() -> bool {
    match (real::capabilities(), rustix::process::geteuid().is_root()) {
        (Some(has), true) => has & OVER_FILES == OVER_FILES,
        (Some(has), false) => has & (OVER_FILES | DAC_READ_SEARCH) == 0,
        (None, _) => false,
    }
}

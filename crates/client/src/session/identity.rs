//! Whether the calling thread is to the kernel what its user is: the service knows users and groups
//! alone.

use crate::kernel::real;

bitflags::bitflags! {
    /// `CAP_*`, as a set of capabilities has them.
    struct Capabilities: u64 {
        const CHOWN = 1 << 0;
        const DAC_OVERRIDE = 1 << 1;
        const DAC_READ_SEARCH = 1 << 2;
        const FOWNER = 1 << 3;
        const FSETID = 1 << 4;
        const _ = !0;
    }
}

/// Capabilities that decide over files. The service, which knows users and groups alone, takes it
/// that root has all of them and other users have none.
const OVER_FILES: Capabilities = Capabilities::CHOWN
    .union(Capabilities::DAC_OVERRIDE)
    .union(Capabilities::FOWNER)
    .union(Capabilities::FSETID);

/// Whether the calling thread may on files what its user may.
pub(crate) fn is_what_it_seems() -> bool {
    let has = real::capabilities().map(Capabilities::from_bits_retain);
    match (has, rustix::process::geteuid().is_root()) {
        (Some(has), true) => has.contains(OVER_FILES),
        (Some(has), false) => !has.intersects(OVER_FILES.union(Capabilities::DAC_READ_SEARCH)),
        (None, _) => false,
    }
}

//! How a hooked call ends: handled here, left to the kernel, or refused.

use polylane_base::Errno;

use crate::kernel::config::LaneNumber;

/// Why a call has no result from the fast lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Detour {
    /// Not ours, or not now: the real libc function is called with the caller's own arguments.
    Kernel,
    /// The call fails with this.
    Errno(Errno),
    /// The service died before it answered a request that the next one must be asked again.
    Lost(Lost),
}

/// A request that a service died before it answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lost {
    /// The lane whose service it was.
    pub(crate) lane: LaneNumber,
    /// The number under which the next one is to be asked; 0: it has none.
    pub(crate) turn: u32,
}

/// Why a call has no result from the fast lane, once no service is left to be asked again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unanswered {
    /// As [`Detour::Kernel`].
    Kernel,
    /// As [`Detour::Errno`].
    Errno(Errno),
}

impl From<Unanswered> for Detour {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Kernel => Detour::Kernel,
            Unanswered::Errno(errno) => Detour::Errno(errno),
        }
    }
}

/// The result of a call that the fast lane handled, or a [`Detour`].
pub(crate) type Outcome<T> = Result<T, Detour>;

/// Makes room for so many more elements; `ENOMEM` where memory cannot be had. Every list that grows
/// by what a program does asks here first: an allocation that fails by itself ends the program.
pub(crate) fn make_room<T>(into: &mut Vec<T>, more: usize) -> Outcome<()> {
    into.try_reserve(more).map_err(|_| Detour::Errno(Errno::ENOMEM))
}

/// A copy of `bytes`; `ENOMEM` as in [`make_room`].
pub(crate) fn copied(bytes: &[u8]) -> Outcome<Vec<u8>> {
    let mut copy = Vec::new();
    make_room(&mut copy, bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

impl From<Errno> for Detour {
    fn from(errno: Errno) -> Self {
        Detour::Errno(errno)
    }
}

impl From<rustix::io::Errno> for Detour {
    fn from(errno: rustix::io::Errno) -> Self {
        Detour::Errno(Errno(errno.raw_os_error()))
    }
}

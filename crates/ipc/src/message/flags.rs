//! Flags of requests and replies, by operation.

bitflags::bitflags! {
    /// `flags` of [`Op::Read`](super::Op::Read), [`Op::Write`](super::Op::Write) and
    /// [`Op::Fstat`](super::Op::Fstat).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct TransferFlags: u32 {
        /// Show the file in a view ([`crate::view`]). The reply's `handle` is the number of the
        /// view plus one, 0 for none.
        const SHOW = 1 << 0;
        /// Of a read: show the state if the read reached the end. `handle` as for
        /// [`Self::SHOW`].
        const SHOW_END = 1 << 1;
        /// Beside [`Self::SHOW`], of a read: bytes were found in the view since the request before.
        const FOUND = 1 << 2;
        /// Of a write: [`Self::APPENDS`] says what `O_APPEND` is; others may have changed it.
        const SAYS_APPENDS = 1 << 4;
        /// Beside [`Self::SAYS_APPENDS`]: set.
        const APPENDS = 1 << 5;
        /// Of a write: at the end, or at `offset`, whatever the open file does.
        const AT_END = 1 << 6;
        /// As [`Self::AT_END`]. `EPERM`: the file can be appended to only.
        const AT_OFFSET = 1 << 7;
        const _ = !0;
    }

    /// `flags` of [`Op::Lock`](super::Op::Lock) and [`Op::GetLock`](super::Op::GetLock). With
    /// neither [`Self::OFD`] nor [`Self::FLOCK`]: POSIX locks.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct LockFlags: u32 {
        /// Wait for the lock (`F_SETLKW`).
        const WAIT = 1 << 0;
        /// An open-file-description lock (`F_OFD_*`).
        const OFD = 1 << 1;
        /// flock(2); the range is ignored.
        const FLOCK = 1 << 2;
        /// POSIX locks of the file are to be lent, if the process is alone with them; the reply's
        /// `handle` is the number of the file's view plus one.
        const LEND = 1 << 3;
        const _ = !0;
    }

    /// `value[0]` in replies of [`Op::Unlink`](super::Op::Unlink) and
    /// [`Op::Rename`](super::Op::Rename): what else a change of names did.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct NameEffects: u64 {
        /// What was moved or removed is a directory that the kernel knows, by its former name
        /// until it looks again.
        const MOVED_DIR = 1 << 0;
        /// Of a rename: so is what was replaced, or exchanged.
        const REPLACED_DIR = 1 << 1;
        /// Of an unlink: what was removed was a directory on which the client had a lease, and its
        /// leases are over.
        const ENDED_LEASES = 1 << 2;
        const _ = !0;
    }
}

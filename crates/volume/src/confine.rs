//! What a program keeps that works on files of others for a command: see
//! [`sandbox`](crate::sandbox).

use std::collections::BTreeMap;

use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
use polylane_sys::privileges;
use rustix::thread::CapabilitySet;
use seccompiler::{BpfProgram, Error, SeccompAction, SeccompFilter, TargetArch};

/// Calls by which a program reaches anything but its files: sockets, rings (which make sockets past
/// a filter), other processes, the kernel's own objects.
const REACHES: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kill,
    libc::SYS_tkill,
    libc::SYS_setns,
    libc::SYS_unshare,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
];

/// A filter of system calls, to be applied where memory should not be allocated.
pub struct NoReach(BpfProgram);

/// A filter that refuses what reaches further than the files of a program.
///
/// # Errors
/// This architecture has no filters.
pub fn no_reach() -> Result<NoReach, Error> {
    let calls: BTreeMap<i64, _> = REACHES.iter().map(|call| (*call, vec![])).collect();
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, refused, arch)?;
    Ok(NoReach(filter.try_into()?))
}

impl NoReach {
    /// Binds this thread, and what it executes.
    ///
    /// # Errors
    /// The kernel has no filters, or new privileges may still be gained.
    pub fn apply(&self) -> Result<(), Error> {
        seccompiler::apply_filter(&self.0)
    }
}

/// Keeps of root's capabilities the one by which files of any owner are opened.
///
/// # Errors
/// The host's.
pub fn keep_opening() -> rustix::io::Result<()> {
    privileges::keep_only(CapabilitySet::DAC_OVERRIDE, None).map(drop)
}

/// Whether this kernel has Landlock, switched on.
pub fn has_landlock() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V1)).and_then(|set| set.create()).is_ok()
}

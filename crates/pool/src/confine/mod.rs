//! Confinement of a service: what it can still do once it has its descriptors.
//!
//! A service reads bytes that its tenant wrote: requests, FUSE messages, images. Somebody who takes
//! it over through one of them must find nothing but the tenant's own lane. Layers, from the
//! outside in; each holds without the others:
//!
//! - *namespaces*, as root: no file tree of the host (the root is an empty, read-only tmpfs), no
//!   network, no System V IPC, no host name;
//! - *capabilities*, as root: none; a host directory's service keeps [`KEPT_FOR_HOST`];
//! - *Landlock*, where the kernel has it: no path can be opened, or none outside the host
//!   directory; no TCP, no signals to others, no abstract sockets of others;
//! - *seccomp*: no system call that no service makes ([`calls`]).
//!
//! Call order matters: mounts cannot be changed under Landlock, and nothing can be opened after it.
//! All of it is inherited by threads, so it is done before there is a second one.

mod calls;
mod program;

use std::os::fd::BorrowedFd;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use polylane_sys::ns;
use rustix::mount::MountAttrFlags;
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::Serialize;

pub(crate) use program::{keep_opening, no_reach};

use crate::failure::{Failure, Result};
use crate::mounts;

/// The newest Landlock whose rights we know; an older kernel enforces those that it has.
const LANDLOCK: ABI = ABI::V6;

/// What the service of a host directory does for its tenant there: give files away, make devices,
/// set modes and attributes of files that are not its own.
const KEPT_FOR_HOST: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SYS_RESOURCE);

/// Which layers are in force, for `polylane stats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Confined {
    namespaces: bool,
    capabilities: bool,
    landlock: bool,
    seccomp: bool,
}

/// Gives up what a service never needs: new privileges through exec, a core dump or a tracer with
/// its tenant's data, a working directory, and all that the table above names. `host` is the host
/// directory that it serves, if any. Call with one thread.
///
/// # Errors
/// When a layer that this host has can't be put up.
pub(crate) fn confine(host: Option<BorrowedFd<'_>>) -> Result<Confined> {
    let failed = |error| Failure::because("service", "give up privileges", error);
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)?;
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        leave_the_host().map_err(failed)?;
        drop_capabilities(host.map_or(CapabilitySet::empty(), |_| KEPT_FOR_HOST))
            .map_err(failed)?;
    }
    let landlock = no_paths(host)
        .map_err(|error| Failure::failed(format!("service: set up Landlock: {error}")))?;
    calls::allow_only(host.is_some())
        .map_err(|error| Failure::failed(format!("service: filter its system calls: {error}")))?;
    Ok(Confined { namespaces: is_root, capabilities: is_root, landlock, seccomp: true })
}

/// Whether this kernel has Landlock, switched on.
pub(crate) fn has_landlock() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V1)).and_then(|set| set.create()).is_ok()
}

/// Into namespaces with nothing in them: an empty root, no network but an unconnected loopback.
fn leave_the_host() -> rustix::io::Result<()> {
    ns::unshare_private()?;
    mounts::cut_off()?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let root = mounts::tmpfs(0o555, "4k", attributes)?;
    mounts::attach_at(&root, "/".as_ref())?;
    mounts::switch_root(&root)
}

/// Keeps `kept` and nothing else, for good.
fn drop_capabilities(kept: CapabilitySet) -> rustix::io::Result<()> {
    for capability in CapabilitySet::all().difference(kept).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // A capability that this kernel does not know.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error),
        }
    }
    rustix::thread::clear_ambient_capability_set()?;
    let held = rustix::thread::capabilities(None)?.permitted & kept;
    let sets =
        CapabilitySets { effective: held, permitted: held, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
}

/// No path can be opened any more, but for those below `host`. Whether the kernel enforces it.
fn no_paths(host: Option<BorrowedFd<'_>>) -> std::result::Result<bool, landlock::RulesetError> {
    let files = AccessFs::from_all(LANDLOCK);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(files)?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?;
    if let Some(dir) = host {
        ruleset = ruleset.add_rule(PathBeneath::new(dir, files))?;
    }
    Ok(ruleset.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

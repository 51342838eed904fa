//! Confinement of a service: what it can still do once it has its descriptors.
//!
//! A service reads bytes that its tenant wrote: requests, FUSE messages, images. Somebody who takes
//! it over through one of them must find nothing but the tenant's own lane. Layers, from the
//! outside in; each holds without the others:
//!
//! - *namespaces*: no file tree of the host (the root is an empty, read-only tmpfs), no network
//!   (but where the files are on a cluster), no System V IPC, no host name; an ordinary user's in a
//!   user namespace, where there may be one;
//! - *user*, as root: one that no other process of the host has ([`own_user`]), so that services
//!   of two pools cannot signal, trace or limit each other;
//! - *capabilities*: none; a host directory's service keeps [`KEPT_FOR_HOST`] as root, where the
//!   host can do it in a user namespace in which only the files on the directory's mount have
//!   owners (`own_ids`): elsewhere the capabilities are good for nothing;
//! - *Landlock*, where the kernel has it: no path can be opened, or none outside the host
//!   directory; no TCP, no signals to others, no abstract sockets of others;
//! - *seccomp*: no system call that no service makes ([`calls`]).
//!
//! Call order matters: user namespaces are mapped while the process is dumpable, mounts cannot be
//! changed under Landlock, nothing can be opened after it, and no ring made after the filter.
//! All of it is inherited by threads, so it is done before there is a second one.

mod calls;

use std::os::fd::{BorrowedFd, OwnedFd};

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use polylane_sys::{ns, privileges};
use rustix::mount::MountAttrFlags;
use rustix::process::DumpableBehavior;
use rustix::thread::CapabilitySet;
use serde::Serialize;

use crate::failure::{Failure, Result};
use crate::mounts;
use crate::own_ids::OwnIds;
use crate::user_namespace::map_user;

/// The newest Landlock whose rights we know; an older kernel enforces those that it has.
const LANDLOCK: ABI = ABI::V6;

/// What the service of a host directory does for its tenant there: give files away, set modes and
/// attributes of files that are not its own. It makes no devices: one who had taken it over would
/// have the host's disks by them.
const KEPT_FOR_HOST: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETFCAP);

/// What users without a number in a user namespace look like (`DEFAULT_OVERFLOWUID`).
const OVERFLOW: u32 = 65534;

/// First of the host's users that are services': 2^31 - 2^28, above what systemd and container
/// runtimes give out, below what old programs take for negative.
const USERS_FIRST: u32 = polylane_block::image::SERVICES_START;
/// How many there are: as many as Linux has processes.
const USERS: u32 = 1 << 22;

/// The user of the service of this supervisor's pool: by the supervisor's process number, which no
/// other one has meanwhile. `None` for an ordinary user's service, which is the user's.
pub(crate) fn own_user() -> Option<u32> {
    let is_root = rustix::process::geteuid().is_root();
    is_root.then(|| USERS_FIRST + std::process::id() % USERS)
}

/// Whether a user is one that [`own_user`] gives out.
pub(crate) fn is_services_user(user: u32) -> bool {
    (USERS_FIRST..USERS_FIRST + USERS).contains(&user)
}

/// Which layers are in force, for `polylane stats`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Confined {
    namespaces: bool,
    user: bool,
    capabilities: bool,
    /// What capabilities it has count on the mounts of its directories alone.
    own_ids: bool,
    landlock: bool,
    seccomp: bool,
}

/// What a service reaches beside its descriptors.
#[derive(Clone, Copy)]
pub(crate) struct Reach<'a> {
    /// The host directory that it serves.
    pub(crate) host: Option<BorrowedFd<'a>>,
    /// Those that it reads.
    pub(crate) lowers: &'a [OwnedFd],
    /// The network of its caller: its files are on a cluster.
    pub(crate) network: bool,
}

/// Gives up what a service never needs: new privileges through exec, a core dump or a tracer with
/// its tenant's data, a working directory, and all that the table above names, but `reach`; `user`
/// is the one that it becomes, and `ids` the user namespace in which it has that number. Call with
/// one thread.
///
/// # Errors
/// When a layer that this host has can't be put up.
pub(crate) fn confine(
    reach: Reach<'_>,
    user: Option<u32>,
    ids: Option<&OwnIds>,
) -> Result<Confined> {
    let failed = |error| Failure::because("service", "give up privileges", error);
    let is_root = rustix::process::geteuid().is_root();
    let has_dirs = reach.host.is_some() || !reach.lowers.is_empty();
    // In a user namespace the owners of a host directory's files that have no number there look
    // like this user.
    let ambiguous = has_dirs && rustix::process::geteuid().as_raw() == OVERFLOW;
    let namespaces = (is_root || !ambiguous) && leave_the_host(is_root, reach.network)?;
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)?;
    let kept = match (is_root, reach.host) {
        (true, Some(_)) => KEPT_FOR_HOST,
        (true, None) if has_dirs => CapabilitySet::DAC_READ_SEARCH,
        _ => CapabilitySet::empty(),
    };
    ids.map_or(Ok(()), OwnIds::enter).map_err(failed)?;
    let became = match is_root || namespaces {
        true => privileges::keep_only(kept, user).map_err(failed)?,
        false => false,
    };
    if ids.is_some() && !became {
        return Err(Failure::failed("service: it has no user in its user namespace"));
    }
    // The kernel goes back to its default at a change of user.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed)?;
    let landlock = no_paths(reach)
        .map_err(|error| Failure::failed(format!("service: set up Landlock: {error}")))?;
    calls::allow_only(has_dirs, reach.network)
        .map_err(|error| Failure::failed(format!("service: filter its system calls: {error}")))?;
    let capabilities = is_root || namespaces;
    let own_ids = ids.is_some();
    Ok(Confined { namespaces, user: became, capabilities, own_ids, landlock, seccomp: true })
}

/// What OCI runtimes let root of a container do by default.
const CONTAINED: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::AUDIT_WRITE);

/// Leaves this process, which is about to become COMMAND in a root file system, and whatever it
/// starts, [`CONTAINED`] of its capabilities.
///
/// # Errors
/// What capset(2) and prctl(2) say.
pub(crate) fn contain() -> rustix::io::Result<()> {
    privileges::keep_only(CONTAINED, None).map(drop)
}

/// Into namespaces with nothing in them: an empty root, no network but an unconnected loopback, or
/// with `network` the caller's. False: there are none.
fn leave_the_host(is_root: bool, network: bool) -> Result<bool> {
    let failed = |error| Failure::because("service", "leave the host's namespaces", error);
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    match ns::unshare_private(!is_root, !network) {
        // Nor where ordinary users may make none.
        Err(_) if !is_root => return Ok(false),
        result => result.map_err(failed)?,
    }
    if !is_root {
        map_user(uid.as_raw(), gid.as_raw())?;
    }
    empty_root().map_err(failed)?;
    Ok(true)
}

fn empty_root() -> rustix::io::Result<()> {
    mounts::cut_off()?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let root = mounts::tmpfs(0o555, "4k", attributes)?;
    mounts::attach_at(&root, "/".as_ref())?;
    mounts::switch_root(&root)
}

/// No path can be opened any more, but for those within `reach`. Whether the kernel enforces it.
fn no_paths(reach: Reach<'_>) -> std::result::Result<bool, landlock::RulesetError> {
    let files = AccessFs::from_all(LANDLOCK);
    let mut ruleset =
        Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(files)?;
    ruleset = match reach.network {
        // A cluster's ports are its own choice: connections are allowed, servers are not.
        true => ruleset.handle_access(AccessNet::BindTcp)?,
        false => ruleset.handle_access(AccessNet::from_all(LANDLOCK))?,
    };
    let mut ruleset = ruleset.scope(Scope::from_all(LANDLOCK))?.create()?;
    if let Some(dir) = reach.host {
        ruleset = ruleset.add_rule(PathBeneath::new(dir, files))?;
    }
    for dir in reach.lowers {
        ruleset = ruleset.add_rule(PathBeneath::new(dir, AccessFs::from_read(LANDLOCK)))?;
    }
    Ok(ruleset.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

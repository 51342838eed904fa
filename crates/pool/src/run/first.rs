//! A tenant's first process: its start, and what COMMAND may do in it.

use polylane_sys::ns::{self, Fork, Namespaces};
use rustix::thread::CapabilitySet;

use super::RunOptions;
use crate::failure::{Failure, Result};
use crate::init::{self, Plan, Rights};
use crate::limits::CallerLimits;
use crate::link::Link;
use crate::process::Process;
use crate::subordinate;
use crate::user_namespace::rootless;

/// What COMMAND may do. In a lane that `is_new` its set-id programs are all its own making; what
/// others put into a lane gives no rights.
pub(super) fn rights(options: &RunOptions, is_new: bool, limits: CallerLimits) -> Rights {
    let has = |capability| {
        rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
    };
    Rights {
        suid: options.suid || is_new,
        contained: options.root && !options.privileged && rootless().is_none(),
        becomes_others: options.become_users,
        killed_first: !has(CapabilitySet::SYS_RESOURCE),
        limits,
    }
}

/// Why a first process could not be started.
pub(super) fn fork_failed(error: std::io::Error) -> Failure {
    Failure::because("tenant", "start its first process", error)
}

/// Starts the first process of a tenant. An ordinary user's gets the user's ranges.
pub(super) fn start_init(plan: Plan) -> Result<(Process, Link)> {
    let rootless = plan.rootless;
    let user = rootless.is_some();
    let (link, other) = Link::pair().map_err(|error| fork_failed(error.into()))?;
    match ns::fork(Namespaces { user, mount: true, pid: true }) {
        Ok(Fork::Child) => init::main(plan, &other),
        Ok(Fork::Parent(child)) => {
            rootless.into_iter().for_each(|user| subordinate::map(child.pid, user));
            Ok((Process::new(child), link))
        }
        Err(error) if user => Err(Failure::failed(format!(
            "user namespace: cannot make one: {}: ask the administrator to allow them for ordinary \
             users, or run as root",
            crate::failure::plain(&error)
        ))),
        Err(error) => Err(fork_failed(error)),
    }
}

//! Limits of the caller's shell (setrlimit(2)): they are COMMAND's, not the supervisor's and not
//! the service's, which serve the whole pool.

use polylane_sys::ns;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::{Failure, Result};

/// What a shell may have limited that would stop a service.
const RESOURCES: [Resource; 9] = [
    Resource::As,
    Resource::Cpu,
    Resource::Data,
    Resource::Fsize,
    Resource::Memlock,
    Resource::Nofile,
    Resource::Nproc,
    Resource::Rss,
    Resource::Stack,
];

/// Least size of a stack in bytes.
const STACK_BYTES_MIN: u64 = 8 << 20;

/// Descriptors where the kernel's own limit of them (`fs.nr_open`) cannot be read: its default.
const FILES_MAX: u64 = 1 << 20;

/// Least size that files of a lane's processes must be able to have, in bytes: what they share is
/// as large, and sparse.
const FILE_BYTES_MIN: u64 = 1 << 30;

/// Comes where a file would become larger than its writer may make one.
const SIGXFSZ: i32 = rustix::process::Signal::XFSZ.as_raw();

/// The limits as the caller had them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallerLimits {
    limits: Vec<(Resource, Rlimit)>,
    /// A write beyond the largest size of a file is an error and no signal.
    is_size_an_error: bool,
}

/// Lifts the limits of this process, which executes no command of the caller's, as far as it may.
/// What is beyond them is an error.
pub fn lift() {
    CallerLimits::lift();
}

impl CallerLimits {
    /// Lifts the limits of this process and of those that it will start, as far as it may: an
    /// ordinary user may go up to the hard limits. No file's size is a signal from now on.
    pub(crate) fn lift() -> CallerLimits {
        let is_size_an_error = ns::is_ignored(SIGXFSZ);
        ns::set_ignored(SIGXFSZ, true);
        let limits = RESOURCES.map(|resource| (resource, getrlimit(resource)));
        for (resource, limit) in &limits {
            let wanted = lifted(*resource, limit);
            if wanted != *limit && setrlimit(*resource, wanted).is_err() {
                let _ = setrlimit(*resource, Rlimit { current: limit.maximum, ..*limit });
            }
        }
        CallerLimits { limits: limits.into_iter().collect(), is_size_an_error }
    }

    /// As [`lift`](Self::lift), for the processes of a lane.
    ///
    /// # Errors
    /// One line where they cannot do without what may not be lifted.
    pub(crate) fn lift_for_lane() -> Result<CallerLimits> {
        let caller = Self::lift();
        match getrlimit(Resource::Fsize).current {
            Some(bytes) if bytes < FILE_BYTES_MIN => Err(Failure::failed(format!(
                "file size limit: {bytes} bytes, and it may not be raised: a lane needs \
                 {FILE_BYTES_MIN}; see 'ulimit -H -f'"
            ))),
            _ => Ok(caller),
        }
    }

    /// Gives this process, which is about to become COMMAND, the caller's limits again.
    pub(crate) fn restore(&self) {
        for (resource, limit) in &self.limits {
            // Going down is always allowed.
            let _ = setrlimit(*resource, *limit);
        }
        ns::set_ignored(SIGXFSZ, self.is_size_an_error);
    }
}

/// The limit that serves a pool.
fn lifted(resource: Resource, limit: &Rlimit) -> Rlimit {
    let at_least = |bound: u64| Rlimit {
        current: limit.current.map(|value| value.max(bound)),
        maximum: limit.maximum.map(|value| value.max(bound)),
    };
    match resource {
        Resource::Nofile => {
            let text = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
            let all = text.and_then(|text| text.trim().parse().ok()).unwrap_or(FILES_MAX);
            Rlimit { current: Some(all), maximum: Some(all) }
        }
        // Without a limit the kernel lays memory out differently.
        Resource::Stack => at_least(STACK_BYTES_MIN),
        _ => Rlimit { current: None, maximum: None },
    }
}

/// Bytes of memory of this host; a gigabyte where the kernel does not say.
pub(crate) fn total_memory() -> u64 {
    let info = rustix::system::sysinfo();
    match (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)) {
        0 => 1 << 30,
        bytes => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lifted_comes_back() {
        // Linux does not enforce it, so that tests beside this one do not notice.
        let before = getrlimit(Resource::Rss);
        let low = Rlimit { current: Some(1 << 20), ..before };
        setrlimit(Resource::Rss, low).expect("down");
        let limits = CallerLimits::lift();
        assert_eq!(getrlimit(Resource::Rss), Rlimit { current: before.maximum, ..before });
        limits.restore();
        assert_eq!(getrlimit(Resource::Rss).current, Some(1 << 20));
        setrlimit(Resource::Rss, before).expect("as before");
    }

    #[test]
    fn a_stack_has_room_and_everything_else_no_end() {
        let small = Rlimit { current: Some(1 << 16), maximum: Some(1 << 16) };
        let roomy = Some(STACK_BYTES_MIN);
        assert_eq!(lifted(Resource::Stack, &small), Rlimit { current: roomy, maximum: roomy });
        let none = Rlimit { current: None, maximum: None };
        assert_eq!(lifted(Resource::As, &small), none);
    }
}

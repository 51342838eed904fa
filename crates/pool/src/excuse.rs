//! For how long calls of a cluster's client libraries excuse workers that stand still.

use std::time::{Duration, Instant};

use polylane_ceph::UnderWay;

/// For how long calls do that none of which takes long: a request may be made of many, such as the
/// copy of a large file, and others may wait for it. A program that makes calls all the time hides
/// a worker that hangs for no longer than this.
const SHORT_CALLS_TIME_MAX: Duration = Duration::from_secs(600);

/// See the module header.
#[derive(Default)]
pub(crate) struct Excuse {
    /// Since when there were short calls alone, each time that was asked.
    short_since: Option<Instant>,
}

impl Excuse {
    /// Whether workers are excused, now that calls are under way as told.
    pub(crate) fn is_given(&mut self, calls: UnderWay, now: Instant) -> bool {
        if calls != UnderWay::Short {
            self.short_since = None;
            return calls == UnderWay::Long;
        }
        let since = *self.short_since.get_or_insert(now);
        now.saturating_duration_since(since) < SHORT_CALLS_TIME_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_calls_excuse_no_worker_for_ever() {
        let (mut excuse, begun) = (Excuse::default(), Instant::now());
        let later = |seconds| begun + Duration::from_secs(seconds);
        assert!(!excuse.is_given(UnderWay::None, begun));
        assert!(excuse.is_given(UnderWay::Short, begun));
        assert!(excuse.is_given(UnderWay::Short, later(599)));
        assert!(!excuse.is_given(UnderWay::Short, later(600)));
        assert!(excuse.is_given(UnderWay::Long, later(100_000)), "a cluster is away");
        assert!(excuse.is_given(UnderWay::Short, later(100_001)));
        assert!(!excuse.is_given(UnderWay::None, later(100_002)));
        assert!(excuse.is_given(UnderWay::Short, later(101_000)));
    }
}

//! One resize of an image at a time.
//!
//! librbd refuses to make an image smaller by the size that it knew when it was asked: of several
//! that ask at once, also one client for others, a later one undoes what it has not heard of. So
//! each takes its turn on all hosts: a lock of the image's header that others of ours ask for.

use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::thread;

use super::settings::Failure;
use crate::ffi::{Image, Pool};

/// Of the lock.
const NAME: &CStr = c"polylane.resize";

/// How long a turn lasts at most: so long is one waited for whose process was killed.
const TURN_TIME_MAX: Duration = Duration::from_secs(60);

/// Between two tries.
const TRY_PERIOD: Duration = Duration::from_millis(50);

/// Until it is dropped, no other resizes the image.
pub(super) struct Turn {
    pool: Pool,
    header: CString,
}

impl Turn {
    /// Waits for the turn to resize an image of the pool.
    pub(super) fn take(pool: Pool, image: &Image, timeout: Duration) -> Result<Turn, Failure> {
        let failed = |errno| Failure::Call("wait for another resize of the image", errno);
        let id = image.id().map_err(failed)?;
        let name = [b"rbd_header.", id.as_bytes()].concat();
        let header = CString::new(name).map_err(|_| failed(Errno::EINVAL))?;
        let began = Instant::now();
        loop {
            match pool.lock(&header, NAME, TURN_TIME_MAX) {
                Ok(()) => return Ok(Turn { pool, header }),
                Err(Errno::EBUSY) if began.elapsed() < timeout => thread::sleep(TRY_PERIOD),
                Err(errno) => return Err(failed(errno)),
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // One that stays ends by itself.
        let _ = self.pool.unlock(&self.header, NAME);
    }
}

//! One resize of an image at a time.
//!
//! librbd refuses to make an image smaller by the size that it knew when it was asked: of several
//! that ask at once, also one client for others, a later one undoes what it has not heard of. So
//! each takes its turn on all hosts: a lock of the image's header that others of ours ask for. It
//! is renewed while the resize lasts, and ends by itself soon after its process was killed.

use std::ffi::{CStr, CString};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::thread;

use super::settings::{Failure, RESIZE_TURN_TIME, Settings};
use crate::ffi::{Image, Pool};

/// Of the lock.
const NAME: &CStr = c"polylane.resize";

/// Between two renewals: some may fail.
const RENEW_PERIOD: Duration = Duration::from_secs(5);

const _: () = assert!(RENEW_PERIOD.as_secs() * 3 < RESIZE_TURN_TIME.as_secs());

/// Between two tries.
const TRY_PERIOD: Duration = Duration::from_millis(50);

/// Until it is dropped, no other resizes the image.
pub(super) struct Turn {
    pool: Pool,
    header: CString,
}

impl Turn {
    /// Waits for the turn to resize an image of the pool.
    pub(super) fn take(pool: Pool, image: &Image, settings: &Settings) -> Result<Turn, Failure> {
        let failed = |errno| Failure::Call("wait for another resize of the image", errno);
        let name = match image.id() {
            Ok(id) => [b"rbd_header.", id.as_bytes()].concat(),
            // Of format 1, without an id.
            Err(Errno::EINVAL) => [settings.image.as_bytes(), b".rbd"].concat(),
            Err(errno) => return Err(failed(errno)),
        };
        let header = CString::new(name).map_err(|_| failed(Errno::EINVAL))?;
        let (turn, began) = (Turn { pool, header }, Instant::now());
        loop {
            match turn.lock() {
                Ok(()) => return Ok(turn),
                Err(Errno::EBUSY) if began.elapsed() < settings.timeout => {
                    thread::sleep(TRY_PERIOD);
                }
                Err(Errno::EBUSY) => return Err(Failure::Resizing),
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Does what the turn is for, however long that takes.
    pub(super) fn hold<T>(&self, work: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            let (end, ended) = mpsc::channel::<()>();
            scope.spawn(move || {
                while ended.recv_timeout(RENEW_PERIOD) == Err(RecvTimeoutError::Timeout) {
                    // One that fails is tried again; work that is under way cannot be ended.
                    let _ = self.lock();
                }
            });
            let done = work();
            drop(end);
            done
        })
    }

    fn lock(&self) -> Result<(), Errno> {
        self.pool.lock(&self.header, NAME, RESIZE_TURN_TIME)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Another's stays as it is, and one of its own that stays ends by itself.
        let _ = self.pool.unlock(&self.header, NAME);
    }
}

//! librados: a connection to a cluster, and its pools. As `librados.h` of Ceph 16.2 declares it.
#![expect(unsafe_code, reason = "UNSAFETY: calls of a C library, whose pointers stay in here")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr::{self, NonNull};
use std::time::Duration;

use libc::timeval;
use polylane_base::sync::Arc;
use polylane_base::{Errno, Result};

use super::calls::{c_string, said};
use super::library::{Missing, library};

/// The library by the name that its packages give it.
const LIBRARY: &str = "librados.so.2";

/// `LIBRADOS_LOCK_FLAG_MAY_RENEW`.
const MAY_RENEW: u8 = 1;

/// Opaque objects of the library.
#[repr(C)]
pub(super) struct RawCluster([u8; 0]);
#[repr(C)]
pub(super) struct RawPool([u8; 0]);

library! {
    Calls of LIBRARY;
    fn rados_create2(
        cluster: *mut *mut RawCluster,
        name: *const c_char,
        user: *const c_char,
        flags: u64,
    ) -> c_int;
    fn rados_conf_read_file(cluster: *mut RawCluster, path: *const c_char) -> c_int;
    fn rados_conf_set(
        cluster: *mut RawCluster,
        name: *const c_char,
        value: *const c_char,
    ) -> c_int;
    fn rados_connect(cluster: *mut RawCluster) -> c_int;
    fn rados_shutdown(cluster: *mut RawCluster);
    fn rados_ioctx_create(
        cluster: *mut RawCluster,
        pool: *const c_char,
        io: *mut *mut RawPool,
    ) -> c_int;
    fn rados_set_osdmap_full_try(io: *mut RawPool);
    fn rados_ioctx_destroy(io: *mut RawPool);
    fn rados_lock_exclusive(
        io: *mut RawPool,
        object: *const c_char,
        name: *const c_char,
        cookie: *const c_char,
        about: *const c_char,
        lasts: *mut timeval,
        flags: u8,
    ) -> c_int;
    fn rados_unlock(
        io: *mut RawPool,
        object: *const c_char,
        name: *const c_char,
        cookie: *const c_char,
    ) -> c_int;
}

/// A connection, or what is to be one.
struct Handle {
    calls: Calls,
    raw: NonNull<RawCluster>,
}

// SAFETY: librados may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this object's own; no object of the library refers to it any more.
        unsafe { (self.calls.rados_shutdown)(self.raw.as_ptr()) }
    }
}

/// A connection that is not made yet.
pub(crate) struct Unconnected(Handle);

impl Unconnected {
    /// A connection as the Ceph user `client.ID`. Starts no thread.
    pub(crate) fn new(id: &str) -> Result<Result<Unconnected>, Missing> {
        let calls = Calls::load()?;
        let create = || {
            let user = c_string(format!("client.{id}").as_bytes())?;
            let mut raw = ptr::null_mut();
            let name = c"ceph".as_ptr();
            // SAFETY: `raw` takes the new object; two C strings.
            said(unsafe { (calls.rados_create2)(&raw mut raw, name, user.as_ptr(), 0) })?;
            NonNull::new(raw).ok_or(Errno::ENOMEM)
        };
        let raw = create();
        Ok(raw.map(|raw| Unconnected(Handle { calls, raw })))
    }

    /// Reads a configuration file.
    pub(crate) fn read_conf(&self, path: &CStr) -> Result<()> {
        let Handle { calls, raw } = &self.0;
        // SAFETY: a live object, a C string.
        said(unsafe { (calls.rados_conf_read_file)(raw.as_ptr(), path.as_ptr()) }).map(drop)
    }

    /// Sets an option.
    pub(crate) fn set(&self, name: &str, value: &str) -> Result<()> {
        let (name, value) = (c_string(name.as_bytes())?, c_string(value.as_bytes())?);
        let Handle { calls, raw } = &self.0;
        // SAFETY: a live object, two C strings.
        said(unsafe { (calls.rados_conf_set)(raw.as_ptr(), name.as_ptr(), value.as_ptr()) })
            .map(drop)
    }

    /// Connects. Threads start.
    pub(crate) fn connect(self) -> Result<Cluster> {
        let Handle { calls, raw } = &self.0;
        // SAFETY: a live object that is not connected.
        said(unsafe { (calls.rados_connect)(raw.as_ptr()) })?;
        Ok(Cluster(Arc::new(self.0)))
    }
}

/// A connection to a cluster. Thread-safe.
pub(crate) struct Cluster(Arc<Handle>);

impl Cluster {
    /// Whether the library is there, new enough.
    pub(crate) fn check() -> Result<(), Missing> {
        Calls::load().map(drop)
    }

    /// A pool by its name. `ENOENT`. Where it is full, a write that needs room fails: `ENOSPC`, or
    /// `EDQUOT` of a pool with a quota. It would wait otherwise.
    pub(crate) fn pool(&self, name: &str) -> Result<Pool> {
        let name = c_string(name.as_bytes())?;
        let mut raw = ptr::null_mut();
        // SAFETY: a connected object, a C string; `raw` takes the pool.
        said(unsafe {
            (self.0.calls.rados_ioctx_create)(self.0.raw.as_ptr(), name.as_ptr(), &raw mut raw)
        })?;
        let raw = NonNull::new(raw).ok_or(Errno::ENOMEM)?;
        // SAFETY: the pool made above.
        unsafe { (self.0.calls.rados_set_osdmap_full_try)(raw.as_ptr()) };
        Ok(Pool { cluster: self.0.clone(), raw })
    }
}

/// A pool of a cluster, which stays connected while it lives.
pub(crate) struct Pool {
    cluster: Arc<Handle>,
    raw: NonNull<RawPool>,
}

// SAFETY: librados ties a pool to no thread, and its own calls lock it.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    pub(super) fn raw(&self) -> *mut RawPool {
        self.raw.as_ptr()
    }

    /// Locks an object under a name, against those who ask for the same, for so long from now on at
    /// most, also where this client has it locked. `EBUSY`. An object that is not there is made.
    pub(crate) fn lock(&self, object: &CStr, name: &CStr, lasts: Duration) -> Result<()> {
        let seconds = lasts.as_secs().try_into().map_err(|_| Errno::EINVAL)?;
        let mut lasts = timeval { tv_sec: seconds, tv_usec: 0 };
        let (object, name, none) = (object.as_ptr(), name.as_ptr(), c"".as_ptr());
        let lock = self.cluster.calls.rados_lock_exclusive;
        let lasts = &raw mut lasts;
        // SAFETY: a live pool, four C strings, a time that the call reads.
        said(unsafe { lock(self.raw(), object, name, none, none, lasts, MAY_RENEW) }).map(drop)
    }

    /// Gives such a lock up.
    pub(crate) fn unlock(&self, object: &CStr, name: &CStr) -> Result<()> {
        let (object, name, none) = (object.as_ptr(), name.as_ptr(), c"".as_ptr());
        // SAFETY: a live pool, three C strings.
        said(unsafe { (self.cluster.calls.rados_unlock)(self.raw(), object, name, none) }).map(drop)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: this object's own; no image refers to it any more.
        unsafe { (self.cluster.calls.rados_ioctx_destroy)(self.raw.as_ptr()) }
    }
}

//! A client of a cluster: before it is connected, and then.
#![expect(unsafe_code, reason = "UNSAFETY: calls of a C library, whose pointers stay in here")]

use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_uint};
use std::ptr::{self, NonNull};

use libc::gid_t;
use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Errno, Result};

use super::calls::{Calls, RawMount, RawPerms, c_string, said};
use super::library::Missing;
use super::under_way::Call;
use crate::counters::Counters;

/// `CEPH_RECLAIM_RESET`: a former session is ended, and nothing of it taken over.
const RECLAIM_RESET: c_uint = 1;

/// On whose behalf a call is made: what is made is that user's, and a key may be limited to some.
pub(crate) struct Caller {
    calls: Arc<Calls>,
    perms: NonNull<RawPerms>,
    /// Which the library borrows.
    _groups: Box<[gid_t]>,
}

impl Caller {
    fn new(calls: &Arc<Calls>, (uid, gid): (u32, u32), groups: Vec<gid_t>) -> Result<Caller> {
        let count = c_int::try_from(groups.len()).map_err(|_| Errno::EINVAL)?;
        let mut groups = groups.into_boxed_slice();
        // SAFETY: `count` groups, which live as long as what borrows them.
        let perms = unsafe { (calls.ceph_userperm_new)(uid, gid, count, groups.as_mut_ptr()) };
        let perms = NonNull::new(perms).ok_or(Errno::ENOMEM)?;
        Ok(Caller { calls: calls.clone(), perms, _groups: groups })
    }

    pub(super) fn perms(&self) -> *const RawPerms {
        self.perms.as_ptr()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        // SAFETY: made by `ceph_userperm_new`, and borrowed by calls that are over.
        unsafe { (self.calls.ceph_userperm_destroy)(self.perms.as_ptr()) }
    }
}

// SAFETY: numbers that no call changes.
unsafe impl Send for Caller {}
// SAFETY: as above.
unsafe impl Sync for Caller {}

/// Memory that is freed stays in each of the allocator's arenas up to this much. The library makes
/// and frees buffers of an object's size (4 MiB) for each write into one that it caches; given back
/// to the kernel each time, their pages would be faulted in anew.
const FREED_BYTES_KEPT: c_int = 16 << 20;

/// Largest buffer that is cut from a heap: the C library allows no larger one.
const HEAP_BUFFER_BYTES_MAX: c_int = 32 << 20;

/// User, group, and the user's other groups.
type Named = ((u32, u32), Vec<gid_t>);

/// Users, with their groups, that are kept: more than a lane has of honest ones.
const CALLERS_MAX: usize = 4096;

fn keep_freed_memory() {
    // SAFETY: parameters of the C library's allocator, which takes any value.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, HEAP_BUFFER_BYTES_MAX);
        libc::mallopt(libc::M_TRIM_THRESHOLD, FREED_BYTES_KEPT);
    }
}

/// A client that is not connected yet.
pub(crate) struct Unmounted {
    calls: Arc<Calls>,
    raw: Option<NonNull<RawMount>>,
}

// SAFETY: libcephfs ties a client to no thread.
unsafe impl Send for Unmounted {}

impl Unmounted {
    /// A client of the Ceph user `client.ID`. Starts no thread.
    pub(crate) fn new(id: &str) -> Result<Result<Unmounted>, Missing> {
        let calls = Arc::new(Calls::load()?);
        keep_freed_memory();
        Ok(c_string(id.as_bytes()).and_then(|id| {
            let mut raw = ptr::null_mut();
            // SAFETY: `raw` takes the new client, `id` is a C string.
            said(unsafe { (calls.ceph_create)(&raw mut raw, id.as_ptr()) })?;
            let raw = Some(NonNull::new(raw).ok_or(Errno::ENOMEM)?);
            Ok(Unmounted { calls, raw })
        }))
    }

    fn raw(&self) -> *mut RawMount {
        self.raw.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    /// Reads a configuration file.
    pub(crate) fn read_conf(&self, path: &CStr) -> Result<()> {
        // SAFETY: a live client, a C string.
        said(unsafe { (self.calls.ceph_conf_read_file)(self.raw(), path.as_ptr()) }).map(drop)
    }

    /// Sets an option.
    pub(crate) fn set(&self, name: &str, value: &str) -> Result<()> {
        let (name, value) = (c_string(name.as_bytes())?, c_string(value.as_bytes())?);
        // SAFETY: a live client, two C strings.
        said(unsafe { (self.calls.ceph_conf_set)(self.raw(), name.as_ptr(), value.as_ptr()) })
            .map(drop)
    }

    /// Whom the service itself is to the cluster: root, whom nothing is refused but by a key's
    /// limits, unless the configuration names another (`client_mount_uid`, `client_mount_gid`).
    fn service(&self) -> Result<(u32, u32)> {
        Ok((self.number("client_mount_uid")?, self.number("client_mount_gid")?))
    }

    /// An option that is a number, and 0 where it is negative.
    fn number(&self, name: &str) -> Result<u32> {
        let (name, mut value) = (c_string(name.as_bytes())?, [0_u8; 32]);
        let (into, len) = (value.as_mut_ptr().cast(), value.len());
        // SAFETY: a live client, a C string; `len` bytes may be written at `into`.
        said(unsafe { (self.calls.ceph_conf_get)(self.raw(), name.as_ptr(), into, len) })?;
        let text = CStr::from_bytes_until_nul(&value).map_err(|_| Errno::EINVAL)?;
        Ok(text.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// Has the client mount as the service is to the cluster.
    pub(crate) fn settle(&self) -> Result<()> {
        let (uid, gid) = self.service()?;
        self.set("client_mount_uid", &uid.to_string())?;
        self.set("client_mount_gid", &gid.to_string())
    }

    /// Connects and mounts `root` of the file system `fs` (`None`: the only one). Threads start.
    pub(crate) fn mount(
        mut self,
        fs: Option<&str>,
        root: &[u8],
        (timeout, session): (u32, &str),
    ) -> Result<Arc<Mount>> {
        let root = c_string(root)?;
        let fs = fs.map(|fs| c_string(fs.as_bytes())).transpose()?;
        let session = c_string(session.as_bytes())?;
        let (calls, raw) = (&self.calls, self.raw());
        // SAFETY: a live client that is not mounted, C strings.
        unsafe {
            said((calls.ceph_init)(raw))?;
            if let Some(fs) = &fs {
                said((calls.ceph_select_filesystem)(raw, fs.as_ptr()))?;
            }
            said((calls.ceph_set_mount_timeout)(raw, timeout))?;
            // Refused where there is no former session: then there is nothing to end.
            let _ = (calls.ceph_start_reclaim)(raw, session.as_ptr(), RECLAIM_RESET);
            (calls.ceph_finish_reclaim)(raw);
            (calls.ceph_set_uuid)(raw, session.as_ptr());
            said((calls.ceph_mount)(raw, root.as_ptr()))?;
        }
        let service = self.service().and_then(|ids| Caller::new(&self.calls, ids, Vec::new()))?;
        let service = Arc::new(service);
        let raw = self.raw.take().ok_or(Errno::EINVAL)?;
        let (calls, counters) = (self.calls.clone(), Counters::default());
        let (has_failed, is_refused) = Default::default();
        let callers = Mutex::default();
        Ok(Arc::new(Mount { calls, raw, service, callers, counters, has_failed, is_refused }))
    }
}

impl Drop for Unmounted {
    fn drop(&mut self) {
        if let Some(raw) = self.raw {
            // SAFETY: a live client that is not mounted.
            let _ = unsafe { (self.calls.ceph_release)(raw.as_ptr()) };
        }
    }
}

/// A connected client. Thread-safe.
pub(crate) struct Mount {
    calls: Arc<Calls>,
    pub(super) raw: NonNull<RawMount>,
    /// The service itself: rights were checked above.
    pub(crate) service: Arc<Caller>,
    /// Kept as long as the client: a library before 16.2.14 has a request that waits for the
    /// cluster's disks go on with the groups of its caller, whose call is over.
    callers: Mutex<HashMap<Named, Arc<Caller>>>,
    pub(crate) counters: Counters,
    /// Since the last sync of everything began, one of a file has failed.
    has_failed: AtomicBool,
    /// The cluster has refused a file's bytes to this user.
    is_refused: AtomicBool,
}

// SAFETY: libcephfs may be called from any thread (its `client_lock`).
unsafe impl Send for Mount {}
// SAFETY: as above.
unsafe impl Sync for Mount {}

impl Drop for Mount {
    fn drop(&mut self) {
        // SAFETY: a mounted client, which no object refers to any more.
        unsafe {
            // The library waits until all is written back, for ever where that is refused. What the
            // sync before the end could not write is given up; the MDS ends the session in time.
            if self.has_failed.load(Ordering::Relaxed) || self.is_refused.load(Ordering::Relaxed) {
                let _ = (self.calls.ceph_abort_conn)(self.raw.as_ptr());
            }
            let _ = (self.calls.ceph_unmount)(self.raw.as_ptr());
            let _ = (self.calls.ceph_release)(self.raw.as_ptr());
        }
    }
}

/// The library's functions, for a call that is counted until this is dropped.
pub(super) type Counted<'a> = Call<&'a Calls>;

impl Mount {
    pub(super) fn calls(&self) -> Counted<'_> {
        Call::new(&*self.calls)
    }

    /// A sync of a file ended so.
    pub(super) fn synced(&self, result: Result<()>) -> Result<()> {
        if let Err(errno) = result {
            self.has_failed.store(true, Ordering::Relaxed);
            if matches!(errno, Errno::EPERM | Errno::EACCES) {
                self.is_refused.store(true, Ordering::Relaxed);
            }
        }
        result
    }

    /// Writes everything back.
    pub(crate) fn sync(&self) -> Result<()> {
        self.has_failed.store(false, Ordering::Relaxed);
        // SAFETY: a mounted client.
        let sync = || said(unsafe { (self.calls().ceph_sync_fs)(self.raw.as_ptr()) }).map(drop);
        self.counters.synced(sync)
    }

    /// On whose behalf a call is made.
    pub(crate) fn caller(&self, ids: (u32, u32), groups: Vec<gid_t>) -> Result<Arc<Caller>> {
        let key = (ids, groups);
        let mut callers = self.callers.lock();
        if let Some(known) = callers.get(&key) {
            return Ok(known.clone());
        }
        let caller = Arc::new(Caller::new(&self.calls, ids, key.1.clone())?);
        if callers.len() < CALLERS_MAX {
            callers.insert(key, caller.clone());
        }
        Ok(caller)
    }
}

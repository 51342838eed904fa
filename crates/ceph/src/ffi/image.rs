//! librbd: images of a pool, open for requests. As `librbd.h` of Ceph 16.2 declares it.
#![expect(unsafe_code, reason = "UNSAFETY: calls of a C library, whose pointers stay in here")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use libc::{iovec, size_t, ssize_t};
use polylane_base::{Errno, Result};
use polylane_sys::buffer::Buffer;

use super::calls::{c_string, said};
use super::library::{Missing, library};
use super::rados::{Pool, RawPool};
use super::under_way::Call;

mod options;

use options::RawOption;

/// The library by the name that its packages give it.
const LIBRARY: &str = "librbd.so.1";

/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;

/// `RBD_IMAGE_OPTION_CLONE_FORMAT`, and the format that needs no protected snapshot.
const CLONE_FORMAT: (c_int, u64) = (12, 2);

/// Most images of a pool, and most snapshots of an image, that are listed.
const LISTED_MAX: usize = 1 << 20;

/// Longest value of an image's metadata that is read.
const VALUE_BYTES_MAX: usize = 4096;

/// Most owners of a lock that are asked for: an exclusive one has one.
const OWNERS_MAX: usize = 4;

/// Opaque objects of the library.
#[repr(C)]
pub(super) struct RawImage([u8; 0]);
#[repr(C)]
pub(super) struct RawOptions([u8; 0]);
#[repr(C)]
pub(super) struct RawCompletion([u8; 0]);

/// `rbd_image_spec_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawSpec {
    id: *mut c_char,
    name: *mut c_char,
}

/// `rbd_snap_info_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct RawSnapshot {
    id: u64,
    size: u64,
    name: *const c_char,
}

/// Told of an extent: its offset, its bytes, whether it holds data.
pub(super) type Extent = extern "C" fn(u64, size_t, c_int, *mut c_void) -> c_int;

/// Told how far a call is: so much of so much.
pub(super) type Progress = extern "C" fn(u64, u64, *mut c_void) -> c_int;

pub(super) type Callback = unsafe extern "C" fn(*mut RawCompletion, *mut c_void);

library! {
    Calls of LIBRARY;
    fn rbd_image_options_create(options: *mut *mut RawOptions);
    fn rbd_image_options_destroy(options: *mut RawOptions);
    fn rbd_create4(
        pool: *mut RawPool,
        name: *const c_char,
        size: u64,
        options: *mut RawOptions,
    ) -> c_int;
    fn rbd_open(
        pool: *mut RawPool,
        name: *const c_char,
        image: *mut *mut RawImage,
        snapshot: *const c_char,
    ) -> c_int;
    fn rbd_open_read_only(
        pool: *mut RawPool,
        name: *const c_char,
        image: *mut *mut RawImage,
        snapshot: *const c_char,
    ) -> c_int;
    fn rbd_read(image: *mut RawImage, offset: u64, len: size_t, into: *mut c_char) -> ssize_t;
    fn rbd_close(image: *mut RawImage) -> c_int;
    fn rbd_remove(pool: *mut RawPool, name: *const c_char) -> c_int;
    fn rbd_clone3(
        pool: *mut RawPool,
        name: *const c_char,
        snapshot: *const c_char,
        to_pool: *mut RawPool,
        to_name: *const c_char,
        options: *mut RawOptions,
    ) -> c_int;
    fn rbd_image_options_set_uint64(options: *mut RawOptions, name: c_int, value: u64) -> c_int;
    fn rbd_list2(pool: *mut RawPool, images: *mut RawSpec, count: *mut size_t) -> c_int;
    fn rbd_image_spec_list_cleanup(images: *mut RawSpec, count: size_t);
    fn rbd_get_id(image: *mut RawImage, id: *mut c_char, len: size_t) -> c_int;
    fn rbd_get_size(image: *mut RawImage, size: *mut u64) -> c_int;
    fn rbd_get_features(image: *mut RawImage, features: *mut u64) -> c_int;
    fn rbd_resize2(
        image: *mut RawImage,
        size: u64,
        may_shrink: bool,
        progress: Progress,
        argument: *mut c_void,
    ) -> c_int;
    fn rbd_snap_create(image: *mut RawImage, name: *const c_char) -> c_int;
    fn rbd_snap_remove(image: *mut RawImage, name: *const c_char) -> c_int;
    fn rbd_snap_list(image: *mut RawImage, list: *mut RawSnapshot, count: *mut c_int) -> c_int;
    fn rbd_snap_list_end(list: *mut RawSnapshot);
    fn rbd_diff_iterate2(
        image: *mut RawImage,
        from: *const c_char,
        offset: u64,
        len: u64,
        with_parent: u8,
        whole_objects: u8,
        each: Extent,
        argument: *mut c_void,
    ) -> c_int;
    fn rbd_metadata_get(
        image: *mut RawImage,
        key: *const c_char,
        value: *mut c_char,
        len: *mut size_t,
    ) -> c_int;
    fn rbd_metadata_set(
        image: *mut RawImage,
        key: *const c_char,
        value: *const c_char,
    ) -> c_int;
    fn rbd_config_image_list(
        image: *mut RawImage,
        options: *mut RawOption,
        count: *mut c_int,
    ) -> c_int;
    fn rbd_config_image_list_cleanup(options: *mut RawOption, count: c_int);
    fn rbd_lock_acquire(image: *mut RawImage, mode: c_int) -> c_int;
    fn rbd_lock_break(image: *mut RawImage, mode: c_int, owner: *const c_char) -> c_int;
    fn rbd_lock_get_owners(
        image: *mut RawImage,
        mode: *mut c_int,
        owners: *mut *mut c_char,
        count: *mut size_t,
    ) -> c_int;
    fn rbd_lock_get_owners_cleanup(owners: *mut *mut c_char, count: size_t);
    fn rbd_aio_create_completion(
        argument: *mut c_void,
        callback: Callback,
        completion: *mut *mut RawCompletion,
    ) -> c_int;
    fn rbd_aio_release(completion: *mut RawCompletion);
    fn rbd_aio_get_return_value(completion: *mut RawCompletion) -> ssize_t;
    fn rbd_aio_readv(
        image: *mut RawImage,
        parts: *const iovec,
        count: c_int,
        offset: u64,
        completion: *mut RawCompletion,
    ) -> c_int;
    fn rbd_aio_writev(
        image: *mut RawImage,
        parts: *const iovec,
        count: c_int,
        offset: u64,
        completion: *mut RawCompletion,
    ) -> c_int;
    fn rbd_aio_write_zeroes(
        image: *mut RawImage,
        offset: u64,
        len: size_t,
        completion: *mut RawCompletion,
        zero_flags: c_int,
        op_flags: c_int,
    ) -> c_int;
    fn rbd_aio_flush(image: *mut RawImage, completion: *mut RawCompletion) -> c_int;
}

/// How an image is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// To be read and written.
    Write,
    /// To be read, or this snapshot of it.
    Look(Option<String>),
}

/// What is asked of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Fill the buffers from an offset on.
    Read(u64),
    /// Store the buffers from an offset on.
    Write(u64),
    /// Make a range read as zeros, and give its space back where that is whole objects.
    Zero(u64, u64),
    /// Make what was written durable.
    Flush,
}

/// Told once how a request ended, with its buffers. Runs on a thread of the library.
pub(crate) type Ended = Box<dyn FnOnce(Vec<Buffer>, Result<usize>) + Send>;

/// A request under way: its memory stays where it is until the library calls back.
struct Pending {
    calls: Call<&'static Calls>,
    data: Vec<Buffer>,
    /// The library keeps a pointer to it.
    parts: Vec<iovec>,
    ended: Ended,
}

/// An open image. Thread-safe.
pub(crate) struct Image {
    /// Never unloaded: threads of the library may be in it.
    calls: &'static Calls,
    raw: NonNull<RawImage>,
    /// After the image: it is closed first.
    _pool: Pool,
}

// SAFETY: librbd may be called from any thread.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: this object's own; requests under way are waited for by the library. A lock that
        // is held goes with it.
        let _ = unsafe { (self.calls.rbd_close)(self.raw.as_ptr()) };
    }
}

impl Image {
    /// Whether the library is there, new enough.
    pub(crate) fn check() -> Result<(), Missing> {
        Calls::load().map(drop)
    }

    /// Makes an image of so many bytes. `EEXIST`.
    pub(crate) fn create(pool: &Pool, name: &str, size: u64) -> Result<Result<()>, Missing> {
        let calls = Calls::load()?;
        Ok(c_string(name.as_bytes()).and_then(|name| {
            let mut options = ptr::null_mut();
            // SAFETY: `options` takes the new object, which ends here; a live pool, a C string.
            let made = unsafe {
                (calls.rbd_image_options_create)(&raw mut options);
                let made = (calls.rbd_create4)(pool.raw(), name.as_ptr(), size, options);
                (calls.rbd_image_options_destroy)(options);
                made
            };
            said(made).map(drop)
        }))
    }

    /// Makes an image of a snapshot: it shares the snapshot's blocks. `ENOENT`, `EEXIST`.
    pub(crate) fn clone_of(
        (pool, name, snapshot): (&Pool, &str, &str),
        (to_pool, to_name): (&Pool, &str),
    ) -> Result<Result<()>, Missing> {
        let calls = Calls::load()?;
        let clone = || {
            let [name, snapshot, to_name] = [name, snapshot, to_name].map(str::as_bytes);
            let (name, snapshot) = (c_string(name)?, c_string(snapshot)?);
            let to_name = c_string(to_name)?;
            let mut options = ptr::null_mut();
            let (option, value) = CLONE_FORMAT;
            // SAFETY: `options` takes the new object, which ends here; live pools, C strings.
            let made = unsafe {
                (calls.rbd_image_options_create)(&raw mut options);
                let set = (calls.rbd_image_options_set_uint64)(options, option, value);
                let (name, snapshot) = (name.as_ptr(), snapshot.as_ptr());
                let (to_pool, to_name) = (to_pool.raw(), to_name.as_ptr());
                let clone = calls.rbd_clone3;
                let made = match set {
                    0 => clone(pool.raw(), name, snapshot, to_pool, to_name, options),
                    refused => refused,
                };
                (calls.rbd_image_options_destroy)(options);
                made
            };
            said(made).map(drop)
        };
        Ok(clone())
    }

    /// The names of a pool's images.
    pub(crate) fn list(pool: &Pool) -> Result<Result<Vec<String>>, Missing> {
        let calls = Calls::load()?;
        let none = RawSpec { id: ptr::null_mut(), name: ptr::null_mut() };
        let mut room = 64;
        loop {
            let (mut specs, mut count) = (vec![none; room], room);
            // SAFETY: a live pool; `count` places, which the library fills or says how many it
            // needs.
            let listed =
                unsafe { (calls.rbd_list2)(pool.raw(), specs.as_mut_ptr(), &raw mut count) };
            match said(listed) {
                Err(Errno::ERANGE) if count > room && count <= LISTED_MAX => room = count,
                Err(errno) => return Ok(Err(errno)),
                Ok(_) => {
                    let filled = specs.iter().take(count);
                    // SAFETY: the library made each a C string.
                    let names = filled.map(|spec| unsafe { text(spec.name) }).collect();
                    // SAFETY: what the library filled, once.
                    unsafe { (calls.rbd_image_spec_list_cleanup)(specs.as_mut_ptr(), count) };
                    return Ok(Ok(names));
                }
            }
        }
    }

    /// Removes an image that nobody has open. `ENOENT`, `EBUSY`; `ENOTEMPTY`: it has snapshots.
    pub(crate) fn remove(pool: &Pool, name: &str) -> Result<Result<()>, Missing> {
        let calls = Calls::load()?;
        Ok(c_string(name.as_bytes()).and_then(|name| {
            // SAFETY: a live pool, a C string.
            said(unsafe { (calls.rbd_remove)(pool.raw(), name.as_ptr()) }).map(drop)
        }))
    }

    /// Opens an image. `ENOENT`.
    pub(crate) fn open(pool: Pool, name: &str, mode: &Mode) -> Result<Result<Image>, Missing> {
        let calls: &'static Calls = Box::leak(Box::new(Calls::load()?));
        let open = || {
            let name = c_string(name.as_bytes())?;
            let mut raw = ptr::null_mut();
            let opened = match mode {
                // SAFETY: a live pool, a C string; `raw` takes the image.
                Mode::Write => unsafe {
                    (calls.rbd_open)(pool.raw(), name.as_ptr(), &raw mut raw, ptr::null())
                },
                Mode::Look(snapshot) => {
                    let snapshot = snapshot.as_ref().map(|name| c_string(name.as_bytes()));
                    let snapshot = snapshot.transpose()?;
                    let at = snapshot.as_ref().map_or(ptr::null(), |name| name.as_ptr());
                    // SAFETY: as above; `at` is null or a C string.
                    unsafe {
                        (calls.rbd_open_read_only)(pool.raw(), name.as_ptr(), &raw mut raw, at)
                    }
                }
            };
            said(opened)?;
            NonNull::new(raw).ok_or(Errno::ENOMEM)
        };
        let raw = open();
        Ok(raw.map(|raw| Image { calls, raw, _pool: pool }))
    }

    /// Its bytes.
    pub(crate) fn size(&self) -> Result<u64> {
        let mut size = 0;
        // SAFETY: a live image.
        said(unsafe { (self.calls.rbd_get_size)(self.raw.as_ptr(), &raw mut size) })?;
        Ok(size)
    }

    /// Its first bytes, so many at most.
    pub(crate) fn read_now(&self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0_u8; len];
        let (image, into) = (self.raw.as_ptr(), bytes.as_mut_ptr().cast());
        // SAFETY: a live image, `len` bytes of room.
        let read = unsafe { (self.calls.rbd_read)(image, 0, len, into) };
        bytes.truncate(counted(read)?);
        Ok(bytes)
    }

    /// What the names of its objects have in them: no other image ever has the same.
    pub(crate) fn id(&self) -> Result<CString> {
        let mut id = [0_u8; 128];
        let (image, into, len) = (self.raw.as_ptr(), id.as_mut_ptr().cast(), id.len());
        // SAFETY: a live image, `len` bytes of room.
        said(unsafe { (self.calls.rbd_get_id)(image, into, len) })?;
        Ok(CStr::from_bytes_until_nul(&id).map_err(|_| Errno::EINVAL)?.to_owned())
    }

    /// Gives it another size, which is no smaller one: `EINVAL`. The lock's owner decides, by the
    /// size that it knew before those that it is giving the image meanwhile.
    pub(crate) fn grow(&self, size: u64) -> Result<()> {
        extern "C" fn ignore(_: u64, _: u64, _: *mut c_void) -> c_int {
            0
        }
        let image = self.raw.as_ptr();
        // SAFETY: a live image; the function that is told of progress uses no argument.
        said(unsafe { (self.calls.rbd_resize2)(image, size, false, ignore, ptr::null_mut()) })
            .map(drop)
    }

    /// Makes a snapshot. `EEXIST`.
    pub(crate) fn snapshot(&self, name: &str) -> Result<()> {
        let name = c_string(name.as_bytes())?;
        // SAFETY: a live image, a C string.
        said(unsafe { (self.calls.rbd_snap_create)(self.raw.as_ptr(), name.as_ptr()) }).map(drop)
    }

    /// Removes a snapshot. `ENOENT`, `EBUSY`.
    pub(crate) fn remove_snapshot(&self, name: &str) -> Result<()> {
        let name = c_string(name.as_bytes())?;
        // SAFETY: a live image, a C string.
        said(unsafe { (self.calls.rbd_snap_remove)(self.raw.as_ptr(), name.as_ptr()) }).map(drop)
    }

    /// Its snapshots, by name.
    pub(crate) fn snapshots(&self) -> Result<Vec<String>> {
        let none = RawSnapshot { id: 0, size: 0, name: ptr::null() };
        let mut room = 16;
        loop {
            let mut list = vec![none; room];
            let mut count = c_int::try_from(room).map_err(|_| Errno::ERANGE)?;
            // SAFETY: a live image; `count` places and, as the library wants it, one for an end.
            let listed = said(unsafe {
                (self.calls.rbd_snap_list)(self.raw.as_ptr(), list.as_mut_ptr(), &raw mut count)
            });
            match listed {
                Err(Errno::ERANGE) if room < LISTED_MAX => room *= 2,
                Err(errno) => return Err(errno),
                Ok(filled) => {
                    let filled = list.iter().take(filled);
                    // SAFETY: the library made each a C string.
                    let names = filled.map(|one| unsafe { text(one.name.cast_mut()) }).collect();
                    // SAFETY: what the library filled, once.
                    unsafe { (self.calls.rbd_snap_list_end)(list.as_mut_ptr()) };
                    return Ok(names);
                }
            }
        }
    }

    /// Bytes of it, of so many, that lie in objects of its own.
    pub(crate) fn allocated(&self, size: u64) -> Result<u64> {
        extern "C" fn add(_: u64, len: size_t, has_data: c_int, sum: *mut c_void) -> c_int {
            if has_data != 0 {
                // SAFETY: the sum of the call below, which nothing else uses meanwhile.
                unsafe { *sum.cast::<u64>() += len as u64 };
            }
            0
        }
        let mut sum = 0_u64;
        // SAFETY: a live image; the sum outlives the call.
        said(unsafe {
            let (image, sum) = (self.raw.as_ptr(), (&raw mut sum).cast());
            (self.calls.rbd_diff_iterate2)(image, ptr::null(), 0, size, 0, 1, add, sum)
        })?;
        Ok(sum)
    }

    /// Its features, `RBD_FEATURE_*`.
    pub(crate) fn features(&self) -> Result<u64> {
        let mut features = 0;
        // SAFETY: a live image.
        said(unsafe { (self.calls.rbd_get_features)(self.raw.as_ptr(), &raw mut features) })?;
        Ok(features)
    }

    /// A value of its metadata; `None`: it has none of this key, or no text.
    pub(crate) fn value(&self, key: &CStr) -> Result<Option<String>> {
        let (mut value, mut len) = (vec![0_u8; VALUE_BYTES_MAX], VALUE_BYTES_MAX);
        // SAFETY: a live image, a C string, `len` bytes of room.
        let found = said(unsafe {
            let (image, into) = (self.raw.as_ptr(), value.as_mut_ptr().cast());
            (self.calls.rbd_metadata_get)(image, key.as_ptr(), into, &raw mut len)
        });
        match found {
            Err(Errno::ENOENT | Errno::ERANGE) => return Ok(None),
            found => found?,
        };
        let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8(text.to_vec()).ok())
    }

    /// Sets a value of its metadata.
    pub(crate) fn set_value(&self, key: &CStr, value: &str) -> Result<()> {
        let value = c_string(value.as_bytes())?;
        let image = self.raw.as_ptr();
        // SAFETY: a live image, two C strings.
        said(unsafe { (self.calls.rbd_metadata_set)(image, key.as_ptr(), value.as_ptr()) })
            .map(drop)
    }

    /// Breaks the exclusive lock of this owner, whom the cluster answers no more.
    pub(crate) fn break_lock(&self, owner: &str) -> Result<()> {
        let owner = c_string(owner.as_bytes())?;
        let image = self.raw.as_ptr();
        // SAFETY: a live image, a C string.
        said(unsafe { (self.calls.rbd_lock_break)(image, EXCLUSIVE, owner.as_ptr()) }).map(drop)
    }

    /// Takes the exclusive lock: no other client writes. Where its owner is dead the lock is
    /// broken, once its time is over. `EBUSY` and `EROFS`: a living client has it.
    pub(crate) fn lock(&self) -> Result<()> {
        // SAFETY: a live image.
        said(unsafe { (self.calls.rbd_lock_acquire)(self.raw.as_ptr(), EXCLUSIVE) }).map(drop)
    }

    /// Who has the exclusive lock, as an address and a number; `None`: nobody.
    pub(crate) fn lock_owner(&self) -> Result<Option<String>> {
        let (mut mode, mut count) = (0, OWNERS_MAX);
        let mut owners = [ptr::null_mut::<c_char>(); OWNERS_MAX];
        // SAFETY: a live image; `count` places for C strings, which are given back below.
        let found = said(unsafe {
            let (mode, count) = (&raw mut mode, &raw mut count);
            (self.calls.rbd_lock_get_owners)(self.raw.as_ptr(), mode, owners.as_mut_ptr(), count)
        });
        match found {
            Err(Errno::ENOENT) => return Ok(None),
            found => found?,
        };
        let first = owners.first().filter(|owner| count > 0 && !owner.is_null());
        // SAFETY: the library made it a C string.
        let name = first.map(|owner| unsafe { text(*owner) });
        // SAFETY: what the library filled, once.
        unsafe { (self.calls.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count) };
        Ok(name)
    }

    /// Starts a request with these buffers, which come back with `ended`.
    pub(crate) fn start(&self, work: Work, data: Vec<Buffer>, ended: Ended) {
        let mut data = data;
        let part = |buffer: &mut Buffer| iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let parts: Vec<iovec> = data.iter_mut().map(part).collect();
        // The buffers' bytes stay where they are when the list moves.
        let pending = Box::new(Pending { calls: Call::new(self.calls), data, parts, ended });
        let (parts, count) = (pending.parts.as_ptr(), pending.parts.len() as c_int);
        let argument = Box::into_raw(pending);
        let mut completion = ptr::null_mut();
        let (calls, image) = (self.calls, self.raw.as_ptr());
        // SAFETY: a live image; the argument, its buffers and their list live until `called_back`
        // takes the argument, which the library calls once for a request that it took.
        let started = unsafe {
            let create = calls.rbd_aio_create_completion;
            match create(argument.cast(), called_back, &raw mut completion) {
                0 => match work {
                    Work::Read(at) => (calls.rbd_aio_readv)(image, parts, count, at, completion),
                    Work::Write(at) => (calls.rbd_aio_writev)(image, parts, count, at, completion),
                    Work::Zero(at, len) => {
                        (calls.rbd_aio_write_zeroes)(image, at, len as size_t, completion, 0, 0)
                    }
                    Work::Flush => (calls.rbd_aio_flush)(image, completion),
                },
                refused => refused,
            }
        };
        if let Err(errno) = said(started) {
            if !completion.is_null() {
                // SAFETY: made above, of a request that the library did not take.
                unsafe { (calls.rbd_aio_release)(completion) };
            }
            // SAFETY: the library did not take the request, and does not call back.
            let Pending { data, ended, .. } = *unsafe { Box::from_raw(argument) };
            ended(data, Err(errno));
        }
    }
}

/// The text of a C string of the library's; none of a null pointer.
///
/// # Safety
/// It is null or a C string.
unsafe fn text(string: *mut c_char) -> String {
    match NonNull::new(string) {
        None => String::new(),
        // SAFETY: the caller says so.
        Some(string) => unsafe { CStr::from_ptr(string.as_ptr()) }.to_string_lossy().into_owned(),
    }
}

unsafe extern "C" fn called_back(completion: *mut RawCompletion, argument: *mut c_void) {
    // SAFETY: the argument of `Image::start`, which the library gives back once.
    let pending = unsafe { Box::from_raw(argument.cast::<Pending>()) };
    let Pending { calls, data, ended, .. } = *pending;
    // SAFETY: the completion is ours to read and to release in here.
    let result = unsafe {
        let result = (calls.rbd_aio_get_return_value)(completion);
        (calls.rbd_aio_release)(completion);
        result
    };
    ended(data, counted(result));
}

/// How many bytes a call moved, or why it failed.
fn counted(result: ssize_t) -> Result<usize> {
    let errno = || Errno(c_int::try_from(result.wrapping_neg()).unwrap_or(Errno::EIO.0));
    usize::try_from(result).map_err(|_| errno())
}

//! Directory streams: opendir, readdir and their kin.
//!
//! A stream of ours is known by its address, which is that of the entry that it hands out; every
//! other one is libc's. C has no more functions of streams than those here.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_void};

use libc::{DIR, c_int, c_long, dirent64, size_t, ssize_t};

use super::{answer, arg, attempt, failed, fd, hooks, number};
use crate::kernel::outcome::{Outcome, Unanswered};
use crate::kernel::real;
use crate::ops::dir::{self as ops, STREAMS};
use crate::ops::state::STATE;

/// The entry that a stream handed out last.
#[repr(transparent)]
struct Current(UnsafeCell<dirent64>);

// SAFETY: here the entry is written by `store` alone, with its stream's lock held, so no two
// threads of ours write at once; `scan` reads it while no other thread can know the stream. A
// program that looks at an entry in one thread while another reads the stream on races by C's own
// rule (readdir(3)), as it does with libc.
unsafe impl Sync for Current {}

impl Current {
    const fn new() -> Current {
        // SAFETY: an entry is plain data, for which zeros are valid.
        Current(UnsafeCell::new(unsafe { std::mem::zeroed() }))
    }
}

static CURRENT: [Current; STREAMS] = [const { Current::new() }; STREAMS];

/// Bytes of the longest name that an entry holds, without its NUL.
const NAME_BYTES_MAX: usize = 255;

const _: () =
    assert!(size_of::<dirent64>() - std::mem::offset_of!(dirent64, d_name) > NAME_BYTES_MAX);

/// Which of our streams it is; `None`: libc's.
fn ours(dir: *mut DIR) -> Option<usize> {
    let offset = dir.addr().checked_sub((&raw const CURRENT).addr())?;
    let stream = offset / size_of::<Current>();
    (stream < STREAMS && offset.is_multiple_of(size_of::<Current>())).then_some(stream)
}

fn pointer(stream: usize) -> *mut DIR {
    CURRENT[stream].0.get().cast()
}

/// Stores an entry.
///
/// # Safety
///
/// Valid for a write.
unsafe fn store(entry: &ops::Entry<'_>, into: *mut dirent64) {
    // SAFETY: valid for writes by contract, of plain data. What is there may be uninitialised, so
    // no reference is made: places are written one by one, the name's within its array.
    unsafe {
        (&raw mut (*into).d_ino).write(entry.ino);
        (&raw mut (*into).d_off).write(entry.next);
        (&raw mut (*into).d_reclen).write(entry.len);
        (&raw mut (*into).d_type).write(entry.kind);
        let place = (&raw mut (*into).d_name).cast::<c_char>();
        let len = entry.name.len().min(NAME_BYTES_MAX);
        place.copy_from_nonoverlapping(entry.name.as_ptr().cast(), len);
        place.add(len).write(0);
    }
}

/// Reads the next entry of one of our streams. False: there are no more.
///
/// # Safety
///
/// Valid for a write.
unsafe fn read(stream: usize, into: *mut dirent64) -> Result<bool, c_int> {
    // SAFETY: by contract.
    let next = || ops::next(&STATE, stream, |entry| unsafe { store(entry, into) });
    match attempt(next) {
        Ok(more) => Ok(more),
        Err(Unanswered::Errno(errno)) => Err(errno.0),
        Err(Unanswered::Kernel) => Err(libc::EIO),
    }
}

/// A new stream: ours, an error, or what `libc` makes.
fn opened(ours: impl FnMut() -> Outcome<usize>, libc: impl FnOnce() -> *mut DIR) -> *mut DIR {
    match attempt(ours) {
        Ok(stream) => pointer(stream),
        Err(Unanswered::Errno(errno)) => failed(errno.0),
        Err(Unanswered::Kernel) => libc(),
    }
}

/// What [`scandir`] has found: entries of malloc's, and the array of them.
struct Found {
    list: *mut *mut dirent64,
    count: usize,
    room: usize,
}

impl Found {
    /// A copy of an entry is added; false: there is no memory.
    fn add(&mut self, entry: &dirent64) -> bool {
        if self.count == self.room {
            let room = 2 * self.room + 16;
            // SAFETY: null or what realloc gave.
            let list =
                unsafe { libc::realloc(self.list.cast(), room * size_of::<*mut dirent64>()) };
            if list.is_null() {
                return false;
            }
            (self.list, self.room) = (list.cast(), room);
        }
        let len = usize::from(entry.d_reclen).min(size_of::<dirent64>());
        // SAFETY: the copy is of as many bytes as the entry has, and there is room in the list.
        unsafe {
            let copy = libc::malloc(len);
            if !copy.is_null() {
                copy.copy_from_nonoverlapping(std::ptr::from_ref(entry).cast(), len);
                self.list.add(self.count).write(copy.cast());
                self.count += 1;
            }
            !copy.is_null()
        }
    }

    fn sort(&mut self, compare: Compare) {
        type Untyped = unsafe extern "C" fn(*const c_void, *const c_void) -> c_int;
        let size = size_of::<*mut dirent64>();
        // SAFETY: a function of two pointers, whatever these point to; so many lie in the list.
        unsafe {
            let compare = std::mem::transmute::<Compare, Untyped>(compare);
            if self.count > 1 {
                libc::qsort(self.list.cast(), self.count, size, Some(compare));
            }
        }
    }

    fn free(self) {
        // SAFETY: all are malloc's, and nobody has them.
        unsafe {
            (0..self.count).for_each(|n| libc::free((*self.list.add(n)).cast()));
            libc::free(self.list.cast());
        }
    }
}

/// What a scan of `path`, as seen from a directory, finds: ours, an error, or what `libc` says.
///
/// # Safety
///
/// A C string, valid for a write of the list, and functions that take entries.
unsafe fn scanned(
    (dir, path): (c_int, *const c_char),
    list: *mut *mut *mut dirent64,
    chosen: (Option<Filter>, Option<Compare>),
    libc: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: by contract.
    match attempt(|| ops::open(&STATE, dir, unsafe { arg::text(path)? })) {
        // SAFETY: by contract.
        Ok(stream) => unsafe { scan(stream, list, chosen) },
        Err(Unanswered::Errno(errno)) => failed(errno.0),
        Err(Unanswered::Kernel) => libc(),
    }
}

/// Reads one of our streams to its end and closes it.
///
/// # Safety
///
/// As [`scanned`].
unsafe fn scan(
    stream: usize,
    list: *mut *mut *mut dirent64,
    (filter, compare): (Option<Filter>, Option<Compare>),
) -> c_int {
    let errno = real::errno();
    let mut found = Found { list: std::ptr::null_mut(), count: 0, room: 0 };
    let into = CURRENT[stream].0.get();
    let failed = loop {
        // SAFETY: the stream's own entry, which stays until it is read on; so below.
        match unsafe { read(stream, into) } {
            Ok(true) => {}
            Ok(false) => break 0,
            Err(errno) => break errno,
        }
        // SAFETY: as above; the caller's function takes entries.
        let (entry, wanted) = unsafe { (&*into, filter.is_none_or(|filter| filter(into) != 0)) };
        if wanted && !found.add(entry) {
            break libc::ENOMEM;
        }
    };
    // SAFETY: the stream is ours to close.
    unsafe { closedir(pointer(stream)) };
    if failed != 0 {
        found.free();
        return super::failed(failed);
    }
    if let Some(compare) = compare {
        found.sort(compare);
    }
    real::set_errno(errno);
    // SAFETY: valid for a write, by contract.
    unsafe { list.write(found.list) };
    found.count as c_int
}

type Filter = unsafe extern "C-unwind" fn(*const dirent64) -> c_int;
type Compare = unsafe extern "C-unwind" fn(*const *const dirent64, *const *const dirent64) -> c_int;

hooks! {
    /// `opendir`
    ["opendir"]
    fn opendir(path: *const c_char) -> *mut DIR {
        // SAFETY: a C string, by contract.
        let ours = || ops::open(&STATE, libc::AT_FDCWD, unsafe { arg::text(path)? });
        opened(ours, || {
            // SAFETY: the caller's own argument.
            let dir = unsafe { real::opendir(path) };
            if !dir.is_null() {
                // SAFETY: an open stream.
                number::made(unsafe { real::dirfd(dir) });
            }
            dir
        })
    }

    /// `fdopendir`
    ["fdopendir"]
    fn fdopendir(fd: c_int) -> *mut DIR {
        // SAFETY: the caller's own argument.
        opened(|| ops::open_fd(&STATE, fd), || unsafe { real::fdopendir(fd) })
    }

    /// `closedir` closes past our hook.
    ["closedir"]
    fn closedir(dir: *mut DIR) -> c_int {
        let Some(stream) = ours(dir) else {
            if dir.is_null() {
                // SAFETY: the caller's own argument.
                return unsafe { real::closedir(dir) };
            }
            // SAFETY: an open stream, by contract.
            let number = unsafe { real::dirfd(dir) };
            // SAFETY: the caller's own argument.
            return fd::ending(number, || unsafe { real::closedir(dir) });
        };
        match attempt(|| Ok(ops::close(&STATE, stream))) {
            // SAFETY: the stream's own descriptor.
            Ok(Some(number)) => fd::ending(number, || unsafe { real::close(number) }),
            _ => 0,
        }
    }

    /// `readdir`
    ["readdir", "readdir64"]
    fn readdir(dir: *mut DIR) -> *mut dirent64 {
        let Some(stream) = ours(dir) else {
            // SAFETY: the caller's own argument.
            return unsafe { real::readdir(dir) };
        };
        let into = CURRENT[stream].0.get();
        // SAFETY: the stream's own entry.
        match unsafe { read(stream, into) } {
            Ok(true) => into,
            Ok(false) => std::ptr::null_mut(),
            Err(errno) => failed(errno),
        }
    }

    /// `readdir_r`
    ["readdir_r", "readdir64_r"]
    fn readdir_r(dir: *mut DIR, into: *mut dirent64, result: *mut *mut dirent64) -> c_int {
        let Some(stream) = ours(dir) else {
            // SAFETY: the caller's own arguments.
            return unsafe { real::readdir_r(dir, into, result) };
        };
        // SAFETY: both are valid, by contract.
        unsafe {
            let read = read(stream, into);
            result.write(if read == Ok(true) { into } else { std::ptr::null_mut() });
            read.err().unwrap_or(0)
        }
    }

    /// `telldir`
    ["telldir"]
    fn telldir(dir: *mut DIR) -> c_long {
        match ours(dir) {
            Some(stream) => attempt(|| Ok(ops::tell(stream))).unwrap_or(0),
            // SAFETY: the caller's own argument.
            None => unsafe { real::telldir(dir) },
        }
    }

    /// `seekdir`
    ["seekdir"]
    fn seekdir(dir: *mut DIR, position: c_long) -> () {
        match ours(dir) {
            Some(stream) => _ = attempt(|| ops::go_to(stream, position)),
            // SAFETY: the caller's own arguments.
            None => unsafe { real::seekdir(dir, position) },
        }
    }

    /// `rewinddir`
    ["rewinddir"]
    fn rewinddir(dir: *mut DIR) -> () {
        match ours(dir) {
            Some(stream) => _ = attempt(|| ops::go_to(stream, 0)),
            // SAFETY: the caller's own argument.
            None => unsafe { real::rewinddir(dir) },
        }
    }

    /// `dirfd`
    ["dirfd"]
    fn dirfd(dir: *mut DIR) -> c_int {
        let Some(stream) = ours(dir) else {
            // SAFETY: the caller's own argument.
            return unsafe { real::dirfd(dir) };
        };
        match attempt(|| ops::descriptor(&STATE, stream)) {
            Ok(fd) => fd,
            Err(Unanswered::Errno(errno)) => failed(errno.0),
            Err(Unanswered::Kernel) => failed(libc::EINVAL),
        }
    }

    /// `scandir`, which reads past our hooks.
    ["scandir", "scandir64"]
    fn scandir(
        path: *const c_char, list: *mut *mut *mut dirent64, filter: Option<Filter>,
        compare: Option<Compare>
    ) -> c_int {
        // SAFETY: the caller's own arguments; so below.
        let libc = || unsafe { real::scandir(path, list, filter, compare) };
        // SAFETY: by contract; so below.
        unsafe { scanned((libc::AT_FDCWD, path), list, (filter, compare), libc) }
    }

    /// As above, as seen from a directory.
    ["scandirat", "scandirat64"]
    fn scandirat(
        dir: c_int, path: *const c_char, list: *mut *mut *mut dirent64, filter: Option<Filter>,
        compare: Option<Compare>
    ) -> c_int {
        // SAFETY: as above.
        let libc = || unsafe { real::scandirat(dir, path, list, filter, compare) };
        // SAFETY: as above.
        unsafe { scanned((dir, path), list, (filter, compare), libc) }
    }

    /// `getdents64`
    ["getdents64"]
    fn getdents64(fd: c_int, into: *mut c_void, count: size_t) -> ssize_t {
        answer!(
            {
                // SAFETY: a buffer, by contract; as with libc, the kernel is asked for no more.
                let into = unsafe { arg::sink(into, count.min(c_int::MAX as usize))? };
                ops::entries(&STATE, fd, into).map(|count| count as ssize_t)
            },
            {
                let (fd, count) = (fd.into(), count.min(c_int::MAX as usize) as c_long);
                real::syscall(libc::SYS_getdents64, fd, into as c_long, count, 0, 0, 0) as ssize_t
            }
        )
    }
}

#[cfg(target_env = "musl")]
hooks! {
    /// What `getdents64` is there.
    ["getdents"]
    fn getdents(fd: c_int, into: *mut c_void, count: size_t) -> ssize_t {
        // SAFETY: the caller's own arguments.
        unsafe { getdents64(fd, into, count) }
    }
}

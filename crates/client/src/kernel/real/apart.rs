//! The functions that glibc had in libraries of their own, `libdl` and `libpthread`, until 2.34 put
//! them into `libc`. To name these libraries costs each start of a program a search for both; not
//! to name them is to find the functions: in whatever is loaded, and where that has none, in the
//! library that had them, which glibc's own loader is asked to load. The standard library and the
//! unwinder find the ones here in their place, hidden from others.
#![expect(
    unsafe_code,
    reason = "UNSAFETY: reads tables of loaded objects, and calls what they name"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use super::objects;

/// One of the functions.
struct Apart {
    name: &'static CStr,
    /// The library that had it.
    library: &'static CStr,
    address: AtomicPtr<c_void>,
}

/// Says what each is called, its C type, and gives it under that name to whoever in this library
/// calls it.
macro_rules! apart {
    ($($at:ident = $name:literal in $library:literal,
       fn $call:ident($($arg:ident: $type:ty),*) -> $ret:ty, or $none:expr;)*) => {
        $(
            static $at: Apart = Apart::new(concat!($name, "\0"), concat!($library, "\0"));

            /// # Safety
            ///
            /// As the C function of that name.
            #[cfg_attr(test, expect(dead_code, reason = "a test has those of libc"))]
            unsafe extern "C" fn $call($($arg: $type),*) -> $ret {
                let address = $at.get();
                if address.is_null() {
                    return $none;
                }
                // SAFETY: the address of the function of this name, whose C type this is.
                let call = unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $ret>(
                        address,
                    )
                };
                // SAFETY: the caller keeps the C function's contract.
                unsafe { call($($arg),*) }
            }

            #[cfg(all(target_arch = "x86_64", not(test)))]
            std::arch::global_asm!(
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!($name, ":"),
                "jmp {}",
                sym $call
            );
            #[cfg(all(target_arch = "aarch64", not(test)))]
            std::arch::global_asm!(
                concat!(".globl ", $name),
                concat!(".hidden ", $name),
                concat!($name, ":"),
                "b {}",
                sym $call
            );
        )*
        /// All of them.
        static ALL: &[&Apart] = &[$(&$at),*];
    };
}

/// A function that runs once, of `pthread_once`.
type Once = Option<unsafe extern "C" fn()>;
/// What is called with a thread's value when the thread ends.
type AtExit = Option<unsafe extern "C" fn(*mut c_void)>;

apart! {
    DLSYM = "dlsym" in "libdl.so.2",
        fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void,
        or std::ptr::null_mut();
    KEY_CREATE = "pthread_key_create" in "libpthread.so.0",
        fn key_create(key: *mut libc::pthread_key_t, at_exit: AtExit) -> c_int,
        or libc::EAGAIN;
    OLD_KEY_CREATE = "__pthread_key_create" in "libpthread.so.0",
        fn old_key_create(key: *mut libc::pthread_key_t, at_exit: AtExit) -> c_int,
        or libc::EAGAIN;
    KEY_DELETE = "pthread_key_delete" in "libpthread.so.0",
        fn key_delete(key: libc::pthread_key_t) -> c_int,
        or libc::EINVAL;
    SET_SPECIFIC = "pthread_setspecific" in "libpthread.so.0",
        fn set_specific(key: libc::pthread_key_t, value: *const c_void) -> c_int,
        or libc::ENOMEM;
    ONCE = "pthread_once" in "libpthread.so.0",
        fn once(control: *mut c_int, run: Once) -> c_int,
        or libc::EINVAL;
}

/// Looks all of them up. Called once, from the constructor: libraries are loaded there, if any.
#[cfg_attr(test, expect(dead_code, reason = "a test has no constructor"))]
pub(crate) fn resolve() {
    for function in ALL {
        function.get();
    }
}

impl Apart {
    const fn new(name: &'static str, library: &'static str) -> Apart {
        let (name, library) = (text(name), text(library));
        Apart { name, library, address: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null where there is none.
    fn get(&self) -> *mut c_void {
        match self.address.load(Ordering::Relaxed) {
            known if !known.is_null() => known,
            _ => self.look_up(),
        }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        let found = match find(self.name) {
            loaded if !loaded.is_null() => loaded,
            _ => {
                load(self.library);
                find(self.name)
            }
        };
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

const fn text(bytes: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(bytes.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("a name without NUL"),
    }
}

/// Has the loader load a library of glibc's for good, as `dlopen` does: a program of an older glibc
/// that does not use it has not loaded it, nor the function `dlopen`.
fn load(library: &CStr) {
    type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
    /// `RTLD_NOW | RTLD_GLOBAL`, and what `dlopen` adds to it.
    const HOW: c_int = libc::RTLD_NOW | libc::RTLD_GLOBAL | c_int::MIN;
    let open = find(c"__libc_dlopen_mode");
    if open.is_null() {
        return;
    }
    // SAFETY: the address of glibc's function of this name, whose C type this is.
    let open = unsafe { std::mem::transmute::<*mut c_void, Open>(open) };
    // SAFETY: a C string; it keeps nothing of it. What is not loaded is not found afterwards.
    let _ = unsafe { open(library.as_ptr(), HOW) };
}

/// The first function of that name in what is loaded, in the loader's own order; null: there is
/// none.
fn find(name: &CStr) -> *mut c_void {
    let found = objects::search(|object| {
        let dynamic = object.headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
        // SAFETY: a loaded object's own.
        let tables = unsafe { Tables::of(object.base, object.place(dynamic)) }?;
        // SAFETY: as above.
        let value = unsafe { tables.function(name) }?;
        Some(object.base.wrapping_add(value))
    });
    found.map_or(std::ptr::null_mut(), std::ptr::with_exposed_provenance_mut)
}

/// `Elf64_Sym`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    name: u32,
    kind: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Where an object's names of functions are.
struct Tables {
    /// GNU's hash table: four numbers, a filter of words, buckets, chains.
    hash: *const u32,
    entries: *const Entry,
    names: *const c_char,
}

impl Tables {
    /// Those that a dynamic section tells of; `None`: it has not all.
    ///
    /// # Safety
    ///
    /// The dynamic section of an object that is loaded at `base`, and stays.
    unsafe fn of(base: usize, dynamic: usize) -> Option<Tables> {
        const END: u64 = 0;
        const NAMES: u64 = 5;
        const ENTRIES: u64 = 6;
        const GNU_HASH: u64 = 0x6fff_fef5;
        let mut at: *const [u64; 2] = std::ptr::with_exposed_provenance(dynamic);
        let (mut hash, mut entries, mut names) = (0, 0, 0);
        loop {
            // SAFETY: by contract; not past the end, which was not met.
            let [tag, value] = unsafe { *at };
            match tag {
                END => break,
                NAMES => names = value as usize,
                ENTRIES => entries = value as usize,
                GNU_HASH => hash = value as usize,
                _ => {}
            }
            // SAFETY: as above.
            at = unsafe { at.add(1) };
        }
        if [hash, entries, names].contains(&0) {
            return None;
        }
        // The loader has put addresses there, but for the object that the kernel brings.
        let place = |value: usize| if value < base { base.wrapping_add(value) } else { value };
        Some(Tables {
            hash: std::ptr::with_exposed_provenance(place(hash)),
            entries: std::ptr::with_exposed_provenance(place(entries)),
            names: std::ptr::with_exposed_provenance(place(names)),
        })
    }

    /// The value of a function that the object defines under that name.
    ///
    /// # Safety
    ///
    /// The tables of a loaded object, that stays.
    unsafe fn function(&self, name: &CStr) -> Option<usize> {
        const FUNCTION: u8 = 2;
        let wanted = hash_of(name);
        // SAFETY: the table begins with these four.
        let [buckets, first, filter, _] = unsafe { *self.hash.cast::<[u32; 4]>() };
        if buckets == 0 {
            return None;
        }
        // SAFETY: behind the filter, whose words have 64 bits, there is this number of buckets, and
        // then the chains.
        let (start, chains) = unsafe {
            let table = self.hash.add(4 + 2 * filter as usize);
            (*table.add((wanted % buckets) as usize), table.add(buckets as usize))
        };
        if start < first {
            return None;
        }
        for index in start.. {
            // SAFETY: a chain has a hash for each entry from `first` on, the last of a bucket is
            // marked, and each has a name.
            let (hash, entry) = unsafe {
                (*chains.add((index - first) as usize), *self.entries.add(index as usize))
            };
            let is_it = || {
                // SAFETY: as above.
                let named = unsafe { CStr::from_ptr(self.names.add(entry.name as usize)) };
                entry.section != 0 && entry.kind & 15 == FUNCTION && named == name
            };
            if hash | 1 == wanted | 1 && is_it() {
                return Some(entry.value as usize);
            }
            if hash & 1 != 0 {
                break;
            }
        }
        None
    }
}

/// GNU's hash of a name.
fn hash_of(name: &CStr) -> u32 {
    let add = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add((*byte).into());
    name.to_bytes().iter().fold(5381, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_where_the_loader_finds_them() {
        for apart in ALL {
            // SAFETY: a C string.
            let of_loader = unsafe { libc::dlsym(libc::RTLD_DEFAULT, apart.name.as_ptr()) };
            assert!(!of_loader.is_null(), "{:?}", apart.name);
            assert_eq!(apart.get(), of_loader, "{:?}", apart.name);
        }
        for nobodys in [c"", c"polylane_has_no_such_function", c"dlsy"] {
            assert!(find(nobodys).is_null(), "{nobodys:?}");
        }
        // What is loaded already is not loaded again; what nobody has is not found.
        load(c"no such library");
        assert!(find(c"polylane_has_no_such_function").is_null());
    }

    #[test]
    fn names_have_the_hash_that_the_linker_wrote() {
        assert_eq!((hash_of(c""), hash_of(c"printf")), (5381, 0x156b_2bb8));
    }
}

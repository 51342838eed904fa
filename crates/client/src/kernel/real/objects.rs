//! The objects that the loader has in the process: the program, its libraries, what the kernel
//! brings.
#![expect(unsafe_code, reason = "UNSAFETY: a walk of the C library's, with its pointers")]

use std::ffi::{c_int, c_void};

/// A loaded object. What it names stays while it is visited.
pub(super) struct Object<'a> {
    /// Where it is loaded: its own addresses count from there.
    pub(super) base: usize,
    /// Its program headers.
    pub(super) headers: &'a [libc::Elf64_Phdr],
}

impl Object<'_> {
    /// The address of what a header is of.
    pub(super) fn place(&self, header: &libc::Elf64_Phdr) -> usize {
        self.base.wrapping_add(header.p_vaddr as usize)
    }
}

/// The question and its answer, as [`visit`] gets them.
struct Search<F, T> {
    look: F,
    found: Option<T>,
}

/// The first answer of `look`, which is asked of each object in the loader's own order. `look` must
/// neither load nor unload objects: the loader's lock is held. Nothing is allocated.
pub(super) fn search<T>(look: impl FnMut(&Object<'_>) -> Option<T>) -> Option<T> {
    fn visitor<F: FnMut(&Object<'_>) -> Option<T>, T>(
        _: &Search<F, T>,
    ) -> unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int {
        visit::<F, T>
    }
    let mut search = Search { look, found: None };
    let visit = visitor(&search);
    // SAFETY: the callback gets the search, and is not called after this returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// Looks at one loaded object; 1 ends the search.
///
/// # Safety
///
/// As `dl_iterate_phdr` calls it, with a [`Search`].
unsafe extern "C" fn visit<F: FnMut(&Object<'_>) -> Option<T>, T>(
    object: *mut libc::dl_phdr_info,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: by contract; the headers of a loaded object stay while it is visited.
    let (search, object) = unsafe {
        let object = &*object;
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        (&mut *search.cast::<Search<F, T>>(), Object { base: object.dlpi_addr as usize, headers })
    };
    search.found = (search.look)(&object);
    c_int::from(search.found.is_some())
}

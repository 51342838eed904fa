//! `_dl_find_object` for the unwinder that the library carries: since GCC 12 it asks the C library
//! for the object that a program counter lies in, by a function that glibc has from 2.35 on. The
//! unwinder finds this one in its place, hidden from others, so that the library loads with older
//! ones. It runs only when a panic of the library's own is caught.
#![expect(unsafe_code, reason = "UNSAFETY: a function of the C library's, with its pointers")]

use std::ffi::{c_int, c_void};

use super::objects;

/// `struct dl_find_object` of `<dlfcn.h>`, as it is on machines of 64 bits.
#[repr(C)]
struct FoundObject {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *mut c_void,
    eh_frame: *mut c_void,
    reserved: [u64; 7],
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".globl _dl_find_object",
    ".hidden _dl_find_object",
    "_dl_find_object:",
    "jmp {}",
    sym find_object
);
#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".globl _dl_find_object",
    ".hidden _dl_find_object",
    "_dl_find_object:",
    "b {}",
    sym find_object
);

/// Fills `into` for the object that holds `pc`; 0 if there is one with an unwinder's table, else
/// -1.
///
/// # Safety
///
/// `into` may be written.
unsafe extern "C" fn find_object(pc: *const c_void, into: *mut FoundObject) -> c_int {
    // The object's segment, and its unwinder's table if it has one.
    let holder = objects::search(|object| {
        let holds = |header: &&libc::Elf64_Phdr| {
            header.p_type == libc::PT_LOAD
                && pc.addr().wrapping_sub(object.place(header)) < header.p_memsz as usize
        };
        let segment = object.headers.iter().find(holds)?;
        let table = object.headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME);
        let (start, bytes) = (object.place(segment), segment.p_memsz as usize);
        Some((start, start + bytes, table.map(|table| object.place(table))))
    });
    let Some((start, end, Some(table))) = holder else { return -1 };
    let pointer = |address: usize| std::ptr::without_provenance_mut(address);
    let found = FoundObject {
        flags: 0,
        map_start: pointer(start),
        map_end: pointer(end),
        link_map: std::ptr::null_mut(),
        eh_frame: std::ptr::with_exposed_provenance_mut(table),
        reserved: [0; 7],
    };
    // SAFETY: by contract.
    unsafe { into.write(found) };
    0
}

/// Has the unwinder make its table of registers. A thread that is cancelled in a call of ours is
/// unwound by the program's own unwinder, but the clean-up of our frames asks the library's, which
/// takes a table that was not made yet for damage. Called once, from the constructor.
pub(crate) fn prepare() {
    unsafe extern "C" {
        fn _Unwind_Backtrace(
            visit: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
            argument: *mut c_void,
        ) -> c_int;
    }
    /// Ends the walk at its first frame.
    unsafe extern "C" fn stop(_frame: *mut c_void, _argument: *mut c_void) -> c_int {
        const END_OF_STACK: c_int = 5;
        END_OF_STACK
    }
    // SAFETY: the callback touches nothing.
    unsafe { _Unwind_Backtrace(stop, std::ptr::null_mut()) };
}

//! The constructor: looks names up and reads the environment, and does what a first call in a
//! signal handler could not. It connects to nothing: the loader's lock is held, and most processes
//! never touch the lane.

use std::ffi::{CStr, c_char, c_void};

use crate::kernel::config;
use crate::kernel::real;
use crate::ops::state::{self, STATE};
use crate::session::namespace;

unsafe extern "C" {
    static environ: real::Strings;
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // A panic is caught where a hook was called; its text has no place in the program's output.
    std::panic::set_hook(Box::new(|_| {}));
    real::resolve();
    // SAFETY: single-threaded still; the array and its strings are the loader's.
    unsafe { read_environment(environ) };
    if config::shares_place() {
        namespace::leave_home();
        // SAFETY: as above; a C string.
        unsafe { libc::unsetenv(config::PLACE_VARIABLE.as_ptr()) };
    }
    if config::has_lane() {
        polylane_sys::cpu::prepare();
        real::prepare_thread_exit(at_thread_exit);
        real::prepare_unwinder();
        state::make_lanes();
    }
}

/// The calling thread ends: its mailboxes are for others.
extern "C" fn at_thread_exit(_: *mut c_void) {
    if let Some(state) = STATE.started() {
        state.lanes().for_each(|lane| lane.sessions.release_thread());
    }
}

/// Takes the mount paths and keeps the variables for programs that this one runs.
///
/// # Safety
///
/// Null or a null-terminated array of C strings.
unsafe fn read_environment(envp: real::Strings) {
    let mut at = envp;
    while !at.is_null() {
        // SAFETY: by contract, and not past the null yet.
        let entry: *const c_char = unsafe { *at };
        if entry.is_null() {
            return;
        }
        // SAFETY: a C string, by contract.
        config::take(unsafe { CStr::from_ptr(entry) });
        // SAFETY: within the array.
        at = unsafe { at.add(1) };
    }
}

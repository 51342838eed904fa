//! The configuration of an image: what its own and its pool's metadata say, else the client's.
#![expect(unsafe_code, reason = "UNSAFETY: calls of a C library, whose pointers stay in here")]

use std::ffi::{c_char, c_int};
use std::ptr;

use polylane_base::{Errno, Result};

use super::super::calls::said;
use super::{Image, text};

/// Most options that are listed: librbd has about a hundred.
const OPTIONS_MAX: c_int = 1 << 16;

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in super::super) struct RawOption {
    name: *mut c_char,
    value: *mut c_char,
    source: c_int,
}

impl Image {
    /// All options of librbd with their values as text, as the metadata says now: librbd has taken
    /// over what it said when the image was opened.
    pub(crate) fn options(&self) -> Result<Vec<(String, String)>> {
        let none = RawOption { name: ptr::null_mut(), value: ptr::null_mut(), source: 0 };
        let mut room: c_int = 256;
        loop {
            let mut list = vec![none; usize::try_from(room).map_err(|_| Errno::ERANGE)?];
            let mut count = room;
            // SAFETY: a live image; `count` places, which the library fills or says how many it
            // needs.
            let listed = said(unsafe {
                let list = list.as_mut_ptr();
                (self.calls.rbd_config_image_list)(self.raw.as_ptr(), list, &raw mut count)
            });
            match listed {
                Err(Errno::ERANGE) if count > room && count <= OPTIONS_MAX => room = count,
                Err(errno) => return Err(errno),
                Ok(_) => {
                    let filled = list.iter().take(usize::try_from(count).unwrap_or(0));
                    // SAFETY: the library made each two C strings.
                    let pair = |one: &RawOption| unsafe { (text(one.name), text(one.value)) };
                    let pairs = filled.map(pair).collect();
                    // SAFETY: what the library filled, once.
                    unsafe {
                        (self.calls.rbd_config_image_list_cleanup)(list.as_mut_ptr(), count);
                    }
                    return Ok(pairs);
                }
            }
        }
    }
}

//! `dlopen` with `RTLD_DEEPBIND`, by which a library finds libc's functions before ours: its calls
//! would pass the hooks, and what it does with descriptors of the lane would go unnoticed. So the
//! flag is taken away.
//!
//! Where the loader searches depends on who calls: the real function is jumped to, and finds the
//! caller's own return address.

use std::ffi::c_void;

use crate::kernel::config;
use crate::kernel::real;

/// A function that this libc does not have loads nothing.
extern "C" fn nothing() -> *mut c_void {
    std::ptr::null_mut()
}

/// The real function, and the mode that it is to be given.
#[repr(C)]
struct Target {
    address: *const c_void,
    mode: u64,
}

fn target(symbol: &real::Symbol, mode: u64) -> Target {
    // musl does not know the flag.
    let deep = if cfg!(target_env = "gnu") && config::has_lane() { DEEPBIND } else { 0 };
    let address = symbol.get();
    let address = if address.is_null() { nothing as *const c_void } else { address };
    Target { address, mode: mode & !deep }
}

/// `RTLD_DEEPBIND`
const DEEPBIND: u64 = 8;

/// `"name" symbol register;`: exports `name`, whose mode comes in that register.
macro_rules! loaders {
    ($($name:literal $symbol:ident $register:literal;)*) => {$(
        const _: () = {
            extern "C" fn before(mode: u64) -> Target {
                target(&real::symbol::$symbol, mode)
            }

            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn hook() {
                // Two words are returned in rax and rdx.
                std::arch::naked_asm!(
                    "push rdi",
                    "push rsi",
                    "push rdx",
                    concat!("mov rdi, ", $register),
                    "call {before}",
                    "mov r10, rdx",
                    "pop rdx",
                    "pop rsi",
                    "pop rdi",
                    concat!("mov ", $register, ", r10"),
                    "jmp rax",
                    before = sym before,
                )
            }
        };
    )*};
}

loaders! {
    "dlopen" dlopen "rsi";
    "dlmopen" dlmopen "rdx";
}

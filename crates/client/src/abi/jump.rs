//! Variadic functions that cannot be forwarded argument by argument: something is done first, then
//! the real function is jumped to with all registers and the stack as they were.

use std::ffi::{c_int, c_void};

use crate::fd::rings;
use crate::kernel::real;
use crate::ops::file;
use crate::ops::process;
use crate::ops::ring;
use crate::ops::share::Heir;
use crate::ops::state::STATE;

/// Stands in for a function that this libc does not have.
extern "C" fn nowhere() -> c_int {
    super::failed(libc::ENOSYS)
}

fn target(symbol: &real::Symbol) -> *const c_void {
    let address = symbol.get();
    if address.is_null() { nowhere as *const c_void } else { address }
}

/// `jumps!{ "name" prepare symbol; }`: exports `name`, which calls `prepare` with its first and
/// third argument and then jumps to the real one.
macro_rules! jumps {
    ($( $(#[$meta:meta])* $name:literal $prepare:ident $symbol:ident; )*) => {$(
        const _: () = {
            extern "C" fn before(first: c_int, _: usize, third: c_int) -> *const c_void {
                let errno = real::errno();
                // Whatever happens here, the call is made.
                let _ = super::attempt(|| { $prepare(first, third); Ok(()) });
                real::set_errno(errno);
                target(&real::symbol::$symbol)
            }

            $(#[$meta])*
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn hook() {
                // The frame keeps every register that can carry an argument; rax counts vector
                // ones.
                std::arch::naked_asm!(
                    "push rbp",
                    "mov rbp, rsp",
                    "sub rsp, 192",
                    "mov [rsp], rdi",
                    "mov [rsp + 8], rsi",
                    "mov [rsp + 16], rdx",
                    "mov [rsp + 24], rcx",
                    "mov [rsp + 32], r8",
                    "mov [rsp + 40], r9",
                    "mov [rsp + 48], rax",
                    "movups [rsp + 64], xmm0",
                    "movups [rsp + 80], xmm1",
                    "movups [rsp + 96], xmm2",
                    "movups [rsp + 112], xmm3",
                    "movups [rsp + 128], xmm4",
                    "movups [rsp + 144], xmm5",
                    "movups [rsp + 160], xmm6",
                    "movups [rsp + 176], xmm7",
                    "call {before}",
                    "mov r11, rax",
                    "mov rdi, [rsp]",
                    "mov rsi, [rsp + 8]",
                    "mov rdx, [rsp + 16]",
                    "mov rcx, [rsp + 24]",
                    "mov r8, [rsp + 32]",
                    "mov r9, [rsp + 40]",
                    "mov rax, [rsp + 48]",
                    "movups xmm0, [rsp + 64]",
                    "movups xmm1, [rsp + 80]",
                    "movups xmm2, [rsp + 96]",
                    "movups xmm3, [rsp + 112]",
                    "movups xmm4, [rsp + 128]",
                    "movups xmm5, [rsp + 144]",
                    "movups xmm6, [rsp + 160]",
                    "movups xmm7, [rsp + 176]",
                    "leave",
                    "jmp r11",
                    before = sym before,
                )
            }
        };
    )*};
}

/// The function writes to the descriptor past our hooks.
fn publish(fd: c_int, _third: c_int) {
    file::publish_fd(&STATE, fd);
}

/// The function makes another process.
fn share(_first: c_int, _third: c_int) {
    // Nothing here comes to know when it is made.
    drop(process::before_sharing(&STATE));
}

/// The function runs a program.
fn run(_first: c_int, _third: c_int) {
    drop(process::before_sharing_with(&STATE, Heir::Program));
}

/// The function makes another process, or a thread.
fn clone(_first: c_int, flags: c_int) {
    drop(process::before_clone(&STATE, flags));
}

/// The function asks the kernel for the working directory's path.
fn look(_first: c_int, _third: c_int) {
    process::look_for_directory(&STATE);
}

/// libaio makes a context.
fn aio(_first: c_int, _third: c_int) {
    ring::aio_begins(&STATE);
}

/// liburing makes a ring.
fn ring(_first: c_int, _third: c_int) {
    ring::ring_begins(&STATE);
}

/// liburing has the kernel begin.
fn submit(_first: c_int, _third: c_int) {
    rings::settle();
}

jumps! {
    "dprintf" publish dprintf;
    "__dprintf_chk" publish __dprintf_chk;
    "clone" clone clone;
    "__clone" clone __clone;
    "system" run system;
    "wordexp" run wordexp;
    "forkpty" share forkpty;
    "getcwd" look getcwd;
    "__getcwd_chk" look __getcwd_chk;
    "getwd" look getwd;
    "get_current_dir_name" look get_current_dir_name;
    "realpath" look realpath;
    "__realpath_chk" look __realpath_chk;
    "canonicalize_file_name" look canonicalize_file_name;
    "io_setup" aio io_setup;
    "io_queue_init" aio io_queue_init;
    "io_uring_setup" ring io_uring_setup;
    "io_uring_queue_init" ring io_uring_queue_init;
    "io_uring_queue_init_params" ring io_uring_queue_init_params;
    "io_uring_queue_init_mem" ring io_uring_queue_init_mem;
    "io_uring_submit" submit io_uring_submit;
    "io_uring_submit_and_wait" submit io_uring_submit_and_wait;
    "io_uring_submit_and_wait_timeout" submit io_uring_submit_and_wait_timeout;
    "io_uring_enter" submit io_uring_enter;
    "io_uring_enter2" submit io_uring_enter2;
}

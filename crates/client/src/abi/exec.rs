//! exec and posix_spawn: descriptors are made fit for the new image, and it gets the library too.
//!
//! A program that runs others with an environment of its own making drops `LD_PRELOAD`; its
//! children would work, through the kernel, but slowly. Both variables are put back where they are
//! missing. Where a program sets `LD_PRELOAD` to something else, that is respected.
//! AddressSanitizer's runtime refuses to start behind a preloaded library unless `ASAN_OPTIONS`
//! says otherwise: that option is added to those it holds, and left alone where it is set.

use std::ffi::{CStr, c_char, c_void};

use libc::{c_int, pid_t};

use super::{arg, hooks};
use crate::kernel::config;
use crate::kernel::real::{self, Scratch, Strings};
use crate::ops::share::Heir;
use crate::ops::state::STATE;
use crate::ops::{own, process};

unsafe extern "C" {
    static environ: Strings;
}

/// The program that posix_spawn starts: with actions it may be given descriptors that exec closes.
fn spawned_with(actions: *const c_void) -> Heir {
    if actions.is_null() { Heir::Program } else { Heir::Process }
}

/// The program's own environment.
fn own() -> Strings {
    // SAFETY: a C program's variable; reading it races with setenv as it does in libc.
    unsafe { environ }
}

/// Calls `exec`, which makes `heir`, with `envp`, completed where our variables are missing.
///
/// # Safety
///
/// `envp` is null or a null-terminated array of C strings.
unsafe fn with_environment<R>(heir: Heir, envp: Strings, exec: impl FnOnce(Strings) -> R) -> R {
    let _sharing = process::before_sharing_with(&STATE, heir);
    // SAFETY: by contract.
    let Some(Changes { count, missing, asan }) = (unsafe { look_through(envp) }) else {
        return exec(envp);
    };
    let entries = (count + missing.len() + 1) * size_of::<*const c_char>();
    let text = asan.map_or(0, |(_, given)| given.len() + ASAN_MORE.len());
    let len = entries + text;
    let Some(array) = Scratch::new(len) else { return exec(envp) };
    let target: *mut *const c_char = array.start().cast();
    // SAFETY: the new array has room for all old entries, ours and the null at its end, and
    // behind it for the text of the entry that is replaced; scratch memory starts out zero.
    unsafe {
        if count > 0 {
            target.copy_from_nonoverlapping(envp, count);
        }
        let extra = missing.iter().flatten();
        extra.enumerate().for_each(|(n, entry)| target.add(count + n).write(entry.as_ptr()));
        if let Some((place, given)) = asan {
            let text = array.start().cast::<u8>().add(entries);
            text.copy_from_nonoverlapping(given.as_ptr(), given.len());
            text.add(given.len()).copy_from_nonoverlapping(ASAN_MORE.as_ptr(), ASAN_MORE.len());
            target.add(place).write(text.cast());
        }
    }
    exec(target)
}

/// What follows the options that a program gives, with the NUL.
const ASAN_MORE: &[u8] = b":verify_asan_link_order=0\0";

/// What an environment lacks.
struct Changes<'a> {
    /// The number of its entries.
    count: usize,
    /// Entries of ours that it has not.
    missing: [Option<&'static CStr>; config::ENTRIES],
    /// The entry of `ASAN_OPTIONS` that [`ASAN_MORE`] must follow: its index and bytes.
    asan: Option<(usize, &'a [u8])>,
}

/// Looks for our entries; `None` when there is nothing to do.
///
/// # Safety
///
/// As [`with_environment`]; the strings stay for as long as the result is used.
unsafe fn look_through<'a>(envp: Strings) -> Option<Changes<'a>> {
    let mut missing = config::environment()?;
    let mut count = 0;
    let mut asan = None;
    let is_preloaded = missing[0].is_some();
    // Linux takes none for an empty one.
    while !envp.is_null() {
        if arg::is_nowhere(envp) {
            return None;
        }
        // SAFETY: the array ends with a null, which was not seen yet.
        let entry = unsafe { *envp.add(count) };
        if entry.is_null() {
            break;
        }
        if arg::is_nowhere(entry) {
            return None;
        }
        count += 1;
        // SAFETY: a C string, by contract.
        let entry: &'a [u8] = unsafe { CStr::from_ptr(entry) }.to_bytes();
        let lacks_order = |options: &[u8]| !contains(options, config::ASAN_ORDER);
        if is_preloaded && entry.strip_prefix(config::ASAN_VARIABLE).is_some_and(lacks_order) {
            asan = Some((count - 1, entry));
        }
        config::leave_out(&mut missing, entry);
        for ours in &mut missing {
            if ours.is_some_and(|ours| same_name(ours.to_bytes(), entry)) {
                *ours = None;
            }
        }
    }
    let complete = asan.is_none() && missing.iter().all(Option::is_none);
    (!complete).then_some(Changes { count, missing, asan })
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Whether two `NAME=value` entries have the same name.
fn same_name(one: &[u8], other: &[u8]) -> bool {
    let name = |entry: &[u8]| entry.iter().position(|&byte| byte == b'=');
    match (name(one), name(other)) {
        (Some(a), Some(b)) => one[..a] == other[..b],
        _ => false,
    }
}

hooks! {
    /// `execve`
    ["execve"]
    fn execve(path: *const c_char, argv: Strings, envp: Strings) -> c_int {
        // SAFETY: the caller's own arguments; so below.
        unsafe { with_environment(Heir::Program, envp, |envp| real::execve(path, argv, envp)) }
    }

    /// `execv`
    ["execv"]
    fn execv(path: *const c_char, argv: Strings) -> c_int {
        // SAFETY: as above.
        unsafe { with_environment(Heir::Program, own(), |envp| real::execve(path, argv, envp)) }
    }

    /// `execvp`
    ["execvp"]
    fn execvp(file: *const c_char, argv: Strings) -> c_int {
        // SAFETY: as above.
        unsafe { with_environment(Heir::Program, own(), |envp| real::execvpe(file, argv, envp)) }
    }

    /// `execvpe`
    ["execvpe"]
    fn execvpe(file: *const c_char, argv: Strings, envp: Strings) -> c_int {
        // SAFETY: as above.
        unsafe { with_environment(Heir::Program, envp, |envp| real::execvpe(file, argv, envp)) }
    }

    /// `fexecve`
    ["fexecve"]
    fn fexecve(fd: c_int, argv: Strings, envp: Strings) -> c_int {
        own::settle_fd(&STATE, fd);
        // SAFETY: as above.
        unsafe { with_environment(Heir::Program, envp, |envp| real::fexecve(fd, argv, envp)) }
    }

    /// `execveat`
    ["execveat"]
    fn execveat(
        dir: c_int, path: *const c_char, argv: Strings, envp: Strings, flags: c_int
    ) -> c_int {
        own::settle_fd(&STATE, dir);
        // SAFETY: as above.
        unsafe {
            with_environment(Heir::Program, envp, |envp| {
                real::execveat(dir, path, argv, envp, flags)
            })
        }
    }

    /// `posix_spawn`
    ["posix_spawn"]
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: Strings, envp: Strings
    ) -> c_int {
        let heir = spawned_with(actions);
        let (actions, attributes) = (actions.cast(), attributes.cast());
        // SAFETY: as above.
        unsafe {
            with_environment(heir, envp, |envp| {
                real::posix_spawn(pid, path, actions, attributes, argv, envp)
            })
        }
    }

    /// `posix_spawnp`
    ["posix_spawnp"]
    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: Strings, envp: Strings
    ) -> c_int {
        let heir = spawned_with(actions);
        let (actions, attributes) = (actions.cast(), attributes.cast());
        // SAFETY: as above.
        unsafe {
            with_environment(heir, envp, |envp| {
                real::posix_spawnp(pid, file, actions, attributes, argv, envp)
            })
        }
    }
}

hooks! {
    /// `pidfd_spawn`
    ["pidfd_spawn"]
    fn pidfd_spawn(
        process: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: Strings, envp: Strings
    ) -> c_int {
        let heir = spawned_with(actions);
        let (actions, attributes) = (actions.cast(), attributes.cast());
        // SAFETY: as above.
        spawned(process, unsafe {
            with_environment(heir, envp, |envp| {
                real::pidfd_spawn(process, path, actions, attributes, argv, envp)
            })
        })
    }

    /// `pidfd_spawnp`
    ["pidfd_spawnp"]
    fn pidfd_spawnp(
        process: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        argv: Strings, envp: Strings
    ) -> c_int {
        let heir = spawned_with(actions);
        let (actions, attributes) = (actions.cast(), attributes.cast());
        // SAFETY: as above.
        spawned(process, unsafe {
            with_environment(heir, envp, |envp| {
                real::pidfd_spawnp(process, file, actions, attributes, argv, envp)
            })
        })
    }
}

/// The descriptor of a new process. A libc without these functions has -1 for a result, where
/// they return an error's number.
fn spawned(process: *const c_int, rc: c_int) -> c_int {
    if rc == 0 {
        // SAFETY: the call wrote it.
        super::number::made(unsafe { *process });
    }
    if rc < 0 { libc::ENOSYS } else { rc }
}

/// What became of the C list of arguments of `execl` and its like: the first in five registers, the
/// rest on the stack.
struct List {
    registers: Strings,
    stack: Strings,
}

/// Arguments in registers, beside the path.
const REGISTERS: usize = 5;

impl List {
    /// # Safety
    ///
    /// `at` is at most the place of the null that ends the list.
    unsafe fn get(&self, at: usize) -> *const c_char {
        // SAFETY: by contract, the argument was passed, and is where the C convention puts it.
        unsafe {
            match at.checked_sub(REGISTERS) {
                None => *self.registers.add(at),
                Some(at) => *self.stack.add(at),
            }
        }
    }

    /// How many there are before the null.
    ///
    /// # Safety
    ///
    /// The list ends with a null.
    unsafe fn count(&self) -> usize {
        let mut count = 0;
        // SAFETY: by contract; the null was not seen yet.
        while !unsafe { self.get(count) }.is_null() {
            count += 1;
        }
        count
    }

    /// Calls `exec` with the list as an array.
    ///
    /// # Safety
    ///
    /// The list ends with a null.
    unsafe fn with_array(&self, exec: impl FnOnce(Strings) -> c_int) -> c_int {
        // SAFETY: by contract.
        let count = unsafe { self.count() };
        let len = (count + 1) * size_of::<*const c_char>();
        let Some(array) = Scratch::new(len) else { return super::failed(libc::ENOMEM) };
        let target: *mut *const c_char = array.start().cast();
        // SAFETY: room for all of them; the null at the end is there, since scratch memory is zero.
        (0..count).for_each(|n| unsafe { target.add(n).write(self.get(n)) });
        exec(target)
    }
}

extern "C" fn execl(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: called by the hook below with the arguments of execl; so the others.
    unsafe { List { registers, stack }.with_array(|argv| execv(path, argv)) }
}

extern "C" fn execlp(file: *const c_char, registers: Strings, stack: Strings) -> c_int {
    // SAFETY: as above.
    unsafe { List { registers, stack }.with_array(|argv| execvp(file, argv)) }
}

extern "C" fn execle(path: *const c_char, registers: Strings, stack: Strings) -> c_int {
    let list = List { registers, stack };
    // SAFETY: as above; the environment follows the null.
    unsafe {
        let envp = list.get(list.count() + 1).cast();
        list.with_array(|argv| execve(path, argv, envp))
    }
}

/// `"name" body;`: exports a variadic function that hands its list to `body`.
macro_rules! lists {
    ($($name:literal $body:ident;)*) => {$(
        const _: () = {
            #[cfg(target_arch = "x86_64")]
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn hook() {
                // The list is what the registers after the first hold, and the stack above the
                // return address.
                std::arch::naked_asm!(
                    "push rbp",
                    "mov rbp, rsp",
                    "sub rsp, 48",
                    "mov [rsp], rsi",
                    "mov [rsp + 8], rdx",
                    "mov [rsp + 16], rcx",
                    "mov [rsp + 24], r8",
                    "mov [rsp + 32], r9",
                    "mov rsi, rsp",
                    "lea rdx, [rbp + 16]",
                    "call {body}",
                    "leave",
                    "ret",
                    body = sym $body,
                )
            }
        };
    )*};
}

lists! {
    "execl" execl;
    "execlp" execlp;
    "execle" execle;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_whole() {
        assert!(same_name(b"LD_PRELOAD=a", b"LD_PRELOAD="));
        assert!(!same_name(b"LD_PRELOAD=a", b"LD_PRELOAD_X=a"));
        assert!(!same_name(b"LD_PRELOAD=a", b"LD_PRELOAD"));
    }
}

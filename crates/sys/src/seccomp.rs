//! A filter of system calls that leaves privileges as they are: rules for a whole tree of
//! processes, whose set-id programs go on working.
//!
//! Programs of the machine's other calling conventions (32-bit ones) pass the same filter.
#![expect(unsafe_code, reason = "UNSAFETY: seccomp(2) with a program of BPF")]

use polylane_base::{Errno, Result};

/// Where `struct seccomp_data` has the call's number, its convention, and the low words of its
/// arguments.
const NUMBER: u32 = 0;
const CONVENTION: u32 = 4;
const FIRST_ARGUMENT: u32 = 16;
const SECOND_ARGUMENT: u32 = 24;

/// Calling conventions of linux/audit.h, each with the number of ioctl(2) in it.
#[cfg(target_arch = "x86_64")]
const IOCTL: [(u32, &[u32]); 2] = [
    // x86-64 and, by a bit of the number, x32.
    (0xc000_003e, &[16, 0x4000_0000 | 514]),
    // i386.
    (0x4000_0003, &[54]),
];
#[cfg(target_arch = "aarch64")]
const IOCTL: [(u32, &[u32]); 2] = [(0xc000_00b7, &[29]), (0x4000_0028, &[54])];

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn step(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn branch(value: u32, equal: usize, other: usize) -> libc::sock_filter {
    libc::sock_filter { code: EQUAL, jt: equal as u8, jf: other as u8, k: value }
}

/// For each convention: is it this one, and the call ioctl, then look at the request.
fn program(requests: &[u32]) -> Vec<libc::sock_filter> {
    let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
    let mut steps = vec![step(LOAD, CONVENTION)];
    for (convention, numbers) in IOCTL {
        // The load, a look at each number, a way out, the load, a look at each request, two ends.
        steps.push(branch(convention, 0, numbers.len() + requests.len() + 5));
        steps.push(step(LOAD, NUMBER));
        for (index, number) in numbers.iter().enumerate() {
            steps.push(branch(*number, numbers.len() - index, 0));
        }
        steps.push(step(RETURN, libc::SECCOMP_RET_ALLOW));
        steps.push(step(LOAD, SECOND_ARGUMENT));
        for (index, request) in requests.iter().enumerate() {
            steps.push(branch(*request, requests.len() - index, 0));
        }
        steps.push(step(RETURN, libc::SECCOMP_RET_ALLOW));
        steps.push(step(RETURN, refused));
    }
    steps.push(step(RETURN, libc::SECCOMP_RET_ALLOW));
    steps
}

/// From now on this thread and what it starts get `EPERM` for these requests of ioctl(2), at most
/// 16. Other calls take some 65 ns more: the kernel knows by their number that the filter lets
/// them pass, but looks whether there is one.
///
/// # Errors
/// `EACCES` without CAP_SYS_ADMIN in the own user namespace, `EINVAL` in a kernel without filters
/// or for too many requests.
pub fn refuse_ioctls(requests: &[u32]) -> Result<()> {
    if requests.len() > 16 {
        return Err(Errno::EINVAL);
    }
    install(&mut program(requests), libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW)
}

/// What the strict mode of seccomp allows.
const STRICT: [libc::c_long; 4] =
    [libc::SYS_read, libc::SYS_write, libc::SYS_exit, libc::SYS_rt_sigreturn];

/// For the machine's own convention: one of the few calls, or this process's own end. No memory is
/// taken: to give it back would be a call that is not left any more.
fn strict_program(process: u32) -> [libc::sock_filter; 14] {
    const TRAP: usize = 12;
    const ALLOW: usize = 13;
    let (convention, _) = IOCTL[0];
    let few = |index: usize| branch(STRICT[index] as u32, ALLOW - (3 + index) - 1, 0);
    [
        step(LOAD, CONVENTION),
        branch(convention, 0, TRAP - 1 - 1),
        step(LOAD, NUMBER),
        few(0),
        few(1),
        few(2),
        few(3),
        branch(libc::SYS_kill as u32, 0, TRAP - 7 - 1),
        step(LOAD, FIRST_ARGUMENT),
        branch(process, 0, TRAP - 9 - 1),
        step(LOAD, SECOND_ARGUMENT),
        branch(libc::SIGKILL.unsigned_abs(), ALLOW - 11 - 1, 0),
        step(RETURN, libc::SECCOMP_RET_TRAP),
        step(RETURN, libc::SECCOMP_RET_ALLOW),
    ]
}

/// The strict mode of seccomp for a thread that is under a filter, beside which the kernel has
/// none: read, write, exit and the return from signal handlers are left. Any other call raises
/// `SIGSYS`, whose handler can end this process, `process`, by kill(2) with `SIGKILL`; where it
/// has none, that signal ends it. Sets `no_new_privs`.
///
/// # Errors
/// `EINVAL` in a kernel without filters.
pub fn allow_strict_calls(process: u32) -> Result<()> {
    rustix::thread::set_no_new_privs(true).map_err(|error| Errno(error.raw_os_error()))?;
    install(&mut strict_program(process), 0)
}

fn install(steps: &mut [libc::sock_filter], flags: libc::c_ulong) -> Result<()> {
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose address and length are right, during the call.
    let rc = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter)
    };
    match rc {
        0 => Ok(()),
        _ => Err(Errno::from(std::io::Error::last_os_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a filter says to a call, as linux/filter.h defines its steps.
    fn run(steps: &[libc::sock_filter], convention: u32, number: u32, request: u32) -> u32 {
        run_with(steps, (convention, number), [0, request])
    }

    fn run_with(
        steps: &[libc::sock_filter],
        (convention, number): (u32, u32),
        arguments: [u32; 2],
    ) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = steps[at];
            at += 1;
            match code {
                LOAD if k == CONVENTION => value = convention,
                LOAD if k == NUMBER => value = number,
                LOAD => value = arguments[(k - FIRST_ARGUMENT) as usize / 8],
                EQUAL => at += usize::from(if value == k { jt } else { jf }),
                _ => return k,
            }
        }
    }

    #[test]
    fn the_strict_mode_leaves_four_calls_and_the_own_end() {
        let steps = strict_program(77);
        let (own, _) = IOCTL[0];
        let (allow, trap) = (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_TRAP);
        let kill = libc::SIGKILL.unsigned_abs();
        for number in 0..600 {
            let few = STRICT.contains(&libc::c_long::from(number));
            for arguments in [[77, kill], [77, 15], [78, kill], [0, 0]] {
                let ends = libc::c_long::from(number) == libc::SYS_kill && arguments == [77, kill];
                let expected = if few || ends { allow } else { trap };
                let got = run_with(&steps, (own, number), arguments);
                assert_eq!(got, expected, "{number} {arguments:?}");
                assert_eq!(run_with(&steps, (own ^ 1, number), arguments), trap);
            }
        }
    }

    #[test]
    fn these_requests_of_ioctl_are_refused_by_every_convention_and_nothing_else() {
        let requests = [0x5412, 0x541c];
        let steps = program(&requests);
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs();
        for (convention, numbers) in IOCTL {
            for number in (0..600).chain(numbers.iter().copied()) {
                for request in [0x5401, 0x5412, 0x5413, 0x541c, 0] {
                    let refuses = numbers.contains(&number) && requests.contains(&request);
                    let expected = if refuses { refused } else { libc::SECCOMP_RET_ALLOW };
                    let got = run(&steps, convention, number, request);
                    assert_eq!(got, expected, "{convention:x} {number} {request:x}");
                }
            }
        }
        assert_eq!(run(&steps, 1, 16, 0x5412), libc::SECCOMP_RET_ALLOW, "an unknown convention");
    }
}

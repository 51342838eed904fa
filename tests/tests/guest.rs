//! Other kernels than the host's, in guests: `polylane attach` with the kernel's file systems, and
//! lanes whose services are killed.

use polylane_tests::binary;
use polylane_tests::guest::{Guest, Kernel, Kit};

/// What the guest's disk holds, sparse.
const DISK_BYTES: u64 = 3 << 30;

/// What a front end cannot do on a kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lacks {
    Nothing,
    /// Requests that an engine has taken when it is killed fail.
    Recovery,
    /// Devices have one size.
    Growth,
}

/// Runs `tests/guest/attach.sh` for a front end.
fn attach(test: &str, kernel: Kernel, via: &str, lacks: Lacks) {
    let Some(kit) = Kit::find(test, kernel) else { return };
    let word = |has: bool| if has { "yes" } else { "no" };
    let (recovers, grows) = (word(lacks != Lacks::Recovery), word(lacks != Lacks::Growth));
    let steps = include_str!("../guest/attach.sh");
    let script = format!("VIA={via} RECOVERS={recovers} GROWS={grows}\n{steps}");
    let name = format!("attach-{via}-{kernel:?}").to_lowercase();
    let guest = Guest::new(&kit, &name, &script).program(&binary()).disk(DISK_BYTES);
    let printed = guest.limit(900).run();
    let steps = printed.lines().filter(|line| line.starts_with("ok ")).count();
    // Six steps, and one for each file system that the kernel has.
    assert!(steps > 6, "{steps} steps: {printed}");
}

#[test]
fn fuse_and_a_loop_device_before_linux_6_9() {
    let test = "fuse_and_a_loop_device_before_linux_6_9";
    attach(test, Kernel::Stable, "loop", Lacks::Recovery);
}

#[test]
fn the_kernels_nbd_client() {
    attach("the_kernels_nbd_client", Kernel::Stable, "nbd", Lacks::Nothing);
}

#[test]
fn ublk() {
    attach("ublk", Kernel::Backports, "ublk", Lacks::Growth);
}

/// The kernel of Debian 12 sends no request again (Linux 6.9 does).
#[test]
fn a_killed_service_leaves_nobody_hanging_before_linux_6_9() {
    let test = "a_killed_service_leaves_nobody_hanging_before_linux_6_9";
    let Some(kit) = Kit::find(test, Kernel::Stable) else { return };
    let guest = Guest::new(&kit, "restart", include_str!("../guest/restart.sh"));
    let printed = guest.program(&binary()).disk(DISK_BYTES).limit(600).run();
    let steps = printed.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(steps, 3, "{printed}");
}

#[test]
fn a_lane_goes_on_while_the_clock_is_set() {
    let test = "a_lane_goes_on_while_the_clock_is_set";
    let Some(kit) = Kit::find(test, Kernel::Stable) else { return };
    let guest = Guest::new(&kit, "clock", include_str!("../guest/clock.sh"));
    let printed = guest.program(&binary()).disk(DISK_BYTES).limit(600).run();
    let steps = printed.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(steps, 5, "{printed}");
}

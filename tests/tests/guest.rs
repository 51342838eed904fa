//! `polylane attach` on other kernels than the host's: in guests, with the kernel's file systems.

use polylane_tests::binary;
use polylane_tests::guest::{Guest, Kernel, Kit};

/// What the guest's disk holds, sparse.
const DISK_BYTES: u64 = 3 << 30;

/// Runs `tests/guest/attach.sh` for a front end; `recovers`: nothing is lost with an engine.
fn attach(test: &str, kernel: Kernel, via: &str, recovers: bool) {
    let Some(kit) = Kit::find(test, kernel) else { return };
    let recovers = if recovers { "yes" } else { "no" };
    let steps = include_str!("../guest/attach.sh");
    let script = format!("VIA={via} RECOVERS={recovers}\n{steps}");
    let name = format!("attach-{via}-{kernel:?}").to_lowercase();
    let guest = Guest::new(&kit, &name, &script).program(&binary()).disk(DISK_BYTES);
    let printed = guest.limit(300).run();
    let steps = printed.lines().filter(|line| line.starts_with("ok ")).count();
    // Four steps, and one for each file system that the kernel has.
    assert!(steps > 4, "{steps} steps: {printed}");
}

#[test]
fn fuse_and_a_loop_device_before_linux_6_9() {
    // Requests that an engine has taken when it is killed fail there.
    attach("fuse_and_a_loop_device_before_linux_6_9", Kernel::Stable, "loop", false);
}

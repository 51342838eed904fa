//! Commands to the driver, each through a ring of its own: they are rare.
#![expect(unsafe_code, reason = "UNSAFETY: hands addresses of borrowed memory to the kernel")]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use polylane_base::{Errno, Result};
use rustix::fs::{Mode, OFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::{Geometry, SECTOR_BYTES};

/// Where devices are made.
pub const CONTROL: &str = "/dev/ublk-control";

/// A server that died can be replaced, requests that it had are sent again, and commands are
/// encoded as this module does it: what is asked of a kernel.
const WANTED: Features = Features::USER_RECOVERY
    .union(Features::USER_RECOVERY_REISSUE)
    .union(Features::CMD_IOCTL_ENCODE);

/// How long a control command may take.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(30);

bitflags::bitflags! {
    /// `UBLK_F_*`
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Features: u64 {
        const USER_RECOVERY = 1 << 3;
        const USER_RECOVERY_REISSUE = 1 << 4;
        const CMD_IOCTL_ENCODE = 1 << 6;
        const UPDATE_SIZE = 1 << 10;
        const NO_AUTO_PART_SCAN = 1 << 18;
        // Kernels may have others.
        const _ = !0;
    }

    /// `UBLK_ATTR_*`
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Attributes: u32 {
        const READ_ONLY = 1 << 0;
        const VOLATILE_CACHE = 1 << 2;
        const FUA = 1 << 3;
    }
}

/// `UBLK_U_CMD_*`: `_IOR` or `_IOWR` of 'u', a number and a [`ControlCommand`].
mod number {
    const fn read(number: u32) -> u32 {
        0x8020_7500 | number
    }
    const fn both(number: u32) -> u32 {
        0xc020_7500 | number
    }
    pub(super) const GET_DEV_INFO: u32 = read(0x02);
    pub(super) const ADD_DEV: u32 = both(0x04);
    pub(super) const DEL_DEV: u32 = both(0x05);
    pub(super) const START_DEV: u32 = both(0x06);
    pub(super) const STOP_DEV: u32 = both(0x07);
    pub(super) const SET_PARAMS: u32 = both(0x08);
    pub(super) const START_USER_RECOVERY: u32 = both(0x10);
    pub(super) const END_USER_RECOVERY: u32 = both(0x11);
    pub(super) const GET_FEATURES: u32 = read(0x13);
    pub(super) const UPDATE_SIZE: u32 = both(0x15);
}

/// `struct ublksrv_ctrl_cmd`.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct ControlCommand {
    device: u32,
    queue: u16,
    len: u16,
    addr: u64,
    data: u64,
    path_len: u16,
    pad: u16,
    reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`.
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes)]
struct DeviceInfo {
    queues: u16,
    depth: u16,
    state: u16,
    pad0: u16,
    transfer_bytes: u32,
    device: u32,
    pid: i32,
    pad1: u32,
    flags: u64,
    /// The server's own.
    tag: u64,
    owner_uid: u32,
    owner_gid: u32,
    reserved: [u64; 2],
}

/// The first parts of `struct ublk_params`, which says itself how long it is.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes)]
struct Parameters {
    len: u32,
    types: u32,
    attributes: u32,
    logical_shift: u8,
    physical_shift: u8,
    optimal_shift: u8,
    minimal_shift: u8,
    sectors_max: u32,
    chunk_sectors: u32,
    sectors: u64,
    boundary_mask: u64,
    discard_alignment: u32,
    discard_granularity: u32,
    discard_sectors_max: u32,
    zero_sectors_max: u32,
    discard_segments_max: u16,
    reserved: u16,
    /// Not the kernel's.
    unused: u32,
}

/// `UBLK_PARAM_TYPE_*`, of what is in [`Parameters`].
const TYPES: u32 = 1 | 2;
const PARAMETER_BYTES: u32 = 60;

const _: () = assert!(size_of::<ControlCommand>() == 32);
const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<Parameters>() == 64);

/// How a device stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It was not started yet, or is stopped.
    Dead,
    /// Its server serves.
    Live,
    /// It waits for another server.
    Quiesced,
    /// None of these.
    Other,
}

/// The line to the driver. Its commands need CAP_SYS_ADMIN.
#[derive(Debug)]
pub struct Control<F>(pub F);

impl Control<OwnedFd> {
    /// Opens it.
    ///
    /// # Errors
    /// `ENOENT` where there is no ublk, `EOPNOTSUPP` where it cannot replace a server that died;
    /// the kernel's others.
    pub fn open() -> Result<Control<OwnedFd>> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let opened = rustix::fs::open(CONTROL, flags, Mode::empty());
        let control = Control(opened.map_err(|error| Errno(error.raw_os_error()))?);
        let features = control.features()?;
        if features.contains(WANTED) { Ok(control) } else { Err(Errno::EOPNOTSUPP) }
    }
}

impl<F: AsFd> Control<F> {
    fn features(&self) -> Result<Features> {
        let mut features = 0u64;
        let command = ControlCommand { len: 8, ..self.command(u32::MAX) };
        self.with(number::GET_FEATURES, command, &mut features)?;
        Ok(Features::from_bits_retain(features))
    }

    /// Whether devices can get another size while they are in use (Linux 6.16).
    pub fn resizes(&self) -> bool {
        self.features().is_ok_and(|features| features.contains(Features::UPDATE_SIZE))
    }

    /// Makes a device that is not there for others yet; its number. `tag` can be [asked
    /// for](Control::state). Where the kernel leaves that to others, it looks for no partitions.
    ///
    /// # Errors
    /// The kernel's.
    pub fn add(&self, geometry: Geometry, tag: u64) -> Result<u32> {
        let mut info = DeviceInfo {
            queues: geometry.queues,
            depth: geometry.depth,
            transfer_bytes: geometry.transfer_bytes,
            device: u32::MAX,
            flags: (WANTED | self.features()? & Features::NO_AUTO_PART_SCAN).bits(),
            tag,
            ..DeviceInfo::default()
        };
        let command = ControlCommand { len: 64, ..self.command(u32::MAX) };
        self.with(number::ADD_DEV, command, &mut info)?;
        Ok(info.device)
    }

    /// Says what a device is before it is started: size in sectors of 512 bytes, and that it caches
    /// writes until a flush.
    ///
    /// # Errors
    /// `EACCES` when it was started; the kernel's others.
    pub fn describe(
        &self,
        device: u32,
        geometry: Geometry,
        sectors: u64,
        read_only: bool,
    ) -> Result<()> {
        let most = u32::MAX / SECTOR_BYTES;
        let mut attributes = Attributes::VOLATILE_CACHE | Attributes::FUA;
        attributes.set(Attributes::READ_ONLY, read_only);
        let mut parameters = Parameters {
            len: PARAMETER_BYTES,
            types: TYPES,
            attributes: attributes.bits(),
            logical_shift: 9,
            physical_shift: 12,
            optimal_shift: 12,
            minimal_shift: 12,
            sectors_max: geometry.transfer_bytes / SECTOR_BYTES,
            chunk_sectors: 0,
            sectors,
            boundary_mask: 0,
            discard_alignment: 0,
            discard_granularity: 4096,
            discard_sectors_max: most,
            zero_sectors_max: most,
            discard_segments_max: 1,
            reserved: 0,
            unused: 0,
        };
        let command = ControlCommand { len: PARAMETER_BYTES as u16, ..self.command(device) };
        self.with(number::SET_PARAMS, command, &mut parameters)
    }

    /// Puts a device there for everybody, once all of its queues are served by `pid`. Reads from
    /// it.
    ///
    /// # Errors
    /// `ETIMEDOUT` when they are not; the kernel's others.
    pub fn start(&self, device: u32, pid: u32) -> Result<()> {
        let command = ControlCommand { data: pid.into(), ..self.command(device) };
        self.execute(number::START_DEV, command)
    }

    /// Takes a device away; its server is told. What nobody serves fails.
    ///
    /// # Errors
    /// `ENODEV` when it is not there; the kernel's others.
    pub fn stop(&self, device: u32) -> Result<()> {
        self.execute(number::STOP_DEV, self.command(device))
    }

    /// Gives a device's number back, once no server has it open.
    ///
    /// # Errors
    /// `ETIMEDOUT` when one has; as [`stop`](Control::stop).
    pub fn delete(&self, device: u32) -> Result<()> {
        self.execute(number::DEL_DEV, self.command(device))
    }

    /// How a device stands, and its tag.
    ///
    /// # Errors
    /// `ENODEV` when it is not there; the kernel's others.
    pub fn state(&self, device: u32) -> Result<(State, u64)> {
        let mut info = DeviceInfo::default();
        let command = ControlCommand { len: 64, ..self.command(device) };
        self.with(number::GET_DEV_INFO, command, &mut info)?;
        let state = match info.state {
            0 => State::Dead,
            1 => State::Live,
            2 => State::Quiesced,
            _ => State::Other,
        };
        Ok((state, info.tag))
    }

    /// Makes a device ready for another server.
    ///
    /// # Errors
    /// `EBUSY` as long as the driver has not noticed that the last one is gone; the kernel's
    /// others.
    pub fn begin_recovery(&self, device: u32) -> Result<()> {
        self.execute(number::START_USER_RECOVERY, self.command(device))
    }

    /// Lets a device go on, once all of its queues are served by `pid`.
    ///
    /// # Errors
    /// As [`start`](Control::start).
    pub fn end_recovery(&self, device: u32, pid: u32) -> Result<()> {
        let command = ControlCommand { data: pid.into(), ..self.command(device) };
        self.execute(number::END_USER_RECOVERY, command)
    }

    /// Gives a device another size, in sectors of 512 bytes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` before Linux 6.16; the kernel's others.
    pub fn resize(&self, device: u32, sectors: u64) -> Result<()> {
        let command = ControlCommand { data: sectors, ..self.command(device) };
        self.execute(number::UPDATE_SIZE, command)
    }

    fn command(&self, device: u32) -> ControlCommand {
        ControlCommand {
            device,
            queue: u16::MAX,
            len: 0,
            addr: 0,
            data: 0,
            path_len: 0,
            pad: 0,
            reserved: 0,
        }
    }

    /// A command with something that the kernel reads or fills, `command.len` bytes of it. Any
    /// bytes are a `T`, whatever the kernel writes.
    fn with<T: FromBytes + IntoBytes>(
        &self,
        op: u32,
        command: ControlCommand,
        memory: &mut T,
    ) -> Result<()> {
        assert!(usize::from(command.len) <= size_of::<T>(), "no more than there is");
        let addr = std::ptr::from_mut(memory) as u64;
        // None of these waits for anybody: it is over when this returns.
        self.perform(op, ControlCommand { addr, ..command }, None)
    }

    /// A command without memory.
    fn execute(&self, op: u32, command: ControlCommand) -> Result<()> {
        self.perform(op, command, Some(COMMAND_TIME_MAX))
    }

    fn perform(&self, op: u32, command: ControlCommand, limit: Option<Duration>) -> Result<()> {
        let mut ring = IoUring::<Entry128, cqueue::Entry>::builder().build(1)?;
        let mut bytes = [0; 80];
        let command = command.as_bytes();
        bytes[..command.len()].copy_from_slice(command);
        let entry = opcode::UringCmd80::new(Fd(self.0.as_fd().as_raw_fd()), op).cmd(bytes).build();
        // SAFETY: the memory that the command points to, if any, is borrowed by `with`, which sets
        // no limit. Without one this returns only when the command is over, or when the kernel has
        // not taken it out of the ring, which ends here: then it never begins.
        let pushed = unsafe { ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "an empty ring has room");
        let begin = Instant::now();
        loop {
            let waited = match limit {
                None => ring.submit_and_wait(1),
                Some(limit) => {
                    let left = limit.checked_sub(begin.elapsed()).ok_or(Errno::ETIMEDOUT)?;
                    let left = Timespec::from(left);
                    ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&left))
                }
            };
            if let Some(completion) = ring.completion().next() {
                return match completion.result() {
                    0.. => Ok(()),
                    error => Err(Errno(-error)),
                };
            }
            let Err(error) = waited else { continue };
            let must_wait = limit.is_none() && ring.submission().is_empty();
            let goes_on = matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME));
            if !goes_on && !must_wait {
                return Err(error.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_ublk_says_so() {
        let opened = Control::open().map(drop);
        let refused = [Errno::ENOENT, Errno::EPERM, Errno::EACCES, Errno::EOPNOTSUPP];
        assert!(opened.is_ok() || opened.is_err_and(|error| refused.contains(&error)));
    }

    #[test]
    fn what_is_no_driver_takes_no_commands() {
        let file = tempfile::tempfile().expect("a file");
        let said = Control(&file).state(0).expect_err("not a ublk device");
        assert!(matches!(said, Errno::EOPNOTSUPP | Errno::EPERM | Errno::ENOSYS), "{said:?}");
    }
}

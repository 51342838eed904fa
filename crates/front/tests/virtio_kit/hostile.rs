//! A guest that does what its input says: descriptors, rings, messages and memory for requests
//! under way, anything in them; some of it right, so that it reaches far.
//!
//! The input is a list of commands, one byte each and operands after it; what is missing at its end
//! is zero. The table is [`Guest::command`].
//!
//! # Oracle
//!
//! - No thread of the server panics.
//! - Nothing is read or written but what the guest named: a [`Secret`] in the guest's memory, whose
//!   address no command can make, is neither changed nor ever on the device.
//! - While the guest keeps to its rings, nothing is answered that it did not ask for.
//! - Whatever it did, the next guest is served.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use memchr::memmem;
use polylane_front::vhost_user::driver::{Driver, DriverQueue, Kind};
use polylane_sys::region::Region;
use vhost::vhost_user::{VhostUserFrontend, message::VhostUserConfigFlags};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};

use super::{House, SHAPE, panics};

/// Commands of one input, at most.
const COMMANDS_MAX: usize = 200;
/// Descriptors of a ring of [`SHAPE`].
const DESCRIPTORS: u64 = 32;
/// Where the secret lies in the guest's memory: no sum of the addresses that commands use.
const SECRET_ADDRESS: u64 = 0x1ec2_e7be_0000_0000;
const SECRET_BYTES: usize = 16 << 10;
/// Eight bytes that nobody else writes.
const SECRET_WORD: u64 = 0x5ec2_e7be_ef5e_c2e7;

/// Memory of the guest that it names in no descriptor.
pub struct Secret {
    memory: Region,
    fd: OwnedFd,
}

impl Secret {
    pub fn new() -> Secret {
        let (memory, fd) = Region::create("virtio-secret", SECRET_BYTES).expect("memory");
        let word = SECRET_WORD.to_le_bytes();
        (0..SECRET_BYTES).step_by(8).for_each(|at| memory.copy_in(at, &word));
        Secret { memory, fd }
    }

    fn region(&self) -> VhostUserMemoryRegionInfo {
        VhostUserMemoryRegionInfo {
            guest_phys_addr: SECRET_ADDRESS,
            memory_size: SECRET_BYTES as u64,
            userspace_addr: self.memory.address(0),
            mmap_offset: 0,
            mmap_handle: self.fd.as_raw_fd(),
        }
    }

    fn check(&self, house: &House) {
        let mut now = vec![0; SECRET_BYTES];
        self.memory.copy_out(0, &mut now);
        let word = SECRET_WORD.to_le_bytes();
        assert!(now == word.repeat(SECRET_BYTES / 8), "memory changed that nobody named");
        let found = memmem::find(&house.content(), &word);
        assert_eq!(found, None, "memory was read that nobody named");
    }
}

/// The rest of an input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn half(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn below(&mut self, bound: u64) -> u64 {
        u64::from(self.half()) % bound
    }

    /// An address in the guest's memory, at its end, or outside; never the secret's.
    fn address(&mut self, memory_bytes: u64) -> u64 {
        match self.byte() % 8 {
            0 => memory_bytes - self.below(64),
            1 => 1 << 40 | u64::from(self.half()),
            2 => u64::MAX - u64::from(self.byte()),
            // Among descriptors, so that tables are found.
            3 => self.below(DESCRIPTORS) * 16,
            _ => self.below(memory_bytes.min(1 << 16)),
        }
    }

    fn len(&mut self) -> u32 {
        match self.byte() % 8 {
            0 => [0, 1, 15, 16, 17, 4 << 20, u32::MAX, 1 << 31][usize::from(self.byte() % 8)],
            1 => u32::from(self.half()),
            2 => u32::from(self.byte() % 64) * 16,
            _ => u32::from(self.byte() % 17) * 512,
        }
    }
}

/// A connected guest.
struct Guest<'a> {
    house: &'a House,
    secret: &'a Secret,
    driver: Driver,
    /// Chains made available, and answers seen, of its first queue.
    pushed: u64,
    answered: u64,
    /// It said nothing about its rings that is not so.
    honest: bool,
}

/// Plays an input against the server and judges.
pub fn play(house: &House, secret: &Secret, input: &[u8]) {
    let mut guest =
        Guest { house, secret, driver: house.connect(), pushed: 0, answered: 0, honest: true };
    guest.share_secret();
    let mut input = Input(input);
    for _ in 0..COMMANDS_MAX {
        if input.0.is_empty() {
            break;
        }
        guest.command(&mut input);
    }
    guest.take();
    drop(guest);
    assert_eq!(panics(), 0, "the server panicked");
    let mut next = house.connect();
    for queue in next.queues() {
        queue.set_data(0, &[7; 512]);
        for kind in [Kind::Write, Kind::Read, Kind::Flush] {
            assert_eq!(queue.execute(kind, 9, 512).expect("the next guest is served"), 0);
        }
    }
    drop(next);
    secret.check(house);
}

impl Guest<'_> {
    fn share_secret(&mut self) {
        let regions = [self.driver.region(), self.secret.region()];
        let _ = self.driver.frontend().set_mem_table(&regions);
    }

    fn queue(&mut self) -> &mut DriverQueue {
        &mut self.driver.queues()[0]
    }

    fn command(&mut self, input: &mut Input) {
        match input.byte() % 16 {
            0..=3 => self.descriptor(input),
            4 | 5 => self.request(input),
            6 | 7 => {
                let head = input.below(DESCRIPTORS + 2) as u16;
                self.push(head);
            }
            8 => drop(self.queue().kick()),
            9 => self.take(),
            10 => self.queue().wait(1),
            11 => {
                self.honest = false;
                let index = input.half();
                self.queue().set_available(index);
            }
            12 | 13 => self.message(input),
            14 => self.scribble(input),
            _ => {
                let _ = self.driver.reconnect(&self.house.path);
                self.share_secret();
            }
        }
    }

    fn push(&mut self, head: u16) {
        self.pushed += 1;
        self.queue().push(head);
    }

    /// Any descriptor, in the ring's table or in a slot's data.
    fn descriptor(&mut self, input: &mut Input) {
        let memory_bytes = self.driver.region().memory_size;
        let index = usize::from(input.byte() % DESCRIPTORS as u8);
        let (address, len) = (input.address(memory_bytes), input.len());
        let (flags, next) = (u16::from(input.byte() % 8), input.below(DESCRIPTORS + 2) as u16);
        self.queue().set_descriptor(index, address, len, flags, next);
    }

    /// A right request, to which other commands may do something before it is seen.
    fn request(&mut self, input: &mut Input) {
        let kinds =
            [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard, Kind::WriteZeroes, Kind::Serial];
        let slot = usize::from(input.byte() % SHAPE.depth as u8);
        let kind = kinds[usize::from(input.byte()) % kinds.len()];
        let (sector, bytes) = (u64::from(input.half()), input.len());
        self.queue().build(slot, kind, sector, bytes);
        if input.byte().is_multiple_of(2) {
            self.push((slot * 3) as u16);
            let _ = self.queue().notify();
        }
    }

    fn take(&mut self) {
        while self.queue().take().is_some() {
            self.answered += 1;
            if self.honest {
                let (answered, pushed) = (self.answered, self.pushed);
                assert!(answered <= pushed, "{answered} answers to {pushed} chains");
            } else if self.answered > 1 << 17 {
                break;
            }
        }
    }

    /// A message that a driver does not send at this time, or with these words.
    fn message(&mut self, input: &mut Input) {
        self.honest = false;
        let queue = usize::from(input.byte() % 5);
        let (word, base) = (input.half(), self.driver.region().userspace_addr);
        let writable = VhostUserConfigFlags::WRITABLE;
        let frontend = self.driver.frontend();
        let _ = match input.byte() % 10 {
            0 => frontend.set_vring_num(queue, word).is_ok(),
            1 => frontend.set_vring_base(queue, word).is_ok(),
            2 => frontend.get_vring_base(queue).is_ok(),
            3 => frontend.set_vring_enable(queue, word % 2 == 0).is_ok(),
            4 => {
                let at = |offset: u16| base.wrapping_add(u64::from(offset));
                let addresses = VringConfigData {
                    queue_max_size: 32,
                    queue_size: 32,
                    flags: 0,
                    desc_table_addr: at(word & !15),
                    used_ring_addr: at(input.half() & !3),
                    avail_ring_addr: at(input.half() & !1),
                    log_addr: None,
                };
                frontend.set_vring_addr(queue, &addresses).is_ok()
            }
            5 => frontend.set_config(u32::from(word % 64), writable, &[1]).is_ok(),
            6 => {
                // The crate's frontend waits for ever for what lies past the end.
                let flags = VhostUserConfigFlags::empty();
                frontend.get_config(u32::from(word) % 248, 8, flags, &[0; 8]).is_ok()
            }
            7 => frontend.set_features(u64::from(word) << 16).is_ok(),
            8 => frontend.reset_owner().is_ok(),
            _ => {
                let region = self.driver.region();
                self.driver.frontend().remove_mem_region(&region).is_ok()
            }
        };
    }

    /// Anything in the memory for requests under way, as the next start finds it.
    fn scribble(&mut self, input: &mut Input) {
        self.honest = false;
        let (at, bytes) = (u64::from(input.half()), [input.byte(), input.byte()]);
        if let Some(file) = self.driver.inflight() {
            let end = file.metadata().map_or(0, |stat| stat.len());
            let _ = file.write_at(&bytes, at % end.saturating_sub(2).max(1));
        }
    }
}

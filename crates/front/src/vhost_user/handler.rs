//! What the messages of a frontend do. One call after the other, by the session's thread.
//!
//! A ring runs while it has memory, a size, addresses, a descriptor to be kicked by, and is
//! enabled; whichever message brings the last of these starts it. What a running ring is made of
//! changes only with the ring stopped, and stopping waits for what is under way.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use polylane_base::sync::Arc;
use polylane_block::wait::Waiter;
use rustix::fs::OFlags;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures,
};
use virtio_queue::{Queue, QueueT};

use super::Export;
use super::config::{self, Features};
use super::inflight::{self, Inflight};
use super::memory::{Memory, REGIONS_MAX};
use super::ring::{Call, Setup, Worker};

/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`, version 1, no payload.
const CONFIG_CHANGE: [u8; 12] = [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];

/// Rings may be as large as the memory for requests under way.
const RING_SIZE_MAX: u16 = inflight::SIZE_MAX;

/// What the frontend said of one ring.
#[derive(Default)]
struct Ring {
    size: u16,
    base: u16,
    /// Descriptors, used, available, as the frontend's addresses.
    addresses: Option<[u64; 3]>,
    kick: Option<File>,
    call: Call,
    enabled: bool,
    worker: Option<Worker>,
}

impl Ring {
    /// Stops it; whether it ran.
    fn stop(&mut self) -> bool {
        match self.worker.take() {
            Some(worker) => {
                self.base = worker.stop();
                true
            }
            None => false,
        }
    }
}

/// One frontend's device.
pub(super) struct Handler {
    export: Export,
    features: Features,
    memory: Memory,
    rings: Vec<Ring>,
    /// What the guest set the switch of its write cache to.
    writeback: bool,
    /// Every write is durable when it is answered.
    durable: Arc<AtomicBool>,
    inflight: Option<Inflight>,
    /// Sectors that the frontend has read in this session.
    sectors_told: Option<u64>,
    /// The frontend knows another size, from an earlier process.
    behind: bool,
    /// For messages of ours.
    channel: Option<UnixStream>,
}

fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

/// A descriptor of the frontend's that reads and writes must not block on.
fn never_blocking(file: Option<File>) -> Result<Option<File>> {
    if let Some(file) = &file {
        let flags = rustix::fs::fcntl_getfl(file).map_err(other)?;
        rustix::fs::fcntl_setfl(file, flags | OFlags::NONBLOCK).map_err(other)?;
    }
    Ok(file)
}

impl Handler {
    pub(super) fn new(export: Export) -> Handler {
        let rings = (0..export.queues).map(|_| Ring::default()).collect();
        Handler {
            export,
            features: Features::empty(),
            memory: Memory::default(),
            rings,
            writeback: true,
            durable: Arc::new(AtomicBool::new(false)),
            inflight: None,
            sectors_told: None,
            behind: false,
            channel: None,
        }
    }

    /// Stops all rings; which ran.
    pub(super) fn stop(&mut self) -> Vec<bool> {
        self.rings.iter_mut().map(Ring::stop).collect()
    }

    /// Takes the line for messages of ours.
    pub(super) fn set_channel(&mut self, channel: OwnedFd) {
        let channel = UnixStream::from(channel);
        self.channel = channel.set_nonblocking(true).is_ok().then_some(channel);
    }

    /// Has the frontend read the configuration space again.
    pub(super) fn tell_config_change(&mut self) {
        if let Some(channel) = &mut self.channel {
            // A frontend that does not listen reads it when it starts again.
            let _ = channel.write_all(&CONFIG_CHANGE);
        }
    }

    /// Whether the device has grown while nobody could tell the frontend.
    pub(super) fn is_behind(&self) -> bool {
        self.behind
    }

    /// Tells it.
    pub(super) fn catch_up(&mut self) {
        self.behind = false;
        self.tell_config_change();
    }

    /// Keeps the size that the frontend has read, in its own memory.
    fn keep_sectors_told(&mut self) {
        if let (Some(inflight), Some(count)) = (&self.inflight, self.sectors_told) {
            inflight.keep_sectors_told(count);
        }
    }

    fn ring(&mut self, index: u32) -> Result<&mut Ring> {
        self.rings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    fn has(&self, feature: Features) -> bool {
        self.features.contains(feature)
    }

    /// Starts a ring that has everything it needs.
    fn start(&mut self, index: u32) -> Result<()> {
        let enabled = !self.has(Features::PROTOCOL_FEATURES);
        let ring = self.ring(index)?;
        let ready = ring.worker.is_none() && ring.size > 0 && (ring.enabled || enabled);
        let (Some(addresses), Some(kick), true) = (ring.addresses, &ring.kick, ready) else {
            return Ok(());
        };
        let (kick, call) = (kick.try_clone().map_err(other)?, ring.call.clone());
        let (size, base) = (ring.size, ring.base);
        let memory = self.memory.map()?;
        let [table, used, available] = addresses;
        let mut queue = Queue::new(RING_SIZE_MAX).map_err(other)?;
        queue.try_set_size(size).map_err(other)?;
        let table = self.memory.guest_address(table)?;
        queue.try_set_desc_table_address(table).map_err(other)?;
        let used = self.memory.guest_address(used)?;
        queue.try_set_used_ring_address(used).map_err(other)?;
        let available = self.memory.guest_address(available)?;
        queue.try_set_avail_ring_address(available).map_err(other)?;
        queue.set_event_idx(self.has(Features::EVENT_IDX));
        queue.set_ready(true);
        if !queue.is_valid(&memory) {
            return Err(Error::InvalidParam);
        }
        let used = queue.used_idx(&memory, Ordering::Acquire).map_err(other)?.0;
        queue.set_next_used(used);
        queue.set_next_avail(base);
        let area = self.inflight.as_ref().and_then(|all| all.area(index as usize, size));
        let mut setup = Setup {
            memory,
            queue,
            kick,
            call,
            durable: self.durable.clone(),
            area,
            left_over: Vec::new(),
        };
        if let Some(area) = &mut setup.area {
            setup.left_over = area.recover(used);
            // Everything before these is answered, and these were taken.
            setup.queue.set_next_avail(used.wrapping_add(setup.left_over.len() as u16));
        }
        let worker = Worker::start(setup, &self.export, index as usize).map_err(other)?;
        self.ring(index)?.worker = Some(worker);
        Ok(())
    }

    /// Starts those again that ran.
    fn start_again(&mut self, ran: &[bool]) -> Result<()> {
        let ran = ran.iter().zip(0..).filter(|(ran, _)| **ran).map(|(_, index)| index);
        ran.into_iter().try_for_each(|index| self.start(index))
    }

    /// Takes in what the guest can do and has switched. Without flushes it cannot make anything
    /// durable itself. What was written while the cache was on becomes durable before the guest may
    /// believe so.
    fn settle_cache(&mut self) -> Result<()> {
        let switched_off = self.has(Features::CONFIG_WCE) && !self.writeback;
        let durable = !self.has(Features::FLUSH) || switched_off;
        if let Some(inflight) = &self.inflight {
            inflight.keep_switched_off(!self.writeback);
        }
        if durable && !self.durable.swap(true, Ordering::AcqRel) {
            Waiter::new(self.export.device.clone()).flush().map_err(other)?;
        }
        self.durable.store(durable, Ordering::Release);
        Ok(())
    }

    fn reset(&mut self) {
        self.stop();
        for ring in &mut self.rings {
            *ring = Ring { call: ring.call.clone(), ..Ring::default() };
        }
        (self.features, self.writeback) = (Features::empty(), true);
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        self.stop();
    }
}

impl VhostUserBackendReqHandlerMut for Handler {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(config::features(&*self.export.device).bits())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let offered = config::features(&*self.export.device);
        let features = Features::from_bits(features).filter(|wanted| offered.contains(*wanted));
        self.features = features.ok_or(Error::InvalidParam)?;
        self.settle_cache()
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let mut memory = Memory::default();
        for (region, file) in regions.iter().zip(files) {
            memory.add(region, file)?;
        }
        let ran = self.stop();
        self.memory = memory;
        self.start_again(&ran)?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        if size == 0 || size > RING_SIZE_MAX || !size.is_power_of_two() {
            return Err(Error::InvalidParam);
        }
        self.ring(index)?.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.ring(index)?.addresses = Some([descriptor, used, available]);
        self.start(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.ring(index)?.base = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let ring = self.ring(index)?;
        ring.stop();
        ring.kick = None;
        Ok(VhostUserVringState::new(index, u32::from(ring.base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        // A ring without one would have to be looked at all the time.
        let kick = never_blocking(fd)?.ok_or(Error::InvalidParam)?;
        let index = u32::from(index);
        let ring = self.ring(index)?;
        ring.stop();
        ring.kick = Some(kick);
        self.start(index)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = never_blocking(fd)?;
        *self.ring(u32::from(index))?.call.lock() = call;
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Result<()> {
        self.ring(u32::from(index)).map(drop)
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(config::protocol_features())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        match features & !config::protocol_features().bits() {
            0 => Ok(()),
            _ => Err(Error::InvalidParam),
        }
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.rings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let ring = self.ring(index)?;
        ring.enabled = enable;
        match enable {
            true => self.start(index),
            false => {
                ring.stop();
                Ok(())
            }
        }
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let count = self.export.device.sector_count();
        let read =
            config::read(&*self.export.device, self.export.queues, self.writeback, offset, size);
        if read.is_some() && offset == 0 && size >= 8 {
            (self.sectors_told, self.behind) = (Some(count), false);
            self.keep_sectors_told();
        }
        read.ok_or(Error::InvalidParam)
    }

    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        match (offset, bytes, self.has(Features::CONFIG_WCE)) {
            (config::WRITEBACK_OFFSET, [writeback @ (0 | 1)], true) => {
                self.writeback = *writeback == 1;
                self.settle_cache()
            }
            _ => Err(Error::InvalidParam),
        }
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("not a display"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("no shared objects"))
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let made = Inflight::create(asked.num_queues, asked.queue_size);
        let (inflight, fd) = made.map_err(Error::ReqHandlerError)?;
        self.inflight = Some(inflight);
        self.keep_sectors_told();
        let bytes = inflight::bytes(asked.num_queues, asked.queue_size).unwrap_or(0) as u64;
        let given = VhostUserInflight::new(bytes, 0, asked.num_queues, asked.queue_size);
        Ok((given, File::from(fd)))
    }

    fn set_inflight_fd(&mut self, told: &VhostUserInflight, file: File) -> Result<()> {
        if told.mmap_offset != 0 {
            return Err(Error::InvalidParam);
        }
        let inflight = Inflight::attach(file.into(), told.num_queues, told.queue_size);
        let inflight = inflight.map_err(Error::ReqHandlerError)?;
        // The frontend does not say it again to the next process.
        self.writeback &= !inflight.was_switched_off();
        // Nor does it ask for the size again.
        let told = self.sectors_told.or(inflight.sectors_told());
        self.behind = told.is_some_and(|count| count != self.export.device.sector_count());
        self.inflight = Some(inflight);
        self.keep_sectors_told();
        self.settle_cache()
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let mut memory = self.memory.clone();
        memory.add(region, file)?;
        let ran = self.stop();
        self.memory = memory;
        self.start_again(&ran)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let ran = self.stop();
        let removed = self.memory.remove(region);
        self.start_again(&ran)?;
        removed
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("no migration"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("no migration"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("no shared memory regions"))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("no migration"))
    }
}

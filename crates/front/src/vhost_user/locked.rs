//! The handler behind a lock of ours: the crate's message loop wants to share it, and the locks
//! that it brings itself panic after somebody else's panic.

use std::fs::File;

use polylane_base::sync::{Arc, Mutex, MutexGuard};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    GpuBackend, Result, VhostUserBackendReqHandler, VhostUserBackendReqHandlerMut as _,
    VhostUserProtocolFeatures,
};

use super::Export;
use super::handler::Handler;

/// The handler of one frontend.
pub(super) struct Locked(Mutex<Handler>);

impl Locked {
    /// One for a frontend that has just come.
    pub(super) fn new(export: Export) -> Arc<Locked> {
        Arc::new(Locked(Mutex::new(Handler::new(export))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Handler> {
        self.0.lock()
    }
}

/// Methods that lock the handler and call its own of the same name.
macro_rules! forward {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> $result {
            self.lock().$name($($argument),*)
        })*
    };
}

impl VhostUserBackendReqHandler for Locked {
    forward! {
        set_owner() -> Result<()>;
        reset_owner() -> Result<()>;
        reset_device() -> Result<()>;
        get_features() -> Result<u64>;
        set_features(features: u64) -> Result<()>;
        set_mem_table(regions: &[VhostUserMemoryRegion], files: Vec<File>, postcopy: Option<bool>)
            -> Result<Option<Vec<u64>>>;
        set_vring_num(index: u32, num: u32) -> Result<()>;
        set_vring_addr(
            index: u32,
            flags: VhostUserVringAddrFlags,
            descriptor: u64,
            used: u64,
            available: u64,
            log: u64
        ) -> Result<()>;
        set_vring_base(index: u32, base: u32) -> Result<()>;
        get_vring_base(index: u32) -> Result<VhostUserVringState>;
        set_vring_kick(index: u8, fd: Option<File>) -> Result<()>;
        set_vring_call(index: u8, fd: Option<File>) -> Result<()>;
        set_vring_err(index: u8, fd: Option<File>) -> Result<()>;
        get_protocol_features() -> Result<VhostUserProtocolFeatures>;
        set_protocol_features(features: u64) -> Result<()>;
        get_queue_num() -> Result<u64>;
        set_vring_enable(index: u32, enable: bool) -> Result<()>;
        get_config(offset: u32, size: u32, flags: VhostUserConfigFlags) -> Result<Vec<u8>>;
        set_config(offset: u32, bytes: &[u8], flags: VhostUserConfigFlags) -> Result<()>;
        set_gpu_socket(gpu: GpuBackend) -> Result<()>;
        get_shared_object(uuid: VhostUserSharedMsg) -> Result<File>;
        get_inflight_fd(asked: &VhostUserInflight) -> Result<(VhostUserInflight, File)>;
        set_inflight_fd(told: &VhostUserInflight, file: File) -> Result<()>;
        get_max_mem_slots() -> Result<u64>;
        add_mem_region(
            region: &VhostUserSingleMemoryRegion,
            file: File,
            postcopy: Option<bool>
        ) -> Result<Option<u64>>;
        remove_mem_region(region: &VhostUserSingleMemoryRegion) -> Result<()>;
        set_device_state_fd(
            direction: VhostTransferStateDirection,
            phase: VhostTransferStatePhase,
            fd: File
        ) -> Result<Option<File>>;
        check_device_state() -> Result<()>;
        get_shmem_config() -> Result<VhostUserShMemConfig>;
        set_log_base(log: &VhostUserLog, file: File) -> Result<()>;
    }
}

//! What one session of a /dev/fuse descriptor knows.

use polylane_base::Gid;
use polylane_base::sync::Arc;
use polylane_base::sync::atomic::{AtomicU64, Ordering};
use polylane_vfs::handover::{InFlight, Store};
use polylane_vfs::{Node, OpenFile};

use super::flags::{InitFlags, OpenedFlags};
use super::handles::{Handle, HandleTable};
use super::init::Params;
use super::reply::Device;
use super::waits::Waits;
use crate::lane::Lane;
use crate::lane::locks::Whose;
use crate::lane::nodes::{Target, VirtualDir, Way};
use crate::lane::slots;

/// A session: the lane that is served, and what the kernel has open. Thread-safe.
pub(super) struct Session {
    pub(super) lane: Arc<Lane>,
    pub(super) device: Device,
    pub(super) handles: HandleTable,
    pub(super) waits: Arc<Waits>,
    pub(super) no_groups: Arc<[Gid]>,
    /// INIT flags agreed on.
    flags: AtomicU64,
}

fn store(lane: &Lane) -> Option<Arc<Store>> {
    lane.handover.as_ref().map(|handover| handover.store.clone())
}

impl Session {
    /// A session without open files. `in_flight`: where the next service finds what waits.
    pub(super) fn new(
        device: Device,
        lane: Arc<Lane>,
        (incarnation, params): (u16, Option<Params>),
        in_flight: Option<Arc<InFlight>>,
    ) -> Arc<Session> {
        params.into_iter().for_each(|params| lane.agreed_on(params.minor));
        Arc::new(Session {
            handles: HandleTable::new(incarnation, store(&lane)),
            lane,
            device,
            waits: Arc::new(Waits::new(in_flight)),
            no_groups: Arc::new([]),
            flags: AtomicU64::new(params.map_or(0, |params| params.flags.bits())),
        })
    }

    /// A handle was opened on a file's own node. Whether the file is longer by now than the kernel
    /// was told.
    pub(super) fn opened(&self, node_id: u64, flags: i32) -> bool {
        self.lane.nodes.opened(node_id, self.way(flags));
        if !self.is_direct() {
            self.lane.nodes.has_pages(node_id);
        }
        let Ok(Target::Node(node)) = self.lane.nodes.get(node_id) else { return false };
        self.lane.has_pages(&node);
        // To ask ends a loan on which the file grows unseen; from now on there is none.
        self.lane.growth(&node).is_some()
    }

    /// What a handle opened with these flags of open(2) can do.
    pub(super) fn way(&self, flags: i32) -> Way {
        Way::of(flags, self.is_direct())
    }

    /// The kernel fills a page: from now on it may have some of the file.
    pub(super) fn has_pages(&self, handle: &Handle) {
        match &handle.slot {
            Some(slot) => self.lane.slots.has_pages(slot),
            None => self.lane.nodes.has_pages(handle.node_id),
        }
    }

    /// The kernel wrote through a handle: it knows itself how far the file now reaches at least.
    pub(super) fn wrote(&self, handle: &Handle, end: u64) {
        if handle.slot.is_none() {
            self.lane.nodes.grew_to(handle.node_id, end);
        }
    }

    /// The end of a handle: what was locked through it is free, and its node one handle poorer.
    pub(super) fn close(&self, handle: &Handle) {
        // What a slot was bound to goes on under the file's own node, where that took its place.
        let over = |file: &Arc<OpenFile>| !handle.is_slot() || !file.is_kernels();
        if let Some(file) = handle.file().ok().filter(over) {
            for owner in file.gone() {
                let (node_id, owner) = (handle.node_id, owner.0 as u64);
                self.lane.kept.drop_all(Whose::Posix { node_id, owner });
            }
        }
        match &handle.slot {
            Some(slot) if self.lane.slots.released(slot) => {
                let (name, slots) = (slots::name_of(slot), VirtualDir::Slots.id());
                let known = || self.lane.nodes.len();
                self.lane.notifier.forget_name(slots, name.as_bytes(), known);
            }
            Some(_) => {}
            None => {
                let flags = handle.opened.as_ref().map_or(0, |file| file.flags());
                self.lane.nodes.released(handle.node_id, self.way(flags));
            }
        }
    }

    /// What the kernel and this service agreed on.
    pub(super) fn agree(&self, params: Params) {
        self.flags.store(params.flags.bits(), Ordering::Relaxed);
        self.lane.agreed_on(params.minor);
    }

    pub(super) fn has_setxattr_ext(&self) -> bool {
        self.has(InitFlags::SETXATTR_EXT)
    }

    /// Whether the kernel minds access control lists.
    pub(super) fn has_acls(&self) -> bool {
        self.has(InitFlags::POSIX_ACL)
    }

    /// Whether mounts of the lane can be id-mapped.
    pub(super) fn has_id_maps(&self) -> bool {
        self.has(InitFlags::ALLOW_IDMAP)
    }

    /// Whether file data goes past the kernel's page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.has(InitFlags::DIRECT_IO_ALLOW_MMAP)
    }

    /// `fuse_open_out.open_flags` for a handle on a file's own node, opened with these flags of
    /// open(2). What is only read goes through the page cache while nobody writes to the file, and
    /// what is there stays, unless the next read is to move the access time: then it must come
    /// here, also where there is nothing to read, of which the kernel's cache would not tell.
    /// Appending goes past the cache in any case: the kernel would put the bytes on the page where
    /// it thinks the end is.
    pub(super) fn open_flags(&self, (node, id): (&Node, u64), flags: i32) -> OpenedFlags {
        const PAST: i32 = libc::O_APPEND | libc::O_DIRECT;
        let reads = flags & (libc::O_ACCMODE | PAST) == libc::O_RDONLY;
        match (self.is_direct(), flags & libc::O_APPEND) {
            (true, _) if reads && self.lane.may_cache(node, id) => match node.moves_atime() {
                true => OpenedFlags::DIRECT_IO,
                false => OpenedFlags::KEEP_CACHE,
            },
            (false, 0) => OpenedFlags::empty(),
            _ => OpenedFlags::DIRECT_IO,
        }
    }

    fn has(&self, flag: InitFlags) -> bool {
        InitFlags::from_bits_retain(self.flags.load(Ordering::Relaxed)).contains(flag)
    }
}

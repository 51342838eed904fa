//! Node ids: what the kernel calls our inodes, and how often it was told.
//!
//! An id is `incarnation << 48 | counter`. The counter of an inode stands in the inode's own tag,
//! so one inode has one id however many names it has. It is the inode's number with bit 47 set, so
//! that an inode that the kernel has forgotten is found by what a file handle says
//! (name_to_handle_at(2)), or, where that is taken or the number is too large, one that nobody else
//! ever has, as those of slots are. An id of a former incarnation is unknown here
//! and answered `ESTALE`; path walks recover, because the kernel looks every name up anew. With a
//! handover there is one incarnation, and each id has a record:
//!
//! | word | what |
//! |---|---|
//! | 0 | the id |
//! | 1, 2 | number and generation of the inode; 0 for a slot |
//! | 3 | lookups |
//! | 4 | 1: a slot; 2: the name that the kernel gave the inode of word 6, and nothing else |
//! | 5 | 1: made without a name, and may be given its first (`O_TMPFILE`) |
//! | bytes | a name that was told for good (`memory`): the directory's id, little-endian, and it |
//!
//! # Invariants
//!
//! - An entry exists as long as the kernel holds lookups on it, to the exact count: also that of an
//!   inode that a former service took with it, whose number another may have by now. The root and
//!   the virtual directories always exist, under the same ids in every incarnation: there are
//!   mounts on them that the kernel would detach if their ids changed.
//! - The tag's counter is set exactly while the entry exists; both change under the shard's lock.
//! - [`TAG_OPEN`] is set exactly while there are handles; [`TAG_PAGES`] only while there is one by
//!   which pages can be changed, and then together with [`TAG_KEPT`]. That goes when the pages are
//!   known to be dropped, and with the inode.
//!
//! # Locking
//!
//! One lock per shard; a leaf. Inodes are dropped after it is free.

mod told;

use std::collections::HashMap;
use std::hash::Hasher;
use std::time::{Duration, Instant};

use polylane_base::sync::atomic::{AtomicU64, Ordering};
use polylane_base::sync::{Arc, Mutex};
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::handover::{Kind, Store};
use polylane_vfs::{Kind as FileKind, Node};
use rustc_hash::FxHasher;

pub(crate) use self::told::MOVED_NAME;
use super::record::Record;
use super::slots::Slot;
use super::tag::{TAG_ID_SHIFT, TAG_KEPT, TAG_OPEN, TAG_PAGES, clear_tag, set_tag, tag};

/// The root's id, fixed by the protocol.
pub const ROOT_ID: u64 = 1;
const RESERVED_DIR_ID: u64 = 2;
const SLOT_DIR_ID: u64 = 3;
/// Counters below are for fixed ids.
const FIRST_COUNTER: u64 = 16;
pub(crate) const COUNTER_BITS: u32 = 48;
/// Counters from here on are numbers of inodes.
const INO_COUNTER: u64 = 1 << (COUNTER_BITS - 1);
/// Enough that session threads rarely meet.
const SHARDS: usize = 16;
/// Longer than a request that the kernel sent is on its way.
const LATELY: Duration = Duration::from_secs(5);

/// A directory that only the front end knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VirtualDir {
    /// `.polylane`: the mount point of the run directory.
    Reserved,
    /// `.polylane-slots`: where slots are made.
    Slots,
}

impl VirtualDir {
    /// Its node id, the same in every incarnation.
    pub fn id(self) -> u64 {
        match self {
            VirtualDir::Reserved => RESERVED_DIR_ID,
            VirtualDir::Slots => SLOT_DIR_ID,
        }
    }
}

/// What a node id stands for.
#[derive(Clone)]
pub enum Target {
    /// An inode of the lane.
    Node(Node),
    /// A slot: its operations act on the bound file.
    Slot(Arc<Slot>),
    /// A directory of the front end's own.
    Virtual(VirtualDir),
}

/// A name in a directory that the kernel knows: a hash of both, so that who tells a name from the
/// others may be wrong once in 2^63 times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u64);

impl Place {
    /// No name.
    pub const NONE: Place = Place(0);

    /// `name` in the directory of that id.
    pub fn of(dir_id: u64, name: &[u8]) -> Place {
        let mut hasher = FxHasher::default();
        hasher.write_u64(dir_id);
        hasher.write(name);
        Place(hasher.finish() | 1)
    }
}

/// What a kernel handle on a file's own node can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Way {
    /// The kernel fills pages by it.
    pub fills: bool,
    /// Programs change pages by it.
    pub stores: bool,
    /// It was opened for writing.
    pub writes: bool,
}

impl Way {
    /// That of a handle opened with these flags of open(2). `direct`: reads and writes go past the
    /// page cache, or else may leave pages behind.
    pub fn of(flags: i32, direct: bool) -> Way {
        let mode = flags & libc::O_ACCMODE;
        let writes = mode != libc::O_RDONLY;
        let fills = mode != libc::O_WRONLY || !direct;
        Way { fills, stores: fills && writes, writes }
    }
}

/// Kernel handles open on a file's own node, by what they can do.
#[derive(Clone, Copy, Default, Debug)]
struct Opens {
    all: u32,
    fill: u32,
    store: u32,
    write: u32,
    /// Those that fill, open or closed by now.
    ever: u32,
}

impl Opens {
    fn add(&mut self, way: Way) {
        self.all += 1;
        self.fill += u32::from(way.fills);
        self.store += u32::from(way.stores);
        self.write += u32::from(way.writes);
        self.ever = self.ever.wrapping_add(u32::from(way.fills));
    }

    fn remove(&mut self, way: Way) {
        let less = |count: &mut u32, is: bool| *count = count.saturating_sub(u32::from(is));
        less(&mut self.all, true);
        less(&mut self.fill, way.fills);
        less(&mut self.store, way.stores);
        less(&mut self.write, way.writes);
    }
}

/// Pages that the kernel keeps of a file that nobody has open, as of when they are about to be
/// dropped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptPages {
    id: u64,
    /// Handles that filled some so far.
    ever: u32,
}

struct Entry {
    /// `None`: it was lost with a former service.
    target: Option<Target>,
    lookups: u64,
    opens: Opens,
    /// The kernel may have pages of it from a former service, whose data may not be that of today.
    stale: bool,
    /// The size of a file as the kernel was last told or has made it.
    size: u64,
    /// When the kernel was last told that a file has grown without it.
    told: Option<Instant>,
    /// The name under which the kernel heard of it last.
    place: Place,
    /// What the next service is to know.
    record: Option<Record>,
    /// The name that the kernel was told for good, or where it has moved that to;
    /// [`Place::NONE`]: a former service told it.
    told_at: Option<Place>,
    /// Where the kernel moved it to, the last two times: it has one of these, or the one in
    /// `record`, when the service is killed.
    moved: Vec<Record>,
}

impl Entry {
    fn new(target: Target, place: Place, record: Option<Record>) -> Entry {
        let target = Some(target);
        let opens = Opens::default();
        let (told, told_at, moved) = (None, None, Vec::new());
        let (lookups, stale, size) = (1, false, 0);
        Entry { target, lookups, opens, stale, size, told, place, record, told_at, moved }
    }

    fn node(&self) -> Option<&Node> {
        match &self.target {
            Some(Target::Node(node)) => Some(node),
            _ => None,
        }
    }

    fn heard(&mut self, place: Place) {
        if place != Place::NONE {
            self.place = place;
        }
    }

    fn counted(&mut self, lookups: u64) {
        self.lookups = lookups;
        if let Some(record) = &self.record {
            record.set(LOOKUPS, lookups);
        }
    }
}

/// The word that counts lookups.
const LOOKUPS: usize = 3;
/// The word that says whether the first name may be given.
const LINKABLE: usize = 5;

/// Node ids of one incarnation. Thread-safe.
pub struct NodeTable {
    shards: [Mutex<HashMap<u64, Entry>>; SHARDS],
    next: AtomicU64,
    incarnation: u64,
    root: Node,
    store: Option<Arc<Store>>,
    /// Names that a former service told for good: the directory's id, and the name.
    former_names: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl NodeTable {
    /// A table that knows the root only.
    pub fn new(root: Node, incarnation: u16) -> Self {
        NodeTable {
            shards: Default::default(),
            next: AtomicU64::new(FIRST_COUNTER),
            incarnation: u64::from(incarnation) << COUNTER_BITS,
            root,
            store: None,
            former_names: Mutex::default(),
        }
    }

    /// A table that knows the root only, and is handed over.
    pub(crate) fn handed_over(root: Node, store: Arc<Store>) -> Self {
        let mut table = NodeTable::new(root, 0);
        table.store = Some(store);
        table
    }

    /// Takes in what a former service told the kernel. Without a `target` it was lost, and its id
    /// is nobody else's until the kernel lets go of it.
    pub(crate) fn restore(&self, id: u64, target: Option<Target>, lookups: u64, record: Record) {
        let (opens, size, told, place) = (Opens::default(), 0, None, Place::NONE);
        let (record, stale, told_at, moved) = (Some(record), false, None, Vec::new());
        let mut entry =
            Entry { target, lookups, opens, stale, size, told, place, record, told_at, moved };
        if let Some(node) = entry.node().cloned() {
            set_counter(&node, id);
            entry.stale = node.kind() == FileKind::File;
            if entry.stale {
                set_tag(&node, TAG_KEPT);
            }
        }
        self.shard(id).lock().insert(id, entry);
    }

    /// The number of the inode that has, or had, this id; `None`: the id does not say.
    pub(crate) fn ino_of(&self, id: u64) -> Option<Ino> {
        let counter = id.checked_sub(self.incarnation)?;
        (INO_COUNTER..2 * INO_COUNTER).contains(&counter).then(|| Ino(counter - INO_COUNTER))
    }

    /// The counter that says the number of an inode, where no other inode's id has it.
    fn counter_of(&self, node: &Node) -> Option<u64> {
        let counter = Some(node.ino().0).filter(|ino| *ino < INO_COUNTER)? + INO_COUNTER;
        let id = self.incarnation | counter;
        let shard = self.shard(id).lock();
        let is_it = |entry: &Entry| entry.node().is_some_and(|other| Arc::ptr_eq(other, node));
        shard.get(&id).is_none_or(is_it).then_some(counter)
    }

    fn record(&self, id: u64, target: &Target, told: &[u8]) -> Option<Record> {
        let (ino, generation, slot, linkable) = match target {
            Target::Node(node) => (node.ino().0, node.generation(), 0, node.is_linkable()),
            Target::Slot(_) => (0, 0, 1, false),
            Target::Virtual(_) => return None,
        };
        let words = [id, ino, generation, 1, slot, u64::from(linkable), 0];
        let store = self.store.as_ref()?;
        Record::put(store, Kind::Node, words, told)
    }

    /// A counter that was never given out.
    fn next(&self) -> u64 {
        match &self.store {
            Some(store) => store.next_node() + FIRST_COUNTER,
            None => self.next.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// What `id` stands for. `ESTALE` when the kernel was not told of it by this incarnation.
    pub fn get(&self, id: u64) -> Result<Target> {
        match id {
            ROOT_ID => Ok(Target::Node(self.root.clone())),
            RESERVED_DIR_ID => Ok(Target::Virtual(VirtualDir::Reserved)),
            SLOT_DIR_ID => Ok(Target::Virtual(VirtualDir::Slots)),
            _ => {
                let shard = self.shard(id).lock();
                shard.get(&id).and_then(|entry| entry.target.clone()).ok_or(Errno::ESTALE)
            }
        }
    }

    /// The id that the kernel knows an inode by.
    pub fn id_of(&self, node: &Node) -> Option<u64> {
        match tag(node) >> TAG_ID_SHIFT {
            _ if Arc::ptr_eq(node, &self.root) => Some(ROOT_ID),
            0 => None,
            counter => Some(self.incarnation | counter),
        }
    }

    /// The kernel is about to be told of an inode once more, by the name at `place` if any: its id.
    pub fn remember(&self, node: &Node, place: Place) -> u64 {
        self.remember_told(node, place, b"").0
    }

    /// The same of a name that the kernel may be told for good, as its record is to have it; and
    /// whether it may: it is the first that the kernel hears of the inode, and the next service is
    /// to know.
    pub(crate) fn remember_told(&self, node: &Node, place: Place, told: &[u8]) -> (u64, bool) {
        loop {
            let id = match self.id_of(node) {
                Some(ROOT_ID) => return (ROOT_ID, false),
                Some(id) => id,
                None => match self.insert(node, place, told) {
                    Some(inserted) => return inserted,
                    None => continue,
                },
            };
            let mut shard = self.shard(id).lock();
            if let Some(entry) = shard.get_mut(&id) {
                entry.counted(entry.lookups + 1);
                entry.heard(place);
                return (id, false);
            }
            // `forget` clears the tag before it frees the shard: a counter that still stands there
            // without an entry is a leftover of a table that is gone.
            if self.id_of(node) == Some(id) {
                set_counter(node, 0);
            }
        }
    }

    /// The kernel is about to be told of a new slot: its id.
    pub fn remember_slot(&self, slot: Arc<Slot>) -> u64 {
        let id = self.incarnation | self.next();
        let target = Target::Slot(slot);
        let record = self.record(id, &target, b"");
        let entry = Entry::new(target, Place::NONE, record);
        self.shard(id).lock().insert(id, entry);
        id
    }

    /// The kernel gave an inode the name at `place`.
    pub fn moved(&self, node: &Node, place: Place) {
        let Some(id) = self.id_of(node) else { return };
        if let Some(entry) = self.shard(id).lock().get_mut(&id) {
            entry.heard(place);
        }
    }

    /// Whether the name at `place` is the one under which the kernel heard of an inode last.
    pub fn is_known_as(&self, node: &Node, place: Place) -> bool {
        let id = self.id_of(node);
        id.is_some_and(|id| self.shard(id).lock().get(&id).is_some_and(|it| it.place == place))
    }

    /// The kernel gave `count` lookups back. Unknown ids are of a former incarnation.
    pub fn forget(&self, id: u64, count: u64) {
        let mut shard = self.shard(id).lock();
        let Some(entry) = shard.get_mut(&id) else { return };
        entry.counted(entry.lookups.saturating_sub(count));
        if entry.lookups > 0 {
            return;
        }
        let gone = shard.remove(&id);
        if let Some(node) = gone.as_ref().and_then(Entry::node) {
            set_counter(node, 0);
            clear_tag(node, TAG_OPEN | TAG_PAGES | TAG_KEPT);
        }
        drop(shard);
        drop(gone);
    }

    /// A file has got a name: should it lose its last one, no service gives it another.
    pub fn linked(&self, id: u64) {
        let shard = self.shard(id).lock();
        if let Some(record) = shard.get(&id).and_then(|entry| entry.record.as_ref()) {
            record.set(LINKABLE, 0);
        }
    }

    /// A kernel handle was opened on a file's own node.
    pub fn opened(&self, id: u64, way: Way) {
        if let Some(entry) = self.shard(id).lock().get_mut(&id) {
            entry.opens.add(way);
            let Some(node) = entry.node() else { return };
            set_tag(node, TAG_OPEN);
            if way.stores && tag(node) & TAG_KEPT != 0 {
                set_tag(node, TAG_PAGES);
            }
        }
    }

    /// Whether the kernel has handles open on a file's own node.
    pub fn is_open(&self, id: u64) -> bool {
        self.shard(id).lock().get(&id).is_some_and(|entry| entry.opens.all > 0)
    }

    /// Whether the kernel may go on with the pages that it has of a file that is opened to be read:
    /// nobody writes to it through the kernel, and what it has is not of a former service.
    pub fn may_cache(&self, id: u64) -> bool {
        let may = |entry: &Entry| entry.opens.write == 0 && !entry.stale;
        self.shard(id).lock().get(&id).is_some_and(may)
    }

    /// The kernel may have pages of a file from now on.
    pub fn has_pages(&self, id: u64) {
        if let Some(entry) = self.shard(id).lock().get(&id)
            && let (Some(node), 1..) = (entry.node(), entry.opens.fill)
        {
            let stores = if entry.opens.store > 0 { TAG_PAGES } else { 0 };
            set_tag(node, TAG_KEPT | stores);
        }
    }

    /// Pages that the kernel keeps of a file of which it has no handle that could fill more.
    pub(crate) fn kept_alone(&self, id: u64) -> Option<KeptPages> {
        let shard = self.shard(id).lock();
        let entry = shard.get(&id).filter(|entry| entry.opens.fill == 0)?;
        let is_kept = tag(entry.node()?) & TAG_KEPT != 0;
        is_kept.then_some(KeptPages { id, ever: entry.opens.ever })
    }

    /// All pages that the kernel had of the file then were dropped.
    pub(crate) fn dropped(&self, kept: KeptPages) {
        if let Some(entry) = self.shard(kept.id).lock().get_mut(&kept.id)
            && (entry.opens.fill, entry.opens.ever) == (0, kept.ever)
        {
            entry.stale = false;
            entry.node().into_iter().for_each(|node| clear_tag(node, TAG_KEPT));
        }
    }

    /// The files of which the kernel may have pages from a former service, and by which handles
    /// nobody changes them.
    pub(crate) fn stale(&self) -> Vec<u64> {
        let is_stale = |entry: &Entry| entry.stale && entry.opens.store == 0;
        let of = |shard: &Mutex<HashMap<u64, Entry>>| -> Vec<u64> {
            let shard = shard.lock();
            shard.iter().filter(|(_, entry)| is_stale(entry)).map(|(id, _)| *id).collect()
        };
        self.shards.iter().flat_map(of).collect()
    }

    /// The pages of a former service's file were dropped.
    pub(crate) fn is_fresh(&self, id: u64) {
        if let Some(entry) = self.shard(id).lock().get_mut(&id) {
            entry.stale = false;
        }
    }

    /// The kernel made a file reach `end` at least.
    pub fn grew_to(&self, id: u64, end: u64) {
        if let Some(entry) = self.shard(id).lock().get_mut(&id) {
            entry.size = entry.size.max(end);
        }
    }

    /// The kernel is told a file's size.
    pub fn tell_size(&self, id: u64, size: u64) {
        if let Some(entry) = self.shard(id).lock().get_mut(&id) {
            entry.size = size;
        }
    }

    /// The kernel was told that a file reaches `end`.
    pub fn told_growth(&self, id: u64, end: u64) {
        if let Some(entry) = self.shard(id).lock().get_mut(&id) {
            entry.size = entry.size.max(end);
            entry.told = Some(Instant::now());
        }
    }

    /// Whether the kernel did certainly not take `offset` for the end of a file when it asked.
    pub fn is_no_end(&self, id: u64, offset: u64) -> bool {
        let lately = |told: Option<Instant>| told.is_some_and(|told| told.elapsed() < LATELY);
        let shard = self.shard(id).lock();
        shard.get(&id).is_some_and(|entry| entry.size != offset && !lately(entry.told))
    }

    /// A file's size as the kernel knows it.
    pub fn size_of(&self, id: u64) -> Option<u64> {
        self.shard(id).lock().get(&id).map(|entry| entry.size)
    }

    /// A kernel handle on a file's own node is gone. What programs stored by it through mappings
    /// has come back: the kernel brings it before it lets go of the handle.
    pub fn released(&self, id: u64, way: Way) {
        if let Some(entry) = self.shard(id).lock().get_mut(&id) {
            entry.opens.remove(way);
            let gone = if entry.opens.all == 0 { TAG_OPEN } else { 0 };
            let clean = if entry.opens.store == 0 { TAG_PAGES } else { 0 };
            entry.node().into_iter().for_each(|node| clear_tag(node, gone | clean));
        }
    }

    /// The ids of all entries.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        let of = |shard: &Mutex<HashMap<u64, Entry>>| -> Vec<u64> {
            shard.lock().keys().copied().collect()
        };
        self.shards.iter().flat_map(of)
    }

    /// The number of this service among those without a handover.
    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation >> COUNTER_BITS
    }

    /// Entries that the kernel holds lookups on.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    /// Whether the kernel knows nothing but the root.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives a node its id. `None`: another thread was faster.
    fn insert(&self, node: &Node, place: Place, told: &[u8]) -> Option<(u64, bool)> {
        let counter = self.counter_of(node).unwrap_or_else(|| self.next());
        let id = self.incarnation | counter;
        let mut shard = self.shard(id).lock();
        if shard.contains_key(&id) {
            return None;
        }
        let claim = |tag| (tag >> TAG_ID_SHIFT == 0).then_some(tag | counter << TAG_ID_SHIFT);
        node.tag().fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).ok()?;
        let target = Target::Node(node.clone());
        let record = self.record(id, &target, told);
        let is_recorded = record.is_some() && !told.is_empty();
        let entry = Entry::new(target, place, record);
        shard.insert(id, Entry { told_at: is_recorded.then_some(place), ..entry });
        Some((id, is_recorded))
    }

    fn shard(&self, id: u64) -> &Mutex<HashMap<u64, Entry>> {
        &self.shards[id as usize % SHARDS]
    }
}

impl Drop for NodeTable {
    /// The tags belong to the next table now.
    fn drop(&mut self) {
        for shard in &mut self.shards {
            for entry in shard.get_mut().values() {
                if let Some(node) = entry.node() {
                    set_counter(node, 0);
                    clear_tag(node, TAG_OPEN | TAG_PAGES | TAG_KEPT);
                }
            }
        }
    }
}

fn set_counter(node: &Node, counter: u64) {
    let low = (1 << TAG_ID_SHIFT) - 1;
    node.tag().fetch_and(low, Ordering::SeqCst);
    node.tag().fetch_or(counter << TAG_ID_SHIFT, Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polylane_base::SystemClock;
    use polylane_vfs::memfs::MemFs;
    use polylane_vfs::{Create, OpCtx, Options, Vfs};
    use zerocopy::little_endian::U64;

    use super::*;

    fn vfs() -> Arc<Vfs> {
        let clock = Arc::new(SystemClock);
        let fs = Arc::new(MemFs::new(1 << 20, 64, clock.clone()));
        let options = Options {
            clock,
            cache_bytes_limit: 1 << 20,
            dirty_bytes_limit: 1 << 20,
            flush_interval: Duration::from_secs(5),
            mount_path: b"/lane".to_vec(),
            covered: vec![],
        };
        Vfs::new(fs, options).expect("an empty memfs opens")
    }

    #[test]
    fn kept_pages_are_gone_when_they_were_dropped_and_none_was_filled_since() {
        const READ: Way = Way { fills: true, stores: false, writes: false };
        const BOTH: Way = Way { fills: true, stores: true, writes: true };
        let vfs = vfs();
        let new = Create { kind: FileKind::File, perm: 0o600, umask: 0, rdev: 0, target: b"" };
        let node = vfs.create(&OpCtx::service(), &vfs.root(), b"a", &new).expect("made");
        let table = NodeTable::new(vfs.root(), 0);
        let id = table.remember(&node, Place::NONE);
        let bits = || tag(&node) & (TAG_KEPT | TAG_PAGES | TAG_OPEN);
        table.has_pages(id);
        assert_eq!(bits(), 0, "no handle fills any");
        table.opened(id, READ);
        table.has_pages(id);
        assert_eq!(bits(), TAG_KEPT | TAG_OPEN);
        assert!(table.kept_alone(id).is_none() && table.may_cache(id));
        table.opened(id, BOTH);
        assert_eq!(bits(), TAG_KEPT | TAG_PAGES | TAG_OPEN, "they can be mapped by it");
        assert!(!table.may_cache(id));
        table.released(id, READ);
        table.released(id, BOTH);
        assert_eq!(bits(), TAG_KEPT);
        let before = table.kept_alone(id).expect("kept");
        table.opened(id, READ);
        table.dropped(before);
        table.released(id, READ);
        table.dropped(before);
        assert_eq!(bits(), TAG_KEPT, "some may have been filled meanwhile");
        table.dropped(table.kept_alone(id).expect("kept"));
        assert_eq!((bits(), table.kept_alone(id).is_none()), (0, true));
        table.opened(id, READ);
        table.has_pages(id);
        table.forget(id, 1);
        assert_eq!(bits(), 0, "the kernel has forgotten it");
    }

    #[test]
    fn a_moved_name_is_in_a_record() {
        let vfs = vfs();
        let new = Create { kind: FileKind::File, perm: 0o600, umask: 0, rdev: 0, target: b"" };
        let node = vfs.create(&OpCtx::service(), &vfs.root(), b"a", &new).expect("made");
        let (store, _) = Store::attach(Store::create().expect("memfd")).expect("attached");
        let store = Arc::new(store);
        let table = NodeTable::handed_over(vfs.root(), store.clone());
        let [a, b, c, d] = [b"a", b"b", b"c", b"d"].map(|name| Place::of(ROOT_ID, name));
        let told = |name: &[u8]| [&U64::from(ROOT_ID).to_bytes(), name].concat();
        assert_eq!(table.will_move(&node, a, &told(b"b")), None, "the kernel knows none");
        let (id, lasts) = table.remember_told(&node, a, &told(b"a"));
        assert!(lasts && table.is_told(&node));
        assert_eq!(table.will_move(&node, b, &told(b"c")), None, "another name of it");
        assert_eq!(store.len(), 1);
        assert_eq!(table.will_move(&node, a, &told(b"b")), Some(true));
        assert_eq!(store.len(), 2, "before it is moved");
        table.has_moved(&node, Some(b));
        for _ in 0..3 {
            assert_eq!(table.will_move(&node, b, &told(b"c")), Some(true));
            table.has_moved(&node, None);
        }
        assert_eq!(store.len(), 2, "where it was not moved to");
        for (from, name, to) in [(b, b"c", c), (c, b"d", d), (d, b"a", a), (a, b"b", b)] {
            assert_eq!(table.will_move(&node, from, &told(name)), Some(true));
            table.has_moved(&node, Some(to));
        }
        assert_eq!(store.len(), 3, "the first, and the last two");
        table.was_told(id, &told(b"b"));
        assert!(table.has_former_names() && table.is_told(&node));
        assert_eq!(table.take_former_names(), [(ROOT_ID, b"b".to_vec())]);
        assert_eq!(table.will_move(&node, c, &told(b"d")), Some(true), "where it is, it knows not");
        table.forget(id, 1);
        assert!(store.is_empty() && !table.is_told(&node));
    }

    #[test]
    fn the_id_of_a_lost_inode_is_nobodys_until_the_kernel_lets_go_of_it() {
        let vfs = vfs();
        let new = Create { kind: FileKind::File, perm: 0o600, umask: 0, rdev: 0, target: b"" };
        let node = vfs.create(&OpCtx::service(), &vfs.root(), b"a", &new).expect("made");
        let (store, _) = Store::attach(Store::create().expect("memfd")).expect("attached");
        let store = Arc::new(store);
        let table = NodeTable::handed_over(vfs.root(), store.clone());
        let id = INO_COUNTER | node.ino().0;
        let words = [id, node.ino().0, node.generation() + 1, 2, 0, 0, 0];
        let record = Record::put(&store, Kind::Node, words, b"").expect("room");
        table.restore(id, None, 2, record);
        for left in [2, 1] {
            assert_eq!((table.get(id).err(), table.len()), (Some(Errno::ESTALE), 1));
            let other = table.remember(&node, Place::NONE);
            assert_ne!(other, id, "{left} lookups of the lost one are left");
            assert_eq!((table.ino_of(other), store.len()), (None, 2));
            table.forget(other, 1);
            table.forget(id, 1);
        }
        assert!(table.is_empty() && store.is_empty());
        let again = table.remember(&node, Place::NONE);
        assert_eq!((again, table.ino_of(id)), (id, Some(node.ino())));
    }
}

//! Records of fixed size in a memfd that outlives the process.
//!
//! # Invariants
//!
//! - A record counts while its first word is not 0. That word is stored after all others, and
//!   cleared before the place is used again, so that whoever is killed leaves whole records.
//! - A word of a record that counts is changed by one store; what must change together is put as a
//!   new record before the old one is freed.
//!
//! # Locking
//!
//! `free` is a leaf.

use std::os::fd::{AsFd, OwnedFd};

use polylane_base::sync::Mutex;
use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::{Errno, Result};
use polylane_sys::Region;

/// First word of a memfd in use: "plhand03". Another layout has another word.
const MAGIC: u64 = u64::from_le_bytes(*b"plhand03");

/// Bytes before the first record.
const HEAD_BYTES: usize = 4096;
/// Words of a record beside the one that makes it count.
pub(super) const WORDS: usize = 7;
/// Bytes of a record's words.
const WORD_BYTES: usize = 8 * (1 + WORDS);
/// Most bytes of a record: a name, a reply.
pub(super) const BYTES_MAX: usize = 256;
/// Records. The memfd is sparse: what is not used costs nothing. What does not fit is not handed
/// over.
const RECORDS: usize = 1 << 18;
/// Where their bytes begin, behind the words of all of them: most have none, and the words of many
/// share a page.
const BYTES_AT: usize = HEAD_BYTES + RECORDS * WORD_BYTES;
/// Bytes in all.
const STORE_BYTES: usize = BYTES_AT + RECORDS * BYTES_MAX;

/// Where the header's words are.
mod head {
    pub(super) const MAGIC: usize = 0;
    /// The next node id and the next file handle that were never given out.
    pub(super) const NEXT_NODE: usize = 8;
    pub(super) const NEXT_HANDLE: usize = 16;
    /// 1: the last service left everything durable.
    pub(super) const ORDERLY: usize = 24;
    /// From this place on nothing was ever put.
    pub(super) const FRESH: usize = 32;
    /// Numbers of the kernel's requests: the highest that was read, the lowest that waits.
    pub(super) const LAST_READ: usize = 40;
    pub(super) const OLDEST_WAIT: usize = 48;
    /// Heart-beats of the service's threads, a cache line each.
    pub(super) const HEARTS: usize = 512;
    pub(super) const HEART_BYTES: usize = 64;
}

/// Threads whose heart-beat can be watched: as many as the page has room for.
const HEARTS: usize = (HEAD_BYTES - head::HEARTS) / head::HEART_BYTES;

/// What a record is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Kind {
    /// An inode that `hostdir` knows.
    HostNode = 1,
    /// Where such an inode is.
    HostPlace = 2,
    /// A node id that the kernel knows.
    Node = 3,
    /// An open file of the kernel's.
    Handle = 4,
    /// A slot and what it is bound to.
    Slot = 5,
    /// A lock.
    Lock = 6,
    /// An operation that was begun.
    Begun = 7,
    /// An operation that was done, and what its answer is.
    Done = 8,
    /// A process that took locks through the library.
    Process = 9,
    /// A file whose newest bytes are not durable.
    Unsynced = 10,
    /// An inode that a union knows.
    UnionNode = 11,
    /// The rest of such an inode's path.
    UnionRest = 12,
    /// A union's root.
    UnionRoot = 13,
}

impl Kind {
    const ALL: [Kind; 13] = [
        Kind::HostNode,
        Kind::HostPlace,
        Kind::Node,
        Kind::Handle,
        Kind::Slot,
        Kind::Lock,
        Kind::Begun,
        Kind::Done,
        Kind::Process,
        Kind::Unsynced,
        Kind::UnionNode,
        Kind::UnionRest,
        Kind::UnionRoot,
    ];

    fn from_word(word: u64) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u64 == word & 0xff)
    }
}

/// The place of a record.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Slot(pub u32);

/// A record as a former service left it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its place.
    pub slot: Slot,
    /// What it is about.
    pub kind: Kind,
    /// Its words.
    pub words: [u64; WORDS],
    /// Its bytes: a name, a reply.
    pub bytes: Vec<u8>,
}

/// The records of one pool. Thread-safe.
pub struct Store {
    region: Region,
    /// Places that were used and are free.
    free: Mutex<Vec<u32>>,
    /// The next service's already: nothing changes any more.
    left: AtomicBool,
}

impl Store {
    /// A memfd for the services of a pool.
    ///
    /// # Errors
    /// What memfd_create(2) and mmap(2) say.
    pub fn create() -> Result<OwnedFd> {
        let (_, fd) = Region::create("polylane-handover", STORE_BYTES)?;
        Ok(fd)
    }

    /// Maps the memfd, and reads what a former service left in it: nothing, when that was of a
    /// build that writes it differently.
    ///
    /// # Errors
    /// `EPROTO`: it is none.
    pub fn attach(fd: impl AsFd) -> Result<(Store, Vec<Record>)> {
        let region = Region::attach(fd, STORE_BYTES)?;
        let store = Store { region, free: Mutex::default(), left: AtomicBool::new(false) };
        let head = |at| store.region.word64(at);
        match head(head::MAGIC).load(Ordering::Acquire) {
            MAGIC => {
                let records = store.read_all();
                Ok((store, records))
            }
            _ => {
                store.clear();
                head(head::ORDERLY).store(0, Ordering::Relaxed);
                for at in [head::NEXT_NODE, head::NEXT_HANDLE] {
                    head(at).store(1, Ordering::Relaxed);
                }
                head(head::MAGIC).store(MAGIC, Ordering::Release);
                Ok((store, Vec::new()))
            }
        }
    }

    /// Frees every record: what they say is true no longer.
    pub fn clear(&self) {
        let mut free = self.free.lock();
        (0..self.fresh()).for_each(|index| self.wipe(Slot(index)));
        *free = (0..self.fresh()).rev().collect();
    }

    /// From this place on nothing was ever put. A look there would give it memory.
    fn fresh(&self) -> u32 {
        self.region.word64(head::FRESH).load(Ordering::Relaxed).min(RECORDS as u64) as u32
    }

    /// What is at a place counts no longer.
    fn wipe(&self, slot: Slot) {
        self.region.word64(at(slot)).store(0, Ordering::Release);
    }

    fn read_all(&self) -> Vec<Record> {
        let mut records = Vec::new();
        let mut free = self.free.lock();
        for index in 0..self.fresh() {
            match self.read(Slot(index)) {
                Some(record) => records.push(record),
                None => {
                    self.wipe(Slot(index));
                    free.push(index);
                }
            }
        }
        records
    }

    fn read(&self, slot: Slot) -> Option<Record> {
        let first = self.region.word64(at(slot)).load(Ordering::Acquire);
        let kind = Kind::from_word(first)?;
        let words = std::array::from_fn(|index| self.word(slot, index));
        let len = (first >> 8) as usize;
        let mut bytes = vec![0; len.min(BYTES_MAX)];
        self.region.copy_out(bytes_at(slot), &mut bytes);
        Some(Record { slot, kind, words, bytes })
    }

    /// Puts a record. `None`: there is no place left, or the bytes are too many.
    pub fn put(&self, kind: Kind, words: [u64; WORDS], bytes: &[u8]) -> Option<Slot> {
        if bytes.len() > BYTES_MAX || self.left.load(Ordering::Relaxed) {
            return None;
        }
        let slot = self.claim()?;
        self.region.copy_in(bytes_at(slot), bytes);
        for (index, word) in words.into_iter().enumerate() {
            self.set(slot, index, word);
        }
        let first = kind as u64 | (bytes.len() as u64) << 8;
        self.region.word64(at(slot)).store(first, Ordering::Release);
        Some(slot)
    }

    fn claim(&self) -> Option<Slot> {
        let mut free = self.free.lock();
        if let Some(index) = free.pop() {
            return Some(Slot(index));
        }
        let index = Some(self.fresh()).filter(|index| (*index as usize) < RECORDS)?;
        self.region.word64(head::FRESH).store(u64::from(index) + 1, Ordering::Release);
        Some(Slot(index))
    }

    /// A word of a record.
    pub fn word(&self, slot: Slot, index: usize) -> u64 {
        self.region.word64(at(slot) + 8 * (1 + index)).load(Ordering::Relaxed)
    }

    /// Changes a word of a record.
    pub fn set(&self, slot: Slot, index: usize, value: u64) {
        if !self.left.load(Ordering::Relaxed) {
            self.region.word64(at(slot) + 8 * (1 + index)).store(value, Ordering::Release);
        }
    }

    /// Ends a record.
    pub fn free(&self, slot: Slot) {
        if self.left.load(Ordering::Relaxed) {
            return;
        }
        self.region.word64(at(slot)).store(0, Ordering::Release);
        self.free.lock().push(slot.0);
    }

    /// Records that count.
    pub fn len(&self) -> usize {
        let free = self.free.lock();
        self.fresh() as usize - free.len()
    }

    /// Whether no record counts.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A number for a node id, unlike all that were given out since the memfd was made.
    pub fn next_node(&self) -> u64 {
        self.region.word64(head::NEXT_NODE).fetch_add(1, Ordering::Relaxed)
    }

    /// A number for a file handle, in the same way.
    pub fn next_handle(&self) -> u64 {
        self.region.word64(head::NEXT_HANDLE).fetch_add(1, Ordering::Relaxed)
    }

    /// The records are the next service's from now on: what this one does at its end changes them
    /// no more. The callers that used them are done with that.
    pub fn leave(&self) {
        self.left.store(true, Ordering::SeqCst);
    }

    /// After [`leave`](Self::leave): everything that was answered is durable.
    pub fn left_orderly(&self) {
        self.region.word64(head::ORDERLY).store(1, Ordering::Release);
    }

    /// Whether the former service left everything durable; from now on it counts as killed.
    pub fn was_left_orderly(&self) -> bool {
        self.region.word64(head::ORDERLY).swap(0, Ordering::AcqRel) == 1
    }
}

fn at(slot: Slot) -> usize {
    HEAD_BYTES + slot.0 as usize * WORD_BYTES
}

fn bytes_at(slot: Slot) -> usize {
    BYTES_AT + slot.0 as usize * BYTES_MAX
}

/// The heart-beats of a service, as the service and its supervisor see them: one word for each
/// thread that is watched.
#[derive(Debug)]
pub struct Heart(Region);

impl Heart {
    /// Maps the page of heart-beats.
    ///
    /// # Errors
    /// `EPROTO`: it is no handover.
    pub fn attach(fd: impl AsFd) -> Result<Heart> {
        Ok(Heart(Region::attach(fd, HEAD_BYTES)?))
    }

    /// Threads that may have a word.
    pub const THREADS: usize = HEARTS;

    /// The word of a thread.
    ///
    /// # Errors
    /// `ERANGE`: there are no more.
    pub fn word(&self, thread: usize) -> Result<&std::sync::atomic::AtomicU64> {
        match thread < HEARTS {
            true => Ok(self.0.word64(head::HEARTS + head::HEART_BYTES * thread)),
            false => Err(Errno::ERANGE),
        }
    }

    /// No thread is watched: before a new service starts.
    pub fn clear(&self) {
        for thread in 0..HEARTS {
            self.0.word64(head::HEARTS + head::HEART_BYTES * thread).store(0, Ordering::Relaxed);
        }
    }
}

/// Which requests of the kernel's a service may leave unanswered when it is killed: for the next
/// one, where the kernel does not send them again. Thread-safe.
#[derive(Debug)]
pub struct InFlight(Region);

impl InFlight {
    /// Maps the page that says so.
    ///
    /// # Errors
    /// `EPROTO`: it is no handover.
    pub fn attach(fd: impl AsFd) -> Result<InFlight> {
        Ok(InFlight(Region::attach(fd, HEAD_BYTES)?))
    }

    /// A request was read.
    pub fn read(&self, number: u64) {
        self.0.word64(head::LAST_READ).fetch_max(number, Ordering::Relaxed);
    }

    /// The oldest request that waits for what others do.
    pub fn waits_since(&self, oldest: Option<u64>) {
        self.0.word64(head::OLDEST_WAIT).store(oldest.unwrap_or(0), Ordering::Relaxed);
    }

    /// What a former service said: the last request that it read, and the oldest that waits. `None`
    /// if it read none.
    pub fn left(&self) -> Option<(u64, Option<u64>)> {
        let word = |at| Some(self.0.word64(at).load(Ordering::Relaxed)).filter(|word| *word != 0);
        Some((word(head::LAST_READ)?, word(head::OLDEST_WAIT)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_service_knows_what_was_in_flight() {
        let fd = Store::create().expect("memfd");
        let (former, next) =
            (InFlight::attach(&fd).expect("map"), InFlight::attach(&fd).expect("map"));
        assert_eq!(next.left(), None);
        [4, 10, 6].into_iter().for_each(|number| former.read(number));
        assert_eq!(next.left(), Some((10, None)));
        former.waits_since(Some(4));
        assert_eq!(next.left(), Some((10, Some(4))));
        former.waits_since(None);
        assert_eq!(next.left(), Some((10, None)));
        assert!(Store::attach(&fd).expect("attach").1.is_empty());
        assert_eq!(next.left(), Some((10, None)), "it is no record");
    }

    #[test]
    fn records_outlive_their_service() {
        let fd = Store::create().expect("memfd");
        let (store, none) = Store::attach(&fd).expect("attach");
        assert!(none.is_empty() && store.is_empty());
        let first = store.put(Kind::Node, [1, 2, 3, 4, 5, 6, 7], b"name").expect("room");
        let gone = store.put(Kind::Handle, [9; 7], b"").expect("room");
        let last = store.put(Kind::HostPlace, [8; 7], &[b'x'; 255]).expect("room");
        store.set(first, 1, 20);
        store.free(gone);
        assert_eq!(store.put(Kind::Node, [0; 7], &[0; 257]), None);
        assert_eq!((store.next_node(), store.next_node(), store.next_handle()), (1, 2, 1));
        drop(store);
        let (store, records) = Store::attach(&fd).expect("again");
        let seen: Vec<_> = records.iter().map(|r| (r.slot, r.kind, r.bytes.len())).collect();
        assert_eq!(seen, [(first, Kind::Node, 4), (last, Kind::HostPlace, 255)]);
        assert_eq!(records[0].words, [1, 20, 3, 4, 5, 6, 7]);
        assert_eq!(store.len(), 2);
        assert_eq!(store.put(Kind::Node, [0; 7], b""), Some(gone), "the free place is found");
        assert_eq!((store.next_node(), store.next_handle()), (3, 2));
        assert!(!store.was_left_orderly());
        store.left_orderly();
        assert!(store.was_left_orderly() && !store.was_left_orderly());
        store.clear();
        assert!(Store::attach(&fd).expect("cleared").1.is_empty());
    }

    #[test]
    fn what_is_no_handover_is_refused_and_another_build_s_is_empty() {
        let (_, small) = Region::create("small", 4096).expect("memfd");
        assert_eq!(Store::attach(&small).err(), Some(Errno::EPROTO));
        let fd = Store::create().expect("memfd");
        let (store, _) = Store::attach(&fd).expect("attach");
        store.put(Kind::Node, [0; 7], b"").expect("room");
        store.region.word64(head::MAGIC).store(7, Ordering::Relaxed);
        drop(store);
        assert!(Store::attach(&fd).expect("attach").1.is_empty());
        // A kind that nobody knows is no record.
        let (store, _) = Store::attach(&fd).expect("attach");
        let slot = store.put(Kind::Node, [0; 7], b"").expect("room");
        store.region.word64(at(slot)).store(0xee, Ordering::Relaxed);
        assert!(Store::attach(&fd).expect("attach").1.is_empty());
    }

    #[test]
    fn hearts_have_words_of_their_own() {
        let fd = Store::create().expect("memfd");
        let (heart, other) = (Heart::attach(&fd).expect("map"), Heart::attach(&fd).expect("map"));
        heart.word(Heart::THREADS - 1).expect("last").store(5, Ordering::Relaxed);
        assert_eq!(other.word(Heart::THREADS - 1).expect("last").load(Ordering::Relaxed), 5);
        assert!(heart.word(Heart::THREADS).is_err());
        other.clear();
        assert_eq!(heart.word(Heart::THREADS - 1).expect("last").load(Ordering::Relaxed), 0);
    }
}

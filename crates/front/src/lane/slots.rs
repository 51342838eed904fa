//! Slots: kernel descriptors opened ahead, bound to files later.
//!
//! A slot is a FUSE node of its own that a client opens before it needs it. `open` through the fast
//! lane then costs a `dup` of a free slot in the client and a *binding* here: until it is unbound,
//! every operation that the kernel brings on the slot's node acts on the bound file.
//!
//! ```text
//!   FUSE_CREATE .polylane-slots/<token>-<n>     Op::Open arg[0]=n        Op::Close
//!        (none) ───────────────► free ───────────────► bound ───────────────► free
//!                                                        │ share_all, a second OPEN, a mapping,
//!                                                        │ a request of another process
//!                                                        ▼
//!                                                     escaped ── last FUSE RELEASE ──► (none)
//! ```
//!
//! # Invariants
//!
//! - Only who knows a session's token can make its slots, each number once at a time.
//! - A slot's access mode is that of its kernel descriptor, and only opens of the same mode are
//!   bound to it: the kernel's own mode checks stay right.
//! - An escaped slot is never bound again. Its binding ends with its last kernel handle.
//! - What anybody but the session's own process was told of a slot's descriptor stays true of it: a
//!   slot escapes by the first request of a thread of another process, before that is answered. No
//!   client need say that it gave the descriptor away, and none can know that it was taken.
//! - A slot of which the kernel filled a page has escaped: the mapping may outlive the client's
//!   close.
//! - A slot whose kernel handles are all gone is out of its session's table.
//!
//! # Handover
//!
//! The next service knows a slot by a record. It was bound to the file of a client that is now a
//! stranger, so it has escaped; one that was free is free for nobody.
//!
//! | word | what |
//! |---|---|
//! | 0 | node id |
//! | 1 | number; access above bit 32 |
//! | 2 | owner: user, group |
//! | 3 | flags of the bound file; bit 32: it is bound |
//! | 4, 5 | number and generation of its inode |
//! | 6 | tag of the bound file |
//! | bytes | the session's token |
//!
//! # Locking
//!
//! `SlotTable::sessions → SessionSlots::slots → Slot::state → SlotTable::mapped`. No VFS call is
//! made under any of them, and files are dropped (closed) after all are free.

mod groups;

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;

use polylane_base::sync::atomic::{AtomicBool, Ordering};
use polylane_base::sync::{Arc, Mutex, Weak};
use polylane_base::{Errno, Gid, Result, Uid};
use polylane_vfs::handover::{self, Kind, Store};
use polylane_vfs::{Holder, Inode, Node, OpenFile};

use super::record::{self, Record};
use super::tag::{TAG_SLOT_PAGES, clear_tag, set_tag};
use crate::witness::{Client, Looks, Numbers, Refusal, Threads, Witness};

/// Slots one session may have at a time: above the usual hard limit of open files, and a bound on
/// what a hostile client can make us hold.
pub const SLOTS_MAX: u32 = 65_536;

/// A session's secret name: whoever knows it may make slots for the session.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

impl Token {
    /// A token nobody can guess.
    pub fn random() -> Result<Token> {
        random_bytes().map(Token)
    }

    /// Reads 32 hexadecimal digits.
    pub fn from_hex(text: &[u8]) -> Option<Token> {
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|value| value as u8);
        let mut bytes = [0; 16];
        if text.len() != 32 {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Token(bytes))
    }
}

/// Sixteen bytes nobody can guess. Never blocks after early boot.
pub(super) fn random_bytes() -> Result<[u8; 16]> {
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => Ok(bytes),
        _ => Err(Errno::EIO),
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The session and the number in a slot's name, `<token>-<number>`.
pub(crate) fn from_name(name: &[u8]) -> Option<(Token, u32)> {
    let (token, number) = name.split_at_checked(32)?;
    let digits = number.strip_prefix(b"-").filter(|text| text.iter().all(u8::is_ascii_digit))?;
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((Token::from_hex(token)?, number))
}

/// The name of a slot, as its maker wrote it.
pub(crate) fn name_of(slot: &Slot) -> String {
    format!("{}-{}", slot.session, slot.number)
}

/// A secret stays out of logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Access mode of a descriptor: the `O_ACCMODE` bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// `O_RDONLY`
    Read = 0,
    /// `O_WRONLY`
    Write = 1,
    /// `O_RDWR`
    ReadWrite = 2,
}

impl Access {
    /// The mode in open(2) flags; `None` for the value 3, which means neither.
    pub fn from_flags(flags: i32) -> Option<Access> {
        match flags & libc::O_ACCMODE {
            libc::O_RDONLY => Some(Access::Read),
            libc::O_WRONLY => Some(Access::Write),
            libc::O_RDWR => Some(Access::ReadWrite),
            _ => None,
        }
    }
}

/// What became of a slot when its client closed the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unbound {
    /// It is free again and may be bound to another file.
    Free,
    /// Other descriptors mean it: it keeps its file and must not be used again.
    Escaped,
}

/// One slot. Thread-safe.
pub struct Slot {
    /// The session that made it.
    pub session: Token,
    /// Its number there.
    pub number: u32,
    /// Mode of its kernel descriptor.
    pub access: Access,
    /// Who made it: the owner it shows while it is free.
    pub owner: (Uid, Gid),
    state: Mutex<State>,
    holder: Arc<OnceLock<Weak<dyn Holder>>>,
}

/// Words of a slot's record.
const FLAGS: usize = 3;
const INO: usize = 4;
const GENERATION: usize = 5;
const TAG: usize = 6;
/// In the word of flags: there is a bound file.
const BOUND: u64 = 1 << 32;

#[derive(Default)]
struct State {
    file: Option<Arc<OpenFile>>,
    /// Its file was lost with a former service.
    lost: bool,
    escaped: bool,
    /// Its client readied it for other processes: its kernel descriptor has the file's flags.
    shared: bool,
    /// The kernel may have pages of the file under the slot's node.
    mapped: bool,
    /// FUSE handles open on the node: the slot's own and those of second opens.
    handles: u32,
    /// FUSE node id, once the front end gave it one.
    node_id: u64,
    /// What the next service is to know.
    record: Option<Record>,
}

impl State {
    /// Binds, or unbinds. Call with the state locked.
    fn bind(&mut self, file: Option<Arc<OpenFile>>) -> Option<Arc<OpenFile>> {
        if let Some(record) = &self.record {
            // First nothing, so that no flags ever go with the wrong file.
            record.set(FLAGS, 0);
            if let Some(file) = &file {
                record.set(INO, file.node().ino().0);
                record.set(GENERATION, file.node().generation());
                record.set(TAG, file.tag().load(Ordering::Relaxed));
                record.set(FLAGS, BOUND | record::flags_word(file));
            }
        }
        std::mem::replace(&mut self.file, file)
    }
}

impl Slot {
    /// The flags of the file that a record's slot is bound to.
    pub(crate) fn bound_flags(word: u64) -> Option<u64> {
        (word & BOUND != 0).then_some(word & !BOUND)
    }

    /// A slot of a former service, and the file that it was bound to.
    pub(crate) fn restore(
        from: &handover::Record,
        file: Option<Arc<OpenFile>>,
        record: Record,
    ) -> Option<Slot> {
        let [node_id, number, owner, ..] = from.words;
        let access = Access::from_flags((number >> 32) as i32)?;
        let session = Token(from.bytes.as_slice().try_into().ok()?);
        let owner = (Uid((owner >> 32) as u32), Gid(owner as u32));
        let lost = file.is_none() && Self::bound_flags(from.words[FLAGS]).is_some();
        if let Some(file) = file.as_ref().filter(|file| file.is_lost()) {
            record.set(FLAGS, BOUND | record::flags_word(file));
        }
        let record = Some(record);
        let state = State { file, lost, escaped: true, node_id, record, ..State::default() };
        let (state, holder) = (Mutex::new(state), Arc::default());
        Some(Slot { session, number: number as u32, access, owner, state, holder })
    }

    /// The bound file, for the kernel: what the client did with it under a lease is applied, and
    /// its leases are over, since others may have the slot's descriptor. `EBADF` when there is
    /// none.
    pub fn file(&self) -> Result<Arc<OpenFile>> {
        self.end_leases();
        self.bound()
    }

    fn end_leases(&self) {
        if let Some(holder) = self.holder.get().and_then(Weak::upgrade) {
            holder.revoke();
        }
    }

    fn bound(&self) -> Result<Arc<OpenFile>> {
        let state = self.state.lock();
        let none = if state.lost { Errno::EIO } else { Errno::EBADF };
        state.file.clone().ok_or(none)
    }

    /// Whether other descriptors than the client's own may mean this slot.
    pub fn escaped(&self) -> bool {
        self.state.lock().escaped
    }

    /// Whether its client readied it for other processes.
    pub fn is_shared(&self) -> bool {
        self.state.lock().shared
    }
}

/// The slots of one session; what the shared-memory front end works with. Thread-safe.
pub struct SessionSlots {
    token: Token,
    user: Uid,
    groups: Arc<[Gid]>,
    process: Threads,
    /// Who applies what the client did under leases.
    holder: Arc<OnceLock<Weak<dyn Holder>>>,
    slots: Mutex<Slots>,
    /// Its client may take a slot for its own that others hold: see [`SlotTable::stray`].
    strayed: AtomicBool,
    store: Option<Arc<Store>>,
}

#[derive(Default)]
struct Slots {
    by_number: HashMap<u32, Arc<Slot>>,
    /// The session ended: nothing may be made or bound any more.
    closed: bool,
}

impl SessionSlots {
    /// The session's secret name.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whether its client may take a slot for its own that others hold. What it tells of by a
    /// stream can then not be refused in time.
    pub fn has_strays(&self) -> bool {
        self.strayed.load(Ordering::SeqCst)
    }

    /// Says who applies what the client did under leases. Once.
    pub fn set_holder(&self, holder: Weak<dyn Holder>) {
        // A second call would be a bug and changes nothing.
        let _ = self.holder.set(holder);
    }

    /// Binds a free slot to a file. `EBUSY`: there is no free slot of that number: it is bound, it
    /// escaped, or the kernel released it; `EINVAL`: the file's access mode is not the slot's.
    pub fn bind(&self, number: u32, file: Arc<OpenFile>) -> Result<()> {
        let slot = self.find(number).map_err(|_| Errno::EBUSY)?;
        if Access::from_flags(file.flags()) != Some(slot.access) {
            return Err(Errno::EINVAL);
        }
        let mut state = slot.state.lock();
        if state.file.is_some() || state.escaped {
            return Err(Errno::EBUSY);
        }
        if let Some(store) = &self.store {
            file.tag().store(store.next_handle(), Ordering::Relaxed);
        }
        state.bind(Some(file));
        Ok(())
    }

    /// Ends a binding, unless the slot escaped. `EBADF`: no such slot.
    pub fn unbind(&self, number: u32) -> Result<Unbound> {
        let slot = self.find(number)?;
        let mut state = slot.state.lock();
        if state.escaped {
            return Ok(Unbound::Escaped);
        }
        let file = state.bind(None);
        drop(state);
        drop(file);
        Ok(Unbound::Free)
    }

    /// The file a slot is bound to. `EBADF` when it is free or does not exist.
    pub fn bound(&self, number: u32) -> Result<Arc<OpenFile>> {
        self.find(number)?.bound()
    }

    /// Whether a slot can be bound now. `EBUSY` as [`bind`](Self::bind).
    pub fn check_free(&self, number: u32) -> Result<()> {
        let slot = self.find(number).map_err(|_| Errno::EBUSY)?;
        let state = slot.state.lock();
        if state.file.is_some() || state.escaped { Err(Errno::EBUSY) } else { Ok(()) }
    }

    /// Marks every bound slot escaped: other processes are about to hold its descriptor.
    pub fn share_all(&self) {
        for slot in self.slots.lock().by_number.values() {
            let mut state = slot.state.lock();
            let bound = state.file.is_some();
            (state.escaped, state.shared) = (state.escaped | bound, state.shared | bound);
        }
    }

    /// Marks every bound slot escaped, as its client left it.
    fn abandon_all(&self) {
        for slot in self.slots.lock().by_number.values() {
            let mut state = slot.state.lock();
            state.escaped |= state.file.is_some();
        }
    }

    /// Others have the slot's descriptor, of which the client need not know.
    fn keeps_no_more(&self, slot: &Slot) {
        if slot.escaped() {
            // As of all that a child inherits: the client said so itself.
            return;
        }
        self.strayed.store(true, Ordering::SeqCst);
        slot.end_leases();
        slot.state.lock().escaped = true;
    }

    fn find(&self, number: u32) -> Result<Arc<Slot>> {
        self.slots.lock().by_number.get(&number).cloned().ok_or(Errno::EBADF)
    }
}

/// Which slot nodes may have kernel pages of which inode, by the inode's address: an entry's slot
/// holds the inode open, so the address cannot mean another one.
#[derive(Default)]
pub(crate) struct MappedIndex(Mutex<HashMap<usize, Vec<u64>>>);

fn address(node: &Node) -> usize {
    Arc::as_ptr(node).cast::<Inode>() as usize
}

impl MappedIndex {
    fn insert(&self, node: &Node, node_id: u64) {
        self.0.lock().entry(address(node)).or_default().push(node_id);
        set_tag(node, TAG_SLOT_PAGES);
    }

    fn remove(&self, node: &Node, node_id: u64) {
        let mut index = self.0.lock();
        let Some(ids) = index.get_mut(&address(node)) else { return };
        ids.retain(|id| *id != node_id);
        if ids.is_empty() {
            index.remove(&address(node));
            clear_tag(node, TAG_SLOT_PAGES);
        }
    }

    /// The slot nodes of an inode.
    pub(crate) fn node_ids(&self, node: &Node) -> Vec<u64> {
        self.0.lock().get(&address(node)).cloned().unwrap_or_default()
    }
}

/// All slots of a lane, by session. Thread-safe.
#[derive(Default)]
pub struct SlotTable {
    sessions: Mutex<HashMap<Token, Weak<SessionSlots>>>,
    pub(crate) witness: OnceLock<Arc<dyn Witness>>,
    pub(crate) mapped: MappedIndex,
    store: Option<Arc<Store>>,
}

impl SlotTable {
    /// A table whose slots are handed over.
    pub(crate) fn handed_over(store: Arc<Store>) -> SlotTable {
        SlotTable { store: Some(store), ..SlotTable::default() }
    }

    /// Sets the witness. Once, before the first session.
    pub fn set_witness(&self, witness: Arc<dyn Witness>) {
        // A second call would be a bug and changes nothing.
        let _ = self.witness.set(witness);
    }

    /// What a process is that wants a session; without a witness it is what it seems. `EACCES`: the
    /// kernel alone decides what it may do, so it has none. `EXDEV`: it has to show
    /// the lane's root.
    pub(crate) fn admit(&self, client: Client<'_>, refused: impl Fn(Refusal)) -> Result<Numbers> {
        let pid = client.pid;
        let Some(witness) = self.witness.get() else { return Ok(Numbers { pid, thread: pid }) };
        let standing = witness.look(client).and_then(Looks::at_home).map_err(|why| {
            refused(why);
            Errno::EACCES
        });
        Ok(Numbers { pid, thread: standing?? })
    }

    /// Starts a session of a user's process: from now on its token makes slots. `groups` are the
    /// supplementary groups of the process.
    pub fn open_session(
        &self,
        token: Token,
        (user, groups): (Uid, Arc<[Gid]>),
        process: Numbers,
    ) -> Arc<SessionSlots> {
        let session = Arc::new(SessionSlots {
            token,
            user,
            groups,
            process: Threads::of(process),
            holder: Arc::default(),
            slots: Mutex::default(),
            strayed: AtomicBool::new(false),
            store: self.store.clone(),
        });
        self.sessions.lock().insert(token, Arc::downgrade(&session));
        session
    }

    /// Ends a session: its process is gone or will come back under a new token. Free slots vanish
    /// with their descriptors; bound ones now belong to whoever holds a descriptor.
    pub fn drop_session(&self, session: &SessionSlots) {
        self.sessions.lock().remove(&session.token);
        session.slots.lock().closed = true;
        session.abandon_all();
    }

    /// Makes a slot, on behalf of the kernel's CREATE. `EACCES`: no such session; `EEXIST`: the
    /// number is in use; `EMFILE`: number out of range.
    pub fn create(
        &self,
        token: Token,
        number: u32,
        access: Access,
        owner: (Uid, Gid),
    ) -> Result<Arc<Slot>> {
        if number >= SLOTS_MAX {
            return Err(Errno::EMFILE);
        }
        let session = self.session(token)?;
        let mut slots = session.slots.lock();
        if slots.closed {
            return Err(Errno::EACCES);
        }
        if slots.by_number.contains_key(&number) {
            return Err(Errno::EEXIST);
        }
        let (state, holder) = (Mutex::default(), session.holder.clone());
        let slot = Slot { session: token, number, access, owner, state, holder };
        let slot = Arc::new(slot);
        slots.by_number.insert(number, slot.clone());
        Ok(slot)
    }

    /// Gives a new slot its FUSE node id.
    pub(crate) fn name(&self, slot: &Slot, node_id: u64) {
        let number = u64::from(slot.number) | (slot.access as u64) << 32;
        let owner = u64::from(slot.owner.0.0) << 32 | u64::from(slot.owner.1.0);
        let words = [node_id, number, owner, 0, 0, 0, 0];
        let token = slot.session.0;
        let store = self.store.as_ref();
        let record = store.and_then(|store| Record::put(store, Kind::Slot, words, &token));
        let mut state = slot.state.lock();
        (state.node_id, state.record) = (node_id, record);
    }

    /// Marks a bound slot escaped. `EBADF` when it is not bound.
    pub(crate) fn escape(&self, slot: &Slot) -> Result<()> {
        if let Ok(session) = self.session(slot.session) {
            session.strayed.store(true, Ordering::SeqCst);
        }
        slot.end_leases();
        let mut state = slot.state.lock();
        state.escaped |= state.file.is_some();
        if state.escaped { Ok(()) } else { Err(Errno::EBADF) }
    }

    /// Another process than the client's has the slot's descriptor, and the client may not know:
    /// the slot is never bound again. Nothing is done where it is `own`, of the asker's session.
    pub(crate) fn stray(&self, token: Token, number: u32, own: Token) {
        let session = if token == own { Err(Errno::EACCES) } else { self.session(token) };
        let Ok(session) = session else { return };
        let Ok(slot) = session.find(number) else { return };
        session.keeps_no_more(&slot);
    }

    /// A request on a slot's descriptor comes from `thread`. Before it learns anything: one that is
    /// not of the session's process has the descriptor for good, however it came by it, and what it
    /// is told now must stay true of it. So the slot is bound to no other file from here on.
    pub(crate) fn met(&self, slot: &Slot, thread: u32) {
        if slot.escaped() {
            return;
        }
        // Once its session is over it is not bound again.
        let Ok(session) = self.session(slot.session) else { return };
        if !session.process.has(thread, self.witness.get()) {
            session.keeps_no_more(slot);
        }
    }

    /// The kernel fills a page of a bound slot's node: a program maps it.
    pub(crate) fn has_pages(&self, slot: &Slot) {
        let mut state = slot.state.lock();
        let Some(file) = state.file.as_ref().filter(|_| !state.mapped) else { return };
        self.mapped.insert(file.node(), state.node_id);
        state.mapped = true;
        state.escaped = true;
    }

    /// Counts one kernel handle more on the slot's node.
    pub(crate) fn opened(&self, slot: &Slot) {
        slot.state.lock().handles += 1;
    }

    /// Counts one kernel handle less; the last one ends the binding and the slot: true then.
    pub(crate) fn released(&self, slot: &Slot) -> bool {
        let mut state = slot.state.lock();
        state.handles = state.handles.saturating_sub(1);
        if state.handles > 0 {
            return false;
        }
        let file = state.bind(None);
        let record = state.record.take();
        if let Some(file) = file.as_ref().filter(|_| state.mapped) {
            self.mapped.remove(file.node(), state.node_id);
        }
        state.escaped = true;
        drop(state);
        drop(record);
        if let Ok(session) = self.session(slot.session) {
            session.slots.lock().by_number.remove(&slot.number);
        }
        drop(file);
        true
    }

    fn session(&self, token: Token) -> Result<Arc<SessionSlots>> {
        self.sessions.lock().get(&token).and_then(Weak::upgrade).ok_or(Errno::EACCES)
    }
}

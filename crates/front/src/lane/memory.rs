//! Lanes of which the kernel remembers names and states until it is told otherwise: those whose
//! file system says so (`Character::remembered`), as unions do.
//!
//! Elsewhere every step of a path asks (timeouts of 0). Here
//!
//! - a *name* is told for good by the lookup at which the kernel first hears of an inode that is as
//!   its layer has it (`is_original`). Then the kernel holds the directory until it has the answer,
//!   so a thread that takes the name away and waits for the notification comes after it. A later
//!   lookup may be one that overtakes the notification, and its answer counts once;
//! - a *state* is told for good by GETATTR alone, for which the kernel sees by itself whether a
//!   notification came in between; of a lookup it does not, where the inode is new to it.
//!
//! A name that was told for good is removed, moved and replaced by the kernel alone: the
//! shared-memory door leaves such changes to it ([`Lane::is_name_told`]), and so waits for no
//! directory that a program has the kernel hold. A name that is told just as it changes is dropped.
//!
//! The answer to a change of a state waits until the kernel has heard of it ([`Notifier::settle`]):
//! that of the shared-memory door always, and that of the kernel where it does not know which inode
//! it changed (a slot stands for it), or that it did (an ioctl, a listing). What the kernel itself
//! changes otherwise it forgets by itself.
//!
//! # A service that is killed
//!
//! may take changes with it of which the kernel has heard, or leave some of which it has not. Each
//! name that is told for good is in its node's record. The next service has the kernel drop all
//! states and look all such names up again ([`Lane::drop_former`]), and counts all states as told
//! before. Names of originals come back as they were. A name that the kernel moved is looked up
//! again, too: where it goes is in a record before it is moved.

use polylane_base::Ino;
use polylane_base::sync::Arc;
use polylane_base::sync::atomic::Ordering;
use polylane_vfs::{Inode, Node, Teller};
use zerocopy::little_endian::U64;

use super::Lane;
use super::nodes::{COUNTER_BITS, Place, ROOT_ID};
use super::notifier::Notifier;
use super::tag::TAG_ID_SHIFT;

/// How long the kernel may remember what is told for good, in seconds: some decades, which no
/// kernel's clock overflows by.
pub(crate) const FOR_GOOD: u64 = 1 << 30;

/// The minor version of the protocol (Linux 6.2) from which on names can be made to expire: of a
/// directory that moved the name must not be dropped, since somebody may work there, or mount.
const MINOR_MIN: u32 = 38;

/// Longest name that is told for good: it has room in the node's record.
const NAME_BYTES_MAX: usize = 240;

/// Who is told of changes.
struct Memory {
    notifier: Arc<Notifier>,
    root: Ino,
    incarnation: u64,
}

impl Teller for Memory {
    fn state_changed(&self, inode: &Inode) {
        let counter = inode.tag().load(Ordering::SeqCst) >> TAG_ID_SHIFT;
        match counter {
            _ if inode.ino() == self.root => self.notifier.owe_state(ROOT_ID),
            // The kernel has let go of it.
            0 => {}
            counter => self.notifier.owe_state(self.incarnation << COUNTER_BITS | counter),
        }
    }
}

impl Lane {
    /// The kernel and this service agreed on that minor version of the protocol: from now on the
    /// kernel remembers what it is told, if that may be. A service without a handover would not
    /// know what the former one told.
    pub(crate) fn agreed_on(&self, minor: u32) {
        if minor < MINOR_MIN || self.handover.is_none() {
            return;
        }
        let (notifier, root) = (self.notifier.clone(), self.vfs.root().ino());
        let memory = Memory { notifier, root, incarnation: self.nodes.incarnation() };
        if self.vfs.tell_with(Arc::new(memory)) {
            self.notifier.will_owe(self.nodes.has_former_names());
            self.remembers.store(true, Ordering::Release);
        }
    }

    /// Whether the kernel remembers what it is told.
    pub(crate) fn remembers(&self) -> bool {
        self.remembers.load(Ordering::Acquire)
    }

    /// Whether the kernel most likely has the name and the state of an inode in its memory, or has
    /// them for good once it is asked.
    pub(crate) fn kernel_knows(&self, node: &Node) -> bool {
        let is_learned = self.nodes.id_of(node).is_none() || self.vfs.is_remembered(node);
        self.remembers() && is_learned && self.vfs.is_original(node)
    }

    /// The kernel is about to be told that `name` in the directory `dir_id` is `node`: the node's
    /// id, and for how many seconds.
    pub(crate) fn tell_name(&self, node: &Node, dir_id: u64, name: &[u8]) -> (u64, u64) {
        let place = Place::of(dir_id, name);
        let may_be = self.remembers() && !self.notifier.owes_names();
        let is_new = may_be && self.nodes.id_of(node).is_none();
        if !is_new || name.len() > NAME_BYTES_MAX || !self.vfs.is_original(node) {
            return (self.nodes.remember(node, place), 0);
        }
        let (id, lasts) = self.nodes.remember_told(node, place, &as_recorded(dir_id, name));
        (id, if lasts { FOR_GOOD } else { 0 })
    }

    /// Whether a name of an inode was told for good: then the kernel alone changes its names.
    pub(crate) fn is_name_told(&self, node: &Node) -> bool {
        self.remembers() && self.nodes.is_told(node)
    }

    /// To be called before the name at `from`, that of `node`, is moved by the kernel. Where it was
    /// told for good, so is the new one: the lifetime goes along. A kill may undo the rename, so
    /// the new name must be in a record by now. Without room for that, the kernel looks it up
    /// again. Whether `NodeTable::has_moved` is to be called then.
    pub(crate) fn will_move(&self, node: &Node, from: Place, (dir_id, name): (u64, &[u8])) -> bool {
        let recorded = self.nodes.will_move(node, from, &as_recorded(dir_id, name));
        if recorded == Some(false) {
            self.notifier.expire_name(dir_id, name, || self.nodes.len());
        }
        recorded == Some(true)
    }

    /// Has the kernel drop the states that a former service told it, and look names up again. To be
    /// called once.
    pub(crate) fn drop_former(&self) {
        if self.remembers() {
            for (dir_id, name) in self.nodes.take_former_names() {
                self.notifier.owe_name(dir_id, &name, true);
            }
            self.nodes.ids().chain([ROOT_ID]).for_each(|id| self.notifier.owe_state(id));
        }
        self.notifier.will_owe(false);
    }
}

/// A name that is told for good, as its record has it.
fn as_recorded(dir_id: u64, name: &[u8]) -> Vec<u8> {
    [&U64::from(dir_id).to_bytes(), name].concat()
}

//! Opening and closing: superblock, journal recovery, orphans, and the way back to a clean image.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use polylane_base::sync::{Arc, Mutex, thread};
use polylane_base::{Clock, Errno};
use polylane_block::wait::Waiter;
use polylane_block::{BlockDevice, Error as DeviceError, Sector};

use crate::alloc::Allocator;
use crate::cache::BlockCache;
use crate::changes::Changes;
use crate::data_mode::DataMode;
use crate::error::{Corrupt, Error, Result, Structure};
use crate::extents::{self, Mapping};
use crate::fast;
use crate::format::fast::Change;
use crate::format::superblock::{BYTES, Compat, Incompat, OFFSET, RoCompat, State, Superblock};
use crate::format::{FileBlock, journal::JournalSuperblock};
use crate::inode::InodeTable;
use crate::io::BlockIo;
use crate::journal::{Form, Journal, Tuning};
use crate::ops;
use crate::orphan::{self, OrphanFile};
use crate::quota::Quotas;
use crate::reason::{Reason, Reasons};
use crate::recovery::{JournalMap, Recovered, forget, fresh_sequence, recover};
use crate::space;
use crate::trace::Step;
use crate::volume::{Traits, Volume};
use polylane_vfs::OpCtx;

/// How to open an image.
#[derive(Clone, Debug)]
pub struct Options {
    /// Never write, not even to replay the journal, for this reason; a journal that needs it is
    /// then an error.
    pub read_only: Option<&'static str>,
    /// Commit at least this often.
    pub commit_interval: Duration,
    /// Metadata blocks kept in memory.
    pub cache_blocks: usize,
    /// Give the device back what is freed, after each commit. An image may want that by itself
    /// (`tune2fs -o discard`).
    pub discard: bool,
    /// What is known of a new block's data when it becomes a file's.
    pub data: DataMode,
    /// How commits work together.
    pub tuning: Tuning,
    /// Files without a name may still be open since a former life: they are kept until
    /// `end_revival`, which frees those that were not revived.
    pub keep_nameless: bool,
}

impl Default for Options {
    fn default() -> Self {
        let commit_interval = Duration::from_secs(5);
        let tuning = Tuning::default();
        Options {
            read_only: None,
            commit_interval,
            cache_blocks: 8192,
            discard: false,
            data: DataMode::default(),
            tuning,
            keep_nameless: false,
        }
    }
}

/// An open ext4 file system. Close it with [`Ext4::close`]; dropped without, it is as after a power
/// cut: whole, but its journal must be replayed.
pub struct Ext4 {
    pub(crate) volume: Arc<Volume>,
    /// Operations that change something, as long as they run.
    pub(crate) changes: Changes,
    committer: Mutex<Option<thread::JoinHandle<()>>>,
    /// Files without a name that nobody has revived yet.
    pub(crate) nameless: Mutex<Vec<u32>>,
    /// Files without a name stay, for whoever opens the image next.
    pub(crate) leaves_nameless: AtomicBool,
    /// What recovery did when the image was opened.
    pub recovered: Recovered,
    /// Why the image is open for reading only; empty when it is not.
    pub read_only_reasons: Vec<String>,
}

impl Ext4 {
    /// Opens the image on `device`.
    ///
    /// # Errors
    /// Not ext4, corrupt, incompatible, or the device failed.
    pub fn open(
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        options: &Options,
    ) -> Result<Ext4> {
        let superblock = read_superblock(&device)?;
        let mut reasons = reasons_not_to_write(&superblock, &device, options);
        let needs_recovery = superblock.has_incompat(Incompat::RECOVER);
        if !reasons.is_empty() && needs_recovery {
            return Err(Error::Unreplayed(reasons));
        }
        refuse_data_mode(&superblock, &reasons, options)?;
        let mut replayed = None;
        let mut now = superblock;
        let has_journal = now.has_compat(Compat::HAS_JOURNAL);
        if reasons.is_empty() && has_journal {
            replayed = Some(replay(&device, &clock, &now, options)?);
            // What the log held may have changed anything in it.
            now = read_superblock(&device)?;
            reasons = reasons_not_to_write(&now, &device, options);
        }
        check_size(&now, &device)?;
        let mut volume = assemble(device, clock, now, options)?;
        volume.overhead_blocks += journal_blocks(&volume);
        let mut recovered = Recovered::default();
        if !reasons.is_empty() {
            return Ok(Ext4::new(Arc::new(volume), recovered, reasons));
        }
        // All that may be refused is looked at before anything is written.
        let orphans = orphan::read(&volume, &volume.superblock.lock())?;
        let quotas = Quotas::open(&volume, &volume.superblock.lock())?;
        volume.accounts = quotas.map(|quotas| Box::new(quotas) as _);
        let mut fast_changes = Vec::new();
        volume.journal = Some(match replayed {
            Some(mut replayed) => {
                recovered = replayed.recovered;
                fast_changes = std::mem::take(&mut replayed.fast_changes);
                open_journal(&volume, replayed, options)?
            }
            None => {
                mark_in_use(&volume, false)?;
                Journal::unlogged(volume.io.clone(), options.tuning)
            }
        });
        let volume = Arc::new(volume);
        if let Some(journal) = volume.journal.as_ref().filter(|_| !has_journal) {
            journal.back_ahead(&*volume)?;
        }
        let nameless = finish_orphans(&volume, orphans, fast_changes, options.keep_nameless)?;
        let committer = start_committer(volume.clone(), options.commit_interval);
        let fs = Ext4::new(volume, recovered, reasons);
        *fs.nameless.lock() = nameless;
        *fs.committer.lock() = Some(committer);
        Ok(fs)
    }

    fn new(volume: Arc<Volume>, recovered: Recovered, reasons: Vec<String>) -> Ext4 {
        Ext4 {
            volume,
            changes: Changes::default(),
            committer: Mutex::default(),
            nameless: Mutex::default(),
            leaves_nameless: AtomicBool::new(false),
            recovered,
            read_only_reasons: reasons,
        }
    }

    /// From now on files without a name stay in the image, for one who opens it next with
    /// [`Options::keep_nameless`]; any other frees them.
    pub fn leave_nameless(&self) {
        self.leaves_nameless.store(true, Ordering::SeqCst);
    }

    /// Waits for the changes under way, commits, writes everything home and marks the image clean.
    /// Changes that come later are `EROFS`.
    ///
    /// # Errors
    /// The device's; the image then needs its journal replayed.
    pub fn close(&self) -> Result<()> {
        let Some(journal) = &self.volume.journal else { return Ok(()) };
        // Some of them may wait for room in the log, which a full medium never gives.
        let in_vain = || journal.is_starved() || journal.is_stopped();
        if !self.changes.shut(in_vain) && !journal.is_stopped() {
            journal.stop(Some(&DeviceError::NoSpace.into()));
        }
        journal.close();
        if let Some(committer) = self.committer.lock().take() {
            let _ = committer.join();
        }
        let left = self.volume.stop_on(self.leave_clean(journal));
        // A failure stops the file system: a second try must not call the image clean.
        if let Err(why) = &left {
            journal.stop(Some(why));
        }
        left
    }

    fn leave_clean(&self, journal: &Journal) -> Result<()> {
        let volume = &self.volume;
        let orphans = volume.orphans.lock().members();
        let left = finish_all(volume, orphans, self.leaves_nameless.load(Ordering::SeqCst))?;
        journal.commit(&**volume)?;
        let mut superblock = volume.superblock.lock();
        journal.finish()?;
        superblock.set_free_blocks(volume.alloc.available_blocks());
        superblock.set_free_inodes(volume.alloc.free_inodes());
        superblock.set_recover(false);
        if left.is_empty() {
            superblock.set_orphan_present(false);
        }
        let state = superblock.state() | State::VALID;
        superblock.set_state(state);
        superblock.note_write(volume.clock.now().sec as u32);
        write_superblock(volume, &superblock)
    }

    /// Whether an error stopped the file system.
    pub fn is_stopped(&self) -> bool {
        self.volume.journal.as_ref().is_some_and(Journal::is_stopped)
    }
}

impl Ext4 {
    /// Gives the device back every free run of at least `blocks_min` blocks (FITRIM). Returns the
    /// blocks given.
    ///
    /// # Errors
    /// `EROFS`, or the device's.
    pub fn trim(&self, blocks_min: u32) -> Result<u64> {
        let volume = &self.volume;
        let journal = volume.journal.as_ref().ok_or(Errno::EROFS)?;
        // What was freed so far becomes free.
        journal.commit(&**volume)?;
        let give = |start, count: u32| {
            let given = volume.io.discard(start, count.into());
            // A discard that fails may have given a part.
            journal.lost_room(start, count);
            Ok(given?)
        };
        let given = volume.alloc.trim(blocks_min.max(1), give)?;
        volume.found_room(given);
        journal.back_ahead(&**volume)?;
        Ok(given)
    }

    /// Writes the journal's blocks, as far as they are holes of the medium or were never written
    /// there: the first commits then cost what later ones do.
    ///
    /// # Errors
    /// The device's.
    pub fn write_journal_ahead(&self) -> Result<()> {
        self.volume.journal.as_ref().map_or(Ok(()), Journal::zero_all)
    }

    /// How many commits went to the journal in each form so far, by the form's name.
    pub fn commits(&self) -> Vec<(&'static str, u64)> {
        let journal = self.volume.journal.iter();
        journal.flat_map(|it| Form::ALL.map(|form| (form.name(), it.commits(form)))).collect()
    }

    /// How many writes went where, by the name of the reason.
    pub fn writes(&self) -> [(&'static str, u64); Reason::ALL.len()] {
        Reason::ALL.map(|reason| (reason.name(), self.volume.reasons.get(reason)))
    }

    /// The last syncs, in the order in which their parts ended.
    pub fn syncs(&self) -> Vec<Step> {
        self.volume.journal.as_ref().map(|journal| journal.trace.steps()).unwrap_or_default()
    }

    /// Why the file system was stopped, when it was.
    pub fn stopped_by(&self) -> Option<Error> {
        self.volume.journal.as_ref().and_then(Journal::reason)
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if let Some(journal) = &self.volume.journal {
            journal.stop(None);
        }
        if let Some(committer) = self.committer.lock().take() {
            let _ = committer.join();
        }
    }
}

fn read_superblock(device: &Arc<dyn BlockDevice>) -> Result<Superblock> {
    let waiter = Waiter::new(device.clone());
    let sector = Sector::at_byte(OFFSET).ok_or(Errno::EINVAL)?;
    let bytes = waiter.read(sector, BYTES)?;
    let bytes: &[u8; BYTES] = (&bytes[..]).try_into().map_err(|_| Errno::EIO)?;
    Superblock::decode(bytes)
}

/// Refuses to journal all data where nothing is journaled, for the reasons not to write or because
/// there is no journal.
fn refuse_data_mode(superblock: &Superblock, reasons: &[String], options: &Options) -> Result<()> {
    if options.data != DataMode::Data {
        return Ok(());
    }
    let mut why = reasons.to_vec();
    if !superblock.has_compat(Compat::HAS_JOURNAL) {
        why.push("it has no journal".into());
    } else if !why.is_empty() {
        why.insert(0, "it is read only".into());
    }
    if why.is_empty() { Ok(()) } else { Err(Error::Unjournaled(why)) }
}

fn check_size(superblock: &Superblock, device: &Arc<dyn BlockDevice>) -> Result<()> {
    let geometry = &superblock.geometry;
    let needed = geometry.block_count.checked_mul(u64::from(geometry.block_bytes / 512));
    match needed.is_none_or(|sectors| sectors > device.sector_count()) {
        true => Err(Corrupt::new(Structure::Superblock, 0, "larger than the device").into()),
        false => Ok(()),
    }
}

fn reasons_not_to_write(
    superblock: &Superblock,
    device: &Arc<dyn BlockDevice>,
    options: &Options,
) -> Vec<String> {
    let mut reasons = superblock.read_only_reasons();
    reasons.extend(options.read_only.map(Into::into));
    if device.read_only() {
        reasons.push("its device is".into());
    }
    reasons
}

fn assemble(
    device: Arc<dyn BlockDevice>,
    clock: Arc<dyn Clock>,
    superblock: Superblock,
    options: &Options,
) -> Result<Volume> {
    let geometry = superblock.geometry;
    let io = Arc::new(BlockIo::new(device, geometry.block_bytes, geometry.block_count));
    let cache = Arc::new(BlockCache::new(options.cache_blocks));
    Ok(Volume {
        alloc: Allocator::open(io.clone(), cache.clone(), &superblock)?,
        io,
        cache,
        journal: None,
        geometry,
        overhead_blocks: superblock.overhead_blocks(),
        seed: superblock.checksum_seed(),
        has_sums: superblock.has_checksums(),
        traits: Traits::new(&superblock)?,
        discard: options.discard || superblock.wants_discard(),
        data: options.data,
        reasons: Reasons::default(),
        accounts: None,
        inodes: InodeTable::default(),
        orphans: Mutex::default(),
        generation: AtomicU32::new(clock.now().nsec ^ clock.now().sec as u32),
        clock,
        full: AtomicBool::new(false),
        full_since: Mutex::default(),
        large_file: AtomicBool::new(superblock.has_ro_compat(RoCompat::LARGE_FILE)),
        ext_attr: AtomicBool::new(superblock.has_compat(Compat::EXT_ATTR)),
        damage_recorded: AtomicBool::new(false),
        unused_values: Mutex::default(),
        superblock: Mutex::new(superblock),
    })
}

/// A journal whose log is not needed any more.
struct Replayed {
    map: JournalMap,
    journal: JournalSuperblock,
    recovered: Recovered,
    /// What fast commits change beside.
    fast_changes: Vec<Change>,
}

/// Finds the journal and replays it if need be.
///
/// The superblock may be older than the log, and with it the geometry and the descriptors of the
/// groups: a file system grown online and cut off from power, say. So no more of it is believed
/// than finding the journal takes; the log's blocks may lie anywhere on the device.
fn replay(
    device: &Arc<dyn BlockDevice>,
    clock: &Arc<dyn Clock>,
    superblock: &Superblock,
    options: &Options,
) -> Result<Replayed> {
    let sectors_per_block = u64::from(superblock.geometry.block_bytes / 512);
    let part = superblock.up_to_journal(device.sector_count() / sectors_per_block);
    let volume = assemble(device.clone(), clock.clone(), part, options)?;
    let (map, mut journal) = find_journal(&volume)?;
    let mut recovered = Recovered { next_sequence: journal.sequence(), ..Recovered::default() };
    let mut fast_changes = Vec::new();
    if superblock.has_incompat(Incompat::RECOVER) {
        (recovered, fast_changes) = recover(&volume.io, &map, &mut journal)?;
    } else if journal.start() != 0 {
        // Before the superblock says that the log is to be replayed, if the power goes.
        recovered.next_sequence = forget(&volume.io, &map, &mut journal)?;
    }
    Ok(Replayed { map, journal, recovered, fast_changes })
}

/// Opens the journal for writing. The image says that it is in use from now on.
fn open_journal(volume: &Volume, replayed: Replayed, options: &Options) -> Result<Journal> {
    let Replayed { map, mut journal, recovered, .. } = replayed;
    // With fast commits the number is theirs.
    let next = match recovered.fast_changes {
        0 => fresh_sequence(&volume.io, &map, &journal, recovered.next_sequence)?,
        _ => recovered.next_sequence,
    };
    // An error that stopped the journal's last user: replay may have undone what was written about
    // it in the superblock. Opening the journal forgets it, so the superblock says it first.
    mark_in_use(volume, journal.errno() != 0)?;
    journal.set_errno(0);
    Journal::open(volume.io.clone(), map, journal, next, options.tuning)
}

/// Says in the superblock that the journal must be replayed, before the journal says that it holds
/// anything: a log without that flag is one that others throw away. Without a journal, that the
/// file system was not unmounted. And that the orphan file may hold something. `damaged`: errors
/// were found.
fn mark_in_use(volume: &Volume, damaged: bool) -> Result<()> {
    let mut superblock = volume.superblock.lock();
    let has_journal = superblock.has_compat(Compat::HAS_JOURNAL);
    superblock.set_recover(has_journal);
    let damaged = if damaged { State::ERROR } else { State::empty() };
    let state = superblock.state() & State::ERROR | damaged;
    superblock.set_state(state);
    // No version of the superblock that is logged may be without it.
    let has_file = superblock.has_compat(Compat::ORPHAN_FILE);
    superblock.set_orphan_present(has_file);
    superblock.note_mount(volume.clock.now().sec as u32);
    write_superblock(volume, &superblock)
}

/// Blocks of the journal, if there is one and its inode is readable.
fn journal_blocks(volume: &Volume) -> u64 {
    let (has, ino) = {
        let superblock = volume.superblock.lock();
        (superblock.has_compat(Compat::HAS_JOURNAL), superblock.journal_inode())
    };
    let cell = (has && ino != 0).then(|| volume.cell(ino).ok()).flatten();
    let bytes = cell.map_or(0, |cell| cell.core.read().raw.size());
    bytes.div_ceil(volume.geometry.block_bytes.into()).min(volume.geometry.block_count)
}

fn find_journal(volume: &Volume) -> Result<(JournalMap, JournalSuperblock)> {
    let (has, ino) = {
        let superblock = volume.superblock.lock();
        (superblock.has_compat(Compat::HAS_JOURNAL), superblock.journal_inode())
    };
    if !has || ino == 0 {
        return Err(Error::Incompatible(vec!["no journal".into()]));
    }
    let cell = volume.cell(ino)?;
    let core = cell.core.read();
    let piece = |at: u32| match extents::map(volume, &cell, &core, FileBlock(at))? {
        Mapping::Data(extent) => Ok(extent),
        Mapping::Hole(_) => {
            Err(Error::from(Corrupt::new(Structure::Journal, at.into(), "hole in the journal")))
        }
    };
    let bytes = volume.io.read(piece(0)?.start)?;
    // The inode may map far more than there is: what is followed is what the journal speaks of.
    let block_bytes = volume.geometry.block_bytes;
    let blocks = (core.raw.size() / u64::from(block_bytes)).min(volume.geometry.block_count);
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    let superblock = JournalSuperblock::decode(&bytes, block_bytes, blocks)?;
    let mut map = JournalMap::default();
    while map.len() < superblock.total() {
        let extent = piece(map.len())?;
        let count = extent.count.min(superblock.total() - map.len());
        volume.io.mark_journal(extent.start, count);
        map.push(extent.start, count);
    }
    Ok((map, superblock))
}

/// Writes the superblock, durable on return. It is never part of a transaction.
pub(crate) fn write_superblock(volume: &Volume, superblock: &Superblock) -> Result<()> {
    let (home, at) = orphan::superblock_home(volume);
    let mut block = volume.io.read(home)?;
    block[at..at + BYTES].copy_from_slice(&superblock.encode());
    if let Some(cached) = volume.cache.peek(home) {
        cached.data.write().copy_from_slice(&block);
    }
    volume.io.write_durable(home, block)?;
    Ok(())
}

/// Makes the changes of fast commits, frees the orphans that a former life left, and truncates what
/// it had begun to. Returns those that are kept because they may be open.
fn finish_orphans(
    volume: &Arc<Volume>,
    (list, file): (Vec<u32>, Option<OrphanFile>),
    fast_changes: Vec<Change>,
    keep_nameless: bool,
) -> Result<Vec<u32>> {
    let had_list = !list.is_empty();
    volume.orphans.lock().take_over(&list, file);
    fast::replay(&OpCtx::service(), volume, &fast_changes)?;
    let all = volume.orphans.lock().members();
    let kept = finish_all(volume, all, keep_nameless)?;
    if let Some(journal) = &volume.journal {
        match journal.commit(&**volume) {
            // It is in the running transaction, and tried again.
            Err(why) if why.is_no_space() => return Ok(kept),
            done => done?,
        }
    }
    if had_list && kept.is_empty() {
        let mut superblock = volume.superblock.lock();
        superblock.set_last_orphan(0);
        write_superblock(volume, &superblock)?;
    }
    Ok(kept)
}

/// Frees or cuts those orphans; returns those without a name when they are kept.
pub(crate) fn finish_all(volume: &Volume, all: Vec<u32>, keep_nameless: bool) -> Result<Vec<u32>> {
    let mut kept = Vec::new();
    for ino in all {
        if !finish_orphan(&OpCtx::service(), volume, ino, keep_nameless)? {
            kept.push(ino);
        }
    }
    Ok(kept)
}

/// Frees one orphan, or cuts what lies past its end. False: it has no name, and is kept.
fn finish_orphan(ctx: &OpCtx<'_>, volume: &Volume, ino: u32, keep_nameless: bool) -> Result<bool> {
    let cell = match volume.orphan_cell(ino) {
        Ok(cell) => cell,
        // The orphan file may name inodes that were freed before it was emptied.
        Err(Error::Errno(Errno::ESTALE)) => {
            volume.orphans.lock().drop_stale(ino);
            return Ok(true);
        }
        Err(error) => return Err(error),
    };
    let mut core = cell.core.write();
    match core.raw.links() {
        0 if keep_nameless => return Ok(false),
        0 => ops::free_inode(ctx, volume, &cell, &mut core)?,
        _ => space::cut_tail(ctx, volume, &cell, &mut core)?,
    }
    drop(core);
    volume.inodes.remove(ino);
    Ok(true)
}

fn start_committer(volume: Arc<Volume>, interval: Duration) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        if let Some(journal) = &volume.journal {
            journal.run(&*volume, interval);
            if let Some(why) = journal.reason() {
                let _ = volume.stop_on::<()>(Err(why));
            }
        }
    })
}

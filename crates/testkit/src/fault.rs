//! A [`FileSystem`] that does as told: fails, blocks, or runs out of space.
//!
//! Wraps another one and passes everything on, except for what its [`Plan`] says. Plans can be
//! changed while threads use it. Faults count calls from the moment the plan is set.

use polylane_base::{Errno, Ino, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{
    Acl, AclKind, Attr, Changed, Character, DirEntry, Fallocate, FileSystem, Kind, NewNode,
    OnSynced, RenameMode, Renamed, Revived, SeekFor, SetAttr, Sink, Source, StatFs, SyncLead,
    SyncLeft, XattrMode,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// A class of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// `read`
    Read,
    /// `write`
    Write,
    /// `fsync` and `sync`
    Sync,
    /// Everything that changes names or inodes.
    Change,
    /// `lookup`, `getattr` and the like.
    Look,
    /// `forget`: can be counted and blocked, not fail.
    Forget,
}

const CALLS: usize = 6;

/// What is to go wrong with one class of calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// This many calls go through first.
    pub skip: u64,
    /// Then this many fail …
    pub count: u64,
    /// … with this.
    pub errno: Option<Errno>,
}

#[derive(Default)]
struct State {
    plans: [Plan; CALLS],
    blocked: [bool; CALLS],
    failures_blocked: bool,
    waiting: usize,
    /// What is answered to who leaves a sync; `None`: none are taken.
    takes_syncs: Option<SyncLeft>,
    /// Where none are taken, it is that all is durable.
    is_durable: bool,
    left: Vec<(Ino, OnSynced)>,
    /// The next that asks for a lead has this one.
    lead: Option<SyncLead>,
    /// The next answer of this class is kept back.
    kept_back: Option<Call>,
    /// An answer is.
    keeps_back: bool,
}

/// See the module header. Thread-safe.
pub struct Faulty {
    inner: Arc<dyn FileSystem>,
    state: Mutex<State>,
    changed: Condvar,
    calls: [AtomicU64; CALLS],
    bytes_left: AtomicU64,
    character: Character,
    /// Room for data can be set aside, of which there is always enough.
    has_room: bool,
    /// Names are changed one at a time, and holes are not told, as on a Ceph file system.
    is_plain: bool,
    /// No device can be made, a whiteout neither.
    refuses_devices: bool,
    /// It says that it keeps writes to itself until a sync.
    keeps_writes: bool,
}

impl Faulty {
    /// Passes everything on to `inner` for now.
    pub fn new(inner: Arc<dyn FileSystem>) -> Arc<Faulty> {
        let character = inner.character();
        Self::with_character(inner, character)
    }

    /// As [`new`](Self::new), and asks to be treated differently: for example with its data cached.
    pub fn with_character(inner: Arc<dyn FileSystem>, character: Character) -> Arc<Faulty> {
        Arc::new(Faulty::of(inner, character, false))
    }

    /// As [`with_character`](Self::with_character), and sets room aside for names, as the inner
    /// file system does, and for data.
    pub fn with_room(inner: Arc<dyn FileSystem>, character: Character) -> Arc<Faulty> {
        Arc::new(Faulty::of(inner, character, true))
    }

    /// As [`new`](Self::new), and refuses renames with flags, data without a name and questions for
    /// holes, as a Ceph file system does.
    pub fn plain(inner: Arc<dyn FileSystem>) -> Arc<Faulty> {
        let character = inner.character();
        Arc::new(Faulty { is_plain: true, ..Faulty::of(inner, character, false) })
    }

    /// As [`new`](Self::new), and refuses devices with `EPERM`, whiteouts too.
    pub fn without_devices(inner: Arc<dyn FileSystem>) -> Arc<Faulty> {
        let character = inner.character();
        Arc::new(Faulty { refuses_devices: true, ..Faulty::of(inner, character, false) })
    }

    /// As [`new`](Self::new), and says that others change the files.
    pub fn volatile(inner: Arc<dyn FileSystem>) -> Arc<Faulty> {
        let character = Character { volatile: true, ..inner.character() };
        Self::with_character(inner, character)
    }

    /// As [`new`](Self::new), and says that writes lie in it until they are synced.
    pub fn keeping(inner: Arc<dyn FileSystem>) -> Arc<Faulty> {
        let character = inner.character();
        Arc::new(Faulty { keeps_writes: true, ..Faulty::of(inner, character, false) })
    }

    fn of(inner: Arc<dyn FileSystem>, character: Character, has_room: bool) -> Faulty {
        Faulty {
            character,
            has_room,
            is_plain: false,
            refuses_devices: false,
            keeps_writes: false,
            inner,
            state: Mutex::default(),
            changed: Condvar::new(),
            calls: Default::default(),
            bytes_left: AtomicU64::new(u64::MAX),
        }
    }

    /// Sets what is to go wrong with a class of calls.
    pub fn plan(&self, call: Call, plan: Plan) {
        self.state.lock().unwrap().plans[call as usize] = plan;
    }

    /// The next call of this class after `skip` others fails once.
    pub fn fail_once(&self, call: Call, skip: u64, errno: Errno) {
        self.plan(call, Plan { skip, count: 1, errno: Some(errno) });
    }

    /// Every call of this class fails from now on; `None` ends it.
    pub fn fail_always(&self, call: Call, errno: Option<Errno>) {
        self.plan(call, Plan { skip: 0, count: u64::MAX, errno });
    }

    /// Calls of this class wait until unblocked.
    pub fn block(&self, call: Call, blocked: bool) {
        self.state.lock().unwrap().blocked[call as usize] = blocked;
        self.changed.notify_all();
    }

    /// The next rename, unlink, lookup or write that is of this class is done, and its answer
    /// waits until [`answer`](Self::answer).
    pub fn keep_answer_back(&self, call: Call) {
        self.state.lock().unwrap().kept_back = Some(call);
    }

    /// Waits until an answer is kept back.
    pub fn await_kept_back(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.keeps_back).unwrap());
    }

    /// Gives the answer that is kept back.
    pub fn answer(&self) {
        self.state.lock().unwrap().keeps_back = false;
        self.changed.notify_all();
    }

    fn answered<T>(&self, call: Call, answer: T) -> T {
        let mut state = self.state.lock().unwrap();
        if state.kept_back == Some(call) {
            (state.kept_back, state.keeps_back) = (None, true);
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| state.keeps_back).unwrap());
        }
        answer
    }

    /// Calls that fail wait before they return, until unblocked.
    pub fn block_failures(&self, blocked: bool) {
        self.state.lock().unwrap().failures_blocked = blocked;
        self.changed.notify_all();
    }

    /// Waits until this many calls are blocked.
    pub fn await_blocked(&self, count: usize) {
        let mut state = self.state.lock().unwrap();
        while state.waiting < count {
            state = self.changed.wait(state).unwrap();
        }
    }

    /// From now on syncs are taken, and left to this answer: [`SyncLeft::ToAnother`] is the test,
    /// which tells (`take_left`).
    pub fn take_syncs(&self, left: Option<SyncLeft>) {
        self.state.lock().unwrap().takes_syncs = left;
    }

    /// From now on a caller that would leave a sync is told that all is durable, or no longer.
    pub fn be_durable(&self, is_durable: bool) {
        self.state.lock().unwrap().is_durable = is_durable;
    }

    /// The next that asks for the lead of what is synced has this one, and syncs are left to it, as
    /// `take_syncs` says.
    pub fn give_lead(&self, lead: SyncLead) {
        self.state.lock().unwrap().lead = Some(lead);
    }

    /// The syncs that were left and not told of.
    pub fn take_left(&self) -> Vec<(Ino, OnSynced)> {
        std::mem::take(&mut self.state.lock().unwrap().left)
    }

    /// Writes may store this many bytes more; then they are short, then `ENOSPC`.
    pub fn limit_bytes(&self, left: u64) {
        self.bytes_left.store(left, Ordering::SeqCst);
    }

    /// Calls of this class so far.
    pub fn calls(&self, call: Call) -> u64 {
        self.calls[call as usize].load(Ordering::SeqCst)
    }

    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        is_blocked: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        while is_blocked(&state) {
            state.waiting += 1;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
            state.waiting -= 1;
        }
        state
    }

    fn pass(&self, call: Call) -> Result<()> {
        self.calls[call as usize].fetch_add(1, Ordering::SeqCst);
        let mut state = self.wait(self.state.lock().unwrap(), |state| state.blocked[call as usize]);
        let plan = &mut state.plans[call as usize];
        match plan.errno {
            Some(_) if plan.skip > 0 => plan.skip -= 1,
            Some(errno) if plan.count > 0 => {
                plan.count -= 1;
                drop(self.wait(state, |state| state.failures_blocked));
                return Err(errno);
            }
            _ => {}
        }
        Ok(())
    }

    fn take_bytes(&self, wanted: usize) -> usize {
        let take = |left: u64| Some(left.saturating_sub(wanted as u64));
        let left = self.bytes_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        left.unwrap_or(0).min(wanted as u64) as usize
    }
}

/// The first bytes of a source.
struct Part<'a> {
    source: &'a mut dyn Source,
    len: usize,
}

impl Source for Part<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&mut self, at: usize, into: &mut [u8]) {
        self.source.get(at, into);
    }
}

impl FileSystem for Faulty {
    fn character(&self) -> Character {
        self.character
    }

    fn keeps_writes(&self) -> bool {
        self.keeps_writes
    }

    fn root(&self) -> Result<Attr> {
        self.inner.root()
    }

    fn lookup(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.pass(Call::Look)?;
        self.answered(Call::Look, self.inner.lookup(ctx, dir, name))
    }

    fn getattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Attr> {
        self.pass(Call::Look)?;
        self.inner.getattr(ctx, ino)
    }

    fn setattr(&self, ctx: &OpCtx<'_>, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.pass(Call::Change)?;
        self.inner.setattr(ctx, ino, set)
    }

    fn create(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8], new: &NewNode<'_>) -> Result<Changed> {
        self.pass(Call::Change)?;
        if self.refuses_devices && matches!(new.kind, Kind::Char | Kind::Block) {
            return Err(Errno::EPERM);
        }
        self.inner.create(ctx, dir, name, new)
    }

    fn create_unlinked(&self, ctx: &OpCtx<'_>, dir: Ino, new: &NewNode<'_>) -> Result<Attr> {
        self.pass(Call::Change)?;
        if self.is_plain {
            return Err(Errno::EOPNOTSUPP);
        }
        self.inner.create_unlinked(ctx, dir, new)
    }

    fn link(&self, ctx: &OpCtx<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.pass(Call::Change)?;
        self.inner.link(ctx, ino, dir, name)
    }

    fn unlink(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.pass(Call::Change)?;
        self.answered(Call::Change, self.inner.unlink(ctx, dir, name))
    }

    fn rmdir(&self, ctx: &OpCtx<'_>, dir: Ino, name: &[u8]) -> Result<Changed> {
        self.pass(Call::Change)?;
        self.inner.rmdir(ctx, dir, name)
    }

    fn rename(
        &self,
        ctx: &OpCtx<'_>,
        from_dir: Ino,
        from: &[u8],
        to_dir: Ino,
        to: &[u8],
        mode: RenameMode,
    ) -> Result<Renamed> {
        self.pass(Call::Change)?;
        if self.is_plain && mode != RenameMode::Replace {
            return Err(Errno::EINVAL);
        }
        let renamed = self.inner.rename(ctx, from_dir, from, to_dir, to, mode);
        self.answered(Call::Change, renamed)
    }

    fn readlink(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<u8>> {
        self.pass(Call::Look)?;
        self.inner.readlink(ctx, ino)
    }

    fn readdir(
        &self,
        ctx: &OpCtx<'_>,
        dir: Ino,
        from: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.pass(Call::Look)?;
        self.inner.readdir(ctx, dir, from, each)
    }

    fn read(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: usize,
        sink: &mut dyn Sink,
    ) -> Result<usize> {
        self.pass(Call::Read)?;
        self.inner.read(ctx, ino, offset, len, sink)
    }

    fn write(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        source: &mut dyn Source,
    ) -> Result<usize> {
        self.pass(Call::Write)?;
        let len = self.take_bytes(source.len());
        match len == 0 && !source.is_empty() {
            true => Err(Errno::ENOSPC),
            false => {
                let written = self.inner.write(ctx, ino, offset, &mut Part { source, len });
                self.answered(Call::Write, written)
            }
        }
    }

    fn reserve(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, len: u64) -> Result<()> {
        self.inner.reserve(ctx, ino, offset, len)
    }

    fn reserve_names(&self, count: u32) -> Result<()> {
        if self.has_room { self.inner.reserve_names(count) } else { Err(Errno::EOPNOTSUPP) }
    }

    fn release_names(&self, count: u32) {
        if self.has_room {
            self.inner.release_names(count);
        }
    }

    fn blocks_for(&self, bytes: u64, pieces: u64) -> Option<u64> {
        let own = self.has_room.then(|| bytes.div_ceil(4096) + pieces);
        own.or_else(|| self.inner.blocks_for(bytes, pieces))
    }

    fn reserve_blocks(&self, count: u64) -> Result<()> {
        if self.has_room { Ok(()) } else { self.inner.reserve_blocks(count) }
    }

    fn release_blocks(&self, count: u64) {
        if !self.has_room {
            self.inner.release_blocks(count);
        }
    }

    fn reserve_aside(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        offset: u64,
        len: u64,
        left: u64,
    ) -> Result<u64> {
        if self.has_room { Ok(0) } else { self.inner.reserve_aside(ctx, ino, offset, len, left) }
    }

    fn fallocate(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        mode: Fallocate,
        offset: u64,
        len: u64,
    ) -> Result<Attr> {
        self.pass(Call::Change)?;
        if self.is_plain && mode != Fallocate::PunchHole {
            return Err(Errno::EOPNOTSUPP);
        }
        self.inner.fallocate(ctx, ino, mode, offset, len)
    }

    fn seek(&self, ctx: &OpCtx<'_>, ino: Ino, offset: u64, target: SeekFor) -> Result<u64> {
        self.pass(Call::Look)?;
        if self.is_plain {
            let size = self.inner.getattr(ctx, ino)?.size;
            return match target {
                _ if offset >= size => Err(Errno::ENXIO),
                SeekFor::Data => Ok(offset),
                SeekFor::Hole => Ok(size),
            };
        }
        self.inner.seek(ctx, ino, offset, target)
    }

    fn getxattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.pass(Call::Look)?;
        self.inner.getxattr(ctx, ino, name)
    }

    fn setxattr(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Attr> {
        self.pass(Call::Change)?;
        self.inner.setxattr(ctx, ino, name, value, mode)
    }

    fn set_acl(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        kind: AclKind,
        acl: Option<&Acl>,
        perm: Option<u32>,
    ) -> Result<Attr> {
        self.pass(Call::Change)?;
        self.inner.set_acl(ctx, ino, kind, acl, perm)
    }

    fn listxattr(&self, ctx: &OpCtx<'_>, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.pass(Call::Look)?;
        self.inner.listxattr(ctx, ino)
    }

    fn removexattr(&self, ctx: &OpCtx<'_>, ino: Ino, name: &[u8]) -> Result<Attr> {
        self.pass(Call::Change)?;
        self.inner.removexattr(ctx, ino, name)
    }

    fn fsync(&self, ctx: &OpCtx<'_>, ino: Ino, data_only: bool) -> Result<()> {
        self.pass(Call::Sync)?;
        self.inner.fsync(ctx, ino, data_only)
    }

    fn sync_commits(&self, _: Ino, _: bool, _: u64) -> bool {
        self.state.lock().unwrap().takes_syncs.is_some()
    }

    fn lead_sync(&self, _: Ino, _: bool) -> Option<SyncLead> {
        let mut state = self.state.lock().unwrap();
        state.lead.take().inspect(|_| state.takes_syncs = Some(SyncLeft::ToAnother))
    }

    fn leave_sync(
        &self,
        ino: Ino,
        _: bool,
        told: &mut dyn FnMut() -> OnSynced,
    ) -> Result<SyncLeft> {
        let mut state = self.state.lock().unwrap();
        if state.takes_syncs == Some(SyncLeft::ToAnother) {
            state.left.push((ino, told()));
        }
        let otherwise = if state.is_durable { SyncLeft::Done } else { SyncLeft::ToCaller };
        Ok(state.takes_syncs.unwrap_or(otherwise))
    }

    fn sync(&self, ctx: &OpCtx<'_>) -> Result<()> {
        self.pass(Call::Sync)?;
        self.inner.sync(ctx)
    }

    fn statfs(&self, ctx: &OpCtx<'_>) -> Result<StatFs> {
        self.inner.statfs(ctx)
    }

    fn revive(&self, ino: Ino, generation: Option<u64>) -> Result<Revived> {
        self.inner.revive(ino, generation)
    }

    fn statfs_within(&self, dir: Ino, totals: StatFs) -> Result<StatFs> {
        self.inner.statfs_within(dir, totals)
    }

    fn generation(&self, ino: Ino) -> Result<Option<u32>> {
        self.inner.generation(ino)
    }

    fn project(&self, ino: Ino) -> Result<Option<u32>> {
        self.inner.project(ino)
    }

    fn forget(&self, ino: Ino) {
        let _ = self.pass(Call::Forget);
        self.inner.forget(ino);
    }
}

//! The upper of a union: its directories, whiteouts, and what is made aside before it has a name.
//!
//! # On disk
//!
//! | path | what |
//! |---|---|
//! | `upper/` | the tree, as the `upperdir` of overlayfs |
//! | `work/` | the `workdir` of overlayfs, which uses `work/work` and `work/index` |
//! | `work/work/incompat/polylane-links` | overlayfs may not mount the upper: `links.rs` |
//! | `work/work/incompat/volatile` | its syncs were not waited for: `incompat.rs` |
//! | `work/polylane/tmp/` | what is being made or removed; emptied when the union is opened |
//! | `work/polylane/index/` | copied-up files that have several names in the lowers, by number |
//! | `upper/.polylane-blocks` | there are files that are partly in the lowers; see [`CANARY`] |
//!
//! The canary has a mark as its attribute, which says which inode it is. A copy of the upper that
//! was made file by file has a canary without the mark, or with another's, and is refused: the
//! marks of its files are lost, or the holes are not those of the files. It is a whiteout,
//! which overlayfs does not show; a file where the layer's marks are of the `user.` name space,
//! which devices cannot have.

use polylane_base::sync::Arc;

use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use polylane_base::{Errno, Gid, Ino, Result, Uid};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{
    Attr, Changed, Character, FileSystem, Kind, NewNode, RenameMode, SeekFor, SetAttr, SetTime,
    XattrMode,
};
use std::sync::OnceLock;

use crate::error::OpenError;
use crate::layer::{Above, Held, Layer};
use crate::marks::{self, Mark, Space};
use crate::node::Lower;
use crate::stand_in::StandIns;

/// Name of the canary in the upper's root. It cannot be seen, made or removed in the union.
pub(crate) const CANARY: &[u8] = b".polylane-blocks";

/// Least unit in which data is copied up.
const GRANULE_MIN: u64 = 4096;

/// Where a file that is to have a hole has its first byte, at least.
const HOLE_PROBE: u64 = 1 << 20;

/// What an upper is made on.
pub struct UpperOn {
    pub(crate) fs: Arc<dyn FileSystem>,
    tree: Vec<u8>,
    work: Vec<u8>,
    is_alone: bool,
    pub(crate) is_volatile: bool,
}

impl UpperOn {
    /// All of a libservice: the directories `upper` and `work` of its root, and nothing else.
    pub fn new(fs: Arc<dyn FileSystem>) -> UpperOn {
        UpperOn {
            fs,
            tree: b"upper".into(),
            work: b"work".into(),
            is_alone: true,
            is_volatile: false,
        }
    }

    /// Two directories of its root, beside others: `upperdir` and `workdir` of overlayfs.
    pub fn dirs(fs: Arc<dyn FileSystem>, tree: &[u8], work: &[u8]) -> UpperOn {
        UpperOn { fs, tree: tree.into(), work: work.into(), is_alone: false, is_volatile: false }
    }

    /// Its syncs are not waited for, as with overlayfs' `volatile`: after anything but
    /// [`Union::end_volatile`](crate::Union::end_volatile) it is refused.
    #[must_use]
    pub fn volatile(self, is_volatile: bool) -> UpperOn {
        UpperOn { is_volatile, ..self }
    }
}

/// The upper. Changes of its directories are made by one thread at a time.
pub(crate) struct Upper {
    pub(crate) layer: Arc<Layer>,
    /// The root of the tree.
    pub(crate) root: Held,
    pub(crate) index: Held,
    /// The work directory.
    pub(crate) work: Held,
    /// Owner of the upper, and of what is only its own: all that an ordinary user's service can
    /// make.
    owner: (Uid, Gid),
    tmp: Held,
    /// Unit in which data is copied up, in bytes: no smaller than what the upper allocates.
    pub(crate) granule: u64,
    /// The upper tells which blocks are allocated, and which of them read as zeros.
    pub(crate) tells_pieces: bool,
    /// The upper tells where a file has holes. In one that does not, files are copied up whole.
    pub(crate) tells_holes: bool,
    /// It exchanges names, once that was tried.
    pub(crate) exchanges: OnceLock<bool>,
    has_canary: AtomicBool,
    /// overlayfs is known to refuse the upper: `links.rs`.
    pub(crate) has_guard: AtomicBool,
    /// What has the marks of files that can have none.
    pub(crate) stand_ins: StandIns,
    last: AtomicU64,
}

impl Upper {
    /// Opens or makes an upper, whose tree begins as `like`.
    pub(crate) fn open(
        ctx: &OpCtx<'_>,
        on: UpperOn,
        like: Option<&Attr>,
    ) -> Result<Upper, OpenError> {
        let layer = Layer::new(on.fs).map_err(OpenError::Upper)?;
        if on.is_alone {
            check_names(ctx, &layer)?;
        }
        let names = (on.tree.as_slice(), on.work.as_slice());
        let upper = Upper::prepare(ctx, layer, names, like).map_err(OpenError::Upper)?;
        match find_canary(ctx, &upper.root).map_err(OpenError::Upper)? {
            Canary::Foreign => return Err(OpenError::Copied),
            Canary::Absent => {}
            Canary::Marked => upper.has_canary.store(true, Ordering::Relaxed),
            Canary::Nameless(held, attr) => {
                upper.name_canary(ctx, &held, &attr).map_err(OpenError::Upper)?;
                upper.has_canary.store(true, Ordering::Relaxed);
            }
        }
        Ok(upper)
    }

    fn prepare(
        ctx: &OpCtx<'_>,
        layer: Arc<Layer>,
        (tree, work): (&[u8], &[u8]),
        like: Option<&Attr>,
    ) -> Result<Upper> {
        let top = layer.root();
        let attr = top.attr(ctx)?;
        let owner = (attr.uid, attr.gid);
        let new = owned_by(owner, NewNode::new(Kind::Dir, like.map_or(0o755, |like| like.perm)));
        let like = like.map_or(owner, |like| (like.uid, like.gid));
        let root = match made_dir(ctx, &top, tree, &owned_by(like, new.clone())) {
            // An ordinary user's service gives nothing to others.
            Err(Errno::EPERM | Errno::EINVAL) => made_dir(ctx, &top, tree, &new)?,
            made => made?,
        };
        let new = owned_by(owner, NewNode::new(Kind::Dir, 0o700));
        let work = made_dir(ctx, &top, work, &new)?;
        let own = made_dir(ctx, &work, b"polylane", &new)?;
        let index = made_dir(ctx, &own, b"index", &new)?;
        let tmp = made_dir(ctx, &own, b"tmp", &new)?;
        // Fails here where marks cannot be written at all.
        layer.fs().setxattr(
            ctx,
            own.ino(),
            &Mark::Polylane.name(layer.space()),
            b"",
            XattrMode::Any,
        )?;
        let granule = u64::from(layer.fs().statfs(ctx)?.bsize).next_power_of_two().max(GRANULE_MIN);
        let mut upper = Upper {
            layer,
            root,
            index,
            work,
            tmp,
            owner,
            granule,
            tells_pieces: false,
            tells_holes: false,
            exchanges: OnceLock::new(),
            has_canary: AtomicBool::new(false),
            has_guard: AtomicBool::new(false),
            stand_ins: StandIns::default(),
            last: AtomicU64::new(0),
        };
        upper.settle_places(ctx)?;
        upper.empty(ctx, &upper.tmp)?;
        upper.find_stand_ins(ctx)?;
        upper.tells_pieces = upper.probe_pieces(ctx)?;
        upper.tells_holes = upper.tells_pieces || upper.probe_holes(ctx)?;
        Ok(upper)
    }

    /// Whether a file with a byte far behind its start is told to have a hole there.
    fn probe_holes(&self, ctx: &OpCtx<'_>) -> Result<bool> {
        let (name, held, _) = self.make(ctx, &self.own(NewNode::new(Kind::File, 0o600)))?;
        let told = self
            .fs()
            .write(ctx, held.ino(), self.granule.max(HOLE_PROBE), &mut &b"x"[..])
            .and_then(|_| self.fs().seek(ctx, held.ino(), 0, SeekFor::Data));
        self.discard(ctx, &name);
        // No room, or no such call, is no reason to be refused.
        Ok(told.is_ok_and(|start| start > 0))
    }

    fn probe_pieces(&self, ctx: &OpCtx<'_>) -> Result<bool> {
        let (name, held, _) = self.make(ctx, &self.own(NewNode::new(Kind::File, 0o600)))?;
        let told = self.fs().pieces(ctx, held.ino(), 0, self.granule, &mut |_| true);
        self.discard(ctx, &name);
        Ok(told.is_ok())
    }

    /// Something of the upper's own.
    pub(crate) fn own<'a>(&self, new: NewNode<'a>) -> NewNode<'a> {
        owned_by(self.owner, new)
    }

    pub(crate) fn fs(&self) -> &dyn FileSystem {
        self.layer.fs()
    }

    /// The directory in which things are made aside.
    pub(crate) fn tmp(&self) -> Ino {
        self.tmp.ino()
    }

    /// The same, held.
    pub(crate) fn tmp_held(&self) -> &Held {
        &self.tmp
    }

    /// Something that was made aside.
    pub(crate) fn aside(&self, ctx: &OpCtx<'_>, name: &[u8]) -> Result<(Held, Attr)> {
        self.tmp.lookup(ctx, name)?.ok_or(Errno::ENOENT)
    }

    /// Moves something to a name that nothing has. `EEXIST`.
    pub(crate) fn move_new(
        &self,
        ctx: &OpCtx<'_>,
        (from_dir, from): (Ino, &[u8]),
        dir: &Held,
        name: &[u8],
    ) -> Result<()> {
        let rename = |mode| self.fs().rename(ctx, from_dir, from, dir.ino(), name, mode).map(drop);
        match rename(RenameMode::NoReplace) {
            // Nobody else changes an upper.
            Err(Errno::EINVAL | Errno::EOPNOTSUPP) => match dir.lookup(ctx, name)? {
                Some(_) => Err(Errno::EEXIST),
                None => rename(RenameMode::Replace),
            },
            moved => moved,
        }
    }

    /// A name that was not used aside.
    pub(crate) fn fresh_name(&self) -> Vec<u8> {
        format!("{:x}", self.last.fetch_add(1, Ordering::Relaxed)).into_bytes()
    }

    /// Makes something aside.
    pub(crate) fn make(&self, ctx: &OpCtx<'_>, new: &NewNode<'_>) -> Result<(Vec<u8>, Held, Attr)> {
        let name = self.fresh_name();
        let made = self.fs().create(ctx, self.tmp.ino(), &name, new)?;
        Ok((name, self.layer.adopt(made.node.ino), made.node))
    }

    /// Removes something that was made aside, or moved there. An error leaves it there until the
    /// union is opened again.
    pub(crate) fn discard(&self, ctx: &OpCtx<'_>, name: &[u8]) {
        if let Ok(Some((held, attr))) = self.tmp.lookup(ctx, name) {
            let _ = self.remove(ctx, &self.tmp, name, &held, attr.kind);
        }
    }

    /// Makes a whiteout aside, as the name of something in the directory `dir` is about to be one.
    pub(crate) fn whiteout(&self, ctx: &OpCtx<'_>, dir: &Held) -> Result<Vec<u8>> {
        let name = self.fresh_name();
        match self.fs().create(ctx, self.tmp.ino(), &name, &self.own(NewNode::WHITEOUT)) {
            Ok(made) => drop(self.layer.adopt(made.node.ino)),
            Err(Errno::EPERM | Errno::EOPNOTSUPP) => {
                let new = self.own(NewNode::new(Kind::File, 0o600));
                let made = self.fs().create(ctx, self.tmp.ino(), &name, &new)?;
                let held = self.layer.adopt(made.node.ino);
                self.set_mark(ctx, held.ino(), Mark::Whiteout, b"y")?;
                if dir.mark(ctx, Mark::Opaque)?.is_none() {
                    self.set_mark(ctx, dir.ino(), Mark::Opaque, b"x")?;
                }
            }
            Err(errno) => return Err(errno),
        }
        Ok(name)
    }

    /// Puts a whiteout in the place of `name` in `dir`, whatever but a directory is there.
    pub(crate) fn white_out(&self, ctx: &OpCtx<'_>, dir: &Held, name: &[u8]) -> Result<()> {
        let made = self.whiteout(ctx, dir)?;
        let placed = self.fs().rename(ctx, self.tmp(), &made, dir.ino(), name, RenameMode::Replace);
        placed.inspect_err(|_| self.discard(ctx, &made)).map(|_| ())
    }

    /// Puts a whiteout in the place of the directory `name` in `dir`, which goes aside and is
    /// removed, with the whiteouts in it.
    pub(crate) fn white_out_dir(&self, ctx: &OpCtx<'_>, dir: &Held, name: &[u8]) -> Result<()> {
        let made = self.whiteout(ctx, dir)?;
        let placed = self.take_place(ctx, &made, Above { dir, name });
        placed.inspect_err(|_| self.discard(ctx, &made))
    }

    /// Gives what was made aside a name that a whiteout has.
    pub(crate) fn place_over(
        &self,
        ctx: &OpCtx<'_>,
        (made, kind): (&[u8], Kind),
        dir: &Held,
        name: &[u8],
    ) -> Result<()> {
        let placed = match kind {
            Kind::Dir => self.take_place(ctx, made, Above { dir, name }),
            _ => {
                let mode = RenameMode::Replace;
                self.fs().rename(ctx, self.tmp(), made, dir.ino(), name, mode).map(drop)
            }
        };
        placed.inspect_err(|_| self.discard(ctx, made))
    }

    /// Writes a mark.
    pub(crate) fn set_mark(
        &self,
        ctx: &OpCtx<'_>,
        ino: Ino,
        mark: Mark,
        value: &[u8],
    ) -> Result<()> {
        let name = mark.name(self.layer.space());
        self.fs().setxattr(ctx, ino, &name, value, XattrMode::Any).map(|_| ())
    }

    /// Removes a mark.
    pub(crate) fn remove_mark(&self, ctx: &OpCtx<'_>, ino: Ino, mark: Mark) -> Result<()> {
        match self.fs().removexattr(ctx, ino, &mark.name(self.layer.space())) {
            Ok(_) | Err(Errno::ENODATA) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Whether there are files that are not whole.
    pub(crate) fn has_files_in_parts(&self) -> bool {
        self.has_canary.load(Ordering::Relaxed)
    }

    /// Before the first file that is not whole: the canary.
    pub(crate) fn expect_marks(&self, ctx: &OpCtx<'_>) -> Result<()> {
        if self.has_files_in_parts() {
            return Ok(());
        }
        let new = match self.layer.space() {
            Space::Trusted => NewNode::WHITEOUT,
            Space::User => NewNode::new(Kind::File, 0o600),
        };
        let (name, held, attr) = self.make(ctx, &self.own(new))?;
        let marked = self.name_canary(ctx, &held, &attr);
        marked.inspect_err(|_| self.discard(ctx, &name))?;
        let root = self.root.attr(ctx)?;
        let mode = RenameMode::Replace;
        self.fs().rename(ctx, self.tmp(), &name, self.root.ino(), CANARY, mode)?;
        self.restore_times(ctx, &self.root, &root)?;
        self.has_canary.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Says which inode the canary is.
    fn name_canary(&self, ctx: &OpCtx<'_>, canary: &Held, attr: &Attr) -> Result<()> {
        self.set_mark(ctx, canary.ino(), Mark::Polylane, &name_of(attr))
    }

    /// All files are whole: nothing need be known of marks.
    pub(crate) fn expect_no_marks(&self, ctx: &OpCtx<'_>) -> Result<()> {
        if !self.has_canary.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let root = self.root.attr(ctx)?;
        self.fs().unlink(ctx, self.root.ino(), CANARY)?;
        self.restore_times(ctx, &self.root, &root)
    }

    /// Gives a directory the times back that it had before an entry was copied up into it.
    pub(crate) fn restore_times(&self, ctx: &OpCtx<'_>, dir: &Held, before: &Attr) -> Result<()> {
        let set = SetAttr {
            atime: Some(SetTime::At(before.atime)),
            mtime: Some(SetTime::At(before.mtime)),
            ctime: Some(before.ctime),
            ..SetAttr::default()
        };
        self.fs().setattr(ctx, dir.ino(), &set).map(|_| ())
    }

    /// The names in a directory.
    pub(crate) fn names(&self, ctx: &OpCtx<'_>, dir: &Held) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        self.fs().readdir(ctx, dir.ino(), 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })?;
        Ok(names)
    }

    /// Removes everything in a directory, however deep it is: what another user could have made
    /// there costs memory, and no stack.
    pub(crate) fn empty(&self, ctx: &OpCtx<'_>, dir: &Held) -> Result<()> {
        // The directories on the way down, each with its name in the one above.
        let mut way: Vec<(Vec<u8>, Held)> = Vec::new();
        // What is left in `dir` and in each of them.
        let mut left = vec![self.names(ctx, dir)?];
        loop {
            let here = way.last().map_or(dir, |(_, held)| held);
            let Some(name) = left.last_mut().and_then(Vec::pop) else {
                left.pop();
                let Some((name, _emptied)) = way.pop() else { return Ok(()) };
                let above = way.last().map_or(dir, |(_, held)| held);
                self.fs().rmdir(ctx, above.ino(), &name)?;
                continue;
            };
            match here.lookup(ctx, &name)? {
                Some((held, attr)) if attr.kind == Kind::Dir => {
                    left.push(self.names(ctx, &held)?);
                    way.push((name, held));
                }
                Some(_) => drop(self.fs().unlink(ctx, here.ino(), &name)?),
                None => {}
            }
        }
    }

    fn remove(
        &self,
        ctx: &OpCtx<'_>,
        dir: &Held,
        name: &[u8],
        held: &Held,
        kind: Kind,
    ) -> Result<Changed> {
        if kind != Kind::Dir {
            return self.fs().unlink(ctx, dir.ino(), name);
        }
        self.empty(ctx, held)?;
        self.fs().rmdir(ctx, dir.ino(), name)
    }
}

fn owned_by((uid, gid): (Uid, Gid), new: NewNode<'_>) -> NewNode<'_> {
    NewNode { uid, gid, ..new }
}

/// What became of the canary of a tree.
pub(crate) enum Canary {
    /// There is none: all files are whole.
    Absent,
    /// It has its mark.
    Marked,
    /// It has one that does not say which inode it is, as there was before decision 0142.
    Nameless(Held, Attr),
    /// It was copied, as files will have been: it lost its mark, or has another's.
    Foreign,
}

/// The root of each layer, none of which is a copy with files in parts.
pub(crate) fn roots_of<'a>(
    ctx: &OpCtx<'_>,
    layers: impl Iterator<Item = &'a Arc<Layer>>,
) -> std::result::Result<Vec<Lower>, OpenError> {
    let root = |(index, layer): (usize, &Arc<Layer>)| {
        let held = layer.root();
        let canary = find_canary(ctx, &held);
        match canary.map_err(|errno| OpenError::Lower(index, errno))? {
            Canary::Foreign => Err(OpenError::Copied),
            Canary::Absent | Canary::Marked | Canary::Nameless(..) => Ok(Lower { index, held }),
        }
    };
    layers.enumerate().map(root).collect()
}

/// Looks for the canary in the root of a tree.
pub(crate) fn find_canary(ctx: &OpCtx<'_>, root: &Held) -> Result<Canary> {
    let Some((canary, attr)) = root.lookup(ctx, CANARY)? else { return Ok(Canary::Absent) };
    Ok(match canary.mark(ctx, Mark::Polylane)? {
        // Which inode it is cannot be known.
        Some(_) if marks::identity(&attr).is_none() => Canary::Marked,
        Some(value) if value.is_empty() => Canary::Nameless(canary, attr),
        Some(value) if value == name_of(&attr) => Canary::Marked,
        _ => Canary::Foreign,
    })
}

/// What the mark of a canary says: which inode it is, where that can be known.
fn name_of(attr: &Attr) -> Vec<u8> {
    marks::identity(attr).map(marks::identity_value).unwrap_or_default()
}

/// A directory, made if it is not there.
pub(crate) fn made_dir(
    ctx: &OpCtx<'_>,
    dir: &Held,
    name: &[u8],
    new: &NewNode<'_>,
) -> Result<Held> {
    match dir.lookup(ctx, name)? {
        Some((held, attr)) if attr.kind == Kind::Dir => Ok(held),
        Some(_) => Err(Errno::ENOTDIR),
        None => {
            let made = dir.fs().create(ctx, dir.ino(), name, new)?;
            Ok(dir.layer().adopt(made.node.ino))
        }
    }
}

/// Refuses a root in which there is anything but what an upper has.
fn check_names(ctx: &OpCtx<'_>, layer: &Arc<Layer>) -> Result<(), OpenError> {
    let known: [&[u8]; 3] = [b"upper", b"work", b"lost+found"];
    let mut other = None;
    let mut each = |entry: polylane_vfs::fs::DirEntry<'_>| {
        other = (!known.contains(&entry.name)).then(|| entry.name.to_vec());
        other.is_none()
    };
    let root = layer.root();
    root.fs().readdir(ctx, root.ino(), 0, &mut each).map_err(OpenError::Upper)?;
    other.map_or(Ok(()), |name| Err(OpenError::NotAnUpper(name)))
}

/// The upper's; a lower does not change, and is cached where any layer wants that.
pub(crate) fn character(
    (lowers, data_only): (&[Arc<Layer>], &[Arc<Layer>]),
    upper: Option<&Upper>,
) -> Character {
    let lower = lowers[0].fs().character();
    let above = upper.map(|upper| upper.fs().character());
    let cache_data = |layer: &Arc<Layer>| layer.fs().character().cache_data;
    Character {
        cache_data: lowers.iter().chain(data_only).any(cache_data)
            || above.is_some_and(|above| above.cache_data),
        volatile: false,
        // No client has a lease of its directories, and its layers are its own.
        remembered: true,
        read_only: above.is_none_or(|above| above.read_only),
        // A lower that keeps no lists has none.
        acls: above.is_none_or(|above| above.acls),
        ..above.unwrap_or(lower)
    }
}

//! What a name in a directory of the union is: the layers from the uppermost down, as overlayfs
//! walks them.
//!
//! ```text
//!  upper entry ── whiteout ──────────► nothing
//!     │   └────── file ──────────────► it; its data may be a lower's (metacopy, redirect)
//!     ├────────── opaque directory ──► it alone
//!     └────────── directory ─────────► it, and the directories below it, by its redirect
//!  no entry ────────────────────────► the first of the lowers; directories below it are merged
//! ```

use polylane_base::sync::Arc;
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, Kind};

use crate::Act;
use crate::layer::{Held, Layer};
use crate::links::counts_from_lower;
use crate::marks::{self, BLOCKS, Mark, Record};
use crate::node::{Below, By, Lower, Node, Parts, Place, Spoiled, State};
use crate::upper::CANARY;

/// What a name leads to.
#[derive(Debug)]
pub(crate) struct Found {
    /// In the upper.
    pub(crate) upper: Option<(Held, Attr)>,
    /// In the lowers, the uppermost first; of a file, the first alone.
    pub(crate) lowers: Vec<Lower>,
    /// The state of the first of `lowers`.
    lower_attr: Option<Attr>,
    data: Option<Lower>,
    lower_path: Vec<u8>,
    record: Option<Record>,
    below: Option<Below>,
    spoiled: Option<Spoiled>,
    uncovered: Option<u32>,
}

/// What lies in the lowers.
#[derive(Default)]
pub(crate) struct InLowers {
    pub(crate) lowers: Vec<Lower>,
    pub(crate) attr: Option<Attr>,
    data: Option<Lower>,
    path: Vec<u8>,
    /// It has no data of its own, and no lower has it.
    is_lost: bool,
}

/// How the lowers are searched: by a name in the lowers of a directory, or by a path.
pub(crate) enum Way {
    Name(Vec<u8>),
    Path(Vec<u8>),
}

impl Way {
    /// By a redirect of what is called `name`.
    fn redirected(name: &[u8], redirect: Option<Vec<u8>>) -> Way {
        match redirect {
            Some(path) if path.starts_with(b"/") => Way::Path(path),
            Some(name) => Way::Name(name),
            None => Way::Name(name.to_vec()),
        }
    }

    fn path(&self, dir: &Node) -> Vec<u8> {
        match self {
            Way::Name(name) => [&*dir.lower_path, b"/", name.as_slice()].concat(),
            Way::Path(path) => path.clone(),
        }
    }
}

impl Found {
    /// What it is.
    pub(crate) fn kind(&self) -> Kind {
        self.upper.as_ref().map(|upper| upper.1).or(self.lower_attr).map_or(Kind::File, |a| a.kind)
    }
}

/// Whether an entry of the directory `dir` is a whiteout.
pub(crate) fn is_whiteout(ctx: &OpCtx<'_>, dir: &Held, held: &Held, attr: &Attr) -> Result<bool> {
    match attr.kind {
        Kind::Char => Ok(attr.rdev == 0),
        Kind::File if attr.size == 0 => {
            Ok(has_files_as_whiteouts(ctx, dir)? && held.mark(ctx, Mark::Whiteout)?.is_some())
        }
        _ => Ok(false),
    }
}

/// Whether empty files in `dir` may be whiteouts.
pub(crate) fn has_files_as_whiteouts(ctx: &OpCtx<'_>, dir: &Held) -> Result<bool> {
    Ok(dir.mark(ctx, Mark::Opaque)?.is_some_and(|value| value == b"x"))
}

/// An entry of a directory of one layer; whiteouts apart.
pub(crate) enum Entry {
    Absent,
    Whiteout,
    Node(Held, Attr),
}

/// Looks at one layer.
pub(crate) fn entry(ctx: &OpCtx<'_>, dir: &Held, name: &[u8]) -> Result<Entry> {
    let Some((held, attr)) = dir.lookup(ctx, name)? else { return Ok(Entry::Absent) };
    match is_whiteout(ctx, dir, &held, &attr)? {
        true => Ok(Entry::Whiteout),
        false => Ok(Entry::Node(held, attr)),
    }
}

/// What a path leads to in one layer, and where the layers below it are to be searched.
struct Walked {
    entry: Entry,
    /// Something on the way hides the layers below.
    is_end: bool,
    /// The path in the layers below, if a directory on the way is called otherwise there.
    redirected: Option<Vec<u8>>,
}

/// Walks a path from the root of a layer. `deeper`: there are layers below.
fn walk(ctx: &OpCtx<'_>, layer: &Arc<Layer>, path: &[u8], deeper: bool) -> Result<Walked> {
    let mut dir = layer.root();
    let mut walked = Walked { entry: Entry::Absent, is_end: false, redirected: None };
    let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|n| !n.is_empty()).collect();
    let last = names.len().saturating_sub(1);
    for (at, name) in names.iter().enumerate() {
        if matches!(*name, b"." | b"..") || name.len() > 255 {
            return Err(Errno::EIO);
        }
        let found = entry(ctx, &dir, name)?;
        walked.is_end |= matches!(found, Entry::Whiteout);
        let Entry::Node(held, attr) = found else { return Ok(walked) };
        if at == last {
            walked.entry = Entry::Node(held, attr);
            return Ok(walked);
        }
        if attr.kind != Kind::Dir {
            walked.is_end = true;
            return Ok(walked);
        }
        if deeper {
            walked.is_end |= held.mark(ctx, Mark::Opaque)?.is_some_and(|value| value == b"y");
            if let Some(redirect) = held.mark(ctx, Mark::Redirect)? {
                let mut path = match redirect.starts_with(b"/") {
                    true => redirect,
                    false => {
                        let parent = names[..at].join(&b'/');
                        [parent.as_slice(), &redirect].join(&b'/')
                    }
                };
                for name in &names[at + 1..] {
                    path.push(b'/');
                    path.extend_from_slice(name);
                }
                walked.redirected = Some(path);
            }
        }
        dir = held;
    }
    Ok(walked)
}

impl Act<'_> {
    /// What `name` in `dir` is; `None` for nothing. `ENOTDIR`; `EIO` where marks contradict each
    /// other. A file whose data cannot be read is found.
    pub(crate) fn find(&self, dir: &Node, name: &[u8]) -> Result<Option<Found>> {
        dir.dir()?;
        if dir.state().is_removed || self.is_canary(dir, name) {
            return Ok(None);
        }
        let above = match dir.upper() {
            Some(upper) => entry(self.ctx, &upper, name)?,
            None => Entry::Absent,
        };
        match above {
            Entry::Whiteout => Ok(None),
            Entry::Absent => self.find_in_lowers(dir, name),
            Entry::Node(held, attr) if attr.kind == Kind::Dir => {
                self.find_dir(dir, name, held, attr).map(Some)
            }
            Entry::Node(held, attr) => self.find_file(dir, name, held, attr).map(Some),
        }
    }

    /// Whether this is the name that no user sees.
    pub(crate) fn is_canary(&self, dir: &Node, name: &[u8]) -> bool {
        dir.ino == self.root.ino && name == CANARY
    }

    /// Whether anything would be seen as `name` in `dir` if the upper had no such entry.
    pub(crate) fn is_in_lowers(&self, dir: &Node, name: &[u8]) -> Result<bool> {
        for lower in &dir.lowers {
            match entry(self.ctx, &lower.held, name)? {
                Entry::Absent => {}
                Entry::Whiteout => return Ok(false),
                Entry::Node(..) => return Ok(true),
            }
        }
        Ok(false)
    }

    fn find_dir(&self, dir: &Node, name: &[u8], held: Held, attr: Attr) -> Result<Found> {
        let mut below = InLowers::default();
        if held.mark(self.ctx, Mark::Opaque)?.is_none_or(|value| value != b"y") {
            let redirect = held.mark(self.ctx, Mark::Redirect)?;
            if redirect.is_some() || !dir.lowers.is_empty() {
                let way = Way::redirected(name, redirect);
                below = self.search(dir, way, Some(true))?;
            }
        }
        Ok(found(Some((held, attr)), below))
    }

    fn find_file(&self, dir: &Node, name: &[u8], held: Held, attr: Attr) -> Result<Found> {
        let is_pure = dir.lowers.is_empty() && !dir.state().is_impure;
        if is_pure && !self.may_be_in_parts(&attr) {
            return Ok(found(Some((held, attr)), InLowers::default()));
        }
        let record = self.record(&held)?;
        let metacopy = match attr.kind {
            Kind::File => held.mark(self.ctx, Mark::Metacopy)?,
            _ => None,
        };
        let mut lower = InLowers::default();
        let has_lower = match &record {
            _ if metacopy.is_some() => true,
            // What overlayfs copied up has the number of what is below it,
            None => held.mark(self.ctx, Mark::Origin)?.is_some(),
            // and counts the names from its links.
            Some(_) if attr.nlink > 1 => {
                self.mark_of(&held, Mark::Nlink)?.is_some_and(|it| counts_from_lower(&it))
            }
            Some(_) => false,
        };
        if has_lower {
            let redirect = held.mark(self.ctx, Mark::Redirect)?;
            lower = self.search(dir, Way::redirected(name, redirect), Some(false))?;
            if lower.attr.is_some_and(|lower| lower.kind != attr.kind) {
                lower = InLowers::default();
            }
        }
        self.above(held, attr, lower, (record, metacopy))
    }

    /// Whether a file of the upper may have holes that are the lower's. Its directory's mark could
    /// be lost.
    fn may_be_in_parts(&self, attr: &Attr) -> bool {
        let has_holes = attr.kind == Kind::File && attr.blocks < attr.size.div_ceil(512);
        has_holes && self.upper.as_ref().is_some_and(|upper| upper.has_files_in_parts())
    }

    fn find_in_lowers(&self, dir: &Node, name: &[u8]) -> Result<Option<Found>> {
        let lower = self.search(dir, Way::Name(name.to_vec()), None)?;
        let Some(attr) = lower.attr else { return Ok(None) };
        let indexed = match &self.upper {
            Some(upper) if attr.kind != Kind::Dir && attr.nlink > 1 => {
                upper.indexed(self.ctx, self.number(&lower.lowers[0]))?
            }
            _ => None,
        };
        let Some((held, upper)) = indexed else { return Ok(Some(found(None, lower))) };
        let record = self.record(&held)?;
        let metacopy = held.mark(self.ctx, Mark::Metacopy)?;
        self.above(held, upper, lower, (record, metacopy)).map(Some)
    }

    /// What a file of the upper is recorded to be.
    pub(crate) fn record(&self, held: &Held) -> Result<Option<Record>> {
        self.mark_of(held, Mark::Polylane)?.map(|value| Record::parse(&value)).transpose()
    }

    /// A mark of something in the upper, or of its stand-in.
    pub(crate) fn mark_of(&self, held: &Held, mark: Mark) -> Result<Option<Vec<u8>>> {
        let stand_in = self.upper.as_ref().and_then(|upper| upper.stand_in(held));
        stand_in.as_ref().unwrap_or(held).mark(self.ctx, mark)
    }

    /// A file in the upper, with what lies below it.
    pub(crate) fn above(
        &self,
        held: Held,
        attr: Attr,
        lower: InLowers,
        (mut record, metacopy): (Option<Record>, Option<Vec<u8>>),
    ) -> Result<Found> {
        let mut all = found(None, lower);
        let in_parts = |record: &Option<Record>| record.is_some_and(|it| it.in_parts.is_some());
        match metacopy {
            None => {
                if in_parts(&record) {
                    // One that was made whole meanwhile lost this mark after its record said so.
                    record = self.record(&held)?;
                }
                all.spoiled = in_parts(&record).then_some(Spoiled::Lost);
            }
            // Its mark was about to go: it has another name since, and no lower of that name.
            Some(_) if record.is_some_and(|record| record.bound == Some(0)) => all.spoiled = None,
            Some(_) if all.spoiled.is_some() => (),
            Some(value) => match all.data.as_ref().or(all.lowers.first()) {
                Some(data) => match self.below(data, &all.lower_path, &attr, (&record, &value)) {
                    Ok(below) => all.below = below,
                    Err(Errno::EIO) => all.spoiled = Some(Spoiled::Changed),
                    Err(errno) => return Err(errno),
                },
                None => all.spoiled = Some(Spoiled::Lost),
            },
        }
        let links = self.mark_of(&held, Mark::Nlink)?;
        let lower_links = all.lower_attr.map(|lower| lower.nlink);
        all.uncovered =
            links.and_then(|value| crate::links::uncovered(&value, attr.nlink, lower_links));
        all.record = record;
        all.upper = Some((held, attr));
        Ok(all)
    }

    /// What a file that is not whole still has in the lower. `EIO`: that is not what was recorded.
    fn below(
        &self,
        data: &Lower,
        lower_path: &[u8],
        attr: &Attr,
        (record, metacopy): (&Option<Record>, &[u8]),
    ) -> Result<Option<Below>> {
        let lower = data.held.attr(self.ctx)?;
        let is_copy = |record: &Record| {
            let both = record.in_parts.zip(marks::identity(attr));
            both.is_some_and(|(recorded, own)| recorded != own)
        };
        let recorded = match record {
            Some(record) if is_copy(record) => return Err(Errno::EIO),
            Some(record) if record.size != lower.size || record.mtime != lower.mtime => {
                return Err(self.changed_below(data, lower_path));
            }
            Some(record) => record.bound.unwrap_or(lower.size),
            None if metacopy == BLOCKS => return Err(Errno::EIO),
            None => lower.size,
        };
        let bound = recorded.min(attr.size);
        let whole = metacopy != BLOCKS && bound == lower.size && attr.size == lower.size;
        let below = Below { bound, mark_is_wide: bound < recorded, whole };
        // One that was cut to nothing has its bound corrected before it grows.
        Ok((recorded > 0).then_some(below))
    }

    /// For what reads or changes the data of a file, or gives it another name: it can be read, or
    /// can be again. `EIO`.
    pub(crate) fn check_data(&self, node: &Node) -> Result<()> {
        let (upper, spoiled) = {
            let state = node.state();
            (state.upper.clone(), state.spoiled)
        };
        let (spoiled, upper) = match (spoiled, upper) {
            (None, _) => return Ok(()),
            (Some(spoiled), Some(upper)) => (spoiled, upper),
            (Some(_), None) => return Err(Errno::EIO),
        };
        if spoiled == Spoiled::Lost {
            return Err(Errno::EIO);
        }
        let below = match upper.mark(self.ctx, Mark::Metacopy)? {
            None => None,
            Some(value) => {
                let data = node.data.as_ref().or(node.lowers.first()).ok_or(Errno::EIO)?;
                let record = self.record(&upper)?;
                let attr = upper.attr(self.ctx)?;
                self.below(data, &node.lower_path, &attr, (&record, &value))?
            }
        };
        let mut state = node.state();
        (state.below, state.spoiled) = (below, None);
        Ok(())
    }

    /// Searches the lowers. `dirs`: directories alone, anything but directories, either.
    pub(crate) fn search(&self, dir: &Node, way: Way, dirs: Option<bool>) -> Result<InLowers> {
        let mut way = way;
        let mut found = InLowers::default();
        // A file without data of its own was found, and where it says that it is.
        let mut wants_data = false;
        let mut data_path = None;
        let last = self.lowers.len().saturating_sub(1);
        for (index, layer) in self.lowers.iter().enumerate() {
            let walked = self.look(dir, &way, (index, layer))?;
            let here = way.path(dir);
            if let Some(path) = walked.redirected {
                way = Way::Path(path);
            }
            let (held, attr) = match walked.entry {
                Entry::Node(held, attr) => (held, attr),
                _ if walked.is_end => break,
                _ => continue,
            };
            let is_dir = attr.kind == Kind::Dir;
            let wanted = found.attr.map_or(dirs, |first: Attr| Some(first.kind == Kind::Dir));
            if wanted.is_some_and(|wanted| wanted != is_dir) {
                break;
            }
            let lower = Lower { index, held };
            if found.lowers.is_empty() {
                (found.attr, found.path) = (Some(attr), here);
            }
            let deeper = index < last && matches!(attr.kind, Kind::Dir | Kind::File);
            let mark = match attr.kind {
                Kind::Dir if deeper => {
                    lower.held.mark(self.ctx, Mark::Opaque)?.filter(|value| value == b"y")
                }
                Kind::File => lower.held.mark(self.ctx, Mark::Metacopy)?,
                _ => None,
            };
            let goes_on = match (is_dir, &mark) {
                (true, mark) => mark.is_none(),
                (false, Some(value)) if value == BLOCKS => {
                    found.is_lost = true;
                    false
                }
                (false, mark) => mark.is_some(),
            };
            let redirect = match goes_on && (deeper || !is_dir && !self.data_only.is_empty()) {
                true => lower.held.mark(self.ctx, Mark::Redirect)?,
                false => None,
            };
            match wants_data && !goes_on {
                true => found.data = Some(lower),
                false if is_dir || found.lowers.is_empty() => found.lowers.push(lower),
                false => {}
            }
            wants_data = !is_dir && goes_on;
            data_path = redirect.clone().filter(|path| wants_data && path.starts_with(b"/"));
            if !goes_on || walked.is_end {
                break;
            }
            if let Some(redirect) = redirect {
                way = Way::redirected(b"", Some(redirect));
            }
        }
        if wants_data {
            found.data = data_path.map(|path| self.find_data(&path)).transpose()?.flatten();
            found.is_lost |= found.data.is_none();
        }
        Ok(found)
    }

    /// The file at a path in the data-only lowers; `None` where there is none that has data.
    fn find_data(&self, path: &[u8]) -> Result<Option<Lower>> {
        for (at, layer) in self.data_only.iter().enumerate() {
            // Whatever these layers' directories say of other layers is not asked.
            let entry = match walk(self.ctx, layer, path, false) {
                Err(Errno::EIO) => return Ok(None),
                walked => walked?.entry,
            };
            if let Entry::Node(held, attr) = entry {
                let is_data = attr.kind == Kind::File
                    && held.mark(self.ctx, Mark::Metacopy)?.is_none()
                    && held.mark(self.ctx, Mark::Redirect)?.is_none();
                let lower = Lower { index: self.lowers.len() + at, held };
                return Ok(is_data.then_some(lower));
            }
        }
        Ok(None)
    }

    /// Looks for something in one lower.
    fn look(&self, dir: &Node, way: &Way, (index, layer): (usize, &Arc<Layer>)) -> Result<Walked> {
        let name = match way {
            Way::Path(path) => return walk(self.ctx, layer, path, index + 1 < self.lowers.len()),
            Way::Name(name) => name,
        };
        let lower = dir.lowers.iter().find(|lower| lower.index == index);
        let entry = lower.map_or(Ok(Entry::Absent), |lower| entry(self.ctx, &lower.held, name))?;
        let is_end = matches!(entry, Entry::Whiteout);
        Ok(Walked { entry, is_end, redirected: None })
    }

    /// The number in the union of an inode of a lower.
    pub(crate) fn number(&self, lower: &Lower) -> Ino {
        self.table.number(self.rank(lower.index), lower.held.ino())
    }

    /// A lower's place, counted from the lowest: it stays when layers are put on top.
    pub(crate) fn rank(&self, index: usize) -> usize {
        self.lowers.len() - 1 - index
    }

    /// The number that what was found has in the union, and its generation.
    pub(crate) fn identity(&self, found: &Found) -> (Ino, u64) {
        let is_dir = found.kind() == Kind::Dir;
        match (&found.record, found.lowers.first(), &found.upper) {
            (Some(record), _, _) if !is_dir => {
                (self.table.number(record.layer.into(), record.ino), record.generation)
            }
            (_, Some(lower), _) => {
                (self.number(lower), found.lower_attr.map_or(0, |attr| attr.generation))
            }
            (_, None, Some((held, attr))) => (held.ino(), attr.generation),
            (_, None, None) => (Ino(0), 0),
        }
    }

    /// The node of what was found as `name` in `dir`, for the VFS.
    pub(crate) fn node(&self, dir: &Arc<Node>, name: &[u8], found: Found) -> Result<Arc<Node>> {
        self.node_for(By::Vfs, dir, name, found)
    }

    /// The node of what was found as `name` in `dir`.
    pub(crate) fn node_for(
        &self,
        by: By,
        dir: &Arc<Node>,
        name: &[u8],
        found: Found,
    ) -> Result<Arc<Node>> {
        if let Some((held, _)) = &found.upper
            && let Some(node) = self.table.of_upper(held.ino(), by)
        {
            // Also for those who have it open.
            if found.spoiled.is_some() {
                node.state().spoiled = found.spoiled;
            }
            return Ok(node);
        }
        let identity = self.identity(&found);
        let place = || Some(Place { dir: dir.clone(), name: name.into() });
        if let Some(node) = self.table.enter(self.parts(&found, identity, place())?, by) {
            return Ok(node);
        }
        // Two inodes that were one in the lower: a hard link that was broken by a copy-up.
        let own = found.upper.as_ref().map(|(held, attr)| (held.ino(), attr.generation));
        let other = own.or_else(|| {
            let lower = found.lowers.first()?;
            let index = self.rank(lower.index);
            Some((self.table.other_number(index, lower.held.ino()), identity.1))
        });
        let other = self.parts(&found, other.ok_or(Errno::ESTALE)?, place())?;
        self.table.enter(other, by).ok_or(Errno::ESTALE)
    }

    /// What a node of what was found is made of.
    pub(crate) fn parts(
        &self,
        found: &Found,
        (ino, generation): (Ino, u64),
        place: Option<Place>,
    ) -> Result<Parts> {
        let kind = found.kind();
        let is_impure = match &found.upper {
            Some((held, _)) if kind == Kind::Dir => {
                !found.lowers.is_empty() || held.mark(self.ctx, Mark::Impure)?.is_some()
            }
            _ => false,
        };
        Ok(Parts {
            ino,
            generation,
            kind,
            lowers: found.lowers.clone(),
            data: found.data.clone(),
            lower_path: found.lower_path.clone().into(),
            upper_generation: found.upper.as_ref().map_or(0, |(_, attr)| attr.generation),
            state: State {
                upper: found.upper.as_ref().map(|(held, _)| held.clone()),
                place,
                below: found.below,
                spoiled: found.spoiled,
                uncovered: found.uncovered,
                is_impure,
                ..State::default()
            },
        })
    }
}

/// Something that the upper alone has.
pub(crate) fn in_upper(held: Held, attr: Attr) -> Found {
    found(Some((held, attr)), InLowers::default())
}

/// What is in the upper and in the lowers.
pub(crate) fn found(upper: Option<(Held, Attr)>, lower: InLowers) -> Found {
    let InLowers { lowers, attr, data, path, is_lost } = lower;
    Found {
        upper,
        lowers,
        lower_attr: attr,
        data,
        lower_path: path,
        record: None,
        below: None,
        spoiled: is_lost.then_some(Spoiled::Lost),
        uncovered: None,
    }
}

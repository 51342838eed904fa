//! The index: files with several names in the lowers that were copied up by one of them.
//!
//! `work/polylane/index` has a link to each, called by its number in the union, so that lookups of
//! its other names find it. overlayfs has an index of its own, `work/index`, whose names are
//! handles of the lower's file system, and finds nothing in ours: it would show what the lower has
//! under the other names. Therefore:
//!
//! - While the index has entries, `work/work/incompat` has one, too: overlayfs refuses to mount
//!   such an upper.
//! - [`Union::solidify`](crate::Union::solidify) gives each file all its names in the upper. The
//!   index is empty then.
//! - What overlayfs entered in its index moves to ours when the union is opened.
//!
//! # A name in `work/index`
//!
//! Hexadecimal digits, two for a byte, of a [`HandleHeader`] and a handle. In the byte order of the
//! machine.

use polylane_base::sync::Arc;
use polylane_base::sync::atomic::Ordering;
use polylane_base::{Errno, Ino, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, Kind, NewNode};
use zerocopy::FromBytes;
use zerocopy::native_endian::{U32, U64};

use crate::Act;
use crate::error::OpenError;
use crate::layer::Held;
use crate::marks::{Mark, Space};
use crate::node::{By, Node, Table};
use crate::stand_in::SUFFIX;
use crate::upper::Upper;

polylane_base::record! {
    /// `struct ovl_fb` of fs/overlayfs/overlayfs.h, before the handle.
    struct HandleHeader: 21 {
        0x00 version: u8,
        0x01 magic: u8,
        /// Bytes in all.
        0x02 len: u8,
        0x03 flags: u8,
        /// `enum fid_type` of include/linux/exportfs.h.
        0x04 kind: u8,
        /// Of the file system.
        0x05 uuid: [u8; 16],
    }

    /// A handle of ext4 and others.
    struct ShortHandle: 8 {
        0x00 ino: U32,
        0x04 generation: U32,
    }

    /// A handle of tmpfs.
    struct TmpfsHandle: 12 {
        0x00 generation: U32,
        0x04 ino: U64,
    }

    /// What a handle of XFS or btrfs begins with.
    struct LongHandle: 12 {
        0x00 ino: U64,
        0x08 more: U32,
    }
}

/// The version of [`HandleHeader`], and its magic number.
const HANDLE_VERSION: u8 = 0;
const HANDLE_MAGIC: u8 = 0xfb;
/// Kinds of handles: `FILEID_INO32_GEN` (tmpfs has it, too), XFS', and
/// `FILEID_BTRFS_WITHOUT_PARENT`.
const KIND_SHORT: u8 = 1;
const KIND_XFS: u8 = 0x81;
const KIND_BTRFS: u8 = 0x4d;

/// Why overlayfs refuses an upper, in the words that it prints.
const GUARD: &[u8] = b"polylane-links";

/// The directory of a work directory that overlayfs uses as its index.
const KERNELS_INDEX: &[u8] = b"index";

/// The entry of the index for a number.
fn index_name(number: Ino) -> Vec<u8> {
    format!("{:016x}", number.0).into_bytes()
}

/// The name of the stand-in for what has that entry.
fn stand_in_name(entry: &[u8]) -> Vec<u8> {
    [entry, SUFFIX].concat()
}

/// The value of the mark that counts names which are in the lowers alone, as overlayfs writes it:
/// how many more names there are than links of the upper's inode, one of which is the index'.
fn links_value(uncovered: u32) -> Vec<u8> {
    format!("U{:+}", i64::from(uncovered) - 1).into_bytes()
}

/// The value while names of the lowers come into the upper, as the file's first does: how many
/// names there are in all, whether a service that was killed made the link or not.
fn names_value(names: u32) -> Vec<u8> {
    format!("N{names}").into_bytes()
}

/// Whether such a value counts from the links of the lower's inode.
pub(crate) fn counts_from_lower(value: &[u8]) -> bool {
    value.starts_with(b"L")
}

/// The names in the lowers alone that such a value counts. overlayfs counts names from the links of
/// the upper's inode (`U`), or from those of the lower's (`L`).
pub(crate) fn uncovered(value: &[u8], upper_links: u32, lower_links: Option<u32>) -> Option<u32> {
    let text = std::str::from_utf8(value).ok()?;
    let (form, more) = text.split_at_checked(1)?;
    let from = match form {
        "U" => upper_links,
        "L" => lower_links?,
        "N" => 0,
        _ => return None,
    };
    let names = i64::from(from).checked_add(more.parse().ok()?)?;
    u32::try_from(names.checked_sub(i64::from(upper_links))? + 1).ok()
}

/// The number of the file that an entry of overlayfs' index stands for, if the file system it is of
/// is a known one.
fn number_of_entry(name: &[u8]) -> Option<Ino> {
    let digit = |&byte: &u8| char::from(byte).to_digit(16);
    let mut bytes = Vec::new();
    for pair in name.chunks(2) {
        let [high, low] = pair else { return None };
        bytes.push(u8::try_from(digit(high)? << 4 | digit(low)?).ok()?);
    }
    let (header, handle) = HandleHeader::ref_from_prefix(&bytes).ok()?;
    let is_known = header.version == HANDLE_VERSION && header.magic == HANDLE_MAGIC;
    if !is_known || usize::from(header.len) != bytes.len() {
        return None;
    }
    let number = match header.kind {
        KIND_SHORT => match ShortHandle::ref_from_bytes(handle) {
            Ok(short) => short.ino.get().into(),
            Err(_) => TmpfsHandle::ref_from_bytes(handle).ok()?.ino.get(),
        },
        KIND_XFS | KIND_BTRFS => LongHandle::ref_from_prefix(handle).ok()?.0.ino.get(),
        _ => return None,
    };
    Some(Ino(number))
}

impl Upper {
    /// Looks a file up in the index.
    pub(crate) fn indexed(&self, ctx: &OpCtx<'_>, number: Ino) -> Result<Option<(Held, Attr)>> {
        self.index.lookup(ctx, &index_name(number))
    }

    /// Enters a file of so many names, none of which is in the upper yet.
    pub(crate) fn add_to_index(
        &self,
        ctx: &OpCtx<'_>,
        (number, held): (Ino, &Held),
        names: u32,
    ) -> Result<()> {
        self.guard(ctx)?;
        self.count_names(ctx, held, names)?;
        self.fs().link(ctx, held.ino(), self.index.ino(), &index_name(number)).map(|_| ())
    }

    /// Before a name of the lowers comes into the upper: how many names a file has in all.
    pub(crate) fn count_names(&self, ctx: &OpCtx<'_>, held: &Held, names: u32) -> Result<()> {
        self.set_links(ctx, held, &names_value(names))
    }

    fn set_links(&self, ctx: &OpCtx<'_>, held: &Held, value: &[u8]) -> Result<()> {
        let marks = self.stand_in(held);
        let ino = marks.as_ref().unwrap_or(held).ino();
        self.set_mark(ctx, ino, Mark::Nlink, value)
    }

    /// Removes a file from the index.
    pub(crate) fn remove_from_index(
        &self,
        ctx: &OpCtx<'_>,
        (number, held): (Ino, &Held),
    ) -> Result<()> {
        let unlink = |name: &[u8]| match self.fs().unlink(ctx, self.index.ino(), name) {
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        };
        let entry = index_name(number);
        unlink(&entry)?;
        match self.stand_ins.remove(held.ino()) {
            true => unlink(&stand_in_name(&entry)),
            false => Ok(()),
        }
    }

    /// Whether what is of that kind cannot have marks.
    pub(crate) fn has_no_marks(&self, kind: Kind) -> bool {
        self.layer.space() == Space::User && !matches!(kind, Kind::File | Kind::Dir)
    }

    /// What has the marks of an inode in its stead.
    pub(crate) fn stand_in(&self, held: &Held) -> Option<Held> {
        match self.layer.space() {
            Space::Trusted => None,
            Space::User => self.stand_ins.get(held.ino()),
        }
    }

    /// Makes a stand-in for what is about to be entered under that number.
    pub(crate) fn make_stand_in(&self, ctx: &OpCtx<'_>, number: Ino, of: &Held) -> Result<Held> {
        let new = self.own(NewNode::new(Kind::File, 0o600));
        let name = stand_in_name(&index_name(number));
        let made = self.fs().create(ctx, self.index.ino(), &name, &new)?;
        let marks = self.layer.adopt(made.node.ino);
        self.stand_ins.put(of.clone(), marks.clone());
        Ok(marks)
    }

    /// Finds what each stand-in is for; those of nothing go.
    pub(crate) fn find_stand_ins(&self, ctx: &OpCtx<'_>) -> Result<()> {
        if self.layer.space() == Space::Trusted {
            return Ok(());
        }
        for name in self.names(ctx, &self.index)? {
            let Some(entry) = name.strip_suffix(SUFFIX) else { continue };
            let Some((marks, _)) = self.index.lookup(ctx, &name)? else { continue };
            match self.index.lookup(ctx, entry)? {
                Some((of, _)) => self.stand_ins.put(of, marks),
                None => drop(self.fs().unlink(ctx, self.index.ino(), &name)?),
            }
        }
        Ok(())
    }

    /// Before the first entry: overlayfs refuses the upper from here on.
    fn guard(&self, ctx: &OpCtx<'_>) -> Result<()> {
        if self.has_guard.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.say_incompatible(ctx, GUARD)?;
        self.has_guard.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// No file of the index has a name in the lowers alone: its entries go, and overlayfs may mount
    /// the upper again.
    pub(crate) fn clear_index(&self, ctx: &OpCtx<'_>, table: &Table) -> Result<()> {
        for name in self.names(ctx, &self.index)? {
            let Some((held, _)) = self.index.lookup(ctx, &name)? else { continue };
            self.fs().unlink(ctx, self.index.ino(), &name)?;
            if self.stand_in(&held).is_none() {
                self.remove_mark(ctx, held.ino(), Mark::Nlink)?;
            }
            if let Some(node) = table.of_upper(held.ino(), By::Walk) {
                node.state().uncovered = None;
            }
        }
        self.stand_ins.clear();
        self.say_compatible(ctx, GUARD)?;
        self.has_guard.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Moves what overlayfs entered in its index to ours. Its entries do not say of which lower
    /// they are, so there may be one lower only.
    pub(crate) fn adopt_kernels_index(
        &self,
        ctx: &OpCtx<'_>,
        table: &Table,
        lowers: usize,
    ) -> Result<(), OpenError> {
        let failed = OpenError::Upper;
        let found = self.work.lookup(ctx, KERNELS_INDEX).map_err(failed)?;
        let Some((dir, _)) = found.filter(|(_, attr)| attr.kind == Kind::Dir) else {
            return Ok(());
        };
        let mut entries = Vec::new();
        for name in self.names(ctx, &dir).map_err(failed)? {
            let Some((_, attr)) = dir.lookup(ctx, &name).map_err(failed)? else { continue };
            // Directories help to export a union by NFS; whiteouts stand for files that are gone.
            if attr.kind == Kind::Dir || attr.kind == Kind::Char && attr.rdev == 0 {
                continue;
            }
            let number = number_of_entry(&name).filter(|_| lowers == 1);
            entries.push((name, number.ok_or(OpenError::KernelsIndex)?));
        }
        for (name, number) in entries {
            self.guard(ctx).map_err(failed)?;
            let ours = index_name(table.number(0, number));
            self.move_new(ctx, (dir.ino(), &name), &self.index, &ours).map_err(failed)?;
        }
        Ok(())
    }
}

impl Act<'_> {
    /// Before a name of a file comes, goes or moves: its names are counted from its links in the
    /// upper, which change in one with the names. As overlayfs does (`ovl_nlink_start`).
    pub(crate) fn count_from_links(&self, node: &Node, held: &Held) -> Result<()> {
        let Some(uncovered) = node.state().uncovered else { return Ok(()) };
        match self.mark_of(held, Mark::Nlink)? {
            Some(value) if value.starts_with(b"U") => Ok(()),
            _ => self.upper()?.set_links(self.ctx, held, &links_value(uncovered)),
        }
    }

    /// Gives each file of the index all its names in the upper, but for names that are moved
    /// meanwhile. Cut off, it goes on when it is called again.
    pub(crate) fn cover_all(&self) -> Result<()> {
        let upper = self.upper()?;
        if upper.names(self.ctx, &upper.index)?.is_empty() {
            return Ok(());
        }
        let mut left = vec![self.root.clone()];
        while let Some(dir) = left.pop() {
            let _alone = self.changing.write();
            self.cover_names(&dir, &mut left)?;
        }
        Ok(())
    }

    /// Covers the names of one directory; the directories in it are `left` to be done.
    fn cover_names(&self, dir: &Arc<Node>, left: &mut Vec<Arc<Node>>) -> Result<()> {
        let mut names = self.names_above(dir)?;
        names.extend(self.names_in_lowers(dir)?.into_iter().map(|name| name.name.into_vec()));
        names.sort();
        names.dedup();
        for name in names {
            let Some(found) = self.find(dir, &name)? else { continue };
            let is_dir = found.kind() == Kind::Dir;
            if is_dir && found.lowers.is_empty() || !is_dir && found.upper.is_none() {
                continue;
            }
            let node = self.node_for(By::Walk, dir, &name, found)?;
            match is_dir {
                true => left.push(node),
                false => self.cover(&node, dir, &name)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: u8, handle: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0xfb, 21 + handle.len() as u8, 0, kind];
        bytes.extend([7; 16]);
        bytes.extend(handle);
        bytes.iter().flat_map(|byte| format!("{byte:02x}").into_bytes()).collect()
    }

    #[test]
    fn entries_of_known_file_systems_have_a_number() {
        let (short, long) = (77u32.to_ne_bytes(), (1u64 << 33 | 5).to_ne_bytes());
        let generation = [1, 2, 3, 4];
        for (kind, handle, number) in [
            (1, [short, generation].concat(), 77),
            (1, [&generation[..], &long].concat(), 1 << 33 | 5),
            (0x81, [&long[..], &generation].concat(), 1 << 33 | 5),
            (0x4d, [&long[..], &[0; 12]].concat(), 1 << 33 | 5),
        ] {
            assert_eq!(number_of_entry(&entry(kind, &handle)), Some(Ino(number)), "{kind:#x}");
        }
    }

    #[test]
    fn other_entries_have_none() {
        let good = entry(1, &[0; 8]);
        assert!(number_of_entry(&good).is_some());
        for length in 0..good.len() {
            assert_eq!(number_of_entry(&good[..length]), None, "{length}");
        }
        assert_eq!(number_of_entry(&entry(2, &[0; 8])), None);
        assert_eq!(number_of_entry(&entry(1, &[0; 16])), None);
        assert_eq!(number_of_entry(&good.to_ascii_uppercase()), Some(Ino(0)));
        assert_eq!(number_of_entry(b"#5"), None);
        assert_eq!(number_of_entry("ööööö".as_bytes()), None);
    }

    #[test]
    fn names_are_counted_from_the_uppers_links_or_the_lowers() {
        for left in [0, 1, 70_000] {
            assert_eq!(uncovered(&links_value(left), 3, None), Some(left));
        }
        // Copied up by one of three names: a link of that name and one of the index.
        assert_eq!(uncovered(b"L+0", 2, Some(3)), Some(2));
        assert_eq!(uncovered(b"L-1", 2, Some(3)), Some(1));
        assert_eq!(uncovered(&names_value(3), 1, None), Some(3));
        assert_eq!(uncovered(&names_value(3), 2, None), Some(2));
        assert_eq!(uncovered(&names_value(3), 4, None), Some(0));
        let most = format!("N{}", i64::MIN);
        for bad in [
            "",
            "U",
            "L",
            "N",
            "X+1",
            "ö1",
            "U-2",
            "L-9",
            "N0",
            "U+99999999999999999999",
            "U+x",
            &most,
        ] {
            assert_eq!(uncovered(bad.as_bytes(), 2, Some(3)), None, "{bad}");
        }
        assert_eq!(uncovered(b"L+0", 2, None), None);
    }
}

//! Changes of two names in an upper that cannot exchange names (a Ceph file system).
//!
//! What is to take a place is made aside and says which, as its mark `place`: the number of a
//! directory of the upper and a name in it. Then what has the place goes aside, and what was made
//! takes it. After a cut between these two, what is aside is put into its place when the union is
//! opened again, if that is free. Where another change of the same call took the place, it is not.

use polylane_base::{Errno, Ino, Result};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Kind, NewNode, RenameMode};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use crate::layer::Above;
use crate::marks::Mark;
use crate::upper::Upper;

/// Whether an upper says by this that it cannot change two names in one.
pub(crate) fn is_incapable(errno: Errno) -> bool {
    matches!(errno, Errno::EINVAL | Errno::EPERM | Errno::EOPNOTSUPP)
}

/// The value of the mark `place`.
fn value(at: Above<'_>) -> Vec<u8> {
    [U64::new(at.dir.ino().0).as_bytes(), at.name].concat()
}

/// The directory's number and the name in it that a value says.
fn parse(value: &[u8]) -> Option<(Ino, &[u8])> {
    let (ino, name) = U64::read_from_prefix(value).ok()?;
    let is_name = !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/');
    is_name.then_some((Ino(ino.get()), name))
}

impl Upper {
    /// Whether the upper exchanges names; it is tried once.
    pub(crate) fn exchanges(&self, ctx: &OpCtx<'_>) -> Result<bool> {
        match self.exchanges.get() {
            Some(known) => Ok(*known),
            None => self.try_exchange(ctx).map(|known| *self.exchanges.get_or_init(|| known)),
        }
    }

    fn try_exchange(&self, ctx: &OpCtx<'_>) -> Result<bool> {
        let new = self.own(NewNode::new(Kind::File, 0o600));
        let ((one, ..), (other, ..)) = (self.make(ctx, &new)?, self.make(ctx, &new)?);
        let mode = RenameMode::Exchange;
        let tried = self.fs().rename(ctx, self.tmp(), &one, self.tmp(), &other, mode);
        self.discard(ctx, &one);
        self.discard(ctx, &other);
        match tried {
            Ok(_) => Ok(true),
            Err(errno) if is_incapable(errno) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Gives what was made aside a name that something else has, which is removed.
    pub(crate) fn take_place(&self, ctx: &OpCtx<'_>, made: &[u8], at: Above<'_>) -> Result<()> {
        let mode = RenameMode::Exchange;
        match self.fs().rename(ctx, self.tmp(), made, at.dir.ino(), at.name, mode) {
            Ok(_) => self.discard(ctx, made),
            Err(errno) if is_incapable(errno) => {
                self.intend(ctx, made, at)?;
                let former = self.set_aside(ctx, at, false)?;
                self.place(ctx, made, at).inspect_err(|_| self.put_back(ctx, &former, at))?;
                self.discard(ctx, &former);
            }
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    /// Moves something to the name `to` and leaves a whiteout, if `keep`, in an upper that does not
    /// exchange names.
    pub(crate) fn relocate(
        &self,
        ctx: &OpCtx<'_>,
        from: Above<'_>,
        to: Above<'_>,
        keep: bool,
    ) -> Result<()> {
        let mut left = None;
        if keep {
            let made = self.whiteout(ctx, from.dir)?;
            self.intend(ctx, &made, from).inspect_err(|_| self.discard(ctx, &made))?;
            left = Some(made);
        }
        let moved = self.move_over(ctx, from, to);
        match (moved, left) {
            (Ok(()), Some(made)) => self.place(ctx, &made, from),
            (moved, left) => {
                left.iter().for_each(|made| self.discard(ctx, made));
                moved
            }
        }
    }

    /// Moves something over a whiteout, or what may be replaced.
    fn move_over(&self, ctx: &OpCtx<'_>, from: Above<'_>, to: Above<'_>) -> Result<()> {
        let kind = |at: Above<'_>| -> Result<Option<Kind>> {
            Ok(at.dir.lookup(ctx, at.name)?.map(|(_, attr)| attr.kind))
        };
        let is_dir = kind(from)? == Some(Kind::Dir);
        // A directory replaces nothing but a directory.
        let in_the_way = kind(to)?.is_some_and(|there| is_dir && there != Kind::Dir);
        let former = match in_the_way {
            true => Some(self.set_aside(ctx, to, true)?),
            false => None,
        };
        let mode = RenameMode::Replace;
        let moved = self.fs().rename(ctx, from.dir.ino(), from.name, to.dir.ino(), to.name, mode);
        match (moved, former) {
            (Ok(_), former) => former.iter().for_each(|name| self.discard(ctx, name)),
            (Err(errno), former) => {
                // It is back in its place at the latest when the union is opened again.
                let _ = former.iter().try_for_each(|name| self.place(ctx, name, to));
                return Err(errno);
            }
        }
        Ok(())
    }

    /// What was made aside is to have this place.
    fn intend(&self, ctx: &OpCtx<'_>, made: &[u8], at: Above<'_>) -> Result<()> {
        let (held, _) = self.aside(ctx, made)?;
        self.set_mark(ctx, held.ino(), Mark::Place, &value(at))
    }

    /// Puts what was made aside into its place, which is free.
    fn place(&self, ctx: &OpCtx<'_>, made: &[u8], at: Above<'_>) -> Result<()> {
        let (held, _) = self.aside(ctx, made)?;
        self.fs().rename(ctx, self.tmp(), made, at.dir.ino(), at.name, RenameMode::Replace)?;
        self.remove_mark(ctx, held.ino(), Mark::Place)
    }

    /// Puts what was set aside back into its place, now or when the union is opened again.
    fn put_back(&self, ctx: &OpCtx<'_>, former: &[u8], at: Above<'_>) {
        let mode = RenameMode::Replace;
        let back = self.fs().rename(ctx, self.tmp(), former, at.dir.ino(), at.name, mode);
        if back.is_err() {
            // Nothing is left to try where this fails, too.
            let _ = self.intend(ctx, former, at);
        }
    }

    /// Moves aside what has a name; its name there. `returns`: a cut brings it back.
    fn set_aside(&self, ctx: &OpCtx<'_>, at: Above<'_>, returns: bool) -> Result<Vec<u8>> {
        let (held, _) = at.dir.lookup(ctx, at.name)?.ok_or(Errno::ENOENT)?;
        match returns {
            true => self.set_mark(ctx, held.ino(), Mark::Place, &value(at))?,
            // One that an earlier cut left would bring it back.
            false if held.mark(ctx, Mark::Place)?.is_some() => {
                self.remove_mark(ctx, held.ino(), Mark::Place)?;
            }
            false => {}
        }
        let name = self.fresh_name();
        let mode = RenameMode::Replace;
        self.fs().rename(ctx, at.dir.ino(), at.name, self.tmp(), &name, mode)?;
        Ok(name)
    }

    /// Puts what was left aside into the places that it says, where they are free.
    pub(crate) fn settle_places(&self, ctx: &OpCtx<'_>) -> Result<()> {
        let tmp = self.tmp_held();
        for name in self.names(ctx, tmp)? {
            let Some((held, _)) = tmp.lookup(ctx, &name)? else { continue };
            let Some(value) = held.mark(ctx, Mark::Place)? else { continue };
            let Some((dir, wanted)) = parse(&value) else { continue };
            // A directory that is gone has no places.
            let Ok((dir, revived)) = self.layer.revive(dir, None) else { continue };
            let at = Above { dir: &dir, name: wanted };
            if revived.attr.kind == Kind::Dir && dir.lookup(ctx, wanted)?.is_none() {
                self.place(ctx, &name, at)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written_and_nothing_else() {
        let value = [U64::new(7).as_bytes(), b"name"].concat();
        assert_eq!(parse(&value), Some((Ino(7), &b"name"[..])));
        for bad in [&b""[..], b"1234567", b"12345678", b"12345678.", b"12345678..", b"12345678a/b"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}

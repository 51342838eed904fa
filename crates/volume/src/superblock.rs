//! A look at the superblock of an ext4 that need not be whole: nothing but its magic number is
//! checked.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use polylane_base::record;
use polylane_ext4::format::superblock::{BYTES, Incompat, MAGIC, OFFSET, State, SuperblockRecord};

/// How much of a disk's start holds it.
pub const START_BYTES: usize = OFFSET as usize + BYTES;

/// A superblock with the right magic number.
#[derive(Clone, Copy)]
pub(crate) struct Superblock(SuperblockRecord);

impl Superblock {
    /// That of a disk that begins at byte `start` of the file; `None`: the disk is no ext4.
    ///
    /// # Errors
    /// The host's; `UnexpectedEof` where the file ends before.
    pub(crate) fn read(file: &File, start: u64) -> io::Result<Option<Superblock>> {
        let mut bytes = [0; BYTES];
        file.read_exact_at(&mut bytes, start + OFFSET)?;
        Ok(Superblock::checked(&bytes, 0))
    }

    /// That of a disk with this start; `None`: the disk is no ext4.
    pub(crate) fn of(start: &[u8]) -> Option<Superblock> {
        Superblock::checked(start, OFFSET as usize)
    }

    fn checked(bytes: &[u8], at: usize) -> Option<Superblock> {
        let found = record::get::<SuperblockRecord>(bytes, at)?;
        (found.magic == MAGIC).then_some(Superblock(*found))
    }

    pub(crate) fn has_errors(&self) -> bool {
        State::from_bits_retain(self.0.state.get()).contains(State::ERROR)
    }

    /// Whether the journal must be replayed.
    pub(crate) fn needs_replay(&self) -> bool {
        self.incompat().contains(Incompat::RECOVER)
    }

    /// Bytes of a block; `None`: more than there can be.
    pub(crate) fn block_bytes(&self) -> Option<u64> {
        1024_u64.checked_shl(self.0.log_block_size.get()).filter(|bytes| *bytes > 0)
    }

    /// Bytes of the file system; `None`: more than there can be.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let wide = self.incompat().contains(Incompat::SIXTY_FOUR_BIT);
        let high = if wide { self.0.blocks_count_hi.get() } else { 0 };
        let blocks = u64::from(high) << 32 | u64::from(self.0.blocks_count_lo.get());
        blocks.checked_mul(self.block_bytes()?)
    }

    fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.0.feature_incompat.get())
    }
}

/// Bytes of the ext4 on a disk with this start, of [`START_BYTES`]; `None`: there is none, or its
/// size cannot be.
pub fn ext4_bytes(start: &[u8]) -> Option<u64> {
    Superblock::of(start)?.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::record::at_mut;

    fn start(change: impl FnOnce(&mut SuperblockRecord)) -> [u8; START_BYTES] {
        let mut start = [0; START_BYTES];
        let raw: &mut SuperblockRecord = at_mut(&mut start, OFFSET as usize);
        raw.magic = MAGIC.into();
        change(raw);
        start
    }

    #[test]
    fn only_the_magic_number_makes_one() {
        assert!(Superblock::of(&start(|_| {})).is_some());
        assert!(Superblock::of(&start(|raw| raw.magic = 0x53ef.into())).is_none());
        assert!(Superblock::of(&start(|_| {})[..START_BYTES - 1]).is_none());
        assert!(Superblock::of(&[]).is_none());
    }

    #[test]
    fn sizes_that_cannot_be_are_none() {
        let of = |log: u32, low: u32, high: u32, incompat: Incompat| {
            let start = start(|raw| {
                raw.log_block_size = log.into();
                (raw.blocks_count_lo, raw.blocks_count_hi) = (low.into(), high.into());
                raw.feature_incompat = incompat.bits().into();
            });
            Superblock::of(&start).expect("magic")
        };
        let plain = Incompat::RECOVER;
        assert_eq!(of(2, 16, 1, plain).bytes(), Some(16 << 12));
        assert_eq!(of(0, 0, 1, Incompat::SIXTY_FOUR_BIT).bytes(), Some(1 << 42));
        assert_eq!(of(0, 0, u32::MAX, Incompat::SIXTY_FOUR_BIT).bytes(), None);
        for log in [54, 63, 64, u32::MAX] {
            assert_eq!(of(log, 1, 0, plain).block_bytes(), None, "{log}");
        }
        assert!(of(0, 0, 0, plain).needs_replay());
        assert!(!of(0, 0, 0, Incompat::EXTENTS).needs_replay());
    }
}

//! Numbers of lowers' inodes in a union.
//!
//! ```text
//!  bits 48 to 63   the layer's slot, from 1 for the lowest; 0: an inode of the upper
//!  bits 0 to 47    the inode's number in its layer
//! ```
//!
//! A layer that is a union itself has as many slots as that has, so its numbers keep all they say
//! and stay the same whenever it is opened. Numbers that do not fit get others, from [`LARGE`] on.

use polylane_base::Ino;

/// Numbers of an inode of a lower below this are told from each other by their layer alone.
const LOWER_INO_BITS: u32 = 48;

/// Set in the numbers of lowers' inodes that do not fit, which are above all others.
pub(crate) const LARGE: u64 = 0xffff << LOWER_INO_BITS;

/// The slots of a union's layers.
pub(crate) struct Slots {
    /// Of each layer, the lowest first.
    layers: Box<[OfLayer]>,
    /// The first slot that none of them has.
    end: u64,
}

struct OfLayer {
    first: u64,
    /// How many, where it is a union itself.
    of_union: Option<u64>,
}

impl Slots {
    /// Of layers, the lowest first: how many slots each has where it is a union.
    pub(crate) fn new(counts: impl Iterator<Item = Option<u16>>) -> Slots {
        let mut end = 1;
        let layers = counts.map(|of_union| {
            let of_union = of_union.map(u64::from);
            let first = end;
            end += of_union.unwrap_or(1);
            OfLayer { first, of_union }
        });
        let layers = layers.collect();
        Slots { layers, end }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u16 {
        u16::try_from(self.end - 1).unwrap_or(u16::MAX)
    }

    /// The number of an inode of the layer that is the `from_lowest`th from below; `None`: it does
    /// not fit.
    pub(crate) fn number(&self, from_lowest: usize, ino: Ino) -> Option<Ino> {
        let upper_bits = ino.0 >> LOWER_INO_BITS;
        let slot = match self.layers.get(from_lowest) {
            Some(OfLayer { first, of_union: Some(count) }) => {
                (1..=*count).contains(&upper_bits).then(|| first + upper_bits - 1)
            }
            Some(layer) => (upper_bits == 0).then_some(layer.first),
            // Of a layer that the upper lay over once.
            None => {
                let above = (from_lowest - self.layers.len()) as u64;
                (upper_bits == 0).then_some(self.end + above)
            }
        };
        let slot = slot.filter(|&slot| slot < LARGE >> LOWER_INO_BITS)?;
        Some(Ino(slot << LOWER_INO_BITS | ino.0 & !LARGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(slots: &Slots, layer: usize, ino: u64) -> Option<u64> {
        slots.number(layer, Ino(ino)).map(|ino| ino.0)
    }

    #[test]
    fn a_number_says_its_layer() {
        let slots = Slots::new([None, None].into_iter());
        assert_eq!((of(&slots, 0, 7), of(&slots, 1, 7)), (Some(1 << 48 | 7), Some(2 << 48 | 7)));
        assert_eq!((of(&slots, 0, 1 << 48), of(&slots, 9, 7)), (None, Some(10 << 48 | 7)));
        assert_eq!((of(&slots, 0xfffe, 7), slots.count()), (None, 2));
    }

    /// Unions in unions: no two inodes have one number, and it is the same each time.
    #[test]
    fn a_union_in_a_union_keeps_its_layers_apart() {
        let inner = Slots::new([None, None].into_iter());
        let middle = Slots::new([Some(inner.count()), None].into_iter());
        let outer = Slots::new([None, Some(middle.count()), Some(inner.count())].into_iter());
        let deep = |layer| outer.number(1, middle.number(0, inner.number(layer, Ino(7))?)?);
        let all = [
            outer.number(0, Ino(7)),
            deep(0),
            deep(1),
            middle.number(1, Ino(7)).and_then(|ino| outer.number(1, ino)),
            inner.number(0, Ino(7)).and_then(|ino| outer.number(2, ino)),
            inner.number(1, Ino(7)).and_then(|ino| outer.number(2, ino)),
        ];
        let expected: Vec<_> = (1..=6u64).map(|slot| Some(Ino(slot << 48 | 7))).collect();
        assert_eq!((&all[..], outer.count()), (&expected[..], 6));
        // Numbers that did not fit there do not fit here, and a union has none without a layer.
        assert_eq!((of(&outer, 1, LARGE | 1), of(&outer, 1, 7)), (None, None));
        let full = Slots::new([Some(0xffff), None].into_iter());
        assert_eq!(
            (of(&full, 1, 7), of(&full, 0, 0xfffe << 48 | 7)),
            (None, Some(0xfffe << 48 | 7))
        );
    }
}

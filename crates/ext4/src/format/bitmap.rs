//! Bits of a group: one per block or inode, set when in use.

use std::mem::size_of;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Whether bit `index` is set.
pub fn get(bits: &[u8], index: u32) -> bool {
    bits[index as usize / 8] & (1 << (index % 8)) != 0
}

/// Sets bits `from..from + count`.
pub fn set(bits: &mut [u8], from: u32, count: u32) {
    each_byte(from, count, |byte, mask| bits[byte] |= mask);
}

/// Clears bits `from..from + count`.
pub fn clear(bits: &mut [u8], from: u32, count: u32) {
    each_byte(from, count, |byte, mask| bits[byte] &= !mask);
}

/// Whether all of `from..from + count` are set.
pub fn all_set(bits: &[u8], from: u32, count: u32) -> bool {
    let mut all = true;
    each_byte(from, count, |byte, mask| all &= bits[byte] & mask == mask);
    all
}

/// Whether all of `from..from + count` are clear.
pub fn all_clear(bits: &[u8], from: u32, count: u32) -> bool {
    let mut clear = true;
    each_byte(from, count, |byte, mask| clear &= bits[byte] & mask == 0);
    clear
}

fn each_byte(from: u32, count: u32, mut with: impl FnMut(usize, u8)) {
    let (mut at, end) = (from, from + count);
    while at < end {
        let upto = (at / 8 * 8 + 8).min(end);
        let mask = ((1u16 << (upto - at)) - 1) << (at % 8);
        with(at as usize / 8, mask as u8);
        at = upto;
    }
}

/// The first clear bit in `from..limit`.
pub fn first_clear(bits: &[u8], from: u32, limit: u32) -> Option<u32> {
    first(bits, from, limit, false)
}

/// The first set bit in `from..limit`.
pub fn first_set(bits: &[u8], from: u32, limit: u32) -> Option<u32> {
    first(bits, from, limit, true)
}

fn first(bits: &[u8], from: u32, limit: u32, wanted: bool) -> Option<u32> {
    let mut at = from;
    while at < limit {
        // Eight bytes at a time; beyond the slice's end bits count as unwanted.
        let word = at / 64;
        let start = word as usize * size_of::<U64>();
        let mut eight = U64::new(if wanted { 0 } else { u64::MAX });
        let tail = &bits[start.min(bits.len())..bits.len().min(start + size_of::<U64>())];
        eight.as_mut_bytes()[..tail.len()].copy_from_slice(tail);
        let raw = eight.get();
        let hits = (if wanted { raw } else { !raw }) & (u64::MAX << (at % 64));
        if hits != 0 {
            return Some(word * 64 + hits.trailing_zeros()).filter(|bit| *bit < limit);
        }
        at = (word + 1) * 64;
    }
    None
}

/// Clear bits among the first `limit`.
pub fn count_clear(bits: &[u8], limit: u32) -> u32 {
    let whole = limit as usize / 8;
    let mut set: u32 = bits[..whole].iter().map(|byte| byte.count_ones()).sum();
    if !limit.is_multiple_of(8) {
        set += (bits[whole] & ((1 << (limit % 8)) - 1)).count_ones();
    }
    limit - set
}

#[cfg(test)]
mod tests {
    use super::*;
    use polylane_base::rng::Rng;

    #[test]
    fn ranges_agree_with_single_bits() {
        let mut rng = Rng::new(7);
        let mut bits = [0u8; 64];
        let mut model = [false; 512];
        for _ in 0..if cfg!(miri) { 20 } else { 2000 } {
            let from = rng.below(512) as u32;
            let count = rng.below(u64::from(512 - from) + 1).min(90) as u32;
            let range = from as usize..(from + count) as usize;
            let on = rng.percent(50);
            if on {
                set(&mut bits, from, count)
            } else {
                clear(&mut bits, from, count)
            }
            model[range.clone()].fill(on);
            assert!((0..512).all(|bit| get(&bits, bit) == model[bit as usize]));
            let start = rng.below(512) as usize;
            let clear_at = (start..500).find(|bit| !model[*bit]).map(|bit| bit as u32);
            assert_eq!(first_clear(&bits, start as u32, 500), clear_at);
            let set_at = (start..500).find(|bit| model[*bit]).map(|bit| bit as u32);
            assert_eq!(first_set(&bits, start as u32, 500), set_at);
            assert_eq!(all_set(&bits, from, count), model[range.clone()].iter().all(|b| *b));
            assert_eq!(all_clear(&bits, from, count), !model[range].iter().any(|b| *b));
            let free = model[..501].iter().filter(|b| !**b).count();
            assert_eq!(count_clear(&bits, 501) as usize, free);
        }
    }
}

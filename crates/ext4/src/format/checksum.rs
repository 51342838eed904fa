//! crc32c as ext4 uses it: raw, seeded, without the final inversion. And the two sums from before
//! `metadata_csum`: [`crc16`] of group descriptors, [`crc32_be`] of transactions.
//!
//! | structure | seed | covers |
//! |---|---|---|
//! | superblock | ~0 | its first 1020 bytes |
//! | group descriptor | file system | number, descriptor with a zero field; low 16 bits |
//! | bitmaps | file system | the bytes that hold bits of the group |
//! | inode | inode | the inode with both halves zero |
//! | directory block, index node, extent block | inode | the block up to its tail |
//! | attribute block | file system | block number (64 bits), the block with the field zero |
//!
//! *File system* seed: crc32c(~0, UUID), or `s_checksum_seed`. *Inode* seed: crc32c(file-system
//! seed, inode number, generation).
//!
//! With `gdt_csum` (`uninit_bg`) alone, a group descriptor has crc16(~0) over the UUID, its number,
//! and itself without the field; nothing else has a checksum.

use polylane_base::record;
use polylane_sys::crc;
use zerocopy::little_endian::U32;
use zerocopy::{IntoBytes, big_endian};

/// Goes on from `seed` over `bytes`.
pub fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// The seed of one inode's own structures.
pub fn inode_seed(file_system: u32, ino: u32, generation: u32) -> u32 {
    crc(file_system, [U32::new(ino), U32::new(generation)].as_bytes())
}

/// Goes on from `seed` over `bytes` with the crc16 of polynomial 0x8005, lowest bit first: the
/// checksum of group descriptors with `gdt_csum`.
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |sum, byte| sum >> 8 ^ CRC16[usize::from(sum as u8 ^ byte)])
}

/// Goes on from `seed` over `bytes` with the crc32 of polynomial 0x04c11db7, highest bit first:
/// the checksum of whole transactions in a journal of checksums v1.
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let sum = match crc::fold_be(seed, steps) {
        Some(folded) => by_tables(0, &[folded]),
        None => by_tables(seed, steps),
    };
    let one = |sum: u32, byte: &u8| sum << 8 ^ CRC32_BE[0][usize::from((sum >> 24) as u8 ^ byte)];
    rest.iter().fold(sum, one)
}

fn by_tables(seed: u32, steps: &[crc::Step]) -> u32 {
    steps.iter().fold(seed, |sum, step| {
        let mut step = *step;
        *record::at_mut::<big_endian::U32>(&mut step, 0) ^= big_endian::U32::new(sum);
        let each = step.iter().zip(CRC32_BE.iter().rev());
        each.fold(0, |sum, (byte, table)| sum ^ table[usize::from(*byte)])
    })
}

/// Bytes that [`crc32_be`] takes at a time.
const STEP: usize = size_of::<crc::Step>();

static CRC16: [u16; 256] = crc16_table();
/// For each byte of a step, from the last to the first, what it adds to the sum.
static CRC32_BE: [[u32; 256]; STEP] = crc32_be_tables();

const fn crc16_table() -> [u16; 256] {
    let (mut table, mut byte) = ([0; 256], 0);
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u16, 0);
        while bit < 8 {
            sum = (sum >> 1) ^ ((sum & 1) * 0xa001);
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
}

const fn crc32_be_tables() -> [[u32; 256]; STEP] {
    let (mut tables, mut byte) = ([[0; 256]; STEP], 0);
    while byte < 256 {
        let (mut sum, mut bit) = ((byte as u32) << 24, 0);
        while bit < 8 {
            sum = (sum << 1) ^ ((sum >> 31) * 0x04c1_1db7);
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut step = 1;
    while step < STEP {
        let mut byte = 0;
        while byte < 256 {
            let before: u32 = tables[step - 1][byte];
            tables[step][byte] = before << 8 ^ tables[0][(before >> 24) as usize];
            byte += 1;
        }
        step += 1;
    }
    tables
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_raw_crc32c() {
        // RFC 3720 B.4: 32 bytes of zeros, standard form 0x8a9136aa; raw form is its complement.
        assert_eq!(crc(!0, &[0; 32]), !0x8a91_36aa);
        assert_eq!(crc(crc(!0, b"1234"), b"56789"), crc(!0, b"123456789"));
    }

    /// The check values of the catalogue of CRCs: CRC-16/MODBUS and /ARC, CRC-32/MPEG-2.
    #[test]
    fn the_older_sums_are_what_the_catalogue_says() {
        assert_eq!(crc16(!0, b"123456789"), 0x4b37);
        assert_eq!(crc16(crc16(0, b"1234"), b"56789"), 0xbb3d);
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7);
        assert_eq!(crc32_be(crc32_be(!0, b"1234"), b"56789"), 0x0376_e6e7);
    }

    /// Of any length, in any two pieces, as bit by bit.
    #[test]
    fn the_sum_of_transactions_is_the_same_in_steps() {
        let bytes: Vec<u8> = (0..600u32).map(|at| (at * 167 + 13) as u8).collect();
        let slow = |seed: u32, bytes: &[u8]| {
            let step = |sum: u32, _| (sum << 1) ^ ((sum >> 31) * 0x04c1_1db7);
            bytes.iter().fold(seed, |sum, byte| (0..8).fold(sum ^ u32::from(*byte) << 24, step))
        };
        for len in 0..bytes.len() {
            let (all, cut) = (&bytes[..len], len * 5 / 7);
            let seed = 0x9e37_79b9u32.wrapping_mul(len as u32);
            assert_eq!(crc32_be(seed, all), slow(seed, all), "{len} bytes");
            assert_eq!(crc32_be(crc32_be(seed, &all[..cut]), &all[cut..]), slow(seed, all));
            // Where a processor folds nothing.
            let (steps, _) = all.as_chunks::<STEP>();
            assert_eq!(by_tables(seed, steps), slow(seed, steps.as_flattened()), "{len} bytes");
        }
    }
}

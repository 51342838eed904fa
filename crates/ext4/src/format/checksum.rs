//! crc32c as ext4 uses it: raw, seeded, without the final inversion.
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

/// Goes on from `seed` over `bytes`.
pub fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// The seed of one inode's own structures.
pub fn inode_seed(file_system: u32, ino: u32, generation: u32) -> u32 {
    crc(crc(file_system, &ino.to_le_bytes()), &generation.to_le_bytes())
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
}

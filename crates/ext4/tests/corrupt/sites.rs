//! Where the structures of an image lie, so that each can be damaged on purpose and sealed again.

use polylane_ext4::format::checksum::{crc, crc16, inode_seed};
use polylane_ext4::format::group::{GroupDescriptor, descriptor_place};
use polylane_ext4::format::inode::{InodeFlags, RawInode};
use polylane_ext4::format::superblock::{BYTES, Compat, OFFSET, Superblock};
use polylane_ext4::format::{GroupIndex, dirent, extent, htree, xattr};
use polylane_testkit::sim::Image;

const BLOCK: usize = 4096;

/// A structure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Superblock,
    Descriptor(u32),
    BlockBitmap(u32),
    InodeBitmap(u32),
    Inode(u32),
    Extents(u32),
    Directory(u32),
    Index(htree::Place, u32),
    Xattr,
    JournalSuperblock,
    Journal,
    OrphanFile(u32),
    Data,
}

/// A structure and its place, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    pub kind: Kind,
    pub at: usize,
    pub len: usize,
}

/// All structures of a sound image.
pub struct Sites {
    pub superblock: Superblock,
    journal_seed: u32,
    pub all: Vec<Site>,
}

fn block(image: &Image, home: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    image.read(home as usize * BLOCK, &mut bytes);
    bytes
}

fn superblock(image: &Image) -> Superblock {
    let mut bytes = [0; BYTES];
    image.read(OFFSET as usize, &mut bytes);
    Superblock::decode(&bytes).expect("a sound image")
}

impl Sites {
    pub fn of(image: &Image) -> Sites {
        let superblock = superblock(image);
        let mut sites = Sites { superblock, journal_seed: 0, all: Vec::new() };
        sites.add(Kind::Superblock, OFFSET as usize, BYTES);
        let geometry = sites.superblock.geometry;
        for group in 0..geometry.group_count {
            sites.group(image, group);
        }
        sites
    }

    fn add(&mut self, kind: Kind, at: usize, len: usize) {
        self.all.push(Site { kind, at, len });
    }

    fn add_block(&mut self, kind: Kind, home: u64) {
        self.add(kind, home as usize * BLOCK, BLOCK);
    }

    fn group(&mut self, image: &Image, group: u32) {
        let geometry = self.superblock.geometry;
        let (home, offset) = descriptor_place(&self.superblock, GroupIndex(group));
        let at = home.0 as usize * BLOCK + offset;
        let bytes = block(image, home.0);
        let descriptor =
            GroupDescriptor::decode(&self.superblock, GroupIndex(group), &bytes[offset..]);
        let descriptor = descriptor.expect("a sound image");
        self.add(Kind::Descriptor(group), at, 64);
        self.add_block(Kind::BlockBitmap(group), descriptor.block_bitmap().0);
        self.add_block(Kind::InodeBitmap(group), descriptor.inode_bitmap().0);
        let size = usize::from(geometry.inode_bytes);
        for index in 0..geometry.inodes_per_group {
            let at = descriptor.inode_table().0 as usize * BLOCK + index as usize * size;
            let mut bytes = vec![0; size];
            image.read(at, &mut bytes);
            let raw = RawInode::from_bytes(&bytes);
            if raw.mode() != 0 {
                let ino = group * geometry.inodes_per_group + index + 1;
                self.add(Kind::Inode(ino), at, size);
                self.inode(image, ino, &raw);
            }
        }
    }

    fn inode(&mut self, image: &Image, ino: u32, raw: &RawInode) {
        let seed = inode_seed(self.superblock.checksum_seed(), ino, raw.generation());
        if raw.xattr_block() != 0 {
            self.add_block(Kind::Xattr, raw.xattr_block());
        }
        if !raw.has_flag(InodeFlags::EXTENTS) {
            return;
        }
        let mut blocks = Vec::new();
        self.tree(image, raw.block(), seed, &mut blocks);
        let is_orphan_file = self.superblock.has_compat(Compat::ORPHAN_FILE)
            && ino == self.superblock.orphan_file_inode();
        for (nth, home) in blocks {
            let kind = match () {
                () if ino == self.superblock.journal_inode() => self.journal(image, nth, home),
                () if is_orphan_file => Some(Kind::OrphanFile(seed)),
                () if raw.mode() >> 12 == 4 => Some(directory(image, raw, nth, home, seed)),
                () => (nth < 2).then_some(Kind::Data),
            };
            if let Some(kind) = kind {
                self.add_block(kind, home);
            }
        }
    }

    /// Walks an extent tree; leaves `(block of the file, its home)` behind.
    fn tree(&mut self, image: &Image, bytes: &[u8], seed: u32, blocks: &mut Vec<(u64, u64)>) {
        let entries = u16::from_le_bytes([bytes[2], bytes[3]]);
        let depth = u16::from_le_bytes([bytes[6], bytes[7]]);
        for entry in 0..usize::from(entries) {
            let entry = &bytes[12 + entry * 12..24 + entry * 12];
            let word =
                |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
            let half = |at: usize| u64::from(u16::from_le_bytes([entry[at], entry[at + 1]]));
            if depth == 0 {
                let start = half(6) << 32 | u64::from(word(8));
                let count = half(4) & 0x7fff;
                blocks.extend((0..count).map(|n| (u64::from(word(0)) + n, start + n)));
            } else {
                let home = u64::from(word(4)) | half(8) << 32;
                self.add_block(Kind::Extents(seed), home);
                self.tree(image, &block(image, home), seed, blocks);
            }
        }
    }

    fn journal(&mut self, image: &Image, nth: u64, home: u64) -> Option<Kind> {
        let bytes = block(image, home);
        if nth == 0 {
            self.journal_seed = crc(!0, &bytes[0x30..0x40]);
            return Some(Kind::JournalSuperblock);
        }
        let magic = bytes[..4] == 0xc03b_3998u32.to_be_bytes();
        (magic || nth < 40).then_some(Kind::Journal)
    }

    /// Makes a damaged structure's checksum right again.
    pub fn seal(&self, image: &mut Image, site: &Site) {
        let mut bytes = vec![0; site.len];
        image.read(site.at, &mut bytes);
        let seed = self.superblock.checksum_seed();
        match site.kind {
            Kind::Superblock => {
                let sum = crc(!0, &bytes[..1020]);
                bytes[1020..].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::Descriptor(group) => {
                bytes[0x1e..0x20].fill(0);
                let sum = self.descriptor_sum(&bytes, &group.to_le_bytes());
                bytes[0x1e..0x20].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::Inode(ino) => {
                let mut raw = RawInode::from_bytes(&bytes);
                raw.put_checksum(seed, ino);
                bytes.copy_from_slice(raw.bytes());
            }
            Kind::Extents(seed) => extent::put_checksum(&mut bytes, seed),
            Kind::Directory(seed) => dirent::put_checksum(&mut bytes, seed),
            Kind::Index(place, seed) => htree::put_checksum(&mut bytes, place, seed),
            Kind::Xattr => xattr::put_checksum(&mut bytes, seed, (site.at / BLOCK) as u64),
            Kind::OrphanFile(seed) => {
                let home = ((site.at / BLOCK) as u64).to_le_bytes();
                let sum = crc(crc(seed, &home), &bytes[..BLOCK - 8]);
                bytes[BLOCK - 4..].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::JournalSuperblock => {
                bytes[0xfc..0x100].fill(0);
                let sum = crc(!0, &bytes[..1024]);
                bytes[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
            }
            Kind::Journal => self.seal_journal(&mut bytes),
            Kind::BlockBitmap(group) => return self.seal_bitmap(image, &bytes, group, 0x18, 0x38),
            Kind::InodeBitmap(group) => return self.seal_bitmap(image, &bytes, group, 0x1a, 0x3a),
            Kind::Data => {}
        }
        image.write(site.at, &bytes);
    }

    fn descriptor_sum(&self, bytes: &[u8], group: &[u8]) -> u16 {
        if self.superblock.has_checksums() {
            return crc(crc(self.superblock.checksum_seed(), group), bytes) as u16;
        }
        let seed = crc16(crc16(!0, &self.superblock.uuid()), group);
        crc16(crc16(seed, &bytes[..0x1e]), &bytes[0x20..])
    }

    fn seal_journal(&self, bytes: &mut [u8]) {
        let at = match bytes[7] {
            2 => 0x10,
            _ => BLOCK - 4,
        };
        bytes[at..at + 4].fill(0);
        let sum = crc(self.journal_seed, bytes);
        bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
    }

    /// A bitmap's checksum is in its group's descriptor.
    fn seal_bitmap(&self, image: &mut Image, bits: &[u8], group: u32, low: usize, high: usize) {
        let geometry = self.superblock.geometry;
        let covered =
            if low == 0x18 { geometry.blocks_per_group } else { geometry.inodes_per_group };
        let sum = crc(self.superblock.checksum_seed(), &bits[..covered as usize / 8]).to_le_bytes();
        let is_descriptor = |site: &&Site| site.kind == Kind::Descriptor(group);
        let descriptor = *self.all.iter().find(is_descriptor).expect("every group has one");
        image.write(descriptor.at + low, &sum[..2]);
        image.write(descriptor.at + high, &sum[2..]);
        self.seal(image, &descriptor);
    }
}

/// What a block of a directory is.
fn directory(image: &Image, raw: &RawInode, nth: u64, home: u64, seed: u32) -> Kind {
    let bytes = block(image, home);
    // An index node looks like one empty entry that fills the block.
    let is_node = bytes[..4] == [0; 4] && u16::from_le_bytes([bytes[4], bytes[5]]) == BLOCK as u16;
    match (raw.has_flag(InodeFlags::INDEX), nth) {
        (true, 0) => Kind::Index(htree::Place::Root, seed),
        (true, _) if is_node => Kind::Index(htree::Place::Node, seed),
        _ => Kind::Directory(seed),
    }
}

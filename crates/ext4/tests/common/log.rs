//! A journal as it lies in an image, read by debugfs: its transactions, block by block.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use polylane_ext4::format::journal::{BlockType, Codec, JournalSuperblock};

use super::BLOCK;

/// One transaction in the log; blocks are counted from the journal's start.
#[derive(Default)]
pub struct Transaction {
    /// Descriptors and logged blocks, in the order of the log; no revokes.
    pub body: Vec<u32>,
    /// The commit block.
    pub commit: u32,
}

/// The journal of an image.
pub struct Log {
    /// All of it.
    pub bytes: Vec<u8>,
    /// Its superblock.
    pub superblock: JournalSuperblock,
}

impl Log {
    /// The journal of the image in this file.
    pub fn read(image: &Path) -> Log {
        let bytes = cat(image, "<8>");
        let blocks = (bytes.len() / BLOCK) as u32;
        let superblock = JournalSuperblock::decode(&bytes, BLOCK as u32, blocks);
        Log { superblock: superblock.expect("a journal"), bytes }
    }

    /// Block `index`.
    pub fn block(&self, index: u32) -> &[u8] {
        &self.bytes[index as usize * BLOCK..][..BLOCK]
    }

    /// All transactions that have a commit block, oldest first.
    pub fn transactions(&self) -> Vec<Transaction> {
        let (first, end) = (self.superblock.first(), self.superblock.end());
        let wrap = |index: u32| if index >= end { index - end + first } else { index };
        let (codec, mut sequence) = (self.superblock.codec(), self.superblock.sequence());
        let (mut at, mut found, mut open) = (self.superblock.start(), Vec::new(), Vec::new());
        while let Some((kind, number)) = Codec::header(self.block(at))
            && number == sequence
        {
            let logged = match kind {
                kind if kind == BlockType::Descriptor as u32 => codec.tags(self.block(at)).len(),
                kind if kind == BlockType::Commit as u32 => {
                    found.push(Transaction { body: std::mem::take(&mut open), commit: at });
                    sequence = sequence.wrapping_add(1);
                    at = wrap(at + 1);
                    continue;
                }
                _ => 0,
            };
            if logged > 0 {
                open.extend((0..=logged as u32).map(|step| wrap(at + step)));
            }
            at = wrap(at + 1 + logged as u32);
        }
        found
    }

    /// The checksum (v1) of a transaction: crc32, highest bit first, bit by bit.
    pub fn sum(&self, transaction: &Transaction) -> u32 {
        let bytes = transaction.body.iter().flat_map(|index| self.block(*index));
        bytes.fold(!0u32, |sum, byte| {
            let step = |sum: u32, _| (sum << 1) ^ if sum >> 31 == 1 { 0x04c1_1db7 } else { 0 };
            (0..8).fold(sum ^ u32::from(*byte) << 24, step)
        })
    }
}

/// What debugfs says.
fn asked(image: &Path, request: &str) -> Vec<u8> {
    let output = Command::new("debugfs").args(["-R", request]).arg(image).output();
    output.expect("debugfs runs").stdout
}

/// The bytes of a file, as debugfs sees it.
pub fn cat(image: &Path, path: &str) -> Vec<u8> {
    asked(image, &format!("cat {path}"))
}

/// Overwrites block `index` of the journal of the image in this file.
pub fn put(image: &Path, index: u32, block: &[u8]) {
    let said = asked(image, &format!("bmap <8> {index}"));
    let said = String::from_utf8_lossy(&said);
    let home: u64 = said.trim().parse().expect("a block of the journal");
    let file = std::fs::File::options().write(true).open(image).expect("writable");
    file.write_all_at(block, home * BLOCK as u64).expect("inside");
}

/// Changes one byte of the last block that a transaction logged.
pub fn damage(image: &Path, log: &Log, transaction: &Transaction) {
    let index = *transaction.body.last().expect("something was logged");
    let mut block = log.block(index).to_vec();
    block[BLOCK / 2] ^= 0x40;
    put(image, index, &block);
}

//! A writer of logs: transactions of any content, in a journal of any kind of checksums.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use polylane_ext4::format::DeviceBlock;
use polylane_ext4::format::journal::{JournalIncompat, JournalSuperblock, TransactionSum};

use super::BLOCK;

const FEATURES: JournalIncompat = JournalIncompat::REVOKE.union(JournalIncompat::SIXTY_FOUR_BIT);

/// What one transaction holds.
pub struct Transaction {
    /// Blocks with their homes.
    pub blocks: Vec<(u64, Vec<u8>)>,
    /// Blocks that it revokes.
    pub revoked: Vec<u64>,
    /// When it committed.
    pub seconds: u64,
}

/// What a block of the log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Revoke,
    Descriptor,
    Data,
    Commit,
}

/// A block of the log.
pub struct Part {
    pub kind: Kind,
    /// Counted from 0.
    pub transaction: usize,
    /// Where it is on the device.
    pub home: u64,
}

fn journal_blocks(image: &Path) -> Vec<u64> {
    let said = Command::new("debugfs").args(["-R", "blocks <8>"]).arg(image).output();
    let said = String::from_utf8(said.expect("debugfs runs").stdout).expect("text");
    said.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}

struct Journal {
    file: std::fs::File,
    homes: Vec<u64>,
    superblock: Vec<u8>,
}

impl Journal {
    fn open(image: &Path) -> Journal {
        let file = std::fs::File::options().read(true).write(true).open(image).expect("writable");
        let homes = journal_blocks(image);
        let mut superblock = vec![0; BLOCK];
        file.read_exact_at(&mut superblock, homes[0] * BLOCK as u64).expect("inside");
        Journal { file, homes, superblock }
    }

    fn put(&self, index: usize, bytes: &[u8]) -> u64 {
        let home = self.homes[index];
        self.file.write_all_at(bytes, home * BLOCK as u64).expect("inside");
        home
    }

    fn store(&mut self, journal: &JournalSuperblock) {
        let bytes = journal.encode();
        self.superblock[..bytes.len()].copy_from_slice(&bytes);
        self.put(0, &self.superblock);
    }

    fn decode(&self) -> JournalSuperblock {
        let blocks = self.homes.len() as u32;
        JournalSuperblock::decode(&self.superblock, BLOCK as u32, blocks).expect("a journal")
    }
}

/// Writes the transactions to the log of a clean image, and says that it is to be replayed.
pub fn write(image: &Path, sums: JournalIncompat, transactions: &[Transaction]) -> Vec<Part> {
    write_with(image, sums | FEATURES, transactions)
}

/// The same in a journal that keeps room for fast commits.
pub fn write_fast(image: &Path, sums: JournalIncompat, transactions: &[Transaction]) -> Vec<Part> {
    write_with(image, sums | FEATURES | JournalIncompat::FAST_COMMIT, transactions)
}

fn write_with(image: &Path, features: JournalIncompat, transactions: &[Transaction]) -> Vec<Part> {
    let mut journal = Journal::open(image);
    journal.superblock[0x28..0x2c].copy_from_slice(&features.bits().to_be_bytes());
    journal.superblock[0x50] = 4;
    // Any sum: what is decoded is not looked at before.
    let sum = {
        let mut bytes = journal.superblock[..1024].to_vec();
        bytes[0xfc..0x100].fill(0);
        polylane_ext4::format::checksum::crc(!0, &bytes)
    };
    journal.superblock[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    let mut superblock = journal.decode();
    let (codec, first) = (superblock.codec(), superblock.sequence());
    let (mut at, mut parts) = (superblock.first() as usize, Vec::new());
    for (index, transaction) in transactions.iter().enumerate() {
        let sequence = first.wrapping_add(index as u32);
        let mut add = |kind, bytes: &[u8]| {
            parts.push(Part { kind, transaction: index, home: journal.put(at, bytes) });
            at += 1;
        };
        let (mut block, mut total) = (vec![0; BLOCK], TransactionSum::default());
        if !transaction.revoked.is_empty() {
            let revoked: Vec<_> = transaction.revoked.iter().copied().map(DeviceBlock).collect();
            codec.put_revoke(&mut block, sequence, &revoked);
            add(Kind::Revoke, &block);
        }
        for piece in transaction.blocks.chunks(codec.tags_per_block(BLOCK)) {
            let mut data: Vec<Vec<u8>> = piece.iter().map(|(_, bytes)| bytes.clone()).collect();
            let homes = piece.iter().map(|(home, _)| DeviceBlock(*home));
            let tags: Vec<_> = homes
                .zip(&mut data)
                .map(|(home, bytes)| codec.log(home, sequence, bytes))
                .collect();
            codec.put_descriptor(&mut block, sequence, &tags);
            add(Kind::Descriptor, &block);
            data.iter().for_each(|bytes| add(Kind::Data, bytes));
            std::iter::once(&block).chain(&data).for_each(|bytes| total.add(bytes));
        }
        codec.put_commit(&mut block, sequence, (transaction.seconds, 0), total);
        add(Kind::Commit, &block);
    }
    superblock.set_tail(first, superblock.first());
    journal.store(&superblock);
    need_recovery(image, "needs_recovery");
    parts
}

/// Says that the log is empty, and leaves what is in it.
pub fn empty(image: &Path) {
    let mut journal = Journal::open(image);
    let mut superblock = journal.decode();
    superblock.set_tail(superblock.sequence(), 0);
    journal.store(&superblock);
    need_recovery(image, "-needs_recovery");
}

fn need_recovery(image: &Path, feature: &str) {
    let mut debugfs = Command::new("debugfs");
    let asked = debugfs.args(["-w", "-R", &format!("feature {feature}")]).arg(image);
    assert!(asked.output().expect("debugfs runs").status.success());
}

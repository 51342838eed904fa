//! Limits of quotas, written into an ext4 image as setquota(8) would have the kernel do.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

/// The inode of the quotas of users.
pub const USERS: u32 = 3;
/// The inode of the quotas of groups.
pub const GROUPS: u32 = 4;

/// Limits of one id, of inodes and of KiB, soft and hard; 0: none.
#[derive(Clone, Copy, Default, Debug)]
pub struct Limits {
    /// May be passed for a week.
    pub soft_inodes: u64,
    /// Is never passed.
    pub hard_inodes: u64,
    /// May be passed for a week.
    pub soft_kib: u64,
    /// Is never passed.
    pub hard_kib: u64,
}

/// The inode of the quotas of projects, from the superblock of an image.
///
/// # Panics
/// The image cannot be read.
pub fn of_projects(image: &Path) -> u32 {
    number(image, 1024 + 0x26c)
}

/// Writes the limits of `id` into the entry that it has in a quota file: the image's inode `quota`.
///
/// # Panics
/// The id has no entry, or debugfs is not installed.
pub fn set_limits(image: &Path, (quota, id): (u32, u32), limits: Limits) {
    let block_bytes = 1024u64 << number(image, 1024 + 0x18);
    let mut debugfs = Command::new("debugfs");
    debugfs.args(["-R", &format!("blocks <{quota}>")]).arg(image);
    let told = debugfs.output().expect("debugfs runs").stdout;
    let words = String::from_utf8_lossy(&told).into_owned();
    let blocks: Vec<u64> = words.split_whitespace().flat_map(str::parse).collect();
    let pieces = blocks.iter().flat_map(|block| {
        (0..block_bytes / 1024).map(move |piece| block * block_bytes + piece * 1024)
    });
    let mut places = pieces.flat_map(|at| (0..14).map(move |index| at + 16 + index * 72));
    let file = std::fs::File::options().read(true).write(true).open(image).expect("opens");
    let of_id = |at: &u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, *at).is_ok() && bytes == u64::from(id).to_le_bytes()
    };
    let at = places.find(of_id).expect("an entry");
    let of_inodes = [(0x08, limits.hard_inodes), (0x10, limits.soft_inodes)];
    let of_blocks = [(0x20, limits.hard_kib), (0x28, limits.soft_kib)];
    for (field, value) in of_inodes.into_iter().chain(of_blocks) {
        file.write_all_at(&value.to_le_bytes(), at + field).expect("written");
    }
}

fn number(image: &Path, at: u64) -> u32 {
    let mut bytes = [0; 4];
    let file = std::fs::File::open(image).expect("opens");
    file.read_exact_at(&mut bytes, at).expect("a superblock");
    u32::from_le_bytes(bytes)
}

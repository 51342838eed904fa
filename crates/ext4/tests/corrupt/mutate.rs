//! Damage: a few bytes of some structures, often sealed again so that the parsers behind the
//! checksums see it.

use polylane_base::rng::Rng;
use polylane_testkit::sim::Image;

use super::sites::{Kind, Site, Sites};

/// Values that are borders of something.
const BORDERS: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    11,
    12,
    16,
    31,
    32,
    64,
    127,
    128,
    255,
    256,
    340,
    341,
    512,
    1023,
    1024,
    4095,
    4096,
    4097,
    0x7fff,
    0x8000,
    0x8001,
    0xfffe,
    0xffff,
    0x1_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fff0,
    0xffff_ffff,
    0x7fff_ffff_ffff_ffff,
    u64::MAX,
];

/// Damages `image`; says how.
pub fn damage(image: &mut Image, sites: &Sites, rng: &mut Rng) -> String {
    let mut said = Vec::new();
    let sealed = rng.percent(60);
    for _ in 0..1 + rng.below(3) {
        let site = pick(sites, rng);
        let what = change(image, sites, site, rng);
        if sealed {
            sites.seal(image, site);
        }
        said.push(format!("{:?} at {:#x}: {what}", site.kind, site.at));
    }
    format!("{}{}", said.join("; "), if sealed { ", sealed" } else { "" })
}

/// A structure; each kind has the same chance, however many there are.
fn pick<'a>(sites: &'a Sites, rng: &mut Rng) -> &'a Site {
    let class = |site: &Site| std::mem::discriminant(&site.kind);
    let mut classes = Vec::new();
    for site in &sites.all {
        if !classes.contains(&class(site)) {
            classes.push(class(site));
        }
    }
    // Inodes and directories hold most of what there is to get wrong.
    let inodes = |site: &&Site| matches!(site.kind, Kind::Inode(_));
    let wanted = match rng.below(4) {
        0 => sites.all.iter().find(inodes).map(class).expect("there are inodes"),
        _ => *rng.pick(&classes),
    };
    let of_class: Vec<&Site> = sites.all.iter().filter(|site| class(site) == wanted).collect();
    of_class[rng.below(of_class.len() as u64) as usize]
}

/// Somewhere in the structure, more often where its fields are.
fn position(site: &Site, rng: &mut Rng) -> usize {
    let head = match site.kind {
        Kind::Superblock => 0x180,
        Kind::Inode(_) => 160,
        Kind::Index(..) => 72,
        Kind::Directory(_) | Kind::Extents(_) | Kind::Xattr => 128,
        Kind::JournalSuperblock | Kind::Journal => 96,
        _ => site.len,
    };
    let span = if rng.percent(85) { head.min(site.len) } else { site.len };
    rng.below(span as u64) as usize
}

fn change(image: &mut Image, sites: &Sites, site: &Site, rng: &mut Rng) -> String {
    let mut bytes = vec![0; site.len];
    image.read(site.at, &mut bytes);
    let at = position(site, rng);
    let said = match rng.below(10) {
        0 | 1 => {
            let bit = rng.below(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at:#x}")
        }
        2..=6 => field(&mut bytes, at, sites, rng),
        7 => {
            let (from, len) = (position(site, rng), 1 + rng.below(24) as usize);
            let len = len.min(site.len - at.max(from));
            bytes.copy_within(from..from + len, at);
            format!("{len} bytes from {from:#x} to {at:#x}")
        }
        8 => {
            let end = (at + 1 + rng.below(64) as usize).min(site.len);
            let byte = *rng.pick(&[0, 0xff, rng.clone().next_u64() as u8]);
            bytes[at..end].fill(byte);
            format!("{at:#x}..{end:#x} filled with {byte:#x}")
        }
        _ => {
            let other = rng.pick(&sites.all);
            let len = other.len.min(site.len);
            image.read(other.at, &mut bytes[..len]);
            format!("content of {:?}", other.kind)
        }
    };
    image.write(site.at, &bytes);
    said
}

/// A field of 1, 2, 4 or 8 bytes gets another value, near the old one or a border.
fn field(bytes: &mut [u8], at: usize, sites: &Sites, rng: &mut Rng) -> String {
    let width = *rng.pick(&[1, 2, 2, 4, 4, 4, 8]);
    let at = (at / width * width).min(bytes.len() - width);
    let mut old = [0; 8];
    old[..width].copy_from_slice(&bytes[at..at + width]);
    let old = u64::from_le_bytes(old);
    let geometry = sites.superblock.geometry;
    let value = match rng.below(8) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => rng.next_u64(),
        3 => geometry.block_count - 1 + rng.below(3),
        4 => u64::from(geometry.inode_count) + rng.below(2),
        _ => *rng.pick(BORDERS),
    };
    let is_big_endian = rng.percent(15);
    let mut new = value.to_le_bytes();
    if is_big_endian {
        new[..width].reverse();
    }
    bytes[at..at + width].copy_from_slice(&new[..width]);
    format!("{width} bytes at {at:#x} = {value:#x}, were {old:#x}")
}

//! Directory hashes: legacy, half MD4 and TEA, each over signed or unsigned characters
//! (Documentation/filesystems/ext4/directory.rst, "Hash Tree Directories").

/// A hash function of `dx_root`'s `hash_version`, characters' sign resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashVersion {
    kind: Kind,
    unsigned: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Legacy,
    HalfMd4,
    Tea,
}

/// A name's place in the tree: the major hash (bit 0 clear: it marks continued collisions) and the
/// minor one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NameHash {
    /// Sorts entries into blocks. Even, and below 0xfffffffe.
    pub major: u32,
    /// Orders entries of equal major hash.
    pub minor: u32,
}

impl HashVersion {
    /// The function named by the byte on disk. `unsigned` is the superblock's flag, which turns the
    /// signed versions 0..=2 into their unsigned forms 3..=5. `None` for unknown ones.
    pub fn new(version: u8, unsigned: bool) -> Option<HashVersion> {
        let kind = match version % 3 {
            0 => Kind::Legacy,
            1 => Kind::HalfMd4,
            _ => Kind::Tea,
        };
        (version <= 5).then_some(HashVersion { kind, unsigned: unsigned || version >= 3 })
    }

    /// The byte for `dx_root`: signedness comes from the superblock there.
    pub fn on_disk(self) -> u8 {
        match self.kind {
            Kind::Legacy => 0,
            Kind::HalfMd4 => 1,
            Kind::Tea => 2,
        }
    }

    /// Hashes `name` with the superblock's `seed` (all zeros: the default key).
    pub fn hash(self, name: &[u8], seed: [u32; 4]) -> NameHash {
        let default = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
        let key = if seed == [0; 4] { default } else { seed };
        let (major, minor) = match self.kind {
            Kind::Legacy => (self.legacy(name), 0),
            Kind::HalfMd4 => self.half_md4(name, key),
            Kind::Tea => self.tea(name, key),
        };
        // 0x7fffffff << 1 is the end-of-directory cookie and must not be a name's.
        let major = match major & !1 {
            0xffff_fffe => 0xffff_fffc,
            even => even,
        };
        NameHash { major, minor }
    }

    fn character(self, byte: u8) -> u32 {
        if self.unsigned { u32::from(byte) } else { byte as i8 as i32 as u32 }
    }

    fn legacy(self, name: &[u8]) -> u32 {
        let (mut hash, mut before) = (0x12a3_fe2du32, 0x37ab_e8f9u32);
        for byte in name {
            let mixed = self.character(*byte).wrapping_mul(7_152_373);
            let mut next = before.wrapping_add(hash ^ mixed);
            if next & 0x8000_0000 != 0 {
                next = next.wrapping_sub(0x7fff_ffff);
            }
            (before, hash) = (hash, next);
        }
        hash << 1
    }

    /// Up to `N` words of four characters each, padded with the length.
    fn words<const N: usize>(self, name: &[u8]) -> [u32; N] {
        let length = name.len() as u32;
        let pad = length | length << 8;
        let pad = pad | pad << 16;
        std::array::from_fn(|word| {
            let rest = name.get(word * 4..).unwrap_or(&[]);
            rest.iter()
                .take(4)
                .fold(pad, |value, byte| self.character(*byte).wrapping_add(value.wrapping_shl(8)))
        })
    }

    fn half_md4(self, name: &[u8], mut state: [u32; 4]) -> (u32, u32) {
        for chunk in chunks(name, 32) {
            half_md4_transform(&mut state, &self.words::<8>(chunk));
        }
        (state[1], state[2])
    }

    fn tea(self, name: &[u8], mut state: [u32; 4]) -> (u32, u32) {
        for chunk in chunks(name, 16) {
            tea_transform(&mut state, &self.words::<4>(chunk));
        }
        (state[0], state[1])
    }
}

/// What is left of the name at each step: the padding of a step depends on all that remains.
fn chunks(name: &[u8], step: usize) -> impl Iterator<Item = &[u8]> {
    (0..name.len()).step_by(step).map(|start| &name[start..])
}

fn half_md4_transform(state: &mut [u32; 4], input: &[u32; 8]) {
    const ORDER: [[usize; 8]; 3] =
        [[0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 5, 7, 0, 2, 4, 6], [3, 7, 2, 6, 1, 5, 0, 4]];
    const SHIFT: [[u32; 4]; 3] = [[3, 7, 11, 19], [3, 5, 9, 13], [3, 9, 11, 15]];
    const ADD: [u32; 3] = [0, 0x5a82_7999, 0x6ed9_eba1];
    let mix = |round: usize, x: u32, y: u32, z: u32| match round {
        0 => z ^ (x & (y ^ z)),
        1 => (x & y).wrapping_add((x ^ y) & z),
        _ => x ^ y ^ z,
    };
    let mut v = *state;
    for round in 0..3 {
        for step in 0..8 {
            // The four words take turns: a, d, c, b.
            let turn = (4 - step % 4) % 4;
            let [a, b, c, d] = std::array::from_fn(|offset| v[(turn + offset) % 4]);
            let word = input[ORDER[round][step]].wrapping_add(ADD[round]);
            let sum = a.wrapping_add(mix(round, b, c, d)).wrapping_add(word);
            v[turn] = sum.rotate_left(SHIFT[round][step % 4]);
        }
    }
    for (word, add) in state.iter_mut().zip(v) {
        *word = word.wrapping_add(add);
    }
}

fn tea_transform(state: &mut [u32; 4], input: &[u32; 4]) {
    let (mut x, mut y) = (state[0], state[1]);
    let [a, b, c, d] = *input;
    let half = |value: u32, k0: u32, k1: u32, sum: u32| {
        (value << 4).wrapping_add(k0) ^ value.wrapping_add(sum) ^ (value >> 5).wrapping_add(k1)
    };
    let mut sum = 0u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        x = x.wrapping_add(half(y, a, b, sum));
        y = y.wrapping_add(half(x, c, d, sum));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// debugfs hashes names for us: the oracle, where it is installed.
    fn debugfs(version: &str, name: &str) -> Option<NameHash> {
        let seed = "01020304-0506-0708-090a-0b0c0d0e0f10";
        let ask = format!("dx_hash -h {version} -s {seed} {name}");
        let said = Command::new("/sbin/debugfs").args(["-R", &ask]).output().ok()?;
        let said = String::from_utf8(said.stdout).ok()?;
        let (_, hash) = said.split_once(" is 0x")?;
        let (major, minor) = hash.trim().split_once(" (minor 0x")?;
        let hex = |text: &str| u32::from_str_radix(text.trim_end_matches(')'), 16).ok();
        Some(NameHash { major: hex(major)?, minor: hex(minor)? })
    }

    #[test]
    #[cfg_attr(miri, ignore = "runs debugfs")]
    fn hashes_agree_with_debugfs() {
        let seed = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d];
        let long = "a-name-of-more-than-thirty-two-characters-so-that-several-steps-are-made";
        let names = ["a", "ab", "abcd", "file0001", "ünïcödé", long, &long.repeat(3)];
        let versions = ["legacy", "half_md4", "tea"];
        for (number, version) in versions.iter().enumerate() {
            for name in names {
                let Some(expected) = debugfs(version, name) else {
                    eprintln!("skipped: debugfs is not installed");
                    return;
                };
                let hash = HashVersion::new(number as u8, false).expect("known");
                assert_eq!(hash.hash(name.as_bytes(), seed), expected, "{version} {name}");
            }
        }
    }

    #[test]
    fn unknown_versions_are_told() {
        assert_eq!(HashVersion::new(6, false), None);
        assert_eq!(HashVersion::new(4, false), HashVersion::new(1, true));
    }
}

//! Trees beside a model of their blocks and one of Linux's tree, in every order of changes.

use std::collections::{BTreeMap, BTreeSet};

use polylane_base::rng::Rng;
use polylane_base::{Ino, TestClock};
use polylane_testkit::fs_suite::node;
use polylane_testkit::sim::{SimDisk, SimOptions};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Fallocate, FileSystem, Kind, SetAttr};

use super::*;
use crate::format::extent::{ROOT_BYTES, capacity};
use crate::{Ext4, Options};

/// Linux's tree (fs/ext4/extents.c), by the first blocks of its extents alone.
#[derive(Default)]
struct Linux {
    keys: Vec<u32>,
    below: Vec<Linux>,
}

impl Linux {
    fn first(&self) -> u32 {
        self.below.first().map_or_else(|| self.keys[0], Linux::first)
    }

    /// The child that a search for `key` leads to.
    fn toward(&self, key: u32) -> usize {
        self.below.partition_point(|child| child.first() <= key).saturating_sub(1)
    }

    /// Nodes below this one.
    fn nodes(&self) -> usize {
        self.below.iter().map(|child| 1 + child.nodes()).sum()
    }

    fn leaf(&mut self, key: u32) -> &mut Linux {
        match self.below.is_empty() {
            true => self,
            false => {
                let at = self.toward(key);
                self.below[at].leaf(key)
            }
        }
    }

    /// `ext4_ext_next_leaf_block`: the first key of the leaf behind the one for `key`.
    fn next_leaf(&self, key: u32) -> Option<u32> {
        if self.below.is_empty() {
            return None;
        }
        let at = self.toward(key);
        let behind = || self.below.get(at + 1).map(Linux::first);
        self.below[at].next_leaf(key).or_else(behind)
    }

    /// `ext4_ext_insert_extent`, for the root.
    fn insert(&mut self, key: u32, fits: usize) {
        loop {
            let most = if self.below.is_empty() { capacity(ROOT_BYTES) } else { fits };
            let leaf = self.leaf(key);
            let at = leaf.keys.partition_point(|have| *have < key);
            if leaf.keys.get(at) == Some(&key) {
                return;
            }
            let is_behind = at == leaf.keys.len();
            if leaf.keys.len() < most {
                return leaf.keys.insert(at, key);
            }
            if is_behind
                && let Some(next) = self.next_leaf(key)
                && self.leaf(next).keys.len() < fits
            {
                return self.leaf(next).keys.insert(0, key);
            }
            if !self.make_room(key, capacity(ROOT_BYTES), fits) {
                let whole = std::mem::take(self);
                self.below.push(whole);
            }
        }
    }

    /// `ext4_ext_split` at the lowest node on the way that has room for an index. False: none has.
    fn make_room(&mut self, key: u32, most: usize, fits: usize) -> bool {
        let at = self.toward(key);
        let Some(child) = self.below.get_mut(at) else { return false };
        if child.make_room(key, fits, fits) {
            return true;
        }
        if self.below.len() == most {
            return false;
        }
        let right = self.below[at].cut(key);
        self.below.insert(at + 1, right);
        true
    }

    /// What lies behind the way to `key`, in nodes of its own; where nothing does, `key` itself.
    fn cut(&mut self, key: u32) -> Linux {
        if self.below.is_empty() {
            let at = self.keys.partition_point(|have| *have < key).max(1);
            let mut keys = self.keys.split_off(at);
            if keys.is_empty() {
                keys.push(key);
            }
            return Linux { keys, below: Vec::new() };
        }
        let at = self.toward(key);
        let mut below = vec![self.below[at].cut(key)];
        below.extend(self.below.split_off(at + 1));
        Linux { keys: Vec::new(), below }
    }

    /// `ext4_ext_rm_leaf` and `ext4_ext_rm_idx`: what is empty goes.
    fn remove(&mut self, key: u32) {
        if self.below.is_empty() {
            return self.keys.retain(|have| *have != key);
        }
        let at = self.toward(key);
        self.below[at].remove(key);
        if self.below[at].keys.is_empty() && self.below[at].below.is_empty() {
            self.below.remove(at);
        }
    }

    /// `ext4_ext_shift_extents`: the keys change, the nodes stay.
    fn shift(&mut self, from: u32, by: i32) {
        self.keys.iter_mut().filter(|key| **key >= from).for_each(|key| {
            *key = key.wrapping_add_signed(by);
        });
        self.below.iter_mut().for_each(|child| child.shift(from, by));
    }
}

/// A file, with what its tree must hold.
struct Bench {
    fs: Ext4,
    ino: Ino,
    /// Each block that the file has: whether it was written.
    model: BTreeMap<u32, bool>,
    linux: Linux,
    keys: BTreeSet<u32>,
    /// Nodes when the tree was last looked at.
    nodes: u64,
}

/// `None`, and said so, without mke2fs.
fn bench(mib: u64, block_bytes: usize) -> Option<Bench> {
    let image = crate::fresh::image(mib << 20, &["-b", &block_bytes.to_string()])?;
    let disk = SimDisk::new(image, SimOptions::default());
    let fs = Ext4::open(disk, Arc::new(TestClock::default()), &Options::default()).expect("opens");
    let root = fs.root().expect("root").ino;
    let ino = fs
        .create(&OpCtx::service(), root, b"file", &node(Kind::File, 0o600))
        .expect("room")
        .node
        .ino;
    let (model, keys, linux) = (BTreeMap::new(), BTreeSet::new(), Linux::default());
    Some(Bench { fs, ino, model, linux, keys, nodes: 0 })
}

impl Bench {
    fn block_bytes(&self) -> u64 {
        self.fs.volume.io.block_bytes() as u64
    }

    fn fits(&self) -> usize {
        capacity(self.block_bytes() as usize)
    }

    fn write(&mut self, block: u32) {
        let at = u64::from(block) * self.block_bytes();
        self.fs.write(&OpCtx::service(), self.ino, at, &mut &[block as u8; 20][..]).expect("room");
        self.model.insert(block, true);
        self.check_changed();
    }

    /// Looks at the tree when it has more nodes or fewer than before: what a change of its shape
    /// leaves is seen before the next change can hide it.
    fn check_changed(&mut self) {
        let of_file = self.fs.getattr(&OpCtx::service(), self.ino).expect("a state").blocks * 512
            / self.block_bytes();
        if of_file - self.model.len() as u64 != self.nodes {
            self.check();
        }
    }

    fn fallocate(&mut self, mode: Fallocate, block: u32, count: u32) {
        let (at, bytes) = (u64::from(block), self.block_bytes());
        let len = u64::from(count) * bytes;
        self.fs.fallocate(&OpCtx::service(), self.ino, mode, at * bytes, len).expect("room");
        match mode {
            Fallocate::Allocate { .. } => {
                for at in block..block + count {
                    self.model.entry(at).or_insert(false);
                }
            }
            Fallocate::PunchHole => self.model.retain(|at, _| !(block..block + count).contains(at)),
            Fallocate::CollapseRange => {
                self.model.retain(|at, _| !(block..block + count).contains(at));
                self.shift(block, -(count as i32));
            }
            Fallocate::InsertRange => self.shift(block, count as i32),
            Fallocate::ZeroRange { .. } => unreachable!("not used here"),
        }
        self.check_changed();
    }

    /// What is known of blocks from `from` on is known of others.
    fn shift(&mut self, from: u32, by: i32) {
        let moved = |at: u32| if at < from { at } else { at.saturating_add_signed(by) };
        self.model = self.model.iter().map(|(at, kind)| (moved(*at), *kind)).collect();
        let gone = |at: &u32| by < 0 && (from..from + by.unsigned_abs()).contains(at);
        self.keys.iter().filter(|key| gone(key)).for_each(|key| self.linux.remove(*key));
        self.keys = self.keys.iter().filter(|key| !gone(key)).map(|key| moved(*key)).collect();
        self.linux.shift(from, by);
    }

    fn truncate(&mut self, blocks: u32) {
        let size = Some(u64::from(blocks) * self.block_bytes());
        self.fs
            .setattr(&OpCtx::service(), self.ino, &SetAttr { size, ..SetAttr::default() })
            .expect("cut");
        self.model.retain(|at, _| *at < blocks);
    }

    /// Looks at every node, and lets the model of Linux's tree do what changed. Returns how many
    /// nodes there are below the root.
    fn check(&mut self) -> usize {
        let fits = self.fits();
        let cell = self.fs.volume.cell(self.ino.0 as u32).expect("read");
        let core = cell.core.read();
        let root = Node::decode(core.raw.block(), None, u64::MAX).expect("a root");
        if let Entries::Inner(indexes) = &root.entries
            && let [only] = indexes[..]
        {
            let (_, child) = load(&self.fs.volume, &cell, only, root.depth - 1).expect("a node");
            assert!(child.len() > capacity(ROOT_BYTES), "a child that the root can hold");
        }
        let mut found = Found { fits, nodes: 0, extents: Vec::new() };
        found.descend(&self.fs.volume, &cell, &root, true);
        let Found { nodes, extents, .. } = found;
        let each = |extent: &Extent| (extent.first.0..extent.end() as u32, !extent.unwritten);
        let blocks = extents.iter().map(each).flat_map(|(at, kind)| at.map(move |at| (at, kind)));
        assert!(blocks.eq(self.model.iter().map(|(at, kind)| (*at, *kind))), "blocks differ");
        let of_file = nodes as u64 + self.model.len() as u64;
        assert_eq!(core.raw.sectors(self.block_bytes() as u32) * 512 / self.block_bytes(), of_file);
        let keys: BTreeSet<u32> = extents.iter().map(|extent| extent.first.0).collect();
        self.keys.difference(&keys).for_each(|key| self.linux.remove(*key));
        for key in keys.difference(&self.keys) {
            self.linux.insert(*key, fits);
        }
        self.keys = keys;
        self.nodes = nodes as u64;
        nodes
    }

    /// The same, and that there are not many more nodes than Linux would have.
    fn compare(&mut self, what: &str) {
        let (ours, theirs) = (self.check(), self.linux.nodes());
        assert!(ours * 10 <= theirs * 13 + 20, "{what}: {ours} nodes, Linux has {theirs}");
    }
}

struct Found {
    fits: usize,
    nodes: usize,
    extents: Vec<Extent>,
}

impl Found {
    /// Goes through a node, which was decoded: order and ranges are right. `is_last`: it is on the
    /// way to the last block.
    fn descend(&mut self, volume: &Volume, cell: &Cell, node: &Node, is_last: bool) {
        let indexes = match &node.entries {
            Entries::Leaf(extents) => return self.extents.extend(extents),
            Entries::Inner(indexes) => indexes,
        };
        assert!(!indexes.is_empty(), "an inner node without children");
        for (at, index) in indexes.iter().enumerate() {
            let (_, child) = load(volume, cell, *index, node.depth - 1).expect("a node");
            let first = match &child.entries {
                Entries::Leaf(extents) => extents[0].first,
                Entries::Inner(below) => below[0].first,
            };
            assert_eq!(index.first, first, "a key that is not the first below it");
            let is_last = is_last && at + 1 == indexes.len();
            assert!(is_last || child.len() >= self.fits / 2, "{} entries", child.len());
            self.nodes += 1;
            self.descend(volume, cell, &child, is_last);
        }
    }
}

/// In which order blocks 0, 2, 4 … come.
#[derive(Clone, Copy, Debug)]
enum Order {
    Ascending,
    Descending,
    Random,
    /// Every 37th, and so on.
    Strided,
    /// Seven writers, each in its own part.
    Interleaved,
    /// From both ends.
    Inwards,
}

const ORDERS: [Order; 6] = [
    Order::Ascending,
    Order::Descending,
    Order::Random,
    Order::Strided,
    Order::Interleaved,
    Order::Inwards,
];

impl Order {
    fn of(self, count: u32, rng: &mut Rng) -> Vec<u32> {
        let mut blocks: Vec<u32> = (0..count).map(|nth| 2 * nth).collect();
        match self {
            Order::Ascending => {}
            Order::Descending => blocks.reverse(),
            Order::Random => {
                for at in (1..blocks.len()).rev() {
                    blocks.swap(at, rng.below(at as u64 + 1) as usize);
                }
            }
            Order::Strided => blocks.sort_by_key(|block| (block / 2 % 37, *block)),
            Order::Interleaved => {
                let part = 2 * count.div_ceil(7);
                blocks.sort_by_key(|block| (block % part, *block));
            }
            Order::Inwards => blocks.sort_by_key(|block| (*block).min(2 * count - block)),
        }
        blocks
    }
}

/// Filled, thinned out, filled again, moved about, cut short: after each the tree is balanced, and
/// not much larger than Linux's.
#[test]
fn trees_stay_balanced_in_every_order() {
    for (block_bytes, order) in
        [1024, 2048, 4096].into_iter().flat_map(|bytes| ORDERS.map(|order| (bytes, order)))
    {
        let Some(mut bench) = bench(48, block_bytes) else { return };
        let count = if cfg!(miri) { 100 } else { 3000 };
        let mut rng = Rng::new(block_bytes as u64);
        let what = |part: &str| format!("{block_bytes} bytes, {order:?}: {part}");
        let blocks = order.of(count, &mut rng);
        for (nth, block) in blocks.iter().enumerate() {
            bench.write(*block);
            if nth % 64 == 0 {
                bench.compare(&what("filling"));
            }
        }
        bench.compare(&what("filled"));
        for (nth, block) in blocks.iter().enumerate().filter(|(nth, _)| nth % 3 != 0) {
            bench.fallocate(Fallocate::PunchHole, *block, 1);
            if nth % 64 == 1 {
                bench.compare(&what("punching"));
            }
        }
        bench.compare(&what("punched"));
        blocks.iter().filter(|block| *block % 8 != 0).for_each(|block| bench.write(*block));
        bench.compare(&what("filled again"));
        for _ in 0..4 {
            let (at, by) = (rng.below(count.into()) as u32, 2 * (1 + rng.below(200) as u32));
            bench.fallocate(Fallocate::InsertRange, at, by);
            bench.compare(&what("inserted"));
            let at = rng.below(count.into()) as u32;
            bench.fallocate(Fallocate::CollapseRange, at, by);
            bench.compare(&what("collapsed"));
        }
        while let Some((last, _)) = bench.model.last_key_value() {
            let size = last.saturating_sub(rng.below(600) as u32);
            bench.truncate(size);
            bench.compare(&what("cut"));
        }
        assert_eq!(bench.check(), 0);
        assert_eq!(bench.fs.stopped_by(), None);
        bench.fs.close().expect("closes");
    }
}

/// Everything at random, extents of many lengths among it.
#[test]
fn random_changes_keep_trees_balanced() {
    for seed in 0..6u64 {
        let block_bytes = [1024, 2048, 4096][seed as usize % 3];
        let Some(mut bench) = bench(48, block_bytes) else { return };
        let mut rng = Rng::new(seed);
        for nth in 0..if cfg!(miri) { 50 } else { 4000 } {
            let end = bench.model.last_key_value().map_or(0, |(last, _)| last + 1);
            let at = rng.below(6000) as u32;
            let below = rng.below(u64::from(end.max(2)) - 1) as u32;
            match rng.below(100) {
                0..=59 => bench.write(at),
                60..=79 => {
                    let mode = Fallocate::Allocate { keep_size: false };
                    bench.fallocate(mode, at, 1 + rng.below(6) as u32);
                }
                80..=95 => bench.fallocate(Fallocate::PunchHole, below, 1 + rng.below(9) as u32),
                96 => bench.fallocate(Fallocate::PunchHole, below, 1 + rng.below(900) as u32),
                97 if below > 0 => bench.fallocate(Fallocate::InsertRange, below, 1),
                98 if below + 2 < end => bench.fallocate(Fallocate::CollapseRange, below, 1),
                99 if nth % 8 == 0 => bench.truncate(below),
                _ => {}
            }
            if nth % 32 == 0 {
                bench.check();
            }
        }
        bench.check();
        bench.truncate(0);
        assert_eq!(bench.check(), 0);
        assert_eq!(bench.fs.stopped_by(), None);
        bench.fs.close().expect("closes");
    }
}

/// What is written piece by piece is one extent wherever it lies side by side on the device, and
/// the last gap that is filled joins both sides.
#[test]
fn neighbours_on_the_device_are_one_extent() {
    let Some(mut bench) = bench(48, 4096) else { return };
    (0..50).for_each(|block| bench.write(block));
    bench.check();
    assert_eq!(bench.keys.len(), 1, "{:?}", bench.keys);
    let mode = Fallocate::Allocate { keep_size: false };
    bench.fallocate(mode, 50, 30);
    bench.check();
    assert_eq!(bench.keys.len(), 2, "written, and not");
    (50..80).rev().for_each(|block| bench.write(block));
    bench.check();
    assert_eq!(bench.keys.len(), 1, "{:?}", bench.keys);
    bench.fs.close().expect("closes");
}

/// So many extents that the tree is three levels deep.
#[test]
fn a_deep_tree_is_no_deeper_than_it_must_be() {
    let Some(mut bench) = bench(96, 1024) else { return };
    let count = if cfg!(miri) { 100 } else { 30_000 };
    for block in Order::Random.of(count, &mut Rng::new(3)) {
        bench.write(block);
    }
    bench.compare("random");
    let cell = bench.fs.volume.cell(bench.ino.0 as u32).expect("read");
    assert_eq!(depth(cell.core.read().raw.block()), 3);
    assert_eq!(bench.fs.stopped_by(), None);
    bench.fs.close().expect("closes");
}

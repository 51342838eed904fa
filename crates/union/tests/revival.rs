//! A union whose service is killed: the next one knows the inodes that the VFS held, whatever was
//! copied up, renamed or removed before. Random changes over an ext4 upper, with and without a sync
//! before the kill.
//!
//! `POLYLANE_SEED` runs that seed alone.

mod common;

use common::{Fs, Tree, memfs, pattern};
use polylane_base::rng::Rng;
use polylane_base::{Clock as _, Errno, Ino, Result, TestClock};
use polylane_ext4::{Ext4, Options};
use polylane_testkit::sim::{Image, SimDisk, SimOptions};
use polylane_union::{Layer, Union, UpperOn};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{Attr, FileSystem, Kind, NewNode, SetAttr};
use polylane_vfs::handover::Store;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;

const SEEDS: std::ops::Range<u64> = 1..7;
const ROUNDS: usize = 6;
const STEPS: usize = 60;

/// An empty image.
fn formatted() -> Option<Image> {
    let image = tempfile::NamedTempFile::new().expect("a file");
    image.as_file().set_len(16 << 20).expect("sparse");
    let args = ["-Fq", "-t", "ext4", "-b", "4096", "-E", "lazy_itable_init=0"];
    let Ok(made) = Command::new("mke2fs").args(args).arg(image.path()).output() else {
        eprintln!("skipped: mke2fs is not installed");
        return None;
    };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(Image::new(std::fs::read(image.path()).expect("readable")))
}

fn lowers() -> Vec<Fs> {
    let (high, low) = (memfs(), memfs());
    let (h, l) = (Tree(&*high), Tree(&*low));
    for (tree, seed) in [(&h, 1), (&l, 2)] {
        for dir in ["a", "a/b", "a/b/c", "d"] {
            tree.mkdir(dir);
            tree.file(&format!("{dir}/f{seed}"), &pattern(9000, seed));
            tree.file(&format!("{dir}/both"), &pattern(200_000, seed));
        }
        tree.link("a/b/both", &format!("d/link{seed}"));
    }
    l.mkdir("a/low");
    l.file("a/low/deep", b"deep");
    let name = "n".repeat(200);
    l.mkdir(&name);
    l.mkdir(&format!("{name}/{name}"));
    l.file(&format!("{name}/{name}/far"), b"far");
    vec![high, low]
}

struct Service {
    disk: Arc<SimDisk>,
    store: Arc<Store>,
    union: Arc<Union>,
}

impl Service {
    fn start(fd: &OwnedFd, lowers: &[Fs], image: Image) -> Service {
        let disk = SimDisk::new(image, SimOptions::default());
        let options = Options { keep_nameless: true, ..Options::default() };
        // Each service begins later: generations tell its inodes from those of others.
        let clock = Arc::new(TestClock::default());
        let services = Store::attach(fd).expect("attach").0.next_node();
        (0..1000 * services).for_each(|_| assert!(clock.now().sec > 0));
        let upper = Arc::new(Ext4::open(disk.clone(), clock, &options).expect("opens"));
        let (store, records) = Store::attach(fd).expect("attach");
        let store = Arc::new(store);
        let layers = lowers.iter().map(|fs| Layer::new(fs.clone()).expect("a root")).collect();
        let upper = Some(UpperOn::new(upper));
        let union = Union::handed_over(layers, Vec::new(), upper, store.clone(), &records);
        Service { disk, store, union: Arc::new(union.expect("opens")) }
    }

    /// What is on the disk when it is killed.
    fn kill(self) -> Image {
        self.store.leave();
        // Before anything is let go of.
        self.disk.image()
    }
}

/// What the VFS would hold: a number, and what is seen of it.
type Held = BTreeMap<Ino, u64>;

/// The changes of one seed.
struct Changes<'a> {
    rng: Rng,
    union: &'a Union,
    held: &'a mut Held,
    next: &'a mut u32,
}

impl Changes<'_> {
    /// Any path, with what is there.
    fn any(&mut self) -> (String, Attr) {
        let tree = Tree(self.union);
        let paths: Vec<String> = tree.whole().into_keys().collect();
        let path = paths[self.rng.below(paths.len() as u64) as usize].clone();
        let attr = tree.find(&path).expect("listed");
        (path, attr)
    }

    fn dir(&mut self) -> String {
        loop {
            let (path, attr) = self.any();
            if attr.kind == Kind::Dir {
                return path;
            }
        }
    }

    fn hold(&mut self, attr: Attr) {
        self.held.insert(attr.ino, attr.generation);
    }

    fn fresh(&mut self) -> String {
        *self.next += 1;
        format!("{}/n{}", self.dir(), self.next)
    }

    fn step(&mut self) {
        let ctx = &OpCtx::service();
        let tree = Tree(self.union);
        let (path, attr) = self.any();
        let is_file = attr.kind == Kind::File;
        match self.rng.below(11) {
            0..=2 => self.hold(attr),
            3 if is_file => {
                let (at, len) = (self.rng.below(210_000), 1 + self.rng.below(9000) as usize);
                tree.write(attr.ino, at, &pattern(len, self.rng.below(250) as u8));
            }
            4 => tree.chmod(attr.ino, 0o700 | self.rng.below(0o100) as u32),
            5 if is_file => {
                let size = Some(self.rng.below(220_000));
                let set = SetAttr { size, ..SetAttr::default() };
                self.union.setattr(ctx, attr.ino, &set).expect("truncates");
            }
            6 => {
                let fresh = self.fresh();
                if !fresh.starts_with(&format!("{path}/")) {
                    tree.rename(&path, &fresh).expect("renames");
                }
            }
            7 if is_file => {
                let fresh = self.fresh();
                tree.link(&path, &fresh);
            }
            8 if is_file => {
                self.hold(attr);
                tree.unlink(&path);
            }
            9 => {
                let fresh = self.fresh();
                match self.rng.below(2) {
                    0 => tree.mkdir(&fresh),
                    _ => tree.file(&fresh, &pattern(5000, 9)),
                };
                let made = tree.find(&fresh).expect("made");
                self.hold(made);
            }
            10 => {
                let new = NewNode::new(Kind::File, 0o600);
                let root = self.union.root().expect("a root").ino;
                let made = self.union.create_unlinked(ctx, root, &new).expect("made");
                tree.write(made.ino, 0, b"nameless");
                self.hold(made);
            }
            _ => {}
        }
    }
}

/// What a held inode is: `None`, of a directory without a name.
type Seen = Option<(Kind, u32, u32, u64, Vec<u8>)>;

fn seen(union: &Union, ino: Ino) -> Result<Seen> {
    let attr = union.getattr(&OpCtx::service(), ino)?;
    if attr.kind == Kind::Dir {
        return Ok((attr.nlink > 0).then_some((attr.kind, attr.perm, 0, 0, Vec::new())));
    }
    Ok(Some((attr.kind, attr.perm, attr.nlink, attr.size, Tree(union).read(ino))))
}

/// What the next service is to show.
type Expected =
    (BTreeMap<Ino, Seen>, BTreeMap<String, Ino>, BTreeMap<String, (Kind, u32, Vec<u8>)>);

/// Paths with the numbers of what is there.
fn numbers(union: &Union, held: &Held) -> BTreeMap<String, Ino> {
    let tree = Tree(union);
    let all = tree.whole().into_keys().map(|path| (tree.ino(&path), path));
    all.filter(|(ino, _)| held.contains_key(ino)).map(|(ino, path)| (path, ino)).collect()
}

fn run(seed: u64, is_synced: bool) {
    let Some(mut image) = formatted() else { return };
    let (lowers, fd) = (lowers(), Store::create().expect("memfd"));
    let (mut held, mut next) = (Held::new(), 0);
    let mut expected: Option<Expected> = None;
    let mut revived = 0;
    for round in 0..ROUNDS {
        let what = format!("seed {seed}, round {round}, synced {is_synced}");
        let service = Service::start(&fd, &lowers, image);
        let union = &*service.union;
        let tree = Tree(union);
        let mut lost = Vec::new();
        for (&ino, &generation) in &held {
            match union.revive(ino, Some(generation)) {
                Ok(found) => {
                    assert_eq!((found.attr.ino, found.attr.generation), (ino, generation));
                    assert_eq!(found.dir.is_some(), found.attr.kind == Kind::Dir, "{what}: {ino}");
                    revived += 1;
                }
                Err(errno) => {
                    assert!(errno == Errno::ESTALE, "{what}: {ino}: {errno}");
                    lost.push(ino);
                }
            }
        }
        union.end_revival();
        if let Some((states, paths, whole)) = expected.take() {
            for (ino, state) in states {
                match state {
                    Some(state) => {
                        let now = seen(union, ino);
                        let brief = |s: &(Kind, u32, u32, u64, Vec<u8>)| (s.0, s.1, s.2, s.3);
                        let was = brief(&state);
                        let is = now.as_ref().map(|now| now.as_ref().map(brief));
                        assert!(now == Ok(Some(state)), "{what}: {ino}: {was:?}, now {is:?}");
                    }
                    None => assert!(lost.contains(&ino), "{what}: {ino} has no name"),
                }
            }
            assert!(numbers(union, &held) == paths, "{what}");
            assert!(tree.whole() == whole, "{what}");
        }
        held.retain(|ino, _| !lost.contains(ino));
        // What is written by number is read by name.
        for (path, ino) in numbers(union, &held) {
            if tree.find(&path).expect("listed").kind == Kind::File {
                tree.write(ino, 100, path.as_bytes());
                let bytes = tree.read(tree.ino(&path));
                assert_eq!(&bytes[100..100 + path.len()], path.as_bytes(), "{what}: {path}");
            }
        }
        let rng = Rng::new(seed << 8 | round as u64);
        let mut changes = Changes { rng, union, held: &mut held, next: &mut next };
        for step in 0..STEPS {
            changes.step();
            if step == STEPS / 2 {
                union.sync(&OpCtx::service()).expect("syncs");
            }
        }
        if is_synced {
            union.sync(&OpCtx::service()).expect("syncs");
            let states = held.keys().map(|&ino| (ino, seen(union, ino).expect("held"))).collect();
            expected = Some((states, numbers(union, &held), tree.whole()));
        }
        image = service.kill();
    }
    assert!(revived > 20, "seed {seed}: {revived} only");
}

fn seeds() -> Vec<u64> {
    let one = std::env::var("POLYLANE_SEED").ok().and_then(|seed| seed.parse().ok());
    one.map_or(SEEDS.collect(), |seed| vec![seed])
}

#[test]
fn inodes_are_known_to_the_next_service() {
    seeds().into_iter().for_each(|seed| run(seed, true));
}

#[test]
fn what_was_not_synced_is_gone_and_nothing_else() {
    seeds().into_iter().for_each(|seed| run(seed, false));
}

/// Names that come twice after a replacement are no names that are missing.
#[test]
fn a_stream_leaves_no_name_out() {
    let Some(image) = formatted() else { return };
    let (lowers, fd) = (lowers(), Store::create().expect("memfd"));
    let service = Service::start(&fd, &lowers, image);
    let (union, ctx) = (&service.union, &OpCtx::service());
    let tree = Tree(&**union);
    for number in 0..300 {
        tree.file(&format!("d/own{number}"), b"");
    }
    let all = tree.names("d");
    let dir = tree.find("d").expect("there");
    let mut names = Vec::new();
    let mut from = 0;
    union
        .readdir(ctx, dir.ino, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            from = entry.next;
            names.len() < 150
        })
        .expect("lists");
    union.sync(ctx).expect("syncs");
    let image = service.kill();
    let service = Service::start(&fd, &lowers, image);
    let union = &service.union;
    union.revive(dir.ino, Some(dir.generation)).expect("is there");
    union
        .readdir(ctx, dir.ino, from, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .expect("goes on");
    names.sort();
    names.dedup();
    assert_eq!(names, all);
}

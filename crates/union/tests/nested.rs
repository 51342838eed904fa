//! Unions as layers of unions, and layers that never change. `POLYLANE_SEED` runs that seed alone.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Fs, Tree, memfs, union};
use polylane_base::rng::Rng;
use polylane_base::{Errno, Ino};
use polylane_testkit::fault::{Call, Faulty};
use polylane_union::{Absent, Layer, Union, UpperOn};
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, XattrMode};

const SEEDS: std::ops::Range<u64> = 1..41;

fn seeds() -> Vec<u64> {
    let one = std::env::var("POLYLANE_SEED").ok();
    one.map_or_else(|| SEEDS.collect(), |seed| vec![seed.parse().expect("a number")])
}

/// A layer that is a union of these, the uppermost first.
fn nested(lowers: &[Arc<Layer>], absent: Option<&Arc<Absent>>) -> Arc<Layer> {
    let union = Arc::new(Union::open(lowers.to_vec(), None).expect("opens"));
    Layer::of_union(union.clone(), &union, absent).expect("a root")
}

fn plain(fs: &Fs) -> Arc<Layer> {
    Layer::new(fs.clone()).expect("a root")
}

fn over(lowers: &[Arc<Layer>], upper: &Fs) -> Arc<Union> {
    let upper = Some(UpperOn::new(upper.clone()));
    Arc::new(Union::open(lowers.to_vec(), upper).expect("opens"))
}

/// The directory and the last name of a path, if the directory is one.
fn parent<'p>(tree: &Tree<'_>, path: &'p str) -> Option<(Ino, &'p [u8])> {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = tree.find(dir).ok().filter(|attr| attr.kind == Kind::Dir)?;
    Some((dir.ino, name.as_bytes()))
}

fn a_path(rng: &mut Rng) -> String {
    let depth = 1 + rng.below(3);
    let names: Vec<String> = (0..depth).map(|_| format!("{}", rng.below(4))).collect();
    names.join("/")
}

/// A layer with whatever a layer may have: files, directories, opaque ones, whiteouts.
fn fill(rng: &mut Rng, fs: &Fs) {
    let tree = Tree(&**fs);
    for _ in 0..rng.below(24) {
        let path = a_path(rng);
        if parent(&tree, &path).is_none() || tree.find(&path).is_ok() {
            continue;
        }
        match rng.below(5) {
            0 => tree.device(&path),
            1 | 2 => {
                let dir = tree.mkdir(&path);
                // In a union under this one, such a mark is that union's.
                for name in ["trusted.overlay.opaque", "trusted.overlay.overlay.opaque"] {
                    if rng.below(4) == 0 {
                        let set = fs.setxattr(
                            &OpCtx::service(),
                            dir,
                            name.as_bytes(),
                            b"y",
                            XattrMode::Any,
                        );
                        set.expect("kept");
                    }
                }
            }
            _ => {
                let size = rng.below(200_000) as usize;
                tree.file(&path, &common::pattern(size, rng.below(200) as u8));
            }
        }
    }
}

/// What `from` shows, in a file system of its own; attributes that are marks of a union over it,
/// too.
fn copied(from: &dyn FileSystem) -> Fs {
    let to = memfs();
    let tree = Tree(&*to);
    let shown = Tree(from);
    for (path, (kind, perm, bytes)) in shown.whole() {
        let ino = match kind {
            Kind::Dir => tree.mkdir(&path),
            Kind::File => tree.file(&path, &bytes),
            other => panic!("{path}: {other:?}"),
        };
        tree.chmod(ino, perm);
        let mark = b"trusted.overlay.opaque";
        match from.getxattr(&OpCtx::service(), shown.ino(&path), mark) {
            Ok(value) => {
                to.setxattr(&OpCtx::service(), ino, mark, &value, XattrMode::Any).expect("kept");
            }
            Err(errno) => assert_eq!(errno, Errno::ENODATA, "{path}"),
        }
    }
    to
}

/// One change by a path, or its refusal.
fn change(rng: &mut Rng, all: &[&Arc<Union>]) {
    let (what, path, other) = (rng.below(6), a_path(rng), a_path(rng));
    let (at, byte) = (rng.below(200_000), rng.below(256) as u8);
    let outcomes = all.iter().map(|fs| {
        let tree = Tree(&***fs);
        let Some((dir, name)) = parent(&tree, &path) else { return Err(Errno::ENOTDIR) };
        let found = tree.find(&path);
        match (what, found) {
            (0, Ok(attr)) if attr.kind == Kind::File => {
                tree.write(attr.ino, at, &[byte; 5000]);
                Ok(())
            }
            (1, Ok(attr)) if attr.kind == Kind::File => {
                tree.truncate(attr.ino, at);
                Ok(())
            }
            (2, Ok(attr)) if attr.kind == Kind::File => {
                fs.unlink(&OpCtx::service(), dir, name).map(drop)
            }
            (3, Ok(_)) => tree.rmdir(&path),
            (4, Ok(_)) if parent(&tree, &other).is_some() => tree.rename(&path, &other),
            (5, Err(_)) => {
                tree.mkdir(&path);
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    });
    let outcomes: Vec<_> = outcomes.collect();
    assert!(outcomes.iter().all(|one| *one == outcomes[0]), "{what} {path} {other}: {outcomes:?}");
}

/// A union over a union is what one over a copy of the inner one's tree is, whatever the layers
/// are, and stays so under changes; the numbers stay, too, when it is opened again.
#[test]
fn a_union_in_a_union_is_as_a_copy_of_its_tree() {
    for seed in seeds() {
        let rng = &mut Rng::new(seed);
        let layers: Vec<Fs> = (0..5).map(|_| memfs()).collect();
        layers.iter().for_each(|fs| fill(rng, fs));
        let [a, b, c, d, e] = &layers[..] else { unreachable!() };
        let innermost = || nested(&[plain(c), plain(d)], None);
        let absent = Absent::new(1 << 16);
        let inner = || nested(&[plain(b), innermost()], Some(&absent));
        let copy = copied(&Union::open(vec![plain(b), innermost()], None).expect("opens"));
        let (upper, other) = (memfs(), memfs());
        let mut numbers = BTreeMap::new();
        for round in 0..3 {
            let ours = over(&[plain(a), inner(), plain(e)], &upper);
            let reference = over(&[plain(a), plain(&copy), plain(e)], &other);
            let (u, r) = (Tree(&*ours), Tree(&*reference));
            let whole = u.whole();
            assert_eq!(whole, r.whole(), "seed {seed}, opened {round} times");
            let now: BTreeMap<_, _> =
                whole.keys().map(|path| (path.clone(), u.ino(path))).collect();
            assert!(round == 0 || now == numbers, "seed {seed}: {now:?} {numbers:?}");
            let apart: std::collections::BTreeSet<_> = now.values().collect();
            assert_eq!(apart.len(), now.len(), "seed {seed}: {now:?}");
            for _ in 0..60 {
                change(rng, &[&ours, &reference]);
            }
            let whole = u.whole();
            assert_eq!(whole, r.whole(), "seed {seed}, round {round}");
            numbers = whole.keys().map(|path| (path.clone(), u.ino(path))).collect();
        }
    }
}

/// A file of several names in the inner union stays one when it is copied up, also in a union that
/// is opened later: it is found by its number.
#[test]
fn names_of_one_file_of_an_inner_union_stay_one() {
    let (low, high, upper) = (memfs(), memfs(), memfs());
    let l = Tree(&*low);
    l.mkdir("d");
    l.file("d/a", b"old");
    l.link("d/a", "d/b");
    let open = || {
        let inner = nested(&[plain(&high), plain(&low)], None);
        over(&[plain(&high), inner], &upper)
    };
    let fs = open();
    let u = Tree(&*fs);
    u.write(u.ino("d/a"), 0, b"new");
    assert_eq!((u.read(u.ino("d/b")), u.ino("d/a")), (b"new".to_vec(), u.ino("d/b")));
    let number = u.ino("d/a");
    let fs = open();
    let u = Tree(&*fs);
    assert_eq!((u.read(u.ino("d/b")), u.ino("d/b")), (b"new".to_vec(), number));
}

/// Names that layers do not have are asked of each once, where it never changes; and of each time
/// where it may change.
#[test]
fn a_layer_that_never_changes_is_asked_once_for_a_name() {
    let layers: Vec<Arc<Faulty>> = (0..4).map(|_| Faulty::new(memfs())).collect();
    let low = Tree(&*layers[3]);
    low.mkdir("d");
    low.file("d/here", b"low");
    for layer in &layers[..3] {
        Tree(&**layer).mkdir("d");
    }
    let absent = Absent::new(1 << 16);
    let fixed = |at: usize| Layer::fixed(layers[at].clone(), &absent).expect("a root");
    let loose = Layer::new(layers[1].clone()).expect("a root");
    let within = nested(&[fixed(2), fixed(3)], Some(&absent));
    let fs = over(&[fixed(0), loose, within], &memfs());
    let dir = Tree(&*fs).ino("d");
    let look = |name: &[u8]| fs.lookup(&OpCtx::service(), dir, name).map(|attr| attr.kind);
    let asked = || layers.iter().map(|layer| layer.calls(Call::Look)).collect::<Vec<_>>();
    let of = |name: &[u8]| {
        let before = asked();
        let found = look(name);
        let after = asked();
        let counts: Vec<u64> =
            before.iter().zip(&after).map(|(before, after)| after - before).collect();
        (found, counts)
    };
    assert_eq!(of(b"none"), (Err(Errno::ENOENT), vec![1, 1, 1, 1]));
    let (found, first) = of(b"here");
    assert_eq!((found, &first[..3]), (Ok(Kind::File), &[1, 1, 1][..]));
    for _ in 0..20 {
        assert_eq!(of(b"none"), (Err(Errno::ENOENT), vec![0, 1, 0, 0]));
        let (found, counts) = of(b"here");
        assert_eq!((found, &counts[..3]), (Ok(Kind::File), &[0, 1, 0][..]));
    }
    let stats = absent.stats();
    // Both layers miss "none", in the union and in the inner one; the upper ones miss "here" too.
    assert!(stats.names >= 5 && stats.hits >= 60 && stats.bytes < 1 << 12, "{stats:?}");
    // What may change is seen at once.
    Tree(&*layers[1]).file("d/none", b"new");
    let (found, counts) = of(b"none");
    assert_eq!((found, counts[0], &counts[2..]), (Ok(Kind::File), 0, &[0, 0][..]));
    Tree(&*layers[1]).unlink("d/none");
    assert_eq!(of(b"none"), (Err(Errno::ENOENT), vec![0, 1, 0, 0]));
}

/// Beside somebody who changes the layers that may change: each name is what the first layer that
/// has it says, at each moment, and so it is by a union that remembers nothing.
#[test]
fn names_are_as_the_layers_say_while_one_changes() {
    for seed in seeds() {
        let rng = &mut Rng::new(seed);
        let (first, loose, last) = (memfs(), memfs(), memfs());
        for fs in [&first, &loose, &last] {
            for name in 0..4 {
                Tree(&**fs).mkdir(&name.to_string());
            }
        }
        for fs in [&first, &last] {
            for name in 0..32 {
                if rng.below(3) == 0 {
                    let path = format!("{}/{name}", rng.below(4));
                    if Tree(&**fs).find(&path).is_err() {
                        Tree(&**fs).file(&path, path.as_bytes());
                    }
                }
            }
        }
        // Room for a few names: they come and go.
        let absent = Absent::new(2048);
        let fixed = |fs: &Fs| Layer::fixed(fs.clone(), &absent).expect("a root");
        let fs =
            Union::open(vec![fixed(&first), plain(&loose), fixed(&last)], None).expect("opens");
        let forgetful = union(&[&first, &loose, &last], None);
        for step in 0..2000 {
            let path = format!("{}/{}", rng.below(4), rng.below(32));
            let l = Tree(&*loose);
            match (rng.below(8), l.find(&path).map(|attr| attr.kind)) {
                (0, Err(_)) => {
                    l.file(&path, b"loose");
                }
                (1, Err(_)) => l.device(&path),
                (0 | 1, Ok(_)) => l.unlink(&path),
                _ => {
                    let look = |fs: &dyn FileSystem| {
                        let found = Tree(fs).find(&path);
                        found.map(|attr| (attr.kind, attr.size, attr.nlink))
                    };
                    assert_eq!(look(&fs), look(&*forgetful), "seed {seed}, step {step}: {path}");
                    assert!(absent.stats().bytes <= 2048);
                }
            }
        }
        assert!(absent.stats().hits > 100, "{:?}", absent.stats());
    }
}

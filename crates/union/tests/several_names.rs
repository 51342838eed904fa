//! Files of several names in a lower, beside a model of names: links, removals and renames of any
//! of them, by a service that is killed anywhere and opened again.

mod common;

use common::{Fs, Tree, empty_image, memfs, open, pattern, union};
use polylane_base::rng::Rng;
use polylane_base::{Errno, Result};
use polylane_testkit::fault::{Call, Faulty, Plan};
use polylane_testkit::sim::{SimDisk, SimOptions};
use polylane_union::Union;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, RenameMode, XattrMode};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The names of each file in the lower, and others.
const NAMES: [[&str; 3]; 3] = [["a1", "a2", "d/a3"], ["b1", "d/b2", "d/b3"], ["c1", "c2", "c3"]];
const OTHERS: [&str; 4] = ["x1", "x2", "d/x3", "e/x4"];
const SEEDS: std::ops::Range<u64> = 1000..1060;
const STEPS: usize = 50;
/// More calls than a change makes.
const CALLS_MAX: u64 = 16;

/// What a union shows, by the number of each file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Model {
    names: BTreeMap<&'static str, usize>,
    bytes: [Vec<u8>; 3],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Link,
    Unlink,
    Rename,
    Exchange,
    Write,
    Cut,
}

/// A small file, one that stays in the lower when it is copied up, and one that is empty.
fn begin() -> (Fs, Model) {
    let low = memfs();
    let tree = Tree(&*low);
    tree.mkdir("d");
    tree.mkdir("e");
    let bytes = [b"linked".to_vec(), pattern(70_000, 1), Vec::new()];
    for (names, bytes) in NAMES.iter().zip(&bytes) {
        tree.file(names[0], bytes);
        names[1..].iter().for_each(|name| tree.link(names[0], name));
    }
    let of = |file: usize| NAMES[file].map(|name| (name, file));
    (low, Model { names: (0..3).flat_map(of).collect(), bytes })
}

impl Model {
    fn does(&mut self, act: Act, (from, to): (&'static str, &'static str), text: &[u8]) {
        let file = self.names[from];
        match act {
            Act::Link => drop(self.names.insert(to, file)),
            Act::Unlink => drop(self.names.remove(from)),
            Act::Rename if self.names.get(to) == Some(&file) => {}
            Act::Rename => {
                self.names.remove(from);
                self.names.insert(to, file);
            }
            Act::Exchange => {
                let other = self.names.insert(to, file).expect("there");
                self.names.insert(from, other);
            }
            Act::Write => {
                let bytes = &mut self.bytes[file];
                bytes.resize(bytes.len().max(text.len()), 0);
                bytes[..text.len()].copy_from_slice(text);
            }
            Act::Cut => self.bytes[file].clear(),
        }
    }
}

/// The directory and the name in it.
fn end<'p>(tree: &Tree<'_>, path: &'p str) -> (polylane_base::Ino, &'p [u8]) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    (tree.ino(dir), name.as_bytes())
}

fn does(union: &Union, act: Act, (from, to): (&str, &str), text: &[u8]) -> Result<()> {
    let (tree, ctx) = (Tree(union), &OpCtx::service());
    let (ino, (dir, name), (to_dir, to)) = (tree.ino(from), end(&tree, from), end(&tree, to));
    let rename = |mode| union.rename(ctx, dir, name, to_dir, to, mode).map(drop);
    match act {
        Act::Link => union.link(ctx, ino, to_dir, to).map(drop),
        Act::Unlink => union.unlink(ctx, dir, name).map(drop),
        Act::Rename => rename(RenameMode::Replace),
        Act::Exchange => rename(RenameMode::Exchange),
        Act::Write => union.write(ctx, ino, 0, &mut &*text).map(drop),
        Act::Cut => {
            let set = polylane_vfs::fs::SetAttr { size: Some(0), ..Default::default() };
            union.setattr(ctx, ino, &set).map(drop)
        }
    }
}

/// All names that there are, each with its links, its file's number and its bytes; in any order,
/// since the first name that a service looks at decides how it finds the file.
fn shown(union: &Union, rng: &mut Rng) -> BTreeMap<&'static str, (u32, u64, Vec<u8>)> {
    let tree = Tree(union);
    let mut left: Vec<&str> = NAMES.iter().flatten().chain(&OTHERS).copied().collect();
    let mut all = BTreeMap::new();
    while !left.is_empty() {
        let name = left.swap_remove(rng.below(left.len() as u64) as usize);
        match tree.find(name) {
            Ok(attr) => drop(all.insert(name, (attr.nlink, attr.ino.0, tree.read(attr.ino)))),
            Err(errno) => assert_eq!(errno, Errno::ENOENT, "{name}"),
        }
    }
    all
}

/// The one of the models that is shown: every file has as many links as names, and one number.
fn agreed(about: &str, union: &Union, models: &[&Model], rng: &mut Rng) -> Model {
    let shown = shown(union, rng);
    let is_it = |model: &&&Model| {
        let names = |file: &usize| model.names.values().filter(|it| *it == file).count() as u32;
        let number = |file: &usize| model.names.iter().find(|(_, it)| *it == file).expect("named");
        shown.len() == model.names.len()
            && model.names.iter().all(|(name, file)| {
                shown.get(name).is_some_and(|(links, ino, bytes)| {
                    let first = shown.get(number(file).0).map(|it| it.1);
                    *links == names(file) && Some(*ino) == first && *bytes == model.bytes[*file]
                })
            })
    };
    let brief = |bytes: &[u8]| (bytes.len(), bytes.iter().take(8).copied().collect::<Vec<u8>>());
    models.iter().find(is_it).map(|model| (**model).clone()).unwrap_or_else(|| {
        let shown: Vec<_> =
            shown.iter().map(|(name, (links, ino, it))| (name, links, ino, brief(it))).collect();
        let wanted: Vec<_> =
            models.iter().map(|it| (&it.names, it.bytes.each_ref().map(|b| brief(b)))).collect();
        panic!("{about}\nshown: {shown:?}\nwanted: {wanted:?}")
    })
}

/// An upper's file system whose calls can fail from one on.
type Kills = fn(Fs) -> Arc<Faulty>;

fn random_changes_with_kills(made: impl Fn() -> Fs, kills: Kills, acts: &[Act]) {
    let mut killed = 0;
    for seed in SEEDS {
        let (low, mut model) = begin();
        let (kept, mut rng) = (made(), Rng::new(seed));
        let open = || {
            let faulty = kills(kept.clone());
            let upper: Fs = faulty.clone();
            (union(&[&low], Some(&upper)), faulty)
        };
        let (mut now, mut faulty) = open();
        for step in 0..STEPS {
            let there: Vec<&str> = model.names.keys().copied().collect();
            if there.is_empty() {
                break;
            }
            let all: Vec<&str> = NAMES.iter().flatten().chain(&OTHERS).copied().collect();
            let ends = (*rng.pick(&there), *rng.pick(&all));
            let act = match *rng.pick(acts) {
                Act::Link if model.names.contains_key(ends.1) => Act::Rename,
                Act::Exchange if !model.names.contains_key(ends.1) => Act::Link,
                act => act,
            };
            let skip = rng.percent(50).then(|| rng.below(CALLS_MAX));
            if let Some(skip) = skip {
                let plan = Plan { skip, count: u64::MAX, errno: Some(Errno::EIO) };
                faulty.plan(Call::Change, plan);
                faulty.plan(Call::Write, Plan { skip: skip / 4, ..plan });
            }
            let text = format!("<{seed},{step}>").into_bytes();
            let about = format!("seed {seed}, step {step}: {act:?} {ends:?}, kill {skip:?}");
            let mut after = model.clone();
            after.does(act, ends, &text);
            let done = does(&now, act, ends, &text);
            assert!(done.is_ok() || skip.is_some(), "{about}: {done:?}");
            killed += u32::from(done.is_err());
            if skip.is_some() || rng.percent(15) {
                drop((now, faulty));
                (now, faulty) = open();
            }
            model = match done {
                Ok(()) => agreed(&about, &now, &[&after], &mut rng),
                Err(_) => agreed(&about, &now, &[&model, &after], &mut rng),
            };
        }
        // All names are the upper's, and no file is counted any more.
        assert!(!now.solidify().expect("room").is_partial, "seed {seed}");
        agreed(&format!("seed {seed}, solid"), &now, &[&model], &mut rng);
        drop((now, faulty));
        agreed(&format!("seed {seed}, solid, again"), &open().0, &[&model], &mut rng);
        let own = Tree(&*kept);
        assert!(own.names("work/polylane/index").is_empty(), "seed {seed}");
        for (name, file) in &model.names {
            let is_own = own.find(&format!("upper/{name}")).is_ok();
            assert!(is_own || model.bytes[*file] == begin().1.bytes[*file], "seed {seed}: {name}");
        }
    }
    assert!(killed > 200, "{killed} kills only");
}

#[test]
fn names_are_counted_whenever_the_service_is_killed() {
    use Act::*;
    let acts = [Link, Link, Link, Unlink, Unlink, Rename, Rename, Exchange, Write, Cut];
    random_changes_with_kills(memfs, Faulty::new, &acts);
}

/// In an upper that changes one name at a time, as a Ceph file system does.
#[test]
fn they_are_also_where_names_change_one_at_a_time() {
    use Act::*;
    let Some(image) = empty_image() else { return };
    let ext4 = || -> Fs { open(&SimDisk::new(image.clone(), SimOptions::default())) };
    let acts = [Link, Link, Link, Unlink, Unlink, Rename, Rename, Write, Cut];
    random_changes_with_kills(ext4, Faulty::plain, &acts);
}

/// overlayfs counts names from the lower's links until the first change of names, and so did
/// former versions: the first change of ours counts them from the upper's.
#[test]
fn a_count_from_the_lowers_links_is_one_from_the_uppers_when_names_change() {
    let changes: [fn(&Tree<'_>); 4] = [
        |u| u.link("c1", "x1"),
        |u| u.unlink("c2"),
        |u| u.unlink("c1"),
        |u| u.rename("c1", "x1").expect("renames"),
    ];
    let ctx = &OpCtx::service();
    for (number, change) in changes.iter().enumerate() {
        for text in [&b""[..], b"linked"] {
            let (low, memory) = (memfs(), memfs());
            let l = Tree(&*low);
            l.file("c1", text);
            ["c2", "c3"].iter().for_each(|name| l.link("c1", name));
            let first = union(&[&low], Some(&memory));
            Tree(&*first).chmod(Tree(&*first).ino("c1"), 0o600);
            drop(first);
            let entry = Tree(&*memory).names("work/polylane/index").pop().expect("an entry");
            let held = Tree(&*memory).ino(&format!("work/polylane/index/{entry}"));
            let nlink = b"trusted.overlay.nlink";
            memory.setxattr(ctx, held, nlink, b"L+0", XattrMode::Replace).expect("marked");
            change(&Tree(&*union(&[&low], Some(&memory))));

            let next = union(&[&low], Some(&memory));
            let tree = Tree(&*next);
            let mut names = tree.names("");
            for name in &names {
                let links = tree.find(name).expect("listed").nlink as usize;
                assert_eq!(links, names.len(), "change {number}, {text:?}: {name}");
            }
            tree.write(tree.ino(&names[0]), 0, b"change");
            names.retain(|name| name != "c3");
            names.iter().for_each(|name| tree.unlink(name));
            drop(next);
            let last = union(&[&low], Some(&memory));
            let tree = Tree(&*last);
            let found = tree.find("c3").expect("the last");
            assert_eq!(found.nlink, 1, "change {number}, {text:?}");
            assert_eq!(tree.read(found.ino), b"change", "change {number}, {text:?}");
        }
    }
}

//! Images through the store's interface: what comes in, what goes out, what is refused.
//!
//! Needs root: layers have owners and whiteouts.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use polylane_image::{Limits, Store};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};
use tempfile::TempDir;

const LIMITS: Limits = Limits { bytes: 1 << 30, members: 100_000 };

/// A member of a layer for tests.
struct Item<'a> {
    kind: EntryType,
    path: &'a str,
    link: &'a str,
    data: &'a [u8],
    device: (u32, u32),
}

impl<'a> Item<'a> {
    fn file(path: &'a str, data: &'a str) -> Self {
        let data = data.as_bytes();
        Item { kind: EntryType::Regular, path, link: "", data, device: (0, 0) }
    }

    fn dir(path: &'a str) -> Self {
        Item { kind: EntryType::Directory, ..Item::file(path, "") }
    }

    fn link(kind: EntryType, path: &'a str, link: &'a str) -> Self {
        Item { kind, link, ..Item::file(path, "") }
    }

    fn device(path: &'a str, kind: EntryType, device: (u32, u32)) -> Self {
        Item { kind, device, ..Item::file(path, "") }
    }
}

/// A field of a header, as it is: the builder of tar files refuses what is hostile.
fn put(field: &mut [u8], text: &str) {
    field[..text.len()].copy_from_slice(text.as_bytes());
}

fn tar_of(items: &[Item<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for item in items {
        let mut header = Header::new_ustar();
        header.set_entry_type(item.kind);
        put(&mut header.as_old_mut().name, item.path);
        put(&mut header.as_old_mut().linkname, item.link);
        header.set_mode(if item.kind == EntryType::Directory { 0o755 } else { 0o644 });
        header.set_uid(1000);
        header.set_gid(1000);
        header.set_mtime(1_000_000_000);
        header.set_size(item.data.len() as u64);
        header.set_device_major(item.device.0).expect("ustar");
        header.set_device_minor(item.device.1).expect("ustar");
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(item.data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    out.write_all(bytes).expect("to memory");
    out.finish().expect("to memory")
}

/// A state directory, and a directory for sources.
struct Bench {
    dir: TempDir,
    store: Store,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("tempdir");
        let store = Store::in_state(&dir.path().join("state"));
        fs::create_dir(dir.path().join("source")).expect("mkdir");
        Bench { dir, store }
    }

    fn source(&self, name: &str) -> PathBuf {
        self.dir.path().join("source").join(name)
    }

    fn images(&self) -> PathBuf {
        self.dir.path().join("state/images")
    }

    /// An OCI layout of these layers: a blob, the digest that names it, that of its tar file.
    fn layout(&self, name: &str, layers: &[(Vec<u8>, String, String)]) -> PathBuf {
        self.layout_saying(name, layers, |bytes| bytes)
    }

    /// The same, which says that a layer of so many bytes has others.
    fn layout_saying(
        &self,
        name: &str,
        layers: &[(Vec<u8>, String, String)],
        said: impl Fn(usize) -> usize,
    ) -> PathBuf {
        let root = self.source(name);
        let blobs = root.join("blobs/sha256");
        fs::create_dir_all(&blobs).expect("mkdir");
        let put = |bytes: &[u8]| {
            fs::write(blobs.join(digest(bytes)), bytes).expect("write");
            format!(r#"{{"digest":"sha256:{}","size":{}}}"#, digest(bytes), bytes.len())
        };
        let descriptors: Vec<String> = layers
            .iter()
            .map(|(blob, digest, _)| {
                fs::write(blobs.join(digest), blob).expect("write");
                format!(r#"{{"digest":"sha256:{digest}","size":{}}}"#, said(blob.len()))
            })
            .collect();
        let ids: Vec<String> =
            layers.iter().map(|(_, _, diff_id)| format!(r#""sha256:{diff_id}""#)).collect();
        let config = put(format!(
            r#"{{"os":"linux","config":{{"Cmd":["/x"]}},"rootfs":{{"diff_ids":[{}]}}}}"#,
            ids.join(",")
        )
        .as_bytes());
        let manifest = format!(
            r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#,
            descriptors.join(",")
        );
        let manifest = put(manifest.as_bytes());
        fs::write(root.join("index.json"), format!(r#"{{"manifests":[{manifest}]}}"#))
            .expect("write");
        fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("write");
        root
    }

    /// That the store is as `before` says, and nothing is being made.
    fn assert_unchanged(&self, before: &[String], what: &str) {
        assert_eq!(tree(&self.images()), before, "{what}: something is left");
    }
}

fn layer_of(items: &[Item<'_>], is_packed: bool) -> (Vec<u8>, String, String) {
    let tar = tar_of(items);
    let blob = if is_packed { gzip(&tar) } else { tar.clone() };
    let name = digest(&blob);
    (blob, name, digest(&tar))
}

/// Every path below `root`.
fn tree(root: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten() {
            let path = entry.expect("listed").path();
            if path.symlink_metadata().expect("there").is_dir() {
                dirs.push(path.clone());
            }
            all.push(path.display().to_string());
        }
    }
    all.sort();
    all
}

#[test]
fn whiteouts_become_marks_of_overlayfs() {
    let bench = Bench::new();
    let lower = layer_of(&[Item::dir("d/"), Item::file("d/a", "1"), Item::file("b", "1")], false);
    let upper = layer_of(
        &[
            Item::file("d/.wh..wh..opq", ""),
            Item::file("d/c", "2"),
            Item::file(".wh.b", ""),
            Item::file(".wh..wh.plnk", ""),
            Item::link(EntryType::Link, "e", "d/c"),
        ],
        true,
    );
    let image =
        bench.store.import(&bench.layout("l", &[lower, upper]), Some("i"), LIMITS).expect("in");
    let [top, base] = &bench.store.lowers(&image)[..] else { panic!("two layers") };
    let removed = fs::symlink_metadata(top.join("b")).expect("a whiteout");
    assert!(removed.file_type().is_char_device() && removed.rdev() == 0);
    let mut mark = [0; 8];
    let length = rustix::fs::getxattr(top.join("d"), "trusted.overlay.opaque", &mut mark);
    assert_eq!(length, Ok(1));
    assert_eq!(fs::metadata(top.join("e")).expect("there").nlink(), 2);
    assert!(!top.join(".wh..wh.plnk").exists());
    let there = fs::metadata(base.join("d/a")).expect("there");
    assert_eq!((there.uid(), there.mode() & 0o7777, there.mtime()), (1000, 0o644, 1_000_000_000));
}

#[test]
fn images_share_layers_which_go_with_the_last() {
    let bench = Bench::new();
    let base = layer_of(&[Item::file("a", "1")], true);
    let own = layer_of(&[Item::file("b", "1")], true);
    let one = bench.layout("one", std::slice::from_ref(&base));
    let two = bench.layout("two", &[base, own]);
    bench.store.import(&one, None, LIMITS).expect("in");
    let image = bench.store.import(&two, Some("reg/two:1"), LIMITS).expect("in");
    let layers = bench.images().join("layers");
    assert_eq!(fs::read_dir(&layers).expect("list").count(), 2);
    bench.store.hold(&image, "c1").expect("held");
    let refused = bench.store.remove("reg/two:1").expect_err("in use").to_string();
    assert!(refused.contains("c1"), "{refused}");
    bench.store.remove("one").expect("out");
    assert_eq!(fs::read_dir(&layers).expect("list").count(), 2, "the other one has both");
    bench.store.release("c1").expect("released");
    bench.store.remove(image.short_id()).expect("out");
    for dir in ["layers", "blobs", "names", "tmp", "used"] {
        assert_eq!(fs::read_dir(bench.images().join(dir)).expect("list").count(), 0, "{dir}");
    }
}

#[test]
fn an_export_has_the_same_digests() {
    let bench = Bench::new();
    let layer = layer_of(&[Item::file("a", "1")], true);
    let image = bench.store.import(&bench.layout("l", &[layer]), Some("i:1"), LIMITS).expect("in");
    let archive = bench.source("out.tar");
    bench.store.export("i:1", &archive).expect("out");
    assert!(bench.store.export("i:1", &archive).is_err(), "it is there");
    let other = Bench::new();
    let again = other.store.import(&archive, None, LIMITS).expect("in");
    assert_eq!((again.id(), again.name.as_str()), (image.id(), "i:1"));
    let second = other.source("again.tar");
    other.store.export("i:1", &second).expect("out");
    assert_eq!(fs::read(archive).expect("read"), fs::read(second).expect("read"));
}

#[test]
fn root_file_systems_are_images() {
    let bench = Bench::new();
    let tar = tar_of(&[Item::dir("bin/"), Item::file("bin/x", "program")]);
    let (plain, packed) = (bench.source("root.tar"), bench.source("root.tar.gz"));
    fs::write(&plain, &tar).expect("write");
    fs::write(&packed, gzip(&tar)).expect("write");
    let dir = bench.source("dir");
    fs::create_dir_all(dir.join("bin")).expect("mkdir");
    fs::write(dir.join("bin/x"), "program").expect("write");
    for source in [plain, packed, dir] {
        let image = bench.store.import(&source, None, LIMITS).expect("in");
        let lower = &bench.store.lowers(&image)[0];
        assert_eq!(fs::read_to_string(lower.join("bin/x")).expect("read"), "program");
        assert_eq!(bench.store.config(&image).expect("read")["config"]["Cmd"][0], "/bin/sh");
    }
    let names: Vec<_> =
        bench.store.list().expect("list").into_iter().map(|image| image.name).collect();
    assert_eq!(names, ["dir", "root"]);
}

#[test]
fn docker_archives_are_images() {
    let bench = Bench::new();
    let (blob, _, diff_id) = layer_of(&[Item::file("a", "1")], false);
    let config = format!(r#"{{"rootfs":{{"type":"layers","diff_ids":["sha256:{diff_id}"]}}}}"#);
    let document = format!("{}.json", digest(config.as_bytes()));
    let save = |diff_id: &str| {
        let manifest =
            format!(r#"[{{"Config":"{document}","RepoTags":["d:1"],"Layers":["l/layer.tar"]}}]"#);
        let config = config.replace(digest(&blob).as_str(), diff_id);
        let layer = Item { data: &blob, ..Item::file("l/layer.tar", "") };
        tar_of(&[Item::file(&document, &config), layer, Item::file("manifest.json", &manifest)])
    };
    let source = bench.source("save.tar");
    fs::write(&source, save(&diff_id)).expect("write");
    let image = bench.store.import(&source, None, LIMITS).expect("in");
    assert_eq!(image.name, "d:1");
    let before = tree(&bench.images());
    fs::write(&source, save(&"0".repeat(64))).expect("write");
    let refused =
        bench.store.import(&source, None, LIMITS).expect_err("another config").to_string();
    assert!(refused.contains("another digest"), "{refused}");
    bench.assert_unchanged(&before, "a config of another digest");
}

#[test]
fn hostile_layers_are_refused_and_nothing_is_left() {
    let bench = Bench::new();
    let link = |path, to| Item::link(EntryType::Symlink, path, to);
    let hard = |path, to| Item::link(EntryType::Link, path, to);
    let file = Item::file;
    let outside = bench.dir.path().join("outside");
    let to_outside = format!("{}/state/images/lock", bench.dir.path().display());
    let long = "x".repeat(99);
    let cases: Vec<(&str, Vec<Item<'_>>)> = vec![
        ("absolute", vec![file("/etc/passwd", "x")]),
        ("'..'", vec![file("../outside", "x")]),
        ("'..'", vec![file("a/../../outside", "x")]),
        ("leads out", vec![link("l", "/"), file("l/outside", "x")]),
        ("leads out", vec![link("l", ".."), file("l/outside", "x")]),
        ("leads out", vec![link("l", "../../.."), link("m", "l"), file("m/outside", "x")]),
        ("not in the layer", vec![hard("h", "../../lock")]),
        ("not in the layer", vec![hard("h", &to_outside)]),
        ("not in the layer", vec![link("l", "../.."), hard("h", "l/lock")]),
        ("not in the layer", vec![file(".wh.b", ""), hard("h", "b")]),
        ("device 8/0", vec![Item::device("sda", EntryType::Block, (8, 0))]),
        ("device 1/1", vec![Item::device("mem", EntryType::Char, (1, 1))]),
        ("device 0/0", vec![Item::device("w", EntryType::Char, (0, 0))]),
        ("whiteout of no name", vec![file(".wh.", "")]),
        ("whiteout of no name", vec![file("d/.wh...", "")]),
        ("same layer", vec![Item::dir("d/"), file("d/x", ""), file("d", "x")]),
        ("unknown type", vec![Item { kind: EntryType::new(b'Z'), ..file(&long, "") }]),
    ];
    bench
        .store
        .import(&bench.layout("good", &[layer_of(&[file("a", "1")], true)]), None, LIMITS)
        .expect("in");
    let before = tree(&bench.images());
    for (index, (why, items)) in cases.iter().enumerate() {
        let source = bench.layout(&format!("bad{index}"), &[layer_of(items, index % 2 == 0)]);
        let refused = bench.store.import(&source, Some("bad"), LIMITS).expect_err(why).to_string();
        assert!(refused.contains(why), "{why}: {refused}");
        assert!(!refused.contains('\n'), "{refused}");
        bench.assert_unchanged(&before, why);
        assert!(!outside.exists(), "{why}");
    }
}

#[test]
fn sources_of_wrong_digests_and_cut_ones_are_refused() {
    let bench = Bench::new();
    let (blob, name, diff_id) = layer_of(&[Item::file("a", &"text ".repeat(2000))], true);
    let before = {
        bench
            .store
            .import(
                &bench.layout("good", &[layer_of(&[Item::file("a", "1")], false)]),
                None,
                LIMITS,
            )
            .expect("in");
        tree(&bench.images())
    };
    let other = "0".repeat(64);
    let cut = |at: usize| blob[..at].to_vec();
    let mut changed = blob.clone();
    changed[20] ^= 1;
    let cases = [
        ("another name", (blob.clone(), other.clone(), diff_id.clone())),
        ("another tar file", (blob.clone(), name.clone(), other)),
        ("cut", (cut(blob.len() / 2), name.clone(), diff_id.clone())),
        ("cut in the trailer", (cut(blob.len() - 1), name.clone(), diff_id.clone())),
        ("one more byte", ([&blob[..], b"x"].concat(), name.clone(), diff_id.clone())),
        ("a bit", (changed, name, diff_id)),
    ];
    for (index, (what, layer)) in cases.into_iter().enumerate() {
        let source = bench.layout(&format!("bad{index}"), &[layer]);
        assert!(bench.store.import(&source, Some("bad"), LIMITS).is_err(), "{what}");
        bench.assert_unchanged(&before, what);
    }
    // A layer that is new, and one that is there already.
    for text in ["new", "1"] {
        let layer = layer_of(&[Item::file("a", text)], false);
        let source = bench.layout_saying(&format!("said-{text}"), &[layer], |bytes| bytes + 1);
        let refused = bench.store.import(&source, Some("bad"), LIMITS).expect_err("a size");
        assert!(refused.to_string().contains("are said of it"), "{refused}");
        bench.assert_unchanged(&before, "a layer's size");
    }
    let source = bench.layout("manifest", &[layer_of(&[Item::file("a", "1")], false)]);
    let index = source.join("index.json");
    let text = fs::read_to_string(&index).expect("read").replace(r#""size":"#, r#""size":1"#);
    fs::write(&index, text).expect("write");
    let refused = bench.store.import(&source, Some("bad"), LIMITS).expect_err("a size");
    assert!(refused.to_string().contains("are said of it"), "{refused}");
    bench.assert_unchanged(&before, "a manifest's size");
    for (file, bytes) in [("none.tar", &b""[..]), ("text.tar", b"no tar file at all")] {
        fs::write(bench.source(file), bytes).expect("write");
        assert!(bench.store.import(&bench.source(file), None, LIMITS).is_err(), "{file}");
        bench.assert_unchanged(&before, file);
    }
    assert!(bench.store.import(&bench.source("absent"), None, LIMITS).is_err());
    assert!(bench.store.import(&bench.source("good"), Some("../x"), LIMITS).is_err());
    bench.assert_unchanged(&before, "names and places");
}

#[test]
fn what_an_interrupted_import_left_is_cleared_by_the_next() {
    let bench = Bench::new();
    let base = layer_of(&[Item::file("a", "1")], true);
    let source = bench.layout("l", &[base]);
    bench.store.import(&source, Some("i"), LIMITS).expect("in");
    let before = tree(&bench.images());
    // As a kill leaves it: between a layer's name and the image's, and before both.
    fs::create_dir_all(bench.images().join("tmp/dead/tree-0/d")).expect("mkdir");
    fs::write(bench.images().join("tmp/dead/blob-0"), "half").expect("write");
    fs::create_dir_all(bench.images().join("layers").join("0".repeat(64))).expect("mkdir");
    fs::write(bench.images().join("blobs").join("1".repeat(64)), "x").expect("write");
    bench.store.import(&source, Some("i"), LIMITS).expect("in");
    bench.assert_unchanged(&before, "after the next");
}

/// A tar file of `levels` directories in each other, of which no path is long: each is made through
/// a link to the one before.
fn deep_tar(levels: usize) -> Vec<u8> {
    let names: Vec<[String; 2]> =
        (0..levels).map(|level| [format!("l{level}/d/"), format!("l{}", level + 1)]).collect();
    let links: Vec<String> = (0..levels).map(|level| format!("l{level}/d")).collect();
    let mut items = vec![Item::dir("l0/")];
    for ([dir, link], to) in names.iter().zip(&links) {
        items.push(Item::dir(dir));
        items.push(Item::link(EntryType::Symlink, link, to));
    }
    tar_of(&items)
}

/// Directories so deep that no path names the last: they come in, or are refused for another
/// reason, and go out; the store is usable all the while.
#[test]
fn trees_of_any_depth_come_and_go() {
    let bench = Bench::new();
    let mut name = String::new();
    let mut items = Vec::new();
    // As deep as paths are long, four times over by links.
    for step in 0..4 {
        let deep = format!("{}/", "d/".repeat(1500));
        let path = format!("{name}{deep}");
        items.push((path.clone(), format!("s{step}")));
        name = format!("s{step}/");
    }
    let mut bytes = Vec::new();
    for (index, (dir, link)) in items.iter().enumerate() {
        bytes.extend(long_member(EntryType::Directory, dir, ""));
        let to = dir.trim_end_matches('/');
        bytes.extend(long_member(EntryType::Symlink, link, to));
        assert!(index < 4);
    }
    bytes.extend_from_slice(&[0; 1024]);
    let source = bench.source("deep.tar");
    fs::write(&source, &bytes).expect("write");
    let before = tree(&bench.images());
    assert!(before.is_empty());
    let image = bench.store.import(&source, None, LIMITS).expect("in");
    assert!(image.bytes() < 1 << 20);
    bench.store.remove("deep").expect("out");
    // The same, refused at its end.
    let hostile = [&bytes[..bytes.len() - 1024], &tar_of(&[Item::file("/x", "")])[..]].concat();
    fs::write(&source, &hostile).expect("write");
    let refused = bench.store.import(&source, None, LIMITS).expect_err("absolute").to_string();
    assert!(refused.contains("absolute"), "{refused}");
    fs::write(&source, deep_tar(20)).expect("write");
    bench.store.import(&source, None, LIMITS).expect("the store is as it was");
    bench.store.remove("deep").expect("out");
    for dir in ["layers", "blobs", "names", "tmp"] {
        assert_eq!(fs::read_dir(bench.images().join(dir)).expect("list").count(), 0, "{dir}");
    }
}

/// A member with a GNU long name and a long link.
fn long_member(kind: EntryType, path: &str, link: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, text) in [(EntryType::GNULongName, path), (EntryType::GNULongLink, link)] {
        let item = Item { kind, data: text.as_bytes(), ..Item::file("././@LongLink", "") };
        let tar = tar_of(&[item]);
        bytes.extend_from_slice(&tar[..tar.len() - 1024]);
    }
    let tar = tar_of(&[Item { kind, ..Item::file("short", "") }]);
    bytes.extend_from_slice(&tar[..tar.len() - 1024]);
    bytes
}

#[test]
fn what_a_source_unpacks_to_is_bounded() {
    let bench = Bench::new();
    let zeros = "\0".repeat(1 << 20);
    let bomb = gzip(&tar_of(&[Item::file("a", &zeros), Item::file("b", &zeros)]));
    assert!(bomb.len() < 20_000);
    let after = gzip(&[tar_of(&[Item::file("a", "")]), zeros.repeat(2).into_bytes()].concat());
    let names: Vec<String> = (0..200).map(|index| format!("f{index}")).collect();
    let files: Vec<_> = names.iter().map(|name| Item::file(name, "")).collect();
    let many = tar_of(&files);
    // Two members, and the directories on their paths.
    let deep = format!("{}x", "d/".repeat(1000));
    let mut implied = long_member(EntryType::Regular, &deep, "");
    implied.extend_from_slice(&[0; 1024]);
    let dir = bench.source("sparse");
    fs::create_dir(&dir).expect("mkdir");
    fs::File::create(dir.join("huge")).and_then(|file| file.set_len(1 << 40)).expect("made");
    let put = |name: &str, bytes: &[u8]| {
        fs::write(bench.source(name), bytes).expect("write");
        bench.source(name)
    };
    let layer = |blob: &[u8], tar: &[u8]| (blob.to_vec(), digest(blob), digest(tar));
    let tar = tar_of(&[Item::file("a", &zeros), Item::file("b", &zeros)]);
    let sources = [
        ("--max-size", put("bomb.tar.gz", &bomb)),
        ("--max-size", put("after.tar.gz", &after)),
        ("--max-size", bench.layout("layout", &[layer(&bomb, &tar)])),
        ("--max-size", dir),
        ("--max-members", put("many.tar", &many)),
        ("--max-members", put("implied.tar", &implied)),
    ];
    let limits = Limits { bytes: 1 << 20, members: 100 };
    let before = {
        bench.store.import(&put("good.tar", &tar_of(&[])[..512]), None, LIMITS).expect("in");
        tree(&bench.images())
    };
    for (option, source) in &sources {
        let refused = bench.store.import(source, None, limits).expect_err(option).to_string();
        assert!(refused.contains(option) && !refused.contains('\n'), "{refused}");
        bench.assert_unchanged(&before, &refused);
    }
    for (_, source) in sources.iter().filter(|(_, source)| !source.ends_with("sparse")) {
        bench.store.import(source, Some("i"), LIMITS).expect("in with more");
    }
}

/// An import that waits for its source, here a pipe that nobody writes to, keeps no other command
/// waiting; what it has made stays.
#[test]
fn an_import_that_waits_keeps_nobody_waiting() {
    let bench = Bench::new();
    let good = bench.source("good.tar");
    fs::write(&good, tar_of(&[Item::file("a", "1")])).expect("write");
    let pipe = bench.source("pipe.tar");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("made");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| bench.store.import(&pipe, Some("late"), LIMITS));
        let mut writer = fs::File::options().write(true).open(&pipe).expect("opened");
        writer.write_all(&tar_of(&[Item::file("b", "1")])[..700]).expect("written");
        bench.store.import(&good, None, LIMITS).expect("in");
        bench.store.remove("good").expect("out");
        bench.store.import(&good, None, LIMITS).expect("in");
        writer.write_all(&tar_of(&[Item::file("b", "1")])[700..]).expect("written");
        drop(writer);
        waiting.join().expect("no panic").expect("in");
    });
    assert_eq!(bench.store.list().expect("list").len(), 2);
    assert_eq!(fs::read_dir(bench.images().join("tmp")).expect("list").count(), 0);
}

#[test]
fn names_of_a_source_are_shown_as_a_terminal_may() {
    let bench = Bench::new();
    let hostile = "l\x1b]0;x\x07\n\u{202e}";
    let config = format!(r#"{{"rootfs":{{"diff_ids":["sha256:{}"]}}}}"#, "0".repeat(64));
    let json = serde_json::to_string(hostile).expect("text");
    for manifest in [
        format!(r#"[{{"Config":"c.json","Layers":[{json}]}}]"#),
        format!(r#"[{{"Config":{json},"Layers":["l"]}}]"#),
        format!(r#"[{{"Config":"c.json","Layers":["../"{json}]}}]"#),
        format!(r#"[{{"Config":"c.json","RepoTags":[{json}],"Layers":["l"]}}]"#),
        format!(r#"[{{"Config":{json}}}]"#),
        format!(r#"[{{"Config":7,{json}:1}}]"#),
    ] {
        let source = bench.source("save.tar");
        let items = [Item::file("c.json", &config), Item::file("manifest.json", &manifest)];
        fs::write(&source, tar_of(&items)).expect("write");
        let refused = bench.store.import(&source, None, LIMITS).expect_err("no layer").to_string();
        assert!(!refused.chars().any(|c| c.is_control() || c == '\u{202e}'), "{refused:?}");
    }
}

#[test]
fn directories_have_their_times_whatever_comes_after_them() {
    let bench = Bench::new();
    let source = bench.source("root.tar");
    let items = [
        Item::dir("./"),
        Item::dir("a/"),
        Item::file("a/x", "1"),
        Item::dir("b/"),
        Item::file("a/y", "1"),
        Item::file("b/c/d/x", "1"),
        Item::link(EntryType::Link, "b/l", "a/x"),
        Item::file("a/.wh.z", ""),
        Item::dir("b/c/"),
        Item::file("a/x", "2"),
    ];
    fs::write(&source, tar_of(&items)).expect("write");
    let image = bench.store.import(&source, None, LIMITS).expect("in");
    let root = &bench.store.lowers(&image)[0];
    for dir in ["", "a", "b", "b/c"] {
        assert_eq!(fs::metadata(root.join(dir)).expect("there").mtime(), 1_000_000_000, "{dir}");
    }
}

//! Images through the store's interface: what comes in, what goes out, what is refused.
//!
//! Needs root: layers have owners and whiteouts.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use polylane_image::Store;
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};
use tempfile::TempDir;

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
                format!(r#"{{"digest":"sha256:{digest}","size":{}}}"#, blob.len())
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
    let image = bench.store.import(&bench.layout("l", &[lower, upper]), Some("i")).expect("in");
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
    bench.store.import(&one, None).expect("in");
    let image = bench.store.import(&two, Some("reg/two:1")).expect("in");
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
    let image = bench.store.import(&bench.layout("l", &[layer]), Some("i:1")).expect("in");
    let archive = bench.source("out.tar");
    bench.store.export("i:1", &archive).expect("out");
    assert!(bench.store.export("i:1", &archive).is_err(), "it is there");
    let other = Bench::new();
    let again = other.store.import(&archive, None).expect("in");
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
        let image = bench.store.import(&source, None).expect("in");
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
    let image = bench.store.import(&source, None).expect("in");
    assert_eq!(image.name, "d:1");
    let before = tree(&bench.images());
    fs::write(&source, save(&"0".repeat(64))).expect("write");
    let refused = bench.store.import(&source, None).expect_err("another config").to_string();
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
        .import(&bench.layout("good", &[layer_of(&[file("a", "1")], true)]), None)
        .expect("in");
    let before = tree(&bench.images());
    for (index, (why, items)) in cases.iter().enumerate() {
        let source = bench.layout(&format!("bad{index}"), &[layer_of(items, index % 2 == 0)]);
        let refused = bench.store.import(&source, Some("bad")).expect_err(why).to_string();
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
            .import(&bench.layout("good", &[layer_of(&[Item::file("a", "1")], false)]), None)
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
        assert!(bench.store.import(&source, Some("bad")).is_err(), "{what}");
        bench.assert_unchanged(&before, what);
    }
    for (file, bytes) in [("none.tar", &b""[..]), ("text.tar", b"no tar file at all")] {
        fs::write(bench.source(file), bytes).expect("write");
        assert!(bench.store.import(&bench.source(file), None).is_err(), "{file}");
        bench.assert_unchanged(&before, file);
    }
    assert!(bench.store.import(&bench.source("absent"), None).is_err());
    assert!(bench.store.import(&bench.source("good"), Some("../x")).is_err());
    bench.assert_unchanged(&before, "names and places");
}

#[test]
fn what_an_interrupted_import_left_is_cleared_by_the_next() {
    let bench = Bench::new();
    let base = layer_of(&[Item::file("a", "1")], true);
    let source = bench.layout("l", &[base]);
    bench.store.import(&source, Some("i")).expect("in");
    let before = tree(&bench.images());
    // As a kill leaves it: between a layer's name and the image's, and before both.
    fs::create_dir_all(bench.images().join("tmp/tree-0/d")).expect("mkdir");
    fs::write(bench.images().join("tmp/blob-0"), "half").expect("write");
    fs::create_dir_all(bench.images().join("layers").join("0".repeat(64))).expect("mkdir");
    fs::write(bench.images().join("blobs").join("1".repeat(64)), "x").expect("write");
    bench.store.import(&source, Some("i")).expect("in");
    bench.assert_unchanged(&before, "after the next");
}

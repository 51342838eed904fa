//! `polylane image` by the binary: what comes in, what is refused, what a kill or a full disk
//! leaves, and layers of what lanes changed.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_tests::step::good;
use polylane_tests::{binary, lacks, skip, unavailable};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};
use tempfile::TempDir;

/// A state directory of its own, and room for sources.
struct Place {
    dir: TempDir,
    state: PathBuf,
}

impl Place {
    /// `None`, and the test is noted as skipped: layers have owners and devices.
    fn new(test: &str) -> Option<Place> {
        if !rustix::process::geteuid().is_root() {
            skip(test, "images of several users need root");
            return None;
        }
        let dir = tempfile::tempdir().expect("tempdir");
        let state = dir.path().join("state");
        Some(Place { dir, state })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn images(&self) -> PathBuf {
        self.state.join("polylane/images")
    }

    fn polylane(&self) -> Command {
        let mut command = Command::new(binary());
        command.env("XDG_STATE_HOME", &self.state).stdin(Stdio::null());
        command
    }

    fn import(&self, source: &Path) -> Command {
        let mut command = self.polylane();
        command.args(["image", "import"]).arg(source);
        command
    }

    fn image(&self, words: &[&str]) -> String {
        good(&self.polylane().arg("image").args(words).output().expect("polylane"))
    }

    fn refused(&self, command: &mut Command, words: &str) {
        let output = command.output().expect("polylane");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words}: it came in");
        assert_eq!(said.matches('\n').count(), 1, "one line: {said}");
        assert!(said.contains(words), "{words}: {said}");
    }

    /// The directories of an image's layers, the uppermost first.
    fn lowers(&self, image: &str) -> Vec<PathBuf> {
        let file = self.images().join("names").join(format!("{image}.json"));
        let record: serde_json::Value =
            serde_json::from_slice(&fs::read(file).expect("its record")).expect("JSON");
        let layers = record["layers"].as_array().expect("layers").iter().rev();
        let hex = |layer: &serde_json::Value| {
            layer["diff_id"].as_str().expect("a digest").trim_start_matches("sha256:").to_string()
        };
        layers.map(|layer| self.images().join("layers").join(hex(layer))).collect()
    }

    /// That nothing of an import is left but what images have.
    fn assert_no_leak(&self, layers: usize, what: &str) {
        let count = |name: &str| {
            fs::read_dir(self.images().join(name)).map_or(0, |entries| entries.count())
        };
        assert_eq!((count("layers"), count("tmp")), (layers, 0), "{what}");
    }

    /// What a script prints in a lane over these lowers.
    fn in_lane(&self, upper: &[&str], lowers: &[PathBuf], script: &str) -> String {
        let mut run = self.polylane();
        run.arg("run").args(upper).arg("--no-preload");
        for lower in lowers {
            run.arg("--lower").arg(lower);
        }
        good(&run.args(["--", "sh", "-euc", script]).output().expect("polylane"))
    }

    /// An OCI layout of these layers, as a directory.
    fn layout(&self, name: &str, layers: &[Vec<u8>]) -> PathBuf {
        let root = self.path(name);
        let blobs = root.join("blobs/sha256");
        fs::create_dir_all(&blobs).expect("mkdir");
        let put = |bytes: &[u8]| {
            fs::write(blobs.join(hex(bytes)), bytes).expect("write");
            format!(r#"{{"digest":"sha256:{}","size":{}}}"#, hex(bytes), bytes.len())
        };
        let ids: Vec<_> = layers.iter().map(|tar| format!(r#""sha256:{}""#, hex(tar))).collect();
        let layers: Vec<_> = layers.iter().map(|tar| put(tar)).collect();
        let config = format!(r#"{{"os":"linux","rootfs":{{"diff_ids":[{}]}}}}"#, ids.join(","));
        let config = put(config.as_bytes());
        let manifest =
            format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#, layers.join(","));
        let manifest = put(manifest.as_bytes());
        let index = format!(r#"{{"schemaVersion":2,"manifests":[{manifest}]}}"#);
        fs::write(root.join("index.json"), index).expect("write");
        fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).expect("write");
        root
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn header(kind: EntryType, path: &str, link: &str, size: usize) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    // As it is: the builder of tar files refuses what is hostile.
    for (field, text) in [(0, path), (157, link)] {
        header.as_mut_bytes()[field..field + text.len()].copy_from_slice(text.as_bytes());
    }
    header.set_mode(if kind == EntryType::Directory { 0o755 } else { 0o644 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000_000);
    header.set_size(size as u64);
    header.set_cksum();
    header
}

fn member(kind: EntryType, path: &str, link: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = [header(kind, path, link, data.len()).as_bytes(), data].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn file(path: &str, data: &[u8]) -> Vec<u8> {
    member(EntryType::Regular, path, "", data)
}

fn tar_of(members: &[Vec<u8>]) -> Vec<u8> {
    [members.concat(), vec![0; 1024]].concat()
}

fn shell(dir: &Path, script: &str) -> Output {
    let mut command = Command::new("bash");
    command.args(["-euc", script]).current_dir(dir).stdin(Stdio::null());
    command.output().expect("bash")
}

/// All of a tree: kinds, modes, owners, sizes, times in seconds, links, bytes, attributes.
const LIST: &str = "cd $ROOT; find . ! -type d -printf '%P %y %m %U:%G %s %T@ %n %l\\n' | \
     sed -E 's/\\.[0-9]{10}( [0-9]+ )/\\1/' | sort; \
     find . -type d -printf '%P %y %m %U:%G %T@\\n' | sed -E 's/\\.[0-9]{10}$//' | sort; \
     find . -type f -print0 | sort -z | xargs -0r sha256sum; \
     find . ! -type l -print0 | sort -z | xargs -0r getfattr -h -d -m '^(user|security.cap)' 2>&1";

/// Every kind of change that a layer tells of.
const CHANGES: &str = "cd $ROOT; echo more >> big; chmod 600 d/f2; rm d/f3; mv g moved; \
     echo x >> moved/g2; rm -rf old; mkdir old; echo new > old/new; echo y >> h1; mkfifo p; \
     ln -s d s; ln d/f1 d/f1b; setfattr -n user.k -v v d/f2; rmdir d/e; echo file > d/e; \
     rm f; mkdir -p f/in; touch f/in/it; chown 12:34 d/deep/x; truncate -s 1M sparse; \
     printf z | dd of=big bs=1 seek=700000 conv=notrunc 2>/dev/null; \
     rm -rf gone; mv d/deep/dir1 d/deep/dir2; rmdir empty; mkdir empty; mknod null c 1 3; \
     touch -d @1234567890 d/f4 moved; rm many/*";

fn make_lowers(place: &Place) -> [PathBuf; 2] {
    let script = "mkdir -p low/d/e low/d/deep/dir1 low/g low/old low/gone/a/b low/empty low/many \
                  high/d; cd low; for i in 1 2 3 4; do echo low$i > d/f$i; echo g$i > g/g$i; \
                  echo o$i > old/o$i; echo m > many/$i; done; echo 1 > d/deep/dir1/x; \
                  echo x > d/deep/x; echo f > f; echo 1 > gone/a/b/c; \
                  head -c 3000000 /dev/urandom > big; echo h > h1; ln h1 h2; chmod 751 g; \
                  truncate -s 3M sparse; cd ../high; echo top > d/f1; setfattr -n user.a -v b d/f1";
    good(&shell(place.dir.path(), script));
    [place.path("high"), place.path("low")]
}

fn listed(root: &str, script: &str) -> String {
    script.replace("$ROOT", root)
}

/// Packs a tree as a layer, for an image that the layer of changes lies over.
fn packed(place: &Place, name: &str) -> Vec<u8> {
    good(&shell(place.dir.path(), &format!("tar -C {name} --xattrs -cf {name}.tar .")));
    fs::read(place.path(&format!("{name}.tar"))).expect("read")
}

/// The tree of an image whose layers are the two lowers and `change`.
fn with_layer(place: &Place, name: &str, change: Vec<u8>) -> String {
    let layers = [packed(place, "low"), packed(place, "high"), change];
    good(&place.import(&place.layout(name, &layers)).arg(name).output().expect("polylane"));
    place.in_lane(&[], &place.lowers(name), &listed("/lane", LIST))
}

#[test]
fn a_layer_of_what_a_lane_changed_shows_the_same_tree() {
    let test = "a_layer_of_what_a_lane_changed_shows_the_same_tree";
    if unavailable(test) || lacks(test, &["setfattr", "getfattr"]) {
        return;
    }
    let Some(place) = Place::new(test) else { return };
    let lowers = make_lowers(&place);
    let (volume, dir) = (place.path("upper.img"), place.path("upper"));
    for (kind, upper) in [("--volume", &volume), ("--dir", &dir)] {
        let upper = upper.to_str().expect("UTF-8");
        // No devices in a lane of a directory.
        let changes = match kind {
            "--dir" => CHANGES.replace("mknod null c 1 3; ", ""),
            _ => CHANGES.to_string(),
        };
        let script = listed("/lane", &format!("{changes}; {LIST}"));
        let expected = place.in_lane(&[kind, upper], &lowers, &script);
        let diff = |to: &str, how: &str| {
            let mut diff = place.polylane();
            diff.args(["image", "diff", "--upper", upper, "--compress", how, "-o", to]);
            for lower in &lowers {
                diff.arg("--lower").arg(lower);
            }
            diff.output().expect("polylane")
        };
        let name = kind.trim_start_matches('-');
        let [tar, gzip, zstd] =
            ["tar", "gz", "zst"].map(|end| place.path(&format!("{name}.{end}")));
        for (to, how) in [(&tar, "none"), (&gzip, "gzip"), (&zstd, "zstd")] {
            good(&diff(to.to_str().expect("UTF-8"), how));
        }
        assert!(!diff(tar.to_str().expect("UTF-8"), "none").status.success(), "it is there");
        let change = fs::read(&tar).expect("read");
        assert_eq!(diff("-", "none").stdout, change, "the same bytes again");
        assert!(change.len() < 4_500_000, "only what was changed: {}", change.len());
        let script = format!(
            "gzip -dc {name}.gz | cmp - {name}.tar; \
             ! command -v zstd || zstd -dcq {name}.zst | cmp - {name}.tar"
        );
        good(&shell(place.dir.path(), &script));
        assert_eq!(with_layer(&place, name, change), expected, "{kind}");
        // A layer that is packed comes in as it is, and out again.
        let archive = place.path(&format!("{name}.oci"));
        place.image(&["export", name, archive.to_str().expect("UTF-8")]);
        place.image(&["rm", name]);
        good(&place.import(&archive).output().expect("polylane"));
        let again = place.path(&format!("{name}-again.oci"));
        place.image(&["export", name, again.to_str().expect("UTF-8")]);
        assert_eq!(fs::read(archive).expect("read"), fs::read(again).expect("read"));
    }
}

#[test]
fn a_layer_of_an_upper_of_the_kernels_shows_the_same_tree() {
    let test = "a_layer_of_an_upper_of_the_kernels_shows_the_same_tree";
    if unavailable(test) || lacks(test, &["setfattr", "getfattr"]) {
        return;
    }
    let Some(place) = Place::new(test) else { return };
    let lowers = make_lowers(&place);
    let at = place.path("merged");
    let script = format!(
        "mkdir k k/upper k/work merged; mount -t overlay overlay -o lowerdir=high:low,\
         upperdir=k/upper,workdir=k/work,redirect_dir=on,metacopy=on,index=off merged; \
         trap 'umount {0}' EXIT; \
         ({1}; {2})",
        at.display(),
        listed(at.to_str().expect("UTF-8"), CHANGES),
        listed(at.to_str().expect("UTF-8"), LIST)
    );
    let mounted = shell(place.dir.path(), &script);
    if String::from_utf8_lossy(&mounted.stderr).contains("mount: ") {
        return skip(test, "the kernel mounts no overlay here");
    }
    let expected = good(&mounted);
    let layer = place.path("k.tar");
    let mut diff = place.polylane();
    diff.args(["image", "diff", "--upper"]).arg(place.path("k/upper")).arg("-o").arg(&layer);
    for lower in &lowers {
        diff.arg("--lower").arg(lower);
    }
    good(&diff.output().expect("polylane"));
    let left: Vec<_> = fs::read_dir(place.path("k")).expect("list").collect();
    assert_eq!(left.len(), 2, "nothing is left beside the upper: {left:?}");
    assert_eq!(with_layer(&place, "kernels", fs::read(&layer).expect("read")), expected);
}

#[test]
fn sources_of_every_kind_come_in() {
    let Some(place) = Place::new("sources_of_every_kind_come_in") else { return };
    let script = "mkdir -p root/bin root/etc; cp -L \"$(command -v busybox || command -v cat)\" \
                  root/bin/sh; chmod 4755 root/bin/sh; chown 7:8 root/etc; \
                  ln root/bin/sh root/bin/x; \
                  long=$(printf 'n%.0s' $(seq 150)); mkdir -p root/$long/$long; \
                  echo 1 > root/$long/$long/f; ln -s ../$long root/etc/l; mkfifo root/p; \
                  tar -C root -cf plain.tar .; tar -C root --format=pax -czf pax.tar.gz .; \
                  tar -C root --format=gnu -cf gnu.tar .; \
                  ! command -v zstd || zstd -q plain.tar -o plain.tar.zst";
    good(&shell(place.dir.path(), script));
    let list = |root: &Path| {
        let root = root.to_str().expect("UTF-8");
        good(&shell(
            place.dir.path(),
            &listed(root, LIST.split("find . ! -type l").next().unwrap_or("")),
        ))
    };
    let expected = list(&place.path("root"));
    let plain = fs::read(place.path("plain.tar")).expect("read");
    let layout = place.layout("layout", std::slice::from_ref(&plain));
    good(&shell(place.dir.path(), "tar -C layout -cf archive.tar ."));
    let config = format!(r#"{{"rootfs":{{"diff_ids":["sha256:{}"]}}}}"#, hex(&plain));
    let manifest = r#"[{"Config":"c.json","RepoTags":["saved:1"],"Layers":["l/layer.tar"]}]"#;
    let members = [
        file("c.json", config.as_bytes()),
        file("l/layer.tar", &plain),
        file("manifest.json", manifest.as_bytes()),
    ];
    fs::write(place.path("save.tar"), tar_of(&members)).expect("write");
    let mut sources = vec![place.path("root"), layout];
    sources.extend(
        ["plain.tar", "pax.tar.gz", "gnu.tar", "plain.tar.zst", "archive.tar", "save.tar"]
            .map(|name| place.path(name))
            .into_iter()
            .filter(|path| path.exists()),
    );
    for (index, source) in sources.iter().enumerate() {
        let name = format!("i{index}");
        good(&place.import(source).arg(&name).output().expect("polylane"));
        assert_eq!(list(&place.lowers(&name)[0]), expected, "{}", source.display());
    }
    let names: Vec<_> = (0..sources.len()).map(|index| format!("i{index}")).collect();
    assert_eq!(place.image(&["ls"]).lines().count(), 1 + names.len());
    let words: Vec<_> = std::iter::once("rm").chain(names.iter().map(String::as_str)).collect();
    place.image(&words);
    place.assert_no_leak(0, "after rm");
}

#[test]
fn a_debian_comes_in_and_runs() {
    let test = "a_debian_comes_in_and_runs";
    if unavailable(test) || lacks(test, &["debootstrap"]) {
        return;
    }
    let Some(place) = Place::new(test) else { return };
    let script = "debootstrap --variant=minbase stable root > log 2>&1 || \
                  { tail -n 1 log; exit 9; }; tar -C root -cf debian.tar .";
    let made = shell(place.dir.path(), script);
    if made.status.code() == Some(9) {
        return skip(test, String::from_utf8_lossy(&made.stdout).trim());
    }
    good(&made);
    let begun = Instant::now();
    good(&place.import(&place.path("debian.tar")).output().expect("polylane"));
    println!("image import of a Debian: {:.2} s", begun.elapsed().as_secs_f64());
    let mut run = place.polylane();
    run.args(["run", "--mem", "--root", "--lower"]).arg(&place.lowers("debian")[0]);
    run.args(["--", "sh", "-c", "dpkg --audit && dpkg -s apt | grep Status && echo x > /etc/new"]);
    assert_eq!(good(&run.output().expect("polylane")), "Status: install ok installed\n");
}

/// Two layers that an ordinary user cannot make as they are.
fn layers_of_several_users() -> [Vec<u8>; 2] {
    let dir = |path: &str, mode| {
        let mut header = header(EntryType::Directory, path, "", 0);
        header.set_mode(mode);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let mut program = header(EntryType::Regular, "closed/su", "", 3);
    program.set_mode(0o4111);
    program.set_cksum();
    let mut program = [program.as_bytes(), &b"abc"[..]].concat();
    program.resize(1024, 0);
    let mut device = header(EntryType::Char, "null", "", 0);
    device.set_device_major(1).expect("ustar");
    device.set_device_minor(3).expect("ustar");
    device.set_cksum();
    let low = tar_of(&[file("gone", b"1"), dir("d", 0o755), file("d/low", b"1")]);
    let high = tar_of(&[
        dir("./", 0o555),
        dir("closed", 0o0),
        program,
        device.as_bytes().to_vec(),
        file(".wh.gone", b""),
        file("d/.wh..wh..opq", b""),
        file("d/high", b"1"),
    ]);
    [low, high]
}

/// By nobody, whose files all are then: a line says so, and a lane shows them.
#[test]
fn an_ordinary_user_has_images_of_his_own() {
    let test = "an_ordinary_user_has_images_of_his_own";
    if unavailable(test) || lacks(test, &["setpriv", "mknod"]) {
        return;
    }
    let Some(place) = Place::new(test) else { return };
    let layers = layers_of_several_users();
    let layout = place.layout("layout", &layers);
    fs::set_permissions(place.dir.path(), fs::Permissions::from_mode(0o1777)).expect("chmod");
    let copied = Command::new("cp").arg(binary()).arg(place.path("polylane")).status();
    assert!(copied.expect("cp").success());
    let as_nobody = |script: &str| {
        let script = format!(
            "mknod -m 666 fuse c 10 229; mount --bind fuse /dev/fuse; rm -f fuse 2>/dev/null || :; \
             export XDG_STATE_HOME=$PWD/own; exec setpriv --reuid 65534 --regid 65534 \
             --clear-groups --inh-caps=-all env -u XDG_RUNTIME_DIR bash -euc '{script}'"
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation=private", "bash", "-euc", &script]);
        command.current_dir(place.dir.path()).stdin(Stdio::null()).output().expect("unshare")
    };
    let imported = as_nobody(&format!("mkdir own; ./polylane image import {} i", layout.display()));
    let said = String::from_utf8_lossy(&imported.stderr).into_owned();
    good(&imported);
    assert!(said.contains("are yours") && said.matches('\n').count() == 1, "{said}");
    let mut own = Place { dir: tempfile::tempdir().expect("tempdir"), state: place.path("own") };
    let lowers = own.lowers("i");
    let list = format!(
        "cd {}; find . -printf \"%P %y %m %U\\n\" | sort; cat closed/su; cd {}; cat d/low",
        lowers[0].display(),
        lowers[1].display()
    );
    let expected = " d 755 65534\nclosed d 700 65534\nclosed/su f 511 65534\nd d 755 65534\n\
                    d/high f 644 65534\ngone c 0 65534\nabc1";
    assert_eq!(good(&as_nobody(&list)), expected);
    own.state.clear();
    let layers = lowers.iter().map(|lower| format!("--lower {}", lower.display()));
    let run = format!(
        "./polylane run --mem {} --no-preload -- sh -c \"cd /lane && echo * d/*\"",
        layers.collect::<Vec<_>>().join(" ")
    );
    let allowed = as_nobody("unshare --user --mount true");
    if !allowed.status.success() {
        return skip(test, "ordinary users may make no user namespaces here");
    }
    assert_eq!(good(&as_nobody(&run)), "closed d d/high\n");
    let removed = "./polylane image rm i; ls own/polylane/images/layers own/polylane/images/tmp";
    assert_eq!(good(&as_nobody(removed)).matches("sha").count(), 0);
    let left = fs::read_dir(place.path("own/polylane/images/layers")).expect("list").count();
    assert_eq!(left, 0);
}

#[test]
fn hostile_sources_are_refused_in_one_line() {
    let Some(place) = Place::new("hostile_sources_are_refused_in_one_line") else { return };
    let good_tar = tar_of(&[file("a", b"1")]);
    good(&place.import(&place.layout("good", &[good_tar])).output().expect("polylane"));
    let device = |major: u32, minor: u32| {
        let mut header = header(EntryType::Char, "dev", "", 0);
        header.set_device_major(major).expect("ustar");
        header.set_device_minor(minor).expect("ustar");
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let pax = |record: &str| member(EntryType::XHeader, "pax", "", record.as_bytes());
    let dir = |path: &str| member(EntryType::Directory, path, "", b"");
    let (link, hard) = (EntryType::Symlink, EntryType::Link);
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("absolute", vec![file("/etc/x", b"")]),
        ("'..'", vec![file("a/../../x", b"")]),
        ("leads out", vec![member(link, "l", "/", b""), file("l/etc/x", b"")]),
        ("not in the layer", vec![member(hard, "h", "../../lock", b"")]),
        ("not in the layer", vec![member(link, "l", "..", b""), member(hard, "h", "l/lock", b"")]),
        ("device 1/1", vec![device(1, 1)]),
        ("device 0/0", vec![device(0, 0)]),
        ("same layer", vec![dir("d/"), file("d/x", b""), file("d", b"")]),
        ("sparse", vec![member(EntryType::GNUSparse, "s", "", b"")]),
        ("sparse", vec![pax("22 GNU.sparse.major=1\n"), file("s", b"")]),
        ("overlayfs' mark", vec![pax("44 SCHILY.xattr.trusted.overlay.redirect=/x\n"), dir("d")]),
        ("cannot be read", vec![pax("999 path=x\n"), file("s", b"")]),
    ];
    for (index, (words, members)) in cases.iter().enumerate() {
        let layout = place.layout(&format!("bad{index}"), &[tar_of(members)]);
        place.refused(&mut place.import(&layout), words);
        place.assert_no_leak(1, words);
    }
    let layout = place.layout("digest", &[tar_of(&[file("b", b"1")])]);
    let blob = layout.join("blobs/sha256").join(hex(&tar_of(&[file("b", b"1")])));
    fs::write(blob, tar_of(&[file("b", b"2")])).expect("write");
    place.refused(&mut place.import(&layout), "another digest");
    place.refused(place.import(&place.path("good")).arg("../x"), "not a name");
    place.refused(&mut place.import(&place.path("absent")), "No such file");
    place.assert_no_leak(1, "names and places");
}

/// Imports that many empty files, a thousand to a directory, removes them, and says what memory
/// that took, in KiB.
fn memory_of_members(place: &Place, count: u32) -> i64 {
    let pipe = place.path(&format!("pipe{count}"));
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("made");
    let mut import = place.import(&pipe);
    let child = import.arg("many").stdout(Stdio::null()).spawn().expect("polylane");
    let mut to = BufWriter::new(File::options().write(true).open(&pipe).expect("opened"));
    for index in 0..count {
        let (dir, name) = (index / 1000, index % 1000);
        let path = format!("d{dir}/f{name}");
        to.write_all(header(EntryType::Regular, &path, "", 0).as_bytes()).expect("written");
    }
    to.write_all(&[0; 1024]).expect("written");
    drop(to);
    let used = waited(child);
    let root = &place.lowers("many")[0];
    let in_dir = |dir: u32| fs::read_dir(root.join(format!("d{dir}"))).expect("listed").count();
    assert_eq!((0..count.div_ceil(1000)).map(in_dir).sum::<usize>(), count as usize);
    place.image(&["rm", "many"]);
    place.assert_no_leak(0, "after rm");
    used
}

/// Members are read and made one after the other: nothing of them stays in memory but little.
#[test]
fn many_members_come_in() {
    /// Some two hundred bytes for each more.
    const MORE_KIB_MAX: i64 = 8 << 10;
    let Some(place) = Place::new("many_members_come_in") else { return };
    let few = memory_of_members(&place, 2_000);
    let many = memory_of_members(&place, 40_000);
    assert!(many - few < MORE_KIB_MAX, "{few} KiB, and {many}");
}

/// The same with a million, where there is room.
#[test]
fn a_million_members_come_in() {
    const MEMORY_KIB_MAX: i64 = 64 << 10;
    let test = "a_million_members_come_in";
    let Some(mut place) = Place::new(test) else { return };
    let free = rustix::fs::statvfs("/dev/shm").map_or(0, |fs| fs.f_bavail * fs.f_frsize);
    if free < 4 << 30 {
        return skip(test, "it wants 4 GiB in /dev/shm");
    }
    // So many files take minutes on some disks.
    let state = tempfile::tempdir_in("/dev/shm").expect("tempdir");
    place.state = state.path().to_path_buf();
    let used = memory_of_members(&place, 1_000_000);
    assert!(used < MEMORY_KIB_MAX, "{used} KiB");
}

/// Waits for a process that ends well; the most memory that it had, in KiB, seen now and then.
fn waited(mut child: std::process::Child) -> i64 {
    let status_file = format!("/proc/{}/status", child.id());
    let mut most = 0;
    loop {
        let text = fs::read_to_string(&status_file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        most = most.max(kib.unwrap_or(0));
        if let Some(status) = child.try_wait().expect("its status") {
            assert!(status.success(), "{status}");
            return most;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A layout of two layers of some hundred files.
fn some_layout(place: &Place) -> PathBuf {
    let mut rng = Rng::new(28);
    let layer = |rng: &mut Rng, first: u32| {
        let files = (first..first + 200).map(|index| {
            let mut data = vec![0; rng.below(40_000) as usize];
            data.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
            file(&format!("d{}/f{index}", index % 7), &data)
        });
        tar_of(&files.collect::<Vec<_>>())
    };
    let layers = [layer(&mut rng, 0), layer(&mut rng, 1000)];
    place.layout("some", &layers)
}

#[test]
fn a_killed_import_leaves_nothing_that_the_next_command_minds() {
    const KILLS: u64 = 36;
    let Some(place) = Place::new("a_killed_import_leaves_nothing_that_the_next_command_minds")
    else {
        return;
    };
    let source = some_layout(&place);
    let begun = Instant::now();
    good(&place.import(&source).arg("i").output().expect("polylane"));
    let whole = begun.elapsed();
    place.image(&["rm", "i"]);
    let mut rng = Rng::new(9);
    let (mut killed, mut ended) = (0, 0);
    for round in 0..KILLS {
        let mut import = place.import(&source);
        let mut child =
            import.arg("i").stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("polylane");
        // Spread over the whole, and a little past its end.
        let at = whole.mul_f64(1.1 * (round as f64 + rng.below(100) as f64 / 100.0) / KILLS as f64);
        std::thread::sleep(at);
        let _ = child.kill();
        match child.wait().expect("its status").success() {
            true => ended += 1,
            false => killed += 1,
        }
        // An image that is there is whole; one that is not is made by the next import.
        let there = place.image(&["ls"]).lines().count() - 1;
        if there == 1 {
            place.assert_image_is_whole(&source);
        }
        if round % 3 == 0 {
            good(&place.import(&source).arg("i").output().expect("polylane"));
            place.assert_image_is_whole(&source);
            place.assert_no_leak(2, "after the next import");
        }
        if round % 3 != 2 {
            let _ = place.polylane().args(["image", "rm", "i"]).output().expect("polylane");
            let there = place.image(&["ls"]).lines().count() - 1;
            // `rm` of an image that is not there clears nothing.
            if round % 3 == 0 {
                place.assert_no_leak(2 * there, "after rm");
            }
        }
    }
    assert!(killed > KILLS / 4, "{killed} were killed, {ended} ended before");
    good(&place.import(&source).arg("i").output().expect("polylane"));
    place.image(&["rm", "i"]);
    place.assert_no_leak(0, "at the end");
}

impl Place {
    fn assert_image_is_whole(&self, layout: &Path) {
        for root in self.lowers("i") {
            let name = root.file_name().expect("a digest").to_owned();
            let blob = fs::read(layout.join("blobs/sha256").join(&name)).expect("its tar file");
            let mut archive = tar::Archive::new(&blob[..]);
            for entry in archive.entries().expect("a tar file") {
                let mut entry = entry.expect("a member");
                let path = root.join(entry.path().expect("a path"));
                let mut data = Vec::new();
                std::io::Read::read_to_end(&mut entry, &mut data).expect("its data");
                assert!(fs::read(&path).expect("there") == data, "{}", path.display());
            }
        }
    }
}

#[test]
fn imports_of_one_image_at_once_all_end_well() {
    let Some(place) = Place::new("imports_of_one_image_at_once_all_end_well") else { return };
    let source = some_layout(&place);
    for round in 0..4 {
        let start = |name: &str| {
            let mut import = place.import(&source);
            import.arg(name).stdout(Stdio::null()).spawn().expect("polylane")
        };
        let mut children = vec![start("i"), start("i"), start("j")];
        if round % 2 == 1 {
            // Layers that one counts on are removed by another.
            for _ in 0..20 {
                let _ = place.polylane().args(["image", "rm", "i", "j"]).output();
            }
        }
        for child in &mut children {
            assert!(child.wait().expect("its status").success());
        }
        good(&place.import(&source).arg("i").output().expect("polylane"));
        place.assert_image_is_whole(&source);
        let _ = place.polylane().args(["image", "rm", "j"]).output();
        place.image(&["rm", "i"]);
        place.assert_no_leak(0, "after rm");
    }
}

#[test]
fn a_full_disk_refuses_an_image_and_nothing_else() {
    let test = "a_full_disk_refuses_an_image_and_nothing_else";
    let Some(place) = Place::new(test) else { return };
    fs::create_dir(&place.state).expect("mkdir");
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8M,nr_inodes=300", "tmpfs"])
        .arg(&place.state)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        return skip(test, "no tmpfs can be mounted");
    }
    let _mounted = Unmount(place.state.clone());
    let source = some_layout(&place);
    let small = place.layout("small", &[tar_of(&[file("a", b"1")])]);
    let many: Vec<_> = (0..400).map(|index| file(&format!("f{index}"), b"")).collect();
    let many = place.layout("many", &[tar_of(&many)]);
    let dir = place.path("dir");
    fs::create_dir(&dir).expect("mkdir");
    fs::write(dir.join("f"), vec![1; 9 << 20]).expect("write");
    good(&place.import(&small).arg("small").output().expect("polylane"));
    for source in [&source, &many, &dir] {
        place.refused(place.import(source).arg("big"), "No space left");
        place.assert_no_leak(1, "after a full disk");
        good(&place.import(&small).arg("again").output().expect("polylane"));
        place.image(&["rm", "again"]);
    }
    assert_eq!(fs::metadata(place.images()).expect("there").permissions().mode() & 0o77, 0);
    place.image(&["rm", "small"]);
}

struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

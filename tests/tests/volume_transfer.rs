//! `volume import` and `export`: formats by content, pipes, other file systems, odd names, and
//! images that are not whole or go on elsewhere.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use polylane_tests::step::no_loop;
use polylane_tests::{binary, lacks, skip, tool};

const MIB: usize = 1 << 20;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new(test: &str, needs: &[&str]) -> Option<Place> {
        if lacks(test, needs) {
            return None;
        }
        Some(Place { dir: tempfile::tempdir().expect("tempdir") })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.current_dir(self.dir.path()).env("XDG_STATE_HOME", self.at("state"));
        command.arg("volume").args(words);
        command
    }

    fn volume(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("run polylane")
    }

    fn done(&self, words: &[&str]) {
        let output = self.volume(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
    }

    fn refused(&self, words: &[&str]) -> String {
        let output = self.volume(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
        said
    }

    fn qemu_img(&self, words: &[&str]) {
        let mut command = Command::new(tool("qemu-img").expect("qemu-img"));
        let output = command.current_dir(self.dir.path()).args(words).output().expect("run");
        assert!(output.status.success(), "qemu-img {words:?}: {output:?}");
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.at(name)).expect("read")
    }

    /// A raw disk of 8 MiB, a part of it holes.
    fn disk(&self, name: &str) -> Vec<u8> {
        let mut bytes = vec![0; 8 * MIB];
        for (at, byte) in bytes[MIB..3 * MIB].iter_mut().enumerate() {
            *byte = (at / 7 % 251) as u8 + 1;
        }
        bytes[7 * MIB] = 9;
        fs::write(self.at(name), &bytes).expect("write");
        bytes
    }
}

const FORMATS: [&str; 7] = ["qcow2", "vmdk", "vdi", "vpc", "vhdx", "qed", "qcow"];

#[test]
fn images_are_told_by_their_content_whatever_their_name() {
    let name = "images_are_told_by_their_content_whatever_their_name";
    let Some(place) = Place::new(name, &["qemu-img"]) else { return };
    let disk = place.disk("disk");
    for format in FORMATS {
        place.qemu_img(&["convert", "-f", "raw", "-O", format, "disk", "x.raw"]);
        place.done(&["import", "x.raw", "v"]);
        let found = place.read("v");
        // A VHD's size is whole cylinders.
        assert!(found.len() >= disk.len(), "{format}: {}", found.len());
        assert!(found[..disk.len()] == disk, "{format}");
        assert!(found[disk.len()..].iter().all(|byte| *byte == 0), "{format}");
        place.done(&["rm", "v", "--force"]);
        // Through a pipe.
        let piped = place
            .command(&["import", "-", "p"])
            .stdin(fs::File::open(place.at("x.raw")).expect("open"))
            .status();
        assert!(piped.expect("run").success(), "{format}");
        assert!(place.read("p")[..disk.len()] == disk, "{format}");
        place.done(&["rm", "p", "--force"]);
        // Taken for what it is not, when asked to.
        place.done(&["import", "--format", "raw", "x.raw", "v"]);
        let image = place.read("x.raw");
        assert!(place.read("v")[..image.len()] == image, "{format}");
        place.done(&["rm", "v", "--force"]);
    }
}

#[test]
fn images_that_were_cut_are_refused() {
    let name = "images_that_were_cut_are_refused";
    let Some(place) = Place::new(name, &["qemu-img", "mke2fs"]) else { return };
    place.disk("disk");
    for format in FORMATS {
        if format == "qcow" {
            // qemu-img cannot say where such an image has its data.
            continue;
        }
        place.qemu_img(&["convert", "-f", "raw", "-O", format, "disk", "x"]);
        let whole = fs::metadata(place.at("x")).expect("stat").len();
        for length in [whole - 70_000, whole / 2, 1500] {
            fs::File::options()
                .write(true)
                .open(place.at("x"))
                .and_then(|x| x.set_len(length))
                .expect("cut");
            let line = place.refused(&["import", "x", "v"]);
            assert!(line.starts_with("polylane: x: "), "{format} {length}: {line}");
            assert!(!place.at("v").exists() && !place.at("v.polylane").exists(), "{format}");
        }
    }
    // A raw disk says how long it is, too.
    place.done(&["create", "v", "--size", "32M"]);
    place.done(&["export", "v", "raw"]);
    fs::File::options()
        .write(true)
        .open(place.at("raw"))
        .and_then(|x| x.set_len(20 << 20))
        .expect("cut");
    let line = place.refused(&["import", "raw", "w"]);
    assert!(line.contains("raw: was cut: its ext4 file system says 33554432 bytes"), "{line}");
    place.done(&["import", "--format", "raw", "raw", "w"]);
}

#[test]
fn images_that_name_other_files_and_containers_are_refused() {
    let name = "images_that_name_other_files_and_containers_are_refused";
    let Some(place) = Place::new(name, &["qemu-img"]) else { return };
    let secret = vec![b's'; MIB];
    fs::write(place.at("secret"), &secret).expect("write");
    let backing = place.at("secret").display().to_string();
    place.qemu_img(&["create", "-q", "-f", "qcow2", "-b", &backing, "-F", "raw", "backing"]);
    place.qemu_img(&["create", "-q", "-f", "qed", "-b", &backing, "-F", "raw", "base.qed"]);
    place.qemu_img(&["create", "-q", "-f", "vmdk", "disk.vmdk", "1M"]);
    place.qemu_img(&["create", "-q", "-f", "vmdk", "-b", "disk.vmdk", "-F", "vmdk", "child.vmdk"]);
    let data = format!("data_file={backing},data_file_raw=on");
    place.qemu_img(&["create", "-q", "-f", "qcow2", "-o", &data, "data", "1M"]);
    fs::write(place.at("secret"), &secret).expect("write");
    let flat = ["create", "-q", "-f", "vmdk", "-o", "subformat=monolithicFlat", "flat.vmdk", "1M"];
    place.qemu_img(&flat);
    for image in ["backing", "base.qed", "child.vmdk", "data", "flat.vmdk"] {
        let line = place.refused(&["import", image, "v"]);
        assert!(line.contains("another file") || line.contains("other files"), "{line}");
        assert!(!place.at("v").exists(), "{image}");
    }
    // Not told by its header: the sandbox has no such file.
    let mut header = fs::read(place.at("disk.vmdk")).expect("read");
    let text = String::from_utf8_lossy(&header).into_owned();
    let line = text.lines().find(|line| line.contains("SPARSE")).expect("an extent").to_string();
    let at = text.find(&line).expect("an extent");
    let other = format!("RW 2048 FLAT \"{backing}\" 0");
    if other.len() <= line.len() + 200 {
        let end = at + other.len().max(line.len());
        header[at..end].fill(b'\n');
        header[at..at + other.len()].copy_from_slice(other.as_bytes());
        fs::write(place.at("sly.vmdk"), header).expect("write");
        let output = place.volume(&["import", "sly.vmdk", "v"]);
        let found = fs::read(place.at("v")).unwrap_or_default();
        assert!(!found.contains(&b's'), "{output:?}");
        let _ = place.volume(&["rm", "v", "--force"]);
    }
    for (container, start) in
        [("x.gz", &b"\x1f\x8b\x08"[..]), ("x.xz", b"\xfd7zXZ\0"), ("x.zip", b"PK\x03\x04")]
    {
        fs::write(place.at(container), [start, &[1; 4096]].concat()).expect("write");
        let line = place.refused(&["import", container, "v"]);
        assert!(line.contains("unpack it first"), "{line}");
    }
}

#[test]
fn volumes_come_and_go_by_pipes_and_across_file_systems() {
    let name = "volumes_come_and_go_by_pipes_and_across_file_systems";
    let Some(place) = Place::new(name, &[]) else { return };
    let disk = place.disk("disk");
    let script = "cat disk | \"$0\" volume import /dev/stdin v
                  \"$0\" volume export v - | cmp - disk
                  \"$0\" volume export v - >out; cmp out disk
                  mkfifo in; (cat disk >in &); \"$0\" volume import in w
                  \"$0\" volume clone w c; \"$0\" volume export c - | cmp - disk
                  mkfifo to; (\"$0\" volume export c to &); cmp to disk";
    let mut command = Command::new("sh");
    command.current_dir(place.dir.path()).env("XDG_STATE_HOME", place.at("state"));
    let output = command.args(["-euc", script]).arg(binary()).output().expect("run sh");
    assert!(output.status.success(), "{output:?}");
    assert!(place.read("w") == disk || place.volume(&["info", "w"]).status.success());
    // Without a reader.
    let mut command = place.command(&["export", "v", "-"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("run");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("-: cannot write it: Broken pipe"));
    // What ends within a sector, in pieces.
    let mut child =
        place.command(&["import", "-", "odd"]).stdin(Stdio::piped()).spawn().expect("run");
    let mut stdin = child.stdin.take().expect("a pipe");
    for _ in 0..1000 {
        stdin.write_all(&[7; 1001]).expect("write");
    }
    drop(stdin);
    assert!(child.wait().expect("ends").success());
    assert_eq!(place.read("odd").len(), 1_001_000_usize.next_multiple_of(512));
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else { return skip(name, "no /dev/shm") };
    let far = |name: &str| memory.path().join(name).display().to_string();
    place.done(&["export", "v", &far("raw")]);
    assert!(fs::read(far("raw")).expect("read") == disk);
    place.done(&["import", &far("raw"), "back"]);
    assert!(place.read("back") == disk);
    place.done(&["import", "v", &far("there")]);
    assert!(fs::read(far("there")).expect("read") == disk);
}

#[test]
fn names_need_be_no_text() {
    let Some(place) = Place::new("names_need_be_no_text", &["qemu-img"]) else { return };
    let disk = place.disk("disk");
    let name = |text: &[u8]| OsString::from_vec(text.to_vec());
    let done = |words: &[OsString]| {
        let output = place.command(&[]).args(words).output().expect("run polylane");
        assert!(output.status.success(), "{words:?}: {output:?}");
        output
    };
    let [v, s, c, q, i] =
        [&b"v\xff.img"[..], b"s \xfe,x", b"c\n\x80", b"q\xff.qcow2", b"i\xfd"].map(name);
    let disk_name = OsString::from("disk");
    let word = |text: &str| OsString::from(text);
    done(&[word("import"), disk_name, v.clone()]);
    done(&[word("snapshot"), v.clone(), s.clone()]);
    done(&[word("clone"), s.clone(), c.clone()]);
    done(&[word("export"), c.clone(), q.clone()]);
    done(&[word("import"), q, i.clone()]);
    assert!(fs::read(place.dir.path().join(Path::new(&i))).expect("read")[..disk.len()] == disk);
    for volume in [&v, &s, &c, &i] {
        let told = done(&[word("info"), word("--json"), volume.clone()]);
        let json: serde_json::Value = serde_json::from_slice(&told.stdout).expect("JSON");
        assert_eq!(json["size_bytes"], disk.len(), "{volume:?}");
        done(&[word("map"), word("--json"), volume.clone()]);
        done(&[word("set"), volume.clone(), word("--weight"), word("9")]);
    }
    done(&[word("ls"), word("--json"), word(".")]);
    for volume in [v, c, s, i] {
        done(&[word("rm"), word("--force"), volume]);
    }
}

/// A file that its programs alone may read is converted, too.
#[test]
fn a_closed_image_of_another_user_s_is_imported_by_root() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let name = "a_closed_image_of_another_user_s_is_imported_by_root";
    let Some(place) = Place::new(name, &["qemu-img"]) else { return };
    if fs::metadata("/proc/self").expect("stat").uid() != 0 {
        return skip(name, "only root reads files of others");
    }
    let disk = place.disk("disk");
    place.qemu_img(&["convert", "-f", "raw", "-O", "qcow2", "disk", "x"]);
    fs::set_permissions(place.at("x"), PermissionsExt::from_mode(0o600)).expect("chmod");
    chown(place.at("x"), Some(1000), Some(1000)).expect("chown");
    place.done(&["import", "x", "v"]);
    assert!(place.read("v") == disk);
    // Its own header may lie as it likes: nothing is written to it.
    let file = fs::File::open(place.at("x")).expect("open");
    let mut magic = [0; 4];
    file.read_exact_at(&mut magic, 0).expect("read");
    assert_eq!(magic, *b"QFI\xfb");
}

/// A loop device over a file, until it is dropped.
struct Loop(String);

impl Loop {
    fn over(file: &Path, options: &[&str]) -> Loop {
        let mut losetup = Command::new("losetup");
        let made = losetup.args(["-f", "--show"]).args(options).arg(file).output().expect("run");
        assert!(made.status.success(), "{made:?}");
        Loop(String::from_utf8_lossy(&made.stdout).trim().to_string())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
        let _ = fs::remove_file(format!("{}.polylane", self.0));
    }
}

/// A device's name is not given to an overlay; what is on it is checked and written to a file.
#[test]
fn block_devices_are_checked_and_exported_and_keep_their_names() {
    let name = "block_devices_are_checked_and_exported_and_keep_their_names";
    if no_loop(name) {
        return;
    }
    let Some(place) = Place::new(name, &["losetup", "mke2fs", "e2fsck"]) else { return };
    place.done(&["create", "image", "--size", "16M"]);
    let bytes = fs::read(place.at("image")).expect("the image");
    for options in [&["-r"][..], &[]] {
        let device = Loop::over(&place.at("image"), options);
        place.done(&["check", "-n", &device.0]);
        place.done(&["export", &device.0, "copy"]);
        assert!(fs::read(place.at("copy")).expect("the copy") == bytes, "{options:?}");
        if options.is_empty() {
            for words in [["clone", &device.0, "new"], ["snapshot", &device.0, "new"]] {
                let said = place.refused(&words);
                assert!(said.contains("block device has no snapshots or clones"), "{said}");
            }
        } else {
            let said = place.refused(&["check", &device.0]);
            assert!(said.contains("Read-only file system"), "{said}");
        }
        let still = fs::metadata(&device.0).expect("its node").file_type();
        assert!(std::os::unix::fs::FileTypeExt::is_block_device(&still), "{options:?}");
        assert!(!place.at("new").exists());
        fs::remove_file(place.at("copy")).expect("removed");
    }
}

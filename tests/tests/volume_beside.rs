//! What lies beside a volume: links, sidecars and bases that others put there, and volumes that
//! were moved.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::UNIX_EPOCH;

use polylane_tests::pool::Run;
use polylane_tests::volume::HostFs;
use polylane_tests::{binary, lacks, skip, unavailable};

/// A user who is not root.
const OTHER: u32 = 1000;

/// A directory of volumes, with a state directory apart from it.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new(test: &str) -> Option<Place> {
        if lacks(test, &["mke2fs", "e2fsck", "resize2fs"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("tempdir");
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
        Some(Place { dir })
    }

    /// The same, of volumes in a directory of another user's.
    fn of_another(test: &str) -> Option<(Place, PathBuf)> {
        if fs::metadata("/proc/self").expect("stat").uid() != 0 {
            skip(test, "only root makes volumes in directories of others");
            return None;
        }
        let place = Place::new(test)?;
        let theirs = place.at("theirs");
        fs::create_dir(&theirs).expect("mkdir");
        chown(&theirs, Some(OTHER), Some(OTHER)).expect("chown");
        Some((place, theirs))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `polylane volume WORDS`, in the directory.
    fn volume(&self, words: &str) -> Output {
        let mut command = Command::new(binary());
        command.current_dir(self.dir.path()).env("XDG_STATE_HOME", self.at("state"));
        command.arg("volume").args(words.split(' ')).output().expect("run polylane")
    }

    fn done(&self, words: &str) -> String {
        let output = self.volume(words);
        assert!(output.status.success(), "volume {words}: {output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn refused(&self, words: &str) -> String {
        let output = self.volume(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "volume {words}: {said}");
        assert_eq!(said.lines().count(), 1, "volume {words}: {said}");
        said
    }

    /// Runs a script on a volume; what it says, or the line that refuses it.
    fn run(&self, volume: &str, script: &str) -> Result<String, String> {
        let mut run = Run::new("--volume").arg(self.at(volume)).script(script);
        run = run.env("XDG_STATE_HOME", self.at("state"));
        let output = run.output();
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn reads(&self, volume: &str, text: &str) {
        assert_eq!(self.run(volume, "cat /lane/f"), Ok(format!("{text}\n")), "{volume}");
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.at(from), self.at(to)).expect("rename");
    }
}

/// Has another user own a file.
fn give(path: &Path) {
    lchown(path, Some(OTHER), Some(OTHER)).expect("chown");
}

#[test]
fn links_beside_a_volume_are_not_followed() {
    let Some((place, theirs)) = Place::of_another("links_beside_a_volume_are_not_followed") else {
        return;
    };
    let verbs = [
        "create theirs/v --size 16M --fs none",
        "set theirs/v --weight 7",
        "resize theirs/v 20M",
        "snapshot theirs/v theirs/n",
        "clone theirs/v theirs/n",
        "import theirs/v theirs/n",
        "rm --force theirs/v",
    ];
    let traps = ["v.polylane", "v.polylane.new", "v.polylane-raw", "n.polylane", "n.polylane.new"];
    for verb in verbs {
        for trap in traps {
            for entry in fs::read_dir(&theirs).expect("list").flatten() {
                fs::remove_file(entry.path()).expect("remove");
            }
            if !verb.starts_with("create") {
                place.done("create theirs/v --size 16M --fs none");
            }
            let precious = place.at("precious");
            fs::write(&precious, "precious").expect("write");
            let _ = fs::remove_file(theirs.join(trap));
            symlink(&precious, theirs.join(trap)).expect("link");
            give(&theirs.join(trap));
            // Done or refused, as it may be.
            let output = place.volume(verb);
            let kept = fs::read(&precious).expect("there");
            let owner = fs::metadata(&precious).expect("stat").uid();
            assert_eq!((&kept[..], owner), (&b"precious"[..], 0), "{verb}, {trap}: {output:?}");
        }
    }
}

#[test]
fn a_base_is_the_one_that_the_volume_was_put_on() {
    let name = "a_base_is_the_one_that_the_volume_was_put_on";
    let Some((place, theirs)) = Place::of_another(name).filter(|_| !unavailable(name)) else {
        return;
    };
    let secret = place.at("secret");
    fs::create_dir(&secret).expect("mkdir");
    place.done("create secret/b --size 32M");
    place.run("secret/b", "echo secret > /lane/f").expect("secret");
    // By root, in a directory where the other user may exchange every name.
    place.done("create theirs/v --size 32M");
    place.run("theirs/v", "echo own > /lane/f").expect("own");
    place.done("clone theirs/v theirs/c");
    let sidecar = theirs.join("c.polylane");
    let Ok(text) = fs::read_to_string(&sidecar) else { return skip(name, "no sidecar") };
    let original: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    if original["overlays"].as_array().is_none_or(Vec::is_empty) {
        return skip(name, "this host shares blocks: there are no bases");
    }
    place.reads("theirs/c", "own");
    let secret_id = {
        let text = fs::read_to_string(place.at("secret/b.polylane")).expect("sidecar");
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["id"].clone()
    };
    symlink(place.at("secret/b"), theirs.join("link")).expect("link");
    fs::copy(place.at("secret/b.polylane"), theirs.join("link.polylane")).expect("copy");
    symlink(&secret, theirs.join("folder")).expect("link");
    for link in ["link", "folder", "link.polylane"] {
        give(&theirs.join(link));
    }
    let elsewhere = place.at("secret/b").display().to_string();
    for base in ["link", "folder/b", &elsewhere] {
        let mut tampered = original.clone();
        tampered["overlays"][0]["base"] = base.into();
        tampered["overlays"][0]["base_id"] = secret_id.clone();
        fs::remove_file(&sidecar).expect("remove");
        fs::write(&sidecar, tampered.to_string()).expect("write");
        give(&sidecar);
        let line = place.run("theirs/c", "cat /lane/f").expect_err(base);
        assert!(line.contains("link") || line.contains("is not taken for the base"), "{line}");
        for verb in ["export theirs/c out", "snapshot theirs/c theirs/n", "resize theirs/c 32M"] {
            place.refused(verb);
        }
        let info = place.volume("info --json theirs/c");
        assert!(!String::from_utf8_lossy(&info.stdout).contains("ext4"), "{base}: {info:?}");
    }
    fs::write(&sidecar, text).expect("write");
    place.reads("theirs/c", "own");
    place.reads("secret/b", "secret");
}

#[test]
fn a_volume_s_own_name_is_no_link_of_another_user_s() {
    let name = "a_volume_s_own_name_is_no_link_of_another_user_s";
    let Some((place, theirs)) = Place::of_another(name) else { return };
    place.done("create v --size 16M --fs none");
    symlink(place.at("v"), theirs.join("v")).expect("link");
    give(&theirs.join("v"));
    for verb in
        ["info theirs/v", "export theirs/v out", "set theirs/v --weight 3", "check theirs/v"]
    {
        assert!(place.refused(verb).contains("leads by a symbolic link of another user"), "{verb}");
    }
    // Root's own link goes on.
    symlink(place.at("v"), place.at("l")).expect("link");
    place.done("info l");
}

/// What root said of a volume in another user's directory is kept in root's own state directory.
#[test]
fn a_sidecar_of_another_user_s_binds_nobody() {
    let name = "a_sidecar_of_another_user_s_binds_nobody";
    let Some((place, theirs)) = Place::of_another(name) else { return };
    let weight = |volume: &str| {
        let output = place.volume(&format!("info --json {volume}"));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")["weight"].clone()
    };
    place.done("create theirs/v --size 16M --fs none --weight 30");
    assert_eq!(weight("theirs/v"), 30);
    let sidecar = theirs.join("v.polylane");
    let text = fs::read_to_string(&sidecar).expect("sidecar");
    let text = text.replace("\"weight\": 30", "\"weight\": 9000");
    fs::remove_file(&sidecar).expect("remove");
    fs::write(&sidecar, &text).expect("write");
    give(&sidecar);
    assert_eq!(weight("theirs/v"), 30);
    // Beside a volume of root's in root's directory it has nothing to say at all.
    place.done("create v --size 16M --fs none --weight 30");
    give(&place.at("v.polylane"));
    assert!(place.refused("info v").contains("v.polylane: user 1000 may have written it"));
}

#[test]
fn volumes_that_were_moved_keep_their_bases() {
    let name = "volumes_that_were_moved_keep_their_bases";
    if unavailable(name) {
        return;
    }
    let Some(host) = HostFs::new(name, "ext4", 700 << 20) else { return };
    let dir = tempfile::tempdir_in(host.path()).expect("tempdir");
    let place = Place { dir };
    let make = |at: &str, kind: &str| {
        fs::create_dir(place.at(at)).expect("mkdir");
        place.done(&format!("create {at}/v --size 32M"));
        place.run(&format!("{at}/v"), "echo one > /lane/f").expect("run");
        place.done(&format!("{kind} {at}/v {at}/w"));
    };
    // The whole directory.
    make("a", "snapshot");
    place.rename("a", "b");
    assert!(place.refused("rm b/w").contains("is the base of"));
    place.reads("b/v", "one");
    for verb in ["rm d/v", "resize d/v 32M"] {
        make("c", "clone");
        place.rename("c", "d");
        place.done(verb);
        place.reads("d/w", "one");
        place.done("rm d/w");
        let _ = place.volume("rm d/v");
        assert_eq!(fs::read_dir(place.at("d")).expect("list").count(), 0, "{verb}: left behind");
        fs::remove_dir(place.at("d")).expect("rmdir");
    }
    // A copy to another name and directory, with its sidecar and without.
    for with in [true, false] {
        make("e", "clone");
        fs::create_dir(place.at("f")).expect("mkdir");
        place.rename("e/w", "f/x");
        if with {
            place.rename("e/w.polylane", "f/x.polylane");
        }
        let said = place.done("rm e/v");
        assert!(said.contains("stays, since") && said.contains("e/w was made on it"), "{said}");
        place.reads("f/x", "one");
        // It is found again where it is, and with it the base goes.
        place.done("set f/x --weight 5");
        place.done("rm --force f/x");
        let _ = place.volume("rm e/w");
        fs::remove_dir_all(place.at("e")).expect("remove");
        fs::remove_dir_all(place.at("f")).expect("remove");
    }
    // A copy on a disk that is not there.
    make("g", "snapshot");
    fs::create_dir(place.at("disk")).expect("mkdir");
    place.done("clone g/w disk/c");
    place.rename("disk", "away");
    place.done("rm g/v");
    assert!(place.refused("rm g/w").contains("disk/c, which is not there now"));
    place.rename("away", "disk");
    place.reads("disk/c", "one");
    place.rename("disk", "away");
    place.done("rm --force g/w");
}

/// A bind mount of the same file system is away after its command: records of what is on it stay
/// when there are too many, and one of a volume that has left a directory goes.
#[test]
fn records_of_volumes_on_a_mount_that_is_away_stay() {
    let name = "records_of_volumes_on_a_mount_that_is_away_stay";
    if unavailable(name) {
        return;
    }
    let Some(place) = Place::new(name) else { return };
    for dir in ["disk", "at", "here"] {
        fs::create_dir(place.at(dir)).expect("mkdir");
    }
    let mut script = "mount --make-rprivate / && mount --bind disk at && exec ".to_string();
    script.push_str(&format!("'{}' volume create at/v --size 32M", binary().display()));
    let mut mounts = Command::new("unshare");
    mounts.args(["--mount", "sh", "-c", &script]).current_dir(place.dir.path());
    let made = mounts.env("XDG_STATE_HOME", place.at("state")).status().expect("unshare");
    assert!(made.success() && place.at("disk/v").exists());
    let known = place.at("state/polylane/known");
    let records = || -> Vec<PathBuf> {
        let entries = fs::read_dir(&known).into_iter().flatten();
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    let first = records();
    let [away] = &first[..] else {
        return skip(name, "this file system keeps no birth times");
    };
    place.done("create here/v --size 32M");
    let left = records().into_iter().find(|path| path != away).expect("a record");
    fs::remove_dir_all(place.at("here")).expect("remove");
    for path in [away, &left] {
        let file = fs::File::options().write(true).open(path).expect("open");
        file.set_modified(UNIX_EPOCH).expect("age");
    }
    for number in 0..1024 {
        fs::write(known.join(format!("{number}.json")), "").expect("write");
    }
    // One of 32 new records, by chance, has the others looked at.
    for _ in 0..1024 {
        place.done("create other --size 32M");
        if !left.exists() {
            break;
        }
        fs::remove_file(place.at("other")).expect("remove");
    }
    assert!(!left.exists(), "its volume is gone");
    assert!(away.exists(), "its volume is there, where the mount is");
}

/// A copy of an overlay and its sidecar that another program puts beside it is on the same base,
/// whichever of those that the commands know goes first.
#[test]
fn volumes_that_were_copied_by_others_keep_their_bases() {
    let name = "volumes_that_were_copied_by_others_keep_their_bases";
    if unavailable(name) {
        return;
    }
    let Some(host) = HostFs::new(name, "ext4", 700 << 20) else { return };
    let place = Place { dir: tempfile::tempdir_in(host.path()).expect("tempdir") };
    for (to, gone) in [("h/x", "h/w"), ("h/x", "h/v")] {
        fs::create_dir(place.at("h")).expect("mkdir");
        place.done("create h/v --size 32M");
        place.run("h/v", "echo one > /lane/f").expect("run");
        place.done("clone h/v h/w");
        for end in ["", ".polylane"] {
            let copied = fs::copy(place.at(&format!("h/w{end}")), place.at(&format!("{to}{end}")));
            copied.expect("copied");
        }
        place.reads(to, "one");
        place.done(&format!("rm {gone}"));
        place.reads(to, "one");
        for other in ["h/v", "h/w"].iter().filter(|other| **other != gone) {
            place.reads(other, "one");
            place.done(&format!("resize {other} 32M"));
            place.reads(to, "one");
        }
        fs::remove_dir_all(place.at("h")).expect("remove");
    }
}

/// Copies that programs made of a copy-on-write volume's file, and files that were moved, are on
/// the same base: with the sidecar and without, on another disk, the base left behind or taken
/// along.
#[test]
fn volumes_are_found_wherever_they_were_copied_and_moved_to() {
    let name = "volumes_are_found_wherever_they_were_copied_and_moved_to";
    if unavailable(name) || lacks(name, &["cp", "mv", "e2fsck"]) {
        return;
    }
    let Some(host) = HostFs::new(name, "ext4", 700 << 20) else { return };
    let Some(other) = HostFs::new(name, "ext4", 300 << 20) else { return };
    let place = Place { dir: tempfile::tempdir_in(host.path()).expect("tempdir") };
    symlink(other.path(), place.at("disk")).expect("link");
    let shell = |script: &str| {
        let done = Command::new("sh").args(["-euc", script]).current_dir(place.dir.path()).output();
        let done = done.expect("sh");
        assert!(done.status.success(), "{script}: {done:?}");
    };
    for (number, (verb, to, what)) in ["cp -p", "mv"]
        .into_iter()
        .flat_map(|verb| ["a", "b", "disk/b"].map(|to| (verb, to)))
        .flat_map(|(verb, to)| ["w", "w w.polylane", "*"].map(|what| (verb, to, what)))
        .filter(|(_, to, what)| *to != "a" || *what == "w")
        .enumerate()
    {
        let way = format!("{verb} {what} {to}");
        shell("mkdir -p a b disk/b");
        place.done("create a/v --size 32M");
        place.run("a/v", "echo one > /lane/f").expect("run");
        place.done("clone a/v a/w");
        place.run("a/w", "echo two > /lane/f").expect("run");
        // In the same directory it gets another name.
        let there = if to == "a" { "a/x".to_string() } else { format!("{to}/w") };
        let target = if to == "a" { "a/x" } else { to };
        shell(&format!(
            "for file in {what}; do files=\"${{files-}} a/$file\"; done; \
            [ '{what}' != '*' ] || files='a/*'; {verb} $files {target}"
        ));
        assert_is_found(&place, &there, &way);
        place.reads(&there, "two");
        if what == "*" {
            assert_eq!(place.run(&format!("{to}/v"), "cat /lane/f"), Ok("one\n".into()), "{way}");
        } else {
            // The base is there as long as something that is on it is.
            place.done("rm a/v");
            place.reads(&there, "two");
            if verb == "mv" && number % 2 == 0 {
                let _ = place.volume("rm --force a/w");
                place.reads(&there, "two");
            }
        }
        shell("rm -rf a b disk/b");
    }
}

/// A copy-on-write volume's file is that to each command, and no ext4 to e2fsck.
fn assert_is_found(place: &Place, volume: &str, way: &str) {
    let info = place.volume(&format!("info --json {volume}"));
    let said: serde_json::Value = serde_json::from_slice(&info.stdout).expect(way);
    assert!(said["base"].is_string() && said["size_bytes"] == 32 << 20, "{way}: {said}");
    place.done(&format!("check {volume}"));
    place.done(&format!("export {volume} {volume}.raw"));
    assert_eq!(fs::metadata(place.at(&format!("{volume}.raw"))).expect("raw").len(), 32 << 20);
    fs::remove_file(place.at(&format!("{volume}.raw"))).expect("remove");
    let checked = Command::new(polylane_tests::tool("e2fsck").expect("e2fsck"))
        .arg("-fy")
        .arg(place.at(volume))
        .output();
    assert_eq!(checked.expect("e2fsck").status.code(), Some(8), "{way}");
}

/// What took the name of another volume, or was cut, is refused by each command, and whole again
/// when that is mended.
#[test]
fn overlays_under_strange_names_are_refused_and_never_taken_for_disks() {
    let name = "overlays_under_strange_names_are_refused_and_never_taken_for_disks";
    if unavailable(name) {
        return;
    }
    let Some(host) = HostFs::new(name, "ext4", 700 << 20) else { return };
    let place = Place { dir: tempfile::tempdir_in(host.path()).expect("tempdir") };
    let all_refuse = |volume: &str, why: &str| {
        for words in ["info V", "check V", "snapshot V V.s", "clone V V.c", "export V V.raw"] {
            let line = place.refused(&words.replace('V', volume));
            assert!(line.contains(why), "{words}: {line}");
        }
        let line = place.run(volume, "true").expect_err("refused");
        assert!(line.contains(why), "run: {line}");
    };
    place.done("create v --size 32M");
    place.run("v", "echo one > /lane/f").expect("run");
    place.done("clone v w");
    for moved in [false, true] {
        place.done("create r --size 32M");
        let taken = match moved {
            false => fs::copy(place.at("w"), place.at("r")).map(drop),
            true => fs::rename(place.at("w"), place.at("r")),
        };
        taken.expect("taken");
        all_refuse("r", "took the name of another volume");
        fs::remove_file(place.at("r.polylane")).expect("remove");
        place.reads("r", "one");
        match moved {
            false => fs::remove_file(place.at("r")).expect("remove"),
            true => place.rename("r", "w"),
        }
    }
    fs::copy(place.at("w"), place.at("cut")).expect("copy");
    let cut = fs::File::options().write(true).open(place.at("cut")).expect("open");
    let end = cut.metadata().expect("stat").len();
    for size in [end - 1, end - 4096, end / 2, 8192] {
        cut.set_len(size).expect("cut");
        all_refuse("cut", "was a copy-on-write volume, and its end is missing");
    }
    // A base that is elsewhere, and nowhere that is known.
    fs::create_dir(place.at("far")).expect("mkdir");
    let base = place.at("w.polylane");
    let sidecar: serde_json::Value =
        serde_json::from_slice(&fs::read(base).expect("sidecar")).expect("JSON");
    let base = sidecar["overlays"][0]["base"].as_str().expect("a base").to_string();
    for end in ["", ".polylane"] {
        place.rename(&format!("{base}{end}"), &format!("far/{base}{end}"));
    }
    all_refuse("w", &base);
    place.rename("w", "far/w");
    place.reads("far/w", "one");
}

/// `e2fsck` on the file of a copy changes nothing: it is told that this is no ext4 of its kind.
#[test]
fn the_file_of_a_copy_is_no_ext4_to_other_programs() {
    let name = "the_file_of_a_copy_is_no_ext4_to_other_programs";
    if unavailable(name) {
        return;
    }
    let Some(host) = HostFs::new(name, "ext4", 900 << 20) else { return };
    let place = Place { dir: tempfile::tempdir_in(host.path()).expect("tempdir") };
    // With a copy of the superblock in the overlay, which e2fsck would find.
    place.done("create v --size 256M");
    place.done("snapshot v s");
    place.run("v", "seq 1000 > /lane/f; sync").expect("run");
    place.done("clone s c");
    let before = fs::read(place.at("v")).expect("read");
    for arguments in [&["-fy"][..], &["-fp"], &["-n"]] {
        let checked = Command::new(polylane_tests::tool("e2fsck").expect("e2fsck"))
            .args(arguments)
            .arg(place.at("v"))
            .output()
            .expect("run e2fsck");
        assert_eq!(checked.status.code(), Some(8), "{arguments:?}: {checked:?}");
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(said.contains("unsupported feature"), "{said}");
    }
    assert!(fs::read(place.at("v")).expect("read") == before, "e2fsck changed it");
    assert_eq!(place.run("v", "wc -l < /lane/f"), Ok("1000\n".to_string()));
    for volume in ["v", "c", "s"] {
        place.done(&format!("check {volume}"));
    }
}

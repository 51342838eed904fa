//! Power cuts under `volume snapshot`, `clone`, `resize`, `rm` and `set`: at every change of a file
//! or name, with what was not synced there, missing and torn. A volume keeps its bytes; a copy is
//! whole or refused.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use polylane_base::rng::Rng;
use polylane_tests::cut::{Content, Record, State};
use polylane_tests::volume::HostFs;
use polylane_tests::{binary, lacks, skip, tool};

const MIB: u64 = 1 << 20;

/// A directory of volumes whose host is cut off the power.
struct Place {
    dir: PathBuf,
    /// Mixtures with torn writes at each cut.
    random: usize,
    /// Directories that are judged of one command; `POLYLANE_CRASH=full`: all.
    most: usize,
}

impl Place {
    fn new(test: &str, dir: &Path) -> Option<Place> {
        if lacks(test, &["strace", "mke2fs", "e2fsck", "resize2fs", "debugfs"]) {
            return None;
        }
        let dir = dir.canonicalize().expect("a directory").join("volumes");
        std::fs::create_dir(&dir).expect("mkdir");
        let traced = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
        if !traced.expect("run strace").status.success() {
            skip(test, "strace may not trace here");
            return None;
        }
        Some(Place { dir, random: 2, most: usize::MAX })
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(binary());
        command.current_dir(&self.dir).env("XDG_STATE_HOME", "/nowhere");
        command.arg("volume").args(words.split_whitespace());
        command
    }

    fn volume(&self, words: &str) -> Output {
        self.command(words).output().expect("run polylane")
    }

    fn done(&self, words: &str) {
        let output = self.volume(words);
        assert!(output.status.success(), "volume {words}: {output:?}");
    }

    /// Writes into a raw volume.
    fn write(&self, volume: &str, at_mib: u64, byte: u8) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(self.dir.join(volume));
        file.expect("open").write_all_at(&[byte; 9000], at_mib * MIB + 5).expect("write");
    }

    /// What a tenant of the volume would read; the line that refuses it.
    fn view(&self, volume: &str) -> Result<Content, String> {
        let target = self.dir.parent().expect("a parent").join("view");
        let _ = std::fs::remove_file(&target);
        let output = self.volume(&format!("export {volume} ../view"));
        match output.status.success() {
            true => Ok(Content::of(&target)),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn is_snapshot(&self, volume: &str) -> bool {
        let output = self.volume(&format!("info --json {volume}"));
        String::from_utf8_lossy(&output.stdout).contains("\"snapshot\": true")
    }

    /// Does `words`, cuts the power at each of its changes, and judges what is left: `true` for
    /// what a command that has returned may leave.
    fn cut(&self, words: &str, mut judge: impl FnMut(&State, bool)) {
        let (record, output) = Record::of(&self.dir, &mut self.command(words));
        assert!(output.status.success(), "volume {words}: {output:?}");
        let mut rng = Rng::new(7);
        let states = record.states(&mut rng, self.random);
        let full = std::env::var_os("POLYLANE_CRASH").is_some_and(|how| how == "full");
        let step = if full { 1 } else { states.len().div_ceil(self.most) };
        for state in states.iter().step_by(step) {
            state.restore(&self.dir);
            judge(state, false);
        }
        for state in record.states_after(&mut rng) {
            state.restore(&self.dir);
            judge(&state, true);
        }
        println!(
            "{words}: {} changes, {} directories of {}",
            record.len(),
            states.len().div_ceil(step),
            states.len()
        );
    }

    /// A copy `to` of `from` that was cut, by `words`: the volume is as it was, the copy is whole
    /// or refused, and can be made again once what is left of it is removed.
    fn cut_copy(&self, words: &str, from: &str, to: &str) {
        let whole = self.view(from).expect("a volume");
        let was_snapshot = self.is_snapshot(from);
        let is_snapshot = words.starts_with("snapshot");
        self.cut(words, |state, returned| {
            let tell = || format!("{words}: {:?}", state.names());
            assert!(self.view(from).as_ref() == Ok(&whole), "{}: {from} changed", tell());
            assert_eq!(self.is_snapshot(from), was_snapshot, "{}", tell());
            match self.view(to) {
                Ok(copy) => {
                    assert!(copy == whole, "{}: {to} is half made", tell());
                    assert_eq!(self.is_snapshot(to), is_snapshot, "{}", tell());
                }
                Err(line) => {
                    assert!(!returned, "{}: {to} is gone: {line}", tell());
                    let there = self.dir.join(to).exists();
                    assert!(!there || line.contains("cut short"), "{}: {line}", tell());
                    self.done(words);
                    assert!(self.view(to).as_ref() == Ok(&whole), "{}: made again", tell());
                    assert!(self.view(from).as_ref() == Ok(&whole), "{}: made again", tell());
                }
            }
        });
    }

    /// Removes volumes, the last of which leave nothing behind.
    fn remove(&self, volumes: &str) {
        self.done(&format!("rm {volumes}"));
        assert_eq!(State::of(&self.dir).names(), [""; 0], "left behind");
    }
}

/// On a host that cannot share blocks, the temporary directory's as a rule: overlays and bases.
#[test]
fn a_copy_that_is_cut_is_whole_or_none() {
    let dir = tempfile::tempdir().expect("tempdir");
    let Some(place) = Place::new("a_copy_that_is_cut_is_whole_or_none", dir.path()) else { return };
    place.done("create v --size 16M --fs none");
    place.write("v", 3, 7);
    place.cut_copy("snapshot v s", "v", "s");
    place.cut_copy("clone s c", "s", "c");
    place.cut_copy("clone v d", "v", "d");
    place.cut_copy("snapshot d e", "d", "e");
}

#[test]
fn a_copy_with_shared_blocks_that_is_cut_is_whole_or_none() {
    let name = "a_copy_with_shared_blocks_that_is_cut_is_whole_or_none";
    let Some(host) = HostFs::new(name, "xfs", 400 * MIB) else { return };
    let Some(place) = Place::new(name, &host.path()) else { return };
    place.done("create v --size 16M --fs none");
    place.write("v", 3, 7);
    place.cut_copy("snapshot v s", "v", "s");
    place.cut_copy("clone v c", "v", "c");
    place.remove("v s c");
}

#[test]
fn a_volume_that_is_cut_while_it_grows_or_goes_keeps_its_bytes() {
    let name = "a_volume_that_is_cut_while_it_grows_or_goes_keeps_its_bytes";
    let dir = tempfile::tempdir().expect("tempdir");
    let Some(place) = Place::new(name, dir.path()) else { return };
    place.done("create v --size 16M --fs none");
    place.write("v", 3, 7);
    place.cut("resize v 20M", |state, returned| {
        let sizes = if returned { vec![20 * MIB] } else { vec![16 * MIB, 20 * MIB] };
        let view = place.view("v").expect("whole");
        assert!(sizes.contains(&view.length()), "{:?}", state.names());
    });
    let whole = place.view("v").expect("whole");
    place.done("clone v c");
    let grown = |returned| if returned { vec![24 * MIB] } else { vec![20 * MIB, 24 * MIB] };
    // A copy becomes one file of its own; what it was on stays for the others.
    place.cut("resize c 24M", |state, returned| {
        let view = place.view("c").expect("whole");
        assert!(grown(returned).contains(&view.length()), "{:?}", state.names());
        assert!(view.cut_to(20 * MIB) == whole, "{:?}", state.names());
        assert!(place.view("v").as_ref() == Ok(&whole), "{:?}", state.names());
        place.done("resize c 24M");
        assert!(place.view("v").as_ref() == Ok(&whole), "{:?}", state.names());
    });
    place.done("resize v 20M");
    place.cut("set v --weight 300", |state, _| {
        assert!(place.view("v").as_ref() == Ok(&whole), "{:?}", state.names());
    });
    place.remove("v c");
}

#[test]
fn a_removal_that_is_cut_takes_nothing_of_others() {
    let dir = tempfile::tempdir().expect("tempdir");
    let name = "a_removal_that_is_cut_takes_nothing_of_others";
    let Some(place) = Place::new(name, dir.path()) else { return };
    place.done("create v --size 16M --fs none");
    place.write("v", 3, 7);
    place.done("clone v c");
    place.done("clone c d");
    let whole = place.view("v").expect("whole");
    for (goes, stay) in [("c", &["v", "d"][..]), ("v", &["d"][..]), ("d", &[][..])] {
        place.cut(&format!("rm {goes}"), |state, returned| {
            for volume in stay {
                let same = place.view(volume).as_ref() == Ok(&whole);
                assert!(same, "{:?}: {volume} changed", state.names());
            }
            match place.view(goes) {
                Ok(view) => assert!(view == whole && !returned, "{:?}", state.names()),
                Err(line) => assert!(line.contains("No such file"), "{line}"),
            }
        });
    }
    assert_eq!(State::of(&place.dir).names(), [""; 0], "left behind");
}

fn debugfs(place: &Place, command: &str) -> Output {
    let mut debugfs = Command::new(tool("debugfs").expect("debugfs"));
    debugfs.current_dir(&place.dir).args(["-w", "-R", command, "v"]);
    debugfs.output().expect("run debugfs")
}

/// Puts a file `text` into the ext4 on the volume `v`; what is in it.
fn put_text(place: &Place) -> String {
    let text = "kept\n".repeat(20_000);
    let source = place.dir.with_file_name("text");
    std::fs::write(&source, &text).expect("write");
    debugfs(place, "write ../text text");
    text
}

/// resize2fs in place: after a cut e2fsck mends what is left, and no file has changed.
#[test]
fn an_ext4_that_is_cut_while_it_grows_keeps_its_files() {
    let dir = tempfile::tempdir().expect("tempdir");
    let name = "an_ext4_that_is_cut_while_it_grows_keeps_its_files";
    let Some(mut place) = Place::new(name, dir.path()) else { return };
    (place.random, place.most) = (1, 12);
    place.done("create v --size 32M");
    let text = put_text(&place);
    place.cut("resize v 300M", |state, returned| {
        let length = state.file("v").expect("v").length();
        assert!([32 * MIB, 300 * MIB].contains(&length), "{length}");
        if returned {
            place.done("check v");
        }
        place.done("check --repair v");
        let read = debugfs(&place, "cat text");
        assert!(read.stdout == text.as_bytes(), "{}", String::from_utf8_lossy(&read.stderr));
        place.done("resize v 300M");
        place.done("check v");
    });
}

/// A smaller form takes the volume's place when it is whole: a cut shows one of both.
#[test]
fn an_ext4_that_is_cut_while_it_shrinks_is_the_old_one_or_the_new_one() {
    let dir = tempfile::tempdir().expect("tempdir");
    let name = "an_ext4_that_is_cut_while_it_shrinks_is_the_old_one_or_the_new_one";
    let Some(mut place) = Place::new(name, dir.path()) else { return };
    (place.random, place.most) = (1, 12);
    place.done("create v --size 64M");
    let text = put_text(&place);
    place.cut("resize v 32M", |state, returned| {
        let length = state.file("v").expect("v").length();
        assert!(length == 32 * MIB || (length == 64 * MIB && !returned), "{length}");
        place.done("check v");
        let read = debugfs(&place, "cat text");
        assert!(read.stdout == text.as_bytes(), "{}", String::from_utf8_lossy(&read.stderr));
        place.done("resize v 32M");
        place.done("check v");
    });
}

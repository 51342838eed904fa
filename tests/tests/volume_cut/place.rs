//! A directory of volumes whose host is cut off the power, and what is seen of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use polylane_base::rng::Rng;
use polylane_testkit::effort::is_full;
use polylane_tests::cut::{Content, Record, State};
use polylane_tests::{binary, lacks, skip, tool};

pub const MIB: u64 = 1 << 20;

/// A directory of volumes whose host is cut off the power.
pub struct Place {
    pub dir: PathBuf,
    /// Mixtures with torn writes at each cut.
    pub random: usize,
    /// Directories that are judged of one command; `POLYLANE_CRASH=full`: all.
    pub most: usize,
    /// Some volumes are bypass volumes.
    pub bypass: bool,
}

impl Place {
    pub fn new(test: &str, dir: &Path) -> Option<Place> {
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
        Some(Place { dir, random: 2, most: usize::MAX, bypass: false })
    }

    pub fn command(&self, words: &str) -> Command {
        let mut command = Command::new(binary());
        command.current_dir(&self.dir).env("XDG_STATE_HOME", "/proc/none");
        command.arg("volume").args(words.split_whitespace());
        command
    }

    pub fn volume(&self, words: &str) -> Output {
        self.command(words).output().expect("run polylane")
    }

    pub fn done(&self, words: &str) {
        let output = self.volume(words);
        assert!(output.status.success(), "volume {words}: {output:?}");
    }

    /// Writes into a raw volume.
    pub fn write(&self, volume: &str, at_mib: u64, byte: u8) {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(self.dir.join(volume));
        file.expect("open").write_all_at(&[byte; 9000], at_mib * MIB + 5).expect("write");
    }

    /// What a tenant of the volume would read; the line that refuses it.
    pub fn view(&self, volume: &str) -> Result<Content, String> {
        let target = self.dir.parent().expect("a parent").join("view");
        let _ = std::fs::remove_file(&target);
        let output = self.volume(&format!("export {volume} ../view"));
        match output.status.success() {
            true => Ok(Content::of(&target)),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    pub fn is_snapshot(&self, volume: &str) -> bool {
        let output = self.volume(&format!("info --json {volume}"));
        String::from_utf8_lossy(&output.stdout).contains("\"snapshot\": true")
    }

    /// Does `words`, cuts the power at each of its changes, and judges what is left: `true` for
    /// what a command that has returned may leave.
    pub fn cut(&self, words: &str, mut judge: impl FnMut(&State, bool)) {
        let (record, output) = Record::of(&self.dir, &mut self.command(words));
        assert!(output.status.success(), "volume {words}: {output:?}");
        let mut rng = Rng::new(7);
        let states = record.states(&mut rng, self.random);
        let step = self.step(states.len());
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

    /// One directory in so many of these is judged.
    pub fn step(&self, directories: usize) -> usize {
        if is_full() { 1 } else { directories.div_ceil(self.most) }
    }

    /// A copy `to` of `from` that was cut, by `words`: the volume is as it was, the copy is whole
    /// or refused, and can be made again once what is left of it is removed.
    pub fn cut_copy(&self, words: &str, from: &str, to: &str) {
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

    /// Makes a volume of a name whose removal was cut, and removes it: at once, or when that
    /// removal has been ended, as the refusal says.
    pub fn make_again(&self, name: &str) {
        let (make, remove) = (format!("create {name} --size 16M --fs none"), format!("rm {name}"));
        let output = self.volume(&make);
        if !output.status.success() {
            let line = String::from_utf8_lossy(&output.stderr);
            assert!(line.contains(&format!("'polylane volume {remove}' clears up")), "{line}");
            self.done(&remove);
            self.done(&make);
        }
        self.done(&remove);
    }

    /// Removes volumes, the last of which leave nothing behind.
    pub fn remove(&self, volumes: &str) {
        self.done(&format!("rm {volumes}"));
        assert_eq!(State::of(&self.dir).names(), [""; 0], "left behind");
    }
}

fn debugfs(place: &Place, command: &str) -> Output {
    let mut debugfs = Command::new(tool("debugfs").expect("debugfs"));
    debugfs.current_dir(&place.dir).args(["-w", "-R", command, "v"]);
    debugfs.output().expect("run debugfs")
}

/// The ext4 on the volume `v` still has the file `text`, as it was put there.
pub fn assert_text(place: &Place, text: &str) {
    let read = debugfs(place, "cat text");
    assert!(read.stdout == text.as_bytes(), "{}", String::from_utf8_lossy(&read.stderr));
}

/// Puts a file `text` into the ext4 on the volume `v`; what is in it.
pub fn put_text(place: &Place) -> String {
    let text = "kept\n".repeat(20_000);
    let source = place.dir.with_file_name("text");
    std::fs::write(&source, &text).expect("write");
    debugfs(place, "write ../text text");
    text
}

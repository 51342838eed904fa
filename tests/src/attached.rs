//! A volume of a test's own that is attached, in a state directory of its own.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::binary;
use crate::step::{STEP_TIME_MAX, ended, good, output};

/// See the [module](self). It is detached when this is dropped.
pub struct Attached {
    dir: tempfile::TempDir,
    /// Its file.
    pub volume: PathBuf,
}

impl Attached {
    /// Makes a volume without a file system; `options` are further ones of `volume create`. It is
    /// not attached yet.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn new(size: &str, options: &[&str]) -> Attached {
        let dir = tempfile::tempdir().expect("tempdir");
        let attached = Attached { volume: dir.path().join("v.img"), dir };
        let create = ["volume", "create", "--fs", "none", "--size", size];
        attached.on_volume(&[&create[..], options].concat());
        attached
    }

    /// The path of a file beside the volume.
    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(words).env("XDG_STATE_HOME", self.dir.path());
        command
    }

    /// `polylane WORDS`; what it printed.
    ///
    /// # Panics
    /// It fails or does not end.
    pub fn polylane(&self, words: &[&str]) -> String {
        good(&output(self.command(words), STEP_TIME_MAX, &format!("{words:?}")))
    }

    /// `polylane WORDS VOLUME`; what it printed.
    ///
    /// # Panics
    /// As [`polylane`](Self::polylane).
    pub fn on_volume(&self, words: &[&str]) -> String {
        let volume = self.volume.display().to_string();
        self.polylane(&[words, &[volume.as_str()]].concat())
    }

    /// What keeper and engine say.
    ///
    /// # Panics
    /// As [`polylane`](Self::polylane).
    pub fn stats(&self) -> serde_json::Value {
        let listed = self.polylane(&["attach", "--list", "--json"]);
        let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
        listed[0]["stats"].clone()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut detach = self.command(&["detach"]);
        detach.arg(&self.volume).stdout(Stdio::null()).stderr(Stdio::null());
        let _ = ended(&mut detach, STEP_TIME_MAX);
    }
}

/// Commands of qemu-io that commit as jbd2 does, from `at` on: a descriptor with blocks, flush, a
/// commit record, flush. `at` is where the last one ends.
pub fn commits(at: &mut u64, count: u64) -> Vec<String> {
    let mut commands = Vec::new();
    for number in 0..count {
        let bytes = (2 + number % 3) * 4096;
        commands.push(format!("write -P 1 {at} {bytes}"));
        commands.push("flush".into());
        commands.push(format!("write -P 2 {} 4096", *at + bytes));
        commands.push("flush".into());
        *at += bytes + 4096;
    }
    commands
}

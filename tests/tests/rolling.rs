//! Snapshots of an attached volume that are taken and removed for ever, on a host that shares no
//! blocks: what is left is right, and the former files are let go of.

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

use polylane_tests::{binary, lacks};

/// Snapshots that stay.
const KEPT: usize = 4;

struct Place(tempfile::TempDir);

impl Place {
    fn polylane(&self, words: &str) -> Output {
        let mut command = Command::new(binary());
        command.current_dir(self.0.path()).env("XDG_STATE_HOME", self.0.path().join("state"));
        command.args(words.split_whitespace()).output().expect("run polylane")
    }

    fn done(&self, words: &str) -> String {
        let output = self.polylane(words);
        assert!(output.status.success(), "{words}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Has qemu-io do this to the attached volume.
    fn io(&self, what: &str) {
        let uri = format!("nbd+unix:///?socket={}", self.0.path().join("nbd").display());
        let mut command = Command::new("qemu-io");
        let output = command.args(["-f", "raw", "-c", what, "-c", "flush", &uri]).output();
        let output = output.expect("run qemu-io");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && !said.contains("failed"), "{what}: {output:?}");
    }

    /// Files of this directory without a name that a process has open.
    fn nameless(&self, process: &Path) -> usize {
        let device = self.0.path().metadata().expect("stat").dev();
        let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        let stats = open.filter_map(|fd| fd.path().metadata().ok());
        stats.filter(|stat| stat.is_file() && stat.dev() == device && stat.nlink() == 0).count()
    }

    /// The attachment's processes: they have the volume's file open.
    fn processes(&self) -> Vec<std::path::PathBuf> {
        let own = self.0.path().join("v").metadata().expect("stat").ino();
        let has_it = |process: &std::path::PathBuf| {
            let open = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
            open.filter_map(|fd| fd.path().metadata().ok()).any(|stat| stat.ino() == own)
        };
        let all = std::fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
        all.filter(has_it).collect()
    }
}

#[test]
fn snapshots_of_an_attached_volume_come_and_go_for_ever() {
    if lacks("snapshots_of_an_attached_volume_come_and_go_for_ever", &["qemu-io"]) {
        return;
    }
    let place = Place(tempfile::tempdir().expect("tempdir"));
    place.done("volume create v --size 64M --fs none");
    place.done("attach v --via nbd --socket nbd");
    let mut kept = VecDeque::new();
    for round in 1..=24_usize {
        place.io(&format!("write -P {round} {}k 64k", round * 100));
        place.io(&format!("write -P {round} 0 64k"));
        place.done(&format!("volume snapshot v s{round}"));
        kept.push_back(round);
        if kept.len() > KEPT {
            let oldest = kept.pop_front().expect("one");
            let output = place.polylane(&format!("volume rm s{oldest}"));
            assert!(output.status.success() && output.stderr.is_empty(), "{round}: {output:?}");
        }
        place.io(&format!("read -P {round} 0 64k"));
        let half = round.div_ceil(2);
        place.io(&format!("read -P {half} {}k 64k", half * 100));
    }
    let processes = place.processes();
    assert!(!processes.is_empty(), "the volume is attached");
    for process in processes {
        assert_eq!(place.nameless(&process), 0, "{}", process.display());
    }
    place.done("detach v");
    for round in &kept {
        place.done(&format!("volume export s{round} out"));
        let bytes = std::fs::read(place.0.path().join("out")).expect("read");
        std::fs::remove_file(place.0.path().join("out")).expect("remove");
        assert_eq!(bytes[0], *round as u8);
        for at in 1..=24 {
            let right = if at <= *round { at as u8 } else { 0 };
            assert_eq!(bytes[(at * 100) << 10], right, "s{round}: {at}");
        }
    }
}

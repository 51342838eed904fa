//! Lanes seen by other mounts than their own: bind mounts, of a directory, read-only, in chroots
//! and containers. By the library and by FUSE a program sees the same tree and the same refusals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use polylane_tests::host::{Host, succeeds, text};
use polylane_tests::{lacks, unavailable};

/// A lane of this host with some files, and what the library needs for it.
struct Lane {
    host: Host,
    at: PathBuf,
    run: String,
}

impl Lane {
    fn new() -> Lane {
        let host = Host::new();
        let at = host.dir("lane");
        succeeds(&["mount", "mem:64M", text(&at)]);
        fs::create_dir_all(at.join("d/sub")).expect("mkdir");
        fs::write(at.join("outside"), "outside").expect("write");
        fs::write(at.join("d/inside"), "inside").expect("write");
        for (link, target) in [("up", "../outside"), ("in", "inside")] {
            std::os::unix::fs::symlink(target, at.join("d").join(link)).expect("link");
        }
        std::os::unix::fs::symlink(at.join("d/inside"), at.join("d/absolute")).expect("link");
        let env: serde_json::Value =
            serde_json::from_str(&succeeds(&["env", "--json", text(&at)])).expect("JSON");
        let run = env["run"].as_str().expect("a directory").to_string();
        Lane { host, at, run }
    }

    /// Runs a script in mounts of its own, which `prepare` makes; `fast`: by the library. `$L` is
    /// the lane, `$M` another path, where the library takes the lane to be.
    fn sees(&self, (prepare, at): (&str, &Path), script: &str, fast: bool) -> Output {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh", "-euc"]).current_dir("/");
        let preload = match fast {
            true => {
                "POLYLANE_MOUNT=$M POLYLANE_RUN=$RUN:$M POLYLANE_PATIENCE=0 \
                 LD_PRELOAD=$RUN/libpolylane.so"
            }
            false => "NONE=1",
        };
        command.arg(format!("{prepare}; exec env {preload} sh -c \"$SCRIPT\" 2>&1"));
        command.env("L", &self.at).env("M", at).env("RUN", &self.run).env("SCRIPT", script);
        command.output().expect("unshare")
    }

    /// What a script says by both doors, which must be the same; by the library with requests.
    fn both(&self, way: (&str, &Path), script: &str) -> String {
        let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
        let slow = self.sees(way, script, false);
        let before = self.requests();
        let fast = self.sees(way, script, true);
        assert_eq!(said(&fast), said(&slow), "library against FUSE, {:?}", way.0);
        assert!(self.requests() > before, "no session: {:?} {}", way.0, said(&fast));
        said(&slow)
    }

    fn requests(&self) -> u64 {
        let mount = &self.host.mounts()[0];
        let lane = format!("{}@{}", mount["pool"].as_str().expect("a name"), mount["service"]);
        let stats: serde_json::Value =
            serde_json::from_str(&succeeds(&["stats", "--json", "--pool", &lane])).expect("JSON");
        stats[0]["service"]["shared_memory"]["requests"].as_u64().expect("a number")
    }

    fn end(self) {
        succeeds(&["umount", text(&self.at)]);
        self.host.assert_nothing_is_left();
    }
}

/// Names, links, states and changes; nothing that tells times or numbers that differ by run.
const LOOK: &str = "cd $M; ls -A; cat inside outside ../outside up in absolute; \
     stat -c '%n %F %s %u %h' * ; cd sub; cat ../inside; cat ../../outside; true";
const CHANGE: &str = "cd $M; echo x >new; mkdir dir; ln inside hard; ln -s inside soft; \
     mv in moved; chmod 600 inside; touch -d @5 inside; truncate -s 3 inside; rm -f up; rmdir sub; \
     test -w inside; echo $?; cat inside new; rm -rf new dir hard soft; ls -A; \
     mv moved in; ln -sfn ../outside up; mkdir -p sub; true";

#[test]
fn a_bind_mount_shows_the_same_by_both_doors() {
    let name = "a_bind_mount_shows_the_same_by_both_doors";
    if unavailable(name) || lacks(name, &["unshare", "mount"]) {
        return;
    }
    let lane = Lane::new();
    let other = lane.host.dir("other");
    let sub = "mount --bind $L/d $M";
    let said = lane.both((sub, &other), LOOK);
    assert!(said.contains("inside") && !said.contains("up symbolic link 0"), "{said}");
    assert!(!said.contains("outside\noutside"), "{said}");
    lane.both((sub, &other), CHANGE);
    let read_only = "mount --bind $L/d $M; mount -o remount,bind,ro $M";
    lane.both((read_only, &other), LOOK);
    let said = lane.both((read_only, &other), CHANGE);
    assert!(said.contains("Read-only file system"), "{said}");
    assert_eq!(fs::read_to_string(lane.at.join("d/inside")).expect("read"), "ins");
    // All of the lane, at a path of its own and at its own.
    let whole = "mount --bind $L $M";
    lane.both((whole, &other), LOOK);
    lane.both(("mount --bind $L/d $L", &lane.at), LOOK);
    lane.both(("true", &lane.at), LOOK);
    lane.end();
}

#[test]
fn what_is_mounted_in_an_attachment_is_left_to_the_kernel() {
    let name = "what_is_mounted_in_an_attachment_is_left_to_the_kernel";
    if unavailable(name) || lacks(name, &["unshare", "mount"]) {
        return;
    }
    let lane = Lane::new();
    let other = lane.host.dir("other");
    let script = "cd $M; ls -A sub; echo x >sub/new; ls -A sub; true";
    let way = ("mount --bind $L/d $M; mount -t tmpfs t $M/sub", other.as_path());
    let before = lane.requests();
    for fast in [false, true] {
        let said = lane.sees(way, script, fast);
        assert_eq!(String::from_utf8_lossy(&said.stdout), "new\n");
    }
    assert_eq!(lane.requests(), before, "no session");
    assert!(!lane.at.join("d/sub/new").exists());
    // Later: by a program that has a session, and by another.
    let later = "cd $M; ls -A . >/dev/null; mount -t tmpfs t sub; echo x >$M/sub/new; ls -A $M/sub";
    let said = lane.both(("mount --bind $L/d $M", &other), later);
    assert_eq!(said, "new\n");
    assert!(!lane.at.join("d/sub/new").exists());
    lane.end();
}

#[test]
fn a_process_in_another_root_has_what_is_mounted_there() {
    let name = "a_process_in_another_root_has_what_is_mounted_there";
    if unavailable(name) || lacks(name, &["unshare", "mount", "chroot"]) {
        return;
    }
    let lane = Lane::new();
    let jail = lane.host.dir("jail");
    // The host's root, and the lane's directory in it.
    let prepare = "mount --rbind / $JAIL; mkdir -p $JAIL$M; mount --bind $L/d $JAIL$M";
    let other = lane.host.dir("other");
    let prepare = prepare.replace("$JAIL", text(&jail));
    for fast in [false, true] {
        let before = lane.requests();
        let script = format!(
            "unset LD_PRELOAD; exec env LD_PRELOAD=$PRE chroot {} sh -c 'cat $M/inside; \
             cat $M/../outside; cat $M/up; ls -A $M; true'",
            text(&jail)
        );
        let script = script.replace("$PRE", if fast { "$RUN/libpolylane.so" } else { "" });
        let said = lane.sees((&prepare, &other), &script, fast);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.starts_with("inside") && said.contains("absolute"), "{said}");
        assert!(!said.contains("outsideoutside"), "{said}");
        assert_eq!(lane.requests() > before, fast, "{said}");
    }
    lane.end();
}

//! Lanes seen by other mounts than their own: bind mounts, of a directory, read-only, in chroots
//! and containers. By the library and by FUSE a program sees the same tree and the same refusals.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use polylane_tests::host::{Host, refused, succeeds, text};
use polylane_tests::{lacks, unavailable};

/// A lane of this host with some files, and what the library needs for it.
struct Lane {
    host: Host,
    at: PathBuf,
    run: String,
}

impl Lane {
    fn new() -> Lane {
        Lane::of("mem:64M")
    }

    fn of(source: &str) -> Lane {
        let host = Host::new();
        let at = host.dir("lane");
        succeeds(&["mount", source, text(&at)]);
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
        self.counted("/requests")
    }

    /// A number of the lane's fast way.
    fn counted(&self, what: &str) -> u64 {
        let mount = &self.host.mounts()[0];
        let lane = format!("{}@{}", mount["pool"].as_str().expect("a name"), mount["service"]);
        let stats: serde_json::Value =
            serde_json::from_str(&succeeds(&["stats", "--json", "--pool", &lane])).expect("JSON");
        let counted = stats[0]["service"]["shared_memory"].pointer(what);
        counted.and_then(serde_json::Value::as_u64).expect("a number")
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

/// `mount --share` of a directory in the lane: the same service, and nothing above the directory.
#[test]
fn a_directory_of_a_lane_is_mounted_from_its_service() {
    let name = "a_directory_of_a_lane_is_mounted_from_its_service";
    if unavailable(name) || lacks(name, &["unshare", "mount", "flock"]) {
        return;
    }
    // A lane of the same source, of another test, could be shared as well.
    let lane = Lane::of("mem:62M");
    let other = lane.host.dir("other");
    let mount = |source: &str| ["mount", "--share", source, text(&other)].map(str::to_string);
    for (source, word) in [
        ("mem:62M/none", "No such file"),
        ("mem:62M/d/inside", "Not a directory"),
        ("mem:62M/d/in", "symbolic link"),
        ("mem:62M/../d", "from the root"),
        ("mem:32M/d", "no lane of which this is a part"),
    ] {
        let words = mount(source);
        let line = refused(&words.each_ref().map(String::as_str)).1;
        assert!(line.contains(word), "{source}: {line}");
    }
    assert!(refused(&["mount", "mem:62M/d", text(&other)]).1.contains("--share"));
    succeeds(&mount("mem:62M/d").each_ref().map(String::as_str));
    let mounts = lane.host.mounts();
    assert_eq!(mounts[0]["service"], mounts[1]["service"]);
    assert_eq!(mounts[1]["source"], "mem:62M/d");
    let line = refused(&mount("mem:62M").each_ref().map(String::as_str)).1;
    assert!(line.contains("busy") && line.contains("mem:62M/d"), "{line}");
    succeeds(&mount("mem:62M/d").each_ref().map(String::as_str));
    succeeds(&["umount", text(&other)]);

    let here = ("true", other.as_path());
    let said = lane.both(here, LOOK);
    assert!(said.contains("inside") && !said.contains("outside\noutside"), "{said}");
    lane.both(here, CHANGE);
    // A directory that is moved out of the mount while a program works in it leads nowhere above.
    let moved = "cd $M/sub; mv $L/d/sub $L/away; cat ../outside; cat ../../outside; ls ..; \
                 echo x >new; ls -A; rm new; mv $L/away $L/d/sub; cat ../inside; true";
    let said = lane.both(here, moved);
    assert!(!said.contains("outside\noutside") && said.ends_with("ins"), "{said}");
    // The service's locks are those of both paths.
    let file = [lane.at.join("d/inside"), other.join("inside")];
    let [one, two] = file.each_ref().map(|path| text(path));
    let flock = |paths: [&str; 2]| {
        let words = ["-n", paths[0], "flock", "-n", paths[1], "true"];
        Command::new("flock").args(words).status().expect("flock").success()
    };
    assert!(!flock([one, two]) && !flock([two, one]));
    assert!(flock([one, text(&lane.at.join("outside"))]));
    succeeds(&["umount", text(&other)]);
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
    assert!(lane.counted("/not_admitted/mounts") > 0);
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
    let root = text(&jail);
    // The last one as container runtimes do it: the old root is gone.
    let enter = [
        format!("exec env $PRE chroot {root} $GO"),
        format!("cd {root}; pivot_root . tmp; umount -l /tmp; exec env $PRE chroot . $GO"),
    ];
    let look = "sh -c 'cat $M/inside; cat $M/../outside; cat $M/up; ls -A $M; true'";
    for (enter, fast) in enter.iter().flat_map(|enter| [(enter, false), (enter, true)]) {
        if enter.contains("pivot_root") && lacks(name, &["pivot_root"]) {
            continue;
        }
        let before = lane.requests();
        let preload = if fast { "LD_PRELOAD=$RUN/libpolylane.so" } else { "NONE=1" };
        let script = enter.replace("$PRE", preload).replace("$GO", look);
        let said = lane.sees((&prepare, &other), &format!("unset LD_PRELOAD; {script}"), fast);
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.starts_with("inside") && said.contains("absolute"), "{enter}: {said}");
        assert!(!said.contains("outsideoutside"), "{said}");
        assert_eq!(lane.requests() > before, fast, "{enter}: {said}");
    }
    lane.end();
}

/// Numbers of owners, and what their users may: in `d`, the user that is 0 of the namespace owns
/// all but one file.
const OWNERS: &str = "cd $M; stat -c '%n %u %g' * .; cat secret; echo x >secret; \
     echo x >new; stat -c '%u %g' new; chown 3:4 new; stat -c '%u %g' new; chown 99999 new; \
     chown 3 secret; chmod 2755 new; stat -c %a new; \
     cp -p inside kept; stat -c '%u %g %a' kept; mkdir dir; chgrp 7 dir; echo y >dir/in; \
     stat -c '%u %g' dir dir/in; rm -rf dir new kept; ls -A; true";

/// Runs `$GO` as root of a user namespace with a range of users.
const RANGE: &str = r#"
unshare -U sleep 60 &
while [ "$(readlink /proc/$!/ns/user)" = "$(readlink /proc/self/ns/user)" ]; do sleep 0.01; done
for map in uid_map gid_map; do echo 0 100000 65536 >/proc/$!/$map; done
nsenter -t $! -U -S 0 -G 0 sh -c "$GO"
kill $!
"#;

#[test]
fn users_have_the_numbers_of_their_namespace() {
    let name = "users_have_the_numbers_of_their_namespace";
    if unavailable(name) || lacks(name, &["unshare", "mount", "setpriv", "nsenter"]) {
        return;
    }
    let lane = Lane::new();
    let other = lane.host.dir("other");
    let (dir, here) = (lane.at.join("d"), lane.host.path(""));
    for path in [&here, &lane.at, &other] {
        open(path);
    }
    let own = ["d", "d/sub", "d/inside", "d/in", "d/up", "d/absolute"];
    for path in own.map(|path| lane.at.join(path)) {
        std::os::unix::fs::lchown(path, Some(100_000), Some(100_000)).expect("chown");
    }
    fs::write(dir.join("secret"), "secret").expect("write");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(dir.join("secret"), private).expect("chmod");
    // A range, as containers have it, and one user, as who unshares alone has it.
    let one = "setpriv --reuid 100000 --regid 100000 --clear-groups unshare -U -r sh -c \"$GO\"";
    for enter in [RANGE, one] {
        let script = format!("export GO='{}'; {enter}", OWNERS.replace('\'', "\""));
        let said = lane.both(("mount --bind $L/d $M", &other), &script);
        assert!(said.contains("inside 0 0\n") && said.contains("secret 65534 65534\n"), "{said}");
        assert!(said.contains("secret: Permission denied"), "{said}");
    }
    lane.end();
}

fn open(path: &Path) {
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(path, all).expect("chmod");
}

/// What a user does by numbers of its own: what it sees, makes, and may not.
const BY_MAP: &str = "cd $M; stat -c '%n %u %g %a' theirs nobodys root; cat theirs root nobodys; \
     echo x >new; stat -c '%u %g' new; chown 100006 new; chgrp 100009 new; stat -c '%u %g' new; \
     echo y >nobodys; chmod 666 nobodys; rm -f nobodys; ln nobodys hard; mv nobodys other; \
     touch -d @5 nobodys; mkdir dir; stat -c '%u %g' dir; cp -p theirs dir/; \
     stat -c '%u %g %a' dir/theirs; ln -s theirs soft; stat -c '%u %g' soft; rm -rf dir new soft; \
     ls -A | grep -v '^[.]poly'; true";

/// Users of the host on a lane whose files have other numbers, by both doors.
#[test]
fn a_mapped_lane_shows_its_own_numbers_by_both_doors() {
    let name = "a_mapped_lane_shows_its_own_numbers_by_both_doors";
    if unavailable(name) || lacks(name, &["unshare", "setpriv"]) {
        return;
    }
    let host = Host::new();
    let (at, volume) = (host.dir("lane"), host.path("v.img"));
    open(&host.path(""));
    succeeds(&["mount", "--size", "64M", text(&volume), text(&at)]);
    for (file, owner) in [("root", 0), ("theirs", 5), ("nobodys", 70_000)] {
        fs::write(at.join(file), file).expect("write");
        std::os::unix::fs::lchown(at.join(file), Some(owner), Some(owner)).expect("chown");
    }
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&at, all).expect("chmod");
    succeeds(&["umount", text(&at)]);
    let map = ["--map-users", "0:100000:65536"];
    succeeds(&[&["mount"], &map[..], &[text(&volume), text(&at)]].concat());
    let env: serde_json::Value =
        serde_json::from_str(&succeeds(&["env", "--json", text(&at)])).expect("JSON");
    let run = env["run"].as_str().expect("a directory").to_string();
    let lane = Lane { host, at, run };
    let at = lane.at.clone();
    for (user, made) in [("100005", "100005 100005"), ("100000", "100000 100000")] {
        let who = format!("setpriv --reuid {user} --regid {user} --groups 100009 sh -c \"$GO\"");
        let script = format!("export GO='{}'; {who}", BY_MAP.replace('\'', "\""));
        let said = lane.both(("true", &at), &script);
        assert!(said.contains(&format!("\n{made}\n")), "{said}");
        assert!(said.contains("theirs 100005 100005 644\nnobodys 65534 65534 644\n"), "{said}");
        assert!(said.contains("root 100000 100000 644\n"), "{said}");
    }
    // The host's root has no number there: it reads, and makes nothing; nobody's files are not its.
    let said = lane.both(("true", &at), BY_MAP);
    assert!(said.contains("Value too large for defined data type"), "{said}");
    let refused = |words: &[&str]| polylane_tests::host::refused(&[&["mount"], words].concat()).1;
    let (source, path) = (text(&volume), text(&at));
    let line = refused(&[source, path]);
    assert!(line.contains("--map-users 0:100000:65536") && line.contains("busy"), "{line}");
    let line = refused(&["--map-users", "0:1:5", source, path]);
    assert!(line.contains("--map-users 0:1:5") && line.contains("busy"), "{line}");
    let other = lane.host.dir("other");
    let both = ["mount", "--map-users", "0:1:5", "--suid", source, text(&other)];
    let (code, line) = polylane_tests::host::refused(&both);
    assert!(code == 2 && line.contains("--suid"), "{code}: {line}");
    let line = refused(&["--map-users", "0:1:5", "--share", source, text(&other)]);
    assert!(line.contains("another --map-users"), "{line}");
    let words = [&["--share"], &map[..], &[source, text(&other)]].concat();
    succeeds(&[&["mount"], &words[..]].concat());
    assert_eq!(
        std::os::unix::fs::MetadataExt::uid(&fs::metadata(other.join("theirs")).expect("stat")),
        100_005
    );
    succeeds(&["umount", text(&other)]);
    let overlap = ["--map-users", "0:100000:10", "--map-users", "9:5:2", "mem", text(&other)];
    let line = refused(&overlap);
    assert!(line.contains("9:5:2: overlaps 0:100000:10"), "{line}");
    // As the files have them.
    succeeds(&["umount", path]);
    succeeds(&["mount", source, path]);
    let owner = |file: &str| {
        std::os::unix::fs::MetadataExt::uid(&fs::metadata(at.join(file)).expect("stat"))
    };
    assert_eq!((owner("theirs"), owner("root"), owner("nobodys")), (5, 0, 70_000));
    lane.end();
}

/// What users do on an id-mapped mount: owners as they are shown, files that they make, and what is
/// refused.
const BY_KERNEL: &str = "cd $M; stat -c '%n %u %g %a' theirs root; cat theirs; echo x >new; \
     stat -c '%u %g' new; chmod 600 new; echo y >>theirs; rm -f root; chmod 666 root; \
     chown 0 new; mkdir dir; cp -p theirs dir/; stat -c '%u %g %a' dir/theirs; \
     ln -s theirs soft; stat -c '%u %g' soft; chattr +A new; lsattr new | cut -c1-8; \
     chattr +A root; mv root moved; rm -rf dir new soft; echo theirs >theirs; \
     ls -A | grep -v '^[.]poly'; true";

/// A mount of this test's that is id-mapped; it goes with this.
struct IdMapped(PathBuf);

impl IdMapped {
    /// Shows `of` at `at`, users 0 to 65535 as 100000 and up; `None`: the file system lets none be.
    fn new(of: &Path, at: &Path) -> Option<IdMapped> {
        use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
        let mut holder =
            Command::new("unshare").args(["-U", "sleep", "60"]).spawn().expect("unshare");
        let space = |who: &str| fs::read_link(format!("/proc/{who}/ns/user")).ok();
        let pid = holder.id().to_string();
        polylane_tests::host::until("a namespace", || space(&pid) != space("self"));
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{pid}/{map}"), "0 100000 65536").expect("map");
        }
        let namespace = fs::File::open(format!("/proc/{pid}/ns/user")).expect("namespace");
        let flags = OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::OPEN_TREE_CLONE;
        let copy = open_tree(rustix::fs::CWD, of, flags).expect("a copy");
        let mapped =
            polylane_sys::mount::map_ids(&copy, std::os::fd::AsFd::as_fd(&namespace)).is_ok();
        let _ = holder.kill();
        let _ = holder.wait();
        if !mapped {
            return None;
        }
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&copy, "", rustix::fs::CWD, at, flags).expect("mounted");
        Some(IdMapped(at.to_path_buf()))
    }
}

impl Drop for IdMapped {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// What a script says on a lane that gives no session, which the library changes nothing of.
fn without_a_session(lane: &Lane, at: &Path, script: &str) -> String {
    let said = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let slow = lane.sees(("true", at), script, false);
    let library = polylane_tests::binary().with_file_name("libpolylane.so");
    if library.is_file() {
        let script = format!(
            "export POLYLANE_MOUNT=$M POLYLANE_RUN=$RUN:$M POLYLANE_PATIENCE=0; \
             export LD_PRELOAD={}; sh -c '{}'",
            library.display(),
            script.replace('\'', "'\\''")
        );
        let fast = lane.sees(("true", at), &script, false);
        assert_eq!(said(&fast), said(&slow), "library against FUSE, {at:?}");
        assert_eq!(lane.requests(), 0, "a session: {at:?} {}", said(&fast));
    }
    said(&slow)
}

/// A user's own set-id file and another one's. chown(2) without an owner takes no bits away: the
/// kernel asks for that of any caller, and does not name it.
const SET_ID: &str = r#"
cd $M; echo x >s; chmod 4755 s; ln s t && stat -c %a:%h s
/usr/bin/python3 -c "import os; os.chown(\"s\", -1, -1)"; stat -c %a s; rm -f s t
/usr/bin/python3 -c "import os; os.chown(\"roots\", -1, -1)"; stat -c %a roots
"#;

/// A set-id file's owner gives it another name, and nobody takes another's bits away.
fn set_id_files_are_judged_by_the_kernel(lane: &Lane, place: &Path, who: &str) {
    let roots = lane.at.join("roots");
    fs::write(&roots, "").expect("write");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    fs::set_permissions(&roots, mode).expect("chmod");
    let said = without_a_session(lane, place, &format!("export GO='{SET_ID}'; {who}"));
    assert_eq!(said, "4755:2\n4755\n4755\n", "{place:?}, {who}");
    fs::remove_file(&roots).expect("remove");
}

/// The only lane of a host is not mounted once more by these options, at its path or another one.
fn refuses_another_map(host: &Host, part: &str, options: &[&str]) {
    let lane = host.mounts().remove(0);
    let word = |name: &str| lane[name].as_str().expect("text").to_string();
    let (source, path, beside) = (word("source"), word("path"), host.path("beside"));
    fs::create_dir_all(&beside).expect("mkdir");
    for words in [&[&*source, &path][..], &["--share", &source, text(&beside)]] {
        let (status, line) = refused(&[&["mount"], options, words].concat());
        assert!(status == 1 && line.contains(part), "{words:?}: {line}");
    }
}

/// The kernel maps users of a lane that was mounted for it: two users on a mapped mount and on the
/// lane itself, with the library's environment and without; and none of a lane that was not.
#[test]
fn mounts_of_a_lane_are_id_mapped_where_it_lets_them() {
    let name = "mounts_of_a_lane_are_id_mapped_where_it_lets_them";
    if unavailable(name) || lacks(name, &["unshare", "setpriv", "chattr", "lsattr"]) {
        return;
    }
    let plain = Lane::new();
    let other = plain.host.dir("other");
    assert!(IdMapped::new(&plain.at, &other).is_none(), "a lane that does not let them");
    refuses_another_map(&plain.host, "mounted without --idmap", &["--idmap"]);
    plain.end();
    let host = Host::new();
    let (at, mapped, volume) = (host.dir("lane"), host.dir("mapped"), host.path("v.img"));
    [&host.path(""), &mapped].into_iter().for_each(|path| open(path));
    let words = ["mount", "--idmap", "--size", "64M", text(&volume), text(&at)];
    let done = polylane_tests::host::polylane(&words);
    let said = String::from_utf8_lossy(&done.stderr);
    if said.contains("--idmap: this kernel") {
        return polylane_tests::skip(name, said.trim());
    }
    assert!(done.status.success(), "{said}");
    refuses_another_map(&host, "mounted with --idmap", &[]);
    let env: serde_json::Value =
        serde_json::from_str(&succeeds(&["env", "--json", text(&at)])).expect("JSON");
    let run = env["run"].as_str().expect("a directory").to_string();
    let lane = Lane { host, at: at.clone(), run };
    let shown = IdMapped::new(&at, &mapped).expect("Linux 6.12 maps it");
    for (place, shift) in [(&mapped, 100_000), (&at, 0)] {
        for user in [5_u32, 7] {
            let files = [("root", 0, 0o644), ("theirs", user, 0o640)];
            for (file, owner, mode) in files {
                fs::write(at.join(file), format!("{file}\n")).expect("write");
                let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
                std::os::unix::fs::lchown(at.join(file), Some(owner), Some(owner)).expect("chown");
                fs::set_permissions(at.join(file), mode).expect("chmod");
            }
            let sticky = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
            fs::set_permissions(&at, sticky).expect("chmod");
            let own = user + shift;
            let who = format!("setpriv --reuid {own} --regid {own} --clear-groups sh -c \"$GO\"");
            let by = BY_KERNEL.replace('\'', "\"").replace("chown 0", &format!("chown {shift}"));
            let script = format!("export GO='{by}'; {who}");
            let said = without_a_session(&lane, place, &script);
            let shown = format!("theirs {own} {own} 640\nroot {shift} {shift} 644\ntheirs\n{own} ");
            assert!(said.starts_with(&shown), "{place:?}, {user}: {said}");
            for refused in ["'root': Operation not permitted", "'new': Operation not permitted"] {
                assert!(said.contains(refused), "{place:?}, {user}, {refused}: {said}");
            }
            assert!(said.ends_with("root\ntheirs\n"), "{place:?}, {user}: {said}");
            set_id_files_are_judged_by_the_kernel(&lane, place, &who);
        }
    }
    // A user without a number on the mapped mount makes nothing there.
    let said = without_a_session(&lane, &mapped, "cd $M; echo x >new; ls new; true");
    assert!(said.contains("Value too large for defined data type"), "{said}");
    drop(shown);
    lane.end();
}

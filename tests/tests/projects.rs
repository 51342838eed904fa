//! Projects with limits on a lane, by both doors: the programs that everybody uses, on an image
//! that the kernel need not be able to mount. And times of pipes, which no file system is told of.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use polylane_testkit::quota::{Limits, of_projects, set_limits};
use polylane_tests::pool::no_library;
use polylane_tests::step::{good, output};
use polylane_tests::volume::assert_clean;
use polylane_tests::{MOUNT, binary, lacks, unavailable};

const LIMIT: Duration = Duration::from_secs(60);

/// What a shell in a lane on a volume prints, with its errors; the script's directory is the lane.
fn in_lane(volume: &Path, by_library: bool, script: &str) -> String {
    let mut lane = Command::new(binary());
    lane.args(["run", "--at", MOUNT, "--volume"]).arg(volume);
    lane.args((!by_library).then_some("--no-preload"));
    lane.args(["--", "sh", "-euc", &format!("cd {MOUNT}; exec 2>&1; {script}")]);
    let said = output(lane, LIMIT, script);
    good(&said);
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// A project without limits, whose account is there to be given some.
const MAKE: &str = "mkdir all; chattr -p 77 all; chattr -p 0 all; sync";

/// With 64 KiB and eight inodes for project 77.
const USE: &str = r#"
export LC_ALL=C
chmod 777 . all; chattr +P -p 77 all
touch other; chmod 666 other
setpriv --reuid 1000 --clear-groups sh -c '
    mkdir all/below; touch all/file
    lsattr -p all | awk "{ print \$1, \$3 }" | sort
    ln other all/linked || echo no link
    perl -e "rename qw(other all/moved) or print qq(no name: \$!\n)"
    for n in 1 2 3 4 5 6 7; do touch all/below/$n || echo no $n; done
    rm -f all/below/[34]
    head -c 100000 /dev/zero > all/file || echo cut
    stat -c %s all/file
    head -c 100000 /dev/zero > elsewhere && echo elsewhere is room
'
df -P -B 1024 all | awk 'NR == 2 { print $2, $4 }'
stat -f -c '%c %d' all
df -P -B 1024 all/file | awk 'NR == 2 { print ($2 > 10000 ? "all of it" : $2) }'
rm all/file
df -P -B 1024 all | awk 'NR == 2 { print $2, $4 }'
"#;

const SAID: &str = "\
77 all/below
77 all/file
ln: failed to create hard link 'all/linked' => 'other': Invalid cross-device link
no link
no name: Invalid cross-device link
touch: cannot touch 'all/below/6': Disk quota exceeded
no 6
touch: cannot touch 'all/below/7': Disk quota exceeded
no 7
head: error writing 'standard output': Disk quota exceeded
cut
57344
elsewhere is room
64 0
8 2
all of it
64 56
";

#[test]
fn a_projects_limits_hold_and_its_directory_shows_them() {
    let test = "a_projects_limits_hold_and_its_directory_shows_them";
    let programs = ["mke2fs", "tune2fs", "debugfs", "chattr", "lsattr", "setpriv", "perl"];
    if unavailable(test) || no_library(test) || lacks(test, &programs) {
        return;
    }
    for by_library in [false, true] {
        let dir = tempfile::tempdir().expect("tempdir");
        let volume = dir.path().join("volume.img");
        std::fs::File::create(&volume).expect("an image").set_len(64 << 20).expect("its size");
        let mut format = Command::new("mke2fs");
        format.args(["-q", "-t", "ext4", "-b", "4096", "-O", "quota,project"]).arg(&volume);
        good(&output(format, LIMIT, "mke2fs"));
        in_lane(&volume, by_library, MAKE);
        let mut tune = Command::new("tune2fs");
        tune.args(["-E", "mount_opts=prjquota"]).arg(&volume);
        good(&output(tune, LIMIT, "tune2fs"));
        let limits = Limits { hard_kib: 64, hard_inodes: 8, ..Limits::default() };
        set_limits(&volume, (of_projects(&volume), 77), limits);
        assert_eq!(in_lane(&volume, by_library, USE), SAID, "by the library: {by_library}");
        assert_clean(&volume);
    }
}

/// A known difference: no file system is told of what goes through a pipe.
#[test]
fn times_of_pipes_stay() {
    let test = "times_of_pipes_stay";
    if unavailable(test) || no_library(test) {
        return;
    }
    let script =
        "mkfifo pipe; touch -d @1000 pipe; echo text > pipe & cat pipe; stat -c '%X %Y' pipe";
    let dir = tempfile::tempdir().expect("tempdir");
    for by_library in [false, true] {
        let volume = dir.path().join(format!("{by_library}.img"));
        let mut create = Command::new(binary());
        create.args(["volume", "create", "--size", "64M", "--fs", "ext4"]).arg(&volume);
        good(&output(create, LIMIT, "volume create"));
        assert_eq!(in_lane(&volume, by_library, script), "text\n1000 1000\n");
    }
}

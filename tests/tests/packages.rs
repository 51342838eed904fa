//! A lane that ends while packages are installed in it: its volume is clean all the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use polylane_tests::pool::Run;
use polylane_tests::volume::assert_clean;
use polylane_tests::{lacks, unavailable};

const PACKAGES: usize = 3;
const FILES: usize = 120;

/// Installs and removes the packages of `$1` for ever, twice at a time; the lane ends meanwhile.
const SCRIPT: &str = "install() {
    mkdir -p /lane/$2/var/lib/dpkg/updates /lane/$2/var/lib/dpkg/info
    touch /lane/$2/var/lib/dpkg/status
    while :; do
        dpkg --root=/lane/$2 --force-bad-path -i $1/*.deb && dpkg --root=/lane/$2 -P p0 p1 p2
    done >/dev/null 2>&1
}
mkdir -p /lane/one /lane/two
install $PACKAGES one & install $PACKAGES two &
until [ -e /lane/one/usr/share/p1/119 ] || [ -e /lane/two/usr/share/p1/119 ]; do sleep 0.1; done
sleep $PAUSE";

/// Packages of small files, in `dir`.
fn make_packages(dir: &Path) {
    for package in 0..PACKAGES {
        let tree = dir.join(format!("tree{package}"));
        let data = tree.join(format!("usr/share/p{package}"));
        fs::create_dir_all(&data).expect("directory");
        fs::create_dir_all(tree.join("DEBIAN")).expect("directory");
        let control = format!(
            "Package: p{package}\nVersion: 1\nArchitecture: all\nMaintainer: nobody <n@x.org>\n\
             Description: files\n"
        );
        fs::write(tree.join("DEBIAN/control"), control).expect("control");
        for file in 0..FILES {
            fs::write(data.join(file.to_string()), vec![b'x'; file * 97]).expect("file");
        }
        let mut build = Command::new("dpkg-deb");
        build.args(["--build", "-Znone"]).arg(&tree).arg(dir);
        let built = build.output().expect("dpkg-deb runs");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }
}

#[test]
fn a_lane_that_ends_under_an_installation_leaves_a_clean_volume() {
    let name = "a_lane_that_ends_under_an_installation_leaves_a_clean_volume";
    if unavailable(name) || lacks(name, &["mke2fs", "e2fsck", "dpkg", "dpkg-deb"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    make_packages(dir.path());
    let volume: PathBuf = dir.path().join("volume");
    for (options, pause) in
        [("--size 512M", "0.3"), ("", "0.05"), ("--no-preload", "0.2"), ("", "0.45")]
    {
        let run = Run::new(&format!("{options} --volume")).arg(&volume);
        let run = run.env("PACKAGES", dir.path()).env("PAUSE", pause);
        let output =
            run.arg("--").arg("timeout").arg("60").arg("sh").arg("-c").arg(SCRIPT).output();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options} {pause}: {said}");
        assert_clean(&volume);
    }
}

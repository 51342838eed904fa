//! A lane over layers beside the kernel's overlayfs over the same ones.

use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use polylane_tests::host::{Host, succeeds, text};
use polylane_tests::pool::no_library;
use polylane_tests::step::good;
use polylane_tests::{lacks, scripts, seed, skip, unavailable};

/// Changes for each kind of upper.
const ROUNDS: u32 = 300;

fn python(words: &[&str], fast: &str) -> Output {
    let mut python = Command::new("/usr/bin/python3");
    python.arg("-B").arg(scripts().join("beside.py")).args(words).env("FAST", fast);
    python.output().expect("python3")
}

/// Mounts the kernel's over three layers, in a directory of its own.
fn overlayfs(host: &Host, low: &str) -> Output {
    let dir = host.dir("other");
    for name in ["upper", "work", "at"] {
        fs::create_dir(dir.join(name)).expect("mkdir");
    }
    let options = format!(
        "lowerdir={low}/0:{low}/1:{low}/2,upperdir=upper,workdir=work,redirect_dir=on,index=on,\
         metacopy=off,xino=on"
    );
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "overlay", "-o", &options, "at"]).current_dir(&dir);
    mount.output().expect("mount")
}

/// What a program with the library has in its environment.
fn fast(at: &Path) -> String {
    let env: serde_json::Value =
        serde_json::from_str(&succeeds(&["env", "--json", text(at)])).expect("JSON");
    let (run, at) = (env["run"].as_str().expect("a directory"), at.display());
    format!(
        "LD_PRELOAD={run}/libpolylane.so\nPOLYLANE_MOUNT={at}\nPOLYLANE_RUN={run}:{at}\n\
         POLYLANE_PATIENCE=0"
    )
}

/// Two users, each by a program with the library and one without, change a tree at random; so does
/// the kernel's overlayfs, with the same answers and the same tree after each change.
#[test]
fn random_changes_of_two_users_are_as_overlayfs_makes_them() {
    let test = "random_changes_of_two_users_are_as_overlayfs_makes_them";
    if unavailable(test) || no_library(test) || lacks(test, &["mount"]) {
        return;
    }
    for (seed, upper) in [(seed(), "volume"), (seed() + 1, "dir")] {
        let host = Host::new();
        // Other users come here.
        fs::set_permissions(host.path(""), Permissions::from_mode(0o755)).expect("chmod");
        let (low, at, seed) = (host.dir("low"), host.dir("at"), seed.to_string());
        good(&python(&["layers", &seed, text(&low)], ""));
        let mounted = overlayfs(&host, text(&low));
        if !mounted.status.success() {
            let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
            skip(test, &format!("overlayfs cannot be mounted: {}", said.trim()));
            return;
        }
        DirBuilder::new().mode(0o700).create(host.path("own")).expect("mkdir");
        let layers = [0, 1, 2].map(|layer| low.join(layer.to_string()));
        let mut words = vec!["mount"];
        layers.iter().for_each(|layer| words.extend(["--lower", text(layer)]));
        let own = match upper {
            "volume" => format!("volume:{}", host.path("own/image").display()),
            _ => format!("dir:{}", host.path("own").display()),
        };
        if upper == "volume" {
            words.extend(["--size", "256M"]);
        }
        words.extend([own.as_str(), text(&at)]);
        succeeds(&words);
        let (other, rounds) = (host.path("other/at"), ROUNDS.to_string());
        // An upper that is a directory of the host keeps no access lists.
        let acls = if upper == "volume" { "1" } else { "0" };
        let words = ["change", &seed, &rounds, text(&at), text(&other), acls];
        let output = python(&words, &fast(&at));
        good(&Command::new("umount").args(["--lazy", text(&other)]).output().expect("umount"));
        succeeds(&["umount", "--lazy", text(&at)]);
        assert_eq!(good(&output), "holds\n", "{upper}, seed {seed}");
        host.assert_nothing_is_left();
    }
}

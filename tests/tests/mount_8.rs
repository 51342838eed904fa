//! mount(8) and umount(8) themselves: fstab's lines, options, and what finds the helpers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use polylane_tests::host::{Host, succeeds, text};
use polylane_tests::{binary, lacks, unavailable};

/// A mount namespace in which the helpers are installed, and /run/mount is the test's own.
const BEGIN: &str = r#"
mount --make-rprivate /
sbin=$(realpath /sbin); mkdir "$D/host" "$D/sbin" "$D/run"
mount --bind "$sbin" "$D/host"
ln -s "$D"/host/* "$D/sbin/"
for name in mount.polylane mount.fuse.polylane umount.fuse.polylane; do
    ln -s "$POLYLANE" "$D/sbin/$name"
done
mount --bind "$D/sbin" "$sbin"
mkdir -p /run/mount; mount --bind "$D/run" /run/mount
is_mounted() { grep -q " $1 " /proc/self/mountinfo; }
# sh -e ends at no command behind an exclamation mark.
no() { ! "$@"; }
"#;

/// Executes a script there, with a directory `m` in `$D`, and `$D` as its own.
fn sh(host: &Host, script: &str) -> Output {
    let dir: PathBuf = host.dir("d");
    fs::create_dir(dir.join("m")).expect("mkdir");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-euc", &format!("{BEGIN}{script}")]);
    command.env("D", &dir).env("POLYLANE", binary()).current_dir("/").output().expect("unshare")
}

fn passes(host: &Host, script: &str) -> String {
    let output = sh(host, script);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    host.assert_nothing_is_left();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn cannot(test: &str) -> bool {
    unavailable(test) || lacks(test, &["unshare", "mount", "umount", "realpath"])
}

/// umount(8) takes FUSE mounts for `fuse`, and finds the helper by what it is told beside that.
#[test]
fn umount_8_by_hand_unmounts_a_lane_unless_it_is_in_use() {
    if cannot("umount_8_by_hand_unmounts_a_lane_unless_it_is_in_use") {
        return;
    }
    let host = Host::new();
    let utab = passes(
        &host,
        r#"
        echo 'SRC=/dev/sda TARGET=/other ROOT=/ OPTS=_netdev' >"$D/run/utab"
        by_8() { mount -t polylane "$@" mem:64M "$D/m"; }
        by_hand() { "$POLYLANE" mount "$@" mem:64M "$D/m"; }
        for by in by_8 "by_8 -o ro" "by_8 -o _netdev,x-a=b" by_hand "by_hand --ro"; do
            $by
            if (cd "$D/m" && umount "$D/m") 2>"$D/said"; then exit 1; fi
            grep -q 'in use\|used by\|busy' "$D/said"
            is_mounted "$D/m"
            umount "$D/m"
            no is_mounted "$D/m"
        done
        # Mounted twice, it is unmounted once.
        by_hand; by_hand; umount "$D/m"; is_mounted "$D/m"; umount "$D/m"; no is_mounted "$D/m"
        # Where it is not to be listed it is not, mounted once more either; users read the file.
        (umask 077; by_hand); [ "$(stat -c %a "$D/run/utab")" = 644 ]
        by_hand; umount "$D/m"; umount "$D/m"
        by_hand --utab=none; by_hand --utab=none; no grep "TARGET=$D/m " "$D/run/utab"
        "$POLYLANE" umount --all "$D/m"
        # What is told is also what systemd reads.
        by_8 -o _netdev,noatime
        grep "TARGET=$D/m " "$D/run/utab" | grep -q 'OPTS=_netdev,'
        umount "$D/m"
        # By the program alone nothing is left either; and another mount there is the kernel's.
        by_hand; "$POLYLANE" umount "$D/m"
        mount -t tmpfs none "$D/m"; umount "$D/m"
        cat "$D/run/utab"
        "#,
    );
    assert_eq!(utab, "SRC=/dev/sda TARGET=/other ROOT=/ OPTS=_netdev\n");
}

/// Each option of mount(8) is kept, or refused by its name.
#[test]
fn options_of_mount_8_are_kept_or_refused_by_name() {
    if cannot("options_of_mount_8_are_kept_or_refused_by_name") {
        return;
    }
    let host = Host::new();
    passes(
        &host,
        r#"
        refused() {
            if mount -t polylane -o "$1" mem:64M "$D/m" 2>"$D/said"; then echo "$1" >&2; exit 1; fi
            grep -q "polylane: -o ${2:-$1}: " "$D/said" || { cat "$D/said" >&2; exit 1; }
            [ "$(wc -l <"$D/said")" = 1 ]
            no is_mounted "$D/m"
        }
        for option in noexec sync dirsync strictatime nosymfollow; do refused $option; done
        for option in user users; do refused $option,exec,suid,dev $option; done
        kept() {
            mount -t polylane -o "$1" mem:64M "$D/m"; "$POLYLANE" mount --json >"$D/listed"
            grep " $D/m " /proc/self/mountinfo >"$D/seen"
            umount "$D/m"
        }
        for option in defaults relatime norelatime lazytime atime diratime nosuid nodev nofail \
            _netdev x-systemd.automount auto noauto rw async exec suid,nosuid noatime,relatime; do
            kept $option
            grep -q '"access_times": "relatime"' "$D/listed"
            grep -q '"read_only": false' "$D/listed"
        done
        # mount(8) hands on no `suid`, its default.
        kept suid; grep -q nosuid "$D/seen"; kept setid; no grep -q nosuid "$D/seen"
        kept noatime,nodiratime,ro
        grep -q '"access_times": "noatime"' "$D/listed"; grep -q '"read_only": true' "$D/listed"
        kept nodiratime; grep -q '"access_times": "nodiratime"' "$D/listed"
        "#,
    );
}

/// A line of fstab as it is written for any file system.
#[test]
fn lines_of_fstab_are_mounted_and_unmounted() {
    if cannot("lines_of_fstab_are_mounted_and_unmounted") {
        return;
    }
    let host = Host::new();
    passes(
        &host,
        r#"
        mkdir "$D/n" "$D/o p"
        cat >"$D/fstab" <<END
mem:64M $D/m polylane defaults,noatime,nofail,x-systemd.requires-mounts-for=/srv 0 0
mem:32M $D/n polylane ro,nosuid,nodev,_netdev,lazytime 0 0
mem:32M $D/o\040p polylane rw,relatime,nodiratime,noauto 0 0
END
        for again in 1 2; do mount -a -T "$D/fstab"; done
        mount -T "$D/fstab" "$D/o p"
        [ "$("$POLYLANE" mount --json | grep -c "\"path\": \"$D/")" = 3 ]
        "$POLYLANE" mount --json >"$D/listed"; no grep '"count": 2' "$D/listed"
        no touch "$D/n/file" 2>&-
        touch "$D/m/file"
        umount "$D/m"; umount "$D/n"; umount "$D/o p"
        "#,
    );
}

/// By both doors; what is set by hand stays set.
#[test]
fn no_read_moves_an_access_time_of_a_lane_that_is_mounted_so() {
    if cannot("no_read_moves_an_access_time_of_a_lane_that_is_mounted_so") {
        return;
    }
    let host = Host::new();
    let volume = host.path("v.img");
    let script = r#"cd "$MOUNT"; cat file >/dev/null; ls dir >/dev/null; readlink link >/dev/null;
        cd dir; ls . >/dev/null; cat ../file - </dev/null >/dev/null"#;
    let read = |at: &Path, fast: bool| {
        let mut command = Command::new("sh");
        command.args(["-euc", script]).current_dir("/").env("MOUNT", at);
        if fast {
            command.env("LD_PRELOAD", at.join(".polylane/$LIB/libpolylane.so"));
            command.env("POLYLANE_MOUNT", at);
        }
        assert!(command.status().expect("sh").success());
    };
    let past = "touch -h -a -d 2001-01-01 file dir link; touch -h -m -d 2000-01-01 file dir link";
    let in_lane = |at: &Path, script: &str| {
        let output = Command::new("sh").args(["-euc", script]).current_dir(at).output();
        let output = output.expect("sh");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    for (number, (option, moves)) in
        [("--noatime", ""), ("--nodiratime", "file link"), ("", "file dir link")].iter().enumerate()
    {
        for fast in [false, true] {
            let at = host.dir(&format!("m{number}{fast}"));
            let size = ["--size", "64M"];
            let words =
                ["mount"].into_iter().chain(size).chain((!option.is_empty()).then_some(*option));
            let words: Vec<&str> = words.chain([text(&volume), text(&at)]).collect();
            succeeds(&words);
            in_lane(
                &at,
                "[ -e file ] || { echo x >file; mkdir dir; touch dir/a; ln -s file link; }",
            );
            in_lane(&at, past);
            read(&at, fast);
            let moved = "for name in file dir link; do
                [ $(stat -c %X $name) = $(date -d 2001-01-01 +%s) ] || echo $name; done";
            let moved = in_lane(&at, moved);
            assert_eq!(
                moved.split_whitespace().collect::<Vec<_>>().join(" "),
                *moves,
                "{option} {fast}"
            );
            succeeds(&["umount", text(&at)]);
        }
    }
    host.assert_nothing_is_left();
}

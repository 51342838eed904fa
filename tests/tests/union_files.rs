//! Files of lowers, before and behind their copy-up, by both ways in.

use std::path::Path;

use polylane_tests::host::{Host, succeeds, text};
use polylane_tests::pool::{Run, no_library};
use polylane_tests::step::good;
use polylane_tests::{Lane, Script, binary, lacks, scripts, seed, unavailable};

/// Runs a script of the shell in a directory.
fn sh(dir: &Path, script: &str) -> String {
    let mut sh = std::process::Command::new("sh");
    good(&sh.args(["-euc", script]).current_dir(dir).output().expect("sh"))
}

fn python(words: &str) -> String {
    format!("/usr/bin/python3 -B {}/copied.py {words}", scripts().display())
}

/// What fsx does to a file of its own, and more, is done to files that a lower has: by a program
/// with the library and one without, by descriptors and mappings from before the first change and
/// from later ones. The next run of the lane finds what they left.
#[test]
fn files_of_lowers_are_as_a_model_of_bytes_says() {
    const COUNT: u32 = 24;
    let test = "files_of_lowers_are_as_a_model_of_bytes_says";
    if unavailable(test) || no_library(test) {
        return;
    }
    let seed = seed();
    let dir = tempfile::tempdir().expect("tempdir");
    let (low, kept) = (dir.path().join("low"), dir.path().join("kept"));
    let [low_is, kept_is] = [&low, &kept].map(|path| path.display());
    sh(dir.path(), &python(&format!("make {seed} {COUNT} {low_is}")));
    let base = dir.path().join("base.img");
    let fill = Run::new("--size 256M").arg("--volume").arg(&base);
    good(&fill.script(&format!("cp -a {low_is}/. /lane")).output());
    // The script itself is judged first.
    let change = |seed| python(&format!("change {seed} {COUNT} {low_is} {kept_is} 150"));
    let check = python(&format!("check {kept_is}"));
    let alone = format!("cp -a {low_is}/. .\n{}\n{check}", change(seed));
    assert_eq!(Script::new(alone).succeeds(Lane::Tmpfs), "holds\nholds\n");
    let mut seed = seed;
    for lower in [&low, &base] {
        for upper in ["--volume", "--dir", "--mem"] {
            for door in ["", "--no-preload"] {
                seed += 1;
                let at = dir.path().join(format!("upper{seed}"));
                let run = || {
                    let run = Run::new(door).arg("--lower").arg(lower).arg(upper);
                    if upper == "--mem" { run } else { run.arg(&at) }
                };
                let output = run().script(&format!("cd /lane && {}", change(seed))).output();
                let of = format!("{} {upper} {door}, seed {seed}", lower.display());
                assert_eq!(good(&output), "holds\n", "{of}");
                if upper != "--mem" {
                    let output = run().script(&format!("cd /lane && {check}")).output();
                    assert_eq!(good(&output), "holds\n", "{of}, again");
                }
            }
        }
    }
    // No lower was written to.
    sh(dir.path(), &python(&format!("make {} {COUNT} again", seed - 12)));
    sh(dir.path(), "diff -r low again");
}

/// Programs that copy a tree into a directory that is there: each makes other holes or loses marks.
const COPIES: [&str; 8] = [
    "cp -r --sparse=always",
    "cp -a",
    "cp -a --sparse=always",
    "cp -a --sparse=never",
    "rsync -a",
    "rsync -aS",
    "rsync -aX",
    "rsync -aXS",
];

/// Copies an upper by `program`, as a directory or as the files of a volume.
fn copy(dir: &Path, option: &str, program: &str) {
    let script = match option {
        "--dir" => "rm -rf copy; mkdir -m 700 copy; COPY upper/. copy/",
        _ => {
            "rm -f copy; umask 077; truncate -s 64M copy; mke2fs -Fq -t ext4 copy; \
             mkdir -p from to; mount -o loop,ro upper from; mount -o loop copy to; \
             COPY from/. to/; umount to from"
        }
    };
    let script = script.replace("COPY", program);
    sh(dir, &format!("exec unshare --mount --propagation private sh -euc '{script}'"));
}

/// A copy of an upper with files in parts is refused, with marks or without; one of an upper that
/// was made whole is an upper again.
#[test]
fn a_copy_of_an_upper_is_whole_or_refused() {
    let test = "a_copy_of_an_upper_is_whole_or_refused";
    if unavailable(test) || lacks(test, &["rsync", "mke2fs", "fallocate"]) {
        return;
    }
    for option in ["--dir", "--volume"] {
        let dir = tempfile::tempdir().expect("tempdir");
        sh(dir.path(), "mkdir low; for name in big other; do seq 100000 >low/$name; done");
        let run = |upper: &str, script: &str| {
            let run = Run::new(if option == "--volume" { "--size 64M" } else { "" });
            let run = run.arg("--lower").arg(dir.path().join("low"));
            run.arg(option).arg(dir.path().join(upper)).script(script).output()
        };
        // Bytes, written zeros and a punched hole between what is the lower's.
        let change = "cd /lane && printf HERE | dd of=big bs=1 seek=100000 conv=notrunc && \
                      dd if=/dev/zero of=big bs=4096 seek=40 count=4 conv=notrunc && \
                      fallocate -p -o 204800 -l 16384 big && mv other moved && \
                      echo more >>moved && echo new >new";
        good(&run("upper", change));
        let sums = "cd /lane && cksum big moved new";
        let expected = good(&run("upper", sums));
        for program in COPIES {
            copy(dir.path(), option, program);
            let output = run("copy", sums);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success(), "{option}, {program}: {output:?}");
            assert!(said.contains("copied file by file"), "{option}, {program}: {said}");
            assert_eq!(said.lines().count(), 1, "{option}, {program}: {said}");
        }
        let mut solidify = std::process::Command::new(polylane_tests::binary());
        solidify.args(["volume", "solidify"]).arg(dir.path().join("upper"));
        good(&solidify.arg("--lower").arg(dir.path().join("low")).output().expect("polylane"));
        for program in COPIES {
            copy(dir.path(), option, program);
            assert_eq!(good(&run("copy", sums)), expected, "{option}, {program}, whole");
        }
        // As one file, or by its name, an upper stays what it is.
        good(&run("upper", "cd /lane && chmod 600 big && echo again >>moved && sync"));
        sh(dir.path(), "rm -rf copy; mv upper moved");
        assert_eq!(good(&run("moved", "cd /lane && tail -n 2 moved")), "more\nagain\n");
    }
}

/// To change the owner, mode or times of all files of an image moves none of their data.
#[test]
fn a_chown_of_all_files_moves_no_data() {
    let test = "a_chown_of_all_files_moves_no_data";
    if unavailable(test) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    // 600 files, 60 MB.
    let script = "for d in $(seq 20); do mkdir -p low/d$d; for f in $(seq 30); do \
                  head -c 100000 /dev/urandom >low/d$d/f$f; done; done";
    sh(dir.path(), script);
    let used = "$(($(stat -f -c '(%b-%f)*%S/1024' /lane)))";
    let script = format!(
        "cd /lane; before={used}; chown -R 1000:1000 .; chmod -R go-w,u+s .; \
         find . -exec touch -h -d @5 {{}} +; sync; echo $(({used} - before)); \
         find . ! -user 1000 -o ! -group 1000 | wc -l; find . | wc -l; \
         cat d*/f* | cksum; cat {}/d*/f* | cksum",
        dir.path().join("low").display()
    );
    for door in ["", "--no-preload"] {
        let volume = dir.path().join(format!("upper{door}"));
        let run = Run::new(door).arg("--size").arg("1G").arg("--volume").arg(&volume);
        let said = good(&run.arg("--lower").arg(dir.path().join("low")).script(&script).output());
        let lines: Vec<&str> = said.lines().collect();
        let grown: u64 = lines[0].parse().expect("KiB");
        // An inode each, and a block of attributes.
        assert!(grown < 600 * 8, "{door}: the upper grew by {grown} KiB");
        assert_eq!(lines[1..3], ["0", "621"], "{door}: {said}");
        assert_eq!(lines[3], lines[4], "{door}: {said}");
    }
}

/// Requests of the library to a lane, by their names.
fn asked(lane: &str) -> impl Fn(&str) -> u64 + use<> {
    let stats = succeeds(&["stats", "--json", "--pool", lane]);
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
    let by_operation = stats[0]["service"]["shared_memory"]["by_operation"].clone();
    move |name| by_operation[name].as_u64().unwrap_or(0)
}

/// `diff` opens two files before it reads either: the answers to both opens bring the bytes, and
/// the next opens close them.
#[test]
fn files_that_are_compared_take_one_request_each() {
    const FILES: u64 = 300;
    let test = "files_that_are_compared_take_one_request_each";
    if unavailable(test) || no_library(test) || lacks(test, &["diff"]) {
        return;
    }
    let host = Host::new();
    let (low, at) = (host.dir("low"), host.dir("at"));
    let make = format!(
        "for tree in old new; do mkdir $tree; for n in $(seq {FILES}); do \
             seq $n 10 10000 >$tree/$n; done; done; echo more >>new/7; rm old/9"
    );
    sh(&low, &make);
    let upper = format!("volume:{}", host.path("upper.img").display());
    succeeds(&["mount", "--size", "64M", "--lower", text(&low), &upper, text(&at)]);
    let mount = &host.mounts()[0];
    let lane = format!("{}@{}", mount["pool"].as_str().expect("a name"), mount["service"]);
    let diff = |dir: &Path, way: &str| sh(dir, &format!("{way}diff -r old new || test $? = 1"));
    let fast = format!(
        "eval \"$({} env {})\"; export LD_PRELOAD POLYLANE_MOUNT POLYLANE_RUN; ",
        binary().display(),
        text(&at)
    );
    let expected = diff(&low, "");
    // The first time nothing is cached that an answer could bring.
    assert_eq!(diff(&at, &fast), expected);
    let before = asked(&lane);
    assert_eq!(diff(&at, &fast), expected);
    let after = asked(&lane);
    let more = |name: &str| after(name) - before(name);
    let (opens, reads, closes) = (more("open"), more("read"), more("close"));
    assert!(opens >= 2 * FILES - 10, "{opens} opens");
    assert!(reads < FILES / 10 && closes < FILES / 10, "{reads} reads, {closes} closes");
    // What waits to be closed is so when its program ends, and has no name in its way before.
    sh(&at, &format!("{fast}cat old/* >/dev/null; rm -r old new; test -z \"$(ls)\""));
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

//! Lanes that are unions: `run --lower`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use polylane_tests::pool::Run;
use polylane_tests::step::good;
use polylane_tests::{lacks, skip, unavailable};

/// Two lowers, the first above the second.
fn lowers(dir: &Path) {
    for (layer, name, text) in
        [("high", "both", "high\n"), ("low", "both", "low\n"), ("low", "old", "old\n")]
    {
        fs::create_dir_all(dir.join(layer).join("d")).expect("mkdir");
        fs::write(dir.join(layer).join("d").join(name), text).expect("write");
    }
    fs::write(dir.join("low/big"), vec![b'x'; 8 << 20]).expect("write");
}

fn run(dir: &Path, upper: &str) -> Run {
    let mut run = Run::new("");
    for layer in ["high", "low"] {
        run = run.arg("--lower").arg(dir.join(layer));
    }
    match upper {
        "" => run,
        "--mem" => run.arg("--mem"),
        option => run.arg(option).arg(dir.join("upper")),
    }
}

#[test]
fn a_lane_over_lowers_keeps_changes_to_itself() {
    if unavailable("a_lane_over_lowers_keeps_changes_to_itself") {
        return;
    }
    for upper in ["--volume", "--dir", "--mem"] {
        let dir = tempfile::tempdir().expect("tempdir");
        lowers(dir.path());
        let script = "cd /lane && cat d/both d/old && echo more >> big && chmod 600 big && \
                      rm d/old && mv d e && mkdir d && echo new > e/new && ls d e && \
                      tail -c 6 big && stat -c %s big";
        let output = run(dir.path(), upper).script(script).output();
        let expected = "high\nold\nd:\n\ne:\nboth\nnew\nxmore\n8388613\n";
        assert_eq!(good(&output), expected, "{upper}");
        assert_eq!(fs::read(dir.path().join("low/d/old")).expect("there"), b"old\n");
        assert_eq!(fs::metadata(dir.path().join("low/big")).expect("there").len(), 8 << 20);
        if upper == "--mem" {
            continue;
        }
        // What was changed is there in the next run.
        let script = "cd /lane && ls d e && tail -c 6 big && stat -c %a big && head -c 3 big";
        let output = run(dir.path(), upper).script(script).output();
        let expected = "d:\n\ne:\nboth\nnew\nxmore\n600\nxxx";
        assert_eq!(good(&output), expected, "{upper}, again");
    }
}

#[test]
fn lowers_alone_are_a_lane_to_read() {
    if unavailable("lowers_alone_are_a_lane_to_read") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    lowers(dir.path());
    let script = "cd /lane && cat d/both d/old && ! touch new 2>/tmp/why-$$; \
                  grep -o 'Read-only file system' /tmp/why-$$; rm /tmp/why-$$";
    let output = run(dir.path(), "").script(script).output();
    assert_eq!(good(&output), "high\nold\nRead-only file system\n");
}

/// A list's mask stands where a mode has its group's rights: who goes by the mode alone gives the
/// group more than it has, and nothing to those whom the list names.
#[test]
fn access_lists_and_capabilities_of_a_lower_directory_count() {
    let name = "access_lists_and_capabilities_of_a_lower_directory_count";
    let tools = ["setfacl", "getfacl", "setcap", "getcap", "setpriv"];
    if unavailable(name) || lacks(name, &tools) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    let made = Command::new("sh")
        .arg("-euc")
        .arg(
            "mkdir low; cd low; echo one >f; chown root:2000 f; chmod 640 f; setfacl -m u:1000:rw f
             cp /bin/true ping; setcap cap_net_raw+ep ping
             echo two >s; chown root:2000 s; chmod 600 s; setfacl -m u:1000:r s
             mkdir d; setfacl -d -m u:1000:rwx d; chmod 755 d",
        )
        .current_dir(dir.path())
        .output()
        .expect("sh");
    if !made.status.success() {
        skip(name, "the host's file system keeps no access lists or capabilities");
        return;
    }
    let script = "cd /lane
        as() { setpriv --reuid $1 --regid $2 --clear-groups sh -c \"$3\" 2>/dev/null; }
        as 3000 2000 'echo group >>f' || echo refused
        as 1000 1000 'echo named >>f' && cat f
        getfacl -cn f | grep :; getcap ping; touch d/new; getfacl -cn d/new | grep 1000 | cut -f1
        chmod 711 ping; getcap ping; as 3000 2000 'echo group >>f' || echo refused";
    let shown = "refused\none\nnamed\nuser::rw-\nuser:1000:rw-\ngroup::r--\nmask::rw-\nother::---\n\
                 ping cap_net_raw=ep\nuser:1000:rwx\nping cap_net_raw=ep\nrefused\n";
    for (upper, door) in [("--volume", ""), ("--volume", "--no-preload"), ("--mem", "")] {
        let _ = fs::remove_file(dir.path().join("upper"));
        let run = Run::new(door).arg("--lower").arg(dir.path().join("low"));
        let run = match upper {
            "--mem" => run.arg("--mem"),
            _ => run.arg("--volume").arg(dir.path().join("upper")),
        };
        assert_eq!(good(&run.script(script).output()), shown, "{upper} {door}");
    }
    let script = "cd /lane
        as() { setpriv --reuid $1 --regid $2 --clear-groups cat s 2>/dev/null; }
        as 3000 2000 || echo refused; as 1000 1000; getcap ping";
    let run = Run::new("").arg("--lower").arg(dir.path().join("low"));
    assert_eq!(good(&run.script(script).output()), "refused\ntwo\nping cap_net_raw=ep\n");
}

#[test]
fn what_can_be_no_layer_is_refused_in_one_line() {
    if unavailable("what_can_be_no_layer_is_refused_in_one_line") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    lowers(dir.path());
    let low = dir.path().join("low");
    let refused = |run: Run, words: &str| {
        let output = run.script("echo started").output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(words), "{said}");
    };
    let missing = dir.path().join("missing");
    refused(Run::new("--mem").arg("--lower").arg(&missing), "missing");
    refused(Run::new("--mem").arg("--lower").arg(low.join("big")), "big");
    let inside = Run::new("").arg("--lower").arg(&low).arg("--dir").arg(low.join("upper"));
    refused(inside, "lie in each other");
    let twice = Run::new("--mem").arg("--lower").arg(&low).arg("--lower").arg(&low);
    refused(twice, "are one layer");
    let high = dir.path().join("high");
    fs::set_permissions(&high, fs::Permissions::from_mode(0o700)).expect("chmod");
    let full = Run::new("").arg("--lower").arg(&low).arg("--dir").arg(&high);
    refused(full, "holds d beside");
    assert!(!low.join("upper").exists(), "nothing is made for what is refused");
    assert_eq!(fs::read_dir(&high).expect("there").count(), 1);
}

/// Layers that are one directory, or lie in each other, by whatever name and mount; and what can be
/// no layer at all. `$D` is the test's directory.
#[test]
fn layers_that_meet_by_links_and_mounts_are_refused() {
    if unavailable("layers_that_meet_by_links_and_mounts_are_refused") {
        return;
    }
    let host = tempfile::tempdir().expect("tempdir");
    let dir = host.path().canonicalize().expect("canonical");
    lowers(&dir);
    fs::create_dir(dir.join("bind")).expect("mkdir");
    std::os::unix::fs::symlink("low", dir.join("link")).expect("symlink");
    let tree = || {
        let output = std::process::Command::new("find").arg(&dir).args(["-ls"]).output();
        good(&output.expect("find"))
    };
    let before = tree();
    let mount = |what: &str| format!("mount --bind \"$D\"/{what} \"$D\"/bind && exec \"$@\"");
    let rows: &[(&str, &[&str], i32, &str)] = &[
        ("low", &["--mem", "--lower", "low", "--lower", "bind"], 2, "are one layer"),
        ("low/d", &["--mem", "--lower", "low", "--lower", "bind"], 2, "lie in each other"),
        ("low", &["--mem", "--lower", "bind/d", "--lower", "low"], 2, "lie in each other"),
        ("low", &["--lower", "low", "--dir", "bind"], 2, "are one layer"),
        ("low", &["--lower", "low", "--dir", "bind/new"], 2, "lie in each other"),
        ("low/d", &["--lower", "low", "--dir", "bind/new/er"], 2, "lie in each other"),
        ("low", &["--mem", "--lower", "low", "--lower", "link"], 2, "are one layer"),
        ("low", &["--lower", "low", "--dir", "link/new"], 2, "lie in each other"),
        ("low", &["--mem", "--lower", "data:low", "--lower", "high"], 2, "write those last"),
        ("low", &["--mem", "--lower", "absent/er"], 1, "No such file"),
        ("low", &["--mem", "--lower", "low/big"], 1, "or name another"),
        ("low", &["--mem", "--lower", "low/big/x"], 1, "Not a directory"),
    ];
    for (bound, words, status, said) in rows {
        let mut run = Run::new("").env("D", &dir);
        for word in *words {
            run = match word.strip_prefix("data:") {
                Some(path) => run.arg(format!("data:{}", dir.join(path).display())),
                None if word.starts_with("--") => run.arg(word),
                None => run.arg(dir.join(word)),
            };
        }
        let run = run.script("echo started");
        let script = mount(bound);
        let run = run.by(&["unshare", "-m", "--propagation", "private", "sh", "-c", &script, "sh"]);
        let (found, line) = run.refusal();
        assert!(found == *status && line.contains(said), "{words:?}: {found} {line}");
        assert_eq!(tree(), before, "{words:?}: nothing is made");
    }
}

/// A file that is partly in a lower that changed is an error, which its lane's log explains; the
/// directory's other names stay.
#[test]
fn a_lower_that_changed_is_named_and_spoils_one_file_alone() {
    if unavailable("a_lower_that_changed_is_named_and_spoils_one_file_alone") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    lowers(dir.path());
    let big = dir.path().join("low/big");
    let time = fs::metadata(&big).and_then(|meta| meta.modified()).expect("a time");
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let named = |output: &Output| {
        let line = "low: its big has changed since the lane wrote to a part of it";
        said(output).matches(line).count()
    };
    // While the lane is used.
    let script = "cd /lane && printf new | dd of=big bs=1 seek=1000000 conv=notrunc 2>/dev/null && \
                  tail -c 1 big && truncate -s 2000000 \"$D/low/big\" && \
                  ! tail -c +4000000 big >/dev/null && ls";
    let run = run(dir.path(), "--dir").env("D", dir.path());
    let output = run.script(script).output();
    assert_eq!(good(&output), "xbig\nd\n");
    assert_eq!(named(&output), 1, "{}", said(&output));
    // And before.
    let script = "cd /lane && ls && ls && cat d/both && ! cat big && ! cat big && \
                  echo y >d/both && cat d/both";
    let output = self::run(dir.path(), "--dir").script(script).output();
    assert_eq!(good(&output), "big\nd\nbig\nd\nhigh\ny\n");
    assert_eq!(named(&output), 1, "{}", said(&output));
    assert_eq!(fs::metadata(&big).expect("there").len(), 2_000_000);
    // What it had is put back.
    fs::write(&big, vec![b'x'; 8 << 20]).expect("written");
    fs::File::options()
        .write(true)
        .open(&big)
        .and_then(|file| file.set_modified(time))
        .expect("set");
    let script = "cd /lane && tail -c +1000001 big | head -c 4 && stat -c %s big";
    let output = self::run(dir.path(), "--dir").script(script).output();
    assert_eq!(good(&output), "newx8388608\n");
    assert_eq!(said(&output), "");
    // What cannot be read can go.
    fs::write(&big, b"short").expect("written");
    let script =
        "cd /lane && ! cat big && mv d/both small && mv small big && cat big && rm big && ls";
    let output = self::run(dir.path(), "--dir").script(script).output();
    assert_eq!(good(&output), "y\nd\n");
}

/// A volume with a file that has two names, and one that is older than a directory's.
fn make_base(volume: &Path) {
    let script = "cd /lane && mkdir d && echo base > d/base && head -c 1000000 /dev/zero > big && \
                  ln big same && chmod 640 d/base && ln -s d/base link";
    let run = Run::new("").arg("--volume").arg(volume).arg("--size").arg("64M");
    assert_eq!(good(&run.script(script).output()), "");
}

#[test]
fn a_volume_is_a_lower_for_several_lanes_at_once() {
    if unavailable("a_volume_is_a_lower_for_several_lanes_at_once") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    lowers(dir.path());
    let (base, upper, low) =
        (dir.path().join("base.img"), dir.path().join("upper.img"), dir.path().join("low"));
    make_base(&base);
    let over = |script: String| {
        let run = Run::new("").arg("--lower").arg(&base).arg("--lower").arg(&low);
        run.arg("--volume").arg(&upper).script(&script).output()
    };
    let beside = dir.path().join("script");
    let inner = format!(
        "#!/bin/sh\n\"$POLYLANE_BIN\" run --mem --at /mnt --lower volume:{0} -- cat /mnt/d/base\n\
         \"$POLYLANE_BIN\" run --at /mnt --volume {0} -- true 2>&1 | grep -c 'in use'\n",
        base.display()
    );
    fs::write(&beside, inner).expect("written");
    let program = polylane_tests::binary();
    let script = format!(
        "cd /lane && cat d/base d/old && stat -c %a d/base && echo more >> big && rm link && \
         tail -c 5 same && POLYLANE_BIN={} sh {}",
        program.display(),
        beside.display()
    );
    assert_eq!(good(&over(script)), "base\nold\n640\nmore\nbase\n1\n");
    let script = "cd /lane && stat -c %s same && ls && cat d/old".to_string();
    assert_eq!(good(&over(script)), "1000005\nbig\nd\nsame\nold\n");
    // It is as it was, and is a snapshot's equal.
    let snapshot = dir.path().join("snap.img");
    let copied = std::process::Command::new(&program)
        .args(["volume", "snapshot"])
        .args([&base, &snapshot])
        .status();
    assert!(copied.expect("started").success());
    for lower in [&base, &snapshot] {
        let run = Run::new("").arg("--lower").arg(lower);
        let script = "cd /lane && stat -c %s big && readlink link && ! touch x 2>&1";
        let said = good(&run.script(script).output());
        assert!(said.starts_with("1000000\nd/base\n") && said.contains("Read-only"), "{said}");
    }
}

/// `polylane volume solidify`, as it says what it did, or why not.
fn solidify(upper: &Path, lowers: &[&Path]) -> (bool, String) {
    let mut command = std::process::Command::new(polylane_tests::binary());
    command.args(["volume", "solidify"]).arg(upper);
    for lower in lowers {
        command.arg("--lower").arg(lower);
    }
    let output = command.output().expect("started");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn an_upper_is_made_whole_with_its_lane_in_use_or_not() {
    if unavailable("an_upper_is_made_whole_with_its_lane_in_use_or_not") {
        return;
    }
    for option in ["--dir", "--volume"] {
        let dir = tempfile::tempdir().expect("tempdir");
        lowers(dir.path());
        let (low, high, upper) =
            (dir.path().join("low"), dir.path().join("high"), dir.path().join("upper"));
        let script = "cd /lane && echo more >> big && chmod 600 d/old";
        assert_eq!(good(&run(dir.path(), option).script(script).output()), "");
        let (done, said) = solidify(&upper, &[]);
        assert!(!done && said.contains("no lane is on it: say"), "{said}");
        let (done, said) = solidify(&upper, &[&high, &low]);
        assert!(done && said.ends_with("upper: 2 files made whole\n"), "{said}");
        let (done, said) = solidify(&upper, &[&high, &low]);
        assert!(done && said.ends_with("upper: 0 files made whole\n"), "{said}");
        // In use, with a writer.
        let script = "cd /lane && chmod 640 d/both && echo go && read line && cat d/both";
        let (mut lane, mut input) = run(dir.path(), option).script(script).start_with_input();
        assert_eq!(lane.line(), "go");
        let (done, said) = solidify(&upper, &[]);
        assert!(done && said.ends_with("upper: 1 file made whole\n"), "{said}");
        std::io::Write::write_all(&mut input, b"\n").expect("written");
        assert_eq!(lane.line(), "high");
        assert!(lane.end().success());
        // Nothing of its files is in the lowers any more.
        if option == "--dir" {
            let bytes = fs::read(upper.join("upper/big")).expect("there");
            assert_eq!(bytes.len(), (8 << 20) + 5);
            assert!(bytes[..8 << 20].iter().all(|&byte| byte == b'x'));
        }
    }
}

#[test]
fn a_volume_that_can_be_no_lower_is_refused_in_one_line() {
    if unavailable("a_volume_that_can_be_no_lower_is_refused_in_one_line") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    lowers(dir.path());
    let base = dir.path().join("base.img");
    make_base(&base);
    let refused = |run: Run, words: &str| {
        let output = run.script("echo started").output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty(), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(words), "{said}");
    };
    let over = |lower: &Path| Run::new("--mem").arg("--lower").arg(lower);
    refused(Run::new("").arg("--lower").arg(&base).arg("--volume").arg(&base), "in use");
    refused(over(&base).arg("--lower").arg(&base), "are one layer");
    // Its journal is not replayed: other lanes read it.
    let before = fs::read(&base).expect("read");
    let mut dirty = before.clone();
    dirty[1024 + 0x60] |= 4;
    fs::write(&base, &dirty).expect("written");
    refused(over(&base), "base.img: cannot be a lower: ");
    assert_eq!(fs::read(&base).expect("read"), dirty);
    fs::write(&base, &before).expect("written");
    // Who writes to it could show himself what is under it.
    fs::set_permissions(&base, fs::Permissions::from_mode(0o666)).expect("chmod");
    refused(over(&base).arg("--lower").arg(dir.path().join("low")), "over --lower");
    assert_eq!(good(&over(&base).script("cat /lane/d/base").output()), "base\n");
}

/// A mark of another user's would show him what he may not read in the lowers.
#[test]
fn uppers_that_others_could_mark_are_refused() {
    if unavailable("uppers_that_others_could_mark_are_refused") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    lowers(dir.path());
    let (upper, volume) = (dir.path().join("upper"), dir.path().join("upper.img"));
    assert!(run(dir.path(), "--dir").script("true").output().status.success());
    let mode = fs::metadata(&upper).expect("made").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let over_low = |option: &str, path: &Path| {
        let run = Run::new("").arg("--lower").arg(dir.path().join("low"));
        run.arg(option).arg(path).script("true").output()
    };
    assert!(over_low("--volume", &volume).status.success());
    let refused = |option: &str, path: &Path| {
        let output = over_low(option, path);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("over --lower"), "{said}");
    };
    for mode in [0o711, 0o750, 0o702] {
        fs::set_permissions(&upper, fs::Permissions::from_mode(mode)).expect("chmod");
        refused("--dir", &upper);
    }
    fs::set_permissions(&volume, fs::Permissions::from_mode(0o662)).expect("chmod");
    refused("--volume", &volume);
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for (option, path) in [("--dir", &upper), ("--volume", &volume)] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700)).expect("chmod");
        std::os::unix::fs::chown(path, Some(1000), None).expect("chown");
        refused(option, path);
    }
}

#[test]
fn a_data_only_lower_has_data_for_files_that_point_to_it() {
    let test = "a_data_only_lower_has_data_for_files_that_point_to_it";
    if unavailable(test) || lacks(test, &["setfattr"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let script = "mkdir -p low/d data/blobs; head -c 300000 /dev/urandom > data/blobs/x; \
                  truncate -s 300000 low/d/f; setfattr -n user.overlay.metacopy low/d/f; \
                  setfattr -n user.overlay.redirect -v /blobs/x low/d/f";
    let mut make = std::process::Command::new("sh");
    make.args(["-ec", script]).current_dir(dir.path());
    good(&make.output().expect("sh"));
    let data = format!("data:{}", dir.path().join("data").display());
    let over = |words: [&str; 2]| {
        let lowers =
            words.map(|word| word.replace("LOW", &dir.path().join("low").display().to_string()));
        lowers.iter().fold(Run::new("--mem"), |run, lower| run.arg("--lower").arg(lower))
    };
    let script = format!(
        "cd /lane && ls && cmp d/f {0} && echo more >> d/f && head -c 300000 d/f | cmp - {0} && \
         stat -c %s d/f",
        dir.path().join("data/blobs/x").display()
    );
    let output = over(["LOW", &data]).script(&script).output();
    assert_eq!(good(&output), "d\n300005\n");
    for (words, why) in [([data.as_str(), "LOW"], "write those last"), ([&data, &data], "no other")]
    {
        let (_, line) = over(words).script("true").refusal();
        assert!(line.contains(why), "{line}");
    }
}

#[test]
fn a_lane_whose_syncs_do_not_wait_is_refused_until_it_ended_in_order() {
    if unavailable("a_lane_whose_syncs_do_not_wait_is_refused_until_it_ended_in_order") {
        return;
    }
    for upper in ["--volume", "--dir", "--mem"] {
        let dir = tempfile::tempdir().expect("tempdir");
        lowers(dir.path());
        let script = "cd /lane && echo new > d/new && sync d/new && sync -f . && cat d/new";
        for _ in 0..2 {
            let output = run(dir.path(), upper).arg("--volatile").script(script).output();
            assert_eq!(good(&output), "new\n", "{upper}");
        }
    }
    let dir = tempfile::tempdir().expect("tempdir");
    lowers(dir.path());
    let mark = dir.path().join("upper/work/work/incompat/volatile");
    let script = format!("test -d {} && echo while it runs", mark.display());
    let output = run(dir.path(), "--dir").arg("--volatile").script(&script).output();
    assert_eq!(good(&output), "while it runs\n");
    assert!(!mark.exists());
    // As after a power cut.
    fs::create_dir_all(&mark).expect("mkdir");
    for more in [&["--volatile"][..], &[]] {
        let mut again = run(dir.path(), "--dir");
        for option in more {
            again = again.arg(option);
        }
        let output = again.script("true").output();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("--volatile"), "{said}");
        assert_eq!(said.matches('\n').count(), 1, "{said}");
    }
    fs::remove_dir(&mark).expect("rmdir");
    assert!(run(dir.path(), "--dir").script("true").output().status.success());
    let alone = Run::new("").arg("--mem").arg("--volatile").script("true").output();
    assert_eq!(alone.status.code(), Some(2), "without lowers there is nothing to be wrong");
}

/// A tree of two lowers for `remembered.py`, with every name that it uses.
fn many_lowers(dir: &Path) {
    for (at, place) in ["", "a", "b", "a/in", "c"].into_iter().enumerate() {
        for name in 0..4 {
            let layer = if (at + name) % 2 == 0 { "high" } else { "low" };
            let below = dir.join(layer).join(place);
            fs::create_dir_all(&below).expect("mkdir");
            fs::write(below.join(name.to_string()), "lower").expect("write");
        }
        let link = dir.join("low").join(place).join("link");
        std::os::unix::fs::symlink("0", link).expect("link");
    }
}

/// What the kernel remembers of a union is what the union is, whichever program changes
/// it, by either way; also after kills of the service (`kills`).
fn what_is_remembered_holds(test: &str, kills: bool) {
    if unavailable(test) || polylane_tests::pool::no_library(test) {
        return;
    }
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = seed.expect("after 1970").as_millis();
    for (upper, seed) in [("--volume", seed), ("--dir", seed + 1)] {
        let dir = tempfile::tempdir().expect("tempdir");
        many_lowers(dir.path());
        let rounds = if kills { 400 } else { 1500 };
        let script = polylane_tests::scripts().join("remembered.py");
        let script = format!(
            "cd /lane && exec /usr/bin/python3 -B {} {seed} {rounds} {}",
            script.display(),
            u32::from(kills)
        );
        let run = run(dir.path(), upper).script(&script);
        let (mut running, mut input) = run.start_with_input();
        loop {
            match running.line().as_str() {
                "kill" => {
                    let former = running.service();
                    polylane_tests::pool::signal_to(former, "KILL");
                    polylane_tests::host::until("there is another service", || {
                        running.service_now().is_some_and(|service| service != former)
                    });
                    std::io::Write::write_all(&mut input, b"go\n").expect("written");
                }
                said => {
                    assert_eq!(said, "holds", "{upper}, seed {seed}");
                    break;
                }
            }
        }
        assert!(running.end().success());
    }
}

#[test]
fn what_the_kernel_remembers_of_a_union_is_what_it_is() {
    what_is_remembered_holds("what_the_kernel_remembers_of_a_union_is_what_it_is", false);
}

#[test]
fn what_the_kernel_remembers_holds_when_a_service_is_killed() {
    what_is_remembered_holds("what_the_kernel_remembers_holds_when_a_service_is_killed", true);
}

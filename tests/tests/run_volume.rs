//! Lanes on volumes: `polylane run --volume`.
//!
//! Real programs on volumes are in `apps/` and `posix/`, as on every other kind of lane.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Output;

use polylane_tests::pool::{Run, signal_to};
use polylane_tests::step::good;
use polylane_tests::volume::assert_clean;
use polylane_tests::{lacks, scripts, unavailable};

/// A directory with a volume's path in it; `None` where volumes cannot be tested.
fn place(test: &str) -> Option<(tempfile::TempDir, PathBuf)> {
    if unavailable(test) || lacks(test, &["mke2fs", "e2fsck"]) {
        return None;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let volume = dir.path().join("volume");
    Some((dir, volume))
}

fn run(options: &str, volume: &Path, script: &str) -> Output {
    Run::new(&format!("{options} --volume")).arg(volume).script(script).output()
}

#[test]
fn a_volume_is_made_once_and_keeps_its_files() {
    let Some((_dir, volume)) = place("a_volume_is_made_once_and_keeps_its_files") else { return };
    for options in ["--no-preload --size 1G", "--size 1G", ""] {
        let script = "cat /lane/count 2>/dev/null; echo x >> /lane/count; ls /lane";
        let said = good(&run(options, &volume, script));
        assert!(said.ends_with("x\ncount\n") || said == "count\n", "{said}");
        assert_clean(&volume);
    }
    assert_eq!(good(&run("", &volume, "cat /lane/count")), "x\nx\nx\n");
    let file = fs::metadata(&volume).expect("stat");
    assert_eq!((file.len(), file.mode() & 0o777), (1 << 30, 0o600));
    assert!(file.blocks() * 512 < 128 << 20, "sparse");
}

/// What a tenant changed is on its volume after the time that was given, without any fsync: a copy
/// of the file, as a power cut leaves it, has it.
#[test]
fn changes_wait_no_longer_than_was_said() {
    let Some((dir, volume)) = place("changes_wait_no_longer_than_was_said") else { return };
    let copy = dir.path().join("copy");
    let script = format!(
        "seq 300000 >/lane/f; sleep 2; cp --sparse=always {} {}",
        volume.display(),
        copy.display()
    );
    let options = "--size 256M --flush-interval 200ms --dirty-limit 1M";
    good(&run(options, &volume, &script));
    assert_eq!(good(&run("", &copy, "seq 300000 | cmp - /lane/f && echo same")), "same\n");
    assert_clean(&copy);
}

#[test]
fn limits_of_changes_that_cannot_be_kept_are_refused() {
    let refused = |words: &str| Run::new(words).script("true").refusal();
    for (words, part) in [
        ("--mem --dirty-limit 2M", "--dirty-limit: only a lane on a volume"),
        ("--kernel-fs ext4 --flush-interval 1s", "--flush-interval: the kernel writes back"),
        ("--dirty-limit 100K", "--dirty-limit: from 1M to "),
        ("--memory 64M --dirty-limit 17M", "--dirty-limit: from 1M to 16 MiB"),
        ("--flush-interval 1ms", "--flush-interval: too short: at least 10ms"),
        ("--flush-interval 5", "--flush-interval <TIME>"),
        ("--mem --discard", "--discard: only a lane on a volume"),
        ("--kernel-fs ext4 --kernel-cache", "--kernel-cache: is of what goes by FUSE"),
        ("--kernel-fs ext4 --journal-mode ordered", "--journal-mode: the kernel mounts"),
        ("--journal-mode fast", "--journal-mode <MODE>"),
        ("--mem --journal-mode data", "--journal-mode: only a lane on a volume"),
    ] {
        let (status, line) = refused(words);
        assert!(status == 2 && line.contains(part), "{words}: {status}: {line}");
    }
}

/// What is removed goes back to the host at once if that was asked for, else when fstrim asks; and
/// a file is what was written, whatever the journal does with its data.
#[test]
fn what_is_freed_goes_back_to_the_host() {
    let Some((_dir, volume)) = place("what_is_freed_goes_back_to_the_host") else { return };
    let used_mib = || fs::metadata(&volume).expect("stat").blocks() >> 11;
    let fill = "seq 9000000 >/lane/f; sync; seq 9000000 | cmp - /lane/f && rm /lane/f; sync";
    good(&run("--size 256M", &volume, fill));
    let kept = used_mib();
    good(&run("--discard --journal-mode writeback", &volume, fill));
    assert!(used_mib() + 50 < kept, "{kept} MiB, then {}", used_mib());
    assert_clean(&volume);
}

/// With all data in the journal: small and large writes, synced, over each other, are what is there
/// after a cut, and the image is in order.
#[test]
fn a_lane_can_journal_all_data() {
    let Some((_dir, volume)) = place("a_lane_can_journal_all_data") else { return };
    let work = "cd /lane; seq 2000000 >large; sync large; seq 900 >small; sync small; \
                seq 5000 6000 | dd of=large bs=4k seek=3 conv=notrunc,fsync status=none; \
                echo told; sleep 1000";
    let mut running =
        Run::new("--size 256M --journal-mode data --volume").arg(&volume).script(work).start();
    assert_eq!(running.line(), "told");
    running.cut_power();
    let look = "cd /lane; seq 900 | cmp - small; seq 2000000 >/lane/l; \
                seq 5000 6000 | dd of=/lane/l bs=4k seek=3 conv=notrunc status=none; \
                cmp /lane/l large && echo same; rm /lane/l";
    assert_eq!(good(&run("--journal-mode data", &volume, look)), "same\n");
    assert_clean(&volume);
}

/// Where nothing is journaled the mode is refused before anything is written.
#[test]
fn a_lane_whose_image_journals_nothing_cannot_journal_data() {
    let name = "a_lane_whose_image_journals_nothing_cannot_journal_data";
    let Some((_dir, volume)) = place(name) else { return };
    for (features, why) in [
        ("^has_journal", "it has no journal"),
        ("bigalloc", "it is read only, bigalloc"),
        ("bigalloc,^has_journal", "it has no journal"),
    ] {
        let _ = fs::remove_file(&volume);
        let made = std::process::Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-b", "4096", "-O", features])
            .arg(&volume)
            .arg("64M")
            .status();
        assert!(made.expect("mke2fs").success());
        let before = fs::read(&volume).expect("read");
        let (status, line) =
            Run::new("--journal-mode data --volume").arg(&volume).script("echo no").refusal();
        assert_eq!(status, 2, "{line}");
        let (option, cause) = line.split_once("--journal-mode data: ").expect("names the option");
        assert!(option.contains("volume") && cause.contains(why), "{features}: {line}");
        assert!(fs::read(&volume).expect("read") == before, "{features}: it was written");
        // Without the option it is what it was.
        assert_eq!(good(&run("", &volume, "echo yes")), "yes\n");
    }
}

#[test]
fn without_a_source_the_pool_has_its_own_volume() {
    let Some((dir, _)) = place("without_a_source_the_pool_has_its_own_volume") else { return };
    let run = |options: &str, script: &str| {
        Run::new(options).env("XDG_STATE_HOME", dir.path()).script(script).output()
    };
    // Every run of the test kit has a pool name of its own, so it names the volume too.
    let said = good(&run("", "echo kept > /lane/f; cat /lane/f; df --output=size -h /lane"));
    // Of 10 GiB, less what the format takes.
    assert!(said.starts_with("kept\n") && said.contains(" 9."), "{said}");
    let mut volumes: Vec<_> = fs::read_dir(dir.path().join("polylane/volumes"))
        .expect("volumes")
        .map(|entry| entry.expect("entry").path())
        .collect();
    volumes.retain(|path| path.extension().is_some_and(|extension| extension == "img"));
    assert_eq!(volumes.len(), 1, "{volumes:?}");
    let name = volumes[0].file_name().expect("name").to_string_lossy().into_owned();
    assert!(name.starts_with("test-") && name.ends_with(".img"), "{name}");
    assert_clean(&volumes[0]);
}

#[test]
fn removed_files_that_were_still_open_are_gone_at_the_end() {
    let name = "removed_files_that_were_still_open_are_gone_at_the_end";
    let Some((_dir, volume)) = place(name) else { return };
    for options in ["--size 256M --no-preload", "--size 256M"] {
        let script = "cd /lane; for i in 1 2 3 4 5 6 7 8; do exec 3>$i; done; exec 3>a 4>b 5>c; \
                      rm a b c; echo data >&3; echo data >&4; echo data >&5";
        good(&run(options, &volume, script));
        assert_clean(&volume);
    }
    let free = "stat -f -c %d /lane; stat -f -c %c /lane";
    let before = good(&run("", &volume, free));
    good(&run("", &volume, "cd /lane; exec 3>x; rm x; head -c 9999999 /dev/zero >&3"));
    assert_eq!(good(&run("", &volume, free)), before, "free inodes");
}

/// Data of new files goes the way of leases; where there is no room for it, the write says so.
#[test]
fn streamed_data_on_a_full_volume_is_refused_by_the_write() {
    let name = "streamed_data_on_a_full_volume_is_refused_by_the_write";
    let Some((_dir, volume)) = place(name) else { return };
    let case = |options: &str, case: &str| {
        let run = Run::new(&format!("{options} --volume")).arg(&volume);
        let run = run.env("SCRIPTS", scripts()).env("POLYLANE_LEASES", "eager");
        let script = format!("cd /lane; timeout 90 /usr/bin/python3 -B $SCRIPTS/leases.py {case}");
        good(&run.script(&script).output())
    };
    let told = case("--size 64M", "full 3");
    let digest = told.strip_suffix("holds\n").expect("holds");
    assert_clean(&volume);
    assert_eq!(case("--no-preload", "digest"), digest);
}

#[test]
fn a_volume_in_use_names_who_has_it() {
    let Some((_dir, volume)) = place("a_volume_in_use_names_who_has_it") else { return };
    let first = Run::new("--size 256M --volume").arg(&volume).script("echo up; sleep 30");
    let mut first = first.start();
    assert_eq!(first.line(), "up");
    let second = Run::new("--volume").arg(&volume).script("true");
    let (status, line) = second.refusal();
    assert_eq!(status, 1, "{line}");
    assert!(line.contains(&format!("in use by pool '{}'", first.pool)), "{line}");
    let end = format!("): end the 'polylane run' of pool '{}' first", first.pool);
    assert!(line.ends_with(&end), "{line}");
    signal_to(first.service(), "KILL");
    std::thread::sleep(std::time::Duration::from_millis(300));
    let second = Run::new("--volume").arg(&volume).script("true");
    assert_eq!(second.refusal().0, 1, "held while the service is replaced");
    first.signal("TERM");
    first.end();
    assert_clean(&volume);
    good(&run("", &volume, "true"));
}

#[test]
fn a_killed_service_replays_the_journal_and_goes_on() {
    let name = "a_killed_service_replays_the_journal_and_goes_on";
    let Some((_dir, volume)) = place(name) else { return };
    // What was synced before a kill must be there after it; the file is opened anew each time.
    let script = r#"
        cd /
        ( i=0; while :; do i=$((i+1)); mkdir -p /lane/load/$i 2>/dev/null; echo $i > /lane/load/$i/f
          mv /lane/load/$i/f /lane/load/g; rm -rf /lane/load/$i; done ) 2>/dev/null &
        for n in 1 2 3 4; do
            echo $n > /lane/kept.$n && sync /lane/kept.$n
            echo sync | dd of=/lane/sync.$n oflag=sync status=none
            echo dsync | dd of=/lane/dsync.$n oflag=dsync status=none
            echo synced && read go
            for m in $(seq $n); do cat /lane/kept.$m /lane/sync.$m /lane/dsync.$m; done
        done 2>&1
        echo end"#;
    for options in ["--no-preload", ""] {
        let run = Run::new(&format!("--size 512M {options} --volume")).arg(&volume);
        let (mut run, mut input) = run.script(script).start_with_input();
        for n in 1..=4 {
            assert_eq!(run.line(), "synced", "{options} {n}");
            let before = run.service();
            signal_to(before, "KILL");
            while run.service_now().is_none_or(|now| now == before) {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            std::io::Write::write_all(&mut input, b"go\n").expect("write");
            for m in 1..=n {
                for kept in [&*m.to_string(), "sync", "dsync"] {
                    assert_eq!(run.line(), kept, "{options} {n}");
                }
            }
        }
        assert_eq!(run.line(), "end");
        assert_eq!(run.end().code(), Some(0));
        assert_clean(&volume);
    }
}

/// What a program syncs that never touched the lane before: the kernel's own sync and syncfs do not
/// reach the service.
#[test]
fn sync_and_syncfs_of_a_fresh_program_are_durable() {
    let name = "sync_and_syncfs_of_a_fresh_program_are_durable";
    let Some((_dir, volume)) = place(name) else { return };
    let script = r#"
        cd /
        for how in "sync" "sync -f /lane/1" "sync -f /lane"; do
            echo "$how" > /lane/1 && $how && echo synced && read go && cat /lane/1
        done"#;
    let (mut run, mut input) =
        Run::new("--size 256M --volume").arg(&volume).script(script).start_with_input();
    for how in ["sync", "sync -f /lane/1", "sync -f /lane"] {
        assert_eq!(run.line(), "synced", "{how}");
        let before = run.service();
        signal_to(before, "KILL");
        let begun = std::time::Instant::now();
        while run.service_now().is_none_or(|now| now == before) {
            assert!(begun.elapsed().as_secs() < 60, "no new service");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        std::io::Write::write_all(&mut input, b"go\n").expect("write");
        assert_eq!(run.line(), how);
    }
    assert_eq!(run.end().code(), Some(0));
    assert_clean(&volume);
}

#[test]
fn a_killed_supervisor_leaves_a_volume_that_can_be_used() {
    let name = "a_killed_supervisor_leaves_a_volume_that_can_be_used";
    let Some((_dir, volume)) = place(name) else { return };
    let script = "echo kept > /lane/kept; sync /lane/kept; echo up; \
                  while :; do echo x > /lane/y; rm /lane/y; done";
    let mut run = Run::new("--size 256M --volume").arg(&volume).script(script).start();
    assert_eq!(run.line(), "up");
    run.signal("KILL");
    run.end();
    let again = Run::new("--volume").arg(&volume).script("cat /lane/kept").output();
    assert_eq!(good(&again), "kept\n");
    assert_clean(&volume);
}

#[test]
fn what_is_no_sound_volume_is_refused_in_one_line() {
    let name = "what_is_no_sound_volume_is_refused_in_one_line";
    let Some((dir, volume)) = place(name) else { return };
    let refused = |path: &Path, options: &str| {
        let (status, line) =
            Run::new(&format!("{options} --volume")).arg(path).script("true").refusal();
        assert_eq!(status, 1, "{line}");
        assert!(line.contains(&path.display().to_string()), "{line}");
        line
    };
    assert!(refused(Path::new("/dev/null"), "").contains("not a regular file"));
    assert!(refused(dir.path(), "").contains("Is a directory"));
    assert!(refused(&dir.path().join("none/volume"), "").contains("No such file"));
    let empty = dir.path().join("empty");
    fs::File::create(&empty).expect("create").set_len(1 << 20).expect("size");
    assert!(refused(&empty, "").contains("holds no ext4"));
    good(&run("--size 64M", &volume, "echo x > /lane/f"));
    assert!(refused(&volume, "--size 1G").contains("exists with 64 MiB"));
    // A bit of the superblock.
    let file = fs::OpenOptions::new().read(true).write(true).open(&volume).expect("open");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 1024 + 0x78).expect("read");
    file.write_all_at(&[byte[0] ^ 1], 1024 + 0x78).expect("write");
    let line = refused(&volume, "");
    assert!(line.contains("corrupt image: superblock") && line.contains("e2fsck"), "{line}");
    file.set_len(32 << 20).expect("cut");
    file.write_all_at(&byte, 1024 + 0x78).expect("write");
    assert!(refused(&volume, "").contains("larger than the device"));
}

#[test]
fn a_full_volume_says_so_and_goes_on() {
    let Some((_dir, volume)) = place("a_full_volume_says_so_and_goes_on") else { return };
    for options in ["--size 32M --no-preload", "--size 32M"] {
        let script = "cd /lane; head -c 64M /dev/zero > big && sync big && exit 9; rm big; \
                      head -c 4M /dev/zero > small && stat -c %s small";
        let output = run(options, &volume, script);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(good(&output), "4194304\n", "{said}");
        assert!(said.contains("No space left on device"), "{said}");
        assert_clean(&volume);
    }
}

/// Where files lie is told in preloaded programs; free space goes back to the host by either door.
#[test]
fn filefrag_and_fstrim_work() {
    let name = "filefrag_and_fstrim_work";
    let Some((_dir, volume)) = place(name) else { return };
    if lacks(name, &["filefrag", "fstrim"]) {
        return;
    }
    let script = "cd /lane; head -c 8M /dev/zero > a; fallocate -l 1M b; truncate -s 3M c; \
                  printf x >> c; filefrag a b c | sed 's/^.lane.//'; \
                  filefrag -v b | grep -c 'last,unwritten,eof'; filefrag -v c | grep -c ' 768.. '";
    let said = good(&run("--size 64M", &volume, script));
    assert_eq!(said, "a: 1 extent found\nb: 1 extent found\nc: 1 extent found\n1\n1\n");
    let blocks = || {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(&volume).expect("stat").blocks()
    };
    for options in ["--no-preload", ""] {
        good(&run(options, &volume, "head -c 16M /dev/zero > /lane/x; sync /lane/x; rm /lane/x"));
        let before = blocks();
        let said = good(&run(options, &volume, "fstrim -v /lane"));
        assert!(said.contains("trimmed") && before - blocks() > 20_000, "{said}");
        // What ext4 of the kernel refuses.
        let wrong = "for range in '-l 0' '-l 100' '-o 1T' '-m 1G'; do
            fstrim $range /lane 2>/dev/null && echo done $range; done; true";
        assert_eq!(good(&run(options, &volume, wrong)), "");
        assert_clean(&volume);
    }
}

#[test]
fn a_volume_can_be_the_root() {
    let Some((_dir, volume)) = place("a_volume_can_be_the_root") else { return };
    if lacks("a_volume_can_be_the_root", &["busybox"]) {
        return;
    }
    let busybox = polylane_tests::tool("busybox").expect("busybox");
    let script =
        format!("mkdir /lane/bin && cp {} /lane/bin/sh && mkdir /lane/etc", busybox.display());
    good(&run("--size 128M", &volume, &script));
    let run = Run::new("--root --volume").arg(&volume);
    let output = run.script("echo name > /etc/hostname; read n < /etc/hostname; echo $n").output();
    assert_eq!(good(&output), "name\n");
    assert_clean(&volume);
}

#[test]
fn statistics_show_the_volume_s_requests() {
    let Some((_dir, volume)) = place("statistics_show_the_volume_s_requests") else { return };
    let script = "head -c 1M /dev/zero > /lane/f; sync /lane/f; echo up; sleep 30";
    let mut run = Run::new("--size 128M --volume").arg(&volume).script(script).start();
    assert_eq!(run.line(), "up");
    let pool = run.pool.clone();
    let stats = std::process::Command::new(polylane_tests::binary())
        .args(["stats", "--all", "--pool", &pool])
        .output()
        .expect("stats");
    let stats = String::from_utf8_lossy(&stats.stdout).into_owned();
    let value = |name: &str| -> u64 {
        let line = stats.lines().find(|line| line.starts_with(&format!("service.volume.{name}:")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {stats}"));
        line.rsplit(' ').next().expect("value").parse().expect("number")
    };
    assert!(value("written_bytes") >= 1 << 20, "{stats}");
    assert!(value("flushes") + value("durable_writes") > 0 && value("failed") == 0, "{stats}");
    run.signal("TERM");
    run.end();
    assert_clean(&volume);
}

/// One line, and exit status `status`, from a run that makes nothing.
fn refused(words: &str, volume: Option<&Path>, status: i32) -> String {
    let run = match volume {
        Some(volume) => Run::new(&format!("{words} --volume")).arg(volume),
        None => Run::new(words),
    };
    let output = run.script("true").output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{words}: {said}");
    assert_eq!(said.lines().count(), 1, "{words}: {said}");
    said
}

#[test]
fn a_medium_is_that_of_the_volume_or_refused() {
    let Some((_dir, volume)) = place("a_medium_is_that_of_the_volume_or_refused") else { return };
    good(&run("--medium file --size 32M", &volume, "echo kept >/lane/f"));
    assert_eq!(good(&run("--medium file", &volume, "cat /lane/f")), "kept\n");
    let said = refused("--medium bypass", Some(&volume), 1);
    assert!(said.contains("exists on the medium file: leave --medium out"), "{said}");
    let said = refused("--medium mem", Some(&volume), 2);
    assert!(said.contains("leave --volume, --dir and --ceph out"), "{said}");
    for words in ["--mem --medium file", "--mem --medium bypass", "--dir / --medium file"] {
        let said = refused(words, None, 2);
        assert!(said.contains("--medium: only a volume has one"), "{said}");
    }
    let said = refused("--mem --qos ledger", None, 2);
    assert!(said.contains("--qos: ") && said.contains("this lane is on none"), "{said}");
    let lane = |words: &str| {
        let script = "echo x >/lane/f && stat -f -c %S:%b:%T /lane";
        good(&Run::new(&format!("{words} --size 64M")).script(script).output())
    };
    let mem = lane("--mem");
    assert_eq!((lane("--medium mem"), lane("--mem --medium mem")), (mem.clone(), mem));
}

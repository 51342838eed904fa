//! `polylane volume`: what it makes, tells, refuses.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use polylane_tests::pool::Run;
use polylane_tests::volume::{HostFs, assert_clean};
use polylane_tests::{binary, lacks, skip, tool, unavailable};

/// `polylane volume WORDS`, split at blanks, in `dir`, by a user whose state directory cannot be
/// made.
fn volume(dir: &Path, words: &str) -> Output {
    let mut command = Command::new(binary());
    command.current_dir(dir).env("XDG_STATE_HOME", "/proc/none");
    command.arg("volume").args(words.split_whitespace()).output().expect("run polylane")
}

fn done(dir: &Path, words: &str) -> String {
    let output = volume(dir, words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "volume {words}: {:?}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// One line that names the object, with this status.
fn refused(dir: &Path, words: &str, status: i32) -> String {
    let output = volume(dir, words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "volume {words}: {said}");
    assert_eq!(said.lines().count(), 1, "volume {words}: {said}");
    said
}

fn field(dir: &Path, volume: &str, name: &str) -> serde_json::Value {
    let text = done(dir, &format!("info --json {volume}"));
    serde_json::from_str::<serde_json::Value>(&text).expect("JSON")[name].clone()
}

fn run(volume: &Path, script: &str) -> String {
    let output = Run::new("--volume").arg(volume).script(script).output();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {:?}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn place(test: &str) -> Option<tempfile::TempDir> {
    if lacks(test, &["mke2fs", "e2fsck", "resize2fs"]) {
        return None;
    }
    Some(tempfile::tempdir().expect("tempdir"))
}

#[test]
fn a_volume_is_made_listed_and_removed() {
    let Some(dir) = place("a_volume_is_made_listed_and_removed") else { return };
    let dir = dir.path();
    done(dir, "create one.img --size 100M --weight 300");
    done(dir, "create two --size 64M --fs none");
    assert_clean(&dir.join("one.img"));
    let list: serde_json::Value = serde_json::from_str(&done(dir, "ls . --json")).expect("JSON");
    let sizes: Vec<_> = list.as_array().expect("list").iter().map(|v| &v["size_bytes"]).collect();
    assert_eq!(sizes, [100 << 20, 64 << 20]);
    assert_eq!((&list[0]["content"], &list[1]["content"]), (&"ext4-clean".into(), &"none".into()));
    assert_eq!((&list[0]["weight"], &list[0]["snapshot"]), (&300.into(), &false.into()));
    let allocated = fs::metadata(dir.join("one.img")).expect("stat").blocks() * 512;
    assert_eq!(list[0]["allocated_bytes"], allocated);
    assert!(done(dir, "ls .").contains("100 MiB"), "table");
    assert_eq!(done(dir, "ls").lines().count(), 1, "the state directory has none yet");
    assert!(refused(dir, "create one.img --size 64M", 1).contains("one.img: cannot create it"));
    assert!(refused(dir, "create tiny --size 1M", 2).contains("--size"));
    assert!(refused(dir, "create x --fs xfs", 2).contains("xfs"));
    assert!(refused(dir, "info none", 1).contains("none: cannot open it: No such file"));
    assert!(refused(dir, "info .", 1).contains(".: not a regular file"));
    done(dir, "rm one.img two");
    assert_eq!(fs::read_dir(dir).expect("list").count(), 0, "nothing left");
}

#[test]
fn only_volumes_are_removed_unless_forced() {
    let Some(dir) = place("only_volumes_are_removed_unless_forced") else { return };
    let (dir, at) = (dir.path(), |name: &str| dir.path().join(name));
    fs::write(at("letter"), "dear").expect("write");
    fs::write(at("raw.img"), "disk").expect("write");
    let line = refused(dir, "rm letter", 1);
    assert!(line.contains("letter: nothing says that it is a volume") && line.contains("--force"));
    assert!(at("letter").exists());
    done(dir, "rm raw.img");
    done(dir, "rm --force letter");
    done(dir, "create v --size 16M --fs none");
    fs::write(at("v.polylane"), "nonsense").expect("write");
    let (listed, missed) = (volume(dir, "ls ."), refused(dir, "info v", 1));
    assert_eq!(
        (listed.status.code(), listed.stderr),
        (Some(1), missed.replace("v.p", "./v.p").into())
    );
    let line = refused(dir, "rm v", 1);
    assert!(line.contains("v.polylane: not a sidecar") && line.contains("--force"), "{line}");
    done(dir, "rm --force v");
    assert!(refused(dir, "rm v", 1).contains("v: cannot open it: No such file"));
    assert_eq!(fs::read_dir(dir).expect("list").count(), 0, "nothing left");
}

#[test]
fn translation_is_kept_shown_and_bound() {
    let name = "translation_is_kept_shown_and_bound";
    let Some(dir) = place(name).filter(|_| !unavailable(name)) else { return };
    let (dir, path) = (dir.path(), dir.path().join("v"));
    done(dir, "create v --size 64M");
    assert!(!done(dir, "info v").contains("translation"));
    done(dir, "set v --translation-cpus 0 --prefetch 8M");
    assert!(done(dir, "info v").contains("on CPUs 0, prefetch 8 MiB"));
    assert!(refused(dir, "set v --prefetch 4K", 2).contains("at least 1M"));
    let run = Run::new("--prefetch 4M --volume").arg(&path).script("echo up; sleep 60");
    let mut user = run.start();
    assert_eq!(user.line(), "up");
    let stats = Command::new(binary()).args(["stats", "--all", "--pool", &user.pool]).output();
    let stats = String::from_utf8(stats.expect("stats").stdout).expect("text");
    for wanted in ["translation.cpus: 0\n", "translation.prefetch_bytes: 4194304\n"] {
        assert!(stats.contains(wanted), "{wanted}: {stats}");
    }
    let tasks = fs::read_dir(format!("/proc/{}/task", user.service())).expect("threads");
    let allowed = tasks.flatten().find_map(|task| {
        let status = fs::read_to_string(task.path().join("status")).ok()?;
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        (line("Name:")?.trim() == "translate-0")
            .then(|| line("Cpus_allowed_list:").map(|list| list.trim().to_string()))?
    });
    assert_eq!(allowed.as_deref(), Some("0"));
    user.signal("TERM");
    user.end();
}

#[test]
fn a_thick_volume_has_its_space() {
    let Some(dir) = place("a_thick_volume_has_its_space") else { return };
    done(dir.path(), "create v --size 64M --thick");
    let stat = fs::metadata(dir.path().join("v")).expect("stat");
    assert!(stat.blocks() * 512 >= 64 << 20, "{} blocks", stat.blocks());
    assert_clean(&dir.path().join("v"));
    // What does not fit is refused before the host is filled with it.
    let line = refused(dir.path(), "create big --size 9000T --thick", 1);
    assert!(line.contains("big: its host has") && line.contains("no room for"), "{line}");
    assert!(!dir.path().join("big").exists());
}

/// Space that is only reserved has the host commit what it writes there first.
#[test]
fn the_journal_of_a_thick_volume_is_written() {
    let name = "the_journal_of_a_thick_volume_is_written";
    let Some(host) = HostFs::new(name, "ext4", 300 << 20) else { return };
    let dir = host.path();
    done(&dir, "create thick --size 64M --thick");
    done(&dir, "create thin --size 64M");
    let tells = |command: &str, volume: &str| {
        let output = Command::new("debugfs").args(["-R", command]).arg(dir.join(volume)).output();
        String::from_utf8(output.expect("debugfs").stdout).expect("text")
    };
    let written = |volume: &str| {
        let file = fs::File::open(dir.join(volume)).expect("open");
        let said = tells("stats", volume);
        let size = said.lines().find_map(|line| line.strip_prefix("Block size:")).expect("said");
        let size: u64 = size.trim().parse().expect("a number");
        let blocks = tells("blocks <8>", volume);
        let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|it| it.parse().ok()).collect();
        let is_data = |block: &&u64| {
            let from = rustix::fs::SeekFrom::Data(**block * size);
            rustix::fs::seek(&file, from).is_ok_and(|found| found == **block * size)
        };
        (blocks.iter().filter(is_data).count(), blocks.len())
    };
    let (data, all) = written("thick");
    assert!(all >= 1024 && data == all, "{data} of {all} blocks");
    let (data, all) = written("thin");
    assert!(data < all, "a sparse volume begins with less: {data} of {all}");
}

#[test]
fn a_volume_beyond_its_host_takes_little_of_it() {
    let name = "a_volume_beyond_its_host_takes_little_of_it";
    let Some(host) = HostFs::new(name, "ext4", 300 << 20) else { return };
    let (dir, path) = (&host.path(), host.path().join("v"));
    done(dir, "create v --size 200G");
    let stat = fs::metadata(&path).expect("stat");
    assert!(stat.blocks() * 512 < 32 << 20, "{} bytes", stat.blocks() * 512);
    let script = "seq 100000 > /lane/numbers; mkdir /lane/d; for i in $(seq 500); do \
                  echo $i > /lane/d/$i; done; sync /lane; cat /lane/d/* | wc -l";
    assert_eq!(run(&path, script), "500\n");
    assert_clean(&path);
    assert_eq!(run(&path, "tail -1 /lane/numbers"), "100000\n");
}

#[test]
fn a_grown_volume_has_more_room_and_the_same_files() {
    let name = "a_grown_volume_has_more_room_and_the_same_files";
    let Some(dir) = place(name).filter(|_| !unavailable(name)) else { return };
    let path = dir.path().join("v");
    done(dir.path(), "create v --size 64M");
    run(&path, "seq 100000 > /lane/numbers");
    done(dir.path(), "resize v 300M");
    assert_clean(&path);
    let said = run(&path, "tail -1 /lane/numbers; stat -f -c '%b %S' /lane");
    let mut words = said.split_whitespace().map(|word| word.parse::<u64>().expect("number"));
    assert_eq!(words.next(), Some(100_000));
    assert!(words.product::<u64>() > 270 << 20, "{said}");
}

#[test]
fn a_volume_is_made_smaller_where_its_files_fit() {
    let name = "a_volume_is_made_smaller_where_its_files_fit";
    let Some(dir) = place(name).filter(|_| !unavailable(name)) else { return };
    let (path, dir) = (dir.path().join("v"), dir.path());
    done(dir, "create v --size 300M");
    run(
        &path,
        "seq 100000 > /lane/numbers; head -c 40M /dev/urandom > /lane/big; rm /lane/numbers; \
         seq 100000 > /lane/numbers; sha1sum /lane/big > /lane/sum",
    );
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("mode");
    let line = refused(dir, "resize v 32M", 1);
    assert!(line.contains("v: its files need ") && line.contains("MiB"), "{line}");
    assert!(refused(dir, "resize v 8M", 2).contains("not below 16 MiB"));
    assert_eq!(fs::metadata(&path).expect("stat").len(), 300 << 20, "left as it was");
    done(dir, "resize v 128M");
    let stat = fs::metadata(&path).expect("stat");
    assert_eq!((stat.len(), stat.mode() & 0o777), (128 << 20, 0o640));
    assert_clean(&path);
    let said = run(&path, "tail -1 /lane/numbers; sha1sum --quiet -c /lane/sum; echo good");
    assert_eq!(said, "100000\ngood\n");
    done(dir, "create raw --size 64M --fs none");
    assert!(refused(dir, "resize raw 32M", 1).contains("raw: holds no ext4 file system"));
    let names = fs::read_dir(dir).expect("list").flatten().map(|entry| entry.file_name());
    assert_eq!(names.filter(|name| name.to_string_lossy().contains("-raw")).count(), 0);
}

#[test]
fn copies_start_equal_and_go_their_own_ways() {
    let name = "copies_start_equal_and_go_their_own_ways";
    let Some(dir) = place(name).filter(|_| !unavailable(name)) else { return };
    let (dir, at) = (dir.path(), |name: &str| dir.path().join(name));
    done(dir, "create v --size 64M");
    run(&at("v"), "echo first > /lane/f");
    done(dir, "snapshot v s");
    run(&at("v"), "echo second > /lane/f");
    done(dir, "clone s c");
    assert_eq!(run(&at("c"), "cat /lane/f; echo third > /lane/f"), "first\n");
    assert_eq!(run(&at("v"), "cat /lane/f"), "second\n");
    assert_eq!(run(&at("c"), "cat /lane/f"), "third\n");
    assert_eq!(field(dir, "s", "parent"), field(dir, "v", "id"));
    assert_eq!(field(dir, "c", "parent"), field(dir, "s", "id"));
    let (status, line) = Run::new("--volume").arg(at("s")).script("true").refusal();
    assert!(status == 1 && line.contains("is a snapshot"), "{line}");
    assert!(refused(dir, "resize s 128M", 1).contains("is a snapshot"));
    assert!(refused(dir, "clone v c", 1).contains("c: cannot create it: File exists"));
    for name in ["v", "s", "c"] {
        done(dir, &format!("check {name}"));
    }
}

/// On a host that cannot share blocks, the temporary directory's as a rule.
#[test]
fn copies_on_any_host_are_made_in_a_moment_and_small() {
    let name = "copies_on_any_host_are_made_in_a_moment_and_small";
    let Some(host) = HostFs::new(name, "ext4", 700 << 20) else { return };
    let (dir, at) = (host.path(), |name: &str| host.path().join(name));
    let dir = &dir;
    done(dir, "create v --size 10G");
    run(&at("v"), "head -c 20M /dev/urandom > /lane/f; sync /lane/f");
    let start = std::time::Instant::now();
    done(dir, "clone v c");
    assert!(start.elapsed() < std::time::Duration::from_secs(1), "{:?}", start.elapsed());
    for name in ["v", "c"] {
        let own = field(dir, name, "allocated_bytes").as_u64().expect("bytes");
        assert!(own < 64 << 10, "{name}: {own} bytes of its own");
        assert_eq!(field(dir, name, "size_bytes"), 10u64 << 30);
        assert_eq!(field(dir, name, "content"), "ext4-clean");
    }
    let sum = "md5sum < /lane/f";
    let first = run(&at("v"), sum);
    assert_eq!(run(&at("c"), sum), first);
    // Each goes its own way, also when its service is killed.
    let script = "head -c 1M /dev/urandom > /lane/g; sync /lane/g; echo up; sleep 1; ls /lane";
    let mut user = Run::new("--no-preload --volume").arg(at("c")).script(script).start();
    assert_eq!(user.line(), "up");
    polylane_tests::pool::signal_to(user.service(), "KILL");
    assert_eq!((user.line(), user.line()), ("f".to_string(), "g".to_string()));
    assert_eq!(user.end().code(), Some(0));
    assert_eq!(run(&at("v"), "ls /lane"), "f\n");
    // The base serves all copies, and none of them changes it.
    let base = field(dir, "v", "base").as_str().expect("a base").to_string();
    assert_eq!(field(dir, "c", "base"), base.as_str());
    assert!(refused(dir, &format!("rm {base}"), 1).contains("is the base of"));
    done(dir, "snapshot c s");
    done(dir, "clone s d");
    assert_eq!(run(&at("d"), "rm /lane/f; ls /lane"), "g\n");
    assert_eq!(run(&at("c"), sum), first);
    for name in ["v", "c", "s", "d"] {
        done(dir, &format!("check {name}"));
    }
    done(dir, "resize d 11G");
    assert_eq!(field(dir, "d", "base"), serde_json::Value::Null);
    assert_clean(&at("d"));
    done(dir, "rm v c d");
    assert!(at(&base).exists(), "the snapshot is on it");
    done(dir, "rm s");
    let left: Vec<_> = fs::read_dir(dir).expect("list").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["lost+found"]);
}

#[test]
fn a_link_to_a_volume_means_the_volume_and_other_names_of_its_file_none() {
    let name = "a_link_to_a_volume_means_the_volume_and_other_names_of_its_file_none";
    let Some(dir) = place(name).filter(|_| !unavailable(name)) else { return };
    let (dir, at) = (dir.path(), |name: &str| dir.path().join(name));
    done(dir, "create v --size 64M");
    fs::create_dir(at("links")).expect("mkdir");
    symlink(at("v"), at("links/l")).expect("link");
    assert_eq!(field(dir, "links/l", "id"), field(dir, "v", "id"));
    run(&at("links/l"), "echo first > /lane/f");
    done(dir, "snapshot links/l s");
    assert!(fs::symlink_metadata(at("links/l")).expect("stat").is_symlink());
    assert!(fs::symlink_metadata(at("s")).expect("stat").is_file());
    // The snapshot stays as it is, under whichever name the volume is written.
    run(&at("v"), "echo second > /lane/f");
    run(&at("links/l"), "echo third >> /lane/f");
    done(dir, "clone s c");
    assert_eq!(run(&at("c"), "cat /lane/f"), "first\n");
    assert_eq!(run(&at("v"), "cat /lane/f"), "second\nthird\n");
    done(dir, "resize links/l 80M");
    assert_eq!(field(dir, "v", "size_bytes"), 80 << 20);
    assert!(refused(dir, "rm links/l", 1).contains("remove the volume by its name, /"));
    symlink("nowhere", at("links/d")).expect("link");
    assert!(refused(dir, "info links/d", 1).contains("links/d: cannot follow the link: No such"));
    let mut user = Run::new("--volume").arg(at("links/l")).script("echo up; sleep 60").start();
    assert_eq!(user.line(), "up");
    done(dir, "snapshot links/l used");
    user.signal("TERM");
    user.end();
    assert!(fs::symlink_metadata(at("links/l")).expect("stat").is_symlink());
    assert_eq!(run(&at("v"), "cat /lane/f"), "second\nthird\n");
    // A frozen file must not have a name under which it is written.
    done(dir, "create w --size 64M");
    fs::hard_link(at("w"), at("h")).expect("link");
    let before = fs::metadata(at("w")).expect("stat").ino();
    let tried = volume(dir, "snapshot w s2");
    if field(dir, "s", "base").is_null() && field(dir, "c", "base").is_null() {
        assert!(tried.status.success(), "blocks are shared: no file is frozen");
    } else {
        let said = String::from_utf8_lossy(&tried.stderr);
        assert!(said.contains("w: its file has 2 names (hard links)"), "{said}");
        assert!(!at("s2").exists() && fs::metadata(at("w")).expect("stat").ino() == before);
        fs::remove_file(at("h")).expect("remove");
        done(dir, "snapshot w s2");
    }
}

#[test]
fn what_a_guest_writes_makes_no_overlay_of_its_volume() {
    let name = "what_a_guest_writes_makes_no_overlay_of_its_volume";
    let Some(dir) = place(name).filter(|_| !unavailable(name)) else { return };
    let (dir, at) = (dir.path(), |name: &str| dir.path().join(name));
    done(dir, "create v --size 64M");
    done(dir, "clone v c");
    if field(dir, "c", "base").is_null() {
        return skip(name, "the host shares blocks itself");
    }
    // The end of a file of the same size with a trailer of the right form, but another's nonce.
    let clone = fs::read(at("c")).expect("read");
    let mut forged = clone.clone();
    let nonce = forged.len() - 4096 + 16;
    forged[nonce] ^= 1;
    fs::write(at("c"), &forged).expect("write");
    let (status, line) = Run::new("--volume").arg(at("c")).script("true").refusal();
    assert!(status == 1 && line.contains("its trailer is damaged"), "{line}");
    fs::write(at("c"), &clone).expect("write");
    run(&at("c"), "true");
    // Nor is one that is cut to its size, or copied without its sidecar, taken for a raw volume.
    sh(dir, "truncate -s 64M c");
    assert!(refused(dir, "info c", 1).contains("c: was cut, or replaced"));
    fs::write(at("x"), &forged).expect("write");
    for words in ["info x", "clone x y", "import x y", "export x y", "set x --weight 7"] {
        let line = refused(dir, words, 1);
        assert!(line.contains("x: is a copy-on-write volume without its sidecar"), "{line}");
    }
    fs::write(at("c"), &clone).expect("write");
    // A base that is another file is not taken.
    let base = dir.join(field(dir, "c", "base").as_str().expect("a base"));
    let sidecar = PathBuf::from(format!("{}.polylane", base.display()));
    let text = fs::read(&sidecar).expect("sidecar");
    let mut other: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    other["id"] = "0".repeat(32).into();
    fs::write(&sidecar, other.to_string()).expect("write");
    let (status, line) = Run::new("--volume").arg(at("c")).script("true").refusal();
    assert!(status == 1 && line.contains("is not the base"), "{line}");
}

#[test]
fn copies_share_their_blocks_where_the_host_can() {
    let name = "copies_share_their_blocks_where_the_host_can";
    for kind in ["xfs", "btrfs"] {
        let Some(host) = HostFs::new(name, kind, 400 << 20) else { continue };
        let dir = host.path();
        done(&dir, "create v --size 2G");
        run(&dir.join("v"), "head -c 20M /dev/urandom > /lane/f; sync /lane/f");
        let free = |dir: &Path| -> u64 {
            let output = Command::new("stat").args(["-f", "-c", "%f"]).arg(dir).output();
            let text = String::from_utf8(output.expect("stat").stdout).expect("text");
            text.trim().parse::<u64>().expect("number") * 4096
        };
        let before = free(&dir);
        let output = volume(&dir, "clone v c");
        assert!(output.status.success() && output.stderr.is_empty(), "{kind}: {output:?}");
        assert!(before.saturating_sub(free(&dir)) < 4 << 20, "{kind}: the clone is not free");
        assert!(field(&dir, "c", "shared_bytes").as_u64() >= Some(20 << 20), "{kind}");
        let sum = "md5sum < /lane/f";
        assert_eq!(run(&dir.join("v"), sum), run(&dir.join("c"), sum), "{kind}");
        run(&dir.join("c"), "head -c 1M /dev/urandom > /lane/f");
        assert_eq!(run(&dir.join("v"), "stat -c %s /lane/f"), "20971520\n", "{kind}");
        assert_clean(&dir.join("v"));
        assert_clean(&dir.join("c"));
    }
}

/// A number that `info` says.
fn bytes(dir: &Path, volume: &str, name: &str) -> u64 {
    field(dir, volume, name).as_u64().unwrap_or_else(|| panic!("{volume} has no {name}"))
}

fn sh(dir: &Path, script: &str) {
    let status = Command::new("sh").args(["-euc", script]).current_dir(dir).status();
    assert!(status.expect("sh runs").success(), "{script}");
}

#[test]
fn what_is_mapped_and_shared_is_counted_to_the_byte() {
    let name = "what_is_mapped_and_shared_is_counted_to_the_byte";
    const MIB: u64 = 1 << 20;
    // ext4 has copy-on-write of ours, XFS its own.
    for kind in ["ext4", "xfs"] {
        let Some(host) = HostFs::new(name, kind, 400 << 20) else { continue };
        let dir = &host.path();
        done(dir, "create v --size 64M --fs none");
        assert_eq!((bytes(dir, "v", "mapped_bytes"), bytes(dir, "v", "base_bytes")), (0, 0));
        let write = "dd if=/dev/urandom of=v bs=1M seek=5 count=7 conv=notrunc,fsync status=none";
        sh(dir, write);
        sh(dir, "fallocate -n -o 20M -l 3M v; fallocate -p -o 6M -l 1M v; sync -f .");
        assert_eq!(bytes(dir, "v", "mapped_bytes"), 6 * MIB, "{kind}");
        sh(dir, "cat v > /dev/null");
        assert_eq!(bytes(dir, "v", "mapped_bytes"), 6 * MIB, "{kind}: zeros that were read");
        assert_eq!(bytes(dir, "v", "mapped_bytes"), bytes(dir, "v", "written_bytes"), "{kind}");
        assert_eq!(bytes(dir, "v", "reserved_bytes"), 3 * MIB, "{kind}");
        assert_eq!(bytes(dir, "v", "shared_bytes"), 0, "{kind}");
        let allocated = fs::metadata(dir.join("v")).expect("stat").blocks() * 512;
        assert_eq!(bytes(dir, "v", "allocated_bytes"), allocated, "{kind}");
        done(dir, "clone v c");
        for volume in ["v", "c"] {
            assert_eq!(bytes(dir, volume, "mapped_bytes"), 6 * MIB, "{kind} {volume}");
            assert_eq!(bytes(dir, volume, "shared_bytes"), 6 * MIB, "{kind} {volume}");
            let in_bases = if kind == "xfs" { 0 } else { 6 * MIB };
            assert_eq!(bytes(dir, volume, "base_bytes"), in_bases, "{kind} {volume}");
        }
        let table = done(dir, "ls .");
        let line = table.lines().find(|line| line.ends_with("/v")).expect("a line");
        assert_eq!(line.matches("6 MiB").count(), 2, "{table}");
        // Made one file again, it shares nothing.
        done(dir, "resize c 64M");
        assert_eq!((bytes(dir, "c", "mapped_bytes"), bytes(dir, "c", "base_bytes")), (6 * MIB, 0));
        assert!(kind == "xfs" || bytes(dir, "c", "shared_bytes") == 0);
    }
}

#[test]
fn a_chain_of_copies_is_bounded_and_made_one_file() {
    let Some(dir) = place("a_chain_of_copies_is_bounded_and_made_one_file") else { return };
    let dir = dir.path();
    done(dir, "create v --size 16M --fs none");
    done(dir, "snapshot v s0");
    if field(dir, "v", "base").is_null() {
        return skip("a_chain_of_copies_is_bounded_and_made_one_file", "the host shares blocks");
    }
    for number in 1..16 {
        done(dir, &format!("snapshot v s{number}"));
    }
    let line = refused(dir, "snapshot v s16", 1);
    assert!(line.contains("v: is on 16 bases"), "{line}");
    let way_out = line.split('\'').nth(1).expect("a command").strip_prefix("polylane volume ");
    done(dir, way_out.expect("of volumes"));
    assert_eq!(field(dir, "v", "base"), serde_json::Value::Null);
    assert!(!dir.join("s16").exists());
    done(dir, "snapshot v s16");
    assert_eq!(field(dir, "v", "base"), "s16");
    done(dir, "rm v s16");
    for number in (0..16).rev() {
        done(dir, &format!("rm s{number}"));
    }
    assert_eq!(fs::read_dir(dir).expect("list").count(), 0, "nothing left");
}

#[test]
fn a_volume_in_use_is_left_alone() {
    let name = "a_volume_in_use_is_left_alone";
    let Some(dir) = place(name).filter(|_| !unavailable(name)) else { return };
    let (dir, path) = (dir.path(), dir.path().join("v"));
    done(dir, "create v --size 64M");
    let mut user = Run::new("--volume").arg(&path).script("echo up; sleep 60").start();
    assert_eq!(user.line(), "up");
    let words = ["rm v", "resize v 128M", "check v", "export v e"];
    for words in words {
        let line = refused(dir, words, 1);
        assert!(line.contains(&format!("v: in use by pool '{}'", user.pool)), "{words}: {line}");
        assert!(!words.starts_with("resize") || line.contains("when that has ended"), "{line}");
    }
    let by = field(dir, "v", "used_by");
    assert!(by.as_str().is_some_and(|by| by.contains(&user.pool)), "{by}");
    assert!(done(dir, "ls .").contains("in use"));
    user.signal("TERM");
    user.end();
    assert_eq!(field(dir, "v", "used_by"), serde_json::Value::Null);
    assert!(!dir.join("e").exists());
    done(dir, "rm v");
}

#[test]
fn check_finds_damage_and_mends_it() {
    let Some(dir) = place("check_finds_damage_and_mends_it") else { return };
    let dir = dir.path();
    done(dir, "create v --size 64M");
    done(dir, "check v");
    // A free block that the bitmap says is taken.
    let mut debugfs = Command::new(tool("debugfs").expect("debugfs comes with e2fsck"));
    let output = debugfs.args(["-w", "-R", "setb 12000"]).arg(dir.join("v")).output();
    assert!(output.expect("debugfs").status.success());
    assert!(refused(dir, "check v", 1).contains("v: the file system has errors"));
    done(dir, "check v --repair");
    done(dir, "check v");
    done(dir, "create n --size 64M --fs none");
    assert!(refused(dir, "check n", 1).contains("n: holds no ext4"));
    fs::write(dir.join("n.polylane"), "nonsense").expect("write");
    assert!(refused(dir, "info n", 1).contains("n.polylane: not a sidecar"));
}

#[test]
fn check_settles_as_a_mount_does_and_says_so_unless_it_only_looks() {
    let name = "check_settles_as_a_mount_does_and_says_so_unless_it_only_looks";
    let Some(dir) = place(name).filter(|_| !unavailable(name)) else { return };
    let (dir, path) = (dir.path(), dir.path().join("v"));
    // A removed file that is still open, in a journal that was not replayed.
    let script = "exec 3>/lane/f; head -c 3M /dev/zero >&3; rm /lane/f; sync /lane; echo up; \
                  while :; do sleep 1; done";
    let mut user = Run::new("--size 64M --volume").arg(&path).script(script).start();
    assert_eq!(user.line(), "up");
    done(dir, "snapshot v s");
    user.signal("TERM");
    user.end();
    let before = fs::read(dir.join("s")).expect("read");
    let needs = || field(dir, "s", "content");
    assert_eq!(needs(), "ext4-needs-replay");
    let looked = volume(dir, "check -n s");
    assert!(!String::from_utf8_lossy(&looked.stderr).contains("settled"), "{looked:?}");
    done(dir, "clone s c");
    let settled = volume(dir, "check s");
    let said = String::from_utf8_lossy(&settled.stderr).into_owned();
    assert!(settled.status.success() && said.contains("s: settled as by a mount"), "{said}");
    assert!(before == fs::read(dir.join("s")).expect("read"), "a snapshot stays as it is");
    let settled = volume(dir, "check c --repair");
    let said = String::from_utf8_lossy(&settled.stderr).into_owned();
    assert!(settled.status.success() && said.contains("c: settled as by a mount"), "{said}");
    assert_clean(&dir.join("c"));
    // e2fsck makes a lost+found when it mends.
    assert_eq!(run(&dir.join("c"), "ls /lane | grep -v lost+found; echo end"), "end\n");
    assert!(refused(dir, "check -n --repair v", 2).contains("-n"));
}

#[test]
fn what_goes_out_comes_back() {
    let name = "what_goes_out_comes_back";
    let Some(dir) = place(name).filter(|_| !unavailable(name)) else { return };
    let (dir, at) = (dir.path(), |name: &str| dir.path().join(name));
    done(dir, "create v --size 64M");
    run(&at("v"), "seq 1000 > /lane/numbers");
    done(dir, "export v raw");
    assert_eq!(fs::metadata(at("raw")).expect("stat").len(), 64 << 20);
    assert!(fs::metadata(at("raw")).expect("stat").blocks() * 512 < 32 << 20, "sparse");
    assert_eq!(fs::read(at("raw")).expect("raw"), fs::read(at("v")).expect("volume"));
    done(dir, "import raw back");
    assert_eq!(run(&at("back"), "wc -l < /lane/numbers"), "1000\n");
    assert_clean(&at("back"));
    assert!(refused(dir, "export v raw", 1).contains("raw: cannot create it"));
    if tool("qemu-img").is_none() {
        let line = refused(dir, "export v q --format qcow2", 1);
        assert!(line.contains("qemu-img: not found"), "{line}");
        return skip(name, "qemu-img is not installed");
    }
    done(dir, "export v q --format qcow2");
    assert_eq!(fs::read(at("q")).expect("qcow2")[..4], *b"QFI\xfb");
    done(dir, "export v named.qcow2");
    assert_eq!(fs::read(at("named.qcow2")).expect("qcow2")[..4], *b"QFI\xfb");
    done(dir, "export v raw.qcow2 --format raw");
    assert_eq!(fs::read(at("raw.qcow2")).expect("raw"), fs::read(at("v")).expect("volume"));
    done(dir, "import q again");
    assert_eq!(run(&at("again"), "wc -l < /lane/numbers"), "1000\n");
}

#[test]
fn what_is_imported_of_a_volume_is_what_its_tenant_sees() {
    let name = "what_is_imported_of_a_volume_is_what_its_tenant_sees";
    let Some(dir) = place(name).filter(|_| !unavailable(name)) else { return };
    let (dir, at) = (dir.path(), |name: &str| dir.path().join(name));
    done(dir, "create v --size 64M");
    run(&at("v"), "echo first > /lane/f");
    done(dir, "clone v c");
    run(&at("c"), "echo second > /lane/g");
    done(dir, "import c i");
    assert_clean(&at("i"));
    assert_eq!(run(&at("i"), "cat /lane/f /lane/g"), "first\nsecond\n");
    let mut user = Run::new("--volume").arg(at("c")).script("echo up; sleep 60").start();
    assert_eq!(user.line(), "up");
    assert!(refused(dir, "import c j", 1).contains("c: in use by pool"));
    user.signal("TERM");
    user.end();
    // What a guest writes to the start of its volume is no header of ours.
    done(dir, "create q --size 16M --fs none");
    sh(dir, "printf 'QFI\\373' | dd of=q conv=notrunc status=none");
    done(dir, "import q r");
    assert_eq!(fs::read(at("r")).expect("read"), fs::read(at("q")).expect("read"));
    fs::write(at("odd"), vec![7; 20 << 20 | 100]).expect("write");
    let output = volume(dir, "import odd whole");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("412 bytes of zeros follow"), "{said}");
    assert_eq!(field(dir, "whole", "size_bytes"), 20 << 20 | 512);
}

#[test]
fn a_volume_on_a_read_only_host_is_looked_at_and_exported() {
    let name = "a_volume_on_a_read_only_host_is_looked_at_and_exported";
    let Some(host) = HostFs::new(name, "ext4", 200 << 20) else { return };
    let dir = &host.path();
    done(dir, "create v --size 32M");
    done(dir, "clone v c");
    sh(dir, "mount -o remount,ro .");
    let out = tempfile::tempdir().expect("tempdir");
    for volume in ["v", "c"] {
        done(dir, &format!("check -n {volume}"));
        let copy = out.path().join(volume);
        done(dir, &format!("export {volume} {}", copy.display()));
        assert_clean(&copy);
    }
    assert!(refused(dir, "check v", 1).contains("v: cannot open it: Read-only file system"));
}

#[test]
fn the_map_covers_what_is_allocated() {
    let Some(dir) = place("the_map_covers_what_is_allocated") else { return };
    let dir = dir.path();
    done(dir, "create v --size 64M");
    let output = volume(dir, "map --json v");
    if !output.status.success() {
        return skip("the_map_covers_what_is_allocated", "this host cannot map files");
    }
    let map: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let layers = map["layers"].as_array().expect("list");
    assert_eq!((layers.len(), &layers[0]["base"]), (1, &false.into()));
    let extents = layers[0]["extents"].as_array().expect("list");
    let sum = |unwritten: bool| -> u64 {
        let wanted = extents.iter().filter(|extent| extent["unwritten"] == unwritten);
        wanted.map(|extent| extent["length"].as_u64().expect("length")).sum()
    };
    assert_eq!(field(dir, "v", "written_bytes"), sum(false));
    assert_eq!(field(dir, "v", "reserved_bytes"), sum(true));
    assert_eq!(map["extent_count"], extents.len());
    assert_eq!(map["mean_extent_bytes"], (sum(false) + sum(true)) / extents.len() as u64);
    assert_eq!(done(dir, "map v").lines().count(), extents.len() + 2);
    done(dir, "clone v c");
    let Some(base) = field(dir, "c", "base").as_str().map(String::from) else { return };
    sh(dir, "dd if=/dev/urandom of=c bs=4k seek=40 count=1 conv=notrunc,fsync status=none");
    let map: serde_json::Value = serde_json::from_str(&done(dir, "map --json c")).expect("JSON");
    let (own, below) = (&map["layers"][0], &map["layers"][1]);
    assert_eq!((&own["base"], &below["base"]), (&false.into(), &true.into()));
    assert_eq!(below["file"], base.as_str());
    assert_eq!(own["extent_count"], 1, "neither label, map nor trailer: {own}");
    assert_eq!(
        (&own["extents"][0]["offset"], &own["mean_extent_bytes"]),
        (&163_840.into(), &4096.into())
    );
    assert_eq!(below["extents"], layers[0]["extents"]);
    assert_eq!(map["extent_count"], extents.len() + 1);
    assert!(done(dir, "map c").contains("own: c: 1 extent of 4 KiB\n"));
}

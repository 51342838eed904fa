//! Lanes whose files are in a cache of their own: `--file-cache`.

use std::fs;
use std::path::Path;

use polylane_tests::host::succeeds;
use polylane_tests::pool::{Run, signal_to};
use polylane_tests::step::good;
use polylane_tests::unavailable;
use serde_json::Value;

const MODES: [&str; 2] = ["writeback", "writethrough"];

/// A lane whose files are of that kind in `dir`.
fn run(kind: &str, dir: &Path, options: &str) -> Run {
    let run = Run::new(options);
    match kind {
        "mem" => run.arg("--mem"),
        "dir" => run.arg("--dir").arg(dir.join("d")),
        "volume" => run.arg("--volume").arg(dir.join("v.img")).arg("--size").arg("256M"),
        _ => run.arg("--lower").arg(dir.join("low")).arg("--dir").arg(dir.join("up")),
    }
}

/// The same work by the library and by FUSE, with a cache and without.
#[test]
fn lanes_are_the_same_with_a_cache_and_without() {
    if unavailable("lanes_are_the_same_with_a_cache_and_without") {
        return;
    }
    let script = "cd /lane && seq 200000 >a && cp a b && truncate -s 100000 b && mkdir d && \
                  mv b d/c && ln a d/l && echo more >>a && tail -n 1 d/l && rm a && sync && \
                  dd if=/dev/zero of=d/l bs=4096 seek=7 count=3 conv=notrunc 2>/dev/null && \
                  find . -type f -exec cksum {} + | sort && stat -c '%n %s %h' d/c d/l && \
                  (cd d && ! cat none 2>/dev/null)";
    for kind in ["mem", "dir", "volume", "lower"] {
        let mut all = Vec::new();
        for cache in ["", "--file-cache writeback", "--file-cache writethrough"] {
            for door in ["", "--no-preload"] {
                let dir = tempfile::tempdir().expect("tempdir");
                for name in ["d", "low"] {
                    fs::create_dir(dir.path().join(name)).expect("mkdir");
                }
                let options = format!("{cache} {door}");
                let first = good(&run(kind, dir.path(), &options).script(script).output());
                let again = "cd /lane && find . -type f -exec cksum {} + | sort";
                let left = match kind {
                    "mem" => String::new(),
                    _ => good(&run(kind, dir.path(), door).script(again).output()),
                };
                all.push((first, left));
            }
        }
        assert!(all[0].0.contains("more"), "{kind}: {all:?}");
        assert!(all.iter().all(|one| *one == all[0]), "{kind}: {all:#?}");
    }
}

/// How the layers of a union are cached, as words for each lower and options of the lane.
const LAYERED: [[&str; 2]; 5] = [
    ["", ""],
    ["cached:", ""],
    ["cached=2M:", "--file-cache writethrough --file-cache-over upper"],
    ["", "--file-cache writethrough --file-cache-size 4M --file-cache-over upper"],
    ["cached=1M:", "--file-cache writeback"],
];

/// The same work on a union whose layers are in caches of their own, and on one without: over
/// directories and volumes, by the library and by FUSE.
#[test]
fn unions_are_the_same_with_cached_layers_and_without() {
    if unavailable("unions_are_the_same_with_cached_layers_and_without") {
        return;
    }
    let fill = "cd /lane && mkdir d && seq 100000 >d/big && seq 50 >small && ln small twin && \
                head -c 300000 /dev/zero >zeros && seq 9 >gone && chmod 640 small";
    let script = "cd /lane && cksum d/big small zeros dir-file && echo more >>d/big && rm gone && \
                  truncate -s 10 zeros && mv d e && cp e/big copy && seq 7 >dir-file && sync && \
                  dd if=/dev/zero of=e/big bs=4096 seek=7 count=3 conv=notrunc 2>/dev/null && \
                  cksum e/big && mkdir d && echo new >d/new && cat twin >>d/new && \
                  find . -type f -exec cksum {} + | sort && stat -c '%n %s %h %a' small twin e/big";
    for upper in ["dir", "volume"] {
        let mut all = Vec::new();
        for ([word, options], door) in
            LAYERED.into_iter().flat_map(|how| [(how, ""), (how, "--no-preload")])
        {
            let dir = tempfile::tempdir().expect("tempdir");
            let (low, image) = (dir.path().join("low"), dir.path().join("low.img"));
            fs::create_dir(&low).expect("mkdir");
            fs::write(low.join("dir-file"), "of the directory").expect("written");
            let volume = Run::new("--volume").arg(&image).arg("--size").arg("64M");
            good(&volume.script(fill).output());
            let lane = |options: &str| {
                let lower = |path: &Path| format!("{word}{}", path.display());
                let run = Run::new(&format!("{options} {door}"));
                let run = run.arg("--lower").arg(lower(&low)).arg("--lower").arg(lower(&image));
                match upper {
                    "dir" => run.arg("--dir").arg(dir.path().join("up")),
                    _ => run.arg("--volume").arg(dir.path().join("v")).arg("--size").arg("64M"),
                }
            };
            let first = good(&lane(options).script(script).output());
            let again = "cd /lane && find . -type f -exec cksum {} + | sort";
            let left = good(&lane("").script(again).output());
            all.push((first, left));
        }
        assert!(all[0].0.contains("d/new"), "{upper}: {all:?}");
        assert!(all.iter().all(|one| *one == all[0]), "{upper}: {all:#?}");
    }
}

#[test]
fn caches_of_layers_are_shown() {
    if unavailable("caches_of_layers_are_shown") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let low = dir.path().join("low");
    fs::create_dir(&low).expect("mkdir");
    fs::write(low.join("f"), vec![7; 3 << 20]).expect("written");
    let options = "--file-cache writethrough --file-cache-size 4M --file-cache-over upper --mem";
    let script = "cat /lane/f >/dev/null; head -c 100000 /lane/f >/lane/g; echo up; sleep 60";
    let run = Run::new(options).arg("--lower").arg(format!("cached=1M:{}", low.display()));
    let mut run = run.script(script).start();
    assert_eq!(run.line(), "up");
    let stats = succeeds(&["stats", "--json", "--pool", &run.pool]);
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    let service = &stats[0]["service"];
    assert_eq!(service["cache"]["over"].as_str(), Some("upper"));
    let lower = &service["lower_caches"][0];
    assert!(lower["over"].as_str().is_some_and(|over| over.ends_with("/low")), "{lower}");
    assert_eq!(lower["size_bytes"].as_u64(), Some(1 << 20));
    assert!((1..=256).contains(&lower["pages"].as_u64().expect("a count")), "{lower}");
    signal_to(run.child.id(), "TERM");
    run.end();
}

/// What is written reaches the host at once or after the interval, and when it is synced.
#[test]
fn writes_reach_the_host_when_it_was_said() {
    if unavailable("writes_reach_the_host_when_it_was_said") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    fs::create_dir(dir.path().join("d")).expect("mkdir");
    let host = dir.path().join("d/f").display().to_string();
    for (options, seen) in
        [("--file-cache writethrough", "x"), ("--file-cache writeback --flush-interval 3600s", "")]
    {
        let script = format!("printf x >/lane/f; cat {host}; echo; sync /lane/f; cat {host}");
        let told = good(&run("dir", dir.path(), options).script(&script).output());
        assert_eq!(told, format!("{seen}\nx"), "{options}");
        fs::remove_file(&host).expect("there");
    }
    let waits = format!("printf x >/lane/f; until [ -s {host} ]; do sleep 0.01; done; cat {host}");
    let options = "--file-cache writeback --flush-interval 20ms";
    assert_eq!(good(&run("dir", dir.path(), options).script(&waits).output()), "x");
}

#[test]
fn a_cache_is_shown_and_kept_within_its_size() {
    if unavailable("a_cache_is_shown_and_kept_within_its_size") {
        return;
    }
    for mode in MODES {
        let dir = tempfile::tempdir().expect("tempdir");
        let options = format!("--file-cache {mode} --file-cache-size 2M");
        let script = "head -c 10000000 /dev/urandom >/lane/f; sync; cat /lane/f >/dev/null; \
                      echo up; sleep 60";
        let mut run = run("mem", dir.path(), &options).script(script).start();
        assert_eq!(run.line(), "up");
        let stats = succeeds(&["stats", "--json", "--pool", &run.pool]);
        let stats: Value = serde_json::from_str(&stats).expect("JSON");
        let service = &stats[0]["service"];
        let cache = &service["cache"];
        assert_eq!(
            (cache["mode"].as_str(), cache["size_bytes"].as_u64()),
            (Some(mode), Some(2 << 20))
        );
        let pages = service["vfs"]["pages"].as_u64().expect("a count");
        assert!((1..=512).contains(&pages), "{mode}: {service}");
        assert_eq!(service["vfs"]["dirty_bytes"].as_u64(), Some(0));
        let told = succeeds(&["stats", "--pool", &run.pool]);
        assert!(told.contains(&format!("of 2 MiB, {mode}")), "{told}");
        signal_to(run.child.id(), "TERM");
        run.end();
    }
}

/// What was synced is there after a kill; an open file that lost bytes is an error, never old, and
/// a directory that lost names says so to the next sync: as without a cache.
#[test]
fn a_killed_service_loses_nothing_that_was_synced() {
    if unavailable("a_killed_service_loses_nothing_that_was_synced") {
        return;
    }
    // How the cache works, the files' kind, whether bytes and whether names are lost.
    let cases = [
        ("--file-cache writeback", "dir", true, false),
        ("--file-cache writethrough", "dir", false, false),
        ("--file-cache writeback", "volume", true, true),
        ("--file-cache writethrough", "volume", true, true),
        ("", "volume", true, true),
    ];
    for (cache, kind, loses, loses_names) in cases {
        let dir = tempfile::tempdir().expect("tempdir");
        fs::create_dir(dir.path().join("d")).expect("mkdir");
        let interval = if loses { "--flush-interval 3600s" } else { "" };
        let options = format!("--no-preload {cache} {interval}");
        let script = "cd /lane; mkdir sub; printf synced >s; sync s . sub; exec 3>>n; \
                      printf lost >&3; >sub/name; echo up; read line; cat s; echo; \
                      printf more >&3 && echo went on || echo error; \
                      for dir in . sub sub; do sync $dir && echo well || echo lost names; done";
        let (mut run, input) = run(kind, dir.path(), &options).script(script).start_with_input();
        assert_eq!(run.line(), "up");
        let before = run.service();
        signal_to(before, "KILL");
        while run.service_now().is_none_or(|now| now == before) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        drop(input);
        let told: Vec<_> = (0..5).map(|_| run.line()).collect();
        let bytes = if loses { "error" } else { "went on" };
        let names = if loses_names { "lost names" } else { "well" };
        assert_eq!(told, ["synced", bytes, names, names, "well"], "{cache} {kind}");
        assert_eq!(run.end().code(), Some(0));
    }
}

#[test]
fn a_cache_that_cannot_be_is_refused_in_one_line() {
    for (words, part) in [
        ("--mem --file-cache both", "--file-cache <MODE>"),
        ("--mem --file-cache-size 4M", "--file-cache"),
        ("--mem --file-cache writeback --file-cache-size 100K", "--file-cache-size: from 1M to "),
        (
            "--mem --memory 64M --file-cache writeback --file-cache-size 17M",
            "--file-cache-size: from 1M to 16 MiB",
        ),
        ("--mem --file-cache-over upper", "--file-cache <MODE>"),
        ("--mem --file-cache writethrough --file-cache-over upper", "--file-cache-over upper: is"),
        (
            "--mem --lower / --file-cache writeback --file-cache-over upper",
            "--file-cache-over upper: with --file-cache writethrough alone",
        ),
        ("--mem --lower cached=100K:/", "--lower cached=SIZE: from 1M to "),
        (
            "--mem --memory 64M --lower cached=9M:/ --file-cache writeback --file-cache-size 9M",
            "--lower cached=SIZE: from 1M to 16 MiB",
        ),
        ("--mem --file-cache writethrough --flush-interval 1s", "--flush-interval: only a lane on"),
        ("--mem --file-cache writeback --journal-mode data", "--journal-mode: only a lane on"),
        ("--kernel-fs ext4 --file-cache writeback", "--file-cache: the kernel mounts"),
    ] {
        let (status, line) = Run::new(words).script("true").refusal();
        assert!(status == 2 && line.contains(part), "{words}: {status}: {line}");
    }
}

//! Unions as lowers of lanes (`--lower union:FILE`), beside the kernel's overlayfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use polylane_tests::host::{Host, polylane, succeeds, text};
use polylane_tests::pool::{Run, no_library, service_of, signal_to};
use polylane_tests::step::good;
use polylane_tests::{lacks, skip, unavailable};

fn sh(dir: &Path, script: &str) -> Output {
    let mut sh = std::process::Command::new("sh");
    sh.args(["-euc", script]).current_dir(dir).output().expect("sh")
}

/// Five layers: a, in/b and in/c, low; and two files that name them.
fn layers(dir: &Path) {
    let script = "mkdir -p a/d in/b/d in/b/gone in/c/d/deep in/c/gone low/d
        for at in a in/b in/c low; do
            for name in one $(basename $at); do echo $at >$at/d/$name; done
        done
        echo same >in/c/d/same; ln in/c/d/same in/c/d/also; echo hidden >in/c/d/hidden
        mknod in/b/d/hidden c 0 0; echo low >low/d/hidden; mknod a/d/low c 0 0; ln -s d low/way
        echo x >in/c/gone/x; setfattr -n user.overlay.opaque -v y in/b/gone; echo low >low/gone
        head -c 300000 /dev/urandom >in/c/d/deep/big; chmod 640 in/c/d/deep/big
        printf '# uppermost first\\nb\\nfixed:c\\n' >in/inner
        printf 'dir:a\\n\\nunion:in/inner\\n' >outer";
    good(&sh(dir, script));
}

/// What a tree shows, by `find`, in the order of its paths; without link counts of directories.
const SHOW: &str = "cd \"$AT\" && \
                    find . -path ./.polylane -prune -o \\( -type d -o -printf '%n ' \\) \
                    -printf '%p %y %m %s %l\\n' | sed 's/^\\([^ ]* d [0-9]*\\) [0-9]*/\\1/' | \
                    LC_ALL=C sort && find . -path ./.polylane -prune -o -type f -print0 | \
                    LC_ALL=C sort -z | xargs -0 cksum";

/// What the kernel shows of the same layers, one overlayfs in another, which it does two deep: the
/// third is over a copy. `None`, with the reason, where it has none.
fn kernels(test: &str, dir: &Path) -> Option<String> {
    let script = "mkdir k1 k2 k3
        mount -t overlay overlay -o ro,userxattr,lowerdir=in/b:in/c k1
        mount -t overlay overlay -o ro,userxattr,lowerdir=a:k1 k2
        cp -a k2 copy
        mount -t overlay overlay -o ro,userxattr,lowerdir=copy:low k3";
    let mounted = sh(dir, script);
    let shown = sh(dir, &format!("AT=k3; {SHOW}"));
    sh(dir, "umount k3 || :; umount k2 || :; umount k1 || :; rm -r k1 k2 k3 copy");
    if !mounted.status.success() {
        let said = String::from_utf8_lossy(&mounted.stderr).into_owned();
        skip(test, &format!("overlayfs cannot be mounted: {}", said.trim()));
        return None;
    }
    Some(good(&shown))
}

fn union(file: &Path) -> String {
    format!("union:{}", file.display())
}

fn run(options: &str, dir: &Path, upper: &str) -> Run {
    let run = Run::new(options).arg("--lower").arg(union(&dir.join("outer")));
    let run = run.arg("--lower").arg(dir.join("low"));
    match upper {
        "" => run,
        "--mem" => run.arg("--mem"),
        option => run.arg(option).arg(dir.join("upper")),
    }
}

/// By the library and by FUSE, under each kind of upper; changes stay the lane's own, with numbers
/// that the next run has as well.
#[test]
fn a_union_is_a_lower_as_overlayfs_has_one() {
    let test = "a_union_is_a_lower_as_overlayfs_has_one";
    if unavailable(test) || no_library(test) || lacks(test, &["setfattr", "mount"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let dir = dir.path().canonicalize().expect("canonical");
    layers(&dir);
    let Some(expected) = kernels(test, &dir) else { return };
    let layers_now =
        || ["a", "in", "low"].map(|layer| good(&sh(&dir, &format!("AT={layer}; {SHOW}"))));
    let before = layers_now();
    for door in ["", "--no-preload"] {
        for upper in ["", "--volume", "--dir", "--mem"] {
            let shown = run(door, &dir, upper).env("AT", "/lane").script(SHOW).output();
            assert_eq!(good(&shown), expected, "{door} {upper}");
            let _ = fs::remove_file(dir.join("upper"));
            let _ = fs::remove_dir_all(dir.join("upper"));
        }
    }
    let numbers = "stat -c '%n %i' d/also d/same d/deep d/deep/big d/one moved/big 2>/dev/null";
    let change = format!(
        "cd /lane && {numbers}; echo more >>d/same && tail -n 1 d/also && chmod 600 d/deep/big && \
         printf HERE | dd of=d/deep/big bs=1 seek=100000 conv=notrunc 2>/dev/null && rm d/one && \
         mv d/deep moved && mkdir d/deep && ls d d/deep moved && cksum moved/big && {numbers} || :"
    );
    for upper in ["--volume", "--dir"] {
        let (first, second) = ("", "--no-preload");
        let output = good(&run(first, &dir, upper).script(&change).output());
        let [was, now] = ["d/also ", "moved/big "].map(|name| {
            let line = output.lines().rfind(|line| line.starts_with(name));
            line.unwrap_or_else(|| panic!("{name} in {output}")).to_string()
        });
        let big = output.lines().find(|line| line.starts_with("d/deep/big ")).expect("shown");
        assert_eq!(now.rsplit(' ').next(), big.rsplit(' ').next(), "{output}");
        let script = format!("cd /lane && tail -n 1 d/same && cksum moved/big && {numbers} || :");
        let again = good(&run(second, &dir, upper).script(&script).output());
        for line in [&was, &now] {
            assert!(again.contains(line.as_str()), "{upper}: {line}\n{again}");
        }
        let sum = output.lines().find(|line| line.ends_with(" moved/big") && line.contains("3000"));
        assert!(again.contains(sum.expect("a sum")) && again.starts_with("more\n"), "{again}");
        let _ = fs::remove_file(dir.join("upper"));
        let _ = fs::remove_dir_all(dir.join("upper"));
    }
    assert_eq!(layers_now(), before, "no layer was written to");
}

/// A volume and a lane that is mounted as layers of a union; the lane goes on when its service is
/// killed, and says which files it lies over.
#[test]
fn a_lane_over_unions_is_mounted_and_goes_on() {
    let test = "a_lane_over_unions_is_mounted_and_goes_on";
    if unavailable(test) {
        return;
    }
    let host = Host::new();
    let pool = host.pool("unions");
    let dir = host.dir("layers");
    let base = dir.join("base.img");
    let fill = Run::new("--size 64M").arg("--volume").arg(&base);
    good(&fill.script("mkdir /lane/d && echo base >/lane/d/base && echo x >/lane/d/x").output());
    let shown = host.dir("shown");
    good(&sh(&dir, "mkdir -p own/d; echo own >own/d/own; mknod own/d/x c 0 0"));
    succeeds(&["mount", &format!("dir:{}", dir.join("own").display()), text(&shown)]);
    fs::write(dir.join("stack"), format!("{}\nbase.img\n", shown.display())).expect("written");
    let at = host.dir("at");
    let source = format!("volume:{}", dir.join("upper.img").display());
    let lower = union(&dir.join("stack"));
    succeeds(&["pool", "create", &pool]);
    succeeds(&["mount", "--pool", &pool, "--size", "64M", "--lower", &lower, &source, text(&at)]);
    let listed = host.mounts();
    let line = listed.iter().find(|mount| mount["path"] == text(&at)).expect("listed");
    assert!(line["source"].as_str().is_some_and(|source| source.ends_with(&lower)), "{line}");
    let read = |name: &str| fs::read_to_string(at.join("d").join(name));
    assert_eq!(read("base").expect("there") + &read("own").expect("there"), "base\nown\n");
    assert!(read("x").is_err(), "a whiteout of the inner union's");
    let open = fs::File::open(at.join("d/base")).expect("opens");
    let number = |file: &fs::File| {
        std::os::unix::fs::MetadataExt::ino(&file.metadata().expect("has a state"))
    };
    let was = number(&open);
    fs::write(at.join("d/base"), "changed\n").expect("written");
    open.sync_all().expect("durable");
    let lane = format!("{pool}@1");
    signal_to(service_of(&lane).expect("a service"), "KILL");
    assert_eq!(std::io::read_to_string(&open).expect("goes on"), "changed\n");
    assert_eq!((number(&open), read("own").expect("there")), (was, "own\n".to_string()));
    succeeds(&["pool", "upgrade", &pool]);
    assert_eq!(number(&fs::File::open(at.join("d/base")).expect("opens")), was);
    let stats: serde_json::Value =
        serde_json::from_str(&succeeds(&["stats", "--json"])).expect("JSON");
    let all = stats.as_array().expect("a list");
    let stats = all.iter().find(|one| one["pool"] == lane.as_str()).expect("its own");
    let names = find(stats, "absent_names").expect("told");
    assert!(names["bytes"].is_u64() && names["hits"].is_u64(), "{names}");
    drop(open);
    succeeds(&["umount", text(&at)]);
    succeeds(&["umount", text(&shown)]);
    succeeds(&["pool", "rm", &pool]);
    host.assert_nothing_is_left();
}

/// A value by its name, wherever it is.
fn find<'a>(value: &'a serde_json::Value, name: &str) -> Option<&'a serde_json::Value> {
    let object = value.as_object()?;
    object.get(name).or_else(|| object.values().find_map(|value| find(value, name)))
}

#[test]
fn unions_that_can_be_no_lower_are_refused_by_name() {
    let test = "unions_that_can_be_no_lower_are_refused_by_name";
    if unavailable(test) || lacks(test, &["setfattr"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let dir = dir.path().canonicalize().expect("canonical");
    layers(&dir);
    let write = |name: &str, text: &str| -> PathBuf {
        fs::write(dir.join(name), text).expect("written");
        dir.join(name)
    };
    let own = write("own", "a\nunion:other\n");
    write("other", "union:own\n");
    let missing = write("missing", "a\nabsent\n");
    let twice = write("twice", "a\nunion:inside\n");
    write("inside", "in/b\nin/b/d\n");
    let data = write("data", "data:a\n");
    let upper = write("upper-in", "in/b\nunion:in/inner\n");
    let rows: &[(&Path, &[&str], &str)] = &[
        (&own, &["--mem"], "own names "),
        (&missing, &["--mem"], "absent"),
        (&twice, &["--mem"], "lie in each other"),
        (&data, &["--mem"], "no other lower is over it"),
        (&upper, &["--dir", "in/c/upper"], "lie in each other"),
        (&upper, &["--dir", "in/c"], "are one layer"),
        (&dir.join("nowhere"), &["--mem"], "No such file"),
        (&dir.join("a"), &["--mem"], "no file that could name"),
    ];
    for (file, words, said) in rows {
        let mut run = Run::new("").arg("--lower").arg(union(file));
        for word in *words {
            run = if word.starts_with("--") { run.arg(word) } else { run.arg(dir.join(word)) };
        }
        let (status, line) = run.script("echo started").refusal();
        assert!(status != 0 && line.contains(said), "{}: {status} {line}", file.display());
    }
    assert!(!dir.join("in/c/upper").exists(), "nothing is made for what is refused");
    let lower = union(&own);
    let output = polylane(&["mount", "--lower", &lower, "none", text(&dir.join("low"))]);
    let line = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && line.contains("other names "), "{line}");
}

//! `polylane run` by an ordinary user, whom the test gives a FUSE device that user may open.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use polylane_tests::host::{Host, succeeds, text};
use polylane_tests::pool::{Run, assert_nothing_remains, no_library};
use polylane_tests::step::good;
use polylane_tests::{binary, lacks, skip, unavailable};

/// By another process: a child that another test starts meanwhile would hold a file open that this
/// one writes, and it could not be executed.
fn copy_binary(to: &Path) {
    let copied = Command::new("cp").arg(binary()).arg(to).status().expect("run cp");
    assert!(copied.success(), "copy polylane");
}

/// Makes a device node for everybody, puts it over /dev/fuse, becomes nobody.
const AS_NOBODY: &str = r#"
set -e
dir=$1; shift
mknod -m 666 "$dir/fuse" c 10 229
mount --bind "$dir/fuse" /dev/fuse
if [ -d "$dir/shm" ]; then
    mount --bind "$dir/shm" /dev/shm
fi
if [ -f "$dir/ranges" ]; then
    mount --bind "$dir/ranges" /etc/subuid
    mount --bind "$dir/ranges" /etc/subgid
fi
cd "$dir"
exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all env -u XDG_RUNTIME_DIR "$@"
"#;

/// Runs `polylane run OPTIONS -- sh -c SCRIPT` as nobody; `None` when this host does not let them.
fn as_nobody(test: &str, pool: &str, options: &str, script: &str) -> Option<Output> {
    as_nobody_with(None, test, pool, options, script)
}

/// The same where the user has these numbers of users and groups for namespaces.
fn as_nobody_with(
    ranges: Option<&str>,
    test: &str,
    pool: &str,
    options: &str,
    script: &str,
) -> Option<Output> {
    let nobody = Nobody::new(test, ranges)?;
    let program = nobody.dir.path().join("polylane").display().to_string();
    let mut words = vec![program.as_str(), "run", "--pool", pool];
    words.extend(options.split_whitespace());
    words.extend(["--", "sh", "-c", script]);
    let output = nobody.does(&words);
    assert_nothing_remains(pool);
    for end in ["lock", "sock"] {
        let file = format!("/tmp/polylane-65534/{pool}.{end}");
        assert!(!fs::exists(&file).expect("look"), "{file} left behind");
    }
    Some(output)
}

/// What nobody's commands need: a directory that they start in and may write to, with the program.
struct Nobody {
    dir: tempfile::TempDir,
}

impl Nobody {
    /// `None` when this host does not let ordinary users have lanes.
    fn new(test: &str, ranges: Option<&str>) -> Option<Nobody> {
        if unavailable(test) || lacks(test, &["setpriv", "mknod"]) {
            return None;
        }
        let dir = tempfile::tempdir().expect("tempdir");
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).expect("chmod");
        if let Some(ranges) = ranges {
            // What is mounted over has to be there.
            if !["/etc/subuid", "/etc/subgid"].iter().all(|file| Path::new(file).is_file()) {
                skip(test, "no /etc/subuid and /etc/subgid");
                return None;
            }
            fs::write(dir.path().join("ranges"), ranges).expect("write");
        }
        copy_binary(&dir.path().join("polylane"));
        let library = binary().with_file_name("libpolylane.so");
        if library.is_file() {
            fs::copy(library, dir.path().join("libpolylane.so")).expect("copy the library");
        }
        let nobody = Nobody { dir };
        if !nobody.does(&["unshare", "--user", "--mount", "true"]).status.success() {
            skip(test, "ordinary users may make no user namespaces here");
            return None;
        }
        Some(nobody)
    }

    /// Runs a command of nobody's to its end.
    fn does(&self, words: &[&str]) -> Output {
        let _ = fs::remove_file(self.dir.path().join("fuse"));
        Command::new("unshare")
            .args(["--mount", "--propagation=private", "sh", "-c", AS_NOBODY, "sh"])
            .arg(self.dir.path())
            .args(words)
            .output()
            .expect("unshare")
    }
}

/// What a user may not list and search is refused before anything is made.
#[test]
fn a_lower_that_its_user_may_not_read_is_refused_in_one_line() {
    let name = "a_lower_that_its_user_may_not_read_is_refused_in_one_line";
    let dir = tempfile::tempdir().expect("tempdir");
    let chmod = |path: &Path, mode: u32| {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
    };
    chmod(dir.path(), 0o755);
    let (low, volume) = (dir.path().join("low"), dir.path().join("v.img"));
    fs::create_dir(&low).expect("mkdir");
    fs::write(low.join("file"), "there\n").expect("write");
    fs::write(&volume, "").expect("write");
    let upper = format!("/tmp/polylane-test-{}-upper", std::process::id());
    for (path, mode, words) in [
        (&low, 0o700, "may not list and search it"),
        (&low, 0o711, "may not list and search it"),
        (&low, 0o744, "may not list and search it"),
        (&volume, 0o600, "Permission denied"),
    ] {
        chmod(path, mode);
        let options = format!("--lower {} --dir {upper}", path.display());
        let Some(output) = as_nobody(name, "test-unreadable", &options, "echo started") else {
            return;
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && output.stdout.is_empty(), "{mode:o}: {said}");
        assert_eq!(said.lines().count(), 1, "{mode:o}: {said}");
        assert!(said.contains(words) && said.contains(&path.display().to_string()), "{said}");
        assert!(!Path::new(&upper).exists(), "{mode:o}: nothing is made");
    }
    chmod(&low, 0o755);
    let options = format!("--mem --no-preload --lower {}", low.display());
    let output = as_nobody(name, "test-unreadable", &options, "cat /lane/file");
    assert_eq!(good(&output.expect("as before")), "there\n");
}

#[test]
fn an_ordinary_user_has_a_lane() {
    let script = "id -u && id -g && echo one > /lane/file && cat /lane/file && \
                  stat -c %u:%g /lane /lane/file && grep CapEff /proc/self/status && \
                  stat -f -c %T /lane && cat /proc/1/comm";
    let name = "an_ordinary_user_has_a_lane";
    for options in ["--mem --no-preload", "--mem"] {
        let Some(output) = as_nobody(name, "test-rootless", options, script) else { return };
        let expected = "65534\n65534\none\n65534:65534\n65534:65534\nCapEff:\t0000000000000000\n\
                        fuseblk\npolylane-init\n";
        assert_eq!(good(&output), expected, "{options}");
    }
}

/// Numbers of nobody's, who has 65536 besides the own one.
const RANGES: &str = "nobody:300000:65536\n";

/// An ordinary user's lane has the users of the user's ranges, by both doors; COMMAND may become
/// each of them, and none else.
#[test]
fn an_ordinary_users_lane_has_the_users_of_the_ranges() {
    let name = "an_ordinary_users_lane_has_the_users_of_the_ranges";
    if lacks(name, &["newuidmap", "newgidmap", "setpriv"]) {
        return;
    }
    let as_one = "setpriv --reuid 300007 --regid 300008 --clear-groups";
    let script = format!(
        "tr -s ' ' </proc/self/uid_map; echo one >/lane/own; chmod 1777 /lane; \
         {as_one} sh -c 'echo two >/lane/theirs; id -u; id -g; cat /lane/own; echo x >>/lane/own; \
         rm -f /lane/own; chmod 600 /lane/theirs' 2>/dev/null; \
         cat /lane/theirs 2>/dev/null || echo refused; stat -c %u:%g /lane/own /lane/theirs; \
         setpriv --reuid 300009 --regid 300008 --clear-groups cat /lane/theirs 2>/dev/null \
         || echo refused; \
         setpriv --reuid 366000 --clear-groups true 2>/dev/null || echo none; \
         setpriv --reuid 0 --clear-groups true 2>/dev/null || echo none; id -u; cat /lane/own"
    );
    for options in ["--mem --become-users --no-preload", "--mem --become-users"] {
        let pool = "test-rootless-ranges";
        let output = as_nobody_with(Some(RANGES), name, pool, options, &script);
        let Some(output) = output else { return };
        let expected = " 65534 65534 1\n 300000 300000 65536\n300007\n300008\none\nrefused\n\
                        65534:65534\n300007:300008\nrefused\nnone\nnone\n65534\none\n";
        assert_eq!(good(&output), expected, "{options}");
    }
    // Unless that is asked for, they are there, and COMMAND stays who it is.
    let script = format!(
        "tr -s ' ' </proc/self/uid_map; grep -E 'Cap(Inh|Eff|Amb)' /proc/self/status; \
         {as_one} true 2>/dev/null || echo refused"
    );
    let output = as_nobody_with(Some(RANGES), name, "test-rootless-stays", "--mem", &script);
    let none = "0000000000000000";
    let expected = format!(
        " 65534 65534 1\n 300000 300000 65536\nCapInh:\t{none}\nCapEff:\t{none}\n\
         CapAmb:\t{none}\nrefused\n"
    );
    assert_eq!(good(&output.expect("as before")), expected);
    // Ranges that are another user's, or none, leave the own user.
    for ranges in ["root:300000:65536\n", "nobody:300000:0\n", "nobody\n"] {
        let script = "tr -s ' ' </proc/self/uid_map";
        let options = "--mem --no-preload";
        let output = as_nobody_with(Some(ranges), name, "test-rootless-none", options, script);
        assert_eq!(good(&output.expect("as before")), " 65534 65534 1\n", "{ranges}");
    }
}

/// Another user can make directories where that for users of the ranges is, of the name that it
/// once had; or none can be made there. The lane starts, and its own user has the library.
#[test]
fn a_name_that_another_user_took_keeps_no_lane_from_starting() {
    let name = "a_name_that_another_user_took_keeps_no_lane_from_starting";
    if no_library(name) || lacks(name, &["newuidmap", "newgidmap"]) {
        return;
    }
    let script = "echo x >/lane/f && cat /lane/f && echo $POLYLANE_RUN";
    for owner in [65533, 0] {
        let Some(nobody) = Nobody::new(name, Some(RANGES)) else { return };
        let shm = nobody.dir.path().join("shm");
        let taken = shm.join("polylane-65534");
        fs::create_dir_all(&taken).expect("mkdir");
        fs::set_permissions(&shm, PermissionsExt::from_mode(0o1777)).expect("chmod");
        std::os::unix::fs::chown(&taken, Some(owner), Some(owner)).expect("chown");
        let output = nobody.does(&["./polylane", "run", "--mem", "--", "sh", "-c", script]);
        let lines = good(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(lines.starts_with("x\n/dev/shm/polylane-65534-"), "{owner}: {lines}{said}");
        assert_eq!(said, "");
        assert!(taken.read_dir().expect("list").next().is_none(), "{owner}: nothing is in it");
        let left = shm.read_dir().expect("list").flatten().map(|entry| entry.path());
        assert!(left.eq([taken]), "{owner}: it goes with the lane");
        fs::set_permissions(&shm, PermissionsExt::from_mode(0o755)).expect("chmod");
        let output = nobody.does(&["./polylane", "run", "--mem", "--", "sh", "-c", script]);
        let lines = good(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(lines.starts_with("x\n/tmp/polylane-65534/"), "{owner}: {lines}{said}");
        assert!(said.contains("/dev/shm: Permission denied"), "{said}");
    }
}

/// An archive of a file system with one program, which says "hello UID" once this expression is 0.
fn hello_image(dir: &Path, expression: &str) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("bin")).expect("mkdir");
    let source = dir.join("hello.c");
    let text = format!(
        "#include <fcntl.h>\n#include <stdio.h>\n#include <unistd.h>\nint main(void) {{ \
         return {expression} != 0 || printf(\"hello %d\\n\", getuid()) < 0; }}\n"
    );
    fs::write(&source, text).expect("write");
    let mut gcc = Command::new("gcc");
    gcc.args(["-static", "-o"]).arg(tree.join("bin/hello")).arg(&source);
    assert!(gcc.status().expect("gcc").success());
    let tar = dir.join("image.tar");
    let mut pack = Command::new("tar");
    pack.arg("-cf").arg(&tar).arg("-C").arg(&tree).arg(".");
    assert!(pack.status().expect("tar").success());
    tar
}

/// podman of an ordinary user on the host, who has ranges, with a directory of a lane of root's:
/// its container's users are the host's as anywhere else.
#[test]
fn an_ordinary_users_podman_works_beside_a_lane() {
    let name = "an_ordinary_users_podman_works_beside_a_lane";
    if lacks(name, &["newuidmap", "newgidmap", "podman", "runc", "gcc", "tar"]) {
        return;
    }
    let Some(nobody) = Nobody::new(name, Some(RANGES)) else { return };
    let made = "creat(\"/data/own\", 0600) < 0 || creat(\"/data/five\", 0600) < 0 || \
                chown(\"/data/five\", 5, 6)";
    let tar = hello_image(nobody.dir.path(), &format!("({made})"));
    let host = Host::new();
    let at = host.dir("m");
    fs::set_permissions(host.path(""), PermissionsExt::from_mode(0o755)).expect("chmod");
    succeeds(&["mount", "mem:64M", text(&at)]);
    let data = at.join("data");
    fs::create_dir(&data).expect("mkdir");
    std::os::unix::fs::chown(&data, Some(65534), Some(65534)).expect("chown");
    let script = format!(
        "export USER=nobody HOME=$PWD/own XDG_RUNTIME_DIR=$PWD/own.run TMPDIR=$PWD/own\n\
         mkdir $HOME; mkdir -m 700 $XDG_RUNTIME_DIR\n\
         words=\"--root $HOME/graph --runroot $HOME/root --tmpdir $HOME/tmp --storage-driver vfs \
         --cgroup-manager cgroupfs --runtime runc\"\n\
         podman $words import {} hello:1 >&2 && \
         podman $words run --rm --network=none --ulimit=nofile=99:99 --ulimit=nproc=99:99 \
         --security-opt=seccomp=unconfined --pull=never -v {}:/data hello:1 /bin/hello; said=$?\n\
         podman unshare rm -rf $HOME/graph >&2; exit $said",
        tar.display(),
        data.display()
    );
    assert_eq!(good(&nobody.does(&["sh", "-c", &script])), "hello 0\n");
    for (file, user, group) in [("own", 65534, 65534), ("five", 300_004, 300_005)] {
        let found = fs::metadata(data.join(file)).expect("made");
        assert_eq!((found.uid(), found.gid()), (user, group), "{file}");
    }
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

/// podman of an ordinary user as COMMAND, its storage on the lane: an image of a tar file, and a
/// container with the users of the ranges.
#[test]
fn an_ordinary_users_podman_works_on_a_lane() {
    let name = "an_ordinary_users_podman_works_on_a_lane";
    if lacks(name, &["newuidmap", "newgidmap", "podman", "runc", "gcc", "tar"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    let tar = hello_image(dir.path(), "chown(\"/bin\", 5, 6)");
    let words = "--root /lane/graph --runroot /lane/run/root --tmpdir /lane/run/tmp \
                 --storage-driver vfs --cgroup-manager cgroupfs --runtime runc";
    let inside = dir.path().join("inside.sh");
    let run = "run --rm --network=none --ulimit=nofile=99:99 --ulimit=nproc=99:99 \
               --security-opt=seccomp=unconfined --pull=never hello:1 /bin/hello";
    let text = format!(
        "podman {words} import {} hello:1 >&2 && exec podman {words} {run}\n",
        tar.display()
    );
    fs::write(&inside, text).expect("write");
    // As `podman unshare` does it: by itself podman copies the map of a namespace in which it may
    // become others, and expects a user 0 there.
    let script = format!(
        "export USER=nobody HOME=/lane/home XDG_RUNTIME_DIR=/lane/run TMPDIR=/lane/tmp; \
         mkdir -p $HOME $TMPDIR; mkdir -m 700 $XDG_RUNTIME_DIR; \
         export _CONTAINERS_USERNS_CONFIGURED=done _CONTAINERS_ROOTLESS_UID=$(id -u) \
         _CONTAINERS_ROOTLESS_GID=$(id -g); \
         unshare --map-root-user --map-auto --mount sh {}",
        inside.display()
    );
    let options = "--mem --become-users --no-preload";
    let output = as_nobody_with(Some(RANGES), name, "test-rootless-podman", options, &script);
    let Some(output) = output else { return };
    assert_eq!(good(&output), "hello 0\n");
}

/// Root of a user namespace, which may not write the host's `/run`, mounts for itself.
#[test]
fn root_of_a_user_namespace_mounts_by_its_own_run_time_directory() {
    let name = "root_of_a_user_namespace_mounts_by_its_own_run_time_directory";
    let Some(nobody) = Nobody::new(name, None).filter(|_| !lacks(name, &["unshare"])) else {
        return;
    };
    let host = Host::new();
    // The host's own directory is there as long as a lane is.
    let beside = host.dir("beside");
    succeeds(&["mount", "mem:64M", text(&beside)]);
    let script = "own=$(mktemp -d); export XDG_RUNTIME_DIR=$own XDG_STATE_HOME=$own; mkdir $own/m; \
                  unshare --user --map-root-user --mount sh -c '\
                  ./polylane mount mem:64M $0 && echo hello > $0/file && cat $0/file && \
                  cd $0/.. && $OLDPWD/polylane umount --all m && ! test -e m/file' $own/m; \
                  status=$?; rm -r $own; exit $status";
    assert_eq!(good(&nobody.does(&["sh", "-c", script])), "hello\n");
    succeeds(&["umount", text(&beside)]);
    host.assert_nothing_is_left();
}

#[test]
fn an_ordinary_user_may_keep_files_in_a_directory() {
    let name = "an_ordinary_user_may_keep_files_in_a_directory";
    let dir = tempfile::tempdir().expect("tempdir");
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).expect("chown");
    fs::create_dir(dir.path().join("roots")).expect("mkdir");
    fs::set_permissions(dir.path().join("roots"), PermissionsExt::from_mode(0o777)).expect("chmod");
    let options = format!("--no-preload --at /lane/deep --dir {}", dir.path().display());
    let script = "echo one > /lane/deep/file; \
                  chown 0:0 /lane/deep/file 2>/dev/null || echo refused; \
                  ls /lane/deep; touch /lane/deep/roots/file 2>/dev/null || echo not-mine";
    let Some(output) = as_nobody(name, "test-rootless-dir", &options, script) else { return };
    // The kernel lets nobody write to what belongs to a user without a number in the namespace.
    assert_eq!(good(&output), "refused\nfile\nroots\nnot-mine\n");
    let kept = dir.path().join("file");
    assert_eq!(fs::read_to_string(&kept).expect("kept"), "one\n");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(kept).expect("stat")), 65534);
}

/// A lane in the directory of a killed one, whose service is stopped for two seconds. Then one in
/// another directory, beside a lane that lives.
const AFTER_A_KILLED_ONE: &str = r#"
mkdir a b && mkfifo in && exec 9<>in
run() { dir=$1; shift; ./polylane run --no-preload --dir $dir "$@" 9>&-; }
run a --pool waits-$$ -- sh -c 'echo one; read line' <in &
until grep -q one out; do sleep 0.01; done
service=$(pgrep -f "^polylane-service.waits-$$.")
kill -STOP $service
kill -KILL $(pgrep -f "^./polylane .* --pool waits-$$ ")
(sleep 2; kill -CONT $service) &
run a -- echo two
grep -q . /proc/$service/cmdline || echo waited
run a -- sh -c 'echo three; read line' <in &
until grep -q three out; do sleep 0.01; done
began=$(date +%s)
run b -- echo four
test $(($(date +%s) - began)) -lt 20 && echo at once
echo >&9
wait
"#;

#[test]
fn an_ordinary_users_lane_waits_for_services_of_that_users_killed_lanes_alone() {
    let name = "an_ordinary_users_lane_waits_for_services_of_that_users_killed_lanes_alone";
    if unavailable(name) || lacks(name, &["pgrep"]) {
        return;
    }
    let (mut other, input) = Run::new("--mem").script("echo up; read line").start_with_input();
    assert_eq!(other.line(), "up");
    let nobody = Nobody::new(name, None);
    let script = format!("( {AFTER_A_KILLED_ONE} ) >out; cat out");
    let output = nobody.map(|nobody| nobody.does(&["sh", "-c", &script]));
    drop(input);
    other.end();
    let Some(output) = output else { return };
    let mut said: Vec<&str> = str::from_utf8(&output.stdout).expect("text").lines().collect();
    said.sort_unstable();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said, ["at once", "four", "one", "three", "two", "waited"], "{errors}");
}

/// An ordinary user changes what the own files of a lower are: the marks are of a name space that
/// the user may write, and last. On a directory of the host, where the user can give nothing to
/// others, what is others' stays as it is; on a volume it is copied up with its owner.
#[test]
fn an_ordinary_user_copies_up_from_a_lower() {
    let name = "an_ordinary_user_copies_up_from_a_lower";
    let dir = tempfile::tempdir().expect("tempdir");
    let (own, low) = (dir.path().join("own"), dir.path().join("low"));
    for path in [&own, &low.join("d"), &low.join("theirs")] {
        fs::create_dir_all(path).expect("mkdir");
    }
    for path in [dir.path(), &low] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("chmod");
    }
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    for path in ["d/big", "d/gone", "d/other", "theirs/kept"] {
        fs::write(low.join(path), &bytes).expect("write");
        fs::set_permissions(low.join(path), PermissionsExt::from_mode(0o666)).expect("chmod");
    }
    let give = |path: &Path, user| {
        std::os::unix::fs::chown(path, Some(user), Some(user)).expect("chown");
    };
    for path in [&own, &low.join("d")] {
        give(path, 65534);
    }
    for path in ["d/big", "d/gone", "d/other"] {
        give(&low.join(path), 65534);
    }
    // One of the user's numbers, so that it is told from the user's own.
    for path in ["theirs", "theirs/kept"] {
        give(&low.join(path), 300_007);
    }
    let (low_is, own_is) = (low.display(), own.display());
    let first = "cd /lane || exit; t() { sh -ec \"$1\" 2>/dev/null && echo yes || echo no; }
                 t 'printf HERE | dd of=d/big bs=1 seek=100000 conv=notrunc; echo more >>d/big'
                 t 'chmod 600 d/other; rm d/gone; mv d/other d/moved; mkdir d/new'
                 t 'ln d/big d/new/same'; t 'echo more >>theirs/kept'; t 'rm theirs/kept'
                 t 'chmod 777 theirs'; t 'mkdir here'; stat -c %u:%g theirs/kept d/big";
    // The second run finds what the first one left.
    let second = format!(
        "cd /lane && ls d && {{ head -c 100000 {low_is}/d/big; printf HERE; \
         tail -c +100005 {low_is}/d/big; echo more; }} | cmp - d/new/same && \
         cmp d/moved {low_is}/d/other && stat -c %a:%h d/moved d/big && \
         stat -c %u theirs/kept && tail -c +300001 theirs/kept"
    );
    for door in ["--no-preload", ""] {
        // The root of the upper is the user's in a directory, and the lower's root's on a volume.
        let on_dir = (format!("--dir {own_is}/dir{door}"), ["no", "yes"], "");
        let on_volume = (format!("--size 64M --volume {own_is}/v{door}"), ["yes", "no"], "more\n");
        for (upper, [theirs, here], left) in [on_dir, on_volume] {
            let options = format!("{door} {upper} --lower {low_is}");
            let pool = "test-rootless-union";
            let run = |script| as_nobody_with(Some(RANGES), name, pool, &options, script);
            let Some(output) = run(first) else { return };
            let expected =
                format!("yes\nyes\nyes\n{theirs}\nno\nno\n{here}\n300007:300007\n65534:65534\n");
            assert_eq!(good(&output), expected, "{options}");
            let expected = format!("big\nmoved\nnew\n600:1\n666:2\n300007\n{left}");
            assert_eq!(good(&run(&second).expect("as before")), expected, "{options}");
        }
    }
    assert!(fs::read(low.join("d/big")).expect("there") == bytes, "lowers are not written");
}

#[test]
fn an_ordinary_user_may_keep_files_on_a_volume() {
    let name = "an_ordinary_user_may_keep_files_on_a_volume";
    let dir = tempfile::tempdir().expect("tempdir");
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).expect("chown");
    let volume = dir.path().join("volume");
    let script = "echo x >> /lane/file; wc -l < /lane/file; stat -c %u /lane /lane/file";
    for (options, lines) in [("--no-preload", 1), ("", 2)] {
        let options = format!("--size 64M {options} --volume {}", volume.display());
        let output = as_nobody(name, "test-rootless-volume", &options, script);
        let Some(output) = output else { return };
        assert_eq!(good(&output), format!("{lines}\n65534\n65534\n"));
        polylane_tests::volume::assert_clean(&volume);
    }
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(volume).expect("stat")), 65534);
}

#[test]
fn what_an_ordinary_user_cannot_limit_is_said() {
    let name = "what_an_ordinary_user_cannot_limit_is_said";
    let options = "--mem --no-preload --memory 64M --cpus 0";
    let Some(output) = as_nobody(name, "test-rootless-limits", options, "nproc") else { return };
    assert_eq!(good(&output), "1\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("--memory: no usable control group"), "{said}");
    assert!(said.contains("--cpus: no usable control group"), "{said}");
}

#[test]
fn an_ordinary_user_without_the_device_is_told() {
    let name = "an_ordinary_user_without_the_device_is_told";
    if unavailable(name) || lacks(name, &["setpriv"]) {
        return;
    }
    let open = fs::metadata("/dev/fuse").expect("stat").permissions().mode() & 0o006 == 0o006;
    if open {
        return skip(name, "/dev/fuse is open to everybody here");
    }
    let dir = tempfile::tempdir().expect("tempdir");
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    let program = dir.path().join("polylane");
    copy_binary(&program);
    let by_a_user = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.arg(&program).args(words).output().expect("setpriv")
    };
    let run = ["run", "--pool", "test-no-device", "--mem", "--no-preload", "--", "true"];
    let output = by_a_user(&run);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("/dev/fuse: cannot open it: Permission denied"), "{said}");
    assert_nothing_remains("test-no-device");
    let doctor = by_a_user(&["doctor", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&doctor.stdout).expect("JSON");
    let fuse = said.as_array().and_then(|all| all.iter().find(|one| one["name"] == "fuse"));
    let fuse = fuse.expect("what it found of the device");
    assert_eq!(fuse["state"], "missing", "{fuse}");
    let blamed = fuse.to_string();
    assert!(blamed.contains("/dev/fuse: Permission denied"), "{blamed}");
    assert!(blamed.contains("let this user read and write it"), "{blamed}");
    assert_ne!(doctor.status.code(), Some(0), "no lane can be made");
}

#[test]
fn an_ordinary_users_service_has_nothing_of_the_users() {
    let name = "an_ordinary_users_service_has_nothing_of_the_users";
    let dir = tempfile::tempdir().expect("tempdir");
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).expect("chown");
    let options = format!("--no-preload --at /srv --size 64M --volume {}/v", dir.path().display());
    let pool = "test-rootless-apart";
    let looker = std::thread::spawn(move || {
        let start = std::time::Instant::now();
        while start.elapsed() < std::time::Duration::from_secs(20) {
            let served = polylane_tests::pool::service_of(pool);
            let layers = served.and_then(layers_of).filter(|(_, entries)| *entries == 0);
            if let Some((same, _)) = layers {
                return Some(same);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        None
    });
    let Some(output) = as_nobody(name, pool, &options, "echo x >/srv/f; sleep 2; cat /srv/f")
    else {
        return;
    };
    assert_eq!(good(&output), "x\n");
    let same = looker.join().expect("looks");
    assert_eq!(same.expect("an empty root"), Vec::<&str>::new(), "namespaces shared with the host");
}

/// Which namespaces the process shares with this one, and how many entries its root has.
fn layers_of(pid: u32) -> Option<(Vec<&'static str>, usize)> {
    let of = |who: &str, kind: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).ok();
    let root = fs::read_dir(format!("/proc/{pid}/root")).ok()?.count();
    let mut same = Vec::new();
    for kind in ["mnt", "net", "user", "ipc", "uts"] {
        if of(&pid.to_string(), kind)? == of("self", kind)? {
            same.push(kind);
        }
    }
    Some((same, root))
}

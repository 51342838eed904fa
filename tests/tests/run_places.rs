//! Where the lane appears: mount paths that exist, that do not, and the root.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use polylane_tests::pool::{Run, no_library};
use polylane_tests::step::good;
use polylane_tests::{lacks, tool, unavailable};

#[test]
fn the_lane_appears_where_it_was_asked_for_and_only_to_command() {
    if unavailable("the_lane_appears_where_it_was_asked_for_and_only_to_command") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let shown = dir.path().display();
    // Existing, with something in it that the lane hides; missing below; missing far below.
    fs::create_dir(dir.path().join("there")).expect("mkdir");
    fs::write(dir.path().join("there/hidden"), "").expect("write");
    for place in ["there", "new", "a/b/c"] {
        let script = format!(
            "cd {shown}/{place} && test ! -e hidden && echo one > file && cat file && \
             stat -f -c %T . && echo $POLYLANE_MOUNT && grep -c ' {shown}/{place} ' /proc/mounts"
        );
        let run = Run::new("--mem --no-preload --at").arg(dir.path().join(place)).script(&script);
        let expected = format!("one\nfuseblk\n{shown}/{place}\n1\n");
        assert_eq!(good(&run.output()), expected, "{place}");
    }
    let mut left: Vec<_> = fs::read_dir(dir.path()).expect("readdir").flatten().collect();
    assert_eq!(left.len(), 1, "nothing is made on the host");
    let there = left.pop().expect("one").path();
    assert_eq!(fs::read_dir(there).expect("readdir").count(), 1);
}

#[test]
fn a_stand_in_shows_the_hosts_files_and_takes_no_new_ones() {
    if unavailable("a_stand_in_shows_the_hosts_files_and_takes_no_new_ones") {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let base = dir.path().join("base");
    fs::create_dir_all(base.join("sub/deep")).expect("mkdir");
    fs::write(base.join("file"), "old").expect("write");
    std::os::unix::fs::symlink("file", base.join("link")).expect("symlink");
    fs::set_permissions(&base, PermissionsExt::from_mode(0o751)).expect("chmod");
    let script = format!(
        "cd {} && ls && cat link && stat -c %a . && echo new > file && touch sub/deep/made && \
         ! touch lost 2>/dev/null",
        base.display()
    );
    let run = Run::new("--mem --no-preload --at").arg(base.join("lane")).script(&script);
    assert_eq!(good(&run.output()), "file\nlane\nlink\nsub\nold751\n");
    assert_eq!(fs::read_to_string(base.join("file")).expect("read"), "new\n");
    assert!(base.join("sub/deep/made").exists());
    // A directory for temporary files stays writable, as a private one.
    fs::set_permissions(&base, PermissionsExt::from_mode(0o1777)).expect("chmod");
    let script = format!("cd {} && echo x > private && cat private", base.display());
    let run = Run::new("--mem --no-preload --at").arg(base.join("lane")).script(&script);
    assert_eq!(good(&run.output()), "x\n");
    assert!(!base.join("private").exists());
}

#[test]
fn command_starts_where_the_caller_is() {
    if unavailable("command_starts_where_the_caller_is") {
        return;
    }
    let here = std::env::current_dir().expect("cwd");
    let run = Run::new("--mem --no-preload").script("pwd");
    assert_eq!(good(&run.output()).trim(), here.display().to_string());
}

#[test]
fn processes_are_numbered_anew() {
    if unavailable("processes_are_numbered_anew") {
        return;
    }
    let script = "echo $$; test -d /proc/1 && test ! -d /proc/4000000 && cat /proc/1/comm && \
                  readlink /proc/self/ns/pid > /lane/ns && \
                  test \"$(cat /lane/ns)\" != \"$HOST_NS\"";
    let own = fs::read_link("/proc/self/ns/pid").expect("own namespace");
    let run = Run::new("--mem --no-preload").env("HOST_NS", own).script(script);
    assert_eq!(good(&run.output()), "2\npolylane-init\n");
}

/// A root file system that is one static busybox.
fn busybox_root(dir: &Path) {
    let busybox = tool("busybox").expect("checked before");
    fs::create_dir(dir.join("bin")).expect("mkdir");
    fs::copy(busybox, dir.join("bin/busybox")).expect("copy");
    for name in ["sh", "ls", "cat", "stat", "ps", "readlink", "mount", "grep"] {
        std::os::unix::fs::symlink("busybox", dir.join("bin").join(name)).expect("symlink");
    }
}

#[test]
fn the_lane_can_be_the_root() {
    let name = "the_lane_can_be_the_root";
    if unavailable(name) || lacks(name, &["busybox"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    busybox_root(dir.path());
    let script = "ls / && pwd && readlink /proc/self/root && echo $POLYLANE_MOUNT && \
                  echo x > /dev/null && head -c 3 /dev/zero | wc -c && test -c /dev/urandom && \
                  test -d /sys/kernel && echo shm > /dev/shm/x && cat /proc/1/comm && \
                  echo kept > /file && ls -d /etc /usr";
    let run = Run::new("--root --no-preload").env("PATH", "/bin").arg("--dir").arg(dir.path());
    let output = run.script(&script.replace("head", "busybox head").replace("wc", "busybox wc"));
    let output = output.output();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "bin\ndev\nproc\nsys\n/\n/\n/\n3\npolylane-init\n", "{output:?}");
    assert_ne!(output.status.code(), Some(0), "the host's /etc and /usr are out of reach");
    assert_eq!(fs::read_to_string(dir.path().join("file")).expect("kept"), "kept\n");
}

/// A root file system with a dynamic shell and cat, and every library that they and the preload
/// library need.
fn dynamic_root(dir: &Path) {
    let library = polylane_tests::binary().with_file_name("libpolylane.so");
    let mut files = vec![tool("sh").expect("sh"), tool("cat").expect("cat")];
    fs::create_dir(dir.join("bin")).expect("mkdir");
    for program in &files {
        let name = program.file_name().expect("name");
        fs::copy(program, dir.join("bin").join(name)).expect("copy");
    }
    files.push(library);
    let told = Command::new("ldd").args(&files).output().expect("ldd");
    for word in String::from_utf8_lossy(&told.stdout).split_whitespace() {
        let needed = Path::new(word.trim_end_matches(':'));
        if needed.is_absolute() && needed.to_string_lossy().contains(".so") {
            let inside = dir.join(needed.strip_prefix("/").expect("absolute"));
            fs::create_dir_all(inside.parent().expect("parent")).expect("mkdir");
            fs::copy(needed, inside).expect("copy");
        }
    }
}

#[test]
fn the_preload_library_works_in_a_root_lane() {
    let name = "the_preload_library_works_in_a_root_lane";
    if unavailable(name) || no_library(name) || lacks(name, &["ldd"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    dynamic_root(dir.path());
    let run = Run::new("--root --dir").arg(dir.path()).env("PATH", "/bin");
    let said = good(&run.script("echo one > /file && cat /file /proc/self/maps").output());
    assert!(said.starts_with("one\n"), "{said}");
    assert!(said.contains("/.polylane/libpolylane.so"), "{said}");
    assert_eq!(fs::read_to_string(dir.path().join("file")).expect("kept"), "one\n");
}

/// The shell works in the lane all the while, by the library if there is one; what it runs, too.
const MOUNTS: &str = r#"
set -e
cd /lane
mkdir d
echo below >d/f
for n in 1 2 3; do read said <d/f; done
mount -t tmpfs none d
test ! -e d/f && test ! -e /lane/d/f
echo above >d/f
echo over >/lane/d/g
read said </lane/d/f
test "$said" = above
test "$(cat d/f /lane/d/g | paste -sd' ')" = "above over"
test "$(LD_PRELOAD= cat d/f /lane/d/g | paste -sd' ')" = "above over"
! rmdir d 2>/dev/null
! mv d e 2>/dev/null
umount d
read said <d/f
test "$said" = below
test ! -e /lane/d/g
# Mounts that nobody else sees.
unshare -m sh -ec "
    mount -t tmpfs none d
    for n in 1 2 3; do echo apart >d/h; done
    sh -ec 'read said <d/h; test \$said = apart'
"
test ! -e d/h
# Programs that no library reaches tell the others a moment later.
busybox mount -t tmpfs none d
for n in $(seq 200); do test -e d/f || break; sleep 0.01; done
echo above >d/f
test "$(busybox cat d/f)" = above
busybox umount d
for n in $(seq 200); do test "$(cat d/f)" = above || break; sleep 0.01; done
cat d/f
"#;

#[test]
fn what_is_mounted_in_a_lane_covers_it_for_everybody() {
    let name = "what_is_mounted_in_a_lane_covers_it_for_everybody";
    if unavailable(name) || lacks(name, &["busybox", "unshare", "mount"]) {
        return;
    }
    if fs::metadata("/proc/self").expect("stat").uid() != 0 {
        return polylane_tests::skip(name, "only root mounts in a lane");
    }
    for options in ["--mem", "--size 1G --volume", "--mem --no-preload"] {
        let place = tempfile::tempdir().expect("tempdir");
        let mut run = Run::new(options);
        if options.ends_with("--volume") {
            run = run.arg(place.path().join("volume"));
        }
        let run = run.env("POLYLANE_PATIENCE", "0").script(MOUNTS);
        let output = run.output();
        assert_eq!(output.status.code(), Some(0), "{options}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "below\n", "{options}");
    }
}

/// A client of its own: says Hello at the lane's socket, also with the lane's root, and what it is
/// told. Its argument is what it does to itself first.
const CLIENT: &str = r#"
import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def done(rc):
    if rc < 0: sys.exit(f"cannot: {os.strerror(ctypes.get_errno())}")
    return rc
how = sys.argv[1]
if how != "plain": done(libc.prctl(38, 1, 0, 0, 0))
if how == "filter":
    allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
    program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(allow))
    done(libc.prctl(22, 2, ctypes.byref(ctypes.create_string_buffer(program)), 0, 0))
if how == "landlock":
    rules = ctypes.create_string_buffer(struct.pack("Q", 0x1fff))
    done(libc.syscall(446, done(libc.syscall(444, rules, 8, 0)), 0))
mount = os.environ["POLYLANE_MOUNT"]
def hello(version, *root):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(mount + "/.polylane/socket")
    head = struct.pack("<8sIIQ", b"plhello", version, 0xffffffff, 7)
    socket.send_fds(client, [head + mount.encode()], root)
    data, fds, _, _ = socket.recv_fds(client, 65536, 64)
    told = struct.unpack_from("<Ii", data, 8)
    return *told, f"{told[1]} {'with' if fds else 'without'}"
# Who speaks another version is told which one it is.
version, _, _ = hello(0)
_, status, told = hello(version)
if status == 18:
    root = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    _, status, by_root = hello(version, root)
    told += ", by root " + by_root
    if status == 30:
        made = os.open(mount, os.O_TMPFILE | os.O_RDWR, 0o600)
        told += ", by a file " + hello(version, root, made)[2]
print(told)
"#;

/// Runs the client in each kind of sandbox that there is within a lane.
const SANDBOXES: &str = r#"
as() { env -u LD_PRELOAD setpriv --reuid=1000 --regid=1000 --clear-groups "$@"; }
client() { as /usr/bin/python3 -c "$CLIENT" "$@"; }
export -f as client
chmod 777 /lane; mkdir -m 777 /lane/hidden; export POLYLANE_MOUNT=/lane
echo "plain: $(client plain)"
echo "privileges: $(client privileges)"
echo "filter: $(client filter)"
echo "landlock: $(client landlock)"
# Containers: their first process is as confined as what runs in them.
echo "numbers: $(unshare -p --fork bash -c 'client plain')"
echo "container: $(unshare -p --fork setpriv --no-new-privs bash -c 'client plain')"
echo "confined in one: $(unshare -p --fork bash -c 'client privileges; true')"
cover='mount -t tmpfs none /lane/hidden'
freeze='mount --rbind /lane /lane && mount -o remount,ro,bind /lane'
echo "covered: $(unshare -m bash -c "$cover; client plain")"
echo "read-only: $(unshare -m bash -c "$freeze; client plain")"
eval "$cover"
echo "covered for all: $(client plain)"
umount /lane/hidden
echo "plain: $(client plain)"
"#;

#[test]
fn nested_sandboxes_get_no_session() {
    let name = "nested_sandboxes_get_no_session";
    let needs = ["bash", "/usr/bin/python3", "setpriv", "unshare", "mount"];
    if unavailable(name) || lacks(name, &needs) {
        return;
    }
    if fs::metadata("/proc/self").expect("stat").uid() != 0 {
        return polylane_tests::skip(name, "only root has users in a lane");
    }
    let run = Run::new("--mem").env("CLIENT", CLIENT);
    let said = good(&run.arg("--").arg("bash").arg("-c").arg(SANDBOXES).output());
    for line in said.lines() {
        let (sandbox, told) = line.split_once(": ").expect("a sandbox");
        match sandbox {
            "plain" => assert_eq!(told, "0 with", "{said}"),
            // A kernel without it says so on standard error.
            "landlock" if told.is_empty() => {}
            // What is not seen as the tenant sees it is asked for by the root alone.
            "covered" | "covered for all" => {
                assert_eq!(told, "18 without, by root 13 without", "{said}");
            }
            "numbers" => assert_eq!(told, "18 without, by root 0 with", "{said}"),
            "container" => {
                assert_eq!(told, "18 without, by root 30 without, by a file 0 with", "{said}");
            }
            "confined in one" => assert_eq!(told, "18 without, by root 13 without", "{said}"),
            "read-only" => assert_eq!(told, "18 without, by root 0 with", "{said}"),
            _ => assert_eq!(told, "13 without", "{said}"),
        }
    }
    assert_eq!(said.lines().count(), 11, "{said}");
}

#[test]
fn in_a_root_lane_command_is_looked_up_inside() {
    let name = "in_a_root_lane_command_is_looked_up_inside";
    if unavailable(name) || lacks(name, &["busybox"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    busybox_root(dir.path());
    let run = Run::new("--root --no-preload --dir").arg(dir.path()).env("PATH", "/usr/bin:/bin");
    let (status, line) = run.arg("--").arg("git").refusal();
    assert_eq!(status, 127, "{line}");
}

/// A service that takes the host's lock of all mounts as it looks names up makes each such call
/// fail. One may fail by what others mount meanwhile.
#[test]
fn a_path_that_stays_below_a_directory_is_found_in_a_lane_on_a_directory() {
    let name = "a_path_that_stays_below_a_directory_is_found_in_a_lane_on_a_directory";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    fs::create_dir_all(dir.path().join("top/one")).expect("mkdir");
    fs::create_dir(dir.path().join("top/two")).expect("mkdir");
    fs::write(dir.path().join("top/two/file"), "there\n").expect("write");
    let program = dir.path().join("below.py");
    let text = "import ctypes, os, struct, sys\n\
                top = os.open('top', os.O_RDONLY | os.O_DIRECTORY)\n\
                call = ctypes.CDLL(None, use_errno=True).syscall\n\
                for resolve in 0x08, 0x10:\n\
                \x20 how = struct.pack('QQQ', os.O_RDONLY, 0, resolve)\n\
                \x20 for _ in range(50):\n\
                \x20   file = call(437, top, b'one/../two/file', how, len(how))\n\
                \x20   if file >= 0: break\n\
                \x20 else: sys.exit(os.strerror(ctypes.get_errno()))\n\
                \x20 print(os.read(file, 9).decode(), end='')\n";
    fs::write(&program, text).expect("write");
    for door in ["", "--no-preload"] {
        let options = format!("{door} --dir {}", dir.path().display());
        let output = Run::new(&options).script("cd /lane && python3 below.py").output();
        assert_eq!(good(&output), "there\nthere\n", "{door:?}");
    }
}

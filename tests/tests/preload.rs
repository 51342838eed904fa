//! The preload library under small C programs, one theme each (`tests/preload/*.c`).
//!
//! Every program runs on tmpfs, where it must pass or it proves nothing; on a lane through FUSE
//! alone; and on lanes through the library: as programs usually do, with some calls through the
//! kernel before it connects, and connected from the first, where it insists that opens took the
//! fast road.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use polylane_tests::host::{Host, succeeds, text};
use polylane_tests::pool::{Run, no_library};
use polylane_tests::{Lane, MOUNT, Script, binary, chosen, lacks, skip, unavailable};

/// What a program exits with when this host cannot say.
const SKIPPED: i32 = 77;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("preload")
}

/// Builds one program: as programs usually are, fortified, or static where its name says so.
fn compile(source: &Path, into: &Path) {
    let name = source.file_stem().expect("a name").to_string_lossy().into_owned();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-D_FORTIFY_SOURCE=2", "-Wall", "-Wextra", "-pthread"]);
    gcc.arg("-Wno-format-truncation").args(name.starts_with("static-").then_some("-static"));
    let output = gcc.arg("-o").arg(into.join(&name)).arg(source).output().expect("run gcc");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Where the programs are; built once.
fn programs() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
        std::fs::create_dir_all(&into).expect("directory for the programs");
        for entry in std::fs::read_dir(sources()).expect("tests/preload").flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "c") {
                compile(&entry.path(), &into);
            }
        }
        into
    })
}

/// Runs a program on each lane, each time in an empty directory.
fn passes(name: &str) {
    if unavailable(name) || lacks(name, &["gcc"]) {
        return;
    }
    let program = programs().join(name);
    let text = format!("mkdir dir; exec {} dir", program.display());
    let script = || Script::new(&text).limit(120).counted();
    for lane in chosen(&[Lane::Tmpfs, Lane::Fuse, Lane::Preload, Lane::PreloadDir]) {
        judge(name, lane, &script());
        if matches!(lane, Lane::Preload | Lane::PreloadDir) {
            judge(name, lane, &script().env("POLYLANE_PATIENCE", "0").env("EXPECT_FAST", "1"));
        }
    }
}

fn judge(name: &str, lane: Lane, script: &Script) {
    let outcome = script.run(lane);
    match outcome.status {
        0 => {}
        SKIPPED => skip(name, &format!("{lane:?}: not as this user, or not on this kernel")),
        _ => panic!("{}", outcome.tell(lane, script.text())),
    }
}

macro_rules! programs {
    ($($test:ident = $program:literal;)*) => {
        $(
            #[test]
            fn $test() {
                passes($program);
            }
        )*

        #[test]
        fn every_program_is_run() {
            let run = [$($program),*];
            for entry in std::fs::read_dir(sources()).expect("tests/preload").flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let Some(name) = name.strip_suffix(".c") else { continue };
                assert!(name.starts_with("static-") || run.contains(&name), "{name} is not run");
            }
        }
    };
}

programs! {
    reads_writes_and_positions = "basic";
    one_offset_for_all_who_share_a_file = "offsets";
    handlers_on_small_stacks = "stack";
    copies_of_descriptors = "dups";
    relative_paths = "at";
    paths_that_others_change = "paths";
    stat_agrees_with_the_kernel = "stats";
    locks_between_processes = "locks";
    mappings_are_coherent = "maps";
    open_files_outlive_their_names = "unlinked";
    running_out_of_descriptors_passes = "exhaust";
    threads_share_and_come_and_go = "threads";
    forks_amid_busy_threads = "forkthreads";
    spawned_programs_inherit = "spawn";
    closing_everything = "closing";
    errno_and_umask = "errnos";
    large_and_scattered_transfers = "large";
    appends_are_atomic = "append";
    pages_are_old_or_new_when_a_writer_is_killed = "killed";
    another_identity = "identity";
    children_have_no_channel_of_their_parents = "children";
    programs_that_confine_themselves = "confine";
    streams_of_libc = "stdio";
    file_size_limit = "limits";
    names_and_attributes = "names";
    descriptors_sent_to_others = "passing";
    handlers_do_io_too = "signals";
    calls_past_every_hook = "raw";
    files_in_constant_use = "views";
    files_opened_again_and_again = "reopen";
    two_lanes_in_one_process = "lanes";
}

/// How the program of two lanes is run: by FUSE alone; by the library, as programs usually are, and
/// connected from the first.
const WAYS: [(&str, &str); 3] =
    [("--no-preload", ""), ("", ""), ("", "POLYLANE_PATIENCE=0 EXPECT_FAST=1")];

/// The lanes of one run, of two kinds, and two of one kind.
#[test]
fn two_lanes_of_a_run() {
    let name = "two_lanes_of_a_run";
    if unavailable(name) || lacks(name, &["gcc"]) || no_library(name) {
        return;
    }
    let program = programs().join("lanes");
    let dir = tempfile::tempdir().expect("tempdir");
    for (index, (option, variables)) in WAYS.into_iter().enumerate() {
        let volume = format!("--size 64M --volume {}/{index}", dir.path().display());
        for other in ["--mem", &volume] {
            let lanes = format!("{option} --mem --at /opt/one {other} --at /srv/two/deep");
            let script = format!("env {variables} {} /opt/one /srv/two/deep", program.display());
            let output = Run::new(&lanes).script(&script).output();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{lanes}: {script}: {said}");
        }
    }
}

/// Two lanes that last, one within the other, by `polylane env`, and by mounts of a namespace of
/// its own, of which one shows a directory of its lane.
#[test]
fn two_lanes_that_last() {
    let name = "two_lanes_that_last";
    if unavailable(name) || lacks(name, &["gcc", "unshare"]) || no_library(name) {
        return;
    }
    let program = programs().join("lanes");
    let host = Host::new();
    let outer = host.dir("outer");
    succeeds(&["mount", "mem:64M", text(&outer)]);
    let inner = host.path("outer/inner");
    let beside = host.dir("beside");
    std::fs::create_dir(&inner).expect("mkdir");
    succeeds(&["mount", "mem:64M", text(&beside)]);
    let run = |script: &str, at: [&Path; 2]| {
        let mut shell = Command::new("unshare");
        shell.args(["-m", "--propagation", "private", "sh", "-euc"]).arg(script).arg(binary());
        shell.args(at).arg(&program).env("POLYLANE_PATIENCE", "0").env("EXPECT_FAST", "1");
        let output = shell.output().expect("unshare");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{script}: {said}");
        let clear = "for lane; do find \"$lane\" -mindepth 1 -maxdepth 1 ! -name '.polylane*' \
                     ! -name inner -exec rm -rf {} +; done";
        let cleared = Command::new("sh").args(["-euc", clear, "sh"]).args(at).status();
        assert!(cleared.is_ok_and(|status| status.success()));
    };
    let given = "eval \"$(\"$0\" env \"$1\" \"$2\")\"; exec \"$3\" \"$1\" \"$2\"";
    run(given, [&outer, &beside]);
    run(given, [&beside, &outer]);
    // At other paths: variables that are told of these.
    let moved = "eval \"$(\"$0\" env \"$1\" \"$2\")\"; mkdir \"$1/d\"; mount -t tmpfs t /mnt; \
                 mkdir /mnt/a /mnt/b; mount --bind \"$1/d\" /mnt/a; mount --bind \"$2\" /mnt/b; \
                 export POLYLANE_MOUNT=/mnt/a POLYLANE_RUN=\"${POLYLANE_RUN%%:*}:/mnt/a\"; \
                 export POLYLANE_RUN_2=\"${POLYLANE_RUN_2%%:*}:/mnt/b\"; exec \"$3\" /mnt/a /mnt/b";
    run(moved, [&outer, &beside]);
    // A lane within another: the outer one has no fast way, since something is mounted in it.
    succeeds(&["umount", text(&beside)]);
    succeeds(&["mount", "mem:64M", text(&inner)]);
    let nested = "eval \"$(\"$0\" env \"$1\" \"$2\")\"; unset EXPECT_FAST; \
                  exec \"$3\" \"$1\" \"$2\"";
    run(nested, [&outer, &inner]);
    succeeds(&["umount", text(&inner), text(&outer)]);
    host.assert_nothing_is_left();
}

/// Runs a program with the library by a shell script, without any lane of the test's own; all that
/// it says by either stream, and how it ended.
fn said_at(mount: &Path, library: &Path, script: &str) -> (String, Option<i32>) {
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation=private", "sh", "-euc", script, "sh"]).arg(mount);
    shell.arg(programs().join("basic")).env("LIBRARY", library).env("POLYLANE_PATIENCE", "0");
    let output = shell.output().expect("run unshare");
    let both = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&both).into_owned(), output.status.code())
}

/// Makes what looks like a lane where the script's first argument says, and runs the second there.
const NO_LANES: [&str; 6] = [
    "",
    "rmdir $1; : >$1",
    "mkdir $1/.polylane",
    "mkdir $1/.polylane; : >$1/.polylane/socket; : >$1/.polylane/mounts",
    "mkdir $1/.polylane; python3 -c 'import socket, sys; \
     socket.socket(socket.AF_UNIX).bind(sys.argv[1])' $1/.polylane/socket",
    "mount -t tmpfs none $1; mkdir $1/.polylane; ln -s /dev/null $1/.polylane/socket",
];

/// Without a lane, with one that is dead, and where paths mean something else, programs with the
/// library do what they do without it, and nothing is said.
#[test]
fn the_library_is_silent_where_it_cannot_work() {
    let test = "the_library_is_silent_where_it_cannot_work";
    if unavailable(test) || no_library(test) || lacks(test, &["gcc", "python3", "chroot"]) {
        return;
    }
    let beside = polylane_tests::binary().with_file_name("libpolylane.so");
    let library = std::env::var_os("POLYLANE_LIB").map_or(beside, PathBuf::from);
    let program = "work=$1/work; mkdir $work 2>/dev/null || work=$(dirname $1); \
                   export POLYLANE_MOUNT=$1; \
                   LD_PRELOAD=$LIBRARY $2 $work; LD_PRELOAD=$LIBRARY cat $1/none || echo none";
    for before in NO_LANES {
        let script = format!("{before}\n{program}");
        let told = [library.as_path(), Path::new("")].map(|library| {
            let dir = tempfile::tempdir().expect("tempdir");
            let at = dir.path().join("lane");
            std::fs::create_dir(&at).expect("mkdir");
            let (said, status) = said_at(&at, library, &script);
            (said.replace(&at.display().to_string(), "LANE"), status)
        });
        assert_eq!(told[0], told[1], "{before}");
        assert_eq!(told[0].1, Some(0), "{before}: {}", told[0].0);
    }
    // The lane's place is an empty directory there.
    let elsewhere = tempfile::tempdir().expect("tempdir");
    let script = format!(
        "cd $ELSEWHERE; mkdir root work; mount --rbind / root; umount -l root{MOUNT}; \
         exec chroot root {} $ELSEWHERE/work",
        programs().join("basic").display()
    );
    let script = Script::new(script).env("ELSEWHERE", elsewhere.path());
    let outcome = script.env("POLYLANE_PATIENCE", "0").run(Lane::Preload);
    assert_eq!((outcome.status, &outcome.stderr[..]), (0, ""), "{}", outcome.stdout);
}

/// Names that a shared library defines for others.
fn exports(library: &Path) -> Vec<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output();
    let output = output.expect("run nm");
    assert!(output.status.success(), "{}", library.display());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = |line: &str| {
        line.split(' ').nth(2).and_then(|name| name.split('@').next()).map(str::to_string)
    };
    text.lines().filter_map(name).collect()
}

/// Whatever else is visible would take the place of a program's own function of that name.
#[test]
fn only_names_of_libc_are_exported() {
    if lacks("only_names_of_libc_are_exported", &["nm", "gcc"]) {
        return;
    }
    let beside = polylane_tests::binary().with_file_name("libpolylane.so");
    let library = std::env::var_os("POLYLANE_LIB").map_or(beside, PathBuf::from);
    let libc = Command::new("gcc").arg("-print-file-name=libc.so.6").output().expect("run gcc");
    let libc = exports(Path::new(String::from_utf8_lossy(&libc.stdout).trim()));
    let ours = exports(&library);
    for expected in ["openat64", "__read_chk", "fclose", "posix_spawn", "execl"] {
        assert!(ours.iter().any(|name| name == expected), "{expected} is not hooked");
    }
    // Of libaio and liburing: what makes a ring, and what fills one.
    let rings = ["io_setup", "io_submit", "io_queue_init"];
    let ring = |name: &str| rings.contains(&name) || name.starts_with("io_uring_");
    // Of glibc 2.39, and of what programs bring until a C library has it.
    let newer = ["pidfd_spawn", "pidfd_spawnp", "landlock_restrict_self"];
    let known = |name: &String| libc.contains(name) || ring(name) || newer.contains(&&**name);
    let foreign: Vec<_> = ours.iter().filter(|name| !known(name)).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}

/// An image need not have more than the C library, and one of 2013 will do: the dynamic linker ends
/// a program whose preloaded library wants a newer one.
fn readelf(option: &str, library: &Path) -> String {
    let output = Command::new("readelf").args(["-W", option]).arg(library).output();
    String::from_utf8(output.expect("run readelf").stdout).expect("text")
}

fn needs_only(library: &Path, of_the_c_library: &[&str]) {
    let text = readelf("-d", library);
    let needed: Vec<&str> = text.lines().filter(|line| line.contains("(NEEDED)")).collect();
    assert!(!needed.is_empty(), "readelf shows nothing of {}", library.display());
    for line in needed {
        assert!(of_the_c_library.iter().any(|name| line.contains(name)), "{line}");
    }
}

/// POSIX's cancellation points, as names of the C libraries.
const CANCELLATION_POINTS: &str = "accept aio_suspend clock_nanosleep close connect creat creat64 \
    epoll_wait epoll_pwait fcntl fcntl64 fdatasync fsync lockf lockf64 msgrcv msgsnd msync \
    nanosleep open open64 openat openat64 pause poll ppoll pread pread64 pselect \
    pthread_cond_timedwait pthread_cond_wait pthread_join pthread_testcancel pwrite pwrite64 read \
    readv recv recvfrom recvmsg select sem_timedwait sem_wait send sendmsg sendto sigsuspend \
    sigtimedwait sigwait sigwaitinfo sleep system tcdrain usleep wait wait3 wait4 waitid waitpid \
    write writev";

/// A thread would be unwound from one, through code that cannot be. What the library exports itself
/// it finds by `dlsym`, and calls where unwinding passes.
#[test]
fn the_library_binds_no_function_in_which_a_thread_is_cancelled() {
    let test = "the_library_binds_no_function_in_which_a_thread_is_cancelled";
    if no_library(test) || lacks(test, &["readelf"]) {
        return;
    }
    for name in ["libpolylane.so", "libpolylane-musl.so"] {
        let library = polylane_tests::binary().with_file_name(name);
        if !library.exists() {
            continue;
        }
        let symbols = readelf("--dyn-syms", &library);
        let bound = symbols.lines().filter_map(|line| line.split_once(" UND "));
        let bound: Vec<&str> =
            bound.filter_map(|(_, name)| name.trim().split(['@', ' ']).next()).collect();
        assert!(bound.contains(&"abort"), "readelf shows no symbols of {name}: {bound:?}");
        let points: Vec<&str> =
            CANCELLATION_POINTS.split_whitespace().filter(|point| bound.contains(point)).collect();
        assert!(points.is_empty(), "{name}: {points:?}");
    }
}

#[test]
fn the_library_loads_with_any_c_library() {
    let test = "the_library_loads_with_any_c_library";
    if no_library(test) || lacks(test, &["readelf"]) {
        return;
    }
    let of_musl = polylane_tests::binary().with_file_name("libpolylane-musl.so");
    if of_musl.exists() {
        needs_only(&of_musl, &["[libc.so]", "[libc.musl-"]);
    }
    let library = polylane_tests::binary().with_file_name("libpolylane.so");
    needs_only(&library, &["[libc.so.6]", "[ld-linux"]);
    let versions = readelf("--version-info", &library);
    let versions: Vec<(u32, u32)> = versions
        .split("GLIBC_")
        .skip(1)
        .filter_map(|text| text.split([' ', ')', '\n']).next())
        .map(|text| {
            let mut parts = text.split('.').map(|part| part.parse().expect("a public version"));
            (parts.next().expect("a version"), parts.next().unwrap_or(0))
        })
        .collect();
    assert!(!versions.is_empty(), "readelf shows no versions");
    assert!(versions.iter().all(|&version| version <= (2, 17)), "{versions:?}");
}

/// Opens a file often enough for the library to keep its descriptor, and asks for its flags.
const ASKS_FOR_FLAGS: &str = "import errno, fcntl, os
for turn in range(40):
    fd = os.open('/lane/file', os.O_CREAT | os.O_RDWR, 0o644)
    for request in 0x80086601, 0x40086602, 0x801c581f:
        try: fcntl.ioctl(fd, request, bytes(28))
        except OSError as error: print(errno.errorcode[error.errno])
    os.close(fd)";

#[test]
fn a_file_without_inode_flags_has_none_by_any_descriptor() {
    let test = "a_file_without_inode_flags_has_none_by_any_descriptor";
    if unavailable(test) || no_library(test) || lacks(test, &["python3"]) {
        return;
    }
    for door in ["", "--no-preload"] {
        let dir = tempfile::tempdir().expect("tempdir");
        let run = Run::new(&format!("{door} --dir")).arg(dir.path());
        let output = run.arg("--").arg("python3").arg("-c").arg(ASKS_FOR_FLAGS).output();
        let said = String::from_utf8_lossy(&output.stdout);
        let asked = said.lines().count();
        assert!(output.status.success() && asked == 120, "{door}: {asked} {output:?}");
        assert!(said.lines().all(|line| line == "ENOTTY"), "{door}: {said}");
    }
}

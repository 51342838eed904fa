//! What programs do besides reading and writing: small C programs, one topic each
//! (`tests/longtail/*.c`), print what their calls return and do, in lanes and on a tmpfs of the
//! kernel's. Everywhere the same lines must come out.
//!
//! Each runs through FUSE and through the library: as programs usually do, and connected from the
//! first call with everything that the library may keep for itself switched on.

use std::path::{Path, PathBuf};
use std::process::Command;

use polylane_tests::pool::no_library;
use polylane_tests::{CACHED, Lane, Outcome, Script, chosen, lacks, skip, unavailable};

/// What a program exits with when this host cannot say.
const SKIPPED: i32 = 77;

/// A program and what it needs.
#[derive(Clone, Copy)]
struct Topic {
    /// Its source, without `.c`.
    source: &'static str,
    compiler: &'static str,
    /// Options for the compiler.
    options: &'static [&'static str],
    /// Runs the program `$PROGRAM`; `$BUILT` is the folder of this topic.
    script: &'static str,
    ways: &'static [Lane],
    /// Leads to where the program runs for the judge: a tmpfs, unless it is told otherwise.
    judge: &'static str,
}

/// What most need.
const PROGRAM: Topic = Topic {
    source: "",
    compiler: "gcc",
    options: &[],
    script: "exec \"$PROGRAM\"",
    ways: &[Lane::Fuse, Lane::Preload, Lane::PreloadVolume],
    judge: "",
};

/// With an argument, which has it do what else there is.
const ALL: Topic = Topic { script: "exec \"$PROGRAM\" more", ..PROGRAM };

/// Fails unless a file that the shell opens, connected from its first call, is of the fast lane: a
/// library that cannot connect would pass every test here, by FUSE.
const CONNECTED: &str = r#"
exec 9> ../probe
case $(readlink /proc/$$/fd/9) in
    *.polylane-slots*) ;;
    *) echo "no fast lane" >&2; exit 1 ;;
esac
exec 9>&-
rm ../probe
"#;

/// For another C library: by the library's build for it, where there is one, and else by FUSE.
const MUSL: Topic = Topic { compiler: "musl-gcc", ..PROGRAM };

/// Where the library differs (docs/semantics.md says how).
const FUSE: &[Lane] = &[Lane::Fuse];

/// Where FUSE differs.
const PRELOAD: &[Lane] = &[Lane::Preload, Lane::PreloadVolume];

/// The kernel's ext4 on a loop device is the judge.
const EXT4: &str = r#"
truncate -s 64M ../disk && mke2fs -q -t ext4 ../disk
mount -o loop ../disk . || exit 77
trap 'cd ../..; umount work' EXIT
cd ../work && mkdir work && cd work
"#;

/// Where lists are kept.
const LISTS: &[Lane] = &[Lane::Fuse, Lane::Preload, Lane::FuseVolume, Lane::PreloadVolume];

/// Beside another preloaded library, before it and after it.
const BESIDE_JEMALLOC: &str = r#"
for order in "$JEMALLOC ${LD_PRELOAD-}" "${LD_PRELOAD-} $JEMALLOC"; do
    mkdir new && cd new
    LD_PRELOAD="$order" "$PROGRAM"
    LD_PRELOAD="$order" sh -c 'grep -c jemalloc /proc/self/maps > maps; test -s maps'
    cd .. && rm -r new
done
"#;

/// Beside a preloaded library whose functions call the kernel by `syscall(2)`, in either order.
const BESIDE_INTERPOSER: &str = r#"
gcc -O1 -shared -fPIC -o "$BUILT/interposer.so" "$SOURCES/interposer.c"
for order in "$BUILT/interposer.so ${LD_PRELOAD-}" "${LD_PRELOAD-} $BUILT/interposer.so"; do
    mkdir new && cd new
    LD_PRELOAD="$order" "$PROGRAM"
    cd .. && rm -r new
done
"#;

/// A program with AddressSanitizer's shared runtime, by what its environment may be.
const SANITIZED: &str = r#"
sanitized() { "$@" "$PROGRAM" && rm -r *; }
sanitized env
sanitized env ASAN_OPTIONS=detect_leaks=0
sanitized env -i
"#;

/// Fails where the program touches memory that is not its own, too.
const UNDER_VALGRIND: &str = r#"
command -v valgrind > /dev/null || exit 77
valgrind -q --error-exitcode=99 "$PROGRAM"
"#;

/// Programs and libraries that are copied into the lane.
const LOADS: &str = r#"
gcc -shared -fPIC -o "$BUILT/lib.so" "$SOURCES/loads_library.c"
gcc -O2 -static -o "$BUILT/static" "$SOURCES/static_writer.c"
exec "$PROGRAM" "$BUILT/lib.so" "$BUILT/static"
"#;

/// A plugin, and a library that only the plugin's own search path finds.
const PLUGINS: &str = r#"
mkdir -p "$BUILT/found"
gcc -shared -fPIC -o "$BUILT/found/only_here.so" "$SOURCES/loads_library.c"
gcc -shared -fPIC -Wl,--enable-new-dtags,-rpath,"$BUILT/found" -o "$BUILT/plugin.so" \
    "$SOURCES/plugins_library.c"
exec "$PROGRAM" "$BUILT/plugin.so" only_here.so
"#;

/// By the programs that everybody uses, then by all calls.
const FLAGS: &str = r#"
flags() { lsattr -d "$1" | cut -d ' ' -f 1 | tr -d 'e-'; }
echo text > file
mkdir dir
for change in +i -i +a -a +dA -d; do
    echo "chattr $change" && chattr $change file dir
    flags file && flags dir
    rm -f file || echo stays
    (echo more > file) || (echo more >> file) || (echo more > dir/file) || echo nothing
done 2> /dev/null
chattr -R -i -a . && rm -r file dir
"$PROGRAM"
"#;

/// A file's middle block is taken away, then a block of zeros put there.
const RANGES: &str = r#"
block() { head -c 4096 /dev/zero | tr '\0' "$1"; }
{ block a; block b; block c; } > ranges
"$PROGRAM" collapse ranges
{ block a; block c; } | cmp - ranges
"$PROGRAM" insert ranges
{ block a; head -c 4096 /dev/zero; block c; } > whole
cmp whole ranges
"#;

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/longtail")
}

/// Builds a topic's program; `None` when a header or library is missing, which is noted.
fn compile(test: &str, topic: &Topic) -> Option<PathBuf> {
    let into = Path::new(env!("CARGO_TARGET_TMPDIR")).join("longtail").join(test);
    std::fs::create_dir_all(&into).expect("directory for the program");
    let source = sources().join(topic.source).with_extension("c");
    let mut compiler = Command::new(topic.compiler);
    compiler.args(["-O2", "-Wall", "-Wextra", "-pthread", "-o"]).arg(into.join("program"));
    compiler.arg(&source).args(topic.options);
    let output = compiler.output().expect("run the compiler");
    let text = String::from_utf8_lossy(&output.stderr);
    let missing = ["No such file or directory", "cannot find -l"];
    if missing.iter().any(|&what| text.contains(what)) && !topic.options.is_empty() {
        skip(test, &format!("{:?}: {}", topic.options, text.lines().next().unwrap_or_default()));
        return None;
    }
    assert!(output.status.success(), "{}: {text}", source.display());
    Some(into)
}

/// tmpfs refuses these ranges and the library's ext4 does not, so the judge is what they mean.
#[test]
fn ranges_are_moved_by_the_first_call_of_a_process() {
    let test = "ranges_are_moved_by_the_first_call_of_a_process";
    if unavailable(test) || lacks(test, &["gcc", "mke2fs"]) {
        return;
    }
    let Some(built) = compile(test, &Topic { source: "ranges", ..PROGRAM }) else { return };
    let script = Script::new(RANGES).limit(60).env("PROGRAM", built.join("program"));
    for lane in chosen(&[Lane::PreloadVolume]) {
        let seen = outcome(&script, lane).stdout;
        let calls = seen.lines().filter(|line| line.ends_with(" = 0")).count();
        assert_eq!(calls, 2, "{seen}");
    }
}

/// Dynamic programs for musl load the library's build for it; those of GNU beside them, theirs.
#[test]
fn programs_for_musl_have_the_fast_lane() {
    let test = "programs_for_musl_have_the_fast_lane";
    if unavailable(test) || no_library(test) || lacks(test, &["musl-gcc", "gcc"]) {
        return;
    }
    if !polylane_tests::binary().with_file_name("libpolylane-musl.so").is_file() {
        return skip(test, "libpolylane-musl.so is not built (scripts/build-musl.sh)");
    }
    for compiler in ["gcc", "musl-gcc"] {
        let topic = Topic { source: "fast_lane", compiler, ..PROGRAM };
        let Some(built) = compile(&format!("{test}-{compiler}"), &topic) else { return };
        let script = Script::new("exec \"$PROGRAM\" file").limit(60);
        let script = script.env("PROGRAM", built.join("program")).env("POLYLANE_PATIENCE", "0");
        for lane in chosen(&[Lane::Preload, Lane::Fuse]) {
            let way = if lane == Lane::Fuse { "fuse" } else { "fast" };
            assert_eq!(outcome(&script, lane).stdout.trim(), way, "{compiler}, {lane:?}");
        }
    }
}

/// The lines that a program prints, and how it ended.
fn outcome(script: &Script, lane: Lane) -> Outcome {
    let outcome = script.run(lane);
    if !matches!(outcome.status, 0 | SKIPPED) {
        panic!("{}", outcome.tell(lane, script.text()));
    }
    outcome
}

/// The first line that differs, with a few before it.
fn difference(judge: &str, lane: &str) -> String {
    let (judge, lane): (Vec<_>, Vec<_>) = (judge.lines().collect(), lane.lines().collect());
    let at = judge.iter().zip(&lane).take_while(|(one, other)| one == other).count();
    let part =
        |lines: &[&str]| lines[at.saturating_sub(3)..(at + 4).min(lines.len())].join("\n    ");
    format!("line {}: the judge says\n    {}\nthe lane\n    {}", at + 1, part(&judge), part(&lane))
}

/// Runs a topic on tmpfs and on every lane.
fn agrees(test: &str, topic: &Topic) {
    if unavailable(test) || lacks(test, &[topic.compiler]) {
        return;
    }
    let Some(built) = compile(test, topic) else { return };
    let script = |before: &str| {
        let text = format!("mkdir work; cd work\n{before}{}", topic.script);
        let script = Script::new(text).limit(120).counted();
        let script = script.env("SOURCES", sources()).env("BUILT", &built);
        let script = script.env("PROGRAM", built.join("program"));
        jemalloc().iter().fold(script, |script, path| script.env("JEMALLOC", path))
    };
    let judge = outcome(&script(topic.judge), Lane::Tmpfs);
    if judge.status == SKIPPED {
        return skip(test, "not as this user, or not on this kernel");
    }
    for lane in chosen(topic.ways) {
        let mut ways = vec![script("")];
        if !lane.is_fuse_only() {
            let eager =
                script(CONNECTED).env("POLYLANE_PATIENCE", "0").env("POLYLANE_VIEWS", "eager");
            ways.push(eager.env("POLYLANE_LEASES", "eager"));
        }
        for (way, script) in ways.iter().enumerate() {
            let seen = outcome(script, lane);
            let told = || difference(&judge.stdout, &seen.stdout);
            assert!(seen.stdout == judge.stdout, "{test}, {lane:?}, way {way}: {}", told());
        }
    }
}

/// Another library that programs preload.
fn jemalloc() -> Option<PathBuf> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"];
    folders.iter().map(|dir| Path::new(dir).join("libjemalloc.so.2")).find(|path| path.exists())
}

macro_rules! topics {
    ($($test:ident = $topic:expr;)*) => {
        $(
            #[test]
            fn $test() {
                agrees(stringify!($test), &$topic);
            }
        )*

        #[test]
        fn every_program_is_run() {
            let run = [$($topic.source),*];
            for entry in std::fs::read_dir(sources()).expect("tests/longtail").flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let Some(name) = name.strip_suffix(".c") else { continue };
                let alone = ["ranges", "fast_lane"].contains(&name);
                let named = format!("/{name}.c");
                let scripts = [LOADS, PLUGINS, BESIDE_INTERPOSER];
                let part = scripts.iter().any(|script| script.contains(&named)) || alone;
                assert!(part || run.contains(&name), "{name} is not run");
            }
        }
    };
}

topics! {
    mappings_of_growing_and_shrinking_files = Topic { source: "mmap_truncated", ..PROGRAM };
    shared_and_private_mappings = Topic { source: "mmap_shared", ..PROGRAM };
    programs_and_libraries_of_the_lane = Topic { source: "loads", script: LOADS, ..PROGRAM };
    advice_on_reading = Topic { source: "advice", ..PROGRAM };
    streams = Topic { source: "streams", ..PROGRAM };
    sendfile = Topic { source: "sendfile", ..PROGRAM };
    splice = Topic { source: "splice", ..PROGRAM };
    copy_file_range = Topic { source: "copy_range", ..PROGRAM };
    linux_aio = Topic { source: "libaio", options: &["-laio"], ..PROGRAM };
    posix_aio = Topic { source: "posix_aio", ..PROGRAM };
    io_uring_by_system_calls = Topic { source: "uring_raw", ..PROGRAM };
    io_uring_by_its_library =
        Topic { source: "uring_library", options: &["-luring"], ..PROGRAM };
    io_uring_at_a_files_position =
        Topic { source: "uring_position", options: &["-luring"], ways: &CACHED, ..PROGRAM };
    descriptors_over_sockets = Topic { source: "rights", ..PROGRAM };
    descriptors_in_proc = Topic { source: "proc_fd", ..PROGRAM };
    links_in_proc = Topic { source: "proc_fd", ways: FUSE, ..ALL };
    descriptors_over_exec = Topic { source: "descriptors", ..PROGRAM };
    a_lock_right_after_a_close = Topic { source: "locks_closed", ..PROGRAM };
    locks_of_a_process_that_takes_many = Topic { source: "locks_many", ..PROGRAM };
    locks_of_threads_that_begin_together = Topic { source: "locks_threads", ..PROGRAM };
    locks_by_descriptors_of_each_mode = Topic { source: "locks_modes", ..PROGRAM };
    locks_of_streams_that_are_closed = Topic { source: "locks_streams", ..PROGRAM };
    threads_without_mailboxes = Topic { source: "threads_many", ..PROGRAM };
    files_put_aside_by_threads_without_mailboxes = Topic { source: "threads_parked", ..PROGRAM };
    sessions_that_are_left = Topic { source: "sessions_left", ..PROGRAM };
    sessions_that_are_used_up = Topic { source: "sessions_many", ..PROGRAM };
    locks_kept_when_sessions_are_used_up = Topic { source: "sessions_many", ..ALL };
    leases_of_fcntl = Topic { source: "oplocks", ..PROGRAM };
    files_made_beside_one_with_a_lease = Topic { source: "oplocks_reused", ..PROGRAM };
    files_met_by_threads_while_they_are_made = Topic { source: "met", ..PROGRAM };
    locks_across_fork = Topic { source: "locks_fork", ..PROGRAM };
    forks_beside_opens = Topic { source: "forks_threads", ..PROGRAM };
    spawn_with_actions = Topic { source: "spawn_actions", ..PROGRAM };
    places_shared_with_another_process = Topic { source: "shared_places", ..PROGRAM };
    vfork_and_clone = Topic { source: "clones", ..PROGRAM };
    holders_of_locks = Topic { source: "holders", ..PROGRAM };
    set_id_bits = Topic { source: "set_id", ways: LISTS, ..PROGRAM };
    set_id_bits_by_the_library = Topic { source: "set_id", ways: PRELOAD, ..ALL };
    files_that_the_kernel_acts_on_by_itself = Topic { source: "own_nodes", ..PROGRAM };
    descriptors_of_own_nodes =
        Topic { source: "own_descriptors", options: &["-pthread"], ..PROGRAM };
    descriptors_without_memory = Topic { source: "shared_tables", ..PROGRAM };
    system_calls_by_number = Topic { source: "syscalls", ..PROGRAM };
    walks_and_temporary_names = Topic { source: "walks", ..PROGRAM };
    directory_streams = Topic { source: "listings", ..PROGRAM };
    threads_cancelled_in_calls = Topic { source: "cancelled", ..ALL };
    threads_cancelled_in_first_calls = Topic { source: "cancelled", ..PROGRAM };
    signals_in_calls = Topic { source: "interrupted", ..ALL };
    first_calls_in_a_signal_handler = Topic { source: "first_calls", ..PROGRAM };
    directories_synced = Topic { source: "synced", ..PROGRAM };
    directories_opened_again = Topic { source: "directories_again", ..PROGRAM };
    status_flags_that_others_set = Topic { source: "status_flags", ..PROGRAM };
    descriptors_that_libc_makes_itself = Topic { source: "unseen", ..PROGRAM };
    plugins_bound_deeply = Topic { source: "plugins", script: PLUGINS, ..PROGRAM };
    files_that_cannot_be_waited_for =
        Topic { source: "epoll", ways: PRELOAD, ..PROGRAM };
    working_directories_that_move = Topic { source: "directories_moved", ..PROGRAM };
    hard_links_to_files_of_others = Topic { source: "links", ..PROGRAM };
    arguments_at_the_edge = Topic { source: "edges", ways: LISTS, ..PROGRAM };
    pointers_that_are_no_memory = Topic { source: "bad_pointers", ..PROGRAM };
    buffers_that_are_no_memory = Topic { source: "bad_places", ..PROGRAM };
    buffers_that_are_no_memory_at_the_end = Topic { source: "bad_places", ways: PRELOAD, ..ALL };
    arguments_at_odd_addresses =
        Topic { source: "unaligned", options: &["-w"], judge: EXT4, ..PROGRAM };
    limits_that_others_set = Topic { source: "limits_outside", ..PROGRAM };
    times_of_access = Topic { source: "access_times", judge: EXT4, ..PROGRAM };
    descriptors_that_others_take = Topic { source: "taken", ..PROGRAM };
    handles_of_files_without_a_name = Topic { source: "handles", ..PROGRAM };
    inode_flags = Topic { source: "flags", script: FLAGS, ways: LISTS, judge: EXT4, ..PROGRAM };
    inode_flags_asked_for = Topic {
        source: "flags",
        script: "POLYLANE_PATIENCE=0 \"$PROGRAM\" more",
        ways: &[Lane::Preload, Lane::PreloadVolume],
        judge: EXT4,
        ..PROGRAM
    };
    attributes_of_files = Topic {
        source: "flags",
        script: "\"$PROGRAM\" attributes",
        ways: &[Lane::Preload, Lane::PreloadVolume],
        judge: EXT4,
        ..PROGRAM
    };
    attributes_of_files_of_volumes = Topic {
        source: "flags",
        script: "\"$PROGRAM\" all",
        ways: &[Lane::PreloadVolume],
        judge: EXT4,
        ..PROGRAM
    };
    changes_that_change_nothing = Topic {
        source: "unchanged",
        ways: &[Lane::FuseVolume, Lane::PreloadVolume],
        judge: EXT4,
        ..PROGRAM
    };
    projects_of_files = Topic {
        source: "projects",
        ways: &[Lane::FuseVolume, Lane::PreloadVolume],
        judge: EXT4,
        ..PROGRAM
    };
    dropped_privileges = Topic { source: "privileges", ..PROGRAM };
    access_control_lists = Topic { source: "lists", ways: LISTS, ..PROGRAM };
    chroot_and_unshare = Topic { source: "roots", ..PROGRAM };
    appends_to_new_files = Topic { source: "appending", ..PROGRAM };
    long_appends_stay_in_one_piece = Topic { source: "appended_whole", ..PROGRAM };
    files_that_grow = Topic { source: "growing", ..PROGRAM };
    stores_beside_writes = Topic { source: "beside", ..PROGRAM };
    pages_written_here_and_there = Topic { source: "scattered", ..PROGRAM };
    numbers_of_descriptors = Topic { source: "numbers", ..PROGRAM };
    environments_of_exec = Topic { source: "environments", ..PROGRAM };
    plain = Topic { source: "plain", ..PROGRAM };
    calls_without_memory = Topic { source: "memory_refused", ..PROGRAM };
    beside_a_library_that_calls_the_kernel =
        Topic { source: "plain", script: BESIDE_INTERPOSER, ..PROGRAM };
    mappings_beside_such_a_library =
        Topic { source: "mmap_shared", script: BESIDE_INTERPOSER, ..PROGRAM };
    address_sanitizer = Topic {
        source: "plain",
        options: &["-fsanitize=address"],
        script: SANITIZED,
        ..PROGRAM
    };
    under_valgrind = Topic { source: "plain", script: UNDER_VALGRIND, ..PROGRAM };
    fortified = Topic { source: "streams", options: &["-D_FORTIFY_SOURCE=2"], ..PROGRAM };
    static_program = Topic { source: "plain", options: &["-static"], ..PROGRAM };
    musl_program = Topic { source: "plain", ..MUSL };
    musl_streams = Topic { source: "streams", ..MUSL };
    musl_mappings = Topic { source: "mmap_shared", ..MUSL };
    musl_threads_cancelled = Topic { source: "cancelled", ..MUSL };
    musl_signals = Topic { source: "interrupted", ..MUSL };
    musl_locks = Topic { source: "locks_fork", ..MUSL };
    musl_clones = Topic { source: "clones", ..MUSL };
    musl_directory_streams = Topic { source: "listings", ..MUSL };
    musl_environments = Topic { source: "environments", ..MUSL };
    musl_static_program =
        Topic { source: "plain", options: &["-static"], ..MUSL };
}

/// Two libraries in one program, in either order.
#[test]
fn beside_another_preloaded_library() {
    let test = "beside_another_preloaded_library";
    match jemalloc() {
        None => skip(test, "libjemalloc.so.2 is not installed"),
        Some(_) => agrees(test, &Topic { source: "plain", script: BESIDE_JEMALLOC, ..PROGRAM }),
    }
}

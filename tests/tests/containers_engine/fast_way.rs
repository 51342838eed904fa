//! Programs of a container have the library, and cannot change it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use polylane_tests::host::{text, until};
use polylane_tests::pool::TRIES_THE_RUN_DIRECTORY;
use polylane_tests::{binary, lacks};
use serde_json::Value;

use super::Engine;

#[test]
fn programs_of_a_container_have_the_fast_way() {
    let name = "programs_of_a_container_have_the_fast_way";
    if polylane_tests::pool::no_library(name) {
        return;
    }
    let Some(engine) = Engine::new(name) else { return };
    let root = engine.host.path("busybox");
    // The host's own C library and two of its programs.
    for program in ["cat", "dd"] {
        let path = format!("/bin/{program}");
        fs::remove_file(root.join(&path[1..])).ok();
        fs::copy(&path, root.join(&path[1..])).expect("copy");
        copy_libraries(Path::new(&path), &root);
    }
    copy_libraries(&binary().with_file_name("libpolylane.so"), &root);
    engine.succeeds(&["image", "import", text(&root), "glibc"]);
    let script = "for i in 1 2 3 4 5 6 7 8; do /bin/dd if=/bin/busybox of=/x$i bs=4k count=8 \
                  2>/dev/null; /bin/cat /x$i >/dev/null; done; \
                  /bin/cat /etc/hostname /proc/self/comm";
    let words = |name: &'static str, more: &'static str| {
        vec!["container", "run", "-d", "--name", name, "-e", more, "glibc", "sh", "-c"]
    };
    let long = format!("{script}; while :; do sleep 0.1; done");
    let mut fast = words("fast", "POLYLANE_PATIENCE=0");
    fast.push(&long);
    engine.succeeds(&fast);
    until("it is through", || {
        engine.succeeds(&["container", "logs", "fast"]).ends_with("fast\ncat\n")
    });
    let mount = &engine.host.mounts()[0];
    let lane = format!("{}@{}", mount["pool"].as_str().expect("a name"), mount["service"]);
    let stats = engine.succeeds(&["stats", "--json", "--pool", &lane]);
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    let seen = &stats[0]["service"]["shared_memory"];
    // A part of what is written goes by pages that the library may write to.
    assert!(seen["written_bytes"].as_u64() > Some(0), "{seen}");
    assert!(seen["read_bytes"].as_u64() > Some(0), "{seen}");
    engine.succeeds(&["container", "rm", "-f", "fast"]);
    let slow = engine.succeeds(&[
        "container",
        "run",
        "--rm",
        "--name",
        "fast",
        "--no-preload",
        "glibc",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(slow, "fast\ncat\n");
    engine.assert_nothing_is_left(&[]);
}

/// Tells who it runs as.
const TELLS: &str = "#include <stdio.h>\n#include <unistd.h>\n\
     int main(void) { return printf(\"%d %d\\n\", (int)getuid(), (int)geteuid()) < 0; }\n";

/// Set-id programs of an image, and those that a container makes, run as who owns them.
#[test]
fn set_id_programs_work_in_a_container() {
    let name = "set_id_programs_work_in_a_container";
    if lacks(name, &["gcc"]) {
        return;
    }
    let Some(engine) = Engine::new(name) else { return };
    let root = engine.host.path("busybox");
    fs::write(engine.host.path("tells.c"), TELLS).expect("write");
    let program = root.join("bin/tells");
    let mut gcc = Command::new("gcc");
    gcc.args(["-static", "-o"]).arg(&program).arg(engine.host.path("tells.c"));
    assert!(gcc.status().expect("gcc").success());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
    engine.succeeds(&["image", "import", text(&root), "set-id"]);
    let run = ["container", "run", "--rm"];
    let told = engine.succeeds(&[&run[..], &["-u", "web", "set-id", "/bin/tells"]].concat());
    assert_eq!(told, "33 0\n");
    let makes = "cat /bin/tells >/srv/own; /bin/busybox chmod 4755 /srv/own; \
                 exec /bin/busybox su web -c /srv/own";
    let told = engine.succeeds(&[&run[..], &["set-id", "sh", "-c", makes]].concat());
    assert_eq!(told, "33 0\n");
    engine.assert_nothing_is_left(&[]);
}

#[test]
fn the_library_and_the_socket_are_a_containers_to_use_and_not_to_change() {
    let name = "the_library_and_the_socket_are_a_containers_to_use_and_not_to_change";
    let Some(engine) = Engine::new(name) else { return };
    let root = engine.host.path("busybox");
    engine.succeeds(&["image", "import", text(&root), "tries"]);
    let run = ["container", "run", "--rm", "-e", "MOUNT=", "tries", "sh", "-c"];
    let told = engine.succeeds(&[&run[..], &[TRIES_THE_RUN_DIRECTORY]].concat());
    assert_eq!(told, "done\n");
    engine.assert_nothing_is_left(&[]);
}

/// The libraries of a program, with the linker, where it looks for them.
fn copy_libraries(program: &Path, root: &Path) {
    let output = Command::new("ldd").arg(program).output().expect("ldd");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for path in text.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = root.join(&path[1..]);
        fs::create_dir_all(to.parent().expect("a directory")).expect("mkdir");
        fs::copy(path, &to).expect("copy");
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("chmod");
    }
}

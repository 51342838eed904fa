//! `polylane oci`: the runtime of other engines, containers on lanes where annotations say so.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use polylane_tests::host::{Host, text, until};
use polylane_tests::oci::{Bundle, LISTED, files, podman, runtime, said};
use polylane_tests::{binary, lacks, skip};
use serde_json::{Value, json};

#[test]
fn a_bundle_runs_on_lanes_and_is_as_before() {
    let Some(bundle) = Bundle::new("a_bundle_runs_on_lanes_and_is_as_before") else { return };
    let kept = bundle.host.path("kept.img");
    let script = "cat /etc/old; echo new >/etc/old; cat /etc/old; echo x >>/data/x; cat /data/x; \
                  df -T / /data 2>/dev/null | cat >/dev/null; cat /proc/mounts >/etc/mounts; \
                  while read a b c d; do case $b in /|/data) echo $b $c;; esac; done </etc/mounts; \
                  exit 3";
    let mount = format!("volume:{}:/data", text(&kept));
    bundle.write(script, json!({ "polylane.root": "own", "polylane.mount.data": mount }));
    for turn in ["x\n", "x\nx\n"] {
        let output = bundle.call(&["run", "one"]);
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*words), (Some(3), ""));
        let expected = format!("old\nnew\n{turn}/ fuse.polylane\n/data fuse.polylane\n");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        assert_eq!(fs::read_to_string(bundle.root.join("etc/old")).expect("there"), "old\n");
        bundle.assert_nothing_is_left();
    }
    // An upper that stays.
    let upper = bundle.host.path("upper.img");
    let source = format!("volume:{}", text(&upper));
    bundle.write("cat /new 2>/dev/null; echo new >/new", json!({ "polylane.root": source }));
    assert_eq!(bundle.succeeds(&["run", "two"]), "");
    assert_eq!(bundle.succeeds(&["run", "two"]), "new\n");
    bundle.assert_nothing_is_left();
    // Without annotations it is the runtime's alone.
    bundle.write("echo changed >/etc/old", json!({ "other": "x" }));
    bundle.succeeds(&["run", "three"]);
    assert_eq!(fs::read_to_string(bundle.root.join("etc/old")).expect("there"), "changed\n");
    bundle.assert_nothing_is_left();
}

#[test]
fn a_container_is_made_started_and_deleted() {
    let Some(bundle) = Bundle::new("a_container_is_made_started_and_deleted") else { return };
    let script = "echo x >/new; while :; do sleep 0.1; done";
    bundle.write(script, json!({ "polylane.root": "own", "polylane.size": "64M" }));
    let pid = bundle.host.path("pid");
    let mut create = bundle.command(&["create", "--pid-file", text(&pid), "c"]);
    // Its standard streams are the container's, which lives on.
    let made = create.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("polylane");
    assert!(made.success());
    bundle.succeeds(&["start", "c"]);
    let state: Value = serde_json::from_str(&bundle.succeeds(&["state", "c"])).expect("JSON");
    assert_eq!(state["status"], "running");
    let number = fs::read_to_string(&pid).expect("a number");
    assert_eq!(state["pid"].to_string(), number.trim());
    until("it has written", || bundle.call(&["exec", "c", "cat", "/new"]).stdout == b"x\n");
    assert!(!bundle.root.join("new").exists());
    // One that runs is not removed, and keeps its lanes.
    assert!(!bundle.call(&["delete", "c"]).status.success());
    assert_eq!(bundle.succeeds(&["exec", "c", "cat", "/new"]), "x\n");
    bundle.succeeds(&["kill", "c", "KILL"]);
    until("it is deleted", || bundle.call(&["delete", "c"]).status.success());
    bundle.assert_nothing_is_left();
}

#[test]
fn what_cannot_be_is_one_line_and_leaves_no_lane() {
    let Some(bundle) = Bundle::new("what_cannot_be_is_one_line_and_leaves_no_lane") else { return };
    let log = bundle.host.path("log");
    bundle.list(&["volume:/nope", "dir:/nope"]);
    for annotations in [
        json!({ "polylane.root": "nope:x" }),
        json!({ "polylane.rooot": "own" }),
        json!({ "polylane.root": "dir:/nope" }),
        json!({ "polylane.root": "own", "polylane.mount.a": "volume:/nope/x:/a" }),
        json!({ "polylane.root": "own", "polylane.pool": "nope" }),
    ] {
        let _ = fs::remove_file(&log);
        bundle.write("true", annotations.clone());
        let mut command = Command::new(binary());
        command.arg("oci").arg("--log").arg(&log).args(["--log-format", "json", "create"]);
        command.arg("--bundle").arg(bundle.dir()).arg("bad");
        command.env("XDG_STATE_HOME", bundle.host.path("state")).env(LISTED, bundle.listed());
        let output = command.output().expect("polylane");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{annotations}");
        assert_eq!(words.lines().count(), 1, "{annotations}: {words}");
        let told: Value = serde_json::from_slice(&fs::read(&log).expect("a log")).expect("JSON");
        assert_eq!(format!("{}\n", told["msg"].as_str().expect("text")), words, "{annotations}");
        bundle.assert_nothing_is_left();
    }
    // What the runtime refuses leaves none either.
    bundle.write("true", json!({ "polylane.root": "own" }));
    let path = bundle.dir().join("config.json");
    let config = fs::read_to_string(&path).expect("read").replace("\"sh\"", "\"/nope\"");
    fs::write(&path, config).expect("write");
    assert!(!bundle.call(&["run", "bad"]).status.success());
    bundle.assert_nothing_is_left();
    let mut none = bundle.command(&["run", "bad"]);
    let none = none.env("POLYLANE_OCI_RUNTIME", "nope").output().expect("polylane");
    assert!(String::from_utf8_lossy(&none.stderr).contains("nope: no such runtime"));
}

/// An image's author may have written an annotation: it names what root's file lists.
#[test]
fn annotations_name_what_is_listed_and_nothing_else() {
    let name = "annotations_name_what_is_listed_and_nothing_else";
    let Some(bundle) = Bundle::new(name) else { return };
    let host = bundle.host.path("");
    let host = text(&host).trim_end_matches('/');
    for dir in ["shared/sub", "secret"] {
        fs::create_dir_all(bundle.host.path(dir)).expect("mkdir");
        fs::write(bundle.host.path(dir).join("file"), format!("{dir}\n")).expect("write");
    }
    symlink("../secret", bundle.host.path("shared/out")).expect("link");
    let run = |annotations: &Value| {
        bundle.write("cat /at/file 2>/dev/null; echo ran", annotations.clone());
        let output = bundle.call(&["run", "listed"]);
        bundle.assert_nothing_is_left();
        output
    };
    let refused = |annotations: Value, named: &str| {
        let output = run(&annotations);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]), "{annotations}");
        assert_eq!(words.lines().count(), 1, "{words}");
        assert!(words.contains(&format!("polylane: {named}: an annotation names it")), "{words}");
    };
    let all = [
        format!("dir:{host}/secret"),
        format!("dir:{host}/shared/sub"),
        format!("dir:{host}/shared/out"),
        format!("volume:{host}/v.img"),
        "mem:64M".to_string(),
        "ceph:nope".to_string(),
        "rbd:nope/nope".to_string(),
    ];
    let mount = |source: &str| json!({ "polylane.mount.x": format!("{source}:/at") });
    for listed in [None, Some(vec![]), Some(vec!["dir:/nope/nope"])] {
        match &listed {
            Some(sources) => bundle.list(sources),
            None => fs::remove_file(bundle.listed()).expect("there"),
        }
        for source in &all {
            refused(mount(source), source);
            refused(json!({ "polylane.root": source }), source);
        }
        refused(json!({ "polylane.root": "own", "polylane.pool": "other" }), "other");
        assert_eq!(said(&run(&json!({ "polylane.root": "own" }))), "ran\n");
    }
    let shared = format!("dir:{host}/shared");
    bundle.list(&[&shared, "mem:64M"]);
    assert_eq!(said(&run(&mount(&all[1]))), "shared/sub\nran\n");
    assert_eq!(said(&run(&json!({ "polylane.root": "mem:64M" }))), "ran\n");
    for source in [&all[0], &all[2], &all[3], &all[5], &format!("{shared}/..")] {
        refused(mount(source), source);
    }
    let larger = json!({ "polylane.root": "mem:64M", "polylane.size": "65M" });
    refused(larger, "mem:68157440");
    // A file that others write lists nothing.
    fs::set_permissions(bundle.listed(), PermissionsExt::from_mode(0o666)).expect("chmod");
    let output = run(&mount(&all[1]));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && words.contains("another user may write it"), "{words}");
}

/// Killed at any moment of a creation: `delete --force`, as engines do, leaves nothing.
#[test]
fn a_creation_that_was_killed_is_deleted() {
    let Some(bundle) = Bundle::new("a_creation_that_was_killed_is_deleted") else { return };
    bundle.write("while :; do sleep 0.1; done", json!({ "polylane.root": "own" }));
    for step in 0..10_u64 {
        let mut create = bundle.command(&["create", "k"]);
        let mut child =
            create.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("polylane");
        std::thread::sleep(std::time::Duration::from_millis(40 * step));
        let _ = child.kill();
        let _ = child.wait();
        until(&format!("step {step}: it is deleted"), || {
            bundle.call(&["delete", "--force", "k"]);
            files(&bundle.host.path("state/polylane/oci")).is_empty()
        });
        bundle.assert_nothing_is_left();
    }
}

#[test]
fn podman_runs_containers_on_lanes() {
    let name = "podman_runs_containers_on_lanes";
    if lacks(name, &["podman"]) {
        return;
    }
    let Some(bundle) = Bundle::new(name) else { return };
    let root = text(&bundle.root).to_string();
    let run = |more: &[&str], script: &str| {
        let mut words = vec![
            "run",
            "--rm",
            "--network",
            "none",
            "--ulimit",
            "nofile=99:99",
            "--ulimit",
            "nproc=99:99",
        ];
        words.extend(more);
        words.extend(["--rootfs", &root, "sh", "-c", script]);
        podman(&bundle, &words).output().expect("podman")
    };
    let plain = run(&[], "echo up");
    if !plain.status.success() {
        return skip(name, &String::from_utf8_lossy(&plain.stderr));
    }
    let volume = format!("volume:{}:/data", text(&bundle.host.path("v.img")));
    let mount = format!("polylane.mount.data={volume}");
    let annotations = ["--annotation", "polylane.root=own", "--annotation", &mount];
    let script = "echo x >/etc/old; cat /etc/old; echo kept >>/data/f; cat /data/f; exit 4";
    let output = run(&annotations, script);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), words.as_str()), (Some(4), ""));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "x\nkept\n");
    assert_eq!(fs::read_to_string(bundle.root.join("etc/old")).expect("there"), "old\n");
    bundle.assert_nothing_is_left();
    // One that runs beside, with a further process.
    let words = [
        "run",
        "-d",
        "--name",
        "beside",
        "--network",
        "none",
        "--ulimit",
        "nofile=99:99",
        "--ulimit",
        "nproc=99:99",
    ];
    let mut all = words.to_vec();
    all.extend(annotations);
    all.extend(["--rootfs", &root, "sh", "-c", "while :; do sleep 0.1; done"]);
    said(&podman(&bundle, &all).output().expect("podman"));
    let exec = ["exec", "beside", "sh", "-c", "echo y >/y; cat /y /data/f"];
    assert_eq!(said(&podman(&bundle, &exec).output().expect("podman")), "y\nkept\n");
    said(&podman(&bundle, &["rm", "-f", "-t", "0", "beside"]).output().expect("podman"));
    bundle.assert_nothing_is_left();
    // What our part refuses podman says.
    let output = run(&["--annotation", "polylane.root=nope"], "true");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && words.contains("polylane.root"), "{words}");
    bundle.assert_nothing_is_left();
}

/// podman copies the annotations of an image into its containers, as if its user had said them.
#[test]
fn an_image_for_podman_has_nothing_of_the_hosts() {
    let name = "an_image_for_podman_has_nothing_of_the_hosts";
    if lacks(name, &["podman"]) {
        return;
    }
    let Some(bundle) = Bundle::new(name) else { return };
    fs::write(bundle.host.dir("secret").join("file"), "secret\n").expect("write");
    let source = format!("dir:{}", text(&bundle.host.path("secret")));
    let annotation = format!("polylane.mount.x={source}:/at");
    fs::write(bundle.dir().join("Containerfile"), "FROM scratch\nCOPY rootfs /\n").expect("write");
    let build = ["build", "--network", "none", "--annotation", &annotation, "-t", "hostile"];
    let dir = bundle.dir();
    let build = [&build[..], &[text(&dir)]].concat();
    let built = podman(&bundle, &build).output().expect("podman");
    if !built.status.success() {
        return skip(name, &String::from_utf8_lossy(&built.stderr));
    }
    let limits = ["--ulimit", "nofile=99:99", "--ulimit", "nproc=99:99"];
    let run = ["run", "--rm", "--network", "none"];
    let run = [&run[..], &limits, &["hostile", "cat", "/at/file"]].concat();
    let refused = podman(&bundle, &run).output().expect("podman");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!((refused.status.success(), &*refused.stdout), (false, &b""[..]), "{words}");
    assert!(words.contains(&format!("{source}: an annotation names it")), "{words}");
    bundle.list(&[&source]);
    assert_eq!(said(&podman(&bundle, &run).output().expect("podman")), "secret\n");
    bundle.assert_nothing_is_left();
}

/// containerd with places of its own; dropped, it is ended.
struct Containerd {
    child: Child,
    socket: PathBuf,
}

impl Containerd {
    fn start(host: &Host) -> Containerd {
        let socket = host.path("containerd.sock");
        let config = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\", \
             \"io.containerd.internal.v1.opt\"]\n\
             [grpc]\naddress = {:?}\n",
            host.dir("containerd"),
            host.dir("containerd-state"),
            socket
        );
        let file = host.path("containerd.toml");
        fs::write(&file, config).expect("write");
        let mut command = Command::new("containerd");
        command.arg("--config").arg(file).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let containerd = Containerd { child: child.expect("containerd"), socket };
        until("containerd listens", || containerd.ctr(&["version"]).status.success());
        containerd
    }

    fn ctr(&self, words: &[&str]) -> Output {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(&self.socket).args(words).stdin(Stdio::null());
        command.output().expect("ctr")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn containerd_runs_containers_on_lanes() {
    let name = "containerd_runs_containers_on_lanes";
    if lacks(name, &["containerd", "ctr"]) {
        return;
    }
    let Some(bundle) = Bundle::new(name) else { return };
    let containerd = Containerd::start(&bundle.host);
    let runtime = runtime(&bundle);
    let run = |more: &[&str], id: &str, script: &str| {
        let mut words = vec!["run", "--rm", "--runc-binary", text(&runtime)];
        words.extend(more);
        words.extend(["--rootfs", text(&bundle.root), id, "/bin/sh", "-c", script]);
        containerd.ctr(&words)
    };
    let plain = run(&[], "plain", "echo up");
    if !plain.status.success() {
        return skip(name, &String::from_utf8_lossy(&plain.stderr));
    }
    let script = "echo x >/etc/old; cat /etc/old; exit 4";
    let output = run(&["--annotation", "polylane.root=own"], "one", script);
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "x\n");
    assert_eq!(fs::read_to_string(bundle.root.join("etc/old")).expect("there"), "old\n");
    bundle.assert_nothing_is_left();
    let output = run(&["--annotation", "polylane.root=nope"], "two", "true");
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && words.contains("polylane.root"), "{words}");
    bundle.assert_nothing_is_left();
}

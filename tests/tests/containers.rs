//! Lanes in containers of OCI runtimes, as a host has them: bind mounts at other paths, of a
//! directory, read-only, under a system call filter, without new privileges, in a user namespace.
//! By the library and by FUSE a program sees the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use polylane_tests::host::{Host, succeeds, text, until};
use polylane_tests::{lacks, unavailable};
use serde_json::{Value, json};

/// Runtimes that take a bundle, where they are installed.
const RUNTIMES: [&str; 2] = ["runc", "crun"];

/// How a container is confined and what it has of the lane.
#[derive(Clone, Copy, Debug, Default)]
struct Way {
    /// What of the lane is its `/data`.
    part: &'static str,
    read_only: bool,
    /// As container runtimes' default: a filter, and no new privileges.
    confined: bool,
    /// Users 0 to 65535 are 100000 to 165535 of the host.
    users: bool,
}

const WAYS: [Way; 6] = [
    Way { part: "", read_only: false, confined: false, users: false },
    Way { part: "d", read_only: false, confined: false, users: false },
    Way { part: "d", read_only: true, confined: false, users: false },
    Way { part: "d", read_only: false, confined: true, users: false },
    Way { part: "d", read_only: false, confined: false, users: true },
    Way { part: "d", read_only: true, confined: true, users: true },
];

/// What a program of the container does with its part of the lane. Numbers of owners are told.
const SCRIPT: &str = "cd /data; ls -A | grep -v '^[.]poly'; cat inside ../outside up absolute; \
     stat -c '%n %F %u %g %a' * .; echo x >new; cat new; chown 5:6 new; stat -c '%u %g' new; \
     chmod 4755 new; stat -c %a new; cp -p inside kept; stat -c '%u %g %a' kept; mkdir dir; \
     ln -s inside soft; readlink soft; mv new dir/moved; ls -A dir; ln inside hard; \
     stat -c %h inside; chown 70000 inside; cat secret; echo y >theirs; chgrp 6 theirs; \
     rm -rf dir soft hard kept; ls -A | grep -v '^[.]poly'; true";

struct Lane {
    host: Host,
    at: PathBuf,
    env: Value,
}

impl Lane {
    fn new() -> Lane {
        Lane::of(|_| vec!["mem:64M".to_string()])
    }

    /// Of a source in the test's directory.
    fn of(source: impl Fn(&Host) -> Vec<String>) -> Lane {
        let host = Host::new();
        let at = host.dir("lane");
        let source = source(&host);
        let mut words = vec!["mount"];
        words.extend(source.iter().map(String::as_str));
        succeeds(&[&words[..], &[text(&at)]].concat());
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(host.path(""), all).expect("chmod");
        let env = serde_json::from_str(&succeeds(&["env", "--json", text(&at)])).expect("JSON");
        Lane { host, at, env }
    }

    /// The same files for each container, of root of its users in `d`.
    fn furnish(&self, way: Way) {
        let _ = fs::remove_dir_all(self.at.join("d"));
        let _ = fs::remove_dir_all(self.at.join("dir"));
        let owner = if way.users { 100_000 } else { 0 };
        for dir in [self.at.clone(), self.at.join("d")] {
            fs::create_dir_all(&dir).expect("mkdir");
            fs::write(dir.join("inside"), "inside\n").expect("write");
            fs::write(dir.join("secret"), "secret\n").expect("write");
            fs::write(dir.join("theirs"), "theirs\n").expect("write");
            for (link, target) in [("up", "../outside"), ("absolute", "/data/inside")] {
                let link = dir.join(link);
                let _ = fs::remove_file(&link);
                std::os::unix::fs::symlink(target, link).expect("link");
            }
            for name in ["inside", "."] {
                chown(&dir.join(name), owner);
            }
            chown(&dir.join("secret"), 7);
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            fs::set_permissions(dir.join("secret"), private).expect("chmod");
        }
        fs::write(self.at.join("outside"), "outside\n").expect("write");
    }

    /// A container's directory for a runtime.
    fn bundle(&self, way: Way, fast: bool) -> PathBuf {
        let dir = self.host.path("bundle");
        let _ = fs::remove_dir_all(&dir);
        for place in ["rootfs/data", "rootfs/proc", "rootfs/dev", "rootfs/tmp", "rootfs/lane-run"] {
            fs::create_dir_all(dir.join(place)).expect("mkdir");
        }
        let capabilities =
            ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL"];
        let sets = json!({ "bounding": capabilities, "effective": capabilities,
                           "permitted": capabilities });
        let config = json!({
            "ociVersion": "1.0.2",
            "root": { "path": "rootfs" },
            "process": {
                "terminal": false, "user": { "uid": 0, "gid": 0 }, "cwd": "/",
                "env": environment(fast),
                "args": ["sh", "-c", format!("{{ {SCRIPT}; }} 2>&1")],
                "capabilities": sets, "noNewPrivileges": way.confined,
            },
            "mounts": self.mounts(way, &dir.join("rootfs")),
            "linux": linux(way),
        });
        fs::write(dir.join("config.json"), config.to_string()).expect("write");
        if way.users {
            for place in ["", "rootfs"] {
                chown(&dir.join(place), 100_000);
            }
        }
        dir
    }

    /// The host's programs, the lane's run directory and the part of the lane.
    fn mounts(&self, way: Way, rootfs: &Path) -> Vec<Value> {
        let bind = |source: &Path, at: &str, option: &str| {
            json!({ "destination": at, "type": "bind", "source": source,
                    "options": ["rbind", "nosuid", "nodev", option] })
        };
        let mut mounts = vec![
            json!({ "destination": "/proc", "type": "proc", "source": "proc" }),
            json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                    "options": ["nosuid", "mode=755"] }),
        ];
        for place in ["usr", "etc", "bin", "lib", "lib64", "sbin"] {
            let host = Path::new("/").join(place);
            match fs::read_link(&host) {
                Ok(target) => {
                    std::os::unix::fs::symlink(target, rootfs.join(place)).expect("link");
                }
                Err(_) if host.exists() => mounts.push(bind(&host, text(&host), "ro")),
                Err(_) => {}
            }
        }
        mounts.push(bind(Path::new(self.env["run"].as_str().expect("run")), "/lane-run", "ro"));
        let option = if way.read_only { "ro" } else { "rw" };
        mounts.push(bind(&self.at.join(way.part), "/data", option));
        mounts
    }

    /// What the program says in a container.
    fn says(&self, runtime: &str, way: Way, fast: bool) -> Result<String, String> {
        self.furnish(way);
        let bundle = self.bundle(way, fast);
        let name = format!("polylane-test-{}-{}", std::process::id(), u8::from(fast));
        let state = self.host.path("state");
        let output = runtime_command(runtime)
            .args(["--root", text(&state), "run", "--bundle", text(&bundle), &name])
            .output()
            .expect(runtime);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(said),
            false => Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// The lane's name in its pool.
    fn name(&self) -> String {
        let mount = &self.host.mounts()[0];
        format!("{}@{}", mount["pool"].as_str().expect("a name"), mount["service"])
    }

    /// Requests so far, and bytes written by them.
    fn requests(&self) -> (u64, u64) {
        let stats = succeeds(&["stats", "--json", "--pool", &self.name()]);
        let stats: Value = serde_json::from_str(&stats).expect("JSON");
        let fast = &stats[0]["service"]["shared_memory"];
        let number = |of: &str| fast[of].as_u64().expect("a number");
        (number("requests"), number("written_bytes"))
    }
}

/// With the library or without.
fn environment(fast: bool) -> Vec<&'static str> {
    let mut env = vec!["PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL=C"];
    if fast {
        env.push("LD_PRELOAD=/lane-run/libpolylane.so");
        env.push("POLYLANE_MOUNT=/data");
        env.push("POLYLANE_RUN=/lane-run:/data");
        env.push("POLYLANE_PATIENCE=0");
    }
    env
}

/// Namespaces and what the program may.
fn linux(way: Way) -> Value {
    let mut namespaces = vec!["pid", "mount", "ipc", "uts"];
    let mut linux = json!({});
    if way.users {
        namespaces.push("user");
        let map = json!([{ "containerID": 0, "hostID": 100_000, "size": 65_536 }]);
        linux["uidMappings"] = map.clone();
        linux["gidMappings"] = map;
    }
    linux["namespaces"] = namespaces.iter().map(|kind| json!({ "type": kind })).collect();
    if way.confined {
        linux["seccomp"] = json!({
            "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [{ "names": ["kexec_load", "add_key"], "action": "SCMP_ACT_ERRNO" }],
        });
    }
    linux
}

fn chown(path: &Path, owner: u32) {
    std::os::unix::fs::lchown(path, Some(owner), Some(owner)).expect("chown");
}

/// Where hosts with control groups of both versions have the second ones.
const UNIFIED: &str = "/sys/fs/cgroup/unified";

/// A runtime. crun 1.8 refuses hosts with control groups of both versions: it sees one without the
/// second ones.
fn runtime_command(runtime: &str) -> Command {
    if runtime != "crun" || !Path::new(UNIFIED).exists() {
        return Command::new(runtime);
    }
    let script = format!("umount -l {UNIFIED} && exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-c", &script, runtime]);
    command
}

/// A container that does nothing: what a runtime cannot do here it says.
fn cannot(runtime: &str, lane: &Lane) -> Option<String> {
    lane.says(runtime, Way::default(), false).err()
}

#[test]
fn containers_see_the_same_by_both_doors() {
    let name = "containers_see_the_same_by_both_doors";
    if unavailable(name) || polylane_tests::pool::no_library(name) {
        return;
    }
    let mut tried = 0;
    for runtime in RUNTIMES {
        if lacks(name, &[runtime]) {
            continue;
        }
        let lane = Lane::new();
        if let Some(why) = cannot(runtime, &lane) {
            polylane_tests::skip(name, &format!("{runtime}: {why}"));
            continue;
        }
        // crun 1.8 leaves what is mounted below a bind mount out where there is a user namespace:
        // the library in the run directory is a mount.
        for way in WAYS.into_iter().filter(|way| runtime != "crun" || !way.users) {
            let slow =
                lane.says(runtime, way, false).unwrap_or_else(|why| panic!("{way:?}: {why}"));
            let before = lane.requests();
            let fast = lane.says(runtime, way, true).unwrap_or_else(|why| panic!("{way:?}: {why}"));
            assert_eq!(fast, slow, "library against FUSE: {runtime}, {way:?}");
            let after = lane.requests();
            assert!(after.0 > before.0, "no session: {runtime}, {way:?}: {fast}");
            assert_eq!(after.1 > before.1, !way.read_only, "written: {runtime}, {way:?}: {fast}");
            assert!(slow.contains("inside\n"), "{way:?}: {slow}");
            assert_eq!(slow.contains("Read-only file system"), way.read_only, "{way:?}: {slow}");
            tried += 1;
        }
        succeeds(&["umount", text(&lane.at)]);
        lane.host.assert_nothing_is_left();
    }
    println!("{tried} containers");
}

/// Engines with an interface of their own, and what each is started by.
const ENGINES: [(&str, &[&str]); 4] = [
    ("podman", &["podman"]),
    ("containerd", &["containerd", "ctr"]),
    ("lxc", &["lxc-execute"]),
    ("nspawn", &["systemd-nspawn"]),
];

/// A container of one of [`ENGINES`]: the host's programs, the run directory, a part of the lane.
struct Engine<'a> {
    name: &'a str,
    lane: &'a Lane,
    root: PathBuf,
    /// A daemon that takes commands, where the engine has one.
    _daemon: Option<Daemon>,
}

impl<'a> Engine<'a> {
    fn new(name: &'a str, lane: &'a Lane) -> Engine<'a> {
        let root = lane.host.dir(&format!("{name}-root"));
        for place in ["data", "proc", "dev", "sys", "tmp", "run", "etc", "usr", "lane-run", "root"]
        {
            fs::create_dir_all(root.join(place)).expect("mkdir");
        }
        for place in ["bin", "lib", "lib64", "sbin"] {
            if let Ok(target) = fs::read_link(Path::new("/").join(place)) {
                std::os::unix::fs::symlink(target, root.join(place)).expect("link");
            }
        }
        for file in ["passwd", "group", "ld.so.cache"] {
            let _ = fs::copy(Path::new("/etc").join(file), root.join("etc").join(file));
        }
        // What nspawn takes for a root file system.
        fs::write(root.join("etc/os-release"), "ID=test\n").expect("write");
        let mut engine = Engine { name, lane, root, _daemon: None };
        if name == "containerd" {
            engine._daemon = Some(engine.containerd());
        }
        engine
    }

    fn place(&self, name: &str) -> PathBuf {
        self.lane.host.path(&format!("{}-{name}", self.name))
    }

    fn containerd(&self) -> Daemon {
        Daemon::new(&self.place("all"), &self.place("config.toml"), &self.place("socket"))
    }

    /// What is mounted in the container, at which path, and whether read-only.
    fn mounts(&self, way: Way) -> [(PathBuf, &'static str, bool); 3] {
        let run = PathBuf::from(self.lane.env["run"].as_str().expect("run"));
        [
            (PathBuf::from("/usr"), "usr", true),
            (run, "lane-run", true),
            (self.lane.at.join(way.part), "data", way.read_only),
        ]
    }

    fn command(&self, way: Way, fast: bool) -> Command {
        let inside = Inside {
            env: environment(fast),
            script: format!("{{ {SCRIPT}; }} 2>&1"),
            id: format!("polylane-test-{}-{}", std::process::id(), u8::from(fast)),
            mounts: self.mounts(way),
        };
        let mut command = match self.name {
            "podman" => self.in_podman(&inside),
            "containerd" => self.in_containerd(&inside),
            "lxc" => self.in_lxc(&inside),
            _ => self.in_nspawn(&inside),
        };
        command.stdin(Stdio::null());
        command
    }

    fn in_podman(&self, inside: &Inside) -> Command {
        let mut command = Command::new("podman");
        for (option, dir) in [("--root", "all"), ("--runroot", "state")] {
            command.arg(option).arg(self.place(dir));
        }
        // Its own choice may be one that this host's control groups are not for.
        if polylane_tests::tool("runc").is_some() {
            command.args(["--runtime", "runc"]);
        }
        command.args(["--cgroup-manager", "cgroupfs", "run", "--rm", "--network", "none"]);
        command.args(["--ulimit", "nofile=999:999"]);
        command.args(["--ulimit", "nproc=999:999"]);
        for (source, at, option) in inside.mounts() {
            command.arg(format!("-v={source}:/{at}:{option}"));
        }
        command.args(inside.env.iter().map(|variable| format!("--env={variable}")));
        command.arg("--rootfs").arg(&self.root).args(["sh", "-c", &inside.script]);
        command
    }

    fn in_containerd(&self, inside: &Inside) -> Command {
        let mut command = Command::new("ctr");
        command.arg("--address").arg(self.place("socket")).args(["run", "--rm"]);
        for (source, at, option) in inside.mounts() {
            command.arg("--mount");
            command.arg(format!("type=bind,src={source},dst=/{at},options=rbind:{option}"));
        }
        command.args(inside.env.iter().map(|variable| format!("--env={variable}")));
        command.arg("--rootfs").arg(&self.root);
        command.args([&inside.id, "/bin/sh", "-c", &inside.script]);
        command
    }

    fn in_lxc(&self, inside: &Inside) -> Command {
        let config = self.place("config");
        let mut text = format!(
            "lxc.uts.name = {}\nlxc.rootfs.path = dir:{}\nlxc.rootfs.mount = {}\n\
             lxc.net.0.type = empty\nlxc.mount.auto = proc:mixed\nlxc.autodev = 1\n",
            inside.id,
            self.root.display(),
            self.place("rootfs").display()
        );
        fs::create_dir_all(self.place("rootfs")).expect("mkdir");
        for (source, at, option) in inside.mounts() {
            text += &format!("lxc.mount.entry = {source} {at} none rbind,{option} 0 0\n");
        }
        for variable in &inside.env {
            text += &format!("lxc.environment = {variable}\n");
        }
        fs::write(&config, text).expect("write");
        let mut command = Command::new("lxc-execute");
        command.arg("-P").arg(self.lane.host.path("")).args(["-n", &inside.id, "-f"]);
        command.arg(config).args(["--", "/bin/sh", "-c", &inside.script]);
        command
    }

    fn in_nspawn(&self, inside: &Inside) -> Command {
        let mut command = Command::new("systemd-nspawn");
        command.args(["--quiet", "--register=no", "--keep-unit", "--as-pid2"]);
        command.arg("--console=pipe");
        command.args(["--machine", &inside.id, "--resolv-conf=off", "--timezone=off"]);
        for (source, at, option) in inside.mounts() {
            let bind = if option == "ro" { "--bind-ro" } else { "--bind" };
            command.arg(format!("{bind}={source}:/{at}"));
        }
        command.args(inside.env.iter().map(|variable| format!("--setenv={variable}")));
        command.arg("-D").arg(&self.root).args(["/bin/sh", "-c", &inside.script]);
        command
    }

    /// What the program says in a container.
    fn says(&self, way: Way, fast: bool) -> Result<String, String> {
        self.lane.furnish(way);
        let output = self.command(way, fast).output().expect(self.name);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(said),
            false => Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// What a container is to have and to do.
struct Inside {
    env: Vec<&'static str>,
    script: String,
    id: String,
    /// What is mounted, at which path, and whether read-only.
    mounts: [(PathBuf, &'static str, bool); 3],
}

impl Inside {
    /// What is mounted, at which path, and with which option.
    fn mounts(&self) -> impl Iterator<Item = (std::path::Display<'_>, &'static str, &'static str)> {
        let option = |read_only: bool| if read_only { "ro" } else { "rw" };
        self.mounts
            .iter()
            .map(move |(source, at, read_only)| (source.display(), *at, option(*read_only)))
    }
}

/// A containerd of the test's own. Dropped, it has ended.
struct Daemon(Child);

impl Daemon {
    /// With all that it keeps in the directory `root`.
    fn new(root: &Path, config: &Path, socket: &Path) -> Daemon {
        let text = format!(
            "version = 2\nroot = {root:?}\nstate = {:?}\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\", \
             \"io.containerd.internal.v1.opt\"]\n[grpc]\naddress = {socket:?}\n",
            socket.with_extension("state"),
        );
        fs::write(config, text).expect("write");
        let mut command = Command::new("containerd");
        command.arg("--config").arg(config).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let daemon = Daemon(child.expect("containerd"));
        until("containerd listens", || {
            let mut command = Command::new("ctr");
            command.arg("--address").arg(socket).arg("version");
            command.output().is_ok_and(|output| output.status.success())
        });
        daemon
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// podman, containerd, LXC and nspawn, each with its own confinement.
#[test]
fn engines_see_the_same_by_both_doors() {
    let name = "engines_see_the_same_by_both_doors";
    if unavailable(name) || polylane_tests::pool::no_library(name) {
        return;
    }
    for (engine, programs) in ENGINES {
        if lacks(name, programs) {
            continue;
        }
        let lane = Lane::new();
        let engine = Engine::new(engine, &lane);
        if let Err(why) = engine.says(Way::default(), false) {
            polylane_tests::skip(name, &format!("{}: {}", engine.name, why.trim()));
            continue;
        }
        for way in WAYS.into_iter().filter(|way| !way.users && !way.confined) {
            let shown = format!("{}, {way:?}", engine.name);
            let slow = engine.says(way, false).unwrap_or_else(|why| panic!("{shown}: {why}"));
            let before = lane.requests();
            let fast = engine.says(way, true).unwrap_or_else(|why| panic!("{shown}: {why}"));
            assert_eq!(fast, slow, "library against FUSE: {shown}");
            let after = lane.requests();
            assert!(after.0 > before.0, "no session: {shown}: {fast}");
            assert_eq!(after.1 > before.1, !way.read_only, "written: {shown}: {fast}");
            assert!(slow.contains("inside\n"), "{shown}: {slow}");
            assert_eq!(slow.contains("Read-only file system"), way.read_only, "{shown}: {slow}");
        }
        drop(engine);
        succeeds(&["umount", text(&lane.at)]);
        lane.host.assert_nothing_is_left();
    }
}

/// A root file system of one program, which tells that it runs and writes a file.
fn image_tree(dir: &Path) -> PathBuf {
    let source = dir.join("hello.c");
    let text = "#include <stdio.h>\nint main(void) { FILE *f = fopen(\"/made\", \"w\"); \
                return f == NULL || fputs(\"x\", f) < 0 || fclose(f) || puts(\"hello\") < 0; }\n";
    fs::write(&source, text).expect("write");
    let tree = dir.join("tree");
    for place in ["bin", "proc", "dev", "sys", "tmp", "run", "etc"] {
        fs::create_dir_all(tree.join(place)).expect("mkdir");
    }
    let mut gcc = Command::new("gcc");
    let output = gcc.args(["-O2", "-static", "-o"]).arg(tree.join("bin/hello")).arg(&source);
    assert!(output.status().expect("gcc").success());
    tree
}

/// podman with all that it keeps in a directory, by a storage driver, on a root file system. Its
/// arguments up to the command's words.
fn podman_at(graph: &Path, driver: &str) -> Vec<String> {
    let mut words = vec!["podman".to_string()];
    let places = [("--root", "all"), ("--runroot", "state"), ("--tmpdir", "tmp")];
    for (option, place) in places {
        words.extend([option.to_string(), graph.join(place).display().to_string()]);
    }
    words.extend(["--storage-driver", driver, "--cgroup-manager", "cgroupfs"].map(str::to_string));
    if polylane_tests::tool("runc").is_some() {
        words.extend(["--runtime", "runc"].map(str::to_string));
    }
    words
}

const RUN: [&str; 7] = [
    "run",
    "--rm",
    "--network=none",
    "--ulimit=nofile=999:999",
    "--ulimit=nproc=999:999",
    "--security-opt=seccomp=unconfined",
    "--pull=never",
];

/// What a command says, started by another one.
fn said_by(words: &[String], by: &[&str]) -> Result<String, String> {
    let all: Vec<&str> = by.iter().copied().chain(words.iter().map(String::as_str)).collect();
    let mut command = Command::new(all[0]);
    let output = command.args(&all[1..]).stdin(Stdio::null()).output().expect("podman");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    match output.status.success() {
        true => Ok(said),
        false => Err(format!("{all:?}: {said}{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Images, their layers and containers of podman on a lane: its storage, by each driver; a root
/// file system, and one under an overlay; and all of that as COMMAND of a run.
#[test]
fn images_and_containers_of_podman_live_on_a_lane() {
    let name = "images_and_containers_of_podman_live_on_a_lane";
    if unavailable(name) || lacks(name, &["podman", "gcc", "tar"]) {
        return;
    }
    let lane = Lane::new();
    let tree = image_tree(&lane.host.path(""));
    let tar = lane.host.path("image.tar");
    let packed = Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(&tree).arg(".").status();
    assert!(packed.expect("tar").success());
    let with = |graph: &Path, driver: &str, more: &[&str]| -> Vec<String> {
        let words = podman_at(graph, driver).into_iter();
        words.chain(more.iter().map(|word| word.to_string())).collect()
    };
    let whole = |graph: &Path, driver: &str, by: &[&str]| -> Result<(), String> {
        said_by(&with(graph, driver, &["import", text(&tar), "hello:1"]), by)?;
        let said =
            said_by(&with(graph, driver, &[&RUN[..], &["hello:1", "/bin/hello"]].concat()), by)?;
        assert_eq!(said, "hello\n", "{driver}");
        said_by(&with(graph, driver, &["rmi", "hello:1"]), by).map(drop)
    };
    // What podman cannot do on this host's own files says nothing of lanes.
    for driver in ["vfs", "overlay"] {
        let host = lane.host.dir(&format!("graph-{driver}"));
        if let Err(why) = whole(&host, driver, &[]) {
            polylane_tests::skip(name, &format!("{driver}: {}", why.trim()));
            continue;
        }
        let graph = lane.at.join(driver);
        whole(&graph, driver, &[]).unwrap_or_else(|why| panic!("on a lane: {why}"));
        // In a run: the storage on its lane, which is gone with it.
        let words = with(Path::new("/lane/graph"), driver, &["import", text(&tar), "hello:1"]);
        let run = with(
            Path::new("/lane/graph"),
            driver,
            &[&RUN[..], &["hello:1", "/bin/hello"]].concat(),
        );
        let script = format!("{} >/dev/null && {}", words.join(" "), run.join(" "));
        let binary = polylane_tests::binary();
        let by = [text(&binary), "run", "--mem", "--", "sh", "-c"];
        let said = said_by(&[script], &by).unwrap_or_else(|why| panic!("in a run: {why}"));
        assert_eq!(said, "hello\n", "{driver}");
    }
    let host = lane.host.path("graph-vfs");
    // A root file system on the lane, written to, and under an overlay, which is not.
    let root = lane.at.join("root");
    let copied = Command::new("cp").arg("-a").arg(&tree).arg(&root).status();
    assert!(copied.expect("cp").success());
    for (option, made) in [(":O", false), ("", true)] {
        let rootfs = format!("{}{option}", root.display());
        let more = [&RUN[..RUN.len() - 1], &["--rootfs", &rootfs, "/bin/hello"]].concat();
        match said_by(&with(&host, "vfs", &more), &[]) {
            Ok(said) => assert_eq!(said, "hello\n"),
            Err(why) if option == ":O" => {
                polylane_tests::skip(name, &format!("overlay: {}", why.trim()));
            }
            Err(why) => panic!("{why}"),
        }
        assert_eq!(root.join("made").exists(), made, "{option}");
    }
    succeeds(&["umount", text(&lane.at)]);
    lane.host.assert_nothing_is_left();
}

/// An archive as `docker save` writes it, of one layer, called `hello:1`.
fn docker_archive(dir: &Path, tree: &Path) -> PathBuf {
    let files = dir.join("archive");
    fs::create_dir_all(&files).expect("mkdir");
    let (layer, archive) = (files.join("layer.tar"), dir.join("archive.tar"));
    let tar = |file: &Path, from: &Path, what: &str| {
        let mut tar = Command::new("tar");
        tar.arg("-cf").arg(file).arg("-C").arg(from).arg(what);
        assert!(tar.status().expect("tar").success());
    };
    tar(&layer, tree, ".");
    let sum = Command::new("sha256sum").arg(&layer).output().expect("sha256sum");
    let sum = String::from_utf8(sum.stdout).expect("UTF-8");
    let digest = format!("sha256:{}", sum.split_whitespace().next().expect("a sum"));
    let config = json!({ "architecture": "amd64", "os": "linux", "config": {},
                         "rootfs": { "type": "layers", "diff_ids": [digest] } });
    let tag = "docker.io/library/hello:1";
    let manifest = json!([{ "Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"] }]);
    fs::write(files.join("config.json"), config.to_string()).expect("write");
    fs::write(files.join("manifest.json"), manifest.to_string()).expect("write");
    tar(&archive, &files, ".");
    archive
}

/// All that containerd keeps is on a lane: its database, images from an archive, the snapshots of
/// containers by each snapshotter. What it keeps outlives it and an upgrade of the service.
#[test]
fn images_and_containers_of_containerd_live_on_a_lane() {
    let name = "images_and_containers_of_containerd_live_on_a_lane";
    let programs = ["containerd", "ctr", "runc", "gcc", "tar", "sha256sum"];
    if unavailable(name) || lacks(name, &programs) {
        return;
    }
    let lane = Lane::of(|host| {
        let volume = text(&host.path("v.img")).to_string();
        vec!["--size".to_string(), "1G".to_string(), volume]
    });
    let archive = docker_archive(&lane.host.path(""), &image_tree(&lane.host.path("")));
    let socket = lane.host.path("containerd-socket");
    let image = "docker.io/library/hello:1";
    let ctr = |words: &[&str]| {
        let words = words.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        said_by(&words, &["ctr", "--address", text(&socket)])
    };
    let start = |root: &Path| Daemon::new(root, &lane.host.path("config.toml"), &socket);
    let whole = |snapshotter: &str, id: &str| -> Result<String, String> {
        let by = ["--snapshotter", snapshotter];
        ctr(&[&["image", "import"], &by[..], &[text(&archive)]].concat())?;
        let run = [&["run", "--rm"], &by[..], &[image, id, "/bin/hello"]].concat();
        let said = ctr(&run)?;
        ctr(&run).map(|again| format!("{said}{again}"))
    };
    let id = format!("polylane-test-{}", std::process::id());
    // What containerd cannot do on this host's own files says nothing of lanes.
    let own = start(&lane.host.dir("own"));
    let can = |snapshotter: &&str| match whole(snapshotter, &id) {
        Ok(_) => true,
        Err(why) => {
            polylane_tests::skip(name, &format!("{snapshotter}: {}", why.trim()));
            false
        }
    };
    let usable: Vec<&str> = ["native", "overlayfs"].into_iter().filter(can).collect();
    drop(own);
    let root = lane.at.join("containerd");
    for snapshotter in &usable {
        let daemon = start(&root);
        let said = whole(snapshotter, &id).unwrap_or_else(|why| panic!("on a lane: {why}"));
        assert_eq!(said, "hello\nhello\n", "{snapshotter}");
        drop(daemon);
        succeeds(&["pool", "upgrade", &lane.name()]);
        let daemon = start(&root);
        let images = ctr(&["image", "ls", "-q"]).expect("its database");
        assert!(images.contains(image), "{snapshotter}: {images}");
        let run = ["run", "--rm", "--snapshotter", snapshotter, image, &id, "/bin/hello"];
        assert_eq!(ctr(&run).as_deref(), Ok("hello\n"), "{snapshotter}");
        drop(daemon);
    }
    succeeds(&["umount", text(&lane.at)]);
    lane.host.assert_nothing_is_left();
}

//! Two commands for one container, or for its image, at once: each does what it is to do, or says
//! in one line why not; nothing is left half made.

use std::fs;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use polylane_base::rng::Rng;
use polylane_tests::host::{Host, refusal, succeeded, text, until};
use polylane_tests::{lacks, unavailable};

/// What the container is before the two.
const STATES: [&str; 5] = ["none", "created", "running", "running", "exited"];

/// The commands; `OUT` is a file of each.
const ACTS: [&str; 16] = [
    "container start c",
    "container stop -t 0 c",
    "container kill c",
    "container rm c",
    "container rm -f c",
    "container exec c sh -c 'echo said'",
    "container logs c",
    "container create --name c busybox sleep 1000",
    "container run -d --name c busybox sleep 1000",
    "container run --rm busybox sh -c 'echo said'",
    "image diff c -o OUT",
    "image diff c --as new -o OUT",
    "image export busybox OUT",
    "image import ROOT busybox",
    "image rm busybox",
    "container inspect c",
];

/// Why a command may not do it.
const REASONS: [&str; 10] = [
    "no such container",
    "a container has that name",
    "runs already",
    "does not run",
    "ended meanwhile: try again",
    "runs: 'polylane container stop",
    "was never started",
    "uses it: 'polylane container rm",
    "no such image",
    "another command has",
];

const ROUNDS: usize = 60;

/// Between the begins of both, milliseconds: none is waited for.
const BETWEEN: [u64; 7] = [0, 0, 10, 30, 70, 150, 300];

struct Engine {
    host: Host,
}

impl Engine {
    fn new() -> Engine {
        let host = Host::new();
        host.dir("state");
        let root = host.dir("root");
        for place in ["bin", "etc"] {
            fs::create_dir(root.join(place)).expect("mkdir");
        }
        fs::copy("/usr/bin/busybox", root.join("bin/busybox")).expect("copy");
        for name in ["sh", "sleep"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).expect("link");
        }
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n").expect("write");
        Engine { host }
    }

    fn out(&self, number: usize) -> std::path::PathBuf {
        self.host.path(&format!("out-{number}"))
    }

    /// Begins an act, the first or the second.
    fn begin(&self, act: &str, number: usize) -> Child {
        let (front, script) = act.split_once(" '").unwrap_or((act, ""));
        let (root, out) = (self.host.path("root"), self.out(number));
        let word = |word| match word {
            "ROOT" => text(&root),
            "OUT" => text(&out),
            word => word,
        };
        let mut words: Vec<&str> = front.split(' ').map(word).collect();
        words.extend(script.strip_suffix('\''));
        let mut command = self.host.command(&words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("polylane")
    }

    fn act(&self, act: &str) -> Output {
        self.begin(act, 0).wait_with_output().expect("waits")
    }

    fn does(&self, act: &str) -> String {
        succeeded(&[act], &self.act(act))
    }

    fn ready(&self, state: &str) {
        if !self.does("image ls --json").contains("busybox") {
            self.does("image import ROOT busybox");
        }
        match state {
            "none" => {}
            "created" => drop(self.does("container create --name c busybox sleep 1000")),
            _ => drop(self.does("container run -d --name c busybox sleep 1000")),
        }
        if state == "exited" {
            self.does("container stop -t 0 c");
        }
    }

    /// What an act came to is right, or one line.
    fn judge(&self, about: &str, (act, number): (&str, usize), output: &Output) {
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            // Ended with its container by the other command.
            let killed = output.status.code() == Some(137) && output.stderr.is_empty();
            if killed && (act.contains(" exec ") || act.contains(" run ")) {
                return;
            }
            let (_, line) = refusal(&[about], output);
            assert!(REASONS.iter().any(|reason| line.contains(reason)), "{about}: {line}");
            return;
        }
        assert!(!act.contains("echo said") || said == "said\n", "{about}: {act}: {said}");
        if act.contains(" OUT") {
            let file = fs::File::open(self.out(number)).expect("what it wrote");
            for member in tar::Archive::new(file).entries().expect("members") {
                let mut member = member.unwrap_or_else(|error| panic!("{about}: {act}: {error}"));
                let read = std::io::copy(&mut member, &mut std::io::sink()).expect("its data");
                assert_eq!(read, member.size(), "{about}: {act}");
            }
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.act("container rm -f c");
    }
}

#[test]
fn two_commands_at_once_are_both_right() {
    let name = "two_commands_at_once_are_both_right";
    if unavailable(name) || lacks(name, &["runc", "busybox"]) {
        return;
    }
    let engine = Engine::new();
    engine.does("image import ROOT busybox");
    let can = engine.act("container run --rm busybox sh -c 'echo said'");
    if !can.status.success() {
        let why = String::from_utf8_lossy(&can.stderr).into_owned();
        // What a runtime cannot do on a host it says itself.
        assert!(why.contains("the runtime refuses"), "{why}");
        return polylane_tests::skip(name, &why);
    }
    let mut rng = Rng::new(28);
    for round in 0..ROUNDS {
        let mut one = |of: &[&'static str]| of[rng.below(of.len() as u64) as usize];
        let (state, acts) = (one(&STATES), [one(&ACTS), one(&ACTS)]);
        let between = Duration::from_millis(BETWEEN[rng.below(BETWEEN.len() as u64) as usize]);
        let about = format!("{round}: {state}, {acts:?}, {between:?} between");
        engine.ready(state);
        let first = engine.begin(acts[0], 0);
        std::thread::sleep(between);
        let second = engine.begin(acts[1], 1);
        let both = [first, second].map(|child| child.wait_with_output().expect("waits"));
        for (number, (act, output)) in acts.iter().zip(&both).enumerate() {
            engine.judge(&about, (act, number), output);
            let _ = fs::remove_file(engine.out(number));
        }
        let removed = engine.act("container rm -f c");
        if !removed.status.success() {
            let (_, line) = refusal(&[&about], &removed);
            assert!(line.contains("no such container"), "{about}: {line}");
        }
        until(&about, || engine.host.left_of_containers().is_empty());
    }
}

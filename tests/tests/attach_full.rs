//! An attached volume on a host file system that is full: a request without room fails alone, in
//! every cache mode, and the device goes on.

use std::process::Command;

use polylane_tests::binary;
use polylane_tests::nbd::{Client, FLUSH, FUA, READ, Request, TRIM, WRITE, WRITE_ZEROES};
use polylane_tests::step::{STEP_TIME_MAX, ended, good, output, sh};

const MIB: u32 = 1 << 20;
const ENOSPC: u32 = 28;
const NO_HOLE: u16 = 2;

/// The error of a request.
fn ask(client: &mut Client, kind: u16, flags: u16, offset: u64, length: u32) -> u32 {
    let data = vec![b'x'; if kind == WRITE { length as usize } else { 0 }];
    let mut answer = vec![0; if kind == READ { length as usize } else { 0 }];
    let request = Request { flags, ..Request::new(kind, (offset, length)) };
    client.ask(request, &data, &mut answer).expect("an answer")
}

/// A small file system in memory, unmounted at the end.
struct Small(tempfile::TempDir);

impl Small {
    fn new(size: &str) -> Small {
        let dir = tempfile::tempdir().expect("a directory");
        sh(&format!("mount -t tmpfs -o size={size} none {}", dir.path().display()));
        Small(dir)
    }

    fn polylane(&self, words: &[&str]) -> String {
        let mut command = Command::new(binary());
        command.args(words).env("XDG_STATE_HOME", self.0.path());
        good(&output(command, STEP_TIME_MAX, &format!("polylane {words:?}")))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let mut detach = Command::new(binary());
        detach.arg("detach").arg(self.0.path().join("v.img"));
        ended(detach.env("XDG_STATE_HOME", self.0.path()), STEP_TIME_MAX);
        ended(Command::new("umount").arg("-l").arg(self.0.path()), STEP_TIME_MAX);
    }
}

/// What the requests of a life on a full host get, with a durable write as the first one that finds
/// no room.
fn on_a_full_host(options: &[&str]) -> Vec<u32> {
    let small = Small::new("24M");
    let path = |name: &str| small.0.path().join(name).display().to_string();
    let (volume, socket) = (path("v.img"), path("s"));
    small.polylane(&["volume", "create", &volume, "--size", "64M", "--fs", "none"]);
    let attach = ["attach", &volume, "--via", "nbd", "--socket", &socket];
    small.polylane(&[&attach[..], options].concat());
    let mut client = Client::connect(&socket).expect("connect");
    let full =
        (0..60).map(|at| ask(&mut client, WRITE, FUA, at << 20, MIB)).find(|error| *error != 0);
    let mut answers = vec![full.unwrap_or(0)];
    answers.push(ask(&mut client, READ, 0, 0, 4096));
    answers.push(ask(&mut client, FLUSH, 0, 0, 0));
    answers.push(ask(&mut client, TRIM, 0, 0, 8 * MIB));
    answers.push(ask(&mut client, WRITE_ZEROES, FUA, 0, MIB));
    answers.push(ask(&mut client, WRITE, FUA, 40 << 20, 4096));
    answers.push(ask(&mut client, WRITE, FUA, (41 << 20) + 512, 1536));
    answers.push(ask(&mut client, FLUSH, 0, 0, 0));
    drop(client);
    small.polylane(&["detach", &volume]);
    answers
}

#[test]
fn a_durable_request_without_room_on_the_host_fails_alone() {
    for mode in ["none", "writeback", "writethrough", "directsync", "pdc"] {
        for store in ["host", "own"] {
            if matches!((mode, store), ("none" | "directsync", "own")) {
                continue;
            }
            let options = ["--cache", mode, "--cache-store", store];
            let options = if store == "host" { &options[..2] } else { &options[..] };
            let answers = on_a_full_host(options);
            assert_eq!(answers, [ENOSPC, 0, 0, 0, 0, 0, 0, 0], "{options:?}");
        }
    }
}

/// Zeros with `NO_HOLE` take the space that later writes there need, or say that there is none; of
/// a volume of one file and of one on a base.
#[test]
fn zeros_that_may_not_be_a_hole_have_space() {
    for (store, is_copy) in [("host", false), ("host", true), ("own", false)] {
        let small = Small::new("24M");
        let path = |name: &str| small.0.path().join(name).display().to_string();
        let (volume, socket) = (path("v.img"), path("s"));
        small.polylane(&["volume", "create", &volume, "--size", "64M", "--fs", "none"]);
        if is_copy {
            small.polylane(&["volume", "snapshot", &volume, &path("s.img")]);
        }
        let attach = ["attach", &volume, "--via", "nbd", "--socket", &socket];
        let cache = ["--cache", "writeback", "--cache-store", store];
        small.polylane(&[&attach[..], if store == "own" { &cache } else { &[] }].concat());
        let mut client = Client::connect(&socket).expect("connect");
        let place = 40 << 20;
        assert_eq!(ask(&mut client, WRITE_ZEROES, NO_HOLE, place, MIB), 0);
        let mut write = |offset| ask(&mut client, WRITE, FUA, offset, MIB);
        assert!((0..30).map(|at| write(at << 20)).any(|error| error == ENOSPC));
        assert_eq!(write(place), 0, "{store} {is_copy}");
        let refused = ask(&mut client, WRITE_ZEROES, NO_HOLE, 50 << 20, 4 * MIB);
        assert_eq!(refused, ENOSPC, "{store} {is_copy}");
        assert_eq!(ask(&mut client, WRITE_ZEROES, 0, 50 << 20, 4 * MIB), 0);
        drop(client);
        small.polylane(&["detach", &volume]);
    }
}

//! An attached volume on a host file system that is full: a request without room fails alone, in
//! every cache mode, and the device goes on.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use polylane_tests::binary;
use polylane_tests::step::{STEP_TIME_MAX, ended, good, output, sh};

const MIB: u32 = 1 << 20;
const ENOSPC: u32 = 28;

/// NBD commands, and the flag that makes a write durable.
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const ZERO: u16 = 6;
const FUA: u16 = 1;

/// A client of the oldest kind: simple replies, one request at a time.
struct Client(UnixStream);

impl Client {
    fn connect(path: &Path) -> Client {
        let stream = UnixStream::connect(path).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
        let mut client = Client(stream);
        client.get(18);
        client.put(&3u32.to_be_bytes());
        client.put(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
        client.get(10);
        client
    }

    fn get(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).expect("an answer");
        bytes
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("sent");
    }

    /// The error of a request.
    fn ask(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> u32 {
        let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&7u64.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        if kind == WRITE {
            bytes.resize(bytes.len() + length as usize, b'x');
        }
        self.put(&bytes);
        let answer = self.get(16);
        let error = u32::from_be_bytes([answer[4], answer[5], answer[6], answer[7]]);
        if kind == READ && error == 0 {
            self.get(length as usize);
        }
        error
    }
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
    let mut client = Client::connect(Path::new(&socket));
    let full = (0..60).map(|at| client.ask(WRITE, FUA, at << 20, MIB)).find(|error| *error != 0);
    let mut answers = vec![full.unwrap_or(0)];
    answers.push(client.ask(READ, 0, 0, 4096));
    answers.push(client.ask(FLUSH, 0, 0, 0));
    answers.push(client.ask(TRIM, 0, 0, 8 * MIB));
    answers.push(client.ask(ZERO, FUA, 0, MIB));
    answers.push(client.ask(WRITE, FUA, 40 << 20, 4096));
    answers.push(client.ask(WRITE, FUA, (41 << 20) + 512, 1536));
    answers.push(client.ask(FLUSH, 0, 0, 0));
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

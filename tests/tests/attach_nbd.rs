//! The NBD door of an attached volume before clients that ask what they should not: requests that
//! are no whole sectors, more connections than it serves, more at once than it takes, and answers
//! that nobody reads.

use std::thread;
use std::time::Duration;

use polylane_tests::attached::Attached;
use polylane_tests::nbd::{Client, FLUSH, READ, Request, TRIM, WRITE, WRITE_ZEROES};

const SIZE: u64 = 64 << 20;
/// Connections that the door serves at a time.
const SERVED_MAX: usize = 64;

const EINVAL: u32 = 22;

fn connect(socket: &str) -> std::io::Result<Client> {
    Client::connect(socket).inspect(|client| assert_eq!(client.size, SIZE))
}

fn flush(client: &mut Client) -> std::io::Result<u32> {
    client.ask(Request::new(FLUSH, (0, 0)), b"", &mut [])
}

fn attached(options: &[&str]) -> (Attached, String) {
    let attached = Attached::new("64M", &[]);
    let socket = attached.path("nbd");
    let attach = ["attach", "--via", "nbd", "--socket", &socket];
    attached.on_volume(&[&attach[..], options].concat());
    (attached, socket)
}

/// Every cache mode, in each store that it can have.
const CACHES: [&[&str]; 8] = [
    &["--cache", "none"],
    &["--cache", "directsync"],
    &["--cache", "writeback"],
    &["--cache", "writethrough"],
    &["--cache", "pdc"],
    &["--cache", "writeback", "--cache-store", "own"],
    &["--cache", "writethrough", "--cache-store", "own"],
    &["--cache", "pdc", "--cache-store", "own"],
];

/// What a connection is sent at once, more than it may have under way: requests, bytes of each.
const BURSTS: [(u64, u32); 4] = [(65, 4096), (129, 4096), (40, 1 << 20), (3, 16 << 20)];

#[test]
fn what_is_sent_at_once_is_answered_in_every_cache_mode() {
    thread::scope(|scope| {
        for cache in CACHES {
            scope.spawn(move || {
                let (_attached, socket) = attached(cache);
                for (count, bytes) in BURSTS {
                    let mut client = connect(&socket).expect("served");
                    for at in 0..count {
                        let offset = at * u64::from(bytes) % SIZE;
                        client.send(Request::new(READ, (offset, bytes))).expect("sent");
                    }
                    let mut read = vec![1; bytes as usize];
                    for _ in 0..count {
                        assert_eq!(client.answer(&mut read).expect("answered"), 0, "{cache:?}");
                        assert!(read.iter().all(|byte| *byte == 0), "{cache:?}");
                        read.fill(1);
                    }
                    client.leave().expect("leave");
                }
            });
        }
    });
}

#[test]
fn who_reads_no_answers_delays_nobody_in_any_cache_mode() {
    thread::scope(|scope| {
        for cache in CACHES {
            scope.spawn(move || {
                let (attached, socket) = attached(cache);
                let mut silent = connect(&socket).expect("served");
                for at in 0..48 {
                    silent.send(Request::new(READ, (at << 20, 1 << 20))).expect("sent");
                }
                let mut other = connect(&socket).expect("served");
                let data = [7; 4096];
                let write = Request::new(WRITE, (0, 4096));
                assert_eq!(other.ask(write, &data, &mut []).expect("answered"), 0, "{cache:?}");
                assert_eq!(flush(&mut other).expect("answered"), 0, "{cache:?}");
                // Each of these fails where it does not end in time.
                let snapshot = attached.path("snapshot");
                attached.polylane(&["volume", "snapshot", &text(&attached), &snapshot]);
                let mut read = [0; 4096];
                let back = Request::new(READ, (0, 4096));
                assert_eq!(other.ask(back, b"", &mut read).expect("answered"), 0, "{cache:?}");
                assert!(read == data, "{cache:?}");
                attached.on_volume(&["detach"]);
                drop(silent);
            });
        }
    });
}

fn text(attached: &Attached) -> String {
    attached.volume.display().to_string()
}

#[test]
fn requests_that_are_no_whole_sectors_are_refused_and_change_nothing() {
    let (_attached, socket) = attached(&[]);
    let mut client = connect(&socket).expect("served");
    let text = [7; 4096];
    assert_eq!(client.ask(Request::new(WRITE, (4096, 4096)), &text, &mut []).expect("answered"), 0);
    let wrong = [(4096, 1), (4096, 511), (4096, 513), (4097, 512), (4100, 1024), (4608, 1000)];
    for (offset, length) in wrong {
        let data = vec![9; length as usize];
        for kind in [READ, WRITE, TRIM, WRITE_ZEROES] {
            // What follows a write is skipped, or the next request would not be found.
            let data = if kind == WRITE { &data[..] } else { b"" };
            let error =
                client.ask(Request::new(kind, (offset, length)), data, &mut []).expect("answered");
            assert_eq!(error, EINVAL, "{kind} {offset} {length}");
        }
        let mut read = [0; 4096];
        assert_eq!(
            client.ask(Request::new(READ, (4096, 4096)), b"", &mut read).expect("answered"),
            0
        );
        assert!(read == text, "{offset} {length}");
    }
    client.leave().expect("leave");
}

#[test]
fn connections_beyond_those_that_are_served_are_closed_and_harm_no_other() {
    let (_attached, socket) = attached(&[]);
    let serve = || connect(&socket).expect("served");
    let mut served: Vec<Client> = (0..SERVED_MAX).map(|_| serve()).collect();
    for client in &mut served {
        assert_eq!(flush(client).expect("served"), 0);
    }
    for _ in 0..3 {
        let refused = connect(&socket).and_then(|mut client| flush(&mut client));
        assert!(refused.is_err(), "one more than are served");
    }
    for client in &mut served {
        assert_eq!(flush(client).expect("served"), 0);
    }
    served.swap_remove(9).leave().expect("leave");
    served.pop().expect("a client").leave().expect("leave");
    // Their threads end a moment later.
    let again = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let client = connect(&socket).and_then(|mut client| {
            let error = flush(&mut client)?;
            Ok((client, error))
        });
        client.is_ok_and(|(client, error)| {
            served.push(client);
            error == 0
        })
    });
    assert!(again, "there is room for one more");
    for client in served {
        client.leave().expect("leave");
    }
}

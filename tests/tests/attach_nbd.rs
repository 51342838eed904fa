//! The NBD door of an attached volume before clients that ask what they should not: requests that
//! are no whole sectors, and more connections than it serves.

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

fn attached() -> (Attached, String) {
    let attached = Attached::new("64M", &[]);
    let socket = attached.path("nbd");
    attached.on_volume(&["attach", "--via", "nbd", "--socket", &socket]);
    (attached, socket)
}

#[test]
fn requests_that_are_no_whole_sectors_are_refused_and_change_nothing() {
    let (_attached, socket) = attached();
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
    let (_attached, socket) = attached();
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

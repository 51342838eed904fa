//! The NBD door of an attached volume before clients that ask what they should not: requests that
//! are no whole sectors, and more connections than it serves.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use polylane_tests::attached::Attached;

const SIZE: u64 = 64 << 20;
/// Connections that the door serves at a time.
const SERVED_MAX: usize = 64;

const READ: u16 = 0;
const WRITE: u16 = 1;
const DISCONNECT: u16 = 2;
const FLUSH: u16 = 3;
const TRIM: u16 = 4;
const WRITE_ZEROES: u16 = 6;

const EINVAL: u32 = 22;

/// A client of the protocol's oldest kind: `NBD_OPT_EXPORT_NAME`, simple replies.
struct Client(UnixStream);

impl Client {
    fn connect(socket: &str) -> std::io::Result<Client> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let (mut greeting, mut told) = ([0; 18], [0; 10]);
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // No padding after the size; the export without a name.
        stream.write_all(&3u32.to_be_bytes())?;
        stream.write_all(&[&b"IHAVEOPT"[..], &1u32.to_be_bytes(), &0u32.to_be_bytes()].concat())?;
        stream.read_exact(&mut told)?;
        assert_eq!(told[..8], SIZE.to_be_bytes());
        Ok(Client(stream))
    }

    /// The error of a request; `data` follows it, and `answer` is filled where there is none.
    fn ask(
        &mut self,
        kind: u16,
        (offset, length): (u64, u32),
        data: &[u8],
        answer: &mut [u8],
    ) -> std::io::Result<u32> {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&7u64.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.extend_from_slice(data);
        self.0.write_all(&bytes)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        assert_eq!(reply[8..], 7u64.to_be_bytes());
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("four"));
        if error == 0 {
            self.0.read_exact(answer)?;
        }
        Ok(error)
    }

    fn flush(&mut self) -> std::io::Result<u32> {
        self.ask(FLUSH, (0, 0), b"", &mut [])
    }

    fn leave(mut self) {
        let mut bytes = 0x2560_9513_u32.to_be_bytes().to_vec();
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&DISCONNECT.to_be_bytes());
        bytes.extend_from_slice(&[0; 20]);
        self.0.write_all(&bytes).expect("leave");
    }
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
    let mut client = Client::connect(&socket).expect("served");
    let text = [7; 4096];
    assert_eq!(client.ask(WRITE, (4096, 4096), &text, &mut []).expect("answered"), 0);
    let wrong = [(4096, 1), (4096, 511), (4096, 513), (4097, 512), (4100, 1024), (4608, 1000)];
    for (offset, length) in wrong {
        let data = vec![9; length as usize];
        for kind in [READ, WRITE, TRIM, WRITE_ZEROES] {
            // What follows a write is skipped, or the next request would not be found.
            let data = if kind == WRITE { &data[..] } else { b"" };
            let error = client.ask(kind, (offset, length), data, &mut []).expect("answered");
            assert_eq!(error, EINVAL, "{kind} {offset} {length}");
        }
        let mut read = [0; 4096];
        assert_eq!(client.ask(READ, (4096, 4096), b"", &mut read).expect("answered"), 0);
        assert!(read == text, "{offset} {length}");
    }
    client.leave();
}

#[test]
fn connections_beyond_those_that_are_served_are_closed_and_harm_no_other() {
    let (_attached, socket) = attached();
    let connect = || Client::connect(&socket).expect("served");
    let mut served: Vec<Client> = (0..SERVED_MAX).map(|_| connect()).collect();
    for client in &mut served {
        assert_eq!(client.flush().expect("served"), 0);
    }
    for _ in 0..3 {
        let refused = Client::connect(&socket).and_then(|mut client| client.flush());
        assert!(refused.is_err(), "one more than are served");
    }
    for client in &mut served {
        assert_eq!(client.flush().expect("served"), 0);
    }
    served.swap_remove(9).leave();
    served.pop().expect("a client").leave();
    // Their threads end a moment later.
    let again = (0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        let client = Client::connect(&socket).and_then(|mut client| {
            let error = client.flush()?;
            Ok((client, error))
        });
        client.is_ok_and(|(client, error)| {
            served.push(client);
            error == 0
        })
    });
    assert!(again, "there is room for one more");
    served.into_iter().for_each(Client::leave);
}

//! The server over a socket pair: a small client of our own, and clients that do not behave.

use std::io::{ErrorKind, Read, Write};

use polylane_base::rng::Rng;
use polylane_block::ram::RamDevice;

use super::protocol::{Transmission, cmd, opt, rep};
use super::*;

const SIZE: u64 = 1 << 20;

fn export() -> Export {
    Export { name: "disk".to_string(), device: Arc::new(RamDevice::new(SIZE / 512)), ends: false }
}

/// A client's side, and the server's thread.
fn connect(export: Export) -> (UnixStream, thread::JoinHandle<io::Result<()>>) {
    let (ours, theirs) = UnixStream::pair().expect("pair");
    let server = thread::spawn(move || {
        let Some(agreed) = handshake::negotiate(&mut &theirs, &export)? else { return Ok(()) };
        let stop = Bell::new().map_err(io::Error::from)?;
        session::transmit(&theirs, &export.device, agreed, &stop).map(drop)
    });
    (ours, server)
}

fn option(stream: &mut UnixStream, option: u32, data: &[u8]) {
    let mut bytes = protocol::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    stream.write_all(&bytes).expect("option");
}

fn option_reply(stream: &mut UnixStream) -> (u32, u32, Vec<u8>) {
    let mut header = [0; 20];
    stream.read_exact(&mut header).expect("reply");
    assert_eq!(header[..8], protocol::OPTION_REPLY_MAGIC.to_be_bytes());
    let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four"));
    let mut data = vec![0; word(16) as usize];
    stream.read_exact(&mut data).expect("data");
    (word(8), word(12), data)
}

fn greet(stream: &mut UnixStream) {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("greeting");
    assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
    stream.write_all(&3u32.to_be_bytes()).expect("flags");
}

/// A server at a path, which is there as long as its directory.
fn listen(export: Export) -> (tempfile::TempDir, std::path::PathBuf, Server) {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("socket");
    let listener = UnixListener::bind(&path).expect("socket");
    let server = serve(listener.into(), export).expect("server");
    (dir, path, server)
}

/// By the oldest option: replies are simple.
fn enter(stream: &mut UnixStream) {
    greet(stream);
    option(stream, opt::EXPORT_NAME, b"disk");
    let mut told = [0; 10];
    stream.read_exact(&mut told).expect("size");
    assert_eq!(told[..8], SIZE.to_be_bytes());
}

fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = protocol::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// Error and cookie.
fn simple_reply(stream: &mut UnixStream) -> (u32, u64) {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).expect("reply");
    assert_eq!(bytes[..4], protocol::SIMPLE_REPLY_MAGIC.to_be_bytes());
    let error = u32::from_be_bytes(bytes[4..8].try_into().expect("four"));
    (error, u64::from_be_bytes(bytes[8..].try_into().expect("eight")))
}

#[test]
fn what_is_written_is_read_and_refusals_keep_the_connection() {
    let (mut stream, server) = connect(export());
    enter(&mut stream);
    let mut bytes = request(cmd::WRITE, 1, 1, 4096, 1024);
    bytes.extend_from_slice(&[7; 1024]);
    // Past the end: its payload must be skipped for the next request to be found.
    bytes.extend_from_slice(&request(cmd::WRITE, 0, 2, SIZE, 512));
    bytes.extend_from_slice(&[8; 512]);
    bytes.extend_from_slice(&request(cmd::TRIM, 1, 3, 8192, 512));
    bytes.extend_from_slice(&request(99, 0, 4, 0, 512));
    stream.write_all(&bytes).expect("requests");
    let mut replies: Vec<_> = (0..4).map(|_| simple_reply(&mut stream)).collect();
    replies.sort_by_key(|(_, cookie)| *cookie);
    assert_eq!(replies, [(0, 1), (28, 2), (0, 3), (22, 4)]);
    stream.write_all(&request(cmd::READ, 0, 5, 4608, 1024)).expect("read");
    assert_eq!(simple_reply(&mut stream), (0, 5));
    let mut data = [9; 1024];
    stream.read_exact(&mut data).expect("data");
    assert!(data[..512].iter().all(|b| *b == 7) && data[512..].iter().all(|b| *b == 0));
    stream.write_all(&request(cmd::DISC, 0, 6, 0, 0)).expect("leave");
    server.join().expect("no panic").expect("in good order");
}

#[test]
fn options_are_answered_one_by_one() {
    let (mut stream, server) = connect(export());
    greet(&mut stream);
    let mut go = 6u32.to_be_bytes().to_vec();
    go.extend_from_slice(b"nobody\0\0");
    for (number, data, expected) in [
        (opt::LIST, &b""[..], vec![rep::SERVER, rep::ACK]),
        (opt::LIST, &b"x"[..], vec![rep::ERR_INVALID]),
        (77, &b"anything"[..], vec![rep::ERR_UNSUP]),
        (opt::SET_META_CONTEXT, &b"\0\0\0\0\0\0\0\0"[..], vec![rep::ERR_INVALID]),
        (opt::STRUCTURED_REPLY, &b""[..], vec![rep::ACK]),
        (opt::LIST_META_CONTEXT, &b"\0\0\0\0\0\0\0\0"[..], vec![rep::META_CONTEXT, rep::ACK]),
        (opt::LIST_META_CONTEXT, &b"\0\0\0\0\xff\xff\xff\xff"[..], vec![rep::ERR_INVALID]),
        (opt::INFO, &go[..], vec![rep::ERR_UNKNOWN]),
        (opt::INFO, &b"\xff\xff\xff\xff"[..], vec![rep::ERR_INVALID]),
        (opt::GO, &b"\0\0\0\0\0\0"[..], vec![rep::INFO, rep::INFO, rep::ACK]),
    ] {
        option(&mut stream, number, data);
        for kind in expected {
            let (echoed, got, _) = option_reply(&mut stream);
            assert_eq!((echoed, got), (number, kind));
        }
    }
    drop(stream);
    server.join().expect("no panic").expect("left");
}

#[test]
fn nonsense_ends_the_connection_and_nothing_else() {
    let mut rng = Rng::new(11);
    for round in 0..300 {
        let (mut stream, server) = connect(export());
        if round % 2 == 0 {
            enter(&mut stream);
        }
        let mut bytes = vec![0; 1 + rng.below(400) as usize];
        bytes.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
        // Half of them look right at first.
        if round % 4 == 0 {
            let kind = rng.below(12) as u16;
            let mut head = request(kind, rng.below(64) as u16, 1, rng.below(1 << 22), 512);
            head.extend_from_slice(&bytes);
            bytes = head;
        } else if round % 4 == 1 {
            let mut head = 3u32.to_be_bytes().to_vec();
            head.extend_from_slice(&protocol::OPTION_MAGIC.to_be_bytes());
            head.extend_from_slice(&(rng.below(12) as u32).to_be_bytes());
            head.extend_from_slice(&(rng.below(64) as u32).to_be_bytes());
            head.extend_from_slice(&bytes);
            bytes = head;
        }
        // The server may have left already.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        let _refused = server.join().expect("no panic");
    }
}

#[test]
fn a_server_ends_with_clients_that_do_nothing() {
    let (_dir, path, server) = listen(export());
    let mut one = UnixStream::connect(&path).expect("connect");
    enter(&mut one);
    one.write_all(&request(cmd::WRITE, 0, 1, 0, 4096)[..20]).expect("half a request");
    let mut other = UnixStream::connect(&path).expect("connect");
    greet(&mut other);
    Box::new(server).end();
    // Half a request that was not read when the server left is a reset.
    let ended = one.read(&mut [0; 16]);
    let is_reset = ended.as_ref().is_err_and(|why| why.kind() == ErrorKind::ConnectionReset);
    assert!(is_reset || matches!(ended, Ok(0)), "{ended:?}");
}

#[test]
fn the_kernels_client_gets_size_and_flags_and_ends_the_server() {
    let (_dir, path, server) = listen(Export { ends: true, ..export() });
    let connections = [(); 2].map(|()| client::connect(&path).expect("connect"));
    for connection in &connections {
        assert_eq!(connection.size_bytes, SIZE);
        let wanted = Transmission::SEND_FLUSH | Transmission::SEND_FUA;
        assert!(Transmission::from_bits_retain(connection.flags).contains(wanted));
    }
    let ended = |limit_ms: i64| {
        let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: limit_ms * 1_000_000 };
        let bell = server.ended().expect("it can end");
        let mut fds = [PollFd::from_borrowed_fd(bell, PollFlags::IN)];
        poll(&mut fds, Some(&limit)).expect("poll") == 1
    };
    let [mut first, mut last] = connections.map(|connection| connection.stream);
    let leave = request(cmd::DISC, 0, 0, 0, 0);
    first.write_all(&leave).expect("leave");
    assert_eq!(first.read(&mut [0]).expect("end"), 0);
    assert!(!ended(20), "there is another client");
    last.write_all(&leave).expect("leave");
    assert!((0..500).any(|_| ended(20)), "the last one has left");
    Box::new(server).end();
}

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends `requests` from a thread of its own, and counts the cookies of the simple replies.
fn ask_all(stream: &UnixStream, requests: &[(u16, u64, u32)]) -> Vec<u64> {
    let bytes: Vec<u8> = requests
        .iter()
        .enumerate()
        .flat_map(|(cookie, (kind, offset, length))| {
            let mut bytes = request(*kind, 0, cookie as u64, *offset, *length);
            let payload = if *kind == cmd::WRITE { *length } else { 0 };
            bytes.resize(bytes.len() + payload as usize, 7);
            bytes
        })
        .collect();
    let mut sender = stream.try_clone().expect("the same stream");
    let sending = thread::spawn(move || sender.write_all(&bytes).expect("requests"));
    let mut stream = stream.try_clone().expect("the same stream");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let mut answered = Vec::new();
    while answered.len() < requests.len() {
        let (error, cookie) = simple_reply(&mut stream);
        assert_eq!(error, 0, "request {cookie}");
        let (kind, _, length) = requests[cookie as usize];
        let data = if kind == cmd::READ { length } else { 0 };
        stream.read_exact(&mut vec![0; data as usize]).expect("data");
        answered.push(cookie);
    }
    sending.join().expect("sent");
    answered.sort_unstable();
    answered
}

#[test]
fn requests_beyond_the_limits_are_answered_as_there_is_room() {
    let mut rng = Rng::new(24);
    for round in 0..24 {
        let device = polylane_block::freeze::Freezable::new(Arc::new(RamDevice::new(SIZE / 512)));
        let export = Export { device: device.clone(), ..export() };
        let (mut stream, server) = connect(export);
        enter(&mut stream);
        let largest = if round % 2 == 0 { 8 } else { SIZE / 512 };
        let requests: Vec<(u16, u64, u32)> = (0..1 + rng.below(400))
            .map(|_| {
                let kinds = [cmd::READ, cmd::READ, cmd::WRITE, cmd::TRIM, cmd::FLUSH];
                let kind = kinds[rng.below(5) as usize];
                let sectors = 1 + rng.below(largest);
                let first = rng.below(SIZE / 512 - sectors + 1);
                (kind, first * 512, (sectors * 512) as u32)
            })
            .collect();
        // In some rounds the device takes nothing at first: its channel is full before ours.
        let frozen = (round % 3 == 0).then(|| device.freeze(PATIENCE).expect("freeze"));
        let thaw = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            drop(frozen);
        });
        let answered = ask_all(&stream, &requests);
        thaw.join().expect("thawed");
        assert!(answered.iter().copied().eq(0..requests.len() as u64), "round {round}");
        stream.write_all(&request(cmd::DISC, 0, 0, 0, 0)).expect("leave");
        server.join().expect("no panic").expect("in good order");
    }
}

#[test]
fn a_client_that_stops_reading_delays_neither_a_freeze_nor_the_end() {
    let device = polylane_block::freeze::Freezable::new(Arc::new(RamDevice::new(SIZE / 512)));
    let (_dir, path, server) = listen(Export { device: device.clone(), ..export() });
    let mut stream = UnixStream::connect(&path).expect("connect");
    enter(&mut stream);
    for cookie in 0..100 {
        stream.write_all(&request(cmd::READ, 0, cookie, 0, SIZE as u32)).expect("sent");
    }
    // It has begun to answer, and what is left does not fit into the socket.
    stream.read_exact(&mut [0]).expect("a first byte");
    drop(device.freeze(PATIENCE).expect("frozen beside it"));
    let begin = Instant::now();
    Box::new(server).end();
    assert!(begin.elapsed() < PATIENCE, "the end took {:?}", begin.elapsed());
    drop(stream);
}

#[test]
fn a_stopped_reader_is_told_apart_from_a_slow_one() {
    let (mut stream, server) = connect(export());
    enter(&mut stream);
    const REQUESTS: u64 = 300;
    let mut asking = stream.try_clone().expect("a socket");
    // Aside: a socket holds less than all the requests, while replies wait in the other one.
    let asks = thread::spawn(move || {
        for cookie in 0..REQUESTS {
            asking.write_all(&request(cmd::READ, 0, cookie, 0, 64 << 10)).expect("sent");
        }
    });
    // Slower than the server: replies wait, and all of them come.
    thread::sleep(Duration::from_millis(30));
    for number in 0..REQUESTS {
        if number % 50 == 0 {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(simple_reply(&mut stream).0, 0);
        stream.read_exact(&mut [0; 64 << 10]).expect("data");
    }
    asks.join().expect("all sent");
    stream.write_all(&request(cmd::DISC, 0, 0, 0, 0)).expect("leave");
    server.join().expect("no panic").expect("in good order");
}

#[test]
fn clients_that_say_nothing_keep_no_other_one_out() {
    let (_dir, path, server) = listen(export());
    let mut served = UnixStream::connect(&path).expect("connect");
    enter(&mut served);
    // Its handshake is over for the server, too, when a request is answered.
    served.write_all(&request(cmd::FLUSH, 0, 8, 0, 0)).expect("sent");
    assert_eq!(simple_reply(&mut served), (0, 8));
    let mut crowd: Vec<UnixStream> = Vec::new();
    for round in 0..3 {
        for number in 0..HANDSHAKES_MAX + 5 {
            let mut stream = UnixStream::connect(&path).expect("connect");
            // Some say half of what they should.
            if number % 3 == 0 {
                let _ = stream.write_all(&[0, 0]);
            }
            crowd.push(stream);
        }
        let mut stream = UnixStream::connect(&path).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        enter(&mut stream);
        stream.write_all(&request(cmd::READ, 0, round, 0, 512)).expect("sent");
        assert_eq!(simple_reply(&mut stream), (0, round));
    }
    served.write_all(&request(cmd::FLUSH, 0, 9, 0, 0)).expect("sent");
    assert_eq!(simple_reply(&mut served), (0, 9), "who is served already stays");
    Box::new(server).end();
}

/// Threads of connections that were ended may take a while, where all CPUs have work.
#[test]
fn who_comes_while_others_end_is_let_in_after_them() {
    let (_dir, path, server) = listen(export());
    let (ends, end) = UnixStream::pair().expect("pair");
    for number in 0..THREADS_MAX as u64 {
        let (shared, mut end) = (server.shared.clone(), end.try_clone().expect("a copy"));
        let (number, stream) = (u64::MAX - number, end.try_clone().expect("a copy"));
        let mut connections = server.shared.connections.lock();
        let thread = thread::spawn(move || {
            let _ = end.read(&mut [0]);
            shared.connections.lock().remove(&number);
        });
        connections.insert(number, Connection { stream, phase: Phase::Ending, thread });
    }
    let coming = thread::spawn(move || {
        let mut stream = UnixStream::connect(&path).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        enter(&mut stream);
    });
    // It waits, or is refused at once.
    thread::sleep(Duration::from_millis(100));
    assert!(!coming.is_finished(), "let in or out while there is no room");
    ends.shutdown(Shutdown::Both).expect("they end");
    coming.join().expect("let in");
    Box::new(server).end();
}

#[test]
fn a_handshake_has_a_limit_as_a_whole() {
    let (mut ours, theirs) = UnixStream::pair().expect("pair");
    let begin = Instant::now();
    let mut limited = Limited { stream: &theirs, end: begin + Duration::from_millis(300) };
    let dripping = thread::spawn(move || {
        // A byte in time for each wait, and never all of them.
        while ours.write_all(&[0]).is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
    });
    let mut bytes = [0; 1 << 16];
    assert!(limited.read_exact(&mut bytes).is_err());
    assert!(begin.elapsed() >= Duration::from_millis(300));
    drop(theirs);
    dripping.join().expect("ended");
}

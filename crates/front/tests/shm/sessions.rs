//! Sessions: many of them, limits, what outlives them, stopping under load.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use polylane_base::Errno;
use polylane_base::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use polylane_front::shm::{Config, Server};
use polylane_ipc::channel::client::Trusting;
use polylane_ipc::handshake::{HELLO_HEAD_BYTES, Hello, Welcome};
use polylane_ipc::message::{LockFlags, Message, Op, Status};
use polylane_ipc::{Geometry, QueueKind};
use polylane_sys::scm;

use crate::shm_kit::{Client, House, connect_as, lane, lock_message, wait_for};

#[test]
fn many_sessions_at_once_each_see_their_own() {
    for queue in QueueKind::ALL {
        let geometry = Geometry { queue, ..Geometry::default() };
        let config = Config { workers: vec![None, None], geometry, ..Config::default() };
        let house = House::with(config);
        let clients: Vec<Client> = (0..60).map(|_| house.client()).collect();
        std::thread::scope(|scope| {
            for (number, client) in clients.iter().enumerate() {
                scope.spawn(move || {
                    let handle = client.create(&format!("f{number}"));
                    for round in 0..50u64 {
                        let data = [number as u8; 3000];
                        assert_eq!(client.write(handle, round * 3000, &data), Ok(3000));
                        assert_eq!(client.read(handle, round * 3000, 3000).unwrap(), data);
                    }
                });
            }
        });
        assert_eq!(house.server.session_count(), 60);
        drop(clients);
        wait_for("all to leave", || house.server.session_count() == 0);
    }
}

#[test]
fn limits_are_an_answer() {
    let config = Config { sessions_max: 3, sessions_per_uid_max: 2, ..Config::default() };
    let house = House::with(config);
    let (_a, b) = (house.client(), house.client());
    assert_eq!(Client::connect(&house.socket).err(), Some(Errno::EAGAIN));
    drop(b);
    wait_for("room", || Client::connect(&house.socket).is_ok());
}

/// The 65th silent connection of a user is refused, and a second later there is room again.
#[test]
fn silent_connections_of_a_user_are_few_and_short() {
    let house = House::new();
    let begun = Instant::now();
    let silent: Vec<_> = (0..64).map(|_| scm::connect(&house.socket).unwrap()).collect();
    let one_more = Client::connect(&house.socket).err();
    if begun.elapsed() < Duration::from_millis(800) {
        assert!(one_more.is_some());
    }
    wait_for("room", || Client::connect(&house.socket).is_ok());
    let waited = begun.elapsed();
    assert!(waited < Duration::from_secs(4), "{waited:?}");
    let mut bytes = [0; 100];
    assert!(silent.iter().all(|socket| {
        scm::receive(socket, &mut bytes).is_ok_and(|received| received.count == 0)
    }));
}

/// However many sessions they are spread over.
#[test]
fn handles_of_a_user_are_bounded_together() {
    const LIMIT: usize = 65_536;
    let house = House::new();
    let (a, b) = (house.client(), house.client());
    let open = |client: &Client| client.open("f", libc::O_RDONLY).map(|(handle, _)| handle);
    let first = a.create("f");
    let more: Vec<u64> = (1..LIMIT).map(|n| open([&a, &b][n % 2]).unwrap()).collect();
    assert_eq!(open(&a), Err(Errno::EMFILE));
    assert_eq!(open(&b), Err(Errno::EMFILE));
    assert_eq!(a.write(first, 0, b"goes on"), Ok(7));
    drop(b);
    wait_for("the handles of a session that ended", || open(&a).is_ok());
    assert_eq!(more.len(), LIMIT - 1);
}

#[test]
fn a_wrong_hello_is_refused() {
    let house = House::new();
    let hello = Hello { queue: None, key: 0 };
    let (good, elsewhere) = (hello.at(b"/lane"), hello.at(b"/elsewhere"));
    let mut other_version = good.clone();
    other_version[8] ^= 1;
    let (head, zero) = (&good[..HELLO_HEAD_BYTES], [good.as_slice(), b"\0"].concat());
    let relative = [head, b"lane"].concat();
    let long = [head, &[b'/'; 4096]].concat();
    let cut = &head[..HELLO_HEAD_BYTES - 1];
    let wrong = [b"hi", &other_version[..], cut, &relative, &zero, &long];
    let mut hellos: Vec<_> = wrong.map(|hello| (hello, Errno::EPROTO)).into();
    hellos.push((&elsewhere, Errno::EXDEV));
    for (hello, errno) in hellos {
        let socket = scm::connect(&house.socket).unwrap();
        scm::send(&socket, hello, &[]).unwrap();
        let mut bytes = [0; 1000];
        let received = scm::receive(&socket, &mut bytes).unwrap();
        let welcome = Welcome::from_bytes(&bytes[..received.count]).unwrap();
        assert_eq!(welcome.status, errno.0);
        assert!(received.fds.is_empty());
        assert_eq!(scm::receive(&socket, &mut bytes).unwrap().count, 0, "left open");
    }
    // A client that shows a root says where that is, another one need not.
    let root = File::open("/").unwrap();
    assert!(connect_as(&house.socket, "", &[]).is_ok());
    assert!(connect_as(&house.socket, "", &[root.as_fd()]).is_err());
}

#[test]
fn posix_locks_outlive_a_session_and_others_do_not() {
    let house = House::new();
    let (a, b) = (house.client(), house.client());
    let (posix, ofd) = (a.create("posix"), a.create("ofd"));
    a.lock(posix, LockFlags::empty(), libc::F_WRLCK).unwrap();
    a.lock(ofd, LockFlags::OFD, libc::F_WRLCK).unwrap();
    drop(a);
    wait_for("a to leave", || house.server.session_count() == 1);
    let ask = |name: &str| {
        let message = lock_message(b.create(name), LockFlags::OFD, libc::F_WRLCK);
        b.call(&Message { op: Op::GetLock, ..message }).unwrap().value[0] as i32
    };
    wait_for("the other lock to go", || ask("ofd") == libc::F_UNLCK);
    assert_eq!(ask("posix"), libc::F_WRLCK);
    // The process lives, so its lock does, and its next session may take it back.
    b.lock(b.create("posix"), LockFlags::empty(), libc::F_UNLCK).unwrap();
    assert_eq!(ask("posix"), libc::F_UNLCK);
}

#[test]
fn unreasonable_configs_are_refused() {
    let refused = |config: Config| {
        let path = std::env::temp_dir().join(format!("polylane-shm-no-{}", std::process::id()));
        let listener = scm::listen(&path, 4).unwrap();
        std::fs::remove_file(&path).unwrap();
        Server::start(lane(), listener, config).err() == Some(Errno::EINVAL)
    };
    let good = Config::default();
    assert!(refused(Config { workers: vec![], ..good.clone() }));
    assert!(refused(Config { workers: vec![None; 9], ..good.clone() }));
    assert!(refused(Config { helpers: 0, ..good.clone() }));
    let geometry = Geometry { mailbox_count: 0, ..Geometry::default() };
    assert!(refused(Config { geometry, ..good }));
}

#[test]
fn a_stopping_server_answers_what_was_posted() {
    let house = House::new();
    let client = house.client();
    let (stop, served) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let handle = client.create("f");
            while !stop.load(Relaxed) {
                // After the stop nobody answers: post, and look without waiting for ever.
                let message = Message { handle, ..Message::new(Op::Fstat) };
                client.channel.post(client.mailbox, &message, &Gone(&stop)).ok();
                if let Ok(reply) = client.channel.wait(client.mailbox, &Gone(&stop)) {
                    assert!(!matches!(reply.status, Status::UseKernel));
                    served.fetch_add(1, Relaxed);
                }
            }
        });
        wait_for("requests", || served.load(Relaxed) > 100);
        let start = Instant::now();
        house.server.stop();
        assert!(start.elapsed() < Duration::from_secs(5));
        stop.store(true, Relaxed);
    });
    assert_eq!(house.server.session_count(), 0);
}

/// The service is alive until the test says so.
struct Gone<'a>(&'a AtomicBool);

impl polylane_ipc::Watch for Gone<'_> {
    fn alive(&self) -> bool {
        !self.0.load(Relaxed)
    }
}

/// A client that was quiet while another kept the worker busy is heard all the same.
#[test]
fn a_quiet_client_rings_when_it_comes_back() {
    let house = House::new();
    let quiet: Vec<Client> = (0..100).map(|_| house.client()).collect();
    let busy = house.client();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                busy.call(&Message::new(Op::Ping)).unwrap();
            }
        });
        for _ in 0..3 {
            let before = house.server.totals().requests();
            // Enough rounds for the others to be left alone.
            wait_for("rounds", || house.server.totals().requests() > before + 20_000);
            for client in &quiet {
                client.call(&Message::new(Op::Ping)).unwrap();
            }
        }
        stop.store(true, Relaxed);
    });
    drop(quiet);
    wait_for("them to leave", || house.server.session_count() == 1);
    busy.call(&Message::new(Op::Ping)).unwrap();
}

#[test]
fn an_idle_server_uses_no_cpu() {
    let house = House::with(Config { workers: vec![None, None], ..Config::default() });
    let clients: Vec<Client> = (0..5).map(|_| house.client()).collect();
    for client in &clients {
        client.call(&Message::new(Op::Ping)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    let before = house.server.totals().sleeps;
    std::thread::sleep(Duration::from_millis(300));
    // Asleep all the time: not a single turn of a worker.
    assert_eq!(house.server.totals().sleeps, before);
    for client in &clients {
        client.channel.call(client.mailbox, &Message::new(Op::Ping), &Trusting).unwrap();
    }
}

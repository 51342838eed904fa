//! Open files at rest: whatever happens to the file or to its path while it rests, the client that
//! would open it again learns of it before anybody hears that it happened; and what rests keeps
//! nothing that has no name.

use polylane_base::sync::{Arc, Weak};
use polylane_base::{Errno, Gid, Uid};
use polylane_front::lane::slots::Access;
use polylane_ipc::message::{
    AT_REST, FIRST, IS_MARK, LockFlags, MARK_PLACES, MAY_REST, Message, NO_SLOT, Op, Reply,
};
use polylane_ipc::view::NOTES_READS;
use polylane_vfs::{
    Cred, Inode, LockFamily, LockKind, LockOutcome, LockOwner, LockRequest, OpCtx, OpenFile,
    SetAttr,
};

use crate::shm_kit::{Client, House, cached_lane, count};

/// A file that a client has open and that may rest.
struct Rest<'a> {
    client: &'a Client,
    handle: u64,
    view: u32,
    number: u64,
    places: u64,
    sum: u64,
}

fn open_with(client: &Client, path: &str, flags: i32, arg: [u64; 4]) -> Result<Reply, Errno> {
    let message = Message { flags: flags as u32, mode: 0o644, arg, ..Message::new(Op::Open) };
    client.call_at(message, path.as_bytes(), b"")
}

impl<'a> Rest<'a> {
    fn open(client: &'a Client, path: &str) -> Rest<'a> {
        let arg = [NO_SLOT, 0, MAY_REST, 0];
        Rest::of(client, open_with(client, path, libc::O_RDONLY, arg).unwrap())
    }

    fn of(client: &'a Client, reply: Reply) -> Rest<'a> {
        let [_, _, places, sum, number, view, ..] = reply.value;
        assert!(number > 0 && view > 0 && places & IS_MARK != 0, "it may not rest");
        let (handle, view) = (reply.handle, view as u32 - 1);
        let rest = Rest { client, handle, view, number, places, sum };
        assert!(rest.holds());
        rest
    }

    fn lie_down(&self) -> bool {
        self.client.channel.views().unwrap().lie_down(self.view, self.number)
    }

    fn get_up(&self) -> bool {
        self.client.channel.views().unwrap().get_up(self.view, self.number)
    }

    /// Whether an open of the path would give this file.
    fn holds(&self) -> bool {
        let marks = self.client.channel.marks().unwrap();
        let (name, state) = (self.places as u32, (self.places & !IS_MARK) >> 32);
        let counts = [0, name as usize % MARK_PLACES, state as usize % MARK_PLACES];
        let sum = counts.into_iter().map(|place| marks.count(place));
        sum.fold(0, u64::wrapping_add) == self.sum
    }

    fn close(&self, flags: u32) -> Result<Reply, Errno> {
        self.client.call(&Message { handle: self.handle, flags, ..Message::new(Op::Close) })
    }
}

/// The file of a path, past every client.
fn beside(house: &House, path: &str) -> Arc<OpenFile> {
    let (vfs, cred) = (&house.lane.vfs, Cred::root());
    let flags = libc::O_RDWR | libc::O_CREAT;
    vfs.open_path(&OpCtx::as_user(&cred), &vfs.root(), path.as_bytes(), flags, 0o644, 0).unwrap()
}

fn weak_of(house: &House, path: &str) -> Weak<Inode> {
    Arc::downgrade(beside(house, path).node())
}

fn houses() -> [House; 2] {
    [House::new(), House::over(cached_lane(), polylane_front::shm::Config::default())]
}

#[test]
fn a_file_at_rest_is_taken_back_with_its_last_name() {
    for house in houses() {
        let (client, other) = (house.client(), house.client());
        let (vfs, root) = (&house.lane.vfs, house.lane.vfs.root());
        for replaced in [false, true] {
            let gone = weak_of(&house, "f");
            vfs.link(&OpCtx::service(), beside(&house, "f").node(), &root, b"g").unwrap();
            let rest = Rest::open(&client, "f");
            assert!(rest.lie_down());
            other.op_at(Op::Unlink, "g").unwrap();
            assert!(!rest.holds(), "a link less is another state");
            assert!(rest.get_up(), "a name is left");
            rest.close(AT_REST).unwrap();
            let rest = Rest::open(&client, "f");
            assert!(rest.lie_down() && rest.get_up() && rest.lie_down());
            match replaced {
                false => _ = other.op_at(Op::Unlink, "f").unwrap(),
                true => {
                    drop(beside(&house, "new"));
                    vfs.rename(&OpCtx::service(), &root, b"new", &root, b"f", 0).unwrap();
                }
            }
            assert!(!rest.holds() && !rest.get_up());
            assert!(gone.upgrade().is_none(), "nobody holds it any more");
            assert_eq!(rest.close(AT_REST), Err(Errno::EBADF));
        }
    }
}

#[test]
fn a_file_in_use_outlives_its_name_and_rests_no_more() {
    let house = House::new();
    let (client, other) = (house.client(), house.client());
    let gone = weak_of(&house, "f");
    let rest = Rest::open(&client, "f");
    other.op_at(Op::Unlink, "f").unwrap();
    // As a client that lies down in the very moment: then it looks at the mark, and closes.
    assert!(rest.lie_down() && !rest.holds() && rest.get_up());
    assert!(gone.upgrade().is_some());
    rest.close(0).unwrap();
    assert!(gone.upgrade().is_none());
}

#[test]
fn every_change_breaks_the_mark() {
    for house in houses() {
        let client = house.client();
        let (vfs, root, cred) = (&house.lane.vfs, house.lane.vfs.root(), Cred::root());
        let set = |set: SetAttr| {
            _ = vfs.setattr(&OpCtx::as_user(&cred), beside(&house, "d/f").node(), &set).unwrap();
        };
        let dir = || vfs.resolve(&OpCtx::as_user(&cred), &root, b"d", true).unwrap();
        client.op_at(Op::Mkdir, "d").unwrap();
        let changes: [(&str, &dyn Fn()); 9] = [
            ("chmod", &|| set(SetAttr { perm: Some(0o600), ..SetAttr::default() })),
            ("chown", &|| {
                set(SetAttr { uid: Some(Uid(7)), gid: Some(Gid(7)), ..SetAttr::default() });
            }),
            ("truncate", &|| set(SetAttr { size: Some(9), ..SetAttr::default() })),
            ("write", &|| {
                _ = beside(&house, "d/f")
                    .write(&OpCtx::as_user(&cred), Some(0), &mut &b"x"[..])
                    .unwrap();
            }),
            ("link", &|| {
                vfs.link(&OpCtx::as_user(&cred), beside(&house, "d/f").node(), &root, b"g").unwrap()
            }),
            ("rename", &|| {
                vfs.rename(&OpCtx::as_user(&cred), &dir(), b"f", &root, b"h", 0).unwrap();
                vfs.rename(&OpCtx::as_user(&cred), &root, b"h", &dir(), b"f", 0).unwrap();
            }),
            ("chmod of the directory", &|| {
                let perm = SetAttr { perm: Some(0o700), ..SetAttr::default() };
                _ = vfs.setattr(&OpCtx::as_user(&cred), &dir(), &perm).unwrap();
            }),
            ("rename of the directory", &|| {
                vfs.rename(&OpCtx::as_user(&cred), &root, b"d", &root, b"e", 0).unwrap();
                vfs.rename(&OpCtx::as_user(&cred), &root, b"e", &root, b"d", 0).unwrap();
            }),
            ("unlink", &|| vfs.unlink(&OpCtx::as_user(&cred), &dir(), b"f").unwrap()),
        ];
        for (what, change) in changes {
            drop(beside(&house, "d/f"));
            let perm = SetAttr { perm: Some(0o777), ..SetAttr::default() };
            vfs.setattr(&OpCtx::as_user(&cred), &dir(), &perm).unwrap();
            vfs.setattr(&OpCtx::as_user(&cred), beside(&house, "d/f").node(), &perm).unwrap();
            let rest = Rest::open(&client, "d/f");
            assert!(rest.lie_down() && rest.holds(), "{what}");
            change();
            assert!(!rest.holds(), "{what}");
            if rest.get_up() {
                rest.close(AT_REST).unwrap();
            }
        }
    }
}

#[test]
fn only_what_is_opened_to_be_read_may_rest() {
    let house = House::new();
    let client = house.client();
    client.close(client.create("f")).unwrap();
    let number = |flags: i32, wish: u64| {
        let reply = open_with(&client, "f", flags, [NO_SLOT, 0, wish, 0]).unwrap();
        client.close(reply.handle).unwrap();
        reply.value[4]
    };
    for flags in [libc::O_WRONLY, libc::O_CREAT, libc::O_TRUNC, libc::O_SYNC, libc::O_NOATIME] {
        assert_eq!(number(flags, MAY_REST), 0, "flags {flags:o}");
    }
    assert_eq!(number(libc::O_RDONLY, 0), 0);
    assert!(number(libc::O_RDONLY, MAY_REST) > 0);
    assert!(number(libc::O_RDWR | libc::O_APPEND, MAY_REST) > 0);
    // One of each file, and a number for each.
    let rest = Rest::open(&client, "f");
    let second = open_with(&client, "f", libc::O_RDONLY, [NO_SLOT, 0, MAY_REST, 0]).unwrap();
    assert_eq!(second.value[4], 0);
    rest.close(0).unwrap();
    let third = Rest::open(&client, "f");
    assert!(third.number > rest.number && !rest.lie_down() && third.lie_down());
    // An open that fails is told as ever.
    let absent = open_with(&client, "g", libc::O_RDONLY, [NO_SLOT, 0, MAY_REST, 0]);
    assert_eq!(absent.unwrap_err(), Errno::ENOENT);
}

fn is_locked(house: &House, path: &str) -> bool {
    let (family, kind) = (LockFamily::Posix, LockKind::Write);
    let (owner, file) = (LockOwner(99), beside(house, path));
    let request = LockRequest { owner, family, kind, start: 0, end: u64::MAX, pid: 99, user: None };
    let outcome = house.lane.vfs.set_lock(file.node(), request, None);
    house.lane.vfs.drop_owner(owner);
    !matches!(outcome, LockOutcome::Done(Ok(())))
}

#[test]
fn a_process_with_locks_has_none_rest_and_loses_none() {
    let house = House::new();
    let client = house.client();
    let handle = client.create("f");
    let rest = Rest::open(&client, "f");
    assert!(rest.lie_down());
    client.lock(handle, LockFlags::FLOCK, libc::F_WRLCK).unwrap();
    drop(beside(&house, "g"));
    Rest::open(&client, "g").close(0).unwrap();
    client.lock(handle, LockFlags::empty(), libc::F_WRLCK).unwrap();
    assert!(is_locked(&house, "f"));
    assert!(rest.get_up());
    rest.close(AT_REST).unwrap();
    assert!(is_locked(&house, "f"), "it was closed before the lock was taken");
    let reply = open_with(&client, "f", libc::O_RDONLY, [NO_SLOT, 0, MAY_REST, 0]).unwrap();
    assert_eq!(reply.value[4], 0, "a close of it gives the lock up");
    client.close(reply.handle).unwrap();
    assert!(!is_locked(&house, "f"));
}

#[test]
fn an_open_closes_the_file_whose_slot_it_takes() {
    let house = House::new();
    let client = house.client();
    let token = polylane_front::lane::slots::Token(client.welcome.token);
    let nobody = (Uid(65_534), Gid(65_534));
    let slot = house.lane.slots.create(token, 1, Access::Read, nobody).unwrap();
    for name in ["f", "g"] {
        beside(&house, name).write(&OpCtx::service(), Some(0), &mut name.as_bytes()).unwrap();
    }
    let bound =
        || house.lane.vfs.getattr(&OpCtx::service(), slot.file().unwrap().node()).unwrap().ino;
    let ino = |name: &str| {
        house.lane.vfs.getattr(&OpCtx::service(), beside(&house, name).node()).unwrap().ino
    };
    let open = |name, closed| open_with(&client, name, libc::O_RDONLY, [1, 0, MAY_REST, closed]);
    let rest = Rest::of(&client, open("f", 0).unwrap());
    assert!(rest.lie_down());
    assert_eq!(open("g", 0), Err(Errno::EBUSY), "the slot is the other's");
    assert_eq!(bound(), ino("f"));
    assert!(rest.get_up());
    let next = Rest::of(&client, open("g", rest.handle).unwrap());
    assert_eq!(bound(), ino("g"));
    assert_eq!(rest.close(AT_REST), Err(Errno::EBADF));
    // Also where the open fails.
    assert_eq!(open("absent", next.handle).unwrap_err(), Errno::ENOENT);
    assert_eq!(slot.file().err(), Some(Errno::EBADF));
}

/// This read moves the access time; later ones do not.
fn read_once(house: &House, file: &OpenFile) {
    std::thread::sleep(std::time::Duration::from_millis(20));
    house.lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap();
    file.read(&OpCtx::service(), 0, 1, &mut &mut [0; 1][..]).unwrap();
}

#[test]
fn what_is_opened_first_comes_with_the_answer_and_may_rest() {
    let house = House::new();
    let client = house.client();
    let direct = beside(&house, "f");
    direct.write(&OpCtx::service(), Some(0), &mut &[7; 5000][..]).unwrap();
    read_once(&house, &direct);
    let open = |wish| {
        let rest = open_with(&client, "f", libc::O_RDONLY, [NO_SLOT, 9000, wish, 0]).unwrap();
        (count(&rest), Rest::of(&client, rest))
    };
    let (brought, rest) = open(MAY_REST | FIRST);
    assert_eq!(brought, 5000, "in the payload");
    assert!(rest.lie_down() && rest.get_up());
    rest.close(0).unwrap();
    let (brought, rest) = open(MAY_REST | FIRST);
    assert_eq!(brought, 0, "opened again after all: in frames");
    rest.close(0).unwrap();
}

/// Its time would be in the client's memory until another open closes the file.
#[test]
fn what_is_opened_first_does_not_rest_with_an_access_time() {
    let house = House::new();
    let client = house.client();
    let direct = beside(&house, "f");
    std::thread::sleep(std::time::Duration::from_millis(20));
    direct.write(&OpCtx::service(), Some(0), &mut &[7; 5000][..]).unwrap();
    let notes = |reply: &Reply| {
        let look = client.channel.views().unwrap().look(reply.value[0] as u32 - 1);
        look.is_some_and(|look| look.has(NOTES_READS))
    };
    let open = || open_with(&client, "f", libc::O_RDONLY, [NO_SLOT, 9000, MAY_REST | FIRST, 0]);
    let reply = open().unwrap();
    assert!(count(&reply) == 5000 && notes(&reply), "it is not on loan to be read");
    assert_eq!(reply.value[2..6], [0; 4], "it may rest");
    client.close(reply.handle).unwrap();
    read_once(&house, &direct);
    let reply = open().unwrap();
    assert!(!notes(&reply), "the time is up to date");
    Rest::of(&client, reply).close(0).unwrap();
}

#[test]
fn what_rests_is_shown_as_it_is() {
    let house = House::new();
    let client = house.client();
    let direct = beside(&house, "f");
    direct.write(&OpCtx::service(), Some(0), &mut &[7; 5000][..]).unwrap();
    read_once(&house, &direct);
    let reply = open_with(&client, "f", libc::O_RDONLY, [NO_SLOT, 9000, MAY_REST, 0]).unwrap();
    assert_eq!((count(&reply), reply.value[0]), (0, reply.value[5]), "in frames, not brought");
    let rest = Rest::of(&client, reply);
    let shown = |page| {
        let views = client.channel.views().unwrap();
        let look = views.look(rest.view).unwrap();
        views.find(look, page).is_some()
    };
    assert!(shown(0) && shown(1) && rest.lie_down());
    direct.write(&OpCtx::service(), Some(0), &mut &[8; 10][..]).unwrap();
    assert!(!rest.holds() && !shown(0) && shown(1));
}

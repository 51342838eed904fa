//! A hostile client of the wire: what it was once allowed it does again after the right to it is
//! gone. The file stays as its owner left it.

use std::time::Duration;

use polylane_base::sync::Arc;
use polylane_front::shm::Config;
use polylane_ipc::message::{Message, NO_SLOT, Op, Reply, TransferFlags};
use polylane_ipc::view::{HAS_DATA, NOTES_READS};
use polylane_vfs::fs::XattrMode;
use polylane_vfs::{OpCtx, OpenFile, SetAttr};

use crate::shm_kit::{
    Client, House, cached_lane,
    file::{File, PAGE, beside, now, read_beside},
};

/// Pages of the files.
const PAGES: usize = 4;
const OLD: u8 = b'o';
const EVIL: u8 = b'e';

fn houses() -> [House; 2] {
    [House::new(), House::over(cached_lane(), Config::default())]
}

fn bytes(of: u8) -> Vec<u8> {
    vec![of; PAGES * PAGE as usize]
}

/// A file that the client has on loan to write all of it, with the door beside.
fn lent<'a>(house: &House, client: &'a Client) -> (File<'a>, Arc<OpenFile>) {
    let mut file = File::open(client, "f");
    for _ in 0..4 {
        for page in 0..PAGES as u64 {
            file.write(page * PAGE, &[OLD; PAGE as usize]);
        }
    }
    assert!(file.unasked > 0, "nothing was lent");
    let direct = beside(house, "f");
    (file, direct)
}

/// Writes into every frame of a view, whatever the service lets it, and says that it did.
fn scribble(client: &Client, view: u32) {
    let views = client.channel.views().expect("views");
    if let Some(look) = views.look(view) {
        for page in 0..PAGES as u64 {
            if let Some(found) = views.find(look, page) {
                client.channel.frame_put(views.found_offset(found), &[EVIL; PAGE as usize]);
            }
        }
    }
    for entry in 0..client.channel.geometry().frames as usize {
        views.let_write_again(entry);
    }
}

fn perm(house: &House, direct: &OpenFile) -> u32 {
    house.lane.vfs.getattr(&OpCtx::service(), direct.node()).expect("attributes").perm
}

fn chmod(house: &House, direct: &OpenFile, perm: u32) {
    let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
    house.lane.vfs.setattr(&OpCtx::service(), direct.node(), &set).expect("chmod");
}

fn open_bringing(client: &Client, path: &str) -> Reply {
    let mut message = Message { flags: libc::O_RDONLY as u32, ..Message::new(Op::Open) };
    (message.arg[0], message.arg[1]) = (NO_SLOT, u64::MAX);
    client.call_at(message, path.as_bytes(), b"").expect("opened")
}

/// Has the access time of a file be due, so that who opens it to read has it on loan for that.
fn has_a_loan_to_read(house: &House, client: &Client, direct: &OpenFile) -> Option<(Reply, u32)> {
    std::thread::sleep(Duration::from_millis(20));
    let mut source: &[u8] = &[OLD];
    direct.write(&OpCtx::service(), Some(0), &mut source).expect("written");
    chmod(house, direct, 0o4755);
    for _ in 0..4 {
        let reply = open_bringing(client, "f");
        let view = (reply.value[0] as u32).checked_sub(1);
        let views = client.channel.views().expect("views");
        let notes = |view| views.look(view).is_some_and(|look| look.has(HAS_DATA | NOTES_READS));
        if let Some(view) = view.filter(|&view| notes(view)) {
            return Some((reply, view));
        }
        client.close(reply.handle).expect("closed");
    }
    None
}

#[test]
fn a_loan_to_read_takes_nothing_whatever_its_client_says() {
    for (house, closes) in houses().into_iter().zip([false, true]) {
        let client = house.client();
        let (file, direct) = lent(&house, &client);
        client.close(file.handle).expect("closed");
        let (reply, view) =
            has_a_loan_to_read(&house, &client, &direct).expect("a loan to read, to be misused");
        scribble(&client, view);
        client.channel.views().expect("views").note_read(view, now);
        if closes {
            client.close(reply.handle).expect("closed");
        }
        assert_eq!(read_beside(&direct, 0, PAGES * PAGE as usize), bytes(OLD));
        assert_eq!(perm(&house, &direct), 0o4755, "who read took the bit away");
        if !closes {
            client.close(reply.handle).expect("closed");
        }
        assert_eq!(read_beside(&direct, 0, PAGES * PAGE as usize), bytes(OLD));
    }
}

/// What the owner of a file does to it so that others' writing counts no more, or says more.
type Change = fn(&House, &OpenFile);

const CHANGES: [(&str, Change); 5] = [
    ("set-user-id", |house, direct| chmod(house, direct, 0o4755)),
    ("set-group-id", |house, direct| chmod(house, direct, 0o2755)),
    ("capabilities", |house, direct| {
        let (name, value) = (b"security.capability", capabilities());
        let vfs = &house.lane.vfs;
        vfs.setxattr(&OpCtx::service(), direct.node(), name, &value, XattrMode::Any).expect("set");
    }),
    ("immutable", |house, direct| {
        // FS_IMMUTABLE_FL
        house.lane.vfs.set_flags(&OpCtx::service(), direct.node(), 0x10).expect("chattr +i");
    }),
    ("append-only", |house, direct| {
        // FS_APPEND_FL
        house.lane.vfs.set_flags(&OpCtx::service(), direct.node(), 0x20).expect("chattr +a");
    }),
];

/// `cap_net_raw+ep`
fn capabilities() -> Vec<u8> {
    [0x0200_0001u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn nothing_that_is_written_after_a_change_of_rights_is_taken() {
    for (house, (what, change)) in
        CHANGES.into_iter().flat_map(|change| houses().map(|house| (house, change)))
    {
        let client = house.client();
        let (file, direct) = lent(&house, &client);
        change(&house, &direct);
        let state =
            || house.lane.vfs.getattr(&OpCtx::service(), direct.node()).expect("attributes");
        let before = state();
        scribble(&client, file.view);
        assert_eq!(read_beside(&direct, 0, PAGES * PAGE as usize), bytes(OLD), "{what}");
        assert_eq!((state().perm, state().flags), (before.perm, before.flags), "{what}");
        client.close(file.handle).expect("closed");
        assert_eq!(read_beside(&direct, 0, PAGES * PAGE as usize), bytes(OLD), "{what}, closed");
        assert_eq!((state().perm, state().mtime), (before.perm, before.mtime), "{what}");
    }
}

#[test]
fn what_was_written_before_comes_before_the_change() {
    for (house, (what, change)) in
        CHANGES.into_iter().flat_map(|change| houses().map(|house| (house, change)))
    {
        let client = house.client();
        let (file, direct) = lent(&house, &client);
        assert!(file.write_lent(0, b"before"), "{what}");
        change(&house, &direct);
        assert!(!file.write_lent(0, b"behind"), "{what}: the loan goes on");
        let name = b"security.capability";
        let has = house.lane.vfs.getxattr(&OpCtx::service(), direct.node(), name).is_ok();
        assert_eq!(has, what == "capabilities", "{what}: what was written takes it away");
        assert_eq!(read_beside(&direct, 0, 6), b"before", "{what}");
        client.close(file.handle).expect("closed");
    }
}

#[test]
fn a_loan_to_write_ends_with_the_last_handle_that_may() {
    for house in houses() {
        let client = house.client();
        let (file, direct) = lent(&house, &client);
        let (reader, _) = client.open("f", libc::O_RDONLY).expect("opened");
        let shown = Message {
            handle: reader,
            flags: TransferFlags::SHOW.bits(),
            ..Message::new(Op::Fstat)
        };
        let view = client.call(&shown).expect("shown").handle as u32 - 1;
        assert_eq!(view, file.view, "one view for both");
        let mut file = file;
        for _ in 0..4 {
            file.write(0, &[OLD; PAGE as usize]);
        }
        client.close(file.handle).expect("closed");
        assert!(!file.write_lent(0, b"by nobody"), "it goes on without");
        scribble(&client, view);
        assert_eq!(read_beside(&direct, 0, PAGES * PAGE as usize), bytes(OLD));
        client.close(reader).expect("closed");
        assert_eq!(read_beside(&direct, 0, PAGES * PAGE as usize), bytes(OLD));
    }
}

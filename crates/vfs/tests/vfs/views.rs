//! Views of files: who tells them of what, and who ends a loan; row by row of the table at the head
//! of `view.rs`. The viewer is a front end of few lines, which keeps account of what it is told.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use polylane_base::{Errno, Time};
use polylane_vfs::fs::{SeekFor, SetAttr};
use polylane_vfs::{Node, OpCtx, OpenFile, Part, Vfs, Viewer, flags};

use crate::common::{
    Lane, O_APPEND, O_CREAT, O_RDWR, O_TRUNC, PAGE, cached, lane, lane_with, options,
};

type Parts = Vec<(u64, Box<[u8]>)>;

#[derive(Default)]
struct Told {
    data: Vec<(u64, u64)>,
    attrs: u32,
    loans_ended: u32,
    /// What a client has written on loan, and when.
    lent: Option<(Parts, Time)>,
    /// Asked to give the view up, it waits for this, and then says so.
    let_go: Option<(Receiver<()>, Sender<()>)>,
}

struct Watcher {
    vfs: Weak<Vfs>,
    told: Mutex<Told>,
}

impl Viewer for Watcher {
    fn data_changes(&self, _view: u32, start: u64, end: u64) {
        self.told.lock().unwrap().data.push((start, end));
    }

    fn attr_changed(&self, _view: u32) {
        self.told.lock().unwrap().attrs += 1;
    }

    fn end_loan(&self, _view: u32, node: &Node) {
        let Some((parts, time)) = self.told.lock().unwrap().lent.take() else { return };
        let vfs = self.vfs.upgrade().unwrap();
        let mut bytes: Vec<&[u8]> = parts.iter().map(|(_, bytes)| &bytes[..]).collect();
        let offsets = parts.iter().map(|(offset, _)| *offset);
        let mut parts: Vec<Part<'_>> =
            offsets.zip(&mut bytes).map(|(offset, bytes)| (offset, bytes as _)).collect();
        vfs.bring_back(&OpCtx::service(), node, (&mut parts, None), (Some(time), None)).unwrap();
        self.told.lock().unwrap().loans_ended += 1;
        vfs.end_loan(node);
    }

    fn let_go(&self, _view: u32) {
        let asked = self.told.lock().unwrap().let_go.take();
        let Some((go_on, gone)) = asked else { return };
        go_on.recv().expect("a bug of the front end's");
        gone.send(()).unwrap();
    }
}

struct Scene {
    lane: Lane,
    file: Arc<OpenFile>,
    watcher: Arc<Watcher>,
}

/// A file of two pages of `a`, watched by session 1.
fn scene(lane: Lane) -> Scene {
    let opened =
        lane.vfs.open_path(&OpCtx::service(), &lane.root, b"f", O_CREAT | O_RDWR, 0o644, 0);
    let file = opened.unwrap();
    file.write(&OpCtx::service(), Some(0), &mut &[b'a'; 2 * PAGE][..]).unwrap();
    let watcher = Arc::new(Watcher { vfs: Arc::downgrade(&lane.vfs), told: Mutex::default() });
    let weak: Weak<Watcher> = Arc::downgrade(&watcher);
    lane.vfs.add_view(file.node(), (1, 7), weak).unwrap();
    Scene { lane, file, watcher }
}

impl Scene {
    fn vfs(&self) -> &Vfs {
        &self.lane.vfs
    }

    fn node(&self) -> &Node {
        self.file.node()
    }

    fn told(&self) -> Told {
        std::mem::take(&mut *self.watcher.told.lock().unwrap())
    }

    /// A loan under which the first page becomes `b`.
    fn lend(&self) -> bool {
        let time = self.vfs().now();
        self.vfs().lend(self.node(), 1, &mut || {
            let parts = vec![(0, vec![b'b'; PAGE].into_boxed_slice())];
            self.watcher.told.lock().unwrap().lent = Some((parts, time));
            true
        })
    }

    fn first_byte(&self) -> u8 {
        let mut byte = [0];
        self.file.read(&OpCtx::service(), 0, 1, &mut byte.as_mut_slice()).unwrap();
        byte[0]
    }
}

#[test]
fn changes_are_told_with_their_range() {
    for lane in [lane(), cached()] {
        let scene = scene(lane);
        scene.told();
        scene.file.write(&OpCtx::service(), Some(100), &mut &b"xyz"[..]).unwrap();
        let told = scene.told();
        assert_eq!(told.data, [(100, 103)]);
        assert!(told.attrs > 0);
        let set = SetAttr { size: Some(10), ..SetAttr::default() };
        scene.vfs().setattr(&OpCtx::service(), scene.node(), &set).unwrap();
        assert_eq!(scene.told().data, [(0, u64::MAX)]);
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        scene.vfs().setattr(&OpCtx::service(), scene.node(), &set).unwrap();
        let told = scene.told();
        assert!(told.data.is_empty() && told.attrs > 0);
        scene.vfs().link(&OpCtx::service(), scene.node(), &scene.lane.root, b"g").unwrap();
        assert!(scene.told().attrs > 0);
        scene.vfs().unlink(&OpCtx::service(), &scene.lane.root, b"f").unwrap();
        assert!(scene.told().attrs > 0);
        let again = scene.vfs().open_path(
            &OpCtx::service(),
            &scene.lane.root,
            b"g",
            O_RDWR | O_TRUNC,
            0,
            0,
        );
        assert!(again.is_ok() && !scene.told().data.is_empty());
        scene.vfs().remove_view(scene.node(), (1, 7));
        scene.file.write(&OpCtx::service(), Some(0), &mut &b"x"[..]).unwrap();
        assert!(scene.told().data.is_empty());
    }
}

#[test]
fn whoever_comes_near_ends_a_loan() {
    type Visit = fn(&Scene);
    let visits: [Visit; 8] = [
        |scene| assert_eq!(scene.first_byte(), b'b'),
        |scene| _ = scene.vfs().getattr(&OpCtx::service(), scene.node()).unwrap(),
        |scene| scene.file.fsync(&OpCtx::service(), false).unwrap(),
        |scene| scene.vfs().sync(&OpCtx::service()).unwrap(),
        |scene| _ = scene.file.seek(&OpCtx::service(), 0, SeekFor::Data).unwrap(),
        |scene| _ = scene.file.write(&OpCtx::service(), Some(PAGE as u64), &mut &b"c"[..]).unwrap(),
        |scene| scene.file.fallocate(&OpCtx::service(), 3, PAGE as u64, PAGE as u64).unwrap(),
        |scene| scene.vfs().blind_views(scene.node()),
    ];
    for (n, visit) in visits.into_iter().enumerate() {
        for lane in [lane(), cached()] {
            let scene = scene(lane);
            assert!(scene.lend());
            visit(&scene);
            assert_eq!(scene.told().loans_ended, 1, "visit {n}");
            assert_eq!(scene.first_byte(), b'b', "visit {n}");
            assert_eq!(
                scene.vfs().getattr(&OpCtx::service(), scene.node()).unwrap().size,
                2 * PAGE as u64
            );
        }
    }
}

#[test]
fn nothing_is_lent_that_others_view_or_that_has_set_id_bits() {
    let scene = scene(lane());
    let weak: Weak<Watcher> = Arc::downgrade(&scene.watcher);
    scene.vfs().add_view(scene.node(), (2, 0), weak).unwrap();
    assert!(!scene.lend());
    scene.vfs().remove_view(scene.node(), (2, 0));
    let set = SetAttr { perm: Some(0o4755), ..SetAttr::default() };
    scene.vfs().setattr(&OpCtx::service(), scene.node(), &set).unwrap();
    assert!(!scene.lend());
    let set = SetAttr { perm: Some(0o755), ..SetAttr::default() };
    scene.vfs().setattr(&OpCtx::service(), scene.node(), &set).unwrap();
    assert!(scene.lend());
    assert!(!scene.vfs().lend(scene.node(), 1, &mut || false), "the client says no");
    assert_eq!(scene.first_byte(), b'b');
}

#[test]
fn a_session_that_is_gone_holds_nobody_up() {
    let scene = scene(lane());
    assert!(scene.lend());
    let Scene { lane, file, watcher } = scene;
    drop(watcher);
    let mut byte = [0];
    file.read(&OpCtx::service(), 0, 1, &mut byte.as_mut_slice()).unwrap();
    assert_eq!(byte, [b'a']);
    drop(lane);
}

#[test]
fn files_that_change_behind_our_back_are_not_viewed() {
    let lane = lane_with(options(), |character| character.volatile = true);
    let opened =
        lane.vfs.open_path(&OpCtx::service(), &lane.root, b"f", O_CREAT | O_RDWR, 0o644, 0);
    let watcher = Arc::new(Watcher { vfs: Arc::downgrade(&lane.vfs), told: Mutex::default() });
    let weak: Weak<Watcher> = Arc::downgrade(&watcher);
    let added = lane.vfs.add_view(opened.unwrap().node(), (1, 0), weak);
    assert_eq!(added, Err(Errno::EOPNOTSUPP));
}

#[test]
fn inode_flags_end_a_loan_and_keep_the_next_away() {
    for lane in [lane(), cached()] {
        let scene = scene(lane);
        let set = |to| scene.vfs().set_flags(&OpCtx::service(), scene.node(), to).unwrap();
        for to in [flags::IMMUTABLE, flags::APPEND] {
            assert!(scene.lend());
            set(to);
            assert_eq!((scene.told().loans_ended, scene.first_byte()), (1, b'b'));
            assert!(!scene.lend());
            set(0);
        }
        // To read by, one is lent as long as reading moves the access time.
        let lend = || scene.vfs().lend_reads(scene.node(), 1, &mut || true);
        set(flags::IMMUTABLE);
        assert!(lend());
        scene.vfs().end_loan(scene.node());
        let write = |at| scene.file.write(&OpCtx::service(), at, &mut &b"x"[..]);
        assert_eq!(write(Some(0)), Err(Errno::EPERM));
        // A mapping that was there goes on to be written.
        assert!(scene.file.write_mapped(&OpCtx::service(), 1, &mut &b"x"[..]).is_ok());
    }
}

#[test]
fn a_mapping_changes_nothing_of_what_was_opened_to_be_appended_to() {
    let scene = scene(lane());
    let flags = O_RDWR | O_APPEND;
    let appends = scene.vfs().open(&OpCtx::service(), scene.node(), flags).unwrap();
    let write = |file: &OpenFile| file.write_mapped(&OpCtx::service(), 0, &mut &b"x"[..]);
    assert!(write(&appends).is_ok());
    scene.vfs().set_flags(&OpCtx::service(), scene.node(), flags::APPEND).unwrap();
    assert_eq!(write(&appends), Err(Errno::EPERM));
    assert!(write(&scene.file).is_ok());
    // What is told of F_SETFL later has no effect either.
    appends.set_appends(false);
    assert_eq!(appends.set_flags(O_RDWR), Err(Errno::EPERM));
    let end = 2 * PAGE as u64 + 1;
    let written = appends.write(&OpCtx::service(), Some(0), &mut &b"x"[..]).unwrap();
    assert_eq!(written.end, end);
}

#[test]
fn a_loan_that_its_viewer_knows_nothing_of_is_over() {
    for lane in [lane(), cached()] {
        let scene = scene(lane);
        // Nobody has it, though the file says so.
        assert!(scene.vfs().lend(scene.node(), 1, &mut || true));
        assert_eq!(scene.first_byte(), b'a');
        scene.file.write(&OpCtx::service(), Some(0), &mut &b"c"[..]).unwrap();
        assert_eq!(scene.first_byte(), b'c');
        // So it is where its begin panicked.
        let lend = || scene.vfs().lend(scene.node(), 1, &mut || panic!("a bug of the front end's"));
        assert!(catch_unwind(AssertUnwindSafe(lend)).is_err());
        assert_eq!(scene.first_byte(), b'c');
        // The next loan is one as ever.
        assert!(scene.lend());
        assert_eq!(scene.first_byte(), b'b');
        assert_eq!(scene.told().loans_ended, 1);
    }
}

#[test]
fn who_comes_while_a_loan_begins_does_not_end_it_unseen() {
    let scene = scene(cached());
    let ((go_on, waits), (begun, begins)) = (channel(), channel());
    std::thread::scope(|scope| {
        let (scene, told) = (&scene, &scene.watcher.told);
        let lends = scope.spawn(move || {
            scene.vfs().lend(scene.node(), 1, &mut || {
                begun.send(()).unwrap();
                waits.recv().unwrap();
                let parts = vec![(0, vec![b'b'; PAGE].into_boxed_slice())];
                told.lock().unwrap().lent = Some((parts, Time::default()));
                true
            })
        });
        begins.recv().unwrap();
        let comes =
            scope.spawn(move || scene.vfs().getattr(&OpCtx::service(), scene.node()).unwrap());
        std::thread::sleep(Duration::from_millis(20));
        go_on.send(()).unwrap();
        assert!(lends.join().unwrap());
        comes.join().unwrap();
    });
    assert_eq!(scene.first_byte(), b'b', "what was written on loan is there for everybody");
    assert_eq!(scene.told().loans_ended, 1);
}

/// The view of a file that a streamed call took the last name from is to be given up.
fn nameless() -> Scene {
    let scene = scene(cached());
    let streamed = OpCtx { streamed: true, ..OpCtx::service() };
    let gone = scene.vfs().take_unlinked(&streamed, &scene.lane.root, b"f").unwrap();
    scene.vfs().note_nameless(gone.unwrap());
    scene
}

#[test]
fn statfs_waits_for_who_gives_up_views() {
    let scene = nameless();
    let ((go_on, waits), (gone, is_gone)) = (channel(), channel());
    scene.watcher.told.lock().unwrap().let_go = Some((waits, gone));
    std::thread::scope(|scope| {
        let teller = scope.spawn(|| scene.vfs().tell_nameless());
        while scene.watcher.told.lock().unwrap().let_go.is_some() {
            std::thread::yield_now();
        }
        // Who comes meanwhile leaves it to the one who tells.
        scene.vfs().tell_nameless();
        let scene = &scene;
        let asks = scope.spawn(move || {
            scene.vfs().statfs(&OpCtx::service()).unwrap();
            is_gone.try_recv().is_ok()
        });
        std::thread::sleep(Duration::from_millis(20));
        go_on.send(()).unwrap();
        assert!(asks.join().unwrap(), "the view is still there");
        teller.join().unwrap();
    });
}

#[test]
fn statfs_waits_for_no_large_file_to_be_freed() {
    let scene = nameless();
    let ((go_on, waits), (gone, _is_gone)) = (channel(), channel());
    scene.watcher.told.lock().unwrap().let_go = Some((waits, gone));
    std::thread::scope(|scope| {
        scope.spawn(|| scene.vfs().tell_nameless());
        while scene.watcher.told.lock().unwrap().let_go.is_some() {
            std::thread::yield_now();
        }
        let (answer, answered) = channel();
        let scene = &scene;
        scope.spawn(move || answer.send(scene.vfs().statfs(&OpCtx::service()).is_ok()));
        let answered = answered.recv_timeout(Duration::from_secs(5));
        assert!(scene.vfs().tells_nameless());
        go_on.send(()).unwrap();
        assert_eq!(answered, Ok(true));
    });
}

#[test]
fn a_panic_costs_what_was_told_and_no_more() {
    let scene = nameless();
    let ((go_on, waits), (gone, is_gone)) = (channel(), channel());
    drop(go_on);
    scene.watcher.told.lock().unwrap().let_go = Some((waits, gone.clone()));
    assert!(catch_unwind(AssertUnwindSafe(|| scene.vfs().tell_nameless())).is_err());
    let (go_on, waits) = channel();
    scene.watcher.told.lock().unwrap().let_go = Some((waits, gone));
    go_on.send(()).unwrap();
    scene.vfs().note_nameless(scene.node().clone());
    scene.vfs().tell_nameless();
    assert!(is_gone.try_recv().is_ok());
}

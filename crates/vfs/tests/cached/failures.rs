//! What lies below fails at random times, while it is flushed at random times.

use std::collections::BTreeMap;
use std::sync::Arc;

use polylane_base::Errno;
use polylane_base::rng::Rng;
use polylane_testkit::fault::{Call, Faulty, Plan};
use polylane_testkit::subject::small_options;
use polylane_vfs::cached::{Cached, Mode};
use polylane_vfs::handover::Store;
use polylane_vfs::{Create, Cred, Kind, OpCtx, OpenFile, Vfs};

use crate::{CACHE_BYTES, MODES, clock, memfs, settings};

const FILES: usize = 3;
const BYTES_MAX: u64 = 40 * 4096;
const O_RDWR: i32 = 2;

struct Lane {
    below: Arc<Faulty>,
    vfs: Arc<Vfs>,
    _handover: std::os::fd::OwnedFd,
}

fn lane(mode: Mode) -> Lane {
    let below = Faulty::new(memfs());
    let fs = Arc::new(Cached::new(below.clone(), settings(mode, clock())).unwrap());
    let vfs = Vfs::new(fs, small_options(clock(), CACHE_BYTES)).unwrap();
    let handover = Store::create().unwrap();
    vfs.tell_unsynced(Arc::new(Store::attach(&handover).unwrap().0));
    let new = Create { kind: Kind::File, perm: 0o666, umask: 0, rdev: 0, target: b"" };
    for file in 0..FILES {
        let name = file.to_string();
        vfs.create(&OpCtx::service(), &vfs.root(), name.as_bytes(), &new).unwrap();
    }
    Lane { below, vfs, _handover: handover }
}

impl Lane {
    fn open(&self, file: usize, cred: &Cred) -> Arc<OpenFile> {
        let name = file.to_string();
        let ctx = OpCtx::as_user(cred);
        self.vfs.open_path(&ctx, &self.vfs.root(), name.as_bytes(), O_RDWR, 0, 0).unwrap()
    }
}

fn read(file: &OpenFile, cred: &Cred) -> Vec<u8> {
    let size = file.size() as usize;
    let mut bytes = vec![0xee; size];
    let count = file.read(&OpCtx::as_user(cred), 0, size, &mut bytes.as_mut_slice()).unwrap();
    assert_eq!(count, size);
    bytes
}

#[test]
fn a_failed_write_back_is_told_to_every_opening_once() {
    let lane = lane(Mode::WriteBack);
    let root = Cred::root();
    let files = [lane.open(0, &root), lane.open(0, &root)];
    let other = lane.open(1, &root);
    let ctx = OpCtx::service();
    lane.below.fail_always(Call::Write, Some(Errno::EIO));
    files[0].write(&ctx, Some(0), &mut &b"bytes"[..]).unwrap();
    for file in &files {
        assert_eq!(file.fsync(&ctx, false), Err(Errno::EIO));
    }
    assert_eq!(other.fsync(&ctx, false), Ok(()), "another file");
    lane.below.fail_always(Call::Write, None);
    // Each is told of what failed before, once more at most, and the bytes are there.
    for file in &files {
        let told = file.fsync(&ctx, false);
        assert!(told.is_ok() || told == Err(Errno::EIO), "{told:?}");
    }
    for file in &files {
        assert_eq!(file.fsync(&ctx, false), Ok(()));
    }
    let ino = files[0].node().ino();
    let mut bytes = [0; 5];
    use polylane_vfs::fs::FileSystem as _;
    lane.below.read(&ctx, ino, 0, 5, &mut bytes.as_mut_slice()).unwrap();
    assert_eq!(&bytes, b"bytes");
}

#[test]
fn an_error_of_a_write_through_is_the_writers() {
    let lane = lane(Mode::WriteThrough);
    let root = Cred::root();
    let file = lane.open(0, &root);
    let ctx = OpCtx::service();
    file.write(&ctx, Some(0), &mut &[1; 6000][..]).unwrap();
    lane.below.fail_once(Call::Write, 0, Errno::EIO);
    assert_eq!(file.write(&ctx, Some(3), &mut &b"new"[..]), Err(Errno::EIO));
    assert_eq!(read(&file, &root), [1; 6000], "the pages are as what lies below");
    assert_eq!(file.fsync(&ctx, false), Ok(()));
    lane.below.limit_bytes(10);
    let written = file.write(&ctx, Some(0), &mut &[2; 100][..]).unwrap();
    assert_eq!(written.count, 10);
    assert_eq!(&read(&file, &root)[..12], [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1]);
}

/// Random writers of random users, cuts, syncs and failures. Reads always give what was written;
/// once nothing fails any more, all of it is below.
#[test]
fn reads_are_right_whatever_fails_below() {
    let users = [Cred::root(), Cred { uid: polylane_base::Uid(1000), ..Cred::root() }];
    for (mode, seed) in MODES.into_iter().flat_map(|mode| (1..9).map(move |seed| (mode, seed))) {
        let lane = lane(mode);
        let mut rng = Rng::new(seed);
        let mut known: BTreeMap<usize, Vec<u8>> = (0..FILES).map(|file| (file, vec![])).collect();
        for _ in 0..400 {
            let (file, user) = (rng.below(FILES as u64) as usize, &users[rng.below(2) as usize]);
            let (open, ctx) = (lane.open(file, user), OpCtx::as_user(user));
            let content = known.get_mut(&file).unwrap();
            match rng.below(10) {
                0..=4 => {
                    let at = rng.below(BYTES_MAX);
                    let bytes = vec![rng.below(256) as u8; 1 + rng.below(20_000) as usize];
                    // What did not arrive was not promised.
                    if let Ok(written) = open.write(&ctx, Some(at), &mut bytes.as_slice()) {
                        let end = at as usize + written.count;
                        content.resize(content.len().max(end), 0);
                        content[at as usize..end].copy_from_slice(&bytes[..written.count]);
                    } else if mode == Mode::WriteThrough {
                        *content = read(&open, user);
                    }
                }
                5 => {
                    let size = rng.below(BYTES_MAX);
                    let set = polylane_vfs::SetAttr { size: Some(size), ..Default::default() };
                    if lane.vfs.setattr(&OpCtx::service(), open.node(), &set).is_ok() {
                        content.resize(size as usize, 0);
                    }
                }
                6 => drop(open.fsync(&ctx, rng.below(2) == 0)),
                7 => drop(lane.vfs.sync(&ctx)),
                8 => {
                    let errno = (rng.below(3) > 0).then_some(Errno::EIO);
                    let (skip, count) = (rng.below(3), 1 + rng.below(3));
                    let call = [Call::Write, Call::Sync][rng.below(2) as usize];
                    lane.below.plan(call, Plan { skip, count, errno });
                }
                _ => assert_eq!(read(&open, user), *content, "{mode:?} seed {seed}"),
            }
        }
        for call in [Call::Write, Call::Sync] {
            lane.below.fail_always(call, None);
        }
        // The first may still be told of what failed before.
        let ctx = OpCtx::service();
        let _ = lane.vfs.sync(&ctx);
        assert_eq!(lane.vfs.sync(&ctx), Ok(()), "{mode:?} seed {seed}");
        let Lane { below, vfs, .. } = lane;
        let below_vfs = Vfs::new(below, small_options(clock(), CACHE_BYTES)).unwrap();
        for (file, content) in known {
            let name = file.to_string();
            let root = below_vfs.root();
            let open = below_vfs.open_path(&ctx, &root, name.as_bytes(), O_RDWR, 0, 0).unwrap();
            assert_eq!(read(&open, &users[0]), content, "{mode:?} seed {seed}, file {file}");
        }
        drop(vfs);
    }
}

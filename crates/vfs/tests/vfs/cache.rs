//! The page cache: hits, read-ahead, write-back, limits, eviction, errors.

use polylane_base::rng::Rng;
use polylane_base::{Errno, Time};
use polylane_testkit::fault::Call;
use polylane_vfs::fs::{SeekFor, SetAttr, SetTime};
use polylane_vfs::{Cred, Node, OpCtx};
use std::time::{Duration, Instant};

use crate::common::*;

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

fn size(lane: &Lane, node: &Node) -> u64 {
    lane.vfs.getattr(&OpCtx::service(), node).unwrap().size
}

/// What the libservice has of a file.
fn below(lane: &Lane, node: &Node) -> Vec<u8> {
    use polylane_vfs::fs::FileSystem;
    let len = lane.fs.getattr(&OpCtx::service(), node.ino()).unwrap().size as usize;
    let mut bytes = vec![0; len];
    let count = lane.fs.read(&OpCtx::service(), node.ino(), 0, len, &mut &mut bytes[..]).unwrap();
    bytes.truncate(count);
    bytes
}

fn small(pages: u64, dirty_pages: u64, interval: Duration) -> Lane {
    let mut options = options();
    options.cache_bytes_limit = pages * PAGE as u64;
    options.dirty_bytes_limit = dirty_pages * PAGE as u64;
    options.flush_interval = interval;
    lane_with(options, |character| character.cache_data = true)
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn written_data_is_read_back_and_reaches_the_file_at_fsync() {
    let lane = cached();
    let bytes = pattern(3 * PAGE + 100, 1);
    let file = lane.file("f", &bytes);
    assert_eq!(read(&file, 0, bytes.len() + 50), bytes);
    assert_eq!(lane.fs.calls(Call::Write), 0, "delayed");
    assert_eq!(lane.fs.calls(Call::Read), 0);
    assert_eq!(size(&lane, file.node()), bytes.len() as u64);
    let stats = lane.vfs.stats();
    assert_eq!((stats.pages, stats.dirty_bytes), (4, 4 * PAGE as u64));
    let before = lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap();
    file.fsync(&OpCtx::service(), false).unwrap();
    assert_eq!(lane.fs.calls(Call::Write), 1, "one run");
    assert_eq!(lane.vfs.stats().dirty_bytes, 0);
    assert_eq!(below(&lane, file.node()), bytes);
    let after = lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap();
    assert_eq!((after.mtime, after.ctime), (before.mtime, before.ctime), "times of the write");
    file.fsync(&OpCtx::service(), false).unwrap();
    assert_eq!(lane.fs.calls(Call::Write), 1, "nothing left");
}

#[test]
fn a_hole_past_the_end_writes_nothing_back() {
    let (lane, root) = (cached(), Cred::root());
    let bytes = pattern(3 * PAGE + 100, 1);
    let file = lane.file("f", &bytes);
    let before = lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap();
    let punch = |from: usize| {
        let flags = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        file.fallocate(&OpCtx::as_user(&root), flags, from as u64, 1 << 20).unwrap();
    };
    punch(bytes.len());
    punch(64 * PAGE);
    assert_eq!((lane.fs.calls(Call::Write), lane.vfs.stats().dirty_bytes), (0, 4 * PAGE as u64));
    let after = lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap();
    assert!(after.mtime >= before.mtime && after.size == before.size);
    assert_eq!(read(&file, 0, bytes.len() + 50), bytes);
    // One that begins a byte before it takes that byte.
    punch(bytes.len() - 1);
    let zero = [&bytes[..bytes.len() - 1], &[0]].concat();
    assert_eq!(read(&file, 0, bytes.len() + 50), zero);
}

#[test]
fn a_second_reader_hits_and_a_sequential_one_reads_ahead() {
    let lane = cached();
    let bytes = pattern(100 * PAGE, 2);
    let file = lane.file("f", &bytes);
    file.fsync(&OpCtx::service(), false).unwrap();
    let node = file.node().clone();
    drop(file);
    // A new lane on the same data would be as good: forget the pages by cutting and writing below.
    let cold = small(4096, 64, Duration::from_secs(3600));
    drop((lane, node));
    let file = cold.file("f", &bytes);
    file.fsync(&OpCtx::service(), false).unwrap();
    cold.vfs
        .setattr(&OpCtx::service(), file.node(), &SetAttr { size: Some(0), ..Default::default() })
        .unwrap();
    assert_eq!(cold.vfs.stats().pages, 0);
    {
        use polylane_vfs::fs::FileSystem;
        cold.vfs
            .setattr(
                &OpCtx::service(),
                file.node(),
                &SetAttr { size: Some(bytes.len() as u64), ..Default::default() },
            )
            .unwrap();
        cold.fs.write(&OpCtx::service(), file.node().ino(), 0, &mut &bytes[..]).unwrap();
    }
    let reader = cold.open("f", O_RDONLY).unwrap();
    let reads = || cold.fs.calls(Call::Read);
    let begin = reads();
    let mut got = Vec::new();
    while got.len() < bytes.len() {
        got.extend(read(&reader, got.len() as u64, PAGE));
    }
    assert_eq!(got, bytes);
    let sequential = reads() - begin;
    assert!(sequential < 15, "{sequential} reads for 100 pages");
    let begin = reads();
    assert_eq!(read(&file, 0, bytes.len()), bytes);
    assert_eq!(reads(), begin, "all hits");
    assert!(cold.vfs.stats().page_hits >= 100);
}

#[test]
fn a_random_reader_reads_no_more_than_it_asked_for() {
    let lane = small(64, 32, Duration::from_secs(3600));
    let bytes = pattern(512 * PAGE, 3);
    let file = lane.file("f", &bytes);
    file.fsync(&OpCtx::service(), false).unwrap();
    let mut rng = Rng::new(4);
    let misses = || lane.vfs.stats().page_misses;
    for _ in 0..200 {
        let begin = misses();
        let at = rng.below(511 * PAGE as u64);
        assert_eq!(read(&file, at, 100), bytes[at as usize..at as usize + 100]);
        assert!(misses() - begin <= 2);
    }
}

#[test]
fn the_cache_stays_within_its_limit() {
    let lane = small(64, 32, Duration::from_secs(3600));
    let bytes = pattern(1024 * PAGE, 5);
    let file = lane.open("f", O_RDWR | O_CREAT).unwrap();
    for (n, page) in bytes.chunks(PAGE).enumerate() {
        write(&file, (n * PAGE) as u64, page);
        let stats = lane.vfs.stats();
        assert!(stats.dirty_bytes <= 32 * PAGE as u64, "{stats:?}");
        assert!(stats.pages <= 66, "{stats:?}");
    }
    assert_eq!(read(&file, 0, bytes.len()), bytes);
    let stats = lane.vfs.stats();
    assert!(stats.evictions > 900, "{stats:?}");
    assert!(stats.pages <= 64 + 32, "{stats:?}");
    file.fsync(&OpCtx::service(), false).unwrap();
    assert_eq!(below(&lane, file.node()), bytes);
}

#[test]
fn pages_in_use_survive_a_scan() {
    let lane = small(128, 32, Duration::from_secs(3600));
    let hot = lane.file("hot", &pattern(16 * PAGE, 6));
    let scan = lane.file("scan", &pattern(1024 * PAGE, 7));
    for file in [&hot, &scan] {
        file.fsync(&OpCtx::service(), false).unwrap();
    }
    read(&hot, 0, 16 * PAGE);
    let misses = || lane.vfs.stats().page_misses;
    let (begin, mut of_hot) = (misses(), 0);
    for n in 0..1024 {
        read(&scan, n * PAGE as u64, PAGE);
        let before = misses();
        read(&hot, (n % 16) * PAGE as u64, PAGE);
        of_hot += misses() - before;
    }
    let of_scan = misses() - begin - of_hot;
    assert!(of_hot < 200, "{of_hot} misses in use, {of_scan} in the scan");
}

#[test]
fn the_flusher_writes_back_after_its_interval_and_on_drop() {
    let lane = small(1024, 512, Duration::from_millis(20));
    let bytes = pattern(10 * PAGE, 8);
    let file = lane.file("f", &bytes);
    eventually("flushed by time", || lane.vfs.stats().dirty_bytes == 0);
    assert_eq!(below(&lane, file.node()), bytes);
    let lane = cached();
    let file = lane.file("f", &bytes);
    let ino = file.node().ino();
    drop(file);
    let fs = lane.fs.clone();
    drop(lane);
    let mut got = vec![0; bytes.len()];
    {
        use polylane_vfs::fs::FileSystem;
        // memfs keeps what was forgotten while it has a name.
        let root = fs.root().unwrap().ino;
        assert_eq!(fs.lookup(&OpCtx::service(), root, b"f").unwrap().ino, ino);
        fs.read(&OpCtx::service(), ino, 0, bytes.len(), &mut &mut got[..]).unwrap();
    }
    assert_eq!(got, bytes);
}

#[test]
fn sync_writes_everything_back() {
    let lane = cached();
    let files: Vec<_> = (0..10).map(|n| lane.file(&format!("f{n}"), &pattern(5000, n))).collect();
    lane.vfs.sync(&OpCtx::service()).unwrap();
    assert_eq!(lane.vfs.stats().dirty_bytes, 0);
    for (n, file) in files.iter().enumerate() {
        assert_eq!(below(&lane, file.node()), pattern(5000, n as u64));
    }
}

#[test]
fn a_write_error_is_told_once_to_each_opening_and_loses_nothing() {
    let lane = cached();
    let bytes = pattern(8 * PAGE, 9);
    let first = lane.file("f", &bytes);
    let second = lane.open("f", O_RDWR).unwrap();
    lane.fs.fail_once(Call::Write, 0, Errno::EIO);
    assert_eq!(lane.vfs.sync(&OpCtx::service()), Err(Errno::EIO));
    assert_eq!(lane.vfs.stats().dirty_bytes, 8 * PAGE as u64, "kept");
    assert_eq!(read(&first, 0, bytes.len()), bytes);
    let later = lane.open("f", O_RDWR).unwrap();
    assert_eq!(first.fsync(&OpCtx::service(), false), Err(Errno::EIO));
    assert_eq!(first.fsync(&OpCtx::service(), false), Ok(()));
    assert_eq!(second.fsync(&OpCtx::service(), true), Err(Errno::EIO));
    assert_eq!(second.fsync(&OpCtx::service(), true), Ok(()));
    assert_eq!(later.fsync(&OpCtx::service(), false), Ok(()), "opened after it");
    assert_eq!(below(&lane, first.node()), bytes);
    assert_eq!(lane.vfs.stats().dirty_bytes, 0);
}

#[test]
fn a_full_libservice_fails_writers_instead_of_holding_them_for_ever() {
    let lane = small(64, 16, Duration::from_secs(3600));
    let file = lane.open("f", O_RDWR | O_CREAT).unwrap();
    lane.fs.limit_bytes(20 * PAGE as u64);
    let page = pattern(PAGE, 10);
    let mut written = 0;
    let errno = loop {
        match file.write(&OpCtx::service(), None, &mut &page[..]) {
            Ok(_) => written += 1,
            Err(errno) => break errno,
        }
        assert!(written < 100);
    };
    assert_eq!(errno, Errno::ENOSPC);
    assert!(written >= 20);
    let all = page.repeat(written);
    assert_eq!(read(&file, 0, all.len()), all, "nothing that was taken is lost");
    assert_eq!(file.fsync(&OpCtx::service(), false), Err(Errno::ENOSPC));
    lane.fs.limit_bytes(u64::MAX);
    assert_eq!(file.fsync(&OpCtx::service(), false), Ok(()), "space came back");
    assert_eq!(below(&lane, file.node()), all);
}

#[test]
fn writers_wait_while_too_much_is_dirty_and_go_on_when_it_is_written() {
    let lane = small(128, 16, Duration::from_secs(3600));
    let file = lane.file("f", &pattern(8 * PAGE, 11));
    lane.fs.block(Call::Write, true);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(&file, 8 * PAGE as u64, &pattern(12 * PAGE, 12)));
        lane.fs.await_blocked(1);
        eventually("throttled", || lane.vfs.stats().throttled == 1);
        // Readers and other writers within the limit are not held up.
        assert_eq!(read(&file, 0, PAGE).len(), PAGE);
        assert!(!writer.is_finished());
        lane.fs.block(Call::Write, false);
    });
    assert_eq!(size(&lane, file.node()), 20 * PAGE as u64);
}

#[test]
fn what_is_written_during_a_write_back_is_written_again() {
    let lane = cached();
    let file = lane.file("f", &[1; 2 * PAGE]);
    lane.fs.block(Call::Write, true);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| file.fsync(&OpCtx::service(), false));
        lane.fs.await_blocked(1);
        write(&file, 10, &[2; 10]);
        write(&file, 2 * PAGE as u64, &[3; 10]);
        lane.fs.block(Call::Write, false);
        sync.join().unwrap().unwrap();
    });
    let mut expected = vec![1; 2 * PAGE];
    expected[10..20].fill(2);
    expected.extend([3; 10]);
    assert_eq!(read(&file, 0, 3 * PAGE), expected);
    file.fsync(&OpCtx::service(), false).unwrap();
    assert_eq!(below(&lane, file.node()), expected);
    assert_eq!(lane.vfs.stats().dirty_bytes, 0);
}

/// Files that are written back together: one changes meanwhile, and is not told the older times.
#[test]
fn what_is_set_during_a_write_back_of_many_files_stays() {
    use polylane_vfs::fs::FileSystem;
    let lane = cached();
    let files: Vec<_> = (0..5).map(|n| lane.file(&format!("f{n}"), &[n; 3000])).collect();
    let told =
        || files.iter().map(|file| lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap());
    let before: Vec<_> = told().collect();
    let time = Time { sec: 77, nsec: 88 };
    let set = SetAttr { mtime: Some(SetTime::At(time)), perm: Some(0o600), ..SetAttr::default() };
    lane.fs.block(Call::Write, true);
    std::thread::scope(|scope| {
        let sync = scope.spawn(|| lane.vfs.sync(&OpCtx::service()));
        lane.fs.await_blocked(1);
        lane.vfs.setattr(&OpCtx::service(), files[2].node(), &set).unwrap();
        write(&files[3], 10, b"more");
        lane.fs.block(Call::Write, false);
        sync.join().unwrap().unwrap();
    });
    lane.vfs.sync(&OpCtx::service()).unwrap();
    assert_eq!(lane.vfs.stats().dirty_bytes, 0);
    for (at, (file, before)) in files.iter().zip(&before).enumerate() {
        let mut bytes = vec![at as u8; 3000];
        if at == 3 {
            bytes[10..14].copy_from_slice(b"more");
        }
        assert_eq!(below(&lane, file.node()), bytes);
        let now = lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap();
        let below = lane.fs.getattr(&OpCtx::service(), file.node().ino()).unwrap();
        assert_eq!((now.mtime, now.ctime, now.perm), (below.mtime, below.ctime, below.perm));
        match at {
            2 => assert_eq!((now.mtime, now.perm), (time, 0o600)),
            3 => assert!(now.mtime >= before.mtime),
            _ => assert_eq!((now.mtime, now.ctime), (before.mtime, before.ctime)),
        }
    }
}

#[test]
fn times_set_while_data_is_delayed_stay() {
    let lane = cached();
    let file = lane.file("f", b"data");
    let time = Time { sec: 77, nsec: 88 };
    let set = SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() };
    assert_eq!(lane.vfs.setattr(&OpCtx::service(), file.node(), &set).unwrap().mtime, time);
    assert_eq!(size(&lane, file.node()), 4, "what is delayed stays ours");
    file.fsync(&OpCtx::service(), false).unwrap();
    assert_eq!(lane.vfs.getattr(&OpCtx::service(), file.node()).unwrap().mtime, time);
    use polylane_vfs::fs::FileSystem;
    assert_eq!(lane.fs.getattr(&OpCtx::service(), file.node().ino()).unwrap().mtime, time);
}

#[test]
fn cutting_and_growing_leaves_zeros() {
    let lane = cached();
    let file = lane.file("f", &[7; 3 * PAGE]);
    let set = |size| {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(lane.vfs.setattr(&OpCtx::service(), file.node(), &set).unwrap().size, size);
    };
    set(PAGE as u64 + 10);
    assert_eq!(lane.vfs.stats().pages, 2);
    set(2 * PAGE as u64);
    let mut expected = vec![7; PAGE + 10];
    expected.resize(2 * PAGE, 0);
    assert_eq!(read(&file, 0, 4 * PAGE), expected);
    write(&file, 4 * PAGE as u64, b"end");
    expected.resize(4 * PAGE, 0);
    expected.extend(b"end");
    assert_eq!(read(&file, 0, 5 * PAGE), expected);
    file.fsync(&OpCtx::service(), false).unwrap();
    assert_eq!(below(&lane, file.node()), expected);
    assert_eq!(file.seek(&OpCtx::service(), PAGE as u64, SeekFor::Data), Ok(PAGE as u64));
    assert_eq!(file.seek(&OpCtx::service(), 0, SeekFor::Hole), Ok(2 * PAGE as u64));
}

#[test]
fn seek_sees_delayed_data() {
    let lane = cached();
    let file = lane.open("f", O_RDWR | O_CREAT).unwrap();
    write(&file, 5 * PAGE as u64, b"x");
    assert_eq!(file.seek(&OpCtx::service(), 0, SeekFor::Data), Ok(5 * PAGE as u64));
    assert_eq!(file.seek(&OpCtx::service(), 6 * PAGE as u64, SeekFor::Data), Err(Errno::ENXIO));
}

#[test]
fn an_unlinked_file_is_written_only_under_pressure() {
    let lane = cached();
    let file = lane.file("f", &[1; 10 * PAGE]);
    lane.unlink("f").unwrap();
    lane.vfs.sync(&OpCtx::service()).unwrap();
    assert_eq!(lane.fs.calls(Call::Write), 0, "nobody will ever find it");
    assert_eq!(read(&file, 0, PAGE), [1; PAGE]);
    let node = file.node().clone();
    lane.vfs.link(&OpCtx::service(), &node, &lane.root, b"again").unwrap_err();
    drop((file, node));
    let stats = lane.vfs.stats();
    assert_eq!((stats.pages, stats.dirty_bytes, stats.inodes), (0, 0, 1));
    // A file that is linked later must be kept.
    let hidden = lane.open(".", O_RDWR | O_TMPFILE).unwrap();
    write(&hidden, 0, b"kept");
    lane.vfs.link(&OpCtx::service(), hidden.node(), &lane.root, b"seen").unwrap();
    drop(hidden);
    assert_eq!(read(&lane.open("seen", O_RDONLY).unwrap(), 0, 9), b"kept");
}

/// Random reads, writes, truncations, holes and flushes against a vector of bytes, with a cache
/// that is much smaller than the file.
#[test]
fn random_operations_equal_a_vector() {
    for seed in 0..20 {
        let lane = small(64, 8, Duration::from_millis(1));
        let file = lane.open("f", O_RDWR | O_CREAT).unwrap();
        let mut rng = Rng::new(seed);
        let mut model: Vec<u8> = Vec::new();
        for step in 0..400 {
            let at = rng.below(300 * PAGE as u64) as usize;
            let len = 1 + rng.below(5 * PAGE as u64) as usize;
            match rng.below(100) {
                0..40 => {
                    let bytes = pattern(len, rng.next_u64());
                    write(&file, at as u64, &bytes);
                    model.resize(model.len().max(at + len), 0);
                    model[at..at + len].copy_from_slice(&bytes);
                }
                40..85 => {
                    let end = (at + len).min(model.len());
                    let expected = model.get(at..end).unwrap_or_default();
                    assert_eq!(read(&file, at as u64, len), expected, "seed {seed} step {step}");
                }
                85..90 => {
                    model.resize(at, 0);
                    let set = SetAttr { size: Some(at as u64), ..SetAttr::default() };
                    lane.vfs.setattr(&OpCtx::service(), file.node(), &set).unwrap();
                }
                90..95 => {
                    // Punch a hole, keeping the size.
                    file.fallocate(&OpCtx::service(), 3, at as u64, len as u64).unwrap();
                    let end = (at + len).min(model.len());
                    if at < end {
                        model[at..end].fill(0);
                    }
                }
                95..98 => file.fsync(&OpCtx::service(), true).unwrap(),
                _ => {
                    let to = rng.below(300 * PAGE as u64);
                    let (from, stop) = (at as u64, (at + len) as u64);
                    if to + len as u64 <= from || to >= stop {
                        let count = file
                            .copy_range(&OpCtx::service(), from, (&file, to), len as u64)
                            .unwrap() as usize;
                        let part = model.get(at..at + count).unwrap_or_default().to_vec();
                        let to = to as usize;
                        if count > 0 {
                            model.resize(model.len().max(to + count), 0);
                            model[to..to + count].copy_from_slice(&part);
                        }
                    }
                }
            }
            assert_eq!(size(&lane, file.node()), model.len() as u64, "seed {seed} step {step}");
        }
        file.fsync(&OpCtx::service(), false).unwrap();
        assert_eq!(below(&lane, file.node()), model, "seed {seed}");
    }
}

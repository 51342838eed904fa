//! The overlay: the contract of every device, copies against a model, power cuts at every event.

use std::sync::Arc;

use polylane_base::rng::Rng;
use polylane_block::device::{Allocation, BlockDevice, Error, SECTOR_BYTES, Sector};
use polylane_block::file::{FileDevice, Way};
use polylane_block::image;
use polylane_block::overlay::{Format, HEAD_SECTORS, Layout, Overlay};
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_sys::buffer::Buffer;
use polylane_testkit::block_suite;
use polylane_testkit::sim::{Crash, Fault, FaultOn, Image, SimDisk, SimOptions, Tear};

const SECTORS: u64 = 2048 + 3;

const FORMATS: [Format; 2] = [Format::V1, Format::V2];

fn layout(format: Format) -> Layout {
    Layout::new(format, SECTORS).expect("layout")
}

/// A base with a number of its own in every sector.
fn numbered(sectors: u64) -> Arc<RamDevice> {
    let base = Arc::new(RamDevice::new(sectors));
    let waiter = Waiter::new(base.clone());
    for sector in 0..sectors {
        let data = Buffer::copy_of(&[base_byte(sector); SECTOR_BYTES]);
        waiter.write(Sector(sector), data, false).expect("write");
    }
    base.set_read_only(true);
    base
}

fn base_byte(sector: u64) -> u8 {
    (sector % 251) as u8 + 1
}

#[test]
fn an_overlay_on_zeros_is_a_device_like_any_other() {
    let base = || Arc::new(RamDevice::new(SECTORS));
    for format in FORMATS {
        let total = layout(format).total();
        block_suite::run(&|| {
            Overlay::open(base(), Arc::new(RamDevice::new(total)), format).unwrap()
        });
        for seed in 0..3 {
            block_suite::run(&|| {
                let image = Image::zeroed(total as usize * SECTOR_BYTES);
                let options = SimOptions { delay: Some(seed), depth: 3, ..SimOptions::default() };
                let zeros = Image::zeroed(SECTORS as usize * SECTOR_BYTES);
                let base = SimDisk::new(zeros, options.clone());
                Overlay::open(base, SimDisk::new(image, options), format).unwrap()
            });
        }
    }
}

/// Random requests around the end of the head, against a model; the label stays as it is.
#[test]
fn requests_across_the_end_of_the_head_lie_behind_the_map_and_leave_the_label() {
    const LABEL: u8 = 0xa5;
    let layout = layout(Format::V2);
    for seed in 0..12 {
        let mut image = Image::zeroed(layout.total() as usize * SECTOR_BYTES);
        for sector in 0..layout.head {
            image.write(sector as usize * SECTOR_BYTES, &[LABEL; SECTOR_BYTES]);
        }
        let options = SimOptions { delay: Some(seed), depth: 2, ..SimOptions::default() };
        let top = SimDisk::new(image, options);
        let base = numbered(SECTORS);
        let overlay = Overlay::open(base, top.clone(), Format::V2).expect("open");
        let waiter = Waiter::new(overlay);
        let mut model: Vec<u8> = (0..SECTORS).map(base_byte).collect();
        let mut rng = Rng::new(seed);
        for step in 0..200u8 {
            let (start, count) = (HEAD_SECTORS - 20 + rng.below(24), rng.below(30) + 1);
            let range = start as usize..(start + count) as usize;
            match rng.below(4) {
                0 => {
                    waiter.write_zeroes(Sector(start), count, true).expect("zero");
                    model[range].fill(0);
                }
                1 => {
                    let bytes = count as usize * SECTOR_BYTES;
                    let found = waiter.read(Sector(start), bytes).expect("read");
                    let same = |(f, m): (&[u8], &u8)| f.iter().all(|byte| byte == m);
                    assert!(found.chunks(SECTOR_BYTES).zip(&model[range]).all(same), "{seed}");
                }
                _ => {
                    let data = Buffer::copy_of(&vec![step; count as usize * SECTOR_BYTES]);
                    waiter.write(Sector(start), data, rng.percent(20)).expect("write");
                    model[range].fill(step);
                }
            }
        }
        let raw = Waiter::new(top);
        let label = raw.read(Sector(0), layout.head as usize * SECTOR_BYTES).expect("label");
        assert!(label.iter().all(|byte| *byte == LABEL), "{seed}: the label was written to");
        let last = HEAD_SECTORS - 1;
        let moved = raw.read(layout.place(Sector(last)), SECTOR_BYTES).expect("head");
        assert_eq!(moved[0], model[last as usize], "{seed}");
    }
}

/// A sparse file of the host, as the top of an overlay.
fn sparse(format: Format) -> Arc<FileDevice> {
    let path = tempfile::NamedTempFile::new().expect("file").into_temp_path();
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
    file.set_len(layout(format).total() * SECTOR_BYTES as u64).expect("size");
    FileDevice::open(image::open(&path).expect("open"), Way::Ring).expect("device")
}

/// Blocks are given space, written, zeroed and given up in random order: what is read is a
/// model's, and what is said of their space agrees with it.
#[test]
fn space_for_blocks_of_the_base_changes_nothing_that_is_read() {
    for (format, seed) in FORMATS.into_iter().flat_map(|format| [(format, 1), (format, 2)]) {
        let overlay = Overlay::open(numbered(SECTORS), sparse(format), format).expect("open");
        let waiter = Waiter::new(overlay.clone());
        let mut model: Vec<u8> = (0..SECTORS).map(base_byte).collect();
        let mut rng = Rng::new(seed);
        for step in 0..300u32 {
            let start = rng.below(SECTORS);
            let count = (1 + rng.below(60)).min(SECTORS - start);
            let range = start as usize..(start + count) as usize;
            match rng.below(5) {
                0 | 1 => {
                    let before = overlay.blocks();
                    let given = overlay.reserve(Sector(start), count);
                    assert!(matches!(given, Ok(()) | Err(Error::Unsupported)), "{given:?}");
                    assert_eq!(overlay.blocks(), before, "{seed}: they are the base's still");
                }
                2 => {
                    let data = Buffer::copy_of(&vec![step as u8; count as usize * SECTOR_BYTES]);
                    waiter.write(Sector(start), data, rng.percent(20)).expect("write");
                    model[range].fill(step as u8);
                }
                3 => {
                    waiter.write_zeroes(Sector(start), count, rng.percent(50)).expect("zero");
                    model[range].fill(0);
                }
                _ => {
                    let (allocation, said) = overlay.allocation(Sector(start), count);
                    assert!((1..=count).contains(&said), "{seed}: {said} of {count}");
                    let of = &model[start as usize..(start + said) as usize];
                    let base = (start..start + said).map(base_byte);
                    match allocation {
                        Allocation::Hole => assert!(of.iter().all(|byte| *byte == 0), "{seed}"),
                        Allocation::Base => assert!(base.eq(of.iter().copied()), "{seed}"),
                        Allocation::Data => {}
                    }
                }
            }
            let found = waiter.read(Sector(0), SECTORS as usize * SECTOR_BYTES).expect("read");
            let same = |(f, m): (&[u8], &u8)| f.iter().all(|byte| byte == m);
            assert!(found.chunks(SECTOR_BYTES).zip(&model).all(same), "{seed}: step {step}");
        }
    }
}

#[test]
fn what_is_not_written_is_the_base_s_and_partial_writes_keep_the_rest() {
    FORMATS.into_iter().for_each(check_partial_writes);
}

fn check_partial_writes(format: Format) {
    let top = Arc::new(RamDevice::new(layout(format).total()));
    let base = numbered(SECTORS);
    let overlay = Overlay::open(base.clone(), top.clone(), format).expect("open");
    let waiter = Waiter::new(overlay.clone());
    for (sector, count) in [(3, 1), (15, 2), (40, 16), (100, 1), (2047, 4), (107, 9)] {
        let data = Buffer::copy_of(&vec![0xff; count * SECTOR_BYTES]);
        waiter.write(Sector(sector), data, sector == 100).expect("write");
    }
    waiter.discard(Sector(205), 20).expect("discard");
    waiter.flush().expect("flush");
    let expected: Vec<u8> = (0..SECTORS)
        .map(|sector| match sector {
            3 | 15 | 16 | 40..56 | 100 | 107..116 | 2047..2051 => 0xff,
            205..225 => 0,
            _ => base_byte(sector),
        })
        .collect();
    let own = overlay.blocks();
    assert!(own.0 > 5 && own.0 < 20, "{own:?}");
    drop((waiter, overlay));
    // Opened anew, everything comes from the medium.
    let overlay = Overlay::open(base.clone(), top, format).expect("open");
    assert_eq!(overlay.blocks(), own);
    let found =
        Waiter::new(overlay).read(Sector(0), SECTORS as usize * SECTOR_BYTES).expect("read");
    assert!(found.chunks(SECTOR_BYTES).zip(&expected).all(|(f, e)| f.iter().all(|b| b == e)));
    let kept = Waiter::new(base).read(Sector(0), SECTORS as usize * SECTOR_BYTES).expect("read");
    assert!(kept.chunks(SECTOR_BYTES).zip(0..).all(|(f, n)| f[0] == base_byte(n)), "the base");
}

#[test]
fn threads_that_change_parts_of_one_block_lose_nothing() {
    for round in 0..20 {
        let options = SimOptions { delay: Some(round), depth: 4, ..SimOptions::default() };
        let format = FORMATS[round as usize % 2];
        let image = Image::zeroed(layout(format).total() as usize * SECTOR_BYTES);
        let top = SimDisk::new(image, options);
        let overlay = Overlay::open(numbered(SECTORS), top, format).expect("open");
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let waiter = Waiter::new(overlay.clone());
                scope.spawn(move || {
                    for block in 0..20 {
                        let data = Buffer::copy_of(&[0xf0 + thread as u8; SECTOR_BYTES]);
                        waiter.write(Sector(block * 8 + thread), data, block % 7 == 0).unwrap();
                    }
                    waiter.flush().unwrap();
                });
            }
        });
        let found = Waiter::new(overlay).read(Sector(0), 160 * SECTOR_BYTES).expect("read");
        assert!(found.chunks(SECTOR_BYTES).zip(0..).all(|(f, n)| f[0] == 0xf0 + n as u8 % 8));
    }
}

/// Random writes, zeroings and flushes, cut at every event: each sector shows its last durable
/// content or a later one, as the contract says.
#[test]
fn after_a_power_cut_nothing_durable_is_lost_and_nothing_else_appears() {
    // With a head, across its end.
    for (format, start) in [(Format::V1, 0), (Format::V2, HEAD_SECTORS - 32)] {
        cut_everywhere(format, start);
    }
}

/// Requests to the 64 sectors from `start` on, of a device that ends there.
fn cut_everywhere(format: Format, start: u64) {
    const SMALL: u64 = 64;
    let layout = Layout::new(format, start + SMALL).expect("layout");
    let empty = Image::zeroed(layout.total() as usize * SECTOR_BYTES);
    for seed in 0..if start == 0 { 40 } else { 20 } {
        let options = SimOptions { record: true, ..SimOptions::default() };
        let disk = SimDisk::new(empty.clone(), options);
        let base = numbered(start + SMALL);
        let overlay = Overlay::open(base.clone(), disk.clone(), format).expect("open");
        let waiter = Waiter::new(overlay);
        let mut rng = Rng::new(seed);
        // For each sector, what it held since its last durable content; and, per event count, a
        // copy of that.
        let mut allowed: Vec<Vec<u8>> = (0..SMALL).map(|s| vec![base_byte(start + s)]).collect();
        let mut history = vec![(0, allowed.clone())];
        for step in 0..14u8 {
            let (sector, count) = (rng.below(SMALL - 12), rng.below(12) + 1);
            let fua = rng.percent(20);
            let flush = rng.percent(30);
            let value = if rng.percent(20) { 0 } else { 0x80 + step };
            let range = sector as usize..(sector + count) as usize;
            if !flush {
                allowed[range.clone()].iter_mut().for_each(|held| held.push(value));
            }
            // While it is under way, old and new are possible.
            history.push((disk.position(), allowed.clone()));
            match (flush, value) {
                (true, _) => waiter.flush().expect("flush"),
                (false, 0) => {
                    waiter.write_zeroes(Sector(start + sector), count, true).expect("zero");
                }
                (false, _) => {
                    let data = Buffer::copy_of(&vec![value; count as usize * SECTOR_BYTES]);
                    waiter.write(Sector(start + sector), data, fua).map(drop).expect("write");
                }
            }
            let durable = if flush { 0..SMALL as usize } else { range };
            if flush || (fua && value != 0) {
                allowed[durable].iter_mut().for_each(|held| drop(held.drain(..held.len() - 1)));
            }
            history.push((disk.position(), allowed.clone()));
        }
        check_cuts((&empty, &disk), &base, (format, start), &history, seed);
    }
}

fn check_cuts(
    (empty, disk): (&Image, &SimDisk),
    base: &Arc<RamDevice>,
    (format, start): (Format, u64),
    history: &[(usize, Vec<Vec<u8>>)],
    seed: u64,
) {
    let events = disk.events();
    let mut crash = Crash::new(empty, &events);
    let mut rng = Rng::new(seed ^ 0xc0de);
    let tear = Tear::at(SECTOR_BYTES);
    loop {
        let at = history.iter().rposition(|(position, _)| *position <= crash.position());
        let allowed = &history[at.expect("a state before")].1;
        for fates in crash.choices(&mut rng, 3, 3) {
            let image = crash.image(&tear, |index| fates[index]);
            let top = SimDisk::new(image, SimOptions::default());
            let overlay = Overlay::open(base.clone(), top, format).expect("open");
            let bytes = allowed.len() * SECTOR_BYTES;
            let found = Waiter::new(overlay).read(Sector(start), bytes).expect("read");
            for (sector, content) in found.chunks(SECTOR_BYTES).enumerate() {
                let held = &allowed[sector];
                let byte = content[0];
                assert!(
                    content.iter().all(|b| *b == byte) && held.contains(&byte),
                    "seed {seed} event {} sector {sector}: {byte:#x}, not of {held:x?}",
                    crash.position()
                );
            }
        }
        if crash.advance().is_none() {
            return;
        }
    }
}

#[test]
fn a_failed_part_fails_the_request_and_changes_nothing_else() {
    for on in [FaultOn::Write, FaultOn::Flush] {
        for nth in 0..3 {
            let format = FORMATS[nth as usize % 2];
            let image = Image::zeroed(layout(format).total() as usize * SECTOR_BYTES);
            let disk = SimDisk::new(image, SimOptions::default());
            let overlay = Overlay::open(numbered(SECTORS), disk.clone(), format).expect("open");
            let waiter = Waiter::new(overlay);
            disk.set_fault(Some(Fault::eio(on, nth)));
            let one = |byte| Buffer::copy_of(&[byte; SECTOR_BYTES]);
            let first = waiter.write(Sector(9), one(0xee), false).map(drop);
            let flushed = first.and_then(|()| waiter.flush());
            let failed = disk.failures() > 0;
            assert_eq!(flushed.is_err(), failed, "{on:?} {nth}: {flushed:?}");
            if let Ok(found) = waiter.read(Sector(8), 2 * SECTOR_BYTES) {
                assert_eq!(found[0], base_byte(8));
                assert!(found[SECTOR_BYTES] == 0xee || found[SECTOR_BYTES] == base_byte(9));
            }
        }
    }
}

#[test]
fn devices_that_do_not_fit_are_refused() {
    for format in FORMATS {
        let small = Arc::new(RamDevice::new(layout(format).total() - 1));
        let refused = Overlay::open(numbered(SECTORS), small, format).map(drop);
        assert_eq!(refused, Err(Error::OutOfRange));
        assert_eq!(Layout::new(format, u64::MAX), None);
        let gib = Layout::new(format, 2 << 20).expect("layout");
        assert_eq!(gib.map_count * SECTOR_BYTES as u64, 32 << 10);
    }
}

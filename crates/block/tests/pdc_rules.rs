//! Journal detectors on the requests of file systems and programs, with the journal known.

mod pdc_kit;

use pdc_kit::{BLOCK, Jbd2, MIB, Volume, XfsLog, fast_commits, mail, redo_log, xfs_mail};
use polylane_block::cache::pdc::score::Score;
use polylane_block::cache::pdc::{Admission, FlushSolo, Opening, Paper, Region, solo};

fn journal() -> Region {
    Region::at(512 * MIB, 64 * MIB)
}

fn volume(journal: Option<Region>) -> Volume<FlushSolo> {
    Volume::new(FlushSolo::default(), journal)
}

fn assert_found(score: Score, recall: f64, precision: f64) {
    let found = (score.recall().unwrap_or(0.0), score.precision().unwrap_or(0.0));
    assert!(found.0 >= recall && found.1 >= precision, "{found:?} of {score:?}");
}

#[test]
fn the_journal_of_ext4_is_found_over_many_laps() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    mail(&mut volume, &mut ext4, 12_000);
    assert_found(volume.score(), 0.99, 0.99);
    assert!(volume.score().lead_bytes < MIB, "{:?}", volume.score());
}

#[test]
fn a_device_with_fua_makes_no_difference() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    ext4.fua = true;
    mail(&mut volume, &mut ext4, 6_000);
    assert_found(volume.score(), 0.98, 0.99);
}

#[test]
fn data_in_the_journal_too() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    for round in 0..2_000 {
        let blocks = volume.rng.below(if round % 20 == 19 { 1000 } else { 40 }) + 2;
        let home = (volume.rng.below(16) * 64 * MIB + 1024 * MIB, 16 * BLOCK);
        ext4.commit(&mut volume, blocks, &[home]);
    }
    assert_found(volume.score(), 0.95, 0.99);
}

/// A stream through data=journal: a few transactions a lap, beside a checkpoint that never ends. No
/// epoch is solo but the superblock's.
#[test]
fn transactions_as_large_as_a_third_of_the_journal_are_found_in_the_second_lap() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    for _ in 0..60 {
        let blocks = volume.rng.below(1000) + 5000;
        let home = (volume.rng.below(64) * 16 * MIB + 1024 * MIB, MIB);
        ext4.commit(&mut volume, blocks, &[home]);
        ext4.update_superblock(&mut volume);
    }
    assert_found(volume.score(), 0.9, 1.0);
    assert!(volume.score().lead_bytes < 128 * MIB, "{:?}", volume.score());
}

/// Others write in every epoch: what is left are the commits in turn.
#[test]
fn commits_in_turn_are_found_without_solo_epochs() {
    let (mut volume, mut head) = (volume(Some(journal())), journal().first);
    for round in 0..400 {
        for bytes in [(2 + round % 7) * BLOCK, BLOCK] {
            let block = volume.rng.below(8192);
            volume.write(1024 * MIB + block * 16 * BLOCK, BLOCK);
            volume.write(head, bytes);
            volume.flush();
            head += bytes;
        }
    }
    assert_found(volume.score(), 0.95, 1.0);
}

/// Requests of a proven log may come in any order, and what lies on the log's end may be data that
/// goes on without a gap.
#[test]
fn the_inside_of_a_proven_log_is_its_own_and_what_follows_it_is_not() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    mail(&mut volume, &mut ext4, 6_000);
    for step in [40, 3, 17, 60] {
        assert_eq!(volume.write(journal().first + step * MIB, 64 * BLOCK), Admission::Bypass);
        assert_ne!(volume.write(journal().end + step * MIB, BLOCK), Admission::Bypass);
    }
    assert_ne!(volume.write(journal().end, BLOCK), Admission::Bypass);
}

/// mke2fs writes indirect blocks that the log of ext3 later leaves out; it does not go on there.
#[test]
fn blocks_written_where_a_log_leaves_out_some_do_not_continue_it() {
    let (mut volume, mut head) = (volume(Some(journal())), journal().first);
    for hole in (1..16).map(|index| journal().first + index * 4 * MIB) {
        volume.write(hole, BLOCK);
    }
    volume.flush();
    for _ in 0..3_000 {
        for bytes in [6 * BLOCK, BLOCK] {
            let hole = (head + bytes).next_multiple_of(4 * MIB).max(4 * MIB) - 4 * MIB;
            if head <= hole && hole < head + bytes {
                head = hole + BLOCK;
            }
            head = if head + bytes > journal().end { journal().first + BLOCK } else { head };
            volume.write(head, bytes);
            volume.flush();
            head += bytes;
        }
    }
    assert_found(volume.score(), 0.98, 1.0);
}

/// Small files that lie one behind the other, fsynced one by one, again and again, beside a log:
/// they come round like fast commits, but not after commits.
#[test]
fn small_files_written_again_in_turn_are_no_journal() {
    let mut volume = volume(None);
    for _ in 0..20 {
        for block in 0..300 {
            volume.write(64 * MIB + block * BLOCK, BLOCK);
            volume.flush();
        }
    }
    assert_eq!(volume.score().bypassed_bytes, 0);
}

#[test]
fn an_ext3_journal_has_holes() {
    // An indirect block every 4 MiB: the log leaves it out.
    let (mut volume, area) = (volume(Some(journal())), journal());
    let mut head = area.first;
    for _ in 0..2_000 {
        for (bytes, flush) in [(6 * BLOCK, true), (BLOCK, true)] {
            if (head - area.first) % (4 * MIB + BLOCK) + bytes > 4 * MIB {
                head = head.next_multiple_of(BLOCK) + 2 * BLOCK;
            }
            head = if head + bytes > area.end { area.first } else { head };
            volume.write(head, bytes);
            head += bytes;
            if flush {
                volume.flush();
            }
        }
    }
    assert_found(volume.score(), 0.98, 1.0);
}

#[test]
fn an_external_journal_is_found_by_both_rules() {
    let area = Region::at(0, 32 * MIB);
    let (mut solo, mut paper) = (volume(Some(area)), Volume::new(Paper::default(), Some(area)));
    let (mut one, mut other) = (Jbd2::new(area), Jbd2::new(area));
    for _ in 0..4_000 {
        let blocks = solo.rng.below(12) + 2;
        one.commit(&mut solo, blocks, &[]);
        other.commit(&mut paper, blocks, &[]);
        paper.sleep_us(50_000);
    }
    assert_found(solo.score(), 0.99, 1.0);
    assert_found(paper.score(), 0.5, 1.0);
    assert_eq!(paper.regions(), [Region { first: 0, end: u64::MAX }]);
}

#[test]
fn the_log_of_xfs_is_found_among_files_that_are_fsynced() {
    let (mut volume, mut xfs) = (volume(Some(journal())), XfsLog::new(journal()));
    xfs_mail(&mut volume, &mut xfs, 8_000);
    assert_found(volume.score(), 0.97, 0.97);
}

/// On sectors of 4 KiB nothing in the addresses is a journal's: what the records begin with is.
#[test]
fn the_log_of_xfs_on_large_sectors_is_found_by_its_records() {
    for (opening, found) in [(Opening::XfsRecord, true), (Opening::Unknown, false)] {
        let (mut volume, mut xfs) = (volume(Some(journal())), XfsLog::new(journal()));
        (xfs.piece_sectors, xfs.opening) = (8, opening);
        xfs_mail(&mut volume, &mut xfs, 8_000);
        match found {
            true => assert_found(volume.score(), 0.97, 0.97),
            false => assert_eq!(volume.score().bypassed_bytes, 0),
        }
    }
}

/// First bytes, and which of them say what it is.
const OPENINGS: [(Opening, [u8; 12], &[usize]); 5] = [
    (
        Opening::XfsRecord,
        [0xfe, 0xed, 0xba, 0xbe, 0, 0, 0, 7, 0, 0, 0, 2],
        &[0, 1, 2, 3, 8, 9, 10, 11],
    ),
    (
        Opening::JournalBlocks,
        [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 5, 9, 9, 9, 9],
        &[0, 1, 2, 3, 4, 5, 6, 7],
    ),
    (
        Opening::JournalCommit,
        [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2, 0, 0, 0, 9],
        &[0, 1, 2, 3, 4, 5, 6, 7],
    ),
    (
        Opening::JournalSuperblock,
        [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 4, 0, 0, 0, 0],
        &[0, 1, 2, 3, 4, 5, 6, 7],
    ),
    (Opening::FastCommit, [9, 0, 8, 0, 0, 0, 0, 0, 7, 0, 0, 0], &[0, 1, 2, 3, 4, 5, 6, 7]),
];

#[test]
fn a_journal_s_block_is_known_by_its_first_bytes() {
    for (opening, bytes, telling) in OPENINGS {
        assert_eq!(Opening::of(&bytes), opening);
        assert_eq!(Opening::of(&[&bytes[..], &[1; 4]].concat()), opening);
        assert_eq!(Opening::of(&bytes[..11]), Opening::Unknown);
        for at in telling {
            let mut other = bytes;
            other[*at] ^= 0x40;
            assert_eq!(Opening::of(&other), Opening::Unknown, "{opening:?}, byte {at}");
        }
        assert_eq!(Opening::named(opening.name()), opening);
    }
    assert_eq!(Opening::of(&[]), Opening::Unknown);
    assert_eq!(Opening::of(&[9, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Opening::Unknown);
    assert_eq!((Opening::named("other"), Opening::Unknown.name()), (Opening::Unknown, ""));
}

/// A file that holds records, written where it was made: they come in pieces that hold many.
#[test]
fn a_copy_of_a_log_is_not_a_journal() {
    let mut volume = volume(None);
    let mut at = 0;
    for _ in 0..200 {
        volume.write_opening(at, MIB, Opening::XfsRecord);
        volume.flush();
        at += MIB;
    }
    assert_eq!(volume.score().bypassed_bytes, 0);
}

#[test]
fn fast_commits_are_found() {
    let area = Region { first: journal().first, end: journal().end + 256 * BLOCK };
    let (mut volume, mut ext4) = (volume(Some(area)), Jbd2::new(journal()));
    fast_commits(&mut volume, &mut ext4, 8_000);
    assert_found(volume.score(), 0.85, 0.98);
}

/// What the blocks of jbd2 begin with says more than its turns: one commit is enough.
#[test]
fn a_log_that_names_itself_is_found_at_its_first_commit() {
    for (fua, blocks) in [(false, 3), (true, 3), (false, 4000)] {
        let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
        (ext4.headers, ext4.fua) = (true, fua);
        ext4.commit(&mut volume, blocks, &[(2048 * MIB, BLOCK)]);
        let lead = (1 + blocks) * BLOCK;
        assert_eq!(volume.score().lead_bytes, lead, "{blocks} blocks, FUA {fua}");
        assert_eq!(volume.regions(), [Region::at(journal().first + BLOCK, lead + BLOCK)]);
        mail(&mut volume, &mut ext4, 8_000);
        let score = volume.score();
        assert_found(score, 0.94, 0.99);
        assert!(score.recall_after_lead() > Some(0.99), "{score:?}");
    }
}

/// jbd2 writes its superblock before the first transaction, which lies right behind it: nothing of
/// the log is missed, however few commits there are.
#[test]
fn a_log_behind_its_superblock_is_found_at_its_first_write() {
    for rewritten in [0, 1, 5] {
        let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
        ext4.headers = true;
        (0..=rewritten).for_each(|_| ext4.update_superblock(&mut volume));
        ext4.commit(&mut volume, 1000, &[(2048 * MIB, BLOCK)]);
        let score = volume.score();
        assert_eq!(score.lead_bytes, (1 + rewritten) * BLOCK, "{score:?}");
        assert_eq!(score.hit_bytes, 1002 * BLOCK, "{score:?}");
        mail(&mut volume, &mut ext4, 8_000);
        assert_found(volume.score(), 0.99, 1.0);
    }
}

/// What lies right before the superblock was written, too, when the file system was made.
#[test]
fn a_superblock_behind_other_blocks_is_one_when_they_rest() {
    for (epochs, found) in [(0, false), (1, false), (3, true)] {
        let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
        ext4.headers = true;
        volume.write(journal().first - 8 * BLOCK, 8 * BLOCK);
        for epoch in 0..epochs {
            volume.flush();
            volume.write(epoch * 64 * BLOCK, BLOCK);
        }
        volume.write_opening(journal().first, BLOCK, Opening::JournalSuperblock);
        ext4.commit(&mut volume, 30, &[]);
        let score = volume.score();
        let lead = if found { BLOCK } else { 32 * BLOCK };
        assert_eq!(score.lead_bytes, lead, "{epochs} epochs: {score:?}");
    }
}

/// The superblock of an external journal lies behind that of its device; both are written in turn.
#[test]
fn a_superblock_behind_another_one_is_known() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    ext4.headers = true;
    for _ in 0..3 {
        ext4.update_superblock(&mut volume);
        volume.write(journal().first - BLOCK, BLOCK);
        volume.flush();
    }
    ext4.update_superblock(&mut volume);
    ext4.commit(&mut volume, 20, &[]);
    let score = volume.score();
    assert_eq!(score.lead_bytes, 4 * BLOCK, "{score:?}");
    mail(&mut volume, &mut ext4, 2_000);
    assert_found(volume.score(), 0.99, 1.0);
}

/// A transaction that fills the end of the log and goes on at its beginning: the end is the log's
/// in the next lap, though no commit lies there.
#[test]
fn transactions_that_come_round_leave_no_hole_at_the_end() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    ext4.headers = true;
    ext4.update_superblock(&mut volume);
    for _ in 0..60 {
        ext4.commit(&mut volume, 3000, &[]);
    }
    assert_found(volume.score(), 0.999, 1.0);
}

/// An image copied in pieces of a block: its log's superblock, and what follows that, lie in the
/// middle of the copy.
#[test]
fn a_copy_of_a_superblock_and_its_log_is_not_a_journal() {
    let mut volume = volume(None);
    for number in 0..20_000 {
        let opening = match number % 1000 {
            500 => Opening::JournalSuperblock,
            501 => Opening::JournalBlocks,
            _ => Opening::Unknown,
        };
        volume.write_opening(number * BLOCK, BLOCK, opening);
        if number % 64 == 0 {
            volume.flush();
        }
    }
    assert_eq!(volume.score().bypassed_bytes, 0);
}

#[test]
fn fast_commits_that_name_themselves_are_found_at_once() {
    let area = Region { first: journal().first, end: journal().end + 256 * BLOCK };
    let (mut volume, mut ext4) = (volume(Some(area)), Jbd2::new(journal()));
    ext4.headers = true;
    ext4.commit(&mut volume, 8, &[]);
    fast_commits(&mut volume, &mut ext4, 60);
    let found = volume.score();
    assert!(found.journal_bytes - found.hit_bytes <= (9 + 2) * BLOCK, "{found:?}");
    ext4.commit(&mut volume, 8, &[]);
    fast_commits(&mut volume, &mut ext4, 8_000);
    assert_found(volume.score(), 0.98, 0.99);
}

/// A database that syncs has whole commits now and then; fast commits between them are one block or
/// many.
#[test]
fn fast_commits_of_any_length_are_found() {
    let area = Region { first: journal().first, end: journal().end + 256 * BLOCK };
    let (mut volume, mut ext4) = (volume(Some(area)), Jbd2::new(journal()));
    ext4.headers = true;
    ext4.update_superblock(&mut volume);
    for count in [1, 2, 1, 1, 3, 200, 1, 256, 1, 1, 1, 1, 1, 1, 1, 1, 1, 40] {
        ext4.commit(&mut volume, 8, &[]);
        for number in 0..count {
            let data = volume.rng.below(1000) * BLOCK;
            volume.write(2048 * MIB + data, BLOCK);
            volume.flush();
            let head = if number == 0 { Opening::FastCommit } else { Opening::Unknown };
            volume.write_opening(journal().end + number * BLOCK, BLOCK, head);
            volume.flush();
        }
    }
    let score = volume.score();
    assert!(score.journal_bytes - score.hit_bytes <= 3 * BLOCK, "{score:?}");
    assert_eq!(score.hit_bytes, score.bypassed_bytes);
}

/// The first blocks of transactions, or of fast commits, in files: copies of logs in pieces of one
/// size, each made durable, and an image copied in large ones.
#[test]
fn copies_of_logs_that_name_themselves_are_not_journals() {
    for bytes in [BLOCK, 2 * BLOCK, 64 << 10, MIB] {
        let mut volume = volume(None);
        for number in 0..2000 {
            let opening = match number % 7 {
                0 => Opening::JournalBlocks,
                5 => Opening::JournalCommit,
                6 => Opening::FastCommit,
                _ => Opening::Unknown,
            };
            volume.write_opening(number * bytes, bytes, opening);
            volume.flush();
        }
        assert_eq!(volume.score().bypassed_bytes, 0, "pieces of {bytes} bytes");
    }
}

#[test]
fn logs_of_programs_are_not_journals() {
    for tail in [false, true] {
        let mut volume = volume(None);
        redo_log(&mut volume, Region::at(256 * MIB, 16 * MIB), 20_000, tail);
        assert_eq!(volume.score().bypassed_bytes, 0, "tail {tail}");
        assert!(volume.score().cold_bytes > 0, "tail {tail}: it is append-like");
    }
}

#[test]
fn a_log_of_a_program_beside_a_journal_leaves_it_alone() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    for _ in 0..40 {
        redo_log(&mut volume, Region::at(2048 * MIB, 16 * MIB), 100, false);
        mail(&mut volume, &mut ext4, 50);
    }
    assert_found(volume.score(), 0.95, 0.99);
}

#[test]
fn writers_that_fsync_in_turn_are_not_journals() {
    let mut volume = volume(None);
    let mut heads = [0, 1, 2].map(|writer| writer * 512 * MIB);
    for _ in 0..20_000 {
        let (writer, length) = (volume.rng.below(3) as usize, BLOCK * (1 + volume.rng.below(4)));
        volume.write(heads[writer], length);
        volume.flush();
        heads[writer] += length;
    }
    assert_eq!(volume.score().bypassed_bytes, 0);
}

#[test]
fn streams_copies_and_compactions_are_not_journals() {
    let mut volume = volume(None);
    let (mut stream, mut source) = (0, 4096 * MIB);
    for round in 0..4_000 {
        volume.write(stream, MIB);
        stream += MIB;
        volume.read(source, MIB);
        source += MIB;
        if round % 8 == 7 {
            volume.flush();
        }
    }
    assert_eq!((volume.score().bypassed_bytes, volume.regions()), (0, vec![]));
}

#[test]
fn copy_on_write_has_no_fixed_log() {
    // btrfs: tree blocks wherever there is room, flush, superblocks in place, flush.
    let mut volume = volume(None);
    for _ in 0..10_000 {
        let mut at = volume.rng.below(1 << 20) * 4 * BLOCK;
        for _ in 0..volume.rng.below(8) + 1 {
            volume.write(at, 4 * BLOCK);
            at += 4 * BLOCK;
        }
        volume.flush();
        volume.write(64 << 10, BLOCK);
        volume.flush();
    }
    assert_eq!(volume.score().bypassed_bytes, 0);
}

#[test]
fn a_rollback_journal_that_is_made_anew_is_not_a_journal() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    for _ in 0..3_000 {
        let file = 128 * MIB + volume.rng.below(4) * 64 * BLOCK;
        let pages = 2 + volume.rng.below(8);
        ext4.commit(&mut volume, 4, &[(file, pages * BLOCK)]);
        volume.write(file, BLOCK);
        volume.flush();
        let page = volume.rng.below(4096);
        volume.write(page * BLOCK, BLOCK);
        volume.flush();
    }
    assert_found(volume.score(), 0.98, 0.99);
}

#[test]
fn data_behind_the_end_of_a_journal_is_not_its() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    mail(&mut volume, &mut ext4, 3_000);
    let mut file = journal().end;
    for _ in 0..200 {
        volume.write(file, MIB);
        file += MIB;
        mail(&mut volume, &mut ext4, 10);
    }
    assert_found(volume.score(), 0.98, 0.98);
}

#[test]
fn a_journal_that_is_read_or_discarded_is_one_no_longer() {
    for discard in [false, true] {
        let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
        mail(&mut volume, &mut ext4, 200);
        assert_eq!(volume.regions().len(), 1);
        match discard {
            true => volume.discard(0, 4096 * MIB),
            false => {
                for _ in 0..=solo::marks::READ_COUNT_MAX {
                    volume.read(journal().first, 8 * BLOCK);
                }
            }
        }
        assert_eq!(volume.regions(), []);
        assert_ne!(volume.write(journal().first + BLOCK, BLOCK), Admission::Bypass);
        // It proves itself anew.
        mail(&mut volume, &mut ext4, 200);
        assert_eq!(volume.regions().len(), 1, "discard {discard}");
    }
}

#[test]
fn a_region_of_the_last_use_is_hot_from_the_first_write() {
    let mut volume = Volume::new(FlushSolo::with_regions(&[journal()]), Some(journal()));
    (0..9).for_each(|block| volume.read(journal().first + block * BLOCK, BLOCK));
    assert_eq!(volume.write(journal().first, 2 * BLOCK), Admission::Bypass);
    assert_eq!(volume.write(journal().first + 2 * BLOCK, BLOCK), Admission::Bypass);
}

/// A log goes on where it was when the service died; what else is written there is not the log's,
/// until a commit proves that the region is still what it was.
#[test]
fn a_region_of_the_last_use_goes_on_anywhere_but_once() {
    let mut volume = Volume::new(FlushSolo::with_regions(&[journal()]), Some(journal()));
    let middle = journal().first + 40 * MIB;
    let elsewhere = journal().first + 20 * MIB;
    assert_eq!(volume.write(middle, 2 * BLOCK), Admission::Bypass);
    assert_eq!(volume.write(elsewhere, BLOCK), Admission::Normal);
    volume.flush();
    assert_eq!(volume.write(middle + 2 * BLOCK, BLOCK), Admission::Bypass);
    volume.flush();
    assert_eq!(volume.write(elsewhere, BLOCK), Admission::Bypass);
    assert_eq!(volume.write(middle + 3 * BLOCK, BLOCK), Admission::Bypass);
    assert_eq!(volume.regions(), [journal()]);
}

#[test]
fn a_region_that_is_none_any_more_is_given_up() {
    let mut volume = Volume::new(FlushSolo::with_regions(&[journal()]), None);
    // Files lie there now: a stream, and blocks here and there.
    for round in 0..600 {
        volume.write(journal().first + round * MIB / 4, MIB / 4);
        let block = volume.rng.below(8192);
        volume.write(journal().end + block * BLOCK, BLOCK);
        volume.flush();
    }
    assert_eq!(volume.regions(), []);
    assert!(volume.score().bypassed_bytes <= 65 * MIB, "{:?}", volume.score());
    // What the last use left may be anything.
    for known in [Region { first: 9, end: 9 }, Region { first: 9, end: 1 }, Region::at(0, u64::MAX)]
    {
        let mut volume = Volume::new(FlushSolo::with_regions(&[known]), None);
        volume.write(0, BLOCK);
        volume.write(u64::MAX - BLOCK, BLOCK);
    }
}

#[test]
fn random_writes_do_not_push_a_journal_out() {
    let (mut volume, mut ext4) = (volume(Some(journal())), Jbd2::new(journal()));
    for _ in 0..300 {
        for _ in 0..5_000 {
            let block = volume.rng.below(1 << 22);
            volume.write(4096 * MIB + block * BLOCK, BLOCK);
        }
        mail(&mut volume, &mut ext4, 4);
    }
    assert_found(volume.score(), 0.9, 0.99);
}

#[test]
fn hostile_ranges_are_borne() {
    let mut volume = volume(None);
    for (offset, length) in
        [(0, 0), (u64::MAX, 1), (u64::MAX - 4, 4096), (u64::MAX - 4096, 1 << 20)]
    {
        [Opening::Unknown, Opening::JournalBlocks, Opening::JournalCommit, Opening::FastCommit]
            .into_iter()
            .for_each(|opening| {
                volume.write_fua(offset, length, opening);
            });
        volume.write(offset, length);
        volume.read(offset, length);
        volume.discard(offset, length);
        volume.flush();
    }
    assert_eq!(volume.regions(), []);
}

#[test]
fn the_paper_marks_a_loop_after_its_first_lap_and_unmarks_it_when_read() {
    let mut volume = Volume::new(Paper::default(), Some(Region::at(MIB, 8 * MIB)));
    let lap = |volume: &mut Volume<Paper>| {
        (0..2048).map(|block| volume.write(MIB + block * BLOCK, BLOCK)).collect::<Vec<_>>()
    };
    assert!(lap(&mut volume).iter().all(|admission| *admission == Admission::Normal));
    assert!(lap(&mut volume).iter().all(|admission| *admission == Admission::Bypass));
    assert_eq!(volume.regions(), [Region::at(MIB, 8 * MIB)]);
    volume.read(2 * MIB, BLOCK);
    assert_eq!(volume.regions(), []);
}

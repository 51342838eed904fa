//! Logs of which something is damaged: what a power cut leaves is passed over, damage of what was
//! durable is refused, in every kind of block, with each kind of checksums. And logs that hold
//! another geometry than the superblock at its place.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use polylane_base::TestClock;
use polylane_ext4::format::journal::JournalIncompat;
use polylane_ext4::{Error, Ext4, Options};
use polylane_vfs::OpCtx;
use tempfile::NamedTempFile;

use crate::common::{
    self, BLOCK,
    author::{Kind, Part, Transaction, write},
};

/// A block that no file has.
const PLACE: u64 = 5500;

/// Size of the images.
const MIB: u64 = 24;

fn image() -> NamedTempFile {
    let image = NamedTempFile::new().expect("temporary file");
    std::fs::write(image.path(), common::image(MIB, common::LANE)).expect("written");
    image
}

fn transaction(value: u8, seconds: u64) -> Transaction {
    let blocks = vec![(PLACE, vec![value; BLOCK]), (PLACE + u64::from(value), vec![value; BLOCK])];
    Transaction { blocks, revoked: vec![PLACE + 100], seconds }
}

/// What the image's blocks at [`PLACE`] are once it was opened and closed, or why it was refused.
fn opened(image: &Path) -> Result<u8, Error> {
    let device = common::load(&std::fs::read(image).expect("readable"));
    let clock = std::sync::Arc::new(TestClock::default());
    let fs = Ext4::open(device.clone(), clock, &Options::default());
    fs?.close().expect("closes");
    assert_eq!(common::complaints(&device), None);
    let saved = common::save(&device);
    Ok(block(saved.path(), PLACE)[9])
}

fn block(image: &Path, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let file = std::fs::File::open(image).expect("readable");
    file.read_exact_at(&mut bytes, number * BLOCK as u64).expect("inside");
    bytes
}

/// Changes one byte of a block.
fn damage(image: &Path, at: u64, offset: u64) {
    let file = std::fs::File::options().read(true).write(true).open(image).expect("writable");
    let (mut byte, place) = ([0], at * BLOCK as u64 + offset);
    file.read_exact_at(&mut byte, place).expect("inside");
    file.write_all_at(&[byte[0] ^ 0x40], place).expect("inside");
}

/// Where bytes lie of which a checksum tells, in a part of a transaction.
fn offsets(kind: Kind) -> &'static [u64] {
    match kind {
        // The last one but one: a tag's number; its flags are at 16.
        Kind::Descriptor => &[3000, 15, 19],
        Kind::Revoke => &[3000, 20],
        Kind::Data => &[9, 4000],
        Kind::Commit => &[0x11, 0x39],
    }
}

fn each_kind_of_sums(run: impl Fn(JournalIncompat, &str)) {
    if common::have_tools() {
        run(JournalIncompat::CSUM_V3, "v3");
        run(JournalIncompat::CSUM_V2, "v2");
    }
}

#[test]
fn damage_of_a_durable_transaction_is_refused() {
    each_kind_of_sums(|sums, name| {
        let pristine = image();
        let three = [transaction(1, 100), transaction(2, 110), transaction(3, 120)];
        let parts = write(pristine.path(), sums, &three);
        assert_eq!(opened(pristine.path()), Ok(3), "{name}: whole");
        for Part { kind, transaction, home } in parts {
            for offset in offsets(kind) {
                let copy = NamedTempFile::new().expect("temporary file");
                std::fs::copy(pristine.path(), copy.path()).expect("copied");
                damage(copy.path(), home, *offset);
                let what = format!("{name}: {kind:?} of transaction {transaction} at {offset}");
                match opened(copy.path()) {
                    Err(Error::Corrupt(corrupt)) => {
                        assert!(corrupt.to_string().contains("checksum"), "{what}: {corrupt}");
                    }
                    other => panic!("{what}: {other:?}"),
                }
            }
        }
    });
}

#[test]
fn what_a_power_cut_left_is_passed_over() {
    each_kind_of_sums(|sums, name| {
        let three = [transaction(1, 100), transaction(2, 110), transaction(3, 120)];
        for damaged in [None, Some(Kind::Descriptor), Some(Kind::Revoke), Some(Kind::Data)] {
            let image = image();
            let parts = write(image.path(), sums, &three);
            let is = |part: &&Part, kind| part.transaction == 2 && part.kind == kind;
            let commit = parts.iter().find(|part| is(part, Kind::Commit)).expect("there").home;
            let file = std::fs::File::options().write(true).open(image.path()).expect("writable");
            file.write_all_at(&[0; BLOCK], commit * BLOCK as u64).expect("inside");
            if let Some(kind) = damaged {
                let part = parts.iter().find(|part| is(part, kind)).expect("there");
                damage(image.path(), part.home, 3000);
            }
            assert_eq!(opened(image.path()), Ok(2), "{name}: {damaged:?}");
        }
    });
}

/// A commit block of which the first sector was written alone: what it ends is durable.
#[test]
fn a_torn_commit_block_counts() {
    each_kind_of_sums(|sums, name| {
        let image = image();
        let parts = write(image.path(), sums, &[transaction(1, 100), transaction(2, 110)]);
        let commit = parts.iter().rfind(|part| part.kind == Kind::Commit).expect("there").home;
        damage(image.path(), commit, 2000);
        assert_eq!(opened(image.path()), Ok(2), "{name}");
    });
}

/// Numbers come twice where a journal was made anew over an old one: times tell.
#[test]
fn a_relic_of_a_former_journal_is_no_damage() {
    each_kind_of_sums(|sums, name| {
        for kind in [Kind::Descriptor, Kind::Commit] {
            let image = image();
            let parts = write(image.path(), sums, &[transaction(1, 100), transaction(2, 90)]);
            let part = parts.iter().find(|part| part.transaction == 1 && part.kind == kind);
            damage(image.path(), part.expect("there").home, 0x11);
            assert_eq!(opened(image.path()), Ok(1), "{name}: {kind:?}");
        }
    });
}

/// Where the first block of the log bears the number that the next transaction gets, and the power
/// goes before that is written, the relic is not taken for it.
#[test]
fn a_relic_where_the_log_begins_is_not_taken_for_the_next_transaction() {
    each_kind_of_sums(|sums, name| {
        let image = image();
        let parts = write(image.path(), sums, &[transaction(1, 100)]);
        damage(image.path(), parts[0].home, 3000);
        common::author::empty(image.path());
        let device = common::load(&std::fs::read(image.path()).expect("readable"));
        // Dropped, not closed: as after a power cut.
        drop(common::open(&device));
        let cut = common::save(&device);
        assert_eq!(opened(cut.path()), Ok(0), "{name}");
    });
}

fn run(program: &str, args: &[&str], image: &Path) {
    let done = Command::new(program).args(args).arg(image).output().expect("runs");
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

/// An image that was grown, and the power went before the log was checkpointed: all that changed is
/// in the log, or what lies behind the old end is at its place already.
#[test]
fn the_geometry_is_read_after_replay() {
    if !common::have_tools() {
        return;
    }
    const GROWN_MIB: u64 = 160;
    for is_behind_home in [false, true] {
        let (small, grown) = (image(), image());
        for image in [&small, &grown] {
            image.as_file().set_len(GROWN_MIB << 20).expect("sparse file");
        }
        std::fs::copy(small.path(), grown.path()).expect("copied");
        run("resize2fs", &["-f"], grown.path());
        let old_end = (MIB << 20) / BLOCK as u64;
        let (old, new) = (std::fs::read(small.path()), std::fs::read(grown.path()));
        let (old, new) = (old.expect("readable"), new.expect("readable"));
        let both = old.chunks(BLOCK).zip(new.chunks(BLOCK)).zip(0u64..);
        let changed = both
            .filter(|((old, new), _)| old != new)
            .map(|((_, new), number)| (number, new.to_vec()));
        let (home, logged): (Vec<_>, Vec<_>) =
            changed.partition(|(number, _)| is_behind_home && *number >= old_end);
        let file = std::fs::File::options().write(true).open(small.path()).expect("writable");
        for (number, bytes) in home {
            file.write_all_at(&bytes, number * BLOCK as u64).expect("inside");
        }
        let all = Transaction { blocks: logged, revoked: Vec::new(), seconds: 100 };
        write(small.path(), JournalIncompat::CSUM_V3, &[all]);
        let device = common::load(&std::fs::read(small.path()).expect("readable"));
        let fs = common::open(&device);
        let total =
            polylane_vfs::fs::FileSystem::statfs(&*fs, &OpCtx::service()).expect("totals").blocks;
        assert!(total > 2 * old_end, "{is_behind_home}: {total} blocks");
        fs.close().expect("closes");
        assert_eq!(common::complaints(&device), None, "{is_behind_home}");
    }
}

//! Small synced writes: what databases, mail servers and brokers do all day.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{BLOCK, Step, filled};

/// One record of a log.
const RECORD: [u8; 1024] = [0x61; 1024];

/// A log of records begins anew at this size.
const LOG_BYTES: u64 = 16 << 20;

/// One page of a database.
const PAGE: [u8; 8192] = [0x62; 8192];

/// Pages of the file that is overwritten.
const PAGES: u64 = 2048;

/// What a sync of the first lap writes: about as much as a file system still puts into its journal.
static LAP: [u8; 60 << 10] = [0x63; 60 << 10];

/// Appends 1 KiB, fdatasync.
pub(super) fn append(dir: &Path, _: u64) -> io::Result<Step> {
    let mut file = OpenOptions::new().append(true).create(true).open(dir.join("log"))?;
    Ok(Box::new(move |index| {
        if index % (LOG_BYTES / RECORD.len() as u64) == 0 {
            file.set_len(0)?;
        }
        file.write_all(&RECORD)?;
        file.sync_data()
    }))
}

/// Overwrites 8 KiB of a file whose blocks are all written, fdatasync.
pub(super) fn overwrite(dir: &Path, _: u64) -> io::Result<Step> {
    let (_, file) = filled(dir, PAGES * PAGE.len() as u64)?;
    file.sync_all()?;
    Ok(Box::new(move |index| {
        // Coprime to the number of pages: every page comes up.
        let page = index.wrapping_mul(607) % PAGES;
        file.write_all_at(&PAGE, page * PAGE.len() as u64)?;
        file.sync_data()
    }))
}

/// Makes a file of 4 KiB durable, gives it the name of another, makes the name durable.
pub(super) fn publish(dir: &Path, _: u64) -> io::Result<Step> {
    let (temporary, published) = (dir.join("record.tmp"), dir.join("record"));
    let (parent, block) = (File::open(dir)?, [0x64; BLOCK]);
    Ok(Box::new(move |_| {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        file.write_all(&block)?;
        file.sync_all()?;
        fs::rename(&temporary, &published)?;
        parent.sync_all()
    }))
}

/// Takes a journal past its first lap: fsync saves times too, so it commits each time.
pub(super) fn lap(dir: &Path, _: u64) -> io::Result<Step> {
    let file = File::create(dir.join("lap"))?;
    let places = LOG_BYTES / LAP.len() as u64;
    Ok(Box::new(move |index| {
        file.write_all_at(&LAP, index % places * LAP.len() as u64)?;
        file.sync_all()
    }))
}

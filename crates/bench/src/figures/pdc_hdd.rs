//! `pdc-hdd`: the load of `pdc-fig6` and `pdc-fig7` with a slow disk below, which is emulated.
//!
//! All of it is in this process: our own ext4 without a page cache of its own, in front of the
//! cache, in front of [`SlowDisk`]. So a guest's cache hides no read, and nothing but the model
//! takes time that counts.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use polylane_base::SystemClock;
use polylane_base::rng::Rng;
use polylane_block::cache::own::OwnStore;
use polylane_block::cache::{Cached, Mode, Store};
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_block::{BlockDevice, Sector};
use polylane_ext4::Ext4;
use polylane_sys::buffer::Buffer;
use polylane_vfs::{Cred, OpCtx, OpenFile, Options as VfsOptions, PathError, Vfs};

use crate::report::{Better, Report};
use crate::slow_disk::{DISK_SECTORS, Mechanics, SlowDisk};
use crate::{Options, progress};

const VOLUME_BYTES: u64 = 128 << 20;
/// Half of the journal, so that a cache that keeps it keeps little else.
const CACHE_BYTES: u64 = 8 << 20;
/// Files that a thread keeps, as in `pdc-fig6`.
const FILES: u64 = 64;

const SYSTEMS: [(&str, Mode); 3] =
    [("NONE", Mode::None), ("WB", Mode::Writeback), ("PDC", Mode::Pdc)];

/// Guests, and threads in each.
const POINTS: [(u64, u64); 4] = [(1, 1), (1, 4), (1, 16), (4, 4)];

/// Mails per second by cache mode.
///
/// # Errors
/// mke2fs is missing, or memory.
pub fn run(options: &Options) -> Result<Report> {
    let title = "mail-like load on ext4 on an emulated disk (7200 rpm, no write cache), by cache";
    let mut report = Report::new("pdc-hdd", title, "guests × threads", "mails/s", Better::Higher);
    report.baseline = "WB".into();
    let time = Duration::from_secs_f64(if options.quick { 1.0 } else { 5.0 });
    std::fs::create_dir_all(&options.out)?;
    let dir = tempfile::tempdir_in(&options.out)?;
    let image = image(dir.path())?;
    for (guests, threads) in POINTS {
        let point = format!("{guests} × {threads}");
        for repeat in 0..options.repeats() {
            for turn in 0..SYSTEMS.len() {
                let (name, mode) = SYSTEMS[(turn + repeat) % SYSTEMS.len()];
                progress(&format!("pdc-hdd {point} {name} {repeat}"));
                let found = measure(&image, mode, guests, threads, time)?;
                report.add(name, &point, found.rate, &found.extra());
            }
        }
    }
    report.notes.push(format!(
        "cache: own memory, {} MiB a guest; journal 16 MiB, named to the cache at mount; guests \
         share one arm; disk: seek 1 to 16 ms, 8.33 ms a round, 126 MB/s, first come first served",
        CACHE_BYTES >> 20
    ));
    Ok(report)
}

/// What one measurement found.
struct Found {
    rate: f64,
    requests_per_mail: f64,
    arm_ms_per_mail: f64,
    hit_ratio: f64,
}

impl Found {
    fn extra(&self) -> [(&'static str, f64); 3] {
        [
            ("requests_per_mail", self.requests_per_mail),
            ("arm_ms_per_mail", self.arm_ms_per_mail),
            ("hit_ratio", self.hit_ratio),
        ]
    }
}

/// A guest without a kernel.
struct Guest {
    vfs: Arc<Vfs>,
    store: Option<Arc<OwnStore>>,
}

impl Guest {
    fn new(disk: Arc<SlowDisk>, mode: Mode) -> Result<Guest> {
        let store = (mode != Mode::None).then(|| OwnStore::new(disk.clone(), CACHE_BYTES));
        let device: Arc<dyn BlockDevice> = match &store {
            Some(store) => Cached::new(store.clone(), mode),
            None => disk,
        };
        let clock = Arc::new(SystemClock);
        let fs = Ext4::open(device, clock.clone(), &Default::default());
        let fs = fs.map_err(|error| anyhow!("mount the volume: {error}"))?;
        ensure!(fs.read_only_reasons.is_empty(), "read only: {:?}", fs.read_only_reasons);
        let options = VfsOptions {
            clock,
            cache_bytes_limit: 0,
            dirty_bytes_limit: 0,
            flush_interval: Duration::from_secs(5),
            mount_path: b"/mail".to_vec(),
            covered: Vec::new(),
        };
        Ok(Guest { vfs: Vfs::new(Arc::new(fs), options)?, store })
    }

    fn open(&self, name: &str, flags: i32) -> Result<Arc<OpenFile>> {
        let opened = self.vfs.open_path(
            &OpCtx::service(),
            &self.vfs.root(),
            name.as_bytes(),
            flags,
            0o600,
            0,
        );
        opened.map_err(|error| match error {
            PathError::Errno(errno) => anyhow!("{errno}"),
            PathError::Leaves => anyhow!("path leaves the volume"),
        })
    }

    /// One thread, as in `pdc-fig6`: delivers a mail, appends to one, reads one, and removes what
    /// is too much.
    fn deliver(&self, thread: u64, start: Instant, time: Duration) -> Result<u64> {
        let (mut rng, cred) = (Rng::new(thread), Cred::root());
        let box_of = |number: u64| format!("{thread}-{number}");
        let mut data = vec![0x6d; 64 << 10];
        let mut count = 0;
        while start.elapsed() < time {
            let create = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            let file = self.open(&box_of(rng.below(FILES)), create)?;
            let length = (rng.below(4) as usize + 1) * 4096;
            file.write(&OpCtx::as_user(&cred), Some(0), &mut &data[..length])?;
            file.fsync(&OpCtx::service(), false)?;
            if let Ok(old) = self.open(&box_of(rng.below(FILES)), libc::O_WRONLY) {
                old.write(&OpCtx::as_user(&cred), None, &mut &data[..4096])?;
                old.fsync(&OpCtx::service(), false)?;
            }
            if let Ok(old) = self.open(&box_of(rng.below(FILES)), libc::O_RDONLY) {
                let length = data.len();
                old.read(&OpCtx::service(), 0, length, &mut &mut data[..])?;
            }
            let _ = self.vfs.unlink(
                &OpCtx::as_user(&cred),
                &self.vfs.root(),
                box_of(rng.below(FILES)).as_bytes(),
            );
            count += 1;
        }
        Ok(count)
    }
}

fn measure(image: &Path, mode: Mode, guests: u64, threads: u64, time: Duration) -> Result<Found> {
    let mechanics = Mechanics::new();
    let disks = (0..guests).map(|guest| {
        let first = DISK_SECTORS / guests * guest;
        Ok(SlowDisk::new(mechanics.clone(), first, load(image)?))
    });
    let disks: Vec<Arc<SlowDisk>> = disks.collect::<Result<_>>()?;
    let made: Result<Vec<Guest>> = disks.into_iter().map(|disk| Guest::new(disk, mode)).collect();
    let guests = made?;
    let found = work(&guests, threads, time, &mechanics);
    mechanics.end();
    found
}

fn work(guests: &[Guest], threads: u64, time: Duration, mechanics: &Mechanics) -> Result<Found> {
    let (start, (requests, busy)) = (Instant::now(), mechanics.work());
    let counts: Vec<Result<u64>> = std::thread::scope(|scope| {
        let pairs = guests.iter().flat_map(|guest| (0..threads).map(move |thread| (guest, thread)));
        let workers: Vec<_> = pairs
            .map(|(guest, thread)| scope.spawn(move || guest.deliver(thread, start, time)))
            .collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended.map(|count| count.unwrap_or_else(|_| Err(anyhow!("a thread panicked")))).collect()
    });
    let mails = counts.into_iter().sum::<Result<u64>>()? as f64;
    let seconds = start.elapsed().as_secs_f64();
    let after = mechanics.work();
    let hits = guests.iter().filter_map(|guest| guest.store.as_ref()?.hits_and_misses());
    let (hits, misses) = hits.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Ok(Found {
        rate: mails / seconds,
        requests_per_mail: (after.0 - requests) as f64 / mails,
        arm_ms_per_mail: (after.1 - busy).as_secs_f64() * 1e3 / mails,
        hit_ratio: hits as f64 / (hits + misses).max(1) as f64,
    })
}

/// An empty file system.
fn image(dir: &Path) -> Result<std::path::PathBuf> {
    let path = dir.join("volume");
    File::create(&path)?.set_len(VOLUME_BYTES)?;
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-J", "size=16", "-E", "lazy_itable_init=0"]);
    let done = command.arg(&path).output().context("run mke2fs")?;
    ensure!(done.status.success(), "mke2fs: {}", String::from_utf8_lossy(&done.stderr).trim());
    Ok(path)
}

/// A copy of it in memory, which holds what is not zero.
fn load(image: &Path) -> Result<Arc<RamDevice>> {
    const PIECE: usize = 64 << 10;
    let (file, data) = (File::open(image)?, Arc::new(RamDevice::new(VOLUME_BYTES / 512)));
    let waiter = Waiter::new(data.clone());
    let mut piece = vec![0; PIECE];
    for offset in (0..VOLUME_BYTES).step_by(PIECE) {
        file.read_exact_at(&mut piece, offset)?;
        if piece.iter().any(|byte| *byte != 0) {
            waiter.write(Sector(offset / 512), Buffer::copy_of(&piece), false)?;
        }
    }
    Ok(data)
}

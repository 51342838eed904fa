//! The same file work without any way in: a lane's VFS on memfs called as a function. What a lane
//! takes beyond this is the price of getting there and back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use polylane_base::SystemClock;
use polylane_vfs::memfs::MemFs;
use polylane_vfs::{Cred, OpCtx, OpenFile, Options, PathError, Vfs};

/// Size of the file that is worked on, as in the workers' loads.
const FILE_BYTES: u64 = 64 << 20;

/// Microseconds per operation of load `seqread` (1 MiB reads one after another) or `fileio` (16 KiB
/// reads and writes at scattered places).
///
/// # Errors
/// An unknown load, or the file cannot be made.
pub fn measure(load: &str, seconds: f64) -> Result<f64> {
    let vfs = lane()?;
    let cred = Cred::root();
    let flags = libc::O_CREAT | libc::O_RDWR;
    let opened = vfs.open_path(&OpCtx::as_user(&cred), &vfs.root(), b"data", flags, 0o600, 0);
    let file = opened.map_err(|error| match error {
        PathError::Errno(errno) => anyhow::anyhow!("{errno}"),
        PathError::Leaves => anyhow::anyhow!("path leaves the lane"),
    })?;
    let mut buffer = vec![7u8; 1 << 20];
    for offset in (0..FILE_BYTES).step_by(buffer.len()) {
        file.write(&OpCtx::as_user(&cred), Some(offset), &mut &buffer[..])?;
    }
    let step: fn(&OpenFile, &Cred, &mut [u8], u64) -> Result<()> = match load {
        "seqread" => read_on,
        "fileio" => mixed,
        _ => bail!("load '{load}' has no form inside a process"),
    };
    let (begin, length) = (Instant::now(), Duration::from_secs_f64(seconds));
    let mut ops = 0;
    while begin.elapsed() < length {
        step(&file, &cred, &mut buffer, ops)?;
        ops += 1;
    }
    Ok(begin.elapsed().as_secs_f64() * 1e6 / ops as f64)
}

fn lane() -> Result<Arc<Vfs>> {
    let clock = Arc::new(SystemClock);
    let memfs = Arc::new(MemFs::new(2 * FILE_BYTES, 16, clock.clone()));
    let options = Options {
        clock,
        cache_bytes_limit: 0,
        dirty_bytes_limit: 0,
        flush_interval: Duration::from_secs(5),
        mount_path: b"/lane".to_vec(),
        covered: Vec::new(),
    };
    Ok(Vfs::new(memfs, options)?)
}

fn read_on(file: &OpenFile, _cred: &Cred, buffer: &mut [u8], op: u64) -> Result<()> {
    let length = buffer.len();
    file.read(&OpCtx::service(), op % 64 * length as u64, length, &mut &mut *buffer)?;
    Ok(())
}

fn mixed(file: &OpenFile, cred: &Cred, buffer: &mut [u8], op: u64) -> Result<()> {
    const PIECE: usize = 16 << 10;
    let offset = op.wrapping_mul(607) % 1024 * PIECE as u64;
    match op % 2 {
        0 => drop(file.read(&OpCtx::service(), offset, PIECE, &mut &mut buffer[..PIECE])?),
        _ => drop(file.write(&OpCtx::as_user(cred), Some(offset), &mut &buffer[..PIECE])?),
    }
    Ok(())
}

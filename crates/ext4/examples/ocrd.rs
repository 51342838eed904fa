//! Cost of namespace operations: create, rename and unlink in directories of some size, straight
//! through the file system on a RAM device. Usage: `ocrd IMAGE [THREADS] [FILES] [ROUNDS]`; IMAGE
//! is what mke2fs made, and stays as it is.

use std::sync::Arc;
use std::time::Instant;

use polylane_base::{Ino, SystemClock};
use polylane_block::ram::RamDevice;
use polylane_block::wait::Waiter;
use polylane_block::{BlockDevice, Sector};
use polylane_ext4::{Ext4, Options};
use polylane_sys::buffer::Buffer;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::{FileSystem, Kind, NewNode, RenameMode};

const PIECE: usize = 1 << 20;

fn load(path: &str) -> Arc<RamDevice> {
    let bytes = std::fs::read(path).expect("the image can be read");
    let device = Arc::new(RamDevice::new((bytes.len() / 512) as u64));
    let waiter = Waiter::new(device.clone() as Arc<dyn BlockDevice>);
    for (index, piece) in bytes.chunks(PIECE).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            let sector = Sector((index * PIECE / 512) as u64);
            waiter.write(sector, Buffer::copy_of(piece), false).expect("in range");
        }
    }
    device
}

fn node(kind: Kind) -> NewNode<'static> {
    NewNode::new(kind, 0o755)
}

/// Seconds for creations, renames, removals of `files` files in `dir`.
fn round(fs: &Ext4, dir: Ino, names: &[(Vec<u8>, Vec<u8>)]) -> [f64; 3] {
    let start = Instant::now();
    let made: Vec<Ino> = names
        .iter()
        .map(|(name, _)| {
            fs.create(&OpCtx::service(), dir, name, &node(Kind::File)).expect("room").node.ino
        })
        .collect();
    let created = Instant::now();
    for (name, to) in names {
        fs.rename(&OpCtx::service(), dir, name, dir, to, RenameMode::Replace).expect("moves");
    }
    let renamed = Instant::now();
    for ((_, to), ino) in names.iter().zip(&made) {
        fs.unlink(&OpCtx::service(), dir, to).expect("is there");
        fs.forget(*ino);
    }
    let removed = Instant::now();
    [created - start, renamed - created, removed - renamed].map(|time| time.as_secs_f64())
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: usize| {
        args.get(at).map_or(usual, |text| text.parse().expect("a number"))
    };
    let image = args.first().expect("usage: ocrd IMAGE [THREADS] [FILES] [ROUNDS]");
    let (threads, files, rounds) = (number(1, 1), number(2, 10_000), number(3, 5));
    let clock = Arc::new(SystemClock);
    let fs = Ext4::open(load(image), clock, &Options::default()).expect("opens");
    let root = fs.root().expect("a root").ino;
    let dirs: Vec<Ino> = (0..threads)
        .map(|thread| {
            let name = format!("dir{thread}");
            fs.create(&OpCtx::service(), root, name.as_bytes(), &node(Kind::Dir))
                .expect("room")
                .node
                .ino
        })
        .collect();
    let names: Vec<(Vec<u8>, Vec<u8>)> = (0..files)
        .map(|n| (format!("file-{n:06}").into_bytes(), format!("moved-{n:06}").into_bytes()))
        .collect();
    for _ in 0..rounds {
        let times: Vec<[f64; 3]> = std::thread::scope(|scope| {
            let start = |dir: &Ino| {
                let (fs, names, dir) = (&fs, &names, *dir);
                scope.spawn(move || round(fs, dir, names))
            };
            let running: Vec<_> = dirs.iter().map(start).collect();
            running.into_iter().map(|thread| thread.join().expect("runs")).collect()
        });
        let mean = |at: usize| {
            let sum: f64 = times.iter().map(|time| time[at]).sum();
            sum / threads as f64 / files as f64 * 1e9
        };
        println!("create {:6.0} ns  rename {:6.0} ns  unlink {:6.0} ns", mean(0), mean(1), mean(2));
    }
    fs.close().expect("closes");
}

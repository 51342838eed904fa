//! `hostdir` with few descriptors in the whole process, alone in its process for that reason.

use polylane_base::rng::Rng;
use polylane_vfs::OpCtx;
use polylane_vfs::fs::FileSystem;
use polylane_vfs::hostdir::HostDir;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const DIRS: u64 = 50;
const FILES: u64 = 400;
const DESCRIPTORS: u64 = 128;

fn descriptors_open() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_large_tree_is_held_with_few_descriptors() {
    let limit = Rlimit { current: Some(DESCRIPTORS), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for d in 0..DIRS {
        std::fs::create_dir(dir.path().join(d.to_string())).unwrap();
        for f in 0..FILES {
            std::fs::write(dir.path().join(format!("{d}/{f}")), format!("{d}/{f}")).unwrap();
        }
    }
    let fs = HostDir::new(std::fs::File::open(dir.path()).unwrap().into()).unwrap();
    let root = fs.root().unwrap().ino;
    let mut held = Vec::new();
    for d in 0..DIRS {
        let dir = fs.lookup(&OpCtx::service(), root, d.to_string().as_bytes()).unwrap().ino;
        for f in 0..FILES {
            let file = fs.lookup(&OpCtx::service(), dir, f.to_string().as_bytes()).unwrap().ino;
            held.push((file, format!("{d}/{f}")));
        }
        let mut listed = 0;
        fs.readdir(&OpCtx::service(), dir, 0, &mut |_| {
            listed += 1;
            true
        })
        .unwrap();
        assert_eq!(listed, FILES);
    }
    let mut rng = Rng::new(1);
    let mut most = 0;
    for round in 0..20_000 {
        let (ino, text) = rng.pick(&held);
        let mut buffer = vec![0; 20];
        let count = fs.read(&OpCtx::service(), *ino, 0, 20, &mut buffer.as_mut_slice()).unwrap();
        assert_eq!(&buffer[..count], text.as_bytes());
        if round % 500 == 0 {
            most = most.max(descriptors_open());
        }
    }
    assert!(most > 20 && most < DESCRIPTORS as usize - 20, "{most} descriptors");
    // Nothing left for us at all: it makes room among its own.
    let mut hogs = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hogs.push(file);
    }
    for _ in 0..500 {
        let (ino, text) = rng.pick(&held);
        let mut buffer = vec![0; 20];
        let count = fs.read(&OpCtx::service(), *ino, 0, 20, &mut buffer.as_mut_slice()).unwrap();
        assert_eq!(&buffer[..count], text.as_bytes());
    }
}

//! Filebench's mail server, file server and web server, with MultiLanes' parameters (FAST '14,
//! Table 4; one thread), after the published workload definitions `varmail.f`, `fileserver.f` and
//! `webserver.f`: filebench itself is in few distributions.
//!
//! Sizes follow a gamma distribution of shape 1.5, directories hold 20 entries (`varmail`: one
//! directory), 80 % of the files exist at the start (`webserver`: all), and which file an operation
//! takes is chosen evenly. One step is one round of the definition.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use polylane_base::rng::Rng;

use super::{LARGE, Step};

/// Mean of what one append adds is half of this: the size is chosen evenly up to it.
const APPEND_BYTES: u64 = 16 << 10;

/// Entries of a directory.
const WIDTH: usize = 20;

/// A set of files of which some exist.
struct Set {
    paths: Vec<PathBuf>,
    /// Numbers of the files that exist, and of those that do not.
    present: Vec<usize>,
    absent: Vec<usize>,
    mean_bytes: f64,
    buffer: Vec<u8>,
    rng: Rng,
}

/// What a personality starts from.
struct Start {
    files: usize,
    mean_bytes: f64,
    present_percent: usize,
    flat: bool,
}

/// Delete; create, append, fsync; open, read, append, fsync; open, read.
pub(super) fn varmail(dir: &Path, _: u64) -> io::Result<Step> {
    let start = Start { files: 1000, mean_bytes: 16384.0, present_percent: 80, flat: true };
    let mut set = Set::make(dir, start)?;
    Ok(Box::new(move |_| {
        set.delete()?;
        let mut file = set.create()?;
        set.append(&mut file)?;
        file.sync_all()?;
        drop(file);
        let mut file = set.open()?;
        set.read(&mut file)?;
        set.append(&mut file)?;
        file.sync_all()?;
        drop(file);
        let mut file = set.open()?;
        set.read(&mut file)
    }))
}

/// Create and write whole; append; read whole; delete; stat.
pub(super) fn fileserver(dir: &Path, _: u64) -> io::Result<Step> {
    serve_files(dir, 2000)
}

/// The same on a set of a tenth of the files, which is made in a tenth of the time.
pub(super) fn small_fileserver(dir: &Path, _: u64) -> io::Result<Step> {
    serve_files(dir, 200)
}

fn serve_files(dir: &Path, files: usize) -> io::Result<Step> {
    let start = Start { files, mean_bytes: 131_072.0, present_percent: 80, flat: false };
    let mut set = Set::make(dir, start)?;
    Ok(Box::new(move |_| {
        let mut file = set.create()?;
        set.fill(&mut file)?;
        drop(file);
        let mut file = set.open()?;
        set.append(&mut file)?;
        drop(file);
        let mut file = set.open()?;
        set.read(&mut file)?;
        drop(file);
        set.delete()?;
        fs::metadata(set.some()).map(drop)
    }))
}

/// Read ten files whole; append to the log.
pub(super) fn webserver(dir: &Path, _: u64) -> io::Result<Step> {
    let start = Start { files: 1000, mean_bytes: 16384.0, present_percent: 100, flat: false };
    let mut set = Set::make(dir, start)?;
    let mut log = OpenOptions::new().append(true).create(true).open(dir.join("weblog"))?;
    Ok(Box::new(move |_| {
        for _ in 0..10 {
            let mut file = set.open()?;
            set.read(&mut file)?;
        }
        set.append(&mut log)
    }))
}

impl Set {
    fn make(dir: &Path, start: Start) -> io::Result<Set> {
        let files = dir.join("bigfileset");
        if files.exists() {
            fs::remove_dir_all(&files)?;
        }
        let path = |number: usize| {
            let parent = match start.flat {
                true => files.clone(),
                false => files.join(format!("{}/{}", number / WIDTH / WIDTH, number / WIDTH)),
            };
            parent.join(format!("{number:08}"))
        };
        let paths: Vec<PathBuf> = (0..start.files).map(path).collect();
        for parent in paths.iter().filter_map(|path| path.parent()) {
            fs::create_dir_all(parent)?;
        }
        let mut set = Set {
            paths,
            present: Vec::new(),
            absent: (0..start.files).collect(),
            mean_bytes: start.mean_bytes,
            buffer: vec![0x61; LARGE],
            rng: Rng::new(11),
        };
        for _ in 0..start.files * start.present_percent / 100 {
            let mut file = set.create()?;
            set.fill(&mut file)?;
        }
        Ok(set)
    }

    fn create(&mut self) -> io::Result<File> {
        let number = take(&mut self.rng, &mut self.absent);
        self.present.push(number);
        OpenOptions::new().read(true).append(true).create_new(true).open(&self.paths[number])
    }

    fn delete(&mut self) -> io::Result<()> {
        let number = take(&mut self.rng, &mut self.present);
        self.absent.push(number);
        fs::remove_file(&self.paths[number])
    }

    fn some(&mut self) -> &Path {
        let number = *self.rng.pick(&self.present);
        &self.paths[number]
    }

    fn open(&mut self) -> io::Result<File> {
        OpenOptions::new().read(true).append(true).open(self.some())
    }

    /// Writes a size of the set's distribution, at most 1 MiB in a call.
    fn fill(&mut self, file: &mut File) -> io::Result<()> {
        let mut left = gamma(&mut self.rng, self.mean_bytes) as usize;
        while left > 0 {
            let part = left.min(LARGE);
            file.write_all(&self.buffer[..part])?;
            left -= part;
        }
        Ok(())
    }

    fn append(&mut self, file: &mut File) -> io::Result<()> {
        let length = 1 + self.rng.below(APPEND_BYTES) as usize;
        file.write_all(&self.buffer[..length])
    }

    fn read(&mut self, file: &mut File) -> io::Result<()> {
        while file.read(&mut self.buffer)? > 0 {}
        Ok(())
    }
}

fn take(rng: &mut Rng, from: &mut Vec<usize>) -> usize {
    let index = rng.below(from.len() as u64) as usize;
    from.swap_remove(index)
}

/// A number of the gamma distribution with shape 1.5 and that mean: half the sum of three squared
/// normal numbers, scaled.
fn gamma(rng: &mut Rng, mean: f64) -> f64 {
    let even = |rng: &mut Rng| (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    // Two normal numbers' squares are an exponential number; the third is Box and Muller's.
    let (first, second, turn) = (1.0 - even(rng), 1.0 - even(rng), even(rng));
    let third = -second.ln() * (std::f64::consts::TAU * turn).cos().powi(2);
    (-first.ln() + third) * mean / 1.5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_and_variance_of_a_gamma_distribution() {
        let mut rng = Rng::new(1);
        let sizes: Vec<f64> = (0..100_000).map(|_| gamma(&mut rng, 16384.0)).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        let variance = sizes.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / sizes.len() as f64;
        assert!((mean / 16384.0 - 1.0).abs() < 0.02, "{mean}");
        assert!((variance / (16384.0 * 16384.0 / 1.5) - 1.0).abs() < 0.05, "{variance}");
    }

    #[test]
    fn rounds_keep_the_number_of_files() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut step = varmail(dir.path(), u64::MAX).expect("prepared");
        (0..50).for_each(|index| step(index).expect("a round"));
        let count = fs::read_dir(dir.path().join("bigfileset")).expect("listed").count();
        assert_eq!(count, 800);
    }
}

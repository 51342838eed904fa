//! Random operations on a lane's ext4 beside the kernel's: the same sequence, by several processes
//! of several users, on an image of the same features. Results, errors, what each file is after
//! each operation, and the whole tree in the end must be the same; e2fsck finds nothing on either.
//!
//! For some seconds with the others, an hour with `cargo xtask campaign ext4-beside-kernel`. A seed
//! is printed with what differs (`POLYLANE_BESIDE_SEED` begins with one) and made as short as it
//! can be: such sequences are kept in `beside/kept.txt`. `beside/random.c` says what is done.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use polylane_tests::pool::no_library;
use polylane_tests::step::{good, no_loop, output};
use polylane_tests::volume::assert_clean;
use polylane_tests::{MOUNT, binary, lacks, unavailable};

/// How long without `POLYLANE_BESIDE_SECONDS`.
const SECONDS: u64 = 5;

/// Operations of a seed.
const OPERATIONS: u32 = 700;

/// How long one sequence may take.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs of a sequence that differs, to make it shorter.
const TRIES_MAX: u32 = 120;

/// What mke2fs is asked for, in turn.
const FORMATS: [&str; 6] = [
    "-b 4096",
    "-b 1024",
    "-b 4096 -O inline_data,ea_inode",
    "-b 1024 -I 128",
    "-b 2048 -O ^metadata_csum,^dir_index",
    "-b 1024 -O ^extents,^64bit",
];

/// Kinds of operations that the kernel itself refuses on every FUSE mount.
const NOT_BY_FUSE: &str = "-move_range";

/// Kinds of operations that tell of single blocks.
const OF_BLOCKS: &str = "-hole";

/// Kinds of operations that set space aside and write nothing there.
const ALLOCATIONS: &str = "-fallocate";

/// The program, and the images it works on.
struct Place {
    dir: tempfile::TempDir,
    program: PathBuf,
}

/// One sequence of operations.
#[derive(Clone)]
struct Sequence {
    seed: u64,
    by_library: bool,
    /// Whether space is set aside. Where it is, holes are looked for in what is on the medium: what
    /// the kernel says of space without data depends on what its cache holds.
    allocates: bool,
    format: String,
    /// Those of the seed that are done; all without the kinds that the way cannot do.
    operations: BTreeSet<u32>,
}

impl Place {
    fn new(test: &str) -> Option<Place> {
        let programs = ["gcc", "mke2fs", "e2fsck", "mount"];
        if unavailable(test) || no_library(test) || no_loop(test) || lacks(test, &programs) {
            return None;
        }
        let place = Place { dir: tempfile::tempdir().expect("tempdir"), program: PathBuf::new() };
        // Others than root execute it.
        let made = Command::new("chmod").arg("755").arg(place.dir.path()).output();
        good(&made.expect("chmod runs"));
        let program = place.dir.path().join("random");
        let mut compiler = Command::new("gcc");
        compiler.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/beside");
        let files = ["random.c", "operations.c", "tree.c"].map(|name| sources.join(name));
        good(&output(compiler_with(compiler, &files), LIMIT, "gcc"));
        Some(Place { program, ..place })
    }

    /// What the kernel says and what the lane says, line by line.
    fn both(&self, sequence: &Sequence) -> (Vec<String>, Vec<String>) {
        let image = |name: &str| self.dir.path().join(name);
        let (kernels, lanes) = (image("kernel.img"), image("lane.img"));
        for path in [&kernels, &lanes] {
            let _ = std::fs::remove_file(path);
        }
        std::fs::File::create(&kernels).expect("an image").set_len(64 << 20).expect("its size");
        let mut format = Command::new("mke2fs");
        format.args(["-q", "-t", "ext4"]).args(sequence.format.split(' ')).arg(&kernels);
        good(&output(format, LIMIT, "mke2fs"));
        std::fs::copy(&kernels, &lanes).expect("a copy");
        let words = format!("{} {} {}", self.program.display(), sequence.seed, sequence.words());
        let script = format!("mkdir {MOUNT}/work; cd {MOUNT}/work; exec {words}");
        let mut kernel = Command::new("unshare");
        kernel.args(["--mount", "--propagation=private", "sh", "-euc"]);
        kernel.arg(format!("mount -o loop,nosuid,nodev {} {MOUNT}; {script}", kernels.display()));
        let mut lane = Command::new(binary());
        lane.args(["run", "--at", MOUNT, "--volume"]).arg(&lanes);
        lane.args((!sequence.by_library).then_some("--no-preload"));
        lane.args(sequence.flushes());
        lane.args(["--", "sh", "-euc", &script]);
        let said = [kernel, lane].map(|mut command| {
            if !sequence.by_library {
                command.env("BESIDE_AS_FUSE", "1");
            }
            if sequence.allocates {
                command.env("BESIDE_WRITTEN", "1");
            }
            let text = output(command, LIMIT, &words);
            String::from_utf8_lossy(&text.stdout).lines().map(String::from).collect::<Vec<_>>()
        });
        assert_clean(&kernels);
        assert_clean(&lanes);
        let [kernel, lane] = said;
        assert!(kernel.len() >= sequence.operations.len() / 2, "{kernel:?}");
        (kernel, lane)
    }

    /// The first lines that differ.
    fn difference(&self, sequence: &Sequence) -> Option<(String, String)> {
        let (kernel, lane) = self.both(sequence);
        let end = String::from("(end)");
        let lines = 0..kernel.len().max(lane.len());
        let at = |lines: &[String], index| lines.get(index).unwrap_or(&end).clone();
        let mut both = lines.map(|index| (at(&kernel, index), at(&lane, index)));
        both.find(|(kernel, lane)| kernel != lane)
    }

    /// The same sequence with as few operations as lead to a difference.
    fn shortest(&self, sequence: &Sequence, kernel: &str) -> Sequence {
        let mut best = sequence.clone();
        let last = kernel.split(' ').next().and_then(|word| word.parse::<u32>().ok());
        if let Some(last) = last {
            best.operations.retain(|index| *index <= last);
        }
        if self.difference(&best).is_none() {
            best = sequence.clone();
        }
        let (mut piece, mut tries) = (best.operations.len().div_ceil(2), 0);
        while piece > 0 && tries < TRIES_MAX {
            let all: Vec<u32> = best.operations.iter().copied().collect();
            for part in all.chunks(piece) {
                let mut less = best.clone();
                less.operations.retain(|index| !part.contains(index));
                tries += 1;
                if tries <= TRIES_MAX && self.difference(&less).is_some() {
                    best = less;
                }
            }
            piece /= 2;
        }
        best
    }
}

fn compiler_with(mut compiler: Command, files: &[PathBuf]) -> Command {
    compiler.args(files);
    compiler
}

impl Sequence {
    /// All of a seed, which says how it is done, too.
    fn of(seed: u64) -> Sequence {
        let format = FORMATS[(seed / 2 % FORMATS.len() as u64) as usize].to_string();
        Sequence {
            seed,
            by_library: seed.is_multiple_of(2),
            allocates: (seed / 2 / FORMATS.len() as u64).is_multiple_of(2),
            format,
            operations: (0..OPERATIONS).collect(),
        }
    }

    /// Options of the lane: what is dirty is written back between any two operations, or hardly.
    fn flushes(&self) -> &'static [&'static str] {
        const EACH: [&[&str]; 3] =
            [&[], &["--flush-interval", "10ms"], &["--flush-interval", "100ms"]];
        EACH[(self.seed / 24 % 3) as usize]
    }

    /// The program's arguments: runs of operations.
    fn words(&self) -> String {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for &index in &self.operations {
            match runs.last_mut() {
                Some((_, end)) if *end == index => *end += 1,
                _ => runs.push((index, index + 1)),
            }
        }
        let runs = runs.iter().map(|(begin, end)| format!("{begin}-{end}"));
        let by_fuse = (!self.by_library).then(|| NOT_BY_FUSE.to_string());
        let small = (!self.format.contains("-b 4096")).then(|| OF_BLOCKS.to_string());
        let plain = (!self.allocates).then(|| ALLOCATIONS.to_string());
        let kinds = by_fuse.into_iter().chain(small).chain(plain);
        kinds.chain(runs).collect::<Vec<_>>().join(" ")
    }

    /// A line of `kept.txt`: a name, a seed, and operations.
    fn kept(line: &str) -> (&str, Sequence) {
        let mut words = line.split(' ');
        let name = words.next().expect("a name");
        let seed = words.next().and_then(|word| word.parse().ok()).expect("a seed");
        let allocates = !line.contains(ALLOCATIONS);
        let number = |word: &str| word.parse::<u32>().expect("an index");
        let operations = words.filter(|word| !word.starts_with('-')).flat_map(|word| {
            let (begin, end) = word.split_once('-').expect("BEGIN-END");
            number(begin)..number(end)
        });
        let operations = operations.collect();
        (name, Sequence { operations, allocates, ..Sequence::of(seed) })
    }
}

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn random_operations_are_what_they_are_for_the_kernel() {
    let test = "random_operations_are_what_they_are_for_the_kernel";
    let Some(place) = Place::new(test) else { return };
    let asked = number("POLYLANE_BESIDE_SECONDS");
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    // Every build does the same ones; a campaign does others each time.
    let first = asked.map_or(1, |_| since_1970.as_secs());
    let first = number("POLYLANE_BESIDE_SEED").unwrap_or(first);
    let whole = Duration::from_secs(asked.unwrap_or(SECONDS));
    let begin = Instant::now();
    let (mut wrong, mut done) = (Vec::new(), 0);
    for seed in first.. {
        let sequence = Sequence::of(seed);
        if let Some((kernel, lane)) = place.difference(&sequence) {
            let short = place.shortest(&sequence, &kernel);
            let words = format!("NAME {seed} {}", short.words());
            println!("beside: {}\n  {words}\n  kernel {kernel}\n  lane   {lane}", sequence.format);
            wrong.push(words);
        }
        done += 1;
        if begin.elapsed() >= whole || wrong.len() >= 10 {
            break;
        }
    }
    println!("beside: {done} seeds from {first}, {} with a difference", wrong.len());
    assert!(wrong.is_empty(), "keep each in beside/kept.txt: {wrong:#?}");
}

#[test]
fn what_once_differed_from_the_kernel_does_so_no_more() {
    let test = "what_once_differed_from_the_kernel_does_so_no_more";
    let Some(place) = Place::new(test) else { return };
    for line in include_str!("beside/kept.txt").lines().filter(|line| !line.starts_with('#')) {
        let (name, sequence) = Sequence::kept(line);
        if let Some((kernel, lane)) = place.difference(&sequence) {
            panic!("{name}:\n  kernel {kernel}\n  lane   {lane}");
        }
    }
}

//! The programs of e2fsprogs, found on the path or where Debian keeps them.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use polylane_base::sync::thread;

pub use super::program::find;
use super::program::program;
use super::progress::Progress;
use super::sandbox::{Right, Sandbox};
use crate::failure::{Failure, Result};
use crate::superblock::Superblock;

/// e2fsck: nothing was wrong ...
pub(crate) const FSCK_CLEAN: i32 = 0;
/// ... or all of it was mended.
pub(crate) const FSCK_MENDED: i32 = 1;
/// ... or it could not look: it failed itself, does not know the file system's features, or was
/// ended. A set of bits: of errors that it left it says another.
const FSCK_FAILED: i32 = 8 | 16 | 32 | 128;

/// A command for a program, with messages in English and nothing to read.
pub fn command(name: &str, package: &str) -> Result<Command> {
    let mut command = Command::new(program(name, package)?);
    command.env("LC_ALL", "C").stdin(Stdio::null());
    Ok(command)
}

/// Runs a program to its end.
pub fn run(mut command: Command) -> Result<Output> {
    let name = PathBuf::from(command.get_program());
    command.output().map_err(|error| Failure::path(&name, "run it", error))
}

/// [`run`] of a program that says on its standard output how far it is, in lines that `share_of`
/// understands; those are shown, and left out of what it said.
pub(crate) fn run_watched(
    mut command: Command,
    progress: &Progress,
    share_of: fn(&str) -> Option<f64>,
) -> Result<Output> {
    if !progress.is_seen() {
        return run(command);
    }
    let name = PathBuf::from(command.get_program());
    let failed = |error| Failure::path(&name, "run it", error);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let read = thread::scope(|scope| {
        let other = scope.spawn(|| err.map_or(Ok(0), |mut err| err.read_to_end(&mut stderr)));
        let mut line = Vec::new();
        for byte in out.into_iter().flat_map(|out| BufReader::new(out).bytes()) {
            let byte = byte?;
            line.push(byte);
            if byte == b'\r' || byte == b'\n' {
                match share_of(&String::from_utf8_lossy(&line)) {
                    Some(share) => progress.set_share(share),
                    None => stdout.append(&mut line),
                }
                line.clear();
            }
        }
        stdout.append(&mut line);
        other.join().unwrap_or(Ok(0))
    });
    let status = child.wait().map_err(failed)?;
    read.map_err(failed)?;
    Ok(Output { status, stdout, stderr })
}

/// e2fsck, with `options`, on a file, of which nothing else can be reached by what is in it; how
/// far it is, is shown. The file is called [`IT`] in what it says.
pub(crate) fn fsck(path: &Path, options: &str, file: &File) -> Result<Output> {
    let mut sandbox = Sandbox::new("e2fsck", "e2fsprogs")?.see_mounts();
    let right = if options.contains('n') { Right::Read } else { Right::Write };
    let name = sandbox.give(file, right)?;
    let mut command = sandbox.command()?;
    let progress = Progress::of_share("checking", path);
    command.args(options.split(' '));
    if progress.is_seen() {
        command.args(["-C", "1"]);
    }
    command.arg(&name);
    Ok(renamed(run_watched(command, &progress, fsck_share)?, &name))
}

/// resize2fs on a file, to `size` bytes or to the file's own. See [`fsck`].
pub(crate) fn resize2fs(file: &File, size: Option<u64>) -> Result<Output> {
    let mut sandbox = Sandbox::new("resize2fs", "e2fsprogs")?.see_mounts();
    let name = sandbox.give(file, Right::Write)?;
    let mut command = sandbox.command()?;
    command.arg(&name).args(size.map(|size| format!("{}K", size / 1024)));
    Ok(renamed(run(command)?, &name))
}

/// What a file is called in what a program said.
pub(crate) const IT: &str = "it";

fn renamed(output: Output, name: &Path) -> Output {
    let name = name.display().to_string();
    let change = |said: Vec<u8>| String::from_utf8_lossy(&said).replace(&name, IT).into_bytes();
    Output { stdout: change(output.stdout), stderr: change(output.stderr), ..output }
}

/// What e2fsck says of how far it is: the pass, how much of how much in it, and the file. Passes
/// take times of their own: these are rough.
fn fsck_share(line: &str) -> Option<f64> {
    const PASSES: [(f64, f64); 5] =
        [(0.0, 0.6), (0.6, 0.9), (0.9, 0.92), (0.92, 0.95), (0.95, 1.0)];
    let mut words = line.split_whitespace();
    let pass: usize = words.next()?.parse().ok()?;
    let (at, most): (f64, f64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let (begin, end) = *PASSES.get(pass.checked_sub(1)?)?;
    words.next()?.starts_with('/').then(|| begin + (end - begin) * at / most.max(1.0))
}

/// The last line that a program said, for the one line that we say.
pub fn last_words(output: &Output) -> String {
    let said = [&output.stderr[..], &output.stdout[..]].concat();
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rev().map(str::trim).find(|line| !line.is_empty());
    last.unwrap_or("it did not say why").to_string()
}

/// Why e2fsck has not judged, in one line; `None` when it has.
pub(crate) fn fsck_failure(output: &Output) -> Option<String> {
    if output.status.code().is_some_and(|code| code & FSCK_FAILED == 0) {
        return None;
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let is_name = |line: &&str| line.starts_with("e2fsck 1.");
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty() && !is_name(line));
    let why = lines.collect::<Vec<_>>().join("; ");
    Some(if why.is_empty() { last_words(output) } else { why })
}

/// What resize2fs says that the ext4 in `file` needs at least, in bytes; `None` when it failed for
/// another reason.
pub(crate) fn minimum_bytes(output: &Output, file: &File) -> Option<u64> {
    let said = String::from_utf8_lossy(&output.stderr);
    let (_, number) = said.split_once("smaller than minimum (")?;
    let blocks: u64 = number.split(')').next()?.parse().ok()?;
    blocks.checked_mul(Superblock::read(file, 0).ok()??.block_bytes()?)
}

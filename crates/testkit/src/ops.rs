//! Operations: what a step is, how steps are made up, how a failing list of them is made short.
//!
//! The names are few and the tree is shallow, so that operations meet: most lists contain renames
//! over open files, links to what was removed, writes across a truncated end.

use polylane_base::rng::Rng;
use polylane_vfs::fs::{Kind, SeekFor, XattrMode};
use std::fmt;

/// Where the lane is mounted for the walks of absolute links.
pub const MOUNT_PATH: &str = "/lane";
/// Bits taken away from modes of new files.
pub const UMASK: u32 = 0o022;
/// Users of the steps: (uid, gid, supplementary groups).
pub const USERS: [(u32, u32, &[u32]); 3] = [(0, 0, &[]), (1001, 1001, &[2000]), (1002, 2000, &[])];
/// Open files a list of steps may hold.
const SLOTS: u64 = 4;
/// Offsets stay below this.
const OFFSET_MAX: u64 = 300_000;

/// Names that are mostly given to directories, and to other things.
const DIRS: [&str; 2] = ["a", "b"];
const USUAL_XATTRS: [&str; 3] = ["user.a", "user.b", "user.c"];
const FILES: [&str; 3] = ["c", "d", "e"];

/// One operation, by one of [`USERS`].
#[derive(Clone, PartialEq, Eq)]
pub struct Step {
    /// Index into [`USERS`].
    pub who: usize,
    /// What is done.
    pub op: Op,
}

/// What is done. Paths are seen from the root of the lane.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are those of the system calls and their arguments")]
pub enum Op {
    Mkdir {
        path: String,
        perm: u32,
    },
    Mknod {
        path: String,
        kind: Kind,
        perm: u32,
    },
    Symlink {
        target: String,
        path: String,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        flags: u32,
    },
    Open {
        slot: u8,
        path: String,
        flags: i32,
        perm: u32,
    },
    LinkOpen {
        slot: u8,
        to: String,
    },
    Close {
        slot: u8,
    },
    Read {
        slot: u8,
        at: u64,
        len: usize,
    },
    /// `at` `None`: at the end.
    Write {
        slot: u8,
        at: Option<u64>,
        len: usize,
        fill: u8,
    },
    Resize {
        slot: u8,
        size: u64,
    },
    Truncate {
        path: String,
        size: u64,
    },
    Fallocate {
        slot: u8,
        flags: i32,
        at: u64,
        len: u64,
    },
    Seek {
        slot: u8,
        at: u64,
        target: SeekFor,
    },
    Copy {
        from: u8,
        at: u64,
        to: u8,
        to_at: u64,
        len: u64,
    },
    Chmod {
        path: String,
        perm: u32,
    },
    Chown {
        path: String,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    },
    /// Seconds, below [`SMALL_TIME`]; -1 is now, `None` leaves it.
    Times {
        path: String,
        atime: Option<i64>,
        mtime: Option<i64>,
    },
    Stat {
        path: String,
        follow: bool,
    },
    StatOpen {
        slot: u8,
    },
    Access {
        path: String,
        mask: u32,
    },
    Readlink {
        path: String,
    },
    List {
        path: String,
    },
    SetXattr {
        path: String,
        name: String,
        len: usize,
        mode: XattrMode,
    },
    GetXattr {
        path: String,
        name: String,
    },
    ListXattr {
        path: String,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    Fsync {
        slot: u8,
        data_only: bool,
    },
    Sync,
}

/// Times that steps set lie below this many seconds; clocks are above it.
pub const SMALL_TIME: i64 = 1_000_000;

impl fmt::Debug for Step {
    /// As the source text of a test case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Step {{ who: {}, op: Op::{:?} }}", self.who, self.op)
    }
}

/// What a generator should leave out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Only user 0 acts: for services that cannot be anybody else.
    pub root_only: bool,
    /// Names are not exchanged.
    pub no_exchanges: bool,
    /// No whiteouts, for hosts that do not make them.
    pub no_whiteouts: bool,
    /// No extended attributes.
    pub no_xattrs: bool,
    /// No `fallocate`.
    pub no_fallocate: bool,
    /// No `O_TMPFILE`.
    pub no_unnamed: bool,
    /// For the host's own calls: no sticky directories and no links by others (sysctl
    /// fs.protected_*), no absolute links, no truncation by path, and what else the lane does
    /// otherwise on purpose.
    pub host: bool,
}

/// Makes up steps.
pub struct Generator {
    rng: Rng,
    limits: Limits,
}

impl Generator {
    /// The same steps for the same seed.
    pub fn new(seed: u64, limits: Limits) -> Generator {
        Generator { rng: Rng::new(seed), limits }
    }

    /// The next step.
    pub fn step(&mut self) -> Step {
        let who = match self.rng.below(10) {
            _ if self.limits.root_only => 0,
            0..6 => 0,
            6..8 => 1,
            _ => 2,
        };
        let op = match self.rng.below(100) {
            0..26 => self.name_op(),
            26..40 => self.open_op(),
            40..82 => self.data_op(),
            _ => self.state_op(),
        };
        let step = Step { who, op };
        if self.limits.host { for_host(step) } else { step }
    }

    fn name_op(&mut self) -> Op {
        match self.rng.below(20) {
            0..4 => Op::Mkdir { path: self.path_to(&DIRS), perm: self.dir_perm() },
            4 if self.rng.percent(50) => {
                let kind = *self.rng.pick(&[Kind::Fifo, Kind::Socket]);
                Op::Mknod { path: self.path(), kind, perm: self.perm() }
            }
            4..6 => Op::Symlink { target: self.target(), path: self.path() },
            6..9 => Op::Link { from: self.path_to(&FILES), to: self.path_to(&FILES) },
            9..13 => Op::Unlink { path: self.path_to(&FILES) },
            13..16 => Op::Rmdir { path: self.path_to(&DIRS) },
            _ => {
                let whiteout = if self.limits.no_whiteouts { 0 } else { 4 };
                let flags = *self.rng.pick(&[0, 0, 0, 0, 1, 2, 2, whiteout, whiteout | 1, 3]);
                let flags = if self.limits.no_exchanges { flags & !2 } else { flags };
                Op::Rename { from: self.path(), to: self.path(), flags }
            }
        }
    }

    fn open_op(&mut self) -> Op {
        let slot = self.slot();
        match self.rng.below(12) {
            0..8 => {
                let (path, flags, perm) = (self.path_to(&FILES), self.open_flags(), self.perm());
                Op::Open { slot, path, flags, perm }
            }
            8 if !self.limits.no_unnamed => {
                let access = *self.rng.pick(&[libc::O_RDWR, libc::O_WRONLY]);
                let excl = *self.rng.pick(&[0, 0, libc::O_EXCL]);
                let (path, perm) = (self.dir_path(), self.perm());
                Op::Open { slot, path, flags: access | libc::O_TMPFILE | excl, perm }
            }
            8 | 9 => Op::LinkOpen { slot, to: self.path() },
            _ => Op::Close { slot },
        }
    }

    fn data_op(&mut self) -> Op {
        let slot = self.slot();
        match self.rng.below(20) {
            0..8 => {
                let at = (!self.rng.percent(20)).then(|| self.offset());
                Op::Write { slot, at, len: self.length(), fill: 1 + self.rng.below(250) as u8 }
            }
            8..13 => Op::Read { slot, at: self.offset(), len: self.length() },
            13 => Op::Resize { slot, size: self.offset() },
            14 => Op::Truncate { path: self.path_to(&FILES), size: self.offset() },
            15 | 16 if !self.limits.no_fallocate => self.fallocate(slot),
            15..18 => {
                let target = *self.rng.pick(&[SeekFor::Data, SeekFor::Hole]);
                Op::Seek { slot, at: self.offset(), target }
            }
            18 => {
                let (at, to, to_at) = (self.offset(), self.slot(), self.offset());
                Op::Copy { from: slot, at, to, to_at, len: self.length() as u64 }
            }
            _ => match self.rng.below(8) {
                0 => Op::Sync,
                _ => Op::Fsync { slot, data_only: self.rng.percent(50) },
            },
        }
    }

    fn fallocate(&mut self, slot: u8) -> Op {
        let (keep, punch, collapse, zero, insert) = (1, 2, 8, 16, 32);
        let flags = *self.rng.pick(&[
            0,
            keep,
            punch | keep,
            punch | keep,
            zero,
            zero | keep,
            collapse,
            insert,
        ]);
        let (mut at, mut len) = (self.offset(), 1 + self.length() as u64);
        if flags & (collapse | insert) != 0 && !self.rng.percent(10) {
            (at, len) = (at / 4096 * 4096, len.div_ceil(4096) * 4096);
        }
        Op::Fallocate { slot, flags, at, len }
    }

    fn state_op(&mut self) -> Op {
        let path = self.path();
        match self.rng.below(20) {
            0 | 1 => Op::Chmod { path, perm: self.perm() },
            2 => {
                let uid = self.rng.percent(60).then(|| self.rng.pick(&USERS).0);
                let gid = self.rng.percent(60).then(|| self.rng.pick(&USERS).1);
                Op::Chown { path, uid, gid, follow: self.rng.percent(70) }
            }
            3 | 4 => {
                let mut time = || match self.rng.below(4) {
                    0 => None,
                    1 => Some(-1),
                    _ => Some(self.rng.below(SMALL_TIME as u64) as i64),
                };
                let (atime, mtime) = (time(), time());
                Op::Times { path, atime, mtime }
            }
            5..8 => Op::Stat { path, follow: self.rng.percent(50) },
            8 | 9 => Op::StatOpen { slot: self.slot() },
            10 => Op::Access { path, mask: self.rng.below(8) as u32 },
            11 => Op::Readlink { path },
            12 | 13 => Op::List { path: self.dir_path() },
            _ if self.limits.no_xattrs => Op::Stat { path, follow: true },
            14..16 => {
                let mode = [XattrMode::Any, XattrMode::Create, XattrMode::Replace];
                let (name, len) = (self.xattr(), self.rng.below(300) as usize);
                Op::SetXattr { path, name, len, mode: *self.rng.pick(&mode) }
            }
            16 => Op::GetXattr { path, name: self.xattr() },
            17 => Op::ListXattr { path },
            _ => Op::RemoveXattr { path, name: self.xattr() },
        }
    }

    fn slot(&mut self) -> u8 {
        self.rng.below(SLOTS) as u8
    }

    fn name(&mut self) -> String {
        match self.rng.below(300) {
            0 => "n".repeat(255),
            1 => "n".repeat(256),
            _ => self.rng.pick(&["a", "b", "c", "d", "e"]).to_string(),
        }
    }

    fn dir_name(&mut self) -> String {
        if self.rng.percent(75) { self.rng.pick(&DIRS).to_string() } else { self.name() }
    }

    fn path(&mut self) -> String {
        let depth = *self.rng.pick(&[1, 1, 1, 2, 2, 3]);
        let mut names: Vec<String> = (1..depth).map(|_| self.dir_name()).collect();
        names.push(self.name());
        if depth > 1 && self.rng.percent(6) {
            names[depth - 2] = self.rng.pick(&[".", ".."]).to_string();
        }
        names.join("/")
    }

    /// A path whose last name is mostly one of `names`.
    fn path_to(&mut self, names: &[&str]) -> String {
        let path = self.path();
        if self.rng.percent(20) {
            return path;
        }
        match path.rsplit_once('/') {
            Some((dir, _)) => format!("{dir}/{}", self.rng.pick(names)),
            None => self.rng.pick(names).to_string(),
        }
    }

    /// The path of something that is meant to be a directory.
    fn dir_path(&mut self) -> String {
        match self.rng.below(6) {
            0 => "/".to_string(),
            1 => format!("{}/", self.path_to(&DIRS)),
            _ => self.path_to(&DIRS),
        }
    }

    fn target(&mut self) -> String {
        let path = self.path();
        match self.rng.below(10) {
            0 => format!("{MOUNT_PATH}/{path}"),
            1 => format!("../{path}"),
            2 => format!("{path}/"),
            3 => "/elsewhere".to_string(),
            _ => path,
        }
    }

    fn perm(&mut self) -> u32 {
        *self
            .rng
            .pick(&[0o644, 0o666, 0o600, 0o755, 0o777, 0o444, 0o200, 0, 0o6755, 0o2644, 0o4777])
    }

    fn dir_perm(&mut self) -> u32 {
        *self.rng.pick(&[0o777, 0o777, 0o777, 0o755, 0o700, 0o1777, 0o555, 0o311])
    }

    fn open_flags(&mut self) -> i32 {
        let mut flags =
            *self.rng.pick(&[libc::O_RDWR, libc::O_RDWR, libc::O_RDONLY, libc::O_WRONLY]);
        for (flag, percent) in [
            (libc::O_CREAT, 65),
            (libc::O_EXCL, 10),
            (libc::O_TRUNC, 10),
            (libc::O_APPEND, 10),
            (libc::O_NOFOLLOW, 8),
            (libc::O_DIRECTORY, 3),
        ] {
            flags |= if self.rng.percent(percent) { flag } else { 0 };
        }
        flags
    }

    fn offset(&mut self) -> u64 {
        match self.rng.below(8) {
            0 => 0,
            1..4 => self.rng.below(3) * 4096,
            4 => (self.rng.below(OFFSET_MAX / 4096) * 4096 + self.rng.below(3)).saturating_sub(1),
            5 => self.rng.below(100),
            _ => self.rng.below(OFFSET_MAX),
        }
    }

    fn length(&mut self) -> usize {
        match self.rng.below(8) {
            0 => self.rng.below(3) as usize,
            1 | 2 => 4096,
            3 => 4096 * (1 + self.rng.below(8)) as usize,
            4 => self.rng.below(100_000) as usize,
            _ => self.rng.below(9000) as usize,
        }
    }

    fn xattr(&mut self) -> String {
        match self.rng.below(10) {
            0 => self.rng.pick(&["nonsense", "user."]).to_string(),
            _ => self.rng.pick(&USUAL_XATTRS).to_string(),
        }
    }
}

/// What of a step may be asked of the host.
fn for_host(mut step: Step) -> Step {
    match &mut step.op {
        Op::Link { .. } | Op::LinkOpen { .. } => step.who = 0,
        Op::Mkdir { perm, .. } | Op::Chmod { perm, .. } => *perm &= !0o1000,
        // A file system's own order of checks: some clear set-id bits before they refuse.
        Op::Fallocate { .. } => step.who = 0,
        // Linux does not even look at the path when both times are left alone.
        Op::Times { atime: None, mtime: mtime @ None, .. } => *mtime = Some(-1),
        Op::Symlink { target, .. } => *target = target.trim_start_matches('/').to_string(),
        Op::Truncate { path, .. } => {
            step.op = Op::Stat { path: std::mem::take(path), follow: true };
        }
        _ => {}
    }
    step
}

/// Makes a failing list short: leaves out ever smaller pieces as long as it still fails. `fails`
/// is asked at most `tries` times.
pub fn shrink(steps: Vec<Step>, tries: usize, fails: &mut dyn FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut steps = steps;
    let mut left = tries;
    let mut piece = steps.len().div_ceil(2);
    while piece > 0 && left > 0 {
        let mut at = 0;
        let before = steps.len();
        while at < steps.len() && left > 0 {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + piece).min(fewer.len()));
            left -= 1;
            if fails(&fewer) {
                steps = fewer;
            } else {
                at += piece;
            }
        }
        if piece == 1 && steps.len() == before {
            break;
        }
        piece = if piece == 1 { 1 } else { piece / 2 };
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_steps() {
        let steps = |seed| {
            let mut generator = Generator::new(seed, Limits::default());
            (0..100).map(|_| generator.step()).collect::<Vec<_>>()
        };
        assert_eq!(steps(1), steps(1));
        assert_ne!(steps(1), steps(2));
    }

    #[test]
    fn shrinking_finds_the_steps_that_matter() {
        let mut generator = Generator::new(3, Limits::default());
        let mut steps: Vec<Step> = (0..200).map(|_| generator.step()).collect();
        steps.retain(|step| step.op != Op::Sync);
        steps.insert(40, Step { who: 0, op: Op::Sync });
        steps.insert(150, Step { who: 1, op: Op::Sync });
        let mut fails =
            |steps: &[Step]| steps.iter().filter(|step| step.op == Op::Sync).count() == 2;
        assert_eq!(shrink(steps, 10_000, &mut fails).len(), 2);
    }
}

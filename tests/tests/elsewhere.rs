//! Lanes, and commands that end them, in several mount namespaces with one run-time directory.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_tests::host::{Host, children, succeeds, text, until};
use polylane_tests::namespace::Namespace;
use polylane_tests::pool::signal_to;
use polylane_tests::{binary, lacks, seed, unavailable};

/// How long a service would wait for the kernel to let go of a copy, and some margin less.
const WAIT: Duration = Duration::from_secs(4);

/// How long what takes some seconds may take there.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a lane dies.
const ROUNDS: usize = 12;

/// Who is killed, all at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Killed {
    Supervisor,
    SupervisorAndHolder,
    All,
}

impl Killed {
    fn kill(self, supervisor: u32) {
        let named = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            self == Killed::All || self != Killed::Supervisor && name.trim() == "polylane-hold"
        };
        let mut those = children(supervisor).expect("children");
        those.retain(named);
        those.push(supervisor);
        // None does anything about the others' end.
        for signal in ["STOP", "KILL"] {
            those.iter().for_each(|process| signal_to(*process, signal));
        }
    }
}

/// What a shell sees mounted at a path.
fn seen(namespace: &mut Namespace, at: &Path) -> String {
    namespace.says(&format!("grep -c ' {} ' /proc/self/mountinfo", text(at)))
}

/// A command in a namespace: its status.
fn status(namespace: &mut Namespace, words: &str) -> String {
    namespace.says(&format!("'{}' {words} >/dev/null; echo $?", binary().display()))
}

/// Whichever namespace a lane was mounted in, whatever was killed of it, and whichever namespace
/// the next command is in: the mount is gone, copies of it give errors, and the path and the volume
/// are free in all of them.
#[test]
fn a_lane_that_died_is_cleared_from_any_mount_namespace() {
    let name = "a_lane_that_died_is_cleared_from_any_mount_namespace";
    if unavailable(name) || lacks(name, &["unshare", "nsenter"]) {
        return;
    }
    let seed = seed();
    println!("POLYLANE_SEED={seed}");
    let mut random = Rng::new(seed);
    let host = Host::new();
    let (pool, at, volume) = (host.pool("dead"), host.dir("m"), host.path("v.img"));
    succeeds(&["pool", "create", &pool]);
    succeeds(&["volume", "create", "--size", "64M", text(&volume)]);
    let mut all: Vec<_> = (0..3).map(|_| Namespace::new("private")).collect();
    for round in 0..ROUNDS {
        let [mounts, clears, next] = [(); 3].map(|()| random.below(3) as usize);
        let killed = *random.pick(&[Killed::Supervisor, Killed::SupervisorAndHolder, Killed::All]);
        let shown = format!("seed {seed}, round {round}: {mounts}, {clears}, {next}, {killed:?}");
        let mount = format!("mount --pool {pool} '{}' '{}'", text(&volume), text(&at));
        assert_eq!(status(&mut all[mounts], &mount), "0", "{shown}");
        let file = at.join(format!("file-{round}"));
        assert_eq!(all[mounts].says(&format!("echo x >{0}; sync {0}; cat {0}", text(&file))), "x");
        let copy = random.percent(50).then(|| all[mounts].copy());
        killed.kill(host.supervisor());
        let clear = Instant::now() + PATIENCE;
        let listed = format!("'{}' mount | grep -cF '{}'", binary().display(), text(&at));
        while all[clears].says(&listed) != "0" {
            assert!(Instant::now() < clear, "{shown}: still listed");
        }
        assert_eq!(seen(&mut all[mounts], &at), "0", "{shown}");
        if let Some(mut copy) = copy {
            assert_eq!(seen(&mut copy, &at), "1", "{shown}: the copy is its namespace's");
            // A service that is there still serves, for some seconds.
            let end = Instant::now() + PATIENCE;
            let list = format!("ls '{}' >/dev/null 2>&1 || echo error", text(&at));
            while copy.says(&list) != "error" {
                assert!(killed != Killed::All && Instant::now() < end, "{shown}: still served");
            }
        }
        assert_eq!(status(&mut all[next], &mount), "0", "{shown}");
        let files = all[next].says(&format!("ls '{}' | grep -c file-", text(&at)));
        assert_eq!(files, (round + 1).to_string(), "{shown}");
        assert_eq!(status(&mut all[next], &format!("umount '{}'", text(&at))), "0", "{shown}");
    }
    drop(all);
    host.assert_nothing_is_left();
    polylane_tests::volume::assert_clean(&volume);
}

/// Namespaces with copies of a lane's mount hold up no `umount`, and what they have of it are
/// errors. A busy host is slow at all of it, so what copies cost is the quickest `umount` with
/// copies against the slowest without.
#[test]
fn copies_of_a_mount_hold_up_no_unmount() {
    let name = "copies_of_a_mount_hold_up_no_unmount";
    if unavailable(name) || lacks(name, &["unshare"]) {
        return;
    }
    let seed = seed();
    println!("POLYLANE_SEED={seed}");
    let mut random = Rng::new(seed);
    let host = Host::new();
    // Control groups of another pool's lanes may be those of another run-time directory.
    let (pool, at, volume) = (host.pool("copied"), host.dir("m"), host.path("v.img"));
    succeeds(&["pool", "create", &pool]);
    let (file, other) = (at.join("file"), host.path("w.img"));
    for image in [&volume, &other] {
        succeeds(&["volume", "create", "--size", "64M", text(image)]);
    }
    let (mut with_copies, mut alone) = (Duration::MAX, Duration::ZERO);
    for round in 0..6 {
        let source = if random.percent(50) { &volume } else { &other };
        let lazy: &[&str] = if round > 0 && random.percent(30) { &["-l"] } else { &[] };
        let shown = format!("seed {seed}, round {round}: {source:?} {lazy:?}");
        succeeds(&["mount", "--pool", &pool, text(source), text(&at)]);
        let copies = (0..=random.below(2)).map(|_| Namespace::new("private"));
        let mut copies: Vec<_> = copies.collect();
        let writer = format!("echo {round} >'{0}' && sync '{0}' && echo written", text(&file));
        assert_eq!(copies[0].says(&writer), "written", "{shown}");
        let opens = random.percent(50);
        if opens {
            copies[0].says(&format!("exec 5<'{}'; cd '{}'", text(&file), text(&at)));
        }
        let begin = Instant::now();
        succeeds(&[&["umount"], lazy, &[text(&at)]].concat());
        if lazy.is_empty() {
            with_copies = with_copies.min(begin.elapsed());
        }
        polylane_tests::volume::assert_clean(source);
        for copy in &mut copies {
            let said = copy.says(&format!("cat '{}' 2>/dev/null || echo error", text(&file)));
            assert_eq!(said, "error", "{shown}");
        }
        succeeds(&["mount", "--pool", &pool, text(source), text(&at)]);
        assert_eq!(fs::read_to_string(&file).expect("read"), format!("{round}\n"), "{shown}");
        drop(copies);
        let begin = Instant::now();
        succeeds(&["umount", text(&at)]);
        alone = alone.max(begin.elapsed());
    }
    println!("umount with copies {with_copies:?}, alone {alone:?}");
    assert!(with_copies < alone + WAIT, "seed {seed}: {with_copies:?}, alone {alone:?}");
    until("nothing is listed", || host.mounts().is_empty());
    host.assert_nothing_is_left();
}

/// A file system that has the device number of a dead lane by now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// A run's lane.
    Run,
    /// A lane of another run-time directory, in a mount namespace of its own.
    OtherDirectory,
}

impl Next {
    /// A shell that sees it, where, and its device as mountinfo has it.
    fn begin(self, at: &Path) -> (Namespace, String, String) {
        let mut shell = match self {
            Next::Run => Namespace::of_run(),
            Next::OtherDirectory => {
                let mut shell = Namespace::new("private");
                shell.says("mount -t tmpfs next /run");
                assert_eq!(status(&mut shell, &format!("mount mem:32M '{}'", text(at))), "0");
                shell
            }
        };
        let lane = "grep ' fuse.polylane ' /proc/self/mountinfo | tail -1 | cut -d' ' -f";
        let [device, place] = [3, 5].map(|field| shell.says(&format!("{lane}{field}")));
        let written = shell.says(&format!("echo alive >'{0}/f' && cat '{0}/f'", place));
        assert_eq!(written, "alive", "{self:?}");
        (shell, place, device)
    }

    fn end(self, mut shell: Namespace, at: &Path) {
        if self == Next::OtherDirectory {
            assert_eq!(status(&mut shell, &format!("umount '{}'", text(at))), "0");
        }
        shell.end();
    }
}

/// A dead lane's mount goes with its mount namespace, and the kernel gives its device's number to
/// the next file system: no command that clears the dead lane does anything to that.
#[test]
fn the_next_of_a_dead_lanes_device_number_lives_on() {
    let name = "the_next_of_a_dead_lanes_device_number_lives_on";
    if unavailable(name) || lacks(name, &["unshare"]) {
        return;
    }
    let seed = seed();
    println!("POLYLANE_SEED={seed}");
    let mut random = Rng::new(seed);
    let host = Host::new();
    let (at, other) = (host.dir("m"), host.dir("other"));
    let mut again = 0;
    for round in 0..60 {
        let mut first = Namespace::new("private");
        assert_eq!(status(&mut first, &format!("mount mem:32M '{}'", text(&at))), "0");
        let find = format!("grep ' {} ' /proc/self/mountinfo | cut -d' ' -f3", text(&at));
        let device = first.says(&find);
        Killed::All.kill(host.supervisor());
        drop(first);
        let next = *random.pick(&[Next::Run, Next::OtherDirectory]);
        let (mut shell, place, its) = next.begin(&other);
        again += usize::from(its == device);
        let shown = format!("seed {seed}, round {round}: {next:?}, {device}, {its}");
        until("the dead lane is cleared", || host.mounts().is_empty());
        let said = shell.says(&format!("cat '{place}/f'; echo more >'{place}/g'; cat '{place}/g'"));
        assert_eq!(said, "more", "{shown}");
        next.end(shell, &other);
        if again == 4 {
            break;
        }
    }
    println!("{again} had the device's number");
    assert!(again > 0, "seed {seed}: no lane had a dead one's device number");
    host.assert_nothing_is_left();
}

/// However many copies of its mount a dead lane's user has made, one command with few descriptors
/// finds the mount.
#[test]
fn a_dead_lane_with_many_copies_is_cleared() {
    let name = "a_dead_lane_with_many_copies_is_cleared";
    if unavailable(name) || lacks(name, &["unshare"]) {
        return;
    }
    let host = Host::new();
    let (at, copies) = (host.dir("m"), host.dir("copies"));
    let [mut first, mut clears] = [(); 2].map(|()| Namespace::new("private"));
    assert_eq!(status(&mut first, &format!("mount mem:32M '{}'", text(&at))), "0");
    let bind = "do i=$((i + 1)); mkdir $to/$i; mount --bind $from $to/$i; done";
    let (from, to) = (text(&at), text(&copies));
    first.says(&format!("from={from}; to={to}; i=0; while [ $i -lt 150 ]; {bind}"));
    let count = format!("grep -c ' {}/' /proc/self/mountinfo", text(&copies));
    assert_eq!(first.says(&count), "150");
    Killed::All.kill(host.supervisor());
    let list = format!("(ulimit -n 60; '{}' mount)", binary().display());
    let clear = format!("{list} | grep -cF '{}'", text(&at));
    let end = Instant::now() + PATIENCE;
    while clears.says(&clear) != "0" {
        assert!(Instant::now() < end, "still listed");
    }
    assert_eq!(seen(&mut first, &at), "0");
    assert_eq!(first.says(&count), "150", "copies are their namespace's");
    drop((first, clears));
    host.assert_nothing_is_left();
}

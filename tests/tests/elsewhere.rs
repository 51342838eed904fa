//! Lanes, and commands that end them, in several mount namespaces with one run-time directory.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use polylane_base::rng::Rng;
use polylane_tests::host::{Host, children, succeeds, text, until};
use polylane_tests::namespace::Namespace;
use polylane_tests::pool::signal_to;
use polylane_tests::{binary, lacks, seed, unavailable};

/// How long what takes no time may take on a busy host: less than any limit of a service.
const SOON: Duration = Duration::from_secs(4);

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
        while all[clears].says(&format!("'{}' mount | wc -l", binary().display())) != "1" {
            assert!(Instant::now() < clear, "{shown}: still listed");
        }
        assert_eq!(seen(&mut all[mounts], &at), "0", "{shown}");
        if let Some(mut copy) = copy {
            assert_eq!(seen(&mut copy, &at), "1", "{shown}: the copy is its namespace's");
            // A service that is there still serves, for some seconds.
            let limit = if killed == Killed::All { SOON } else { PATIENCE };
            let end = Instant::now() + limit;
            let list = format!("ls '{}' >/dev/null 2>&1 || echo error", text(&at));
            while copy.says(&list) != "error" {
                assert!(killed != Killed::All && Instant::now() < end, "{shown}: still served");
            }
            assert!(Instant::now() < end, "{shown}: late");
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
/// errors at once.
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
    for round in 0..6 {
        let source = if random.percent(50) { &volume } else { &other };
        let lazy: &[&str] = if random.percent(30) { &["-l"] } else { &[] };
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
        let limit = if lazy.is_empty() { SOON } else { PATIENCE };
        assert!(begin.elapsed() < limit, "{shown}: {:?}", begin.elapsed());
        polylane_tests::volume::assert_clean(source);
        for copy in &mut copies {
            let begin = Instant::now();
            let said = copy.says(&format!("cat '{}' 2>/dev/null || echo error", text(&file)));
            assert_eq!((said.as_str(), begin.elapsed() < SOON), ("error", true), "{shown}");
        }
        succeeds(&["mount", "--pool", &pool, text(source), text(&at)]);
        assert_eq!(fs::read_to_string(&file).expect("read"), format!("{round}\n"), "{shown}");
        drop(copies);
        succeeds(&["umount", text(&at)]);
    }
    until("nothing is listed", || host.mounts().is_empty());
    host.assert_nothing_is_left();
}

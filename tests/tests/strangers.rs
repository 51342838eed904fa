//! Other users of the host, who own directories that root names: what they put there leads no
//! command of root's elsewhere.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polylane_tests::host::{Host, child, polylane, refused, succeeds, text};
use polylane_tests::pool::signal_to;
use polylane_tests::{lacks, skip, unavailable};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::Value;

/// Another user.
const OTHER: u32 = 1000;

/// A directory of another user's, and one of root's below which that user cannot search.
struct Place {
    host: Host,
    theirs: PathBuf,
    secret: PathBuf,
}

impl Place {
    /// `None`: said why.
    fn new(test: &str) -> Option<Place> {
        if unavailable(test) {
            return None;
        }
        if fs::metadata("/proc/self").expect("stat").uid() != 0 {
            skip(test, "only root has directories of others");
            return None;
        }
        let host = Host::new();
        fs::set_permissions(host.path(""), PermissionsExt::from_mode(0o755)).expect("chmod");
        let (theirs, closed) = (host.dir("theirs"), host.dir("closed"));
        fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).expect("chmod");
        let secret = closed.join("inner");
        for (dir, text) in [(&secret, "secret"), (&theirs.join("data"), "theirs")] {
            fs::create_dir(dir).expect("mkdir");
            fs::write(dir.join("file"), text).expect("write");
        }
        for path in [theirs.clone(), theirs.join("data"), theirs.join("data/file")] {
            chown(path, Some(OTHER), Some(OTHER)).expect("chown");
        }
        Some(Place { host, theirs, secret })
    }

    /// A link of that user's.
    fn link(&self, to: &Path, name: &str) -> PathBuf {
        let link = self.theirs.join(name);
        symlink(to, &link).expect("link");
        lchown(&link, Some(OTHER), Some(OTHER)).expect("chown");
        link
    }
}

#[test]
fn links_of_another_user_lead_no_lane_elsewhere() {
    let name = "links_of_another_user_lead_no_lane_elsewhere";
    let Some(place) = Place::new(name) else { return };
    let (host, at) = (&place.host, place.host.dir("m"));
    let volume = place.secret.join("v.img");
    succeeds(&["volume", "create", "--size", "32M", text(&volume)]);
    fs::write(place.secret.join("layers"), format!("{}\n", text(&place.secret))).expect("write");
    let link = place.link(&place.secret, "link");
    let file = place.link(&volume, "v.img");
    let layers = place.link(&place.secret.join("layers"), "layers");
    let [dir, in_dir, volume_of, union] = [
        format!("dir:{}", text(&link)),
        format!("dir:{}/../inner", text(&link)),
        format!("volume:{}", text(&file)),
        format!("union:{}", text(&layers)),
    ];
    let new = format!("volume:{}/new.img", text(&link));
    let own = host.dir("own");
    let over = format!("dir:{}", text(&own));
    fs::set_permissions(&own, PermissionsExt::from_mode(0o700)).expect("chmod");
    let at = text(&at);
    for words in [
        &["mount", &dir, at][..],
        &["mount", &in_dir, at],
        &["mount", &volume_of, at],
        &["mount", &new, at],
        &["mount", "--lower", text(&link), &over, at],
        &["mount", "--lower", text(&link), "none", at],
        &["mount", "--lower", &volume_of, "none", at],
        &["mount", "--lower", &union, "none", at],
        &["mount", "--lower", &format!("fixed:{dir}"), "none", at],
        &["run", "--dir", text(&link), "--", "true"],
        &["run", "--dir", &format!("{}/new/newer", text(&link)), "--", "true"],
        &["run", "--mem", "--lower", text(&link), "--", "true"],
        &["run", "--volume", text(&file), "--", "true"],
        &["volume", "create", &format!("{}/new.img", text(&link))],
    ] {
        let (status, line) = refused(words);
        assert_eq!(status, 1, "{words:?}: {line}");
        assert!(line.contains("symbolic link of another user"), "{words:?}: {line}");
    }
    let mut left: Vec<_> = fs::read_dir(&place.secret).expect("list").collect();
    left.retain(|entry| entry.as_ref().is_ok_and(|entry| entry.file_name() == "new"));
    assert!(left.is_empty() && !place.secret.join("new.img").exists());
    // Links of root's lead on, also to what is another user's.
    symlink(place.theirs.join("data"), host.path("by-root")).expect("link");
    succeeds(&["mount", &format!("dir:{}", text(&host.path("by-root"))), at]);
    assert_eq!(fs::read_to_string(Path::new(at).join("file")).expect("read"), "theirs");
    succeeds(&["umount", at]);
    host.assert_nothing_is_left();
}

/// The other user exchanges the directory for a link again and again while root mounts it.
#[test]
fn what_is_mounted_is_what_was_looked_at() {
    let Some(place) = Place::new("what_is_mounted_is_what_was_looked_at") else { return };
    let (host, at) = (&place.host, place.host.dir("m"));
    let link = place.link(&place.secret, "link");
    let data = place.theirs.join("data");
    let source = format!("dir:{}", text(&data));
    let (done, mut found) = (AtomicBool::new(false), Vec::new());
    let own = host.dir("own");
    fs::set_permissions(&own, PermissionsExt::from_mode(0o700)).expect("chmod");
    let over = format!("dir:{}", text(&own));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &link, CWD, &data, RenameFlags::EXCHANGE).expect("exchange");
                std::thread::yield_now();
            }
        });
        for turn in 0..24 {
            let words = match turn % 2 {
                0 => vec!["mount", &source, text(&at)],
                _ => vec!["mount", "--lower", text(&data), &over, text(&at)],
            };
            if !polylane(&words).status.success() {
                continue;
            }
            found.push(fs::read_to_string(at.join("file")).unwrap_or_default());
            let _ = polylane(&["umount", text(&at)]);
        }
        done.store(true, Ordering::Relaxed);
    });
    eprintln!("{} of 24 were mounted", found.len());
    assert!(found.iter().all(|found| found == "theirs"), "{found:?}");
    host.assert_nothing_is_left();
}

/// Says `ready` once its command line is a GiB long; waits until its input ends.
const LONG_NAME: &str = "import ctypes,struct,sys
number=int
size=1<<30
libc=ctypes.CDLL(None,use_errno=True)
libc.mmap.restype=ctypes.c_void_p; libc.sbrk.restype=ctypes.c_void_p
int=ctypes.c_int
libc.mmap.argtypes=[ctypes.c_void_p,ctypes.c_size_t,int,int,int,ctypes.c_long]
at=libc.mmap(None,size,1,0x4022,-1,0)
f=open('/proc/self/stat').read().rsplit(')',1)[1].split()
n=lambda i:number(f[i-3])
parts=[n(26),n(27),n(45),n(46),n(47),libc.sbrk(0),n(28),at,at+size,n(50),n(51),0,0,0xffffffff]
m=struct.pack('=12QII',*parts)
done=libc.prctl(35,14,ctypes.c_char_p(m),len(m),0)
print('ready' if done==0 else 'no: errno %d'%ctypes.get_errno(),flush=True)
sys.stdin.read()";

/// Says `ready` once it has many descriptors of which the kernel has much to say.
const LONG_DESCRIPTORS: &str = "import ctypes,os,resource,sys
hard=resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE,(hard,hard))
libc=ctypes.CDLL(None,use_errno=True)
fd=libc.inotify_init(); count=0
for i in range(3000):
    name=('%s/%d'%(sys.argv[1],i)).encode()
    open(name,'w').close(); count+=libc.inotify_add_watch(fd,name,2)>0
dups=[os.dup(fd) for i in range(min(1500,hard-32))]
print('ready' if count>2000 and len(dups)>900 else 'no: %d of %d'%(count,len(dups)),flush=True)
sys.stdin.read()";

/// Another user's process; dropped, it has ended.
struct Stranger(Child);

impl Stranger {
    /// `None`: said why.
    fn start(test: &str, script: &str, argument: &Path) -> Option<Stranger> {
        let mut command = Command::new("python3");
        command.args(["-c", script, text(argument)]).uid(OTHER).gid(OTHER);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let stranger = Stranger(child);
        match line.trim() {
            "ready" => Some(stranger),
            why => {
                skip(test, why);
                None
            }
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process calls itself is its own to make as long as it likes.
#[test]
fn what_strangers_call_themselves_takes_no_lane_s_memory() {
    let name = "what_strangers_call_themselves_takes_no_lane_s_memory";
    if lacks(name, &["python3"]) {
        return;
    }
    let Some(place) = Place::new(name) else { return };
    let (host, at) = (&place.host, place.host.dir("m"));
    let Some(_stranger) = Stranger::start(name, LONG_NAME, &place.theirs) else { return };
    succeeds(&["mount", &format!("dir:{}", text(&host.dir("d"))), text(&at)]);
    let status = fs::read_to_string(format!("/proc/{}/status", host.supervisor())).expect("read");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(kib < 256 << 10, "{kib} KiB");
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

/// Nor do descriptors of others keep those waiting who ask what is open in a pool.
#[test]
fn what_strangers_have_open_keeps_no_list_of_open_files_waiting() {
    let name = "what_strangers_have_open_keeps_no_list_of_open_files_waiting";
    if lacks(name, &["python3"]) {
        return;
    }
    let Some(place) = Place::new(name) else { return };
    let (host, at) = (&place.host, place.host.dir("m"));
    let pool = host.pool("asked");
    succeeds(&["pool", "create", &pool]);
    succeeds(&["mount", "--pool", &pool, "mem:32M", text(&at)]);
    let watched = place.theirs.join("watched");
    fs::create_dir(&watched).expect("mkdir");
    chown(&watched, Some(OTHER), Some(OTHER)).expect("chown");
    let Some(_stranger) = Stranger::start(name, LONG_DESCRIPTORS, &watched) else { return };
    let kept = fs::File::create(at.join("kept")).expect("open");
    let begin = Instant::now();
    let info: Value =
        serde_json::from_str(&succeeds(&["pool", "info", "--json", &pool])).expect("JSON");
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
    let open = &info["services"][0]["instances"][0]["open_files"];
    if info["open_files_counted"] == true {
        assert_eq!(open, 1);
    }
    drop(kept);
    succeeds(&["umount", text(&at)]);
    host.assert_nothing_is_left();
}

/// Lanes are mounted in another tenant's, whose service does not answer: their end, by whichever
/// process, keeps no other command waiting for the tables.
#[test]
fn what_ends_in_a_lane_that_hangs_holds_up_no_other() {
    let name = "what_ends_in_a_lane_that_hangs_holds_up_no_other";
    let Some(place) = Place::new(name) else { return };
    let (host, outer, other) = (&place.host, place.host.dir("m"), place.host.dir("other"));
    // Each of a pool of its own: no lane waits for what another one still writes.
    let pools = ["outer", "inner", "other"].map(|name| host.pool(name));
    pools.iter().for_each(|pool| drop(succeeds(&["pool", "create", pool])));
    let mount =
        |pool: &str, path: &Path| succeeds(&["mount", "--pool", pool, "mem:64M", text(path)]);
    mount(&pools[0], &outer);
    let inner = ["killed", "orphaned"].map(|name| outer.join(name));
    for path in &inner {
        fs::create_dir(path).expect("mkdir");
        mount(&pools[1], path);
    }
    let supervisor = |path: &Path| {
        let own = host.mounts().into_iter().find(|mount| mount["path"] == text(path));
        own.and_then(|mount| mount["supervisor"].as_u64()).expect("mounted") as u32
    };
    let service = child(supervisor(&outer), "polylane-svc");
    let [killed, orphaned] = [0, 1].map(|one| supervisor(&inner[one]));
    let holder = child(orphaned, "polylane-hold");
    signal_to(service, "STOP");
    signal_to(killed, "KILL");
    [orphaned, holder].iter().for_each(|pid| signal_to(*pid, "KILL"));
    let mut longest = Duration::ZERO;
    for _ in 0..6 {
        for words in [
            &["mount", "--pool", &pools[2], "mem:32M", text(&other)][..],
            &["umount", text(&other)],
        ] {
            let begin = Instant::now();
            succeeds(words);
            longest = longest.max(begin.elapsed());
        }
    }
    signal_to(service, "CONT");
    for path in inner.iter().chain([&outer]) {
        let _ = polylane(&["umount", "-l", text(path)]);
    }
    // Behind the lock they waited for 18 s.
    assert!(longest < Duration::from_secs(10), "{longest:?}");
    host.assert_nothing_is_left();
}

//! Clients that speak the wire by themselves and want a session that is not theirs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use polylane_ipc::channel::client::Trusting;
use polylane_ipc::handshake::{Hello, WELCOME_BYTES_MAX, Welcome};
use polylane_ipc::message::{Message, Op, Status};
use polylane_ipc::{ClientChannel, MailboxIndex};
use polylane_sys::scm;
use polylane_tests::host::{Host, child, succeeds, text, until};
use polylane_tests::{lacks, unavailable};

/// What the scripts use: `connect()`, `hello(socket, *fds)`, which tells the errno of the welcome,
/// `caps(bits)`, and `LANE`, the lane's root as a descriptor.
const KIT: &str = r#"
import array, ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
RUN, AT, HELLO = os.environ["RUN"], os.environ["L"], bytes.fromhex(os.environ["HELLO"])
LANE = os.open(AT, os.O_RDONLY | os.O_DIRECTORY)

def connect():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(RUN + "/socket")
    return s

def hello(s, *fds):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    s.sendmsg([HELLO], rights)
    s.settimeout(10)
    said, _, _, _ = s.recvmsg(61440, 8192)
    return struct.unpack_from("<i", said, 12)[0] if len(said) >= 16 else -1

def enter(s):
    "As the library does: at home, or by the lane's root, on a connection of its own."
    said = hello(s[0])
    return said if said != 18 else hello(s[1], LANE)

def caps(bits):
    "Effective capabilities; the permitted ones stay."
    head = struct.pack("=Ii", 0x20080522, 0)
    had = ctypes.create_string_buffer(24)
    assert libc.syscall(125, head, had) == 0
    e0, p0, i0, e1, p1, i1 = struct.unpack("=6I", had.raw)
    new = struct.pack("=6I", bits & 0xffffffff, bits & 0xffffffff, 0, bits >> 32, bits >> 32, 0)
    assert libc.syscall(126, head, new) == 0, ctypes.get_errno()
"#;

/// A lane of this host, and what a client needs to know.
struct Lane {
    host: Host,
    at: PathBuf,
    run: String,
}

impl Lane {
    fn new() -> Lane {
        let host = Host::new();
        let at = host.dir("lane");
        succeeds(&["mount", "mem:64M", text(&at)]);
        let env: serde_json::Value =
            serde_json::from_str(&succeeds(&["env", "--json", text(&at)])).expect("JSON");
        let run = env["run"].as_str().expect("a directory").to_string();
        Lane { host, at, run }
    }

    /// Runs a script after [`KIT`].
    fn client(&self, script: &str) -> Output {
        self.command(script).output().expect("python3")
    }

    /// What runs it.
    fn command(&self, script: &str) -> Command {
        let hello = Hello { queue: None, key: 1 }.at(text(&self.at).as_bytes());
        let hello: String = hello.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = Command::new("python3");
        command.args(["-c", &format!("{KIT}{script}")]);
        command.env("L", &self.at).env("RUN", &self.run).env("HELLO", hello);
        command.env("BIN", polylane_tests::binary());
        command
    }

    /// What a script prints.
    fn said(&self, script: &str) -> String {
        let output = self.client(script);
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    fn stats(&self) -> serde_json::Value {
        let mount = &self.host.mounts()[0];
        let lane = format!("{}@{}", mount["pool"].as_str().expect("a name"), mount["service"]);
        let stats = succeeds(&["stats", "--json", "--pool", &lane]);
        serde_json::from_str::<serde_json::Value>(&stats).expect("JSON")[0].take()
    }

    /// The process that serves it.
    fn service(&self) -> u64 {
        self.stats()["service_pid"].as_u64().expect("a process")
    }

    /// How often a process had no session for that reason.
    fn refused(&self, why: &str) -> u64 {
        let counted = &self.stats()["service"]["shared_memory"]["not_admitted"][why];
        counted.as_u64().expect("a number")
    }

    /// A lane whose root every user may search.
    fn open_to_all() -> Lane {
        let lane = Lane::new();
        fs::set_permissions(&lane.at, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("chmod");
        lane
    }

    /// What a process is answered that does `before`, connects, does `after`, and says hello.
    fn enters(&self, before: &str, after: &str) -> String {
        self.said(&format!("{before}\ns = connect(), connect()\n{after}\nprint(enter(s))"))
    }

    fn end(self) {
        succeeds(&["umount", text(&self.at)]);
        self.host.assert_nothing_is_left();
    }
}

const ADMITTED: &str = "0";
/// `EACCES`
const REFUSED: &str = "13";

/// A user opens an own file, which root gives to root through the library, and names what it has
/// open: by its link in /proc and by the descriptor, where it may make files and where not.
const NAMES: &str = r#"
import subprocess
own, asked, done = AT + "/d/own", os.pipe(), os.pipe()
os.mkdir(AT + "/d"); os.mkdir(AT + "/fixed"); os.chmod(AT + "/d", 0o777)
open(own, "w").close(); os.chown(own, 4321, 4321)
if os.fork() == 0:
    os.setgroups([]); os.setresgid(4321, 4321, 4321); os.setresuid(4321, 4321, 4321)
    fd = os.open(own, os.O_RDWR)
    os.fstat(fd)
    os.write(asked[1], b"x"); os.read(done[0], 1)
    said = []
    for where in ("d", "fixed"):
        for name, at, flags in ((b"/proc/self/fd/%d" % fd, -100, 0x400), (b"", fd, 0x1000)):
            new = (AT + "/" + where + "/new").encode()
            said.append(ctypes.get_errno() if libc.linkat(at, name, -100, new, flags) else 0)
    print(*said, flush=True)
    os._exit(0)
os.read(asked[0], 1)
changes = "eval \"$($BIN env $L)\"; chown 0:0 $L/d/own; chmod 600 $L/d/own"
subprocess.run(["sh", "-ec", changes], check=True)
os.write(done[1], b"x"); os.wait()
"#;

#[test]
fn an_open_file_of_somebody_else_gets_no_name() {
    let name = "an_open_file_of_somebody_else_gets_no_name";
    let guard = "/proc/sys/fs/protected_hardlinks";
    if unavailable(name) || lacks(name, &["python3", "chown", "chmod"]) {
        return;
    }
    if fs::read_to_string(guard).is_ok_and(|text| text.trim() == "0") {
        return polylane_tests::skip(name, "fs.protected_hardlinks is off");
    }
    let lane = Lane::open_to_all();
    let said = lane.said(NAMES);
    let said: Vec<&str> = said.split(' ').collect();
    // By the descriptor alone ENOENT, but to who opened it from Linux 6.10 on.
    assert!(["1 2 1 2", "1 1 1 1"].contains(&said.join(" ").as_str()), "{said:?}");
    lane.end();
}

#[test]
fn a_session_is_of_who_connected_and_of_who_says_hello() {
    let name = "a_session_is_of_who_connected_and_of_who_says_hello";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let lane = Lane::open_to_all();
    let between = |before: &str, after: &str| lane.enters(before, after);
    assert_eq!(between("", ""), ADMITTED);
    // Root without what makes root root, which is another user by the time that it is looked at.
    let less = "os.setresuid(4321, 0, 4321); caps(0)";
    assert_eq!(between(less, ""), REFUSED);
    let changes = [
        "os.seteuid(4321)",
        "os.setresuid(4321, 4321, 4321)",
        "libc.setfsuid(4321)",
        "libc.setfsgid(4321)",
        "os.setegid(4321)",
        "os.setgroups([4321])",
        "caps(0)",
        // One of several threads.
        "import threading, time; \
         threading.Thread(target=lambda: (libc.syscall(117, 0, 4321, 0), time.sleep(5)), \
         daemon=True).start(); time.sleep(0.3)",
        "import threading, time; \
         threading.Thread(target=lambda: (caps(0), time.sleep(5)), daemon=True).start(); \
         time.sleep(0.3)",
    ];
    for change in changes {
        assert_eq!(between("", change), REFUSED, "{change}");
    }
    assert_eq!(between(less, "os.seteuid(4321)"), REFUSED, "root no more");
    assert_eq!(between("os.setgroups([7, 9]); os.setresuid(4321, 4321, 4321)", ""), ADMITTED);
    assert!(lane.refused("changed") >= 8);
    lane.end();
}

/// A seccomp filter that lets everything pass.
const SECCOMP: &str = "\
    allow = ctypes.create_string_buffer(struct.pack('=HBBI', 6, 0, 0, 0x7fff0000)); \
    program = struct.pack('=HxxxxxxQ', 1, ctypes.addressof(allow)); \
    assert libc.syscall(317, 1, 0, program) == 0, ctypes.get_errno()";

#[test]
fn what_a_process_sees_and_may_counts_when_it_says_hello() {
    let name = "what_a_process_sees_and_may_counts_when_it_says_hello";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let lane = Lane::open_to_all();
    let between = |before: &str, after: &str| lane.enters(before, after);
    let user = "os.setgroups([]); os.setresgid(4321, 4321, 4321); os.setresuid(4321, 4321, 4321)";
    for before in ["", user] {
        assert_eq!(between(before, ""), ADMITTED, "{before}");
        // Namespaces of mounts and of users; what is shown is of the former ones.
        for flags in [0x2_0000, 0x1000_0000, 0x1002_0000] {
            let unshare = format!("libc.syscall(272, {flags}) and sys.exit(print(13))");
            assert_eq!(between(before, &unshare), REFUSED, "{before} unshare {flags:x}");
        }
        let chroot = "libc.syscall(272, 0x10000000); libc.syscall(161, b'/usr')";
        assert_eq!(between(before, chroot), REFUSED, "{before} chroot as its own root");
    }
    assert_eq!(between("", "libc.syscall(161, b'/usr')"), REFUSED, "chroot");
    assert_eq!(between("", SECCOMP), REFUSED, "seccomp");
    let filtered_thread = format!(
        "def confine():\n    {SECCOMP}\n    time.sleep(5)\n\
         import threading, time\n\
         threading.Thread(target=confine, daemon=True).start(); time.sleep(0.3)"
    );
    assert_eq!(between("", &filtered_thread), REFUSED, "seccomp in one thread");
    lane.end();
}

/// Landlock: all may be read, and what lies in `/tmp` written.
const LANDLOCK: &str = r#"
def landlock():
    all_rights = (1 << 13) - 1
    read = 1 | 4 | 8
    rules = ctypes.c_uint64(all_rights)
    ruleset = libc.syscall(444, ctypes.byref(rules), 8, 0)
    assert ruleset >= 0, ctypes.get_errno()
    for path, rights in [("/", read), ("/tmp", all_rights)]:
        rule = struct.pack("=Qi", rights, os.open(path, os.O_PATH))
        assert libc.syscall(445, ruleset, 1, rule, 0) == 0, ctypes.get_errno()
    assert libc.syscall(446, ruleset, 0) == 0, ctypes.get_errno()

def made():
    try:
        return [os.open(AT, os.O_TMPFILE | os.O_RDWR, 0o600)]
    except OSError:
        return []
"#;

#[test]
fn landlock_is_minded_where_the_tenant_itself_may_gain_no_privileges() {
    let name = "landlock_is_minded_where_the_tenant_itself_may_gain_no_privileges";
    if unavailable(name) || lacks(name, &["python3", "setpriv", "env"]) {
        return;
    }
    let hello = Hello { queue: None, key: 1 }.at(b"/lane");
    let hello: String = hello.iter().map(|byte| format!("{byte:02x}")).collect();
    let said = |confine: &str| {
        let script = format!(
            "import os\n\
             os.environ['RUN'], os.environ['L'] = \
             os.environ['POLYLANE_RUN'].split(':')[0], '/lane'\n\
             {KIT}{LANDLOCK}\n{confine}\n\
             print(hello(connect()), hello(connect(), LANE), hello(connect(), LANE, *made()))"
        );
        let mut command = Command::new("setpriv");
        command.arg("--no-new-privs").arg(polylane_tests::binary());
        command.args(["run", "--mem", "--", "env", "-u", "LD_PRELOAD", "python3", "-c"]);
        let output = command.arg(script).env("HELLO", &hello).output().expect("setpriv");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    };
    // EXDEV, EROFS.
    assert_eq!(said(""), "18 30 0", "a file made in the root says that it may write");
    assert_eq!(said("landlock()"), "18 30 30", "none can be made");
}

/// A file system of the client's own, `OWN`, with a file `OWN/f` that can be opened and whose close
/// never returns.
const FUSE: &str = r#"
import tempfile
OWN = tempfile.mkdtemp()
libc.unshare(0x20000)
libc.mount(b"none", b"/", None, (1 << 18) | 0x4000, None)
device = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % device
assert libc.mount(b"own", OWN.encode(), b"fuse", 0, options) == 0, ctypes.get_errno()

def attr(node):
    mode, size = (0o40755, 0) if node == 1 else (0o100666, 4096)
    return struct.pack("=6Q10I", node, size, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

def serve():
    while True:
        asked = os.read(device, 1 << 17)
        _, op, unique, node = struct.unpack_from("=IIQQ", asked)
        body = {
            1: struct.pack("=QQQQII", 2, 0, 0, 0, 0, 0) + attr(2),
            3: struct.pack("=QII", 0, 0, 0) + attr(node),
            14: struct.pack("=QII", 7, 0, 0),
            26: struct.pack("=IIIIHHII", 7, 31, 0, 0, 12, 9, 1 << 16, 0) + bytes(32),
            27: struct.pack("=QII", 7, 0, 0),
        }.get(op)
        # FLUSH, RELEASE, RELEASEDIR, FORGET.
        if op in (25, 18, 29, 2, 42):
            continue
        error = 0 if body is not None else -38
        body = body or b""
        os.write(device, struct.pack("=IiQ", 16 + len(body), error, unique) + body)

# A process of its own: one that ends waits for its own close.
server = os.fork()
if server == 0:
    # It ends with this process, of which each close waits for it.
    libc.prctl(1, 9)
    serve()
os.close(device)
F = os.open(OWN + "/f", os.O_RDWR)
"#;

/// What a hostile user does with it: hellos that show it, some with all that a message can carry,
/// as other users and none; connections that say nothing, or too much; each closed at once, or not.
const SHOWN: &str = r#"
import time
os.setgroups([])
os.setresgid(4321, 4321, 4321)
os.setresuid(4321, 4321, 4321)

def send(*fds):
    s = connect()
    try:
        s.sendmsg([HELLO], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        s.sendmsg([b"more"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [F]))])
    except OSError:
        pass
    return s

kept = []
for fds in [(F,), (F, F), (LANE, F), (F, LANE), (LANE, LANE, F), (F,) * 253]:
    kept.append(send(*fds))
    send(*fds).close()
silent = connect()
silent.sendmsg([b"none"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [F] * 253))])
for _ in range(40):
    send(F).close()
print(server, flush=True)
time.sleep(60)
"#;

#[test]
fn what_a_client_sends_keeps_nobody_else_waiting() {
    let name = "what_a_client_sends_keeps_nobody_else_waiting";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let lane = Lane::new();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&lane.at, open).expect("chmod");
    let hostile = Hostile::begins(&lane, SHOWN);
    let innocent = "import time\n\
        os.setgroups([]); os.setresgid(4322, 4322, 4322); os.setresuid(4322, 4322, 4322)\n\
        begun = time.monotonic()\n\
        came = hello(connect()) if HOME else hello(connect(), os.open(AT, os.O_RDONLY))\n\
        print(came, time.monotonic() - begun < 3)";
    for _ in 0..3 {
        assert_eq!(lane.said(&format!("HOME = True\n{innocent}")), "0 True");
        let elsewhere = "HOME = False\nlibc.unshare(0x20000)\n";
        assert_eq!(lane.said(&format!("{elsewhere}{innocent}")), "0 True");
    }
    let begun = std::time::Instant::now();
    succeeds(&["umount", "-l", text(&lane.at)]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    // Its end gives back what waits for it.
    drop(hostile);
    lane.host.assert_nothing_is_left();
}

/// A user with a range of numbers, in namespaces of its own, who leaves something that cannot be
/// closed as each of them: in hellos, in connections that are closed at once, and in some that say
/// nothing.
const RANGE: &str = r#"
import time
ready, mapped = os.pipe(), os.pipe()
tenant = os.fork()
if tenant:
    os.read(ready[0], 1)
    for kind in "ug":
        with open("/proc/%d/%sid_map" % (tenant, kind), "w") as lines:
            lines.write("0 200000 1000\n")
    os.write(mapped[1], b"x")
    time.sleep(300)
os.close(mapped[1])
os.setgroups([])
os.setresgid(4321, 4321, 4321)
os.setresuid(4321, 4321, 4321)
assert libc.unshare(0x10000000) == 0
# Its files in /proc are its own user's again.
libc.prctl(4, 1)
os.write(ready[1], b"x")
os.read(mapped[0], 1)
os.setresgid(0, 0, 0)
os.setresuid(0, 0, 0)

def send(*fds):
    s = connect()
    for message in (HELLO, b"more"):
        try:
            s.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        except OSError:
            pass
    return s

kept = []
for user in range(300):
    if user == 150:
        # In a namespace that one of them makes.
        os.setresuid(user, user, user)
        assert libc.unshare(0x10000000) == 0
    elif user < 150:
        os.setresuid(-1, user, -1)
    kept.append(send(F))
    send(F, F).close()
    if user < 150:
        os.setresuid(-1, 0, -1)
print(server, flush=True)
# Until the first process ends.
os.read(mapped[0], 1)
"#;

/// A hostile client with a file system of its own, which is running; both end with this.
struct Hostile {
    client: std::process::Child,
    server: u32,
}

impl Hostile {
    /// Runs a script after [`FUSE`] until it says the number of its server.
    fn begins(lane: &Lane, script: &str) -> Hostile {
        let mut command = lane.command(&format!("{FUSE}{script}"));
        let client = command.stdout(std::process::Stdio::piped()).spawn().expect("python3");
        let mut hostile = Hostile { client, server: 0 };
        let mut said = String::new();
        let out = hostile.client.stdout.as_mut().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).expect("a line");
        hostile.server = said.trim().parse().expect("the number of a process");
        hostile
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // The server first: the client's end waits for it. Where it is not known, it ends by itself
        // when the client is killed.
        if self.server != 0 {
            let server = self.server.to_string();
            let _ = Command::new("kill").args(["-KILL", &server]).status();
        }
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

/// The children of that name that a process has.
fn children(parent: u32, name: &str) -> Vec<u32> {
    let all = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    let all = all.unwrap_or_default();
    let pids = all.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter(|pid| is_named(*pid, name)).collect()
}

fn is_named(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
}

#[test]
fn what_a_user_leaves_behind_keeps_nobody_else_waiting() {
    let name = "what_a_user_leaves_behind_keeps_nobody_else_waiting";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let lane = Lane::open_to_all();
    let supervisor = lane.host.supervisor();
    let hostile = Hostile::begins(&lane, RANGE);
    let others_enter = || {
        for (user, before) in [(0, ""), (4322, ""), (0, ELSEWHERE), (4322, ELSEWHERE)] {
            let script = format!(
                "{before}\nos.setgroups([]); os.setresgid({user}, {user}, {user})\n\
                 os.setresuid({user}, {user}, {user})\n\
                 print(enter((connect(), connect())))"
            );
            // An answer may be late on a host that has much to do.
            until(&format!("a session of {user} {before}"), || lane.said(&script) == ADMITTED);
        }
    };
    let closers = |witness| children(witness, "polylane-close");
    let witness = child(supervisor, "polylane-look");
    // All that the account may have, and two that others had.
    const CLOSERS: std::ops::RangeInclusive<usize> = 16..=18;
    until("closers that wait", || CLOSERS.contains(&closers(witness).len()));
    others_enter();
    until("as many closers", || CLOSERS.contains(&closers(witness).len()));
    let left = closers(witness);
    // Neither the service nor its witness is kept from its end.
    let service = lane.service().to_string();
    assert!(Command::new("kill").args(["-KILL", &service]).status().expect("kill").success());
    until("another witness alone", || {
        let all = children(supervisor, "polylane-look");
        all.len() == 1 && all[0] != witness
    });
    others_enter();
    let begun = std::time::Instant::now();
    succeeds(&["umount", "-l", text(&lane.at)]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(hostile);
    // What waited for its file system ends with that.
    until("the closers' end", || !left.iter().any(|pid| is_named(*pid, "polylane-close")));
    lane.host.assert_nothing_is_left();
}

/// A mount namespace of its own, where it has to show the lane's root.
const ELSEWHERE: &str = "libc.unshare(0x20000); LANE = os.open(AT, os.O_RDONLY)";

#[test]
fn a_witness_that_answers_late_is_asked_again() {
    let name = "a_witness_that_answers_late_is_asked_again";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let lane = Lane::new();
    let witness = child(lane.host.supervisor(), "polylane-look");
    let signal = |signal: &str| {
        let pid = witness.to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
    };
    assert_eq!(lane.said("print(hello(connect()))"), ADMITTED);
    for _ in 0..2 {
        signal("-STOP");
        assert_eq!(lane.said("print(hello(connect()))"), REFUSED);
        signal("-CONT");
        assert_eq!(lane.said("print(hello(connect()))"), ADMITTED);
    }
    lane.end();
}

/// A client of this process's own making, at home, that minds no notice.
struct Deaf {
    channel: ClientChannel,
    mailbox: MailboxIndex,
    _socket: OwnedFd,
}

impl Deaf {
    fn of(lane: &Lane) -> Deaf {
        let socket = scm::connect(&Path::new(&lane.run).join("socket")).expect("connect");
        let hello = Hello { queue: None, key: 1 };
        scm::send(&socket, &hello.to_bytes(), &[]).expect("send");
        let mut bytes = vec![0; WELCOME_BYTES_MAX];
        let mut got = scm::receive(&socket, &mut bytes).expect("a welcome");
        let welcome = Welcome::from_bytes(&bytes[..got.count]).expect("a welcome");
        assert_eq!(welcome.status, 0);
        let memory = got.fds.remove(0);
        let channel = ClientChannel::attach(memory, got.fds, welcome.geometry, welcome.plan);
        let channel = channel.expect("a channel");
        let mailbox = channel.claim().expect("a mailbox");
        Deaf { channel, mailbox, _socket: socket }
    }

    fn ask(&self, op: Op, flags: i32, path: &str) -> Status {
        let mut message = Message { flags: flags as u32, mode: 0o755, ..Message::new(op) };
        message.path_len = path.len() as u32;
        self.channel.settle(self.mailbox, &Trusting).expect("settled");
        self.channel.payload_put(self.mailbox, 0, path.as_bytes());
        self.channel.call(self.mailbox, &message, &Trusting).expect("a reply").status
    }
}

#[test]
fn a_session_is_bound_by_what_is_mounted_later() {
    let name = "a_session_is_bound_by_what_is_mounted_later";
    if unavailable(name) || lacks(name, &["mount", "umount"]) {
        return;
    }
    let lane = Lane::new();
    let hidden = lane.at.join("d");
    fs::create_dir(&hidden).expect("mkdir");
    fs::write(hidden.join("secret"), "secret").expect("write");
    let client = Deaf::of(&lane);
    let run = |program: &str, words: &[&str]| {
        let status = Command::new(program).args(words).status().expect(program);
        assert!(status.success(), "{program} {words:?}");
    };
    let answers = |kernel: bool, op: Op, flags: i32, path: &str| {
        until(&format!("{op:?} {path}: {kernel}"), || {
            matches!(client.ask(op, flags, path), Status::UseKernel) == kernel
        });
    };
    answers(false, Op::Stat, 0, "d/secret");
    run("mount", &["-t", "tmpfs", "none", text(&hidden)]);
    for (op, flags) in [(Op::Stat, 0), (Op::Open, 0), (Op::Mkdir, 0)] {
        answers(true, op, flags, "d/secret");
    }
    run("umount", &[text(&hidden)]);
    answers(false, Op::Stat, 0, "d/secret");
    // It asks for nothing until its lease has ended.
    answers(false, Op::Mkdir, 0, "leased");
    until("a lease", || matches!(client.ask(Op::Lease, 0, "leased"), Status::Done(_)));
    assert!(!client.channel.stream().is_shut());
    run("mount", &["-o", "remount,bind,ro", text(&lane.at)]);
    until("the lease's end", || client.channel.stream().is_shut());
    answers(true, Op::Stat, 0, "d/secret");
    for (op, path) in [(Op::Mkdir, "new"), (Op::Unlink, "d/secret"), (Op::Lease, "d")] {
        answers(true, op, 0, path);
    }
    assert!(hidden.join("secret").exists() && !lane.at.join("new").exists());
    run("mount", &["-o", "remount,bind,rw", text(&lane.at)]);
    answers(false, Op::Mkdir, 0, "new");
    assert!(lane.at.join("new").is_dir());
    drop(client);
    lane.end();
}

/// Memory of a process that no other one has, and that no file backs, in bytes.
fn own_memory(pid: u64) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("its memory");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("a line");
    1024 * line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number")
}

/// Open files, locks, sessions, silent connections and requests of all mailboxes at once.
#[test]
fn a_user_at_all_limits_takes_little_memory_of_the_service() {
    let name = "a_user_at_all_limits_takes_little_memory_of_the_service";
    if unavailable(name) {
        return;
    }
    let lane = Lane::open_to_all();
    let file = lane.at.join("f");
    fs::write(&file, "x").expect("written");
    let all = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(&file, all).expect("chmod");
    let service = lane.service();
    let before = own_memory(service);
    let mut user = Command::new(polylane_tests::binary());
    user.args(["bench", "worker", "limits", text(&lane.at), "600s"]);
    user.env("LIMITS_SOCKET", format!("{}/socket", lane.run)).uid(54_321).gid(54_321);
    let mut user = user.stdout(Stdio::piped()).spawn().expect("started");
    let mut said = String::new();
    let out = user.stdout.as_mut().expect("piped");
    BufReader::new(out).read_line(&mut said).expect("a line");
    assert!(said.contains(" 65536 open files, 16384 locks"), "{said:?}");
    let taken = own_memory(service).saturating_sub(before);
    assert!((1 << 20..64 << 20).contains(&taken), "{taken} bytes");
    user.kill().expect("killed");
    user.wait().expect("ended");
    lane.end();
}

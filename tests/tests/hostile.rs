//! Clients that speak the wire by themselves and want a session that is not theirs.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use polylane_ipc::handshake::Hello;
use polylane_tests::host::{Host, succeeds, text};
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
        let mount = text(&self.at).as_bytes().to_vec();
        let hello = Hello { queue: None, key: 1, mount }.to_bytes();
        let hello: String = hello.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = Command::new("python3");
        command.args(["-c", &format!("{KIT}{script}")]);
        command.env("L", &self.at).env("RUN", &self.run).env("HELLO", hello);
        command.output().expect("python3")
    }

    /// What a script prints.
    fn said(&self, script: &str) -> String {
        let output = self.client(script);
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    /// How often a process had no session for that reason.
    fn refused(&self, why: &str) -> u64 {
        let mount = &self.host.mounts()[0];
        let lane = format!("{}@{}", mount["pool"].as_str().expect("a name"), mount["service"]);
        let stats: serde_json::Value =
            serde_json::from_str(&succeeds(&["stats", "--json", "--pool", &lane])).expect("JSON");
        let counted = &stats[0]["service"]["shared_memory"]["not_admitted"][why];
        counted.as_u64().expect("a number")
    }

    fn end(self) {
        succeeds(&["umount", text(&self.at)]);
        self.host.assert_nothing_is_left();
    }
}

const ADMITTED: &str = "0";
/// `EACCES`
const REFUSED: &str = "13";

#[test]
fn a_session_is_of_who_connected_and_of_who_says_hello() {
    let name = "a_session_is_of_who_connected_and_of_who_says_hello";
    if unavailable(name) || lacks(name, &["python3"]) {
        return;
    }
    let lane = Lane::new();
    fs::set_permissions(&lane.at, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("chmod");
    let between = |before: &str, after: &str| {
        lane.said(&format!("{before}\ns = connect(), connect()\n{after}\nprint(enter(s))"))
    };
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
    let hello = Hello { queue: None, key: 1, mount: b"/lane".to_vec() }.to_bytes();
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

//! PostgreSQL, with a second client that keeps it busy.

use crate::Database;

/// A cluster with segments of 1 MiB, a table, and pgbench's.
const MAKE: &str = r#"
import glob, os, pwd, subprocess, sys, tempfile
bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]; who = pwd.getpwnam("postgres")
def run(*words, **more):
    return subprocess.run(words, user=who.pw_uid, group=who.pw_gid, check=True,
                          stdout=subprocess.DEVNULL, env={"PATH": bin + ":/usr/bin:/bin"}, **more)
os.chown(".", who.pw_uid, who.pw_gid)
run("initdb", "-N", "-D", "pg", "-A", "trust", "--wal-segsize=1", "-E", "UTF8", "--locale=C")
with open("pg/postgresql.conf", "a") as conf:
    conf.write("listen_addresses=''\nmin_wal_size=2MB\nmax_wal_size=4MB\nshared_buffers=4MB\n"
               "checkpoint_timeout=30s\nmax_connections=10\nautovacuum=off\n"
               "wal_writer_delay=20ms\nbgwriter_delay=20ms\n")
os.chown("pg/postgresql.conf", who.pw_uid, who.pw_gid)
at = tempfile.mkdtemp(); os.chown(at, who.pw_uid, who.pw_gid)
run("pg_ctl", "-s", "-w", "-D", "pg", "-o", "-F -k " + at, "-l", "/dev/null", "start")
run("psql", "-h", at, "-qc", "CREATE TABLE t(n int PRIMARY KEY, x text)", "postgres")
run("pgbench", "-q", "-h", at, "-i", "-s", "1", "postgres", stderr=subprocess.DEVNULL)
run("pg_ctl", "-s", "-w", "-D", "pg", "-m", "fast", "stop"); os.rmdir(at)
print(0, flush=True)
"#;

const WORK: &str = r#"
import glob, os, pwd, shutil, subprocess, sys, tempfile
bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]; who = pwd.getpwnam("postgres")
more = dict(user=who.pw_uid, group=who.pw_gid, env={"PATH": bin + ":/usr/bin:/bin"})
at = tempfile.mkdtemp(); os.chown(at, who.pw_uid, who.pw_gid); quiet = subprocess.DEVNULL
subprocess.run(["pg_ctl", "-s", "-w", "-D", "pg", "-o", "-k " + at, "-l", "/dev/null", "start"],
               check=True, stdout=quiet, **more)
busy = ["pgbench", "-n", "-h", at, "-c", "2", "-R", "150", "-T", "1000", "postgres"]
busy = subprocess.Popen(busy, stdout=quiet, stderr=quiet, **more)
client = subprocess.Popen(["psql", "-XqAt", "-h", at, "postgres"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, bufsize=1, **more)
print(0, flush=True)
for n, line in enumerate(sys.stdin, 1):
    client.stdin.write("INSERT INTO t VALUES(%d, repeat('x', %d)) RETURNING n;\n"
                       % (n, n * 7919 % 3000))
    if int(client.stdout.readline()) != n: sys.exit("no answer")
    print(n, flush=True)
busy.kill(); busy.wait(); client.stdin.close(); client.wait()
subprocess.run(["pg_ctl", "-s", "-w", "-D", "pg", "-m", "immediate", "stop"], stdout=quiet, **more)
shutil.rmtree(at, ignore_errors=True)
"#;

/// Recovers by the server in single-user mode.
const LOOK: &str = r#"
import glob, os, pwd, re, subprocess, sys
bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]; who = pwd.getpwnam("postgres")
ask = """SELECT 'last ' || coalesce(max(n), 0) || ' ' || count(*) FROM t;
SELECT 'sums ' || (SELECT sum(abalance) FROM pgbench_accounts) ||
 ' ' || (SELECT sum(bbalance) FROM pgbench_branches) ||
 ' ' || (SELECT sum(tbalance) FROM pgbench_tellers) ||
 ' ' || (SELECT coalesce(sum(delta), 0) FROM pgbench_history);
SET enable_seqscan = off;
SELECT 'index ' || count(*) FROM t WHERE n > 0;
"""
for line in sys.stdin:
    top = line.strip()
    os.chown(top, who.pw_uid, who.pw_gid)
    for at, dirs, files in os.walk(top):
        for name in dirs + files: os.lchown(at + "/" + name, who.pw_uid, who.pw_gid)
    # Its process may have another's number by now.
    if os.path.exists(top + "/pg/postmaster.pid"): os.remove(top + "/pg/postmaster.pid")
    single = [bin + "/postgres", "--single", "-F", "-j", "-D", top + "/pg", "postgres"]
    ran = subprocess.run(single, input=ask.replace(";\n", ";\n\n"), stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, user=who.pw_uid, group=who.pw_gid)
    said = dict(re.findall(r'"(last|sums|index) ([-0-9 ]+)"', ran.stdout))
    last = [int(word) for word in said.get("last", "").split()]
    sums, index = said.get("sums", "").split(), said.get("index", "")
    good = len(last) == 2 and last[0] == last[1] and index == str(last[1])
    good = good and len(sums) == 4 and len(set(sums)) == 1 and ran.returncode == 0
    print(last[0] if good else "damaged %r %r" % (said, ran.stdout[-2000:]), flush=True)
"#;

/// With `synchronous_commit` and full-page writes, as it comes.
pub fn database() -> Database {
    Database {
        name: "PostgreSQL",
        mode: "pgbench beside",
        needs: &["/usr/bin/psql", "/usr/bin/pgbench"],
        image_mib: 192,
        format: "-J size=8",
        binding: "",
        make: Some(MAKE),
        work: WORK,
        look: LOOK,
        transactions: (10, 60),
    }
}

//! etcd, a cluster of one.

use crate::Database;

/// What all scripts begin with: a server on `at`, that puts and gets by its JSON interface.
const BINDING: &str = r#"
import base64, json, os, socket, subprocess, sys, time, urllib.request
class Server:
    def __init__(self, at, fresh=False):
        ports = [socket.socket() for _ in range(2)]
        for it in ports: it.bind(("127.0.0.1", 0))
        self.port, peer = [it.getsockname()[1] for it in ports]
        for it in ports: it.close()
        url, peer = "http://127.0.0.1:%d" % self.port, "http://127.0.0.1:%d" % peer
        words = ["etcd", "--data-dir", at + "/etcd", "--listen-client-urls", url,
                 "--advertise-client-urls", url, "--listen-peer-urls", peer,
                 "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
                 "--heartbeat-interval", "10", "--election-timeout", "60", "--snapshot-count", "25",
                 "--logger", "zap", "--log-level", "error"]
        self.child = subprocess.Popen(words + ([] if fresh else ["--force-new-cluster"]),
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    def ask(self, what, words, tries=1):
        words = {key: base64.b64encode(word).decode() for key, word in words.items()}
        url = "http://127.0.0.1:%d/v3/kv/%s" % (self.port, what)
        for left in range(tries, 0, -1):
            try:
                asked = urllib.request.Request(url, json.dumps(words).encode())
                return json.load(urllib.request.urlopen(asked, timeout=20))
            except OSError as error:
                if left == 1 or self.child.poll() is not None: raise
                time.sleep(0.02)
    def end(self):
        self.child.kill(); said = self.child.stderr.read(); self.child.wait(); return said
def value(n): return b"%d." % n * (n * 7919 % 3000 // 4 + 1)
"#;

const MAKE: &str = r#"
server = Server(".", True); server.ask("put", {"key": b"made", "value": b"yes"}, 500)
server.child.terminate(); server.child.wait(); print(0, flush=True)
"#;

const WORK: &str = r#"
server = Server("."); server.ask("range", {"key": b"made"}, 500); print(0, flush=True)
for n, line in enumerate(sys.stdin, 1):
    server.ask("put", {"key": b"k%06d" % n, "value": value(n)}); print(n, flush=True)
server.end()
"#;

const LOOK: &str = r#"
for line in sys.stdin:
    server = Server(line.strip()); found = None
    try:
        found = server.ask("range", {"key": b"k", "range_end": b"l"}, 500).get("kvs", [])
    except OSError as error:
        print("damaged", error, server.end()[-1500:].replace("\n", " "), flush=True); continue
    server.end()
    found = [(base64.b64decode(it["key"]), base64.b64decode(it["value"])) for it in found]
    good = found == [(b"k%06d" % n, value(n)) for n in range(1, len(found) + 1)]
    print(len(found) if good else "damaged %r" % [key for key, _ in found], flush=True)
"#;

/// With a snapshot of its log every 25 transactions.
pub fn database() -> Database {
    Database {
        name: "etcd",
        mode: "one member",
        needs: &["/usr/bin/etcd"],
        image_mib: 320,
        format: "-N 2048 -J size=8",
        binding: BINDING,
        make: Some(MAKE),
        work: WORK,
        look: LOOK,
        transactions: (20, 120),
    }
}

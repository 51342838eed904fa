"""Random operations on one directory of a cluster by clients of several hosts, against a model.

Usage: hosts.py SEED COUNT TRUTH NAME=DIRECTORY...

Each NAME is an actor: a process in DIRECTORY, which is a mount of the same files. One whose name
begins with "library" has the preload library of its lane. TRUTH is a command that prints the bytes
of a file, named by its last argument, as a client reads them that begins then.

Prints a line for each answer that is not the model's, and who was wrong: the actor, or the cluster,
where the new client does not have the model's bytes, either. The last line counts them by actor.
"""

import errno
import fcntl
import os
import random
import stat
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hands import Far

SIZE_MAX = 100_000
LOCKED_MAX = 16
NAMES = ["a", "b", "c", "d/a", "d/b", "d/e/a"]
DIRECTORIES = ["d", "d/e", "f"]
KEYS = ["x", "y", "z"]


class Inode:
    def __init__(self, mode):
        self.data = bytearray()
        self.mode = mode
        self.links = 1
        self.time = None
        self.value = None
        self.target = None
        # Who has a byte, and how.
        self.locks = {}


class Actor:
    def __init__(self, name, directory):
        env = {}
        if name.startswith("library"):
            env["LD_PRELOAD"] = directory + "/.polylane/$LIB/libpolylane.so"
            env["POLYLANE_MOUNT"] = directory
        self.name = name
        self.hand = Far(directory, env)
        self.open = {}
        self.wrong = 0


def parent(name):
    return os.path.dirname(name)


class Hosts:
    def __init__(self, seed, truth, actors):
        self.random = random.Random(seed)
        self.truth = truth.split()
        self.actors = actors
        self.names = {}
        self.directories = {""}
        self.log = []
        self.cluster_wrong = 0

    def expect(self, found, wanted, what, file=None):
        self.log[-1] = f"{self.actor.name} {what}"
        if found == wanted:
            return
        blamed = self.actor.name
        if file is not None and bytes(file.data) != self.read_anew(file):
            blamed = "the cluster"
            self.cluster_wrong += 1
        else:
            self.actor.wrong += 1
        if isinstance(found, bytes) and isinstance(wanted, bytes):
            both = range(min(len(found), len(wanted)))
            at = next((i for i in both if found[i] != wanted[i]), len(both))
            found, wanted = (f"{len(it)} bytes, from {at} {it[at:at + 4]!r}" for it in (found, wanted))
        print(f"step {len(self.log)}: {blamed}: {what}: {found} for {wanted}")
        print("   after " + "; ".join(self.log[-12:]))

    def read_anew(self, file):
        """What a client that begins now reads; of a file without a name, what the model has."""
        named = [name for name, it in self.names.items() if it is file]
        if not named:
            return bytes(file.data)
        return subprocess.run(self.truth + [named[0]], stdout=subprocess.PIPE, check=True).stdout

    # Names.

    def name(self):
        return self.random.choice(NAMES)

    def missing(self, name):
        """The error of a change at a name whose directory is not there."""
        return parent(name) not in self.directories

    def create(self, hand):
        name, mode = self.name(), self.random.choice([0o600, 0o644, 0o755])
        found = hand.os("open", name, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
        if self.missing(name):
            return self.expect(found, -errno.ENOENT, f"create {name}")
        if name in self.names:
            return self.expect(found, -errno.EEXIST, f"create {name}")
        if found >= 0:
            hand.os("close", found)
        self.expect(found >= 0, True, f"create {name}")
        self.names[name] = Inode(mode)

    def unlink(self, hand):
        name = self.name()
        found = hand.os("unlink", name)
        file = self.names.pop(name, None)
        self.expect(found, None if file else -errno.ENOENT, f"unlink {name}")
        if file:
            file.links -= 1

    def rename(self, hand):
        old, new = self.name(), self.name()
        file = self.names.get(old)
        found = hand.os("rename", old, new)
        wanted = -errno.ENOENT if file is None or self.missing(new) else None
        self.expect(found, wanted, f"rename {old} {new}")
        if wanted is None and self.names.get(new) is not file:
            if new in self.names:
                self.names[new].links -= 1
            self.names[new] = self.names.pop(old)

    def mkdir(self, hand):
        name = self.random.choice(DIRECTORIES)
        found = hand.os("mkdir", name)
        wanted = -errno.EEXIST if name in self.directories else None
        wanted = -errno.ENOENT if self.missing(name) else wanted
        self.expect(found, wanted, f"mkdir {name}")
        if wanted is None:
            self.directories.add(name)

    def rmdir(self, hand):
        name = self.random.choice(DIRECTORIES)
        used = any(parent(it) == name for it in list(self.names) + list(self.directories) if it)
        found = hand.os("rmdir", name)
        wanted = -errno.ENOTEMPTY if used else None
        wanted = wanted if name in self.directories else -errno.ENOENT
        self.expect(found, wanted, f"rmdir {name}")
        if wanted is None:
            self.directories.remove(name)

    def listdir(self, hand):
        name = self.random.choice(["", *DIRECTORIES])
        found = hand.os("listdir", name or ".")
        if name not in self.directories:
            return self.expect(found, -errno.ENOENT, f"list {name}")
        found = sorted(it for it in found if it != ".polylane")
        all = list(self.names) + list(self.directories)
        wanted = sorted(os.path.basename(it) for it in all if it and parent(it) == name)
        self.expect(found, wanted, f"list {name}")

    # Attributes.

    def of_name(self):
        """A name, its file, and what a call that needs one answers where there is none."""
        name = self.name()
        file = self.names.get(name)
        return name, file, None if file else -errno.ENOENT

    def stat(self, hand):
        name, file, wanted = self.of_name()
        found = hand.os("stat", name)
        if file is None:
            return self.expect(found, wanted, f"stat {name}")
        if isinstance(found, int):
            return self.expect(found, "its state", f"stat {name}")
        state = (stat.S_IMODE(found[0]), found[3], found[6])
        self.expect(state, (file.mode, file.links, len(file.data)), f"mode, links, size of {name}", file)
        if file.time is not None:
            self.expect(found[8], file.time, f"time of {name}")

    def chmod(self, hand):
        name, file, wanted = self.of_name()
        mode = self.random.choice([0o600, 0o640, 0o777])
        self.expect(hand.os("chmod", name, mode), wanted, f"chmod {name}")
        if file:
            file.mode = mode

    def utime(self, hand):
        name, file, wanted = self.of_name()
        time = self.random.randrange(1 << 31)
        self.expect(hand.os("utime", name, (time, time)), wanted, f"utime {name}")
        if file:
            file.time = time

    def setxattr(self, hand):
        name, file, wanted = self.of_name()
        value = self.random.randbytes(9)
        self.expect(hand.os("setxattr", name, "user.k", value), wanted, f"setxattr {name}")
        if file:
            file.value = value

    def getxattr(self, hand):
        name, file, wanted = self.of_name()
        if file:
            wanted = -errno.ENODATA if file.value is None else file.value
        self.expect(hand.os("getxattr", name, "user.k"), wanted, f"getxattr {name}")

    def truncate(self, hand):
        name, file, wanted = self.of_name()
        size = self.random.randrange(SIZE_MAX)
        self.expect(hand.os("truncate", name, size), wanted, f"truncate {name} {size}")
        if file:
            file.data = file.data[:size].ljust(size, b"\0")
            file.time = None

    # Data, by files that stay open.

    def hold(self, hand):
        key, name = self.random.choice(KEYS), self.name()
        if name not in self.names:
            return
        self.let_go(hand, key)
        hand.hold(key, name, os.O_RDWR)
        self.actor.open[key] = self.names[name]

    def close(self, hand):
        key = self.random.choice(KEYS)
        if self.let_go(hand, key):
            hand.close(key)

    def let_go(self, hand, key):
        """Gives the actor's locks up: not all clients do when a file is closed."""
        file = self.actor.open.pop(key, None)
        if file and any(owner is self.actor for owner, _ in file.locks):
            hand.lock_range(key, fcntl.LOCK_UN, 0, 0)
            file.locks = {at: how for at, how in file.locks.items() if at[0] is not self.actor}
        return file

    def held(self):
        """A key and its file; the actor may have none."""
        return self.random.choice(list(self.actor.open.items()) or [(None, None)])

    def range(self):
        at = self.random.randrange(SIZE_MAX)
        return at, self.random.choice([1, 10, 500, 4096, 5000, 30000])

    def read(self, hand):
        key, file = self.held()
        if file:
            at, length = self.range()
            if self.random.random() < 0.5:
                at = self.random.randrange(len(file.data) + 1)
            self.log[-1] += f" {key} {at} {length}"
            found = hand.read(key, at, length)
            self.expect(found, bytes(file.data[at : at + length]), f"read {at} {length}", file)

    def write(self, hand):
        key, file = self.held()
        if file:
            at, length = self.range()
            data = self.random.randbytes(length)
            self.expect(hand.write(key, at, data), length, f"write {at} {length}")
            file.data.extend(bytes(max(0, at - len(file.data))))
            file.data[at : at + length] = data
            file.time = None

    def append(self, hand):
        name, data = self.name(), self.random.randbytes(300)
        file = self.names.get(name)
        if file is None or len(file.data) > SIZE_MAX or file in self.actor.open.values():
            return
        hand.append(name, data)
        file.data.extend(data)
        file.time = None

    def size(self, hand):
        key, file = self.held()
        if file:
            self.expect(hand.size(key), len(file.data), "size of an open file", file)

    def cut(self, hand):
        key, file = self.held()
        if file:
            size = self.random.randrange(SIZE_MAX)
            hand.truncate(key, size)
            file.data = file.data[:size].ljust(size, b"\0")
            file.time = None

    def fsync(self, hand):
        key, file = self.held()
        if file:
            hand.fsync(key)

    # Locks.

    def lock(self, hand):
        key, file = self.held()
        if not file:
            return
        start = self.random.randrange(LOCKED_MAX)
        length = self.random.randrange(1, LOCKED_MAX + 1 - start)
        kind = self.random.choice([fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN])
        found = hand.lock_range(key, kind, start, length)
        bytes_of = range(start, start + length)
        conflicts = [
            at for (owner, at), how in file.locks.items()
            if owner is not self.actor and at in bytes_of and fcntl.LOCK_EX in (how, kind)
        ]
        wanted = -errno.EAGAIN if conflicts and kind != fcntl.LOCK_UN else 0
        self.expect(found, wanted, f"lock {kind} {start} {length}")
        if wanted == 0:
            for at in bytes_of:
                file.locks.pop((self.actor, at), None)
                if kind != fcntl.LOCK_UN:
                    file.locks[self.actor, at] = kind

    # No links: where a file loses one of several names, libcephfs 16.2 has none of the others for a
    # while (docs/design/ceph.md, "Faults of the client library").
    STEPS = {
        create: 6, unlink: 3, rename: 4, mkdir: 3, rmdir: 1, listdir: 4, stat: 8, chmod: 2,
        utime: 2, setxattr: 2, getxattr: 3, truncate: 3, hold: 12, close: 3, read: 22, write: 18,
        append: 4, size: 6, cut: 2, fsync: 2, lock: 8,
    }

    def step(self):
        self.actor = self.random.choice(self.actors)
        step = self.random.choices(list(self.STEPS), list(self.STEPS.values()))[0]
        self.log.append(f"{self.actor.name} {step.__name__}")
        try:
            step(self, self.actor.hand)
        except OSError as error:
            self.expect(-error.errno, "no error", step.__name__)


def main():
    seed, count, truth, *named = sys.argv[1:]
    actors = [Actor(*one.split("=", 1)) for one in named]
    hosts = Hosts(int(seed), truth, actors)
    for _ in range(int(count)):
        hosts.step()
    for file in {id(file): file for file in hosts.names.values()}.values():
        if hosts.read_anew(file) != bytes(file.data):
            hosts.cluster_wrong += 1
    for actor in actors:
        actor.hand.end()
    counts = [f"{actor.name} {actor.wrong}" for actor in actors]
    print(f"{len(hosts.log)} steps: wrong: {', '.join(counts)}, the cluster {hosts.cluster_wrong}")


main()

"""Random changes of a union by two users, each by a program with the preload library and one without,
and the same changes of the kernel's overlayfs over the same layers: both answer alike, and both
show the same tree by each way in.

Usage: beside.py layers SEED DIR          layers DIR/0 (the uppermost) to DIR/2, and users' directories
       beside.py change SEED ROUNDS LANE OTHER ACLS
                                          ACLS: 1 where both keep access lists. $FAST: what a
                                          program with the library has in its environment, a line each
       beside.py serve USER               (by itself)

Exits 0, with `holds`.
"""

import ctypes
import errno
import os
import pickle
import random
import stat
import struct
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
USER = 1000
OWNERS = [0, USER, 2000]
ACLS = ["system.posix_acl_access", "system.posix_acl_default"]
DIRS = ["a", "b", "a/in", "b/in", "a/in/deep", "c"]
NAMES = [f"{dir}/{name}" for dir in DIRS for name in ["0", "1", "2", "3", "link", "new"]]
PATHS = ["."] + DIRS + NAMES
# Files of up to 64 KiB are copied whole by their first write.
SIZES = [0, 1, 100, 4096, 5000, 65536, 70_000, 150_001]
NOREPLACE, EXCHANGE = 1, 2
SHOWN = 200_000


def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


def lists(choose):
    """Access lists with a user more, as `setfacl` makes them, and one that is none."""
    perm = lambda: choose.randrange(8)
    named = choose.choice(OWNERS)
    owners = [(1, perm(), -1), (2, perm(), named), (4, perm(), -1)]
    return choose.choice([acl(*owners, (16, perm(), -1), (32, perm(), -1)), acl((1, 6, -1))])


def merges(dir, layer, path):
    """Whether a layer's directory merges with that of the next one: elsewhere overlayfs lists its
    whiteouts."""
    parts = path.split("/")
    ways = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    opaque = lambda way: "user.overlay.opaque" in os.listxattr(f"{dir}/{layer}/{way}")
    below = [f"{dir}/{layer + 1}/{way}" for way in ways]
    return layer < 2 and all(map(os.path.isdir, below)) and not any(map(opaque, ways))


def layers(seed, dir):
    """What images have: directories that merge, hide and are hidden, whiteouts, names of one file."""
    choose = random.Random(seed)
    for layer in 2, 1, 0:
        at = lambda path: f"{dir}/{layer}/{path}"
        os.makedirs(at(""))
        made = [path for path in DIRS if layer == 2 or choose.random() < 0.6]
        for path in made:
            # A directory of it may be missing.
            os.makedirs(at(path), exist_ok=True)
        for path in DIRS:
            if not os.path.isdir(at(path)):
                continue
            if layer < 2 and choose.random() < 0.2:
                # Each reads the marks of one name space.
                for space in "trusted", "user":
                    os.setxattr(at(path), f"{space}.overlay.opaque", b"y")
            for name in ["0", "1", "2", "3"]:
                what = choose.random()
                if what < 0.5:
                    with open(at(f"{path}/{name}"), "wb") as file:
                        file.write(choose.randbytes(choose.choice(SIZES)))
                elif what < 0.6 and merges(dir, layer, path):
                    os.mknod(at(f"{path}/{name}"), stat.S_IFCHR)
                elif what < 0.7:
                    os.mkfifo(at(f"{path}/{name}"))
            if choose.random() < 0.5:
                os.symlink(choose.choice(["0", "../0", "absent"]), at(f"{path}/link"))
        is_file = lambda path: os.path.isfile(at(path)) and not os.path.islink(at(path))
        files = [at(path) for path in NAMES if is_file(path)]
        for _ in range(3):
            more = at(choose.choice([path for path in DIRS if os.path.isdir(at(path))]) + "/new")
            if files and not os.path.lexists(more):
                os.link(choose.choice(files), more)
        for path in DIRS + NAMES:
            if os.path.lexists(at(path)):
                os.chown(at(path), *choose.choices(OWNERS, k=2), follow_symlinks=False)
            found = os.lstat(at(path)).st_mode if os.path.lexists(at(path)) else stat.S_IFLNK
            if stat.S_ISDIR(found):
                os.chmod(at(path), choose.choice([0o755, 0o777, 0o1777, 0o2775, 0o750, 0o711]))
            elif stat.S_ISREG(found):
                os.chmod(at(path), choose.choice([0o644, 0o666, 0o600, 0o4755, 0o2755, 0o440]))
                if choose.random() < 0.2:
                    os.setxattr(at(path), "user.x", b"lower")
            if not stat.S_ISLNK(found):
                os.utime(at(path), (1, choose.randrange(1000)))


class Actor:
    """What a user does in the working directory. An error is returned by its number."""

    def __init__(self):
        self.files = {}

    def do(self, function, arguments):
        try:
            return (getattr(self, function, None) or getattr(os, function))(*arguments)
        except OSError as error:
            return -error.errno

    def put(self, path, flags, mode, size):
        """As `>` and `>>` do."""
        file = os.open(path, os.O_WRONLY | os.O_NONBLOCK | flags, mode)
        try:
            return os.write(file, b"p" * size)
        finally:
            os.close(file)

    def patch(self, path, offset, size):
        file = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        try:
            return os.pwrite(file, b"w" * size, offset), os.pread(file, 10, max(offset - 5, 0))
        finally:
            os.close(file)

    def rename2(self, source, target, flags):
        if libc.renameat2(-100, source.encode(), -100, target.encode(), flags) != 0:
            raise OSError(ctypes.get_errno(), "renameat2")

    def unnamed(self, dir, mode, path):
        """A file that gets its name last."""
        file = os.open(dir, os.O_TMPFILE | os.O_RDWR, mode)
        try:
            os.write(file, b"unnamed")
            os.link(f"/proc/self/fd/{file}", path, follow_symlinks=True)
        finally:
            os.close(file)

    def hold(self, key, path):
        """An open file that outlives its name."""
        if key in self.files:
            os.close(self.files.pop(key))
        self.files[key] = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def held(self, key, function, *arguments):
        file = self.files.get(key)
        found = None if file is None else getattr(os, function)(file, *arguments)
        return self.fields(found) if isinstance(found, os.stat_result) else found

    def fields(self, found):
        """What is said of both file systems: a time only where it was set by hand, a size and
        links but of directories."""
        is_dir = stat.S_ISDIR(found.st_mode)
        time = found.st_mtime_ns if found.st_mtime_ns < 10**15 else "now"
        rest = () if is_dir else (found.st_size, found.st_nlink)
        return found.st_mode, found.st_uid, found.st_gid, time, *rest

    def state(self, path, acls):
        try:
            found = os.lstat(path)
        except OSError as error:
            return (-error.errno,)
        state = list(self.fields(found))
        for name in ["user.x"] + (ACLS if acls else []):
            state.append(self.do("getxattr", (path, name)) if not stat.S_ISLNK(found.st_mode) else None)
        if stat.S_ISLNK(found.st_mode):
            state.append(os.readlink(path))
        elif stat.S_ISREG(found.st_mode):
            state.append(self.do("bytes", (path,)))
        elif stat.S_ISDIR(found.st_mode):
            names = self.do("names", (path,))
            state.append(names)
        return tuple(state)

    def bytes(self, path):
        file = os.open(path, os.O_RDONLY)
        try:
            return hash(os.pread(file, SHOWN, 0))
        finally:
            os.close(file)

    def names(self, path):
        """In order, with what the listing says of each. The lane's own are left out."""
        with os.scandir(path) as found:
            kinds = lambda it: (it.is_dir(follow_symlinks=False), it.is_symlink())
            return sorted((it.name, *kinds(it)) for it in found if it.name != ".polylane")

    def look(self, paths, acls):
        """States, and which paths lead to one inode."""
        inodes = {}
        for path in paths:
            found = self.do("lstat", (path,))
            if not isinstance(found, int):
                inodes.setdefault((found.st_dev, found.st_ino), []).append(path)
        same = sorted(names for names in inodes.values() if len(names) > 1)
        return {path: self.state(path, acls) for path in paths}, same


class Far:
    """The same by another process, as a user, in a directory."""

    def __init__(self, user, dir, env):
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        plain |= {"PYTHONHASHSEED": "0"} | env
        command = [sys.executable, "-B", os.path.abspath(__file__), "serve", str(user), dir]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=plain, cwd="/")

    def ask(self, function, *arguments):
        pickle.dump((function, arguments), self.child.stdin)
        self.child.stdin.flush()
        return pickle.load(self.child.stdout)

    def end(self):
        self.child.stdin.close()
        assert self.child.wait() == 0


def serve(user, dir):
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    os.umask(0o022)
    os.chdir(dir)
    actor = Actor()
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        looks = function == "look"
        answer = actor.look(*arguments) if looks else actor.do(function, arguments)
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def change(pick, acls):
    """A function of `Actor` or `os`, and its arguments."""
    name, dir = pick.choice(NAMES), pick.choice(DIRS)
    path, size = pick.choice(DIRS + NAMES), pick.choice(SIZES)
    key, offset = pick.randrange(3), pick.randrange(160_000)
    mode = pick.choice([0o755, 0o777, 0o1777, 0o2775, 0o644, 0o600, 0o4755, 0o2755, 0o000, 0o711])
    create, truncate = os.O_CREAT, os.O_TRUNC
    held = [("fstat",), ("pread", 10, offset), ("pwrite", b"h" * 9, offset), ("ftruncate", size),
            ("fchmod", mode), ("fchown", pick.choice(OWNERS), pick.choice(OWNERS)), ("fsync",)]
    all = [
        ("put", name, pick.choice([create | truncate, create | os.O_EXCL, os.O_APPEND]), mode & 0o777, size),
        ("put", name, pick.choice([create | truncate, create, os.O_APPEND]), 0o644, size),
        ("patch", name, offset, pick.choice([1, 10, 5000, 70_000])),
        ("truncate", name, size),
        ("chmod", path, mode),
        ("chown", path, pick.choice(OWNERS + [-1]), pick.choice(OWNERS + [-1])),
        ("utime", path, (1, pick.randrange(1000))),
        ("unlink", name),
        ("rename", name, pick.choice(NAMES)),
        ("rename", dir, pick.choice(DIRS)),
        ("rename", path, pick.choice(DIRS + NAMES)),
        ("rename2", path, pick.choice(DIRS + NAMES), pick.choice([NOREPLACE, EXCHANGE])),
        ("mkdir", path, mode),
        ("mkdir", dir, 0o777),
        ("rmdir", dir),
        ("link", name, pick.choice(NAMES)),
        ("symlink", pick.choice(["0", "../1", "absent"]), name),
        ("mkfifo", name, mode),
        ("unnamed", dir, mode & 0o777, name),
        ("setxattr", path, "user.x", b"%d" % pick.randrange(99)),
        ("removexattr", path, "user.x"),
        ("access", path, pick.randrange(8)),
        ("hold", key, name),
        ("held", key, *pick.choice(held)),
        ("held", key, *pick.choice(held)),
    ]
    if acls:
        all.append(("setxattr", path, pick.choice(ACLS), lists(pick)))
        all.append(("removexattr", path, pick.choice(ACLS)))
    return pick.choice(all)


def alike(what, answer):
    """An answer without what overlayfs says otherwise than the file systems below it do."""
    if what[0] == "removexattr" and what[2] in ACLS and answer == -errno.ENODATA:
        # Of a file that was not copied up; of others it removes a list that is not there.
        return None
    return answer


def same(what, lane, other):
    if lane != other:
        raise AssertionError(f"{what}:\nlane  {lane}\nother {other}")


def main(seed, rounds, lane, other, acls):
    pick = random.Random(seed)
    fast = dict(line.split("=", 1) for line in os.environ["FAST"].splitlines())
    users = [0, USER]
    doors = {"library": fast, "kernel": {}}
    actors = {(user, door): Far(user, lane, env) for user in users for door, env in doors.items()}
    others = {user: Far(user, other, {}) for user in users}
    done = []
    for round in range(rounds):
        user, door = pick.choice(list(actors))
        what = change(pick, acls)
        if what[0] == "removexattr" and what[2] == ACLS[0] and user != 0:
            # overlayfs takes the set-group-ID bit then, which no other file system does.
            what = ("removexattr", what[1], ACLS[1])
        # A descriptor is its holder's.
        told = (what[0], (door, what[1]), *what[2:]) if what[0] in ("hold", "held") else what
        answers = actors[user, door].ask(*told), others[user].ask(*told)
        done.append((user, door, what, answers[1]))
        recent = f"seed {seed}, round {round}, after " + "\n  ".join(map(str, done[-8:]))
        same(recent, *(alike(what, answer) for answer in answers))
        paths = PATHS if round % 16 == 0 else pick.sample(PATHS, 6)
        paths = sorted(set(paths) | {it for it in what[1:] if it in PATHS})
        for user in pick.sample(users, 1):
            true = others[user].ask("look", paths, acls)
            for door in pick.sample(list(doors), 2):
                shown = actors[user, door].ask("look", paths, acls)
                for path in paths:
                    same(f"{path} by {door} for {user}, {recent}", shown[0][path], true[0][path])
                same(f"inodes by {door} for {user}, {recent}", shown[1], true[1])
    for actor in [*actors.values(), *others.values()]:
        actor.end()
    print("holds", flush=True)


match sys.argv[1]:
    case "layers":
        layers(int(sys.argv[2]), sys.argv[3])
    case "serve":
        serve(int(sys.argv[2]), sys.argv[3])
    case "change":
        main(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:6], sys.argv[6] == "1")

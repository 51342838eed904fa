"""Leases on directories change nothing that anybody can see.

    leases.py CASE [SEED]

Every case runs in the working directory. `model` does the same to a tree on a tmpfs of the kernel's
and compares every result, every error and, seen by a process without the preload library, every
name with its attributes and times. `kill`, `fight` and `threads` know by themselves what must be
there; `full` wants a small volume, of which `digest` tells afterwards what it holds.
"""

import ctypes
import errno
import hashlib
import mmap
import os
import pickle
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE = 1, 2
# Times may be as late as the kernel's coarse clock and a busy machine make them.
TIMES_DIFFER_MAX_NS = 50_000_000


# ---- who looks -----------------------------------------------------------------------------------


def state(path):
    """What lstat and the file say, without what no two file systems have in common."""
    found = os.lstat(path)
    kind = stat.S_IFMT(found.st_mode)
    text = None
    if kind == stat.S_IFREG and found.st_mode & 0o400:
        with open(path, "rb") as file:
            text = file.read()
    elif kind == stat.S_IFLNK:
        text = os.readlink(path)
    size = 0 if kind == stat.S_IFDIR else found.st_size
    same = (oct(found.st_mode), found.st_nlink, found.st_uid, found.st_gid, size, text)
    return same, (found.st_mtime_ns, found.st_ctime_ns)


def tree(root):
    """Every name below `root`, with its state."""
    found = {}
    for where, dirs, files in os.walk(root):
        for name in dirs + files:
            path = os.path.join(where, name)
            found[os.path.relpath(path, root)] = state(path)
    return found


class Far:
    """A process without the preload library that looks."""

    def __init__(self):
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = [sys.executable, "-B", os.path.abspath(__file__), "far"]
        pipe = subprocess.PIPE
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=plain)

    def __call__(self, function, *arguments):
        pickle.dump((function, arguments), self.child.stdin)
        self.child.stdin.flush()
        return pickle.load(self.child.stdout)

    def end(self):
        self.child.stdin.close()
        self.child.wait()


def make_files(directory, names):
    for name in names:
        with open(f"{directory}/{name}", "w") as file:
            file.write(name)


def far():
    held = {}
    looks = {
        "tree": tree,
        "listdir": os.listdir,
        "state": state,
        "exists": os.path.lexists,
        "make": make_files,
        "hold": lambda path: held.update({path: os.open(path, os.O_RDONLY)}),
        "nlink": lambda path: os.fstat(held[path]).st_nlink,
        "drop": lambda: [os.close(held.popitem()[1]) for _ in range(len(held))],
    }
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(looks[function](*arguments), sys.stdout.buffer)
        sys.stdout.buffer.flush()


# ---- the model: the same on a tmpfs --------------------------------------------------------------


def renameat2(old, new, flags):
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


class Side:
    """One of the two trees: operations by path below its root, open files by number."""

    def __init__(self, root):
        self.root = root
        self.files = {}

    def path(self, name):
        return f"{self.root}/{name}" if self.root else name

    def open(self, number, name, flags, mode, data):
        fd = os.open(self.path(name), flags, mode)
        if data and flags & os.O_ACCMODE != os.O_RDONLY:
            os.write(fd, data)
        if number is None:
            os.close(fd)
        else:
            self.close(number)
            self.files[number] = fd

    def close(self, number):
        if number in self.files:
            os.close(self.files.pop(number))

    def write(self, number, data):
        return os.write(self.files[number], data)

    def pread(self, number):
        return os.pread(self.files[number], 1000, 0)

    def dup(self, number):
        fd = os.dup(self.files[number])
        os.close(self.files[number])
        self.files[number] = fd

    def fstat(self, number):
        found = os.fstat(self.files[number])
        size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
        return oct(found.st_mode), found.st_nlink, size

    def fchmod(self, number, mode):
        os.fchmod(self.files[number], mode)

    def futimens(self, number, times):
        if times is None:
            os.utime(self.files[number])
        else:
            os.utime(self.files[number], ns=times)

    def lseek(self, number):
        return os.lseek(self.files[number], 0, os.SEEK_CUR)

    def rename(self, old, new):
        os.rename(self.path(old), self.path(new))

    def rename2(self, old, new, flags):
        renameat2(self.path(old), self.path(new), flags)

    def unlink(self, name):
        os.unlink(self.path(name))

    def link(self, old, new):
        os.link(self.path(old), self.path(new), follow_symlinks=False)

    def mkdir(self, name, mode):
        os.mkdir(self.path(name), mode)

    def rmdir(self, name):
        os.rmdir(self.path(name))

    def symlink(self, target, name):
        os.symlink(target, self.path(name))

    def chmod(self, name, mode):
        os.chmod(self.path(name), mode)

    def truncate(self, name, size):
        os.truncate(self.path(name), size)

    def stat(self, name):
        found = os.lstat(self.path(name))
        return oct(found.st_mode), found.st_nlink

    def access(self, name):
        return os.access(self.path(name), os.F_OK)

    def utime(self, name, seconds):
        os.utime(self.path(name), (seconds, seconds))

    def umask(self, mask):
        os.umask(mask)

    def listdir(self, name):
        return sorted(os.listdir(self.path(name)))

    def tmpfile(self, directory, name, data):
        fd = os.open(self.path(directory), os.O_TMPFILE | os.O_RDWR, 0o640)
        try:
            os.write(fd, data)
            os.link(f"/proc/self/fd/{fd}", self.path(name), follow_symlinks=True)
        finally:
            os.close(fd)

    def forked(self, number, name, data):
        """A child writes to an inherited file, makes one of its own and is gone."""
        child = os.fork()
        if child == 0:
            try:
                if number in self.files:
                    os.write(self.files[number], data)
                os.close(os.open(self.path(name), os.O_CREAT | os.O_WRONLY, 0o600))
            except OSError:
                pass
            os._exit(0)
        os.waitpid(child, 0)

    def handed(self, number, data):
        """A program without the library writes to a file of ours."""
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = ["/usr/bin/printf", data]
        quiet = subprocess.DEVNULL
        subprocess.run(command, stdout=self.files[number], env=plain, stderr=quiet, check=False)


NAMES = ["a", "b", "c", "d", "e", "f", "n" * 40, "m" * 41, "\xe4\xf6", ".h"]
ODD = ["", ".", "..", "a/", "./b", "e/../c", "no/such", "f/a"]
FLAGS = [
    os.O_CREAT | os.O_EXCL | os.O_RDWR,
    os.O_CREAT | os.O_EXCL | os.O_WRONLY,
    os.O_CREAT | os.O_WRONLY,
    os.O_CREAT | os.O_RDWR | os.O_TRUNC,
    os.O_CREAT | os.O_WRONLY | os.O_APPEND,
    os.O_CREAT | os.O_RDONLY,
    os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW,
    os.O_CREAT | os.O_RDWR | os.O_SYNC,
    os.O_CREAT | os.O_RDWR | os.O_DIRECTORY,
    os.O_RDWR,
    os.O_RDONLY,
    os.O_WRONLY | os.O_APPEND,
    os.O_RDONLY | os.O_DIRECTORY,
]
OPEN_FILES = 6


def operation(rng, directory, other):
    """A random operation, mostly one of those that leases are about, mostly in `directory`."""

    def name():
        if rng.random() < 0.04:
            return f"{directory}/{rng.choice(ODD)}"
        where = other if rng.random() < 0.03 else directory
        return f"{where}/{rng.choice(NAMES)}"

    def file():
        return rng.randrange(OPEN_FILES)

    data = bytes(rng.choices(b"abcxyz", k=rng.randrange(1, 20)))
    mode = rng.choice([0o644, 0o666, 0o600, 0o777, 0o4755, 0o444])
    kept = file() if rng.random() < 0.4 else None
    usual = [
        (30, lambda: ("open", kept, name(), rng.choice(FLAGS), mode, data * rng.randrange(2))),
        (12, lambda: ("close", file())),
        (14, lambda: ("rename", name(), name())),
        (16, lambda: ("unlink", name())),
        (4, lambda: ("write", file(), data)),
        (3, lambda: ("fstat", file())),
        (6, lambda: ("fchmod", file(), mode)),
        (6, lambda: ("futimens", file(), rng.choice([None, (rng.randrange(1 << 60), 7)]))),
        (3, lambda: ("stat", name())),
        (2, lambda: ("pread", file())),
        (2, lambda: ("lseek", file())),
        (2, lambda: ("rename2", name(), name(), rng.choice([NOREPLACE, EXCHANGE]))),
        (1, lambda: ("dup", file())),
        (1, lambda: ("umask", rng.choice([0o22, 0o77, 0o0]))),
        (1, lambda: ("access", name())),
    ]
    rare = [
        lambda: ("link", name(), name()),
        lambda: ("mkdir", name(), mode | 0o700),
        lambda: ("rmdir", name()),
        lambda: ("symlink", rng.choice(NAMES), name()),
        lambda: ("chmod", name(), mode | 0o700),
        lambda: ("chmod", directory, rng.choice([0o700, 0o755, 0o2755])),
        lambda: ("truncate", name(), rng.randrange(100)),
        lambda: ("utime", name(), rng.randrange(1 << 31)),
        lambda: ("listdir", directory),
        lambda: ("tmpfile", directory, name(), data),
        lambda: ("rename", directory, f"{other}/moved"),
        lambda: ("rename", f"{other}/moved", directory),
        lambda: ("forked", file(), name(), data),
        lambda: ("handed", file(), data.decode()),
    ]
    if rng.random() < 0.04:
        return rng.choice(rare)()
    weights = [weight for weight, _ in usual]
    return rng.choices([make for _, make in usual], weights)[0]()


def result(side, function, arguments):
    try:
        return getattr(side, function)(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, error.errno)
    except KeyError:
        return "not open"


def differences(ours, theirs, slack):
    """Names that are not the same in both trees."""
    for name in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get(name), theirs.get(name)
        if here is None or there is None or here[0] != there[0]:
            yield name, here, there
        elif any(abs(a - b) > slack for a, b in zip(here[1], there[1])):
            yield name, ("times", [(a - b) / 1e9 for a, b in zip(here[1], there[1])])


def model(seed, relative, count=6000):
    rng = random.Random(seed)
    judge_dir = tempfile.mkdtemp(dir="/dev/shm")
    near = Side("" if relative else os.getcwd())
    judge, look = Side(judge_dir), Far()
    dirs = ["p", "q", "p/r"]
    os.chmod(judge_dir, stat.S_IMODE(os.stat(".").st_mode))
    for side in near, judge:
        for directory in dirs:
            os.mkdir(side.path(directory))
    log, done, slack = [], 0, TIMES_DIFFER_MAX_NS
    while done < count:
        directory, other = rng.sample(dirs, 2)
        for _ in range(rng.choice([1, 5, 20, 100, 300])):
            function, *arguments = operation(rng, directory, other)
            start = time.monotonic_ns()
            ours = result(near, function, arguments)
            theirs = result(judge, function, arguments)
            slack = max(slack, TIMES_DIFFER_MAX_NS + time.monotonic_ns() - start)
            done += 1
            log.append((function, arguments, ours, theirs))
            if ours != theirs:
                fail(log, f"{ours} in the lane, {theirs} on tmpfs")
        if rng.random() < 0.02:
            time.sleep(0.3)
        # Looked at by this process too, at times: its own looks end no lease.
        root = os.getcwd()
        found = tree(root) if rng.random() < 0.2 else look("tree", root)
        wrong = list(differences(found, tree(judge_dir), slack))
        if wrong:
            fail(log, wrong)
    look.end()
    shutil.rmtree(judge_dir)


def fail(log, what):
    for line in log[-60:]:
        print(*line, file=sys.stderr)
    sys.exit(f"after {len(log)} operations: {what}")


# ---- several at once -----------------------------------------------------------------------------


def private_life(prefix, count, seed, seen):
    """Changes names of its own and a lock file that all share; returns its own names at the end."""
    rng, names, locked = random.Random(seed), set(), 0
    pool = [f"{prefix}{n}" for n in range(8)]
    for _ in range(count):
        name, other = rng.sample(pool, 2)
        kind = rng.random()
        if kind < 0.4:
            flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
            expect(name in names, errno.EEXIST, lambda: os.close(os.open(f"s/{name}", flags)))
            names.add(name)
        elif kind < 0.6:
            expect(name not in names, errno.ENOENT, lambda: os.unlink(f"s/{name}"))
            names.discard(name)
        elif kind < 0.8:
            expect(name not in names, errno.ENOENT, lambda: os.rename(f"s/{name}", f"s/{other}"))
            if name in names:
                names.discard(name)
                names.add(other)
        elif kind < 0.85:
            locked += critical(seen)
    return names, locked


def expect(fails, number, work):
    try:
        work()
    except OSError as error:
        if not fails or error.errno != number:
            raise
    else:
        if fails:
            raise AssertionError(f"no error {number}")


def critical(seen):
    """Counts in a shared place if nobody else has the lock file."""
    try:
        os.close(os.open("s/lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return 0
    count = seen.value
    for _ in range(random.randrange(50)):
        pass
    seen.value = count + 1
    os.unlink("s/lock")
    return 1


def shared_number():
    """A number that processes share, stored at once: a kill finds it whole."""
    return ctypes.c_uint64.from_buffer(mmap.mmap(-1, 4096))


def fight(seed):
    """Processes in one directory: names are exclusive, nothing is lost."""
    os.mkdir("s")
    seen = shared_number()
    pipes, children = [], []
    for number in range(3):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                life = private_life(f"p{number}-", 4000, seed + number, seen)
                os.write(write, pickle.dumps(life))
                status = 0
            except BaseException as error:
                print("fight:", repr(error), file=sys.stderr)
            os._exit(status)
        os.close(write)
        pipes.append(read)
        children.append(child)
    ends = [pickle.loads(b"".join(iter(lambda: os.read(read, 65536), b""))) for read in pipes]
    same([os.waitpid(child, 0)[1] for child in children], [0, 0, 0])
    same(sorted(os.listdir("s")), sorted(set().union(*(names for names, _ in ends))))
    same(seen.value, sum(locked for _, locked in ends))


def threads(seed):
    """Threads of one process in one directory."""
    os.mkdir("s")
    seen, ends, look = shared_number(), [], Far()

    def life(number):
        ends.append(private_life(f"t{number}-", 3000, seed + number, seen))

    running = [threading.Thread(target=life, args=[number]) for number in range(4)]
    [thread.start() for thread in running]
    while any(thread.is_alive() for thread in running):
        look("exists", os.path.abspath("s/nothing"))
        time.sleep(0.01)
    same(len(ends), 4)
    names = sorted(set().union(*(names for names, _ in ends)))
    same(sorted(look("listdir", "s")), names)
    same(sorted(os.listdir("s")), names)
    same(seen.value, sum(locked for _, locked in ends))
    look.end()


# ---- kill ----------------------------------------------------------------------------------------


def steps(seed):
    """Endless changes of one directory, each with the names that are there after it."""
    rng, names = random.Random(seed), set()
    while True:
        name, other = f"k{rng.randrange(20)}", f"k{rng.randrange(20)}"
        kind = rng.random()
        if name not in names:
            names.add(name)
            yield ("make", name, None), frozenset(names)
        elif kind < 0.5 and other != name:
            names.discard(name)
            names.add(other)
            yield ("rename", name, other), frozenset(names)
        else:
            names.discard(name)
            yield ("unlink", name, None), frozenset(names)


def work(seed, done):
    for number, ((what, name, other), _) in enumerate(steps(seed)):
        if what == "make":
            os.close(os.open(f"k/{name}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        elif what == "rename":
            os.rename(f"k/{name}", f"k/{other}")
        else:
            os.unlink(f"k/{name}")
        done.value = number + 1


def kill(seed):
    """A process killed at any instant has done what it was told was done, or one thing more."""
    rng, done, look, most = random.Random(seed), shared_number(), Far(), 0
    for turn in range(40):
        os.mkdir("k")
        done.value = 0
        child = os.fork()
        if child == 0:
            work(seed + turn, done)
        time.sleep(rng.random() * 0.1)
        os.kill(child, signal.SIGKILL)
        # The dying process may do a little more, unless it was waited for.
        waited = rng.random() < 0.5
        if waited:
            os.waitpid(child, 0)
        first = done.value
        found = frozenset(look("listdir", os.path.abspath("k")))
        last = first if waited else done.value
        after = [names for _, (_, names) in zip(range(last + 1), steps(seed + turn))]
        allowed = [frozenset(), *after][first : last + 2]
        if found not in allowed:
            sys.exit(f"turn {turn}, {first} to {last} done: {sorted(found)}, not {allowed}")
        most = max(most, last)
        if not waited:
            os.waitpid(child, 0)
        shutil.rmtree("k")
    if most < 200:
        sys.exit(f"nothing was tried: {most} changes at most")
    look.end()


# ---- times ---------------------------------------------------------------------------------------


def close_to(found, expected, what):
    if abs(found - expected) > 2 * TIMES_DIFFER_MAX_NS:
        sys.exit(f"{what} is {(found - expected) / 1e9:.3f} s from the call")


def times():
    """Times are those of the calls, even if nobody looked for a second."""
    os.mkdir("t")
    look = Far()
    for n in range(50):
        os.close(os.open(f"t/warm{n % 2}", os.O_CREAT | os.O_WRONLY))
        os.unlink(f"t/warm{n % 2}")
    fd = os.open("t/open", os.O_CREAT | os.O_RDWR)
    os.close(os.open("t/a", os.O_CREAT | os.O_WRONLY))
    made = time.time_ns()
    time.sleep(1.1)
    os.rename("t/a", "t/b")
    renamed = time.time_ns()
    time.sleep(1.1)
    os.unlink("t/open")
    unlinked = time.time_ns()
    time.sleep(1.1)
    os.close(os.open("t/vain", os.O_CREAT | os.O_WRONLY))
    os.unlink("t/vain")
    vain = time.time_ns()
    time.sleep(1.1)
    new = os.open("t/written", os.O_CREAT | os.O_WRONLY)
    time.sleep(1.1)
    os.write(new, b"late")
    written = time.time_ns()
    time.sleep(1.1)
    (_, (mtime, ctime)) = look("state", os.path.abspath("t/written"))
    close_to(mtime, written, "mtime of the written file")
    close_to(ctime, written, "ctime of the written file")
    os.unlink("t/written")
    vain = time.time_ns()
    (_, (mtime, ctime)) = look("state", os.path.abspath("t"))
    close_to(mtime, vain, "mtime of the directory")
    close_to(ctime, vain, "ctime of the directory")
    (_, (mtime, ctime)) = look("state", os.path.abspath("t/b"))
    close_to(mtime, made, "mtime of the file")
    close_to(ctime, renamed, "ctime of the renamed file")
    close_to(os.fstat(fd).st_ctime_ns, unlinked, "ctime of the unlinked file")
    look.end()


# ---- files that were there before ----------------------------------------------------------------


def removed(seed):
    """Others' files are removed as one's own: at once for everybody, however they look."""
    rng, look = random.Random(seed), Far()
    os.mkdir("elsewhere")
    for turn in range(12):
        removed_tree(rng, look, f"r{turn}")
    look.end()


def removed_tree(rng, look, directory):
    where, names = os.path.abspath(directory), {f"n{n}": f"n{n}" for n in range(120)}
    nlink, held, far_held = dict.fromkeys(names, 1), {}, set(rng.sample(sorted(names), 5))
    os.mkdir(directory)
    look("make", where, sorted(names))
    os.symlink(f"{where}/n0", f"elsewhere/link-{directory}")
    for name in rng.sample(sorted(names), 5):
        os.link(f"{directory}/{name}", f"elsewhere/{directory}-{name}")
        nlink[name] += 1
    [look("hold", f"{where}/{name}") for name in far_held]

    def hold(name):
        if names[name] not in held:
            held[names[name]] = os.open(f"{directory}/{name}", os.O_RDWR)

    def gone(file):
        nlink[file] -= 1
        if file in held:
            same(os.fstat(held[file]).st_nlink, nlink[file])
        if file in far_held:
            same(look("nlink", f"{where}/{file}"), nlink[file])

    [hold(name) for name in rng.sample(sorted(names), 5)]
    while names:
        name, other, kind = rng.choice(list(names)), rng.choice(list(names)), rng.random()
        path = f"{directory}/{name}"
        if kind < 0.02:
            hold(name)
        elif kind < 0.04 and names.get("n0") == "n0":
            held.setdefault("n0", os.open(f"elsewhere/link-{directory}", os.O_RDONLY))
        elif kind < 0.08 and name != other:
            os.rename(path, f"{directory}/{other}")
            replaced = names[other]
            names[other] = names.pop(name)
            gone(replaced)
        elif kind < 0.12:
            os.rename(path, f"{directory}/{name}x")
            names[f"{name}x"] = names.pop(name)
        else:
            os.unlink(path)
            same(os.path.lexists(path), False)
            gone(names.pop(name))
        if rng.random() < 0.03:
            same(look("exists", path), name in names)
            same(sorted(look("listdir", where)), sorted(names))
    os.rmdir(directory)
    same(look("exists", where), False)
    [os.close(fd) for fd in held.values()]
    look("drop")


def data(seed):
    """What is written to new files is there for everybody, and after a kill."""
    rng, look = random.Random(seed), Far()
    os.mkdir("d")
    expected = {}
    for n in range(400):
        path, text = f"d/f{n}", bytearray()
        fd = os.open(path, os.O_CREAT | os.O_EXCL | rng.choice([os.O_WRONLY, os.O_RDWR]), 0o600)
        for _ in range(rng.randrange(6)):
            piece = rng.randbytes(rng.choice([1, 100, 4096, 10240, 40000]))
            if rng.random() < 0.7:
                at = os.lseek(fd, 0, os.SEEK_CUR)
                os.write(fd, piece)
            else:
                at = rng.randrange(20000)
                os.pwrite(fd, piece, at)
            text.extend(bytes(max(0, at + len(piece) - len(text))))
            text[at : at + len(piece)] = piece
        if rng.random() < 0.1:
            same(os.fstat(fd).st_size, len(text))
        if rng.random() < 0.1:
            os.ftruncate(fd, 50)
            text = text[:50].ljust(50, b"\0")
        if rng.random() < 0.1:
            same(look("state", os.path.abspath(path))[0][-1], bytes(text))
        os.close(fd)
        expected[f"f{n}"] = bytes(text)
    found = {name: value[0][-1] for name, value in look("tree", os.path.abspath("d")).items()}
    same(found, expected)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        for n in range(10000):
            fd = os.open(f"d/k{n}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            os.write(fd, bytes([n % 251]) * (n % 5000 + 1))
            os.close(fd)
            os.write(writer, b".")
    time.sleep(0.3)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(writer)
    done = sum(len(some) for some in iter(lambda: os.read(reader, 65536), b""))
    if done == 0:
        raise AssertionError("the child came to nothing")
    found = look("tree", os.path.abspath("d"))
    for n in range(done):
        same(found[f"k{n}"][0][-1], bytes([n % 251]) * (n % 5000 + 1))
    look.end()


def full(seed):
    """On a volume that fills up, a write says so itself: all that was acknowledged is there."""
    rng, look = random.Random(seed), Far()
    os.mkdir("d")
    free = os.statvfs(".")
    with open("filler", "wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize - (16 << 20))
    expected = {}
    for turn in range(3):
        for n in range(20000):
            text, refused = fill_file(rng, f"d/{turn}-{n}")
            if text is not None:
                expected[f"{turn}-{n}"] = text
            if refused:
                break
        same(refused, True)
        found = {name: value[0][-1] for name, value in look("tree", os.path.abspath("d")).items()}
        same_files(found, expected)
        # What a stream lost would be told here.
        directory = os.open("d", os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        for name in rng.sample(sorted(expected), len(expected) * 2 // 3):
            os.unlink(f"d/{name}")
            del expected[name]
    look.end()
    same_files({name: value[0][-1] for name, value in tree("d").items()}, expected)
    print(digest(expected))


def fill_file(rng, path):
    """Makes a file: what it holds by what the writes said, and whether there was no room."""
    try:
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        same(error.errno, errno.ENOSPC)
        return None, True
    text, refused = bytearray(), False
    for _ in range(rng.randrange(1, 5)):
        piece = rng.randbytes(rng.choice([100, 4096, 10240, 40000]))
        try:
            text.extend(piece[: os.write(fd, piece)])
        except OSError as error:
            same(error.errno, errno.ENOSPC)
            refused = True
            break
    os.close(fd)
    return bytes(text), refused


def same_files(found, expected):
    same(sorted(found), sorted(expected))
    differing = [name for name in expected if found[name] != expected[name]]
    same(differing, [])


def digest(files):
    """One number for names and what they hold."""
    sums = [(name, hashlib.sha256(files[name]).hexdigest()) for name in sorted(files)]
    return hashlib.sha256(repr(sums).encode()).hexdigest()


def same(found, expected):
    if found != expected:
        raise AssertionError(f"{found} is not {expected}")


def main():
    case = sys.argv[1]
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    cases = {
        "far": far,
        "model": lambda: model(seed, relative=False),
        "model-relative": lambda: model(seed, relative=True),
        "fight": lambda: fight(seed),
        "threads": lambda: threads(seed),
        "kill": lambda: kill(seed),
        "data": lambda: data(seed),
        "times": times,
        "removed": lambda: removed(seed),
        "full": lambda: full(seed),
        "digest": lambda: print(digest({name: value[0][-1] for name, value in tree("d").items()})),
    }
    cases[case]()
    if case not in ("far", "digest"):
        print("holds")


main()

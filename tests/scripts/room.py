"""What programs leave in a lane: nothing, once their files are removed and closed.

Usage: room.py SEED [PROGRAM...]. Runs each program several times in a directory of its own, in an
order of the seed's, removes the directory, and asks for the free blocks and inodes: within a second
they are as many as before. Prints the names of those that left something, and exits 1.

room.py full: fills and empties the lane many times over, by ways that have the kernel know the files.
"""

import mmap
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time

LANE = os.environ.get("MOUNT", "/lane")
HERE = LANE + "/w"
BY_KERNEL = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
PATIENCE = 1.0


def free():
    totals = os.statvfs(LANE)
    return totals.f_bfree, totals.f_ffree


def sh(text, env=None, cwd=HERE):
    subprocess.run(["/bin/sh", "-euc", text], env=env, cwd=cwd, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def put(name, data, flags=os.O_TRUNC):
    fd = os.open(f"{HERE}/{name}", os.O_CREAT | os.O_RDWR | flags, 0o600)
    os.write(fd, data)
    return fd


def mapped(fd, size):
    os.ftruncate(fd, size)
    area = mmap.mmap(fd, size)
    for at in range(0, size, 4096):
        area[at:at + 1] = b"m"
    return area


def directories():
    with tempfile.TemporaryDirectory(dir=HERE) as made:
        for name in "ab":
            open(f"{made}/{name}", "w").write("x")
    os.mkdir(HERE + "/d")
    os.close(os.open(HERE + "/d", os.O_RDONLY | os.O_DIRECTORY))
    os.rmdir(HERE + "/d")
    os.mkdir(HERE + "/d")
    os.mkdir(HERE + "/e")
    for name in "de":
        os.close(os.open(f"{HERE}/{name}", os.O_RDONLY | os.O_DIRECTORY))
    os.rename(HERE + "/d", HERE + "/e")
    os.rmdir(HERE + "/e")


def working_directory():
    os.mkdir(HERE + "/c")
    sh("echo one >x; cat x; rm x; rmdir ../c; pwd -P || :", cwd=HERE + "/c")


def mappings():
    fd = put("m", b"")
    mapped(fd, 1 << 20).close()
    os.close(fd)
    os.unlink(HERE + "/m")
    fd = put("m", b"")
    area = mapped(fd, 1 << 18)
    os.close(fd)
    os.unlink(HERE + "/m")
    assert area[0:1] == b"m"
    area.close()


def long_appends():
    fd = put("a", b"x" * (1 << 20), os.O_APPEND)
    os.write(fd, b"y" * 300_000)
    os.unlink(HERE + "/a")
    os.close(fd)


def replaced():
    for size in 5000, 70_000:
        fd = put("new", b"x" * size)
        mapped(fd, size).close()
        os.close(fd)
        os.rename(HERE + "/new", HERE + "/old")
    sh("cat old", BY_KERNEL)
    os.close(put("new", b"y" * 9000))
    os.rename(HERE + "/new", HERE + "/old")


def executed():
    for name in "first", "second":
        shutil.copy("/bin/true", f"{HERE}/{name}")
        os.chmod(f"{HERE}/{name}", 0o755)
        subprocess.run([f"{HERE}/{name}"], check=True)
        os.rename(f"{HERE}/{name}", HERE + "/program")
    subprocess.run([HERE + "/program"], check=True)


def nameless():
    fd = os.open(HERE, os.O_TMPFILE | os.O_RDWR, 0o600)
    mapped(fd, 9000).close()
    os.close(fd)
    fd = put("u", b"z" * 300_000)
    os.unlink(HERE + "/u")
    assert os.pread(fd, 9, 0) == b"z" * 9
    os.close(fd)


def forked():
    fd = put("f", b"z" * 100_000)
    child = os.fork()
    if child == 0:
        os.write(fd, b"q" * 5000)
        os._exit(0)
    os.unlink(HERE + "/f")
    os.waitpid(child, 0)
    os.close(fd)


def linked():
    os.close(put("l", b"z" * 5000))
    os.link(HERE + "/l", HERE + "/m")
    sh("cat l m", BY_KERNEL)
    os.unlink(HERE + "/l")
    os.unlink(HERE + "/m")


def other_hands():
    sh("mkdir k k/d; echo x >k/a; echo y >k/b; ln k/a k/c; ls -l k", BY_KERNEL)
    os.rename(HERE + "/k/a", HERE + "/k/b")
    shutil.rmtree(HERE + "/k")
    os.mkdir(HERE + "/k")
    os.close(put("k/a", b"x" * 9000))
    sh("cat k/a; rm -r k", BY_KERNEL)


def databases():
    for mode in "wal", "delete":
        path = HERE + "/" + mode
        base = sqlite3.connect(path)
        base.execute("pragma journal_mode=" + mode)
        base.execute("create table t(a)")
        for _ in range(5):
            base.execute("insert into t values(?)", ("x" * 500,))
            base.commit()
        base.close()
        os.unlink(path)


def trees():
    os.mkdir(HERE + "/t")
    for k in range(200):
        os.close(put(f"t/{k}", b"x" * k * 30))
    sh("tar cf t.tar t; mkdir o; tar xf t.tar -C o; rm -r t; cmp o/t/5 o/t/5")
    shutil.rmtree(HERE + "/o")


def clones():
    if not shutil.which("git"):
        return
    identity = "-c user.name=a -c user.email=a@b -c gc.auto=0"
    sh(f"git init -q r; cd r; seq 9999 >f; git add f; git {identity} commit -qm one; cd ..;"
       "git clone -q r s; git clone -q --no-hardlinks r t; rm -rf r s t")


PROGRAMS = {program.__name__: (program, times) for program, times in (
    (directories, 20), (working_directory, 5), (mappings, 20), (long_appends, 20), (replaced, 10),
    (executed, 3), (nameless, 20), (forked, 10), (linked, 5), (other_hands, 5), (databases, 3),
    (trees, 2), (clones, 1))}


def settle(before):
    end = time.monotonic() + PATIENCE
    while (after := free()) != before and time.monotonic() < end:
        time.sleep(.02)
    return after


def suite(seed, names):
    names = names or list(PROGRAMS)
    random.Random(seed).shuffle(names)
    wrong = False
    for name in names:
        program, times = PROGRAMS[name]
        before = free()
        os.mkdir(HERE)
        for _ in range(times):
            program()
        shutil.rmtree(HERE)
        after = settle(before)
        if after != before:
            blocks, inodes = (one - other for one, other in zip(before, after))
            print(f"{name}: {blocks} blocks and {inodes} inodes are missing", flush=True)
            wrong = True
    print(f"{len(names)} programs in the order of {seed}")
    return wrong


def fill_and_empty():
    """Each turn takes a sixth of the lane: the third of them finds no room if nothing comes back."""
    os.mkdir(HERE)
    size = os.statvfs(LANE).f_bfree * os.statvfs(LANE).f_bsize // 6
    for turn in range(20):
        fd = put("m", b"")
        mapped(fd, size).close()
        os.close(fd)
        os.unlink(HERE + "/m")
        fd = put("a", b"x" * size, os.O_APPEND)
        os.close(fd)
        os.rename(HERE + "/a", HERE + "/b")
        fd = put("m", b"")
        mapped(fd, size).close()
        os.close(fd)
        os.rename(HERE + "/m", HERE + "/b")
    os.unlink(HERE + "/b")
    turns = min(1500, 2 * free()[1])
    for turn in range(turns):
        with tempfile.TemporaryDirectory(dir=HERE) as made:
            open(made + "/f", "w").write("x")
            os.listdir(made)
    made = []
    try:
        while True:
            os.close(put(str(len(made)), b"x"))
            made.append(str(len(made)))
    except OSError as error:
        print(error.strerror)
    for name in made[1:]:
        os.rename(f"{HERE}/{name}", f"{HERE}/{made[0]}")
    for turn in range(turns):
        os.close(put("new", b"x"))
        os.rename(HERE + "/new", HERE + "/old")
    shutil.rmtree(HERE)


if sys.argv[1] == "full":
    fill_and_empty()
else:
    sys.exit(suite(sys.argv[1], sys.argv[2:]))

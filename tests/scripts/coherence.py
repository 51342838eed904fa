"""What one process does, the other sees at once: one with the preload library, one without.

Usage: coherence.py CASE. Exits 0 when the case holds.
"""

import fcntl
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hands import KEEP_SIZE, PUNCH_HOLE, Far, Hand

PAGE = 4096


def same(left, right):
    if left != right:
        raise AssertionError(f"{left!r} is not {right!r}")


def writer_and_reader(writer, reader):
    """Every write is read by the other, at once, while both have the file open."""
    writer.open("f")
    reader.open("f")
    for round in range(200):
        data = bytes([round]) * (1 + 37 * round)
        writer.write("f", 100 * round, data)
        same(reader.read("f", 100 * round, len(data)), data)
        same(reader.size("f"), writer.size("f"))
    writer.truncate("f", 50)
    same(reader.size("f"), 50)
    same(reader.read("f", 0, 100), bytes([0]) * 50)
    writer.truncate("f", 9000)
    same(reader.read("f", 40, 20000), bytes(8960))
    reader.append("f", b"end")
    same(writer.read("f", 9000, 10), b"end")
    writer.fallocate("f", KEEP_SIZE | PUNCH_HOLE, 0, PAGE)
    same(reader.read("f", 0, 2 * PAGE), bytes(2 * PAGE))
    reader.open("f", os.O_RDWR | os.O_TRUNC)
    same(writer.size("f"), 0)
    same(writer.read("f", 0, 10), b"")


def mapping(mapper, other):
    """A shared mapping and plain I/O by the other process are one truth, without msync."""
    mapper.open("m")
    other.open("m")
    other.write("m", 0, b"." * (4 * PAGE))
    mapper.map("m", 4 * PAGE)
    same(mapper.load("m", 0, 4), b"....")
    for round in range(100):
        at = (round * 1234) % (4 * PAGE - 20)
        mapper.store("m", at, b"stored %3d" % round)
        same(other.read("m", at, 10), b"stored %3d" % round)
        at = (round * 4321) % (4 * PAGE - 20)
        other.write("m", at, b"written %3d" % round)
        same(mapper.load("m", at, 11), b"written %3d" % round)
    mapper.write("m", 5, b"own write")
    same(mapper.load("m", 5, 9), b"own write")
    same(other.read("m", 5, 9), b"own write")
    other.truncate("m", PAGE)
    other.truncate("m", 4 * PAGE)
    same(mapper.load("m", 2 * PAGE, 5), bytes(5))
    mapper.store("m", 3 * PAGE, b"last")
    mapper.unmap("m")
    same(other.read("m", 3 * PAGE, 4), b"last")


def two_mappings(near, far):
    """Both map one file; each store is loaded by the other."""
    for hand in near, far:
        hand.open("m")
    near.write("m", 0, bytes(2 * PAGE))
    for hand in near, far:
        hand.map("m", 2 * PAGE)
    for round in range(100):
        left, right = (near, far) if round % 2 else (far, near)
        left.store("m", 40 * round, b"%8d" % round)
        same(right.load("m", 40 * round, 8), b"%8d" % round)
        same(right.read("m", 40 * round, 8), b"%8d" % round)


def names(left, right):
    """Creation, rename, removal, modes, links and attributes are seen by the other at once."""
    for round in range(50):
        left.open("a")
        same(right.os("stat", "b"), -2)
        left.os("rename", "a", "b")
        same(right.os("stat", "a"), -2)
        same(right.os("listdir", "."), ["b"])
        right.os("link", "b", "c")
        same(left.os("stat", "b")[3], 2)
        right.os("chmod", "c", 0o600)
        same(left.os("stat", "b")[0] & 0o777, 0o600)
        right.os("mkdir", "d")
        same(left.os("mkdir", "d"), -17)
        left.os("symlink", "b", "d/s")
        same(right.os("readlink", "d/s"), "b")
        same(right.os("rmdir", "d"), -39)
        # tmpfs has none before Linux 6.6.
        if left.os("setxattr", "b", "user.k", b"v%d" % round) != -95:
            same(right.os("getxattr", "c", "user.k"), b"v%d" % round)
        right.os("unlink", "d/s")
        left.os("rmdir", "d")
        right.os("unlink", "b")
        left.os("unlink", "c")
        left.close("a")
        same(right.os("listdir", "."), [])


def unlinked(left, right):
    """A file that is open on both sides lives on after its last name."""
    left.open("u")
    right.open("u")
    right.os("unlink", "u")
    left.write("u", 0, b"still here")
    same(right.read("u", 0, 20), b"still here")
    same(left.os("fstat", left.files["u"])[3] if isinstance(left, Hand) else 0, 0)
    left.open("u")
    same(left.size("u"), 0)
    same(right.size("u"), 10)
    left.open("v")
    left.write("v", 0, b"replaced")
    right.open("w")
    right.os("rename", "w", "v")
    same(left.read("v", 0, 20), b"replaced")
    left.open("v")
    same(left.size("v"), 0)


def locks(left, right):
    """POSIX and flock locks exclude across the two ways in."""
    left.open("l")
    right.open("l")
    for call in "lock", "flock":
        ours, theirs = getattr(left, call), getattr(right, call)
        same(ours("l", fcntl.LOCK_EX), True)
        same(theirs("l", fcntl.LOCK_EX), False)
        same(theirs("l", fcntl.LOCK_SH), False)
        same(ours("l", fcntl.LOCK_SH), True)
        same(theirs("l", fcntl.LOCK_SH), True)
        same(ours("l", fcntl.LOCK_EX), False)
        same(ours("l", fcntl.LOCK_UN), True)
        same(theirs("l", fcntl.LOCK_EX), True)
        same(theirs("l", fcntl.LOCK_UN), True)
    same(left.lock("l", fcntl.LOCK_EX), True)
    left.close("l")
    same(right.lock("l", fcntl.LOCK_EX), True)


def appends(left, right):
    """Appends from both sides lose nothing."""
    left.open("log")
    right.open("log")
    for round in range(300):
        (left if round % 3 else right).append("log", b"%05d\n" % round)
    expected = b"".join(b"%05d\n" % round for round in range(300))
    same(right.read("log", 0, 10000), expected)
    same(left.read("log", 0, 10000), expected)


def places():
    """A directory that is removed and made again is a place to work in, however late the kernel hears
    of the removal."""
    above = os.getcwd()
    for _ in range(500):
        os.mkdir("place")
        os.chdir("place")
        os.chdir(above)
        os.rmdir("place")
        os.mkdir("place")
        os.chdir("place")
        for _ in range(20):
            same(os.getcwd(), above + "/place")
        os.chdir(above)
        os.rmdir("place")


def main():
    near, far = Hand(), Far()
    cases = {
        "preload-writer": lambda: writer_and_reader(near, far),
        "fuse-writer": lambda: writer_and_reader(far, near),
        "mapping-in-preload": lambda: mapping(near, far),
        "mapping-in-fuse": lambda: mapping(far, near),
        "two-mappings": lambda: two_mappings(near, far),
        "names": lambda: (names(near, far), names(far, near)),
        "unlinked": lambda: (unlinked(near, far), unlinked(far, near)),
        "locks": lambda: (locks(near, far), locks(far, near)),
        "appends": lambda: appends(near, far),
        "places": places,
    }
    cases[sys.argv[1]]()
    far.end()
    print("holds")


main()

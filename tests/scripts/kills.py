"""Random changes of files while the service of their lane is killed, again and again: what a
successful fsync was told of is there afterwards, and a file that lost bytes says so.

Usage: kills.py SEED. Each line from standard input starts a round of some seconds, which ends with
a line; "end" has every file synced and prints a line for each: its name, size and SHA-256.
Prints what is wrong, and exits 1.
"""

import errno
import hashlib
import os
import random
import sys
import time

SIZE_MAX = 300_000
FILES = ["a", "b", "c", "d"]
ROUND = 3.2


class File:
    """What an open file must hold: the state as of its last fsync, and what changed since."""

    def __init__(self, name):
        self.name = name
        self.fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        self.now = bytearray()
        self.settle()

    def settle(self):
        """All is durable."""
        self.synced = bytes(self.now)
        # The states of a range since, and the sizes.
        self.since = []
        self.sizes = {len(self.now)}

    def change(self, at, data):
        self.now.extend(bytes(max(0, at + len(data) - len(self.now))))
        self.now[at : at + len(data)] = data
        self.since.append((at, data))
        self.sizes.add(len(self.now))

    def cut(self, size):
        old = len(self.now)
        self.now[:] = self.now[:size].ljust(size, b"\0")
        self.since.append((min(old, size), bytes(abs(old - size))))
        self.sizes.add(size)

    def judge(self, found):
        """What a new opening finds of a file that may have lost what was not synced."""
        if len(found) not in self.sizes:
            fail(self, f"{len(found)} bytes, none of {sorted(self.sizes)}")
        # Bytes that differ from the synced state are of a later write, or of a hole.
        old = self.synced.ljust(len(found), b"\0")
        unknown = {i for i, (x, y) in enumerate(zip(found, old)) if x != y}
        for at, data in self.since:
            unknown -= {i for i in unknown if at <= i < at + len(data) and data[i - at] == found[i]}
        if unknown:
            at = min(unknown)
            fail(self, f"byte {at} of {len(found)} is {found[at]}: neither synced nor written since")


def fail(file, what):
    print(f"{file.name}: {what}", flush=True)
    sys.exit(1)


class Run:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.files = [File(name) for name in FILES]
        self.lost = 0

    def opened_anew(self, file):
        """The open file says that it may have lost bytes."""
        self.lost += 1
        try:
            os.close(file.fd)
        except OSError:
            pass
        file.fd = os.open(file.name, os.O_RDWR)
        found = b""
        while piece := os.pread(file.fd, SIZE_MAX, len(found)):
            found += piece
        file.judge(found)
        file.now[:] = found
        os.fsync(file.fd)
        file.settle()

    def write(self, file):
        at, length = self.random.randrange(SIZE_MAX), self.random.choice([1, 300, 4096, 60000])
        data = self.random.randbytes(length)
        # Known before the call: one that fails may have been done.
        file.change(at, data)
        if os.pwrite(file.fd, data, at) != length:
            fail(file, "a short write")

    def sync(self, file):
        os.fsync(file.fd)
        file.settle()

    def read(self, file):
        at, length = self.random.randrange(SIZE_MAX), self.random.choice([1, 4096, 100000])
        found, wanted = os.pread(file.fd, length, at), bytes(file.now[at : at + length])
        if found != wanted:
            first = next((i for i, (x, y) in enumerate(zip(found, wanted)) if x != y), len(found))
            fail(file, f"read {len(found)} bytes at {at} for {len(wanted)}, wrong from {first}")

    def cut(self, file):
        size = self.random.randrange(SIZE_MAX)
        file.cut(size)
        os.ftruncate(file.fd, size)

    def step(self):
        file = self.random.choice(self.files)
        step = self.random.choices([self.write, self.sync, self.read, self.cut], [8, 4, 6, 1])[0]
        self.safely(step, file)

    def safely(self, step, file):
        try:
            step(file)
        except OSError as error:
            if error.errno != errno.EIO:
                fail(file, f"{step.__name__}: {error}")
            self.opened_anew(file)


def main():
    run = Run(int(sys.argv[1]))
    for line in sys.stdin:
        if line.strip() == "end":
            break
        end, count = time.monotonic() + ROUND, 0
        while time.monotonic() < end:
            run.step()
            count += 1
        print(f"{count} steps, {run.lost} losses told", flush=True)
    for file in run.files:
        run.safely(run.sync, file)
        print(file.name, len(file.now), hashlib.sha256(file.now).hexdigest(), flush=True)


main()

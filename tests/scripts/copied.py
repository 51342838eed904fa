"""Random operations on files that lowers have, by two processes, before and behind their copy-up:
bytes, names and states are checked against a copy in memory.

Usage: copied.py make SEED COUNT LOWER        files for a lower
       copied.py change SEED COUNT LOWER KEPT STEPS
                                              STEPS operations on each in the working directory, which
                                              shows LOWER; what they are then is written to KEPT
       copied.py check KEPT                   they are as that says
"""

import errno
import os
import pickle
import random
import stat
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hands import KEEP_SIZE, ZERO_RANGE
from mixed import MAP, SIZE_MAX, Differs, Run, expect

# Files of up to 64 KiB are copied whole by their first write.
SIZES = [0, 1, 4096, 65536, 65537, 100_000, MAP + 4095, 150_001, SIZE_MAX]


def make(seed, count, lower):
    """Of some sizes, with holes, some of two names, in two directories each."""
    choose = random.Random(seed)
    for number in range(count):
        for dir in "a", "b":
            os.makedirs(f"{lower}/{dir}{number}")
        path = f"{lower}/a{number}/file"
        with open(path, "wb") as file:
            file.write(choose.randbytes(choose.choice(SIZES)))
            for _ in range(choose.randrange(3)):
                file.seek(choose.randrange(SIZE_MAX))
                file.write(choose.randbytes(choose.randrange(1, 5000)))
            file.truncate(choose.choice(SIZES))
        if choose.random() < 0.4:
            os.link(path, f"{lower}/b{number}/other")


class Copied(Run):
    """One file of a lower. `early` are descriptors and mappings from before the first change."""

    def begin(self, number, lower):
        self.number, self.log = number, []
        self.names = [f"a{number}/file"]
        if os.path.exists(f"{lower}/b{number}/other"):
            self.names.append(f"b{number}/other")
        with open(f"{lower}/{self.names[0]}", "rb") as file:
            self.model = bytearray(file.read())
        self.mode, self.value = 0o644, None
        self.ino = os.stat(self.names[0]).st_ino
        self.mapped = dict.fromkeys(["near", "far", "near early", "far early"], False)
        for name, hand in self.hands.items():
            self.path = self.random.choice(self.names)
            hand.hold("file", self.path, os.O_RDWR)
            hand.hold("early", self.path, os.O_RDONLY)
            if len(self.model) >= MAP and self.random.random() < 0.5:
                hand.see("early", MAP)
                self.mapped[f"{name} early"] = True

    def end(self):
        """All of it, by new descriptors and by old ones."""
        for name, hand in self.hands.items():
            whole = bytes(self.model)
            expect(hand.read("early", 0, SIZE_MAX * 2), whole, "early, at last")
            expect(hand.read("file", 0, SIZE_MAX * 2), whole, "file, at last")
            for path in self.names:
                hand.hold("file", path, os.O_RDONLY)
                expect(hand.read("file", 0, SIZE_MAX * 2), whole, path)
            for key in "file", "early":
                if self.mapped[name if key == "file" else f"{name} early"]:
                    hand.unmap(key)
                hand.close(key)
        return self.names, bytes(self.model), self.mode, self.value, self.ino

    def early_read(self, hand, _):
        at, length = self.range()
        expect(hand.read("early", at, length), bytes(self.model[at : at + length]), "early read")

    def early_load(self, hand, name):
        if self.mapped[f"{name} early"]:
            at = self.random.randrange(MAP - 5000)
            wanted = bytes(self.model[at : at + 5000])
            expect(hand.load("early", at, 5000), wanted, "early load")

    def state(self, hand, _):
        for path in self.names:
            found = hand.os("stat", path)
            wanted = (stat.S_IFREG | self.mode, self.ino, len(self.names), len(self.model))
            expect((found[0], found[1], found[3], found[6]), wanted, f"state of {path}")
            if self.value is not None:
                expect(hand.os("getxattr", path, "user.x"), self.value, f"attribute of {path}")

    def chmod(self, hand, _):
        if self.names:
            self.mode = self.random.choice([0o644, 0o600, 0o755, 0o640])
            expect(hand.os("chmod", self.path, self.mode), None, "chmod")

    def stamp(self, hand, _):
        if self.names:
            expect(hand.os("utime", self.path, (5, self.random.randrange(9))), None, "utime")

    def attribute(self, hand, _):
        if self.names:
            value = b"%d" % self.random.randrange(999)
            # tmpfs has none before Linux 6.6.
            if hand.os("setxattr", self.path, "user.x", value) != -errno.EOPNOTSUPP:
                self.value = value

    def new_name(self):
        return self.random.choice("ab") + f"{self.number}/n{self.random.randrange(10**9)}"

    def link(self, hand, _):
        if 0 < len(self.names) < 4:
            new = self.new_name()
            expect(hand.os("link", self.path, new), None, "link")
            self.names.append(new)

    def rename(self, hand, _):
        if self.names:
            new = self.new_name()
            expect(hand.os("rename", self.path, new), None, "rename")
            self.names[self.names.index(self.path)] = new

    def replace(self, hand, _):
        """Takes the place of another file; under its own other name nothing happens."""
        if self.names:
            new = self.new_name()
            hand.hold("placed", new, os.O_RDWR | os.O_CREAT)
            hand.close("placed")
            expect(hand.os("rename", self.path, new), None, "replace")
            self.names[self.names.index(self.path)] = new

    def unlink(self, hand, _):
        """Now and then the last name: the file goes on by its descriptors."""
        if len(self.names) > 1 or (self.names and self.random.random() < 0.02):
            expect(hand.os("unlink", self.path), None, "unlink")
            self.names.remove(self.path)

    def move(self, hand, _):
        """Its directories move, and come back."""
        for dir in "ab":
            there = f"{dir}{self.number}"
            expect(hand.os("rename", there, "moved"), None, "a directory goes")
            for path in self.names:
                if path.startswith(f"{there}/"):
                    at = f"moved/{path.split('/')[1]}"
                    expect(hand.os("stat", at)[6], len(self.model), at)
            expect(hand.os("rename", "moved", there), None, "and comes back")

    def append(self, hand, name):
        if self.names:
            super().append(hand, name)

    def reopen(self, hand, name):
        if self.names:
            super().reopen(hand, name)

    def zero(self, hand, _):
        at, length = self.range()
        keep = self.random.choice([0, KEEP_SIZE])
        self.allocated(hand, ZERO_RANGE | keep, at, length, keep)

    def allocate(self, hand, _):
        at, length = self.range()
        keep = self.random.choice([0, KEEP_SIZE])
        self.allocated(hand, keep, at, length, keep)

    def allocated(self, hand, mode, at, length, keep):
        end = at + length if not keep else min(at + length, len(self.model))
        try:
            hand.fallocate("file", mode, at, length)
        except OSError as error:
            # tmpfs zeroes no ranges, and a host's directory may not.
            if error.errno != errno.EOPNOTSUPP:
                raise
            return
        if end > len(self.model):
            self.model.extend(bytes(end - len(self.model)))
        if mode & ZERO_RANGE and at < end:
            self.model[at:end] = bytes(end - at)

    def copy(self, hand, _):
        at, length = self.range()
        to = at + length + self.random.randrange(5000)
        wanted = bytes(self.model[at : at + length])
        count = hand.copy("file", at, to, length)
        expect(count, len(wanted), "copied")
        if count:
            self.put(to, wanted)

    def holes(self, hand, _):
        """What a file calls a hole is zeros. Pages that are mapped may not be known of yet."""
        if not any(self.mapped.values()):
            at = 0
            for start, end in hand.data("file") + [(len(self.model), 0)]:
                expect(bytes(self.model[at:start]), bytes(start - at), f"a hole from {at} on")
                at = end

    def weights(self):
        return super().weights() | {
            self.early_read: 15, self.early_load: 10, self.state: 8, self.chmod: 2, self.stamp: 2,
            self.attribute: 2, self.link: 3, self.rename: 3, self.replace: 1, self.unlink: 3,
            self.move: 1, self.zero: 3, self.allocate: 2, self.copy: 4, self.holes: 4}

    def step(self):
        if self.names:
            self.path = self.random.choice(self.names)
        super().step()


def change(seed, count, lower, kept, steps):
    run = Copied(seed)
    left = []
    for number in range(count):
        try:
            run.begin(number, lower)
            run.steps(steps)
            left.append(run.end())
        except Differs as difference:
            print("\n".join(run.log[-30:]))
            sys.exit(f"file {number}: {difference}")
    run.hands["far"].end()
    with open(kept, "wb") as file:
        pickle.dump(left, file)


def check(kept):
    with open(kept, "rb") as file:
        left = pickle.load(file)
    for number, (names, data, mode, value, ino) in enumerate(left):
        for dir in "ab":
            expect(len(os.listdir(f"{dir}{number}")), sum(name[0] == dir for name in names), dir)
        for name in names:
            with open(name, "rb") as file:
                expect(file.read(), data, name)
            found = os.stat(name)
            wanted = (stat.S_IFREG | mode, ino, len(names), len(data))
            expect((found.st_mode, found.st_ino, found.st_nlink, found.st_size), wanted, name)
            if value is not None:
                expect(os.getxattr(name, "user.x"), value, name)


def main(what, *words):
    if what == "make":
        make(int(words[0]), int(words[1]), words[2])
    elif what == "change":
        change(int(words[0]), int(words[1]), words[2], words[3], int(words[4]))
    else:
        check(words[0])
    print("holds")


main(*sys.argv[1:])

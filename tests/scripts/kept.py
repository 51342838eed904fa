"""Files that are opened to be read, again and again, while others change them now and then: random
operations by a process with the library and two without, one of them another user's, checked against a
copy in memory.

Usage: kept.py SEED COUNT. Prints the operations before the first difference, and exits 1.
"""

import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hands import Far, Hand

SIZE_MAX = 150_000
MAP = 32 * 1024
NOBODY = 65534
FILES = ["a", "b"]


class Inode:
    """What a file should hold, and how often it is mapped."""

    def __init__(self, data):
        self.data = bytearray(data)
        self.maps = 0


class Run:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.hands = {"near": Hand(), "far": Far(), "other": Far()}
        self.hands["other"].os("setuid", NOBODY)
        self.named = {name: self.make(name) for name in FILES}
        # By hand: what its descriptor for reading means, and whether it has it mapped.
        self.held = {}
        self.seen = set()
        self.log = []

    def make(self, name):
        data = self.random.randbytes(self.random.randrange(MAP, SIZE_MAX))
        with open(name, "wb") as file:
            file.write(data)
        os.chmod(name, 0o666)
        return Inode(data)

    def range(self):
        return self.random.randrange(SIZE_MAX), self.random.choice([1, 300, 4096, 9000, 70000])

    def check(self, found, wanted, what):
        if found != bytes(wanted):
            first = next((i for i, (x, y) in enumerate(zip(found, wanted)) if x != y), -1)
            print("\n".join(self.log[-40:]))
            sys.exit(f"step {len(self.log)}: {what}: {len(found)} bytes for {len(wanted)}, byte {first}")

    def look(self, hand, _who, name):
        """What a program that starts does."""
        hand.hold("look", name, os.O_RDONLY)
        at, length = self.range()
        self.check(hand.read("look", at, length), self.named[name].data[at : at + length], "look")
        hand.close("look")

    def keep(self, hand, who, name):
        if who not in self.seen:
            hand.hold("kept", name, os.O_RDONLY)
            self.held[who] = self.named[name]

    def read(self, hand, who, _name):
        if who in self.held:
            at, length = self.range()
            self.check(hand.read("kept", at, length), self.held[who].data[at : at + length], "read")

    def see(self, hand, who, _name):
        if who in self.seen:
            hand.unmap("kept")
            self.held[who].maps -= 1
            self.seen.remove(who)
        elif who in self.held and len(self.held[who].data) >= MAP:
            hand.see("kept", MAP)
            self.held[who].maps += 1
            self.seen.add(who)

    def load(self, hand, who, _name):
        if who in self.seen:
            at = self.random.randrange(MAP - 5000)
            self.check(hand.load("kept", at, 5000), self.held[who].data[at : at + 5000], "load")

    def put(self, name, at, data):
        file = self.named[name].data
        file.extend(bytes(max(0, at - len(file))))
        file[at : at + len(data)] = data

    def write(self, hand, _who, name):
        """By a descriptor that is opened for it, for both or for writing alone, some times over."""
        hand.hold("write", name, self.random.choice([os.O_WRONLY, os.O_RDWR]))
        for _ in range(self.random.randrange(1, 4)):
            at, length = self.range()
            data = self.random.randbytes(length)
            hand.write("write", at, data)
            self.put(name, at, data)
        hand.close("write")

    def write_on(self, hand, who, name):
        """By a descriptor that stays open."""
        hand.hold(f"on-{name}", name, os.O_RDWR)
        if self.random.random() < 0.3:
            hand.close(f"on-{name}")
            return
        at, length = self.range()
        data = self.random.randbytes(length)
        hand.write(f"on-{name}", at, data)
        self.put(name, at, data)

    def store(self, hand, _who, name):
        """Through a mapping."""
        if len(self.named[name].data) < MAP:
            return
        hand.hold("store", name, os.O_RDWR)
        hand.map("store", MAP)
        at, data = self.random.randrange(MAP - 3000), self.random.randbytes(3000)
        hand.store("store", at, data)
        self.put(name, at, data)
        if self.random.random() < 0.5:
            self.look(self.hands[self.random.choice(list(self.hands))], None, name)
        hand.unmap("store")
        hand.close("store")

    def append(self, hand, _who, name):
        data = self.random.randbytes(self.random.randrange(1, 6000))
        if len(self.named[name].data) < SIZE_MAX:
            hand.append(name, data)
            self.named[name].data.extend(data)

    def cut(self, hand, _who, name):
        inode = self.named[name]
        size = self.random.randrange(MAP if inode.maps else 0, SIZE_MAX)
        assert hand.os("truncate", name, size) is None
        inode.data[:] = inode.data[:size].ljust(size, b"\0")

    def replace(self, _hand, _who, name):
        new = self.make("new")
        self.hands["near" if self.random.random() < 0.5 else "far"].os("rename", "new", name)
        self.named[name] = new

    def touch(self, hand, _who, name):
        """Has the next read move the access time."""
        hand.os("utime", name)

    def step(self):
        steps = [self.look, self.keep, self.read, self.see, self.load, self.write, self.write_on,
                 self.store, self.append, self.cut, self.replace, self.touch]
        weights = [30, 6, 25, 4, 20, 6, 3, 3, 3, 3, 1, 1]
        who, name = self.random.choice(list(self.hands)), self.random.choice(FILES)
        step = self.random.choices(steps, weights)[0]
        self.log.append(f"{who} {step.__name__} {name}, {len(self.named[name].data)} bytes")
        step(self.hands[who], who, name)


def main():
    run = Run(int(sys.argv[1]))
    os.chmod(".", 0o777)
    for _ in range(int(sys.argv[2])):
        run.step()
    print(f"{len(run.log)} operations")
    for who in ["far", "other"]:
        run.hands[who].end()


main()

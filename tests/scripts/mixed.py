"""Random operations on one file by two processes, checked against a copy in memory.

Usage: mixed.py SEED COUNT. Prints the operations before the first difference, and exits 1.
"""

import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hands import KEEP_SIZE, PUNCH_HOLE, Far, Hand

SIZE_MAX = 200_000
MAP = 64 * 1024


class Differs(Exception):
    pass


def expect(found, wanted, what):
    if found != wanted:
        length = min(len(found), len(wanted)) if isinstance(found, bytes) else 0
        first = next((i for i in range(length) if found[i] != wanted[i]), length)
        raise Differs(f"{what}: differs from byte {first} ({found[first:first + 8]!r} for "
                      f"{wanted[first:first + 8]!r})" if length else f"{what}: {found} for {wanted}")


class Run:
    """One file, what it should hold, and who has it mapped."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.path = "file"
        self.model = bytearray()
        self.hands = {"near": Hand(), "far": Far()}
        self.mapped = {"near": False, "far": False}
        self.log = []
        for hand in self.hands.values():
            hand.open("file")

    def range(self):
        at = self.random.randrange(SIZE_MAX)
        return at, self.random.choice([1, 10, 500, 4096, 5000, 30000, 70000])

    def put(self, at, data):
        if len(self.model) < at:
            self.model.extend(bytes(at - len(self.model)))
        self.model[at : at + len(data)] = data

    def read(self, hand, _):
        at, length = self.range()
        expect(hand.read("file", at, length), bytes(self.model[at : at + length]), "read")

    def write(self, hand, _):
        at, length = self.range()
        data = self.random.randbytes(length)
        expect(hand.write("file", at, data), length, "write")
        self.put(at, data)

    def append(self, hand, _):
        data = self.random.randbytes(self.random.randrange(1, 3000))
        if len(self.model) < SIZE_MAX:
            hand.append(self.path, data)
            self.model.extend(data)

    def truncate(self, hand, _):
        # Not below a mapping: touching what is cut off is a SIGBUS on any file system.
        size = self.random.randrange(MAP if any(self.mapped.values()) else 0, SIZE_MAX)
        hand.truncate("file", size)
        self.model = self.model[:size].ljust(size, b"\0")

    def punch(self, hand, _):
        at, length = self.range()
        hand.fallocate("file", KEEP_SIZE | PUNCH_HOLE, at, length)
        end = min(at + length, len(self.model))
        if at < end:
            self.model[at:end] = bytes(end - at)

    def size(self, hand, _):
        expect(hand.size("file"), len(self.model), "size")

    def map(self, hand, name):
        if self.mapped[name]:
            hand.unmap("file")
            self.mapped[name] = False
        elif len(self.model) >= MAP:
            hand.map("file", MAP)
            self.mapped[name] = True

    def load(self, hand, name):
        if self.mapped[name]:
            at = self.random.randrange(MAP - 5000)
            expect(hand.load("file", at, 5000), bytes(self.model[at : at + 5000]), "load")

    def store(self, hand, name):
        if self.mapped[name]:
            at, data = self.random.randrange(MAP - 3000), self.random.randbytes(3000)
            hand.store("file", at, data)
            self.put(at, data)
            if self.random.random() < 0.3:
                hand.msync("file")

    def reopen(self, hand, _):
        hand.hold("file", self.path, os.O_RDWR)

    def fsync(self, hand, _):
        hand.fsync("file")

    def weights(self):
        """The steps, and how often each is taken."""
        return {self.read: 20, self.write: 15, self.append: 5, self.truncate: 4, self.punch: 4,
                self.size: 10, self.map: 3, self.load: 10, self.store: 10, self.reopen: 2,
                self.fsync: 1}

    def step(self):
        weights = self.weights()
        name = self.random.choice(["near", "far"])
        step = self.random.choices(list(weights), weights.values())[0]
        self.log.append(f"{name} {step.__name__}, size {len(self.model)}, mapped {self.mapped}")
        step(self.hands[name], name)

    def steps(self, count):
        """Takes so many; ends the program at the first difference."""
        try:
            for _ in range(count):
                self.step()
        except Differs as difference:
            print("\n".join(self.log[-30:]))
            sys.exit(f"step {len(self.log)}: {difference}")


def main():
    run = Run(int(sys.argv[1]))
    run.steps(int(sys.argv[2]))
    run.hands["far"].end()
    print(f"{len(run.log)} operations")


if __name__ == "__main__":
    main()

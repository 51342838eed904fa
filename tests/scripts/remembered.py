"""Two processes change a tree of lowers at random, one with the preload library and one without;
after each change both see the same names and states, and each sees what was done.

Usage: remembered.py SEED ROUNDS KILLS. With KILLS it says `kill` now and then and goes on when it
is told so: what was not synced may be gone then, for both alike. Exits 0, with `holds`.
"""

import os
import random
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hands import Far, Hand

ACL = "system.posix_acl_access"
DIRS = ["", "a/", "b/", "a/in/", "c/"]
NAMES = [dir + name for dir in DIRS for name in ["0", "1", "2", "3", "link"]]
PATHS = [dir.rstrip("/") or "." for dir in DIRS] + NAMES


def acl(user):
    """Owner and a user read and write, all others nothing."""
    entries = [(1, 6, -1), (2, 6, user), (4, 0, -1), (16, 6, -1), (32, 0, -1)]
    body = b"".join(struct.pack("<HHi", *entry) for entry in entries)
    return struct.pack("<I", 2) + body


class Changer:
    def __init__(self, choose):
        self.choose = choose

    def change(self):
        """The name of a function of `Hand.os`, and its arguments."""
        pick, name = self.choose, self.choose.choice
        path = name(PATHS[1:])
        dir = name(PATHS[1:5])
        return pick.choice(
            [
                ("chmod", path, name([0o755, 0o700, 0o711, 0o644])),
                ("chown", path, pick.randrange(3), pick.randrange(3)),
                ("utime", path, (pick.randrange(9), pick.randrange(9))),
                ("truncate", name(NAMES), pick.randrange(9)),
                ("put", name(NAMES), pick.randrange(200)),
                ("add", name(NAMES), pick.randrange(200)),
                ("unlink", name(NAMES)),
                ("rename", name(NAMES), name(NAMES)),
                ("rename", dir, name(PATHS[1:5])),
                ("rename", name(NAMES), name(NAMES)),
                ("mkdir", dir),
                ("rmdir", dir),
                ("link", name(NAMES), name(NAMES)),
                ("symlink", "0", name(NAMES)),
                ("setxattr", path, "user.x", b"%d" % pick.randrange(99)),
                ("setxattr", path, ACL, acl(pick.randrange(1, 9))),
                ("removexattr", path, ACL),
            ]
        )


def same(what, near, far):
    if near != far:
        raise AssertionError(f"{what}:\nlibrary {near}\nkernel  {far}")


def main(seed, rounds, kills):
    choose = random.Random(seed)
    near, far = Hand(), Far()
    changer, done = Changer(choose), []
    for round in range(rounds):
        # Whoever looks first learns what it may remember.
        far.states(PATHS)
        # A service that dies ten times in half a minute ends the run.
        if kills and done.count("kill") < 8 and choose.randrange(40) == 0:
            print("kill", flush=True)
            sys.stdin.readline()
            done.append("kill")
        change = changer.change()
        hand = choose.choice([near, far])
        answer = hand.os(*change)
        done.append((hand is near, change, answer))
        paths = PATHS if round % 4 == 0 else choose.sample(PATHS, 8)
        for look in ["states", "names", "walks"]:
            both = [getattr(hand, look)(paths) for hand in [far, near]]
            for path, seen, true in zip(paths, *both):
                same(f"seed {seed}, {look}, {path} after {done[-6:]}", true, seen)
    far.end()
    print("holds", flush=True)


main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

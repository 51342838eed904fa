"""Two processes at work on the same files: this one, and one without the preload library.

On a lane with the library, `Hand()` is the fast lane and `Far()` comes through FUSE; elsewhere both go
the same way, and what holds must hold just the same.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import pickle
import stat
import subprocess
import sys

libc = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16


class Hand:
    """Files by name, done here."""

    def __init__(self):
        self.files = {}
        self.maps = {}

    def open(self, name, flags=os.O_RDWR | os.O_CREAT, mode=0o644):
        if name in self.files:
            os.close(self.files.pop(name))
        self.files[name] = os.open(name, flags, mode)

    def close(self, name):
        os.close(self.files.pop(name))

    def read(self, name, offset, length):
        return os.pread(self.files[name], length, offset)

    def write(self, name, offset, data):
        return os.pwrite(self.files[name], data, offset)

    def append(self, name, data):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.write(file, data)
        os.close(file)

    def truncate(self, name, size):
        os.ftruncate(self.files[name], size)

    def fallocate(self, name, mode, offset, length):
        arguments = [ctypes.c_longlong(offset), ctypes.c_longlong(length)]
        if libc.fallocate64(self.files[name], mode, *arguments) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    def copy(self, name, start, to, length):
        """Within a file; says how much."""
        file = self.files[name]
        return os.copy_file_range(file, file, length, start, to)

    def data(self, name):
        """Where a file says that it has data: pairs of a first offset and one past the last."""
        found, at, file = [], 0, self.files[name]
        while True:
            try:
                at = os.lseek(file, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                return found
            end = os.lseek(file, at, os.SEEK_HOLE)
            found.append((at, end))
            at = end

    def size(self, name):
        return os.fstat(self.files[name]).st_size

    def fsync(self, name):
        os.fsync(self.files[name])

    def map(self, name, length):
        """A shared mapping that stays until `unmap`."""
        self.maps[name] = mmap.mmap(self.files[name], length)

    def hold(self, key, name, flags):
        """As `open`, under another key than the name."""
        if key in self.files:
            os.close(self.files.pop(key))
        self.files[key] = os.open(name, flags)

    def see(self, name, length):
        """A shared mapping to be read only."""
        self.maps[name] = mmap.mmap(self.files[name], length, access=mmap.ACCESS_READ)

    def unmap(self, name):
        self.maps.pop(name).close()

    def load(self, name, offset, length):
        return self.maps[name][offset : offset + length]

    def store(self, name, offset, data):
        self.maps[name][offset : offset + len(data)] = data

    def msync(self, name):
        self.maps[name].flush()

    def lock_range(self, name, kind, start, length):
        """Tries a POSIX lock of a range; an error is returned by its number."""
        try:
            wait = 0 if kind == fcntl.LOCK_UN else fcntl.LOCK_NB
            fcntl.lockf(self.files[name], kind | wait, length, start)
            return 0
        except OSError as error:
            return -error.errno

    def lock(self, name, kind):
        """Tries a POSIX lock of the whole file; says whether it was got."""
        try:
            fcntl.lockf(self.files[name], kind | (0 if kind == fcntl.LOCK_UN else fcntl.LOCK_NB))
            return True
        except OSError:
            return False

    def flock(self, name, kind):
        try:
            fcntl.flock(self.files[name], kind | (0 if kind == fcntl.LOCK_UN else fcntl.LOCK_NB))
            return True
        except OSError:
            return False

    def put(self, path, count):
        """Writes a file anew."""
        with open(path, "wb") as file:
            file.write(b"p" * count)

    def add(self, path, count):
        """Appends to a file that is there."""
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, b"a" * count)
        finally:
            os.close(file)

    def fields(self, found):
        """All of a state but the access time."""
        fields = ["mode", "ino", "nlink", "uid", "gid", "size", "mtime_ns", "ctime_ns"]
        return [getattr(found, f"st_{field}") for field in fields]

    def state(self, path):
        """All that is known of what a path leads to but its access time; an error by its number."""
        try:
            found = os.lstat(path)
        except OSError as error:
            return -error.errno
        state = self.fields(found)
        for name in ["user.x", "system.posix_acl_access"]:
            try:
                state.append(os.getxattr(path, name, follow_symlinks=False))
            except OSError as error:
                state.append(-error.errno)
        return state

    def states(self, paths):
        return [self.state(path) for path in paths]

    def names(self, paths):
        """What is in directories, in order. To be listed may move their times."""
        found = [self.os("listdir", path) for path in paths]
        return [sorted(names) if isinstance(names, list) else names for names in found]

    def walk(self, path):
        """What a directory holds, and its states, by its descriptor alone, as `find` does it; of a
        directory that it holds no times, which a listing may move."""
        try:
            dir = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            return -error.errno
        try:
            look = lambda name: self.fields(os.stat(name, dir_fd=dir, follow_symlinks=False))
            found = [(name, look(name)) for name in sorted(os.listdir(dir))]
            return [(name, it[:-2] if stat.S_ISDIR(it[0]) else it) for name, it in found]
        finally:
            os.close(dir)

    def walks(self, paths):
        return [self.walk(path) for path in paths]

    def os(self, function, *arguments):
        """Any function of `os`, or of this; an error is returned by its number."""
        try:
            call = getattr(os, function, None) or getattr(self, function)
            found = call(*arguments)
            return tuple(found) if isinstance(found, os.stat_result) else found
        except OSError as error:
            return -error.errno


class Far:
    """The same, done by another process, in a directory; without LD_PRELOAD unless `env` has it."""

    def __init__(self, directory=None, env=None):
        plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        command = [sys.executable, "-B", os.path.abspath(__file__)]
        pipe, env = subprocess.PIPE, plain | (env or {})
        self.child = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env, cwd=directory)

    def __getattr__(self, function):
        def call(*arguments):
            pickle.dump((function, arguments), self.child.stdin)
            self.child.stdin.flush()
            good, result = pickle.load(self.child.stdout)
            if not good:
                raise result
            return result

        return call

    def end(self):
        self.child.stdin.close()
        self.child.wait()


def serve():
    hand = Hand()
    while True:
        try:
            function, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = (True, getattr(hand, function)(*arguments))
        except Exception as error:
            answer = (False, error)
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve()

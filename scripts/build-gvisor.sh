#!/bin/sh
# Builds programs of gVisor's test/syscalls/linux without bazel: SOURCE is a checkout of gVisor, OUT the folder for
# POLYLANE_GVISOR; NAMES are programs (access, open, …), without any those on files.
# Wants g++, libgtest-dev, libgmock-dev, libbenchmark-dev and libabsl-dev of Debian 12. What does not compile here is named and left out.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 SOURCE OUT [NAME…]" >&2; exit 2; }
source=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
shift 2
[ $# -gt 0 ] || set -- access chdir chmod chown chroot close_range creat dup fadvise64 fallocate fchdir fcntl flock \
    fork fsync getdents inotify itimer link lseek madvise mkdir mknod mmap mremap msync open open_create \
    pipe ppoll pread64 preadv preadv2 pwrite64 pwritev2 read readahead readv rename rlimits select sendfile splice \
    stat statfs symlink sync truncate unlink unshare utimes vfork write xattr epoll
objects=$out/../$(basename "$out").objects
mkdir -p "$objects"
cd "$source"
compile() { # SOURCE OBJECT
    [ "$2" -nt "$1" ] || g++ -std=c++17 -w -O1 -I. -c "$1" -o "$2" || echo "left out: $1" >&2
}
jobs=0
for part in test/util/*.cc; do
    case $part in *_test.cc | *_benchmark.cc) continue ;; esac
    compile "$part" "$objects/$(basename "$part" .cc).o" 2>"$objects/$(basename "$part" .cc).said" &
    jobs=$((jobs + 1))
    [ $((jobs % $(nproc))) -ne 0 ] || wait
done
wait
cat "$objects"/*.said | grep '^left out' >&2 || true
rm -f "$objects/util.a"
ar rcs "$objects/util.a" $(ls "$objects"/*.o | grep -v '/program-\|test_main')
for name; do
    program=$objects/program-$name.o
    compile "test/syscalls/linux/$name.cc" "$program" 2>"$objects/$name.said"
    [ -e "$program" ] || { grep '^left out' "$objects/$name.said" >&2; continue; }
    g++ -o "$out/$name" "$program" "$objects/test_main.o" -Wl,--start-group "$objects/util.a" \
        /usr/lib/*/libabsl_*.a -Wl,--end-group -lgtest -lgmock -lbenchmark -lpthread -lrt 2>"$objects/$name.said" ||
        echo "left out: $name does not link" >&2
done
ls "$out"

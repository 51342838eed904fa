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
[ $# -gt 0 ] || set -- access aio bad chdir chmod chown chroot close_range concurrency creat deleted dup exec fadvise64 \
    fallocate fault fchdir fcntl fifo flock fork fsync getdents inotify io_uring ioctl itimer link lseek madvise memfd \
    mincore mkdir mknod mlock mmap mremap msync munmap open open_create partial_bad_buffer pipe poll \
    posix_acl ppoll pread64 preadv preadv2 process_vm_read_write pselect pwrite64 pwritev2 read readahead readv rename rlimits \
    select sendfile setgid splice stat stat_times statfs sticky symlink sync sync_file_range truncate uidgid unlink unshare \
    utimes vfork write xattr epoll
objects=$out/../$(basename "$out").objects
mkdir -p "$objects"
cd "$source"
# The source as Debian's abseil takes it: its locks want pointers, and its strings are its own.
compile() { # SOURCE OBJECT
    [ ! "$2" -nt "$1" ] || return 0
    changed=$(dirname "$1")/.debian-$(basename "$1")
    sed -E 's/(MutexLock [a-z_]+\()([a-z])/\1\&\2/; s/std::vector<std::string_view> tags/std::vector<absl::string_view> tags/
        s/\b(mu|m|mutex)\.(un)?lock\(\)/\1.@\2lock()/g; s/@unlock/Unlock/g; s/@lock/Lock/g
        s/for \(std::string_view tag : tags\)/for (absl::string_view each : tags)/
        s/ParseOptionalTag\(tag, &opt\)/ParseOptionalTag({each.data(), each.size()}, \&opt)/' "$1" >"$changed"
    g++ -std=c++17 -w -O1 -I. -c "$changed" -o "$2" || echo "left out: $1" >&2
    rm "$changed"
}
# Programs that tests start lie beside them.
mkdir -p "$objects/source"
cat >"$objects/source/test_util_runfiles.cc" <<'END'
#include <filesystem>
#include <string>
namespace gvisor::testing {
std::string RunfilePath(std::string path) {
  auto own = std::filesystem::read_symlink("/proc/self/exe");
  return own.parent_path() / std::filesystem::path(path).filename();
}
}
END
rm -f "$objects"/*.said
jobs=0
for part in test/util/*.cc test/syscalls/linux/base_poll_test.cc test/syscalls/linux/readv_common.cc \
    test/syscalls/linux/*_socket_test_util.cc "$objects/source"/*.cc; do
    case $part in */base_poll_test.cc | *_socket_test_util.cc) ;; test/util/test_util_runfiles.cc | *_test.cc | *_benchmark.cc) continue ;; esac
    compile "$part" "$objects/$(basename "$part" .cc).o" 2>"$objects/$(basename "$part" .cc).said" &
    jobs=$((jobs + 1))
    [ $((jobs % $(nproc))) -ne 0 ] || wait
done
wait
cat "$objects"/*.said | grep '^left out' >&2 || true
rm -f "$objects/util.a" "$objects/main.a"
ar rcs "$objects/util.a" $(ls "$objects"/*.o | grep -v '/program-\|test_main')
ar rcs "$objects/main.a" "$objects/test_main.o"
program() { # NAME LIBRARIES…
    name=$1
    shift
    object=$objects/program-$name.o
    compile "test/syscalls/linux/$name.cc" "$object" 2>"$objects/$name.said"
    [ -e "$object" ] || { grep '^left out' "$objects/$name.said" >&2; return 0; }
    g++ -o "$out/$name" "$object" "$@" -Wl,--start-group "$objects/util.a" \
        /usr/lib/*/libabsl_*.a -Wl,--end-group -lgtest -lgmock -lbenchmark -lpthread -lrt 2>"$objects/$name.said" ||
        echo "left out: $name does not link" >&2
}
for name in exec_assert_closed_workload exec_basic_workload exec_check_creds exec_proc_exe_workload exec_state_workload; do
    program "$name"
done
for name; do
    # Taken where the program has no main of its own.
    program "$name" "$objects/main.a"
done
ls "$out"

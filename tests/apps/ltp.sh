# The Linux Test Project's file-system tests and its tests of system calls on files, built in POLYLANE_LTP. What
# fails in a directory of the host is not the lane's; tests of other file systems on loop devices are left out.
calls='access|chdir|chmod|chown|chroot|close|copy|creat|dirtyc|dup|execl|execle|execlp|execv|execve|execveat|execvp
faccessat|fallocate|fanotify|fchdir|fchmod|fchmodat|fchown|fchownat|fcntl|fdatasync|fgetxattr|file|flistxattr|flock
fork|fpathconf|fremovexattr|fsetxattr|fstat|fstatat|fstatfs|fsync|ftruncate|futimesat|getcwd|getdents|getxattr|inotify
io|lchown|lgetxattr|link|linkat|listxattr|llistxattr|llseek|lremovexattr|lseek|lstat|madvise|mkdir|mkdirat|mknod|mknodat
mmap|msync|munmap|name|nftw|open|openat|pathconf|posix|pread|preadv|pwrite|pwritev|read|readahead|readdir|readlink
readlinkat|readv|realpath|removexattr|rename|renameat|rmdir|select|sendfile|setfsuid|setresuid|setrlimit|setxattr|splice
stat|statfs|statvfs|statx|symlink|symlinkat|sync|syncfs|tee|truncate|umask|unlink|unlinkat|utime|utimensat|utimes|vfork
vmsplice|write|writev'
calls=$(echo "$calls" | paste -sd'|')
here=$PWD
export TMPDIR=$here/tmp LTPROOT=$POLYLANE_LTP LTP_COLORIZE_OUTPUT=n
mkdir tmp
PATH=$PATH:$(find "$POLYLANE_LTP/testcases/kernel/fs" "$POLYLANE_LTP/testcases/kernel/syscalls" \
    "$POLYLANE_LTP/testcases/lib" -type f -perm -u+x -printf '%h\n' | sort -u | paste -sd:)
set +x
host=$CACHE/ltp-host
[ "$LANE" = /lane ] || : >"$host"
pass=0 left_out=0
while read -r name line; do
    # Names of the kernel's own file systems; and what takes a minute by the clock takes five seconds.
    case $name in '' | \#* | proc01 | read_all_* | quota_*) continue ;; esac
    line=$(echo "$line" | sed 's/ -L [0-9]*/ -L 5/; s/ -i [0-9]*s/ -i 5s/')
    program=$(command -v "${line%% *}") || continue
    if grep -qs 'mount_device\|needs_device\|all_filesystems\|format_device\|needs_hugetlbfs' "$program.c"; then continue; fi
    status=0
    (cd "$TMPDIR" && exec timeout 100 $OTHER sh -c "$line") >"$here/said" 2>&1 </dev/null || status=$?
    awk -v under="$TMPDIR/" 'index($2, under) == 1 { print $2 }' /proc/mounts | xargs -r umount -l
    rm -rf "$TMPDIR"/*
    case $status in
    0) pass=$((pass + 1)) ;;
    32) left_out=$((left_out + 1)) ;;
    *)
        [ "$LANE" = /lane ] || echo "$name" >>"$host"
        grep -qx "$name" "$host" || {
            echo "$name" >>"$here/failures"
            echo "=== $name: $status"
            grep 'TFAIL\|TBROK\|TWARN\|FAIL' "$here/said" | head -5
        } >&2
        ;;
    esac
done <<LIST
$(cat "$POLYLANE_LTP/runtest/fs")
$(grep -E "^($calls)[0-9_]" "$POLYLANE_LTP/runtest/syscalls")
LIST
test ! -s failures || { paste -sd' ' failures; exit 1; }
echo "$pass pass, $left_out not for here, $(sort -u "$host" | wc -l) fail without a lane too"

# xfstests' quick generic tests that need one file system only, built in POLYLANE_XFSTESTS. The lane is the test
# directory, and stays where a test mounts it again. Without a lane it is the kernel's ext4 on a loop device; what
# fails there is not the lane's.
here=$PWD
host=$CACHE/xfstests-host
work=$(mktemp -d /tmp/xfstests.XXXXXX)
wrap() { # NAME TEXT: the program NAME, as the test scripts are to see it
    printf '#!/bin/bash\nreal=%s\n%s\n' "$(command -v "$1")" "$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
mkdir "$work/bin" "$work/results"
export RESULT_BASE=$work/results HOST_OPTIONS=/dev/null
if [ "$LANE" = /lane ]; then
    trap 'rm -rf "$work"' EXIT
    export FSTYP=fuse TEST_DEV=polylane TEST_DIR=$LANE
    others='"^polylane (.* )?/(lane/.polylane)?$"'
    wrap mount 'for word; do case $word in polylane | /lane) exit 0 ;; esac; done; exec $real "$@"'
    wrap umount 'for word; do case $word in polylane | /lane) exit 0 ;; esac; done; exec $real "$@"'
    wrap findmnt "\$real \"\$@\" | grep -Ev $others"
    wrap df "\$real \"\$@\" | sed s/fuse.polylane/fuse/ | grep -Ev $others"
    PATH=$work/bin:$PATH
else
    truncate -s 4G disk
    mkfs.ext4 -q disk
    mkdir test
    export FSTYP=ext4 TEST_DIR=$here/test
    TEST_DEV=$(losetup --find --show disk)
    export TEST_DEV
    trap 'umount "$TEST_DIR" 2>/dev/null || true; losetup -d "$TEST_DEV"; rm -rf "$work"' EXIT
fi
cd "$POLYLANE_XFSTESTS"
tests=$(grep -lE '^_begin_fstest.* quick' tests/generic/[0-9][0-9][0-9] |
    xargs grep -LE 'SCRATCH_(DEV|MNT)|_require_scratch|_scratch_m|_require_(dm_|loop)' | sed 's,tests/,,')
timeout 2400 ./check $tests >"$work/said" 2>&1 </dev/null || true
sed -n 's/^Failures: //p' "$work/said" | tr ' ' '\n' | grep . | sort >"$work/failures" || true
[ "$LANE" = /lane ] || cp "$work/failures" "$host"
grep -q '^Ran:' "$work/said" || { tail -3 "$work/said" >&2; exit 1; }
comm -23 "$work/failures" "$host" >"$work/ours"
test ! -s "$work/ours" || {
    grep -A12 -F -f "$work/ours" "$work/said" >&2 || true
    paste -sd' ' "$work/ours"
    exit 1
}
count() { sed -n "s/^$1: *//p" "$work/said" | wc -w; }
echo "$(($(count Ran) - $(count 'Not run') - $(wc -l <"$work/failures"))) pass, $(count 'Not run') not for here, $(wc -l <"$host") fail on the kernel's ext4 too"

# xfstests' quick generic tests, built in POLYLANE_XFSTESTS. The lane is the test directory and a directory of it the
# scratch file system, and both stay where a test mounts them again: tests of mount options are left out. Without a lane
# both are the kernel's ext4 on loop devices; what fails there is not the lane's. POLYLANE_XFSTESTS_ONLY: the tests, by
# name.
here=$PWD
host=$CACHE/xfstests-host
work=$(mktemp -d /tmp/xfstests.XXXXXX)
wrap() { # NAME TEXT: the program NAME, as the test scripts are to see it
    printf '#!/bin/bash\nreal=%s\n%s\n' "$(command -v "$1")" "$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
mkdir "$work/bin" "$work/results" scratch
export RESULT_BASE=$work/results HOST_OPTIONS=/dev/null SCRATCH_MNT=$here/scratch
if [ "$LANE" = /lane ]; then
    trap 'rm -rf "$work"' EXIT
    export FSTYP=fuse TEST_DEV=polylane TEST_DIR=$LANE SCRATCH_DEV=polylane-scratch
    others='"^polylane (.* )?/(|lane/.polylane|run/polylane/.*)$"'
    stays="for word; do case \$word in $TEST_DEV | $SCRATCH_DEV | $TEST_DIR | $SCRATCH_MNT) exit 0 ;; esac; done"
    wrap mount "$stays; exec \$real \"\$@\""
    wrap umount "$stays; exec \$real \"\$@\""
    wrap findmnt "\$real \"\$@\" | grep -Ev $others"
    wrap df "\$real \"\$@\" | sed s/fuse.polylane/fuse/ | grep -Ev $others"
    [ -z "$OTHER" ] || for name in xfs_io md5sum getfacl getfattr cat stat rm mv mkdir chown; do
        # Under its own name, which it says in its messages.
        wrap "$name" 'LD_PRELOAD= exec -a "${0##*/}" "$real" "$@"'
    done
    PATH=$work/bin:$PATH
else
    truncate -s 4G disk disk2
    mkfs.ext4 -q disk
    mkfs.ext4 -q disk2
    TEST_DEV=$(losetup --find --show disk)
    SCRATCH_DEV=$(losetup --find --show disk2)
    mkdir test
    export FSTYP=ext4 TEST_DEV SCRATCH_DEV TEST_DIR=$here/test
    trap 'umount "$TEST_DIR" "$SCRATCH_MNT" 2>/dev/null || true; losetup -d "$TEST_DEV" "$SCRATCH_DEV"; rm -rf "$work"' EXIT
fi
cd "$POLYLANE_XFSTESTS"
tests=${POLYLANE_XFSTESTS_ONLY-$(grep -lE '^_begin_fstest.* quick' tests/generic/[0-9][0-9][0-9] |
    grep -vE '003|120|128|294|306|452' | sed 's,tests/,,')}
timeout 5400 ./check $tests >"$work/said" 2>&1 </dev/null || true
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

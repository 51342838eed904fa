# xfstests' tests $TESTS, built in $XFSTESTS, on the file system that is mounted at $AT under the device name $DEVICE. A line for
# each: NAME pass, fail or not (it is not for here). The scratch file system is a directory of the other one, and both
# stay where a test mounts them again, so tests of mount options are left out.
set -u
work=$(mktemp -d /tmp/xfstests.XXXXXX)
trap 'rm -rf "$work"' EXIT
wrap() { # NAME TEXT: the program NAME, as the tests are to see it
    printf '#!/bin/bash\nreal=%s\n%s\n' "$(command -v "$1")" "$2" >"$work/bin/$1"
    chmod +x "$work/bin/$1"
}
mkdir "$work/bin" "$work/results"
export RESULT_BASE=$work/results HOST_OPTIONS=/dev/null FSTYP=fuse
export TEST_DEV=$DEVICE TEST_DIR=$AT SCRATCH_DEV=$DEVICE-scratch SCRATCH_MNT=$AT/scratch
others="\"^$DEVICE (.* )?/(|${AT#/}/.polylane|run/polylane/.*)\$\""
stays="for word; do case \$word in $TEST_DEV | $SCRATCH_DEV | $TEST_DIR | $SCRATCH_MNT) exit 0 ;; esac; done"
wrap mount "$stays; exec \$real \"\$@\""
wrap umount "$stays; exec \$real \"\$@\""
wrap findmnt "\$real \"\$@\" | grep -Ev $others"
wrap df "\$real \"\$@\" | sed s/fuse.$DEVICE/fuse/ | grep -Ev $others"
PATH=$work/bin:$PATH
cd "$XFSTESTS" || exit 1
for name in $TESTS; do
    rm -rf "${AT:?}"/*
    mkdir "$AT/scratch"
    timeout --kill-after=5 "$LIMIT" ./check "$name" >"$work/said" 2>&1 </dev/null
    status=$?
    if grep -q "^Not run: $name" "$work/said"; then
        echo "$name not"
    elif [ $status = 0 ] && grep -q "^Passed all" "$work/said"; then
        echo "$name pass"
    else
        echo "$name fail"
        sed "s,^,$name: ," "$work/said" | tail -n 30 >&2
    fi
done

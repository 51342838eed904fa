#!/bin/sh
# Test suites of other unions on lanes over lowers: tables. Both are GPL: they are run as they are,
# from checkouts.
#
# UNIONMOUNT_SUITE: unionmount-testsuite (revision f48a57d2), beside the kernel's overlayfs, and
# fuse-overlayfs where it is installed. Every script is run alone, since it ends at its first failure;
# of a script that fails, the subtests before that count. TESTS="hard-link …", MODES="--ov --ov=3":
# only those. The suite's nested mode (--ovov) takes no --fuse.
# FUSE_OVERLAYFS_SUITE: fuse-overlayfs (revision 5b24f77), beside the program itself.
# tests/union/known.txt lists what is known to fail, and why.
#
# Ends with 0 when nothing fails on a lane that passes on the peer and is not listed.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
if [ "$(id -u)" != 0 ]; then
    echo "skipped: test-union: only root mounts" >&2
    exit 0
fi
# A mount namespace of its own, where mount(8) finds the helper.
if [ -z "${UNION_INSIDE-}" ]; then
    UNION_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
fi
export POLYLANE="${POLYLANE:-${CARGO_TARGET_DIR:-$here/target}/release/polylane}"
known=$here/tests/union/known.txt
fuse_overlayfs=$(command -v fuse-overlayfs || true)
scratch=$(mktemp -d)
mount -t tmpfs none "$scratch"
mkdir "$scratch/base" "$scratch/helpers" "$scratch/bin" "$scratch/tmp" "$scratch/log"
cp "$here/tests/union/mount.fuse.polylane-union" "$scratch/helpers"
mount -t overlay -o "lowerdir=$scratch/helpers:/usr/sbin" none /usr/sbin
cp "$here/tests/union/umount" "$here/tests/union/fuse-overlayfs" "$scratch/bin"
export UNIONMOUNT_BASEDIR="$scratch/base"
status=0

# worse SUITE NAME LOG: a failure on a lane alone.
worse() {
    if grep -q "^$1 $2:" "$known"; then
        echo "$2 (known)"
    else
        status=1
        echo "$2"
        tail -n 3 "$3" >&2
    fi
}

# one DOOR NAME MODE…: runs a script of unionmount-testsuite.
one() {
    door=$1 name=$2
    shift 2
    log=$scratch/log/$door-$name
    case $door in
    overlayfs)
        kind=$1
        shift
        [ $# -gt 0 ] || set -- --samefs
        (cd "$suite" && timeout 120 ./run "$kind" "$@" --verify "$name")
        ;;
    lane)
        kind=$1
        shift
        (cd "$suite" && PATH="$scratch/bin:$PATH" timeout 120 ./run "$kind" --fuse=polylane-union "$@" "$name")
        ;;
    fuse-overlayfs)
        kind=$1
        shift
        (cd "$suite" && timeout 120 ./run "$kind" --fuse=fuse-overlayfs "$@" "$name")
        ;;
    esac >"$log" 2>&1
}
clean() {
    for at in "$scratch/base/m" "$scratch/base/u/n"; do
        "$POLYLANE" umount --lazy "$at" 2>/dev/null || umount --lazy "$at" 2>/dev/null || true
    done
    (cd "$suite" && ./run --clean-up >/dev/null 2>&1) || true
}

unionmount() {
    names=${TESTS:-$(cd "$suite/tests" && ls -- *.py | sed 's/\.py$//' | grep -v '^__\|^rename-exdev$')}
    echo '| unionmount-testsuite, mode | scripts | overlayfs, subtests | fuse-overlayfs, subtests | lane by FUSE, subtests | fail on a lane alone |'
    echo '|---|---|---|---|---|---|'
    for mode in ${MODES:---ov --ov=3 --ov=3,--maxfs=2}; do
        mode=$(echo "$mode" | tr ',' ' ')
        count=0 failed=
        passed overlayfs 0 0
        passed lane 0 0
        passed fuse-overlayfs 0 0
        for name in $names; do
            count=$((count + 1))
            for door in overlayfs fuse-overlayfs lane; do
                [ $door != fuse-overlayfs ] || [ -n "$fuse_overlayfs" ] || continue
                ends=0
                # shellcheck disable=SC2086 # a list of words
                one $door "$name" $mode && ends=1
                clean
                begun=$(grep -c '^TEST ' "$scratch/log/$door-$name") || begun=0
                passed $door $ends $((begun > 0 ? begun - 1 + ends : 0))
                [ $door != overlayfs ] || peer=$ends
            done
            if [ $ends = 0 ] && [ "$peer" = 1 ]; then
                worse unionmount "$name" "$scratch/log/lane-$name" >"$scratch/worse"
                failed="$failed $(cat "$scratch/worse")"
            fi
        done
        [ -n "$fuse_overlayfs" ] && theirs=$(cat "$scratch/passed-fuse-overlayfs") || theirs='not installed'
        echo "| \`$mode\` | $count | $(cat "$scratch/passed-overlayfs") | $theirs | $(cat "$scratch/passed-lane") |${failed:- none} |"
    done
}

# passed DOOR SCRIPTS SUBTESTS: adds to what passed; no script and no subtest: begins anew.
passed() {
    sum=$scratch/passed-$1
    [ "$2$3" != 00 ] || [ "$count" != 0 ] || echo '0, 0' >"$sum"
    IFS=', ' read -r scripts subtests <"$sum"
    echo "$((scripts + $2)), $((subtests + $3))" >"$sum"
}

# part FILE NUMBER: what a script does before its parts, and one of them. A script ends at its first
# failure, so each is run alone.
part() {
    awk -v wanted="$2" '
        /^# =+$/ { held = $0; next }
        /^# Test [0-9]+/ { number++ }
        number == 0 || number == wanted { if (held != "") print held; print }
        { held = "" }
    ' "$1"
}

# try DOOR NAME NUMBER: one part by the peer or by a lane.
try() {
    first=$scratch/bin
    [ "$1" = lane ] || first=$(dirname "$fuse_overlayfs")
    ended=0
    (cd "$scratch/tmp" && PATH="$first:$PATH" timeout 120 bash "$scratch/part") \
        >"$scratch/log/$1-$2-$3" 2>&1 || ended=1
    sed -n 's/^[^ ]* \([^ ]*\) .*/\1/p' /proc/self/mounts | grep "^$scratch/tmp/\|^/tmp/test-" |
        while read -r at; do
            "$POLYLANE" umount --lazy "$at" 2>/dev/null || umount --lazy "$at" 2>/dev/null || true
        done
    rm -rf "$scratch"/tmp/* "$scratch"/tmp/.lane-*
    return $ended
}

own_scripts() {
    echo '| fuse-overlayfs, script | parts | pass by fuse-overlayfs | by a lane | fail on a lane alone |'
    echo '|---|---|---|---|---|'
    for path in "$suite"/tests/test-*.sh "$suite/tests/unlink.sh"; do
        name=$(basename "$path" .sh)
        [ "$name" = unlink ] || parts=$(grep -c '^# Test [0-9]' "$path") || parts=0
        [ "$parts" != 0 ] && [ "$name" != unlink ] || parts=1
        peer=0 lane=0 failed=
        for number in $(seq "$parts"); do
            part "$path" "$number" >"$scratch/part"
            passes=0
            try peer "$name" "$number" && passes=1
            peer=$((peer + passes))
            if try lane "$name" "$number"; then
                lane=$((lane + 1))
            elif [ $passes = 1 ]; then
                worse fuse-overlayfs "$name $number" "$scratch/log/lane-$name-$number" >"$scratch/worse"
                failed="$failed $(sed "s/^$name //" "$scratch/worse")"
            fi
        done
        echo "| $name | $parts | $peer | $lane |${failed:- none} |"
    done
}

suite=${UNIONMOUNT_SUITE-}
if [ -f "$suite/run" ]; then
    unionmount
else
    echo "skipped: test-union: UNIONMOUNT_SUITE names no checkout of unionmount-testsuite" >&2
fi
echo
suite=${FUSE_OVERLAYFS_SUITE-}
if [ ! -x "$suite/tests/unlink.sh" ]; then
    echo "skipped: test-union: FUSE_OVERLAYFS_SUITE names no checkout of fuse-overlayfs" >&2
elif [ -z "$fuse_overlayfs" ]; then
    echo "skipped: test-union: no fuse-overlayfs to compare with" >&2
else
    own_scripts
fi
[ -z "${UNION_LOGS-}" ] || cp -r "$scratch/log" "$UNION_LOGS"
umount --lazy /usr/sbin
umount --lazy "$scratch"
rmdir "$scratch" 2>/dev/null || true
exit $status

#!/bin/sh
# unionmount-testsuite on lanes over lowers, beside the kernel's overlayfs: a table. Every script of
# it is run alone, since it ends at its first failure. The suite is GPL: it is run as it is, from the
# checkout that UNIONMOUNT_SUITE names (revision f48a57d2). TESTS="hard-link …": only those.
# Ends with 0 when no script fails on a lane that passes on overlayfs.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
suite=${UNIONMOUNT_SUITE-}
if [ ! -x "$suite/run" ]; then
    echo "skipped: test-union: UNIONMOUNT_SUITE names no checkout of unionmount-testsuite" >&2
    exit 0
fi
if [ "$(id -u)" != 0 ]; then
    echo "skipped: test-union: only root mounts" >&2
    exit 0
fi
# A mount namespace of its own, where mount(8) finds the helper.
if [ -z "${UNION_INSIDE-}" ]; then
    UNION_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
fi
export POLYLANE="${POLYLANE:-${CARGO_TARGET_DIR:-$here/target}/release/polylane}"
mount -t overlay -o "lowerdir=$here/tests/union:/usr/sbin" none /usr/sbin
scratch=$(mktemp -d)
mount -t tmpfs none "$scratch"
mkdir "$scratch/base" "$scratch/bin" "$scratch/log"
export UNIONMOUNT_BASEDIR="$scratch/base"
cp "$here/tests/union/umount" "$scratch/bin"
names=${TESTS:-$(cd "$suite/tests" && ls -- *.py | sed 's/\.py$//' | grep -v '^__\|^rename-exdev$')}

# one DOOR MODE NAME: runs a script.
one() {
    case $1 in
    overlayfs) (cd "$suite" && timeout 120 ./run "$2" --samefs --verify "$3") ;;
    lane) (cd "$suite" && PATH="$scratch/bin:$PATH" timeout 120 ./run "$2" --fuse=polylane-union "$3") ;;
    esac >"$scratch/log/$1$2-$3" 2>&1
}
clean() {
    "$POLYLANE" umount --lazy "$scratch/base/m" 2>/dev/null || true
    (cd "$suite" && ./run --clean-up >/dev/null 2>&1) || true
}

status=0
echo '| mode | scripts | overlayfs | lane by FUSE | fail on a lane alone |'
echo '|---|---|---|---|---|'
for mode in --ov --ov=3; do
    count=0 overlayfs=0 lane=0 worse=
    for name in $names; do
        count=$((count + 1))
        peer=0
        one overlayfs "$mode" "$name" && peer=1
        clean
        overlayfs=$((overlayfs + peer))
        if one lane "$mode" "$name"; then
            lane=$((lane + 1))
        elif [ "$peer" = 1 ]; then
            worse="$worse $name" status=1
            tail -n 3 "$scratch/log/lane$mode-$name" >&2
        fi
        clean
    done
    echo "| \`$mode\` | $count | $overlayfs | $lane |${worse:- none} |"
done
umount --lazy "$scratch"
rmdir "$scratch" 2>/dev/null || true
exit $status

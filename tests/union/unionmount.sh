#!/bin/sh
# unionmount-testsuite on our union, by FUSE: unionmount.sh CHECKOUT MOUNT_UNION [OPTIONS OF ITS run …]
#
# CHECKOUT is https://github.com/amir73il/unionmount-testsuite (GPL: it is run, not copied);
# MOUNT_UNION the example of that name. Each script is run alone, on a tmpfs; prints one line for
# each that fails, and how many passed. Needs root.
set -eu
checkout=$1 program=$2
shift 2
[ -n "${UNIONMOUNT_INSIDE-}" ] || exec env UNIONMOUNT_INSIDE=1 unshare -m "$0" "$checkout" "$program" "$@"

place=$(mktemp -d)
mount -t tmpfs union-suite "$place"
mkdir "$place/bin" "$place/base"
cat >"$place/bin/mount" <<END
#!/bin/sh
case " \$* " in
*" -t fuse.polylane-union "*)
    shift 2
    exec "$program" "\$@" ;;
esac
exec $(command -v mount) "\$@"
END
chmod +x "$place/bin/mount"
PATH="$place/bin:$PATH"
export PATH UNIONMOUNT_BASEDIR="$place/base"
cd "$checkout"
passed=0 failed=0
for script in ${SCRIPTS:-$(sed -n '/^tests = \[/,/^ *\]/s/^ *"\(.*\)".*/\1/p' run) rename-dir rename-empty-dir rename-pop-dir rename-move-dir}; do
    if timeout 300 ./run "${MODE:---ov}" --fuse=polylane-union "$@" "$script" >"$place/said" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "fail $script"
        sed "s/^/$script: /" "$place/said" | tail -n 12 >&2
    fi
    umount "$place/base/m" 2>/dev/null || :
    find "$place/base" -mindepth 1 -delete 2>/dev/null || :
done
echo "$passed scripts passed, $failed failed"
cd /
umount -l "$place"
rmdir "$place"
[ "$failed" = 0 ]

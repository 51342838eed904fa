# What every block device of `polylane attach` must do, in a guest with an empty disk at /dev/vda.
# VIA names the front end; RECOVERS=yes where nothing is lost with an engine; GROWS=yes where the
# kernel gives such a device another size. Each step that ends well prints a line "ok …".
mkdir -p /disk /mnt
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /disk
export XDG_STATE_HOME=/disk HOME=/disk
volume=/disk/v.img
# What keepers and engines said would go with the guest.
trap 'status=$?; ended $status $LINENO
    [ $status -eq 0 ] || tail -n 40 /disk/polylane/attachments/*.log' EXIT
ok() { echo "ok $VIA on $(uname -r | cut -d- -f1): $*"; }
taken() { stat -c %b $volume; }
engine() { grep -als '^polylane-engine' /proc/[0-9]*/cmdline | cut -d/ -f3 | head -n 1; }
load() {
    fio --name=verify --directory=/mnt --size="$1" --rw=randwrite --bsrange=4k-256k --direct=1 \
        --ioengine=libaio --iodepth=32 --verify=crc32c --do_verify=1 --verify_fatal=1 \
        --verify_state_save=0 --eta=never --output=/fio.log || { cat /fio.log; return 1; }
}
unmount() {
    umount /mnt
    case $1 in
    ext*) e2fsck -fn "$device" > /fsck.log 2>&1 ;;
    xfs) xfs_repair -n "$device" > /fsck.log 2>&1 ;;
    btrfs) btrfs check --readonly "$device" > /fsck.log 2>&1 ;;
    esac || { cat /fsck.log; return 1; }
}
no_errors() { ! dmesg | grep -iE 'i/o error|buffer i/o|blk_update_request|EXT4-fs error'; }

polylane volume create $volume --size 512M --fs none
device=$(polylane attach $volume --via "$VIA")
test -b "$device"
polylane attach --list | grep -q "$device"
ok "attached as $device"

for kind in ext4 ext3 xfs btrfs; do
    case $kind in
    ext*) mkfs.ext4 -q -F -t $kind "$device" ;;
    *) mkfs.$kind -q -f "$device" ;;
    esac
    mount -t $kind "$device" /mnt || { echo "skip $kind: it does not mount"; continue; }
    load 8m
    full=$(taken)
    rm /mnt/verify*
    sync -f /mnt
    fstrim /mnt
    sync -f /mnt
    test "$(taken)" -lt $((full - 8192))
    unmount $kind
    ok "$kind: mkfs, mount, fio verify, fstrim gives space back ($((full / 2)) to $(($(taken) / 2)) KiB), fsck"
done

mkfs.ext4 -q -F "$device"
mount "$device" /mnt
before=$(engine)
if [ "$RECOVERS" = yes ]; then
    load 24m &
    sleep 2
    kill -9 "$before"
    wait $!
    test "$(engine)" != "$before"
    no_errors
    ok "engine killed under fio verify: another went on, without an error"
    (until [ -e /enough ]; do load 24m || exit 1; done) &
    for delay in 0 0.1 0.3; do
        sleep 2
        killed=$(engine)
        echo "killing engine $killed"
        kill -9 "$killed"
        for _ in $(seq 200); do
            next=$(engine)
            if [ -n "$next" ] && [ "$next" != "$killed" ]; then break; fi
            sleep 0.05
        done
        sleep $delay
        echo "killing engine $next"
        kill -9 "$next"
    done
    touch /enough
    wait $!
    no_errors
    if grep -hs '(polylane[^)]*) Z' /proc/[0-9]*/stat; then false; fi
    early=$(cat /disk/polylane/attachments/*.log | grep -c 'ended before it was ready' || true)
    ok "six engines killed under fio verify, $early while they start: the next went on, without an error"
fi
unmount ext4

dd if=/dev/urandom of=/data bs=64k count=16 2>/dev/null
dd if=/data of="$device" bs=64k seek=32 oflag=direct conv=fsync 2>/dev/null
cmp -n 1048576 -s /data $volume 0 2097152
blkdiscard -o 2097152 -l 524288 "$device"
dd if="$device" bs=64k skip=32 count=8 iflag=direct 2>/dev/null | cmp -n 524288 - /dev/zero
dd if="$device" of=/back bs=64k skip=40 count=8 iflag=direct 2>/dev/null
cmp -n 524288 /back /data 0 524288
ok "what is written is in the volume's file; what is discarded reads as zeros, what lies beside it stays"

mkfs.ext4 -q -F "$device"
mount "$device" /mnt
if [ "$GROWS" = yes ]; then
    polylane volume resize $volume 768M
    test "$(blockdev --getsize64 "$device")" = 805306368
    resize2fs "$device" > /resize.log 2>&1
    test "$(df -k /mnt | awk 'END { print $2 }')" -gt 600000
    load 8m
    ok "grows while mounted"
else
    if polylane volume resize $volume 768M 2>/refused; then false; fi
    grep -q 'detach it first' /refused
    test "$(stat -c %s $volume)" = 536870912
    ok "does not grow on this kernel, and nothing changes"
fi
if polylane detach "$device" 2>/refused; then false; fi
grep -q 'in use' /refused
umount /mnt
ok "is not detached while mounted"

polylane detach "$device"
! polylane attach --list | grep -q "$device"
test -z "$(engine)"
test ! -b "$device" || test "$(blockdev --getsize64 "$device" 2>/dev/null || echo 0)" = 0
no_errors
ok "detached; nothing is left"

device=$(polylane attach $volume --via "$VIA")
dd if=/data of="$device" bs=64k seek=32 oflag=direct conv=fsync 2>/dev/null
keeper=$(sed 's/.*"pid":\([0-9]*\).*/\1/' /disk/polylane/attachments/*.json)
kill -9 "$keeper" "$(engine)"
if timeout 100 dd if="$device" of=/dev/null bs=64k skip=64 count=1 iflag=direct 2>/dev/null; then
    false
fi
device=$(polylane attach $volume --via "$VIA")
dd if="$device" of=/back bs=64k skip=32 count=16 iflag=direct 2>/dev/null
cmp /back /data
polylane detach "$device"
ok "all that serves it killed: requests fail, nothing hangs; attached anew, what was flushed is there"
umount /disk

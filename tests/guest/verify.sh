# Verifies what fio writes on /dev/vda, round after round until the host has grown it; then the file
# system grows, and what is written behind its old end is verified too.
load() {
    fio --name="$1" --directory=/mnt --direct=1 --ioengine=libaio --iodepth=32 --verify=crc32c \
        --do_verify=1 --verify_fatal=1 --verify_state_save=0 --eta=never --output=/fio.log \
        "$2" "$3" "$4" "$5" || { cat /fio.log; return 1; }
}
size() { cat /sys/block/vda/size; }

mkfs.ext4 -F -q /dev/vda
mount /dev/vda /mnt
before=$(size)
rounds=0
while [ "$(size)" = "$before" ] || [ $rounds -lt 2 ]; do
    load verify --size=24m --rw=randwrite --bsrange=4k-256k --randseed=$rounds
    rounds=$((rounds + 1))
    echo "VERIFIED $rounds"
done
echo "ok fio verified $rounds times, then the disk grew from $((before / 2048)) to $(($(size) / 2048)) MiB"
resize2fs /dev/vda > /dev/null 2>&1
load again --size=600m --rw=write --bs=1m --end_fsync=1
umount /mnt
e2fsck -fn /dev/vda > /dev/null 2>&1
echo "ok ext4 grew, its new space verified, fsck"
! dmesg | grep -iE 'i/o error|blk_update_request|EXT4-fs error'

# A lane that lasts while the clock of its machine is set, decades to and fro: programs go on, the
# same service serves them, what is not synced is written back in time, and the volume is whole.
# Each step that ends well prints a line "ok …".
ok() { echo "ok clock on $(uname -r | cut -d- -f1): $*"; }
mkdir -p /disk /m
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /disk
export XDG_STATE_HOME=/disk HOME=/disk
polylane mount --size 64M /disk/v.img /m
services() { grep -als '^polylane-service' /proc/[0-9]*/cmdline; }
before=$(services)
now() { cut -d. -f1 /proc/uptime; }
cat > /work <<'END'
i=0
until [ -e /disk/enough ]; do
    i=$((i + 1))
    echo $i | dd of=/m/log oflag=append conv=notrunc,fsync 2> /said || { cat /said; exit 1; }
done
END
# A condition comes true within a minute of the machine's own time.
comes() {
    begun=$(now)
    until "$@"; do
        [ $(($(now) - begun)) -lt 60 ] || return 1
        sleep 0.1
    done
}
is_written_back() { polylane stats --json | tr -d ' \n' | grep -q '"dirty_bytes":0,'; }
has_more() { [ "$(wc -l < /m/log)" -gt "$from" ]; }
works() {
    echo "$1" > /m/idle
    comes is_written_back
    sh /work &
    from=$(wc -l < /m/log)
    from=$((from + 10))
    comes has_more
    touch /disk/enough
    wait
    rm /disk/enough
    [ "$(services)" = "$before" ]
}
: > /m/log
# The year 2100, 1970, and back to what it was by then.
today=$(date +%s)
for to in 4102444800 1000 "$today"; do
    date -s "@$to" > /dev/null
    works "$to"
    [ "$(stat -c %Y /m/log)" -ge "$to" ]
    ok "set to $(date -u +%Y): the lane goes on, and files have that time"
done
# Set while programs work.
sh /work &
for to in 2000000000 5000 "$today"; do
    from=$(($(wc -l < /m/log) + 10))
    date -s "@$to" > /dev/null
    comes has_more
done
touch /disk/enough
wait
rm /disk/enough
[ "$(services)" = "$before" ]
ok "set three times beside a program that writes"
lines=$(wc -l < /m/log)
polylane umount /m
e2fsck -fn /disk/v.img > /said || { cat /said; false; }
polylane mount /disk/v.img /m
[ "$(wc -l < /m/log)" -eq "$lines" ]
polylane umount /m
ok "the volume is whole"

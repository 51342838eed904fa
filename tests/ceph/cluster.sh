#!/usr/bin/env bash
# A small Ceph cluster on this host, for tests: a monitor, a manager, two OSDs on BlueStore files,
# two MDS (one of them a standby), with cephx keys.
#
# usage: cluster.sh start DIR | stop DIR | kill DIR DAEMON | begin DIR DAEMON
#   DAEMON   mon.a, osd.0 or osd.1, to be killed as by a crash, and to begin again
#   ADDRESS  the monitor's and the daemons' address [127.0.0.1]; one that network namespaces reach
#   PORT     the monitor's port [6790]
#   SIZE     bytes of each OSD's file, sparse [4294967296]
# Afterwards DIR/ceph.conf and DIR/keyring (client.admin, client.lane) are a client's files.
# Needs Debian's ceph-mon ceph-mgr ceph-osd ceph-mds ceph-common.
set -euo pipefail
action=${1:?start, stop, kill or begin} dir=${2:?a folder for the cluster} daemon=${3:-}

stop() {
    local file pid
    for file in "$dir"/run/*.pid; do
        [ -e "$file" ] || continue
        pid=$(cat "$file")
        kill "$pid" 2>/dev/null || true
        for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        kill -KILL "$pid" 2>/dev/null || true
    done
}

case $action in
stop)
    stop
    exit 0
    ;;
kill)
    pid=$(cat "$dir/run/$daemon.pid")
    kill -KILL "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
    exit 0
    ;;
begin)
    case $daemon in
    mon.*) keyring=$dir/keyring ;;
    osd.*) keyring=$dir/osd${daemon#*.}/keyring ;;
    esac
    exec "ceph-${daemon%.*}" -c "$dir/ceph.conf" -i "${daemon#*.}" --keyring "$keyring" \
        >>"$dir/log/start.log" 2>&1
    ;;
esac

address=${ADDRESS:-127.0.0.1} port=${PORT:-6790} size=${SIZE:-4294967296}
mkdir -p "$dir"/{mon,mgr,osd0,osd1,mdsa,mdsb,run,log}
dir=$(cd "$dir" && pwd)
fsid=$(cat /proc/sys/kernel/random/uuid)
cat > "$dir/ceph.conf" <<CONF
[global]
fsid = $fsid
mon host = v1:$address:$port
mon initial members = a
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
auth allow insecure global id reclaim = false
keyring = $dir/keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon max pg per osd = 1000
osd crush chooseleaf type = 0
public addr = $address
ms bind ipv6 = false
ms bind msgr2 = false
ms bind port min = $((port + 10))
ms bind port max = $((port + 200))
mon data avail warn = 2
mon data avail crit = 1
run dir = $dir/run
admin socket = $dir/run/\$name.\$pid.asok
log file = $dir/log/\$name.log
[mon]
pid file = $dir/run/\$name.pid
mon data = $dir/mon
[mgr]
pid file = $dir/run/\$name.pid
mgr data = $dir/mgr
[osd]
pid file = $dir/run/\$name.pid
osd objectstore = bluestore
osd data = $dir/osd\$id
bluestore block size = $size
bluestore block wal create = false
bluestore block db create = false
# Ceph's own has up to 1 GiB of log, which is most of a small OSD.
bluestore rocksdb options = compression=kNoCompression,max_write_buffer_number=4,\
min_write_buffer_number_to_merge=1,recycle_log_file_num=4,write_buffer_size=16777216,\
max_total_wal_size=134217728
osd memory target = 939524096
osd heartbeat grace = 10
osd fast fail on connection refused = true
[mds]
pid file = $dir/run/\$name.pid
# An OSD that was marked down while it lived would keep clients that are cut off from being barred.
defer client eviction on laggy osds = false
mds data = $dir/mds\$id
CONF
export CEPH_CONF=$dir/ceph.conf
quiet() { "$@" >>"$dir/log/start.log" 2>&1; }
# On a busy machine a command to a monitor that has just begun may be refused for some seconds.
again() {
    for _ in 1 2 3 4 5 6; do
        quiet timeout 30 "$@" && return
        sleep 2
    done
    echo "cluster: '$*' failed; see $dir/log/start.log" >&2
    return 1
}
key() { quiet ceph-authtool "$dir/keyring" --gen-key -n "$@"; }
given() { ceph-authtool -p -n "$1" "$dir/keyring"; }
keyring_of() { # a daemon's own file
    printf '[%s]\n\tkey = %s\n' "$1" "$(given "$1")" > "$2"
}

quiet ceph-authtool --create-keyring "$dir/keyring"
key mon. --cap mon 'allow *'
key client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mds 'allow *' --cap mgr 'allow *'
quiet monmaptool --create --clobber --addv a "[v1:$address:$port]" --fsid "$fsid" "$dir/run/monmap"
quiet ceph-mon --mkfs -i a --monmap "$dir/run/monmap" --keyring "$dir/keyring"
quiet ceph-mon -i a --keyring "$dir/keyring"

daemon() { # name, caps …: known to the monitor, with a keyring of its own
    local name=$1 file=$2
    shift 2
    key "$name"
    keyring_of "$name" "$file"
    again ceph auth add "$name" -i "$file" "$@"
}
daemon mgr.x "$dir/mgr/keyring" mon 'allow profile mgr' osd 'allow *' mds 'allow *'
quiet ceph-mgr -i x --keyring "$dir/mgr/keyring"

for id in 0 1; do
    uuid=$(cat /proc/sys/kernel/random/uuid)
    key "osd.$id"
    keyring_of "osd.$id" "$dir/osd$id/keyring"
    printf '{"cephx_secret": "%s"}' "$(given "osd.$id")" > "$dir/run/osd$id.json"
    again ceph osd new "$uuid" "$id" -i "$dir/run/osd$id.json"
    quiet ceph-osd -i "$id" --mkfs --osd-uuid "$uuid" --keyring "$dir/osd$id/keyring"
    quiet ceph-osd -i "$id" --keyring "$dir/osd$id/keyring"
done
again ceph osd pool create cephfs_data 8
again ceph osd pool create cephfs_meta 8
again ceph fs new cephfs cephfs_meta cephfs_data
for id in a b; do
    daemon "mds.$id" "$dir/mds$id/keyring" mon 'allow profile mds' osd 'allow *' mds allow
    quiet ceph-mds -i "$id" --keyring "$dir/mds$id/keyring"
done
again ceph osd pool create rbd 8
again rbd pool init rbd
key client.lane
keyring_of client.lane "$dir/run/lane.keyring"
again ceph auth add client.lane -i "$dir/run/lane.keyring" \
    mon 'allow r, profile rbd' mds 'allow rwps' \
    osd 'allow rw tag cephfs data=cephfs, profile rbd pool=rbd'

for _ in $(seq 120); do
    if timeout 10 ceph -s 2>/dev/null | grep -q 'mds: 1/1 daemons up'; then
        echo "$dir/ceph.conf"
        exit 0
    fi
    sleep 0.5
done
echo "cluster: it did not come up; see $dir/log" >&2
exit 1

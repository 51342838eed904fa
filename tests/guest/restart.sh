# Lanes whose service is killed under load, on a kernel that sends no request again: what was in
# flight fails, nothing hangs, and all goes on. Each step that ends well prints a line "ok …".
mkdir -p /disk
# What makes a volume: the real one, not busybox's.
ln -sf mkfs.ext4 /bin/mke2fs
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /disk
export XDG_STATE_HOME=/disk HOME=/disk
ok() { echo "ok restart on $(uname -r | cut -d- -f1): $*"; }
service() { grep -als '^polylane-service' /proc/[0-9]*/cmdline | cut -d/ -f3 | head -n 1; }
cat > /work <<'END'
# Everything that a killed service may leave may fail, but must end.
i=$1
until [ -e /disk/enough ]; do
    echo $i > /lane/f$i
    cat /lane/f$i
    mkdir /lane/d$i
    ls -l /lane
    mv /lane/f$i /lane/d$i/f
    rm -r /lane/d$i
done > /dev/null 2>&1
END
for kind in "--mem" "--volume /disk/v.img --size 256M" "--dir /disk/tree"; do
    rm -rf /disk/enough /disk/tree
    mkdir /disk/tree
    polylane run $kind --no-preload -- sh -c '
        for i in 1 2 3 4 5 6; do sh /work $i & done
        wait
        echo after > /lane/file && cat /lane/file' > /said 2> /errors &
    run=$!
    for round in 1 2 3 4 5 6; do
        sleep 2
        before=$(service)
        kill -9 "$before"
        for _ in $(seq 200); do
            next=$(service)
            if [ -n "$next" ] && [ "$next" != "$before" ]; then break; fi
            sleep 0.1
        done
        test "$next" != "$before" || { cat /errors; false; }
    done
    sleep 2
    touch /disk/enough
    for _ in $(seq 600); do
        [ -d /proc/$run ] || break
        sleep 0.1
    done
    if [ -d /proc/$run ]; then
        ps -o pid,stat,args | grep -v '\['
        kill -9 $run
        false
    fi
    wait $run || { cat /errors; false; }
    grep -q after /said
    ok "${kind%% *}: six services killed under load: nobody hangs"
done

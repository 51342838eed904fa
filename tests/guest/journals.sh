# Loads for the file system at /mnt, each for SECONDS_EACH seconds: programs whose fsyncs fill its
# journal, and programs that write much that is no journal. `load NAME` runs one.
echo root:x:0:0::/:/bin/sh > /etc/passwd
busy() { [ "$(date +%s)" -lt "$end" ]; }

# Three writers that fsync small files.
mail() {
    for t in 1 2 3; do (
        i=0
        while busy; do
            dd if=/dev/zero of=/mnt/$t-$((i % 50)) bs=4k count=$((i % 5 + 1)) conv=fsync 2>/dev/null
            i=$((i + 1))
        done
    ) & done
    wait
}

# One row a transaction, with both of its journals in turn.
sqlite() {
    i=0
    while busy; do
        mode=wal
        [ $((i % 2)) -eq 0 ] || mode=delete
        {
            echo "pragma journal_mode=$mode; pragma synchronous=full;"
            echo "create table if not exists t(a integer primary key, b blob);"
            for row in 1 2 3 4 5 6 7 8 9 10; do echo "insert into t(b) values(randomblob(300));"; done
        } | sqlite3 /mnt/$mode.db > /dev/null
        i=$((i + 1))
    done
}

# A server that makes its redo log durable with every row.
mariadb() {
    cp -a /data /mnt/data
    mariadbd --no-defaults --user=root --datadir=/mnt/data --socket=/tmp/db --skip-networking \
        --innodb-buffer-pool-size=16M --innodb-log-file-size=4M > /tmp/mariadb.log 2>&1 &
    server=$!
    for wait in $(seq 60); do
        mariadb-admin --no-defaults --socket=/tmp/db ping > /dev/null 2>&1 && break
        sleep 1
    done
    end=$(($(date +%s) + SECONDS_EACH))
    {
        echo "create database sb; use sb; create table t(a int auto_increment primary key, b text);"
        while busy; do echo "insert into t(b) values(repeat('x', 300));"; done
    } | command mariadb --no-defaults --socket=/tmp/db || { cat /tmp/mariadb.log; return 1; }
    mariadb-admin --no-defaults --socket=/tmp/db shutdown
    wait $server
    rm -r /mnt/data
}

# A log-structured store: each record synced, then tables written over and merged.
rocksdb() {
    bench() { db_bench --db=/mnt/db --num=20000 --value_size=1000 --write_buffer_size=2097152 "$@"; }
    bench --benchmarks=fillrandom --sync=1 --duration=$((SECONDS_EACH / 2)) > /tmp/rocksdb.log 2>&1
    bench --benchmarks=overwrite,compact --use_existing_db=1 > /tmp/rocksdb.log 2>&1
}

# A recording: large pieces, made durable at times, the file begun again when it is long.
stream() {
    while busy; do
        dd if=/dev/zero of=/mnt/stream bs=1M count=48 conv=fsync,notrunc 2>/dev/null
    done
}

# A tree copied again and again.
copy() {
    mkdir /mnt/from
    for i in $(seq 60); do dd if=/dev/zero of=/mnt/from/$i bs=4k count=$((i * 7 % 60 + 1)) 2>/dev/null; done
    while busy; do
        rm -rf /mnt/to
        cp -r /mnt/from /mnt/to
        sync -f /mnt
    done
}

load() {
    end=$(($(date +%s) + SECONDS_EACH))
    "$1"
    umount /mnt
    echo "ENDED $1"
}

# redis with an append-only file, under load, saved in the background, killed and started again.
SOCKET="$(mktemp -d)/redis"
mkdir data
cp "$(command -v redis-check-rdb)" redis-server
start() {
    ./redis-server --port 0 --unixsocket "$SOCKET" --dir "$PWD/data" --appendonly yes \
        --appendfsync everysec --save '' --daemonize no --enable-debug-command yes --loglevel warning >>log 2>&1 &
    server=$!
    for _ in $(seq 100); do
        redis-cli -s "$SOCKET" ping >/dev/null 2>&1 && return
        sleep 0.1
    done
    cat log
    exit 1
}
ask() { redis-cli -s "$SOCKET" "$@"; }
start
redis-benchmark -s "$SOCKET" -q -n 20000 -c 10 -r 5000 -d 100 -t set,incr,lpush,hset >/dev/null
ask set fixed point
ask bgsave
redis-benchmark -s "$SOCKET" -q -n 5000 -c 10 -r 5000 -d 100 -t set >/dev/null
while ask info persistence | grep -q rdb_bgsave_in_progress:1; do sleep 0.1; done
ask info persistence | grep -E '^(rdb_last_bgsave_status|aof_last_write_status)' | tr -d '\r'
ask bgrewriteaof
while ask info persistence | grep -q aof_rewrite_in_progress:1; do sleep 0.1; done
ask info persistence | grep -E '^aof_last_bgrewrite_status' | tr -d '\r'
before=$(ask dbsize)
sum=$(ask debug digest)
redis-check-rdb data/dump.rdb | tail -1 | sed 's/.*\(RDB looks OK\).*/\1/'
kill -KILL $server
wait $server || true
start
test "$before" = "$(ask dbsize)" && echo 'same number of keys'
test "$sum" = "$(ask debug digest)" && echo 'same contents'
ask get fixed
ask shutdown nosave || true
wait $server || true
yes | redis-check-aof data/appendonlydir/*.manifest 2>/dev/null | tail -1
rm -r "${SOCKET%/redis}"

# redis with an append-only file: load, kill -9, start again: every key; both files check.
socket=$(mktemp -d)/redis
mkdir data
start() {
    $1 redis-server --port 0 --unixsocket "$socket" --dir "$PWD/data" --appendonly yes --appendfsync everysec \
        --save '' --enable-debug-command yes >>server.log 2>&1 &
    server=$!
    for _ in $(seq 100); do
        redis-cli -s "$socket" ping 2>/dev/null | grep -q PONG && return
        sleep 0.1
    done
    tail -5 server.log
    exit 1
}
ask() { redis-cli -s "$socket" "$@"; }
start ""
redis-benchmark -s "$socket" -q -n 50000 -c 10 -r 20000 -d 200 -t set,incr,lpush,hset >bench.log
ask bgrewriteaof >/dev/null
while ask info persistence | grep -q aof_rewrite_in_progress:1; do sleep 0.1; done
ask set last one >/dev/null
# While an fsync is under way, redis keeps what it answered in a buffer of its own for up to two seconds.
until ask info persistence | tr -d '\r' | grep -qx aof_buffer_length:0; do sleep 0.1; done
before=$(ask debug digest)
kill -KILL $server
wait $server || true
start "$OTHER"
test "$before" = "$(ask debug digest)"
ask shutdown nosave || true
wait $server || true
yes | $OTHER redis-check-aof data/appendonlydir/*.manifest | tail -1 | grep -q valid
rm -r "${socket%/redis}"
tr '\r' '\n' <bench.log | sed -n 's/^SET: \([0-9]*\).*/\1 SET\/s/p' | tail -1

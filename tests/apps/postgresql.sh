# PostgreSQL: initdb, pgbench, kill -9 of everything, recovery, the same balance in all tables.
as="setpriv --reuid=postgres --regid=postgres --clear-groups env HOME=$LANE/pg"
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
socket=$(mktemp -d)
mkdir pg && chown postgres: pg "$socket" && cd pg
$as "$bin/initdb" -D data -A trust >initdb.log 2>&1
start() {
    $as $1 "$bin/postgres" -D data -k "$socket" -c listen_addresses= >>server.log 2>&1 &
    server=$!
    for _ in $(seq 300); do
        $as "$bin/pg_isready" -q -h "$socket" && return
        sleep 0.2
    done
    tail -5 server.log
    exit 1
}
start ""
$as pgbench -q -h "$socket" -i -s 2 postgres >pgbench.log 2>&1
$as pgbench -n -h "$socket" -c 4 -T "$SECONDS_EACH" postgres >>pgbench.log 2>&1
$as pgbench -n -h "$socket" -c 4 -T 5 postgres >>pgbench.log 2>&1 &
load=$!
sleep 3
children=$(pgrep -P $server)
kill -KILL $server
wait $load || true
for child in $children; do
    while kill -0 "$child" 2>/dev/null; do sleep 0.2; done
done
rm -f data/postmaster.pid
start "$OTHER"
ask() { $as psql -h "$socket" -Atc "$1" postgres; }
ask 'CREATE EXTENSION amcheck'
ask "SELECT count(bt_index_check(c.oid)) FROM pg_class c JOIN pg_am a ON a.oid = c.relam
     WHERE a.amname = 'btree' AND c.relkind = 'i'" >/dev/null
sums=$(ask 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)
        AND (SELECT sum(delta) FROM pgbench_history) = (SELECT sum(tbalance) FROM pgbench_tellers)')
test "$sums" = t
grep -q 'redo done' server.log
$as "$bin/pg_ctl" -D data -m fast stop >/dev/null
rm -r "$socket"
sed -n 's/^tps = \([0-9]*\).*/\1 tps/p' pgbench.log | head -1

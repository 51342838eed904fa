# MariaDB: sysbench update_key, kill -9, recovery, every row there and the tables sound.
socket=$(mktemp -d)/db
mkdir data
mariadb-install-db --no-defaults --user=root --datadir="$PWD/data" --auth-root-authentication-method=normal \
    >install.log 2>&1
start() {
    $1 mariadbd --no-defaults --user=root --datadir="$PWD/data" --socket="$socket" --skip-networking \
        >>server.log 2>&1 &
    server=$!
    for _ in $(seq 300); do
        mariadb-admin --no-defaults --socket="$socket" ping >/dev/null 2>&1 && return
        sleep 0.2
    done
    tail -5 server.log
    exit 1
}
ask() { mariadb --no-defaults --socket="$socket" -Nse "$1"; }
bench() {
    sysbench oltp_update_index --mysql-socket="$socket" --mysql-user=root --mysql-db=sb --tables=1 \
        --table-size=10000 --threads=1 "$@"
}
start ""
ask 'CREATE DATABASE sb'
bench prepare >bench.log
bench --time=0 --events=20000 run >>bench.log
bench --time=60 --events=0 run >/dev/null 2>&1 &
load=$!
sleep 2
kill -KILL $server
wait $server $load || true
start "$OTHER"
test "$(ask 'SELECT count(*) FROM sb.sbtest1')" = 10000
ask 'CHECK TABLE sb.sbtest1 EXTENDED' | grep -q 'status.*OK'
mariadb-admin --no-defaults --socket="$socket" shutdown
wait $server
rm -r "${socket%/db}"
sed -n 's/.*queries: .*(\([0-9]*\).*/\1 updates\/s/p' bench.log | head -1

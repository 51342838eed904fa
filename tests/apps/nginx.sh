# nginx serves a directory of the lane under wrk while files are replaced in it.
mkdir site logs
for n in $(seq 200); do head -c $((n * 331)) /dev/zero | tr '\0' a >site/$n; done
cat >conf <<CONF
worker_processes 2;
user root;
pid $PWD/logs/pid;
error_log $PWD/logs/error;
events { worker_connections 256; }
http {
    access_log $PWD/logs/access;
    sendfile on;
    client_body_temp_path $PWD/logs; proxy_temp_path $PWD/logs; fastcgi_temp_path $PWD/logs;
    uwsgi_temp_path $PWD/logs; scgi_temp_path $PWD/logs;
    server { listen 127.0.0.1:18180; root $PWD/site; }
}
CONF
nginx -c "$PWD/conf" -e "$PWD/logs/error" -g 'daemon off;' 2>start.log &
server=$!
trap 'kill $server 2>/dev/null' EXIT
for _ in $(seq 50); do
    curl -sf -o /dev/null http://127.0.0.1:18180/1 && break
    sleep 0.1
done
for n in $(seq 300); do
    $OTHER sh -c "head -c $((n % 200 * 331 + 331)) /dev/zero | tr '\0' a >site/new && mv site/new site/$((n % 200 + 1))"
    sleep 0.01
done &
writer=$!
cat >all.lua <<'LUA'
local n = 0
request = function() n = n % 200 + 1; return wrk.format("GET", "/" .. n) end
LUA
wrk -t 2 -c 8 -d 5 -s all.lua http://127.0.0.1:18180 >wrk.log
wait $writer
! grep -q 'Non-2xx\|Socket errors' wrk.log || { grep 'Non-2xx\|Socket' wrk.log; exit 1; }
for n in 1 77 200; do
    curl -sf -o got http://127.0.0.1:18180/$n
    cmp got site/$n
done
kill -QUIT $server
wait $server || true
trap - EXIT
sed -n 's/^Requests.sec: *\([0-9]*\).*/\1 requests\/s/p' wrk.log

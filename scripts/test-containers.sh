#!/bin/sh
# Programs in containers of `polylane container run`, on lanes over an image's layers, the library on:
# a Debian (apt and dpkg, git, Python with pip, npm, nginx, PostgreSQL), a root of busybox and a root
# of the C library musl. A table; ends with 0 when nothing failed. What cannot be tried says why.
#
# DEBIAN: a root file system of Debian as a tar file or a directory, with the packages of PACKAGES;
# without it mmdebstrap makes one. CONTAINERS="debian busybox musl": only those.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
POLYLANE="${POLYLANE:-${CARGO_TARGET_DIR:-$here/target}/release/polylane}"
PACKAGES=ca-certificates,git,nginx-light,npm,postgresql,python3-minimal,python3-pip
skip() { echo "skipped: test-containers: $*" >&2; }
if [ "$(id -u)" != 0 ]; then
    skip "only root makes containers"
    exit 0
fi
if ! command -v runc >/dev/null && ! command -v crun >/dev/null; then
    skip "no runc and no crun"
    exit 0
fi
scratch=$(mktemp -d /var/tmp/polylane-containers.XXXXXX)
export XDG_STATE_HOME="$scratch/state"
mkdir "$XDG_STATE_HOME"
clear_up() {
    "$POLYLANE" container ps --all --json 2>/dev/null | tr ',' '\n' | sed -n 's/.*"id": *"\([0-9a-f]*\)".*/\1/p' |
        while read -r id; do "$POLYLANE" container rm -f "$id" >/dev/null 2>&1 || true; done
    rm -rf --one-file-system "$scratch"
}
trap clear_up EXIT
trap 'exit 130' INT TERM
status=0
echo '| root | programs | ends as expected | by the library |'
echo '|---|---|---|---|'

# try IMAGE NAME NETWORK EXPECTED: runs the script on standard input in a container; its last line
# has to be EXPECTED. The script's processes have the library, or say that they do not.
try() {
    image=$1 name=$2 network=$3 expected=$4
    cat >"$scratch/script"
    fast=no
    said=$(timeout 400 "$POLYLANE" container run --rm --network "$network" --size 8G \
        --name "$image-$name" -v "$scratch/script:/script:ro" "$image" /bin/sh -eu /script \
        2>"$scratch/log" | tee "$scratch/out" | tail -n 1) || true
    grep -q '^library: yes$' "$scratch/out" && fast=yes
    if [ "$said" = "$expected" ] && [ $fast = yes ]; then
        echo "| $image | $name | yes | $fast |"
    else
        status=1
        echo "| $image | $name | NO | $fast |"
        tail -n 15 "$scratch/out" "$scratch/log" >&2
    fi
}

# Says whether the calling program has the library: as the first line of a script.
FAST='if grep -q libpolylane /proc/self/maps; then echo "library: yes"; else echo "library: no"; fi'

debian() {
    root=${DEBIAN-}
    if [ -z "$root" ]; then
        if ! command -v mmdebstrap >/dev/null; then
            skip "debian: no mmdebstrap"
            return
        fi
        root=$scratch/debian.tar
        if ! mmdebstrap --variant=apt --include="$PACKAGES" stable "$root" >"$scratch/log" 2>&1; then
            skip "debian: mmdebstrap: $(tail -n 1 "$scratch/log")"
            return
        fi
    fi
    "$POLYLANE" image import "$root" debian >/dev/null
    # A package of the archive, where it can be reached; what dpkg does else is done with one made here.
    try debian dpkg none done <<EOF
$FAST
mkdir -p /tmp/p/DEBIAN /tmp/p/usr/bin /tmp/p/etc
printf 'Package: own\nVersion: 1\nArchitecture: all\nMaintainer: none <none@example.org>\nDescription: none\n' >/tmp/p/DEBIAN/control
printf '#!/bin/sh\necho own\n' >/tmp/p/usr/bin/own
chmod 755 /tmp/p/usr/bin/own
dpkg-deb --build /tmp/p /tmp/own.deb >/dev/null
dpkg -i /tmp/own.deb >/dev/null
[ "\$(own)" = own ]
dpkg -r own >/dev/null
[ ! -e /usr/bin/own ]
# Files of the image go and come as packages say.
dpkg --purge --force-all nginx-light >/dev/null 2>&1
[ ! -e /usr/share/doc/nginx-light ]
dpkg --verify dpkg
echo done
EOF
    try debian apt host done <<EOF
$FAST
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update >/dev/null 2>&1 || { echo no archive; echo done; exit 0; }
apt-get -qq install -y --no-install-recommends sqlite3 >/dev/null 2>&1
[ "\$(sqlite3 /tmp/x.db 'create table t(a); insert into t values(7); select a from t')" = 7 ]
apt-get -qq purge -y sqlite3 >/dev/null 2>&1
[ ! -e /usr/bin/sqlite3 ]
echo done
EOF
    try debian git none 'ok 120' <<EOF
$FAST
export HOME=/root GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init -q /srv/tree
cd /srv/tree
for n in \$(seq 120); do echo \$n >f\$n; done
git add .
git commit -qm one
git clone -q /srv/tree /srv/copy
cd /srv/copy
git mv f1 g1
rm f2
git commit -qam two
git fsck --strict >/dev/null 2>&1
git gc -q --aggressive
git checkout -q HEAD~1
[ -z "\$(git status --porcelain)" ]
echo ok \$(git ls-files | wc -l)
EOF
    try debian python none 42 <<EOF
$FAST
mkdir -p /tmp/own/own
echo 'print_me = 42' >/tmp/own/own/__init__.py
printf '[project]\nname = "own"\nversion = "1"\n' >/tmp/own/pyproject.toml
cd /tmp
# A wheel as pip makes them, without an archive to ask.
python3 - <<'PY'
import zipfile
with zipfile.ZipFile("/tmp/own-1-py3-none-any.whl", "w") as wheel:
    wheel.writestr("own/__init__.py", "print_me = 42\n")
    wheel.writestr("own-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: own\nVersion: 1\n")
    wheel.writestr("own-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("own-1.dist-info/RECORD", "")
PY
pip install -q --no-index --break-system-packages --root-user-action=ignore /tmp/own-1-py3-none-any.whl 2>/dev/null
python3 -c 'import own; print(own.print_me)'
EOF
    # Packages of its own, without a registry to ask.
    try debian npm none 'own 42 of 301' <<EOF
$FAST
export HOME=/root npm_config_cache=/tmp/npm npm_config_offline=true npm_config_audit=false
export npm_config_fund=false npm_config_update_notifier=false npm_config_loglevel=error
mkdir -p /srv/own/lib /srv/user
cd /srv/own
echo '{"name":"own","version":"1.0.0","main":"lib/own.js","bin":{"own-says":"lib/says.js"}}' >package.json
echo 'module.exports = 42' >lib/own.js
printf '#!/usr/bin/env node\nconst fs = require("fs")\nconsole.log("own", require("./own.js"), "of", fs.readdirSync(__dirname).length - 1)\n' >lib/says.js
for n in \$(seq 300); do echo "module.exports = \$n" >lib/part\$n.js; done
npm pack --pack-destination /srv >/dev/null
cd /srv/user
npm init -y >/dev/null
npm install /srv/own-1.0.0.tgz >/dev/null
rm -r node_modules
npm ci >/dev/null
node_modules/.bin/own-says
EOF
    try debian nginx none 'hello 200' <<EOF
$FAST
mkdir -p /srv/www
echo hello >/srv/www/index.html
cat >/tmp/n.conf <<'CONF'
daemon on; user www-data; worker_processes 2; pid /tmp/n.pid; error_log /tmp/n.log;
events {} http { access_log /tmp/a.log; sendfile on; server { listen 127.0.0.1:8080; root /srv/www; } }
CONF
nginx -c /tmp/n.conf
python3 - <<'PY'
import urllib.request
for _ in range(200):
    answer = urllib.request.urlopen("http://127.0.0.1:8080/")
    text = answer.read().decode().strip()
print(text, answer.status)
PY
EOF
    try debian postgresql none 5050 <<EOF
$FAST
bin=\$(ls -d /usr/lib/postgresql/*/bin)
mkdir /srv/pg && chown postgres /srv/pg
su postgres -c "\$bin/initdb -D /srv/pg/data >/dev/null"
su postgres -c "\$bin/pg_ctl -w -D /srv/pg/data -o '-k /tmp -h \"\"' -l /srv/pg/log start >/dev/null"
psql='psql -h /tmp -qtA postgres'
su postgres -c "\$psql -c 'create table t(a int primary key); insert into t select generate_series(1, 100); checkpoint'"
su postgres -c "\$bin/pg_ctl -w -m immediate -D /srv/pg/data stop >/dev/null"
su postgres -c "\$bin/pg_ctl -w -D /srv/pg/data -o '-k /tmp -h \"\"' -l /srv/pg/log start >/dev/null"
su postgres -c "\$psql -c 'select sum(a) from t'"
EOF
}

# What a program needs, into a root; by ldd, for programs of the host's C library.
busybox_root() {
    if ! command -v busybox >/dev/null; then
        skip "busybox: no busybox"
        return
    fi
    root=$scratch/busybox
    mkdir -p "$root/bin" "$root/etc" "$root/tmp" "$root/root" "$root/proc"
    cp "$(command -v busybox)" "$root/bin/busybox"
    chroot "$root" /bin/busybox --install -s /bin
    echo 'root:x:0:0::/root:/bin/sh' >"$root/etc/passwd"
    "$POLYLANE" image import "$root" busybox >/dev/null
    # It is static: FUSE serves it, and nothing of the library is in its memory.
    static busybox files 'b 100 done' <<'EOF'
mkdir /srv /srv/a
for n in $(seq 100); do echo $n >/srv/a/$n; done
mv /srv/a /srv/b
tar -C /srv -cf /tmp/t.tar b
rm -r /srv/b
tar -C /srv -xf /tmp/t.tar
sed -i s/root/other/ /etc/passwd
grep -q other /etc/passwd
rm /bin/vi
[ ! -e /bin/vi ]
echo $(ls /srv) $(ls /srv/b | wc -l) done
EOF
}

# static IMAGE NAME EXPECTED: as `try`, for programs that can have no library.
static() {
    image=$1 name=$2 expected=$3
    cat >"$scratch/script"
    said=$(timeout 200 "$POLYLANE" container run --rm -v "$scratch/script:/script:ro" "$image" \
        /bin/sh -eu /script 2>"$scratch/log" | tail -n 1) || true
    if [ "$said" = "$expected" ]; then
        echo "| $image | $name | yes | static |"
    else
        status=1
        echo "| $image | $name | NO: $said | static |"
        tail -n 15 "$scratch/log" >&2
    fi
}

musl_root() {
    loader=$(ls /lib/ld-musl-*.so.1 2>/dev/null || true)
    if [ -z "$loader" ] || ! command -v musl-gcc >/dev/null; then
        skip "musl: no C library musl, or no musl-gcc"
        return
    fi
    if [ ! -e "$(dirname "$POLYLANE")/libpolylane-musl.so" ]; then
        skip "musl: libpolylane-musl.so is not built"
        return
    fi
    root=$scratch/musl
    mkdir -p "$root/bin" "$root/lib" "$root/etc" "$root/tmp"
    cp -L "$loader" "$root/lib/"
    cp "$(command -v busybox)" "$root/bin/busybox"
    chroot "$root" /bin/busybox --install -s /bin
    cat >"$scratch/works.c" <<'EOF'
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(void) {
    char line[4096], name[64], text[8] = "";
    int fast = 0, sum = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) fast |= strstr(line, "libpolylane") != NULL;
    printf("library: %s\n", fast ? "yes" : "no");
    mkdir("/srv", 0755);
    for (int n = 0; n < 500; n++) {
        snprintf(name, sizeof name, "/srv/%d", n);
        int file = open(name, O_CREAT | O_RDWR, 0644);
        if (write(file, "seven", 5) != 5 || lseek(file, 0, SEEK_SET)) return 1;
        sum += read(file, text, 5);
        close(file);
        if (n % 2 && unlink(name)) return 1;
    }
    printf("%s %d\n", text, sum);
    return 0;
}
EOF
    musl-gcc -O1 -o "$root/bin/works" "$scratch/works.c"
    "$POLYLANE" image import "$root" musl >/dev/null
    try musl files none 'seven 2500' <<'EOF'
exec /bin/works
EOF
}

for kind in ${CONTAINERS:-debian busybox musl}; do
    case $kind in
    debian) debian ;;
    busybox) busybox_root ;;
    musl) musl_root ;;
    *)
        echo "test-containers: $kind: not one of debian, busybox, musl" >&2
        exit 2
        ;;
    esac
done
exit $status

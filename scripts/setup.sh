#!/bin/sh
# Makes a Debian 12 machine ready: scripts/setup.sh build|demo|test|apps|suites|containers|ceph|guest …
# Asks for what is missing only; a tool that is already there, from wherever, is left alone.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

missing=
# need PACKAGE COMMAND…: the package goes on the list when the command fails.
need() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
tool() { command -v "$1" || [ -x "/sbin/$1" ] || [ -x "/usr/sbin/$1" ] || ls /usr/lib/postgresql/*/bin/"$1"; }

need_build() {
    need gcc tool cc
    need libc6-dev test -e /usr/include/stdio.h
    need make tool make
    # rustup is fetched with curl.
    rust_is_good || need curl tool curl
    rust_is_good || need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
}

need_demo() {
    need git tool git
    need sqlite3 tool sqlite3
    need e2fsprogs tool mkfs.ext4
    need xfsprogs tool mkfs.xfs
    need btrfs-progs tool mkfs.btrfs
}

need_test() {
    for name in acl:getfacl attr:setfattr busybox-static:busybox btrfs-progs:mkfs.btrfs bzip2:bzip2 \
        e2fsprogs:mke2fs fio:fio gawk:awk git:git golang-go:go procps:pgrep redis-tools:redis-benchmark rsync:rsync sqlite3:sqlite3 \
        libnbd-bin:nbdcopy nbdkit:nbdkit qemu-utils:qemu-img strace:strace valgrind:valgrind util-linux:unshare xfsprogs:mkfs.xfs \
        xz-utils:xz; do
        need "${name%%:*}" tool "${name##*:}"
    done
    # Programs of tests/tests/longtail; where one is missing, its test says so.
    need libaio-dev test -f /usr/include/libaio.h
    need liburing-dev test -f /usr/include/liburing.h
    need libjemalloc2 sh -c 'ls /usr/lib/*/libjemalloc.so.2'
    need musl-tools tool musl-gcc
    need python3 test -x /usr/bin/python3
    version=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' || echo 3.11)
    need "libpython$version-testsuite" /usr/bin/python3 -c 'import test.test_os'
}

need_apps() {
    for name in curl:curl debootstrap:debootstrap default-jdk-headless:javac etcd-server:etcd mariadb-server:mariadbd nginx-light:nginx \
        nodejs:node npm:npm postgresql:initdb postgresql-contrib:pgbench redis-server:redis-server rocksdb-tools:db_bench \
        sysbench:sysbench wrk:wrk; do
        need "${name%%:*}" tool "${name##*:}"
    done
}

# The sources of libuv and git come from the archive when they are built: tests/suites.
need_suites() {
    need cmake tool cmake
    need dpkg-dev tool dpkg-source
    need zlib1g-dev test -e /usr/include/zlib.h
}

need_containers() {
    need busybox-static tool busybox
    need mmdebstrap tool mmdebstrap
    need musl-tools tool musl-gcc
    need runc tool runc
}

# A cluster, the library that lanes use, and the client that they are compared with.
need_ceph() {
    for name in ceph-mon:ceph-mon ceph-mgr:ceph-mgr ceph-osd:ceph-osd ceph-mds:ceph-mds ceph-common:rbd ceph-fuse:ceph-fuse; do
        need "${name%%:*}" tool "${name##*:}"
    done
    need libcephfs2 sh -c 'ls /usr/lib/*/libcephfs.so.2'
}

# Kernels come from the archive when a kit is made: tests/guest/kit.sh.
need_guest() {
    need qemu-system-x86 tool qemu-system-x86_64
    need busybox-static tool busybox
    need xz-utils tool xz
}

install_missing() {
    [ -n "$missing" ] || return 0
    root=
    if ! command -v apt-get >/dev/null; then
        echo "setup: no apt-get here; please install what these packages hold:$missing" >&2
        return 1
    fi
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "setup: not root and no sudo; please run: apt-get install$missing" >&2
            return 1
        fi
        root=sudo
    fi
    echo "setup: installing$missing" >&2
    $root apt-get update -qq || echo "setup: apt-get update failed; trying with what it knows" >&2
    # shellcheck disable=SC2086 # a list of words
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        $missing >/dev/null
}

wanted_rust() { sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/Cargo.toml"; }

# Whether cargo, clippy and rustfmt are there and rustc is new enough.
rust_is_good() {
    have=$(cd "$here" && rustc --version 2>/dev/null | cut -d' ' -f2)
    [ -n "$have" ] || return 1
    oldest=$(printf '%s\n%s\n' "$(wanted_rust)" "$have" | sort -V | head -n 1)
    [ "$oldest" = "$(wanted_rust)" ] || return 1
    cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1
}

install_rust() {
    rust_is_good && return 0
    echo "setup: installing the stable Rust toolchain with rustup" >&2
    if command -v rustup >/dev/null; then
        rustup toolchain install stable --profile minimal -c clippy -c rustfmt >&2 &&
            rustup default stable >&2
    else
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
            sh -s -- -y --profile minimal -c clippy -c rustfmt >&2
    fi || true
    rust_is_good && return 0
    echo "setup: Rust $(wanted_rust) or newer with clippy and rustfmt is needed, and rustup could" \
        "not install it; please install it and run make again" >&2
    return 1
}

[ $# -gt 0 ] || set -- build
for what in "$@"; do
    case $what in
    build | demo | test | apps | suites | containers | ceph | guest) "need_$what" ;;
    *)
        echo "usage: scripts/setup.sh build|demo|test|apps|suites|containers|ceph|guest …" >&2
        exit 2
        ;;
    esac
done
# Without a compiler nothing works; without a program that a test runs, that test says so and is
# skipped.
install_missing || if tool cc >/dev/null && tool make >/dev/null; then
    echo "setup: going on without:$missing" >&2
else
    exit 1
fi
install_rust
# For libpolylane-musl.so; without it programs for musl use FUSE.
if command -v rustup >/dev/null && command -v musl-gcc >/dev/null; then
    rustup target add "$(uname -m)-unknown-linux-musl" >/dev/null 2>&1 || true
fi

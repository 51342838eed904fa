#!/bin/sh
# Starts a small Ceph cluster, runs what needs one, stops it. Ends with 0 when everything passed.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
cd "$here"
if ! ls /usr/lib/*/libcephfs.so.2 >/dev/null 2>&1 || ! command -v ceph-osd >/dev/null; then
    echo "skipped: test-ceph: Ceph's packages could not be installed" >&2
    exit 0
fi
cluster=$(mktemp -d /var/tmp/polylane-ceph.XXXXXX)
# A network on which tests have other hosts, where this one may make one.
bridge=plceph$$
if ip link add "$bridge" type bridge 2>/dev/null; then
    export ADDRESS="10.97.$(($$ % 250)).1"
    ip addr add "$ADDRESS/24" dev "$bridge"
    ip link set "$bridge" up
fi
stop() {
    tests/ceph/cluster.sh stop "$cluster"
    ip link del "$bridge" 2>/dev/null || true
    rm -rf "$cluster"
}
trap stop EXIT
trap 'exit 130' INT TERM
tests/ceph/cluster.sh start "$cluster" >&2
export CEPH_CLUSTER="$cluster"
# POLYLANE_CEPH_ALL: also what is for tables alone, and what each suite says, as in a campaign.
all=${POLYLANE_CEPH_ALL:+--include-ignored --nocapture}
tests() { # threads, programs …
    threads=$1
    shift
    # shellcheck disable=SC2086 # words
    cargo test --quiet --release --package polylane-tests "$@" -- --test-threads "$threads" $all
}
cargo test --quiet --release --package polylane-ceph
tests 2 --test ceph --test ceph_client --test ceph_containers --test ceph_hosts --test ceph_killed --test ceph_suites \
    --test rbd
# Each of these changes the cluster.
tests 1 --test ceph_loss

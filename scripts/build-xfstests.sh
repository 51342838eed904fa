#!/bin/sh
# Fetches xfstests at a pinned revision and builds it in OUT, unless it is there. Its tests are run as they are: nothing
# of it (GPL-2.0) is in this repository. XFSTESTS_SOURCE: where from. Ends with 77, and says why, where it cannot be had.
# Wants autoconf automake bison flex gcc libtool-bin make pkg-config xfslibs-dev uuid-dev libacl1-dev libattr1-dev
# libaio-dev libgdbm-dev liburing-dev of Debian 12.
set -eu
[ $# = 1 ] || { echo "usage: $0 OUT" >&2; exit 2; }
revision=63a29724a85f1999e49bf0a9bf0d22643b6116e5
source=${XFSTESTS_SOURCE:-https://github.com/kdave/xfstests}
mkdir -p "$1"
cd "$1"
[ "$(cat built 2>/dev/null)" != "$revision" ] || exit 0
because() { echo "xfstests $1" >&2; exit 77; }
git init -q .
git fetch -q --depth 1 "$source" "$revision" 2>fetched || because "cannot be fetched: $(tail -n 1 fetched)"
git checkout -q -f FETCH_HEAD
make -j"$(nproc)" >made 2>&1 || because "cannot be built: see $PWD/made, and the packages in scripts/build-xfstests.sh"
echo "$revision" >built

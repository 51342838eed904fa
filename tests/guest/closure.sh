#!/bin/sh
# closure.sh ROOT PROGRAM: copies a program into ROOT/bin, and the libraries that it loads to where
# it looks for them.
set -eu
root=$1 program=$2
mkdir -p "$root/bin"
cp -L "$program" "$root/bin/"
ldd "$program" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done

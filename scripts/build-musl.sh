#!/bin/sh
# Builds libpolylane-musl.so, the library for programs of the C library musl, beside libpolylane.so, where
# the toolchain has that target (rustup target add) and musl-gcc is there. Where not, it says so, and such programs use
# FUSE.
set -eu

target=$(uname -m)-unknown-linux-musl
into=${CARGO_TARGET_DIR:-target}
sysroot=$(rustc --print sysroot)
if ! [ -d "$sysroot/lib/rustlib/$target" ] || ! command -v musl-gcc >/dev/null; then
    echo "build: without a library for musl: no musl-gcc, or no target $target" >&2
    exit 0
fi
name=$(echo "$target" | tr a-z- A-Z_)
export "CARGO_TARGET_${name}_LINKER=musl-gcc" \
    "CARGO_TARGET_${name}_RUSTFLAGS=-C target-feature=-crt-static"
cargo build --release --quiet --package polylane-client --target "$target" --target-dir "$into"
ln -f "$into/$target/release/libpolylane.so" "$into/release/libpolylane-musl.so"

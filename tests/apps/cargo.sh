# cargo: a workspace of a library and a program is built, tested, changed and built again.
export CARGO_HOME=${CARGO_HOME:-$HOME/.cargo} CARGO_TARGET_DIR=
unset CARGO_TARGET_DIR
mkdir work && cd work
cargo init --quiet --vcs none --lib sums
cargo init --quiet --vcs none --bin shout
printf '[workspace]\nresolver = "2"\nmembers = ["sums", "shout"]\n' >Cargo.toml
echo 'sums = { path = "../sums" }' >>shout/Cargo.toml
echo 'fn main() { println!("{}", sums::add(40, 2)); }' >shout/src/main.rs
cargo build --quiet --offline
$OTHER target/debug/shout | grep -qx 42
cargo test --quiet --offline >test.log 2>&1
sed -i 's/left + right/left + right + 1/' sums/src/lib.rs
$OTHER cargo build --quiet --offline --release
target/release/shout | grep -qx 43
echo "$(find target -type f | wc -l) files"

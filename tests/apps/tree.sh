# A tree as large as the kernel's sources, 100 000 files in 5000 directories: unpacked, compared byte by byte, removed.
tree=$CACHE/tree.tar
[ -e "$tree" ] || /usr/bin/python3 - "$tree.new" <<'END'
import io, random, sys, tarfile
chance = random.Random(1)
with tarfile.open(sys.argv[1], "w") as tar:
    for number in range(100_000):
        data = chance.randbytes(min(int(chance.expovariate(1 / 4000)), 60_000))
        info = tarfile.TarInfo(f"tree/d{number % 50}/d{number // 50 % 100}/file-{number}.c")
        info.size, info.mtime, info.mode = len(data), 1_000_000_000 + number, 0o644 | number % 8
        tar.addfile(info, io.BytesIO(data))
END
[ -e "$tree" ] || mv "$tree.new" "$tree"
begin=$(date +%s)
tar -xf "$tree"
sync -f .
unpacked=$(date +%s)
$OTHER tar --compare -f "$tree"
test "$(find tree -type f | wc -l)" = 100000
test "$($OTHER find tree -type d | wc -l)" = 5051
removing=$(date +%s)
rm -r tree
test -z "$(ls)"
echo "unpacked in $((unpacked - begin)) s, removed in $(($(date +%s) - removing)) s"

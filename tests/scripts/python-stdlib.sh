# The standard library's own tests of files, with every temporary file in the lane.
# Prints each test that did not pass, and how many ran.
mkdir tmp
cd tmp
export TMPDIR="$PWD"
export PYTHONDONTWRITEBYTECODE=1
for name in test_os test_io test_shutil test_tempfile test_mmap test_fcntl test_pathlib; do
    /usr/bin/python3 -m unittest -v "test.$name" >"../$name.out" 2>&1 || true
    sed -n 's/^\(ERROR\|FAIL\): \(.*\)$/\1 \2/p' "../$name.out" | sort -u
    sed -n "s/^Ran \([0-9]*\) tests in .*/$name ran \1/p" "../$name.out"
    grep -E '^(OK|FAILED)' "../$name.out" | sed "s/^/$name /"
done

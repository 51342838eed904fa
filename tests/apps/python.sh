# Python's own tests with every temporary file in the lane; those that fail on a tmpfs too are not counted.
export TMPDIR=$PWD/tmp PYTHONDONTWRITEBYTECODE=1
mkdir tmp
missing=
cd tmp
for name in test_os test_io test_shutil test_tempfile test_subprocess test_mmap test_asyncio test_sqlite3; do
    # Debian's package leaves some modules out.
    /usr/bin/python3 -c "import test.$name" 2>/dev/null || { missing="$missing, no $name"; continue; }
    case $name in test_shutil | test_mmap) prefix=$OTHER ;; *) prefix= ;; esac
    timeout 400 $prefix /usr/bin/python3 -m test -q --timeout 300 $name >../$name.out 2>&1 ||
        timeout 400 $prefix /usr/bin/python3 -m test -v --timeout 300 $name >../$name.out 2>&1 || {
        echo "$name: $(sed -n 's/^\(ERROR\|FAIL\): \([^ ]*\).*/\2/p' ../$name.out | sort -u | head -8 | paste -sd' ')"
    }
done >../failures
cat ../failures
test ! -s ../failures
echo "all pass$missing"

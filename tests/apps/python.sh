# Python's own tests with every temporary file in the lane. POLYLANE_PYTHON is for the modules that Debian's package
# leaves out: a Python that has them.
export TMPDIR=$PWD/tmp PYTHONDONTWRITEBYTECODE=1
mkdir tmp
missing=
cd tmp
for name in test_os test_io test_shutil test_tempfile test_subprocess test_mmap test_asyncio test_sqlite3; do
    for python in /usr/bin/python3 ${POLYLANE_PYTHON-}; do
        ! $python -c "import test.$name" >/dev/null 2>&1 || break
        python=
    done
    [ -n "$python" ] || { missing="$missing, no $name"; continue; }
    case $name in test_shutil | test_mmap | test_sqlite3) prefix=$OTHER ;; *) prefix= ;; esac
    timeout 400 $prefix $python -m test -q --timeout 300 $name >../$name.out 2>&1 ||
        timeout 400 $prefix $python -m test -v --timeout 300 $name >../$name.out 2>&1 || {
        echo "$name: $(sed -n 's/^\(ERROR\|FAIL\): \([^ ]*\).*/\2/p' ../$name.out | sort -u | head -8 | paste -sd' ')"
    }
done >../failures
cat ../failures
test ! -s ../failures
echo "all pass$missing"

# CPython's own tests of files, as Debian's libpythonX.Y-testsuite has them; a module that is not there is left out.
case $1 in
prepare)
    /usr/bin/python3 -c 'import test.test_os' 2>/dev/null || { echo "no libpython3-testsuite"; exit 77; }
    ;;
run)
    mkdir tmp
    cd tmp
    export TMPDIR="$PWD" PYTHONDONTWRITEBYTECODE=1
    for name in test_os test_posix test_posixpath test_genericpath test_shutil test_tempfile test_fcntl test_io test_file \
        test_fileio test_bufio test_fileinput test_mmap test_zipfile test_tarfile test_glob test_fnmatch test_pathlib \
        test_largefile test_stat test_subprocess test_dbm_dumb test_shelve test_filecmp test_linecache test_gzip test_bz2 \
        test_zipimport test_mailbox test_getpath test_runpy test_py_compile test_compileall test_sqlite3; do
        timeout --kill-after=5 400 /usr/bin/python3 "$SUITES/cpython.py" "test.$name" || echo "$name: status $?"
    done
    ;;
esac

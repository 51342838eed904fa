# gVisor's tests of system calls (its test/syscalls/linux): POLYLANE_GVISOR is a folder of their programs, built before
# (docs/HACKING.md). Each test is a process of its own.
case $1 in
prepare)
    [ -d "${POLYLANE_GVISOR-}" ] || { echo "no POLYLANE_GVISOR"; exit 77; }
    ;;
run)
    here=$PWD
    mkdir tmp
    export TEST_TMPDIR="$here/tmp" TMPDIR="$here/tmp" GTEST_COLOR=no
    cd tmp
    for program in "$POLYLANE_GVISOR"/*; do
        name=${program##*/}
        case $name in *_workload | exec_check_creds) continue ;; esac
        "$program" --gtest_list_tests 2>/dev/null | sed 's/ *#.*//' |
            awk -v name="$name" '/^[^ ]/ { group = $1 } /^ / { print name "/" group $1 }'
    done | grep -v '/.*DISABLED_' >"$here/names"
    [ -z "${ONLY-}" ] || cp "$ONLY" "$here/names"
    while read -r test; do
        status=0
        timeout --kill-after=2 60 "$POLYLANE_GVISOR/${test%%/*}" --gtest_filter="${test#*/}" >"$here/said" 2>&1 </dev/null ||
            status=$?
        if [ "$status" != 0 ]; then
            echo "fail $test" >>"$RESULTS"
            grep -A6 'Failure' "$here/said" | sed "s,^,$test: ," >&2 || echo "$test: status $status" >&2
        elif ! grep -q 'SKIPPED' "$here/said"; then
            echo "pass $test" >>"$RESULTS"
        fi
        rm -rf "$here/tmp"/* 2>/dev/null || true
    done <"$here/names"
    ;;
esac

# gVisor's tests of system calls (its test/syscalls/linux): POLYLANE_GVISOR is a folder of their programs, built before
# (docs/HACKING.md). What a program that died did not come to is run test by test.
case $1 in
prepare)
    [ -d "${POLYLANE_GVISOR-}" ] || { echo "no POLYLANE_GVISOR"; exit 77; }
    ;;
run)
    here=$PWD
    mkdir tmp
    export TEST_TMPDIR="$here/tmp" TMPDIR="$here/tmp" GTEST_COLOR=no
    cd tmp
    # The tests of PROGRAM that the filter lets pass, and of each that ended its outcome in $RESULTS.
    run() { # PROGRAM FILTER SECONDS
        timeout --kill-after=2 "$3" "$POLYLANE_GVISOR/$1" --gtest_filter="$2" >"$here/said" 2>&1 </dev/null || true
        sed -nE "s,^\[       OK \] ([^ ]*) .*,pass $1/\1,p; s,^\[  FAILED  \] ([^ ]*) .* ms\)\$,fail $1/\1,p
            s,^\[  SKIPPED \] ([^ ]*) .*,skip $1/\1,p" "$here/said" | sed 's/, where .*//' >"$here/outcomes"
        cat "$here/outcomes" >>"$RESULTS"
        sed "s,^,$1: ," "$here/said" | grep -v '\[ RUN\|\[       OK' >&2 || true
        awk -v under="$here/tmp/" 'index($2, under) == 1 { print $2 }' /proc/mounts | xargs -r umount -l
        rm -rf "$here/tmp"/* 2>/dev/null || true
    }
    : >"$here/left"
    for program in "$POLYLANE_GVISOR"/*; do
        name=${program##*/}
        # Programs that tests start.
        case $name in *_workload | exec_check_creds) continue ;; esac
        [ -z "${ONLY-}" ] || continue
        run "$name" '*' 300
        "$program" --gtest_list_tests | sed 's/ *#.*//' |
            awk -v name="$name" '/^[^ ]/ { group = $1 } /^ / { print name "/" group $1 }' | grep -v '[./]DISABLED_' >"$here/names"
        sed 's/^[a-z]* //' "$here/outcomes" | grep -vxFf - "$here/names" >>"$here/left" || true
    done
    [ -z "${ONLY-}" ] || cp "$ONLY" "$here/left"
    while read -r test; do
        run "${test%%/*}" "${test#*/}" 90
        [ -s "$here/outcomes" ] || echo "fail $test" >>"$RESULTS"
    done <"$here/left"
    ;;
esac

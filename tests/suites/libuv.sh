# libuv's tests of files, directories, watches, pipes and processes, from Debian's source package, each by itself.
case $1 in
prepare)
    . "$SUITES/debian-source"
    [ -x "$BUILT/out/uv_run_tests" ] || {
        debian_source libuv1
        cmake -S "$BUILT/source" -B "$BUILT/out" -DBUILD_TESTING=ON >&2
        cmake --build "$BUILT/out" --parallel "$(nproc)" --target uv_run_tests >&2
    }
    ;;
run)
    program="$BUILT/out/uv_run_tests"
    mkdir test
    cp -R "$BUILT/source/test/fixtures" test/fixtures
    export TMPDIR="$PWD/test"
    export UV_RUN_AS_ROOT=1
    "$program" --list | sed 's/ .*//' | grep -E '^(fs_|spawn_|pipe_|tmpdir|homedir|cwd|get_passwd|dlerror|fork_|handle_|loop_|signal|strscpy|tty)' >names
    for name in $(if [ -n "${ONLY-}" ]; then cat "$ONLY"; else cat names; fi); do
        status=0
        timeout --kill-after=5 60 "$program" "$name" >said 2>&1 || status=$?
        case $status in
        0) echo "pass $name" ;;
        *)
            echo "fail $name"
            sed "s/^/$name: /" said >&2
            ;;
        esac >>"$RESULTS"
    done
    ;;
esac

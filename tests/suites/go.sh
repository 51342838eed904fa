# Go's tests of its packages for files and programs, as the installed Go has them; a test and its parts count as one.
go=${POLYLANE_GO:-$(command -v go || true)}
case $1 in
prepare)
    root=$("$go" env GOROOT 2>/dev/null) || { echo "no go"; exit 77; }
    [ -e "$root/src/os/os_test.go" ] || { echo "no tests in $root"; exit 77; }
    ;;
run)
    mkdir tmp
    export TMPDIR="$PWD/tmp" GOTMPDIR="$PWD/tmp" GOCACHE="$BUILT/cache" GOFLAGS=-mod=readonly
    cd "$("$go" env GOROOT)/src"
    only=
    if [ -n "${ONLY-}" ]; then only="-run=^($(sed 's,.*/,,' "$ONLY" | paste -sd'|'))\$"; fi
    "$go" test -count=1 -vet=off -json -timeout $((600 * ${POLYLANE_APPS_PATIENCE:-1}))s ${only:+"$only"} os os/exec os/signal os/user io io/fs io/ioutil \
        path/filepath syscall embed archive/tar archive/zip bufio mime/multipart text/template html/template >"$TMPDIR/said" || true
    sed -nE 's/.*"Action":"(pass|fail)","Package":"([^"]*)","Test":"([^"/]*)".*/\1 \2\/\3/p' "$TMPDIR/said" >>"$RESULTS"
    cat "$TMPDIR/said"
    ;;
esac

# Some of git's own tests, from Debian's source package: refs, index, work tree, objects, packs, merges, rebases.
case $1 in
prepare)
    . "$SUITES/debian-source"
    [ -x "$BUILT/source/git" ] || {
        debian_source git
        make -C "$BUILT/source" -s -j"$(nproc)" CFLAGS=-O0 NO_CURL=1 NO_EXPAT=1 NO_GETTEXT=1 NO_TCLTK=1 NO_PYTHON=1 \
            NO_OPENSSL=1 all >&2
    }
    ;;
run)
    here=$PWD
    mkdir trash
    cd "$BUILT/source/t"
    if [ -n "${ONLY-}" ]; then names=$(sed 's/ .*//' "$ONLY" | sort -u); else
        names='t0000-basic t0001-init t0003-attributes t0008-ignores t0021-conversion t0050-filesystem
            t0060-path-utils t1006-cat-file t1050-large t1300-config t1400-update-ref t1404-update-ref-errors
            t1410-reflog t1450-fsck t1501-work-tree t2021-checkout-overwrite t2107-update-index-basic t2200-add-update
            t2400-worktree-add t3001-ls-files-others-exclude t3200-branch t3700-add t3903-stash t4001-diff-rename
            t5300-pack-object t5302-pack-index t5304-prune t6500-gc t7001-mv t7300-clean t7508-status'
    fi
    for name in $names; do
        timeout --kill-after=5 600 sh "./$name.sh" --root="$here/trash" --no-bin-wrappers >"$here/said" 2>&1 || true
        # "# SKIP" and "# TODO" are neither.
        sed -nE "/# (skip|SKIP|TODO)/d; s/^ok ([0-9]+).*/pass $name \1/p; s/^not ok ([0-9]+).*/fail $name \1/p" \
            "$here/said" >>"$RESULTS"
        grep -A30 '^not ok' "$here/said" >&2 || true
    done
    ;;
esac

cat t/a/b/text t/c/empty
cat -A t/c/binary
cat t || echo $?
cat no || echo $?
cat <t/a/numbers | md5sum
cat t/a/numbers >>t/c/empty
cat t/c/empty | wc
cat -n t/soft
cat t/c/big t/c/big >two
stat -c %s two
cat t/dangling || echo $?

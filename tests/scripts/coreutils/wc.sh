wc t/a/numbers t/a/b/text t/c/empty t/c/binary
wc -L t/a/b/text
wc -c <t/c/big
wc no || echo $?
wc t || echo $?
cat t/a/numbers | wc -l

df --output=target . | tail -1
df -a . >/dev/null && echo ok
df t/a/numbers >/dev/null && echo ok
sync
sync t/c/big
sync -f .

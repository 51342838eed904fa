mknod n c 1 3
mknod b b 7 0
stat -c '%F %t %T' n b

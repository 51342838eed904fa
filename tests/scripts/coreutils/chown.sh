chown 12:34 t/a/numbers
stat -c %u:%g t/a/numbers
chown :56 t/c
stat -c %u:%g t/c
chown -h 7 t/soft
stat -c %u t/soft t/a/b/text
chmod 6755 t/c/big
chown 1 t/c/big
stat -c %a t/c/big
chown -R 3:4 t
find t -not -user 3 -o -not -group 4
chgrp 9 t/c
stat -c %g t/c
chown 1 no || echo $?

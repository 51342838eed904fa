truncate -s 10 a
stat -c '%s %b' a
echo abc >b
truncate -s 2 b
cat b
echo
truncate -s +5 b
od -c b
truncate -s 1T h
stat -c %s h
truncate -s 0 h
fallocate -l 1M f
stat -c '%s %b' f
fallocate -p -o 0 -l 512K f
stat -c '%s %b' f
fallocate -n -l 2M f
stat -c %s f
truncate -s -1 t/c/empty
truncate -s 1 t || echo $?

exec 3>f 4<f
echo one >&3
cat <&4
rm f
echo two >&3
cat <&4
exec 3>&-
cat f || echo $?
{ echo a; sh -c 'echo b'; echo c; } >g
cat g
(echo d; busybox echo e; echo f) >>g
cat g
exec 5<>g
read -r x <&5
echo $x
echo Z >&5
cat g
: >g
cat /proc/self/fd/5
head -c 3 t/a/b/text
flock g echo locked
( flock 9; echo held; flock -n g true || echo busy ) 9>g
mkfifo p
(echo through >p) & cat p

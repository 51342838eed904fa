chmod 755 . t t/a
chmod 640 t/a/numbers
chmod 700 t/c
mkdir -m 1777 pub
: >pub/mine
chmod 666 pub/mine
su="setpriv --reuid=65534 --regid=65534 --clear-groups"
$su cat t/a/numbers || echo $?
$su ls t/c || echo $?
$su touch new || echo $?
$su touch pub/theirs
stat -c %u:%g pub/theirs
$su rm -f pub/mine || echo $?
$su sh -c 'echo more >>pub/mine'
cat pub/mine
$su mv pub/mine pub/x || echo $?
$su chmod 600 t/a/numbers || echo $?
$su chown 65534 t/a/b/text || echo $?
chown :77 t/a/numbers
setpriv --reuid=65534 --regid=65534 --groups=77 head -1 t/a/numbers
$su test -r t/a/numbers || echo no
$su test -x t/a && echo yes

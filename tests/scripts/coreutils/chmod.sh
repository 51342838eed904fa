chmod 4755 t/a/numbers
stat -c %A t/a/numbers
echo >>t/a/numbers
stat -c %A t/a/numbers
chmod g+s,o= t/a
stat -c %A t/a
mkdir t/a/sub
stat -c %A t/a/sub
chmod -R a+rX t
stat -c '%A %n' t/c/big t/c
chmod 1777 t
stat -c %A t
chmod x t 2>/dev/null || echo $?
chmod 600 no || echo $?
chmod u=,g=,o= t/c/big
stat -c %a t/c/big
chmod 600 t/dangling || echo $?
chmod -v 711 t/c
chmod --reference=t/c t/a/numbers
stat -c %a t/a/numbers

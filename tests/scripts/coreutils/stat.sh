stat -c '%F %A %h %s %n' t/a/numbers t/a/b/text t/soft t/dangling t/c/empty
stat -c '%F %h' t t/a
stat -L -c '%F %s' t/soft
stat -L t/dangling || echo $?
stat -c %y t/c/big
stat -f -c '%l' .
stat no || echo $?
stat t/a/numbers/x || echo $?
mkfifo p
stat -c "%F %t %T" p
stat -c '%u:%g' t

readlink t/soft
readlink t/dangling
readlink t/a || echo $?
readlink no || echo $?
readlink -f t/soft
readlink -e t/dangling || echo $?
readlink -m t/x/../y
ln -s $(printf %04000d 0) long
readlink long | wc -c
ln -s '' e || echo $?
readlink -n t/soft

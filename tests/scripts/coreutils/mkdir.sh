mkdir a a/b
mkdir -p x/y/z
mkdir -m 700 m
stat -c '%A %n' a a/b x/y/z m
mkdir a || echo $?
mkdir no/such || echo $?
umask 077
mkdir u
stat -c %a u
mkdir $(printf %0255d 0)
mkdir $(printf %0256d 0) || echo $?

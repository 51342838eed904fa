printf '#!/bin/sh\necho script $1\n' >s
./s x || echo $?
chmod +x s
./s x
cp /bin/echo e
./e binary
cp /bin/busybox busybox.copy
./busybox.copy echo static
mkdir bin
cp /bin/true bin/mytrue
PATH=$PWD/bin:$PATH mytrue && echo found
./t/a/numbers || echo $?
./no || echo $?
chmod -x e
./e || echo $?
cd t/a
../../s up
. ../../s sourced

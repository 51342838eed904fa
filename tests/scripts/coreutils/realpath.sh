realpath t/soft t/a/../c/./big
realpath --relative-to=t/a t/c
realpath -e no || echo $?
cd t/a/b
realpath .
realpath ../../..
ln -s ../../c c
cd c
pwd
pwd -P
realpath .

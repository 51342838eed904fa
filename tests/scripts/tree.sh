mkdir -p t/a/b t/c
seq 1 2000 >t/a/numbers
printf 'one\ntwo words\n\nlast' >t/a/b/text
head -c 100000 /dev/zero | tr '\0' x >t/c/big
: >t/c/empty
printf '\0\1\377' >t/c/binary
ln -s a/b/text t/soft
ln t/a/numbers t/hard
ln -s nowhere t/dangling
: >'t/c/odd name$'
chmod 640 t/a/numbers
chmod 750 t/c
touch -d '2001-02-03 04:05:06' t/a/b/text t/c/big

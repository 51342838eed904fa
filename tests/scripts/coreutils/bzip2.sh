cp t/a/numbers n
bzip2 -k n
bzip2 -t n.bz2
rm n
bunzip2 n.bz2
cmp n t/a/numbers && echo same
bzip2 n
stat -c %a n.bz2
bzcat n.bz2 | md5sum
bzip2 n || echo $?
: >n
bunzip2 n.bz2 || echo $?
gzip -k t/c/big
gunzip -c t/c/big.gz | cmp - t/c/big && echo same
xz -T1 -k t/c/big && xz -t t/c/big.xz

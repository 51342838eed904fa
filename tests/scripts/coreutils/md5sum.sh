md5sum t/a/numbers t/c/*
md5sum t/a/numbers t/c/big >sums
md5sum -c sums
echo x >>t/c/big
md5sum -c sums || echo $?
md5sum t || echo $?
sha256sum t/c/big
cksum t/a/numbers
sum t/c/binary

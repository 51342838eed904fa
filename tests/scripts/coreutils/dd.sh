dd if=/dev/zero of=z bs=4k count=3 status=none
stat -c %s z
dd if=t/a/numbers of=z bs=7 seek=100 skip=10 count=50 conv=notrunc status=none
md5sum z
dd if=z of=y bs=1000 conv=sync status=none
stat -c %s y
dd if=z of=s bs=1 seek=1M count=0 status=none
stat -c '%s %b' s
dd if=z bs=512 iflag=fullblock count=2 status=none | md5sum
dd of=z oflag=append conv=notrunc if=t/a/b/text status=none
tail -c 5 z
cp z w
dd if=no of=x || echo $?
dd if=t/c/big of=d bs=4k oflag=dsync status=none
cmp t/c/big d

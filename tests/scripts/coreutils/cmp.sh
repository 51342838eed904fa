cp t/c/big b
cmp b t/c/big && echo same
printf y | dd of=b bs=1 seek=70000 conv=notrunc status=none
cmp b t/c/big || echo $?
cmp -l b t/c/big || echo $?
cmp b no || echo $?
truncate -s 5 b
cmp b t/c/big || echo $?

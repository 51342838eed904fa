base64 t/c/binary
base64 t/c/big >e
base64 -d e | cmp - t/c/big && echo same
md5sum e
base64 -d t/c/binary || echo $?
base64 no || echo $?

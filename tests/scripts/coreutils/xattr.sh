getfattr -d t/a || echo $?
setfattr -n security.polylane -v value t/a/numbers
getfattr -n security.polylane t/a/numbers
setfattr -n trusted.x -v 0x0001ff t/c
getfattr -m - -d -e hex t/c
setfattr -x trusted.x t/c
getfattr -m - -d t/c
getfattr -n trusted.none t/c || echo $?
cp --preserve=xattr t/a/numbers n
getfattr -m - -d n

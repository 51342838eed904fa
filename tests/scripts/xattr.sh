# Extended attributes of users: all of them on files and directories, none on links.
setfattr -n user.a -v value t/a/numbers
getfattr -n user.a t/a/numbers
setfattr -n user.b -v 0x0001ff t/c
setfattr -n user.empty t/c
getfattr -d -e hex t/c
setfattr -x user.b t/c
getfattr -d t/c
getfattr -n user.none t/c || echo $?
setfattr -x user.none t/c || echo $?
setfattr -h -n user.a -v x t/soft || echo $?
cp --preserve=xattr t/a/numbers n
getfattr -d n
mv n m
ln m l
getfattr --only-values -n user.a l
echo
setfattr -n user.$(printf %0250d 0) -v long m
getfattr -d m | wc -c
setfattr -n user.$(printf %0251d 0) -v long m || echo $?
setfattr -n nothing.a -v x m || echo $?

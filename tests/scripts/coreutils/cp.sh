cp t/a/numbers n
cmp n t/a/numbers
cp -a t u
diff -r --no-dereference t u && echo same
stat -c '%a %Y' u/c/big
cp -r t/c v
ls v
cp t || echo $?
cp t x || echo $?
cp n n || echo $?
cp -l n l
stat -c %h n
cp -s t/a/numbers s
readlink s
cp --sparse=always t/c/big sp
cmp sp t/c/big
cp -p t/c/big p
stat -c %y p
cp -d t/soft d
readlink d
cp -u n p
cp --reflink=auto n r
cmp n r
cp --preserve=all -r t w
stat -c '%a %h' w/a/numbers
cp -T t/a/b/text n
cat n

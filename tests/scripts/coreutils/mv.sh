mv t/a/numbers t/n
ls t t/a
mv t/n t/c/
test -e t/c/n
mv t/c t/d
ls t/d
mv no x || echo $?
mv t t/d || echo $?
echo 1 >a
echo 2 >b
mv a b
cat b
echo 3 >c
mv -n c b
cat b
mkdir e
mv -T t/a e
ls e
mv b c e
ls e
mv t/soft s
readlink s
mkdir f
: >f/x
mv -T e f || echo $?
mv -v f g
mv --backup=numbered e/b e/c
ls e

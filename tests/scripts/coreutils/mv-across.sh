d=$(mktemp -d)
mv t/c/big t/a $d/
ls $d
mv $d/a .
diff -r a/b t/a || echo $?
ls a
mv $d/big .
stat -c '%s %Y' big
rmdir $d

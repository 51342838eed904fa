cp -r t u
diff -r --no-dereference t u
echo more >>u/a/b/text
rm u/c/empty
: >u/new
diff -r --no-dereference t u || echo $?
diff -q t/c/big u/c/big
diff t/c/binary t/c/empty || echo $?
diff t/a/numbers no || echo $?
seq 2 2001 >k
diff t/a/numbers k || echo $?

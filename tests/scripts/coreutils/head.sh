head -n 3 t/a/numbers
head -c 10 t/c/big
head -n -1998 t/a/numbers
head no || echo $?
head -n 1 t/a/numbers t/a/b/text

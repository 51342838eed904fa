rm t/soft
cat t/a/b/text
rm t/hard
wc -l t/a/numbers
rm t/c || echo $?
rm no || echo $?
rm -f no
rm -r t/c
ls t
rm -d t/a || echo $?
chmod 0 t/a/b/text
rm -f t/a/b/text
rm -rv t | sort
ls -A

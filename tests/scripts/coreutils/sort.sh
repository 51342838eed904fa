sort -rn t/a/numbers | head -3
sort t/a/numbers -o t/a/numbers
head -3 t/a/numbers
sort -u t/a/b/text
seq 1 60000 | sort -R --random-source=/dev/zero -S 100k -T . | sort -n -S 100k -T . | md5sum
ls
sort -c t/a/numbers
sort no || echo $?
split -n l/4 t/a/numbers part
sort -m part* | md5sum
comm -12 parta? 2>/dev/null || echo $?
